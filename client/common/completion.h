/* SPDX-License-Identifier: Apache-2.0 */
/* Shell completion, generated at build time from a tool's own tables: `TOOL --print-completion
 * bash`, zsh or fish. Pure functions of the tables. */
#pragma once

#include <stddef.h>
#include <stdio.h>

#include "options.h"

/* The tables of a tool. */
struct completion {
        const char *name;
        const struct command *const *commands;
        size_t n_commands;
};

typedef void (*completion_fn)(const struct completion *tool, FILE *out);

void completion_print_bash(const struct completion *tool, FILE *out);
void completion_print_zsh(const struct completion *tool, FILE *out);
void completion_print_fish(const struct completion *tool, FILE *out);

/* Returns the kind of words that completion requests from the tool, or NULL if `values`, a member
 * of struct option_row, lists the words or is NULL. */
static inline const char *completion_kind(const char *values)
{
        return values && *values == '@' ? values + 1 : NULL;
}

/* Returns the generator for a shell, or NULL if the shell is not supported. */
completion_fn completion_for(const char *shell);

/* SPDX-License-Identifier: Apache-2.0 */
/* Completion for a shell, printed from a tool's own tables, when it is built: `TOOL
 * --print-completion bash`, zsh or fish. Pure functions of the tables. */
#pragma once

#include <stddef.h>
#include <stdio.h>

#include "options.h"

/* What there is to complete. */
struct completion {
        const char *name; /* of the tool */
        const struct command *const *commands;
        size_t n_commands;
};

typedef void (*completion_fn)(const struct completion *tool, FILE *out);

void completion_print_bash(const struct completion *tool, FILE *out);
void completion_print_zsh(const struct completion *tool, FILE *out);
void completion_print_fish(const struct completion *tool, FILE *out);

/* NULL: there is none for this shell. */
completion_fn completion_for(const char *shell);

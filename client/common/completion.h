/* SPDX-License-Identifier: Apache-2.0 */
/* Completion for a shell, printed from a tool's own tables, when it is built: `TOOL
 * --print-completion bash`. Pure functions of the tables. */
#pragma once

#include <stdio.h>

#include "options.h"

void completion_print_bash(const char *tool, const struct command *const *commands,
                           size_t n_commands, FILE *out);

/* SPDX-License-Identifier: Apache-2.0 */
/* The main() of a tool: reads the options before the command, finds the command, runs it, and
 * reports output that could not be written. */
#pragma once

#include <stddef.h>

#include "options.h"

struct tool {
        const char *name;
        const char *about; /* lines of --help, under the usage */
        const struct command *const *commands;
        size_t n_commands;
        const char *exit_help;         /* lines of --help: what an exit status means */
        const char *other;             /* the tool beside it ... */
        const char *const *other_does; /* ... and the names of its commands, with NULL at the end */
};

/* The exit status of the process. */
int tool_main(const struct tool *tool, int argc, char **argv);

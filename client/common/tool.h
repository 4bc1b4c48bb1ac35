/* SPDX-License-Identifier: Apache-2.0 */
/* The main() of a tool: reads the options before the command, finds and runs the command, and
 * reports output that could not be written. */
#pragma once

#include <stddef.h>

#include "options.h"

struct tool {
        const char *name;
        const char *about; /* lines of --help after the usage */
        const struct command *const *commands;
        size_t n_commands;
        const char *exit_help;           /* lines of --help: meaning of the exit statuses */
        const char *other;               /* name of the companion tool */
        const char *const *other_does;   /* names of the companion tool's commands, ended by NULL */
        void (*words)(const char *kind); /* prints words of the kinds that words_of_daemon() does
                                            not know (words.h); NULL: there are none */
};

/* Runs the tool. Returns the exit status of the process. */
int tool_main(const struct tool *tool, int argc, char **argv);

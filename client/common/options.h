/* SPDX-License-Identifier: Apache-2.0 */
/* Commands and their options: one table row each, from which parsing and --help come. The options
 * that all commands share (--socket, --json, --help) are read here, before or after the command's
 * name. In the names of long options '_' and '-' are the same. */
#pragma once

#include "common.h"

struct option_row {
        int id;               /* a letter, or OPTION_LONG + n for one without; 0 ends the table */
        const char *name;     /* shorter than OPTION_NAME_BYTES */
        const char *argument; /* its name in --help; NULL: takes none; "[NAME]": =NAME or none */
        const char *help;     /* newlines start a new line */
        const char *values;   /* the words that the argument may be, by spaces, for completion;
                                 NULL: not known */
};
enum { OPTION_LONG = 256, OPTION_NAME_BYTES = 32 };

struct command {
        const char *name;
        const char *arguments;            /* "KEY [FILE]" */
        const char *summary;              /* one line, in the list of commands */
        const char *help;                 /* paragraphs */
        const struct option_row *options; /* may be NULL */
        const char *const *actions;       /* that its first operand names; NULL ends them; may be
                                             NULL */
        int (*run)(struct ctl *ctl, const struct command *self, int argc,
                   char **argv); /* exit status */
};

/* The next option of the command: its id, with the argument in *ret_argument. 0: no more, operands
 * are argv[*ret_first] on. -1: end with ctl->exit_status (help was printed, or the option is
 * wrong). */
int option_next(struct ctl *ctl, const struct command *command, int argc, char **argv,
                const char **ret_argument, int *ret_first);
/* Of an option's argument. False: said so; ctl->exit_status is set. */
bool option_count(struct ctl *ctl, const char *name, const char *text, unsigned long long least,
                  unsigned long long most, unsigned long long *ret);
bool option_bytes(struct ctl *ctl, const char *name, const char *text, unsigned long long *ret);

/* Says that `when` is no argument of --color. Returns the status of wrong usage. */
int wrong_color(const struct command *command, const char *when);

/* The options that all commands share. */
const struct option_row *options_shared(void);

/* Which of the command's actions `wanted` is: its place among them. -1: none of them; said so, with
 * the one that was meant if it can be seen, and ctl->exit_status is set. */
int action_index(struct ctl *ctl, const struct command *command, const char *wanted);

/* "See: kvcachectl put --help". Returns the status of wrong usage. */
int usage_error(const struct command *command, const char *format, ...)
        __attribute__((format(printf, 2, 3)));
void command_print_help(const struct command *command);

/* SPDX-License-Identifier: Apache-2.0 */
/* Commands and their options, one table row each, from which parsing and --help are generated.
 * option_next() also reads the options that all commands share (--socket, --json, --color, --help)
 * behind the command's name; tool_main() reads those before it. '_' and '-' are equivalent in the
 * names of long options behind the command's name. */
#pragma once

#include "common.h"

struct option_row {
        int id;               /* the option's letter, or OPTION_LONG + n if it has none; 0 ends
                                 the table */
        const char *name;     /* fewer than OPTION_NAME_BYTES bytes */
        const char *argument; /* name in --help; NULL: no argument; "[NAME]": optional, given as
                                 =NAME */
        const char *help;     /* text for --help, of one or more lines */
        const char *values;   /* possible arguments, separated by spaces, for completion; "@KIND":
                                 the words of `TOOL --complete KIND` (words.h); NULL: not known */
};
enum { OPTION_LONG = 256, OPTION_NAME_BYTES = 32 };

struct command {
        const char *name;
        const char *arguments; /* operands in --help, such as "KEY [FILE]"; "": none */
        const char *summary;   /* one line, for the list of commands */
        const char *help;      /* text of COMMAND --help: paragraphs separated by empty lines */
        const struct option_row *options; /* may be NULL */
        const char *const *actions; /* the words allowed as the first operand, ended by NULL; NULL:
                                       any operand */
        const char *operands; /* for completion: the kind of the operands, or of those behind the
                                 action (words.h); may be NULL */
        int (*run)(struct ctl *ctl, const struct command *self, int argc,
                   char **argv); /* returns the exit status */
};

/* Parses the next option of the command. Returns its id, with the argument in `*ret_argument`; 0
 * after the last option, when operands start at argv[*ret_first]; -1 if the command must end with
 * ctl->exit_status, because help was printed or the option is wrong. */
int option_next(struct ctl *ctl, const struct command *command, int argc, char **argv,
                const char **ret_argument, int *ret_first);
/* Parse the argument of the option `name`: a number from `least` to `most`, or a size. Return false
 * after reporting an error and setting ctl->exit_status. */
bool option_count(struct ctl *ctl, const char *name, const char *text, unsigned long long least,
                  unsigned long long most, unsigned long long *ret);
bool option_bytes(struct ctl *ctl, const char *name, const char *text, unsigned long long *ret);

/* Reports that `when` is not an argument of --color. Returns EXIT_WRONG_USAGE. */
int wrong_color(const struct command *command, const char *when);

/* Returns the table of the options that all commands share. */
const struct option_row *options_shared(void);

/* Returns the index of `wanted` among the command's actions. If there is no such action, reports it
 * with the most similar one, sets ctl->exit_status and returns -1. */
int action_index(struct ctl *ctl, const struct command *command, const char *wanted);

/* Reports wrong usage, followed by "See: kvcachectl put --help" if messages are not JSON.
 * `command`: NULL before the command is known. Returns EXIT_WRONG_USAGE. */
int usage_error(const struct command *command, const char *format, ...)
        __attribute__((format(printf, 2, 3)));
void command_print_help(const struct command *command);

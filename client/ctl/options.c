/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common.h"
#include "human.h"
#include "checked.h"

enum { MAX_OPTIONS = 32, HELP_COLUMN = 28 };

static const struct option_row shared_options[] = {
        { 's', "socket", "PATH",
          "the daemon's socket (default: $KVCACHE_SOCKET, else the usual path)" },
        { 'j', "json", NULL, "print JSON, for programs" },
        { 'h', "help", NULL, "print this help" },
        { 0 },
};

static void print_option(const struct option_row *row)
{
        char left[64];
        const char *line = row->help;

        snprintf(left, sizeof(left), "  %s%c%s --%s%s%s", row->id < OPTION_LONG ? "-" : " ",
                 row->id < OPTION_LONG ? row->id : ' ', row->id < OPTION_LONG ? "," : " ",
                 row->name, row->argument ? " " : "", row->argument ? row->argument : "");
        if (strlen(left) > HELP_COLUMN - 2) {
                puts(left);
                left[0] = '\0';
        }
        for (;;) {
                size_t n = strcspn(line, "\n");

                printf("%-*s%.*s\n", HELP_COLUMN, left, (int)n, line);
                left[0] = '\0';
                if (line[n] == '\0')
                        break;
                line += n + 1;
        }
}

void command_print_help(const struct command *command)
{
        printf("usage: kvcachectl %s [OPTIONS]%s%s\n\n%s\n\nOptions:\n", command->name,
               *command->arguments ? " " : "", command->arguments, command->help);
        for (const struct option_row *row = command->options; row && row->id; row++)
                print_option(row);
        for (const struct option_row *row = shared_options; row->id; row++)
                print_option(row);
}

int usage_error(const struct command *command, const char *format, ...)
{
        va_list arguments;

        fputs("kvcachectl: ", stderr);
        va_start(arguments, format);
        vfprintf(stderr, format, arguments);
        va_end(arguments);
        fprintf(stderr, "\nSee: kvcachectl%s%s --help\n", command ? " " : "",
                command ? command->name : "");
        return EXIT_WRONG_USAGE;
}

static unsigned add_rows(const struct option_row *rows, struct option *longs, unsigned n,
                         char *letters)
{
        for (; rows && rows->id; rows++) {
                char *end = letters + strlen(letters);

                longs[n++] = (struct option){
                        .name = rows->name,
                        .has_arg = rows->argument ? required_argument : no_argument,
                        .val = rows->id,
                };
                if (rows->id < OPTION_LONG)
                        sprintf(end, "%c%s", rows->id, rows->argument ? ":" : "");
        }
        return n;
}

int option_next(struct ctl *ctl, const struct command *command, int argc, char **argv,
                const char **ret_argument, int *ret_first)
{
        struct option longs[MAX_OPTIONS] = { 0 };
        char letters[2 * MAX_OPTIONS + 2] = ":";
        unsigned n = add_rows(command->options, longs, 0, letters);
        int c;

        add_rows(shared_options, longs, n, letters);
        opterr = 0;
        for (;;) {
                c = getopt_long(argc, argv, letters, longs, NULL);
                switch (c) {
                case -1:
                        *ret_first = optind;
                        return 0;
                case 's':
                        ctl->socket_path = optarg;
                        break;
                case 'j':
                        ctl->json = true;
                        break;
                case 'h':
                        command_print_help(command);
                        ctl->exit_status = EXIT_OK;
                        return -1;
                case ':':
                        ctl->exit_status = usage_error(command, "option '%s' needs an argument",
                                                       argv[optind - 1]);
                        return -1;
                case '?':
                        ctl->exit_status =
                                usage_error(command, "unknown option '%s'", argv[optind - 1]);
                        return -1;
                default:
                        *ret_argument = optarg;
                        return c;
                }
        }
}

bool option_count(struct ctl *ctl, const char *name, const char *text, unsigned long long least,
                  unsigned long long most, unsigned long long *ret)
{
        uint64_t n;

        if (human_parse_count(text, &n) < 0 || n < least || n > most) {
                ctl->exit_status = complain(EXIT_WRONG_USAGE,
                                            "%s: '%s' is not a whole number from %llu to %llu",
                                            name, text, least, most);
                return false;
        }
        *ret = n;
        return true;
}

bool option_bytes(struct ctl *ctl, const char *name, const char *text, unsigned long long *ret)
{
        uint64_t n;
        int r = human_parse_bytes(text, &n);

        if (r < 0) {
                ctl->exit_status =
                        complain(EXIT_WRONG_USAGE, "%s: '%s' is %s", name, text,
                                 r == -ERANGE ? "too large"
                                              : "not a size; write it like 4096, 64KiB or 1.5GiB");
                return false;
        }
        *ret = n;
        return true;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <assert.h>
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "color.h"
#include "common.h"
#include "human.h"
#include "units.h"
#include "suggest.h"

/* MAX_OPTIONS bounds the options of one command, with the shared ones; parser_add() asserts it. */
enum { MAX_OPTIONS = 96, HELP_COLUMN = 28, OPTION_COLOR = 1 << 20 };

static const struct option_row shared_options[] = {
        { 's', "socket", "PATH",
          "the daemon's socket (default: $KVCACHE_SOCKET, else the usual path)" },
        { 'j', "json", NULL, "print JSON, for programs" },
        { OPTION_COLOR, "color", "WHEN",
          "colour for what is wrong: auto (the default: on a terminal, unless\n"
          "$NO_COLOR is set), always or never",
          COLOR_VALUES },
        { 'h', "help", NULL, "print this help" },
        { 0 },
};

static void print_option(const struct option_row *row)
{
        char left[64];
        const char *line = row->help;

        snprintf(left, sizeof(left), "  %s%c%s --%s%s%s", row->id < OPTION_LONG ? "-" : " ",
                 row->id < OPTION_LONG ? row->id : ' ', row->id < OPTION_LONG ? "," : " ",
                 row->name, row->argument && *row->argument != '[' ? " " : "",
                 row->argument ? row->argument : "");
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
        printf("usage: %s %s [OPTIONS]%s%s\n\n%s\n\nOptions:\n", complain_name(), command->name,
               *command->arguments ? " " : "", command->arguments, command->help);
        for (const struct option_row *row = command->options; row && row->id; row++)
                print_option(row);
        for (const struct option_row *row = shared_options; row->id; row++)
                print_option(row);
}

int usage_error(const struct command *command, const char *format, ...)
{
        va_list arguments;

        va_start(arguments, format);
        complain_list(EXIT_WRONG_USAGE, format, arguments);
        va_end(arguments);
        if (!complain_is_json())
                fprintf(stderr, "See: %s%s%s --help\n", complain_name(), command ? " " : "",
                        command ? command->name : "");
        return EXIT_WRONG_USAGE;
}

/* Arguments of getopt_long(). Names have '-' where a row may have '_'. */
struct parser {
        struct option longs[MAX_OPTIONS + 1];
        char names[MAX_OPTIONS][OPTION_NAME_BYTES];
        char letters[3 * MAX_OPTIONS + 2];
        unsigned n;
};

/* Replaces the underscores in the name of an option, which ends at '=' or NUL, by '-'. */
static void replace_underscores(char *name)
{
        for (; *name && *name != '='; name++)
                if (*name == '_')
                        *name = '-';
}

static void parser_add(struct parser *p, const struct option_row *rows)
{
        for (; rows && rows->id; rows++, p->n++) {
                char *end = p->letters + strlen(p->letters), *name = p->names[p->n];
                int argument = no_argument;

                assert(p->n < MAX_OPTIONS && strlen(rows->name) < OPTION_NAME_BYTES);
                strcpy(name, rows->name);
                replace_underscores(name);
                if (rows->argument)
                        argument = *rows->argument == '[' ? optional_argument : required_argument;
                p->longs[p->n] =
                        (struct option){ .name = name, .has_arg = argument, .val = rows->id };
                if (rows->id < OPTION_LONG)
                        sprintf(end, "%c%s", rows->id,
                                argument == no_argument         ? ""
                                : argument == optional_argument ? "::"
                                                                : ":");
        }
}

/* Replaces the underscores in the name of the option that getopt_long() reads next by '-'. */
static void respell_next(int argc, char **argv)
{
        int i = optind;

        while (i < argc && (argv[i][0] != '-' || argv[i][1] == '\0'))
                i++;
        if (i < argc && strncmp(argv[i], "--", 2) == 0)
                replace_underscores(argv[i] + 2);
}

static bool has_option(const struct parser *p, int id)
{
        for (unsigned i = 0; i < p->n; i++)
                if (p->longs[i].val == id)
                        return true;
        return false;
}

/* Reports an unknown or ambiguous option, or one that takes no argument but has one. */
static int unknown_option(const struct command *command, const struct parser *p, const char *option)
{
        size_t n = strcspn(option, "=");
        char name[OPTION_NAME_BYTES];
        struct suggestion meant;

        /* If the letter is not the last of its word, optind still points to that word. */
        if (optopt != 0 && !has_option(p, optopt))
                return usage_error(command, "unknown option '-%c'", optopt);
        if (strncmp(option, "--", 2) != 0 || n - 2 >= sizeof(name))
                return usage_error(command, "unknown option '%s'", option);
        snprintf(name, sizeof(name), "%.*s", (int)n - 2, option + 2);
        meant = suggest_init(name);
        for (unsigned i = 0; i < p->n; i++) {
                if (strcmp(p->names[i], name) == 0)
                        return usage_error(command, "option '--%s' takes no argument", name);
                suggest_try(&meant, name, p->names[i]);
        }
        if (meant.text)
                return usage_error(command, "unknown option '%s'; did you mean \"--%s\"?", option,
                                   meant.text);
        return usage_error(command, "unknown option '%s'", option);
}

int wrong_color(const struct command *command, const char *when)
{
        return usage_error(command, "--color: '%s' is not auto, always or never", when);
}

const struct option_row *options_shared(void)
{
        return shared_options;
}

int action_index(struct ctl *ctl, const struct command *command, const char *wanted)
{
        const char *const *names = command->actions;
        struct suggestion meant = suggest_init(wanted);
        char all[128] = "";
        size_t used = 0;

        for (int i = 0; names[i]; i++) {
                if (strcmp(names[i], wanted) == 0)
                        return i;
                suggest_try(&meant, wanted, names[i]);
                used += (size_t)snprintf(all + used, sizeof(all) - used, "%s%s",
                                         i == 0         ? ""
                                         : names[i + 1] ? ", "
                                                        : " and ",
                                         names[i]);
                assert(used < sizeof(all));
        }
        if (meant.text)
                ctl->exit_status =
                        usage_error(command, "unknown action '%s'; did you mean \"%s %s\"?", wanted,
                                    command->name, meant.text);
        else
                ctl->exit_status = usage_error(command, "unknown action '%s'; use %s", wanted, all);
        return -1;
}

int option_next(struct ctl *ctl, const struct command *command, int argc, char **argv,
                const char **ret_argument, int *ret_first)
{
        struct parser parser = { .letters = ":" };
        int c;

        parser_add(&parser, command->options);
        parser_add(&parser, shared_options);
        opterr = 0;
        for (;;) {
                respell_next(argc, argv);
                c = getopt_long(argc, argv, parser.letters, parser.longs, NULL);
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
                case OPTION_COLOR:
                        if (color_set(optarg))
                                break;
                        ctl->exit_status = wrong_color(command, optarg);
                        return -1;
                case 'h':
                        command_print_help(command);
                        ctl->exit_status = EXIT_OK;
                        return -1;
                case ':':
                        ctl->exit_status = usage_error(command, "option '%s' needs an argument",
                                                       argv[optind - 1]);
                        return -1;
                case '?':
                        ctl->exit_status = unknown_option(command, &parser, argv[optind - 1]);
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

        if (units_parse_count(text, &n) < 0 || n < least || n > most) {
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

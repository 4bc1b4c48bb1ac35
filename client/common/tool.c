/* SPDX-License-Identifier: Apache-2.0 */
#include "tool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "checked.h"
#include "color.h"
#include "common.h"
#include "completion.h"
#include "suggest.h"
#include "words.h"

#include "build-config.h"

static void print_help(const struct tool *tool)
{
        printf("usage: %s [--socket PATH] [--json] COMMAND [OPTIONS] [ARGUMENTS]\n\n%s\n"
               "Commands:\n",
               tool->name, tool->about);
        for (size_t i = 0; i < tool->n_commands; i++)
                printf("  %-9s  %s\n", tool->commands[i]->name, tool->commands[i]->summary);
        printf("\nOptions of every command:\n"
               "  -s, --socket PATH   the daemon's socket; else $KVCACHE_SOCKET, else the default\n"
               "  -j, --json          print JSON, for programs\n"
               "      --color WHEN    colour for what is wrong: auto (the default), always, never\n"
               "      --debug         explain more on standard error\n"
               "  -h, --help          help; \"%s COMMAND --help\" explains a command\n"
               "      --version       print the version\n\n"
               "Exit status:\n%s",
               tool->name, tool->exit_help);
}

static const struct command *find_command(const struct tool *tool, const char *name)
{
        for (size_t i = 0; i < tool->n_commands; i++)
                if (strcmp(tool->commands[i]->name, name) == 0)
                        return tool->commands[i];
        return NULL;
}

/* Suggests the companion tool if it has a command of exactly this name, otherwise the most similar
 * command of either tool. */
static int unknown_command(const struct tool *tool, const char *name)
{
        struct suggestion own = suggest_init(name), other = suggest_init(name);

        for (const char *const *p = tool->other_does; *p; p++) {
                if (strcmp(*p, name) == 0)
                        return usage_error(NULL, "unknown command '%s'; did you mean \"%s %s\"?",
                                           name, tool->other, name);
                suggest_try(&other, name, *p);
        }
        if (strlen(name) > 2 && strstr(tool->other, name)) /* "kvcache-bench ctl" */
                return usage_error(NULL, "unknown command '%s'; did you mean \"%s\"?", name,
                                   tool->other);
        for (size_t i = 0; i < tool->n_commands; i++)
                suggest_try(&own, name, tool->commands[i]->name);
        if (own.text && (!other.text || own.distance <= other.distance))
                return usage_error(NULL, "unknown command '%s'; did you mean \"%s\"?", name,
                                   own.text);
        if (other.text)
                return usage_error(NULL, "unknown command '%s'; did you mean \"%s %s\"?", name,
                                   tool->other, other.text);
        return usage_error(NULL, "unknown command '%s'", name);
}

static int unknown_option(const char *option)
{
        static const char *const known[] = { "--socket", "--json",     "--color",  "--debug",
                                             "--help",   "--no-debug", "--version" };
        struct suggestion meant = suggest_init(option);

        for (size_t i = 0; i < ARRAY_SIZE(known); i++)
                suggest_try(&meant, option, known[i]);
        if (meant.text)
                return usage_error(NULL, "unknown option '%s'; did you mean \"%s\"?", option,
                                   meant.text);
        return usage_error(NULL, "unknown option '%s'", option);
}

/* Parses an option such as "--socket PATH" or "--socket=PATH". Returns true if it is the option
 * `name` or `letter`, with the argument in `*ret`, or NULL if the argument is missing, and `*i` at
 * the option's last word. */
static bool option_argument(int argc, char **argv, int *i, const char *name, const char *letter,
                            const char **ret)
{
        size_t n = strlen(name);

        if (strncmp(argv[*i], name, n) == 0 && argv[*i][n] == '=') {
                *ret = argv[*i] + n + 1;
                return true;
        }
        if (strcmp(argv[*i], name) != 0 && (!letter || strcmp(argv[*i], letter) != 0))
                return false;
        *ret = *i + 1 < argc ? argv[++*i] : NULL;
        return true;
}

/* Reads the options before the command. Returns the index of the command, or 0 with *ret_status
 * set. */
static int read_global_options(const struct tool *tool, struct ctl *ctl, int argc, char **argv,
                               int *ret_status)
{
        int i;

        *ret_status = EXIT_OK;
        for (i = 1; i < argc && argv[i][0] == '-'; i++) {
                const char *option = argv[i], *argument = option;

                if (strcmp(option, "--json") == 0 || strcmp(option, "-j") == 0) {
                        ctl->json = true;
                } else if (strcmp(option, "--debug") == 0) {
                        ctl->debug = true;
                } else if (strcmp(option, "--no-debug") == 0) {
                        ctl->debug = false;
                } else if (strcmp(option, "--help") == 0 || strcmp(option, "-h") == 0) {
                        print_help(tool);
                        return 0;
                } else if (strcmp(option, "--version") == 0) {
                        printf("%s " KVCACHE_BUILD_VERSION "\n", tool->name);
                        return 0;
                } else if (option_argument(argc, argv, &i, "--socket", "-s", &argument)) {
                        ctl->socket_path = argument;
                } else if (option_argument(argc, argv, &i, "--color", NULL, &argument)) {
                        if (argument && !color_set(argument)) {
                                *ret_status = wrong_color(NULL, argument);
                                return 0;
                        }
                } else {
                        *ret_status = unknown_option(option);
                        return 0;
                }
                if (!argument) {
                        *ret_status = usage_error(NULL, "option '%s' needs an argument", option);
                        return 0;
                }
        }
        if (i == argc) {
                *ret_status = usage_error(NULL, "a command is needed");
                return 0;
        }
        return i;
}

static int run(const struct tool *tool, struct ctl *ctl, int argc, char **argv)
{
        const struct command *command;
        int status, first = read_global_options(tool, ctl, argc, argv, &status);
        const char *name;
        bool help;

        if (first == 0)
                return status;
        name = argv[first];
        help = strcmp(name, "help") == 0;
        if (help && first + 1 == argc) {
                print_help(tool);
                return EXIT_OK;
        }
        if (help)
                name = argv[first + 1];
        command = find_command(tool, name);
        if (!command)
                return unknown_command(tool, name);
        if (help) {
                command_print_help(command);
                return EXIT_OK;
        }
        return command->run(ctl, command, argc - first, argv + first);
}

/* Opens closed standard streams in a mode in which using them fails. Otherwise the connection to
 * the daemon could get the number of a standard stream, and output would be sent to the daemon. */
static void keep_standard_streams(void)
{
        for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
                if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
                        (void)open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

static int end_output(int status)
{
        /* set by an earlier write that failed; its errno is no longer known */
        bool failed = ferror(stdout);

        errno = 0;
        return fflush(stdout) != 0 || failed ? complain_output(errno) : status;
}

static int print_completion(const struct tool *tool, const char *shell)
{
        struct completion all = { .name = tool->name,
                                  .commands = tool->commands,
                                  .n_commands = tool->n_commands };
        completion_fn print = completion_for(shell);

        if (!print)
                return usage_error(NULL, "--print-completion: '%s' is not bash, zsh or fish",
                                   shell);
        print(&all, stdout);
        return end_output(EXIT_OK);
}

/* Prints words for a shell's completion. Prints no message if there are none. */
static int print_words(const struct tool *tool, struct ctl *ctl, const char *kind)
{
        if (!words_of_daemon(ctl, kind) && tool->words)
                tool->words(kind);
        kvcache_close(ctl->kv);
        return end_output(EXIT_OK);
}

int tool_main(const struct tool *tool, int argc, char **argv)
{
        struct ctl ctl = { 0 };
        int status;

        keep_standard_streams();
        complain_as(tool->name);
        if (argc == 3 && strcmp(argv[1], "--print-completion") == 0)
                return print_completion(tool, argv[2]);
        if (argc == 3 && strcmp(argv[1], "--complete") == 0)
                return print_words(tool, &ctl, argv[2]);
        /* Select JSON before the first message, even if the option comes later. */
        for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
                if (strcmp(argv[i], "--json") == 0 || strcmp(argv[i], "-j") == 0)
                        complain_in_json(true);
        status = run(tool, &ctl, argc, argv);
        kvcache_close(ctl.kv);
        return end_output(status);
}

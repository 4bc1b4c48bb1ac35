/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl: look after a kvcache-daemon, and measure it. A client like any other: all that it
 * knows of the daemon comes through libkvcache. */
#include <errno.h>
#include <signal.h>
#include <string.h>

#include "commands.h"
#include "bench/commands.h"
#include "common.h"
#include "checked.h"

#include "build-config.h"

static const struct command *const commands[] = {
        &command_status, &command_ping,   &command_stats,     &command_config,  &command_put,
        &command_get,    &command_exists, &command_stat,      &command_ls,      &command_prefetch,
        &command_evict,  &command_purge,  &command_namespace, &command_device,  &command_verify,
        &command_replay, &command_plan,   &command_profile,   &command_kvcache, &command_iosize,
};

static void print_help(void)
{
        puts("usage: kvcachectl [--socket PATH] [--json] COMMAND [OPTIONS] [ARGUMENTS]\n\n"
             "Looks after kvcache-daemon, the KV-cache storage service of this host, and\n"
             "measures it.\n\n"
             "Commands:");
        for (size_t i = 0; i < ARRAY_SIZE(commands); i++)
                printf("  %-9s  %s\n", commands[i]->name, commands[i]->summary);
        puts("\nOptions of every command:\n"
             "  -s, --socket PATH   the daemon's socket; else $KVCACHE_SOCKET, else the default\n"
             "  -j, --json          print JSON, for programs\n"
             "      --debug         tell more on standard error (KVBench's commands do)\n"
             "  -h, --help          help; \"kvcachectl COMMAND --help\" tells all about a command\n"
             "      --version       print the version\n\n"
             "Exit status:\n"
             "  0    done; everything asked for is there\n"
             "  1    a key or namespace is not there; replay: wrong bytes were got;\n"
             "       plan, profile, kvcache, iosize: any failure; verify: something was bad\n"
             "  2    wrong usage; verify: it could not be done\n"
             "  3    no daemon there, it went away, or it did not answer in time\n"
             "  4    the daemon refused or failed\n"
             "  5    an input file is missing or malformed\n"
             "  6    output cannot be written, or memory ran out\n"
             "  130  interrupted (replay: after its report)");
}

static const struct command *find_command(const char *name)
{
        for (size_t i = 0; i < ARRAY_SIZE(commands); i++)
                if (strcmp(commands[i]->name, name) == 0)
                        return commands[i];
        return NULL;
}

/* Options before the command. Returns the index of the command, or 0 with *ret_status set. */
static int read_global_options(struct ctl *ctl, int argc, char **argv, int *ret_status)
{
        int i;

        for (i = 1; i < argc && argv[i][0] == '-'; i++) {
                const char *option = argv[i];

                if (strcmp(option, "--json") == 0 || strcmp(option, "-j") == 0) {
                        ctl->json = true;
                } else if (strcmp(option, "--debug") == 0) {
                        ctl->debug = true;
                } else if (strcmp(option, "--no-debug") == 0) {
                        ctl->debug = false;
                } else if (strcmp(option, "--help") == 0 || strcmp(option, "-h") == 0) {
                        print_help();
                        *ret_status = EXIT_OK;
                        return 0;
                } else if (strcmp(option, "--version") == 0) {
                        puts("kvcachectl " KVCACHE_BUILD_VERSION);
                        *ret_status = EXIT_OK;
                        return 0;
                } else if (strncmp(option, "--socket=", 9) == 0) {
                        ctl->socket_path = option + 9;
                } else if (strcmp(option, "--socket") == 0 || strcmp(option, "-s") == 0) {
                        if (++i == argc) {
                                *ret_status =
                                        usage_error(NULL, "option '%s' needs an argument", option);
                                return 0;
                        }
                        ctl->socket_path = argv[i];
                } else {
                        *ret_status = usage_error(NULL, "unknown option '%s'", option);
                        return 0;
                }
        }
        if (i == argc) {
                *ret_status = usage_error(NULL, "which command?");
                return 0;
        }
        return i;
}

int main(int argc, char **argv)
{
        struct ctl ctl = { 0 };
        const struct command *command;
        int first, status = EXIT_OK;

        first = read_global_options(&ctl, argc, argv, &status);
        if (first > 0) {
                const char *name = argv[first];
                bool help = strcmp(name, "help") == 0;

                if (help && first + 1 < argc)
                        name = argv[first + 1];
                command = find_command(name);
                if (command && help)
                        command_print_help(command);
                else if (command)
                        status = command->run(&ctl, command, argc - first, argv + first);
                else if (help && first + 1 == argc)
                        print_help();
                else
                        status = usage_error(NULL, "unknown command '%s'", name);
        }
        kvcache_close(ctl.kv);

        if (fflush(stdout) != 0 || ferror(stdout))
                status = complain(EXIT_LOCAL, "cannot write the output: %s", strerror(errno));
        return status;
}

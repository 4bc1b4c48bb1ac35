/* SPDX-License-Identifier: Apache-2.0 */
/* kvcache-bench: measures a kvcache-daemon, and computes what a model needs of it. */
#include <string.h>

#include "checked.h"
#include "commands.h"
#include "kvbench/data-file.h"
#include "tool.h"
#include "words.h"

static const struct command *const commands[] = {
        &command_replay,  &command_trace,  &command_simulate, &command_plan,   &command_profile,
        &command_kvcache, &command_iosize, &command_session,  &command_remote,
};

static const char *const of_ctl[] = { "status",   "top",   "ping",   "stats",     "config",
                                      "put",      "get",   "exists", "stat",      "ls",
                                      "prefetch", "evict", "purge",  "namespace", "device",
                                      "events",   "gds",   "doctor", "report",    "verify",
                                      "hint",     "bench", "record", "reload",    "pin",
                                      "unpin",    "store", "remote", NULL };

/* Prints the names of models and deployments. */
static void print_words(const char *kind)
{
        if (strcmp(kind, "models") == 0 || strcmp(kind, "deployments") == 0)
                data_file_each(kind, words_print);
}

static const struct tool kvcache_bench = {
        .name = "kvcache-bench",
        .about = "Measures kvcache-daemon, the KV-cache storage service of this host, and\n"
                 "computes how large the KV cache of a model is. kvcachectl administers it.\n",
        .commands = commands,
        .n_commands = ARRAY_SIZE(commands),
        .exit_help =
                "  0    success\n"
                "  1    replay and trace: some bytes were wrong; the other commands: any failure\n"
                "  2    wrong usage\n"
                "  3    no daemon is running, it closed the connection, or it did not answer in "
                "time\n"
                "  4    the daemon refused or failed\n"
                "  5    an input file is missing or malformed\n"
                "  6    output cannot be written, or memory ran out\n"
                "  session has its own statuses; see \"kvcache-bench session --help\"\n"
                "  130  interrupted (replay: after its report)\n",
        .words = print_words,
        .other = "kvcachectl",
        .other_does = of_ctl,
};

int main(int argc, char **argv)
{
        return tool_main(&kvcache_bench, argc, argv);
}

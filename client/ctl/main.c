/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl: administers a kvcache-daemon. The program uses the daemon only through libkvcache,
 * like other clients. */
#include "checked.h"
#include "commands.h"
#include "tool.h"

static const struct command *const commands[] = {
        &command_status,    &command_doctor,   &command_top,    &command_ping,   &command_stats,
        &command_config,    &command_put,      &command_get,    &command_exists, &command_stat,
        &command_ls,        &command_prefetch, &command_hint,   &command_evict,  &command_purge,
        &command_namespace, &command_device,   &command_gds,    &command_verify, &command_bench,
        &command_record,    &command_reload,   &command_pin,    &command_unpin,  &command_store,
        &command_report,    &command_remote,   &command_events,
};

static const char *const of_bench[] = { "replay",  "trace",   "simulate", "session", "plan",
                                        "profile", "kvcache", "iosize",   NULL };

static const struct tool kvcachectl = {
        .name = "kvcachectl",
        .about = "Administers kvcache-daemon, the KV-cache storage service of this host.\n"
                 "kvcache-bench measures it.\n",
        .commands = commands,
        .n_commands = ARRAY_SIZE(commands),
        .exit_help = "  0    success; everything asked for is present\n"
                     "  1    a key or namespace does not exist; verify: something was bad;\n"
                     "       doctor: there is a problem;\n"
                     "       store check: this version would refuse the store\n"
                     "  2    wrong usage; verify: the store could not be verified\n"
                     "  3    no daemon is running, it closed the connection, or it did not answer "
                     "in time\n"
                     "  4    the daemon refused or failed\n"
                     "  5    an input file is missing or malformed\n"
                     "  6    output cannot be written, or memory ran out\n"
                     "  130  interrupted\n",
        .other = "kvcache-bench",
        .other_does = of_bench,
};

int main(int argc, char **argv)
{
        return tool_main(&kvcachectl, argc, argv);
}

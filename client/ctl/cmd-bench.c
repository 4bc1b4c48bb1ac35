/* SPDX-License-Identifier: Apache-2.0 */
/* `bench`: an alias of `kvcache-bench session`, which replaces this program. Options before the
 * command are passed on. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "color.h"
#include "commands.h"
#include "common.h"
#include "program.h"

#define TOOL "kvcache-bench"

enum {
        MOST_BEFORE = 7
}; /* arguments before the command's own: the tool, four options and an argument, the command */

static int run_bench(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        static const char *const directories[] = {
                "", "../bench", NULL
        }; /* relative to this program: as installed, and as built */
        _cleanup_(freep) char **arguments = calloc((size_t)argc + MOST_BEFORE, sizeof(*arguments));
        char path[PATH_MAX];
        int n = 0;

        if (!arguments)
                return complain_memory();
        if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
                command_print_help(self);
                return EXIT_OK;
        }
        if (!program_find(TOOL, directories, path, sizeof(path)))
                return complain(EXIT_LOCAL, "bench: there is no " TOOL " beside this program, and "
                                            "none in $PATH; it is installed with kvcachectl");
        arguments[n++] = (char *)TOOL;
        if (ctl->socket_path) {
                arguments[n++] = (char *)"--socket";
                arguments[n++] = (char *)ctl->socket_path;
        }
        if (ctl->json)
                arguments[n++] = (char *)"--json";
        if (ctl->debug)
                arguments[n++] = (char *)"--debug";
        if (color_option())
                arguments[n++] = (char *)color_option();
        arguments[n++] = (char *)"session";
        for (int i = 1; i < argc; i++)
                arguments[n++] = argv[i];
        execv(path, arguments);
        return complain(EXIT_LOCAL, "%s: %s", path, strerror(errno));
}

const struct command command_bench = {
        .name = "bench",
        .arguments = "ACTION [SESSION...]",
        .summary = "compare the costs of memory layouts: the same as \"" TOOL " session\"",
        .help = "Runs \"" TOOL " session\" with these arguments, which is searched beside\n"
                "this program and in $PATH, and ends with its exit status: 1 failure, 2 wrong\n"
                "usage, 3 no active session, 4 no such session, 5 past a threshold.\n"
                "\"kvcachectl bench ACTION --help\" and \"" TOOL " session --help\" explain the\n"
                "actions and their options.",
        .run = run_bench,
};

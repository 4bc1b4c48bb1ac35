/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl apart from its commands: options, help, suggestions, completion, connections, failing
 * output, and `bench`, which replaces the program. */
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ctl-fixture.h"

#define SEE "See: kvcachectl --help\n"

/* --- options before the command --- */

static void help_lists_every_command_and_exit_status(void **state)
{
        static const char *const commands[] = { "status",   "top",  "ping",   "stats", "config",
                                                "put",      "get",  "exists", "stat",  "ls",
                                                "prefetch", "hint", "evict",  "purge", "namespace",
                                                "device",   "gds",  "verify", "bench", "record",
                                                "reload",   "pin",  "unpin",  "store", "remote" };
        char first[sizeof(ctl_out)];

        ctl_expect(EXIT_OK, NULL, "", "--help");
        assert_ptr_equal(strstr(ctl_out, "usage: kvcachectl [--socket PATH] [--json] COMMAND "
                                         "[OPTIONS] [ARGUMENTS]\n"),
                         ctl_out);
        for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
                char line[32];

                snprintf(line, sizeof(line), "\n  %-9s  ", commands[i]);
                has(ctl_out, line);
        }
        has(ctl_out, "\n  4    the daemon refused or failed\n");
        strcpy(first, ctl_out);
        ctl_expect(EXIT_OK, first, "", "help");
        ctl_expect(EXIT_OK, first, "", "-h");
}

static void help_of_a_command_explains_its_options(void **state)
{
        char first[sizeof(ctl_out)];

        ctl_expect(EXIT_OK, NULL, "", "help", "put");
        assert_ptr_equal(
                strstr(ctl_out, "usage: kvcachectl put [OPTIONS] KEY [FILE]\n\nStores FILE,"),
                ctl_out);
        has(ctl_out, "\n  -n, --namespace NS        the namespace (default: default)\n");
        has(ctl_out, "\n      --ack CLASS           answer when the chunk is accepted (visible), "
                     "written (survives a "
                     "crash\n                            of the daemon; the default)");
        has(ctl_out, "\n  -s, --socket PATH         the daemon's socket");
        strcpy(first, ctl_out);
        ctl_expect(EXIT_OK, first, "", "put", "--help");
        ctl_expect(EXIT_OK, first, "", "put", "k", "-h");
        ctl_expect(EXIT_OK, NULL, "", "status", "--help");
        has(ctl_out, "\n"
                     "  -w, --watch[=SECONDS]     refresh every SECONDS");
        assert_int_equal(fake.made[FAKE_CONNECT], 0);
}

static void version_is_printed(void **state)
{
        ctl_expect(EXIT_OK, NULL, "", "--version");
        assert_ptr_equal(strstr(ctl_out, "kvcachectl "), ctl_out);
        assert_int_equal(ctl_out[strlen(ctl_out) - 1], '\n');
}

static void options_before_and_after_the_command_are_the_same(void **state)
{
        ctl_expect(EXIT_OK, NULL, "", "--socket=/run/a", "ping");
        assert_string_equal(fake.socket_path, "/run/a");
        ctl_expect(EXIT_OK, NULL, "", "-s", "/run/b", "ping");
        assert_string_equal(fake.socket_path, "/run/b");
        ctl_expect(EXIT_OK, NULL, "", "-s", "/run/b", "ping", "--socket", "/run/c");
        assert_string_equal(fake.socket_path, "/run/c");
        ctl_expect(EXIT_OK, NULL, "", "ping");
        assert_string_equal(fake.socket_path, "");
        ctl_expect(EXIT_OK, "{\"hinted\":0,\"missing\":0}\n", "", "-j", "hint", "final",
                   "--from=-");
        ctl_expect(EXIT_OK, "{\"hinted\":0,\"missing\":0}\n", "", "hint", "final", "--from=-",
                   "--json");
}

static void underscores_and_dashes_in_options_are_the_same(void **state)
{
        assert_int_equal(ctl("remote", "sweep", "--limit=1", "--dry_run"), EXIT_OK);
        assert_int_equal(fake_admin.sweep.flags, KVCACHE_DRY_RUN);
        ctl_expect(EXIT_NOT_FOUND, "--a_b  missing\n", "", "exists", "--", "--a_b");
}

static void unknown_command_is_answered_with_the_one_that_was_meant(void **state)
{
        static const struct {
                const char *word, *rest;
        } cases[] = {
                { "statsu", "; did you mean \"status\"?" },
                { "replay", "; did you mean \"kvcache-bench replay\"?" },
                { "simulat", "; did you mean \"kvcache-bench simulate\"?" },
                { "kvcache-bench", "; did you mean \"kvcache-bench\"?" },
                { "xyzzyxyzzy", "" },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                char err[256];

                snprintf(err, sizeof(err), "kvcachectl: unknown command '%s'%s\n" SEE,
                         cases[i].word, cases[i].rest);
                ctl_expect(EXIT_WRONG_USAGE, "", err, cases[i].word);
                ctl_expect(EXIT_WRONG_USAGE, "", err, "help", cases[i].word);
        }
}

static void wrong_options_before_the_command_are_explained(void **state)
{
        ctl_expect(EXIT_WRONG_USAGE, "", "kvcachectl: a command is needed\n" SEE, "--debug");
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: unknown option '--jsno'; did you mean \"--json\"?\n" SEE, "--jsno",
                   "ping");
        ctl_expect(EXIT_WRONG_USAGE, "", "kvcachectl: unknown option '-x'\n" SEE, "-x", "ping");
        ctl_expect(EXIT_WRONG_USAGE, "", "kvcachectl: option '--socket' needs an argument\n" SEE,
                   "--socket");
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: --color: 'red' is not auto, always or never\n" SEE, "--color=red",
                   "ping");
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: --color: 'red' is not auto, always or never\nSee: kvcachectl ping "
                   "--help\n",
                   "ping", "--color", "red");
        assert_int_equal(fake.made[FAKE_CONNECT], 0);
}

static void wrong_options_of_a_command_are_explained(void **state)
{
#define SEE_PURGE "See: kvcachectl purge --help\n"
        ctl_expect(EXIT_WRONG_USAGE, "", "kvcachectl: option '--all' takes no argument\n" SEE_PURGE,
                   "purge", "--all=yes");
        ctl_expect(EXIT_WRONG_USAGE, "", "kvcachectl: unknown option '-z'\n" SEE_PURGE, "purge",
                   "-z");
        ctl_expect(EXIT_WRONG_USAGE, "", "kvcachectl: unknown option '-z'\n" SEE_PURGE, "purge",
                   "--all", "-zj");
        ctl_expect(EXIT_WRONG_USAGE, "", "kvcachectl: unknown option '--xyzzyxyzzy'\n" SEE_PURGE,
                   "purge", "--xyzzyxyzzy");
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "{\"error\":{\"message\":\"unknown option '--rmote'; did you mean "
                   "\\\"--remote\\\"?\"}}\n",
                   "purge", "--rmote", "--json");
        assert_int_equal(fake.made[FAKE_CONNECT], 0);
}

static void messages_are_coloured_on_request_alone(void **state)
{
        fake.scripts[FAKE_PING] = (struct fake_script){ -EPROTO, "x" };
        ctl_expect(EXIT_REFUSED, "", "\033[1;31mkvcachectl:\033[0m ping: x\n", "--color=always",
                   "ping");
        setenv("NO_COLOR", "1", 1);
        setenv("TERM", "xterm", 1);
        ctl_expect(EXIT_REFUSED, "", "kvcachectl: ping: x\n", "ping");
        ctl_expect(EXIT_REFUSED, "", "kvcachectl: ping: x\n", "ping", "--color", "never");
}

/* --- connecting --- */

static void connection_that_fails_is_explained_by_its_cause(void **state)
{
        static const struct {
                int error, status;
                const char *part;
        } cases[] = {
                { -ENOENT, EXIT_UNREACHABLE,
                  "kvcachectl: /s: x\nStart it (systemctl start kvcache, or kvcache-daemon)" },
                { -ECONNREFUSED, EXIT_UNREACHABLE, "\nStart it " },
                { -EACCES, EXIT_REFUSED, "\nA member of the socket's group may connect" },
                { -ETIMEDOUT, EXIT_UNREACHABLE, "kvcachectl: /s: x\n" },
                { -ENOTSOCK, EXIT_UNREACHABLE, "kvcachectl: /s: x\n" },
                { -EPROTO, EXIT_REFUSED, "kvcachectl: /s: x\n" },
                { -ENOMEM, EXIT_LOCAL, "kvcachectl: /s: x\n" },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                fake.scripts[FAKE_CONNECT] = (struct fake_script){ cases[i].error, "/s: x" };
                ctl_expect(cases[i].status, "", NULL, "ping");
                has(ctl_err, cases[i].part);
        }
        fake.scripts[FAKE_CONNECT] = (struct fake_script){ -ENOTCONN, NULL };
        ctl_expect(EXIT_UNREACHABLE, "",
                   "kvcachectl: the default socket: Transport endpoint is not connected\n", "ping");
        setenv("KVCACHE_SOCKET", "/run/env", 1);
        ctl_expect(EXIT_UNREACHABLE, "",
                   "kvcachectl: /run/env: Transport endpoint is not connected\n", "ping");
}

/* --- output --- */

static void output_that_cannot_be_written_exits_with_6(void **state)
{
        ctl_store("k", "0123456789");
        ctl_output_to("/dev/full");
        ctl_expect(EXIT_LOCAL, "", "kvcachectl: cannot write the output: No space left on device\n",
                   "ping");
        ctl_output_to("/dev/full");
        ctl_expect(EXIT_LOCAL, "", "kvcachectl: cannot write the output: No space left on device\n",
                   "get", "k");
        ctl_output_to("/dev/full");
        ctl_expect(EXIT_LOCAL, "", "kvcachectl: cannot write the output: No space left on device\n",
                   "ls");
        ctl_output_to("/dev/full");
        ctl_expect(EXIT_LOCAL, "", "kvcachectl: cannot write the output: No space left on device\n",
                   "top", "-i0.1", "-c9");
        assert_int_equal(fake.made[FAKE_REPORT_METRICS], 2);
        ctl_output_to("/dev/full");
        ctl_expect(EXIT_LOCAL, "", NULL, "--print-completion", "bash");
}

static void closed_standard_output_is_reported(void **state)
{
        static const char err[] =
                "kvcachectl: cannot write the output: standard output is closed\n";

        ctl_store("k", "0123456789");
        ctl_output_to(NULL);
        ctl_expect(EXIT_LOCAL, "", err, "ping");
        ctl_output_to(NULL);
        ctl_expect(EXIT_LOCAL, "", err, "get", "k");
}

/* --- completion --- */

static void completion_knows_every_command_and_its_options(void **state)
{
        static const struct {
                const char *shell, *parts[4];
        } cases[] = {
                { "bash",
                  { "complete -o default -F _kvcache_complete_kvcachectl kvcachectl\n",
                    " --dry-run", " namespace", "accepted written durable" } },
                { "zsh",
                  { "#compdef kvcachectl\n", "--dry-run", "namespace",
                    "accepted written durable" } },
                { "fish",
                  { "complete -c kvcachectl", "dry-run", "namespace",
                    "accepted written durable" } },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                ctl_expect(EXIT_OK, NULL, "", "--print-completion", cases[i].shell);
                for (size_t j = 0; j < ARRAY_SIZE(cases[i].parts); j++)
                        has(ctl_out, cases[i].parts[j]);
        }
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: --print-completion: 'ksh' is not bash, zsh or fish\n" SEE,
                   "--print-completion", "ksh");
}

/* --- bench --- */

static void bench_runs_the_other_tool_with_the_options_before_it(void **state)
{
        static const char script[] = "#!/bin/sh\necho \"$0\" \"$@\"\nexit 5\n";
        char path[512], expected[1024];

        snprintf(path, sizeof(path), "%s", ctl_file("kvcache-bench", script, strlen(script)));
        assert_int_equal(chmod(path, 0755), 0);
        snprintf(expected, sizeof(expected), "/nowhere::%.*s", (int)(strrchr(path, '/') - path),
                 path);
        setenv("PATH", expected, 1);
        snprintf(expected, sizeof(expected),
                 "%s --socket /run/s --json --debug --color=never session show a b --json\n", path);
        ctl_compare(ctl_in_child("-s", "/run/s", "-j", "--debug", "--color=never", "bench", "show",
                                 "a", "b", "--json"),
                    5, expected, "", __FILE__, __LINE__);
        snprintf(expected, sizeof(expected), "%s session\n", path);
        ctl_compare(ctl_in_child("bench"), 5, expected, "", __FILE__, __LINE__);
        assert_int_equal(chmod(path, 0644), 0); /* no program */
        ctl_compare(ctl_in_child("bench"), EXIT_LOCAL, "",
                    "kvcachectl: bench: there is no kvcache-bench beside this program, and none in "
                    "$PATH; it is installed "
                    "with kvcachectl\n",
                    __FILE__, __LINE__);
        ctl_expect(EXIT_OK, NULL, "", "bench", "--help");
        assert_ptr_equal(strstr(ctl_out, "usage: kvcachectl bench [OPTIONS] ACTION [SESSION...]\n"),
                         ctl_out);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                CTL_TEST(help_lists_every_command_and_exit_status),
                CTL_TEST(help_of_a_command_explains_its_options),
                CTL_TEST(version_is_printed),
                CTL_TEST(options_before_and_after_the_command_are_the_same),
                CTL_TEST(underscores_and_dashes_in_options_are_the_same),
                CTL_TEST(unknown_command_is_answered_with_the_one_that_was_meant),
                CTL_TEST(wrong_options_before_the_command_are_explained),
                CTL_TEST(wrong_options_of_a_command_are_explained),
                CTL_TEST(messages_are_coloured_on_request_alone),
                CTL_TEST(connection_that_fails_is_explained_by_its_cause),
                CTL_TEST(output_that_cannot_be_written_exits_with_6),
                CTL_TEST(closed_standard_output_is_reported),
                CTL_TEST(completion_knows_every_command_and_its_options),
                CTL_TEST(bench_runs_the_other_tool_with_the_options_before_it),
        };

        return cmocka_run_group_tests(tests, NULL, ctl_remove_files);
}

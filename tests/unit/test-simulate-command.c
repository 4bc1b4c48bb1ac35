/* SPDX-License-Identifier: Apache-2.0 */
/* kvcache-bench simulate as a command: its tables, JSON, plots, exit statuses and messages, on
 * traces whose figures were computed by hand. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bench-rig.h"
#include "checked.h"
#include "explain.h"
#include "fleet.h"

/* Requests 10 blocks, 5 of them distinct; test-simulate.c has the figures. */
static const char *by_hand(void)
{
        return bench_file("trace", "{\"timestamp\": 0, \"hash_ids\": [1, 2, 3]}\n"
                                   "{\"timestamp\": 1000, \"hash_ids\": [1, 2, 4]}\n"
                                   "{\"timestamp\": 2000, \"hash_ids\": [5]}\n"
                                   "{\"timestamp\": 3000, \"hash_ids\": [1, 2, 3]}\n");
}

/* test-fleet.c has the figures: with two hosts 13 of 30 hit locally, and 3 in the tier. */
static const char *fleet_by_hand(void)
{
        return bench_file("fleet", "{\"timestamp\": 0, \"hash_ids\": [0, 1, 2, 3]}\n"
                                   "{\"timestamp\": 10000, \"hash_ids\": [0, 10, 11]}\n"
                                   "{\"timestamp\": 20000, \"hash_ids\": [0, 1, 2, 4, 5]}\n"
                                   "{\"timestamp\": 30000, \"hash_ids\": [0, 10, 12, 13]}\n"
                                   "{\"timestamp\": 40000, \"hash_ids\": [0, 1, 20]}\n"
                                   "{\"timestamp\": 50000, \"hash_ids\": [0, 10, 21]}\n"
                                   "{\"timestamp\": 60000, \"hash_ids\": [0, 1, 2, 30]}\n"
                                   "{\"timestamp\": 120000, \"hash_ids\": [0, 1, 2, 31]}\n");
}

#define simulate(...) bench(&command_simulate, __VA_ARGS__)

static void the_table_has_a_row_for_each_size_and_a_column_for_each_policy(void **state)
{
        assert_int_equal(simulate(by_hand(), "-p", "lru,opt", "-c", "1,3,100%"), EXIT_OK);
        assert_out(
                "4 requests for 10 blocks, 5 of them distinct. Hits, of the blocks asked for:\n");
        assert_out(" CAPACITY lru opt\n"
                   " 1 10.00 % 20.00 %\n"
                   " 3 40.00 % 50.00 %\n"
                   " 100% (5) 50.00 % 50.00 %\n");
        assert_out(" million touches a second of CPU time\n");
        assert_string_equal(bench_err(), "");
}

static void by_default_three_policies_and_five_shares_are_shown(void **state)
{
        assert_int_equal(simulate("--synthetic", "chat", "-r", "300"), EXIT_OK);
        assert_out("300 requests for ");
        assert_out(" CAPACITY lru cq opt\n 1% (");
        assert_out("\n 50% (");
}

static void json_has_an_object_for_each_size_and_policy(void **state)
{
        cJSON *json, *first, *last;

        assert_int_equal(
                simulate("--json", by_hand(), "-p", "lru,opt", "-c", "3,40%", "-b", "1000"),
                EXIT_OK);
        json = bench_json();
        assert_int_equal(cJSON_GetArraySize(json), 4);
        first = cJSON_GetArrayItem(json, 0);
        assert_string_equal(json_text(first, "policy"), "lru");
        assert_true(json_number(first, "capacity") == 3.0 / 5);
        assert_true(json_number(first, "capacity_blocks") == 3);
        assert_true(json_number(first, "hit_ratio") == 0.4);
        assert_true(json_number(first, "blocks_asked") == 10);
        assert_true(json_number(first, "blocks_hit") == 4);
        assert_true(json_number(first, "evictions") == 3);
        assert_true(json_number(first, "blocks_written") == 6);
        assert_true(json_number(first, "bytes_written") == 6000);
        assert_null(cJSON_GetObjectItem(first, "write_budget"));
        assert_null(cJSON_GetObjectItem(first, "capacity_bytes"));
        last = cJSON_GetArrayItem(json, 3);
        assert_string_equal(json_text(last, "policy"), "opt");
        assert_true(json_number(last, "capacity") == 0.4);
        assert_true(json_number(last, "capacity_blocks") == 2);
        assert_null(cJSON_GetObjectItem(last, "blocks_written"));
        cJSON_Delete(json);
}

static void sizes_in_bytes_are_divided_by_those_of_a_block(void **state)
{
        cJSON *json, *first;

        assert_int_equal(simulate("-j", by_hand(), "-p", "lru", "--disk", "3999,1MB", "-b", "1000"),
                         EXIT_OK);
        json = bench_json();
        first = cJSON_GetArrayItem(json, 0);
        assert_true(json_number(first, "capacity_blocks") == 3);
        assert_true(json_number(first, "capacity_bytes") == 3999);
        assert_true(json_number(first, "blocks_hit") == 4);
        assert_true(json_number(cJSON_GetArrayItem(json, 1), "capacity_blocks") == 1000);
        assert_true(json_number(cJSON_GetArrayItem(json, 1), "blocks_hit") == 5);
        cJSON_Delete(json);
        assert_int_equal(simulate(by_hand(), "-p", "lru", "--disk", "999", "-b", "1000"),
                         EXIT_WRONG_USAGE);
        assert_err("a cache of 999 has no room for even one of the 5 blocks");
}

static void only_the_first_requests_are_simulated(void **state)
{
        assert_int_equal(simulate(by_hand(), "-r", "2", "-p", "lru", "-c", "9"), EXIT_OK);
        assert_out("2 requests for 6 blocks, 4 of them distinct.");
        assert_out(" 9 33.33 %\n");
}

/* Three seconds of a budget of 86.4 MB a day allow 3 kB. */
static void what_is_written_is_set_against_the_budget(void **state)
{
        cJSON *json, *first;

        assert_int_equal(simulate(by_hand(), "-p", "lru,opt", "-c", "5", "-b", "1",
                                  "--write-budget", "86400000"),
                         EXIT_OK);
        assert_out("Written, of the budget of 2.93 KiB for the time that the workload takes:\n"
                   " CAPACITY lru opt\n 5 0.2 % -\n");
        assert_int_equal(simulate("-j", by_hand(), "-p", "lru", "-c", "5", "-b", "1",
                                  "--write-budget", "86400000"),
                         EXIT_OK);
        json = bench_json();
        first = cJSON_GetArrayItem(json, 0);
        assert_true(json_number(first, "write_budget") == 86400000);
        assert_true(json_number(first, "blocks_written") == 5);
        assert_true(json_number(first, "refused_first") == 0);
        cJSON_Delete(json);
}

static void a_plot_has_a_line_for_each_policy_and_a_mark_for_each_size(void **state)
{
        const char *path = bench_path("plot.svg");
        char *text;

        assert_int_equal(simulate(by_hand(), "-p", "lru,cq,opt", "-c", "1,3,5", "--svg", path),
                         EXIT_OK);
        assert_out("CAPACITY");
        text = bench_read(path);
        assert_non_null(text);
        assert_non_null(strstr(text, "<svg"));
        assert_non_null(strstr(text, "4 requests for 10 blocks, 5 of them distinct"));
        assert_non_null(strstr(text, "lru, 1: 10.00 %"));
        assert_non_null(strstr(text, "lru, 3: 40.00 %"));
        assert_non_null(strstr(text, "opt, 3: 50.00 %"));
        assert_non_null(strstr(text, "capacity in blocks"));
        free(text);
}

static void the_axis_of_a_plot_says_what_its_sizes_are(void **state)
{
        assert_int_equal(simulate(by_hand(), "-c", "20%,100%", "--svg", "-"), EXIT_OK);
        assert_out("capacity, of the distinct blocks");
        assert_null(strstr(bench_out(), "CAPACITY"));
        assert_int_equal(simulate(by_hand(), "--disk", "2kB,4kB", "-b", "1000", "--svg", "-"),
                         EXIT_OK);
        assert_out("capacity in bytes");
        assert_int_equal(
                simulate(by_hand(), "-c", "20%,3", "--disk", "4kB", "-b", "1000", "--svg", "-"),
                EXIT_OK);
        assert_out("capacity: of the distinct blocks (%), in bytes (B), in blocks");
}

static void a_plot_that_cannot_be_written_fails(void **state)
{
        assert_int_equal(simulate(by_hand(), "-p", "lru", "--svg", "/nonexistent/plot.svg"),
                         EXIT_LOCAL);
        assert_err("/nonexistent/plot.svg: No such file or directory");
        assert_string_equal(bench_out(), "");
        assert_int_equal(
                simulate(fleet_by_hand(), "--hosts", "1", "--svg", "/nonexistent/plot.svg"),
                EXIT_LOCAL);
}

static void a_fleet_has_a_row_for_each_number_of_hosts(void **state)
{
        assert_int_equal(simulate(fleet_by_hand(), "--hosts", "1,2", "-c", "100", "--remote-write",
                                  "all", "-b", "1000"),
                         EXIT_OK);
        assert_out("8 requests for 30 blocks, 14 of them distinct, in 6 sessions.\n"
                   "A host's cache, in blocks: 100, cq. The shared tier: unlimited, written: all. "
                   "Route: session.\n"
                   "Hits, of the blocks asked for; one cache for everything would hit 53.33 %:\n"
                   " HOSTS LOCAL SHARED TOTAL SKEW READ BUSIEST WRITTEN STORED\n"
                   " 1 53.33 % 0.00 % 53.33 % 1.00 0.0 MB/s 0.0 MB/s 0.0 MB/s 13.7 KiB\n"
                   " 2 43.33 % 10.00 % 53.33 % 1.14 0.0 MB/s 0.0 MB/s 0.0 MB/s 13.7 KiB\n");
        assert_out("at the pace of the workload (2 min).\n");
        assert_null(strstr(bench_out(), "BREAK-EVEN"));

        assert_int_equal(simulate(fleet_by_hand(), "--hosts", "2", "-c", "50%", "--shared", "50%",
                                  "--route", "random", "--remote-write", "never", "-p", "lru"),
                         EXIT_OK);
        assert_out("A host's cache, in blocks: 50% (7), lru. The shared tier: 50% (7), written: "
                   "never. Route: random.");
        assert_out("0.0 blocks/s 0.0 blocks/s 0.0 blocks/s 0 blocks\n");
        assert_int_equal(simulate(fleet_by_hand(), "--hosts", "2", "--shared", "0"), EXIT_OK);
        assert_out("The shared tier: none, written: reused.");
}

/* Loads three blocks in 120 s, two of them in the busiest minute. 300 tokens take 0.3 s to compute,
 * and two loads have a latency of 0.02 s, which leaves 0.28 s for 3,000 bytes. */
static void a_fleet_as_json_has_rates_and_the_break_even(void **state)
{
        cJSON *json, *f;

        assert_int_equal(simulate("--json", fleet_by_hand(), "--hosts", "2", "-c", "100",
                                  "--remote-write", "all", "-b", "1000", "--tokens-per-block",
                                  "100", "--prefill-rate", "1000", "--remote-latency", "10"),
                         EXIT_OK);
        json = bench_json();
        assert_int_equal(cJSON_GetArraySize(json), 1);
        f = cJSON_GetArrayItem(json, 0);
        assert_true(json_number(f, "hosts") == 2);
        assert_string_equal(json_text(f, "policy"), "cq");
        assert_string_equal(json_text(f, "route"), "session");
        assert_string_equal(json_text(f, "remote_write"), "all");
        assert_true(cJSON_IsNull(cJSON_GetObjectItem(f, "shared_blocks")));
        assert_true(json_number(f, "sessions") == 6);
        assert_float_equal(json_number(f, "hit_ratio"), 16.0 / 30, 1e-9);
        assert_float_equal(json_number(f, "hit_ratio_local"), 13.0 / 30, 1e-9);
        assert_float_equal(json_number(f, "hit_ratio_shared"), 3.0 / 30, 1e-9);
        assert_float_equal(json_number(f, "hit_ratio_bound"), 16.0 / 30, 1e-9);
        assert_true(json_number(f, "loads") == 2);
        assert_true(json_number(f, "blocks_read") == 3);
        assert_true(json_number(f, "blocks_stored") == 14);
        assert_true(json_number(f, "seconds") == 120);
        assert_true(json_number(f, "bytes_read") == 3000);
        assert_true(json_number(f, "bytes_written") == 14000);
        assert_true(json_number(f, "bytes_stored") == 14000);
        assert_float_equal(json_number(f, "bytes_read_per_second"), 25, 1e-9);
        assert_float_equal(json_number(f, "bytes_read_per_second_busiest"), 2000.0 / 60, 1e-9);
        assert_float_equal(json_number(f, "bytes_written_per_second"), 14000.0 / 120, 1e-9);
        assert_float_equal(json_number(f, "prefill_seconds_saved"), 0.3, 1e-9);
        assert_float_equal(json_number(f, "break_even_bytes_per_second"), 3000 / 0.28, 1e-3);
        cJSON_Delete(json);
}

static void a_load_that_never_pays_has_no_break_even(void **state)
{
        cJSON *json;

        assert_int_equal(simulate(fleet_by_hand(), "--hosts", "2", "-c", "100", "--remote-write",
                                  "all", "-b", "1000", "--prefill-rate", "1000000",
                                  "--remote-latency", "1.5"),
                         EXIT_OK);
        assert_out(" never\n");
        assert_out("BREAK-EVEN: the rate that a load must get, after 1.5 ms, to beat computing at "
                   "1,000,000 tokens a second.");
        assert_int_equal(simulate("-j", fleet_by_hand(), "--hosts", "1", "-c", "100", "-b", "1000",
                                  "--prefill-rate", "1"),
                         EXIT_OK);
        json = bench_json();
        assert_true(cJSON_IsNull(
                cJSON_GetObjectItem(cJSON_GetArrayItem(json, 0), "break_even_bytes_per_second")));
        cJSON_Delete(json);
}

static void a_trace_without_time_has_no_rates(void **state)
{
        const char *path = bench_file("still", "{\"timestamp\": 7, \"hash_ids\": [1, 2]}\n"
                                               "{\"timestamp\": 7, \"hash_ids\": [1, 2]}\n");

        assert_int_equal(simulate(path, "--hosts", "1", "-b", "1GB"), EXIT_OK);
        assert_out(" - - - 954 MiB\n");
        assert_int_equal(simulate(path, "--hosts", "1", "--svg", "-"), EXIT_OK);
        assert_out("Hit ratio");
        assert_null(strstr(bench_out(), "Blocks moved"));
        assert_int_equal(simulate(path, "-b", "1MB", "--write-budget", "1TB"), EXIT_BAD_INPUT);
        assert_err("--write-budget: the timestamps of all requests lie so close that the budget "
                   "allows no byte");
}

static void the_plot_of_a_fleet_has_hits_and_rates(void **state)
{
        assert_int_equal(simulate(fleet_by_hand(), "--hosts", "2,1", "-c", "100", "--remote-write",
                                  "all", "-b", "1TB", "--svg", "-"),
                         EXIT_OK);
        assert_out("A shared tier, by the number of hosts");
        assert_out("without a shared tier, 2: 43.33 %");
        assert_out("with a shared tier, 2: 53.33 %");
        assert_out("one cache for everything, 1: 53.33 %");
        assert_out("read, 2: 25.00 GB/s");
        assert_out("written, 2: 116.67 GB/s");
        assert_int_equal(simulate(fleet_by_hand(), "--hosts", "2", "-b", "1MB", "--svg", "-",
                                  "--remote-write", "all", "-c", "100"),
                         EXIT_OK);
        assert_out("read, 2: 0.03 MB/s");
        assert_int_equal(simulate(fleet_by_hand(), "--hosts", "2", "--svg", "-"), EXIT_OK);
        assert_out("Blocks moved from and to the shared tier a second, all hosts together");
}

static void large_rates_are_gigabytes(void **state)
{
        assert_int_equal(simulate(fleet_by_hand(), "--hosts", "2", "-c", "100", "--remote-write",
                                  "all", "-b", "1TB"),
                         EXIT_OK);
        assert_out(" 25.00 GB/s 33.33 GB/s 116.67 GB/s ");
        assert_int_equal(simulate(fleet_by_hand(), "--hosts", "2", "-c", "14TB", "--shared", "3TB",
                                  "-b", "1TB"),
                         EXIT_WRONG_USAGE);
        assert_int_equal(simulate(fleet_by_hand(), "--hosts", "2", "--disk", "14TB", "--shared",
                                  "3TB", "-b", "1TB"),
                         EXIT_OK);
        assert_out("A host's cache, in blocks: 14TB (14), cq. The shared tier: 3TB (3)");
}

static void wrong_usage_is_refused_with_its_reason(void **state)
{
        static const struct {
                const char *arguments[8], *message;
        } cases[] = {
                { { NULL }, "either a trace file or --synthetic chat is needed" },
                { { "TRACE", "--synthetic", "chat" },
                  "give either a trace file or --synthetic chat, not both" },
                { { "TRACE", "other" }, "give only one trace file" },
                { { "--synthetic", "code" }, "--synthetic: 'code' is not known; use chat" },
                { { "TRACE", "-p", "fifo" }, "--policy: 'fifo' is unknown" },
                { { "TRACE", "-p", "lru,lru,lru,lru,lru,lru,lru,lru,cq" }, "one policy too many" },
                { { "TRACE", "-p", "lru,,cq" }, "--policy: 'lru,,cq' is not a list with commas" },
                { { "TRACE", "-c", "" }, "--capacity: '' is not a list with commas" },
                { { "TRACE", "-c", "0" }, "--capacity: '0' is neither a number of blocks" },
                { { "TRACE", "-c", "101%" }, "--capacity: '101%' is neither" },
                { { "TRACE", "-c", "x" }, "--capacity: 'x' is neither" },
                { { "TRACE", "-c",
                    "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,"
                    "25,26,27,28,29,30,31,32,33" },
                  "'33' is one size of the cache too many: give at most 32" },
                { { "TRACE", "--disk", "4X" }, "--disk: '4X' is not a size" },
                { { "TRACE", "--disk", "4TB" }, "--disk needs --bytes-per-block" },
                { { "TRACE", "-b", "x" }, "--bytes-per-block: 'x' is not a size" },
                { { "TRACE", "-r", "0" }, "--requests: '0' is not a whole number from 1" },
                { { "TRACE", "--seed", "-1" }, "--seed: '-1' is not a whole number" },
                { { "TRACE", "--announce-ends", "50" },
                  "'50' is not a share from 0% to 100%; write it with %" },
                { { "TRACE", "--announce-ends", "%" }, "'%' is not a share" },
                { { "TRACE", "--announce-ends", "101%" }, "'101%' is not a share" },
                { { "TRACE", "--write-budget", "1TB" }, "--write-budget needs --bytes-per-block" },
                { { "TRACE", "--json", "--svg", "-" }, "both print to standard output" },
                { { "TRACE", "--route", "random" }, "--route needs --hosts" },
                { { "TRACE", "--shared", "5%" }, "--shared needs --hosts" },
                { { "TRACE", "--prefill-rate", "10" }, "--prefill-rate needs --hosts" },
                { { "TRACE", "--hosts", "0" }, "--hosts: '0' is not a whole number from 1" },
                { { "TRACE", "--hosts", "1025" }, "--hosts: '1025' is not a whole number" },
                { { "TRACE", "--hosts", "1", "-p", "opt" },
                  "--hosts needs exactly one policy: lru or cq" },
                { { "TRACE", "--hosts", "1", "-p", "lru,cq" }, "--hosts needs exactly one policy" },
                { { "TRACE", "--hosts", "1", "-c", "1,2" }, "--hosts needs exactly one size" },
                { { "TRACE", "--hosts", "1", "-b", "1", "--write-budget", "1" },
                  "--write-budget cannot be combined with --hosts" },
                { { "TRACE", "--hosts", "1", "--shared", "1GB" },
                  "--shared in bytes needs --bytes-per-block" },
                { { "TRACE", "--hosts", "1", "--shared", "x%" }, "--shared: 'x%' is not a share" },
                { { "TRACE", "--hosts", "1", "--shared", "99999999999" }, "--shared: '9999" },
                { { "TRACE", "--hosts", "1", "--shared", "1Q" }, "--shared: '1Q' is not a size" },
                { { "TRACE", "--hosts", "1", "--shared", "1234567890123456789012345678" },
                  "is too long" },
                { { "TRACE", "--hosts", "1", "--shared", "1", "-b", "9MB" }, NULL },
                { { "TRACE", "--hosts", "1", "--shared", "1kB", "-b", "9MB" },
                  "a shared tier of 1kB has no room for even one of the 5 blocks" },
                { { "TRACE", "--hosts", "1", "--disk", "1kB", "-b", "9MB" },
                  "a cache of 1kB has no room for even one of the 5 blocks" },
                { { "TRACE", "--hosts", "1", "--prefill-rate", "10" },
                  "--prefill-rate needs --bytes-per-block" },
                { { "TRACE", "--hosts", "1", "--prefill-rate", "0" }, "--prefill-rate: '0'" },
                { { "TRACE", "--hosts", "1", "--tokens-per-block", "0" },
                  "--tokens-per-block: '0'" },
                { { "TRACE", "--hosts", "1", "--route", "x" },
                  "--route: 'x' is unknown; use session, random, events\n" },
                { { "TRACE", "--hosts", "1", "--remote-write", "x" },
                  "--remote-write: 'x' is unknown; use never, reused, all\n" },
                { { "TRACE", "--hosts", "1", "--remote-latency", "x" },
                  "--remote-latency: 'x' is not a number of milliseconds up to 1000000" },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                const char *arguments[9] = { NULL };

                for (size_t k = 0; cases[i].arguments[k]; k++)
                        arguments[k] = strcmp(cases[i].arguments[k], "TRACE") == 0
                                               ? by_hand()
                                               : cases[i].arguments[k];
                assert_int_equal(bench_run(&command_simulate, arguments),
                                 cases[i].message ? EXIT_WRONG_USAGE : EXIT_OK);
                if (!cases[i].message)
                        continue;
                assert_err(cases[i].message);
                assert_string_equal(bench_out(), "");
        }
}

static void bad_traces_are_refused_with_their_line(void **state)
{
        assert_int_equal(simulate("/nonexistent/trace"), EXIT_BAD_INPUT);
        assert_err("/nonexistent/trace: No such file or directory");
        assert_int_equal(simulate(bench_file("bad", "{\"hash_ids\": [1]}\n{\"hash_ids\": [-1]}\n")),
                         EXIT_BAD_INPUT);
        assert_err("/bad:2: ");
        assert_int_equal(simulate(bench_file("empty", "")), EXIT_BAD_INPUT);
        assert_int_equal(simulate(bench_file("none", "{\"hash_ids\": []}\n")), EXIT_BAD_INPUT);
        assert_err("no request asks for a block");
}

static void hostile_traces_are_refused_or_simulated(void **state)
{
        static const struct {
                const char *lines, *error; /* NULL: the trace is simulated */
        } cases[] = {
                { "{\"hash_ids\": [9007199254740991, 9007199254740990]}\n", NULL },
                /* A double cannot tell these two apart. */
                { "{\"hash_ids\": [9007199254740992]}\n", "item 1 of \"hash_ids\"" },
                { "{\"hash_ids\": [1, 9007199254740993]}\n", "item 2 of \"hash_ids\"" },
                { "{\"hash_ids\": [1e308]}\n", "item 1 of \"hash_ids\"" },
                { "{\"hash_ids\": [0.5]}\n", "item 1 of \"hash_ids\"" },
                { "{\"hash_ids\": [1, 2", "is not JSON" },
                { "{\"timestamp\": -1, \"hash_ids\": [1]}\n", "\"timestamp\"" },
                { "{\"timestamp\": NaN, \"hash_ids\": [1]}\n", "is not JSON" },
                { "{\"timestamp\": 1e400, \"hash_ids\": [1]}\n", "\"timestamp\"" },
                { "{\"timestamp\": 9007199254740, \"hash_ids\": [1]}\n", NULL },
                { "\x7f"
                  "ELF\n",
                  "is not JSON" },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                assert_int_equal(simulate(bench_file("hostile", cases[i].lines)),
                                 cases[i].error ? EXIT_BAD_INPUT : EXIT_OK);
                if (cases[i].error)
                        assert_err(cases[i].error);
        }
}

static void help_lists_the_options(void **state)
{
        assert_int_equal(simulate("--help"), EXIT_OK);
        assert_out("usage: kvcache-bench simulate [OPTIONS] TRACE | --synthetic chat");
        assert_out("--announce-ends SHARE");
}

/* --- simulations that fail --- */

static int explanation_fails, fleet_fails; /* 0: the function is the real one */

int __wrap_explanation_run(struct explanation *e, const struct simulation *s, const char *policy,
                           uint32_t capacity, uint32_t block);
int __real_explanation_run(struct explanation *e, const struct simulation *s, const char *policy,
                           uint32_t capacity, uint32_t block);
int __wrap_fleet_run(const struct fleet *f, uint32_t hosts, struct fleet_result *ret);
int __real_fleet_run(const struct fleet *f, uint32_t hosts, struct fleet_result *ret);

/* Replace explanation_run() and fleet_run() for the linker. */
int __wrap_explanation_run(struct explanation *e, const struct simulation *s, const char *policy,
                           uint32_t capacity, uint32_t block)
{
        return explanation_fails ?: __real_explanation_run(e, s, policy, capacity, block);
}

int __wrap_fleet_run(const struct fleet *f, uint32_t hosts, struct fleet_result *ret)
{
        return fleet_fails ?: __real_fleet_run(f, hosts, ret);
}

static void a_simulation_that_fails_reports_its_error(void **state)
{
        static const struct {
                int error;
                const char *message;
        } cases[] = { { -ENOMEM, "kvcache-bench: out of memory\n" },
                      { -EINVAL, "kvcache-bench: --policy lru: the simulation failed: Invalid "
                                 "argument\n" } };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                explanation_fails = fleet_fails = cases[i].error;
                assert_int_equal(simulate(by_hand(), "-p", "lru", "-c", "3", "--explain", "1"),
                                 EXIT_LOCAL);
                assert_string_equal(bench_err(), cases[i].message);
                assert_int_equal(simulate(fleet_by_hand(), "--hosts", "2", "-p", "lru", "-c", "3"),
                                 EXIT_LOCAL);
                assert_string_equal(bench_err(), cases[i].message);
        }
        explanation_fails = fleet_fails = 0;
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(the_table_has_a_row_for_each_size_and_a_column_for_each_policy),
                cmocka_unit_test(by_default_three_policies_and_five_shares_are_shown),
                cmocka_unit_test(json_has_an_object_for_each_size_and_policy),
                cmocka_unit_test(sizes_in_bytes_are_divided_by_those_of_a_block),
                cmocka_unit_test(only_the_first_requests_are_simulated),
                cmocka_unit_test(what_is_written_is_set_against_the_budget),
                cmocka_unit_test(a_plot_has_a_line_for_each_policy_and_a_mark_for_each_size),
                cmocka_unit_test(the_axis_of_a_plot_says_what_its_sizes_are),
                cmocka_unit_test(a_plot_that_cannot_be_written_fails),
                cmocka_unit_test(a_fleet_has_a_row_for_each_number_of_hosts),
                cmocka_unit_test(a_fleet_as_json_has_rates_and_the_break_even),
                cmocka_unit_test(a_load_that_never_pays_has_no_break_even),
                cmocka_unit_test(a_trace_without_time_has_no_rates),
                cmocka_unit_test(the_plot_of_a_fleet_has_hits_and_rates),
                cmocka_unit_test(large_rates_are_gigabytes),
                cmocka_unit_test(wrong_usage_is_refused_with_its_reason),
                cmocka_unit_test(bad_traces_are_refused_with_their_line),
                cmocka_unit_test(hostile_traces_are_refused_or_simulated),
                cmocka_unit_test(help_lists_the_options),
                cmocka_unit_test(a_simulation_that_fails_reports_its_error),
        };

        return cmocka_run_group_tests(tests, bench_directory_make, bench_directory_remove);
}

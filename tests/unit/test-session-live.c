/* SPDX-License-Identifier: Apache-2.0 */
/* kvcache-bench session on a daemon's sessions, and its sweep of memory layouts, with the library
 * but without a daemon: its requests, output, counters, and exit statuses. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "bench-rig.h"
#include "checked.h"
#include "fake-bench.h"
#include "session/live.h"

#define session(...) bench(&command_session, __VA_ARGS__)

static char *golden_b; /* the session B, enabled and not active */

static int reset(void **state)
{
        fake_bench_reset();
        unsetenv("KVCACHE_BENCH_SESSION");
        unsetenv("DYNAMO_BENCHMARK_SESSION");
        fake_bench.session = golden_b;
        return 0;
}

static int begin(void **state)
{
        golden_b = bench_read(GOLDEN_SESSION "/B.json");
        return golden_b ? bench_directory_make(state) : -1;
}

static int end(void **state)
{
        free(golden_b);
        return bench_directory_remove(state);
}

static void init_prints_the_session_and_how_to_name_it(void **state)
{
        cJSON *json;

        assert_int_equal(session("init", "B"), SESSION_OK);
        assert_int_equal(fake_bench.action, KVCACHE_BENCH_INIT);
        assert_int_equal(fake_bench.flags, 0);
        assert_string_equal(fake_bench.name, "B");
        assert_out("file: none, the daemon keeps it in memory\n");
        assert_out("export KVCACHE_BENCH_SESSION=\"B\"\n");
        assert_int_equal(session("init", "B", "--resume"), SESSION_OK);
        assert_int_equal(fake_bench.flags, KVCACHE_BENCH_RESUME);
        assert_int_equal(session("init", "B", "--force", "--json"), SESSION_OK);
        assert_int_equal(fake_bench.flags, KVCACHE_BENCH_FORCE);
        json = bench_json();
        assert_string_equal(json_text(json, "name"), "B");
        assert_true(cJSON_IsNull(cJSON_GetObjectItem(json, "file")));
        assert_true(cJSON_IsFalse(cJSON_GetObjectItem(json, "resumed")));
        cJSON_Delete(json);
}

static void changes_are_asked_for_by_name(void **state)
{
        static const struct {
                const char *action, *text;
                unsigned asked;
        } cases[] = {
                { "reset", "session B is reset\n", KVCACHE_BENCH_RESET },
                { "enable", "session B is enabled\n", KVCACHE_BENCH_ENABLE },
                { "disable", "session B is disabled\n", KVCACHE_BENCH_DISABLE },
                { "delete", "session B is deleted\n", KVCACHE_BENCH_DELETE },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                assert_int_equal(session(cases[i].action, "other"), SESSION_OK);
                assert_int_equal(fake_bench.action, cases[i].asked);
                assert_string_equal(fake_bench.name, "other");
                assert_string_equal(bench_out(), cases[i].text);
        }
        assert_int_equal(session("reset", "--session", "x", "--json"), SESSION_OK);
        assert_string_equal(fake_bench.name, "x");
        assert_out("\"name\":\"B\"");
}

static void without_a_name_it_is_the_environments_or_the_active_one(void **state)
{
        assert_int_equal(session("reset"), SESSION_OK);
        assert_string_equal(fake_bench.name, "");
        setenv("DYNAMO_BENCHMARK_SESSION", "dyn", 1);
        assert_int_equal(session("status"), SESSION_OK);
        assert_string_equal(fake_bench.name, "dyn");
        setenv("KVCACHE_BENCH_SESSION", "own", 1);
        assert_int_equal(session("report", "--no-clock"), SESSION_OK);
        assert_string_equal(fake_bench.name, "own");
        setenv("KVCACHE_BENCH_SESSION", "../x", 1);
        assert_int_equal(session("report"), SESSION_WRONG_USAGE);
        assert_err("KVCACHE_BENCH_SESSION: '../x' is not the name of a session");
}

static void a_list_has_a_row_for_each_session(void **state)
{
        fake_bench.session =
                "[{\"name\": \"a\", \"active\": true, \"enabled\": true, \"created\": \"t\"},"
                " {\"name\": \"b\", \"active\": true, \"enabled\": false},"
                " {\"name\": \"c\", \"active\": false, \"enabled\": true},"
                " {\"name\": \"d\", \"active\": false, \"enabled\": false}]";
        assert_int_equal(session("list"), SESSION_OK);
        assert_int_equal(fake_bench.action, KVCACHE_BENCH_LIST);
        assert_out(
                "SESSION STATE CREATED\na active t\nb active, disabled ?\nc - ?\nd disabled ?\n");
        assert_int_equal(session("list", "--json"), SESSION_OK);
        assert_out("{\"sessions\":[{\"name\":\"a\"");
        fake_bench.session = "[]";
        assert_int_equal(session("list"), SESSION_OK);
        assert_string_equal(bench_out(), "no sessions\n");
        fake_bench.session = "{}";
        assert_int_equal(session("list"), SESSION_FAILED);
        assert_err("the daemon's list of sessions is malformed");
}

static void refusals_have_statuses_of_their_own(void **state)
{
        static const struct {
                int error, status;
                const char *message;
        } cases[] = {
                { -ESRCH, SESSION_NONE_ACTIVE, "no session is active: \"session init NAME\"" },
                { -ENOENT, SESSION_UNKNOWN, "the daemon has no session x: \"session list\"" },
                { -EOPNOTSUPP, SESSION_FAILED, "this daemon is too old to keep sessions" },
                { -EACCES, SESSION_FAILED, "sessions" },
                { -ECONNRESET, SESSION_FAILED, "session x" },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                fake_bench.session_error = cases[i].error;
                assert_int_equal(session("reset", "x"), cases[i].status);
                assert_err(cases[i].message);
                assert_string_equal(bench_out(), "");
        }
        fake_bench.session_error = -EEXIST;
        assert_int_equal(session("init", "x"), SESSION_FAILED);
        assert_err("session x already exists: --resume continues it, --force restarts it at zero");
        fake_bench.session_error = 0;
        fake_bench.session = "{}";
        assert_int_equal(session("report", "x"), SESSION_FAILED);
        assert_err("the daemon's session x: ");
        assert_int_equal(session("init", "x.json"), SESSION_WRONG_USAGE);
        assert_err("init: the other actions would take 'x.json' for a file");
        assert_int_equal(session("delete", ".x"), SESSION_WRONG_USAGE);
        assert_err("delete: '.x' is not the name of a session");
}

static const cJSON *point(const cJSON *json, const char *layout, const char *op)
{
        const cJSON *item;

        cJSON_ArrayForEach(
                item, cJSON_GetObjectItem(json, "points")) if (strcmp(json_text(item, "layout"),
                                                                      layout) == 0 &&
                                                               strcmp(json_text(item, "op"), op) ==
                                                                       0) return item;
        fail_msg("no point of %s, %s", layout, op);
        return NULL;
}

static void a_sweep_has_a_point_for_each_layout_and_operation(void **state)
{
        static const struct {
                const char *layout;
                double pieces;
        } layouts[] = { { "contiguous", 1 }, { "block-first", 3 }, { "outer-first", 6 } };
        static const char *const ops[] = { "put", "get", "mixed" };
        cJSON *json;

        fake_bench.session = NULL;
        assert_int_equal(session("run", "--json", "--regions", "64", "--layers", "3", "--bytes",
                                 "3840", "--iterations", "2", "--ops", "put,get,mixed", "--verify"),
                         SESSION_OK);
        json = bench_json();
        assert_string_equal(json_text(json, "schema"), "kvcache.bench.run.v1");
        assert_string_equal(json_text(json, "daemon"), "daemon: at the default socket");
        assert_true(json_number(json, "layers") == 3);
        assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(json, "points")), 9);
        for (size_t i = 0; i < ARRAY_SIZE(layouts); i++)
                for (size_t k = 0; k < ARRAY_SIZE(ops); k++) {
                        const cJSON *p = point(json, layouts[i].layout, ops[k]);

                        assert_true(json_number(p, "region_bytes") == 64);
                        assert_true(json_number(p, "block_bytes") == 384);
                        assert_true(json_number(p, "blocks") == 10);
                        assert_true(json_number(p, "pieces_per_block") == layouts[i].pieces);
                        /* Two iterations of ten blocks, each compared. */
                        assert_true(json_number(p, "verified_bytes") == 7680);
                        assert_true(json_number(p, "slowest_bps") <= json_number(p, "rate_bps"));
                        assert_true(json_number(p, "rate_bps") <= json_number(p, "fastest_bps"));
                        assert_true(json_number(p, "p50_us") <= json_number(p, "p99_us"));
                }
        assert_true(json_number(point(json, "contiguous", "get"), "of_contiguous") == 1);
        cJSON_Delete(json);
        assert_true(fake_bench.transfers > 0);
        assert_int_equal(fake.leases, 0);
        assert_int_equal(fake.releases_stale, 0);
}

static void cold_gets_come_from_disk(void **state)
{
        cJSON *json;

        assert_int_equal(session("run", "--json", "--regions", "64", "--layers", "2", "--bytes",
                                 "2560", "--iterations", "1", "--ops", "get", "--layouts",
                                 "block-first", "--cold"),
                         SESSION_OK);
        json = bench_json();
        assert_string_equal(json_text(json, "daemon"),
                            "daemon: at the default socket, in its session B");
        assert_true(cJSON_IsTrue(cJSON_GetObjectItem(json, "cold")));
        assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(json, "points")), 1);
        assert_true(json_number(point(json, "block-first", "get"), "from_disk") == 1);
        /* There is no other layout to compare with. */
        assert_true(json_number(point(json, "block-first", "get"), "of_contiguous") == 0);
        cJSON_Delete(json);
}

/* With one block in flight a pass takes at least as long as the slower half of its blocks, and at
 * most as long as the whole command. */
static void a_rate_is_bytes_of_a_pass_by_its_seconds(void **state)
{
        struct timespec begun, ended;
        const cJSON *p;
        cJSON *json;

        clock_gettime(CLOCK_MONOTONIC, &begun);
        assert_int_equal(session("run", "--json", "--regions", "64", "--layers", "3", "--bytes",
                                 "38400", "--iterations", "1", "--depths", "1", "--ops", "put",
                                 "--layouts", "contiguous"),
                         SESSION_OK);
        clock_gettime(CLOCK_MONOTONIC, &ended);
        json = bench_json();
        p = point(json, "contiguous", "put");
        assert_true(json_number(p, "rate_bps") * json_number(p, "p50_us") / 1e6 <= 2 * 384);
        assert_true(json_number(p, "rate_bps") * ((double)(ended.tv_sec - begun.tv_sec) + 1) >=
                    38400);
        assert_true(json_number(p, "slowest_bps") == json_number(p, "fastest_bps"));
        cJSON_Delete(json);
}

static void sizes_multiply_the_points(void **state)
{
        assert_int_equal(session("run", "--regions", "32,64", "--layers", "1", "--outer", "1",
                                 "--bytes", "2KiB", "--iterations", "1", "--clients", "1,2",
                                 "--depths", "1,3", "--ops", "put", "--layouts", "contiguous",
                                 "--format", "csv"),
                         SESSION_OK);
        assert_out("layout,op,region_bytes,block_bytes,blocks,pieces_per_block,clients,depth,");
        assert_out("\ncontiguous,put,32,32,64,1,1,1,");
        assert_out("\ncontiguous,put,32,32,32,1,2,3,");
        assert_out("\ncontiguous,put,64,64,32,1,1,3,");
        assert_out("\ncontiguous,put,64,64,16,1,2,1,");
}

static void a_sweep_for_people_has_a_table_and_a_chart(void **state)
{
        assert_int_equal(session("run", "--regions", "4KiB", "--layers", "2", "--bytes", "64KiB",
                                 "--iterations", "1", "--verify"),
                         SESSION_OK);
        assert_out("daemon: at the default socket, in its session B\n"
                   "warm; 2 layers, outer 2; 1 iteration, median; MB/s are 10^6 bytes a second\n");
        assert_out("\n4 KiB 16 KiB 1 4 put contiguous 1 ");
        assert_out("\n4 KiB 16 KiB 1 4 get outer-first 4 ");
        assert_out("\nverified: 393216 bytes, 0 wrong\n");
        assert_int_equal(session("run", "--regions", "4KiB", "--layers", "2", "--bytes", "64KiB",
                                 "--iterations", "1", "--format", "svg", "--ops", "put,mixed"),
                         SESSION_OK);
        assert_out("What a memory layout costs");
        assert_out("Put: gathered into staging, and put");
        assert_out("regions of 4 KiB, 1 client, 4 blocks in flight");
        assert_null(strstr(bench_out(), "Get: got in place"));
        assert_int_equal(session("run", "--regions", "4KiB", "--layers", "2", "--bytes", "64KiB",
                                 "--iterations", "1", "--format", "html"),
                         SESSION_OK);
        assert_out("<pre");
}

static void a_snapshot_of_a_sweep_is_a_session(void **state)
{
        const char *path = bench_path("run.json");

        assert_int_equal(session("run", "--regions", "64", "--layers", "3", "--bytes", "3840",
                                 "--iterations", "2", "--snapshot", path, "--session", "mine",
                                 "--clients", "2", "-o", bench_path("run.txt")),
                         SESSION_OK);
        assert_int_equal(session("status", path), SESSION_OK);
        /* Two clients with five blocks each, two iterations, put and get, in 1, 3 and 6 copies. */
        assert_out("session mine\n");
        assert_out("transfers 400\nblocks 120\nbytes 46080\npaths 1\nkeys 3 (path and layout)\n"
                   "errors 0\n");
        assert_int_equal(session("report", path, "--layout", "layer_separate_outer_first"),
                         SESSION_OK);
        assert_out("transfers/block 6.000\n");
        assert_out("host_to_host, layer_separate_outer_first, memcpy\n");
        assert_int_equal(session("compare", path, path, "--by", "layout"), SESSION_OK);
}

static void a_run_into_a_session_that_is_not_active_is_refused(void **state)
{
        assert_int_equal(session("run", "--session", "other"), SESSION_NONE_ACTIVE);
        assert_err("session other is not active, but B is: \"session init --resume other\"");
        fake_bench.session_error = -ESRCH;
        assert_int_equal(session("run", "--session", "other"), SESSION_NONE_ACTIVE);
        assert_err("no session is active");
}

static void wrong_bytes_end_a_sweep_that_verifies(void **state)
{
        fake.flip_get = 3;
        fake.flip_offset = 70;
        assert_int_equal(session("run", "--regions", "64", "--layers", "3", "--bytes", "3840",
                                 "--iterations", "1", "--verify", "--ops", "get"),
                         SESSION_FAILED);
        assert_err(" of client 0, outer-first, differs from the bytes that were put");
        assert_string_equal(bench_out(), "");
}

static void a_block_that_fails_ends_the_sweep(void **state)
{
        fake.fail_put = 4;
        assert_int_equal(session("run", "--regions", "64", "--bytes", "20KiB"), SESSION_FAILED);
        assert_err(" cannot be put: the daemon answered ");
        fake_bench_reset();
        fake.vanish_get = 2;
        assert_int_equal(session("run", "--regions", "64", "--bytes", "20KiB"), SESSION_FAILED);
        assert_err(" cannot be got: the daemon answered ");
        fake_bench_reset();
        fake.staging_bytes = 100;
        assert_int_equal(session("run", "--regions", "64", "--bytes", "20KiB"), SESSION_FAILED);
        assert_err("no staging memory for 4 blocks of 2048 bytes in flight: larger than the");
        fake_bench_reset();
        fake.lose_put = 4;
        assert_int_equal(session("run", "--regions", "64", "--bytes", "20KiB"), SESSION_FAILED);
        assert_err("the daemon went away before block ");
        fake_bench_reset();
        fake.die_at_call = 5;
        assert_int_equal(session("run", "--regions", "64", "--bytes", "20KiB"), SESSION_FAILED);
        fake_bench_reset();
        fake.max_chunk_bytes = 1000;
        assert_int_equal(session("run", "--regions", "64", "--bytes", "20KiB"), SESSION_FAILED);
        assert_err("blocks of 2048 bytes: the daemon stores at most 1000 in a chunk");
        fake_bench_reset();
        fake.fingerprint = "layout=other\n";
        assert_int_equal(session("run", "--regions", "64", "--bytes", "20KiB"), SESSION_FAILED);
        assert_err("namespace bench-session-");
}

static void test_with_io_moves_real_data(void **state)
{
        assert_int_equal(session("test", "--io"), SESSION_OK);
        assert_out("arithmetic: 100 transfers, 644096 bytes, 3 keys: right\n");
        assert_out("bytes put and got in 3 layouts, written and read back: right\n");
        fake_bench_reset();
        fake.flip_get = 20;
        assert_int_equal(session("test", "--io"), SESSION_FAILED);
        assert_err("differs from the bytes that were put");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup(init_prints_the_session_and_how_to_name_it, reset),
                cmocka_unit_test_setup(changes_are_asked_for_by_name, reset),
                cmocka_unit_test_setup(without_a_name_it_is_the_environments_or_the_active_one,
                                       reset),
                cmocka_unit_test_setup(a_list_has_a_row_for_each_session, reset),
                cmocka_unit_test_setup(refusals_have_statuses_of_their_own, reset),
                cmocka_unit_test_setup(a_sweep_has_a_point_for_each_layout_and_operation, reset),
                cmocka_unit_test_setup(cold_gets_come_from_disk, reset),
                cmocka_unit_test_setup(a_rate_is_bytes_of_a_pass_by_its_seconds, reset),
                cmocka_unit_test_setup(sizes_multiply_the_points, reset),
                cmocka_unit_test_setup(a_sweep_for_people_has_a_table_and_a_chart, reset),
                cmocka_unit_test_setup(a_snapshot_of_a_sweep_is_a_session, reset),
                cmocka_unit_test_setup(a_run_into_a_session_that_is_not_active_is_refused, reset),
                cmocka_unit_test_setup(wrong_bytes_end_a_sweep_that_verifies, reset),
                cmocka_unit_test_setup(a_block_that_fails_ends_the_sweep, reset),
                cmocka_unit_test_setup(test_with_io_moves_real_data, reset),
        };

        return cmocka_run_group_tests(tests, begin, end);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* kvcache-bench replay and trace as commands, over the library without a daemon: their reports,
 * exit statuses and messages, and that every byte is compared. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bench-rig.h"
#include "checked.h"
#include "fake-bench.h"

#define replay(...) bench(&command_replay, __VA_ARGS__)
#define trace(...)  bench(&command_trace, __VA_ARGS__)

static int reset(void **state)
{
        fake_bench_reset();
        return 0;
}

/* Returns a trace of three requests with 32 blocks: 10 blocks; the same and 5 more; 4 of the first
 * and 3 others. 14 blocks are hits. */
static const char *requests(void)
{
        return bench_file(
                "trace",
                "{\"timestamp\": 0, \"input_length\": 5120, \"hash_ids\": [0,1,2,3,4,5,6,7,8,9]}\n"
                "{\"timestamp\": 10, \"input_length\": 7500, \"hash_ids\": "
                "[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14]}\n"
                "{\"timestamp\": 20, \"hash_ids\": [0,1,2,3,20,21,22]}\n");
}

/* --- replay --- */

static void a_report_for_people_has_every_count(void **state)
{
        assert_int_equal(replay(requests(), "-b", "4KiB"), EXIT_OK);
        assert_out("Replaying /tmp/");
        assert_out("/trace: 3 requests for 32 blocks, 18 of them distinct (72 KiB)\n");
        assert_out(" requests 3 in ");
        assert_out(", 1 client\n");
        assert_out(" blocks wanted 32 of 4 KiB\n");
        assert_out(" blocks hit 14 (43.8 %)\n");
        assert_out(" 7 from memory, 7 from disk\n");
        assert_out(" blocks put 18\n");
        assert_out(" bytes 56 KiB got, 72 KiB put: ");
        assert_out(" evictions 0\n");
        assert_out(" prefill saved about 7,168 of 16,204 tokens (44.2 %), at 512 tokens a block\n");
        assert_out(" errors 0\n");
        assert_out(" wrong bytes 0: every byte got was compared\n");
        assert_out("a call of p50 p90 p99 calls\n");
        assert_out("\nreplay: 3 requests, 18 blocks put, 14 blocks hit (43.8 %), 0 wrong bytes\n");
        assert_string_equal(bench_err(), "");
}

static void a_report_as_json_has_the_same_counts(void **state)
{
        cJSON *json;

        assert_int_equal(
                replay("--json", requests(), "-b", "4096", "--ack", "written", "-n", "mine"),
                EXIT_OK);
        json = bench_json();
        assert_string_equal(json_text(json, "namespace"), "mine");
        assert_string_equal(json_text(json, "ack"), "written");
        assert_true(json_number(json, "block_bytes") == 4096);
        assert_true(json_number(json, "requests") == 3);
        assert_true(json_number(json, "blocks_asked") == 32);
        assert_true(json_number(json, "blocks_hit") == 14);
        assert_true(json_number(json, "hit_ratio") == 14.0 / 32);
        assert_true(json_number(json, "blocks_hit_memory") == 7);
        assert_true(json_number(json, "blocks_hit_disk") == 7);
        assert_true(json_number(json, "blocks_put") == 18);
        assert_true(json_number(json, "bytes_put") == 18 * 4096);
        assert_true(json_number(json, "bytes_got") == 14 * 4096);
        assert_true(json_number(json, "wrong_bytes") == 0);
        assert_true(json_number(json, "evictions") == 0);
        assert_true(json_number(json, "latency_us.match.calls") == 3);
        assert_true(json_number(json, "latency_us.match.p50") <=
                    json_number(json, "latency_us.match.p99"));
        assert_true(json_number(json, "prefill_tokens_saved") == 14 * 512);
        assert_true(json_number(json, "exit_status") == EXIT_OK);
        assert_true(cJSON_IsFalse(cJSON_GetObjectItem(json, "interrupted")));
        assert_null(cJSON_GetObjectItem(json, "error"));
        cJSON_Delete(json);
}

static void one_wrong_byte_makes_the_exit_status_1(void **state)
{
        fake.flip_get = 11;
        fake.flip_offset = 4095;
        assert_int_equal(replay(requests(), "-b", "4096"), EXIT_NOT_FOUND);
        assert_err("WRONG BYTES: the daemon returned other bytes than were put");
        assert_out(" wrong bytes 1\n");
        assert_out("block id 0");
        assert_out(", 1 wrong bytes\n");

        fake_bench_reset();
        fake.shorten_get = 2;
        assert_int_equal(replay("--json", requests(), "-b", "4096"), EXIT_NOT_FOUND);
        assert_out("\"wrong_bytes\":4096");
        assert_out("\"wrong_blocks\":1");
        assert_out("\"exit_status\":1");
        assert_out("\"first_wrong\":");
}

static void failures_are_counted_and_make_the_exit_status_4(void **state)
{
        fake.fail_put = 4;
        assert_int_equal(replay(requests(), "-b", "4096"), EXIT_REFUSED);
        assert_out(" errors 1\n");
        assert_out(" 6 more were there already: another client came first\n");
        fake_bench_reset();
        fake.vanish_get = 3;
        assert_int_equal(replay(requests(), "-b", "4096"), EXIT_OK);
        assert_out(" vanished 1 block between match and get, put again\n");
        fake_bench_reset();
        fake.busy_from_put = 4;
        fake.busy_to_put = 17;
        assert_int_equal(replay(requests(), "-b", "4096"), EXIT_OK);
        assert_out(" busy 7 blocks found no room\n");
}

static void a_daemon_that_is_gone_makes_the_exit_status_3(void **state)
{
        fake.die_at_call = 4;
        assert_int_equal(replay(requests(), "-b", "4096", "--reconnect", "0"), EXIT_UNREACHABLE);
        assert_err("not restored within the time of --reconnect");
        assert_out(" errors 10, of which 10 because the daemon went away\n");
        assert_out(" evictions not known\n");
        fake_bench_reset();
        fake.die_at_call = 4;
        fake.revive_after = 3;
        assert_int_equal(replay(requests(), "-b", "4096", "--reconnect", "60"), EXIT_REFUSED);
        assert_out(" reconnects 1\n");
}

static void a_replay_that_cannot_begin_has_no_report(void **state)
{
        fake.fingerprint = "block_bytes=8192\ncontents=kvcachectl-1\n";
        assert_int_equal(replay("--json", requests(), "-b", "4096"), EXIT_REFUSED);
        assert_err("--block-bytes");
        assert_string_equal(bench_out(), "");
        assert_int_equal(replay(requests(), "--acks", "/nonexistent/acks"), EXIT_LOCAL);
        assert_err("/nonexistent/acks: No such file or directory");
}

static void answered_keys_are_appended_to_the_acks(void **state)
{
        const char *path = bench_file("acks", "# mine\n");
        unsigned lines = 0;
        char *text;

        assert_int_equal(replay(requests(), "-b", "4096", "--acks", path), EXIT_OK);
        text = bench_read(path);
        assert_ptr_equal(strstr(text, "# mine\n"), text);
        for (const char *p = text; (p = strstr(p, " 4096 replay\n")); p++)
                lines++;
        assert_int_equal(lines, 18);
        free(text);
}

static void synthetic_sessions_need_no_trace(void **state)
{
        assert_int_equal(replay("--synthetic", "chat", "-r", "20", "--seed", "7", "-b", "512", "-c",
                                "2", "--announce-ends", "100%"),
                         EXIT_OK);
        assert_out("Replaying synthetic chat sessions: 20 requests for ");
        assert_out(", 2 clients\n");
        assert_out(" announced the end of ");
        assert_out("replay: 20 requests, ");
        assert_true(fake.hints > 0);
}

static void wrong_usage_of_replay_is_refused_with_its_reason(void **state)
{
        static const struct {
                const char *arguments[4], *message;
        } cases[] = {
                { { NULL }, "either a trace file or --synthetic chat is needed" },
                { { "x", "-b", "0" }, "--block-bytes: a block has at least 1 byte" },
                { { "x", "-b", "many" }, "--block-bytes: 'many' is not a size" },
                { { "x", "--speed", "-1" }, "--speed: '-1' is not a number of 0 or more" },
                { { "x", "-c", "0" }, "--clients: '0' is not a whole number from 1" },
                { { "x", "--ack", "sent" },
                  "--ack: 'sent' is unknown; use accepted, written or durable" },
                { { "x", "--reconnect", "long" },
                  "--reconnect: 'long' is not a number of seconds from 0 to 1000000" },
                { { "x", "-n", "a\nb" }, "--namespace: a name must not contain a line end" },
                { { "x", "--announce-ends", "half" }, "--announce-ends: 'half' is not a share" },
                { { "x", "-r", "0" }, "--requests: '0'" },
                { { "x", "--seed", "x" }, "--seed: 'x'" },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                assert_int_equal(bench_run(&command_replay, cases[i].arguments), EXIT_WRONG_USAGE);
                assert_err(cases[i].message);
        }
        assert_int_equal(replay("/nonexistent/trace"), EXIT_BAD_INPUT);
        assert_int_equal(replay(bench_file("bad", "{\"hash_ids\": [1]}\n{}\n")), EXIT_BAD_INPUT);
        assert_err("/bad:2: \"hash_ids\" is missing");
}

/* --- trace --- */

/* Returns a batch that the loop received at once, and an operation that began then and has
 * ended. */
static char *latest_batch(void)
{
        bool is_put = fake.latest_op == KVCACHE_OP_PUT;
        unsigned long long at = (unsigned long long)fake.latest_time.tv_sec * 1000000000u +
                                (unsigned long long)fake.latest_time.tv_nsec;
        char text[512];

        snprintf(text, sizeof(text),
                 "{\"on\": true, \"events\": [{\"batch\": \"%s\", \"keys\": %zu, \"at_ns\": [%llu, "
                 "%llu, %llu, %llu]}, {\"operation\": \"%s\", \"chunks\": 1, \"at_ns\": [%llu, "
                 "%llu, "
                 "%llu, %llu, %llu]}]}",
                 is_put ? "PUT" : "GET", fake.latest_keys, at, at, at, at,
                 is_put ? "write" : "read", at, at, at, at, at);
        return strdup(text);
}

static char *stages_off(void)
{
        return strdup("{\"on\": false}");
}

static char *stages_malformed(void)
{
        return strdup("nonsense");
}

static char *stages_without_events(void)
{
        return strdup("{\"on\": true}");
}

static char *stages_empty(void)
{
        return strdup("{\"on\": true, \"events\": []}");
}

static void a_trace_has_three_phases(void **state)
{
        cJSON *json, *phase;

        fake.stages = latest_batch;
        assert_int_equal(trace("--json", "-k", "4", "-c", "3", "-b", "1KiB"), EXIT_OK);
        json = bench_json();
        assert_string_equal(json_text(json, "command"), "trace");
        assert_true(json_number(json, "block_bytes") == 1024);
        assert_true(json_number(json, "keys") == 4);
        assert_true(json_number(json, "wrong_bytes") == 0);
        assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(json, "phases")), 3);
        for (int i = 0; i < 3; i++) {
                static const char *const names[] = { "put", "cold get", "hot get" };

                phase = cJSON_GetArrayItem(cJSON_GetObjectItem(json, "phases"), i);
                assert_string_equal(json_text(phase, "phase"), names[i]);
                assert_true(json_number(phase, "batches") == 3);
                assert_true(json_number(phase, "unseen") == 0);
                assert_true(json_number(phase, "p50_us") <= json_number(phase, "p90_us"));
                /* Received, submitted, three points of the operation, replied, ended. */
                assert_true(cJSON_GetArraySize(cJSON_GetObjectItem(phase, "points")) >= 7);
        }
        cJSON_Delete(json);
        assert_int_equal(fake.leases, 0);
}

static void a_trace_for_people_shows_the_way_of_a_batch(void **state)
{
        fake.stages = latest_batch;
        assert_int_equal(trace("-k", "2", "-c", "2"), EXIT_OK);
        assert_out("put of 2 x 64 KiB: ");
        assert_out("cold get of 2 x 64 KiB: ");
        assert_out("hot get of 2 x 64 KiB: ");
        assert_out(" at + by the medians\n");
        assert_out("the daemon's loop has the request\n");
        assert_out("the device is done with the last read\n");
        assert_out("the client's call returns\n");
        assert_out("wrong bytes: 0\n");
}

static void a_trace_compares_every_byte(void **state)
{
        fake.stages = latest_batch;
        fake.flip_get = 2;
        fake.flip_offset = 1000;
        assert_int_equal(trace("-k", "2", "-c", "2", "-b", "4096"), EXIT_NOT_FOUND);
        assert_err("WRONG BYTES: the daemon returned other bytes than were put");
        assert_out("wrong bytes: 1\n");
}

static void a_trace_that_cannot_be_made_says_why(void **state)
{
        assert_int_equal(trace("-c", "1"), EXIT_REFUSED); /* for admins */
        assert_err("trace");
        fake.stages = stages_off;
        assert_int_equal(trace("-c", "1"), EXIT_REFUSED);
        assert_err("set io.stages to on in its configuration");
        fake.stages = stages_malformed;
        assert_int_equal(trace("-c", "1"), EXIT_REFUSED);
        assert_err("trace: the daemon's report is malformed");
        fake.stages = stages_without_events;
        assert_int_equal(trace("-c", "1"), EXIT_REFUSED);
        assert_err("trace: the daemon's report is malformed");
        fake.stages = latest_batch;
        fake.vanish_get = 1;
        assert_int_equal(trace("-c", "1"), EXIT_REFUSED);
        assert_err("cold get: a block that was just put is a miss: the store or the memory pool");
        fake_bench_reset();
        fake.stages = latest_batch;
        fake.fail_put = 1;
        assert_int_equal(trace("-c", "1"), EXIT_REFUSED);
        assert_err("put: ");
        fake_bench_reset();
        fake.stages = latest_batch;
        fake.die_at_call = 2;
        assert_int_equal(trace("-c", "2"), EXIT_UNREACHABLE);
        fake_bench_reset();
        fake.stages = stages_empty;
        assert_int_equal(trace("-c", "1", "-k", "1", "--json"), EXIT_OK);
        assert_out("\"batches\":0,\"unseen\":1");
}

static void wrong_usage_of_trace_is_refused_with_its_reason(void **state)
{
        assert_int_equal(trace("x"), EXIT_WRONG_USAGE);
        assert_err("trace takes no arguments");
        assert_int_equal(trace("-k", "513"), EXIT_WRONG_USAGE);
        assert_err("--keys: '513' is not a whole number from 1 to 512");
        assert_int_equal(trace("-k", "512", "-b", "1MiB"), EXIT_WRONG_USAGE);
        assert_err("--block-bytes times --keys, the size of a batch, must be 1 byte");
        assert_int_equal(trace("-c", "0"), EXIT_WRONG_USAGE);
        assert_int_equal(trace("-b", "x"), EXIT_WRONG_USAGE);
        assert_int_equal(trace("--help"), EXIT_OK);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup(a_report_for_people_has_every_count, reset),
                cmocka_unit_test_setup(a_report_as_json_has_the_same_counts, reset),
                cmocka_unit_test_setup(one_wrong_byte_makes_the_exit_status_1, reset),
                cmocka_unit_test_setup(failures_are_counted_and_make_the_exit_status_4, reset),
                cmocka_unit_test_setup(a_daemon_that_is_gone_makes_the_exit_status_3, reset),
                cmocka_unit_test_setup(a_replay_that_cannot_begin_has_no_report, reset),
                cmocka_unit_test_setup(answered_keys_are_appended_to_the_acks, reset),
                cmocka_unit_test_setup(synthetic_sessions_need_no_trace, reset),
                cmocka_unit_test_setup(wrong_usage_of_replay_is_refused_with_its_reason, reset),
                cmocka_unit_test_setup(a_trace_has_three_phases, reset),
                cmocka_unit_test_setup(a_trace_for_people_shows_the_way_of_a_batch, reset),
                cmocka_unit_test_setup(a_trace_compares_every_byte, reset),
                cmocka_unit_test_setup(a_trace_that_cannot_be_made_says_why, reset),
                cmocka_unit_test_setup(wrong_usage_of_trace_is_refused_with_its_reason, reset),
        };

        return cmocka_run_group_tests(tests, bench_directory_make, bench_directory_remove);
}

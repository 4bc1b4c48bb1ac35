/* SPDX-License-Identifier: Apache-2.0 */
/* The replay with a library that misbehaves by plan: its counters, that it detects every wrong
 * byte, and that it neither hangs nor keeps leases when room is short or the daemon ends. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common.h"
#include "fake-kvcache.h"
#include "keyfile.h"
#include "progress.h"
#include "checked.h"
#include "replay.h"

enum { BLOCK_BYTES = 4096 };

/* Three requests: 10 blocks; the same 10 and 5 more; 4 of the first and 3 others. */
static uint64_t ids[] = { 0, 1, 2, 3, 4,  5,  6,  7,  8,  9, 0, 1, 2, 3,  4,  5,
                          6, 7, 8, 9, 10, 11, 12, 13, 14, 0, 1, 2, 3, 20, 21, 22 };
static struct workload_request requests[] = {
        { .timestamp_ms = 0, .input_tokens = 5120, .first_id = 0, .n_ids = 10 },
        { .timestamp_ms = 10, .input_tokens = 7500, .first_id = 10, .n_ids = 15 },
        { .timestamp_ms = 20, .input_tokens = 0, .first_id = 25, .n_ids = 7 },
};
static const struct workload small = {
        .kind = "trace",
        .block_tokens = TRACE_BLOCK_TOKENS,
        .requests = requests,
        .n_requests = 3,
        .ids = ids,
        .n_ids = 32,
};

static int reset(void **state)
{
        fake_reset();
        return 0;
}

static struct replay_options plain(void)
{
        return (struct replay_options){
                .namespace_name = "replay",
                .block_bytes = BLOCK_BYTES,
                .clients = 1,
                .acks_fd = -1,
        };
}

static void assert_nothing_held(void)
{
        assert_int_equal(fake.leases, 0);
        assert_int_equal(fake.releases_stale, 0);
}

static void every_block_is_counted_once(void **state)
{
        struct replay_options options = plain();
        struct replay_result result;

        assert_int_equal(replay_run(&options, &small, &result), EXIT_OK);
        assert_int_equal(result.counts.requests, 3);
        assert_int_equal(result.counts.blocks_asked, 32);
        assert_int_equal(result.counts.blocks_hit, 14);
        assert_int_equal(result.counts.blocks_hit_memory + result.counts.blocks_hit_disk, 14);
        assert_int_equal(result.counts.blocks_hit_memory, 7);
        assert_int_equal(result.counts.blocks_put, 18);
        assert_int_equal(result.counts.bytes_put, 18 * BLOCK_BYTES);
        assert_int_equal(result.counts.bytes_got, 14 * BLOCK_BYTES);
        assert_int_equal(result.counts.wrong_bytes, 0);
        assert_int_equal(result.counts.errors, 0);
        assert_int_equal(result.counts.blocks_unheld, 0);
        assert_int_equal(result.counts.tokens_asked, 5120 + 7500 + 7 * 512);
        assert_int_equal(result.counts.tokens_saved, 14 * 512);
        assert_int_equal(result.match.n, 3);
        assert_true(result.evictions_known);
        assert_int_equal(result.evictions, 0);
        assert_true(result.seconds > 0);
        assert_string_equal(result.error, "");
        /* All of a request's blocks were held at once. */
        assert_int_equal(fake.most_leases, 15);
        assert_nothing_held();
        replay_result_fini(&result);

        /* A second replay finds all blocks. */
        assert_int_equal(replay_run(&options, &small, &result), EXIT_OK);
        assert_int_equal(result.counts.blocks_hit, 32);
        assert_int_equal(result.counts.blocks_put, 0);
        /* Saved tokens are never more than there were. */
        assert_int_equal(result.counts.tokens_saved, 5120 + 7500 + 7 * 512);
        replay_result_fini(&result);
}

static void one_flipped_bit_is_a_wrong_byte(void **state)
{
        struct replay_options options = plain();
        struct replay_result result;

        fake.flip_get = 11; /* the first block that the third request gets */
        fake.flip_offset = BLOCK_BYTES - 1;
        assert_int_equal(replay_run(&options, &small, &result), EXIT_OK);
        assert_int_equal(result.counts.wrong_bytes, 1);
        assert_int_equal(result.counts.wrong_blocks, 1);
        assert_int_equal(result.counts.blocks_hit, 13);
        /* Blocks after a wrong one are useless to an engine, so only the ten of request 2 were
         * saved. */
        assert_int_equal(result.counts.tokens_saved, 10 * 512);
        assert_non_null(strstr(result.first_wrong, "block id 0"));
        assert_non_null(strstr(result.first_wrong, "offset 4095"));
        assert_nothing_held();
        replay_result_fini(&result);
}

static void another_blocks_bytes_are_wrong_bytes(void **state)
{
        struct replay_options options = plain();
        struct replay_result result;

        fake.swap_get = 5;
        assert_int_equal(replay_run(&options, &small, &result), EXIT_OK);
        assert_true(result.counts.wrong_bytes > BLOCK_BYTES * 9 / 10);
        assert_int_equal(result.counts.blocks_hit, 13);
        replay_result_fini(&result);
}

static void a_short_block_is_wrong_bytes(void **state)
{
        struct replay_options options = plain();
        struct replay_result result;

        fake.shorten_get = 1;
        assert_int_equal(replay_run(&options, &small, &result), EXIT_OK);
        assert_int_equal(result.counts.wrong_bytes, BLOCK_BYTES);
        assert_int_equal(result.counts.bytes_got, 14 * BLOCK_BYTES - 1);
        assert_nothing_held();
        replay_result_fini(&result);
}

static void a_block_that_vanished_is_put_again(void **state)
{
        struct replay_options options = plain();
        struct replay_result result;

        fake.vanish_get = 3;
        assert_int_equal(replay_run(&options, &small, &result), EXIT_OK);
        assert_int_equal(result.counts.blocks_vanished, 1);
        assert_int_equal(result.counts.blocks_hit, 13);
        assert_int_equal(result.counts.blocks_put, 18);
        assert_int_equal(result.counts.blocks_existed, 1); /* the block existed after all */
        assert_int_equal(result.counts.tokens_saved, (2 + 4) * 512);
        assert_int_equal(result.counts.errors, 0);
        assert_nothing_held();
        replay_result_fini(&result);
}

static void a_failed_put_costs_that_block_only(void **state)
{
        struct replay_options options = plain();
        struct replay_result result;

        fake.fail_put = 4;
        assert_int_equal(replay_run(&options, &small, &result), EXIT_OK);
        assert_int_equal(result.counts.errors, 1);
        /* Request 2 finds blocks 0 to 2 and puts block 3, and those after it that are there
         * already. */
        assert_int_equal(result.counts.blocks_put, 18);
        assert_int_equal(result.counts.blocks_existed, 6);
        assert_int_equal(result.counts.wrong_bytes, 0);
        assert_nothing_held();
        replay_result_fini(&result);
}

static void a_lease_quota_ends_the_holding_not_the_request(void **state)
{
        struct replay_options options = plain();
        struct replay_result result;

        fake.lease_quota = 6;
        assert_int_equal(replay_run(&options, &small, &result), EXIT_OK);
        assert_int_equal(result.counts.blocks_put, 18);
        assert_int_equal(result.counts.errors, 0);
        assert_true(result.counts.blocks_unheld > 0);
        assert_true(fake.most_leases <= 6);
        assert_nothing_held();
        replay_result_fini(&result);
}

static void blocks_without_room_are_counted_and_passed_over(void **state)
{
        struct replay_options options = plain();
        struct replay_result result;

        /* Blocks 3 to 9 are refused, and are again when nothing is held. */
        fake.busy_from_put = 4;
        fake.busy_to_put = 10 + 7;
        assert_int_equal(replay_run(&options, &small, &result), EXIT_OK);
        assert_int_equal(result.counts.busy, 7);
        assert_int_equal(result.counts.errors, 0);
        assert_int_equal(result.counts.requests, 3);
        assert_int_equal(result.counts.blocks_hit, 3 + 4);
        assert_nothing_held();
        replay_result_fini(&result);
}

static struct workload *chat(uint64_t n)
{
        struct workload *w = NULL;

        assert_int_equal(workload_chat(&w, n, 3), 0);
        return w;
}

/* Eight clients with requests of more than the pool's 32 blocks: no client may take more than its
 * part. */
static void rounds_and_leases_stay_a_small_part_of_the_pool(void **state)
{
        struct workload *w = chat(300);
        struct replay_options options = plain();
        struct replay_result result;
        size_t longest = 0;

        for (size_t i = 0; i < w->n_requests; i++)
                longest = w->requests[i].n_ids > longest ? w->requests[i].n_ids : longest;
        assert_true(longest > 32);
        fake.pool_bytes = 32 * BLOCK_BYTES;
        options.clients = 8;
        assert_int_equal(replay_run(&options, w, &result), EXIT_OK);
        assert_int_equal(result.counts.requests, 300);
        assert_int_equal(result.counts.blocks_hit + result.counts.blocks_put +
                                 result.counts.blocks_existed,
                         w->n_ids);
        assert_true(fake.most_round_bytes <= fake.pool_bytes / 16);
        assert_true(fake.most_leases <= 8 + 8); /* a quarter held, and a round in hand each */
        assert_int_equal(result.counts.errors, 0);
        assert_int_equal(result.counts.wrong_bytes, 0);
        assert_nothing_held();
        replay_result_fini(&result);
        workload_free(w);
}

static void a_store_that_evicts_is_counted_and_never_wrong(void **state)
{
        struct workload *w = chat(500);
        struct replay_options options = plain();
        struct replay_result result;

        fake.capacity = 200;
        options.clients = 3;
        assert_int_equal(replay_run(&options, w, &result), EXIT_OK);
        assert_int_equal(result.counts.wrong_bytes, 0);
        assert_true(result.evictions > 0);
        assert_int_equal(result.evictions, fake.evictions);
        assert_int_equal(result.counts.blocks_put, 200 + fake.evictions);
        assert_nothing_held();
        replay_result_fini(&result);
        workload_free(w);
}

static void a_small_staging_makes_small_rounds(void **state)
{
        struct replay_options options = plain();
        struct replay_result result;

        fake.staging_bytes = 3 * BLOCK_BYTES;
        assert_int_equal(replay_run(&options, &small, &result), EXIT_OK);
        assert_int_equal(result.counts.blocks_put, 18);
        replay_result_fini(&result);

        /* Not even one block fits, so the library copies from other memory than the staging
         * area. */
        fake_reset();
        fake.staging_bytes = 100;
        assert_int_equal(replay_run(&options, &small, &result), EXIT_OK);
        assert_int_equal(result.counts.blocks_put, 18);
        assert_int_equal(result.counts.blocks_hit, 14);
        replay_result_fini(&result);
}

static void a_daemon_that_dies_ends_it_with_what_was_done(void **state)
{
        struct replay_options options = plain();
        struct replay_result result;

        fake.die_at_call =
                4; /* after match and put of the first request, and match of the second */
        assert_int_equal(replay_run(&options, &small, &result), EXIT_UNREACHABLE);
        assert_int_equal(result.counts.requests, 1);
        assert_int_equal(result.counts.blocks_put, 10);
        assert_int_equal(result.counts.blocks_hit, 0);
        assert_int_equal(result.counts.errors, 10);
        assert_int_equal(result.counts.lost, 10);
        assert_non_null(strstr(result.error, "not restored within the time of --reconnect"));
        assert_false(result.evictions_known);
        replay_result_fini(&result);
}

static void a_daemon_that_comes_back_costs_the_blocks_in_flight(void **state)
{
        struct replay_options options = plain();
        struct replay_result result;

        fake.die_at_call = 4;
        fake.revive_after = 3;
        options.reconnect_ms = 60000;
        assert_int_equal(replay_run(&options, &small, &result), EXIT_OK);
        assert_int_equal(result.counts.requests, 3);
        assert_int_equal(result.counts.reconnects, 1);
        assert_int_equal(result.counts.lost, 10);
        assert_int_equal(result.counts.blocks_hit, 4); /* request 2 computed its blocks again */
        assert_int_equal(result.counts.wrong_bytes, 0);
        assert_nothing_held();
        replay_result_fini(&result);
}

static void no_daemon_and_too_large_blocks_are_reported_before_anything_is_played(void **state)
{
        struct replay_options options = plain();
        struct replay_result result;

        options.block_bytes = fake.max_chunk_bytes + 1;
        assert_int_equal(replay_run(&options, &small, &result), EXIT_REFUSED);
        assert_non_null(strstr(result.error, "8388608"));
        assert_int_equal(fake.calls, 0);
        replay_result_fini(&result);

        options = plain();
        fake.fingerprint = "block_bytes=8192\ncontents=kvcachectl-1\n";
        assert_int_equal(replay_run(&options, &small, &result), EXIT_REFUSED);
        assert_non_null(strstr(result.error, "--block-bytes"));
        assert_int_equal(fake.calls, 0);
        assert_true(result.seconds == 0);
        replay_result_fini(&result);

        options.block_bytes = 8192;
        assert_int_equal(replay_run(&options, &small, &result), EXIT_OK);
        replay_result_fini(&result);
}

static void answered_keys_are_in_the_file_and_no_others(void **state)
{
        char path[] = "/tmp/test-replay-XXXXXX", error[KEYFILE_ERROR_BYTES];
        struct replay_options options = plain();
        struct replay_result result;
        struct keyfile_entry entry;
        struct keyfile *f = NULL;
        struct kvcache_key failed;
        unsigned n = 0;

        close(mkstemp(path));
        options.acks_fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
        assert_true(options.acks_fd >= 0);
        fake.fail_put = 4;
        /* The first request only: later ones would put the failed block again. */
        struct workload first = small;
        first.n_requests = 1;
        assert_int_equal(replay_run(&options, &first, &result), EXIT_OK);
        close(options.acks_fd);
        workload_key(&first, 3, &failed);

        assert_int_equal(keyfile_open(&f, path, error), 0);
        while (keyfile_next(f, &entry, error) > 0) {
                n++;
                assert_string_equal(entry.namespace, "replay");
                assert_int_equal(entry.length, BLOCK_BYTES);
                assert_memory_not_equal(&entry.key, &failed, sizeof(failed));
        }
        assert_int_equal(n, 9);
        keyfile_close(f);
        replay_result_fini(&result);
        unlink(path);
}

static void a_full_disk_under_the_acks_ends_it(void **state)
{
        struct replay_options options = plain();
        struct replay_result result;

        options.acks_fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
        if (options.acks_fd < 0)
                skip();
        assert_int_equal(replay_run(&options, &small, &result), EXIT_LOCAL);
        assert_int_equal(result.counts.requests, 0);
        close(options.acks_fd);
        replay_result_fini(&result);
}

static void an_interrupt_ends_it_between_requests(void **state)
{
        static atomic_int interrupted = 1;
        struct replay_options options = plain();
        struct replay_result result;

        options.interrupted = &interrupted;
        assert_int_equal(replay_run(&options, &small, &result), EXIT_OK);
        assert_true(result.interrupted);
        assert_int_equal(result.counts.requests, 0);
        replay_result_fini(&result);
}

static void time_scaling_keeps_the_workloads_pace(void **state)
{
        struct replay_options options = plain();
        struct replay_result result;

        options.speed = 0.5; /* 20 ms of trace take 40 */
        assert_int_equal(replay_run(&options, &small, &result), EXIT_OK);
        assert_true(result.seconds >= 0.04);
        assert_int_equal(result.counts.requests, 3);
        replay_result_fini(&result);
}

static void a_return_at_a_very_low_speed_is_as_late_as_possible(void **state)
{
        static const double speeds[] = { 1e-9, 1e-300 };

        for (size_t i = 0; i < ARRAY_SIZE(speeds); i++) {
                struct replay_options options = plain();
                struct simulated_hint hint = { .kind = SIMULATED_HINT_RETURN, .return_s = 60 };
                struct workload first = small;
                struct replay_result result;

                first.n_requests = 1;
                options.hints = &hint;
                options.speed = speeds[i];
                assert_int_equal(replay_run(&options, &first, &result), EXIT_OK);
                assert_int_equal(result.counts.returns_announced, 1);
                assert_int_equal(fake.request.advice, KVCACHE_ADVICE_RETURN);
                assert_true(fake.request.return_s == UINT32_MAX);
                replay_result_fini(&result);
        }
}

static void evictions_are_read_whatever_labels_they_have(void **state)
{
        uint64_t n = 7;

        assert_true(replay_parse_evictions("{\"kvcache_evictions_total\": 12}", &n));
        assert_int_equal(n, 12);
        assert_true(replay_parse_evictions(
                "{\"kvcache_evictions_total\": {\"memory\": 5, \"disk\": 3}}", &n));
        assert_int_equal(n, 3);
        assert_true(
                replay_parse_evictions("{\"kvcache_evictions_total\": {\"a\": 5, \"b\": 3}}", &n));
        assert_int_equal(n, 8);
        n = 7;
        assert_false(replay_parse_evictions("{}", &n));
        assert_false(replay_parse_evictions("{\"kvcache_evictions_total\": \"x\"}", &n));
        assert_false(replay_parse_evictions("not json", &n));
        assert_false(replay_parse_evictions("", &n));
        assert_int_equal(n, 7);
}

static void the_progress_line_fits_its_terminal(void **state)
{
        struct replay_progress now = {
                .requests = 6015,
                .n_requests = 12031,
                .blocks_asked = 1000,
                .blocks_hit = 279,
                .bytes = 5000000000,
                .seconds = 10,
        };
        char tail[REPLAY_PROGRESS_BYTES], line[512];
        double part = replay_progress_text(&now, tail);

        progress_format(120, part, tail, line, sizeof(line));
        assert_non_null(strstr(line, "[####"));
        assert_non_null(
                strstr(line, " 50 %  6,015/12,031 requests  27.9 % hit  0.50 GB/s  left 10.0 s"));
        for (unsigned columns = 1; columns < 150; columns++) {
                progress_format(columns, part, tail, line, sizeof(line));
                assert_true(strlen(line) < columns);
        }
        now.requests = 0;
        part = replay_progress_text(&now, tail);
        progress_format(100, part, tail, line, sizeof(line));
        assert_non_null(strstr(line, "  0 %  0/12,031"));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup(every_block_is_counted_once, reset),
                cmocka_unit_test_setup(one_flipped_bit_is_a_wrong_byte, reset),
                cmocka_unit_test_setup(another_blocks_bytes_are_wrong_bytes, reset),
                cmocka_unit_test_setup(a_short_block_is_wrong_bytes, reset),
                cmocka_unit_test_setup(a_block_that_vanished_is_put_again, reset),
                cmocka_unit_test_setup(a_failed_put_costs_that_block_only, reset),
                cmocka_unit_test_setup(a_lease_quota_ends_the_holding_not_the_request, reset),
                cmocka_unit_test_setup(blocks_without_room_are_counted_and_passed_over, reset),
                cmocka_unit_test_setup(rounds_and_leases_stay_a_small_part_of_the_pool, reset),
                cmocka_unit_test_setup(a_store_that_evicts_is_counted_and_never_wrong, reset),
                cmocka_unit_test_setup(a_small_staging_makes_small_rounds, reset),
                cmocka_unit_test_setup(a_daemon_that_dies_ends_it_with_what_was_done, reset),
                cmocka_unit_test_setup(a_daemon_that_comes_back_costs_the_blocks_in_flight, reset),
                cmocka_unit_test_setup(
                        no_daemon_and_too_large_blocks_are_reported_before_anything_is_played,
                        reset),
                cmocka_unit_test_setup(answered_keys_are_in_the_file_and_no_others, reset),
                cmocka_unit_test_setup(a_full_disk_under_the_acks_ends_it, reset),
                cmocka_unit_test_setup(an_interrupt_ends_it_between_requests, reset),
                cmocka_unit_test_setup(time_scaling_keeps_the_workloads_pace, reset),
                cmocka_unit_test_setup(a_return_at_a_very_low_speed_is_as_late_as_possible, reset),
                cmocka_unit_test(evictions_are_read_whatever_labels_they_have),
                cmocka_unit_test(the_progress_line_fits_its_terminal),
        };

        return cmocka_run_group_tests(tests, NULL, reset); /* frees what the last one left */
}

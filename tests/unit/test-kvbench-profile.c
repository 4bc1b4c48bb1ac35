/* SPDX-License-Identifier: Apache-2.0 */
/* kvcache-bench profile, with the library but without a daemon, and directly on a file: all blocks
 * are moved and compared, wrong bytes never lead to a figure, and invalid arguments are refused. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "bench-rig.h"
#include "checked.h"
#include "fake-bench.h"
#include "kvbench/raw.h"

enum { FAILED = 1, BLOCK = 4096, BLOCKS = 64 };

static char status_text[512], folder[256];

static void set_status(uint64_t limit, const char *backend)
{
        snprintf(status_text, sizeof(status_text),
                 "{\"io\": {\"backend\": \"%s\", \"direct\": true, \"workers\": 2, \"depth\": 8}, "
                 "\"store\": {\"limit_bytes\": %llu, \"volumes\": [{\"volume\": \"%s\"}]}}",
                 backend, (unsigned long long)limit, folder);
        fake.status = status_text;
}

static int reset(void **state)
{
        fake_bench_reset();
        snprintf(folder, sizeof(folder), "%s", bench_path(""));
        set_status(1 << 30, "posix");
        return 0;
}

/* 16 tokens of 4 layers of 64 bytes make an I/O of 4 KiB. 4 users have 16 of them each. */
#define FILES                                                                                      \
        "--model",                                                                                 \
                bench_file("model.yaml", "model_name: M\nfamily: generic_latent\nnum_layers: 4\n"  \
                                         "latent_dimension: 64\n"),                                \
                "--model_config",                                                                  \
                bench_file("config.yaml", "runtime:\n  isl: 256\n  num_requests: 4\nsystem:\n  "   \
                                          "page_size: 16\n  access_pattern: block\n")
#define profile(...)                                                                               \
        bench(&command_profile, FILES, "--num_iter", "2", "--warmup_iter", "1", __VA_ARGS__)

static cJSON *first_of_json(cJSON **ret_whole)
{
        *ret_whole = bench_json();
        return cJSON_GetArrayItem(cJSON_GetObjectItem(*ret_whole, "configurations"), 0);
}

static void a_write_moves_each_block_once_a_pass_and_reads_it_back(void **state)
{
        cJSON *json, *o;

        assert_int_equal(profile("--json", "--source", "memory", "--no_raw"), EXIT_OK);
        o = first_of_json(&json);
        assert_string_equal(json_text(o, "backend"), "KVCACHE");
        assert_string_equal(json_text(o, "op_type"), "WRITE");
        assert_string_equal(json_text(o, "daemon"), "running");
        assert_string_equal(json_text(o, "io"), "posix, O_DIRECT");
        assert_true(json_number(o, "block_size") == BLOCK);
        assert_true(json_number(o, "batch_size") == BLOCKS);
        assert_true(json_number(o, "users") == 4);
        assert_true(json_number(o, "num_threads") == 1);
        assert_true(json_number(o, "blocks") == 2 * BLOCKS);
        assert_true(json_number(o, "bytes_moved") == 2 * BLOCKS * BLOCK);
        assert_true(json_number(o, "bytes_verified") == BLOCKS * BLOCK);
        assert_true(json_number(o, "bandwidth_gb_s") > 0);
        assert_true(cJSON_IsNull(cJSON_GetObjectItem(o, "raw")));
        cJSON_Delete(json);
        assert_int_equal(fake.chunks_put, 3 * BLOCKS);
        assert_int_equal(fake.chunks_got, BLOCKS);
        assert_int_equal(fake.leases, 0);
        assert_int_equal(fake.releases_stale, 0);
}

static void a_read_gets_what_a_write_has_left(void **state)
{
        cJSON *json, *o;

        assert_int_equal(profile("--source", "memory", "--no_raw"), EXIT_OK);
        assert_int_equal(profile("--json", "--no_raw", "--num_threads", "3"), EXIT_OK);
        o = first_of_json(&json);
        assert_string_equal(json_text(o, "op_type"), "READ");
        assert_true(json_number(o, "num_threads") == 3);
        assert_true(json_number(o, "bytes_verified") == 2 * BLOCKS * BLOCK);
        assert_true(json_number(o, "bytes_from_memory") + json_number(o, "bytes_from_disk") ==
                    2 * BLOCKS * BLOCK);
        assert_true(json_number(o, "bytes_from_memory") > 0);
        cJSON_Delete(json);
        assert_int_equal(profile("--json", "--no_raw", "--cold"), EXIT_OK);
        o = first_of_json(&json);
        assert_true(cJSON_IsTrue(cJSON_GetObjectItem(o, "cold")));
        assert_true(json_number(o, "bytes_from_memory") == 0);
        assert_true(json_number(o, "bytes_from_disk") == 2 * BLOCKS * BLOCK);
        cJSON_Delete(json);
        assert_int_equal(fake.leases, 0);
}

static void raw_is_measured_beside_the_daemon(void **state)
{
        assert_int_equal(profile("--source", "memory"), EXIT_OK);
        assert_out("WRITE, memory to file: 4 users, 1 client, 2 iterations after 1 warm-up\n"
                   "Daemon: running, at the default socket, on /tmp/");
        assert_out("KVCACHE: 512 KiB written in ");
        assert_out("RAW: 512 KiB written in ");
        assert_out(" of RAW's bandwidth.\n");
        assert_int_equal(profile("--source", "file"), EXIT_OK);
        assert_out("READ, file to memory, warm: ");
        assert_out("512 KiB compared: 0 wrong bytes\n");
}

static void block_and_batch_sizes_double_from_start_to_max(void **state)
{
        cJSON *json;

        assert_int_equal(profile("--json", "--source", "memory", "--no_raw", "--start_block_size",
                                 "512", "--max_block_size", "1024", "--start_batch_size", "2",
                                 "--max_batch_size", "8"),
                         EXIT_OK);
        json = bench_json();
        assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(json, "configurations")), 6);
        cJSON_Delete(json);
        assert_int_equal(profile("--source", "memory", "--no_raw", "--total_buffer_size", "40960"),
                         EXIT_OK);
        assert_err("--total_buffer_size 40960 has room for only 10 blocks of 4096 bytes");
        assert_int_equal(profile("--source", "memory", "--total_buffer_size", "40"), FAILED);
}

static void nothing_wrong_passes_for_a_figure(void **state)
{
        static const struct {
                uint64_t flip, shorten, vanish, fail;
                const char *message;
        } cases[] = {
                { .flip = 9,
                  .message = " is wrong: 1 of 4096 bytes differ, the first at offset 100" },
                { .shorten = 5, .message = " is short: 4095 of 4096 bytes" },
                { .vanish = 7,
                  .message = " of 64 is missing: the daemon found it damaged on disk" },
                { .fail = 3, .message = "writing block " },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                reset(state);
                fake.flip_get = cases[i].flip;
                fake.flip_offset = 100;
                fake.shorten_get = cases[i].shorten;
                fake.vanish_get = cases[i].vanish;
                fake.fail_put = cases[i].fail;
                assert_int_equal(profile("--source", "memory", "--no_raw"), FAILED);
                assert_err("config.yaml: ");
                assert_err(cases[i].message);
                assert_string_equal(bench_out(), "");
        }
        reset(state);
        fake.die_at_call = 4;
        assert_int_equal(profile("--json", "--source", "memory", "--no_raw"), FAILED);
        assert_out("\"error\":\"");
}

static void blocks_that_are_missing_are_asked_for(void **state)
{
        assert_int_equal(profile("--source", "file", "--no_raw"), FAILED);
        assert_err("there is nothing to read, because this workload has not been written");
        fake.capacity = 40;
        assert_int_equal(profile("--source", "memory", "--no_raw"), FAILED);
        reset(state);
        assert_int_equal(profile("--source", "memory", "--no_raw", "--isl", "128"), EXIT_OK);
        assert_int_equal(profile("--source", "file", "--no_raw"), FAILED);
        assert_err("only 32 of 64 blocks are stored: another workload was written");
}

static void a_daemon_that_cannot_do_it_is_refused(void **state)
{
        set_status(100000, "posix");
        assert_int_equal(profile("--source", "memory"), FAILED);
        assert_err("the workload is 256 KiB, but store.limit of the daemon is 97.7 KiB");
        set_status(1 << 30, "posix");
        assert_int_equal(profile("--source", "memory", "--io", "uring"), FAILED);
        assert_err("--io uring: the daemon does its I/O with posix (its setting io.backend)");
        fake.status = "{}";
        assert_int_equal(profile("--source", "memory"), FAILED);
        assert_err("the daemon's status is malformed");
        reset(state);
        fake.max_chunk_bytes = 2048;
        assert_int_equal(profile("--source", "memory"), FAILED);
        assert_err("blocks of 4096 bytes are too large: the daemon stores 2 KiB at most");
        reset(state);
        fake.staging_bytes = 1024;
        assert_int_equal(profile("--source", "memory"), FAILED);
        assert_err("does not fit the daemon's staging areas: raise memory.staging, and restart the "
                   "daemon");
        reset(state);
        fake.fingerprint = "another";
        assert_int_equal(profile("--source", "memory"), FAILED);
        assert_err("cannot open the namespace kvbench/M/block-tp1-pp1-page16-4096: ");
}

/* --- straight on a file --- */

static void raw(const char *io)
{
        const char *path = bench_path("kvbench-M-block-tp1-pp1-page16-4096.raw");
        uint8_t byte = 0;
        cJSON *json, *o;
        int fd;

        unlink(path);
        assert_int_equal(profile("--backend", "RAW", "--filepath", folder, "--io", io), FAILED);
        assert_err("there is nothing to read in ");
        assert_int_equal(profile("--json", "--backend", "RAW", "--filepath", folder, "--io", io,
                                 "--source", "memory", "--num_threads", "2"),
                         EXIT_OK);
        o = first_of_json(&json);
        assert_string_equal(json_text(o, "backend"), "RAW");
        assert_true(cJSON_IsNull(cJSON_GetObjectItem(o, "daemon")));
        assert_true(json_number(o, "bytes_moved") == 2 * BLOCKS * BLOCK);
        assert_true(json_number(o, "bytes_verified") == BLOCKS * BLOCK);
        cJSON_Delete(json);
        assert_int_equal(
                profile("--backend", "posix", "--filepath", folder, "--io", io, "--source", "file"),
                EXIT_OK);
        assert_out("RAW: 512 KiB read in ");

        fd = open(path, O_RDWR | O_CLOEXEC);
        assert_true(fd >= 0);
        assert_int_equal(pread(fd, &byte, 1, 70), 1);
        byte ^= 0x10;
        assert_int_equal(pwrite(fd, &byte, 1, 70), 1);
        assert_int_equal(profile("--backend", "RAW", "--filepath", folder, "--io", io), FAILED);
        assert_err(" is wrong: 1 of 4096 bytes differ, the first at offset 70");
        assert_int_equal(ftruncate(fd, BLOCK), 0);
        assert_int_equal(profile("--backend", "RAW", "--filepath", folder, "--io", io), FAILED);
        assert_err("; was the file truncated?");
        close(fd);
        unlink(path);
}

static void a_file_is_written_and_read_by_posix_calls(void **state)
{
        raw("posix");
}

static void a_file_is_written_and_read_by_io_uring(void **state)
{
        char why[128];

        if (raw_uring_probe(why, sizeof(why)) < 0)
                skip();
        raw("uring");
}

static void raw_files_that_cannot_be_are_refused(void **state)
{
        assert_int_equal(profile("--backend", "RAW", "--filepath", "/nonexistent/x", "--source",
                                 "memory", "--io", "posix"),
                         FAILED);
        assert_err("/nonexistent/x/kvbench-M-block-tp1-pp1-page16-4096.raw: No such file");
        assert_int_equal(profile("--backend", "RAW", "--filepath", folder, "--source", "memory",
                                 "--io", "posix", "--start_batch_size", "1000000000000",
                                 "--max_batch_size", "1000000000000", "--total_buffer_size",
                                 "9007199254740992"),
                         FAILED);
        assert_err("RAW needs ");
}

static void every_block_has_a_place_of_its_own_in_the_file(void **state)
{
        static const uint64_t counts[] = { 1, 2, 3, 5, 8, 64, 100, 997 };

        for (size_t i = 0; i < ARRAY_SIZE(counts); i++) {
                struct profile_job job = { .name = "x",
                                           .io_size = 5000,
                                           .n_blocks = counts[i],
                                           .clients = 1,
                                           .write = true };
                struct profile p = { .job = &job, .told = ATOMIC_FLAG_INIT };
                struct raw_options options = { .directory = folder, .io = RAW_POSIX };
                struct raw r;
                uint8_t seen[1000] = { 0 };

                assert_int_equal(raw_open(&r, &p, &options), 0);
                assert_int_equal(r.stride, 8192);
                for (uint64_t k = 0; k < counts[i]; k++) {
                        uint64_t at = raw_offset(&r, k, counts[i]);

                        assert_int_equal(at % 8192, 0);
                        assert_true(at / 8192 < counts[i]);
                        assert_int_equal(seen[at / 8192]++, 0);
                }
                raw_close(&r);
        }
}

/* --- refusals --- */

static void what_one_process_on_one_host_cannot_do_is_refused(void **state)
{
        static const struct {
                const char *arguments[4], *message;
        } cases[] = {
                { { "--scheme", "tp" },
                  "--scheme tp: profile runs on one host and supports only pairwise" },
                { { "--mode", "MG" },
                  "--mode MG: profile runs as one process and supports only SG" },
                { { "--num_target_dev", "2" }, "--num_target_dev 2: profile supports only 1" },
                { { "--num_threads", "0" }, "--num_threads 0: profile supports 1 to " },
                { { "--num_iter", "0" }, "--num_iter 0: nothing would be measured" },
                { { "--backend", "UCX" },
                  "--backend UCX: profile supports only KVCACHE, RAW, GDS, POSIX" },
                { { "--source", "memory", "--target_seg_type", "VRAM" },
                  "--target_seg_type VRAM: this workload has no GPU memory; use --source gpu" },
                { { "--start_block_size", "8192", "--max_block_size", "4096" },
                  "--start_block_size must be from 1 to --max_block_size, 4096, not 8192" },
                { { "--start_batch_size", "9", "--max_batch_size", "8" },
                  "--start_batch_size must be from 1 to --max_batch_size, 8, not 9" },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                const char *arguments[12] = { FILES };

                memcpy(&arguments[4], cases[i].arguments, sizeof(cases[i].arguments));
                assert_int_equal(bench_run(&command_profile, arguments), FAILED);
                assert_err(cases[i].message);
                assert_string_equal(bench_out(), "");
        }
        assert_int_equal(profile("--format", "table"), EXIT_WRONG_USAGE);
        assert_int_equal(profile("--io", "aio"), EXIT_WRONG_USAGE);
        assert_err("--io: 'aio' is not one of uring, posix");
        assert_int_equal(profile("--layout", "diagonal"), EXIT_WRONG_USAGE);
        assert_err("--layout: 'diagonal' is not one of contiguous, block-first, outer-first");
}

static void options_that_have_no_effect_are_named(void **state)
{
        assert_int_equal(profile("--source", "memory", "--no_raw", "--num_files", "3",
                                 "--obj_region", "x", "--storage_enable_direct=false", "--gpu",
                                 "0"),
                         EXIT_OK);
        assert_err("profile does not use these options: --num_files, --obj_region, "
                   "--storage_enable_direct\n");
        assert_err("--layout and --gpu are not used: no block is in GPU memory");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup(a_write_moves_each_block_once_a_pass_and_reads_it_back,
                                       reset),
                cmocka_unit_test_setup(a_read_gets_what_a_write_has_left, reset),
                cmocka_unit_test_setup(raw_is_measured_beside_the_daemon, reset),
                cmocka_unit_test_setup(block_and_batch_sizes_double_from_start_to_max, reset),
                cmocka_unit_test_setup(nothing_wrong_passes_for_a_figure, reset),
                cmocka_unit_test_setup(blocks_that_are_missing_are_asked_for, reset),
                cmocka_unit_test_setup(a_daemon_that_cannot_do_it_is_refused, reset),
                cmocka_unit_test_setup(a_file_is_written_and_read_by_posix_calls, reset),
                cmocka_unit_test_setup(a_file_is_written_and_read_by_io_uring, reset),
                cmocka_unit_test_setup(raw_files_that_cannot_be_are_refused, reset),
                cmocka_unit_test_setup(every_block_has_a_place_of_its_own_in_the_file, reset),
                cmocka_unit_test_setup(what_one_process_on_one_host_cannot_do_is_refused, reset),
                cmocka_unit_test_setup(options_that_have_no_effect_are_named, reset),
        };

        return cmocka_run_group_tests(tests, bench_directory_make, bench_directory_remove);
}

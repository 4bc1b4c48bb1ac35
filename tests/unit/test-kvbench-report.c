/* SPDX-License-Identifier: Apache-2.0 */
/* The reports of kvcache-bench profile, of results whose figures are known: tables, JSON and CSV.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "bench-rig.h"
#include "kvbench/report.h"

enum { OPERATIONS = 100 };

static struct kvbench_model model = { .name = (char *)"M,1" };
static struct kvbench_workload workload;
static struct profile_job job;
static struct kvbench_options options;
static struct profile_result results[2];

/* Adds a hundred operations. The k-th took k microseconds, and a quarter of that in each part. */
static void fill(struct profile_result *r, const char *name, double seconds)
{
        *r = (struct profile_result){ .name = name, .seconds = seconds };
        for (uint64_t k = 1; k <= OPERATIONS; k++) {
                uint64_t at[] = { 0, k * 250, k * 500, k * 1000 };

                profile_count(&r->tally, 2, 4096, at);
        }
        r->tally.bytes_verified = 4096;
}

static int make(void **state)
{
        workload = (struct kvbench_workload){
                .config_file = (char *)"a\"b.yaml",
                .model = &model,
                .deployment = { .strategy = { .tp_size = 2, .pp_size = 3 },
                                .runtime = { .isl = { 1000.5, "1000.5" },
                                             .num_requests = { 4, "4" } },
                                .system = { .page_size = 16, .access_pattern = "block" } },
                .source = KVBENCH_PLACE_FILE,
        };
        job = (struct profile_job){ .io_size = 4096,
                                    .n_blocks = 64,
                                    .users = 1,
                                    .clients = 2,
                                    .iterations = 1,
                                    .warmup = 5 };
        fill(&results[0], "KVCACHE", 0.5);
        fill(&results[1], "RAW", 0.25);
        results[0].tally.bytes_memory = 1;
        results[0].tally.bytes_disk = 3;
        return 0;
}

static int forget(void **state)
{
        profile_result_fini(&results[0]);
        profile_result_fini(&results[1]);
        return 0;
}

static const struct report_entry *entry;

/* Runs a command whose whole output is the report of `entry`. */
static int run_report(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        struct report report;

        report_init(&report, &options);
        report_add(&report, entry);
        return report_end(&report);
}

static void report(const struct report_entry *e, enum kvbench_format format)
{
        static const struct command command = { .name = "report", .run = run_report };

        entry = e;
        options = (struct kvbench_options){ .format = format };
        assert_int_equal(bench_run(&command, (const char *const[]){ NULL }), EXIT_OK);
}

static struct report_entry both(void)
{
        return (struct report_entry){ .workload = &workload,
                                      .job = &job,
                                      .results = results,
                                      .n_results = 2,
                                      .daemon = "running",
                                      .where = "at /run/x, on /disk",
                                      .io = { "posix, buffered", "posix, O_DIRECT" },
                                      .raw_note = "a note" };
}

static void a_table_has_a_row_for_each_side(void **state)
{
        struct report_entry e = both();

        report(&e, KVBENCH_TEXT);
        assert_out("Model Config: a\"b.yaml\nISL: 1000.5 tokens\nPage Size: 16\nRequests: 4\nTP: "
                   "2\nPP: 3\n");
        assert_out("READ, file to memory, warm: 1 user, 2 clients, 1 iteration after 5 warm-up\n"
                   "Daemon: running, at /run/x, on /disk\n");
        /* 819,200 bytes in half a second; a hundred operations took 50.5 us on average. */
        assert_out("\nKVCACHE 4096 64 0.002 50.5 50.0 90.0 99.0 12.6 24.8 12.6 24.8 25.2 49.5\n");
        assert_out("\nRAW 4096 64 0.003 50.5 ");
        assert_out(
                "KVCACHE: 800 KiB read in 0.500 s, posix, buffered; 4 KiB compared: 0 wrong bytes");
        assert_out("KVCACHE: 25.0 % came from the daemon's memory, 75.0 % from disk\n");
        assert_out("KVCACHE reached 0.50 of RAW's bandwidth.\nNote: a note\n");
}

static void a_write_without_a_daemon_says_so(void **state)
{
        struct report_entry e = { .workload = &workload,
                                  .job = &job,
                                  .results = &results[1],
                                  .n_results = 1,
                                  .where = "/disk",
                                  .io = { "io_uring, O_DIRECT" } };

        job.write = true;
        job.users = 3;
        job.clients = 1;
        job.iterations = 2;
        workload.source = KVBENCH_PLACE_MEMORY;
        report(&e, KVBENCH_TEXT);
        assert_out("WRITE, memory to file: 3 users, 1 client, 2 iterations after 5 warm-up\n"
                   "No daemon: a file in /disk\n");
        assert_out("RAW: 800 KiB written in 0.250 s, io_uring, O_DIRECT; 4 KiB read back and "
                   "compared: 0 wrong bytes\n");
        assert_null(strstr(bench_out(), "bandwidth."));
}

static void json_has_both_sides_and_their_ratio(void **state)
{
        struct report_entry e = both();
        cJSON *json, *o;

        job.cold = true;
        report(&e, KVBENCH_JSON);
        json = bench_json();
        assert_int_equal(cJSON_GetArraySize(json), 1);
        o = cJSON_GetArrayItem(json, 0);
        assert_string_equal(json_text(o, "config_file"), "a\"b.yaml");
        assert_string_equal(json_text(o, "model"), "M,1");
        assert_string_equal(json_text(o, "backend"), "KVCACHE");
        assert_string_equal(json_text(o, "op_type"), "READ");
        assert_string_equal(json_text(o, "source"), "file");
        assert_string_equal(json_text(o, "destination"), "memory");
        assert_true(cJSON_IsTrue(cJSON_GetObjectItem(o, "cold")));
        assert_true(json_number(o, "isl") == 1000.5);
        assert_true(json_number(o, "block_size") == 4096);
        assert_true(json_number(o, "batch_size") == 64);
        assert_true(json_number(o, "total_buffer_size") == 262144);
        assert_string_equal(json_text(o, "daemon"), "running");
        assert_float_equal(json_number(o, "bandwidth_gb_s"), 0.001638, 1e-9);
        assert_true(json_number(o, "seconds") == 0.5);
        assert_true(json_number(o, "operations") == 100);
        assert_true(json_number(o, "blocks") == 200);
        assert_true(json_number(o, "bytes_moved") == 819200);
        assert_true(json_number(o, "bytes_verified") == 4096);
        assert_true(json_number(o, "bytes_from_memory") == 1);
        assert_true(json_number(o, "bytes_from_disk") == 3);
        assert_true(json_number(o, "latency_us.avg") == 50.5);
        assert_true(json_number(o, "latency_us.p50") == 50);
        assert_true(json_number(o, "latency_us.p90") == 90);
        assert_true(json_number(o, "latency_us.p99") == 99);
        assert_true(json_number(o, "prepare_us.p99") == 24.75);
        assert_true(json_number(o, "post_us.p50") == 12.5);
        assert_true(json_number(o, "transfer_us.p90") == 45);
        assert_float_equal(json_number(o, "raw.bandwidth_gb_s"), 0.003277, 1e-9);
        assert_true(json_number(o, "of_raw") == 0.5);
        assert_string_equal(json_text(o, "note"), "a note");
        assert_null(cJSON_GetObjectItem(cJSON_GetObjectItem(o, "raw"), "bytes_from_disk"));
        cJSON_Delete(json);
}

static void a_failure_is_in_the_json_and_in_no_table(void **state)
{
        struct report_entry e = { .workload = &workload, .job = &job, .error = "it fell over" };
        cJSON *json;

        workload.backend = KVBENCH_BACKEND_RAW;
        report(&e, KVBENCH_JSON);
        json = bench_json();
        assert_string_equal(json_text(cJSON_GetArrayItem(json, 0), "error"), "it fell over");
        assert_string_equal(json_text(cJSON_GetArrayItem(json, 0), "backend"), "RAW");
        assert_null(cJSON_GetObjectItem(cJSON_GetArrayItem(json, 0), "bandwidth_gb_s"));
        cJSON_Delete(json);
        report(&e, KVBENCH_TEXT);
        assert_string_equal(bench_out(), "");
}

static void csv_has_a_row_for_each_side(void **state)
{
        struct report_entry e = both();
        unsigned commas[3] = { 0 };
        const char *p;

        report(&e, KVBENCH_CSV);
        assert_out("config_file,model,access_pattern,isl,page_size,");
        assert_out("\n\"a\"\"b.yaml\",\"M,1\",block,1000.5,16,4,2,3,KVCACHE,READ,file,memory,false,"
                   "running,\"posix, buffered\",4096,64,1,2,1,5,0.001638,0.500000,100,819200,4096,"
                   "0,1,3,50.500,50.000,90.000,99.000,12.625,12.500,22.500,24.750,");
        assert_out(",0.5000,,\n");
        assert_out(",RAW,READ,file,memory,false,,\"posix, O_DIRECT\",");
        /* The commas in quotes are two more in each row: "M,1" and that of the I/O. */
        p = bench_out();
        for (unsigned i = 0; i < 3; i++, p++)
                for (; *p != '\n'; p++)
                        commas[i] += *p == ',';
        assert_int_equal(commas[0] + 2, commas[1]);
        assert_int_equal(commas[1], commas[2]);
}

static void blocks_in_gpu_memory_have_a_line_and_an_object(void **state)
{
        struct through_gpu_options gpu = { .device = 1,
                                           .shape = { .kind = KVCACHE_LAYOUT_OUTER_FIRST,
                                                      .layers = 2,
                                                      .outer = 2,
                                                      .region_bytes = 1024 } };
        struct through_gpu counts = { .bytes = 4096,
                                      .kernel_copies = 5,
                                      .batch_copies = 6,
                                      .plain_copies = 7,
                                      .blocks_from_pool = 8,
                                      .blocks_through_staging = 9,
                                      .gds_blocks = 10,
                                      .gds_state = KVCACHE_GPU_GDS_NONE };
        struct report_entry e = both();
        cJSON *json, *o;

        workload.backend = KVBENCH_BACKEND_GDS;
        counts.gds_fallbacks[1] = 11;
        e.gpu = &gpu;
        e.gpu_counts = &counts;
        e.gpu_name = "H99";
        report(&e, KVBENCH_TEXT);
        assert_out("READ, file to gpu, ");
        assert_out("GPU 1: H99; outer-first, blocks of 4 pieces of 1 KiB; in all passes 4 KiB in 5 "
                   "copies by the kernel, 6 by the batch copy, 7 plain\n");
        assert_out("GPU 1: of the blocks read, 8 came directly from the pool, 9 through staging\n");
        assert_out("GPU 1: 10 blocks were read by GPUDirect Storage; blocks are written");
        assert_out("GPU 1: 11 were not: ");
        report(&e, KVBENCH_JSON);
        json = bench_json();
        o = cJSON_GetArrayItem(json, 0);
        assert_true(json_number(o, "gpu.device") == 1);
        assert_string_equal(json_text(o, "gpu.layout"), "outer-first");
        assert_true(json_number(o, "gpu.pieces_per_block") == 4);
        assert_true(json_number(o, "gpu.kernel_copies") == 5);
        assert_true(json_number(o, "gpu.gds_blocks") == 10);
        assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(cJSON_GetObjectItem(o, "gpu"),
                                                                "gds_fallbacks")),
                         1);
        cJSON_Delete(json);
        report(&e, KVBENCH_CSV);
        assert_out(",0.5000,outer-first,4\n");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(a_table_has_a_row_for_each_side, make, forget),
                cmocka_unit_test_setup_teardown(a_write_without_a_daemon_says_so, make, forget),
                cmocka_unit_test_setup_teardown(json_has_both_sides_and_their_ratio, make, forget),
                cmocka_unit_test_setup_teardown(a_failure_is_in_the_json_and_in_no_table, make,
                                                forget),
                cmocka_unit_test_setup_teardown(csv_has_a_row_for_each_side, make, forget),
                cmocka_unit_test_setup_teardown(blocks_in_gpu_memory_have_a_line_and_an_object,
                                                make, forget),
        };

        return cmocka_run_group_tests(tests, bench_directory_make, bench_directory_remove);
}

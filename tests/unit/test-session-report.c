/* SPDX-License-Identifier: Apache-2.0 */
/* kvcache-bench session on files: figures, reports, exports, comparisons, and messages about
 * invalid files and words. tests/golden/session has two sessions and the expected output. */
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
#include "session/figures.h"
#include "session/live.h"

#define A            GOLDEN_SESSION "/A.json"
#define B            GOLDEN_SESSION "/B.json"
#define session(...) bench(&command_session, __VA_ARGS__)

/* --- figures --- */

static struct snapshot_metric metric(unsigned technology, uint64_t scale)
{
        struct snapshot_metric m = { .path = TRANSFER_HOST_TO_DISK,
                                     .layout = TRANSFER_FULLY_CONTIGUOUS,
                                     .technology = technology,
                                     .latency_secs = 3 * (double)scale,
                                     .busy_secs = 2 * (double)scale };

        transfer_counts_init(&m.counts);
        for (uint64_t i = 0; i < 10 * scale; i++)
                transfer_counts_add(&m.counts, &(struct transfer_record){
                                                       .result = TRANSFER_OK,
                                                       .blocks = i % 2,
                                                       .regions = 4,
                                                       .bytes = 1000,
                                                       .latency_ns = i < 9 * scale ? 1000 : 5000 });
        transfer_counts_add(&m.counts, &(struct transfer_record){ .result = TRANSFER_ERROR_SHORT });
        transfer_counts_add(&m.counts, &(struct transfer_record){ .result = TRANSFER_ERROR_IO });
        return m;
}

static void figures_follow_from_the_counters(void **state)
{
        struct snapshot_metric m = metric(TRANSFER_POSIX, 1);
        struct figures f;

        figures_of(&m, 4, &f);
        assert_true(f.transfers_per_block == 2);
        assert_true(f.regions_per_transfer == 4);
        assert_true(f.mean_bytes == 1000);
        assert_true(f.rate == 5000);
        assert_true(f.block_rate == 2.5);
        assert_true(f.wall_rate == 2500);
        assert_float_equal(f.mean_latency_secs, 0.3, 1e-9);
        assert_int_equal(f.errors, 2);
        /* 9 of 10 took at most 1,024 ns, the upper end of their bucket; the last one 8,192. */
        assert_float_equal(f.latency_secs[0], 1.024e-6, 1e-12);
        assert_float_equal(f.latency_secs[1], 1.024e-6, 1e-12);
        assert_float_equal(f.latency_secs[2], 8.192e-6, 1e-12);
        assert_float_equal(f.latency_secs[4], 8.192e-6, 1e-12);
        assert_string_equal(figures_quantiles[3].name, "p99");
}

static void figures_of_nothing_are_zero(void **state)
{
        struct snapshot_metric m = { .path = TRANSFER_HOST_TO_DISK };
        struct figures f;

        transfer_counts_init(&m.counts);
        figures_of(&m, 0, &f);
        assert_true(f.transfers_per_block == 0 && f.regions_per_transfer == 0);
        assert_true(f.mean_bytes == 0 && f.rate == 0 && f.block_rate == 0 && f.wall_rate == 0);
        assert_true(f.mean_latency_secs == 0 && f.latency_secs[4] == 0);
        assert_int_equal(f.errors, 0);
        assert_true(figures_ratio(3, 0) == 0);
}

static void technologies_of_a_path_and_layout_are_summed(void **state)
{
        struct snapshot_metric metrics[] = { metric(TRANSFER_IO_URING, 1),
                                             metric(TRANSFER_POSIX, 3), metric(TRANSFER_POSIX, 1) };
        struct snapshot s = { .enabled_secs = 10, .metrics = metrics, .n_metrics = 3 };
        struct figures_group groups[3];

        metrics[2].path = TRANSFER_HOST_TO_HOST;
        assert_int_equal(figures_groups(&s, groups), 2);
        assert_int_equal(groups[0].sum.counts.transfers, 40);
        assert_int_equal(groups[0].sum.counts.bytes, 40000);
        assert_true(groups[0].sum.busy_secs == 8);
        assert_true(groups[0].sum.latency_secs == 12);
        assert_true(groups[0].figures.rate == 5000);
        assert_true(groups[0].figures.wall_rate == 4000);
        assert_int_equal(groups[0].figures.errors, 4);
        assert_int_equal(groups[1].sum.counts.transfers, 10);
        assert_int_equal(groups[1].sum.path, TRANSFER_HOST_TO_HOST);
}

/* --- the forms --- */

static void outputs_are_the_golden_ones_byte_for_byte(void **state)
{
        static const struct {
                const char *file, *words[8];
        } cases[] = {
                { "status.txt", { "status", B } },
                { "status.json", { "status", "--session", B, "--json" } },
                { "A.txt", { "report", A } },
                { "B.txt", { "report", B, "--no-clock" } },
                { "A.report.json", { "report", A, "--format", "json" } },
                { "B.csv", { "report", B, "--format", "csv" } },
                { "B.svg", { "report", B, "--format", "svg" } },
                { "B.html", { "report", B, "--format", "html", "--no-clock" } },
                { "A.export.csv", { "export", A, "-o", "-", "--format", "csv" } },
                { "A.jsonl", { "export", A, "-o", "-", "--format", "jsonl" } },
                { "B.dynamo.json", { "export", B, "-o", "-", "--compat", "dynamo" } },
                { "B.dynamo.txt", { "report", GOLDEN_SESSION "/B.dynamo.json" } },
                { "compare-dynamo.txt", { "compare", A, GOLDEN_SESSION "/B.dynamo.json" } },
                { "compare-key.txt", { "compare", A, B } },
                { "compare-layout.txt", { "compare", A, B, "--by", "layout" } },
                { "compare-layout.json",
                  { "compare", A, B, "--by", "layout", "--format", "json" } },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                char path[512], *expected;

                snprintf(path, sizeof(path), GOLDEN_SESSION "/%s", cases[i].file);
                expected = bench_read(path);
                assert_non_null(expected);
                assert_int_equal(bench_run(&command_session, cases[i].words), SESSION_OK);
                assert_string_equal(bench_out(), expected);
                assert_string_equal(bench_err(), "");
                free(expected);
        }
}

static void an_export_is_the_session_again(void **state)
{
        const char *path = bench_path("out.json");
        char *first, *again;

        assert_int_equal(session("export", B, "-o", path), SESSION_OK);
        first = bench_read(path);
        assert_int_equal(session("export", path, "-o", "-"), SESSION_OK);
        assert_string_equal(bench_out(), first);
        assert_int_equal(session("report", path, "--no-clock", "-o", bench_path("report.txt")),
                         SESSION_OK);
        assert_string_equal(bench_out(), "");
        again = bench_read(bench_path("report.txt"));
        free(first);
        first = bench_read(GOLDEN_SESSION "/B.txt");
        assert_string_equal(again, first);
        free(first);
        free(again);
}

static void a_file_is_replaced_whole_or_not_at_all(void **state)
{
        const char *path = bench_file("kept.json", "before"), *bad = bench_file("bad.json", "{");
        char *text;

        assert_int_equal(session("export", bad, "-o", path), SESSION_FAILED);
        text = bench_read(path);
        assert_string_equal(text, "before");
        free(text);
        assert_int_equal(session("export", A, "-o", bench_path("no/out.json")), SESSION_FAILED);
        assert_err("no/out.json: No such file or directory");
        assert_int_equal(session("export", A, "-o", "/tmp"), SESSION_FAILED);
        assert_err("/tmp: ");
}

static void path_and_layout_select_metrics(void **state)
{
        cJSON *json;

        assert_int_equal(session("report", B, "--json", "--path", "host_to_disk"), SESSION_OK);
        json = bench_json();
        assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(json, "metrics")), 1);
        assert_string_equal(
                json_text(cJSON_GetArrayItem(cJSON_GetObjectItem(json, "metrics"), 0), "path"),
                "host_to_disk");
        cJSON_Delete(json);
        assert_int_equal(session("report", B, "--json", "--layout", "layer_separate_outer_first"),
                         SESSION_OK);
        json = bench_json();
        assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(json, "metrics")), 1);
        cJSON_Delete(json);
        assert_int_equal(session("report", B, "--path", "device_to_disk"), SESSION_OK);
        assert_out("\nno transfers\n");
        assert_int_equal(session("report", B, "--layout", "layout_other"), SESSION_WRONG_USAGE);
        assert_err("--layout: there is no layout 'layout_other'");
        assert_int_equal(session("report", B, "--path", "host_to_moon"), SESSION_WRONG_USAGE);
        assert_err("--path: there is no path 'host_to_moon'; use one of other, host_to_disk, "
                   "disk_to_host, ");
}

static void a_session_without_transfers_says_so(void **state)
{
        const char *path = bench_file(
                "empty.json", "{\"schema\": \"kvcache.bench.v1\", \"name\": \"E\", \"host\": "
                              "{\"hostname\": \"h\\u0007\", \"kernel\": \"k\", \"cpus\": 1, "
                              "\"daemon_version\": \"1\"}, \"active\": true, \"enabled\": true, "
                              "\"created\": \"c\", \"updated\": \"u\", \"enabled_secs\": 1.5, "
                              "\"idle\": true, \"layouts\": [], \"metrics\": []}");

        assert_int_equal(session("report", path), SESSION_OK);
        assert_out("session E\nstate active, enabled\nhost h?, k, 1 CPU\n");
        assert_out("enabled for 1.500 s\n");
        assert_out("\nno transfers\n");
        assert_int_equal(session("report", path, "--format", "svg"), SESSION_OK);
        assert_out("1 CPUs; kvcache-daemon 1. No transfers.");
        assert_int_equal(session("status", path, "--json"), SESSION_OK);
        assert_out("\"keys\":0");
        assert_int_equal(session("compare", path, path, "--fail-on-regress", "0"), SESSION_OK);
        assert_out("A E\nB E\n\nno transfers\n\nworse\n nothing\n");
}

/* --- comparisons --- */

/* Returns a file with the text of A, in which one text is replaced by another. */
static const char *changed(const char *name, const char *from, const char *to)
{
        static char text[16384];
        char *original = bench_read(A), *at = strstr(original, from);

        assert_non_null(at);
        snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - original), original, to,
                 at + strlen(from));
        free(original);
        return bench_file(name, text);
}

static void a_threshold_is_passed_by_what_is_worse_by_more(void **state)
{
        const char *slower = changed("slower.json", "\"busy_secs\": 0.032", "\"busy_secs\": 0.064");

        assert_int_equal(session("compare", A, A, "--fail-on-regress", "0"), SESSION_OK);
        assert_int_equal(session("compare", A, slower), SESSION_OK);
        assert_out("transfer rate: 50.0 %\n");
        assert_int_equal(session("compare", A, slower, "--fail-on-regress", "51"), SESSION_OK);
        assert_int_equal(session("compare", A, slower, "--fail-on-regress", "50"), SESSION_OK);
        assert_int_equal(session("compare", A, slower, "--fail-on-regress", "49.9"),
                         SESSION_PAST_THRESHOLD);
        assert_out("transfer rate: 50.0 %, past the threshold\n");
        assert_int_equal(session("compare", slower, A, "--fail-on-regress", "0"), SESSION_OK);
        assert_int_equal(session("compare", A, B, "--fail-on-regress", "90"),
                         SESSION_PAST_THRESHOLD);
        assert_out("from 0, past the threshold");
}

static void a_comparison_as_json_has_both_sides(void **state)
{
        cJSON *json, *pair;

        assert_int_equal(
                session("compare", A,
                        changed("slower.json", "\"busy_secs\": 0.032", "\"busy_secs\": 0.064"),
                        "--json", "--fail-on-regress", "10"),
                SESSION_PAST_THRESHOLD);
        json = bench_json();
        assert_string_equal(json_text(json, "by"), "key");
        assert_true(cJSON_IsTrue(cJSON_GetObjectItem(json, "past_threshold")));
        pair = cJSON_GetArrayItem(cJSON_GetObjectItem(json, "pairs"), 0);
        assert_string_equal(json_text(pair, "path"), "disk_to_host");
        assert_string_equal(json_text(pair, "technology"), "io_uring");
        assert_string_equal(json_text(pair, "base.session"), "A");
        assert_true(json_number(pair, "base.transfer_rate_bps") ==
                    2 * json_number(pair, "other.transfer_rate_bps"));
        assert_true(json_number(cJSON_GetObjectItem(pair, "worse_percent"), "transfer rate") == 50);
        cJSON_Delete(json);
        assert_int_equal(session("compare", A, B, "--json"), SESSION_OK);
        assert_out("\"base\":null");
        assert_out("\"other\":null");
}

/* --- test --- */

static void the_totals_of_the_self_test_are_known(void **state)
{
        assert_int_equal(session("test"), SESSION_OK);
        assert_string_equal(bench_out(),
                            "arithmetic: 100 transfers, 644096 bytes, 3 keys: right\n");
        assert_int_equal(session("test", "--count", "7", "--json"), SESSION_OK);
        assert_string_equal(bench_out(), "{\"right\":true}\n");
        assert_int_equal(session("test", "--count", "0"), SESSION_WRONG_USAGE);
}

/* --- refusals --- */

static void wrong_usage_is_refused_with_its_reason(void **state)
{
        static const struct {
                const char *words[8], *message;
        } cases[] = {
                { { NULL }, "an action is needed, such as init, report or run" },
                { { "reprot", A }, "did you mean \"session report\"?" },
                { { "frobnicate" }, "unknown action 'frobnicate'; use init, status" },
                { { "report", A, B }, "' is one operand too many" },
                { { "report", A, "--session", B }, "both name a session" },
                { { "compare", A }, "compare: name two sessions" },
                { { "compare", "-", "-" },
                  "compare: only one session can be read from standard input" },
                { { "report", A, "--format", "pdf" },
                  "--format: 'pdf' is not one of text, json, csv, svg, html" },
                { { "export", A, "-o", "-", "--format", "text" },
                  "is not one of json, csv, jsonl" },
                { { "compare", A, B, "--format", "csv" }, "is not one of text, json" },
                { { "report", A, "--by", "key" }, "--by is not an option of report" },
                { { "test", "--format", "json" }, "--format is not an option of test" },
                { { "compare", A, B, "--by", "size" }, "--by: 'size' is neither key nor layout" },
                { { "compare", A, B, "--fail-on-regress", "-1" },
                  "--fail-on-regress: '-1' is not a number of percent, 0 or more" },
                { { "export", A }, "export: name a file with --output" },
                { { "export", A, "-o", "-", "--compat", "dynamo", "--format", "csv" },
                  "--compat dynamo writes JSON" },
                { { "export", A, "-o", "-", "--compat", "vllm" },
                  "--compat: 'vllm' is not dynamo" },
                { { "init" }, "init: name a session" },
                { { "delete" }, "delete: name a session" },
                { { "init", "x", "--resume", "--force" }, "--resume and --force" },
                { { "run", "--layouts", "diagonal" },
                  "--layouts: 'diagonal': unknown name; use contiguous, block-first, outer-first" },
                { { "run", "--ops", "put,swap" },
                  "--ops: 'swap': unknown name; use put, get, mixed" },
                { { "run", "--regions", "33" }, "--regions: 33 is not a multiple of 32" },
                { { "run", "--regions", "16" }, "--regions: '16': not a number from 32 to" },
                { { "run", "--depths", "0" }, "--depths: '0': not a number from 1 to 256" },
                { { "run", "--depths", "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1" },
                  "more than 16 numbers" },
                { { "run", "--clients", "65" }, "--clients: '65': not a number from 1 to 64" },
                { { "run", "--layers", "0" }, "--layers: '0' is not a whole number" },
                { { "run", "--outer", "3" }, "--outer: '3' is not a whole number from 1 to 2" },
                { { "run", "--bytes", "x" }, "--bytes: 'x' is not a size" },
                { { "run", "--iterations", "0" }, "--iterations: '0'" },
                { { "run", "--ack", "sent" },
                  "--ack: 'sent' is unknown; use accepted, written or durable" },
                { { "run", "--session", ".x" }, "--session: '.x' is not the name of a session" },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                assert_int_equal(bench_run(&command_session, cases[i].words), SESSION_WRONG_USAGE);
                assert_err(cases[i].message);
                assert_string_equal(bench_out(), "");
        }
}

static void hostile_files_are_refused_with_their_place(void **state)
{
        static const struct {
                const char *from, *to, *message;
        } cases[] = {
                { "kvcache.bench.v1", "kvcache.bench.v2", "schema: 'kvcache.bench.v2' is not" },
                { "\"name\": \"A\"", "\"name\": \"../x\"", "name: '../x' is not the name of" },
                { "\"active\": false", "\"active\": 1", "active: is not true or false" },
                { "\"cpus\": 8", "\"cpus\": 1.5", "host.cpus: 1.5 is not a whole number" },
                { "\"transfer_count\": 64", "\"transfer_count\": -3",
                  "metrics[0].transfer_count: -3 is not a whole number from 0 to 2^53" },
                { "\"path\": \"disk_to_host\"", "\"path\": \"moon\"",
                  "metrics[0].path: 'moon' is not known to this version" },
                { "\"min_transfer_size\": 524288", "\"min_transfer_size\": 524289",
                  "min_transfer_size is above max_transfer_size" },
                { "\"short\": 0", "\"short\": 0, \"short\": 1",
                  "metrics[0].errors.short: is given" },
                { "\"metrics\": [", "\"metric\": [", "metrics is missing" },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                const char *path = changed("hostile.json", cases[i].from, cases[i].to);

                assert_int_equal(session("report", path), SESSION_FAILED);
                assert_err(cases[i].message);
                assert_err("/hostile.json: ");
                assert_string_equal(bench_out(), "");
        }
        assert_int_equal(session("report", bench_file("x.json", "")), SESSION_FAILED);
        assert_int_equal(session("report", "/nonexistent/x.json"), SESSION_UNKNOWN);
        assert_err("/nonexistent/x.json: No such file or directory");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(figures_follow_from_the_counters),
                cmocka_unit_test(figures_of_nothing_are_zero),
                cmocka_unit_test(technologies_of_a_path_and_layout_are_summed),
                cmocka_unit_test(outputs_are_the_golden_ones_byte_for_byte),
                cmocka_unit_test(an_export_is_the_session_again),
                cmocka_unit_test(a_file_is_replaced_whole_or_not_at_all),
                cmocka_unit_test(path_and_layout_select_metrics),
                cmocka_unit_test(a_session_without_transfers_says_so),
                cmocka_unit_test(a_threshold_is_passed_by_what_is_worse_by_more),
                cmocka_unit_test(a_comparison_as_json_has_both_sides),
                cmocka_unit_test(the_totals_of_the_self_test_are_known),
                cmocka_unit_test(wrong_usage_is_refused_with_its_reason),
                cmocka_unit_test(hostile_files_are_refused_with_their_place),
        };

        return cmocka_run_group_tests(tests, bench_directory_make, bench_directory_remove);
}

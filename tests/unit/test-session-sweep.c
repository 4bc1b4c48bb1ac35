/* SPDX-License-Identifier: Apache-2.0 */
/* The reports of a sweep whose points are known, and the tally of copies whose times are known. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../../daemon/base/sanitizers.h"
#include "bench-rig.h"
#include "session/sweep-report.h"
#include "session/sweep-tally.h"
#include "session/sweep.h"

static struct sweep_point points[] = {
        { .region_bytes = 4096,
          .block_bytes = 24576,
          .blocks = 10,
          .depth = 1,
          .clients = 1,
          .kind = KVCACHE_LAYOUT_CONTIGUOUS,
          .op = SWEEP_PUT,
          .rate = 2e9,
          .slowest = 1e9,
          .fastest = 3e9,
          .of_contiguous = 1,
          .p50_ns = 1500,
          .p99_ns = 12500,
          .verified_bytes = 1000 },
        { .region_bytes = 4096,
          .block_bytes = 24576,
          .blocks = 10,
          .depth = 4,
          .clients = 2,
          .kind = KVCACHE_LAYOUT_OUTER_FIRST,
          .op = SWEEP_GET,
          .rate = 1e9,
          .slowest = 5e8,
          .fastest = 15e8,
          .of_contiguous = 0.5,
          .p50_ns = 2000,
          .p99_ns = 3000,
          .from_disk = 0.25,
          .verified_bytes = 24 },
};
static const struct sweep_result result = { .points = points, .n = 2 };
static const struct sweep_options options = {
        .layers = 3, .outer = 2, .iterations = 5, .verify = true
};

static char *text;

static int forget(void **state)
{
        free(text);
        text = NULL;
        return 0;
}

static void report(enum report_format format, bool one_line)
{
        struct report_options how = { .format = format, .one_line = one_line };
        size_t bytes = 0;
        FILE *out = open_memstream(&text, &bytes);

        assert_non_null(out);
        assert_int_equal(sweep_report(&options, &result, "daemon: here", &how, out), 0);
        assert_int_equal(fclose(out), 0);
}

static void has(const char *part)
{
        if (!strstr(text, part))
                fail_msg("not in the report: %s\n%s", part, text);
}

static void the_table_is_in_megabytes_and_microseconds(void **state)
{
        report(REPORT_TEXT, false);
        has("daemon: here\nwarm; 3 layers, outer 2; 5 iterations, median; MB/s are 10^6 bytes");
        has("4 KiB     24 KiB          1     1 put   contiguous       1    2000.0    1000.0        "
            " "
            "-       1.5      12.5      -\n");
        has("4 KiB     24 KiB          2     4 get   outer-first      6    1000.0     500.0    x "
            "0.50       2.0       3.0   25 %\n");
        has("\nverified: 1024 bytes, 0 wrong\n");
}

static void json_is_in_bytes_and_microseconds(void **state)
{
        cJSON *json;
        const cJSON *p;

        report(REPORT_JSON, true);
        assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
        json = cJSON_Parse(text);
        assert_non_null(json);
        assert_string_equal(json_text(json, "daemon"), "daemon: here");
        assert_true(json_number(json, "iterations") == 5);
        p = cJSON_GetArrayItem(cJSON_GetObjectItem(json, "points"), 1);
        assert_string_equal(json_text(p, "layout"), "outer-first");
        assert_string_equal(json_text(p, "op"), "get");
        assert_true(json_number(p, "pieces_per_block") == 6);
        assert_true(json_number(p, "rate_bps") == 1e9);
        assert_true(json_number(p, "slowest_bps") == 5e8);
        assert_true(json_number(p, "fastest_bps") == 15e8);
        assert_true(json_number(p, "of_contiguous") == 0.5);
        assert_true(json_number(p, "p50_us") == 2);
        assert_true(json_number(p, "p99_us") == 3);
        assert_true(json_number(p, "from_disk") == 0.25);
        assert_true(json_number(p, "verified_bytes") == 24);
        cJSON_Delete(json);
}

static void csv_has_the_figures_of_the_json(void **state)
{
        report(REPORT_CSV, false);
        has("\ncontiguous,put,4096,24576,10,1,1,1,2e+09,1e+09,3e+09,1.0000,1.500,12.500,0.0000,"
            "1000\n");
        has("\nouter-first,get,4096,24576,10,6,2,4,1e+09,500000000,1.5e+09,0.5000,2.000,3.000,0."
            "2500,"
            "24\n");
}

static void a_chart_has_a_panel_for_each_operation(void **state)
{
        report(REPORT_SVG, false);
        has("daemon: here; warm, 3 layers, outer 2");
        has("Put: gathered into staging, and put");
        has("regions of 4 KiB, 1 client, 1 block in flight");
        has("regions of 4 KiB, 2 clients, 4 blocks in flight");
        has("2 GB/s<");
        has("1 GB/s (x 0.50)<");
        assert_null(strstr(text, "Mixed"));
        forget(state);
        report(REPORT_HTML, false);
        has("verified: 1024 bytes");
}

static void the_largest_block_has_the_largest_region(void **state)
{
        struct sweep_options o = {
                .regions = { 64, 4096, 128 }, .n_regions = 3, .layers = 5, .outer = 2
        };

        assert_int_equal(sweep_block_bytes(&o), 40960);
}

static void a_sweep_without_memory_has_a_reason(void **state)
{
        struct sweep_options o = { .iterations = UINT64_MAX / 1024 };
        struct sweep_result none = { 0 };
        char error[SWEEP_ERROR_BYTES] = "";

        if (SANITIZES_ADDRESSES || SANITIZES_THREADS)
                skip(); /* a sanitizer ends the process that asks for too much memory */
        assert_int_equal(sweep_run(&o, &none, error), -ENOMEM);
        assert_string_equal(error, "out of memory");
        assert_null(none.points);
}

/* --- the tally --- */

static struct snapshot_metric *tallied(struct sweep_tally *t, struct sweep_client *clients,
                                       size_t n, uint32_t kind, struct sweep_blocks *blocks)
{
        struct sweep_observer observer = sweep_tally_observer(t);

        blocks->layout.kind = kind;
        for (size_t i = 0; i < n; i++)
                clients[i].blocks = blocks;
        assert_int_equal(observer.pass(observer.userdata, clients, n, 0.5), 0);
        return &t->metrics[kind - 1];
}

/* The calls of two clients overlap from 100 to 150 ns; each call makes two copies of 500 bytes. */
static void calls_that_overlap_are_busy_once(void **state)
{
        struct sweep_call first[] = { { 200, 300 }, { 0, 150 } }, second[] = { { 100, 160 } };
        struct sweep_blocks blocks = { .layout.kind = 0 };
        struct sweep_client clients[] = {
                { .calls = first,
                  .n_calls = 2,
                  .moved = { .copies = 4, .blocks = 2, .regions = 12, .bytes = 2000 } },
                { .calls = second,
                  .n_calls = 1,
                  .moved = { .copies = 2, .blocks = 1, .regions = 6, .bytes = 1000 } },
        };
        struct sweep_tally *t = test_calloc(1, sizeof(*t));
        struct snapshot_metric *m;
        struct snapshot s;

        sweep_tally_init(t);
        m = tallied(t, clients, 2, KVCACHE_LAYOUT_BLOCK_FIRST, &blocks);
        assert_int_equal(m->counts.transfers, 6);
        assert_int_equal(m->counts.blocks, 3);
        assert_int_equal(m->counts.regions, 18);
        assert_int_equal(m->counts.bytes, 3000);
        assert_int_equal(m->counts.min_bytes, 500);
        assert_int_equal(m->counts.max_bytes, 500);
        assert_float_equal(m->busy_secs, 260e-9, 1e-12);
        assert_float_equal(m->latency_secs, 310e-9, 1e-12);

        sweep_tally_snapshot(t, "mine", &s);
        assert_string_equal(s.name, "mine");
        assert_true(s.enabled_secs == 0.5);
        assert_int_equal(s.n_metrics, 1); /* The other layouts moved nothing. */
        assert_int_equal(s.metrics[0].layout, TRANSFER_LAYER_SEPARATE_BLOCK_FIRST);
        assert_int_equal(s.metrics[0].technology, TRANSFER_MEMCPY);
        test_free(t);
}

static void equal_layouts_are_kept_once(void **state)
{
        struct kvcache_layout layout = { .kind = KVCACHE_LAYOUT_CONTIGUOUS, .blocks = 3 };
        struct sweep_tally *t = test_calloc(1, sizeof(*t));
        struct sweep_observer observer = sweep_tally_observer(t);

        sweep_tally_init(t);
        for (unsigned i = 0; i < 2; i++)
                observer.layout(observer.userdata, &layout);
        assert_int_equal(t->n_layouts, 1);
        for (unsigned i = 0; i < 2 * SNAPSHOT_MAX_LAYOUTS; i++) {
                layout.layers = i + 1;
                observer.layout(observer.userdata, &layout);
        }
        assert_int_equal(t->n_layouts, SNAPSHOT_MAX_LAYOUTS);
        assert_int_equal(t->layouts[0].blocks, 3);
        assert_int_equal(t->layouts[0].layout, TRANSFER_FULLY_CONTIGUOUS);
        test_free(t);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_teardown(the_table_is_in_megabytes_and_microseconds, forget),
                cmocka_unit_test_teardown(json_is_in_bytes_and_microseconds, forget),
                cmocka_unit_test_teardown(csv_has_the_figures_of_the_json, forget),
                cmocka_unit_test_teardown(a_chart_has_a_panel_for_each_operation, forget),
                cmocka_unit_test(the_largest_block_has_the_largest_region),
                cmocka_unit_test(a_sweep_without_memory_has_a_reason),
                cmocka_unit_test(calls_that_overlap_are_busy_once),
                cmocka_unit_test(equal_layouts_are_kept_once),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The history of fifteen minutes: what samples hold after the ring has wrapped around, when
 * counters fall, when the clock jumps, and when the daemon was stopped for a while. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <cjson/cJSON.h>
#include <string.h>

#include "checked.h"
#include "cleanup.h"
#include "report/history.h"

#define S      UINT64_C(1000000000)
#define T0     (1000 * S)
#define STEP   (HISTORY_INTERVAL_S * S)
#define MINUTE (60 * S)

static struct history h;
static struct history_counters now;

static int setup(void **state)
{
        memset(&h, 0, sizeof(h));
        memset(&now, 0, sizeof(now));
        return 0;
}

static unsigned count(uint64_t at)
{
        unsigned n = 0;

        while (history_get(&h, at, n))
                n++;
        return n;
}

static void the_first_call_counts_nothing(void **state)
{
        now.counters[HISTORY_PUT_BYTES] = 1 << 30; /* counted before the history began */
        assert_true(history_is_due(&h, T0));
        history_add(&h, T0, &now);
        assert_int_equal(count(T0), 0);
        assert_null(history_get(&h, T0, 0));
        now.counters[HISTORY_PUT_BYTES] += 500;
        history_add(&h, T0 + STEP, &now);
        assert_int_equal(count(T0 + STEP), 1);
        assert_int_equal(history_get(&h, T0 + STEP, 0)->counted[HISTORY_PUT_BYTES], 500);
        assert_int_equal(history_get(&h, T0 + STEP, 0)->span_ns, STEP);
}

/* However often the tick comes, which is never exact: the ring always has fifteen minutes. */
static void a_sample_is_due_every_five_seconds(void **state)
{
        static const unsigned ticks_ms[] = { 25, 250, 700, 1000 };

        for (size_t k = 0; k < ARRAY_SIZE(ticks_ms); k++) {
                unsigned taken = 0, n;
                uint64_t at = T0;

                memset(&h, 0, sizeof(h));
                for (unsigned i = 0; at < T0 + 3600 * S; i++) {
                        at = T0 + (i * ticks_ms[k] + i * 7919 % 20) * (S / 1000);
                        if (!history_is_due(&h, at))
                                continue;
                        history_add(&h, at, &now);
                        taken++;
                }
                assert_in_range(taken, 3600 / HISTORY_INTERVAL_S - 1,
                                3600 / HISTORY_INTERVAL_S + 1);
                n = count(at);
                assert_true(at - history_get(&h, at, 0)->end_ns > (HISTORY_SPAN_S - 10) * S);
                for (unsigned i = 0; i + 1 < n; i++)
                        assert_true(history_is_joined(history_get(&h, at, i),
                                                      history_get(&h, at, i + 1)));
        }
}

static void the_ring_keeps_the_last_fifteen_minutes(void **state)
{
        const unsigned n = 3 * HISTORY_SAMPLES + 7;
        uint64_t at = T0;

        history_add(&h, at, &now);
        for (unsigned i = 1; i <= n; i++) {
                at += STEP;
                now.counters[HISTORY_GET_BYTES] += i;
                history_add(&h, at, &now);
                assert_true(count(at) == MIN(i, (unsigned)HISTORY_SAMPLES));
        }
        for (unsigned i = 0; i < HISTORY_SAMPLES; i++) {
                const struct history_sample *s = history_get(&h, at, i);

                assert_int_equal(s->counted[HISTORY_GET_BYTES], n - HISTORY_SAMPLES + 1 + i);
                assert_int_equal(s->end_ns, at - (HISTORY_SAMPLES - 1 - i) * STEP);
        }
        assert_null(history_get(&h, at, HISTORY_SAMPLES));
        assert_int_equal(history_sum(&h, at, HISTORY_GET_BYTES),
                         HISTORY_SAMPLES * (2 * n - HISTORY_SAMPLES + 1) / 2);

        /* Samples expire one by one as time passes, though none is added. */
        assert_int_equal(count(at + 5 * MINUTE), HISTORY_SAMPLES * 2 / 3);
        assert_int_equal(count(at + 15 * MINUTE), 0);
        assert_int_equal(history_sum(&h, at + 15 * MINUTE, HISTORY_GET_BYTES), 0);
}

/* A counter falls, for example, when a volume is opened again. */
static void a_counter_that_falls_has_counted_nothing(void **state)
{
        now.counters[HISTORY_DISK_READ_BYTES] = 1000;
        for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++)
                now.latency[HISTORY_GET].buckets[i] = 5;
        history_add(&h, T0, &now);
        now.counters[HISTORY_DISK_READ_BYTES] = 10;
        memset(&now.latency, 0, sizeof(now.latency));
        history_add(&h, T0 + STEP, &now);
        assert_int_equal(history_get(&h, T0 + STEP, 0)->counted[HISTORY_DISK_READ_BYTES], 0);
        assert_int_equal(history_get(&h, T0 + STEP, 0)->p99_ns[HISTORY_GET], 0);
        now.counters[HISTORY_DISK_READ_BYTES] = 25;
        history_add(&h, T0 + 2 * STEP, &now);
        assert_int_equal(history_get(&h, T0 + 2 * STEP, 1)->counted[HISTORY_DISK_READ_BYTES], 15);
}

static void quantiles_are_those_of_the_sample_alone(void **state)
{
        for (unsigned i = 0; i < 100000; i++)
                histogram_add(&now.latency[HISTORY_GET], 1000 * S);
        history_add(&h, T0, &now);
        for (unsigned i = 0; i < 980; i++)
                histogram_add(&now.latency[HISTORY_GET], 20000);
        for (unsigned i = 0; i < 20; i++)
                histogram_add(&now.latency[HISTORY_GET], 5000000);
        history_add(&h, T0 + STEP, &now);
        history_add(&h, T0 + 2 * STEP, &now);
        assert_in_range(history_get(&h, T0 + 2 * STEP, 0)->p50_ns[HISTORY_GET], 20000, 22500);
        assert_in_range(history_get(&h, T0 + 2 * STEP, 0)->p99_ns[HISTORY_GET], 5000000, 5625000);
        assert_int_equal(history_get(&h, T0 + 2 * STEP, 0)->p50_ns[HISTORY_PUT], 0);
        assert_int_equal(history_get(&h, T0 + 2 * STEP, 1)->p50_ns[HISTORY_GET], 0);
}

static void a_clock_that_goes_back_begins_anew(void **state)
{
        for (unsigned i = 0; i <= 10; i++)
                history_add(&h, T0 + i * STEP, &now);
        assert_int_equal(count(T0 + 10 * STEP), 10);
        assert_true(history_is_due(&h, T0));
        now.counters[HISTORY_GET_KEYS] = 7;
        history_add(&h, T0, &now);
        assert_int_equal(count(T0), 0);
        assert_false(history_is_due(&h, T0 + S));
        now.counters[HISTORY_GET_KEYS] = 9;
        history_add(&h, T0 + STEP, &now);
        assert_int_equal(count(T0 + STEP), 1);
        assert_int_equal(history_get(&h, T0 + STEP, 0)->counted[HISTORY_GET_KEYS], 2);
}

/* A sample from the future has no age. */
static void a_reader_behind_the_clock_sees_what_there_is(void **state)
{
        _cleanup_(freep) char *text = NULL;
        size_t n;
        FILE *out = open_memstream(&text, &n);

        history_add(&h, T0, &now);
        history_add(&h, T0 + STEP, &now);
        assert_int_equal(count(T0), 1);
        history_print(&h, T0, out);
        fclose(out);
        assert_non_null(strstr(text, "\"age_seconds\": 0.000000000"));
}

/* A second sample at the same time would divide by zero, so it is ignored. */
static void the_same_moment_twice_is_no_sample(void **state)
{
        history_add(&h, T0, &now);
        history_add(&h, T0, &now);
        assert_int_equal(count(T0), 0);
}

static void a_pause_is_a_gap(void **state)
{
        const struct history_sample *s[4];
        uint64_t at[] = { T0, T0 + STEP, T0 + 2 * STEP, T0 + 2 * STEP + 5 * MINUTE,
                          T0 + 3 * STEP + 5 * MINUTE };

        for (size_t i = 0; i < ARRAY_SIZE(at); i++) {
                now.counters[HISTORY_PUT_BYTES] += 100;
                history_add(&h, at[i], &now);
        }
        for (size_t i = 0; i < ARRAY_SIZE(s); i++)
                s[i] = history_get(&h, at[4], (unsigned)i);
        assert_true(history_is_joined(s[0], s[1]));
        assert_true(history_is_gap(s[2]));
        assert_false(history_is_joined(s[1], s[2]));
        assert_false(history_is_joined(s[2], s[3]));
        assert_false(history_is_gap(s[3]));
        /* Counts of the meantime are not lost. */
        assert_int_equal(history_sum(&h, at[4], HISTORY_PUT_BYTES), 400);

        /* The clock jumps over the whole history. */
        history_add(&h, T0 + 1000 * MINUTE, &now);
        assert_int_equal(count(T0 + 1000 * MINUTE), 1);
}

static void the_hit_ratio_is_that_of_lookups_or_else_of_gets(void **state)
{
        uint64_t c[HISTORY_COUNTERS] = { 0 };

        assert_true(history_hit_ratio(c) < 0);
        c[HISTORY_GET_KEYS] = 4;
        c[HISTORY_GET_FOUND] = 3;
        assert_true(history_hit_ratio(c) == 0.75);
        c[HISTORY_LOOKUP_KEYS] = 10;
        assert_true(history_hit_ratio(c) == 0);
        c[HISTORY_LOOKUP_FOUND] = 5;
        assert_true(history_hit_ratio(c) == 0.5);
        c[HISTORY_LOOKUP_FOUND] = 11; /* counted a moment later */
        assert_true(history_hit_ratio(c) == 1);
}

static void the_json_has_every_sample(void **state)
{
        _cleanup_(freep) char *text = NULL;
        cJSON *json, *samples, *last;
        size_t n;
        FILE *out = open_memstream(&text, &n);

        history_print(&h, T0, out);
        fflush(out);
        json = cJSON_Parse(text);
        assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(json, "samples")), 0);
        cJSON_Delete(json);
        rewind(out);

        history_add(&h, T0, &now);
        for (unsigned i = 1; i <= 2 * HISTORY_SAMPLES; i++) {
                for (unsigned k = 0; k < HISTORY_COUNTERS; k++)
                        now.counters[k] += UINT64_C(1000000000000) + k;
                histogram_add(&now.latency[HISTORY_PUT], 2 * S);
                history_add(&h, T0 + i * STEP, &now);
        }
        history_print(&h, T0 + 2 * HISTORY_SAMPLES * STEP + S / 2, out);
        fclose(out);
        json = cJSON_Parse(text);
        assert_non_null(json);
        samples = cJSON_GetObjectItem(json, "samples");
        assert_int_equal(cJSON_GetArraySize(samples), HISTORY_SAMPLES);
        last = cJSON_GetArrayItem(samples, HISTORY_SAMPLES - 1);
        assert_true(cJSON_GetObjectItem(last, "age_seconds")->valuedouble == 0.5);
        assert_true(cJSON_GetObjectItem(last, "span_seconds")->valuedouble == HISTORY_INTERVAL_S);
        assert_true(cJSON_GetObjectItem(last, "evictions_disk")->valuedouble ==
                    1e12 + HISTORY_EVICTIONS_DISK);
        assert_true(cJSON_GetObjectItem(last, "put_p50_seconds")->valuedouble >= 2);
        assert_true(cJSON_GetObjectItem(last, "get_p99_seconds")->valuedouble == 0);
        assert_int_equal(cJSON_GetArraySize(last), 2 + HISTORY_COUNTERS + 2 * HISTORY_LATENCIES);
        cJSON_Delete(json);
}

static void it_is_small(void **state)
{
        assert_true(sizeof(struct history) < 40 * 1024);
}

#define CASE(f) cmocka_unit_test_setup(f, setup)

int main(void)
{
        const struct CMUnitTest tests[] = {
                CASE(the_first_call_counts_nothing),
                CASE(a_sample_is_due_every_five_seconds),
                CASE(the_ring_keeps_the_last_fifteen_minutes),
                CASE(a_counter_that_falls_has_counted_nothing),
                CASE(quantiles_are_those_of_the_sample_alone),
                CASE(a_clock_that_goes_back_begins_anew),
                CASE(a_reader_behind_the_clock_sees_what_there_is),
                CASE(the_same_moment_twice_is_no_sample),
                CASE(a_pause_is_a_gap),
                CASE(the_hit_ratio_is_that_of_lookups_or_else_of_gets),
                CASE(the_json_has_every_sample),
                CASE(it_is_small),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

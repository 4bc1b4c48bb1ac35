/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/histogram.h"
#include "checked.h"

static struct histogram h;

static int reset(void **state)
{
        memset(&h, 0, sizeof(h));
        return 0;
}

static void empty_one_answers_nothing(void **state)
{
        assert_int_equal(histogram_quantile(&h, 0.5), 0);
        assert_int_equal(histogram_quantile(&h, 1.0), 0);
        assert_int_equal(histogram_at_most(&h, 0), 0);
        assert_int_equal(histogram_at_most(&h, UINT64_MAX), 0);
}

static void one_value_is_every_quantile(void **state)
{
        static const uint64_t values[] = { 0, 1, 7, 8, 1000, 123456789, UINT64_MAX };

        for (size_t i = 0; i < sizeof(values) / sizeof(*values); i++) {
                reset(NULL);
                histogram_add(&h, values[i]);
                assert_true(histogram_quantile(&h, 0.0) == values[i]);
                assert_true(histogram_quantile(&h, 0.5) == values[i]);
                assert_true(histogram_quantile(&h, 1.0) == values[i]);
                assert_int_equal(histogram_at_most(&h, values[i] + MIN(values[i] / 8,
                                                                       UINT64_MAX - values[i])),
                                 1);
                if (values[i] > 0)
                        assert_int_equal(histogram_at_most(&h, values[i] / 2), 0);
        }
}

/* Values around every power of two, where a step ends and the next begins. */
static void quantile_is_never_below_and_at_most_an_eighth_above(void **state)
{
        for (unsigned shift = 0; shift < 50; shift++)
                for (int64_t d = -2; d <= 2; d++) {
                        int64_t value = ((int64_t)1 << shift) + d;
                        uint64_t q;

                        if (value < 0 || value >= (int64_t)1 << 50)
                                continue;
                        reset(NULL);
                        histogram_add(&h, (uint64_t)value);
                        histogram_add(&h, UINT64_MAX); /* keeps `max` from hiding the edge */
                        q = histogram_quantile(&h, 0.5);
                        assert_true(q >= (uint64_t)value);
                        assert_true((double)q <= (double)value * 1.125);
                }
}

static void quantiles_are_those_of_the_sorted_values(void **state)
{
        for (uint64_t v = 1; v <= 1000; v++)
                histogram_add(&h, v);
        assert_int_equal(h.count, 1000);
        assert_int_equal(h.sum, 500500);
        assert_int_equal(h.max, 1000);
        for (int percent = 1; percent <= 100; percent++) {
                uint64_t q = histogram_quantile(&h, percent / 100.0);

                assert_in_range(q, (uintmax_t)percent * 10, (uintmax_t)(percent * 10 * 1.125));
        }
        assert_int_equal(histogram_quantile(&h, 1.0), 1000);
        assert_int_equal(histogram_quantile(&h, 0.0), 1);
        assert_int_equal(histogram_quantile(&h, -3.0), 1);
        assert_int_equal(histogram_quantile(&h, NAN), 1);
        assert_int_equal(histogram_quantile(&h, 7.0), 1000);
}

static void counts_below_an_edge_grow_to_all(void **state)
{
        uint64_t before = 0;

        for (uint64_t v = 0; v < 5000; v += 3)
                histogram_add(&h, v);
        for (uint64_t edge = 0; edge <= 5625; edge++) { /* a step beyond the last value */
                uint64_t n = histogram_at_most(&h, edge);

                assert_true(n >= before);
                assert_true(n <= MIN(edge, 4998u) / 3 + 1); /* at most the number of values */
                /* at most one step fewer */
                assert_true((double)n >= MIN((double)edge / 1.125, 4998.0) / 3 - 1);
                before = n;
        }
        assert_int_equal(before, h.count);
}

static void counts_below_an_edge_never_fall_as_values_come(void **state)
{
        for (uint64_t edge = 1; edge < 100000; edge += 997) {
                uint64_t before = 0;

                reset(NULL);
                /* The edge divides a bucket, whose values before the edge are added first. */
                for (uint64_t v = 0; v < 9; v++) {
                        histogram_add(&h, edge / 8 * v);
                        assert_true(histogram_at_most(&h, edge) >= before);
                        before = histogram_at_most(&h, edge);
                }
                for (uint64_t v = edge; v < edge + edge / 8; v += edge / 50 + 1) {
                        histogram_add(&h, v);
                        assert_true(histogram_at_most(&h, edge) >= before);
                        before = histogram_at_most(&h, edge);
                }
        }
}

static void merging_is_adding_to_one(void **state)
{
        struct histogram a = {}, b = {};
        uint64_t v = 1;

        for (int i = 0; i < 1000; i++) {
                v = v * 6364136223846793005u + 1442695040888963407u;
                histogram_add(&h, v >> (v & 63));
                histogram_add(i % 2 ? &a : &b, v >> (v & 63));
        }
        histogram_merge(&a, &b);
        assert_memory_equal(&a, &h, sizeof(h));
}

static void sum_stays_at_its_end(void **state)
{
        struct histogram other = {};

        histogram_add(&h, UINT64_MAX);
        histogram_add(&h, 5);
        assert_true(h.sum == UINT64_MAX);
        histogram_add(&other, 1);
        histogram_merge(&other, &h);
        assert_true(other.sum == UINT64_MAX);
        assert_int_equal(other.count, 3);
}

static void huge_values_share_the_last_bucket(void **state)
{
        histogram_add(&h, (uint64_t)1 << 50);
        histogram_add(&h, (uint64_t)1 << 63);
        histogram_add(&h, 10);
        assert_int_equal(h.buckets[HISTOGRAM_BUCKETS - 1], 2);
        assert_true(histogram_quantile(&h, 0.9) == (uint64_t)1 << 63);
        assert_int_equal(histogram_at_most(&h, (uint64_t)1 << 62), 1);
}

static void values_counted_elsewhere_are_as_if_added(void **state)
{
        struct histogram one = { 0 };

        for (unsigned i = 0; i < 5; i++)
                histogram_add(&one, 4095);
        histogram_add(&one, 7);
        histogram_add_many(&h, 4095, 5);
        histogram_add_many(&h, 1 << 20, 0);
        histogram_add_many(&h, 7, 1);
        histogram_add_to_sum(&h, 5 * 4095 + 7);
        assert_memory_equal(&h, &one, sizeof(h));
        histogram_add_to_sum(&h, UINT64_MAX);
        assert_true(h.sum == UINT64_MAX);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup(empty_one_answers_nothing, reset),
                cmocka_unit_test_setup(one_value_is_every_quantile, reset),
                cmocka_unit_test_setup(quantile_is_never_below_and_at_most_an_eighth_above, reset),
                cmocka_unit_test_setup(quantiles_are_those_of_the_sorted_values, reset),
                cmocka_unit_test_setup(counts_below_an_edge_grow_to_all, reset),
                cmocka_unit_test_setup(counts_below_an_edge_never_fall_as_values_come, reset),
                cmocka_unit_test_setup(merging_is_adding_to_one, reset),
                cmocka_unit_test_setup(values_counted_elsewhere_are_as_if_added, reset),
                cmocka_unit_test_setup(sum_stays_at_its_end, reset),
                cmocka_unit_test_setup(huge_values_share_the_last_bucket, reset),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

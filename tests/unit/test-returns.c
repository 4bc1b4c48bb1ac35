/* SPDX-License-Identifier: Apache-2.0 */
/* The measure of predicted returns. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "cache/returns.h"

#define S UINT64_C(1000000000)

static struct returns returns;
static const uint64_t start = 1000 * S;

static void begin(void)
{
        memset(&returns, 0, sizeof(returns));
        returns_pass(&returns, start);
}

static void expect(double gap_s, uint64_t at_s)
{
        returns_expect(&returns, gap_s, start + at_s * S);
}

/* A chain with this mean gap that was used at `used_s` returns. */
static void come(double gap_s, uint64_t used_s, uint64_t now_s)
{
        struct evict_return back = { .gap_s = gap_s, .age_ns = (now_s - used_s) * S };

        returns_note(&returns, &back, start + now_s * S);
}

static void assert_counts(uint64_t now_s, uint64_t expected, uint64_t in_time, uint64_t late,
                          uint64_t missed)
{
        struct returns_stats stats;

        returns_pass(&returns, start + now_s * S);
        returns_get_stats(&returns, &stats);
        assert_int_equal(stats.expected, expected);
        assert_int_equal(stats.in_time, in_time);
        assert_int_equal(stats.late, late);
        assert_int_equal(stats.missed, missed);
}

static void a_return_within_two_gaps_is_in_time(void **state)
{
        begin();
        expect(10, 5);
        assert_counts(5, 1, 0, 0, 0);
        come(10, 5, 25);
        assert_counts(25, 0, 1, 0, 0);
        assert_counts(1000, 0, 1, 0, 0);
}

static void a_chain_that_stays_away_is_missed_once(void **state)
{
        begin();
        expect(10, 5);
        assert_counts(25, 1, 0, 0, 0);
        assert_counts(26, 0, 0, 0, 1);
        come(10, 5, 27);
        assert_counts(27, 0, 0, 1, 1);
        assert_counts(5000, 0, 0, 1, 1);
}

static void unknown_and_long_gaps_are_no_predictions(void **state)
{
        begin();
        expect(0, 1);
        expect(RETURNS_MOST_S / RETURNS_WINDOW_GAPS + 1, 1);
        come(0, 1, 2);
        come(RETURNS_MOST_S, 1, 2);
        assert_counts(2, 0, 0, 0, 0);
        expect(RETURNS_MOST_S / RETURNS_WINDOW_GAPS, 2);
        assert_counts(3, 1, 0, 0, 0);
        assert_counts(2 + RETURNS_MOST_S + 1, 0, 0, 0, 1);
}

/* Parts of one request follow each other within a second: the last one is the prediction. */
static void parts_of_a_request_are_one_prediction(void **state)
{
        begin();
        expect(10, 5);
        returns_note(&returns, &(struct evict_return){ .gap_s = 10, .age_ns = S / 2 },
                     start + 5 * S + S / 2);
        returns_expect(&returns, 10, start + 5 * S + S / 2);
        assert_counts(6, 1, 0, 0, 0);
        returns_cancel(&returns, 10, S / 2, start + 6 * S);
        expect(10, 6);
        assert_counts(6, 1, 0, 0, 0);
        come(10, 6, 16);
        assert_counts(100, 0, 1, 0, 0);
}

/* The beginning of a chain is got, and its end, which was evicted, is put. */
static void an_evicted_end_is_no_second_return(void **state)
{
        struct evict_return end = { .gap_s = 10, .age_ns = 12 * S, .is_evicted = true };
        struct returns_stats stats;

        begin();
        expect(10, 5);
        come(10, 5, 17);
        returns_note(&returns, &end, start + 17 * S);
        assert_counts(100, 0, 1, 0, 0);

        /* Another chain returns of which nothing was kept. */
        expect(10, 100);
        returns_note(&returns, &end, start + 112 * S);
        assert_counts(200, 0, 2, 0, 0);
        returns_get_stats(&returns, &stats);
        assert_int_equal(stats.evicted, 1);
}

/* The policy has restored the gaps of chains that were used before the start. */
static void returns_of_earlier_uses_do_not_count(void **state)
{
        struct evict_return back = { .gap_s = 40, .age_ns = 30 * S };

        begin();
        returns_note(&returns, &back, start + 10 * S);
        back.age_ns = UINT64_MAX;
        returns_note(&returns, &back, start + 10 * S);
        returns_cancel(&returns, 40, UINT64_MAX, start + 10 * S);
        assert_counts(10, 0, 0, 0, 0);
        assert_counts(500, 0, 0, 0, 0);
}

/* Two chains that continue the same one both return, so that a window has one return too many. */
static void a_return_too_many_hides_one_missed_chain(void **state)
{
        begin();
        expect(10, 5);
        come(10, 5, 15);
        come(10, 5, 16);
        assert_counts(16, 0, 2, 0, 0);
        expect(10, 20);
        expect(10, 20);
        assert_counts(50, 0, 2, 0, 1);
}

static void time_that_jumps_or_stands_still_is_harmless(void **state)
{
        begin();
        for (unsigned i = 0; i < 100; i++)
                expect(1 + i % 50, i);
        assert_counts(90 * 24 * 3600, 0, 0, 0, 100);
        expect(10, 5); /* before the last second */
        returns_pass(&returns, 0);
        assert_counts(90 * 24 * 3600 + 10, 0, 0, 0, 101);
}

/* Each prediction is in time, missed, or still expected. */
static void every_prediction_has_one_outcome(void **state)
{
        uint32_t random = 1;
        uint64_t made = 0, came = 0;
        struct returns_stats stats;

        begin();
        for (uint64_t now = 0; now < 20000; now++) {
                uint64_t gap = 1 + (random >> 8) % 300;

                random = random * 1664525 + 1013904223;
                expect((double)gap, now);
                made++;
                if (random >> 30 == 0 && now > 2) {
                        come(40, now - 2, now); /* such a chain may have another gap */
                        came++;
                        expect(40, now - 2);
                        made++;
                }
        }
        returns_get_stats(&returns, &stats);
        assert_int_equal(stats.in_time, came);
        assert_int_equal(stats.in_time + stats.missed + stats.expected, made);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_return_within_two_gaps_is_in_time),
                cmocka_unit_test(a_chain_that_stays_away_is_missed_once),
                cmocka_unit_test(unknown_and_long_gaps_are_no_predictions),
                cmocka_unit_test(parts_of_a_request_are_one_prediction),
                cmocka_unit_test(an_evicted_end_is_no_second_return),
                cmocka_unit_test(returns_of_earlier_uses_do_not_count),
                cmocka_unit_test(a_return_too_many_hides_one_missed_chain),
                cmocka_unit_test(time_that_jumps_or_stands_still_is_harmless),
                cmocka_unit_test(every_prediction_has_one_outcome),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

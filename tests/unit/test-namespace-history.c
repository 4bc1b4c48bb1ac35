/* SPDX-License-Identifier: Apache-2.0 */
/* The samples of single namespaces: which are kept, what they count, and what happens when a
 * namespace is replaced, when the clock goes back and when many pages are requested. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "report/namespace-history.h"

#define S    UINT64_C(1000000000)
#define T0   (1000 * S)
#define STEP (NAMESPACE_SAMPLE_S * S)

static struct namespace_history h;

static int setup(void **state)
{
        memset(&h, 0, sizeof(h));
        return 0;
}

static struct namespace_now now_of(uint32_t id, uint64_t lookups, uint64_t found)
{
        return (struct namespace_now){
                .of = { id, 7 },
                .counters = { [NAMESPACE_LOOKUP_KEYS] = lookups, [NAMESPACE_LOOKUP_FOUND] = found },
                .chunks = found,
                .bytes = 10 * found
        };
}

static unsigned count(uint32_t id, uint64_t at_ns)
{
        struct namespace_id of = { id, 7 };
        unsigned n = 0;

        while (namespace_history_get(&h, of, at_ns, n))
                n++;
        return n;
}

static const struct namespace_sample *sample(uint32_t id, uint64_t at_ns, unsigned i)
{
        return namespace_history_get(&h, (struct namespace_id){ id, 7 }, at_ns, i);
}

static void samples_have_what_was_counted_since_the_one_before(void **state)
{
        struct namespace_now now = now_of(3, 1000, 900);

        assert_true(namespace_history_is_due(&h, T0));
        namespace_history_add(&h, T0, &now, 1);
        assert_false(namespace_history_is_due(&h, T0 + STEP - 1));
        assert_true(namespace_history_is_due(&h, T0 + STEP));
        assert_int_equal(count(3, T0), 0);
        now = now_of(3, 1100, 950);
        namespace_history_add(&h, T0 + STEP, &now, 1);
        assert_int_equal(count(3, T0 + STEP), 1);
        assert_int_equal(sample(3, T0 + STEP, 0)->counted[NAMESPACE_LOOKUP_KEYS], 100);
        assert_int_equal(sample(3, T0 + STEP, 0)->counted[NAMESPACE_LOOKUP_FOUND], 50);
        assert_int_equal(sample(3, T0 + STEP, 0)->span_ns, STEP);
        assert_int_equal(sample(3, T0 + STEP, 0)->bytes, 9500);
        now = now_of(3, 0, 0); /* counters that fall count as unchanged */
        namespace_history_add(&h, T0 + 2 * STEP, &now, 1);
        assert_int_equal(sample(3, T0 + 2 * STEP, 1)->counted[NAMESPACE_LOOKUP_KEYS], 0);
}

static void the_ring_has_fifteen_minutes(void **state)
{
        uint64_t at_ns = T0;

        for (unsigned i = 0; i < 3 * NAMESPACE_SAMPLES; i++, at_ns += STEP) {
                struct namespace_now now = now_of(3, 10 * i, i);

                namespace_history_add(&h, at_ns, &now, 1);
        }
        at_ns -= STEP;
        assert_int_equal(count(3, at_ns), NAMESPACE_SAMPLES);
        for (unsigned i = 0; i < NAMESPACE_SAMPLES; i++)
                assert_int_equal(sample(3, at_ns, i)->end_ns,
                                 at_ns - (NAMESPACE_SAMPLES - 1 - i) * STEP);
        assert_int_equal(count(3, at_ns + 3 * STEP), NAMESPACE_SAMPLES - 3);
        assert_int_equal(count(3, at_ns + 1000 * STEP), 0);
}

static void namespaces_that_are_not_listed_are_forgotten(void **state)
{
        struct namespace_now list[NAMESPACE_ROWS];

        for (unsigned round = 0; round < 3; round++) {
                for (unsigned i = 0; i < NAMESPACE_ROWS; i++)
                        list[i] = now_of(1 + i, round, round);
                namespace_history_add(&h, T0 + round * STEP, list, NAMESPACE_ROWS);
        }
        for (unsigned i = 0; i < NAMESPACE_ROWS; i++)
                assert_int_equal(count(1 + i, T0 + 2 * STEP), 2);
        list[0] = now_of(100, 5, 5); /* in place of 1 */
        namespace_history_add(&h, T0 + 3 * STEP, list, NAMESPACE_ROWS);
        assert_int_equal(count(1, T0 + 3 * STEP), 0);
        assert_int_equal(count(100, T0 + 3 * STEP), 0);
        assert_int_equal(count(2, T0 + 3 * STEP), 3);
        namespace_history_add(&h, T0 + 4 * STEP, list, 0);
        assert_int_equal(count(2, T0 + 4 * STEP), 0);
}

static void a_number_that_is_assigned_again_begins_anew(void **state)
{
        struct namespace_now now = now_of(3, 10, 10);

        namespace_history_add(&h, T0, &now, 1);
        namespace_history_add(&h, T0 + STEP, &now, 1);
        assert_int_equal(count(3, T0 + STEP), 1);
        now.of.created_ms = 8;
        namespace_history_add(&h, T0 + 2 * STEP, &now, 1);
        assert_int_equal(count(3, T0 + 2 * STEP), 0);
        assert_null(namespace_history_get(&h, now.of, T0 + 2 * STEP, 0));
}

static void a_clock_that_goes_back_drops_the_samples(void **state)
{
        struct namespace_now now = now_of(3, 10, 10);

        namespace_history_add(&h, T0, &now, 1);
        namespace_history_add(&h, T0 + STEP, &now, 1);
        assert_true(namespace_history_is_due(&h, T0 - S));
        namespace_history_add(&h, T0 - S, &now, 1);
        assert_int_equal(count(3, T0 + STEP), 0);
        namespace_history_add(&h, T0 - S, &now, 1); /* no time has passed */
        assert_int_equal(count(3, T0 + STEP), 0);
}

static void a_requested_namespace_is_sampled_from_the_request_on(void **state)
{
        struct namespace_now list[2] = { now_of(3, 10, 10), now_of(4, 100, 50) };

        namespace_history_add(&h, T0, list, 1);
        namespace_history_watch(&h, T0 + 10 * S, &list[1]);
        list[1] = now_of(4, 130, 60);
        namespace_history_add(&h, T0 + STEP, list, 2);
        assert_int_equal(sample(4, T0 + STEP, 0)->counted[NAMESPACE_LOOKUP_KEYS], 30);
        assert_int_equal(sample(4, T0 + STEP, 0)->span_ns, 5 * S);
        assert_int_equal(sample(3, T0 + STEP, 0)->span_ns, STEP);
}

static void the_latest_requests_are_remembered(void **state)
{
        for (uint32_t id = 1; id <= 100; id++) {
                struct namespace_now now = now_of(id, 0, 0);

                namespace_history_watch(&h, T0, &now);
                namespace_history_watch(&h, T0, &now); /* once is enough */
        }
        assert_int_equal(h.n_watched, NAMESPACE_WATCHED);
        for (unsigned i = 0; i < NAMESPACE_WATCHED; i++)
                assert_int_equal(h.watched[i].id, 100 - i);
        namespace_history_watch(&h, T0, &(struct namespace_now){ .of = h.watched[5] });
        assert_int_equal(h.watched[0].id, 95);
        assert_int_equal(h.watched[1].id, 100);
        assert_int_equal(h.watched[5].id, 96);
        assert_int_equal(h.watched[6].id, 94);
}

static void hits_are_those_of_lookups_or_else_of_gets(void **state)
{
        uint64_t counted[NAMESPACE_COUNTERS] = { 0 };

        assert_true(namespace_hit_ratio(counted) < 0);
        counted[NAMESPACE_GET_KEYS] = 4;
        counted[NAMESPACE_GET_FOUND] = 1;
        assert_float_equal(namespace_hit_ratio(counted), 0.25, 1e-9);
        counted[NAMESPACE_LOOKUP_KEYS] = 2;
        counted[NAMESPACE_LOOKUP_FOUND] = 1;
        assert_float_equal(namespace_hit_ratio(counted), 0.5, 1e-9);
}

#define CASE(f) cmocka_unit_test_setup(f, setup)

int main(void)
{
        const struct CMUnitTest tests[] = {
                CASE(samples_have_what_was_counted_since_the_one_before),
                CASE(the_ring_has_fifteen_minutes),
                CASE(namespaces_that_are_not_listed_are_forgotten),
                CASE(a_number_that_is_assigned_again_begins_anew),
                CASE(a_clock_that_goes_back_drops_the_samples),
                CASE(a_requested_namespace_is_sampled_from_the_request_on),
                CASE(the_latest_requests_are_remembered),
                CASE(hits_are_those_of_lookups_or_else_of_gets),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

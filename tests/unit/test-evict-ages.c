/* SPDX-License-Identifier: Apache-2.0 */
/* How long ago an item was last touched, which policies do not keep: by samples of the time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "checked.h"
#include "cleanup.h"
#include "evict/evict.h"

DEFINE_CLEANUP(struct evict *, evict_free);

static const char *const policies[] = { "lru", "cq" };

static struct evict *make(const char *policy, uint32_t items)
{
        struct evict *e = NULL;

        assert_int_equal(evict_new(&e, policy, items, 1), 0);
        return e;
}

static uint32_t random_below(uint32_t *state, uint32_t n)
{
        *state = *state * UINT32_C(1664525) + UINT32_C(1013904223);
        return (uint32_t)((uint64_t)(*state >> 8) * n >> 24);
}

#define SECOND UINT64_C(1000000000)

/* Inserts items touched once, up to a month ago. The steps are a second to a day, with one to a
 * thousand touches each. */
static void ages_are_right_to_an_eighth(void **state)
{
        enum { ITEMS = 2000 };
        static uint64_t at[ITEMS];

        for (unsigned p = 0; p < ARRAY_SIZE(policies); p++) {
                _cleanup_(evict_freep) struct evict *e = make(policies[p], ITEMS);
                uint64_t now = 1000 * SECOND;
                uint32_t random = 1, n = 0;

                evict_note_time(e, now);
                while (n < ITEMS - 1) {
                        uint32_t touches = 1 + random_below(&random, 1000);
                        uint64_t gap = UINT64_C(1) << random_below(&random, 17);

                        at[n] = now;
                        evict_insert(e, n++, 0, 1);
                        evict_insert(e, ITEMS - 1, 0, 1);
                        while (touches-- > 0)
                                evict_touch(e, ITEMS - 1, 0, EVICT_NO_USE);
                        evict_remove(e, ITEMS - 1);
                        /* The daemon's loop iterates at least once a second. */
                        for (uint64_t i = 0; i < gap; i++)
                                evict_note_time(e, now += SECOND);
                }
                for (uint32_t i = 0; i < n; i++) {
                        uint64_t is = now - at[i], said = evict_age_ns(e, i);

                        /* The touch happened between the two noted times around it. */
                        assert_true(said <= is + is / 8 + SECOND / 8);
                        if (i + 1 < n)
                                is = now - at[i + 1];
                        else
                                is = 0;
                        assert_true(said + said / 8 + SECOND / 8 >= is);
                }
        }
}

static void no_age_is_known_before_a_time_is(void **state)
{
        for (unsigned p = 0; p < ARRAY_SIZE(policies); p++) {
                _cleanup_(evict_freep) struct evict *e = make(policies[p], 4);

                evict_insert(e, 0, 0, 1);
                assert_int_equal(evict_age_ns(e, 0), 0);
                evict_note_time(e, 50 * SECOND);
                assert_int_equal(evict_age_ns(e, 0), 0);
                /* Ages are known from the first noted time on. */
                evict_note_time(e, 70 * SECOND);
                assert_int_equal(evict_age_ns(e, 0), 20 * SECOND);
        }
}

/* Notes times that step back, far or near, between others; ages are those of the latest time. */
static void a_time_that_steps_back_changes_no_age(void **state)
{
        for (unsigned p = 0; p < ARRAY_SIZE(policies); p++) {
                _cleanup_(evict_freep) struct evict *e = make(policies[p], 64);
                uint64_t now = 1000 * SECOND;

                for (uint32_t i = 0; i < 64; i++) {
                        evict_note_time(e, now);
                        evict_insert(e, i, 0, 1);
                        evict_note_time(e, now - SECOND / 4);
                        evict_note_time(e, now - 900 * SECOND);
                        now += SECOND / 5;
                        for (uint32_t k = 0; k <= i; k++)
                                assert_in_range(evict_age_ns(e, k), 0, now - 1000 * SECOND);
                }
                evict_note_time(e, now);
                /* The policy counts a touch, of which there is one in each fifth, to within two. */
                assert_in_range(evict_age_ns(e, 0), SECOND * 62 / 5, SECOND * 64 / 5);
                assert_in_range(evict_age_ns(e, 63), 0, SECOND * 2 / 5);
        }
}

static void another_policy_keeps_ages(void **state)
{
        struct evict *e = make("cq", 1024);

        for (uint32_t i = 0; i < 1024; i++) {
                evict_note_time(e, (1000 + i) * SECOND);
                evict_insert(e, i, 0, 1);
        }
        evict_note_time(e, 2024 * SECOND);
        assert_int_equal(evict_switch(&e, "lru"), 1);
        for (uint32_t i = 0; i < 1024; i++) {
                uint64_t is = (1024 - i) * SECOND, said = evict_age_ns(e, i);

                assert_true(said <= is + is / 8 + 64 * SECOND);
                assert_true(said + said / 8 + 64 * SECOND >= is);
        }
        evict_free(e);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(ages_are_right_to_an_eighth),
                cmocka_unit_test(no_age_is_known_before_a_time_is),
                cmocka_unit_test(a_time_that_steps_back_changes_no_age),
                cmocka_unit_test(another_policy_keeps_ages),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

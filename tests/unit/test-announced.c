/* SPDX-License-Identifier: Apache-2.0 */
/* How far announced returns come true: outcomes, belief, and the limits of a source that lies. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "checked.h"
#include "cleanup.h"
#include "evict/announced.h"

DEFINE_CLEANUP(struct announced *, announced_free);

#define SECOND UINT64_C(1000000000)

enum { SOURCE = 1000, OTHER = 2000 };

static struct announced *make(void)
{
        struct announced *a = NULL;

        assert_int_equal(announced_new(&a), 0);
        return a;
}

static float announce(struct announced *a, uint32_t source, uint64_t id, uint32_t seconds,
                      uint64_t at_s)
{
        return announced_make(a, source, id, ANNOUNCED_RETURN, seconds, at_s * SECOND);
}

static void use(struct announced *a, uint64_t id, uint64_t at_s)
{
        announced_use(a, SOURCE, id, at_s * SECOND);
}

static struct announced_stats stats_of(const struct announced *a)
{
        struct announced_stats s;

        announced_get_stats(a, &s);
        return s;
}

/* Examines the whole table. */
static void expire_all(struct announced *a, uint64_t at_s)
{
        for (unsigned i = 0; i < ANNOUNCED_OPEN; i++)
                announced_expire(a, at_s * SECOND);
}

static void a_use_within_half_and_twice_the_time_comes_true(void **state)
{
        static const struct {
                uint32_t seconds, used;
                enum { TRUE, EARLY, LATE } outcome;
        } cases[] = {
                { 100, 100, TRUE },       { 100, 48, TRUE },  { 100, 202, TRUE },
                { 100, 47, EARLY },       { 100, 203, LATE }, { 1, 0, TRUE },
                { 1, 4, TRUE },           { 1, 5, LATE },     { 3600, 20, EARLY },
                { UINT32_MAX, 1, EARLY },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                _cleanup_(announced_freep) struct announced *a = make();

                assert_true(announce(a, SOURCE, 7, cases[i].seconds, 10) > 0);
                assert_int_equal(stats_of(a).open, 1);
                use(a, 7, 10 + cases[i].used);
                assert_int_equal(stats_of(a).came_true, cases[i].outcome == TRUE);
                assert_int_equal(stats_of(a).early, cases[i].outcome == EARLY);
                assert_int_equal(stats_of(a).late, cases[i].outcome == LATE);
                assert_int_equal(stats_of(a).open, 0);
        }
}

static void an_unused_item_ends_its_announcement_as_late(void **state)
{
        _cleanup_(announced_freep) struct announced *a = make();

        announce(a, SOURCE, 7, 10, 0);
        expire_all(a, 22);
        assert_int_equal(stats_of(a).late, 0);
        expire_all(a, 23);
        assert_int_equal(stats_of(a).late, 1);
        assert_true(announced_is_empty(a));
}

static void reasons_of_stops_have_windows_of_their_own(void **state)
{
        _cleanup_(announced_freep) struct announced *a = make();

        announced_make(a, SOURCE, 1, ANNOUNCED_TOOL_CALL, 0, 0);
        announced_make(a, SOURCE, 2, ANNOUNCED_TOOL_CALL, 0, 0);
        announced_make(a, SOURCE, 3, ANNOUNCED_TURN_END, 0, 0);
        announced_make(a, SOURCE, 4, ANNOUNCED_TURN_END, 0, 0);
        use(a, 1, 119);
        use(a, 2, 121);
        use(a, 3, 5);
        assert_int_equal(stats_of(a).came_true, 1);
        assert_int_equal(stats_of(a).late, 1);
        assert_int_equal(stats_of(a).early, 1);
        expire_all(a, 61); /* a session need not return after its turn */
        assert_int_equal(stats_of(a).came_true, 2);
}

static void a_source_that_announces_a_second_for_everything_is_disbelieved(void **state)
{
        _cleanup_(announced_freep) struct announced *a = make();
        unsigned believed = 0;

        for (uint64_t i = 0; i < 1000; i++) {
                believed += announce(a, SOURCE, i + 1, 1, i) > 0;
                use(a, i + 1 - MIN(i, UINT64_C(17)), i);
                expire_all(a, i);
        }
        assert_true(believed <= ANNOUNCED_AT_FIRST);
        assert_true(announced_belief(a, SOURCE) < ANNOUNCED_LEAST_BELIEF);
        /* Announcements of others are believed as before. */
        assert_true(announce(a, OTHER, 5000, 60, 1000) >= ANNOUNCED_LEAST_BELIEF);
        /* A source is believed again once its announcements come true. */
        for (uint64_t i = 0; i < 200; i++) {
                announce(a, SOURCE, 10000 + i, 10, 2000 + 20 * i);
                use(a, 10000 + i, 2010 + 20 * i);
        }
        assert_true(announced_belief(a, SOURCE) > 0.9F);
}

static void returns_are_expected_as_much_later_as_they_were(void **state)
{
        _cleanup_(announced_freep) struct announced *a = make();

        assert_int_equal(announced_seconds(a, SOURCE, 60), 60);
        for (uint64_t i = 0; i < 100; i++) {
                announce(a, SOURCE, i + 1, 1, 10 * i);
                announce(a, OTHER, i + 1001, 8, 10 * i);
                use(a, i + 1, 10 * i + 3); /* within the window of a second */
                announced_use(a, OTHER, i + 1001, (10 * i + 6) * SECOND);
        }
        assert_in_range(announced_seconds(a, SOURCE, 100), 270, 300);
        assert_int_equal(announced_seconds(a, SOURCE, UINT32_MAX), UINT32_MAX);
        /* Earlier returns make later ones not expected sooner, and sources are independent. */
        assert_int_equal(announced_seconds(a, OTHER, 60), 60);
        /* Returns that were announced correctly bring the expected time back. */
        for (uint64_t i = 0; i < 400; i++) {
                announce(a, SOURCE, i + 1, 10, 2000 + 20 * i);
                use(a, i + 1, 2010 + 20 * i);
        }
        assert_in_range(announced_seconds(a, SOURCE, 100), 100, 101);
        /* A single one that is very late changes little. */
        announce(a, SOURCE, 9, 1, 20000);
        use(a, 9, 30000);
        assert_in_range(announced_seconds(a, SOURCE, 100), 102, 108);
}

static void the_mean_part_by_which_items_are_used_too_early_is_known(void **state)
{
        _cleanup_(announced_freep) struct announced *a = make();

        assert_true(fabsf(announced_early(a, SOURCE) - ANNOUNCED_EARLY) < 1e-6F);
        for (uint64_t i = 0; i < 300; i++) {
                announce(a, SOURCE, i + 1, 10, 20 * i);
                use(a, i + 1, 20 * i + (i % 2 == 0 ? 8 : 14)); /* every second one is late */
                announce(a, OTHER, i + 1001, 10, 20 * i);
                announced_use(a, OTHER, i + 1001, (20 * i + 10) * SECOND);
        }
        assert_true(fabsf(announced_early(a, SOURCE) - 0.1F) < 0.01F);
        assert_true(announced_early(a, OTHER) < 0.005F);
}

static void a_new_source_is_believed_for_a_few_at_a_time(void **state)
{
        _cleanup_(announced_freep) struct announced *a = make();

        for (uint64_t i = 1; i <= ANNOUNCED_AT_FIRST; i++)
                assert_true(announce(a, SOURCE, i, 10, 0) > 0);
        assert_true(announce(a, SOURCE, 500, 10, 0) <= 0);
        assert_int_equal(stats_of(a).unmeasured, 1);
        for (uint64_t i = 1; i <= ANNOUNCED_AT_FIRST; i++)
                use(a, i, 10);
        for (uint64_t i = 1; i <= 10 * ANNOUNCED_AT_FIRST; i++)
                assert_true(announce(a, SOURCE, i, 10, 20) > 0.5F);
}

/* A source that is always right, and announces more than it may, leaves room for others. */
static void no_source_fills_the_table(void **state)
{
        _cleanup_(announced_freep) struct announced *a = make();

        for (uint64_t i = 1; i <= ANNOUNCED_AT_FIRST; i++) {
                announce(a, SOURCE, i, 10, 0);
                use(a, i, 10);
        }
        for (uint64_t i = 1; i <= 2 * ANNOUNCED_OPEN; i++)
                announce(a, SOURCE, i, 100000, 20);
        assert_int_equal(stats_of(a).open, ANNOUNCED_OF_SOURCE);
        assert_true(announce(a, OTHER, 1 << 20, 10, 20) > 0);
}

static void more_sources_than_records_share_the_last(void **state)
{
        _cleanup_(announced_freep) struct announced *a = make();

        for (uint32_t i = 0; i < 3 * ANNOUNCED_SOURCES; i++)
                announce(a, i, i + 1, 100, 0);
        assert_true(stats_of(a).open >= ANNOUNCED_SOURCES);
        for (uint32_t i = 0; i < 3 * ANNOUNCED_SOURCES; i++)
                use(a, i + 1, 100);
        assert_int_equal(stats_of(a).open, 0);
        /* Records without open announcements are given to new sources. */
        assert_true(announce(a, 99999, 1, 100, 200) > 0);
        assert_true(announced_belief(a, 99999) > 0.49F && announced_belief(a, 99999) < 0.51F);
        assert_int_equal(stats_of(a).made, 3 * ANNOUNCED_SOURCES + 1); /* a counter never falls */
}

static void an_announcement_that_is_replaced_has_no_outcome(void **state)
{
        _cleanup_(announced_freep) struct announced *a = make();
        int64_t left;

        announce(a, SOURCE, 7, 10, 0);
        announce(a, SOURCE, 7, 100, 5);
        assert_int_equal(stats_of(a).open, 1);
        assert_true(announced_find(a, SOURCE, 7, 6 * SECOND, &left));
        assert_int_equal(left, 99 * (int64_t)SECOND);
        assert_false(announced_find(a, SOURCE, 8, 6 * SECOND, &left));
        use(a, 7, 105);
        assert_int_equal(stats_of(a).came_true, 1);
        assert_int_equal(stats_of(a).late + stats_of(a).early, 0);
}

/* Chunks may be read from disk ahead of the announced time, so a source must not announce the same
 * return again and again without an outcome. */
static void an_announcement_that_is_replaced_after_half_of_its_time_is_late(void **state)
{
        enum { CHAINS = 16, ROUNDS = 10 };
        _cleanup_(announced_freep) struct announced *a = make();

        for (uint32_t id = 1; id <= CHAINS; id++)
                announce(a, SOURCE, id, 100, 0);
        for (uint32_t round = 0; round < ROUNDS; round++)
                for (uint32_t id = 1; id <= CHAINS; id++)
                        announce(a, SOURCE, id, 100, 90 * (round + 1));
        assert_int_equal(stats_of(a).late, CHAINS * ROUNDS);
        assert_int_equal(stats_of(a).open, CHAINS);
        assert_true(announced_belief(a, SOURCE) < 0.1F);
}

static void a_return_that_is_cancelled_ends_as_if_it_was_replaced(void **state)
{
        _cleanup_(announced_freep) struct announced *a = make();

        announced_cancel(a, SOURCE, 7, 0);
        announce(a, SOURCE, 7, 100, 0);
        announced_cancel(a, OTHER, 7, 10 * SECOND);
        announced_cancel(a, SOURCE, 8, 10 * SECOND);
        assert_int_equal(stats_of(a).open, 1);
        announced_cancel(a, SOURCE, 7, 10 * SECOND);
        assert_int_equal(stats_of(a).open, 0);
        assert_int_equal(stats_of(a).late, 0);
        announce(a, SOURCE, 7, 100, 0);
        announced_cancel(a, SOURCE, 7, 60 * SECOND);
        assert_int_equal(stats_of(a).late, 1);
        /* A TURN_END still comes true. */
        announced_make(a, SOURCE, 7, ANNOUNCED_TURN_END, 0, 0);
        announced_cancel(a, SOURCE, 7, SECOND);
        assert_int_equal(stats_of(a).open, 1);
}

static void parts_of_a_chain_share_its_promise(void **state)
{
        const struct evict_promise promise = { .number = 7, .seconds = 60, .belief = 0.75F };
        _cleanup_(announced_freep) struct announced *a = make();
        struct evict_promise shared = { 0 };

        assert_false(announced_take_part(a, SOURCE, 50, 100 * SECOND, &shared));
        for (unsigned at_s = 98; at_s <= 102; at_s += 4) {
                announced_expect_part(a, SOURCE, 50, 100 * SECOND, &promise);
                assert_false(announced_take_part(a, SOURCE, 51, 100 * SECOND, &shared));
                assert_false(announced_take_part(a, OTHER, 50, 100 * SECOND, &shared));
                assert_false(announced_take_part(a, SOURCE, 50, 103 * SECOND, &shared));
                assert_false(announced_take_part(a, SOURCE, 50, 97 * SECOND, &shared));
                assert_int_equal(shared.number, 0);
                assert_true(announced_take_part(a, SOURCE, 50, at_s * SECOND, &shared));
                assert_memory_equal(&shared, &promise, sizeof(shared));
                assert_false(announced_take_part(a, SOURCE, 50, at_s * SECOND, &shared));
                shared.number = 0;
        }
        assert_int_equal(stats_of(a).made, 0); /* nothing more is measured */
}

static void no_source_ends_or_spoils_announcements_of_another(void **state)
{
        enum { CHAINS = 16, ROUNDS = 20 };
        _cleanup_(announced_freep) struct announced *a = make();
        int64_t left;

        for (uint64_t at = 0; at < ROUNDS * 200; at += 200) {
                for (uint64_t id = 1; id <= CHAINS; id++)
                        assert_true(announce(a, SOURCE, id, 100, at) >= 0.5F);
                for (uint64_t id = 1; id <= CHAINS; id++) {
                        announced_use(a, OTHER, id, (at + 1) * SECOND);
                        announce(a, OTHER, id, 1000, at + 60);
                        assert_true(announced_find(a, SOURCE, id, (at + 60) * SECOND, &left));
                        assert_int_equal(left, 40 * (int64_t)SECOND);
                        use(a, id, at + 100);
                        assert_false(announced_find(a, SOURCE, id, (at + 100) * SECOND, &left));
                }
        }
        assert_int_equal(stats_of(a).came_true, CHAINS * ROUNDS);
        assert_true(announced_belief(a, SOURCE) > 0.9F);
}

static void a_later_return_is_not_applied_if_another_source_expects_it_sooner(void **state)
{
        _cleanup_(announced_freep) struct announced *a = make();

        assert_true(announce(a, SOURCE, 7, 10, 0) > 0);
        assert_true(announce(a, OTHER, 7, 3600, 0) <= 0);
        assert_true(announce(a, OTHER, 7, 5, 0) > 0);
        assert_true(announce(a, OTHER, 8, 3600, 0) > 0);
        announced_make(a, SOURCE, 10, ANNOUNCED_TURN_END, 0, 0);
        assert_true(announce(a, OTHER, 10, 3600, 0) > 0);
        /* A source that is not believed keeps no other from being believed. */
        for (uint64_t id = 100; id < 116; id++) {
                announce(a, SOURCE, id, 3600, 0);
                use(a, id, 1);
        }
        announce(a, SOURCE, 9, 1, 20);
        assert_true(announce(a, OTHER, 9, 3600, 20) > 0);
}

static void a_use_by_another_source_makes_an_announcement_come_true(void **state)
{
        _cleanup_(announced_freep) struct announced *a = make();

        announce(a, SOURCE, 7, 100, 0);
        announced_use(a, OTHER, 7, 100 * SECOND);
        assert_int_equal(stats_of(a).came_true, 1);
        assert_true(announced_is_empty(a));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_use_within_half_and_twice_the_time_comes_true),
                cmocka_unit_test(an_unused_item_ends_its_announcement_as_late),
                cmocka_unit_test(reasons_of_stops_have_windows_of_their_own),
                cmocka_unit_test(a_source_that_announces_a_second_for_everything_is_disbelieved),
                cmocka_unit_test(returns_are_expected_as_much_later_as_they_were),
                cmocka_unit_test(the_mean_part_by_which_items_are_used_too_early_is_known),
                cmocka_unit_test(a_new_source_is_believed_for_a_few_at_a_time),
                cmocka_unit_test(no_source_fills_the_table),
                cmocka_unit_test(more_sources_than_records_share_the_last),
                cmocka_unit_test(parts_of_a_chain_share_its_promise),
                cmocka_unit_test(no_source_ends_or_spoils_announcements_of_another),
                cmocka_unit_test(a_later_return_is_not_applied_if_another_source_expects_it_sooner),
                cmocka_unit_test(a_use_by_another_source_makes_an_announcement_come_true),
                cmocka_unit_test(an_announcement_that_is_replaced_has_no_outcome),
                cmocka_unit_test(an_announcement_that_is_replaced_after_half_of_its_time_is_late),
                cmocka_unit_test(a_return_that_is_cancelled_ends_as_if_it_was_replaced),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

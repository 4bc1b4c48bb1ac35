/* SPDX-License-Identifier: Apache-2.0 */
/* The policy cq with announced returns: which chain goes first, and that no item is lost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "checked.h"
#include "cleanup.h"
#include "evict/evict.h"
#include "evict/policy.h"

DEFINE_CLEANUP(struct evict *, evict_free);

#define SECOND UINT64_C(1000000000)

enum { MOST_PROMISES = 4096 };

static struct evict *make(uint32_t items)
{
        struct evict *e = NULL;

        assert_int_equal(evict_new(&e, "cq", items, 2), 0);
        evict_note_time(e, SECOND);
        return e;
}

static void at_second(struct evict *e, uint64_t seconds)
{
        evict_note_time(e, SECOND * (1 + seconds));
}

/* Inserts a chain of items from `first` on, linked from its root. */
static void insert_chain(struct evict *e, uint32_t first, uint32_t n)
{
        for (uint32_t i = 0; i < n; i++) {
                evict_insert_known(e, first + i, 0, 1, first + i + 1, first + 1,
                                   EVICT_PLACE_UNKNOWN);
                if (i > 0)
                        evict_link(e, first + i, first + i - 1);
        }
        for (uint32_t i = n; i-- > 0;)
                evict_touch(e, first + i, 0, first + 1);
}

static void promise_believed(struct evict *e, uint32_t first, uint32_t n, uint32_t seconds,
                             float belief)
{
        static uint64_t number;
        const struct evict_promise promise = { .number = ++number,
                                               .seconds = seconds,
                                               .belief = belief };

        for (uint32_t i = n; i-- > 0;)
                evict_promise(e, first + i, &promise);
}

static void promise(struct evict *e, uint32_t first, uint32_t n, uint32_t seconds)
{
        promise_believed(e, first, n, seconds, 1);
}

static uint32_t evict_one(struct evict *e)
{
        uint32_t item = evict_victim(e, 0, NULL, NULL, UINT32_MAX);

        if (item != EVICT_NONE)
                evict_remove_victim(e, item, item + 1);
        return item;
}

static void the_chain_that_returns_latest_goes_first_from_its_end(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(16);

        insert_chain(e, 0, 3);
        insert_chain(e, 3, 3);
        insert_chain(e, 6, 3);
        promise(e, 0, 3, 30);
        promise(e, 3, 3, 3000);
        promise(e, 6, 3, 300);
        for (uint32_t i = 0; i < 3; i++)
                assert_int_equal(evict_one(e), 5 - i);
        for (uint32_t i = 0; i < 3; i++)
                assert_int_equal(evict_one(e), 8 - i);
        for (uint32_t i = 0; i < 3; i++)
                assert_int_equal(evict_one(e), 2 - i);
        assert_int_equal(evict_one(e), EVICT_NONE);
}

/* A chain that is longer than a message is announced in parts, some time apart. */
static void parts_of_a_chain_are_due_at_once(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(8);

        insert_chain(e, 0, 4);
        insert_chain(e, 4, 2);
        promise(e, 2, 2, 60);
        evict_note_time(e, SECOND + SECOND / 100);
        promise(e, 0, 2, 60);
        promise(e, 4, 2, 58);
        for (uint32_t i = 4; i-- > 0;)
                assert_int_equal(evict_one(e), i);
        assert_int_equal(evict_one(e), 5);
}

static void the_announcement_counts_from_its_own_time(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(4);

        insert_chain(e, 0, 1);
        promise(e, 0, 1, 100); /* due at 100 */
        at_second(e, 90);
        insert_chain(e, 1, 1);
        promise(e, 1, 1, 60); /* due at 150 */
        assert_int_equal(evict_one(e), 1);
}

static void a_long_overdue_chain_goes_before_one_due_soon(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(4);

        insert_chain(e, 0, 1);
        promise(e, 0, 1, 5);
        at_second(e, 500);
        insert_chain(e, 1, 1);
        promise(e, 1, 1, 60);
        assert_int_equal(evict_one(e), 0);
}

/* Nine of ten of the announcements come true, and this one is among the others. */
static void a_chain_goes_first_once_its_window_has_passed(void **state)
{
        for (unsigned passed = 0; passed < 2; passed++) {
                _cleanup_(evict_freep) struct evict *e = make(4);

                insert_chain(e, 0, 1);
                promise_believed(e, 0, 1, 5, 0.9F); /* until 12 */
                at_second(e, passed ? 13 : 11);
                insert_chain(e, 1, 1);
                promise_believed(e, 1, 1, 40, 0.9F);
                assert_int_equal(evict_one(e), passed ? 0 : 1);
        }
}

/* A read ahead of a return may replace such a chain, too. */
static void a_chain_makes_room_for_a_read_once_its_window_has_passed(void **state)
{
        const struct evict_promise read = { .number = 1000000, .seconds = 25, .belief = 0.9F };

        for (unsigned passed = 0; passed < 2; passed++) {
                _cleanup_(evict_freep) struct evict *e = make(4);

                insert_chain(e, 0, 1);
                promise_believed(e, 0, 1, 5, 0.9F); /* until 12 */
                at_second(e, passed ? 13 : 11);
                assert_int_equal(evict_is_worth_less(e, 0, &read), passed);
        }
}

static void a_weaker_belief_makes_a_promise_worth_less(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(4);

        insert_chain(e, 0, 1);
        insert_chain(e, 1, 1);
        promise_believed(e, 0, 1, 100, 0.5F);
        promise_believed(e, 1, 1, 120, 1);
        assert_int_equal(evict_one(e), 0);
}

static void a_use_ends_a_promise(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(4);
        struct evict_standing s;

        insert_chain(e, 0, 2);
        promise(e, 0, 2, 5000);
        evict_explain(e, 1, 0, &s);
        assert_int_equal(s.class, EVICT_CLASS_RETURNS_MUCH_LATER);
        evict_touch(e, 1, 0, 99);
        evict_touch(e, 0, 0, 99);
        evict_explain(e, 1, 0, &s);
        assert_int_equal(s.class, EVICT_CLASS_TWICE);
}

/* Another chain that continues the same beginning keeps it, whatever is announced for the first. */
static void a_shared_beginning_stays_for_the_chain_that_returns_sooner(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(8);

        insert_chain(e, 0, 3); /* 0, 1, 2 */
        evict_insert_known(e, 3, 0, 1, 4, 50, EVICT_PLACE_UNKNOWN);
        evict_link(e, 3, 0); /* 0, 3 */
        evict_touch(e, 3, 0, 50);
        evict_touch(e, 0, 0, 50);
        promise(e, 3, 1, 10);
        promise(e, 0, 3, 10000);
        assert_int_equal(evict_one(e), 2);
        assert_int_equal(evict_one(e), 1);
        assert_int_equal(evict_one(e), 3);
        assert_int_equal(evict_one(e), 0);
}

static bool is_not_2(void *userdata, uint32_t item)
{
        (void)userdata;
        return item != 2;
}

static void an_end_in_use_protects_itself_only(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(8);

        insert_chain(e, 0, 3);
        insert_chain(e, 3, 1);
        promise(e, 0, 3, 10000);
        promise(e, 3, 1, 10);
        assert_int_equal(evict_victim(e, 0, is_not_2, NULL, 8), 3);
}

/* Returns whether a new item gives way if its chain is expected like this. The cache is full of
 * chains that return soon. */
static bool gives_way(const struct evict_promise *expected)
{
        _cleanup_(evict_freep) struct evict *e = make(8);
        uint32_t item;

        for (uint32_t i = 0; i < 8; i++) {
                insert_chain(e, i, 1);
                promise(e, i, 1, 10 + i);
        }
        item = evict_one(e);
        assert_int_not_equal(item, EVICT_NONE);
        evict_expect(e, 77, expected);
        evict_insert_known(e, item, 0, 1, 100, 77, EVICT_PLACE_UNKNOWN);
        return evict_gives_way(e, item);
}

static void a_new_chain_gives_way_if_it_returns_later_than_the_others(void **state)
{
        assert_true(gives_way(&(struct evict_promise){ .number = 1, .seconds = 600, .belief = 1 }));
        assert_true(gives_way(&(struct evict_promise){ .number = 1, .seconds = 0, .belief = 1 }));
        assert_false(gives_way(&(struct evict_promise){ .number = 1, .seconds = 5, .belief = 1 }));
        assert_false(gives_way(NULL));
}

static void an_item_may_be_named_twice_by_one_announcement(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(4);
        const struct evict_promise twice = { .number = 1000000, .seconds = 60, .belief = 1 };

        insert_chain(e, 0, 1);
        insert_chain(e, 1, 1);
        evict_promise(e, 0, &twice);
        evict_promise(e, 0, &twice);
        promise(e, 1, 1, 30);
        assert_int_equal(evict_one(e), 0);
        assert_int_equal(evict_one(e), 1);
        assert_int_equal(evict_one(e), EVICT_NONE);
}

static void beyond_their_number_promises_count_by_class(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(MOST_PROMISES + 2);
        struct evict_standing s;

        for (uint32_t i = 0; i < MOST_PROMISES + 2; i++) {
                insert_chain(e, i, 1);
                promise(e, i, 1, 1000 + i);
        }
        evict_explain(e, MOST_PROMISES + 1, 0, &s);
        assert_int_equal(s.class, EVICT_CLASS_RETURNS_MUCH_LATER);
        /* A use makes room for another promise. */
        evict_touch(e, 0, 0, 5);
        promise(e, MOST_PROMISES + 1, 1, 1000000);
        for (uint32_t i = 0; i < MOST_PROMISES + 2; i++)
                assert_int_not_equal(evict_one(e), EVICT_NONE);
        assert_int_equal(evict_one(e), EVICT_NONE);
}

static void without_a_time_a_promise_is_a_hint(void **state)
{
        _cleanup_(evict_freep) struct evict *e = NULL;
        struct evict_standing s;

        assert_int_equal(evict_new(&e, "cq", 4, 1), 0);
        insert_chain(e, 0, 1);
        promise(e, 0, 1, 30);
        evict_explain(e, 0, 0, &s);
        assert_int_equal(s.class, EVICT_CLASS_RETURNS_SOON);
        evict_free(e);
        assert_int_equal(evict_new(&e, "lru", 4, 1), 0);
        insert_chain(e, 0, 1);
        promise(e, 0, 1, 30);
        assert_int_equal(evict_one(e), 0);
}

struct seen {
        uint32_t items[8], n;
};

static void see(void *userdata, uint32_t item)
{
        struct seen *seen = userdata;

        assert_true(seen->n < ARRAY_SIZE(seen->items));
        seen->items[seen->n++] = item;
}

static void the_next_to_leave_include_promised_items(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(8);
        struct seen seen = { .n = 0 };

        insert_chain(e, 0, 2);
        insert_chain(e, 2, 2);
        promise(e, 0, 2, 100);
        promise(e, 2, 2, 200);
        evict_next(e, 0, 8, see, &seen);
        assert_int_equal(seen.n, 4);
        assert_int_equal(seen.items[0], 3);
}

/* Items without a promise are older, or younger, than promised ones that are needed earlier, or
 * later. */
static void the_next_to_leave_are_the_next_victims(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(8);
        struct seen seen = { .n = 0 };

        insert_chain(e, 0, 2);
        at_second(e, 100);
        insert_chain(e, 2, 2);
        insert_chain(e, 4, 2);
        at_second(e, 110);
        insert_chain(e, 6, 2);
        promise(e, 2, 2, 4);
        promise(e, 4, 2, 3600);
        evict_next(e, 0, 8, see, &seen);
        assert_int_equal(seen.n, 8);
        for (uint32_t i = 0; i < seen.n; i++)
                assert_int_equal(seen.items[i], evict_one(e));
        assert_int_equal(seen.items[0], 5);
}

static void count(void *userdata, uint32_t item)
{
        ++*(uint32_t *)userdata;
}

static unsigned visits_begun, visited;

static struct evict_promised begin_counted(const struct evict *e, uint32_t group)
{
        visits_begun++;
        return evict_policy_cq.promised(e, group);
}

static uint32_t next_counted(const struct evict *e, struct evict_promised *left, double *ret_worth)
{
        uint32_t before = left->to - left->from, item;

        item = evict_policy_cq.next_promised(e, left, ret_worth);
        assert_int_equal(left->to - left->from, before - 1);
        visited++;
        return item;
}

/* Each promise has one item. A report of all of them visits each promise once. */
static void the_visit_of_many_promises_does_not_begin_again_for_each(void **state)
{
        enum { PROMISES = 2048 };
        _cleanup_(evict_freep) struct evict *e = make(PROMISES);
        struct evict_policy counted = *e->policy;
        uint32_t seen = 0;

        counted.promised = begin_counted;
        counted.next_promised = next_counted;
        for (uint32_t i = 0; i < PROMISES; i++) {
                insert_chain(e, i, 1);
                promise(e, i, 1, 60 + i);
        }
        e->policy = &counted;
        evict_next(e, 0, PROMISES, count, &seen);
        e->policy = &evict_policy_cq;
        assert_int_equal(seen, PROMISES);
        assert_int_equal(visits_begun, 1);
        assert_int_equal(visited, PROMISES);
}

static void an_explanation_names_the_promised_chain_that_goes_next(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(8);
        struct evict_standing late, soon, root;

        insert_chain(e, 0, 2);
        insert_chain(e, 2, 2);
        insert_chain(e, 4, 2);
        promise(e, 0, 2, 3600);
        promise(e, 2, 2, 60);
        evict_explain(e, 1, 0, &late);
        evict_explain(e, 0, 0, &root);
        evict_explain(e, 3, 0, &soon);
        assert_true(late.is_next && !soon.is_next && !root.is_next);
        assert_true(late.density > 0 && late.density == root.density);
        assert_true(soon.density > 50 * late.density);
        assert_true(late.least_density == late.density && soon.least_density == late.density);
        assert_int_equal(evict_one(e), 1);
        assert_true(evict_hint(e, 5, EVICT_HINT_FINAL));
        evict_explain(e, 0, 0, &late);
        assert_false(late.is_next);
        evict_explain(e, 5, 0, &late);
        assert_true(late.is_next);
        assert_int_equal(evict_one(e), 5);
}

/* A promise may make its items the next victims, which no report has listed yet. */
static void a_promise_makes_a_report_due_once_items_were_evicted(void **state)
{
        enum { ITEMS = 64 };
        _cleanup_(evict_freep) struct evict *e = make(ITEMS);
        struct seen seen = { .n = 0 };

        for (uint32_t i = 0; i < ITEMS; i++)
                insert_chain(e, i, 1);
        promise(e, 60, 1, 3600);
        assert_false(evict_reports_are_due(e));
        evict_note_leaving(e, 0);
        evict_report_leaving(e, 0, 32, see, &seen);
        assert_false(evict_reports_are_due(e));
        promise(e, 61, 1, 7200);
        assert_true(evict_reports_are_due(e));
        seen.n = 0;
        evict_report_leaving(e, 0, 32, see, &seen);
        assert_int_equal(seen.items[0], 61);
        assert_false(evict_reports_are_due(e));
        for (uint32_t i = 0; i < 3; i++) {
                assert_false(evict_reports_are_due(e));
                evict_note_leaving(e, 0);
        }
        assert_true(evict_reports_are_due(e)); /* after every third eviction, of 32 items */
}

static void a_touch_of_the_same_use_or_a_cost_keeps_the_promise(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(4);

        insert_chain(e, 0, 1);
        insert_chain(e, 1, 1);
        promise(e, 0, 1, 3600);
        promise(e, 1, 1, 10);
        evict_touch(e, 0, 0, 1); /* the use that inserted it */
        evict_set_cost(e, 0, 1);
        evict_set_cost(e, 1, 1);
        assert_int_equal(evict_one(e), 0);
        assert_int_equal(evict_one(e), 1);
}

static void a_spared_item_is_not_met_again_first(void **state)
{
        enum { ITEMS = 64 };
        _cleanup_(evict_freep) struct evict *e = make(ITEMS);
        bool is_spared[ITEMS] = { 0 };

        for (uint32_t i = 0; i < ITEMS; i++) {
                insert_chain(e, i, 1);
                if (i % 2 == 0)
                        promise(e, i, 1, 60);
                else
                        (void)evict_hint(e, i, EVICT_HINT_SOON);
        }
        for (uint32_t i = 0; i < ITEMS; i++) {
                uint32_t item = evict_victim(e, 0, NULL, NULL, 0);

                assert_true(item != EVICT_NONE && !is_spared[item]);
                is_spared[item] = true;
                evict_spare(e, item, 0);
        }
}

static void a_promise_leaves_a_demoted_item_demoted(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(4);

        insert_chain(e, 0, 1);
        insert_chain(e, 1, 1);
        assert_true(evict_demote(e, 1, 0));
        promise(e, 0, 1, 3600);
        promise(e, 1, 1, 10);
        assert_true(evict_gives_way(e, 1));
        assert_int_equal(evict_victim(e, 0, NULL, NULL, UINT32_MAX), 1);
        assert_true(evict_promote(e, 1, 0)); /* a late one then goes before one due soon */
        promise(e, 1, 1, 10);
        assert_int_equal(evict_one(e), 0);
        insert_chain(e, 2, 1);
        promise(e, 2, 1, 3600);
        assert_true(evict_demote(e, 1, 0)); /* the item leaves its promise */
        assert_int_equal(evict_one(e), 1);
        assert_int_equal(evict_one(e), 2);
}

/* Draws operations in any order, and checks that each item is in exactly one list: that all of them
 * come out. */
static void no_order_of_operations_loses_an_item(void **state)
{
        enum { ITEMS = 300, STEPS = 20000 };
        static bool is_in[ITEMS];
        static uint8_t group[ITEMS];

        for (uint32_t seed = 1; seed <= 6; seed++) {
                _cleanup_(evict_freep) struct evict *e = make(ITEMS);
                uint32_t draw = seed, n = 0, out = 0, victim;
                uint64_t number = 0;

                memset(is_in, 0, sizeof(is_in));
                for (uint32_t step = 0; step < STEPS; step++) {
                        uint32_t what, item, other;

                        draw = draw * 1664525 + 1013904223;
                        what = draw >> 8 & 15;
                        item = (draw >> 12) % ITEMS;
                        other = (draw >> 20) % ITEMS;
                        if (step % 16 == 0)
                                at_second(e, step / 4);
                        if (!is_in[item]) {
                                group[item] = what & 1;
                                evict_insert_known(e, item, group[item], 1, item + 1, step,
                                                   EVICT_PLACE_UNKNOWN);
                                is_in[item] = true;
                                continue;
                        }
                        switch (what) {
                        case 0:
                        case 1:
                                evict_touch(e, item, group[item], step);
                                break;
                        case 2:
                                if (is_in[other])
                                        evict_link(e, item, other);
                                break;
                        case 3:
                                evict_retain(e, item, group[item], !evict_is_retained(e, item));
                                break;
                        case 4:
                                evict_set_aside(e, item, draw & 1);
                                break;
                        case 5:
                                evict_bring_back(e, item, group[item]);
                                break;
                        case 6:
                                evict_remove(e, item);
                                is_in[item] = false;
                                break;
                        case 7:
                                (void)evict_hint(e, item, EVICT_HINT_FINAL);
                                break;
                        case 8:
                                evict_set_cost(e, item, draw & 7);
                                break;
                        case 9:
                                victim = evict_victim(e, other & 1, NULL, NULL, 64);
                                if (victim != EVICT_NONE) {
                                        assert_true(is_in[victim] && group[victim] == (other & 1));
                                        evict_remove_victim(e, victim, victim + 1);
                                        is_in[victim] = false;
                                }
                                break;
                        case 10:
                                if (!evict_demote(e, item, group[item]))
                                        (void)evict_promote(e, item, group[item]);
                                break;
                        case 11:
                                (void)evict_hint(e, item, EVICT_HINT_SOON + (draw & 1));
                                evict_retain(e, item, group[item], true);
                                evict_retain(e, item, group[item], false);
                                break;
                        case 12:
                                evict_spare(e, item, group[item]);
                                break;
                        default:
                                number += draw >> 30 & 1;
                                evict_promise(e, item,
                                              &(struct evict_promise){ .number = number + 1,
                                                                       .seconds = other,
                                                                       .belief = 0.75F });
                                break;
                        }
                }
                if (seed % 2 == 0)
                        assert_int_equal(evict_switch(&e, "lru"), 1);
                if (seed % 4 == 0)
                        assert_int_equal(evict_switch(&e, "cq"), 1);
                for (uint32_t i = 0; i < ITEMS; i++) {
                        n += is_in[i];
                        if (!is_in[i])
                                continue;
                        evict_bring_back(e, i, group[i]);
                        if (evict_is_retained(e, i))
                                evict_retain(e, i, group[i], false);
                }
                for (uint32_t g = 0; g < 2; g++)
                        while ((victim = evict_victim(e, g, NULL, NULL, UINT32_MAX)) !=
                               EVICT_NONE) {
                                assert_true(is_in[victim]);
                                is_in[victim] = false;
                                evict_remove(e, victim);
                                out++;
                        }
                assert_int_equal(out, n);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(the_chain_that_returns_latest_goes_first_from_its_end),
                cmocka_unit_test(parts_of_a_chain_are_due_at_once),
                cmocka_unit_test(the_announcement_counts_from_its_own_time),
                cmocka_unit_test(a_long_overdue_chain_goes_before_one_due_soon),
                cmocka_unit_test(a_chain_goes_first_once_its_window_has_passed),
                cmocka_unit_test(a_chain_makes_room_for_a_read_once_its_window_has_passed),
                cmocka_unit_test(a_weaker_belief_makes_a_promise_worth_less),
                cmocka_unit_test(a_use_ends_a_promise),
                cmocka_unit_test(a_shared_beginning_stays_for_the_chain_that_returns_sooner),
                cmocka_unit_test(an_end_in_use_protects_itself_only),
                cmocka_unit_test(a_new_chain_gives_way_if_it_returns_later_than_the_others),
                cmocka_unit_test(an_item_may_be_named_twice_by_one_announcement),
                cmocka_unit_test(beyond_their_number_promises_count_by_class),
                cmocka_unit_test(without_a_time_a_promise_is_a_hint),
                cmocka_unit_test(the_next_to_leave_include_promised_items),
                cmocka_unit_test(the_next_to_leave_are_the_next_victims),
                cmocka_unit_test(the_visit_of_many_promises_does_not_begin_again_for_each),
                cmocka_unit_test(an_explanation_names_the_promised_chain_that_goes_next),
                cmocka_unit_test(a_promise_makes_a_report_due_once_items_were_evicted),
                cmocka_unit_test(a_touch_of_the_same_use_or_a_cost_keeps_the_promise),
                cmocka_unit_test(a_spared_item_is_not_met_again_first),
                cmocka_unit_test(a_promise_leaves_a_demoted_item_demoted),
                cmocka_unit_test(no_order_of_operations_loses_an_item),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

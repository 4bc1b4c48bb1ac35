/* SPDX-License-Identifier: Apache-2.0 */
/* Under every policy, a demoted item is the next victim of its group until it is used again,
 * promoted, retained or removed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cleanup.h"
#include "evict/evict.h"

enum { ITEMS = 64, GROUPS = 2 };

DEFINE_CLEANUP(struct evict *, evict_free);

static const char *const policies[] = { "lru", "cq" };

static struct evict *make(const char *policy)
{
        struct evict *e = NULL;

        assert_int_equal(evict_new(&e, policy, ITEMS, GROUPS), 0);
        for (uint32_t i = 0; i < ITEMS; i++)
                evict_insert_known(e, i, i % GROUPS, 4096, i + 1, EVICT_NO_USE,
                                   EVICT_PLACE_UNKNOWN);
        return e;
}

static uint32_t victim(struct evict *e, uint32_t group)
{
        return evict_victim(e, group, NULL, NULL, UINT32_MAX);
}

static struct evict_stats stats_of(const struct evict *e)
{
        struct evict_stats stats;

        evict_get_stats(e, &stats);
        return stats;
}

static void a_demoted_item_is_the_next_victim(const char *policy)
{
        _cleanup_(evict_freep) struct evict *e = make(policy);
        uint64_t touched = evict_touched(e, 40);

        assert_int_equal(victim(e, 0), 0);
        assert_true(evict_demote(e, 40, 0));
        assert_false(evict_demote(e, 40, 0)); /* again, which changes nothing */
        assert_true(evict_is_demoted(e, 40) && !evict_is_demoted(e, 42));
        assert_int_equal(evict_touched(e, 40), touched);
        assert_int_equal(victim(e, 0), 40);
        assert_int_equal(victim(e, 1), 1);
        assert_int_equal(stats_of(e).demoted, 1);
        evict_remove_victim(e, 40, 41);
        assert_int_equal(victim(e, 0), 0);
        assert_int_equal(stats_of(e).demoted, 0);
        assert_int_equal(stats_of(e).demoted_victims, 1);
        assert_int_equal(stats_of(e).yielded, 0);
        /* A new item in the place of a removed one is not demoted. */
        evict_insert(e, 40, 0, 4096);
        assert_false(evict_is_demoted(e, 40));
        assert_int_equal(victim(e, 0), 0);
}

static void a_use_ends_it(const char *policy)
{
        _cleanup_(evict_freep) struct evict *e = make(policy);

        assert_true(evict_demote(e, 40, 0) && evict_demote(e, 42, 0) && evict_demote(e, 41, 1));
        evict_touch(e, 40, 0, 7);
        assert_false(evict_is_demoted(e, 40));
        assert_int_equal(victim(e, 0), 42);
        assert_true(evict_promote(e, 42, 0));
        assert_false(evict_promote(e, 42, 0));
        assert_int_equal(victim(e, 0), 0);
        /* A promoted item is the youngest. */
        for (uint32_t item = 0; item < 42; item += 2)
                evict_remove(e, item);
        for (uint32_t item = 44; item < ITEMS; item += 2)
                evict_remove(e, item);
        assert_int_equal(victim(e, 0), 42);
        evict_remove(e, 41);
        assert_int_equal(evict_demoted(e), 0);
        assert_int_equal(stats_of(e).demoted_victims, 0);
}

static void a_hint_does_not_end_it(const char *policy)
{
        _cleanup_(evict_freep) struct evict *e = make(policy);

        assert_true(evict_demote(e, 40, 0));
        (void)evict_hint(e, 40, EVICT_HINT_SOON);
        assert_true(evict_is_demoted(e, 40));
        assert_int_equal(victim(e, 0), 40);
        (void)evict_hint(e, 40, EVICT_HINT_FINAL);
        assert_int_equal(victim(e, 0), 40);
}

static void retained_and_pinned_items_stay(const char *policy)
{
        _cleanup_(evict_freep) struct evict *e = make(policy);

        evict_retain(e, 40, 0, true);
        evict_set_aside(e, 42, 0);
        assert_false(evict_demote(e, 40, 0) || evict_demote(e, 42, 0));
        assert_int_equal(victim(e, 0), 0);
        assert_true(evict_demote(e, 44, 0));
        evict_retain(e, 44, 0, true);
        assert_int_equal(evict_demoted(e), 0);
        evict_retain(e, 44, 0, false);
        assert_int_equal(victim(e, 0), 0);
        /* An item that is set aside while it is demoted comes back as the next victim. */
        assert_true(evict_demote(e, 46, 0));
        evict_set_aside(e, 46, 1);
        assert_int_equal(victim(e, 0), 0);
        evict_bring_back(e, 46, 0);
        assert_int_equal(victim(e, 0), 46);
        evict_set_aside(e, 46, 1);
        assert_true(evict_promote(e, 46, 0));
        assert_false(evict_is_aside(e, 46));
        assert_int_equal(victim(e, 0), 0);
}

/* The owner decides again under another policy and after a restart. */
static void another_policy_and_a_record_know_nothing_of_it(const char *policy)
{
        _cleanup_(evict_freep) struct evict *e = make(policy);
        struct evict_record record;

        assert_true(evict_demote(e, 40, 0));
        evict_save_item(e, 40, 41, &record);
        assert_int_equal(record.flags, 0);
        assert_int_equal(evict_switch(&e, policy[0] == 'l' ? "cq" : "lru"), 1);
        assert_int_equal(evict_demoted(e), 0);
        assert_true(evict_contains(e, 40));
}

enum { LISTED = 6 };

struct listed {
        uint32_t items[LISTED];
        unsigned n;
};

static void note(void *userdata, uint32_t item)
{
        struct listed *l = userdata;

        assert_in_range(l->n, 0, LISTED - 1);
        l->items[l->n++] = item;
}

/* The list of the next victims has the demoted items first, in the order in which they leave. A
 * shorter list has the first of these. */
static void demoted_items_are_listed_in_their_order(const char *policy)
{
        _cleanup_(evict_freep) struct evict *e = make(policy);
        struct listed all = { 0 }, two = { 0 };

        (void)evict_hint(e, 2, EVICT_HINT_FINAL);
        for (uint32_t item = 40; item < 48; item += 2)
                assert_true(evict_demote(e, item, 0));
        evict_next(e, 0, LISTED, note, &all);
        evict_next(e, 0, 2, note, &two);
        assert_int_equal(all.n, LISTED);
        assert_int_equal(two.n, 2);
        for (unsigned i = 0; i < LISTED; i++) {
                uint32_t next = victim(e, 0);

                if (i < 2)
                        assert_int_equal(two.items[i], next);
                assert_int_equal(all.items[i], next);
                assert_int_equal(i < 4, evict_is_demoted(e, next));
                evict_remove_victim(e, next, next + 1);
        }
}

#define BY_POLICY(name)                                                                            \
        static void test_##name(void **state)                                                      \
        {                                                                                          \
                for (unsigned i = 0; i < sizeof(policies) / sizeof(policies[0]); i++)              \
                        name(policies[i]);                                                         \
        }

BY_POLICY(a_demoted_item_is_the_next_victim)
BY_POLICY(a_use_ends_it)
BY_POLICY(a_hint_does_not_end_it)
BY_POLICY(retained_and_pinned_items_stay)
BY_POLICY(demoted_items_are_listed_in_their_order)
BY_POLICY(another_policy_and_a_record_know_nothing_of_it)

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_a_demoted_item_is_the_next_victim),
                cmocka_unit_test(test_a_use_ends_it),
                cmocka_unit_test(test_a_hint_does_not_end_it),
                cmocka_unit_test(test_retained_and_pinned_items_stay),
                cmocka_unit_test(test_demoted_items_are_listed_in_their_order),
                cmocka_unit_test(test_another_policy_and_a_record_know_nothing_of_it),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Under every policy, neither a retained item nor one that is set aside is a victim, however cold
 * it is; other items are evicted as if it did not exist. */
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

/* Makes items 0 to n - 1, alternately in both groups. */
static struct evict *make(const char *policy, uint32_t n)
{
        struct evict *e = NULL;

        assert_int_equal(evict_new(&e, policy, ITEMS, GROUPS), 0);
        for (uint32_t i = 0; i < n; i++)
                evict_insert_known(e, i, i % GROUPS, 4096, i + 1, EVICT_NO_USE,
                                   EVICT_PLACE_UNKNOWN);
        return e;
}

static uint32_t victim(struct evict *e, uint32_t group)
{
        return evict_victim(e, group, NULL, NULL, UINT32_MAX);
}

/* Evicts all items that may be evicted, and returns their number. */
static uint32_t evict_all(struct evict *e, uint32_t group)
{
        uint32_t n = 0, item;

        for (; (item = victim(e, group)) != EVICT_NONE; n++) {
                assert_false(evict_is_retained(e, item));
                evict_remove_victim(e, item, item + 1);
        }
        return n;
}

static void what_is_retained_is_no_victim(const char *policy)
{
        _cleanup_(evict_freep) struct evict *e = make(policy, ITEMS);

        for (uint32_t i = 0; i < 8; i++)
                evict_retain(e, i, i % GROUPS, true);
        evict_retain(e, 0, 0, true); /* again, which changes nothing */
        /* A retained item is touched like all others, and stays retained. */
        evict_touch(e, 2, 0, EVICT_NO_USE);
        assert_int_equal(evict_all(e, 0), ITEMS / 2 - 4);
        assert_int_equal(evict_all(e, 1), ITEMS / 2 - 4);
        for (uint32_t i = 0; i < 8; i++)
                assert_true(evict_contains(e, i) && evict_is_retained(e, i));
        for (uint32_t i = 8; i < ITEMS; i++)
                assert_false(evict_contains(e, i));

        /* If there is nothing else, the coldest of them is the victim; 0 and 6 were not touched. */
        assert_int_equal(evict_retained_victim(e, 1, NULL, NULL, UINT32_MAX), 1);
        /* An item is a victim again when its retention ends. */
        evict_retain(e, 4, 0, false);
        evict_retain(e, 4, 0, false);
        assert_int_equal(victim(e, 0), 4);
        assert_int_equal(victim(e, 1), EVICT_NONE);
        /* A new item in the place of a removed one is not retained. */
        evict_remove(e, 1);
        evict_insert(e, 1, 1, 4096);
        assert_false(evict_is_retained(e, 1));
        assert_int_equal(victim(e, 1), 1);
}

static void it_stays_retained_under_another_policy(const char *policy)
{
        _cleanup_(evict_freep) struct evict *e = make(policy, ITEMS);

        for (uint32_t i = 0; i < 8; i++)
                evict_retain(e, i, i % GROUPS, true);
        assert_int_equal(evict_switch(&e, policy[0] == 'l' ? "cq" : "lru"), 1);
        assert_int_equal(evict_all(e, 0) + evict_all(e, 1), ITEMS - 8);
        for (uint32_t i = 0; i < 8; i++) {
                assert_true(evict_is_retained(e, i));
                evict_retain(e, i, i % GROUPS, false);
        }
        assert_int_equal(evict_all(e, 0) + evict_all(e, 1), 8);
}

static void a_record_says_so(const char *policy)
{
        _cleanup_(evict_freep) struct evict *e = make(policy, 4);
        struct evict_standing standing;
        struct evict_record record;

        evict_retain(e, 3, 1, true);
        evict_save_item(e, 3, 4, &record);
        assert_int_equal(record.flags, EVICT_RECORD_RETAINED);
        evict_explain(e, 3, 1, &standing);
        assert_true(standing.is_retained && !standing.is_next);
        evict_save_item(e, 2, 3, &record);
        assert_int_equal(record.flags, 0);
        evict_explain(e, 2, 0, &standing);
        assert_false(standing.is_retained);
}

/* --- items that are set aside --- */

static bool count_visits(void *userdata, uint32_t item)
{
        ++*(uint32_t *)userdata;
        return item >= 8;
}

static void a_search_does_not_visit_items_aside(const char *policy)
{
        _cleanup_(evict_freep) struct evict *e = make(policy, ITEMS);
        uint32_t visits = 0;

        assert_int_equal(evict_victim(e, 0, count_visits, &visits, UINT32_MAX), 8);
        assert_int_equal(visits, 5); /* items 0, 2, 4 and 6 are passed over */
        for (uint32_t i = 0; i < 8; i++) {
                evict_set_aside(e, i, i % EVICT_LOTS);
                evict_set_aside(e, i, 0); /* again, which changes nothing */
        }
        visits = 0;
        assert_int_equal(evict_victim(e, 0, count_visits, &visits, UINT32_MAX), 8);
        assert_int_equal(visits, 1);
        assert_int_equal(evict_all(e, 0) + evict_all(e, 1), ITEMS - 8);
        for (uint32_t i = 0; i < 8; i++)
                assert_true(evict_contains(e, i) && evict_is_aside(e, i));
}

static void an_item_that_is_brought_back_is_the_next_victim(const char *policy)
{
        _cleanup_(evict_freep) struct evict *e = make(policy, ITEMS);
        uint64_t touched = evict_touched(e, 4);

        evict_set_aside(e, 4, 0);
        assert_int_equal(victim(e, 0), 0);
        evict_bring_back(e, 4, 0);
        evict_bring_back(e, 0, 0); /* is not aside: nothing changes */
        assert_int_equal(evict_touched(e, 4), touched);
        evict_remove(e, 0);
        evict_remove(e, 2);
        assert_int_equal(victim(e, 0), 4);
}

static void a_touch_makes_an_item_aside_the_youngest(const char *policy)
{
        _cleanup_(evict_freep) struct evict *e = make(policy, 8);
        uint32_t order[4];

        evict_set_aside(e, 0, 0);
        evict_set_aside(e, 2, 1);
        evict_touch(e, 0, 0, EVICT_NO_USE);
        evict_touch(e, 2, 0, EVICT_NO_USE);
        assert_false(evict_is_aside(e, 0) || evict_is_aside(e, 2));
        for (unsigned i = 0; i < 4; i++) {
                order[i] = victim(e, 0);
                evict_remove(e, order[i]);
        }
        assert_memory_equal(order, ((uint32_t[]){ 4, 6, 0, 2 }), sizeof(order));
        evict_set_aside(e, 1, 0);
        evict_touch(e, 1, 1, EVICT_NO_USE);
        assert_false(evict_is_aside(e, 1));
        assert_int_equal(victim(e, 1), 3);
        /* A new item in the place of a removed one is not aside. */
        evict_set_aside(e, 3, 0);
        evict_remove(e, 3);
        evict_insert(e, 3, 1, 4096);
        assert_false(evict_is_aside(e, 3));
}

struct visits {
        struct evict *evict;
        uint32_t seen, brought_back;
};

static void bring_back_some(void *userdata, uint32_t item)
{
        struct visits *v = userdata;

        v->seen |= UINT32_C(1) << item;
        if (v->brought_back >> item & 1)
                evict_bring_back(v->evict, item, item % GROUPS);
}

static void a_walk_of_a_lot_may_bring_items_back(const char *policy)
{
        _cleanup_(evict_freep) struct evict *e = make(policy, 16);
        struct visits v = { .evict = e, .brought_back = 0x12 };

        for (uint32_t i = 0; i < 8; i++) {
                evict_set_cost(e, i, i); /* several lists of a policy */
                evict_set_aside(e, i, i >= 6);
        }
        assert_int_equal(evict_each_aside(e, 0, bring_back_some, &v), 6);
        assert_int_equal(v.seen, 0x3f);
        v.seen = 0;
        assert_int_equal(evict_each_aside(e, 0, bring_back_some, &v), 4);
        assert_int_equal(v.seen, 0x3f & ~0x12);
        assert_false(evict_is_aside(e, 1) || evict_is_aside(e, 4));
}

static void items_stay_aside_under_another_policy(const char *policy)
{
        _cleanup_(evict_freep) struct evict *e = make(policy, ITEMS);

        for (uint32_t i = 0; i < 8; i++)
                evict_set_aside(e, i, i % EVICT_LOTS);
        assert_int_equal(evict_switch(&e, policy[0] == 'l' ? "cq" : "lru"), 1);
        assert_int_equal(evict_all(e, 0) + evict_all(e, 1), ITEMS - 8);
        for (uint32_t i = 0; i < 8; i++)
                evict_bring_back(e, i, i % GROUPS);
        assert_int_equal(evict_all(e, 0) + evict_all(e, 1), 8);
}

#define BY_POLICY(name)                                                                            \
        static void test_##name(void **state)                                                      \
        {                                                                                          \
                for (unsigned i = 0; i < sizeof(policies) / sizeof(policies[0]); i++)              \
                        name(policies[i]);                                                         \
        }

BY_POLICY(what_is_retained_is_no_victim)
BY_POLICY(it_stays_retained_under_another_policy)
BY_POLICY(a_record_says_so)
BY_POLICY(a_search_does_not_visit_items_aside)
BY_POLICY(an_item_that_is_brought_back_is_the_next_victim)
BY_POLICY(a_touch_makes_an_item_aside_the_youngest)
BY_POLICY(a_walk_of_a_lot_may_bring_items_back)
BY_POLICY(items_stay_aside_under_another_policy)

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_what_is_retained_is_no_victim),
                cmocka_unit_test(test_it_stays_retained_under_another_policy),
                cmocka_unit_test(test_a_record_says_so),
                cmocka_unit_test(test_a_search_does_not_visit_items_aside),
                cmocka_unit_test(test_an_item_that_is_brought_back_is_the_next_victim),
                cmocka_unit_test(test_a_touch_makes_an_item_aside_the_youngest),
                cmocka_unit_test(test_a_walk_of_a_lot_may_bring_items_back),
                cmocka_unit_test(test_items_stay_aside_under_another_policy),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

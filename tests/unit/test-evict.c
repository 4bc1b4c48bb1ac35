/* SPDX-License-Identifier: Apache-2.0 */
/* The order of eviction: the oldest of its group, the end of a chain before its root, and held
 * items never. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cleanup.h"
#include "evict/evict.h"
#include "evict/lru.c" /* to set its clock */

DEFINE_CLEANUP(struct evict *, evict_free);

static struct evict *make(uint32_t items, uint32_t groups)
{
        struct evict *e = NULL;

        assert_int_equal(evict_new(&e, "lru", items, groups), 0);
        return e;
}

static uint32_t oldest(struct evict *e, uint32_t group)
{
        return evict_victim(e, group, NULL, NULL, UINT32_MAX);
}

/* Returns whether the item may be evicted. `userdata` is an array of bools by item. */
static bool may_go(void *userdata, uint32_t item)
{
        return ((const bool *)userdata)[item];
}

static void a_policy_goes_by_its_name(void **state)
{
        _cleanup_(evict_freep) struct evict *e = NULL;

        assert_true(evict_policy_exists("lru"));
        assert_false(evict_policy_exists("LRU"));
        assert_false(evict_policy_exists(""));
        assert_int_equal(evict_new(&e, "mru", 4, 1), -EINVAL);
        assert_int_equal(evict_new(&e, "lru", 0, 1), -EINVAL);
        assert_int_equal(evict_new(&e, "lru", UINT32_MAX, 1), -EINVAL);
        assert_int_equal(evict_new(&e, "lru", 4, 0), -EINVAL);
        assert_int_equal(evict_new(&e, "lru", 4, 1 << 20), -EINVAL);
        assert_null(e);
        assert_int_equal(evict_new(&e, "lru", 4, 1), 0);
        assert_string_equal(evict_policy(e), "lru");
        assert_null(evict_free(NULL));
}

static void nothing_is_in_a_new_policy(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(8, 2);

        assert_int_equal(oldest(e, 0), EVICT_NONE);
        assert_int_equal(oldest(e, 1), EVICT_NONE);
        for (uint32_t i = 0; i < 8; i++)
                assert_false(evict_contains(e, i));
        assert_false(evict_contains(e, 8));
        assert_false(evict_contains(e, EVICT_NONE));
        assert_int_equal(evict_touched(e, 3), 0);
}

static void the_oldest_goes_first_and_a_touch_makes_young(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(8, 1);

        for (uint32_t i = 0; i < 4; i++)
                evict_insert(e, i, 0, 4096);
        assert_int_equal(oldest(e, 0), 0);
        /* Asking changes nothing. */
        assert_int_equal(oldest(e, 0), 0);
        assert_true(evict_contains(e, 0));

        evict_touch(e, 0, 0, EVICT_NO_USE);
        assert_int_equal(oldest(e, 0), 1);
        evict_touch(e, 0, 0, EVICT_NO_USE);
        evict_remove(e, 1);
        assert_false(evict_contains(e, 1));
        assert_int_equal(oldest(e, 0), 2);
        evict_remove(e, 2);
        evict_remove(e, 3);
        assert_int_equal(oldest(e, 0), 0);
        evict_remove(e, 0);
        assert_int_equal(oldest(e, 0), EVICT_NONE);
        evict_insert(e, 3, 0, 4096);
        assert_int_equal(oldest(e, 0), 3);
}

static void time_grows_by_one_with_each_touch_and_insert(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(8, 2);

        evict_insert(e, 5, 0, 1);
        assert_int_equal(evict_touched(e, 5), 1);
        evict_insert(e, 6, 1, 1);
        evict_touch(e, 5, 0, EVICT_NO_USE);
        assert_int_equal(evict_touched(e, 5), 3);
        assert_int_equal(evict_touched(e, 6), 2);
        evict_remove(e, 5);
        assert_int_equal(evict_touched(e, 5), 0);
        evict_insert(e, 7, 0, 1); /* a removal takes no time */
        assert_int_equal(evict_touched(e, 7), 4);
}

static void groups_do_not_see_each_other(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(8, 3);

        evict_insert(e, 0, 2, 1);
        evict_insert(e, 1, 1, 1);
        evict_insert(e, 2, 2, 1);
        assert_int_equal(oldest(e, 0), EVICT_NONE);
        assert_int_equal(oldest(e, 1), 1);
        assert_int_equal(oldest(e, 2), 0);
        evict_touch(e, 0, 2, EVICT_NO_USE);
        assert_int_equal(oldest(e, 2), 2);
        evict_remove(e, 1);
        assert_int_equal(oldest(e, 1), EVICT_NONE);
        /* A removed item may return in another group. */
        evict_insert(e, 1, 0, 1);
        assert_int_equal(oldest(e, 0), 1);
}

static void what_may_not_go_is_passed_over(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(8, 1);
        bool may[8] = { 0 };

        for (uint32_t i = 0; i < 8; i++)
                evict_insert(e, i, 0, 1);
        assert_int_equal(evict_victim(e, 0, may_go, may, UINT32_MAX), EVICT_NONE);
        may[3] = may[6] = true;
        assert_int_equal(evict_victim(e, 0, may_go, may, UINT32_MAX), 3);
        assert_int_equal(evict_victim(e, 0, may_go, may, 3), 3);
        assert_int_equal(evict_victim(e, 0, may_go, may, 2), EVICT_NONE);
        assert_int_equal(evict_victim(e, 0, may_go, may, 0), EVICT_NONE);
        may[0] = true;
        assert_int_equal(evict_victim(e, 0, may_go, may, 0), 0);
        /* Passing over makes nothing younger. */
        assert_int_equal(oldest(e, 0), 0);
}

/* A forest of chains that share prefixes, in a cache with less room: whatever is requested, a
 * parent is evicted only after all its children. parent[i] < i; item 0 is the root of all. */
static void no_child_outlives_its_parent(void **state)
{
        enum { ITEMS = 200, ROOM = 60, ROUNDS = 3000 };
        _cleanup_(evict_freep) struct evict *e = make(ITEMS, 1);
        uint32_t parent[ITEMS] = { EVICT_NONE }, children[ITEMS] = { 0 };
        unsigned seed = 12, in = 0, evicted = 0;

        for (uint32_t i = 1; i < ITEMS; i++) {
                /* Mostly continues the previous item; sometimes branches. */
                parent[i] = (unsigned)rand_r(&seed) % 4 != 0 ? i - 1 : (uint32_t)rand_r(&seed) % i;
        }

        for (int round = 0; round < ROUNDS; round++) {
                uint32_t end = (uint32_t)rand_r(&seed) % ITEMS, chain[ITEMS], n = 0;

                for (uint32_t i = end; i != EVICT_NONE; i = parent[i])
                        chain[n++] = i;
                if (n > ROOM)
                        continue;

                /* From the end to the root: touches items that are cached, and inserts the others.
                 * The request's own items are held meanwhile, so that room comes from others. */
                for (uint32_t k = 0; k < n; k++)
                        if (evict_contains(e, chain[k]))
                                evict_touch(e, chain[k], 0, EVICT_NO_USE);
                for (uint32_t k = 0; k < n; k++) {
                        bool may[ITEMS];

                        if (evict_contains(e, chain[k]))
                                continue;
                        memset(may, true, sizeof(may));
                        for (uint32_t j = 0; j < n; j++)
                                may[chain[j]] = false;
                        if (in == ROOM) {
                                uint32_t victim = evict_victim(e, 0, may_go, may, UINT32_MAX);

                                assert_int_not_equal(victim, EVICT_NONE);
                                assert_int_equal(children[victim], 0);
                                evict_remove(e, victim);
                                if (parent[victim] != EVICT_NONE)
                                        children[parent[victim]]--;
                                in--;
                                evicted++;
                        }
                        evict_insert(e, chain[k], 0, 1);
                        if (parent[chain[k]] != EVICT_NONE)
                                children[parent[chain[k]]]++;
                        in++;
                }
                for (uint32_t k = 0; k < n; k++)
                        evict_touch(e, chain[k], 0, EVICT_NO_USE);
        }
        assert_true(evicted > 1000);
}

static void touching_from_the_root_would_evict_the_root_first(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(4, 1);

        /* The counterpart: the order of touches is all there is to leaf first. */
        for (uint32_t i = 0; i < 4; i++)
                evict_insert(e, i, 0, 1);
        for (uint32_t i = 0; i < 4; i++)
                evict_touch(e, i, 0, EVICT_NO_USE);
        assert_int_equal(oldest(e, 0), 0);
        for (uint32_t i = 4; i-- > 0;)
                evict_touch(e, i, 0, EVICT_NO_USE);
        assert_int_equal(oldest(e, 0), 3);
}

/* The model: times in an array, the smallest wins. */
static void random_work_agrees_with_a_naive_model(void **state)
{
        enum { ITEMS = 64, GROUPS = 5, ROUNDS = 30000 };
        _cleanup_(evict_freep) struct evict *e = make(ITEMS, GROUPS);
        uint64_t times[ITEMS] = { 0 }, now = 0;
        uint32_t groups[ITEMS] = { 0 };
        bool may[ITEMS];
        unsigned seed = 99, victims = 0;

        for (int round = 0; round < ROUNDS; round++) {
                uint32_t item = (uint32_t)rand_r(&seed) % ITEMS;
                uint32_t what = (uint32_t)rand_r(&seed) % 8;
                uint32_t group = (uint32_t)rand_r(&seed) % GROUPS;
                uint32_t best = EVICT_NONE, limit = (uint32_t)rand_r(&seed) % 8, passed = 0;
                uint32_t order[ITEMS], n = 0;

                assert_int_equal(evict_contains(e, item), times[item] != 0);
                if (times[item] == 0) {
                        evict_insert(e, item, group, 1);
                        groups[item] = group;
                        times[item] = ++now;
                } else if (what == 0) {
                        evict_remove(e, item);
                        times[item] = 0;
                } else {
                        evict_touch(e, item, groups[item], EVICT_NO_USE);
                        times[item] = ++now;
                }
                assert_int_equal(evict_touched(e, item), times[item]);

                for (uint32_t i = 0; i < ITEMS; i++) {
                        may[i] = (unsigned)rand_r(&seed) % 3 == 0;
                        if (times[i] == 0 || groups[i] != group)
                                continue;
                        order[n++] = i;
                        for (uint32_t j = n - 1; j > 0 && times[order[j - 1]] > times[order[j]];
                             j--) {
                                uint32_t swap = order[j];

                                order[j] = order[j - 1];
                                order[j - 1] = swap;
                        }
                }
                assert_int_equal(oldest(e, group), n > 0 ? order[0] : EVICT_NONE);
                for (uint32_t k = 0; k < n && best == EVICT_NONE; k++) {
                        if (may[order[k]])
                                best = order[k];
                        else if (passed++ == limit)
                                break;
                }
                assert_int_equal(evict_victim(e, group, may_go, may, limit), best);
                victims += best != EVICT_NONE;
        }
        assert_true(victims > ROUNDS / 4);
}

/* Times are stored in numbers of 32 bits. */
static void the_order_of_times_outlives_four_billion_touches(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(8, 3);

        evict_insert(e, 0, 0, 1);
        ((struct lru *)e)->now = UINT32_MAX - 3; /* simulates that many touches */
        evict_insert(e, 1, 1, 1);
        evict_insert(e, 2, 2, 1);
        evict_touch(e, 0, 0, EVICT_NO_USE);
        assert_true(evict_touched(e, 0) == UINT32_MAX);
        assert_int_equal(evict_touched(e, 3), 0);
        for (unsigned i = 0; i < 1000; i++) {
                uint64_t now = UINT64_C(4294967296) + i;

                evict_touch(e, 2, 2, EVICT_NO_USE);
                assert_true(evict_touched(e, 2) <= now);
                assert_true(evict_touched(e, 2) + 2 > now);
        }
        assert_true(evict_touched(e, 1) < evict_touched(e, 0));
        assert_true(evict_touched(e, 0) < evict_touched(e, 2));
        assert_true(evict_touched(e, 1) > UINT32_MAX - 5);
        assert_false(evict_contains(e, 3));
        assert_int_equal(evict_touched(e, 3), 0);
        evict_remove(e, 2);
        assert_int_equal(oldest(e, 2), EVICT_NONE);
        assert_int_equal(oldest(e, 0), 0);
        assert_int_equal(oldest(e, 1), 1);
}

/* Items of two groups, touched at random, some dropped. */
static void fill_at_random(struct evict *e, uint32_t items)
{
        uint32_t state = 7;

        for (uint32_t i = 0; i < items; i++)
                evict_insert_known(e, i, i % 2, 1, i + 1, EVICT_NO_USE, i % 3);
        for (uint32_t n = 0; n < 4 * items; n++) {
                uint32_t i;

                state = state * UINT32_C(1664525) + UINT32_C(1013904223);
                i = (state >> 8) % items;
                if (n % 50 == 0 && evict_contains(e, i))
                        evict_remove(e, i);
                else if (evict_contains(e, i))
                        evict_touch(e, i, i % 2, EVICT_NO_USE);
        }
}

static void another_policy_keeps_what_is_in_in_its_order(void **state)
{
        enum { ITEMS = 1000 };
        static uint64_t touched[ITEMS];

        for (unsigned to_lru = 0; to_lru < 2; to_lru++) {
                struct evict *e = NULL;
                uint64_t last[2] = { 0 };
                unsigned in = 0, out = 0;

                assert_int_equal(evict_new(&e, to_lru ? "cq" : "lru", ITEMS, 2), 0);
                fill_at_random(e, ITEMS);
                for (uint32_t i = 0; i < ITEMS; i++) {
                        touched[i] = evict_touched(e, i);
                        in += evict_contains(e, i);
                }
                assert_in_range(in, ITEMS / 2, ITEMS - 1);
                assert_int_equal(evict_switch(&e, "mru"), -EINVAL);
                assert_int_equal(evict_switch(&e, to_lru ? "cq" : "lru"), 0);
                assert_int_equal(evict_switch(&e, to_lru ? "lru" : "cq"), 1);
                assert_string_equal(evict_policy(e), to_lru ? "lru" : "cq");
                for (uint32_t i = 0; i < ITEMS; i++)
                        assert_int_equal(evict_contains(e, i), touched[i] != 0);
                /* Before it has learned anything, cq evicts by age as well. */
                for (uint32_t v; out < in; out++) {
                        v = oldest(e, out % 2);
                        if (v == EVICT_NONE)
                                v = oldest(e, 1 - out % 2);
                        assert_true(v != EVICT_NONE && touched[v] > last[v % 2]);
                        last[v % 2] = touched[v];
                        evict_remove_victim(e, v, v + 1);
                }
                assert_int_equal(oldest(e, 0), EVICT_NONE);
                assert_int_equal(oldest(e, 1), EVICT_NONE);
                evict_free(e);
        }
}

/* The older item of two groups is also older under the other policy. */
static void another_policy_can_compare_groups(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(8, 3);

        for (uint32_t i = 0; i < 6; i++)
                evict_insert(e, i, i % 3, 1);
        evict_touch(e, 0, 0, EVICT_NO_USE);
        assert_int_equal(evict_switch(&e, "cq"), 1);
        assert_int_equal(evict_switch(&e, "lru"), 1);
        for (uint32_t i = 1; i < 5; i++)
                assert_true(evict_touched(e, i) < evict_touched(e, i + 1));
        assert_true(evict_touched(e, 0) > evict_touched(e, 5));
}

static unsigned fails_at, callocs; /* 0: none does */

void *__real_calloc(size_t n, size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);

void *__wrap_calloc(size_t n, size_t bytes)
{
        return ++callocs == fails_at ? NULL : __real_calloc(n, bytes);
}

static void without_memory_for_another_policy_the_old_one_stays(void **state)
{
        enum { ITEMS = 100 };

        for (unsigned to_lru = 0; to_lru < 2; to_lru++) {
                _cleanup_(evict_freep) struct evict *e = NULL;
                const char *from = to_lru ? "cq" : "lru", *to = to_lru ? "lru" : "cq";
                uint64_t touched[ITEMS];
                int r = -ENOMEM;

                fails_at = 0;
                assert_int_equal(evict_new(&e, from, ITEMS, 2), 0);
                fill_at_random(e, ITEMS);
                for (uint32_t i = 0; i < ITEMS; i++)
                        touched[i] = evict_touched(e, i);
                for (unsigned n = 1; r == -ENOMEM; n++) {
                        const struct evict *was = e;

                        fails_at = n;
                        callocs = 0;
                        r = evict_switch(&e, to);
                        if (r != -ENOMEM) {
                                assert_true(n > 3); /* the heap, the policy, its items */
                                continue;
                        }
                        assert_ptr_equal(e, was);
                        assert_string_equal(evict_policy(e), from);
                        for (uint32_t i = 0; i < ITEMS; i++) {
                                assert_int_equal(evict_contains(e, i), touched[i] != 0);
                                assert_int_equal(evict_touched(e, i), touched[i]);
                        }
                }
                assert_int_equal(r, 1);
                assert_string_equal(evict_policy(e), to);
        }
        fails_at = 0;
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_policy_goes_by_its_name),
                cmocka_unit_test(nothing_is_in_a_new_policy),
                cmocka_unit_test(the_oldest_goes_first_and_a_touch_makes_young),
                cmocka_unit_test(time_grows_by_one_with_each_touch_and_insert),
                cmocka_unit_test(groups_do_not_see_each_other),
                cmocka_unit_test(what_may_not_go_is_passed_over),
                cmocka_unit_test(no_child_outlives_its_parent),
                cmocka_unit_test(touching_from_the_root_would_evict_the_root_first),
                cmocka_unit_test(the_order_of_times_outlives_four_billion_touches),
                cmocka_unit_test(random_work_agrees_with_a_naive_model),
                cmocka_unit_test(another_policy_keeps_what_is_in_in_its_order),
                cmocka_unit_test(another_policy_can_compare_groups),
                cmocka_unit_test(without_memory_for_another_policy_the_old_one_stays),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

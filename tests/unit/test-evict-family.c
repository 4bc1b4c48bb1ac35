/* SPDX-License-Identifier: Apache-2.0 */
/* The chains of the learning policy: parents and children, nodes where chains fork, and what all of
 * it takes of memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "checked.h"
#include "cleanup.h"
#include "evict/cq-internal.h"
#include "evict/evict.h"

DEFINE_CLEANUP(struct evict *, evict_free);

static struct evict *make(uint32_t items, uint32_t groups)
{
        struct evict *e = NULL;

        assert_int_equal(evict_new(&e, "cq", items, groups), 0);
        return e;
}

static void add(struct evict *e, uint32_t item)
{
        evict_insert_known(e, item, 0, 1, item + 1, EVICT_NO_USE, EVICT_PLACE_UNKNOWN);
}

static uint32_t random_below(uint32_t *state, uint32_t n)
{
        *state = *state * UINT32_C(1664525) + UINT32_C(1013904223);
        return (uint32_t)((uint64_t)(*state >> 8) * n >> 24);
}

enum { ITEMS = 24, STEPS = 100000 };

/* A plain model: the parent of each item, and the order in which links were made. */
struct model {
        bool is_in[ITEMS];
        uint32_t parent[ITEMS];
        uint64_t linked[ITEMS];
};

/* Returns the child that was linked first, or EVICT_NONE. */
static uint32_t first_child(const struct model *m, uint32_t item)
{
        uint32_t first = EVICT_NONE;

        for (uint32_t i = 0; i < ITEMS; i++)
                if (m->is_in[i] && m->parent[i] == item &&
                    (first == EVICT_NONE || m->linked[i] < m->linked[first]))
                        first = i;
        return first;
}

static unsigned count_nodes(const struct model *m)
{
        unsigned nodes = 0;

        for (uint32_t p = 0; p < ITEMS; p++) {
                unsigned children = 0;

                for (uint32_t i = 0; i < ITEMS; i++)
                        children += m->is_in[i] && m->parent[i] == p;
                nodes += children > 1 ? children + 1 : 0;
        }
        return nodes;
}

static void compare(const struct evict *e, const struct model *m)
{
        for (uint32_t i = 0; i < ITEMS; i++) {
                unsigned steps = 1;

                if (!m->is_in[i])
                        continue;
                assert_int_equal(evict_parent(e, i), m->parent[i]);
                assert_int_equal(cq_end_of_chain(cq(e), i, &steps),
                                 first_child(m, i) == EVICT_NONE ? i : first_child(m, i));
                assert_int_equal(cq_is_continued(cq(e), &cq(e)->items[i]),
                                 first_child(m, i) != EVICT_NONE);
        }
}

/* Few items, so that every form of a family occurs: none, one and several children, forks that lose
 * their first, middle and last child, and forks whose parent is removed. */
static void forks_agree_with_a_model(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(ITEMS, 1);
        struct model m = { 0 };
        uint32_t seed = 1;

        for (uint64_t step = 1; step <= STEPS; step++) {
                uint32_t item = random_below(&seed, ITEMS), other = random_below(&seed, ITEMS);

                if (!m.is_in[item]) {
                        add(e, item);
                        m.is_in[item] = true;
                        m.parent[item] = EVICT_NONE;
                } else if (random_below(&seed, 4) == 0) {
                        evict_remove(e, item);
                        m.is_in[item] = false;
                        for (uint32_t i = 0; i < ITEMS; i++)
                                if (m.parent[i] == item)
                                        m.parent[i] = EVICT_NONE;
                }
                other = random_below(&seed, 3) ? other % 4 : other; /* many children for a few */
                if (m.is_in[item] && m.is_in[other]) {
                        evict_link(e, item, other);
                        if (item != other && m.parent[item] == EVICT_NONE) {
                                m.parent[item] = other;
                                m.linked[item] = step;
                        }
                }
                compare(e, &m);
                /* Forks of removed parents may still exist. */
                assert_true(cq(e)->kin_in_use >= count_nodes(&m));
                assert_true(cq(e)->kin_high <= ITEMS * 3 / 2);
        }
        for (uint32_t i = 0; i < ITEMS; i++)
                if (m.is_in[i])
                        evict_remove(e, i);
        assert_int_equal(cq(e)->kin_in_use, 0);
}

/* A client decides how many children a chunk has. */
static void a_removal_visits_no_more_than_three_other_items(void **state)
{
        enum { CHILDREN = 20000, N = CHILDREN + 2 };
        _cleanup_(evict_freep) struct evict *e = make(N, 1);
        struct cq_item *before = malloc(N * sizeof(*before));
        unsigned changed = 0;
        struct evict_stats stats;

        assert_non_null(before);
        for (uint32_t i = 0; i < N; i++)
                add(e, i);
        for (uint32_t i = 2; i < N; i++)
                evict_link(e, i, 0);
        memcpy(before, cq(e)->items, N * sizeof(*before));
        evict_remove(e, 0);
        for (uint32_t i = 1; i < N; i++)
                changed += memcmp(&before[i], &cq(e)->items[i], sizeof(*before)) != 0;
        assert_true(changed <= 3);
        for (uint32_t i = 2; i < N; i++)
                assert_int_equal(evict_parent(e, i), EVICT_NONE);

        /* Children of a removed parent can be linked again, and the nodes are used again. */
        for (uint32_t i = 2; i < N; i++) {
                evict_link(e, i, 1);
                assert_int_equal(evict_parent(e, i), 1);
        }
        evict_get_stats(e, &stats);
        assert_int_equal(stats.item_bytes, 28);
        assert_int_equal(stats.fork_bytes, (CHILDREN + 2) * 12); /* both forks for a while */
        free(before);
}

/* An item of a reused number must not inherit the links of the item before it. */
static void a_new_item_has_no_family(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(4, 1);

        for (uint32_t children = 1; children <= 3; children++) {
                for (uint32_t i = 0; i < 4; i++)
                        add(e, i);
                for (uint32_t i = 1; i <= children; i++)
                        evict_link(e, i, 0);
                evict_remove(e, 0);
                add(e, 0);
                assert_false(cq_is_continued(cq(e), &cq(e)->items[0]));
                for (uint32_t i = 1; i < 4; i++)
                        assert_int_equal(evict_parent(e, i), EVICT_NONE);
                evict_link(e, 1, 0);
                assert_int_equal(evict_parent(e, 1), 0);
                for (uint32_t i = 0; i < 4; i++)
                        evict_remove(e, i);
        }
        assert_int_equal(cq(e)->kin_in_use, 0);
}

/* An item keeps 24 bits of its use, but uses that differ in the higher bits only are two. */
static void uses_differ_in_all_their_bits(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(1, 1);
        static const uint32_t uses[] = { 1,        1 + (1u << 24), 1 + (1u << 25), 1u << 31,
                                         1u << 24, UINT32_MAX,     0x00ffffff,     0x01fffffe + 3 };

        evict_insert_known(e, 0, 0, 1, 1, 7, EVICT_PLACE_UNKNOWN);
        for (unsigned i = 0; i < ARRAY_SIZE(uses); i++) {
                assert_int_not_equal(cq_use(uses[i]), EVICT_NO_USE);
                assert_true(cq_use(uses[i]) < 1u << 24);
                evict_touch(e, 0, 0, uses[i]);
                evict_touch(e, 0, 0, uses[i]); /* the same use */
                assert_int_equal(cq(e)->items[0].uses, MIN(i + 2, (unsigned)MAX_USES));
        }
        assert_int_equal(cq_use(EVICT_NO_USE), EVICT_NO_USE);
}

static unsigned written_lists(const struct evict *e, uint32_t groups)
{
        unsigned n = 0;

        for (uint32_t i = 0; i < groups * LISTS; i++)
                n += cq(e)->lists[i].oldest_or_0 != 0 || cq(e)->lists[i].youngest_or_0 != 0;
        return n;
}

/* Pool and store each make a policy with room for every size class that there can be: 10 MB of
 * lists, whose pages stay zeros of the system until a group is used. */
static void lists_of_unused_groups_are_not_written(void **state)
{
        enum { GROUPS = 9000 };
        _cleanup_(evict_freep) struct evict *e = make(1000, GROUPS);

        assert_int_equal(written_lists(e, GROUPS), 0);
        for (uint32_t i = 0; i < 100; i++)
                evict_insert(e, i, i % 10 * 900, 1);
        assert_int_equal(written_lists(e, GROUPS), 10);
        for (uint32_t i = 0; i < 10; i++)
                assert_int_equal(evict_victim(e, i * 900, NULL, NULL, UINT32_MAX), i);
        assert_int_equal(evict_victim(e, 1, NULL, NULL, UINT32_MAX), EVICT_NONE);
        assert_int_equal(written_lists(e, GROUPS), 10);
}

int main(void)
{
        static const struct CMUnitTest tests[] = {
                cmocka_unit_test(forks_agree_with_a_model),
                cmocka_unit_test(a_removal_visits_no_more_than_three_other_items),
                cmocka_unit_test(a_new_item_has_no_family),
                cmocka_unit_test(uses_differ_in_all_their_bits),
                cmocka_unit_test(lists_of_unused_groups_are_not_written),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

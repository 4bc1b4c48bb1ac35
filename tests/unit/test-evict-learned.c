/* SPDX-License-Identifier: Apache-2.0 */
/* Saves and restores a policy's knowledge: the policy continues as if there had been no restart,
 * and malformed knowledge changes nothing. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "checked.h"
#include "cleanup.h"
#include "evict/evict.h"

DEFINE_CLEANUP(struct evict *, evict_free);

enum { ITEMS = 2000, GROUPS = 3, KEYS = 6000, GHOST_SLOTS = 1 << 16 };

static const char *const policies[] = { "lru", "cq" };

static struct evict *make(const char *policy)
{
        struct evict *e = NULL;

        assert_int_equal(evict_new(&e, policy, ITEMS, GROUPS), 0);
        return e;
}

static uint32_t random_below(uint32_t *state, uint32_t n)
{
        *state = *state * UINT32_C(1664525) + UINT32_C(1013904223);
        return (uint32_t)((uint64_t)(*state >> 8) * n >> 24);
}

/* A cache of keys, some of which are used much more often than others. */
struct cache {
        struct evict *evict;
        uint32_t item_of[KEYS], key_of[ITEMS];
        uint32_t n_items, random;
        uint64_t hits;
};

static uint32_t group_of(uint32_t item)
{
        return item % GROUPS;
}

static uint64_t id_of(uint32_t key)
{
        return (key + 1) * UINT64_C(0x9e3779b97f4a7c15);
}

static void cache_init(struct cache *c, const char *policy)
{
        *c = (struct cache){ .evict = make(policy), .random = 1 };
        for (uint32_t i = 0; i < KEYS; i++)
                c->item_of[i] = EVICT_NONE;
}

static uint32_t evict_one(struct cache *c, uint32_t group)
{
        uint32_t item = evict_victim(c->evict, group, NULL, NULL, UINT32_MAX);

        assert_int_not_equal(item, EVICT_NONE);
        evict_remove_victim(c->evict, item, id_of(c->key_of[item]));
        c->item_of[c->key_of[item]] = EVICT_NONE;
        return item;
}

static void use(struct cache *c)
{
        uint32_t key = random_below(&c->random, 1 + random_below(&c->random, KEYS));
        uint32_t item = c->item_of[key];

        if (item != EVICT_NONE) {
                c->hits++;
                evict_touch(c->evict, item, group_of(item), EVICT_NO_USE);
                return;
        }
        item = c->n_items < ITEMS ? c->n_items++ : evict_one(c, random_below(&c->random, GROUPS));
        c->item_of[key] = item;
        c->key_of[item] = key;
        evict_insert_known(c->evict, item, group_of(item), 1, id_of(key), EVICT_NO_USE,
                           key % 3 ? EVICT_PLACE_UNKNOWN : EVICT_PLACE_END);
}

struct saved {
        struct evict_learned learned;
        struct evict_record items[ITEMS], remembered[GHOST_SLOTS];
        uint32_t n_items, n_remembered;
};

static int by_time(const void *a, const void *b)
{
        const struct evict_record *x = a, *y = b;

        if (x->time != y->time)
                return x->time < y->time ? -1 : 1;
        return x->touched < y->touched ? -1 : x->touched > y->touched;
}

static struct saved *save(const struct cache *c)
{
        struct saved *s = calloc(1, sizeof(*s));
        uint32_t cursor = 0;

        assert_non_null(s);
        evict_save(c->evict, &s->learned);
        for (uint32_t i = 0; i < ITEMS; i++)
                if (evict_contains(c->evict, i))
                        evict_save_item(c->evict, i, id_of(c->key_of[i]), &s->items[s->n_items++]);
        qsort(s->items, s->n_items, sizeof(s->items[0]), by_time);
        while (cursor != UINT32_MAX) {
                /* The buffer is smaller than the number of items that are scanned. */
                s->n_remembered += evict_save_remembered(c->evict, &cursor, 100,
                                                         &s->remembered[s->n_remembered], 7);
                assert_true(s->n_remembered + 7 < GHOST_SLOTS);
        }
        return s;
}

/* Inserts items in the order of their numbers, like puts. */
static void restart(struct cache *c, const struct saved *s, const char *policy)
{
        evict_free(c->evict);
        c->evict = make(policy);
        for (uint32_t i = 0; i < c->n_items; i++)
                evict_insert(c->evict, i, group_of(i), 1);
        assert_true(evict_restore(c->evict, &s->learned));
        for (uint32_t i = 0; i < s->n_remembered; i++)
                evict_restore_remembered(c->evict, &s->remembered[i]);
        for (uint32_t i = 0; i < s->n_items; i++)
                for (uint32_t k = 0; k < ITEMS; k++)
                        if (id_of(c->key_of[k]) == s->items[i].id)
                                assert_true(
                                        evict_restore_item(c->evict, k, group_of(k), &s->items[i]));
}

/* Returns the hits of a cache that restarts, minus those of one that does not. */
static double hits_won(const char *policy, uint32_t seed, unsigned uses)
{
        static struct cache one, other;
        struct evict_stats before, after;
        struct saved *s;

        cache_init(&one, policy);
        one.random = seed;
        for (unsigned i = 0; i < uses; i++)
                use(&one);
        other = one;
        other.evict = make(policy); /* restart() frees it */
        s = save(&one);
        restart(&other, s, policy);
        free(s);
        evict_get_stats(one.evict, &before);
        evict_get_stats(other.evict, &after);
        assert_int_equal(before.ghosts, after.ghosts);
        one.hits = other.hits = 0;
        for (unsigned i = 0; i < uses; i++) {
                use(&one);
                use(&other);
        }
        evict_free(one.evict);
        evict_free(other.evict);
        return (double)other.hits - (double)one.hits;
}

/* cq samples at other times after the restart, which costs 0.3 points on average. */
static void it_goes_on_as_if_there_had_been_no_restart(void **state)
{
        enum { SEEDS = 8, USES = 40000 };
        double won = 0;

        for (uint32_t seed = 0; seed < SEEDS; seed++) {
                assert_true(fabs(hits_won("lru", seed, USES)) < 0.5);
                won += hits_won("cq", seed, USES);
        }
        assert_true(fabs(won) < 0.003 * SEEDS * USES);
}

/* Each item has its previous place, as far as that can be observed. */
static void items_keep_class_and_age(void **state)
{
        for (unsigned p = 0; p < ARRAY_SIZE(policies); p++) {
                static struct cache one, other;
                struct saved *s;

                cache_init(&one, policies[p]);
                for (int i = 0; i < 20000; i++)
                        use(&one);
                other = one;
                other.evict = make(policies[p]);
                s = save(&one);
                restart(&other, s, policies[p]);
                for (uint32_t i = 0; i < one.n_items; i++) {
                        struct evict_standing a, b;

                        evict_explain(one.evict, i, group_of(i), &a);
                        evict_explain(other.evict, i, group_of(i), &b);
                        assert_int_equal(a.class, b.class);
                        assert_int_equal(a.age, b.age);
                }
                evict_free(one.evict);
                evict_free(other.evict);
                free(s);
        }
}

static bool is_third(void *userdata, uint32_t item)
{
        ++*(unsigned *)userdata;
        return item % 3 == 0;
}

/* The other items become the youngest, in their order; each is asked about once. */
static void the_rest_becomes_the_youngest(void **state)
{
        for (unsigned p = 0; p < ARRAY_SIZE(policies); p++) {
                _cleanup_(evict_freep) struct evict *e = make(policies[p]);
                unsigned asked = 0;

                for (uint32_t i = 0; i < 99; i++)
                        evict_insert(e, i, 0, 1);
                evict_restore_rest(e, is_third, &asked);
                assert_int_equal(asked, 99);
                for (uint32_t n = 0; n < 99; n++) {
                        uint32_t v = evict_victim(e, 0, NULL, NULL, UINT32_MAX);

                        assert_int_equal(v, n < 66 ? n + n / 2 + 1 : (n - 66) * 3);
                        evict_remove(e, v);
                }
                /* All, one or none of the items are restored. */
                evict_restore_rest(e, is_third, &asked);
                evict_insert(e, 0, 0, 1);
                evict_restore_rest(e, is_third, &asked);
                evict_insert(e, 3, 0, 1);
                evict_restore_rest(e, is_third, &asked);
                assert_int_equal(evict_victim(e, 0, NULL, NULL, UINT32_MAX), 0);
        }
}

static void what_is_malformed_changes_nothing(void **state)
{
        static struct cache c;
        struct saved *s;
        const struct evict_record wrong[] = {
                { .id = 0, .uses = 1 },
                { .id = 5, .uses = 0 },
                { .id = 5, .uses = 1, .class = 16 },
                { .id = 5, .uses = 1, .class = 255 },
                { .id = 5, .uses = 1, .turn = 4 },
                { .id = 5, .uses = 1, .time = UINT32_MAX },
        };

        cache_init(&c, "cq");
        for (int i = 0; i < 5000; i++)
                use(&c);
        s = save(&c);
        for (unsigned i = 0; i < 8; i++) {
                struct evict_learned l = s->learned;

                switch (i) {
                case 0:
                        l.counts[17] = NAN;
                        break;
                case 1:
                        l.counts[EVICT_COUNTS - 1] = -1;
                        break;
                case 2:
                        l.counts[0] = INFINITY;
                        break;
                case 3:
                        l.unit = 32;
                        break;
                case 4:
                        l.unit = UINT32_MAX;
                        break;
                case 5:
                        l.n_counts = 0;
                        break;
                case 6:
                        l.now = UINT64_C(1) << 32;
                        break;
                default:
                        l.now = UINT64_MAX;
                        break;
                }
                assert_false(evict_restore(c.evict, &l));
        }
        for (unsigned i = 0; i < ARRAY_SIZE(wrong); i++) {
                assert_false(evict_restore_item(c.evict, 0, group_of(0), &wrong[i]));
                evict_restore_remembered(c.evict, &wrong[i]);
                assert_false(evict_remembers(c.evict, 5));
        }
        for (uint32_t i = 0; i < ITEMS; i++) {
                struct evict_record r;

                evict_save_item(c.evict, i, 1, &r);
                assert_int_equal(c.item_of[c.key_of[i]], i);
                assert_true(r.time > 0 && r.uses > 0);
        }
        evict_free(c.evict);
        free(s);
}

/* Restores the state of a cache that counts pairs of touches, and of a larger cache. */
static void another_unit_and_more_counts_are_taken_over(void **state)
{
        for (unsigned p = 0; p < ARRAY_SIZE(policies); p++) {
                static struct cache c;
                struct evict_learned l, again;
                struct saved *s;

                cache_init(&c, policies[p]);
                for (int i = 0; i < 5000; i++)
                        use(&c);
                s = save(&c);
                l = s->learned;
                l.unit = 3;
                l.now = UINT64_C(9) << 30;
                for (unsigned i = 0; i < EVICT_COUNTS; i++)
                        l.counts[i] = 0x1p52;
                assert_true(evict_restore(c.evict, &l));
                evict_save(c.evict, &again);
                assert_true(again.unit <= 3 && again.now >> again.unit <= UINT32_MAX);
                assert_int_equal(again.now, l.now);
                for (unsigned i = 0; i < again.n_counts; i++)
                        assert_true(again.counts[i] < 1e6); /* the counts fade to the usual range */
                for (int i = 0; i < 5000; i++)
                        use(&c);
                assert_int_equal(evict_touches(c.evict), l.now + 5000);
                evict_free(c.evict);
                free(s);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(it_goes_on_as_if_there_had_been_no_restart),
                cmocka_unit_test(items_keep_class_and_age),
                cmocka_unit_test(the_rest_becomes_the_youngest),
                cmocka_unit_test(what_is_malformed_changes_nothing),
                cmocka_unit_test(another_unit_and_more_counts_are_taken_over),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

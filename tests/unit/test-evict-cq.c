/* SPDX-License-Identifier: Apache-2.0 */
/* The learning policy: reused items stay, evicted ones are remembered, and no item is evicted
 * before those that continue it. Also its parts: densities and ghosts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "cleanup.h"
#include "evict/cq.c" /* to set its clock */
#include "evict/density.h"
#include "evict/evict.h"
#include "evict/ghosts.h"

DEFINE_CLEANUP(struct evict *, evict_free);

static struct evict *make(uint32_t items, uint32_t groups)
{
        struct evict *e = NULL;

        assert_int_equal(evict_new(&e, "cq", items, groups), 0);
        assert_string_equal(evict_policy(e), "cq");
        return e;
}

static uint32_t victim(struct evict *e)
{
        return evict_victim(e, 0, NULL, NULL, UINT32_MAX);
}

static uint32_t random_below(uint32_t *state, uint32_t n)
{
        *state = *state * UINT32_C(1664525) + UINT32_C(1013904223);
        return (uint32_t)((uint64_t)(*state >> 8) * n >> 24);
}

/* --- densities --- */

static void what_is_hit_soon_is_worth_most(void **state)
{
        struct density d;
        struct density_stays stays = { 0 };

        density_init(&d, 1e9);
        assert_true(density_at(&d, 0, 100) == 0);
        for (int i = 0; i < 1000; i++) {
                density_hit(&d, 0, 100);
                density_hit(&d, 1, 10000);
                density_loss(&d, 2, 10000);
        }
        density_learn(&d, &stays);
        assert_true(density_at(&d, 0, 1) > 10 * density_at(&d, 1, 1));
        assert_true(density_at(&d, 1, 1) > 0);
        assert_true(density_chance(&d, 0, 1) == 1 && density_chance(&d, 0, 1000) == 0);
        assert_true(density_chance(&d, 2, 1) == 0);
        assert_true(density_at(&d, 2, 1) == 0);
        /* Past the age at which all were hit nothing is known, and nothing expected. */
        assert_true(density_at(&d, 0, 1000) == 0);
        assert_true(density_at(&d, 1, 9000) > density_at(&d, 1, 1));
}

/* Returns the lowest age of a bin. */
static double begin_of(unsigned bin)
{
        return (double)(UINT64_C(1) << bin / 2) * (bin % 2 ? 1.5 : 1);
}

/* Returns the best ratio of hits to time over the horizons from a bin to the end of each later one,
 * without losses and without items that still wait. */
static double best_by_trial(const double hits[static DENSITY_BINS], unsigned from)
{
        double survivors = 1, reached = 0, sum = 0, time = 0, best = 0;

        for (unsigned b = from; b < DENSITY_BINS; b++)
                reached += hits[b];
        for (unsigned b = from; b < DENSITY_BINS && reached > 0; reached -= hits[b++]) {
                double hit = survivors * hits[b] / reached;

                sum += hit;
                time += (survivors - hit / 2) * (begin_of(b + 1) - begin_of(b));
                survivors -= hit;
                best = sum / time > best ? sum / time : best;
        }
        return best;
}

static void densities_are_those_of_the_best_horizons(void **state)
{
        struct density_stays none = { 0 };
        uint32_t random = 7;

        for (unsigned round = 0; round < 300; round++) {
                unsigned bins = 1 + random_below(&random, DENSITY_BINS),
                         most = 1 + random_below(&random, 500);
                struct density d;

                density_init(&d, 1e9);
                for (unsigned i = 0; i < 12; i++)
                        d.hits[1][random_below(&random, bins)] += random_below(&random, most);
                density_learn(&d, &none);
                for (unsigned b = 0; b < DENSITY_BINS; b++) {
                        double best = best_by_trial(d.hits[1], b);

                        assert_true((double)d.value[1][b] <= best * (1 + 1e-6));
                        assert_true((double)d.value[1][b] >= best * (1 - 1e-6));
                }
        }
}

/* A tenth of the items is hit at once. Items that still wait lower the chance, and items that have
 * waited count as lost only at their age. */
static void what_lasts_counts_until_its_age(void **state)
{
        struct density d, longer;
        struct density_stays none = { 0 }, young = { 0 }, old = { 0 };

        density_init(&d, 1e9);
        for (int i = 0; i < 100; i++)
                density_hit(&d, 0, 1000);
        density_stay(&young, 0, 10, 900);
        density_stay(&old, 0, 100000, 900);
        longer = d;
        density_learn(&d, &none);
        density_learn(&longer, &old);
        assert_true(density_at(&longer, 0, 900) < density_at(&d, 0, 900) / 2);
        density_learn(&longer, &young);
        assert_true(density_at(&longer, 0, 900) == density_at(&d, 0, 900));
}

/* Nine in ten stays end at an age of 100, or else at 50,000. */
static void a_density_that_rises_again_has_a_low(void **state)
{
        struct density d;
        struct density_stays none = { 0 };
        struct density_low low;

        density_init(&d, 1e9);
        for (int i = 0; i < 1000; i++) {
                density_hit(&d, 0, i % 10 == 0 ? 50000 : 100); /* rises again */
                density_hit(&d, 1, i % 10 == 0 ? 100 : 50000); /* one tenth is no low */
                density_hit(&d, 2, 100);
                density_hit(&d, 3, 1U << i % 16); /* falls always */
        }
        assert_false(density_low(&d, 0, 40000, &low)); /* nothing was learned */
        density_learn(&d, &none);
        assert_true(density_low(&d, 0, 50000, &low));
        assert_true(low.from > 100 && low.from <= low.least && low.least < 25000);
        assert_true(density_at(&d, 0, low.least) < density_at(&d, 0, 50000) / 1.5F);
        assert_false(density_low(&d, 0, low.least, &low));
        assert_false(density_low(&d, 0, 0, &low));
        for (uint32_t age = 0; age < 1U << 20; age = 2 * age + 1)
                for (unsigned c = 1; c < 4; c++)
                        assert_false(density_low(&d, c, age, &low));
        for (int i = 0; i < 80; i++) {
                density_double_unit(&d);
                (void)density_low(&d, 0, 50000 >> MIN(i, 31), &low);
                assert_true(low.from <= low.least);
        }
}

/* The items of class 1 are as old as its longest gap at most, so nothing is known of later ages. A
 * class that has had no hit expects those of the class that it follows. */
static void a_class_that_few_have_aged_in_expects_the_hits_of_the_class_before(void **state)
{
        struct density d, alone;
        struct density_stays stays = { 0 };

        density_init(&d, 1e9);
        for (int i = 0; i < 1000; i++) {
                density_hit(&d, 0, 10000);
                density_hit(&d, 1, 100);
        }
        density_stay(&stays, 1, 3000, 1000);
        density_stay(&stays, 2, 3000, 1000);
        alone = d;
        density_follow(&d, 1, 0);
        density_follow(&d, 2, 1);
        density_learn(&alone, &stays);
        assert_true(density_at(&alone, 1, 4000) == 0 && density_at(&alone, 2, 1) == 0);
        density_learn(&d, &stays);
        assert_true(density_at(&d, 1, 6000) > density_at(&d, 0, 6000) * 0.9F);
        assert_true(density_at(&d, 2, 6000) > density_at(&d, 0, 6000) * 0.9F);
        /* Items that have reached an age without a hit count against it. */
        density_stay(&stays, 1, 100000, 100000);
        density_learn(&d, &stays);
        assert_true(density_at(&d, 1, 6000) < density_at(&d, 0, 6000) / 100);
        assert_true(density_at(&d, 1, 1) > 0);
}

static void a_unit_twice_as_long_halves_ages(void **state)
{
        struct density d;
        struct density_stays stays = { 0 };
        float before;

        density_init(&d, 1e9);
        for (uint32_t age = 64; age < 4096; age++) {
                density_hit(&d, 3, age);
                density_loss(&d, 3, 2 * age);
        }
        density_learn(&d, &stays);
        before = density_at(&d, 3, 1024);
        density_double_unit(&d);
        density_learn(&d, &stays);
        /* The same number of hits in half as many units doubles the density. */
        assert_float_equal(density_at(&d, 3, 512), 2 * before, before / 100);
}

static void old_counts_fade(void **state)
{
        struct density d;
        struct density_stays stays = { 0 };

        density_init(&d, 100);
        for (int i = 0; i < 100; i++)
                density_hit(&d, 0, 10);
        for (int i = 0; i < 2000; i++)
                density_loss(&d, 0, 1000);
        density_learn(&d, &stays);
        assert_true(d.events <= 100);
        assert_true(density_at(&d, 0, 1) < 0.01F);
}

static void every_age_has_a_density(void **state)
{
        struct density d;
        struct density_stays stays = { 0 };

        density_init(&d, 1e9);
        for (uint32_t age = 1; age != 0; age = age << 1) {
                density_hit(&d, 0, age);
                density_loss(&d, 0, age);
                density_hit(&d, 0, UINT32_MAX);
        }
        density_hit(&d, 0, 0);
        density_learn(&d, &stays);
        for (uint64_t age = 0; age <= UINT32_MAX; age = age * 3 / 2 + 1)
                assert_true(density_at(&d, 0, (uint32_t)age) >= 0);
        assert_true(density_at(&d, 0, UINT32_MAX) >= 0);
}

/* --- ghosts --- */

static void a_ghost_is_taken_once(void **state)
{
        struct ghosts g;
        struct ghost put = { .id = 7, .time = 5, .class = 3, .uses = 9 }, taken, forgotten;

        assert_int_equal(ghosts_init(&g, 100), 0);
        assert_false(ghosts_take(&g, 7, &taken));
        assert_false(ghosts_put(&g, &put, &forgotten));
        assert_false(ghosts_take(&g, 8, &taken));
        assert_true(ghosts_take(&g, 7, &taken));
        assert_memory_equal(&taken, &put, sizeof(put));
        assert_false(ghosts_take(&g, 7, &taken));
        ghosts_fini(&g);
}

/* When there are more ghosts than room, the younger remain; each forgotten one was
 * released. */
static void the_oldest_ghosts_are_forgotten(void **state)
{
        enum { ROOM = 4096, PUT = 4 * ROOM };
        static bool forgotten[PUT + 1];
        struct ghosts g;
        struct ghost taken, lost;
        unsigned young = 0;

        assert_int_equal(ghosts_init(&g, ROOM), 0);
        for (uint32_t i = 1; i <= PUT; i++)
                if (ghosts_put(&g, &(struct ghost){ .id = i, .time = i }, &lost)) {
                        assert_false(forgotten[lost.id]);
                        forgotten[lost.id] = true;
                }
        for (uint32_t i = 1; i <= PUT; i++) {
                assert_int_equal(ghosts_take(&g, i, &taken), !forgotten[i]);
                young += i > PUT - ROOM / 2 && !forgotten[i];
        }
        assert_true(young > ROOM / 2 * 9 / 10);
        ghosts_fini(&g);
}

/* --- the policy --- */

/* Before it has learned anything, the policy is LRU, leaf first. */
static void without_traffic_the_oldest_goes(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(8, 2);

        assert_int_equal(victim(e), EVICT_NONE);
        for (uint32_t i = 0; i < 4; i++)
                evict_insert(e, i, 0, 4096);
        assert_int_equal(victim(e), 0);
        evict_touch(e, 0, 0, EVICT_NO_USE);
        assert_int_equal(victim(e), 1);
        assert_int_equal(evict_victim(e, 1, NULL, NULL, UINT32_MAX), EVICT_NONE);
        evict_remove(e, 1);
        assert_false(evict_contains(e, 1));
        assert_int_equal(victim(e), 2);
        assert_int_equal(evict_touched(e, 0), 5);
}

/* Returns the hits of a few items that are used repeatedly beside a stream of items that are used
 * once. LRU would hit none of them, because more items come in between than there is room for. */
static unsigned hits_beside_a_stream(const char *policy)
{
        enum { ITEMS = 256, OFTEN = 64, BETWEEN = 300, ROUNDS = 400 };
        struct evict *e = NULL;
        uint32_t where[OFTEN], id_of[ITEMS];
        uint64_t next_id = 1000;
        uint32_t n_items = 0;
        unsigned hits = 0;

        assert_int_equal(evict_new(&e, policy, ITEMS, 1), 0);
        memset(where, 0xff, sizeof(where));
        memset(id_of, 0xff, sizeof(id_of));
        for (unsigned round = 0; round < ROUNDS; round++)
                for (unsigned i = 0; i < OFTEN + BETWEEN; i++) {
                        uint32_t item, often = i < OFTEN ? i : EVICT_NONE;

                        if (often != EVICT_NONE && where[often] != EVICT_NONE) {
                                evict_touch(e, where[often], 0, EVICT_NO_USE);
                                hits += round >= ROUNDS / 2;
                                continue;
                        }
                        item = n_items;
                        if (n_items < ITEMS) {
                                n_items++;
                        } else {
                                item = victim(e);
                                evict_remove_victim(e, item, id_of[item]);
                                if (id_of[item] <= OFTEN)
                                        where[id_of[item] - 1] = EVICT_NONE;
                        }
                        id_of[item] = often != EVICT_NONE ? often + 1 : (uint32_t)next_id++;
                        evict_insert_known(e, item, 0, 1, id_of[item], EVICT_NO_USE,
                                           EVICT_PLACE_UNKNOWN);
                        if (often != EVICT_NONE)
                                where[often] = item;
                }
        evict_free(e);
        return hits * 100 / (OFTEN * (ROUNDS - ROUNDS / 2));
}

static void what_is_used_again_survives_a_stream(void **state)
{
        assert_int_equal(hits_beside_a_stream("lru"), 0);
        assert_in_range(hits_beside_a_stream("cq"), 80, 100);
}

static bool may_go(void *userdata, uint32_t item)
{
        return ((const bool *)userdata)[item];
}

static void what_may_not_go_is_passed_over(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(8, 1);
        bool may[8] = { false, false, true, true };

        for (uint32_t i = 0; i < 4; i++)
                evict_insert(e, i, 0, 1);
        assert_int_equal(evict_victim(e, 0, may_go, may, UINT32_MAX), 2);
        assert_int_equal(evict_victim(e, 0, may_go, may, 2), 2);
        assert_int_equal(evict_victim(e, 0, may_go, may, 1), EVICT_NONE);
        may[2] = may[3] = false;
        assert_int_equal(evict_victim(e, 0, may_go, may, UINT32_MAX), EVICT_NONE);
}

/* Random trees, touches and removals: a victim has no child that is in. */
static void no_item_goes_before_what_continues_it(void **state)
{
        enum { ITEMS = 200, STEPS = 200000, NONE = UINT32_MAX };
        _cleanup_(evict_freep) struct evict *e = make(ITEMS, 1);
        uint32_t seed = 1, parent[ITEMS], children[ITEMS] = { 0 };
        uint64_t id[ITEMS], next_id = 1;
        unsigned with_parent = 0;

        for (uint32_t i = 0; i < ITEMS; i++)
                parent[i] = NONE;
        for (unsigned step = 0; step < STEPS; step++) {
                uint32_t item = random_below(&seed, ITEMS), other = random_below(&seed, ITEMS);

                if (evict_contains(e, item) && random_below(&seed, 3) > 0) {
                        evict_touch(e, item, 0, EVICT_NO_USE);
                        continue;
                }
                if (evict_contains(e, item)) {
                        bool drop = random_below(&seed, 10) == 0;

                        item = drop ? item : victim(e);
                        assert_true(drop || children[item] == 0);
                        with_parent += !drop && parent[item] != NONE;
                        if (drop)
                                evict_remove(e, item);
                        else
                                evict_remove_victim(e, item, id[item]);
                        if (parent[item] != NONE)
                                children[parent[item]]--;
                        for (uint32_t i = 0; i < ITEMS; i++)
                                if (parent[i] == item)
                                        parent[i] = NONE;
                        children[item] = 0;
                        parent[item] = NONE;
                        continue;
                }
                /* An id may return: one in two is a ghost's. */
                id[item] = random_below(&seed, 2) ? next_id++
                                                  : 1 + random_below(&seed, 1000000) % next_id;
                for (uint32_t i = 0; i < ITEMS; i++)
                        if (i != item && evict_contains(e, i) && id[i] == id[item])
                                id[item] = next_id++;
                evict_insert_known(e, item, 0, 1, id[item], EVICT_NO_USE,
                                   (enum evict_place)random_below(&seed, 3));
                if (evict_contains(e, other) && other != item) {
                        evict_link(e, item, other);
                        evict_link(e, item, other);
                        parent[item] = other;
                        children[other]++;
                }
        }
        assert_true(with_parent > 1000);
}

/* Clients name the parents of their keys, so parents may form a circle. */
static void a_circle_of_parents_ends(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(8, 1);

        for (uint32_t i = 0; i < 4; i++)
                evict_insert_known(e, i, 0, 1, i + 1, EVICT_NO_USE, EVICT_PLACE_UNKNOWN);
        for (uint32_t i = 0; i < 4; i++)
                evict_link(e, i, (i + 1) % 4);
        evict_link(e, 2, 2);
        for (uint32_t i = 0; i < 4; i++) {
                uint32_t item = victim(e);

                assert_true(evict_contains(e, item));
                evict_remove_victim(e, item, item + 1);
        }
        assert_int_equal(victim(e), EVICT_NONE);
}

/* A child of another size frees no room of this one. */
static void a_victim_is_of_the_group_that_was_asked_for(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(8, 2);

        evict_insert(e, 0, 0, 1);
        evict_insert(e, 1, 1, 1);
        evict_link(e, 1, 0);
        assert_int_equal(evict_victim(e, 0, NULL, NULL, UINT32_MAX), 0);
        assert_int_equal(evict_victim(e, 1, NULL, NULL, UINT32_MAX), 1);
        evict_remove(e, 0);
        assert_int_equal(evict_victim(e, 1, NULL, NULL, UINT32_MAX), 1);
        evict_remove(e, 1);
}

/* An item whose parent was removed has none, even if the parent's slot is reused. */
static void a_parents_place_may_be_taken_again(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(8, 1);

        evict_insert(e, 0, 0, 1);
        evict_insert(e, 1, 0, 1);
        evict_link(e, 1, 0);
        evict_remove(e, 0);
        evict_insert(e, 0, 0, 1);
        evict_insert(e, 2, 0, 1);
        evict_link(e, 2, 0);
        evict_remove(e, 1);
        assert_int_equal(victim(e), 2);
        evict_remove(e, 2);
        assert_int_equal(victim(e), 0);
}

/* --- uses, and turns --- */

static unsigned class_at(const struct evict *e, uint32_t item)
{
        return cq(e)->items[item].class;
}

/* An item inserted and touched twice more by one request has been used once; another request
 * counts. */
static void one_use_counts_once(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(8, 1);

        evict_insert_known(e, 0, 0, 1, 1, 7, EVICT_PLACE_UNKNOWN);
        evict_touch(e, 0, 0, 7);
        evict_touch(e, 0, 0, 7);
        assert_int_equal(cq(e)->items[0].uses, 1);
        evict_touch(e, 0, 0, 8);
        evict_touch(e, 0, 0, 8);
        assert_int_equal(cq(e)->items[0].uses, 2);
        evict_touch(e, 0, 0, EVICT_NO_USE);
        evict_touch(e, 0, 0, EVICT_NO_USE);
        assert_int_equal(cq(e)->items[0].uses, 4);
}

/* A touch of the same use still makes an item the youngest. */
static void a_touch_of_the_same_use_counts_for_the_order(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(8, 1);

        for (uint32_t i = 0; i < 3; i++)
                evict_insert_known(e, i, 0, 1, i + 1, 7, EVICT_PLACE_UNKNOWN);
        evict_touch(e, 0, 0, 7);
        assert_int_equal(victim(e), 1);
        evict_touch(e, 1, 0, 7);
        assert_int_equal(victim(e), 2);
        assert_int_equal(cq(e)->items[1].uses, 1);
}

/* The turn of an item is learned from an earlier use and survives its eviction. Only items that the
 * present use has inserted are placed by it. */
static void the_turn_stays_with_the_item_and_its_ghost(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(8, 1);

        evict_insert_known(e, 0, 0, 1, 1, 7, EVICT_PLACE_UNKNOWN);
        evict_insert_known(e, 1, 0, 1, 2, 7, EVICT_PLACE_UNKNOWN);
        assert_int_equal(evict_turn(e, 0, 7), 0);
        assert_int_equal(evict_turn(e, 0, 8), 1); /* the turn of another item */
        evict_set_turn(e, 0, 0, 7, 9, false);
        evict_set_turn(e, 1, 0, 7, 9, true);
        assert_int_equal(evict_turn(e, 0, 7), EVICT_LAST_TURN);
        assert_int_equal(class_at(e, 0), EVICT_PLACE_CONTINUATION);
        assert_int_equal(class_at(e, 1), EVICT_PLACE_END);
        evict_set_turn(e, 0, 0, 8, 1, true);
        assert_int_equal(evict_turn(e, 0, 8), EVICT_LAST_TURN);
        assert_int_equal(class_at(e, 0), EVICT_PLACE_CONTINUATION);

        evict_remove_victim(e, 0, 1);
        evict_insert_known(e, 0, 0, 1, 1, 9, EVICT_PLACE_UNKNOWN);
        assert_int_equal(evict_turn(e, 0, 9), EVICT_LAST_TURN);
        /* Items found by recovery have a turn. */
        evict_insert(e, 2, 0, 1);
        assert_int_equal(evict_turn(e, 2, 9), 1);
}

static float worth(const struct evict *e, uint32_t item)
{
        struct evict_standing s;

        evict_explain(e, item, 0, &s);
        return (float)s.density;
}

/* Learns at once, although not enough items have been touched. */
static void learn(struct cq *q)
{
        q->learn_at = 0;
        cq_learn(q);
}

/* Marks a chain as a client's hint does: from the end up to an item from which another chain
 * continues. */
static void finish(struct evict *e, const uint32_t *chain, size_t n)
{
        while (n > 0 && evict_hint(e, chain[n - 1], EVICT_HINT_FINAL))
                n--;
}

/* A final chain is evicted first, from its end on, except items from which another chain continues;
 * a reused item is ordinary again. */
static void what_is_final_goes_first(void **state)
{
        enum { N = 8 };
        static const uint32_t parents[N] = { EVICT_NONE, 0, 1, 2, 1, 4, EVICT_NONE, 6 };
        static const uint32_t chain[] = { 0, 1, 2, 3 };
        _cleanup_(evict_freep) struct evict *e = make(N, 1);

        /* 6-7 is older than 0-1-2-3 and 0-1-4-5. */
        for (uint32_t k = 0; k < N; k++) {
                uint32_t i = N - 1 - k;

                evict_insert_known(e, i, 0, 1, i + 1, 7, EVICT_PLACE_UNKNOWN);
        }
        for (uint32_t i = 0; i < N; i++)
                if (parents[i] != EVICT_NONE)
                        evict_link(e, i, parents[i]);
        assert_int_equal(victim(e), 7);
        finish(e, chain, 4);
        finish(e, chain, 4);
        assert_int_equal(victim(e), 3); /* before anything is learned, and after it */
        for (int i = 0; i < 100; i++)
                density_hit(&cq(e)->density, EVICT_PLACE_UNKNOWN, 1000);
        learn(cq(e));
        assert_int_equal(victim(e), 3);
        evict_remove_victim(e, 3, 4);
        assert_int_equal(victim(e), 2);
        evict_remove_victim(e, 2, 3);
        assert_int_not_equal(victim(e), 1);
        assert_int_equal(class_at(e, 1), EVICT_PLACE_UNKNOWN);

        assert_true(evict_hint(e, 7, EVICT_HINT_FINAL));
        assert_true(evict_hint(e, 6, EVICT_HINT_FINAL));
        /* The use that inserted the item ends no hint; another one does. */
        evict_set_turn(e, 7, 0, 7, 1, true);
        evict_touch(e, 7, 0, 7);
        assert_int_equal(class_at(e, 7), FINAL);
        evict_touch(e, 6, 0, 8);
        evict_touch(e, 7, 0, 8);
        assert_int_not_equal(class_at(e, 6), FINAL);
        assert_int_not_equal(class_at(e, 7), FINAL);
}

/* In a circle of parents, each item is continued by another. */
static void a_circle_is_not_final(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(8, 1);

        for (uint32_t i = 0; i < 4; i++)
                evict_insert_known(e, i, 0, 1, i + 1, 7, EVICT_PLACE_UNKNOWN);
        for (uint32_t i = 0; i < 4; i++)
                evict_link(e, i, (i + 1) % 4);
        for (uint32_t i = 0; i < 4; i++) {
                assert_false(evict_hint(e, i, EVICT_HINT_FINAL));
                assert_int_equal(class_at(e, i), EVICT_PLACE_UNKNOWN);
        }
}

/* A hint of a return counts for nothing until such hints have been learned; then it counts for
 * their usual worth, so that a client that gives it for everything gains nothing. */
static void the_hint_of_a_return_is_worth_what_such_hints_were(void **state)
{
        enum { N = 4, SOON = FIRST_HINT };
        _cleanup_(evict_freep) struct evict *e = make(N, 1);
        struct density *d = &cq(e)->density;
        float without;

        for (uint32_t i = 0; i < N; i++)
                evict_insert_known(e, i, 0, 1, i + 1, 7 + i, EVICT_PLACE_UNKNOWN);
        assert_true(evict_hint(e, 0, evict_hint_return(EVICT_SOON_S)));
        assert_int_equal(class_at(e, 0), SOON);
        assert_true(evict_hint(e, 1, evict_hint_return(EVICT_LATER_S)));
        assert_int_equal(class_at(e, 1), SOON + 1);
        assert_true(evict_hint(e, 1, evict_hint_return(UINT32_MAX)));
        assert_int_equal(class_at(e, 1), SOON + 2);
        evict_touch(e, 1, 0, 20);
        assert_true(class_at(e, 1) < FIRST_HINT);

        for (int i = 0; i < 1000; i++) {
                density_hit(d, EVICT_PLACE_UNKNOWN, 8);
                density_loss(d, EVICT_PLACE_UNKNOWN, 8);
                density_hit(d, cq_class_of(2, EVICT_PLACE_UNKNOWN, EVICT_NO_GAP), 8);
        }
        learn(cq(e));
        without = density_at(d, EVICT_PLACE_UNKNOWN, cq_age(cq(e), &cq(e)->items[0]));
        assert_true(worth(e, 0) > 0);
        assert_true(worth(e, 0) == without);

        for (int i = 0; i < 1000; i++)
                density_hit(d, SOON, 8);
        learn(cq(e));
        assert_true(worth(e, 0) > without); /* such hints have held */

        for (int i = 0; i < 100000; i++)
                density_loss(d, SOON, 8);
        learn(cq(e));
        assert_true(worth(e, 0) < without);
        assert_int_equal(victim(e), 0);
}

struct refusals {
        uint32_t below;
        unsigned asked;
};

static bool may_from(void *userdata, uint32_t item)
{
        struct refusals *r = userdata;

        r->asked++;
        return item >= r->below;
}

/* A search passes over at most the given number of items that may not be evicted, in any list, and
 * a chain longer than the search takes only its share of the time. */
/* --- costs --- */

static void a_cost_is_a_level_for_each_byte(void **state)
{
        unsigned before = 1;

        assert_int_equal(evict_cost_level(0, 4096), EVICT_COST_UNKNOWN);
        assert_int_equal(evict_cost_level(1, UINT32_MAX), 1);
        assert_int_equal(evict_cost_level(UINT64_MAX, 1), EVICT_COSTS - 1);
        assert_int_equal(evict_cost_level(1000, 0), EVICT_COSTS - 1);
        /* Level 1 is 0.05 ns a byte, and each level is the square root of two times the previous
         * one. */
        assert_int_equal(evict_cost_level(50, 1000), 1);
        assert_int_equal(evict_cost_level(100, 1000), 3);
        assert_int_equal(evict_cost_level(200, 1000), 5);
        for (uint64_t ns = 1; ns < 1 << 20; ns += 7) {
                unsigned level = evict_cost_level(ns, 1000);

                assert_true(level >= before && level <= before + 1 && level < EVICT_COSTS);
                before = level;
        }
}

struct saved {
        uint64_t hits[2]; /* hits of cheap and of expensive keys */
};

/* Uses keys of two models equally often, of which a fifth fit. Keys with odd numbers have the cost
 * `dear`, the others `cheap`. */
static struct saved run_two_models(unsigned cheap, unsigned dear, uint32_t seed)
{
        enum { KEYS = 1000, ROOM = 200 };
        _cleanup_(evict_freep) struct evict *e = make(ROOM, 1);
        uint32_t at[KEYS], key_at[ROOM], n = 0;
        struct saved saved = { 0 };

        for (unsigned i = 0; i < KEYS; i++)
                at[i] = EVICT_NONE;
        for (unsigned i = 0; i < 200000; i++) {
                uint32_t key = random_below(&seed, KEYS), item = at[key];

                if (item != EVICT_NONE) {
                        saved.hits[key % 2] += i > 100000;
                        evict_touch(e, item, 0, EVICT_NO_USE);
                        continue;
                }
                if (n < ROOM) {
                        item = n++;
                } else {
                        item = victim(e);
                        evict_remove_victim(e, item, key_at[item] + 1);
                        at[key_at[item]] = EVICT_NONE;
                }
                evict_insert_known(e, item, 0, 4096, key + 1, EVICT_NO_USE, EVICT_PLACE_UNKNOWN);
                evict_set_cost(e, item, key % 2 ? dear : cheap);
                at[key] = item;
                key_at[item] = key;
        }
        return saved;
}

static void what_costs_more_stays_longer(void **state)
{
        enum { SEEDS = 160 };
        struct saved none = run_two_models(0, 0, 7), same = run_two_models(7, 7, 7),
                     four = run_two_models(5, 9, 7), unknown = { 0 };

        /* Without costs, or with equal ones, hits follow the traffic. */
        assert_true(none.hits[0] * 10 < none.hits[1] * 11 && none.hits[1] * 10 < none.hits[0] * 11);
        assert_true(same.hits[0] * 10 < same.hits[1] * 11 && same.hits[1] * 10 < same.hits[0] * 11);
        /* Four times the cost brings far more hits of those keys, and saves more time in total. */
        if (four.hits[1] < 3 * four.hits[0] ||
            four.hits[0] + 4 * four.hits[1] < (none.hits[0] + 4 * none.hits[1]) * 13 / 10)
                fail_msg("%llu and %llu hits; %llu and %llu without costs",
                         (unsigned long long)four.hits[0], (unsigned long long)four.hits[1],
                         (unsigned long long)none.hits[0], (unsigned long long)none.hits[1]);
        /* Items without a declared cost count as the mean of the others, here like the expensive
         * ones. Among equals, one run drifts to either side. */
        for (uint32_t seed = 1; seed <= SEEDS; seed++) {
                struct saved one = run_two_models(0, 9, seed);

                unknown.hits[0] += one.hits[0];
                unknown.hits[1] += one.hits[1];
        }
        assert_true(unknown.hits[0] * 10 < unknown.hits[1] * 11 &&
                    unknown.hits[1] * 10 < unknown.hits[0] * 11);
}

static void a_cost_stays_with_the_item_and_its_record(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(4, 1);
        struct evict_standing standing;
        struct evict_record record;

        evict_insert_known(e, 0, 0, 4096, 1, EVICT_NO_USE, EVICT_PLACE_UNKNOWN);
        evict_insert_known(e, 1, 0, 4096, 2, EVICT_NO_USE, EVICT_PLACE_UNKNOWN);
        evict_set_cost(e, 0, 15);
        assert_int_equal(evict_cost(e, 0), 15);
        assert_int_equal(evict_cost(e, 1), EVICT_COST_UNKNOWN);
        evict_touch(e, 0, 0, EVICT_NO_USE);
        evict_retain(e, 0, 0, true);
        evict_explain(e, 0, 0, &standing);
        assert_int_equal(standing.cost, 15);
        evict_save_item(e, 0, 1, &record);
        assert_int_equal(record.flags, EVICT_RECORD_RETAINED | 15 << EVICT_RECORD_COST);
        assert_true(evict_restore_item(
                e, 1, 0, &(struct evict_record){ .id = 2, .uses = 255, .flags = 9 << 4 }));
        assert_int_equal(evict_cost(e, 1), 9);
        /* A new item in its place has its own cost. */
        evict_remove(e, 0);
        evict_insert(e, 0, 0, 4096);
        assert_int_equal(evict_cost(e, 0), EVICT_COST_UNKNOWN);
}

static void a_search_is_bounded(void **state)
{
        enum { N = 4 * SEARCH_STEPS };
        _cleanup_(evict_freep) struct evict *e = make(N, 1);
        struct refusals r = { .below = N };

        for (uint32_t i = 0; i < N; i++) {
                evict_insert_known(e, i, 0, 1, i + 1, 7, (enum evict_place)(i % 3));
                if (i > 0)
                        evict_link(e, i, i - 1);
        }
        assert_int_equal(evict_victim(e, 0, may_from, &r, 10), EVICT_NONE);
        assert_int_equal(r.asked, 11);
        assert_int_equal(evict_victim(e, 0, NULL, NULL, 10), SEARCH_STEPS);
}

static bool may_but_one(void *userdata, uint32_t item)
{
        return item != *(const uint32_t *)userdata;
}

/* The end of the chain is leased, and the chain is shorter than a search. */
static void a_pinned_end_keeps_nothing_but_itself(void **state)
{
        enum { N = 9 };
        _cleanup_(evict_freep) struct evict *e = make(N, 1);
        uint32_t pinned = N - 1;

        for (uint32_t i = 0; i < N; i++) {
                evict_insert_known(e, i, 0, 1, i + 1, 7, (enum evict_place)(i % 3));
                if (i > 0)
                        evict_link(e, i, i - 1);
        }
        for (uint32_t i = N - 1; i-- > 0;) {
                assert_int_equal(evict_victim(e, 0, may_but_one, &pinned, 100), i);
                evict_remove_victim(e, i, i + 1);
        }
        assert_int_equal(evict_victim(e, 0, may_but_one, &pinned, 100), EVICT_NONE);
        assert_true(evict_contains(e, pinned));
}

/* The reported rank of an item is the one that the search for a victim uses. */
static void a_standing_is_that_of_the_search_for_a_victim(void **state)
{
        enum { N = 6 };
        _cleanup_(evict_freep) struct evict *e = make(N, 2);
        struct evict_standing s, next;

        for (uint32_t i = 0; i < N; i++) {
                evict_insert_known(e, i, 0, 1, i + 1, 7, EVICT_PLACE_UNKNOWN);
                if (i > 3)
                        evict_link(e, i, i - 1);
        }
        evict_touch(e, 1, 0, 8);
        for (int i = 0; i < 1000; i++) {
                density_hit(&cq(e)->density, cq_class_of(2, EVICT_PLACE_UNKNOWN, EVICT_NO_GAP), 4);
                density_loss(&cq(e)->density, EVICT_PLACE_UNKNOWN, 4);
                density_hit(&cq(e)->density, EVICT_PLACE_UNKNOWN, 64);
        }
        learn(cq(e));
        for (uint32_t i = 0; i < N; i++) {
                evict_explain(e, i, 0, &s);
                assert_int_equal(s.is_next, i == victim(e));
                assert_int_equal(s.is_continued, i == 3 || i == 4);
                assert_int_equal(s.class, i == 1 ? EVICT_CLASS_TWICE : EVICT_CLASS_ONCE);
                assert_true(s.least_density > 0);
                assert_int_equal(s.age, i == 1 ? 0 : N - i);
        }
        evict_explain(e, victim(e), 0, &next);
        assert_true(next.density == next.least_density);
        evict_explain(e, 1, 0, &s);
        assert_true(s.density > next.density);
        evict_hint(e, 5, EVICT_HINT_FINAL);
        evict_explain(e, 5, 0, &s);
        assert_int_equal(s.class, EVICT_CLASS_FINAL);
        assert_true(s.is_next && s.density == 0);
        evict_explain(e, 1, 0, &s);
        assert_true(s.least_density == 0);
}

static void what_an_item_is_worth_is_learned_and_by_recency_it_is_its_age(void **state)
{
        enum { ITEMS = 512 };
        _cleanup_(evict_freep) struct evict *e = make(ITEMS, 2);
        uint32_t seed = 3;

        for (uint32_t i = 0; i < ITEMS; i++)
                evict_insert_known(e, i, i % 2, 4096, i + 1, EVICT_NO_USE, EVICT_PLACE_UNKNOWN);
        assert_true(evict_worth(e, ITEMS - 1, true) == 1);
        assert_true(evict_worth(e, ITEMS - 11, true) == 1.0 / 11);
        /* Before anything is known, the younger item is also worth more. */
        assert_true(evict_worth(e, 1, false) < evict_worth(e, 2, false));
        /* A few items are used repeatedly, and the others once. */
        for (unsigned n = 0; n < 100000; n++) {
                uint32_t item = random_below(&seed, 32);

                if (n % 4 == 0) {
                        evict_touch(e, item, item % 2, EVICT_NO_USE);
                        continue;
                }
                item = 32 + n % (ITEMS - 32);
                evict_remove_victim(e, item, 1000 + n - (ITEMS - 32));
                evict_insert_known(e, item, item % 2, 4096, 1000 + n, EVICT_NO_USE,
                                   EVICT_PLACE_UNKNOWN);
        }
        (void)victim(e); /* learns */
        for (uint32_t i = 32; i < ITEMS; i++)
                assert_true(evict_worth(e, i % 32, false) > 2 * evict_worth(e, i, false));
        /* A cost counts, except by recency. */
        double before = evict_worth(e, 0, false), recency = evict_worth(e, 0, true);

        evict_set_cost(e, 0, 9);
        assert_true(evict_worth(e, 0, false) > 10 * before);
        assert_true(evict_worth(e, 0, true) == recency);
        assert_true(evict_slab_gain(e, 0, 100, true) < 100 * recency);
}

static void what_is_remembered_is_counted(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(8, 2);
        struct evict_stats stats;

        evict_insert_known(e, 0, 0, 1, 1, 7, EVICT_PLACE_UNKNOWN);
        evict_insert_known(e, 1, 0, 1, 2, 7, EVICT_PLACE_END);
        evict_remove_victim(e, 1, 2);
        evict_insert_known(e, 1, 0, 1, 2, 8, EVICT_PLACE_UNKNOWN);
        evict_remove_victim(e, 0, 1);
        evict_get_stats(e, &stats);
        assert_int_equal(stats.ghosts, 1);
        assert_int_equal(stats.ghost_hits, 1);
        assert_true(stats.ghosts_max >= 32);
        assert_int_equal(stats.item_bytes, 28);
        assert_int_equal(stats.ghost_bytes, 16);
}

static uint32_t reported[16], n_reported;

static void report(void *userdata, uint32_t item)
{
        reported[n_reported++] = item;
}

/* --- chains halfway between two uses --- */

/* Makes `q` believe that chains with a mean gap of 40 to 80 s are used again after a tenth of a
 * second or after a minute. */
static void learn_returns_after_a_minute(struct cq *q)
{
        for (int i = 0; i < 100000; i++)
                density_hit(&q->density, CLASSES - 1,
                            (uint32_t)((i % 2 ? 60 : 0.1) * GAP_TICKS_PER_S));
        learn(q);
}

static void at_second(struct evict *e, double seconds)
{
        evict_note_time(e, (uint64_t)((1 + seconds) * 1e9));
}

/* Makes an item one of a chain with a mean gap of about a minute, last used now. */
static void use_each_minute(struct evict *e, uint32_t item, uint32_t *use)
{
        if (!evict_contains(e, item))
                evict_insert_known(e, item, 0, 1, item + 1, ++*use, EVICT_PLACE_UNKNOWN);
        evict_touch(e, item, 0, ++*use);
        evict_touch(e, item, 0, ++*use);
        evict_set_gap(e, item, gap_mean(GAP_UNKNOWN, (uint64_t)(60 * GAP_TICKS_PER_S)));
}

static bool is_not_1(void *userdata, uint32_t item)
{
        (void)userdata;
        return item != 1;
}

static void a_chain_halfway_to_its_return_goes_before_one_that_returns_now(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(8, 2);
        struct evict_standing s;
        uint32_t use = 0;

        at_second(e, 0);
        use_each_minute(e, 0, &use);
        at_second(e, 35);
        use_each_minute(e, 1, &use);
        at_second(e, 55);
        learn_returns_after_a_minute(cq(e));
        assert_true(evict_worth(e, 1, false) < evict_worth(e, 0, false) / 2);
        assert_int_equal(victim(e), 1);
        evict_explain(e, 1, 0, &s);
        assert_true(s.class == EVICT_CLASS_GAP_80 && s.is_next && s.density == s.least_density);
        evict_explain(e, 0, 0, &s);
        assert_true(!s.is_next && s.density > s.least_density);
        evict_next(e, 0, 8, report, NULL);
        assert_int_equal(n_reported, 2);
        assert_true(reported[0] == 1 && reported[1] == 0);
        n_reported = 0;
        /* A pinned item protects only itself. */
        assert_int_equal(evict_victim(e, 0, is_not_1, NULL, UINT32_MAX), 0);
        assert_int_equal(evict_victim(e, 0, is_not_1, NULL, 1), 0);

        /* An item that was used just now is worth what it was worth when that was decided. */
        use_each_minute(e, 1, &use);
        assert_int_equal(victim(e), 0);
        /* The item whose return is far overdue goes first. */
        at_second(e, 75);
        use_each_minute(e, 2, &use);
        at_second(e, 400);
        assert_int_equal(victim(e), 0);
}

/* Fails unless each list's second candidate is in that list. */
static void check_lows(struct evict *e, uint32_t *seen)
{
        struct cq *q = cq(e);

        for (uint32_t list = 0; list < evict_policy_groups(e->max_groups) * LISTS; list++) {
                uint32_t low = q->lists[list].low, link = cq_oldest(q, list);

                if (low == 0)
                        continue;
                while (link != low && !(link & LINK_END))
                        link = q->items[link - 1].younger;
                assert_int_equal(link, low);
                ++*seen;
        }
}

static void the_candidate_in_the_middle_of_a_list_is_in_that_list(void **state)
{
        enum { N = 48, STEPS = 40000 };
        _cleanup_(evict_freep) struct evict *e = make(N, 2);
        uint32_t random = 1, use = 0, seen = 0;
        double seconds = 0;

        at_second(e, 0);
        learn_returns_after_a_minute(cq(e));
        for (uint32_t i = 0; i < STEPS; i++) {
                uint32_t item = random_below(&random, N), found;
                struct evict_promise promise = { .number = i + 1, .seconds = 30, .belief = 0.5F };
                struct evict_record record = { .id = item + 1, .class = CLASSES - 1, .uses = 3 };

                seconds += random_below(&random, 4) * 0.5;
                at_second(e, seconds);
                if (!evict_contains(e, item) || random_below(&random, 4) > 0) {
                        use_each_minute(e, item, &use);
                        continue;
                }
                switch (random_below(&random, 12)) {
                case 0:
                        evict_remove(e, item);
                        break;
                case 1:
                        evict_remove_victim(e, item, item + 1);
                        break;
                case 2:
                        evict_set_aside(e, item, 1);
                        break;
                case 3:
                        evict_bring_back(e, item, 0);
                        break;
                case 4:
                        (void)evict_demote(e, item, 0);
                        break;
                case 5:
                        evict_retain(e, item, 0, random_below(&random, 2) > 0);
                        break;
                case 6:
                        evict_set_cost(e, item, random_below(&random, EVICT_COSTS));
                        break;
                case 7:
                        (void)evict_hint(e, item, EVICT_HINT_LATER);
                        break;
                case 8:
                        evict_promise(e, item, &promise);
                        break;
                case 9:
                        evict_spare(e, item, 0);
                        break;
                case 10:
                        (void)evict_restore_item(e, item, 0, &record);
                        break;
                default:
                        found = victim(e);
                        if (found != EVICT_NONE)
                                evict_remove_victim(e, found, found + 1);
                }
                check_lows(e, &seen);
        }
        assert_true(seen > 1000);
}

/* Each item is reported once, the least worth first, and the policy does not change. */
static void what_is_next_and_whether_it_returns_is_told_apart(void **state)
{
        enum { N = 5 };
        _cleanup_(evict_freep) struct evict *e = make(N, 2), *lru = NULL;
        struct density *d = &cq(e)->density;

        for (uint32_t i = 0; i < N; i++)
                evict_insert_known(e, i, 0, 1, i + 1, 7 + i, EVICT_PLACE_UNKNOWN);
        assert_true(evict_chance(e, 0) == 0); /* nothing was learned */
        assert_true(evict_hint(e, 3, EVICT_HINT_FINAL));
        assert_true(evict_hint(e, 1, EVICT_HINT_SOON));
        assert_true(evict_chance(e, 1) == 1 && evict_chance(e, 3) == 0);

        for (int i = 0; i < 1000; i++) {
                density_hit(d, EVICT_PLACE_UNKNOWN, 8);
                density_loss(d, EVICT_PLACE_UNKNOWN, 8);
                density_loss(d, FIRST_HINT, 8);
        }
        learn(cq(e));
        assert_float_equal(evict_chance(e, 0), 0.5, 0.01);
        assert_true(evict_chance(e, 1) == 0); /* such hints were wrong */

        evict_next(e, 0, 8, report, NULL);
        assert_int_equal(n_reported, N);
        assert_int_equal(1u << reported[0] | 1u << reported[1], 1 << 3 | 1 << 1);
        assert_true(reported[2] == 0 && reported[3] == 2 && reported[4] == 4);
        n_reported = 0;
        evict_next(e, 0, 2, report, NULL);
        assert_int_equal(n_reported, 2);
        evict_next(e, 1, 2, report, NULL);
        assert_int_equal(n_reported, 2);

        assert_int_equal(evict_new(&lru, "lru", N, 1), 0);
        for (uint32_t i = 0; i < 3; i++)
                evict_insert(lru, i, 0, 1);
        evict_touch(lru, 0, 0, EVICT_NO_USE);
        n_reported = 0;
        evict_next(lru, 0, 2, report, NULL);
        assert_int_equal(n_reported, 2);
        assert_true(reported[0] == 1 && reported[1] == 2);
        assert_true(evict_chance(lru, 0) == 0);
}

/* Reports begin with a group's first eviction, and are repeated after each interval of its own
 * evictions. */
static void what_is_evicted_next_is_reported_in_time(void **state)
{
        enum { N = 64, INTERVAL = N / 16 + 1 };
        _cleanup_(evict_freep) struct evict *e = make(N, 2);

        for (uint32_t i = 0; i < N; i++)
                evict_insert(e, i, 0, 1);
        n_reported = 0;
        evict_report_leaving(e, 0, N, report, NULL);
        assert_false(evict_reports_are_due(e));
        assert_int_equal(n_reported, 0);
        for (unsigned round = 0; round < 3; round++) {
                for (unsigned i = 0; i < (round == 0 ? 1 : INTERVAL); i++) {
                        assert_false(evict_reports_are_due(e));
                        evict_note_leaving(e, 0);
                }
                evict_note_leaving(e, 0); /* more, before anybody looks */
                assert_true(evict_reports_are_due(e));
                evict_report_leaving(e, 1, N, report, NULL);
                assert_int_equal(n_reported, 0);
                evict_report_leaving(e, 0, N, report, NULL);
                assert_int_equal(n_reported, 2 * INTERVAL);
                n_reported = 0;
        }
}

static void times_that_overflow_keep_their_order(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(8, 1);

        cq(e)->now = UINT32_MAX - 4;
        for (uint32_t i = 0; i < 8; i++)
                evict_insert_known(e, i, 0, 1, i + 1, EVICT_NO_USE, EVICT_PLACE_UNKNOWN);
        assert_int_equal(cq(e)->now, (uint64_t)UINT32_MAX + 4);
        for (uint32_t i = 0; i < 8; i++) {
                assert_int_equal(victim(e), i);
                evict_remove_victim(e, i, i + 1);
        }
        for (uint32_t i = 0; i < 8; i++)
                evict_insert_known(e, i, 0, 1, i + 1, EVICT_NO_USE, EVICT_PLACE_UNKNOWN);
        assert_true(evict_touched(e, 7) <= cq(e)->now);
}

#define SECOND UINT64_C(1000000000)

/* Items keep a use in few bits. The time distinguishes uses whose numbers are equal there. */
static void a_use_with_the_number_of_an_old_one_counts(void **state)
{
        _cleanup_(evict_freep) struct evict *e = make(8, 1);
        const struct cq_item *i = &cq(e)->items[0];
        uint64_t now = 1000 * SECOND;

        for (uint32_t use = 5; use < 5 + 7 * CQ_USES; use += CQ_USES) {
                unsigned before = i->uses;

                evict_note_time(e, now);
                if (evict_contains(e, 0))
                        evict_touch(e, 0, 0, use);
                else
                        evict_insert_known(e, 0, 0, 4096, 1, use, EVICT_PLACE_UNKNOWN);
                assert_int_equal(i->uses, before + 1);
                /* The use is one, however often it touches the item within a minute. */
                for (unsigned n = 0; n < 5; n++) {
                        evict_note_time(e, now += 50 * SECOND);
                        evict_touch(e, 0, 0, use);
                        assert_int_equal(i->uses, before + 1);
                        assert_int_equal(evict_chain_gap(e, 0, use, NULL), i->gap);
                }
                now += 100 * SECOND;
        }
        /* An old use of that number does not protect an item from the request that is served. */
        evict_note_time(e, now);
        evict_insert_known(e, 1, 0, 4096, 2, 6, EVICT_PLACE_UNKNOWN);
        evict_serve(e, 5);
        assert_int_equal(victim(e), 0);
}

/* All touches of a request have the same time. Their order is saved, in few bits. */
static void touches_of_one_tick_keep_their_order_when_saved(void **state)
{
        enum { ITEMS = 6000, EXACT = 1000, STEP = 16, LAST = 3000 };
        static struct evict_record records[ITEMS];
        _cleanup_(evict_freep) struct evict *e = make(ITEMS, 1), *again = make(ITEMS, 1);
        struct evict_learned learned;
        uint32_t last = 0;

        evict_note_time(e, 1000 * SECOND);
        evict_insert_known(e, ITEMS - 1, 0, 1, ITEMS, EVICT_NO_USE, EVICT_PLACE_UNKNOWN);
        evict_note_time(e, 2000 * SECOND);
        for (uint32_t i = ITEMS - 1; i-- > 0;)
                evict_insert_known(e, i, 0, 1, i + 1, EVICT_NO_USE, EVICT_PLACE_UNKNOWN);
        for (uint32_t i = 0; i < ITEMS; i++) {
                evict_save_item(e, i, i + 1, &records[i]);
                assert_true(records[i].touched <= evict_touches(e)); /* for earlier versions */
        }
        assert_true(records[ITEMS - 1].time < records[0].time);
        for (uint32_t n = 0; n < ITEMS - 1; n++) {
                const struct evict_record *r = &records[ITEMS - 2 - n];

                assert_true(n == 0 || r->touched >= last);
                assert_true(n == 0 || n >= EXACT || r->touched > last);
                assert_true(n < STEP || r->touched > records[ITEMS - 2 - n + STEP].touched);
                last = r->touched;
        }

        /* Restored in that order, they are evicted and saved in that order. */
        for (uint32_t i = 0; i < ITEMS; i++)
                evict_insert(again, i, 0, 1);
        evict_save(e, &learned);
        assert_true(evict_restore(again, &learned));
        for (uint32_t i = ITEMS; i-- > 0;)
                assert_true(evict_restore_item(again, i, 0, &records[i]));
        for (uint32_t i = 0; i < ITEMS; i++) {
                struct evict_record r;

                evict_save_item(again, i, i + 1, &r);
                assert_int_equal(r.touched, records[i].touched);
        }
        for (uint32_t i = ITEMS; i-- > LAST;) {
                assert_int_equal(victim(again), i);
                evict_remove_victim(again, i, i + 1);
        }
}

/* The number of a touch is not kept. It follows from the time, before and after the first time that
 * is reported, and grows with it. */
static void the_number_of_a_touch_follows_from_its_time(void **state)
{
        enum { ITEMS = 4000, UNTIMED = 100 };
        _cleanup_(evict_freep) struct evict *e = make(ITEMS + 1, 1);
        static uint64_t touch[ITEMS];
        uint64_t now = 1000 * SECOND, last = 0;
        uint32_t random = 3;

        evict_insert(e, ITEMS, 0, 1);
        for (uint32_t i = 0; i < ITEMS; i++) {
                if (i >= UNTIMED)
                        evict_note_time(e, now += 1000000 * (2 + random_below(&random, 2000)));
                for (uint32_t n = random_below(&random, 20); n > 0; n--)
                        evict_touch(e, ITEMS, 0, EVICT_NO_USE);
                evict_insert(e, i, 0, 1);
                touch[i] = evict_touches(e);
        }
        evict_note_time(e, now += SECOND);
        for (uint32_t i = 0; i < ITEMS; i++) {
                uint64_t is = evict_touches(e) - touch[i],
                         estimated = evict_touches(e) - evict_touched(e, i);

                assert_true(evict_touched(e, i) >= last && evict_touched(e, i) > 0);
                last = evict_touched(e, i);
                assert_true(estimated <= is + is / 8 + 100 &&
                            is <= estimated + estimated / 8 + 100);
                if (i < UNTIMED)
                        assert_true(evict_touched(e, i) <= touch[i] + 1);
        }
}

static void the_same_calls_choose_the_same(void **state)
{
        assert_int_equal(hits_beside_a_stream("cq"), hits_beside_a_stream("cq"));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(what_is_hit_soon_is_worth_most),
                cmocka_unit_test(densities_are_those_of_the_best_horizons),
                cmocka_unit_test(what_lasts_counts_until_its_age),
                cmocka_unit_test(a_density_that_rises_again_has_a_low),
                cmocka_unit_test(
                        a_class_that_few_have_aged_in_expects_the_hits_of_the_class_before),
                cmocka_unit_test(a_unit_twice_as_long_halves_ages),
                cmocka_unit_test(old_counts_fade),
                cmocka_unit_test(every_age_has_a_density),
                cmocka_unit_test(a_ghost_is_taken_once),
                cmocka_unit_test(the_oldest_ghosts_are_forgotten),
                cmocka_unit_test(without_traffic_the_oldest_goes),
                cmocka_unit_test(what_is_used_again_survives_a_stream),
                cmocka_unit_test(what_may_not_go_is_passed_over),
                cmocka_unit_test(no_item_goes_before_what_continues_it),
                cmocka_unit_test(a_circle_of_parents_ends),
                cmocka_unit_test(a_victim_is_of_the_group_that_was_asked_for),
                cmocka_unit_test(a_parents_place_may_be_taken_again),
                cmocka_unit_test(one_use_counts_once),
                cmocka_unit_test(a_touch_of_the_same_use_counts_for_the_order),
                cmocka_unit_test(the_turn_stays_with_the_item_and_its_ghost),
                cmocka_unit_test(what_is_final_goes_first),
                cmocka_unit_test(a_circle_is_not_final),
                cmocka_unit_test(the_hint_of_a_return_is_worth_what_such_hints_were),
                cmocka_unit_test(a_cost_is_a_level_for_each_byte),
                cmocka_unit_test(what_costs_more_stays_longer),
                cmocka_unit_test(a_cost_stays_with_the_item_and_its_record),
                cmocka_unit_test(a_search_is_bounded),
                cmocka_unit_test(a_pinned_end_keeps_nothing_but_itself),
                cmocka_unit_test(a_standing_is_that_of_the_search_for_a_victim),
                cmocka_unit_test(what_is_remembered_is_counted),
                cmocka_unit_test(what_an_item_is_worth_is_learned_and_by_recency_it_is_its_age),
                cmocka_unit_test(a_chain_halfway_to_its_return_goes_before_one_that_returns_now),
                cmocka_unit_test(the_candidate_in_the_middle_of_a_list_is_in_that_list),
                cmocka_unit_test(what_is_next_and_whether_it_returns_is_told_apart),
                cmocka_unit_test(what_is_evicted_next_is_reported_in_time),
                cmocka_unit_test(times_that_overflow_keep_their_order),
                cmocka_unit_test(a_use_with_the_number_of_an_old_one_counts),
                cmocka_unit_test(touches_of_one_tick_keep_their_order_when_saved),
                cmocka_unit_test(the_number_of_a_touch_follows_from_its_time),
                cmocka_unit_test(the_same_calls_choose_the_same),
        };

        return cmocka_run_group_tests_name("evict-cq", tests, NULL, NULL);
}

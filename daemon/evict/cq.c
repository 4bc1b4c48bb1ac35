/* SPDX-License-Identifier: Apache-2.0 */
/* Count queues: LRU lists by the number of uses of an item. The victim is the least valuable of the
 * lists' ends, by densities learned from the traffic.
 *
 * An item used once is in one of three lists, by its place in its chain on insertion. Items of a
 * session's third or later turn mostly return with the next turn. Items at the beginning of a new
 * prompt mostly do not, and the end of a chain, which the next turn continues, returns least of
 * all. Items used more often are in lists by the count: 2, 3, 4 to 5, 6 to 11, 12 and more. Items
 * with a client's hint have lists of their own, whatever their count: three by the predicted
 * return, and one for items said not to return. The trust in hints is learned like everything else,
 * so that false hints soon count for nothing. Until a list of returning items has been learned, its
 * items count as if they had no hint; the list of final items is believed until it is learned. The
 * hint of a return within a minute is ignored for chains known to be quick. A return whose time is
 * announced is a promise instead (cq-promise.c), which is judged by that time and by the belief in
 * its user.
 *
 * A chain that returns quickly, as an agent's does after a tool call, is better described by the
 * mean gap between its uses than by their number. Each item and each ghost keeps that mean in one
 * byte (gap.h). Four more lists hold the items of chains with a mean gap below 10, 20, 40 and 80 s.
 * Until such a list has been learned, its items count by the number of their uses. Nothing is kept
 * for each chain: the owner takes the mean from the deepest known item of a request
 * (evict_chain_gap()) and gives it to all of them (evict_set_gap()).
 *
 * A touch moves an item to the young end of its list: O(1). Among the oldest items of the sixteen
 * lists, the one with the lowest density at its age is worth least, unless a younger item of a
 * quick chain is worth less because its return is further away (cq-victim.c); of equal items a
 * final one is evicted first, then the oldest. Leaf first holds within a list, because a chain is
 * touched from its end to its root. Across lists it holds for linked items: the victim is the end
 * of the chain that continues the least valuable item. A hit is weighted by the cost per byte of
 * recomputing the item, as far as clients report it. Each of the sixteen classes has a list for
 * each of three cost bands, and one for items of unknown cost, which count as the mean. Evicted
 * items remain as ghosts, so that their next use is learned from and their count continues; without
 * ghosts the policy would learn only from kept items.
 *
 * A new item whose worth at age 0 is below that of the present victims gives way, if these are of
 * quick chains: it enters, and is evicted before all others by the next search that may evict it
 * (cq-victim.c). Chains whose return times are not known cannot claim room from new ones, so that a
 * policy that has learned little takes every new item as the youngest. The beginning of a long
 * request thus stays, as far as it replaces something worth less, and its rest passes through a few
 * slots. The next use of the item ends that state.
 *
 * One use counts once, however often it touches an item, because the item stores the number of the
 * last use. The turn of an item follows from that of its predecessor in the chain, and is kept in
 * the ghost.
 *
 * Ages are in ticks of the reported time, about a millisecond (gap.h), because sessions return
 * after a time and not after a number of touches. Until a time is reported, each touch is a tick.
 * The time is a 32-bit number whose unit doubles before it would overflow, as in lru.c. The order
 * of touches within a tick is kept beside it, because all touches of a request may have the same
 * tick.
 *
 * Runs on the thread of its owner. 28 bytes per item, 12 more where chains fork (cq-chain.c), and
 * 16 bytes per ghost, four to eight ghosts per item but at most MAX_GHOSTS; memory becomes resident
 * on use. Cannot fail once created. Deterministic. */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "base/pages.h"
#include "checked.h"
#include "evict/cq-internal.h"
#include "warm.h"

enum {
        CQ_MAX_GROUPS = UINT16_MAX - 1,
        GHOSTS_PER_ITEM = 4,
        MAX_GHOSTS = 1 << 22,
        /* The counts of ended stays (density.h) are halved when their sum reaches MEMORY_PER_ITEM
         * for each item, but not below MEMORY_LEAST. */
        MEMORY_PER_ITEM = 64,
        MEMORY_LEAST = 1 << 18,
};

/* The first three classes are for items used once, in the order of enum evict_place. A gap counts
 * from the third use on, or from the second one of an item of a later turn: a single gap is no
 * mean, and most chats have no more. */
uint8_t cq_class_of(unsigned uses, unsigned place, uint8_t gap)
{
        enum { TWICE = EVICT_PLACE_END + 1 };
        unsigned quick = gap_class(gap);

        static_assert(TWICE + 5 == (int)FIRST_HINT, "a list each");
        if (uses <= 1)
                return (uint8_t)place;
        if (quick < GAP_CLASSES && (uses > 2 || place == EVICT_PLACE_CONTINUATION))
                return (uint8_t)(FIRST_GAP + quick);
        if (uses <= 3)
                return (uint8_t)(TWICE + uses - 2);
        return uses <= 5 ? TWICE + 2 : uses <= 11 ? TWICE + 3 : TWICE + 4;
}

/* Makes each class of items used more than once follow the class of items used less often, because
 * items used more often are at least as likely to return. */
static void follow_by_uses(struct density *d)
{
        unsigned before = EVICT_PLACE_UNKNOWN;

        for (unsigned uses = 2; uses <= MAX_USES; uses++) {
                unsigned class = cq_class_of(uses, EVICT_PLACE_UNKNOWN, GAP_UNKNOWN);

                if (class == before)
                        continue;
                density_follow(d, class, before);
                before = class;
        }
}

/* Returns the number of nodes for families: one per child that has siblings, and one per fork,
 * which has at least two children. */
static uint64_t kin_for(uint32_t max_items)
{
        return (uint64_t)max_items + max_items / 2;
}

static void cq_free(struct evict *e)
{
        struct cq *q = cq(e);

        ghosts_fini(&q->ghosts);
        cq_promises_fini(&q->promises);
        pages_ahead_fini(&q->items_ahead);
        pages_ahead_fini(&q->kin_ahead);
        if (q->items)
                pages_unmap(q->items, e->max_items * sizeof(q->items[0]));
        if (q->kin)
                pages_unmap(q->kin, kin_for(e->max_items) * sizeof(q->kin[0]));
        free(q->prices);
        free(q);
}

static int cq_new(struct evict **ret, uint32_t max_items, uint32_t max_groups)
{
        uint64_t ghosts = MIN((uint64_t)max_items * GHOSTS_PER_ITEM, (uint64_t)MAX_GHOSTS);
        struct cq *q;

        if (max_groups > CQ_MAX_GROUPS || max_items >= LINK_END)
                return -EINVAL;
        q = calloc(1,
                   sizeof(*q) + ((size_t)max_groups * LISTS + MAX_PROMISES) * sizeof(q->lists[0]));
        if (!q)
                return -ENOMEM;
        q->items = pages_map(max_items * sizeof(q->items[0])); /* pages, because calloc() would not
                                                                * align the items */
        q->kin = pages_map(kin_for(max_items) * sizeof(q->kin[0]));
        q->prices = calloc(max_groups, sizeof(q->prices[0]));
        q->evict.max_items = max_items;
        if (!q->items || !q->kin || !q->prices ||
            cq_promises_init(&q->promises, max_groups * LISTS) < 0 ||
            ghosts_init(&q->ghosts, ghosts) < 0) {
                cq_free(&q->evict);
                return -ENOMEM;
        }
        pages_ahead_init(&q->items_ahead, q->items, max_items * sizeof(q->items[0]));
        pages_ahead_init(&q->kin_ahead, q->kin, kin_for(max_items) * sizeof(q->kin[0]));
        density_init(&q->density, MAX((double)max_items * MEMORY_PER_ITEM, (double)MEMORY_LEAST));
        follow_by_uses(&q->density);
        q->learn_at = CQ_LEARN_LEAST;
        for (unsigned i = 1; i < EVICT_COSTS; i++)
                q->weight[i] = exp2f((float)(i - 1) / 2);
        cq_weigh(q);
        q->lists_used = CLASSES;
        *ret = &q->evict;
        return 0;
}

static void cq_make_oldest(struct evict *e, uint32_t item, uint32_t group)
{
        struct cq *q = cq(e);
        struct cq_item *i = &q->items[item];
        uint32_t list = group * LISTS + cq_list_of(i);

        cq_unlink(q, item);
        i->group = (uint16_t)group;
        cq_prepend_to(q, item, list);
}

/* Decides whether a new item gives way. The items after it in the same request give way, too,
 * because they cannot be hit without this item. */
static void decide_to_yield(struct cq *q, uint32_t item, uint32_t group)
{
        struct cq_item *i = &q->items[item];

        if (q->evict.admits_all) {
                i->yields = 0;
                return;
        }
        if (q->first_to_yield == item + 1 || q->time - q->yielding_since > USE_TICKS)
                q->yielding_use = EVICT_NO_USE;
        if (i->is_contended && i->last_use != EVICT_NO_USE && i->last_use == q->yielding_use) {
                i->yields = 1;
                return;
        }
        i->yields = i->is_contended && cq_gives_way(q, i, group);
        if (i->yields) {
                q->first_to_yield = item + 1;
                q->yielding_use = i->last_use;
                q->yielding_since = q->time;
        }
}

static void cq_insert(struct evict *e, uint32_t item, uint32_t group, uint32_t bytes, uint64_t id,
                      uint32_t use, unsigned place)
{
        struct cq *q = cq(e);
        struct cq_price *price = &q->prices[group];
        struct cq_item *i = &q->items[item];
        unsigned uses = 1, turn = 0;
        uint8_t gap = GAP_UNKNOWN;
        struct ghost ghost;

        cq_tick(q);
        if (id != 0 && ghosts_take(&q->ghosts, id, &ghost)) {
                density_hit(&q->density, ghost.class, cq_clock(q) - ghost.time);
                gap = ghost.gap; /* the mean gap that the owner had set for the chain */
                uses = MIN(ghost.uses + 1U, (unsigned)MAX_USES);
                turn = MAX(ghost.turn, (uint8_t)1);
                q->ghost_hits++;
        }
        q->high = MAX(q->high, item + 1);
        pages_ahead_use(&q->items_ahead, (uint64_t)q->high * sizeof(q->items[0]));
        q->items_in++;
        *i = (struct cq_item){
                .group = (uint16_t)group,
                .class = cq_class_of(uses, uses > 1 ? cq_place_of(turn) : place, gap) & 0xf,
                .turn = turn & 0x3,
                .uses = uses & 0xf,
                .last_use = cq_use(use) & CQ_USES,
                .gap = gap,
                .is_contended = price->searches > 0,
        };
        cq_stamp(q, i, cq_clock(q));
        decide_to_yield(q, item, group);
        price->searches -= i->is_contended;
        q->n_cost[0]++;
        cq_append(q, item, group);
}

static void cq_refresh(struct evict *e, uint32_t item, uint32_t group)
{
        struct cq *q = cq(e);
        struct cq_item *i = &q->items[item];

        cq_tick(q);
        cq_stamp(q, i, cq_clock(q));
        if (i->group == group && cq_is_in_promise(i))
                return; /* the rest of a use must not remove the item from its promise */
        cq_unlink(q, item);
        if (i->group != group)
                i->yields = i->is_contended = 0;
        i->group = (uint16_t)group;
        cq_append(q, item, group);
}

/* Makes the item the next victim: moves it to the list of items that give way, where no search
 * spares it. */
static void cq_demote(struct evict *e, uint32_t item, uint32_t group)
{
        struct cq *q = cq(e);

        cq_unlink(q, item);
        q->items[item].yields = 1;
        q->items[item].is_contended = 0;
        cq_append(q, item, group);
}

/* Removes the item from a promise, too, so that a search that spares the item does not meet it
 * again. */
static void cq_promote(struct evict *e, uint32_t item, uint32_t group)
{
        struct cq *q = cq(e);
        struct cq_item *i = &q->items[item];

        cq_unlink(q, item);
        cq_tick(q);
        cq_stamp(q, i, cq_clock(q));
        i->yields = i->is_contended = 0;
        i->group = (uint16_t)group;
        cq_append(q, item, group);
}

static void cq_touch(struct evict *e, uint32_t item, uint32_t group, uint32_t use)
{
        struct cq *q = cq(e);
        struct cq_item *i = &q->items[item];

        use = cq_use(use);
        if (cq_is_of_use(q, i, use)) {
                cq_refresh(e, item, group);
                return;
        }
        i->last_use = use & CQ_USES;
        cq_tick(q);
        density_hit(&q->density, i->class, cq_age(q, i));
        cq_unlink(q, item);
        cq_stamp(q, i, cq_clock(q));
        i->group = (uint16_t)group;
        i->yields = i->is_contended = 0;
        i->uses = MIN(i->uses + 1U, (unsigned)MAX_USES) & 0xf;
        i->class = cq_class_of(i->uses, cq_place_of(i->turn), i->gap) & 0xf;
        cq_append(q, item, group);
}

/* Moves the item to the list of another class during the use that brought or touched it. */
static void reclass(struct cq *q, uint32_t item, unsigned class)
{
        struct cq_item *i = &q->items[item];

        cq_unlink(q, item);
        i->class = class & 0xf;
        decide_to_yield(q, item, i->group);
        cq_append(q, item, i->group);
}

static void cq_set_gap(struct evict *e, uint32_t item, uint8_t gap)
{
        struct cq *q = cq(e);
        struct cq_item *i = &q->items[item];
        unsigned class;

        if (i->gap == gap)
                return;
        i->gap = gap;
        if (i->uses <= 1 || cq_has_hint(i))
                return;
        class = cq_class_of(i->uses, cq_place_of(i->turn), gap);
        if (i->class != class)
                reclass(q, item, class);
}

/* Describes the gap of `ticks` that ends now in *ret, and returns the mean including this gap. */
static uint8_t end_gap(uint8_t mean, uint64_t ticks, struct evict_return *ret)
{
        ret->gap_s = gap_seconds(mean);
        ret->age_ns = ticks << GAP_TICK_BITS;
        return gap_mean(mean, ticks);
}

static uint8_t cq_chain_gap(const struct evict *e, uint32_t item, uint32_t use,
                            struct evict_return *ret)
{
        const struct cq *q = cq(e);
        const struct cq_item *i = &q->items[item];

        if (cq_is_of_use(q, i, cq_use(use)))
                return i->gap;
        return end_gap(i->gap, (uint64_t)cq_age(q, i) << q->time_unit, ret);
}

static uint8_t cq_gap(const struct evict *e, uint32_t item)
{
        return cq(e)->items[item].gap;
}

static uint8_t cq_remembered_gap(const struct evict *e, uint64_t id, struct evict_return *ret)
{
        const struct cq *q = cq(e);
        struct ghost ghost;

        if (!ghosts_find(&q->ghosts, id, &ghost))
                return GAP_UNKNOWN;
        return end_gap(ghost.gap, (uint64_t)(cq_clock(q) - ghost.time) << q->time_unit, ret);
}

static bool cq_yields(const struct evict *e, uint32_t item)
{
        return cq(e)->items[item].yields;
}

/* Returns whether this use inserted the item and no other use has touched it. */
static bool is_first_use(const struct cq *q, const struct cq_item *i, uint32_t use)
{
        return i->uses == 1 && cq_is_of_use(q, i, cq_use(use));
}

static unsigned cq_turn(const struct evict *e, uint32_t item, uint32_t use)
{
        const struct cq *q = cq(e);
        const struct cq_item *i = &q->items[item];

        return i->turn == 0 && !is_first_use(q, i, use) ? 1 : i->turn;
}

/* Sets the turn of an item whose turn is not known. If this use inserted the item, and no hint
 * applies to it, also moves it to the list for its place in the chain; the touch that follows makes
 * it the youngest there. */
static void cq_set_turn(struct evict *e, uint32_t item, uint32_t group, uint32_t use, unsigned turn,
                        bool is_end)
{
        struct cq *q = cq(e);
        struct cq_item *i = &q->items[item];
        unsigned class;

        (void)group;
        if (i->turn == 0)
                i->turn = turn & 0x3;
        if (!is_first_use(q, i, use) || cq_has_hint(i))
                return;
        class = is_end ? EVICT_PLACE_END : cq_place_of(turn);
        if (i->class != class)
                reclass(q, item, class);
}

/* Prefetches the item in step 0, and its neighbours in step 1. */
static void cq_warm(const struct evict *e, uint32_t item, unsigned step)
{
        const struct cq *q = cq(e);
        const struct cq_item *i = &q->items[item];

        if (step == 0) {
                warm(i, 1);
                return;
        }
        if (i->older == 0)
                return;
        if (!(i->older & LINK_END))
                warm(&q->items[i->older - 1], 1);
        if (!(i->younger & LINK_END))
                warm(&q->items[i->younger - 1], 1);
}

static void cq_populate(const struct evict *e, uint32_t from, uint32_t to)
{
        pages_populate(&cq(e)->items[from], (uint64_t)(to - from) * sizeof(struct cq_item));
}

static void cq_populate_ahead(struct evict *e, bool on)
{
        struct cq *q = cq(e);

        if (on)
                pages_ahead_restart(&q->items_ahead, (uint64_t)q->high * sizeof(q->items[0]));
        else
                pages_ahead_pause(&q->items_ahead);
}

static void cq_unpopulate(const struct evict *e, uint32_t from)
{
        pages_unpopulate(&cq(e)->items[from],
                         (uint64_t)(e->max_items - from) * sizeof(struct cq_item));
}

static void set_class(struct cq *q, uint32_t item, unsigned class)
{
        cq_unlink(q, item);
        q->items[item].class = class & 0xf;
        q->items[item].yields = evict_is_demoted(&q->evict, item);
        q->items[item].is_contended = 0;
        cq_append(q, item, q->items[item].group);
}

static bool cq_hint(struct evict *e, uint32_t item, unsigned hint)
{
        struct cq *q = cq(e);
        unsigned class = FIRST_HINT + hint - EVICT_HINT_SOON;

        if (class == FINAL && cq_is_continued(q, &q->items[item]))
                return false;
        /* The mean gap of a chain that returns quickly is more exact than "within a minute". */
        if (hint == EVICT_HINT_SOON && q->items[item].class >= FIRST_GAP)
                return true;
        if (q->items[item].class != class)
                set_class(q, item, class);
        return true;
}

static void cq_set_cost(struct evict *e, uint32_t item, unsigned cost)
{
        struct cq *q = cq(e);

        if (q->items[item].cost == cost)
                return;
        q->n_cost[q->items[item].cost]--;
        q->n_cost[cost]++;
        q->lists_used = YIELDING;
        if (cq_is_in_promise(&q->items[item])) {
                q->items[item].cost = cost & 0xf;
                return;
        }
        cq_unlink(q, item);
        q->items[item].cost = cost & 0xf;
        decide_to_yield(q, item, q->items[item].group);
        cq_append(q, item, q->items[item].group);
}

static unsigned cq_cost(const struct evict *e, uint32_t item)
{
        return cq(e)->items[item].cost;
}

static void cq_remove(struct evict *e, uint32_t item, uint64_t id)
{
        struct cq *q = cq(e);
        const struct cq_item *i = &q->items[item];
        struct ghost ghost = {

                .id = id,
                .time = i->time,
                .class = i->class,
                .uses = i->uses,
                .turn = i->turn,
                .gap = i->gap,
        };
        struct ghost forgotten;

        cq_unlink(q, item);
        q->yielded += id != 0 && i->yields && !evict_is_demoted(e, item);
        cq_leave_family(q, item);
        if (q->first_to_yield == item + 1)
                q->first_to_yield = 0;
        q->n_cost[i->cost]--;
        q->items[item] = (struct cq_item){ 0 };
        q->items_in--;
        /* Only evictions teach something about the traffic; dropped items do not. */
        if (id != 0 && ghosts_put(&q->ghosts, &ghost, &forgotten))
                density_loss(&q->density, forgotten.class, cq_clock(q) - forgotten.time);
}

static bool cq_remembers(const struct evict *e, uint64_t id)
{
        return ghosts_has(&cq(e)->ghosts, id);
}

static bool cq_contains(const struct evict *e, uint32_t item)
{
        return cq(e)->items[item].older != 0;
}

/* Returns the oldest item of a list, or EVICT_NONE. The list of a promise that was never made is
 * all zero, for which cq_oldest() returns the list's end. */
static uint32_t cq_first(const struct evict *e, uint32_t list)
{
        return link_item(cq_oldest(cq(e), list));
}

static uint32_t cq_group(const struct evict *e, uint32_t item)
{
        return cq(e)->items[item].group;
}

static uint32_t cq_after(const struct evict *e, uint32_t item)
{
        return link_item(cq(e)->items[item].younger);
}

/* Returns the item of a list that is evicted first, or EVICT_NONE. Items that give way are evicted
 * from the youngest on. */
static uint32_t cq_first_victim(const struct evict *e, uint32_t list)
{
        return list % LISTS == YIELDING ? link_item(cq_youngest(cq(e), list)) : cq_first(e, list);
}

static uint32_t cq_victim_after(const struct evict *e, uint32_t item)
{
        return cq(e)->items[item].yields ? link_item(cq(e)->items[item].older) : cq_after(e, item);
}

static uint64_t cq_order(const struct evict *e, uint32_t item)
{
        return cq_stamp_of(&cq(e)->items[item]);
}

static uint64_t cq_now(const struct evict *e)
{
        return cq(e)->now;
}

static void cq_get_stats(const struct evict *e, struct evict_stats *ret)
{
        const struct cq *q = cq(e);

        ret->ghosts = q->ghosts.n;
        ret->ghost_hits = q->ghost_hits;
        ret->yielded = q->yielded;
        ret->ghosts_max = q->ghosts.n_slots;
        ret->ghost_bytes = sizeof(struct ghost);
        ret->item_bytes = sizeof(struct cq_item);
        ret->fork_bytes = (uint64_t)q->kin_high * sizeof(union cq_kin);
}

const struct evict_policy evict_policy_cq = {
        .name = "cq",
        .new = cq_new,
        .free = cq_free,
        .insert = cq_insert,
        .touch = cq_touch,
        .refresh = cq_refresh,
        .make_oldest = cq_make_oldest,
        .demote = cq_demote,
        .promote = cq_promote,
        .set_gap = cq_set_gap,
        .gap = cq_gap,
        .chain_gap = cq_chain_gap,
        .remembered_gap = cq_remembered_gap,
        .yields = cq_yields,
        .set_turn = cq_set_turn,
        .turn = cq_turn,
        .warm = cq_warm,
        .populate = cq_populate,
        .unpopulate = cq_unpopulate,
        .populate_ahead = cq_populate_ahead,
        .link = cq_link,
        .parent = cq_parent,
        .hint = cq_hint,
        .promise = cq_promise,
        .promised = cq_promised,
        .next_promised = cq_next_promised,
        .set_cost = cq_set_cost,
        .cost = cq_cost,
        .remove = cq_remove,
        .remembers = cq_remembers,
        .contains = cq_contains,
        .victim = cq_victim,
        .touched = cq_touched,
        .order = cq_order,
        .advance = cq_advance,
        .now = cq_now,
        .worth = cq_worth,
        .chance = cq_chance,
        .is_worth_less = cq_is_worth_less,
        .explain = cq_explain,
        .lists = LISTS,
        .extra_lists = MAX_PROMISES,
        .group = cq_group,
        .first = cq_first,
        .after = cq_after,
        .first_victim = cq_first_victim,
        .victim_after = cq_victim_after,
        .low = cq_low,
        .get_stats = cq_get_stats,
        .save = cq_save,
        .save_item = cq_save_item,
        .restore = cq_restore,
        .restore_item = cq_restore_item,
        .save_remembered = cq_save_remembered,
        .restore_remembered = cq_restore_remembered,
};

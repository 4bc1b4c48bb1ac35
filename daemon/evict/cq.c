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
 * items count as if they had no hint; the list of final items is believed until it is learned.
 *
 * A touch moves an item to the young end of its list: O(1). Of the twelve old ends, the one with
 * the lowest density at its age is worth least; among equals a final item goes first, then the
 * oldest. Leaf first holds within a list, because a chain is touched from its end to its root.
 * Across lists it holds for linked items: the victim is the end of the chain that continues the
 * least valuable item. A hit is weighted by the cost per byte of recomputing the item, as far as
 * clients report it. Each of the twelve classes has a list for each of three cost bands, and one
 * for items of unknown cost, which count as the mean. Evicted items remain as ghosts, so that their
 * next use is learned from and their count continues; without ghosts the policy would learn only
 * from kept items.
 *
 * One use counts once, however often it touches an item, because the item stores the number of the
 * last use. The turn of an item follows from that of its predecessor in the chain, and is kept in
 * the ghost.
 *
 * Runs on the thread of its owner. 48 bytes per item and 16 bytes per ghost, four ghosts per item
 * but at most MAX_GHOSTS; memory becomes resident on use. Cannot fail once created. Deterministic.
 *
 * The time of a touch is a 32-bit number whose unit doubles before it would overflow, as in
 * lru.c. */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "base/pages.h"
#include "checked.h"
#include "evict/density.h"
#include "evict/evict.h"
#include "evict/ghosts.h"
#include "evict/links.h"
#include "evict/policy.h"
#include "warm.h"

enum {
        CLASSES = DENSITY_CLASSES,
        BANDS = 4, /* cost bands, including unknown */
        LISTS = CLASSES * BANDS,
        FINAL = CLASSES - 1,
        FIRST_HINT = FINAL - (EVICT_HINT_FINAL - EVICT_HINT_SOON),
        CQ_MAX_GROUPS = UINT16_MAX - 1,
        GHOSTS_PER_ITEM = 4,
        MAX_GHOSTS = 1 << 22,
        /* Densities are recomputed when a victim is chosen, after a number of touches that is an
         * eighth of the items, within LEARN_LEAST and LEARN_MOST. At most SAMPLE items and SAMPLE
         * ghosts are examined. */
        LEARN_LEAST = 1024,
        LEARN_MOST = 1 << 18,
        SAMPLE = 4096,
        /* Counts fade by half after this number of stays per item. */
        MEMORY_PER_ITEM = 64,
        MEMORY_LEAST = 1 << 18,
        /* Most steps from items to the ends of their chains in one search for a victim. Clients
         * define the chains and may create cycles. Usually few steps are needed, except for chains
         * that were touched root-first. */
        SEARCH_STEPS = 64,
        SESSION_GOES_ON = EVICT_LAST_TURN,
        MAX_USES = 15, /* counts from 12 on share a list */
};

/* An item. Links are as in links.h. Parent, child and siblings are 0 or an item's number plus
 * one. */
struct cq_item {
        uint32_t older, younger;
        uint32_t touched; /* in units of 2^unit touches */
        uint16_t group;
        uint8_t class : 4;            /* selects the list, see list_of() */
        uint8_t turn : 4;             /* 0: unknown */
        uint8_t uses : 4;             /* number of uses, up to MAX_USES */
        uint8_t cost : 4;             /* evict_cost_level() */
        uint32_t use;                 /* number of the last use */
        uint32_t stay;                /* identifies one stay of the item in the policy */
        uint32_t parent, parent_stay; /* if this differs from the parent's stay, the parent has been
                                       * removed */
        uint32_t child;               /* the child that was linked first */
        uint32_t last_child;
        uint32_t sibling_before, sibling_after;
};
static_assert(sizeof(struct cq_item) == 48, "there is one for each chunk");

struct cq_list {
        uint32_t oldest, youngest; /* links; in an empty list both are its end */
};

struct cq {
        struct evict evict;
        uint64_t now;
        unsigned unit;
        uint32_t high; /* all items ever inserted are below this */
        uint32_t items_in;
        uint32_t stays;
        uint64_t learn_at;
        uint32_t sample_phase;
        uint64_t ghost_hits;
        struct cq_item *items;
        struct ghosts ghosts;
        struct density density;
        uint32_t n_cost[EVICT_COSTS]; /* number of items by cost level */
        float weight[EVICT_COSTS];    /* weight of a hit by cost level, per byte */
        unsigned lists_used;          /* LISTS, or CLASSES while no item has a cost */
        struct cq_list lists[];       /* LISTS per group */
};

static struct cq *cq(const struct evict *e)
{
        return (struct cq *)e;
}

/* Returns the class of an item without a hint. The first three classes are for items used once, in
 * the order of enum evict_place. */
static uint8_t class_of(unsigned uses, unsigned place)
{
        enum { TWICE = EVICT_PLACE_END + 1 };

        static_assert(TWICE + 5 == (int)FIRST_HINT, "a list each");
        if (uses <= 1)
                return (uint8_t)place;
        if (uses <= 3)
                return (uint8_t)(TWICE + uses - 2);
        return uses <= 5 ? TWICE + 2 : uses <= 11 ? TWICE + 3 : TWICE + 4;
}

/* Sets the weight of items of unknown cost to the mean of the others. */
static void weigh(struct cq *q)
{
        double sum = 0, n = 0;

        for (unsigned i = 1; i < EVICT_COSTS; i++) {
                sum += (double)q->n_cost[i] * (double)q->weight[i];
                n += q->n_cost[i];
        }
        q->weight[0] = n > 0 ? (float)(sum / n) : 1;
}

static int cq_new(struct evict **ret, uint32_t max_items, uint32_t max_groups)
{
        uint64_t ghosts = MIN((uint64_t)max_items * GHOSTS_PER_ITEM, (uint64_t)MAX_GHOSTS);
        struct cq *q;

        if (max_groups > CQ_MAX_GROUPS || max_items >= LINK_END)
                return -EINVAL;
        q = calloc(1, sizeof(*q) + (size_t)max_groups * LISTS * sizeof(q->lists[0]));
        if (!q)
                return -ENOMEM;
        q->items = calloc(max_items, sizeof(q->items[0]));
        if (!q->items || ghosts_init(&q->ghosts, ghosts) < 0) {
                free(q->items);
                free(q);
                return -ENOMEM;
        }
        pages_wish_huge(q->items, max_items * sizeof(q->items[0]));
        density_init(&q->density, MAX((double)max_items * MEMORY_PER_ITEM, (double)MEMORY_LEAST));
        q->learn_at = LEARN_LEAST;
        for (unsigned i = 1; i < EVICT_COSTS; i++)
                q->weight[i] = exp2f((float)(i - 1) / 2);
        weigh(q);
        q->lists_used = CLASSES;
        for (uint32_t i = 0; i < max_groups * LISTS; i++)
                q->lists[i] = (struct cq_list){ .oldest = LINK_END | i, .youngest = LINK_END | i };
        *ret = &q->evict;
        return 0;
}

static void cq_free(struct evict *e)
{
        ghosts_fini(&cq(e)->ghosts);
        free(cq(e)->items);
        free(cq(e));
}

/* Return the field that names the younger or older neighbour of the item or list end that a link
 * refers to. */
static uint32_t *younger_of(struct cq *q, uint32_t link)
{
        return link & LINK_END ? &q->lists[link & ~LINK_END].oldest : &q->items[link - 1].younger;
}

static uint32_t *older_of(struct cq *q, uint32_t link)
{
        return link & LINK_END ? &q->lists[link & ~LINK_END].youngest : &q->items[link - 1].older;
}

static void cq_unlink(struct cq *q, uint32_t item)
{
        const struct cq_item *i = &q->items[item];

        *younger_of(q, i->older) = i->younger;
        *older_of(q, i->younger) = i->older;
}

/* Returns an item's list within its group. Each class has a list for unknown cost and one per cost
 * band. */
static uint32_t list_of(const struct cq_item *i)
{
        enum { LEVELS = (EVICT_COSTS - 1) / (BANDS - 1) };

        return (i->cost == 0 ? 0 : 1 + (i->cost - 1U) / LEVELS) * CLASSES + i->class;
}

/* Appends an item to its list. Its touched, class, uses and cost must be set. */
static void cq_append(struct cq *q, uint32_t item, uint32_t group)
{
        uint32_t list = group * LISTS + list_of(&q->items[item]), older = q->lists[list].youngest;

        q->items[item].older = older;
        q->items[item].younger = LINK_END | list;
        *younger_of(q, older) = item + 1;
        q->lists[list].youngest = item + 1;
}

static void cq_make_oldest(struct evict *e, uint32_t item, uint32_t group)
{
        struct cq *q = cq(e);
        struct cq_item *i = &q->items[item];
        uint32_t list = group * LISTS + list_of(i), younger;

        cq_unlink(q, item);
        younger = q->lists[list].oldest;
        i->group = (uint16_t)group;
        i->older = LINK_END | list;
        i->younger = younger;
        *older_of(q, younger) = item + 1;
        q->lists[list].oldest = item + 1;
}

static uint32_t cq_time(const struct cq *q)
{
        return (uint32_t)(q->now >> q->unit);
}

static void double_unit(struct cq *q)
{
        q->unit++;
        density_double_unit(&q->density);
        for (uint32_t i = 0; i < q->high; i++)
                q->items[i].touched /= 2;
        for (uint32_t i = 0; i < q->ghosts.n_slots; i++)
                if (q->ghosts.table[i].id != 0) /* leave untouched pages untouched */
                        q->ghosts.table[i].touched /= 2;
}

/* Returns the step with which at most SAMPLE of `total` are examined, and a first index that varies
 * from call to call. */
static uint32_t sample_step(const struct cq *q, uint32_t total, uint32_t *ret_first)
{
        uint32_t step = total / SAMPLE + 1;

        *ret_first = q->sample_phase % step;
        return step;
}

static void learn(struct cq *q)
{
        struct density_stays stays = { 0 };
        uint32_t first, step;

        q->sample_phase = q->sample_phase * UINT32_C(1664525) + UINT32_C(1013904223);
        step = sample_step(q, q->high, &first);
        for (uint32_t i = first; i < q->high; i += step)
                if (q->items[i].older != 0)
                        density_stay(&stays, q->items[i].class, cq_time(q) - q->items[i].touched,
                                     step);
        step = sample_step(q, q->ghosts.n_slots, &first);
        for (uint32_t i = first; i < q->ghosts.n_slots; i += step) {
                const struct ghost *g = &q->ghosts.table[i];

                if (g->id != 0)
                        density_stay(&stays, g->class, cq_time(q) - g->touched, step);
        }
        density_learn(&q->density, &stays);
        weigh(q);
        q->learn_at =
                q->now + MIN(MAX(q->items_in / 8, (uint32_t)LEARN_LEAST), (uint32_t)LEARN_MOST);
}

static uint32_t cq_tick(struct cq *q)
{
        if (++q->now >> q->unit > UINT32_MAX)
                double_unit(q);
        return cq_time(q);
}

static void cq_insert(struct evict *e, uint32_t item, uint32_t group, uint32_t bytes, uint64_t id,
                      uint32_t use, unsigned place)
{
        struct cq *q = cq(e);
        uint32_t now = cq_tick(q);
        unsigned uses = 1, turn = 0;
        struct ghost ghost;

        if (id != 0 && ghosts_take(&q->ghosts, id, &ghost)) {
                density_hit(&q->density, ghost.class, now - ghost.touched);
                uses = MIN(ghost.uses + 1U, (unsigned)MAX_USES);
                turn = MAX(ghost.turn, (uint8_t)1);
                q->ghost_hits++;
        }
        q->high = MAX(q->high, item + 1);
        q->items_in++;
        q->items[item] = (struct cq_item){
                .touched = now,
                .group = (uint16_t)group,
                .stay = ++q->stays,
                .class = class_of(uses, place) & 0xf,
                .turn = turn & 0xf,
                .uses = uses & 0xf,
                .use = use,
        };
        q->n_cost[0]++;
        cq_append(q, item, group);
}

static void cq_refresh(struct evict *e, uint32_t item, uint32_t group)
{
        struct cq *q = cq(e);
        struct cq_item *i = &q->items[item];

        i->touched = cq_tick(q);
        i->group = (uint16_t)group;
        cq_unlink(q, item);
        cq_append(q, item, group);
}

static void cq_touch(struct evict *e, uint32_t item, uint32_t group, uint32_t use)
{
        struct cq *q = cq(e);
        struct cq_item *i = &q->items[item];
        uint32_t now;

        if (use != EVICT_NO_USE && i->use == use) {
                cq_refresh(e, item, group);
                return;
        }
        now = cq_tick(q);
        i->use = use;
        density_hit(&q->density, i->class, now - i->touched);
        cq_unlink(q, item);
        i->touched = now;
        i->uses = MIN(i->uses + 1U, (unsigned)MAX_USES) & 0xf;
        i->class = class_of(i->uses, EVICT_PLACE_UNKNOWN) & 0xf;
        cq_append(q, item, group);
}

/* Returns whether this use inserted the item and no other use has touched it. */
static bool is_of_use(const struct cq_item *i, uint32_t use)
{
        return use != EVICT_NO_USE && i->use == use && i->uses == 1;
}

static unsigned cq_turn(const struct evict *e, uint32_t item, uint32_t use)
{
        const struct cq_item *i = &cq(e)->items[item];

        return i->turn == 0 && !is_of_use(i, use) ? 1 : i->turn;
}

static bool has_hint(const struct cq_item *i)
{
        return i->class >= FIRST_HINT;
}

/* Moves the item to the list of its place in the chain. The touch that follows moves it into its
 * order there. */
static void cq_set_turn(struct evict *e, uint32_t item, uint32_t group, uint32_t use, unsigned turn,
                        bool is_end)
{
        struct cq *q = cq(e);
        struct cq_item *i = &q->items[item];

        if (i->turn == 0)
                i->turn = turn & 0xf;
        if (!is_of_use(i, use) || has_hint(i))
                return;
        cq_unlink(q, item);
        i->class = class_of(1, is_end                    ? EVICT_PLACE_END
                               : turn >= SESSION_GOES_ON ? EVICT_PLACE_CONTINUATION
                                                         : EVICT_PLACE_UNKNOWN) &
                   0xf;
        cq_append(q, item, group);
}

/* Prefetches the item in step 0, and its neighbours in step 1. */
static void cq_warm(const struct evict *e, uint32_t item, unsigned step)
{
        const struct cq *q = cq(e);
        const struct cq_item *i = &q->items[item];

        if (step == 0) {
                warm(i, 1);
                warm(&i->use, 1); /* may be in the next cache line */
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

static void cq_unpopulate(const struct evict *e, uint32_t from)
{
        pages_unpopulate(&cq(e)->items[from],
                         (uint64_t)(e->max_items - from) * sizeof(struct cq_item));
}

static struct cq_item *parent_of(struct cq *q, const struct cq_item *i)
{
        struct cq_item *p = i->parent != 0 ? &q->items[i->parent - 1] : NULL;

        return p && p->older != 0 && p->stay == i->parent_stay ? p : NULL;
}

static void cq_link(struct evict *e, uint32_t item, uint32_t parent)
{
        struct cq *q = cq(e);
        struct cq_item *i = &q->items[item], *p = &q->items[parent];

        if (item == parent || parent_of(q, i))
                return;
        i->parent = parent + 1;
        i->parent_stay = p->stay;
        i->sibling_before = p->last_child;
        i->sibling_after = 0;
        *(p->last_child ? &q->items[p->last_child - 1].sibling_after : &p->child) = item + 1;
        p->last_child = item + 1;
}

static void set_class(struct cq *q, uint32_t item, unsigned class)
{
        cq_unlink(q, item);
        q->items[item].class = class & 0xf;
        cq_append(q, item, q->items[item].group);
}

/* Returns whether the item has children other than a single final one. */
static bool is_continued(const struct cq *q, const struct cq_item *i)
{
        return i->child != 0 &&
               (i->child != i->last_child || q->items[i->child - 1].class != FINAL);
}

static bool cq_hint(struct evict *e, uint32_t item, unsigned hint)
{
        struct cq *q = cq(e);
        unsigned class = FIRST_HINT + hint - EVICT_HINT_SOON;

        if (class == FINAL && is_continued(q, &q->items[item]))
                return false;
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
        q->lists_used = LISTS;
        cq_unlink(q, item);
        q->items[item].cost = cost & 0xf;
        cq_append(q, item, q->items[item].group);
}

static unsigned cq_cost(const struct evict *e, uint32_t item)
{
        return cq(e)->items[item].cost;
}

static void leave_family(struct cq *q, uint32_t item)
{
        const struct cq_item *i = &q->items[item];
        struct cq_item *p = parent_of(q, i);

        if (!p)
                return;
        *(i->sibling_before ? &q->items[i->sibling_before - 1].sibling_after : &p->child) =
                i->sibling_after;
        *(i->sibling_after ? &q->items[i->sibling_after - 1].sibling_before : &p->last_child) =
                i->sibling_before;
}

/* Returns the end of a chain that continues the item: the descendant that no present item
 * continues. It is no more recently used than the item, because a request for it also touches the
 * item. The walk stops before a child of another group, whose eviction would free no room in this
 * one. */
static uint32_t end_of_chain(const struct cq *q, uint32_t item, unsigned *steps)
{
        uint16_t group = q->items[item].group;

        for (; *steps > 0 && q->items[item].child != 0; --*steps) {
                uint32_t child = q->items[item].child - 1;

                if (q->items[child].group != group)
                        break;
                item = child;
        }
        return item;
}

static void cq_remove(struct evict *e, uint32_t item, uint64_t id)
{
        struct cq *q = cq(e);
        const struct cq_item *i = &q->items[item];
        struct ghost ghost = {
                .id = id, .touched = i->touched, .class = i->class, .uses = i->uses, .turn = i->turn
        };
        struct ghost forgotten;

        cq_unlink(q, item);
        leave_family(q, item);
        q->n_cost[i->cost]--;
        q->items[item] = (struct cq_item){ 0 };
        q->items_in--;
        /* Only evictions teach something about the traffic; dropped items do not. */
        if (id != 0 && ghosts_put(&q->ghosts, &ghost, &forgotten))
                density_loss(&q->density, forgotten.class, cq_time(q) - forgotten.touched);
}

static bool cq_remembers(const struct evict *e, uint64_t id)
{
        return ghosts_has(&cq(e)->ghosts, id);
}

static bool cq_contains(const struct evict *e, uint32_t item)
{
        return cq(e)->items[item].older != 0;
}

/* The candidate of one list in a search for a victim. */
struct old_end {
        uint32_t link;
        float density;
        uint32_t touched;
};

/* Inline, like worth_least(), because a call would make a search for a victim 40 ns slower. */
static inline struct old_end old_end_at(const struct cq *q, unsigned list, uint32_t link)
{
        unsigned class = list % CLASSES;
        struct old_end end = { .link = link };

        if (link & LINK_END)
                return end;
        end.touched = q->items[link - 1].touched;
        if (class >= FIRST_HINT && class != FINAL && !q->density.is_known[class])
                class = class_of(q->items[link - 1].uses, EVICT_PLACE_UNKNOWN);
        end.density = density_at(&q->density, class, cq_time(q) - end.touched) *
                      q->weight[q->items[link - 1].cost];
        return end;
}

/* Returns the list whose end is worth least, or LISTS if all lists are exhausted. */
static inline unsigned worth_least(const struct old_end ends[static LISTS], unsigned lists)
{
        unsigned least = LISTS;

        for (unsigned list = 0; list < lists; list++) {
                const struct old_end *a = &ends[list], *b = &ends[least % LISTS];

                if (a->link & LINK_END)
                        continue;
                if (least == LISTS || a->density < b->density ||
                    (a->density == b->density &&
                     (list % CLASSES == FINAL || a->touched < b->touched)))
                        least = list;
        }
        return least;
}

/* Finds the first evictable item on the way from `end` up to `oldest`. A pinned end therefore
 * protects only itself. Returns false if there is none or the search has passed enough items. */
static bool nearest_to_end(struct cq *q, uint32_t oldest, uint32_t end,
                           bool (*may_evict)(void *userdata, uint32_t item), void *userdata,
                           uint32_t *passes_left, uint32_t *ret)
{
        for (uint32_t i = end;; i = q->items[i].parent - 1) {
                if (!may_evict || may_evict(userdata, i)) {
                        *ret = i;
                        return true;
                }
                if (i == oldest || *passes_left == 0)
                        return false;
                --*passes_left;
        }
}

static uint32_t cq_victim(struct evict *e, uint32_t group,
                          bool (*may_evict)(void *userdata, uint32_t item), void *userdata,
                          uint32_t max_passed)
{
        struct cq *q = cq(e);
        struct old_end ends[LISTS];
        unsigned steps = SEARCH_STEPS, list;

        if (q->now >= q->learn_at)
                learn(q);
        for (list = 0; list < q->lists_used; list++)
                ends[list] = old_end_at(q, list, q->lists[group * LISTS + list].oldest);
        while ((list = worth_least(ends, q->lists_used)) < LISTS) {
                uint32_t oldest = ends[list].link - 1, victim;

                if (nearest_to_end(q, oldest, end_of_chain(q, oldest, &steps), may_evict, userdata,
                                   &max_passed, &victim))
                        return victim;
                if (max_passed-- == 0)
                        break;
                ends[list] = old_end_at(q, list, q->items[oldest].younger);
        }
        return EVICT_NONE;
}

static uint32_t cq_first(const struct evict *e, uint32_t list)
{
        return link_item(cq(e)->lists[list].oldest);
}

static uint32_t cq_after(const struct evict *e, uint32_t item)
{
        return link_item(cq(e)->items[item].younger);
}

static uint64_t cq_touched(const struct evict *e, uint32_t item)
{
        return (uint64_t)cq(e)->items[item].touched << cq(e)->unit;
}

static uint64_t cq_now(const struct evict *e)
{
        return cq(e)->now;
}

/* Returns the worth of an item. If too little is known of its class, one in four of its items is
 * assumed to return after the same time again. */
static double cq_worth(const struct evict *e, uint32_t item)
{
        const struct cq *q = cq(e);
        const struct cq_item *i = &q->items[item];
        uint32_t age = cq_time(q) - i->touched;

        if (q->density.is_known[i->class] || i->class == FINAL)
                return (double)old_end_at(q, list_of(i), item + 1).density;
        return (double)q->weight[i->cost] / (4.0 * ((double)age + 1));
}

static double cq_chance(const struct evict *e, uint32_t item)
{
        const struct cq *q = cq(e);
        const struct cq_item *i = &q->items[item];

        if (i->class == FINAL)
                return 0;
        if (!q->density.is_known[i->class])
                return i->class >= FIRST_HINT ? 1 : 0;
        return (double)density_chance(&q->density, i->class, cq_time(q) - i->touched);
}

static void cq_explain(const struct evict *e, uint32_t item, uint32_t group,
                       struct evict_standing *ret)
{
        const struct cq *q = cq(e);
        const struct cq_item *i = &q->items[item];
        unsigned steps = SEARCH_STEPS, least;
        struct old_end ends[LISTS];

        static_assert(FINAL + 1 == EVICT_CLASS_FINAL, "the lists in their order");
        for (unsigned list = 0; list < q->lists_used; list++)
                ends[list] = old_end_at(q, list, q->lists[group * LISTS + list].oldest);
        least = worth_least(ends, q->lists_used);
        *ret = (struct evict_standing){
                .class = i->class + EVICT_CLASS_ONCE,
                .age = (uint64_t)(cq_time(q) - i->touched) << q->unit,
                .density = old_end_at(q, list_of(i), item + 1).density,
                .least_density = least < LISTS ? ends[least].density : 0,
                .is_next = least < LISTS && end_of_chain(q, ends[least].link - 1, &steps) == item,
                .is_continued = i->child != 0,
        };
}

static void cq_save(const struct evict *e, struct evict_learned *ret)
{
        static_assert((int)EVICT_COUNTS == (int)DENSITY_COUNTS, "the same counts");
        ret->unit = cq(e)->unit;
        ret->n_counts = DENSITY_COUNTS;
        density_save(&cq(e)->density, ret->counts);
}

static void cq_save_item(const struct evict *e, uint32_t item, struct evict_record *ret)
{
        const struct cq_item *i = &cq(e)->items[item];

        ret->touched = i->touched;
        ret->class = i->class;
        ret->uses = i->uses;
        ret->turn = i->turn;
}

static uint32_t cq_save_remembered(const struct evict *e, uint32_t *cursor, uint32_t looks,
                                   struct evict_record *ret, uint32_t room)
{
        const struct ghosts *g = &cq(e)->ghosts;
        uint32_t n = 0;

        for (; *cursor < g->n_slots && looks > 0 && n < room; looks--, ++*cursor) {
                const struct ghost *ghost = &g->table[*cursor];

                if (ghost->id != 0)
                        ret[n++] = (struct evict_record){ .id = ghost->id,
                                                          .touched = ghost->touched,
                                                          .class = ghost->class,
                                                          .uses = ghost->uses,
                                                          .turn = ghost->turn };
        }
        if (*cursor >= g->n_slots)
                *cursor = UINT32_MAX;
        return n;
}

static bool cq_restore(struct evict *e, const struct evict_learned *l)
{
        struct cq *q = cq(e);

        if (q->unit > l->unit || l->n_counts != DENSITY_COUNTS ||
            !density_restore(&q->density, l->counts))
                return false;
        /* Items that are present were last touched before the restored state. */
        for (uint32_t i = 0; i < q->high && l->unit > q->unit; i++)
                q->items[i].touched >>= l->unit - q->unit;
        q->unit = l->unit;
        q->now = MAX(q->now, l->now);
        q->learn_at = q->now;
        return true;
}

static bool is_record(const struct cq *q, const struct evict_record *r)
{
        return r->class < CLASSES && r->uses > 0 && r->turn <= EVICT_LAST_TURN &&
               r->touched <= cq_time(q);
}

static bool cq_restore_item(struct evict *e, uint32_t item, uint32_t group,
                            const struct evict_record *r)
{
        struct cq *q = cq(e);
        struct cq_item *i = &q->items[item];
        struct ghost ghost;

        if (!is_record(q, r))
                return false;
        (void)ghosts_take(&q->ghosts, r->id, &ghost); /* the item was evicted during the save */
        cq_unlink(q, item);
        i->touched = r->touched;
        i->class = r->class & 0xf;
        i->uses = MIN(r->uses, (uint8_t)MAX_USES) & 0xf;
        i->turn = r->turn & 0xf;
        cq_append(q, item, group);
        return true;
}

static void cq_restore_remembered(struct evict *e, const struct evict_record *r)
{
        struct ghosts *g = &cq(e)->ghosts;
        struct ghost ghost = { .id = r->id,
                               .touched = r->touched,
                               .class = r->class,
                               .uses = r->uses,
                               .turn = r->turn };
        struct ghost forgotten;

        if (is_record(cq(e), r) && !ghosts_has(g, r->id))
                (void)ghosts_put(g, &ghost, &forgotten);
}

static void cq_get_stats(const struct evict *e, struct evict_stats *ret)
{
        const struct cq *q = cq(e);

        ret->ghosts = q->ghosts.n;
        ret->ghost_hits = q->ghost_hits;
        ret->ghosts_max = q->ghosts.n_slots;
        ret->ghost_bytes = sizeof(struct ghost);
        ret->item_bytes = sizeof(struct cq_item);
}

const struct evict_policy evict_policy_cq = {
        .name = "cq",
        .new = cq_new,
        .free = cq_free,
        .insert = cq_insert,
        .touch = cq_touch,
        .refresh = cq_refresh,
        .make_oldest = cq_make_oldest,
        .set_turn = cq_set_turn,
        .turn = cq_turn,
        .warm = cq_warm,
        .populate = cq_populate,
        .unpopulate = cq_unpopulate,
        .link = cq_link,
        .hint = cq_hint,
        .set_cost = cq_set_cost,
        .cost = cq_cost,
        .remove = cq_remove,
        .remembers = cq_remembers,
        .contains = cq_contains,
        .victim = cq_victim,
        .touched = cq_touched,
        .now = cq_now,
        .worth = cq_worth,
        .chance = cq_chance,
        .explain = cq_explain,
        .lists = LISTS,
        .first = cq_first,
        .after = cq_after,
        .get_stats = cq_get_stats,
        .save = cq_save,
        .save_item = cq_save_item,
        .restore = cq_restore,
        .restore_item = cq_restore_item,
        .save_remembered = cq_save_remembered,
        .restore_remembered = cq_restore_remembered,
};

/* SPDX-License-Identifier: Apache-2.0 */
/* Count queues: LRU lists by how often an item has been used, and of their ends the one goes that
 * is worth least, by densities that are learned from the traffic.
 *
 * An item that was used once is in one of three lists, by its place in its chain when it came in:
 * what a session adds in its third turn or later mostly returns with the fourth, what a new prompt
 * begins with mostly does not, and the end of a chain, which the next turn continues, least of all.
 * Items that were used twice or more are in lists by the count: 2, 3, 4 to 5, 6 to 11, 12 and more.
 *
 * A touch takes an item to the young end of its list: O(1). Of the eight old ends, the one of the
 * least density at its age is worth least; of equal ones the older. Leaf first holds within a list,
 * as a chain is touched from its end to its root. Across lists it holds for items that were linked:
 * the victim is the end of the chain that goes on from what is worth least. What was evicted stays
 * a ghost, so that its next use is learned from as well, and counts on; without ghosts the policy
 * learns only what it keeps.
 *
 * Runs on the loop thread. 44 bytes an item, and 16 bytes a ghost, four ghosts an item but at most
 * MAX_GHOSTS; they become resident as they appear. Nothing fails after it was made. Deterministic.
 *
 * The time of a touch is a number of 32 bits, whose unit doubles when it would overflow, as in
 * lru.c. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/pages.h"
#include "checked.h"
#include "evict/density.h"
#include "evict/evict.h"
#include "evict/ghosts.h"
#include "evict/policy.h"
#include "warm.h"

enum {
        LISTS = DENSITY_CLASSES,
        CQ_MAX_GROUPS = UINT16_MAX - 1,
        GHOSTS_PER_ITEM = 4,
        MAX_GHOSTS = 1 << 22,
        /* Densities are learned anew after so many touches: an eighth of the items, but within
         * this. So many of the items, and of the ghosts, are looked at for it. */
        LEARN_LEAST = 1024,
        LEARN_MOST = 1 << 18,
        SAMPLE = 4096,
        /* Counts fade by half after so many stays for each item. */
        MEMORY_PER_ITEM = 64,
        MEMORY_LEAST = 1 << 18,
        /* Of a chain, to its end: clients make chains, and may make them circles. */
        MAX_STEPS = 1024,
};

/* A link is 0 (not in), END and a list's number, or one more than an item. Parent, child and
 * siblings are 0 or one more than an item. */
struct cq_item {
        uint32_t older, younger;
        uint32_t touched; /* in units of 2^unit touches */
        uint16_t group;
        uint8_t class;                /* which of its group's lists */
        uint8_t uses;                 /* as far as it matters */
        uint32_t stay;                /* a number of its own for as long as it is in */
        uint32_t parent, parent_stay; /* another stay: it is not in any more */
        uint32_t child;               /* the one that was linked first */
        uint32_t last_child;
        uint32_t sibling_before, sibling_after;
};
static_assert(sizeof(struct cq_item) == 44, "there is one for each chunk");

#define END (UINT32_C(1) << 31)

struct cq_list {
        uint32_t oldest, youngest; /* links as well; an empty list's are its END */
};

struct cq {
        struct evict evict;
        uint64_t now;
        unsigned unit;
        uint32_t high; /* no item has been in that is not below */
        uint32_t items_in;
        uint32_t stays;
        uint64_t learn_at;
        uint32_t sample_phase;
        struct cq_item *items;
        struct ghosts ghosts;
        struct density density;
        struct cq_list lists[]; /* LISTS for each group */
};

static struct cq *cq(const struct evict *e)
{
        return (struct cq *)e;
}

/* The first three are for items used once, in the order of enum evict_place. */
static uint8_t class_of(unsigned uses, unsigned place)
{
        enum { TWICE = EVICT_PLACE_END + 1 };

        static_assert(TWICE + 5 == (int)LISTS, "a list each");
        if (uses <= 1)
                return (uint8_t)place;
        if (uses <= 3)
                return (uint8_t)(TWICE + uses - 2);
        return uses <= 5 ? TWICE + 2 : uses <= 11 ? TWICE + 3 : TWICE + 4;
}

static int cq_new(struct evict **ret, uint32_t max_items, uint32_t max_groups)
{
        uint64_t ghosts = MIN((uint64_t)max_items * GHOSTS_PER_ITEM, (uint64_t)MAX_GHOSTS);
        struct cq *q;

        if (max_groups > CQ_MAX_GROUPS || max_items >= END)
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
        for (uint32_t i = 0; i < max_groups * LISTS; i++)
                q->lists[i] = (struct cq_list){ .oldest = END | i, .youngest = END | i };
        *ret = &q->evict;
        return 0;
}

static void cq_free(struct evict *e)
{
        ghosts_fini(&cq(e)->ghosts);
        free(cq(e)->items);
        free(cq(e));
}

/* What says who is younger than the one that a link names, and who is older. */
static uint32_t *younger_of(struct cq *q, uint32_t link)
{
        return link & END ? &q->lists[link & ~END].oldest : &q->items[link - 1].younger;
}

static uint32_t *older_of(struct cq *q, uint32_t link)
{
        return link & END ? &q->lists[link & ~END].youngest : &q->items[link - 1].older;
}

static void cq_unlink(struct cq *q, uint32_t item)
{
        const struct cq_item *i = &q->items[item];

        *younger_of(q, i->older) = i->younger;
        *older_of(q, i->younger) = i->older;
}

/* `item`: touched, class and uses are set. */
static void cq_append(struct cq *q, uint32_t item, uint32_t group)
{
        uint32_t list = group * LISTS + q->items[item].class, older = q->lists[list].youngest;

        q->items[item].older = older;
        q->items[item].younger = END | list;
        *younger_of(q, older) = item + 1;
        q->lists[list].youngest = item + 1;
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
                q->ghosts.table[i].touched /= 2;
}

/* Every n-th of `total`, n such that they are at most SAMPLE, from another one on each time. */
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
        q->learn_at =
                q->now + MIN(MAX(q->items_in / 8, (uint32_t)LEARN_LEAST), (uint32_t)LEARN_MOST);
}

static uint32_t cq_tick(struct cq *q)
{
        if (++q->now >> q->unit > UINT32_MAX)
                double_unit(q);
        if (q->now >= q->learn_at)
                learn(q);
        return cq_time(q);
}

static void cq_insert(struct evict *e, uint32_t item, uint32_t group, uint32_t bytes, uint64_t id,
                      unsigned place)
{
        struct cq *q = cq(e);
        uint32_t now = cq_tick(q);
        unsigned uses = 1;
        struct ghost ghost;

        if (id != 0 && ghosts_take(&q->ghosts, id, &ghost)) {
                density_hit(&q->density, ghost.class, now - ghost.touched);
                uses = MIN(ghost.uses + 1U, (unsigned)UINT8_MAX);
        }
        q->high = MAX(q->high, item + 1);
        q->items_in++;
        q->items[item] = (struct cq_item){
                .touched = now,
                .group = (uint16_t)group,
                .stay = ++q->stays,
                .class = class_of(uses, place),
                .uses = (uint8_t)uses,
        };
        cq_append(q, item, group);
}

static void cq_touch(struct evict *e, uint32_t item, uint32_t group)
{
        struct cq *q = cq(e);
        struct cq_item *i = &q->items[item];
        uint32_t now = cq_tick(q);

        density_hit(&q->density, i->class, now - i->touched);
        cq_unlink(q, item);
        i->touched = now;
        i->uses = (uint8_t)MIN(i->uses + 1U, (unsigned)UINT8_MAX);
        i->class = class_of(i->uses, EVICT_PLACE_UNKNOWN);
        cq_append(q, item, group);
}

/* The item, then its neighbours. */
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
        if (!(i->older & END))
                warm(&q->items[i->older - 1], 1);
        if (!(i->younger & END))
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

/* The end of a chain that goes on from the item: what nothing that is in continues. It has not been
 * used since the item has, because a request for it asks for the item as well. A child of another
 * group would free no room in this one: the chain ends before it. */
static uint32_t end_of_chain(const struct cq *q, uint32_t item)
{
        uint16_t group = q->items[item].group;

        for (unsigned i = 0; i < MAX_STEPS && q->items[item].child != 0; i++) {
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
                .id = id, .touched = i->touched, .class = i->class, .uses = i->uses
        };
        struct ghost forgotten;

        cq_unlink(q, item);
        leave_family(q, item);
        q->items[item] = (struct cq_item){ 0 };
        q->items_in--;
        /* What was dropped, not evicted, says nothing about the traffic. */
        if (id != 0 && ghosts_put(&q->ghosts, &ghost, &forgotten))
                density_loss(&q->density, forgotten.class, cq_time(q) - forgotten.touched);
}

static bool cq_contains(const struct evict *e, uint32_t item)
{
        return cq(e)->items[item].older != 0;
}

/* Of a list, the oldest whose chain's end may be evicted, and that end. False: none. */
static bool candidate(struct cq *q, uint32_t list, bool (*may_evict)(void *userdata, uint32_t item),
                      void *userdata, uint32_t *passes_left, uint32_t *ret_oldest,
                      uint32_t *ret_end)
{
        for (uint32_t link = q->lists[list].oldest; !(link & END);
             link = q->items[link - 1].younger) {
                uint32_t end = end_of_chain(q, link - 1);

                if (!may_evict || may_evict(userdata, end)) {
                        *ret_oldest = link - 1;
                        *ret_end = end;
                        return true;
                }
                if (*passes_left == 0)
                        return false;
                --*passes_left;
        }
        return false;
}

static uint32_t cq_victim(struct evict *e, uint32_t group,
                          bool (*may_evict)(void *userdata, uint32_t item), void *userdata,
                          uint32_t max_passed)
{
        struct cq *q = cq(e);
        uint32_t victim = EVICT_NONE, touched = 0;
        float least = 0;

        for (unsigned class = 0; class < LISTS; class ++) {
                uint32_t oldest, end;
                float density;

                if (!candidate(q, group * LISTS + class, may_evict, userdata, &max_passed, &oldest,
                               &end))
                        continue;
                density = density_at(&q->density, class, cq_time(q) - q->items[oldest].touched);
                if (victim == EVICT_NONE || density < least ||
                    (density == least && q->items[oldest].touched < touched)) {
                        victim = end;
                        least = density;
                        touched = q->items[oldest].touched;
                }
        }
        return victim;
}

static uint64_t cq_touched(const struct evict *e, uint32_t item)
{
        return (uint64_t)cq(e)->items[item].touched << cq(e)->unit;
}

const struct evict_policy evict_policy_cq = {
        .name = "cq",
        .new = cq_new,
        .free = cq_free,
        .insert = cq_insert,
        .touch = cq_touch,
        .warm = cq_warm,
        .populate = cq_populate,
        .unpopulate = cq_unpopulate,
        .link = cq_link,
        .remove = cq_remove,
        .contains = cq_contains,
        .victim = cq_victim,
        .touched = cq_touched,
};

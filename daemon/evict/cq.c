/* SPDX-License-Identifier: Apache-2.0 */
/* Count queues: LRU lists by how often an item has been used, and of their ends the one goes that
 * is worth least, by densities that are learned from the traffic.
 *
 * An item that was used once is in one of three lists, by its place in its chain when it came in:
 * what a session adds in its third turn or later mostly returns with the fourth, what a new prompt
 * begins with mostly does not, and the end of a chain, which the next turn continues, least of all.
 * Items that were used twice or more are in lists by the count: 2, 3, 4 to 5, 6 to 11, 12 and more.
 * What clients give a hint of is in lists of its own, whatever its count: three by when it is said
 * to return, and one for what is said to come back no more. How far that can be believed is learned
 * as everything is, so that false hints soon count for nothing. Until a list of those that are to
 * return has been learned of, what is in it counts as if there were no hint; before it is learned
 * of the last one, it is believed.
 *
 * A touch takes an item to the young end of its list: O(1). Of the twelve old ends, the one of the
 * least density at its age is worth least; of equal ones what is final, or else the older. Leaf
 * first holds within a list, as a chain is touched from its end to its root. Across lists it holds
 * for items that were linked: the victim is the end of the chain that goes on from what is worth
 * least. A hit is worth more where computing the item anew would cost more for each byte, as far as
 * clients say so: each of the twelve has a list for each of three bands of costs, and one for what
 * nothing is said of, which counts as the mean. What was evicted stays a ghost, so that its next
 * use is learned from as well, and counts on; without ghosts the policy learns only what it keeps.
 *
 * One use of an item counts once, however often the use touches it: the item keeps the number of
 * the last. Its turn follows from that of what comes before it in the chain, and stays with the
 * ghost.
 *
 * Runs on the thread of its owner. 48 bytes an item, and 16 bytes a ghost, four ghosts an item but
 * at most MAX_GHOSTS; they become resident as they appear. Nothing fails after it was made.
 * Deterministic.
 *
 * The time of a touch is a number of 32 bits, whose unit doubles when it would overflow, as in
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
        BANDS = 4, /* of costs */
        LISTS = CLASSES * BANDS,
        FINAL = CLASSES - 1,
        FIRST_HINT = FINAL - (EVICT_HINT_FINAL - EVICT_HINT_SOON),
        CQ_MAX_GROUPS = UINT16_MAX - 1,
        GHOSTS_PER_ITEM = 4,
        MAX_GHOSTS = 1 << 22,
        /* Densities are learned anew after so many touches: an eighth of the items, but within
         * this, and when a victim is chosen. So many of the items, and of the ghosts, are looked at
         * for it. */
        LEARN_LEAST = 1024,
        LEARN_MOST = 1 << 18,
        SAMPLE = 4096,
        /* Counts fade by half after so many stays for each item. */
        MEMORY_PER_ITEM = 64,
        MEMORY_LEAST = 1 << 18,
        /* From items to the ends of their chains, in a search for a victim: clients make chains,
         * and may make them circles. Recency is leaf-first, so that few are taken but by chains
         * that were touched root-first. */
        SEARCH_STEPS = 64,
        SESSION_GOES_ON = EVICT_LAST_TURN,
        MAX_USES = 15, /* 12 are as many as more */
};

/* Links are as of links.h. Parent, child and siblings are 0 or one more than an item. */
struct cq_item {
        uint32_t older, younger;
        uint32_t touched; /* in units of 2^unit touches */
        uint16_t group;
        uint8_t class : 4;            /* which of its group's lists */
        uint8_t turn : 4;             /* 0: not known */
        uint8_t uses : 4;             /* as far as it matters: up to MAX_USES */
        uint8_t cost : 4;             /* evict_cost_level() */
        uint32_t use;                 /* the last of them */
        uint32_t stay;                /* a number of its own for as long as it is in */
        uint32_t parent, parent_stay; /* another stay: it is not in any more */
        uint32_t child;               /* the one that was linked first */
        uint32_t last_child;
        uint32_t sibling_before, sibling_after;
};
static_assert(sizeof(struct cq_item) == 48, "there is one for each chunk");

struct cq_list {
        uint32_t oldest, youngest; /* links as well; an empty list's are its end */
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
        uint64_t ghost_hits;
        struct cq_item *items;
        struct ghosts ghosts;
        struct density density;
        uint32_t n_cost[EVICT_COSTS]; /* items of each */
        float weight[EVICT_COSTS];    /* of a hit, for each byte */
        unsigned lists_used;          /* LISTS, or as long as no cost was said CLASSES */
        struct cq_list lists[];       /* LISTS for each group */
};

static struct cq *cq(const struct evict *e)
{
        return (struct cq *)e;
}

/* The first three are for items used once, in the order of enum evict_place. */
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

/* What is not said to cost so much counts as the mean of what is. */
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

/* What says who is younger than the one that a link names, and who is older. */
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

/* Each class has a list for what no cost is known of, and for each band one. */
static uint32_t list_of(const struct cq_item *i)
{
        enum { LEVELS = (EVICT_COSTS - 1) / (BANDS - 1) };

        return (i->cost == 0 ? 0 : 1 + (i->cost - 1U) / LEVELS) * CLASSES + i->class;
}

/* `item`: touched, class, uses and cost are set. */
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
                if (q->ghosts.table[i].id != 0) /* pages without any stay untouched */
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

/* Has this use brought it in, and nothing else used it? */
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

/* The touch that is to come puts it into its order there. */
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

/* The item, then its neighbours. */
static void cq_warm(const struct evict *e, uint32_t item, unsigned step)
{
        const struct cq *q = cq(e);
        const struct cq_item *i = &q->items[item];

        if (step == 0) {
                warm(i, 1);
                warm(&i->use, 1); /* of some it is in the next cache line */
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

/* Does anything go on from it but one chain that is final? */
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

/* The end of a chain that goes on from the item: what nothing that is in continues. It has not been
 * used since the item has, because a request for it asks for the item as well. A child of another
 * group would free no room in this one: the chain ends before it. */
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
        /* What was dropped, not evicted, says nothing about the traffic. */
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

/* What the search for a victim has come to in a list. */
struct old_end {
        uint32_t link;
        float density;
        uint32_t touched;
};

/* Inline, as worth_least(): without, a search for a victim takes 40 ns more. */
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

/* The list whose end is worth least; LISTS: all are at their ends. */
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

/* Of the chain from `end` up to `oldest`, the first that may go: a pinned end keeps nothing but
 * itself. False: none, or the search has passed by enough. */
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

/* A class of which too little is known to go by counts as if every fourth of its items came back
 * after as long again. */
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
        /* What is in was not touched after what is restored. */
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
        (void)ghosts_take(&q->ghosts, r->id, &ghost); /* it was evicted while all this was saved */
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

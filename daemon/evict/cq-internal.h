/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the policy of cq.c: its items and lists (here), its clocks and densities
 * (cq-learn.c), the chains of items (cq-chain.c), promises (cq-promise.c), the search for a victim
 * (cq-victim.c), and its saved state (cq-save.c). Private to them. */
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/pages-ahead.h"
#include "checked.h"
#include "evict/density.h"
#include "evict/evict.h"
#include "evict/gap.h"
#include "evict/ghosts.h"
#include "evict/links.h"
#include "evict/policy.h"

enum {
        CLASSES = DENSITY_CLASSES,
        BANDS = 4,                         /* number of cost bands, including the one for unknown
                                            * costs */
        FIRST_GAP = CLASSES - GAP_CLASSES, /* the first class of chains that return quickly, by
                                            * their mean gap */
        FINAL = FIRST_GAP - 1,             /* the class of items of which a client says that they
                                            * will not return */
        FIRST_HINT = FINAL - (EVICT_HINT_FINAL - EVICT_HINT_SOON),
        YIELDING = CLASSES * BANDS, /* number, within a group, of the list of items that give way */
        LISTS = YIELDING + 1,       /* number of lists of a group */
        MAX_USES = 15,              /* highest count of uses that an item stores; counts from 12 on
                                     * have the same class */
        /* Most steps from items to the ends of their chains in one search for a victim. Clients
         * define the chains and may create cycles. Usually few steps are needed, except for chains
         * that were touched root-first. */
        SEARCH_STEPS = 64,
        CQ_LEARN_LEAST = 1024, /* touches before the densities are computed for the first time */
        LAST_USE_BITS = 13,
        USE_TICKS = 1 << 16, /* ticks after which another touch of an item by the same use counts as
                              * another use */
        ORDER_BITS = 11,
};

/* An item. Links to older and younger items are as in links.h. `parent_link` and `child_link` are
 * links of the family; cq-chain.c explains them. Bit fields of different types share no bytes: a
 * touch stores some fields and reads others, and a read that overlaps an earlier store only in part
 * would stall. */
struct cq_item {
        uint32_t older, younger;
        uint32_t time; /* time of the last touch, in units of 2^time_unit ticks */
        uint16_t last_use : LAST_USE_BITS; /* number of the last use, from cq_use(); see
                                            * cq_is_of_use() */
        uint16_t turn : 2;                 /* turn that inserted the item; 0: unknown */
        uint16_t yields : 1;               /* the item gives way: it is evicted before the items of
                                            * other requests */
        uint16_t order : ORDER_BITS;       /* order among the items with the same `time`, see
                                            * cq_stamp() */
        uint16_t uses : 4;                 /* number of uses, up to MAX_USES */
        uint16_t is_contended : 1; /* a victim was evicted to make room for the item, which has not
                                    * been used since; in a class of announced returns: the item is
                                    * in a promise */
        uint8_t class : 4;         /* selects the list, see cq_list_of() */
        uint8_t cost : 4;          /* evict_cost_level() of the item */
        uint8_t gap;               /* mean gap of its chain, see gap.h */
        uint16_t group;
        uint32_t parent_link, child_link;
};
static_assert(sizeof(struct cq_item) == 28, "there is one for each chunk");
static_assert((int)MAX_USES < 1 << 4 && (int)CLASSES <= 1 << 4, "four bits each");
static_assert((int)EVICT_LAST_TURN < 1 << 2, "a turn has two bits");

/* A parent of several children, or one of these children; see cq-chain.c. */
union cq_kin {
        struct {
                uint32_t parent;      /* parent, as item plus one; 0 if it has been removed */
                uint32_t first, last; /* the children linked first and last, as items plus one */
        } fork;
        struct {
                uint32_t fork;          /* number of the fork's node */
                uint32_t before, after; /* siblings, as items plus one; 0 at the ends */
        } sibling;
        uint32_t next_free; /* next free node, as node plus one; 0: none */
};
static_assert(sizeof(union cq_kin) == 12, "there is one for each child that has siblings");

/* The links of a list are zeros until it first gets an item, so that the lists of unused groups
 * take no memory. Read them by cq_oldest() and cq_youngest(). */
struct cq_list {
        uint32_t oldest_or_0, youngest_or_0; /* links; in an empty list both are the list's end */
        uint32_t low; /* the item in the middle of the list that is a candidate, plus one; 0: none.
                       * See cq-victim.c */
};

enum { MAX_PROMISES = 4096, RECENT_PROMISES = 4 };

/* An announced use of a chain, see cq-promise.c. Its list has the number cq_promise_list(). */
struct cq_promise {
        uint64_t announcement; /* evict_promise.number; 0: the struct is free */
        uint64_t due;          /* time of the announced use, in ticks */
        uint64_t late;         /* end of the window in which a use comes true, in ticks */
        uint64_t made;         /* value of cq_promises.made when the promise was made, to order
                                * promises */
        uint32_t group;
        float belief;
};

struct cq_promises {
        struct cq_promise *all;
        uint16_t *order; /* indexes into `all` of the promises in use, ordered by group and time */
        uint16_t *spare; /* indexes into `all` that are free again */
        uint32_t n, high, n_spare;
        uint32_t first_list;
        uint64_t made;
        uint16_t recent[RECENT_PROMISES]; /* indexes of the latest promises, which are looked up
                                           * first, because a chain is announced item by item */
        uint32_t next_recent;
        const struct cq_promise *kept; /* promise that is not ended if its list becomes empty, while
                                        * an item moves within it */
};

/* The price of a slot in a group, as the searches for a victim found it. */
struct cq_price {
        float mean;        /* moving average of the worth of the victims */
        float least;       /* worth of the last victim; 0 if its chain does not return quickly */
        uint32_t searches; /* searches that found a victim whose slot has not got its new item
                            * yet */
};

struct cq {
        struct evict evict;
        uint64_t now;  /* touches and insertions so far */
        uint64_t time; /* ticks so far, see gap.h */
        unsigned time_unit;
        uint64_t noted_ns; /* time up to which `time` has advanced, CLOCK_MONOTONIC ns; 0: no time
                            * was reported */
        uint32_t high;     /* all items ever inserted have numbers below this */
        uint32_t items_in;
        uint64_t learn_at;
        uint32_t sample_phase;
        uint64_t ghost_hits, yielded;
        uint32_t order_time, order; /* time of the latest touch; number of touches with that time */
        uint32_t first_to_yield, yielding_use; /* the first item of a request that gives way, plus
                                                  one, or 0; number of the request's use */
        uint64_t yielding_since;               /* tick at which yielding_use was set */
        struct cq_item *items;
        union cq_kin *kin; /* nodes for forks and siblings: three for two items */
        struct pages_ahead items_ahead, kin_ahead;
        uint32_t kin_high, kin_free, kin_in_use; /* kin_high: all nodes ever used are below this;
                                                    kin_free: first free node, plus one, or 0 */
        struct cq_price *prices;                 /* by group */
        struct ghosts ghosts;
        struct density density;
        struct cq_promises promises;
        uint32_t n_cost[EVICT_COSTS]; /* number of items by cost level */
        float weight[EVICT_COSTS];    /* weight of a hit by cost level, per byte */
        unsigned lists_used;          /* number of lists in use: CLASSES until an item has had a
                                       * known cost, then YIELDING */
        struct cq_list lists[];       /* LISTS per group, then one per promise */
};

static inline struct cq *cq(const struct evict *e)
{
        return (struct cq *)e;
}

/* Returns the present time in the unit of cq_item.time. */
static inline uint32_t cq_clock(const struct cq *q)
{
        return (uint32_t)(q->time >> q->time_unit);
}

static inline uint32_t cq_age(const struct cq *q, const struct cq_item *i)
{
        return cq_clock(q) - i->time;
}

/* Returns the number by which an item stores a use. Two uses whose numbers differ by a multiple of
 * CQ_USES get the same number. If both touch an item within USE_TICKS, and no other use touches it
 * in between, the item counts them as one use. */
enum { CQ_USES = (1 << LAST_USE_BITS) - 1 };
static inline uint32_t cq_use(uint32_t use)
{
        return use == EVICT_NO_USE ? EVICT_NO_USE : use % CQ_USES + 1;
}

/* Returns whether the last touch of an item was by this use. `use`: from cq_use(). */
static inline bool cq_is_of_use(const struct cq *q, const struct cq_item *i, uint32_t use)
{
        return use != EVICT_NO_USE && i->last_use == use &&
               cq_age(q, i) <= (uint32_t)USE_TICKS >> q->time_unit;
}

/* Returns a number that orders items by their last touches. */
static inline uint64_t cq_stamp_of(const struct cq_item *i)
{
        return (uint64_t)i->time << ORDER_BITS | i->order;
}

static inline uint32_t cq_oldest(const struct cq *q, uint32_t list)
{
        uint32_t link = q->lists[list].oldest_or_0;

        return link != 0 ? link : LINK_END | list;
}

static inline uint32_t cq_youngest(const struct cq *q, uint32_t list)
{
        uint32_t link = q->lists[list].youngest_or_0;

        return link != 0 ? link : LINK_END | list;
}

/* Returns the place in a chain (enum evict_place) of an item with this turn that is not the end of
 * its chain. */
static inline unsigned cq_place_of(unsigned turn)
{
        return turn >= EVICT_LAST_TURN ? EVICT_PLACE_CONTINUATION : EVICT_PLACE_UNKNOWN;
}

/* Returns the class of an item without a hint. `place`: enum evict_place; the end counts only for
 * an item used once. */
uint8_t cq_class_of(unsigned uses, unsigned place, uint8_t gap);

/* Return the field that names the younger or older neighbour of the item or list end that a link
 * refers to. */
static inline uint32_t *cq_younger_of(struct cq *q, uint32_t link)
{
        return link & LINK_END ? &q->lists[link & ~LINK_END].oldest_or_0
                               : &q->items[link - 1].younger;
}

static inline uint32_t *cq_older_of(struct cq *q, uint32_t link)
{
        return link & LINK_END ? &q->lists[link & ~LINK_END].youngest_or_0
                               : &q->items[link - 1].older;
}

static inline bool cq_has_hint(const struct cq_item *i)
{
        return i->class >= FIRST_HINT && i->class <= FINAL;
}

/* Returns whether a client has predicted a return of the item, by a hint or a promise. */
static inline bool cq_is_announced(const struct cq_item *i)
{
        return i->class >= FIRST_HINT && i->class < FINAL;
}

static inline bool cq_is_in_promise(const struct cq_item *i)
{
        return cq_is_announced(i) && i->is_contended;
}

/* Notes that an item has left the list of its promise. Frees the promise if the list is empty. */
void cq_leave_promise(struct cq *q, uint32_t item);

/* Returns the number of an item's list within its group of one size: YIELDING for an item that
 * gives way, otherwise the list of the item's class and cost band, where band 0 means an unknown
 * cost. */
static inline uint32_t cq_list_of(const struct cq_item *i)
{
        enum { LEVELS = (EVICT_COSTS - 1) / (BANDS - 1) };

        if (i->yields)
                return YIELDING;
        return (i->cost == 0 ? 0 : 1 + (i->cost - 1U) / LEVELS) * CLASSES + i->class;
}

static inline void cq_unlink(struct cq *q, uint32_t item)
{
        const struct cq_item *i = &q->items[item];
        struct cq_list *list = &q->lists[i->group * LISTS + cq_list_of(i)];

        if (__builtin_expect(list->low == item + 1, 0)) /* not true in a promise */
                list->low = i->younger & LINK_END ? 0 : i->younger;
        *cq_younger_of(q, i->older) = i->younger;
        *cq_older_of(q, i->younger) = i->older;
        if (__builtin_expect(cq_is_in_promise(i), 0))
                cq_leave_promise(q, item);
}

static inline void cq_append_to(struct cq *q, uint32_t item, uint32_t list)
{
        uint32_t older = cq_youngest(q, list);

        q->items[item].older = older;
        q->items[item].younger = LINK_END | list;
        *cq_younger_of(q, older) = item + 1;
        q->lists[list].youngest_or_0 = item + 1;
}

/* Makes an item the oldest of a list. */
static inline void cq_prepend_to(struct cq *q, uint32_t item, uint32_t list)
{
        uint32_t younger = cq_oldest(q, list);

        q->items[item].older = LINK_END | list;
        q->items[item].younger = younger;
        *cq_older_of(q, younger) = item + 1;
        q->lists[list].oldest_or_0 = item + 1;
}

/* Appends an item to its list. Its class, cost and `yields` must be set. */
static inline void cq_append(struct cq *q, uint32_t item, uint32_t group)
{
        cq_append_to(q, item, group * LISTS + cq_list_of(&q->items[item]));
}

/* Stamps an item with the time of its last touch. Items with equal times keep their order: nearly
 * all touches of a request have the same time, and the order keeps a restored chain leaf first. The
 * order is exact for the first EXACT touches of a tick; of the later ones, STEP in a row have the
 * same order. */
static inline void cq_stamp(struct cq *q, struct cq_item *i, uint32_t time)
{
        enum { EXACT = 1 << (ORDER_BITS - 1), MOST = (1 << ORDER_BITS) - 1, STEP = 16 };
        uint32_t n = q->order_time == time ? q->order : 0;

        q->order_time = time;
        q->order = n + 1;
        i->time = time;
        i->order = (n < EXACT ? n : MIN(EXACT + (n - EXACT) / STEP, (uint32_t)MOST)) & MOST;
}

/* --- cq-learn.c --- */

/* Sets the weight of items of unknown cost to the mean weight of the items of known cost, or to 1
 * if there are none. */
void cq_weigh(struct cq *q);
void cq_pass_time(struct cq *q, uint64_t ticks);
void cq_advance(struct evict *e);
/* Counts a touch or an insertion. Until a time is reported, each of them is a tick. */
static inline void cq_tick(struct cq *q)
{
        if (q->evict.ages.now_ns == 0)
                cq_pass_time(q, 1);
        q->now++;
}
/* Estimates the number of the touch at which the item was touched last from the time of that
 * touch. */
uint64_t cq_touched(const struct evict *e, uint32_t item);
/* Recomputes the densities if enough touches have happened since the last time. */
void cq_learn(struct cq *q);

/* --- cq-chain.c --- */

void cq_link(struct evict *e, uint32_t item, uint32_t parent);
/* Returns the parent of an item, or EVICT_NONE if it has none or the parent has been removed. */
uint32_t cq_parent(const struct evict *e, uint32_t item);
/* Removes the item's links to its parent and its children. */
void cq_leave_family(struct cq *q, uint32_t item);
/* Returns whether the item has children other than a single final one. */
bool cq_is_continued(const struct cq *q, const struct cq_item *i);
/* Returns the end of the first linked chain that continues the item: the descendant that no present
 * item continues, or the item itself. It is no more recently used than the item, because a request
 * for it also touches the item. The walk stops before a child of another group, whose eviction
 * would free no room in this one, and when *steps is used up. */
uint32_t cq_end_of_chain(const struct cq *q, uint32_t item, unsigned *steps);

/* --- cq-promise.c --- */

/* Initializes the promises. Returns 0, or -1 without memory; cq_promises_fini() may follow in any
 * case. */
int cq_promises_init(struct cq_promises *p, uint32_t first_list);
void cq_promises_fini(struct cq_promises *p);
bool cq_promise(struct evict *e, uint32_t item, const struct evict_promise *announced);
/* Returns the belief in a promise. Once its window has passed, the announcement can only be one
 * that does not come true, so the belief is weighted by the share of these. */
float cq_promise_belief(const struct cq *q, const struct cq_promise *one);
/* Returns the worth of each item of a promise: the expected hits per unit of time, weighted by the
 * cost of the item at the end of the chain. */
float cq_promise_worth(const struct cq *q, const struct cq_promise *one);
/* Returns the promise of an item, or NULL if the item has none, or is too far from the end of the
 * chain. */
const struct cq_promise *cq_promise_near(const struct cq *q, uint32_t item);
/* Returns the expected hits per unit of time of an item of the use for which evict_expect() was
 * called. */
float cq_expected_density(const struct cq *q);
uint32_t cq_promise_list(const struct cq *q, const struct cq_promise *one);
/* Visit the promises of a group, the least valuable first. cq_promised_next() returns NULL after
 * the last one. No promise may be made or end meanwhile. */
struct evict_promised cq_promised_of(const struct cq *q, uint32_t group);
const struct cq_promise *cq_promised_next(const struct cq *q, struct evict_promised *left);
/* Implement promised() and next_promised() of policy.h. */
struct evict_promised cq_promised(const struct evict *e, uint32_t group);
uint32_t cq_next_promised(const struct evict *e, struct evict_promised *left, double *ret_worth);

/* --- cq-victim.c --- */

uint32_t cq_victim(struct evict *e, uint32_t group,
                   bool (*may_evict)(void *userdata, uint32_t item), void *userdata,
                   uint32_t max_passed);
/* Returns whether an item of this class will be worth less than the group's victims when the
 * request that inserts it has ended. */
bool cq_gives_way(const struct cq *q, const struct cq_item *i, uint32_t group);
double cq_worth(const struct evict *e, uint32_t item);
/* Implements low() of policy.h. */
uint32_t cq_low(const struct evict *e, uint32_t list);
bool cq_is_worth_less(const struct evict *e, uint32_t item);
double cq_chance(const struct evict *e, uint32_t item);
void cq_explain(const struct evict *e, uint32_t item, uint32_t group, struct evict_standing *ret);

/* --- cq-save.c --- */

void cq_save(const struct evict *e, struct evict_learned *ret);
void cq_save_item(const struct evict *e, uint32_t item, struct evict_record *ret);
uint32_t cq_save_remembered(const struct evict *e, uint32_t *cursor, uint32_t looks,
                            struct evict_record *ret, uint32_t room);
bool cq_restore(struct evict *e, const struct evict_learned *l);
bool cq_restore_item(struct evict *e, uint32_t item, uint32_t group, const struct evict_record *r);
void cq_restore_remembered(struct evict *e, const struct evict_record *r);

/* SPDX-License-Identifier: Apache-2.0 */
/* Replacement policies choose the item to evict next. Items are numbers. Pool and store each have a
 * policy with separate state. Accesses no file, and allocates nothing after evict_new(), except in
 * evict_switch().
 *
 * Items are in groups (size classes). A victim is chosen within one group, because only a slot of
 * that size helps; the worth of items in two groups can be compared to move a slab.
 *
 * Leaf first: callers touch a chain from its end to its root, so that a parent is always younger
 * than its children. The policy only sees the order. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "evict/promise.h"

#define EVICT_NONE UINT32_MAX

struct evict;

/* Creates a policy, "lru" or "cq", for items 0 to max_items - 1. Returns 0, -ENOMEM, or -EINVAL if
 * the policy is unknown or a number invalid. */
int evict_new(struct evict **ret, const char *policy, uint32_t max_items, uint32_t max_groups);
struct evict *evict_free(struct evict *e);

/* Changes the policy for the same items, in two tenths of a second per million. Items keep the
 * order of their last touches, their retention and their lots. Demotions end, and everything
 * learned and remembered is discarded. Returns 1 if it was changed, 0 if *e has this policy
 * already, or -EINVAL or -ENOMEM with *e unchanged. */
int evict_switch(struct evict **e, const char *policy);

/* The place in its chain at which an item was inserted. A policy may expect fewer hits of items at
 * some places. */
enum evict_place {
        EVICT_PLACE_UNKNOWN = 0,  /* unknown, or inserted by one of the first two requests of a
                                   * chain */
        EVICT_PLACE_CONTINUATION, /* inserted by a later request, which continues a session */
        EVICT_PLACE_END,          /* the last item of its request */
};

/* The number of a use. A request asks for a chain of items, inserts the missing ones and touches
 * all of them, some repeatedly; all these calls have the same number and count as one use. Numbers
 * may be in any order. EVICT_NO_USE: each call is a use of its own. */
#define EVICT_NO_USE 0

/* Returns the hash as an id. 0 means "no id", so a hash of 0 becomes 1. */
static inline uint64_t evict_id(uint64_t hash)
{
        return hash != 0 ? hash : 1;
}

/* Inserts a new item as the youngest. `bytes`: length that its eviction would free. */
void evict_insert(struct evict *e, uint32_t item, uint32_t group, uint32_t bytes);
/* Inserts a new item with an identity. `id` identifies its contents across items: a nonzero hash of
 * its key, by which a policy recognizes an evicted item. */
void evict_insert_known(struct evict *e, uint32_t item, uint32_t group, uint32_t bytes, uint64_t id,
                        uint32_t use, enum evict_place place);
/* Records a use of the item. `group` must be that of the insertion. */
void evict_touch(struct evict *e, uint32_t item, uint32_t group, uint32_t use);
/* Sets the turn of an item, by the use that inserted it, once its place in the chain is known. The
 * turns of a session are counted from 1 to EVICT_LAST_TURN. */
enum { EVICT_LAST_TURN = 3 };
void evict_set_turn(struct evict *e, uint32_t item, uint32_t group, uint32_t use, unsigned turn,
                    bool is_end);
/* Returns the turn of an item, or 0 if this use has inserted it and the turn is not yet known. */
unsigned evict_turn(const struct evict *e, uint32_t item, uint32_t use);
/* The mean gap between the uses of a chain, as a code of one byte; EVICT_NO_GAP if it is unknown.
 * The owner reads the mean gap of the deepest item of a request that was used before
 * (evict_chain_gap()), provided that this item is in the deeper half of the request. It then sets
 * this gap for all items of the request (evict_set_gap()), after their insertion or touch. Both
 * calls are cheap. */
enum { EVICT_NO_GAP = 0 };
/* A chain that is used again: the mean gap that it had, and the gap that ends now. */
struct evict_return {
        double gap_s; /* mean gap in seconds; 0: unknown, or no gap ends now */
        uint64_t age_ns;
        bool is_evicted; /* the item had been evicted, and the policy remembered it */
};
/* Returns the mean gap of the chain, including the gap that ends with this use. For an item that
 * this use has already touched or inserted, returns the item's present gap. `ret` may be NULL. */
uint8_t evict_chain_gap(const struct evict *e, uint32_t item, uint32_t use,
                        struct evict_return *ret);
/* Does what evict_chain_gap() does, for an evicted item that the policy remembers. */
uint8_t evict_remembered_gap(const struct evict *e, uint64_t id, struct evict_return *ret);
/* Returns the seconds that a mean gap stands for; 0 for EVICT_NO_GAP. */
double evict_gap_seconds(uint8_t gap);
/* Returns the mean gap that the item has. */
uint8_t evict_gap(const struct evict *e, uint32_t item);
void evict_set_gap(struct evict *e, uint32_t item, uint8_t gap);
/* Sets whether the policy keeps new items regardless of their worth, so that no item gives way
 * (evict_gives_way()). Used by owners that must report items some time before their eviction. */
void evict_admit_all(struct evict *e, bool all);
/* Returns whether an item gives way: when its request inserted it, its worth, or that of an earlier
 * item of the request, was below that of the present victims, so it is evicted next. Also true for
 * a demoted item, if the policy has items that give way. */
bool evict_gives_way(const struct evict *e, uint32_t item);
/* Makes the next searches for a victim prefer items that were not touched by `use`, so that a
 * request does not evict its own beginning. Items that give way remain victims. EVICT_NO_USE ends
 * the preference. Policies by recency alone ignore the call, because their victim is the oldest
 * item. */
void evict_serve(struct evict *e, uint32_t use);
/* Returns whether the policy uses links and turns. */
bool evict_wants_chains(const struct evict *e);
/* Links an item to `parent`, its predecessor in the chain. Both must be present. The link lasts
 * while both stay; further links of an item are ignored. A policy may keep a parent as long as its
 * children. */
void evict_link(struct evict *e, uint32_t item, uint32_t parent);
/* Returns the item's predecessor in the chain, or EVICT_NONE if the policy does not know it. */
uint32_t evict_parent(const struct evict *e, uint32_t item);

/* A client's prediction for an item. It affects only the choice of the group's next victim, ends
 * with the item's next use, and may be ignored. */
enum evict_hint {
        EVICT_HINT_NONE = 0,
        EVICT_HINT_SOON, /* the item will be used within a minute */
        EVICT_HINT_LATER,
        EVICT_HINT_MUCH_LATER,
        EVICT_HINT_FINAL, /* the chain that ends here will not be used again */
};
enum { EVICT_SOON_S = 60, EVICT_LATER_S = 600 };
/* Returns the hint for a predicted use in this number of seconds. */
static inline enum evict_hint evict_hint_return(uint32_t seconds)
{
        return seconds <= EVICT_SOON_S    ? EVICT_HINT_SOON
               : seconds <= EVICT_LATER_S ? EVICT_HINT_LATER
                                          : EVICT_HINT_MUCH_LATER;
}
/* Applies a hint to an item. Call it along a chain from the end to the root. Returns false, without
 * a change, for EVICT_HINT_FINAL if another chain continues the item; the caller should then
 * stop. */
bool evict_hint(struct evict *e, uint32_t item, enum evict_hint hint);
/* Applies an announcement to an item, in the order of evict_hint(), in place of the hint of a
 * return. The item is kept as long as its use is expected sooner than the uses of other items. The
 * promise ends with the item's next use. The hint of a return is applied instead if the item is
 * demoted or set aside, or if the policy has no return times, no reported time or too many
 * promises. A promise makes the next report due, see evict_note_leaving(). */
void evict_promise(struct evict *e, uint32_t item, const struct evict_promise *promise);
/* Lets the policy judge the new items of a use by the announcement that will follow it: a promise,
 * or, with 0 seconds, that the chain is final. NULL ends this. */
void evict_expect(struct evict *e, uint32_t use, const struct evict_promise *promise);
/* Prefetches memory before many touches in a row: call step 0 for each item, somewhat later step 1,
 * then evict_touch(). */
void evict_warm(const struct evict *e, uint32_t item, unsigned step);
/* Populates the memory of items [from, to), which are about to be inserted. Any thread,
 * concurrently with all other calls. */
void evict_populate(const struct evict *e, uint32_t from, uint32_t to);
/* Frees the memory of the items from number `from` on, none of which may ever have been
 * inserted. */
void evict_unpopulate(const struct evict *e, uint32_t from);
/* Sets whether memory is populated ahead of insertions, which is the default. An owner that calls
 * evict_populate() itself turns it off. */
void evict_populate_ahead(struct evict *e, bool on);
/* Removes a dropped item, which teaches the policy nothing. */
void evict_remove(struct evict *e, uint32_t item);
/* Removes an item because it was evicted. `id` is that of the insertion. */
void evict_remove_victim(struct evict *e, uint32_t item, uint64_t id);
/* Returns whether the policy has evicted the item of this id and still remembers it. */
bool evict_remembers(const struct evict *e, uint64_t id);
bool evict_contains(const struct evict *e, uint32_t item);

/* The level of an item's cost, in steps of the square root of two from 0.05 ns per byte;
 * EVICT_COST_UNKNOWN if no client has reported it. evict_cost_level() converts the ns of
 * recomputing `bytes`. A policy may keep expensive items longer. */
enum { EVICT_COST_UNKNOWN = 0, EVICT_COSTS = 16 };
unsigned evict_cost_level(uint64_t ns, uint32_t bytes);
void evict_set_cost(struct evict *e, uint32_t item, unsigned level);
unsigned evict_cost(const struct evict *e, uint32_t item); /* unknown if the policy has no costs */

/* Sets or clears retention of an item. A retained item is no victim, but is otherwise touched and
 * learned from like other items. Either change makes it the youngest of its list. */
void evict_retain(struct evict *e, uint32_t item, uint32_t group, bool retained);
bool evict_is_retained(const struct evict *e, uint32_t item);

/* Moves an item that cannot be a victim now out of its group, to a lot that no search visits: a
 * search does not pass over it again. A lot is one of EVICT_LOTS sets of such items, whose meaning
 * the owner chooses. A touch returns the item to its group as the youngest; evict_bring_back()
 * returns it at the old end of its list, with the time of its last touch. Both functions are
 * idempotent. */
enum { EVICT_LOTS = 2 };
void evict_set_aside(struct evict *e, uint32_t item, unsigned lot);
void evict_bring_back(struct evict *e, uint32_t item, uint32_t group);
/* Visits the items of a lot; each() may bring its item back. Returns the number of items
 * visited. */
uint32_t evict_each_aside(struct evict *e, unsigned lot,
                          void (*each)(void *userdata, uint32_t item), void *userdata);
bool evict_lot_is_empty(const struct evict *e, unsigned lot);
bool evict_is_aside(const struct evict *e, uint32_t item);

/* Makes an item the next victim of its group, because the owner knows that it is worthless now. A
 * touch, a change of retention, evict_promote() or evict_spare() ends this state. Returns false,
 * without a change, if the item is retained, set aside or demoted already. */
bool evict_demote(struct evict *e, uint32_t item, uint32_t group);
/* Makes a demoted item the youngest, without counting a use. Returns false, without a change, if
 * the item is not demoted. */
bool evict_promote(struct evict *e, uint32_t item, uint32_t group);
/* Makes an item the youngest of its list without counting a use. If the item gave way or was
 * demoted, that state ends. */
void evict_spare(struct evict *e, uint32_t item, uint32_t group);
bool evict_is_demoted(const struct evict *e, uint32_t item);
/* Returns the number of demoted items. */
uint32_t evict_demoted(const struct evict *e);

/* Returns the item of the group to evict next among those for which `may_evict` returns true (all
 * if it is NULL), or EVICT_NONE. The item stays in its list until evict_remove_victim(). The search
 * ends once may_evict has returned false for more than `max_passed` items; after evict_serve(), it
 * may then begin a second time. */
uint32_t evict_victim(struct evict *e, uint32_t group,
                      bool (*may_evict)(void *userdata, uint32_t item), void *userdata,
                      uint32_t max_passed);

/* Returns the logical time of an item's last touch, or 0 if it is absent. The clock advances by one
 * with each touch or insertion. Used to compare groups. A policy that stores the time of a touch
 * instead estimates the number from it, within a tenth of the touches since then. */
uint64_t evict_touched(const struct evict *e, uint32_t item);
/* Reports the time of a monotonic clock. Call it as often as is cheap, and before the touches of
 * that time. A policy that learns from ages measures them in this time or, before the first report,
 * in touches. */
void evict_note_time(struct evict *e, uint64_t now_ns);
/* Returns the time since the item's last touch, within a tenth, but at most since the first
 * reported time. 0 if no time was reported. */
uint64_t evict_age_ns(const struct evict *e, uint32_t item);
/* Returns the worth of keeping an item: the expected hits per unit of time, weighted by its cost.
 * With `by_recency`, or with a policy that learns nothing, it is the inverse of the age in touches,
 * which no hint or cost can change. The sums over the items of slabs are compared to choose a
 * slab. */
double evict_worth(const struct evict *e, uint32_t item, bool by_recency);
/* Returns whether an item is worth less than one with this promise: used by an owner that reads an
 * item ahead of its announced use. A policy without return times compares the time since the last
 * use with the time until the announced one. */
bool evict_is_worth_less(struct evict *e, uint32_t item, const struct evict_promise *promise);
/* Returns a lower bound of the chance that the item is used again, estimated from other items of
 * its age. 1 if a client predicts a use and nothing contradicts it; 0 if a client predicts no
 * further use, or the policy has not learned enough of such items, or learns nothing. */
double evict_chance(const struct evict *e, uint32_t item);
/* Calls each() for up to `n` items of a group in ascending order of worth. These are the next to be
 * evicted, except where the order of a chain intervenes. The callee must not touch, insert or
 * remove items. */
void evict_next(const struct evict *e, uint32_t group, uint32_t n,
                void (*each)(void *userdata, uint32_t item), void *userdata);
/* Report items that will soon be evicted, while they are still present. The owner notes each
 * eviction, and after a certain number of them a report becomes due. A report lists twice as many
 * items as are evicted until the next report, so that each item appears in about two reports.
 * `items`: the number of items in the group. evict_report_leaving() does nothing if no report is
 * due. */
void evict_note_leaving(struct evict *e, uint32_t group);
bool evict_reports_are_due(const struct evict *e);
void evict_report_leaving(struct evict *e, uint32_t group, uint64_t items,
                          void (*each)(void *userdata, uint32_t item), void *userdata);
/* Returns the estimated worth of another slab of `slots` slots to the group in which `victim` is
 * the next victim. A slab of another group may be taken if its items are worth less. The estimate
 * is slightly low, because the worth of the other slab is an estimate, too. */
double evict_slab_gain(const struct evict *e, uint32_t victim, uint32_t slots, bool by_recency);
enum { EVICT_SLAB_SAMPLE = 32 }; /* most slots of a slab that are examined to estimate its worth */
/* Chooses a victim among the retained items of a group, for a caller that has found no other
 * victim. */
uint32_t evict_retained_victim(struct evict *e, uint32_t group,
                               bool (*may_evict)(void *userdata, uint32_t item), void *userdata,
                               uint32_t max_passed);

/* The class by which a policy judges an item. Programs outside the daemon know the numbers, so new
 * classes are appended. */
enum evict_class {
        EVICT_CLASS_NONE = 0,       /* the item is not present */
        EVICT_CLASS_ONCE,           /* used once */
        EVICT_CLASS_ONCE_CONTINUED, /* used once, inserted by a later turn of a session */
        EVICT_CLASS_ONCE_END,       /* used once, the end of its chain */
        EVICT_CLASS_TWICE,
        EVICT_CLASS_THRICE,
        EVICT_CLASS_4_TO_5,
        EVICT_CLASS_6_TO_11,
        EVICT_CLASS_12,           /* used 12 times or more */
        EVICT_CLASS_RETURNS_SOON, /* a client's hint predicts a return within a minute */
        EVICT_CLASS_RETURNS_LATER,
        EVICT_CLASS_RETURNS_MUCH_LATER,
        EVICT_CLASS_FINAL,
        EVICT_CLASS_RECENCY, /* the policy judges all items by recency only */
        EVICT_CLASS_GAP_10,  /* the chain has a mean gap below 10 s; the next classes: below 20, 40
                              * and 80 s */
        EVICT_CLASS_GAP_20,
        EVICT_CLASS_GAP_40,
        EVICT_CLASS_GAP_80,
        EVICT_CLASS_END,
};
struct evict_standing {
        enum evict_class class;
        uint64_t age; /* touches and insertions of all items since the item's last touch */
        /* Expected hits per unit of time, weighted by cost, for this item and for the least
         * valuable one of its group; 0 before anything was learned, and if the policy learns
         * nothing. */
        double density, least_density;
        bool is_next; /* the item is the group's next victim, or gives way; a pinned item is passed
                         over nevertheless */
        bool is_continued; /* a present item continues the item's chain, and is evicted first */
        bool is_retained;
        bool yields;   /* result of evict_gives_way() */
        double gap_s;  /* mean gap of its chain in seconds; 0: unknown */
        unsigned cost; /* evict_cost_level() of the item */
};
/* Fills in the present standing of an item, for diagnosis. */
void evict_explain(const struct evict *e, uint32_t item, uint32_t group,
                   struct evict_standing *ret);

struct evict_stats {
        uint64_t ghosts; /* evicted items remembered now */
        uint64_t ghosts_max;
        uint64_t ghost_hits;      /* insertions of items that were remembered */
        uint64_t yielded;         /* evictions of items that gave way */
        uint64_t demoted;         /* items that are demoted, now */
        uint64_t demoted_victims; /* evictions of demoted items */
        uint64_t ghost_bytes;     /* bytes of memory for each ghost, and (item_bytes) for each
                                   * item */
        uint64_t item_bytes;
        uint64_t fork_bytes; /* bytes of memory for the links of chains that fork */
};
void evict_get_stats(const struct evict *e, struct evict_stats *ret);
/* Adds the statistics of several instances of the same policy. */
void evict_add_stats(struct evict_stats *sum, const struct evict_stats *one);

/* The learned state of a policy, saved across a restart. Restore it into a new policy of the same
 * name whose items were inserted as if used once: first evict_restore(), then the remembered items,
 * then the present items in order of their touches. Everything from a file is validated. */
enum { EVICT_COUNTS = 2 * 16 * 64 };
struct evict_learned {
        uint64_t now;  /* touches and insertions so far */
        uint64_t time; /* value of the clock in which ages are measured */
        uint32_t unit, time_unit;
        uint32_t n_counts; /* number of valid elements of `counts`: 0 or EVICT_COUNTS */
        uint32_t reserved;
        double counts[EVICT_COUNTS];
};
/* The saved state of a present or an evicted item. */
struct evict_record {
        uint64_t id;      /* the id of the insertion; never 0 */
        uint32_t touched; /* position in the order of the last touches: among items with the same
                           * `time`, or of all items if the policy saves no time; 0 for an evicted
                           * item */
        uint32_t time;    /* evict_learned.time at the last use, in units of 2^time_unit; 0 if the
                             policy saves no time */
        uint8_t class, uses, turn;
        uint8_t flags; /* EVICT_RECORD_*; the cost level from bit EVICT_RECORD_COST */
        uint8_t gap;
        uint8_t reserved[3];
};
enum { EVICT_RECORD_RETAINED = 1 << 0, EVICT_RECORD_YIELDS = 1 << 1, EVICT_RECORD_COST = 4 };
uint64_t evict_touches(const struct evict *e); /* returns the present value of evict_learned.now */
void evict_save(const struct evict *e, struct evict_learned *ret);
void evict_save_item(const struct evict *e, uint32_t item, uint64_t id, struct evict_record *ret);
/* Saves remembered items: examines up to `looks` entries from *cursor, which begins at 0, and
 * stores up to `room` records. Returns their number; *cursor is UINT32_MAX after the last entry. */
uint32_t evict_save_remembered(const struct evict *e, uint32_t *cursor, uint32_t looks,
                               struct evict_record *ret, uint32_t room);
/* Restores the learned state. Returns false, without a change, if `l` is invalid for this
 * policy. */
bool evict_restore(struct evict *e, const struct evict_learned *l);
/* Restore remembered and present items. Invalid records are ignored, and evict_restore_item()
 * returns false for them. */
void evict_restore_remembered(struct evict *e, const struct evict_record *r);
bool evict_restore_item(struct evict *e, uint32_t item, uint32_t group,
                        const struct evict_record *r);
/* Makes the items inserted after the save the youngest again, in their order. */
void evict_restore_rest(struct evict *e, bool (*is_new)(void *userdata, uint32_t item),
                        void *userdata);

/* Return the name of the policy in use, and whether a policy of this name exists. */
const char *evict_policy(const struct evict *e);
bool evict_policy_exists(const char *policy);
/* Returns the policy's own copy of the name of a policy that exists; the copy is static. */
const char *evict_policy_name(const char *policy);

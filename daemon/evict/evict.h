/* SPDX-License-Identifier: Apache-2.0 */
/* Replacement policies: which item is evicted next. Items are numbers; pool and store have a policy
 * each, with separate state. Touches no file, allocates nothing after evict_new().
 *
 * Items are in groups (size classes): a victim is chosen within one group, because only a slot of
 * that size helps, and what items of two groups are worth can be compared, to move a slab.
 *
 * Leaf first: callers touch a chain from its end to its root, so that a parent is always younger
 * than its children. The policy only sees the order. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define EVICT_NONE UINT32_MAX

struct evict;

/* `policy`: "lru" or "cq". -EINVAL if unknown or the numbers are, -ENOMEM. Items are 0 .. max_items
 * - 1. */
int evict_new(struct evict **ret, const char *policy, uint32_t max_items, uint32_t max_groups);
struct evict *evict_free(struct evict *e);

/* Another policy for the same items: they keep the order of their last touches, what is retained
 * stays so, and what was learned and remembered is given up. Takes two tenths of a second for a
 * million items. 1: done. 0: it is this one already. -EINVAL, -ENOMEM: *e is as it was. */
int evict_switch(struct evict **e, const char *policy);

/* Where in its chain an item was when it came in. A policy may expect less of some. */
enum evict_place {
        EVICT_PLACE_UNKNOWN = 0,  /* or what a chain's first two requests have brought */
        EVICT_PLACE_CONTINUATION, /* what a later request has brought: the session goes on */
        EVICT_PLACE_END,          /* the last item of its request */
};

/* A request asks for a chain of items, inserts what is missing of it, and touches all of it, some
 * more than once: that is one use of them. Uses have numbers, in any order; 0: a use by itself. */
#define EVICT_NO_USE 0

/* An id, of a hash that may be 0. */
static inline uint64_t evict_id(uint64_t hash)
{
        return hash != 0 ? hash : 1;
}

/* A new item, as the youngest. `bytes`: what evicting it would free. */
void evict_insert(struct evict *e, uint32_t item, uint32_t group, uint32_t bytes);
/* The same. `id` names what the item holds, whichever item that is: a hash of its key, not 0. A
 * policy that remembers what it has evicted recognizes it by that. */
void evict_insert_known(struct evict *e, uint32_t item, uint32_t group, uint32_t bytes, uint64_t id,
                        uint32_t use, enum evict_place place);
/* The group is the one it was inserted with. */
void evict_touch(struct evict *e, uint32_t item, uint32_t group, uint32_t use);
/* As the youngest again, though it has not been used. */
void evict_refresh(struct evict *e, uint32_t item, uint32_t group);
/* By the use that has inserted an item, once its place in the chain is known. Turns of a session
 * are counted from 1 to EVICT_LAST_TURN. */
enum { EVICT_LAST_TURN = 3 };
void evict_set_turn(struct evict *e, uint32_t item, uint32_t group, uint32_t use, unsigned turn,
                    bool is_end);
/* 0: this use has inserted it, and its turn is not known. */
unsigned evict_turn(const struct evict *e, uint32_t item, uint32_t use);
/* Are links and turns of any use to the policy? */
bool evict_wants_chains(const struct evict *e);
/* `parent` is what comes before the item in its chain. Both are in. It holds while both stay in; a
 * second link of an item changes nothing. A policy may then keep a parent as long as its children.
 */
void evict_link(struct evict *e, uint32_t item, uint32_t parent);

/* What a client says of an item. Advice: it changes which of a group's items is the next victim and
 * nothing else, and the item's next use ends it. A policy may ignore it. */
enum evict_hint {
        EVICT_HINT_NONE = 0,
        EVICT_HINT_SOON, /* it will be used again within a minute */
        EVICT_HINT_LATER,
        EVICT_HINT_MUCH_LATER,
        EVICT_HINT_FINAL, /* the chain that ends with it will not be used again */
};
enum { EVICT_SOON_S = 60, EVICT_LATER_S = 600 };
/* The hint that an item will be used again after so many seconds. */
static inline enum evict_hint evict_hint_return(uint32_t seconds)
{
        return seconds <= EVICT_SOON_S    ? EVICT_HINT_SOON
               : seconds <= EVICT_LATER_S ? EVICT_HINT_LATER
                                          : EVICT_HINT_MUCH_LATER;
}
/* Of a chain, from its end to its root. False: EVICT_HINT_FINAL, but another chain goes on from the
 * item. It is as before then, and so should be what comes before it. */
bool evict_hint(struct evict *e, uint32_t item, enum evict_hint hint);
/* For many touches in a row: step 0 for each, a little later step 1, a little later evict_touch().
 */
void evict_warm(const struct evict *e, uint32_t item, unsigned step);
/* The items [from, to) are about to come in: has the machine's memory put under them. On any
 * thread, whatever the others do meanwhile. */
void evict_populate(const struct evict *e, uint32_t from, uint32_t to);
/* Gives back what is under those from `from` on, of which none has ever been in. */
void evict_unpopulate(const struct evict *e, uint32_t from);
/* Out of the policy: dropped. */
void evict_remove(struct evict *e, uint32_t item);
/* Out of it because it was the victim; `id` as when it was inserted. */
void evict_remove_victim(struct evict *e, uint32_t item, uint64_t id);
/* Has the policy evicted the item of this id, and not forgotten it since? Of one that remembers
 * nothing always false. */
bool evict_remembers(const struct evict *e, uint64_t id);
bool evict_contains(const struct evict *e, uint32_t item);

/* What computing an item anew would cost, for each of its bytes, in steps of the square root of two
 * from a twentieth of a nanosecond on; EVICT_COST_UNKNOWN: no client says. A policy may keep what
 * costs more for longer. */
enum { EVICT_COST_UNKNOWN = 0, EVICT_COSTS = 16 };
unsigned evict_cost_level(uint64_t ns, uint32_t bytes);
void evict_set_cost(struct evict *e, uint32_t item, unsigned level);
unsigned evict_cost(const struct evict *e, uint32_t item); /* unknown to a policy without */

/* Retained: no victim, whatever it is worth, until this is ended or the item is removed. It is
 * touched and learned from as all items. Either way it becomes the youngest of its list. */
void evict_retain(struct evict *e, uint32_t item, uint32_t group, bool retained);
bool evict_is_retained(const struct evict *e, uint32_t item);

/* Moves an item that cannot be a victim now out of its group, to a lot that no search visits: a
 * search does not pass over it again. A lot is a number of the owner's. A touch puts the item back;
 * so does evict_bring_back(), at the old end of its list, with the time of its last touch. Both
 * calls are idempotent. */
enum { EVICT_LOTS = 2 };
void evict_set_aside(struct evict *e, uint32_t item, unsigned lot);
void evict_bring_back(struct evict *e, uint32_t item, uint32_t group);
/* Visits the items of a lot; each() may bring its item back. Returns how many there were. */
uint32_t evict_each_aside(struct evict *e, unsigned lot,
                          void (*each)(void *userdata, uint32_t item), void *userdata);
bool evict_lot_is_empty(const struct evict *e, unsigned lot);
bool evict_is_aside(const struct evict *e, uint32_t item);

/* The item of the group to evict next among those `may_evict` agrees to (NULL: all), or EVICT_NONE.
 * It stays in until evict_remove(). Passes over at most `max_passed` that may not. */
uint32_t evict_victim(struct evict *e, uint32_t group,
                      bool (*may_evict)(void *userdata, uint32_t item), void *userdata,
                      uint32_t max_passed);

/* Logical time of an item's last touch, 0 if it is not in; grows by one with each touch or insert.
 * To compare groups; after billions of touches a little less than exact. */
uint64_t evict_touched(const struct evict *e, uint32_t item);
/* What the time is, from any clock that never goes back; as often as is cheap. Policies do not go
 * by it. */
void evict_note_time(struct evict *e, uint64_t now_ns);
/* By the times that were noted: how long ago the item was last touched, to a tenth; but not longer
 * than since the first of them. 0: none was noted. */
uint64_t evict_age_ns(const struct evict *e, uint32_t item);
/* What keeping the item is worth: hits that are expected of it for each unit of time, by what was
 * learned, weighed by its cost; or by recency alone, which no hint or cost of a client changes: one
 * for its age. To compare slabs of other sizes, whose items are worth what they are together. */
double evict_worth(const struct evict *e, uint32_t item, bool by_recency);
/* The chance that the item is used again, by what was learned of others that were not for as long:
 * at least, since what was not used again yet counts as if it never will be. 1: a client says that
 * it will be, and nothing is known to the contrary. 0 of a policy that learns nothing. */
double evict_chance(const struct evict *e, uint32_t item);
/* Those of a group that are worth least, the least first, up to `n`: what is evicted next, but for
 * what keeps to the order of a chain. No item may be touched, or come in or go, from within. */
void evict_next(const struct evict *e, uint32_t group, uint32_t n,
                void (*each)(void *userdata, uint32_t item), void *userdata);
/* Reports of what is evicted next, while it is still there. An owner notes each eviction; the
 * first of a group, and one in so many from then on, makes a report due. It has the next of the
 * group, which is of so many items now: twice as many as are evicted until the report that follows,
 * so that each is in about two. evict_report_leaving() does nothing where none is due. */
void evict_note_leaving(struct evict *e, uint32_t group);
bool evict_reports_are_due(const struct evict *e);
void evict_report_leaving(struct evict *e, uint32_t group, uint64_t items,
                          void (*each)(void *userdata, uint32_t item), void *userdata);
/* What a slab of so many slots more would keep for the group whose victim it is, and a slab of
 * others must be worth less than to be taken: a little less, as both are estimates. */
double evict_slab_gain(const struct evict *e, uint32_t victim, uint32_t slots, bool by_recency);
enum { EVICT_SLAB_SAMPLE = 32 }; /* of a slab's slots, to estimate what it is worth */
/* Of the retained ones, for when nothing else is left. */
uint32_t evict_retained_victim(struct evict *e, uint32_t group,
                               bool (*may_evict)(void *userdata, uint32_t item), void *userdata,
                               uint32_t max_passed);

/* What a policy goes by for an item. Stable numbers: append only. */
enum evict_class {
        EVICT_CLASS_NONE = 0,       /* not in */
        EVICT_CLASS_ONCE,           /* used once */
        EVICT_CLASS_ONCE_CONTINUED, /* used once, brought in by a later turn of a session */
        EVICT_CLASS_ONCE_END,       /* used once, the end of its chain */
        EVICT_CLASS_TWICE,
        EVICT_CLASS_THRICE,
        EVICT_CLASS_4_TO_5,
        EVICT_CLASS_6_TO_11,
        EVICT_CLASS_12,           /* or more */
        EVICT_CLASS_RETURNS_SOON, /* by a hint, as the next three */
        EVICT_CLASS_RETURNS_LATER,
        EVICT_CLASS_RETURNS_MUCH_LATER,
        EVICT_CLASS_FINAL,
        EVICT_CLASS_RECENCY, /* the policy goes by recency alone */
        EVICT_CLASS_END,
};
struct evict_standing {
        enum evict_class class;
        uint64_t age; /* touches and inserts of all items since its last */
        /* Hits that are expected of it for each unit of time that it is kept, and of what is worth
         * least in its group. 0: nothing was learned. */
        double density, least_density;
        bool is_next;      /* the group's victim, if it is not pinned */
        bool is_continued; /* what goes on from it is in, and goes before it */
        bool is_retained;
        unsigned cost; /* evict_cost_level() */
};
void evict_explain(const struct evict *e, uint32_t item, uint32_t group,
                   struct evict_standing *ret);

struct evict_stats {
        uint64_t ghosts; /* remembered now */
        uint64_t ghosts_max;
        uint64_t ghost_hits;  /* inserted again while they were remembered */
        uint64_t ghost_bytes; /* memory of each ghost, and of each item */
        uint64_t item_bytes;
};
void evict_get_stats(const struct evict *e, struct evict_stats *ret);
/* Of several of the same policy. */
void evict_add_stats(struct evict_stats *sum, const struct evict_stats *one);

/* What a policy has learned, to be kept over a restart. Into a new policy of the same name, whose
 * items are in as if each had been used once: evict_restore(), then what it remembered, then its
 * items from the one that was touched first on. What comes from a file may be anything: it is
 * checked. */
enum { EVICT_COUNTS = 2 * 12 * 64 };
struct evict_learned {
        uint64_t now; /* touches and inserts that there have been */
        uint32_t unit;
        uint32_t n_counts; /* 0, or EVICT_COUNTS */
        double counts[EVICT_COUNTS];
};
/* Of an item, or of one that was evicted. */
struct evict_record {
        uint64_t id; /* as when it was inserted; never 0 */
        uint32_t touched;
        uint8_t class, uses, turn;
        uint8_t flags; /* EVICT_RECORD_RETAINED; from bit EVICT_RECORD_COST on the cost level */
};
enum { EVICT_RECORD_RETAINED = 1 << 0, EVICT_RECORD_COST = 4 };
uint64_t evict_touches(const struct evict *e); /* its `now` */
void evict_save(const struct evict *e, struct evict_learned *ret);
void evict_save_item(const struct evict *e, uint32_t item, uint64_t id, struct evict_record *ret);
/* Of what it remembers: looks at so many places from *cursor on, 0 at first, and fills in up to
 * `room` records. Their number; *cursor is UINT32_MAX behind the last. */
uint32_t evict_save_remembered(const struct evict *e, uint32_t *cursor, uint32_t looks,
                               struct evict_record *ret, uint32_t room);
/* False: it is malformed, and nothing has changed. */
bool evict_restore(struct evict *e, const struct evict_learned *l);
/* Malformed ones are passed over. */
void evict_restore_remembered(struct evict *e, const struct evict_record *r);
bool evict_restore_item(struct evict *e, uint32_t item, uint32_t group,
                        const struct evict_record *r);
/* Those items that came in after all this was saved, as the youngest again, in their order. */
void evict_restore_rest(struct evict *e, bool (*is_new)(void *userdata, uint32_t item),
                        void *userdata);

/* The policy's name, and whether a name is one: for the configuration. */
const char *evict_policy(const struct evict *e);
bool evict_policy_exists(const char *policy);
/* The name of one that exists, in memory that stays. */
const char *evict_policy_name(const char *policy);

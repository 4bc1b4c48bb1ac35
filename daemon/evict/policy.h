/* SPDX-License-Identifier: Apache-2.0 */
/* The interface of a replacement policy, with the semantics of evict.h. Private to evict.c and the
 * policies.
 *
 * A policy's own struct begins with struct evict. evict.c has checked that items and groups are in
 * range. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "evict/ages.h"
#include "evict/promise.h"

struct evict;
struct evict_stats;
struct evict_standing;
struct evict_learned;
struct evict_record;

/* A visit of the promises of a group: the range of positions, in the order of the promises, that is
 * still to be visited. */
struct evict_promised {
        uint32_t from, to;
};

struct evict_policy {
        const char *name;
        int (*new)(struct evict **ret, uint32_t max_items, uint32_t max_groups);
        void (*free)(struct evict *e);

        void (*insert)(struct evict *e, uint32_t item, uint32_t group, uint32_t bytes, uint64_t id,
                       uint32_t use, unsigned place); /* id 0: the item has no id; place: enum
                                                       * evict_place */
        void (*touch)(struct evict *e, uint32_t item, uint32_t group, uint32_t use);
        /* Makes the item the youngest of its list without counting a use. `group` may be another
         * group than before. */
        void (*refresh)(struct evict *e, uint32_t item, uint32_t group);
        /* Moves the item to the old end of its list in the group, without a change of its last
         * touch. */
        void (*make_oldest)(struct evict *e, uint32_t item, uint32_t group);
        /* Makes the item the next victim of its group until it is touched or promoted. */
        void (*demote)(struct evict *e, uint32_t item, uint32_t group);
        /* Makes an item the youngest of its list without counting a use. If it is demoted or gives
         * way, that state ends. */
        void (*promote)(struct evict *e, uint32_t item, uint32_t group);
        /* The next five are NULL if the policy ignores gaps; no item gives way then. */
        void (*set_gap)(struct evict *e, uint32_t item, uint8_t gap);
        uint8_t (*gap)(const struct evict *e, uint32_t item);
        uint8_t (*chain_gap)(const struct evict *e, uint32_t item, uint32_t use,
                             struct evict_return *ret); /* *ret is all zero before the call */
        uint8_t (*remembered_gap)(const struct evict *e, uint64_t id, struct evict_return *ret);
        bool (*yields)(const struct evict *e, uint32_t item);
        /* The next two are NULL if `link` is. */
        void (*set_turn)(struct evict *e, uint32_t item, uint32_t group, uint32_t use,
                         unsigned turn, bool is_end);
        unsigned (*turn)(const struct evict *e, uint32_t item, uint32_t use);
        void (*warm)(const struct evict *e, uint32_t item, unsigned step);
        void (*populate)(const struct evict *e, uint32_t from, uint32_t to);
        void (*unpopulate)(const struct evict *e, uint32_t from);
        void (*populate_ahead)(struct evict *e, bool on);              /* NULL: never populates */
        void (*link)(struct evict *e, uint32_t item, uint32_t parent); /* NULL: links are ignored */
        uint32_t (*parent)(const struct evict *e, uint32_t item);      /* NULL if `link` is */
        bool (*hint)(struct evict *e, uint32_t item, unsigned hint);   /* NULL: hints are ignored */
        /* The next three are NULL if the policy ignores return times. promised() begins a visit of
         * the promises of a group, and next_promised() returns the item at the end of the next
         * promise's chain and the promise's worth, or EVICT_NONE after the last promise. */
        bool (*promise)(struct evict *e, uint32_t item, const struct evict_promise *promise);
        struct evict_promised (*promised)(const struct evict *e, uint32_t group);
        uint32_t (*next_promised)(const struct evict *e, struct evict_promised *left,
                                  double *ret_worth);
        /* set_cost() and cost() are NULL if the policy ignores costs. */
        void (*set_cost)(struct evict *e, uint32_t item, unsigned level);
        unsigned (*cost)(const struct evict *e, uint32_t item);
        void (*remove)(struct evict *e, uint32_t item, uint64_t id); /* id 0: the item was dropped,
                                                                      * not evicted */
        bool (*remembers)(const struct evict *e, uint64_t id);       /* NULL: the policy remembers
                                                                      * no evicted items */
        bool (*contains)(const struct evict *e, uint32_t item);
        uint32_t (*victim)(struct evict *e, uint32_t group,
                           bool (*may_evict)(void *userdata, uint32_t item), void *userdata,
                           uint32_t max_passed);
        uint64_t (*touched)(const struct evict *e, uint32_t item);
        /* Returns a number that orders items by their last touches. */
        uint64_t (*order)(const struct evict *e, uint32_t item);
        /* Called when `ages` has a new time. NULL: the policy measures ages in touches. */
        void (*advance)(struct evict *e);
        uint64_t (*now)(const struct evict *e);                 /* returns the number of touches and
                                                                 * insertions so far */
        double (*worth)(const struct evict *e, uint32_t item);  /* NULL: the worth is the inverse of
                                                                 * the age */
        double (*chance)(const struct evict *e, uint32_t item); /* NULL: the policy learns
                                                                 * nothing */
        /* Returns whether an item is worth less than a new item of the use for which evict_expect()
         * was called. NULL: evict.c compares ages. */
        bool (*is_worth_less)(const struct evict *e, uint32_t item);
        void (*explain)(const struct evict *e, uint32_t item, uint32_t group,
                        struct evict_standing *ret); /* *ret is all zero before the call */
        /* Numbers of lists: `lists` for each group, those of group 0 first, and then `extra_lists`,
         * each of which has items of one group(). first() returns the oldest item of a list and
         * after() the next younger one, or EVICT_NONE. */
        uint32_t lists, extra_lists;
        uint32_t (*group)(const struct evict *e, uint32_t item); /* NULL if the policy has no
                                                                  * promises */
        uint32_t (*first)(const struct evict *e, uint32_t list);
        uint32_t (*after)(const struct evict *e, uint32_t item);
        /* Visit the items of a list in the order in which they are evicted. NULL if that is the
         * order of first() and after(). */
        uint32_t (*first_victim)(const struct evict *e, uint32_t list);
        uint32_t (*victim_after)(const struct evict *e, uint32_t item);
        /* Returns an item of a list that is evicted before the list's first one, and after which
         * the younger ones are, or EVICT_NONE. NULL: there is none. */
        uint32_t (*low)(const struct evict *e, uint32_t list);
        void (*get_stats)(const struct evict *e, struct evict_stats *ret);
        /* Save and restore the learned state. *ret is all zero before the call. */
        void (*save)(const struct evict *e, struct evict_learned *ret);
        void (*save_item)(const struct evict *e, uint32_t item, struct evict_record *ret);
        bool (*restore)(struct evict *e, const struct evict_learned *l);
        bool (*restore_item)(struct evict *e, uint32_t item, uint32_t group,
                             const struct evict_record *r);
        /* The next two are NULL if the policy remembers no evicted items. */
        uint32_t (*save_remembered)(const struct evict *e, uint32_t *cursor, uint32_t looks,
                                    struct evict_record *ret, uint32_t room);
        void (*restore_remembered)(struct evict *e, const struct evict_record *r);
};

/* A set of items: a bit for each item, and the number of bits that are set. */
struct evict_marks {
        uint8_t *bits;
        uint32_t n;
};

struct evict {
        const struct evict_policy *policy; /* the policy, max_items and max_groups are set by
                                            * evict_new() */
        uint32_t max_items;
        uint32_t max_groups; /* groups of the owner; the policy has more, see
                              * evict_policy_groups() */
        struct evict_marks retained, aside, demoted;
        uint64_t demoted_victims; /* evictions of demoted items */
        uint32_t *until_report; /* by group: evictions until the next report is due; 0: no eviction
                                   was noted yet; REPORT_DUE (leaving.c): the report is due */
        uint32_t reports_due;
        uint32_t served;       /* use passed to evict_serve(): searches for a victim avoid its
                                * items; EVICT_NO_USE if none */
        bool admits_all;       /* set by evict_admit_all() */
        uint32_t expected_use; /* set by evict_expect() */
        struct evict_promise expected;
        struct ages ages; /* times reported by evict_note_time() */
};

/* Returns the number of groups that a policy is created with: one for each group of the owner, one
 * for the retained items of each of these, and one for each lot. */
uint32_t evict_policy_groups(uint32_t max_groups);

/* Makes the group's next report due at once, if an eviction of the group was noted; see
 * evict_note_leaving(). */
void evict_hasten_report(struct evict *e, uint32_t group);

extern const struct evict_policy evict_policy_lru, evict_policy_cq;

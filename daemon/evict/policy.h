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

/* The promises of a group that are not visited yet, as positions in their order. */
struct evict_promised {
        uint32_t from, to;
};

struct evict_policy {
        const char *name;
        int (*new)(struct evict **ret, uint32_t max_items, uint32_t max_groups);
        void (*free)(struct evict *e);

        void (*insert)(struct evict *e, uint32_t item, uint32_t group, uint32_t bytes, uint64_t id,
                       uint32_t use, unsigned place); /* id 0: unknown; place: enum evict_place */
        void (*touch)(struct evict *e, uint32_t item, uint32_t group, uint32_t use);
        void (*refresh)(struct evict *e, uint32_t item, uint32_t group); /* may be another group */
        /* Moves the item to the old end of its list in the group; its time stays. */
        void (*make_oldest)(struct evict *e, uint32_t item, uint32_t group);
        /* Makes the item the next victim of its group until it is touched or promoted. */
        void (*demote)(struct evict *e, uint32_t item, uint32_t group);
        /* Makes an item the youngest of its list, and ends that it is demoted or gives way, without
         * counting a use. */
        void (*promote)(struct evict *e, uint32_t item, uint32_t group);
        /* All five or none; NULL: the policy ignores gaps, and nothing gives way. */
        void (*set_gap)(struct evict *e, uint32_t item, uint8_t gap);
        uint8_t (*gap)(const struct evict *e, uint32_t item);
        uint8_t (*chain_gap)(const struct evict *e, uint32_t item, uint32_t use,
                             struct evict_return *ret); /* `ret` is zero */
        uint8_t (*remembered_gap)(const struct evict *e, uint64_t id, struct evict_return *ret);
        bool (*yields)(const struct evict *e, uint32_t item);
        /* With link, or both NULL. */
        void (*set_turn)(struct evict *e, uint32_t item, uint32_t group, uint32_t use,
                         unsigned turn, bool is_end);
        unsigned (*turn)(const struct evict *e, uint32_t item, uint32_t use);
        void (*warm)(const struct evict *e, uint32_t item, unsigned step);
        void (*populate)(const struct evict *e, uint32_t from, uint32_t to);
        void (*unpopulate)(const struct evict *e, uint32_t from);
        void (*populate_ahead)(struct evict *e, bool on);              /* NULL: never does */
        void (*link)(struct evict *e, uint32_t item, uint32_t parent); /* NULL: links are ignored */
        uint32_t (*parent)(const struct evict *e, uint32_t item);      /* with link, or both NULL */
        bool (*hint)(struct evict *e, uint32_t item, unsigned hint);   /* NULL: hints are ignored */
        /* All NULL: return times are ignored. promised() begins a visit of the promises of a group,
         * and next_promised() returns the end of the next one and its worth, or EVICT_NONE. */
        bool (*promise)(struct evict *e, uint32_t item, const struct evict_promise *promise);
        struct evict_promised (*promised)(const struct evict *e, uint32_t group);
        uint32_t (*next_promised)(const struct evict *e, struct evict_promised *left,
                                  double *ret_worth);
        void (*set_cost)(struct evict *e, uint32_t item, unsigned level); /* set together with cost,
                                                                           * or both NULL */
        unsigned (*cost)(const struct evict *e, uint32_t item);
        void (*remove)(struct evict *e, uint32_t item, uint64_t id); /* id 0: dropped */
        bool (*remembers)(const struct evict *e, uint64_t id);       /* NULL: remembers nothing */
        bool (*contains)(const struct evict *e, uint32_t item);
        uint32_t (*victim)(struct evict *e, uint32_t group,
                           bool (*may_evict)(void *userdata, uint32_t item), void *userdata,
                           uint32_t max_passed);
        uint64_t (*touched)(const struct evict *e, uint32_t item);
        /* Returns a number that orders items by their last touches. */
        uint64_t (*order)(const struct evict *e, uint32_t item);
        /* The ages have a new time; NULL: the policy counts touches. */
        void (*advance)(struct evict *e);
        uint64_t (*now)(const struct evict *e);                 /* touches and insertions so far */
        double (*worth)(const struct evict *e, uint32_t item);  /* NULL: by recency */
        double (*chance)(const struct evict *e, uint32_t item); /* NULL: nothing is learned */
        /* Returns whether an item is worth less than one of evict_expect(); NULL: by ages. */
        bool (*is_worth_less)(const struct evict *e, uint32_t item);
        void (*explain)(const struct evict *e, uint32_t item, uint32_t group,
                        struct evict_standing *ret); /* *ret is all zero before */
        /* The policy's lists, each from its oldest item: `lists` per group, those of group 0 first.
         * Return an item or EVICT_NONE. `extra_lists` follow, each of items of one group(). */
        uint32_t lists, extra_lists;
        uint32_t (*group)(const struct evict *e, uint32_t item); /* NULL without promises */
        uint32_t (*first)(const struct evict *e, uint32_t list);
        uint32_t (*after)(const struct evict *e, uint32_t item);
        /* Return the items of a list in the order in which they leave. Both NULL: from the
         * oldest. */
        uint32_t (*first_victim)(const struct evict *e, uint32_t list);
        uint32_t (*victim_after)(const struct evict *e, uint32_t item);
        void (*get_stats)(const struct evict *e, struct evict_stats *ret);
        /* Save and restore. *ret is all zero before. */
        void (*save)(const struct evict *e, struct evict_learned *ret);
        void (*save_item)(const struct evict *e, uint32_t item, struct evict_record *ret);
        bool (*restore)(struct evict *e, const struct evict_learned *l);
        bool (*restore_item)(struct evict *e, uint32_t item, uint32_t group,
                             const struct evict_record *r);
        /* Both NULL if the policy remembers nothing. */
        uint32_t (*save_remembered)(const struct evict *e, uint32_t *cursor, uint32_t looks,
                                    struct evict_record *ret, uint32_t room);
        void (*restore_remembered)(struct evict *e, const struct evict_record *r);
};

/* A bit for each item, and the number of bits that are set. */
struct evict_marks {
        uint8_t *bits;
        uint32_t n;
};

struct evict {
        const struct evict_policy *policy; /* this and the following are set by evict_new() */
        uint32_t max_items;
        uint32_t max_groups; /* the owner's: evict_policy_groups() */
        struct evict_marks retained, aside, demoted;
        uint64_t demoted_victims; /* evictions of demoted items */
        uint32_t *until_report;   /* by group: evictions; 0: until the first; the most: now */
        uint32_t reports_due;
        uint32_t served;       /* evict_serve() */
        bool admits_all;       /* evict_admit_all() */
        uint32_t expected_use; /* evict_expect() */
        struct evict_promise expected;
        struct ages ages; /* used by evict.c */
};

/* Returns the number of groups that a policy is made with: each of the owner's, one for the
 * retained items of each, and the lots. */
uint32_t evict_policy_groups(uint32_t max_groups);

/* Makes the group's next report due at once, if it had one; see evict_note_leaving(). */
void evict_hasten_report(struct evict *e, uint32_t group);

extern const struct evict_policy evict_policy_lru, evict_policy_cq;

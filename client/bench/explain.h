/* SPDX-License-Identifier: Apache-2.0 */
/* Explains what a simulated cache decides about one block: each request for it, each eviction of
 * it, and the evictions in between that took other blocks. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "evict/evict.h"
#include "simulate.h"

enum explain_kind {
        EXPLAIN_HIT,
        EXPLAIN_BEHIND_A_MISS, /* cached, but a block before it was missing: no hit */
        EXPLAIN_MISS,
        EXPLAIN_EVICTED,
};

enum explain_cause {
        EXPLAIN_WORTH_LEAST,
        EXPLAIN_END_OF_CHAIN, /* the block worth least is continued by this one */
        EXPLAIN_GAVE_WAY,     /* was worth less than chains known to return soon when it came in */
        EXPLAIN_UNLEARNED,    /* no hits of its class are known yet */
        EXPLAIN_OLDEST,       /* the policy judges by recency */
};

struct explain_decision {
        enum explain_kind kind;
        size_t request; /* asked for the block, or made room for another by evicting it */
        double seconds; /* since the first request */

        /* The evictions of other blocks since the previous decision. `closest`: the least ratio of
         * this block's worth to the victim's; INFINITY if no victim was worth anything. Those
         * during the block's own requests are `spared`. */
        uint64_t passed, spared;
        double closest;
        bool is_closest_continued; /* cached blocks continued it then, and go first */

        /* After a request: */
        bool is_cached, gives_way, is_refused; /* is_refused: by the write budget */
        enum evict_class class;                /* also at an eviction */
        double gap_s;                          /* mean gap of its chain; 0: unknown */

        /* An eviction: */
        enum explain_cause cause;
        double unused_s;  /* since its last use */
        double returns_s; /* until the next request for it; NAN: there is none */
        bool has_next;    /* another block could have been evicted: */
        uint32_t next;    /* its number */
        enum evict_class next_class;
        double next_ratio; /* ratio of its worth to this block's; NAN: this one has none */
};

struct explanation {
        struct explain_decision *decisions;
        size_t n, room;
        uint64_t asked, hit;
};

/* Simulates a cache of `capacity` blocks, and explains the block of this number. Returns 0,
 * -EINVAL or -ENOMEM. explanation_fini() may follow in any case. */
int explanation_run(struct explanation *e, const struct simulation *s, const char *policy,
                    uint32_t capacity, uint32_t block);
void explanation_fini(struct explanation *e);

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
        EXPLAIN_BEHIND_A_MISS, /* the block was cached, but is no hit, because an earlier block of
                                  the request was missing */
        EXPLAIN_MISS,
        EXPLAIN_EVICTED,
};

enum explain_cause {
        EXPLAIN_WORTH_LEAST,
        EXPLAIN_END_OF_CHAIN, /* this block continues the chain of a block that is worth less, and
                                 is evicted before that block */
        EXPLAIN_GAVE_WAY,  /* when the block was to be inserted, it was worth less than chains that
                              are known to be used again soon */
        EXPLAIN_UNLEARNED, /* the policy knows no hits of the block's class yet */
        EXPLAIN_OLDEST,    /* the policy evicts the block that was not used for longest */
};

struct explain_decision {
        enum explain_kind kind;
        size_t request; /* index of the request that asked for the block, or for whose blocks it was
                           evicted */
        double seconds; /* time since the workload's first request, s */

        /* Evictions of other blocks since the previous decision. `passed`: their number while
         * the block could have been evicted; `spared`: their number during requests for the
         * block itself, which protect it. `closest`: the least ratio of the block's worth to that
         * of a victim in `passed`; INFINITY if there was none, or none was worth more than 0. */
        uint64_t passed, spared;
        double closest;
        bool is_closest_continued; /* at the eviction of `closest`, cached blocks continued this
                                      block's chain; they are evicted before this block */

        /* Members for a request: state of the explained block after the request. */
        bool is_cached, gives_way,
                is_refused;     /* gives_way: result of evict_gives_way(), if the block is cached;
                                   is_refused: not inserted because of the write budget */
        enum evict_class class; /* class in the policy; also set for an eviction */
        double gap_s;           /* mean time between uses of the block's chain, s; 0: unknown */

        /* Members for an eviction. */
        enum explain_cause cause;
        double unused_s;  /* time since the block's last use, s */
        double returns_s; /* time until the next request for the block, s; NAN: there is none */
        bool has_next;    /* another block, `next`, could have been evicted instead */
        uint32_t next;    /* number of that block */
        enum evict_class next_class;
        double next_ratio; /* worth of block `next` divided by that of the evicted block; NAN: the
                              evicted block's worth is 0 */
};

struct explanation {
        struct explain_decision *decisions;
        size_t n, room;
        uint64_t asked, hit;
};

/* Simulates a cache of `capacity` blocks, 1 or more, and records the decisions about block number
 * `block`. Returns 0; -EINVAL if there is no such policy, or it is "opt"; -ENOMEM.
 * explanation_fini() may follow in any case. */
int explanation_run(struct explanation *e, const struct simulation *s, const char *policy,
                    uint32_t capacity, uint32_t block);
void explanation_fini(struct explanation *e);

/* SPDX-License-Identifier: Apache-2.0 */
/* A cache without data, whose evictions are those of a policy of the daemon's: which blocks it
 * holds, request by request. Blocks are numbers from 0 on, all of one size. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "evict/admission.h"
#include "evict/evict.h"

struct simulated_block {
        uint32_t item;    /* EVICT_NONE: not cached */
        uint32_t request; /* the last that asked for it */
        uint32_t turn;    /* of its session, in which it came up first; 0: never asked for */
        uint32_t refused; /* the last request for which it was not written */
};

struct simulated_cache {
        struct evict *evict;
        struct simulated_block *blocks;
        uint32_t *held; /* by item: its block */
        uint32_t n_items, capacity;
        uint32_t request;            /* at hand; 0: none yet */
        struct admission *admission; /* borrowed; NULL: all is written. Set after init */
        uint64_t block_bytes;        /* for the admission */
        uint64_t touches, evictions;
        uint64_t writes; /* blocks that came in */
};

/* `capacity`: 1 or more; no room is reserved for more than the `n_blocks` that there are. 0,
 * -EINVAL: no such policy, -ENOMEM. Fini may follow either way. */
int simulated_cache_init(struct simulated_cache *c, const char *policy, uint32_t capacity,
                         uint32_t n_blocks);
void simulated_cache_fini(struct simulated_cache *c);

static inline bool simulated_cache_has(const struct simulated_cache *c, uint32_t block)
{
        return c->blocks[block].item != EVICT_NONE;
}

/* Begins a request, numbered from 1 on and in ascending order: its blocks are not evicted until the
 * next one. Returns the turn of the session that it is, as far as its blocks say. */
uint32_t simulated_cache_begin(struct simulated_cache *c, uint32_t request, const uint32_t *blocks,
                               size_t n);
/* A block of the request at hand: touched; one that is missing comes in if there is room. */
void simulated_cache_use(struct simulated_cache *c, uint32_t block, enum evict_place place);
/* A whole request: its blocks are touched, the last first, and what is missing comes in, of the
 * first `capacity` blocks. `is_end`: it is announced as its session's last. */
void simulated_cache_play(struct simulated_cache *c, uint32_t request, const uint32_t *blocks,
                          size_t n, uint64_t now_ns, bool is_end);

/* SPDX-License-Identifier: Apache-2.0 */
/* A cache without data that evicts as a policy of the daemon does: tracks which blocks are cached,
 * request by request. Blocks are numbers from 0 on, all of one size. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "evict/admission.h"
#include "evict/announced.h"
#include "evict/evict.h"
#include "simulated-hints.h"

struct simulated_block {
        uint32_t item;    /* EVICT_NONE: not cached */
        uint32_t request; /* number of the last request that used the block; 0: none yet */
        uint32_t turn;    /* number, from 1, of the turn of its session in which the block first
                             appeared; 0: not used yet */
        uint32_t refused; /* number of the last request for which the admission refused the block;
                             0: none */
};

struct simulated_cache;

/* Callbacks while blocks enter and leave a cache; each may be NULL. */
struct simulated_observer {
        void (*inserted)(void *userdata, const struct simulated_cache *c, uint32_t block);
        /* Called before the eviction: the block is still in the policy, so that the observer can
         * ask the policy about it. */
        void (*evicting)(void *userdata, const struct simulated_cache *c, uint32_t block);
        void *userdata;
};

struct simulated_cache {
        struct evict *evict;
        struct simulated_block *blocks;
        uint32_t n_blocks;           /* entries of `blocks` */
        uint32_t *held;              /* block of each item */
        uint32_t n_items, capacity;  /* items in use, and their maximum */
        uint32_t request;            /* current request; 0: none yet */
        struct admission *admission; /* borrowed; NULL: every block is written. Set after init */
        uint64_t block_bytes;        /* bytes of a block, for the admission */
        const struct simulated_observer *observer; /* borrowed; may be NULL. Set after init */
        struct announced *announced; /* borrowed; NULL: hints are ignored. Set after init */
        uint64_t touches, evictions; /* `touches` includes the insertions */
        uint64_t writes;             /* number of blocks inserted */
};

/* Initializes a cache of `capacity` blocks, 1 or more; memory is allocated for at most `n_blocks`,
 * the number of distinct blocks. Returns 0; -EINVAL if evict_new() refuses the policy or the
 * number; -ENOMEM. simulated_cache_fini() may follow in any case. */
int simulated_cache_init(struct simulated_cache *c, const char *policy, uint32_t capacity,
                         uint32_t n_blocks);
/* Initializes a cache that allocates its records of blocks in steps: simulated_cache_grow() must
 * precede the first use of a block. `n_blocks`: an upper bound of their number. Returns as
 * simulated_cache_init(). */
int simulated_cache_init_growing(struct simulated_cache *c, const char *policy, uint32_t capacity,
                                 uint32_t n_blocks);
/* Allocates records for the blocks with numbers below `n_blocks`. Returns 0 or -ENOMEM. */
int simulated_cache_grow(struct simulated_cache *c, uint32_t n_blocks);
void simulated_cache_fini(struct simulated_cache *c);

static inline bool simulated_cache_has(const struct simulated_cache *c, uint32_t block)
{
        return c->blocks[block].item != EVICT_NONE;
}

/* Begins a request; numbers start at 1 and ascend. Its blocks are not evicted until the next
 * request, unless the policy lets them give way (evict_gives_way()). Returns the request's turn in
 * its session, derived from the turns of its blocks. */
uint32_t simulated_cache_begin(struct simulated_cache *c, uint32_t request, const uint32_t *blocks,
                               size_t n);
/* Touches a block of the current request, or inserts it if it is missing and there is room, without
 * asking the admission. */
void simulated_cache_use(struct simulated_cache *c, uint32_t block, enum evict_place place);
/* Simulates a whole request. Of its first `capacity` blocks, touches the cached ones, the last
 * first, and inserts the missing ones that the admission lets in. `now_ns`:
 * time of the request. `hint`: the hint that the client gives after the request; NULL: none. */
void simulated_cache_play(struct simulated_cache *c, uint32_t request, const uint32_t *blocks,
                          size_t n, uint64_t now_ns, const struct simulated_hint *hint);

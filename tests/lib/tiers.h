/* SPDX-License-Identifier: Apache-2.0 */
/* A pool, a store in a folder of its own, the POSIX backend under faults by plan, and a cache over
 * them: what tests of the daemon's core stand on. The test is the loop: nothing is reaped, and no
 * turn ends, unless it says so. */
#pragma once

#include "cache/cache.h"
#include "fault.h"
#include "io/io.h"
#include "cache/pool.h"
#include "store/store.h"

enum { TIERS_WAIT_MS = 60000 };

struct tiers {
        char dir[256];
        uint64_t pool_bytes, limit;  /* 0: 16 MiB, 256 MiB */
        uint64_t hang_ms;            /* io.hang; 0: nothing hangs */
        struct admission *admission; /* of the cache; or NULL */
        struct pool *pool;
        struct kio *io;
        struct store *store;
        struct cache *cache;
        uint32_t ns;
        uint64_t later_ns; /* how far the clock that cache_iterate() sees is ahead */
};

/* Opens what is in `dir`, or makes it; assertions inside. */
void tiers_open(struct tiers *t);
/* Nothing may be pending. */
void tiers_close(struct tiers *t);
/* Closes, and removes the folder. */
void tiers_remove(struct tiers *t);
uint32_t tiers_namespace(struct tiers *t, const char *name);

/* The end of an iteration, without reaping. */
void tiers_iterate(struct tiers *t);
/* Reaps and turns until `*done`. */
void tiers_wait(struct tiers *t, const bool *done);
/* Reaps and turns until nothing is pending. */
void tiers_settle(struct tiers *t);
/* Waits until a worker has something for the loop; does not reap it. */
void tiers_wait_io(struct tiers *t);
/* Waits until the fault plan has made this many operations fail, or holds them. */
void tiers_wait_hits(struct tiers *t, uint64_t hits);

/* SPDX-License-Identifier: Apache-2.0 */
/* The fixture of tests of the daemon's core: a pool, a store in its own folder, the POSIX backend
 * with planned faults, and a cache over them. The test replaces the event loop: nothing is reaped,
 * and no iteration ends, unless it says so. */
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
        unsigned volumes;            /* 0: one, in `dir` itself; otherwise in folders of it */
        uint32_t error_budget;       /* store.error_budget; 0: its default */
        uint64_t hang_ms;            /* io.hang; 0: nothing hangs */
        struct admission *admission; /* for the cache; may be NULL */
        struct pool *pool;
        struct kio *io;
        struct store *store;
        struct cache *cache;
        uint32_t ns;
        uint64_t later_ns; /* lead of tiers_now() over the clock */
        uint64_t fixed_ns; /* the value of tiers_now(); 0: the clock with the lead */
        void (*on_finding)(void *userdata, const struct store_finding *finding);
        unsigned emptied; /* counts the volumes that returned empty, because they missed a drop */
};

/* Opens the store in `dir`, or creates it, with assertions. */
void tiers_open(struct tiers *t);
/* Closes everything; nothing may be pending. */
void tiers_close(struct tiers *t);
/* Copies the folder while I/O is in flight, closes everything, and continues in the copy: it has
 * what a killed daemon would leave. The caller opens it again. */
void tiers_kill(struct tiers *t);
/* Closes everything, and removes the folder. */
void tiers_remove(struct tiers *t);
uint32_t tiers_namespace(struct tiers *t, const char *name);
/* Opens a namespace whose tenant, name, fingerprint and owner are given. */
uint32_t tiers_namespace_as(struct tiers *t, const struct store_namespace_open *as);

/* Ends an iteration, without reaping. */
void tiers_iterate(struct tiers *t);
/* Returns the time that cache_iterate() sees. */
uint64_t tiers_now(const struct tiers *t);
/* Reaps and iterates until `*done`. */
void tiers_wait(struct tiers *t, const bool *done);
/* Reaps and iterates until nothing is pending. */
void tiers_settle(struct tiers *t);
/* Waits until a worker has a result for the loop, without reaping it. */
void tiers_wait_io(struct tiers *t);
/* Waits until the fault plan has made this many operations fail, or holds them. */
void tiers_wait_hits(struct tiers *t, uint64_t hits);

/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the pool share. Only they include this. */
#pragma once

#include "base/histogram.h"
#include "cache/backing.h"
#include "cache/pool.h"
#include "evict/evict.h"
#include "slab/slab.h"

enum {
        POOL_MAX_PASSED =
                4096, /* pinned and held chunks that the searches of an iteration pass over */
        POOL_MAX_MOVED = 2 << 20, /* bytes that an iteration moves between slabs */
        /* Twice as many as there may be namespaces, whose ids ascend. */
        POOL_NAMESPACE_COUNTS = 8192,
        POOL_PURGE_BUCKETS = 1024,
};

/* The lots of chunks that are out of the searches' way: evict.h. */
enum { POOL_LOT_PINNED, POOL_LOT_HELD };

struct pool_slab {
        uint32_t pinned;    /* chunks with a pin */
        uint32_t leased;    /* chunks with a lease */
        uint32_t held_scan; /* the last look that found a chunk held; see pool.held_scan */
};

struct pool {
        struct backing backing;
        bool huge_pages; /* are wished */
        uint64_t slab_bytes;
        uint32_t n_slabs;
        uint32_t open_slabs; /* that have been populated */

        struct slabs *slabs;
        struct evict *evict;

        struct pool_chunk *chunks; /* mmap: only what is used is there */
        uint32_t max_chunks, high_water, free_chunk;
        uint32_t *buckets; /* mmap too */
        uint32_t bucket_mask;

        /* Chunks in the table, of the namespaces that share a count. */
        uint32_t namespace_chunks[POOL_NAMESPACE_COUNTS];
        uint32_t evicted_since_scan[SLAB_MAX_CLASSES];
        uint32_t sample_phase;
        uint32_t n_passed,
                passed[POOL_MAX_PASSED + 1]; /* pinned ones that a search for a victim came by */
        uint32_t passes_left;                /* left to this iteration */
        bool gives_up, has_given_up;         /* this search; one since it was asked */
        struct pool_slab *slab_state;
        uint32_t reserved_slabs; /* that stay without leased chunks */
        uint64_t moves_left;     /* bytes that this iteration may still move */
        uint32_t move_from;      /* the slab that a search for a place begins at */
        struct pool_stats stats;
        struct histogram evicted_ages;
        const struct pool_watch *watch; /* NULL: none */
        const struct pool_guard *guard; /* likewise */
        uint32_t first_held, n_held;    /* by pool_chunk.next: dropped, and pinned for this alone */
        bool holds_more, met_held, held_up; /* met: by what looked for room */
        uint32_t held_scan;                 /* the number of the guard's last look, from 1 on */

        struct list_node purges; /* struct pool_purge, in order */
        /* Of these, the last of each namespace, by its id. */
        struct list_node marks[POOL_PURGE_BUCKETS];
        uint64_t n_purges; /* so far */
        uint64_t all_dead; /* the number of the last purge of everything */
        uint32_t sweep_at; /* the record that the walk visits next */
};

static inline uint32_t *pool_namespace_chunks(struct pool *p, uint32_t namespace_id)
{
        return &p->namespace_chunks[namespace_id % POOL_NAMESPACE_COUNTS];
}

static inline struct slab_slot pool_slot_of(const struct pool_chunk *c)
{
        return (struct slab_slot){ .slab = c->slab, .slot = c->slot };
}

/* Returns the chunk's group in the eviction policy, which is its slab's class. */
static inline uint32_t pool_group_of(const struct pool *p, uint32_t chunk)
{
        return (uint32_t)slabs_slab_class(p->slabs, p->chunks[chunk].slab);
}

/* Counts a chunk whose first pin has come, or whose last one has ended. */
static inline void pool_count_pinned(struct pool *p, const struct pool_chunk *c, bool is_pinned)
{
        uint64_t bytes = slabs_slot_bytes(p->slabs, pool_slot_of(c));

        p->stats.pinned_bytes += is_pinned ? bytes : -bytes;
        p->slab_state[c->slab].pinned += is_pinned ? 1 : UINT32_MAX;
}

/* Counts a chunk that gets its first lease, or loses its last one. */
static inline void pool_count_leased(struct pool *p, const struct pool_chunk *c, bool is_leased)
{
        struct pool_slab *slab = &p->slab_state[c->slab];
        uint64_t bytes = slabs_slot_bytes(p->slabs, pool_slot_of(c));

        if (is_leased) {
                p->stats.leased_bytes += bytes;
                p->stats.leased_slabs += slab->leased++ == 0;
        } else {
                p->stats.leased_bytes -= bytes;
                p->stats.leased_slabs -= --slab->leased == 0;
        }
}

/* --- pool.c --- */

/* The record that has the key, whatever it is. */
uint32_t pool_table_find(const struct pool *p, uint32_t namespace_id, const struct key *key,
                         uint64_t hash);
void pool_table_insert(struct pool *p, uint32_t chunk);
/* A record that is not used; there are as many as 4 KiB slots. */
uint32_t pool_take_record(struct pool *p);
void pool_notify(const struct pool *p, uint32_t chunk, bool is_there);
void pool_table_remove(struct pool *p, uint32_t chunk);
/* Withdraws a resident chunk from the watch and the guard; an unverified one was never announced.
 */
void pool_leave(struct pool *p, uint32_t chunk);

/* --- pool-room.c --- */

/* Finds a slot of the class, or of a larger one, and evicts for it. Returns whether there is one.
 */
bool pool_acquire_slot(struct pool *p, unsigned class, struct slab_slot *ret);
/* Evicts a chunk that can leave. */
void pool_evict(struct pool *p, uint32_t chunk);
/* Puts a chunk back where the next search finds it first, as its last pin has ended. */
void pool_end_aside(struct pool *p, uint32_t chunk);

/* --- pool-slabs.c --- */

/* Returns the number of slabs that stay without leased chunks. */
uint32_t pool_reserved_slabs(uint32_t n_slabs);
/* Finds a slot of the class in a slab that has leased chunks, evicting another chunk for it if it
 * must. Returns whether there is one. */
bool pool_acquire_in_leased_slab(struct pool *p, unsigned class, struct slab_slot *ret);
/* Returns whether no more slabs are without leased chunks than are reserved. */
bool pool_is_short_of_slabs(const struct pool *p);

/* --- pool-held.c --- */

/* While it lasts clients find nothing by themselves. */
void pool_suspend_clients(struct pool *p, bool suspend);

/* Before some of these are asked for: what is known to be held costs no more than a pin then. */
void pool_scan_holds(struct pool *p);
/* Returns whether the last look, or is_held() since, has found a chunk of the slab held. */
bool pool_slab_is_held(const struct pool *p, uint32_t slab);
bool pool_is_known_held(struct pool *p, uint32_t chunk);
/* What is to be evicted is no client's from now on. False: a client holds it, and nothing has
 * changed. */
bool pool_take_from_clients(struct pool *p, uint32_t chunk);
/* The same of all chunks of the slab, none of which is pinned. */
bool pool_take_slab_from_clients(struct pool *p, uint32_t slab);
/* It was to leave, and stays. */
void pool_return_to_clients(struct pool *p, uint32_t chunk);
/* Of a dropped chunk without pins: keeps it, with a pin, if there are clients that may hold it. */
bool pool_keep_for_clients(struct pool *p, uint32_t chunk);

/* Is it older than a purge of it that is under way? */
bool pool_is_purged(const struct pool *p, const struct pool_chunk *c);
/* No pin is left, and no client holds it: its slot and its record are free. */
void pool_free_chunk(struct pool *p, uint32_t chunk);

/* In the table, but to be dropped. */
static inline bool pool_is_dead(const struct pool *p, const struct pool_chunk *c)
{
        return !list_empty(&p->purges) && pool_is_purged(p, c);
}

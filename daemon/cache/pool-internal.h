/* SPDX-License-Identifier: Apache-2.0 */
/* The state of the pool, and the functions that its files share. Only the files of the pool include
 * this header. */
#pragma once

#include "base/histogram.h"
#include "base/pages-ahead.h"
#include "cache/backing.h"
#include "cache/pool.h"
#include "evict/evict.h"
#include "slab/slab.h"

enum {
        POOL_MAX_PASSED = 4096,   /* chunks (pinned, held or protected by a floor) that the searches
                                     of an iteration may pass over; PASSES_LEAST in pool-room.c allows
                                     each search a few more */
        POOL_MAX_MOVED = 2 << 20, /* bytes of chunks that one iteration may move between slabs */
        POOL_MAX_SEARCHED = 1 << 14, /* slabs visited and slots sampled in one iteration to find
                                      * chunks to move */
        /* Slots of the largest slab that is emptied in one iteration when it changes its class, and
         * chunks that leave a larger one in each iteration. */
        POOL_EMPTIED_AT_ONCE = 2048,
        POOL_EMPTIED = 128,
        /* Counters of namespaces' chunks: twice as many as there may be namespaces, so that few
         * namespaces share one, because ids ascend. */
        POOL_NAMESPACE_COUNTS = 8192,
        POOL_PURGE_BUCKETS = 1024,
};

/* The two reasons for which chunks are set aside from searches; see evict.h. */
enum { POOL_LOT_PINNED, POOL_LOT_HELD };

struct pool_slab {
        uint32_t pinned;     /* chunks with a pin */
        uint32_t leased;     /* chunks with a lease */
        uint32_t held_scan;  /* number of the last scan that found a held chunk in the slab, 0 if
                                none did; see pool.held_scan */
        bool is_private;     /* no client finds or holds a chunk here; see pool-private.c */
        bool is_unannounced; /* the slab is not private any longer, but not all of its chunks are
                              * announced yet */
};

struct pool {
        struct backing backing;
        bool huge_pages; /* populate the memory with huge pages */
        uint64_t slab_bytes;
        uint32_t n_slabs;
        uint32_t open_slabs; /* slabs that have their memory */

        struct slabs *slabs;
        struct evict *evict;

        struct pool_chunk *chunks; /* mapped; only used records have memory */
        struct pages_ahead chunks_ahead;
        uint32_t max_chunks, high_water, free_chunk;
        uint32_t *buckets; /* hash table of records; mapped, like the records */
        uint32_t bucket_mask;

        /* Number of chunks in the table, by the namespace's id modulo POOL_NAMESPACE_COUNTS. */
        uint32_t namespace_chunks[POOL_NAMESPACE_COUNTS];
        uint64_t namespace_bytes[POOL_NAMESPACE_COUNTS]; /* bytes of their slots, by the same
                                                          * index */
        uint32_t evicted_since_scan[SLAB_MAX_CLASSES];
        struct pool_floors floors;
        uint64_t floor_used[POOL_MAX_FLOORS + 1]; /* bytes of slots, by pool_chunk.floor */
        unsigned acquiring;                       /* value of pool_chunk.floor for the chunk that
                                                   * needs room */
        bool keeps_own; /* the group `acquiring` is below its floor, so the search keeps its chunks,
                         * too */
        /* By class: number of further searches in which a group below its floor evicts its own
         * chunks, because the other groups had no chunk in the class. */
        uint32_t own_only[SLAB_MAX_CLASSES];
        uint32_t spared_since[SLAB_MAX_CLASSES]; /* by class: chunks that searches have spared since
                                                  * the last victim */
        uint32_t sample_phase;
        uint32_t n_passed,
                passed[POOL_MAX_PASSED + 1]; /* chunks that the current search passed over */
        uint32_t passes_left; /* part of POOL_MAX_PASSED that this iteration's searches have left */
        bool gives_up, has_given_up; /* gives_up: the current search has given up; has_given_up: a
                                      * search has done so since pool_has_given_up() */
        uint32_t emptying;     /* the slab that is being emptied for another class, or POOL_NONE */
        uint32_t empty_at;     /* the slot at which the emptying continues */
        uint32_t empties_left; /* chunks that may leave the slab
                                * `emptying` in this iteration */
        uint32_t n_leaving, leaving[POOL_EMPTIED_AT_ONCE]; /* chunks of the slab `emptying` that are
                                                            * evicted together next */
        struct pool_slab *slab_state;
        uint32_t reserved_slabs;  /* number of slabs, whichever they are, that must stay without
                                   * leased chunks */
        uint64_t moves_left;      /* bytes that this iteration may still move */
        uint32_t searches_left;   /* slabs and slots that this iteration may still visit for
                                   * moves */
        uint32_t move_from;       /* slab at which the next search for a leased slab begins */
        uint32_t private_wanted;  /* number of private slabs that must stay without leased chunks; 0
                                   * without a pool index */
        uint32_t clear_slabs;     /* private slabs without leased chunks */
        uint32_t hiding, hide_at; /* slab that is becoming private, or POOL_NONE; slot at which
                                   * hiding its chunks continues */
        uint32_t hides_left;      /* slots whose chunks this iteration may still hide */
        uint32_t hide_from;       /* slab at which the next search for a slab to make private
                                   * begins */
        uint32_t hide_searches;   /* searches for a slab to make private in this iteration */
        uint32_t announcing, announce_at; /* slab and slot at which announcing chunks to clients
                                           * continues */
        uint32_t n_unannounced;           /* slabs with is_unannounced */
        uint64_t pressed_until_ns;        /* end of the state that pool_is_pressed() reports */
        struct pool_stats stats;
        uint64_t for_return_bytes; /* result of pool_unused_for_return() */
        struct histogram evicted_ages;
        const struct evict_promise *promise; /* the promise of pool_replace_less_than(), or NULL */
        bool kept_worthier;                  /* result of pool_kept_worthier() */
        struct list_node watches;            /* struct pool_watch */
        const struct pool_guard *guard;      /* NULL if there is none */
        uint32_t first_held, n_held; /* first of the dropped chunks that clients may hold, linked by
                                      * pool_chunk.next, or POOL_NONE; their number. The list has
                                      * one pin on each */
        bool holds_more, met_held, held_up; /* results of pool_holds_more() and pool_was_held_up();
                                             * met_held: the current search met chunks that clients
                                             * hold */
        uint32_t held_scan;                 /* number of the guard's last scan, from 1 on */

        struct list_node purges; /* struct pool_purge, in order */
        /* The last purge of each namespace, by its id. */
        struct list_node marks[POOL_PURGE_BUCKETS];
        uint64_t n_purges; /* number of purges since startup */
        uint64_t all_dead; /* number of the last purge of everything; 0 if there was none */
        uint32_t sweep_at; /* the record that pool_sweep() visits next */
};

/* Counts a private slab that gets its first lease, or loses its last one; see pool-private.c. */
void pool_private_note_leased(struct pool *p, uint32_t slab, bool is_leased);

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

/* Counts a chunk that gets its first pin, or loses its last one. */
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
        bool changes;

        if (is_leased) {
                changes = slab->leased++ == 0;
                p->stats.leased_bytes += bytes;
                p->stats.leased_slabs += changes;
        } else {
                changes = --slab->leased == 0;
                p->stats.leased_bytes -= bytes;
                p->stats.leased_slabs -= changes;
        }
        if (changes && slab->is_private)
                pool_private_note_leased(p, c->slab, is_leased);
}

/* --- pool.c --- */

/* Returns the record of a key, even if it is purged or unverified, or POOL_NONE. */
uint32_t pool_table_find(const struct pool *p, uint32_t namespace_id, const struct key *key,
                         uint64_t hash);
void pool_table_insert(struct pool *p, uint32_t chunk);
/* Returns an unused record. There is always one, because there are as many records as 4 KiB
 * slots. */
uint32_t pool_take_record(struct pool *p);
void pool_notify(const struct pool *p, uint32_t chunk, bool is_there);
void pool_notify_evicted(const struct pool *p, uint32_t chunk);
void pool_table_remove(struct pool *p, uint32_t chunk);
/* Reports to the watches and the guard that a resident chunk leaves, unless the chunk is unverified
 * and so was never reported. */
void pool_leave(struct pool *p, uint32_t chunk);

/* --- pool-room.c --- */

/* Finds a free slot of the class or of a larger class, evicting chunks if necessary. Returns
 * whether a slot was found. */
bool pool_acquire_slot(struct pool *p, unsigned class, struct slab_slot *ret);
/* Evicts a chunk that is neither pinned nor held. */
void pool_evict(struct pool *p, uint32_t chunk);
/* Estimates the worth of a slab's chunks together from a sample of its slots; each call takes
 * another sample. */
double pool_slab_worth(struct pool *p, uint32_t slab, bool by_recency);
/* Begins an iteration: evicts the chunks that may leave the slab being emptied in this
 * iteration. */
void pool_empty_more(struct pool *p);
/* Returns a chunk to the eviction order, where the next search finds it first, after its last
 * unpin. */
void pool_end_aside(struct pool *p, uint32_t chunk);

/* --- pool-floors.c --- */

/* Begins a search for room for a chunk of this namespace. */
void pool_floor_begin(struct pool *p, uint32_t namespace_id);
/* Has the search for a slot of the class keep the group's own chunks, if the group is below its
 * floor. */
void pool_floor_keep_own(struct pool *p, unsigned class);
/* Ends the effect of pool_floor_keep_own(), because the other groups have no room in the class.
 * Returns whether it had an effect. */
bool pool_floor_give_own(struct pool *p, unsigned class);
/* Count a chunk that enters or leaves the table. */
void pool_floor_add(struct pool *p, struct pool_chunk *c);
void pool_floor_remove(struct pool *p, const struct pool_chunk *c);
/* Returns whether the chunk's group would fall below its floor without the chunk. A demoted chunk
 * is not protected, nor is a chunk of the group that needs the room unless `keeps_own` is set. */
bool pool_is_protected(const struct pool *p, uint32_t chunk);
/* Estimates from a sample whether a group would fall below its floor without the slab's chunks. */
bool pool_slab_is_protected(const struct pool *p, uint32_t slab);

/* --- pool-slabs.c --- */

/* Returns how many slabs of a pool of `n_slabs` must stay without leased chunks. */
uint32_t pool_reserved_slabs(uint32_t n_slabs);
/* Finds a slot of the class in a blocked slab (pool_slab_is_blocked()), evicting a chunk of the
 * slab if necessary. Returns whether a slot was found. */
bool pool_acquire_in_leased_slab(struct pool *p, unsigned class, struct slab_slot *ret);
/* Returns whether a chunk to be leased should get its slot in a slab that has leased chunks: with a
 * pool index if pool_is_pressed(), and otherwise if only the reserved slabs are without leased
 * chunks. */
bool pool_is_short_of_slabs(const struct pool *p);

/* --- pool-private.c --- */

/* Begins an iteration: continues to hide the chunks of the slab that is becoming private, and to
 * announce chunks of slabs that are no longer private. */
void pool_private_more(struct pool *p);
/* Returns whether the slab has leased chunks, or may have held ones. */
bool pool_slab_is_blocked(const struct pool *p, uint32_t slab);
/* Returns whether a search within the last second found no slab to make private, mostly because all
 * slabs have leased or held chunks, and the private slabs without leased chunks are no more than
 * the wanted ones. */
bool pool_is_pressed(const struct pool *p);

/* --- pool-held.c --- */

/* Hides all chunks from clients, or announces them again. */
void pool_suspend_clients(struct pool *p, bool suspend);

/* Scans the clients' holds unless the last scan is recent. Called before a search asks for single
 * chunks, so that a chunk known to be held costs no more than a pinned one. */
void pool_scan_holds(struct pool *p);
/* Scans the clients' holds; a scan must be allowed. */
void pool_scan_holds_now(struct pool *p);
/* Returns whether the last scan, or is_held() since, found a held chunk in the slab. */
bool pool_slab_is_held(const struct pool *p, uint32_t slab);
bool pool_is_known_held(struct pool *p, uint32_t chunk);
/* Hides from clients a chunk that is to be evicted or moved. Returns false, and changes nothing, if
 * a client holds the chunk. */
bool pool_take_from_clients(struct pool *p, uint32_t chunk);
/* Hides chunks from clients, none of which is pinned. Returns false, and changes nothing, if a
 * client holds one of them. A scan must be allowed. */
bool pool_take_all_from_clients(struct pool *p, const uint32_t *chunks, uint32_t n);
/* Returns whether a scan is allowed now, or not needed because there are no clients. */
bool pool_may_scan_now(const struct pool *p);
/* Announces to clients a chunk that they do not find, because it was hidden from them or was in a
 * private slab. */
void pool_return_to_clients(struct pool *p, uint32_t chunk);
/* Keeps a dropped chunk without pins, by a pin of its own, if there are clients that may hold it.
 * Returns whether it did. */
bool pool_keep_for_clients(struct pool *p, uint32_t chunk);

/* Returns whether the chunk is older than a purge in progress that covers it. */
bool pool_is_purged(const struct pool *p, const struct pool_chunk *c);
/* Frees slot and record of a chunk that is not pinned and that no client holds. */
void pool_free_chunk(struct pool *p, uint32_t chunk);

/* Returns whether the chunk is in the table only until a purge drops it. */
static inline bool pool_is_dead(const struct pool *p, const struct pool_chunk *c)
{
        return !list_empty(&p->purges) && pool_is_purged(p, c);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The pool: the DRAM tier, and the staging of every read and write. One mapping, cut into slabs of
 * equal slots, and a table of the chunks that lie in it.
 *
 * A chunk is a number with a generation. It is FILLING from pool_acquire() until pool_commit(),
 * then it is resident and may be evicted whenever it is not pinned. A pin keeps the bytes where
 * they are; a lease is a pin too. pool_drop() makes a chunk unfindable at once and frees its slot
 * with the last pin. Loop thread. */
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/histogram.h"
#include "base/list.h"
#include "evict/evict.h"
#include "key.h"

struct backing;

#define POOL_NONE UINT32_MAX

enum pool_answer { POOL_FULL = 1, POOL_TOO_LARGE = 2 };

enum pool_flag {
        POOL_FILLING = 1 << 0,    /* bytes are not there yet */
        POOL_READING = 1 << 1,    /* FILLING from disk, not from a client */
        POOL_STORED = 1 << 2,     /* the store has it, or had it since it came here */
        POOL_WRITING = 1 << 3,    /* a write to the store is under way or waits */
        POOL_DROPPED = 1 << 4,    /* out of the table; lives as long as its pins. What was purged
                                     gets this later: pool_is_dropped() */
        POOL_PREFETCHED = 1 << 5, /* the cache's: no request has asked for the bytes yet */
        POOL_REFUSED = 1 << 6,    /* the cache's: not written, for the budget of writes */
        POOL_UNVERIFIED = 1 << 7, /* left by an earlier process, and not compared with its checksum
                                     yet: not found. pool-keep.c */
        POOL_ASIDE = 1 << 8,      /* pinned, and out of the searches' way: pool-room.c */
};

struct pool_chunk {
        struct key key;
        uint64_t hash;
        uint32_t namespace_id;
        uint32_t length;
        uint32_t crc;
        uint16_t slab, slot;
        uint32_t next; /* in its bucket, or of the free records */
        uint32_t generation;
        uint32_t pins;
        uint32_t leases; /* of the pins */
        uint32_t users;  /* lease.c's: the first of those that lease it, 0: none */
        uint32_t flags : 24;
        uint32_t cost : 8;        /* that it comes in with, as of evict.h */
        uint32_t use;             /* that it comes in with, as of evict.h */
        uint32_t user;            /* the cache's, with POOL_REFUSED: who put it */
        uint64_t born;            /* the number of the last purge before it */
        uint64_t created_ms;      /* the cache's: when it was put, Unix time */
        uint64_t tag;             /* the cache's own: where the store has it */
        struct list_node waiters; /* the cache's: waiters for the fill, or for the write */
};
static_assert(sizeof(struct pool_chunk) == 128, "two cache lines, and pool_warm() fetches them");

struct pool;

struct pool_stats {
        uint64_t bytes, populated_bytes;
        uint64_t huge_bytes;    /* of these, in huge pages */
        uint64_t used_bytes;    /* slots in use */
        uint64_t payload_bytes; /* sum of the lengths of the chunks */
        uint64_t pinned_bytes;  /* slots that cannot be evicted now */
        uint64_t leased_bytes;  /* slots with at least one lease */
        uint64_t leased_slabs;  /* with leased chunks */
        uint64_t moved_chunks;  /* to such slabs */
        uint64_t chunks, evictions, evicted_bytes, slab_moves;
        uint64_t unverified; /* of the chunks: those that are not found yet */
        struct evict_stats evict;
};

/* `bytes` is rounded down to whole slabs of min(64 MiB, bytes / 8) in steps of 2 MiB. No memory is
 * touched yet. */
int pool_new(struct pool **ret, uint64_t bytes, const char *policy);
/* Over memory of pool_whole_bytes(), which is the pool's from then on; on failure it stays the
 * caller's. */
int pool_new_over(struct pool **ret, const struct backing *backing, const char *policy);
/* What `bytes` come to in whole slabs, and how large these are; 0: no pool can be so small, or so
 * large. */
uint64_t pool_whole_bytes(uint64_t bytes, uint64_t *ret_slab_bytes);
struct pool *pool_free(struct pool *p);
/* As evict_switch(). */
int pool_set_policy(struct pool *p, const char *policy);

const struct backing *pool_backing(const struct pool *p);
int pool_fd(const struct pool *p); /* read-only; borrowed */
void *pool_base(const struct pool *p);
uint64_t pool_bytes(const struct pool *p);
uint64_t pool_slab_bytes(const struct pool *p); /* also the largest chunk */

/* From now on it is populated with huge pages where the system has them. */
void pool_use_huge_pages(struct pool *p);
bool pool_uses_huge_pages(const struct pool *p);

/* Populating: the next slab that is not there yet, or -1. pool_populate() blocks and may run on a
 * worker; *ret_huge: how much of it lies in huge pages. When all of the slab is there,
 * pool_open_slab() puts it to use, and counts those. */
int pool_next_slab(const struct pool *p);
int pool_populate(const struct pool *p, uint64_t offset, uint64_t bytes, uint64_t *ret_huge);
int pool_open_slab(struct pool *p, uint64_t huge_bytes);

/* --- what an earlier process has left in the same memory: pool-keep.c --- */

/* Bytes of each slot of this slab; 0: it is not cut, or not open. */
uint64_t pool_slab_slot_bytes(const struct pool *p, uint32_t slab);
uint32_t pool_open_slabs(const struct pool *p);
/* The record whose slot this is, POOL_NONE if it is free or there is no such slot. */
uint32_t pool_at_slot(const struct pool *p, uint32_t slab, uint32_t slot);
/* Of a new pool, slab by slab: the next one is open at once, as its memory is there, and cut into
 * such slots, unless that is 0. pool_next_slab() and pool_open_slab() then go through these first.
 * 0, -EINVAL, -ENOMEM. */
int pool_keep_slab(struct pool *p, uint64_t slot_bytes);

struct pool_kept {
        struct key key;
        uint64_t hash;
        uint32_t namespace_id, length, crc;
        uint32_t slab, slot;
        uint32_t flags; /* POOL_STORED, POOL_REFUSED */
        uint32_t user;
        uint64_t tag;
        uint64_t created_ms;
        struct evict_record record; /* a policy that refuses it has the chunk as its youngest */
};
/* In the table, in its slot and the youngest of its class, but not found. 0, -EEXIST (the slot is
 * taken, or the key is there), -EINVAL (there is no such slot, or it is too small), -ENOMEM. */
int pool_keep_chunk(struct pool *p, const struct pool_kept *kept, uint32_t *ret_chunk);
/* A slot that must not be reused, of which nothing else is known. It has one lease, whose end frees
 * it. 0, -EEXIST, -EINVAL, -ENOMEM. */
int pool_keep_slot(struct pool *p, uint32_t slab, uint32_t slot, uint32_t *ret_chunk);
/* Each chunk that a later process could take over so: its bytes are there, and nothing is under way
 * with it. */
void pool_each_kept(const struct pool *p,
                    void (*each)(void *userdata, const struct pool_kept *kept), void *userdata);
/* Is it still to be verified? A chunk that was evicted, dropped or purged meanwhile is not. */
bool pool_is_unverified(const struct pool *p, uint32_t chunk, uint32_t generation);
/* Its bytes are as they were: it is found from now on, unless a purge has it. */
void pool_verify(struct pool *p, uint32_t chunk);
/* What is still to be verified of the key goes: other bytes are put under it. */
void pool_drop_unverified(struct pool *p, uint32_t namespace_id, const struct key *key,
                          uint64_t hash);
/* As pool_find(), with those that are unverified. */
uint32_t pool_find_any(const struct pool *p, uint32_t namespace_id, const struct key *key,
                       uint64_t hash);

/* Chunks of this size get slots without rounding loss from now on. */
void pool_declare(struct pool *p, uint64_t bytes);

/* The chunk, filling or resident, or POOL_NONE. */
uint32_t pool_find(const struct pool *p, uint32_t namespace_id, const struct key *key,
                   uint64_t hash);
/* For many lookups in a row: step 0 for each, a little later step 1, then pool_find(). */
void pool_warm(const struct pool *p, uint64_t hash, unsigned step);
struct pool_chunk *pool_chunk(const struct pool *p, uint32_t chunk);
void *pool_at(const struct pool *p, uint32_t chunk);
uint64_t pool_offset(const struct pool *p, uint32_t chunk);
uint64_t pool_slot_bytes(const struct pool *p, uint32_t chunk);

/* A slot, evicting if it must; in the table as FILLING, with one pin, the caller's. The key must
 * not be there yet. 0, POOL_FULL (all that would help is pinned, or not populated, or the search
 * has given up), POOL_TOO_LARGE. */
int pool_acquire(struct pool *p, uint32_t namespace_id, const struct key *key, uint64_t hash,
                 uint32_t length, uint32_t use, uint32_t *ret);
/* Returns whether a search for room has given up since the last call. A request that found no room
 * then tries again in the next iteration, after pool_note_time(). */
bool pool_has_given_up(struct pool *p);
/* Does what pool_acquire() does for a chunk that is to be leased: while few slabs are without
 * leased chunks, its slot is in a slab that has some, if possible. */
int pool_acquire_to_lease(struct pool *p, uint32_t namespace_id, const struct key *key,
                          uint64_t hash, uint32_t length, uint32_t use, uint32_t *ret);
/* The bytes are there: resident, if it was not dropped meanwhile. */
void pool_commit(struct pool *p, uint32_t chunk, uint32_t crc);
/* Unfindable at once; its slot is free with the last pin. */
void pool_drop(struct pool *p, uint32_t chunk);

void pool_pin(struct pool *p, uint32_t chunk);
/* True if that was the last pin: a slot may have become free or evictable. */
bool pool_unpin(struct pool *p, uint32_t chunk);
void pool_lease(struct pool *p, uint32_t chunk); /* a pin that counts as a lease */
bool pool_unlease(struct pool *p, uint32_t chunk);
/* Returns whether a lease on the chunk keeps enough slabs without a leased chunk, so that other
 * sizes find room. A few of these are left to users that have no lease yet. */
bool pool_may_lease(const struct pool *p, uint32_t chunk, bool is_first_of_user);
/* Moves a chunk that is not pinned to a slab that has leased chunks already. Returns whether it
 * could: the chunk keeps its number, and its offset changes. */
bool pool_move_to_leased_slab(struct pool *p, uint32_t chunk);
uint64_t pool_leased_bytes(const struct pool *p); /* as of its stats */

/* Recency. A chunk of another generation is left alone. `use`: as of evict.h. */
void pool_touch(struct pool *p, uint32_t chunk, uint32_t generation, uint32_t use);
/* As evict_turn(); -1: it is of another generation. */
int pool_turn(const struct pool *p, uint32_t chunk, uint32_t generation, uint32_t use);
/* Its place in its chain, before it is touched at the chain's end. `parent`: what comes before it;
 * of another generation, there is no link. */
void pool_chain(struct pool *p, uint32_t chunk, uint32_t parent, uint32_t parent_generation,
                uint32_t use, unsigned turn, bool is_end);
/* As evict_hint(). True: it is of another generation. */
bool pool_hint(struct pool *p, uint32_t chunk, uint32_t generation, enum evict_hint hint);
/* Of a resident chunk: as evict_explain(). */
void pool_explain(const struct pool *p, uint32_t chunk, struct evict_standing *ret);
/* Was it evicted from the pool, as far as the policy remembers? */
bool pool_remembers(const struct pool *p, uint64_t hash);
/* Are turns and places of any use? */
bool pool_wants_chains(const struct pool *p);
void pool_warm_touch(const struct pool *p, uint32_t chunk, unsigned step); /* likewise */

/* Those that are evicted next, of classes in which chunks were evicted since the last report of it:
 * each chunk about twice, while it can still be read. `chance`: evict_chance(). They may not be
 * changed from within. Costs nothing where nothing was evicted. */
void pool_report_leaving(struct pool *p,
                         void (*each)(void *userdata, uint32_t chunk, double chance),
                         void *userdata);

/* Told of each chunk as it becomes resident and as it leaves, while it still has its key: from
 * within whatever does it. */
struct pool_watch {
        void (*changed)(void *userdata, uint32_t chunk, bool is_there);
        void *userdata;
};
/* `watch` is kept, not copied; NULL: none. */
void pool_set_watch(struct pool *p, const struct pool_watch *watch);
/* Clients that get chunks from here by themselves, and hold them meanwhile, without a word to the
 * pool: it asks before it reuses what they may hold (lookup/pool-index.h). */
struct pool_guard {
        /* Are there any? Else nothing is held. */
        bool (*has_clients)(void *userdata);
        /* As pool_watch.changed(), and when the pool takes back what it had announced: no client
         * finds it from then on. What was taken back already may be so again. */
        void (*changed)(void *userdata, uint32_t chunk, bool is_there);
        /* Of a chunk that was taken back: does a client hold it? */
        bool (*is_held)(void *userdata, uint32_t chunk);
        /* Looks at all that is held, unless it has within so long, or it is too early for it; then
         * was_held() of each is that, and what is_held() has found since. Calls
         * pool_forget_held_slabs() first, and pool_note_held() of each, as is_held() does. Did it?
         */
        bool (*scan)(void *userdata, uint64_t max_age_ns);
        /* From when on, by clock_mono_ns(), it may be asked to look whatever the age: the more is
         * held the longer that takes, and the longer it may not be repeated. */
        uint64_t (*next_scan_ns)(void *userdata);
        bool (*was_held)(void *userdata, uint32_t chunk);
        /* While it lasts no client finds anything. As often ended as begun. */
        void (*suspend)(void *userdata, bool suspend);
        void *userdata;
};
/* `guard` is kept, not copied; NULL: none, and none has announced anything. */
void pool_set_guard(struct pool *p, const struct pool_guard *guard);
/* The guard names the held chunks by these two: a slab in which a client holds one is not moved. */
void pool_forget_held_slabs(struct pool *p);
void pool_note_held(struct pool *p, uint32_t chunk);
/* Dropped chunks whose slots wait: where there are clients, until it was looked whether they hold
 * them, and then for as long as they do. */
uint32_t pool_held(const struct pool *p);
/* Have there been more of them since the last pool_release_held(), or fewer clients, or did it not
 * look? */
bool pool_holds_more(const struct pool *p);
/* A client has left: what only that held is to be freed. */
void pool_hold_less(struct pool *p);
/* Frees of them what no client holds, if it may look already. How many. */
uint32_t pool_release_held(struct pool *p);
/* When it may: of clock_mono_ns(); 0: at any time. */
uint64_t pool_next_scan_ns(const struct pool *p);
/* Has something found no room, where clients held what could have left? Asking ends it. */
bool pool_was_held_up(struct pool *p);
/* Numbers of chunks are below. */
uint32_t pool_max_chunks(const struct pool *p);

/* The resident chunks among `looks` numbers from *chunk on, those that a purge has still to drop
 * among them. What becomes resident, or leaves, with a number below it, the caller learns from the
 * watch. False: there are no more. */
bool pool_walk(const struct pool *p, uint32_t *chunk, unsigned max_records,
               void (*each)(void *userdata, uint32_t namespace_id, const struct key *key),
               void *userdata);
/* Is it resident? */
bool pool_is_resident(const struct pool *p, uint32_t chunk);

/* All records that have been used are below. */
uint32_t pool_records(const struct pool *p);

/* pool_drop() of every chunk of a namespace in the table. How many records it visited for that: it
 * stops behind the last that it can have to drop, so none if there is none. */
uint32_t pool_drop_namespace(struct pool *p, uint32_t namespace_id);

/* The same, or of every chunk, without a long walk: from the call on they count as dropped, and
 * none is found; pool_sweep() drops them a step at a time and then calls complete(). With nothing
 * to drop that happens before the call returns. The memory is the caller's, and the pool's until
 * complete(). */
struct pool_purge {
        uint32_t namespace_id;
        bool all;
        void (*complete)(struct pool_purge *purge);

        /* The pool's. */
        struct list_node node, mark;
        uint64_t number;
        uint32_t stop;
        bool wrapped;
};
void pool_purge(struct pool *p, struct pool_purge *purge);
/* Is it out of the table, or will be as soon as pool_sweep() visits it? What is there to be filled
 * or written is to be given up then. */
bool pool_is_dropped(const struct pool *p, uint32_t chunk);
/* A step: less than half a millisecond. How many records it visited; 0: no purge is under way. */
uint32_t pool_sweep(struct pool *p);
bool pool_is_sweeping(const struct pool *p);

void pool_get_stats(const struct pool *p, struct pool_stats *ret);
/* What eviction has learned, to be kept over a restart; the chunks themselves are not. False: it
 * was saved of another policy, or is malformed. */
const struct evict *pool_eviction(const struct pool *p);
bool pool_restore_learned(struct pool *p, const char *policy, const struct evict_learned *learned,
                          const struct evict_record *remembered, uint64_t n);
/* How long ago what was evicted had last been used, in nanoseconds: by the times that
 * pool_note_time() was given, as of evict_note_time(). */
const struct histogram *pool_evicted_ages(const struct pool *p);
/* Once an iteration: the searches for room may pass over as many pinned chunks again. */
void pool_note_time(struct pool *p, uint64_t now_ns);

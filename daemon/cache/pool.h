/* SPDX-License-Identifier: Apache-2.0 */
/* The pool: the memory tier, and the buffer of every read and write. It is one mapping, cut into
 * slabs of equal slots, and a table of the chunks in these slots.
 *
 * A chunk is named by a number and a generation. It is filling from pool_acquire() until
 * pool_commit(). Then it is resident, and may be evicted whenever it is not pinned. A pin keeps the
 * bytes in place; a lease is a pin too. pool_drop() removes a chunk from the table at once, and its
 * last unpin frees the slot. Loop thread. */
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/histogram.h"
#include "base/list.h"
#include "evict/evict.h"
#include "key.h"
#include "store/store.h"

struct backing;
struct fill;
struct write;

#define POOL_NONE UINT32_MAX

enum pool_answer { POOL_FULL = 1, POOL_TOO_LARGE = 2 };

/* The owner of a chunk's bytes. Only pool_set_state() changes it. */
enum pool_state {
        POOL_FREE,     /* the record has no chunk, until pool_acquire() */
        POOL_RESIDENT, /* complete bytes without an owner; `ref` is the chunk's place in the store.
                          Ends with a write to the store, or when the slot is freed */
        POOL_WRITING,  /* complete bytes that `write` writes to the store, until the store has
                          answered, its device hangs, or the write budget has refused or the cache
                          has postponed the write */
        POOL_ACQUIRED, /* incomplete bytes that belong to the caller of pool_acquire(), or are left
                        * from a copy or read that failed; after a failure, the state ends when the
                        * slot is freed */
        POOL_COPYING,  /* bytes that `write` copies from a client, until the copy ends */
        POOL_READING,  /* bytes that `fill` reads from the store, until the read ends */
};

enum pool_flag {
        POOL_STORED = 1 << 0,  /* the store has the chunk, or had it while the pool had it */
        POOL_DROPPED = 1 << 1, /* not in the table; exists until its last unpin. Purged chunks get
                                  this flag later: see pool_is_dropped() */
        POOL_PREFETCHED = 1 << 2, /* no request has used the bytes yet: pool_set_prefetched() */
        POOL_REFUSED = 1 << 3, /* set by the cache: only the pool has the chunk, because the write
                                  budget refused its write or the cache postponed it */
        POOL_UNVERIFIED = 1 << 4, /* left by an earlier process and not yet verified, so not found;
                                     see pool-keep.c */
        POOL_ASIDE = 1 << 5, /* pinned, and set aside so that searches skip it; see pool-room.c */
        POOL_FOR_RETURN = 1 << 6, /* with POOL_PREFETCHED: the chunk was read for an announced
                                     return */
};

struct pool_chunk {
        struct key key;
        uint64_t hash;
        uint32_t namespace_id;
        uint32_t length;
        uint32_t crc;
        uint16_t slab, slot;
        uint32_t next; /* next record in the bucket (its number plus one, 0 at the end); or in the
                          list of free records or of dropped chunks that clients may hold (its
                          number, POOL_NONE at the end) */
        uint32_t generation;
        uint32_t pins;
        uint32_t leases;    /* the pins that are leases */
        uint32_t users;     /* used by lease.c: number of the first struct pair of the chunk and a
                             * user that leases it; 0 if none */
        uint32_t flags : 7; /* enum pool_flag */
        uint32_t floor : 4; /* used by pool-floors.c: 1 plus the group of the chunk's namespace, 0
                               if it has none */
        uint32_t place : 2; /* enum evict_place at insertion */
        uint32_t state : 3; /* enum pool_state */
        uint32_t cost : 8;  /* cost at insertion, as in evict.h */
        uint32_t gap : 8;   /* mean gap at insertion, as in evict.h */
        uint32_t use;       /* use at insertion, as in evict.h */
        uint32_t user; /* used by the cache with POOL_REFUSED: uid of the user that put the chunk */
        uint64_t born; /* number of the last purge before the chunk was added */
        uint64_t created_ms; /* used by the cache: Unix time of the put, in ms */
        union {              /* used by the cache; which member is valid follows from `state` */
                struct store_ref ref;
                struct write *write;
                struct fill *fill;
        };
        struct list_node
                waiters; /* used by the cache: requests that wait for the fill or the write */
};
static_assert(sizeof(struct pool_chunk) == 128, "two cache lines, and pool_warm() fetches them");

/* Returns whether the chunk's bytes are not complete yet. */
static inline bool pool_is_filling(const struct pool_chunk *c)
{
        return c->state >= POOL_ACQUIRED;
}
/* Changes the state of a chunk; the caller sets the union afterwards. */
void pool_set_state(struct pool_chunk *c, enum pool_state state);

struct pool;

struct pool_stats {
        uint64_t bytes, populated_bytes;
        uint64_t huge_bytes;    /* the part of populated_bytes that lies in huge pages */
        uint64_t used_bytes;    /* bytes of the slots in use */
        uint64_t payload_bytes; /* sum of the lengths of the chunks */
        uint64_t pinned_bytes;  /* bytes of the slots of chunks with at least one pin */
        uint64_t leased_bytes;  /* bytes of the slots with at least one lease */
        uint64_t leased_slabs;  /* slabs with leased chunks */
        uint64_t private_slabs; /* slabs whose chunks clients neither find nor hold through the pool
                                 * index */
        uint64_t moved_chunks;  /* chunks moved to slabs that had leased chunks already */
        uint64_t chunks, evictions, evicted_bytes, slab_moves;
        uint64_t prefetched_unused_bytes, prefetched_wasted; /* bytes of the slots of prefetched
                                                                chunks that no request has used yet;
                                                                number of prefetched chunks that
                                                                were evicted unused */
        uint64_t spared;     /* chunks that searches passed over because of a floor */
        uint64_t unverified; /* chunks of an earlier process that are not verified yet */
        struct evict_stats evict;
};

/* Creates a pool over a new memfd. `bytes` is rounded down to whole slabs, whose size is an eighth
 * of `bytes`, rounded down to a multiple of 2 MiB, but at least 2 MiB and at most 64 MiB. No memory
 * of the pool is touched yet. Returns 0 or -errno; -EINVAL if no pool can have this size, or if the
 * policy is unknown. */
int pool_new(struct pool **ret, uint64_t bytes, const char *policy);
/* Creates a pool over existing memory, whose size pool_whole_bytes() would not change. The pool
 * owns the memory on success, and the caller on failure. */
int pool_new_over(struct pool **ret, const struct backing *backing, const char *policy);
/* Returns `bytes` rounded down to whole slabs, and the size of a slab; 0 if `bytes` is too small or
 * too large for a pool. */
uint64_t pool_whole_bytes(uint64_t bytes, uint64_t *ret_slab_bytes);
struct pool *pool_free(struct pool *p);
/* Switches the eviction policy. Returns the result of evict_switch(). */
int pool_set_policy(struct pool *p, const char *policy);

const struct backing *pool_backing(const struct pool *p);
int pool_fd(const struct pool *p); /* read-only; owned by the pool */
void *pool_base(const struct pool *p);
uint64_t pool_bytes(const struct pool *p);
uint64_t pool_slab_bytes(const struct pool *p); /* also the greatest length of a chunk */

/* Lets later calls of pool_populate() use huge pages where the system has them. */
void pool_use_huge_pages(struct pool *p);
bool pool_uses_huge_pages(const struct pool *p);

/* Populating: pool_next_slab() returns the next slab without memory, or -1. pool_populate() blocks
 * and may run on a blocking-call thread; it sets *ret_huge to the bytes that lie in huge pages.
 * When a whole slab has memory, pool_open_slab() puts it into use, and adds its huge bytes to the
 * statistics. pool_populate() and pool_open_slab() return 0 or -errno. */
int pool_next_slab(const struct pool *p);
int pool_populate(const struct pool *p, uint64_t offset, uint64_t bytes, uint64_t *ret_huge);
int pool_open_slab(struct pool *p, uint64_t huge_bytes);

/* --- chunks that an earlier process left in the same memory: pool-keep.c --- */

/* Returns the slot size of a slab; 0 if the slab is not cut or not open. */
uint64_t pool_slab_slot_bytes(const struct pool *p, uint32_t slab);
uint32_t pool_open_slabs(const struct pool *p);
/* Returns the chunk in a slot, or POOL_NONE if the slot is free or does not exist. */
uint32_t pool_at_slot(const struct pool *p, uint32_t slab, uint32_t slot);
/* Opens the next slab of a new pool, which has its memory already, and cuts it into slots of
 * `slot_bytes`, unless that is 0. pool_next_slab() and pool_open_slab() then begin with the slabs
 * opened so. Returns 0, -EINVAL or -ENOMEM. */
int pool_keep_slab(struct pool *p, uint64_t slot_bytes);

struct pool_kept {
        struct key key;
        uint64_t hash;
        uint32_t namespace_id, length, crc;
        uint32_t slab, slot;
        uint32_t flags; /* POOL_STORED and POOL_REFUSED; pool_keep_chunk() ignores other flags */
        uint32_t user;
        struct store_ref ref;
        uint64_t created_ms;
        struct evict_record record; /* if the policy rejects it, the chunk counts as the youngest */
};
/* Adds a chunk to the table, in its slot and at the young end of the eviction order, so call it in
 * the order of the chunks' last uses. The chunk is not found before pool_verify(). Returns 0;
 * -EEXIST if the slot is taken or the key exists; or -EINVAL if the slot does not exist or is too
 * small, or the length is 0. */
int pool_keep_chunk(struct pool *p, const struct pool_kept *kept, uint32_t *ret_chunk);
/* Reserves a slot that must not be reused and whose chunk is unknown. It has one lease, whose end
 * frees it. Returns 0, -EEXIST if the slot is taken, or -EINVAL if it does not exist. */
int pool_keep_slot(struct pool *p, uint32_t slab, uint32_t slot, uint32_t *ret_chunk);
/* Calls each() for every chunk that a later process can take over: its bytes are complete, and it
 * is not being written. */
void pool_each_kept(const struct pool *p,
                    void (*each)(void *userdata, const struct pool_kept *kept), void *userdata);
/* Returns whether a chunk still awaits verification. A chunk that was evicted, dropped or purged
 * since does not. */
bool pool_is_unverified(const struct pool *p, uint32_t chunk, uint32_t generation);
/* Marks a chunk as verified: it is found from now on, unless it was purged. */
void pool_verify(struct pool *p, uint32_t chunk);
/* Drops an unverified chunk of the key, before other bytes are put under the key. */
void pool_drop_unverified(struct pool *p, uint32_t namespace_id, const struct key *key,
                          uint64_t hash);
/* Returns what pool_find() returns, but finds unverified chunks too. */
uint32_t pool_find_any(const struct pool *p, uint32_t namespace_id, const struct key *key,
                       uint64_t hash);

/* Gives chunks of this size a slot class of their size, rounded up to 4 KiB, if the class table has
 * room. */
void pool_declare(struct pool *p, uint64_t bytes);

/* Returns the chunk of a key, filling or resident, or POOL_NONE. */
uint32_t pool_find(const struct pool *p, uint32_t namespace_id, const struct key *key,
                   uint64_t hash);
/* Prefetches the CPU cache lines of a lookup. For many lookups in a row, call step 0 for each, then
 * step 1 for each, then pool_find(). */
void pool_warm(const struct pool *p, uint64_t hash, unsigned step);
struct pool_chunk *pool_chunk(const struct pool *p, uint32_t chunk);
void *pool_at(const struct pool *p, uint32_t chunk);
uint64_t pool_offset(const struct pool *p, uint32_t chunk);
uint64_t pool_slot_bytes(const struct pool *p, uint32_t chunk);

/* Acquires a slot for a chunk, evicting other chunks if necessary, and adds the chunk to the table
 * as POOL_ACQUIRED, with one pin for the caller. The key must not be in the table yet, except with
 * a purged or unverified chunk, which is dropped. Returns 0; POOL_TOO_LARGE, also for a length of
 * 0; or POOL_FULL if no suitable chunk may be evicted now, the memory is not populated yet, or the
 * search has given up. */
int pool_acquire(struct pool *p, uint32_t namespace_id, const struct key *key, uint64_t hash,
                 uint32_t length, uint32_t use, uint32_t *ret);
/* Returns whether a search for room has given up since the last call. A request that found no room
 * then tries again in the next iteration, after pool_note_time(). */
bool pool_has_given_up(struct pool *p);
/* Returns whether a slab is being emptied and the next iteration may continue that. */
bool pool_is_emptying(const struct pool *p);
/* Lets the next searches for room evict only chunks that are worth less than a chunk with this
 * promise, or no chunk if the promise's belief is 0. These searches evict nothing from other
 * classes. The caller keeps `promise` until a call with NULL, which ends the restriction. */
void pool_replace_less_than(struct pool *p, const struct evict_promise *promise);
/* Returns whether a search has failed because of the restriction that pool_replace_less_than() set
 * last. */
bool pool_kept_worthier(const struct pool *p);
/* Does what pool_acquire() does for a chunk that is to be leased: while few slabs are without
 * leased chunks, its slot is in a slab that has leased chunks or may have held ones, if
 * possible. */
int pool_acquire_to_lease(struct pool *p, uint32_t namespace_id, const struct key *key,
                          uint64_t hash, uint32_t length, uint32_t use, uint32_t *ret);
/* Makes a filled chunk resident, unless it was dropped since. */
void pool_commit(struct pool *p, uint32_t chunk, uint32_t crc);
/* Removes a chunk from the table at once. Its last unpin frees the slot, or pool_release_held()
 * does later if a client may hold the chunk. */
void pool_drop(struct pool *p, uint32_t chunk);

void pool_pin(struct pool *p, uint32_t chunk);
/* Ends a pin. Returns true if it was the last one, so that a slot may be free or evictable now. */
bool pool_unpin(struct pool *p, uint32_t chunk);
void pool_lease(struct pool *p, uint32_t chunk); /* a pin that counts as a lease */
bool pool_unlease(struct pool *p, uint32_t chunk);
/* Returns whether a lease on the chunk keeps enough slabs without a leased chunk, so that other
 * sizes find room. All but one of these slabs may get the first lease of a user
 * (`is_first_of_user`). */
bool pool_may_lease(const struct pool *p, uint32_t chunk, bool is_first_of_user);
/* Returns whether the chunk may be leased, as pool_may_lease() does. May move the chunk or make
 * another slab private to permit the lease. */
bool pool_make_leasable(struct pool *p, uint32_t chunk, uid_t uid, bool is_first_of_user);
/* Moves a chunk that is not pinned to a slab that has leased chunks already, or may have held ones.
 * Returns whether it could: the chunk keeps its number, and its offset changes. */
bool pool_move_to_leased_slab(struct pool *p, uint32_t chunk);
uint64_t pool_leased_bytes(const struct pool *p); /* equals pool_stats.leased_bytes */

/* Records a use with the eviction policy, unless the chunk has another generation. `use` is as in
 * evict.h. For this and the following functions, a chunk that is being filled or was dropped counts
 * as one of another generation. */
void pool_touch(struct pool *p, uint32_t chunk, uint32_t generation, uint32_t use);
/* Returns the result of evict_turn(), or -1 if the chunk has another generation. */
int pool_turn(const struct pool *p, uint32_t chunk, uint32_t generation, uint32_t use);
/* Return the result of evict_chain_gap() and evict_gap(), or EVICT_NO_GAP if the chunk has another
 * generation. */
uint8_t pool_chain_gap(const struct pool *p, uint32_t chunk, uint32_t generation, uint32_t use,
                       struct evict_return *ret);
uint8_t pool_gap(const struct pool *p, uint32_t chunk, uint32_t generation);
/* Sets the mean gap (evict.h) of the chunk's chain, unless the chunk has another generation. */
void pool_set_gap(struct pool *p, uint32_t chunk, uint32_t generation, uint8_t gap);
/* Records a chunk's place in its chain, before it is touched at the end of the chain. The chunk
 * must be resident. `parent` is the preceding chunk; there is no link if that has another
 * generation. */
void pool_chain(struct pool *p, uint32_t chunk, uint32_t parent, uint32_t parent_generation,
                uint32_t use, unsigned turn, bool is_end);
/* Returns the result of evict_hint(), or true if the chunk has another generation. */
bool pool_hint(struct pool *p, uint32_t chunk, uint32_t generation, enum evict_hint hint);
/* Return the results of evict_demote() and evict_promote(), or false if the chunk is not resident.
 * pool_demote() also returns false if the chunk is leased. */
bool pool_demote(struct pool *p, uint32_t chunk);
bool pool_promote(struct pool *p, uint32_t chunk);
uint32_t pool_demoted(const struct pool *p); /* the number of demoted chunks */
/* Applies evict_promise(), unless the chunk has another generation. */
void pool_promise(struct pool *p, uint32_t chunk, uint32_t generation,
                  const struct evict_promise *promise);
/* Calls evict_expect() for the chunks of a use that are committed next. A call with NULL ends the
 * expectation. */
void pool_expect(struct pool *p, uint32_t use, const struct evict_promise *promise);
/* Fills in evict_explain()'s answer for a resident chunk, and zeros for any other. */
void pool_explain(const struct pool *p, uint32_t chunk, struct evict_standing *ret);
/* Returns whether the policy remembers evicting the chunk of this hash from the pool. */
bool pool_remembers(const struct pool *p, uint64_t hash);
void pool_admit_all(struct pool *p, bool all);
/* Returns the result of evict_remembered_gap() for this hash. */
uint8_t pool_remembered_gap(const struct pool *p, uint64_t hash, struct evict_return *ret);
/* Returns whether the policy uses turns and places of chains. */
bool pool_wants_chains(const struct pool *p);
void pool_warm_touch(const struct pool *p, uint32_t chunk,
                     unsigned step); /* prefetches cache lines, like pool_warm() */

/* Calls each() for the chunks that are evicted next, in classes that evicted chunks since their
 * last report. Each chunk is reported about twice, while it can still be read. `chance` is
 * evict_chance(). each() must not change the chunks. The call costs nothing if nothing was
 * evicted. */
void pool_report_leaving(struct pool *p,
                         void (*each)(void *userdata, uint32_t chunk, double chance),
                         void *userdata);

/* Callbacks for changes of the pool. changed() runs when a chunk becomes resident and when it
 * leaves, while it still has its key, from within the function that changes it. */
struct pool_watch {
        struct list_node node; /* private to the pool */
        void (*changed)(void *userdata, uint32_t chunk, bool is_there);
        /* Called after changed() if the chunk leaves to make room. Either callback may be NULL. */
        void (*evicted)(void *userdata, uint32_t chunk);
        void *userdata;
};
/* Bytes of slots that groups of namespaces keep: other namespaces do not evict below them. of()
 * returns the group of a namespace, from 0, or `n` if it has none. The floors together are at most
 * three quarters of the pool; larger ones are reduced in proportion. A new pool has no floors. A
 * slab that is cut for another size is evicted as a whole: if every slab has protected chunks, a
 * floor may lose the chunks that it has in one of them. */
enum { POOL_MAX_FLOORS = 15 };
struct pool_floors {
        unsigned n;
        uint64_t bytes[POOL_MAX_FLOORS];
        unsigned (*of)(void *userdata, uint32_t namespace_id);
        void *userdata;
};
void pool_set_floors(struct pool *p, const struct pool_floors *floors);
/* Fills in the bytes of a group and its floor; zeros if there is no such group. */
void pool_get_floor(const struct pool *p, unsigned i, uint64_t *ret_used, uint64_t *ret_floor);
/* Return the bytes of the slots with chunks of a namespace, and of all namespaces. Two namespaces
 * whose numbers differ by a multiple of 8,192 share a count. */
uint64_t pool_namespace_bytes(const struct pool *p, uint32_t namespace_id);
uint64_t pool_all_namespaces_bytes(const struct pool *p);

/* Adds a watch, which the caller keeps until it removes it. */
void pool_add_watch(struct pool *p, struct pool_watch *watch);
void pool_remove_watch(struct pool_watch *watch);
/* Clients that find chunks through the pool index and hold them without a message. The pool asks
 * this guard before it reuses a slot that a client may hold (lookup/pool-index.h). */
struct pool_guard {
        /* Returns whether any client uses the pool index; otherwise no chunk is held. */
        bool (*has_clients)(void *userdata);
        /* Does what pool_watch.changed() does. Also called with `is_there` false before the pool
         * evicts a chunk, after which no client finds the chunk; such a call may be repeated for
         * the same chunk. */
        void (*changed)(void *userdata, uint32_t chunk, bool is_there);
        /* Returns whether a client holds a chunk that clients no longer find. */
        bool (*is_held)(void *userdata, uint32_t chunk);
        /* Scans all holds. If `max_age_ns` is not 0, does nothing if the last scan is younger than
         * that or the next one is not allowed yet; a caller with 0 has checked next_scan_ns().
         * was_held() then answers from this scan and from later is_held() calls. Calls
         * pool_forget_held_slabs() first, and pool_note_held() for each held chunk, as is_held()
         * does. Returns whether it scanned. */
        bool (*scan)(void *userdata, uint64_t max_age_ns);
        /* Returns the time of clock_mono_ns() from which scan() may be asked to scan whatever its
         * age. The more chunks are held, the longer a scan takes, and the longer the pause after
         * it. */
        uint64_t (*next_scan_ns)(void *userdata);
        bool (*was_held)(void *userdata, uint32_t chunk);
        /* Returns whether the last scan found a hold of one of the user's clients. */
        bool (*has_holds)(void *userdata, uid_t uid);
        /* Hides all chunks from clients until the matching call with false. Calls are counted. */
        void (*suspend)(void *userdata, bool suspend);
        void *userdata;
};
/* Sets the guard, or removes it if `guard` is NULL. The pool keeps the pointer. The guard must not
 * have announced a chunk to clients yet. */
void pool_set_guard(struct pool *p, const struct pool_guard *guard);
/* Keeps a few slabs private from now on: the guard announces no chunk of theirs, so no client can
 * hold one. Called once, before the guard announces a chunk. */
void pool_make_slabs_private(struct pool *p);
/* Returns whether the chunk is in a private slab, where a hold counts for nothing. */
bool pool_is_private(const struct pool *p, uint32_t chunk);
/* Returns whether the guard may announce the chunk. */
bool pool_may_announce(const struct pool *p, uint32_t chunk);
/* Let the guard report the held chunks, so that no slab with a held chunk is given to another
 * class. */
void pool_forget_held_slabs(struct pool *p);
void pool_note_held(struct pool *p, uint32_t chunk);
/* Returns the number of dropped chunks whose slots are kept because a client holds the chunk, or
 * may hold it until the next scan shows otherwise. */
uint32_t pool_held(const struct pool *p);
/* Returns whether dropped chunks were added or a client left since the last pool_release_held(), or
 * that call was not allowed to scan. */
bool pool_holds_more(const struct pool *p);
/* Notes that a client has left, so that chunks that only it held can be freed. */
void pool_hold_less(struct pool *p);
/* Frees the dropped chunks that no client holds, if a scan is allowed now. Returns their number. */
uint32_t pool_release_held(struct pool *p);
/* Returns the time of clock_mono_ns() from which a scan is allowed; 0 if at any time. */
uint64_t pool_next_scan_ns(const struct pool *p);
/* Returns whether a search found no room because clients held chunks that could have been evicted,
 * or might hold them because no scan was allowed; clears that state. */
bool pool_was_held_up(struct pool *p);
/* Returns the capacity of the table of chunks; all chunk numbers are below it. */
uint32_t pool_max_chunks(const struct pool *p);

/* Calls each() for the resident chunks among the next `max_records` records from *chunk on,
 * including chunks that a purge has yet to drop. The caller learns from the watch about chunks that
 * become resident or leave below *chunk. Returns whether records are left. */
bool pool_walk(const struct pool *p, uint32_t *chunk, unsigned max_records,
               void (*each)(void *userdata, uint32_t namespace_id, const struct key *key,
                            uint32_t length),
               void *userdata);
bool pool_is_resident(const struct pool *p, uint32_t chunk);

/* Returns the number of records that were ever used; all chunk numbers are below it. */
uint32_t pool_records(const struct pool *p);

/* Drops every chunk of a namespace. Returns the number of records that it visited; it stops after
 * the last one that may have to be dropped, so it visits none if there is none. */
uint32_t pool_drop_namespace(struct pool *p, uint32_t namespace_id);

/* Purges a namespace, or everything, in steps: from the call on its chunks count as dropped and are
 * not found. pool_sweep() drops them step by step and then calls complete(), which runs before this
 * call returns if there is nothing to drop. The caller owns the memory, which the pool uses until
 * complete(). */
struct pool_purge {
        uint32_t namespace_id;
        bool all;
        void (*complete)(struct pool_purge *purge);

        /* Private to the pool. */
        struct list_node node, mark;
        uint64_t number;
        uint32_t stop;
        bool wrapped;
};
void pool_purge(struct pool *p, struct pool_purge *purge);
/* Returns whether the chunk has left the table, or will leave it when pool_sweep() visits it. Fills
 * and writes of such a chunk are to be abandoned. */
bool pool_is_dropped(const struct pool *p, uint32_t chunk);
/* Drops purged chunks for one step of less than half a millisecond. Returns the number of records
 * that it visited; 0 if no purge is in progress. */
uint32_t pool_sweep(struct pool *p);
bool pool_is_sweeping(const struct pool *p);

/* Sets or clears the mark of a prefetched chunk that no request has used yet. */
void pool_set_prefetched(struct pool *p, uint32_t chunk, bool is_prefetched);
/* Marks a chunk that is prefetched for an announced return. */
void pool_set_for_return(struct pool *p, uint32_t chunk);
/* Returns the bytes of the slots of chunks that pool_set_for_return() has marked and no request has
 * used yet. */
uint64_t pool_unused_for_return(const struct pool *p);
void pool_get_stats(const struct pool *p, struct pool_stats *ret);
/* Returns the pool's eviction policy. pool_restore_learned() restores the policy's learned state,
 * without chunks, after a restart. It returns false if the state was saved by another policy or is
 * malformed. */
const struct evict *pool_eviction(const struct pool *p);
bool pool_restore_learned(struct pool *p, const char *policy, const struct evict_learned *learned,
                          const struct evict_record *remembered, uint64_t n);
/* Returns the ages of evicted chunks: nanoseconds since their last use, by the times given to
 * pool_note_time(). */
const struct histogram *pool_evicted_ages(const struct pool *p);
/* Starts an iteration: sets the eviction policy's clock, renews the amounts of work that one
 * iteration allows (chunks that searches pass over, bytes that are moved), and continues to empty,
 * hide and announce slabs. */
void pool_note_time(struct pool *p, uint64_t now_ns);

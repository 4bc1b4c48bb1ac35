/* SPDX-License-Identifier: Apache-2.0 */
/* The memory tier (pool) and the disk tier (store) behind one interface: `get`, `put`, `evict` and
 * `purge` of a key act on both. A shared tier may follow them (remote/remote.h): a get or a
 * prefetch that finds its key in neither tier asks there, and chunks that are put, used again or
 * about to be evicted are offered to it.
 *
 * A request is the caller's memory and belongs to the cache from the call until complete(), which
 * may run before the call returns. Everything runs on the loop thread.
 *
 * A worker copies the bytes of a put into the pool, or a blocking-call thread reads them from a
 * client's file. In the pool the chunk becomes visible before it is written to the store. A get
 * finds the chunk in the pool or reads it there from the store; concurrent gets of one key share
 * one read. If the pool has no room, a request waits until its deadline, or is answered BUSY if it
 * asked not to wait. Users are served in turn, and no user's wait delays another user. The requests
 * of one user are served in order, but a request that has found no room for long, because leases
 * occupy it, does not delay those behind it.
 *
 * Bytes that are accepted but not yet written to the store are limited to a quarter of the pool, of
 * which each putting user has an equal share. A user that puts alone may use all of it. When the
 * limit is reached, users below their share may also use a reserve of an eighth of that limit or
 * one slab, whichever is larger. Prefetches have a limit of their own, see cache_prefetch().
 *
 * The cache hands the store only as many writes, and as many reads of each volume, as keep the
 * devices busy. Further writes and reads wait in the cache, and their users are served in turn. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/deadlines.h"
#include "base/list.h"
#include "fair/window.h"
#include "io/io.h"
#include "key.h"
#include "cache/prefetch.h"
#include "cache/returns.h"
#include "cache/pool.h"
#include "cache/sets.h"
#include "store/store.h"

struct admission;
struct cache;
struct cache_fetched;
struct remote;
struct remote_put;

enum cache_status {
        CACHE_OK,
        CACHE_MISS,
        CACHE_EXISTS,
        CACHE_BUSY,
        CACHE_TOO_LARGE,
        CACHE_NOT_DURABLE,
        CACHE_FAILED,
        CACHE_NO_SPACE,  /* put: the store has no room for the chunk, or the write budget refuses
                          * it */
        CACHE_FAULT,     /* the client truncated the file of its memory while the memory was read or
                            filled */
        CACHE_QUOTA,     /* pin: the tenant has pinned as much as it may */
        CACHE_NO_RANGE,  /* get: the chunk has no such bytes */
        CACHE_CANCELLED, /* the owner ended, the result is unwanted, or the daemon stops */
        CACHE_STATUS_END,
};

enum cache_ack { CACHE_ACCEPTED, CACHE_WRITTEN, CACHE_DURABLE };
enum { CACHE_ACKS = CACHE_DURABLE + 1 };
enum { CACHE_MEMORY = 1, CACHE_DISK = 2, CACHE_REMOTE = 4 };

/* The location of a key in both tiers. It is passed to cache_touch() when all keys of its chain
 * have been handled. */
struct cache_place {
        uint32_t chunk, generation; /* record in the pool, or POOL_NONE; its generation */
        struct store_ref ref;
};

/* A read from the store: either into a slot of the pool, or for a get into the client's memory that
 * waits for its user's turn. Private to the cache. */
struct store_read {
        struct window_item item; /* item.member is NULL except between cache_read_begin() and
                                    cache_read_end() */
        bool in_pool;
};

struct cache_request {
        struct list_node node;   /* private to the cache: in the list in which the request waits */
        struct list_node *owner; /* list of the owner's requests that cache_cancel() can cancel;
                                    NULL if the request cannot be cancelled */
        uint32_t namespace_id;
        uint16_t tenant;
        uint32_t user; /* the user's uid; users are served in turn, each within its share */
        struct key key;
        uint64_t hash;       /* from cache_hash() */
        uint32_t use;        /* from cache_next_use() */
        uint8_t gap;         /* mean gap of a put's chain, as in evict.h */
        uint8_t chain_place; /* enum evict_place of a put's chunk */
        bool nowait;
        bool expired;         /* get: cache_expire() has just dropped the chunk */
        uint64_t deadline_ns; /* CLOCK_MONOTONIC; ends a wait for room or for the shared tier */

        /* The source of a put, or the target of a get; a get without memory completes with the
         * chunk. The memory may be a client's, so it may change at any time, or vanish because the
         * client truncates its file. */
        void *memory;               /* `room` bytes, used by the cache until complete() */
        const struct iovec *pieces; /* instead of `memory`: pieces of `room` bytes in total */
        uint32_t room;
        struct put_file *file;     /* put: instead of `memory`, or NULL */
        uint64_t file_offset;      /* offset in the file, a multiple of PUT_FILE_PAGE */
        struct kio_region *region; /* the region that contains `memory`, or NULL */
        bool in_regions;           /* all of `pieces` lie in regions */
        /* Allows a transfer between the disk and the client's memory without a copy in the pool.
         * The cache makes one only if the memory lies in regions and is aligned as direct.c
         * requires, and only for a put that is written or durable. Callers do not set this for a
         * get of a part of a chunk. */
        bool may_be_direct;
        /* Charges the user for memory that the cache allocates for a direct transfer; a negative
         * number ends the charge, before complete(). Returns false if the user may have no more;
         * the request then uses the pool. NULL if no user is charged. */
        bool (*charge)(struct cache_request *req, int64_t bytes);
        bool direct; /* set at completion: the transfer was direct, and there is no `chunk` */

        /* used by a put, from here to `fetched`; the cache sets `length` of a get, too */
        struct key parent;
        uint32_t length;
        uint8_t cost;                 /* evict_cost_level() of the chunk */
        struct evict_promise promise; /* passed to evict_expect(); number 0: no return of the chain
                                       * is expected */
        enum cache_ack ack;
        uint64_t batch; /* batch number for struct store_put; 0 if none */
        struct cache_fetched
                *fetched; /* private to the cache: the put stores a chunk from the shared tier */

        /* The range of the chunk that a get copies into memory; length 0 means up to the end. */
        uint32_t range_offset, range_length;
        /* If this is not NULL, and the flag is true when the copy is about to begin, the request
         * ends with CACHE_CANCELLED and copies nothing. Used by gets, and by puts of the cache
         * itself. */
        const bool *unwanted;
        /* Set at completion of a get: the chunk's length, or 0 if no chunk was found or read; and
         * the bytes copied. With CACHE_TOO_LARGE `copied` is the length that did not fit `room`, or
         * 0 if no slot of the pool is large enough. */
        uint32_t chunk_length, copied;

        /* Set at completion. If `chunk` is not POOL_NONE, the request succeeded and the chunk is
         * pinned; the caller unpins it. A get into memory and a direct transfer leave no chunk. */
        enum cache_status status;
        uint32_t chunk; /* the chunk's record in the pool; POOL_NONE if the pool does not have the
                         * chunk, and nothing is pinned */
        uint32_t tier;  /* get: the tier that had the chunk */
        struct cache_place place;
        void (*complete)(struct cache_request *req);

        /* Private to the cache. */
        struct cache_user *waits_as; /* WAITING_ROOM: the user in whose queue the request is */
        struct list_node owned;
        struct deadline deadline;
        uint64_t waits_since_ns;
        uint32_t charged; /* bytes charged to the write budget and not settled yet */
        uint8_t admission;
        struct store_read read;
        struct cache *cache; /* set while the request waits, and while a get is copied */
        union {
                struct kio_request copy; /* used by a get: the copy out of the pool */
                struct {                 /* used by a put in WAITING_SYNC */
                        struct store_sync store;
                        uint32_t chunk; /* the pinned chunk; POOL_NONE if the pool does not have the
                                         * chunk */
                } sync;
        };
        uint8_t kind, waiting;
        bool asked_remote; /* get: the shared tier was asked and returned no chunk */
};

struct cache_params {
        struct pool *pool;
        struct store *store;
        struct kio *io;
        struct admission *admission; /* NULL if every chunk is written */
        struct remote *remote; /* the shared tier, used by all caches; NULL if there is none */
        uint16_t tenant;       /* number of the cache's tenant in the store */
};

int cache_new(struct cache **ret, const struct cache_params *params);
struct cache *cache_free(struct cache *c); /* nothing may be in flight */
/* Ends the cache's watches of the store, which may then be closed first. NULL is allowed. */
void cache_unwatch(struct cache *c);

void cache_get(struct cache *c, struct cache_request *req);
/* Gets a chunk from memory without a request: fills in the chunk, which is not pinned, and its
 * place. Returns false and counts nothing if the chunk is not in memory, or is still being filled;
 * only `ret_chunk` is filled in then, for cache_get_rest(). */
bool cache_get_resident(struct cache *c, uint32_t namespace_id, const struct key *key,
                        uint64_t hash, uint32_t *ret_chunk, struct cache_place *ret_place);
/* Account for gets that clients made through the pool index: cache_count_hits() counts them as
 * hits, and cache_place_used() returns the place of one such chunk, which counts as a prefetch hit
 * if it was prefetched and not used since. */
void cache_count_hits(struct cache *c, uint64_t keys);
struct cache_place cache_place_used(struct cache *c, uint32_t chunk);
/* Continues a get directly after cache_get_resident() returned false, with the `chunk` that it
 * filled in; avoids a second lookup. */
void cache_get_rest(struct cache *c, struct cache_request *req, uint32_t chunk);
/* Starts a read into the pool, from disk or from the shared tier, for a later get of this user; no
 * request waits for it. Returns CACHE_OK if the chunk is in the pool, is being put or read, or was
 * requested from the shared tier; CACHE_MISS, also if memory is short; CACHE_TOO_LARGE;
 * CACHE_CANCELLED; or CACHE_BUSY. CACHE_BUSY means that the pool has no room now, that requests
 * that wait for room come first, that 128 keys are being fetched from the shared tier for
 * prefetches, or that the limit of reads in flight is reached. This limit is a quarter of the pool,
 * 128 MiB or 1,024 chunks, shared equally by the users, who may exceed it by a reserve as puts may.
 * Fills in `ret_place` like cache_find(). */
enum cache_status cache_prefetch(struct cache *c, uint32_t user, uint32_t namespace_id,
                                 const struct key *key, uint64_t hash,
                                 struct cache_place *ret_place);
/* Lets the cache read chunks ahead of returns that announcements predict, at most
 * `bytes_per_second`; 0 reads none. Returns 0 or -ENOMEM. */
int cache_prefetch_init(struct cache *c, const struct announced *announced,
                        uint64_t bytes_per_second);
void cache_prefetch_set_rate(struct cache *c, uint64_t bytes_per_second);
/* Returns the result of prefetch_announce(), or NULL if cache_prefetch_init() was not called. */
struct key *cache_announce(struct cache *c, const struct prefetch_return *r, uint64_t now_ns);
void cache_put(struct cache *c, struct cache_request *req);

/* Returns the hash by which both tiers find a key. */
uint64_t cache_hash(const struct cache *c, uint32_t namespace_id, const struct key *key);

/* Returns the tiers that have the key now, as bits. Fills in the results that are not NULL. The
 * chunk of `ret_place` is not pinned. */
unsigned cache_find(struct cache *c, uint32_t namespace_id, const struct key *key, uint64_t hash,
                    struct cache_place *ret_place, struct store_chunk *ret_info);
/* Returns whether either tier has the key. Asks the store only if the pool does not have it. */
bool cache_has(const struct cache *c, uint32_t namespace_id, const struct key *key, uint64_t hash);
/* Drops the key's chunk from both tiers if it was put before `born_after_ms` (see
 * store_born_after_ms()), and returns whether it did. Called before a request uses a key of a
 * namespace with a lifetime. Clients keep their leases of the dropped chunk. */
bool cache_expire(struct cache *c, uint32_t namespace_id, const struct key *key, uint64_t hash,
                  uint64_t born_after_ms);
/* Drops expired chunks from the pool for one step of a walk, about 100 us, and adds their number to
 * *expired. Returns false when the walk has reached the end of the pool; the next step then begins
 * at its start. */
bool cache_expire_step(struct cache *c, uint64_t now_ms, uint64_t *expired);
/* Returns a new number for one request's use of a chain of keys. Chunks that are stored or touched
 * with the same number count as used once. */
uint32_t cache_next_use(struct cache *c);
/* Records a use of the chunk with the eviction policies of both tiers. A chunk in memory that is
 * used again is also offered to the shared tier, and is written to disk if the write budget had
 * refused it or its write was postponed, as cache_write_kept() permits. `gap` is the mean gap of
 * the chain, from cache_chain_gap(). */
void cache_touch(struct cache *c, const struct cache_place *place, uint32_t use, uint8_t gap);
/* Returns the mean gap of a chain from a place in it, as evict_chain_gap() does, or EVICT_NO_GAP.
 * The store decides, because it has more of a chain than the pool. */
uint8_t cache_chain_gap(const struct cache *c, const struct cache_place *place, uint32_t use,
                        struct evict_return *ret);
/* Records that a chain was used again, for the statistics of returns.h. Call it once for each
 * use. */
void cache_note_return(struct cache *c, const struct evict_return *back);
/* Records that a chain with this mean gap was used and, if its gap is known, is expected back. */
void cache_expect_return(struct cache *c, uint8_t gap);
/* Cancels the expectation that the last use of the place created (cache_expect_return()), because a
 * put continues its chain. */
void cache_cancel_return(struct cache *c, const struct cache_place *place);
/* Returns the turn of the place's chunk, as evict_turn() does, or -1 if the chunk is in neither
 * tier. */
int cache_turn(const struct cache *c, const struct cache_place *place, uint32_t use);
/* Returns the mean gap of the chain of the place's chunk, as evict_gap() does, or EVICT_NO_GAP. */
uint8_t cache_gap(const struct cache *c, const struct cache_place *place);
/* Returns the mean gap that the policies remember of an evicted chunk, as evict_remembered_gap()
 * does, or EVICT_NO_GAP. */
uint8_t cache_remembered_gap(const struct cache *c, uint32_t namespace_id, const struct key *key,
                             uint64_t hash, struct evict_return *ret);

/* Passes a client's hint about a chunk to the eviction policies of both tiers. The chunks of a
 * chain are hinted from its end to its root. Returns false if `hint` is EVICT_HINT_FINAL and
 * another chain continues from the chunk (see evict.h). */
bool cache_hint(struct cache *c, const struct cache_place *place, enum evict_hint hint);
/* Passes a believed announcement of a chain's return to the policies. Called for each chunk of the
 * chain, from its end to its root. The pool's policy keeps the chunk until the announced time. The
 * store's policy gets only the class of that time (evict_hint_return()): the store holds far more
 * than the chunks that return soon, and exact times lowered its hits in replays. */
void cache_promise(struct cache *c, const struct cache_place *place,
                   const struct evict_promise *promise);
/* Offers a chunk in memory to the shared tier, because the chunk was used again. */
void cache_share(struct cache *c, const struct cache_place *place);

/* Pins a chunk for a client as in store_retain(), or ends the pin. Ending a pin always returns
 * CACHE_OK. Pinning returns CACHE_OK; CACHE_MISS if the chunk is in memory only; CACHE_BUSY if it
 * is being written to disk, perhaps by this call, or waits for that, so that it can be pinned
 * afterwards, or if `place` names no chunk of either tier; CACHE_QUOTA if the pin would exceed
 * `limit`. */
enum cache_status cache_retain(struct cache *c, const struct cache_place *place, bool retained,
                               uint64_t limit);

/* A walk along a chain from its root, before its places are touched. The walk tells the eviction
 * policies each chunk's predecessor and the conversation turn that added it. Chunks that this use
 * has added belong to the turn after that of the last chunk that existed before. */
struct cache_chain {
        struct cache_place before;
        uint32_t use;
        unsigned turn; /* turn of the last chunk of the walk; 0 before the first */
        bool is_new;   /* the last chunk of the walk was added by this use */
        bool is_due;   /* set by the caller if a tier has gained a chunk of the chain; otherwise the
                        * policies know the chain, and no walk is needed */
};
void cache_chain(struct cache *c, struct cache_chain *chain, const struct cache_place *place,
                 bool is_end);
/* Returns whether the eviction policy uses chains. */
bool cache_wants_chains(const struct cache *c);
/* Prefetch the CPU cache lines that later calls need, for many keys or places in a row. Call step 0
 * for each of several keys, then step 1 for each, then the operation. The store's lines are fetched
 * only if `of_store` is set, because keys that are in the pool are not looked up in the store. */
void cache_warm(const struct cache *c, uint64_t hash, bool of_store, unsigned step);
void cache_warm_touch(const struct cache *c, const struct cache_place *place, unsigned step);

/* Evicts a key at once: from memory only, or from both tiers. Returns CACHE_OK, CACHE_MISS or
 * CACHE_FAILED. With `memory_only`, CACHE_OK includes that only the disk has the chunk, and
 * CACHE_BUSY means that the chunk is being filled or written or is not on disk. */
enum cache_status cache_evict(struct cache *c, uint32_t namespace_id, const struct key *key,
                              uint64_t hash, bool memory_only);

/* Completes once a crash of the daemon can no longer restore chunks that were evicted from both
 * tiers before this call, including chunks whose write to the store was pending. result: 0, or
 * STORE_BYPASSED if evicted chunks may return. The caller sets `lost_before` to
 * cache_lost_evictions() before its first eviction. Evictions lost since then may be another
 * caller's; both callers get the same result. */
struct cache_settle {
        struct list_node
                node; /* private to the cache, like all except complete, lost_before and result */
        uint64_t lost_before;
        struct store_sync store;
        struct cache *cache;
        uint64_t evictions;
        int result;
        void (*complete)(struct cache_settle *settle);
};
void cache_settle_evictions(struct cache *c, struct cache_settle *settle);
uint64_t cache_lost_evictions(const struct cache *c);

/* Purges a namespace, or everything: no tier finds its chunks after the call. Completes when the
 * purge is on stable storage and the chunks are dropped; cache_sweep() drops those of the pool. */
struct cache_purge {
        struct store_purge store; /* the purge of the store: namespace_id and all are its
                                   * parameters, result and dropped its results */
        void (*complete)(struct cache_purge *purge);

        /* Private to the cache. */
        struct cache *cache;
        struct pool_purge pool;
        unsigned pending_tiers; /* tiers whose purge has not completed */
};
void cache_purge(struct cache *c, struct cache_purge *purge);
/* Purges everything from this cache's pool (pool_purge()), but not from the store. Used if several
 * caches share the store, which the caller purges through another cache immediately afterwards. */
void cache_forget(struct cache *c, struct pool_purge *purge);
/* Counts the chunks of a namespace in memory. cache_sweep() does the work, a slice in each call. */
struct cache_count {
        uint32_t namespace_id;
        uint64_t found;
        void (*complete)(struct cache_count *count);

        /* Private to the cache. */
        struct list_node node;
        struct cache *cache;
        uint32_t chunk; /* the record at which the walk continues */
};
void cache_count(struct cache *c, struct cache_count *count);
/* Counts chunks (cache_count()) and drops purged ones for about half a millisecond. An iteration
 * calls it before cache_iterate(), for one cache that has such work; caches take turns. Returns
 * false if there was nothing to do. */
bool cache_sweep(struct cache *c);

/* Drops from the pool all chunks of a namespace number that was assigned again, and abandons the
 * shared tier's pending answers for it. */
void cache_forget_namespace(struct cache *c, uint32_t namespace_id);

/* Lets the next cache_iterate() retry waiting requests, because a pin or a lease has ended.
 * Cheap. */
void cache_kick(struct cache *c);
/* Releases the pin that complete() left with the caller. */
void cache_unpin(struct cache *c, uint32_t chunk);
/* Completes with CACHE_CANCELLED up to *most of this owner's requests that wait for room, for their
 * turn to be read, or for the shared tier; subtracts their number from *most. All other requests
 * complete normally. Returns whether more of them wait; if not, `owner` may have been freed. */
bool cache_cancel(struct cache *c, struct list_node *owner, uint32_t *most);
/* Runs at the end of each loop iteration, after everything that may submit a request: passes queued
 * writes and reads to the store, admits waiters that find room, and ends waits whose deadline has
 * passed. Each of these steps is bounded. Returns the time in ns at which it must run again at the
 * latest, or 0 if only an event makes that necessary. */
uint64_t cache_iterate(struct cache *c, uint64_t now_ns);

/* Returns whether cache_iterate() or cache_sweep() has work to do without delay. */
bool cache_has_work(const struct cache *c);

/* Stops the cache: puts, and requests that would wait for room or for the shared tier, end with
 * CACHE_CANCELLED. Accepted chunks are still written to disk, also those whose writes are
 * postponed. */
void cache_stop(struct cache *c);
/* Returns the number of uncompleted requests and internal operations, including the writes of
 * accepted chunks and, once the cache is stopped, postponed ones. 0 means that the cache may be
 * freed. */
uint64_t cache_pending(const struct cache *c);
/* Adds the chunks in memory whose writes are postponed, and their bytes, to the sums. Visits each
 * of them. */
void cache_count_postponed(const struct cache *c, uint64_t *chunks, uint64_t *bytes);
/* Forgets the chunks whose writes are postponed and have not begun; they stay in the pool. Chunks
 * that are postponed later are not remembered either. */
void cache_forget_postponed(struct cache *c);

/* The reason of a miss, as far as it is known, in the order of the metric's values. */
enum cache_miss_reason {
        CACHE_MISS_NEVER_STORED, /* the chunk was never stored, was dropped, or is no longer
                                  * remembered by any policy */
        CACHE_MISS_EVICTED_POOL, /* evicted from the pool, and not from disk: only the pool had it
                                  */
        CACHE_MISS_EVICTED_DISK,
        CACHE_MISS_FAILED_CHECK, /* the chunk was on disk, and its read failed */
        CACHE_MISS_REFUSED,      /* the write budget refused the chunk */
        CACHE_MISS_EXPIRED,      /* the chunk was older than its namespace's lifetime */
        CACHE_MISS_REASONS,
};

struct cache_stats {
        uint64_t hits_memory, hits_disk, hits_remote, misses[CACHE_MISS_REASONS];
        uint64_t puts, put_bytes, puts_existing, puts_by_ack[CACHE_ACKS];
        uint64_t busy, waited;
        uint64_t unwritten_bytes, unwritten_chunks; /* now: slot bytes and number of the chunks in
                                                     * the pool that puts are copying or writing;
                                                     * postponed ones do not count */
        uint64_t unwritten_limit; /* most bytes of puts, through the pool and direct, that may be
                                   * unwritten at a time, without the reserve */
        uint64_t direct_bytes;    /* now: bytes of direct puts in flight, which count towards
                                   * unwritten_limit */
        uint64_t queued_writes;   /* now: writes that wait in the cache for room in the window of
                                   * writes, or because the store could not take them yet */
        uint64_t queued_reads;    /* now: reads that wait in the cache for their volume's window */
        uint64_t putting_users;   /* now: users among whom unwritten_limit is shared equally */
        uint64_t pool_only;  /* writes that failed after a put of the chunk was answered "accepted";
                                the pool kept the chunk */
        uint64_t postponed;  /* puts whose write was postponed: the disk was behind */
        uint64_t caught_up;  /* postponed writes that were made later without another use of
                              * the chunk */
        uint64_t put_checks; /* chunks that were read back before a put was answered EXISTS */
        uint64_t shared_fills; /* gets that joined a read in flight, of another get or a
                                * prefetch */
        /* Prefetched chunks and bytes, and prefetched chunks that a get used. */
        uint64_t prefetched, prefetched_bytes, prefetch_hits;
        uint64_t prefetch_inflight_bytes; /* slot bytes of prefetches in flight */
        /* Bytes transferred directly between disk and clients' memory, and direct reads that were
         * repeated through the pool. */
        uint64_t put_bytes_direct, get_bytes_direct, direct_fallbacks;
        /* Chunks and bytes that puts read from clients' files, and reads of files that failed. */
        uint64_t file_puts, file_put_bytes, file_failures;
        uint64_t expired; /* expired chunks dropped from memory */
        struct returns_stats returns;
        struct prefetch_stats returns_prefetched;
        /* Keys that the shared tier was asked for and has not answered, now; chunks and bytes that
         * came from it, and gets that joined the fetch of another get. */
        uint64_t fetching, fetched, fetched_bytes, shared_fetches;
        struct sets_stats sets;
};
static inline uint64_t cache_hits(const struct cache_stats *s)
{
        return s->hits_memory + s->hits_disk + s->hits_remote;
}
static inline uint64_t cache_misses(const struct cache_stats *s)
{
        uint64_t n = 0;

        for (unsigned i = 0; i < CACHE_MISS_REASONS; i++)
                n += s->misses[i];
        return n;
}
void cache_get_stats(const struct cache *c, struct cache_stats *ret);

/* --- the shared tier --- */

/* Offer the shared tier chunks that are about to be evicted from disk, or from memory if they are
 * not on disk, and that are expected to be used again. Called at the end of an iteration; costs
 * nothing if nothing was evicted. */
void cache_offer_leaving_disk(struct store *store, struct remote *remote);
void cache_offer_leaving_memory(struct cache *c);
/* Implements remote_params.load() for a put of this cache's tenant: loads the chunk from the pool
 * or the store into the put's buffer, and calls remote_put_loaded(), perhaps before it returns. */
void cache_remote_load(struct cache *c, struct remote_put *put);

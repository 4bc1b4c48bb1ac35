/* SPDX-License-Identifier: Apache-2.0 */
/* The two tiers as one: what `get`, `put`, `evict` and `purge` of one key mean over pool and store.
 * Behind them there may be a third one that other hosts share (remote/remote.h): a get, or a
 * prefetch, of what is in neither asks there, and what is put here, or used again, is offered to
 * it.
 *
 * A request is the caller's memory and belongs to the cache from the call until complete(), which
 * may run before the call returns. Loop thread.
 *
 * A put copies into the pool (a worker does), is visible from there at once, and is written to the
 * store behind that. A get finds the chunk in the pool or reads it there; concurrent gets of one
 * key share one read. Where there is no room, a request waits until its deadline, or is answered
 * busy if it asked not to wait. Users are served in turn, and what a user waits for does not hold
 * up another; the requests of one user are served in order, but one that finds no room for long,
 * since what it needs is leased, does not hold up those behind it.
 *
 * Bytes on their way to the store are budgeted: a quarter of the pool, of which each user that puts
 * has an equal share. One alone may use all of it; a user below its share is let in even so, by
 * way of a reserve of an eighth of the budget or one slab. What is prefetched is budgeted likewise.
 *
 * The store is handed no more reads of each of its volumes than keep the device busy; the rest
 * waits, and the users that have some are served in turn. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/list.h"
#include "io/io.h"
#include "key.h"
#include "cache/pool.h"
#include "store/store.h"

struct admission;
struct cache;
struct cache_fetched;
struct remote;
struct remote_put;

/* As what the pool has as the tag of a chunk that the store has, or had. */
static inline uint64_t cache_pack_ref(struct store_ref ref)
{
        return (uint64_t)ref.index << 32 | ref.generation;
}

enum cache_status {
        CACHE_OK,
        CACHE_MISS,
        CACHE_EXISTS,
        CACHE_BUSY,
        CACHE_TOO_LARGE,
        CACHE_NOT_DURABLE,
        CACHE_FAILED,
        CACHE_NO_SPACE,  /* also for the budget of writes, which refuses what is to be written */
        CACHE_FAULT,     /* the client's memory went away while it was read or filled */
        CACHE_QUOTA,     /* pin: the tenant has pinned as much as it may */
        CACHE_NO_RANGE,  /* get: the chunk has no such bytes */
        CACHE_CANCELLED, /* its owner went away, or the daemon stops */
        CACHE_STATUS_END,
};

enum cache_ack { CACHE_ACCEPTED, CACHE_WRITTEN, CACHE_DURABLE };
enum { CACHE_ACKS = CACHE_DURABLE + 1 };
enum { CACHE_MEMORY = 1, CACHE_DISK = 2, CACHE_REMOTE = 4 };

/* What a chain is touched by at its end: where a key is in either tier. */
struct cache_place {
        uint32_t chunk, generation; /* pool */
        struct store_ref ref;
};

/* What is to be read from the store: of a get into the client's memory that waits for its user's
 * turn, or of a slot of the pool. The cache's. */
struct store_read {
        struct list_node node;   /* of its user, until the store is asked */
        struct cache_user *user; /* NULL: it counts no more */
        uint32_t bytes;
        uint8_t volume, order;
        bool in_pool, in_store;
};

struct cache_request {
        struct list_node node;   /* the cache's: waiting for room, for a fill or for a write */
        struct list_node *owner; /* its list of those that wait for room, or for their turn at the
                                    store, for cache_cancel(); NULL: none */
        uint32_t namespace_id;
        uint16_t tenant;
        uint32_t user; /* its uid: users are served in turn, and each has its share */
        struct key key;
        uint64_t hash; /* cache_hash()'s */
        uint32_t use;  /* cache_next_use()'s */
        bool nowait;
        bool expired;         /* get: cache_expire() has just dropped it */
        uint64_t deadline_ns; /* CLOCK_MONOTONIC; for waiting for room, or for the shared tier */

        /* put: where the bytes are; get: where they are copied to before it completes; without
         * memory it completes with the chunk. A client's: it may change, or not be there any more.
         */
        void *memory;               /* `room` bytes; stays the cache's until complete() */
        const struct iovec *pieces; /* instead of `memory`: they are `room` bytes together */
        uint32_t room;
        struct put_file *file;     /* put: instead of `memory`; NULL: none */
        uint64_t file_offset;      /* in it, a multiple of PUT_FILE_PAGE */
        struct kio_region *region; /* that `memory` lies in; or NULL */
        bool in_regions;           /* all of `pieces` do */
        /* May it go between disk and memory without a copy in the pool? Possible within regions,
         * for a put that is not merely accepted, and for a get of a whole chunk. */
        bool may_be_direct;
        /* Charges its user for memory that the cache takes for such a request, or with a negative
         * number gives it back, before complete(). False: it may have no more, and the request goes
         * by way of the pool. NULL: no user is charged. */
        bool (*charge)(struct cache_request *req, int64_t bytes);
        bool direct; /* set at completion: it did, and there is no `chunk` */

        /* put */
        struct key parent;
        uint32_t length;
        uint8_t cost; /* evict_cost_level() */
        enum cache_ack ack;
        uint64_t batch;                /* as of store_put; 0: none */
        struct cache_fetched *fetched; /* the cache's: of what the shared tier had */

        /* get into memory: of the chunk; 0 bytes: up to its end */
        uint32_t range_offset, range_length;
        /* Where this is true the bytes are wanted no more, and none are copied: CACHE_CANCELLED.
         * Also of a put of the cache's own. */
        const bool *unwanted;
        /* Out. The chunk's length; 0: it was not found. The bytes copied; CACHE_TOO_LARGE: that
         * there is no room for, 0 if it is the pool that has none. */
        uint32_t chunk_length, copied;

        /* Set at completion. On CACHE_OK (and on CACHE_EXISTS, if it is in the pool) `chunk` is
         * pinned: the caller unpins it. A get into memory leaves none. */
        enum cache_status status;
        uint32_t chunk; /* POOL_NONE: not in the pool, nothing pinned */
        uint32_t tier;  /* get: where it came from */
        struct cache_place place;
        void (*complete)(struct cache_request *req);

        /* the cache's */
        struct cache_user *waits_as; /* WAITING_ROOM: in this user's queue */
        struct list_node owned, deadline;
        uint64_t waits_since_ns;
        uint32_t charged; /* bytes, to the budget of writes, and not settled */
        uint8_t admission;
        struct store_read read;
        struct cache *cache; /* while a get is copied */
        struct kio_request copy;
        uint8_t kind, waiting;
        bool asked_remote; /* get: the shared tier does not have it, as far as it is known */
};

struct cache_params {
        struct pool *pool;
        struct store *store;
        struct kio *io;
        struct admission *admission; /* NULL: all is written */
        struct remote *remote;       /* the shared tier, of all caches; NULL: there is none */
        uint16_t tenant;             /* the number of its tenant in the store */
};

int cache_new(struct cache **ret, const struct cache_params *params);
struct cache *cache_free(struct cache *c); /* nothing may be in flight */

void cache_get(struct cache *c, struct cache_request *req);
/* A get that needs no request: the chunk, not pinned, and where it is. False: it is not in memory,
 * or its bytes are still to come; nothing is counted. */
bool cache_get_resident(struct cache *c, uint32_t namespace_id, const struct key *key,
                        uint64_t hash, uint32_t *ret_chunk, struct cache_place *ret_place);
/* What a client has got from memory by itself: so many keys; and where one of them is. */
void cache_count_hits(struct cache *c, uint64_t keys);
struct cache_place cache_place_used(struct cache *c, uint32_t chunk);
/* cache_get() right after that was false, of what it found: the pool is not asked twice. */
void cache_get_rest(struct cache *c, struct cache_request *req, uint32_t chunk);
/* From disk, or the shared tier, to the pool, for a get of this user that will come; no request
 * waits for it. CACHE_OK: it is there or on its way, or the shared tier is asked; CACHE_MISS;
 * CACHE_BUSY: there is no room without waiting, or a quarter of the pool, 128 MiB or 1,024 chunks
 * are on their way like this, and the user has its share of them; CACHE_TOO_LARGE; CACHE_CANCELLED.
 * `ret_place` as of cache_find(). */
enum cache_status cache_prefetch(struct cache *c, uint32_t user, uint32_t namespace_id,
                                 const struct key *key, uint64_t hash,
                                 struct cache_place *ret_place);
void cache_put(struct cache *c, struct cache_request *req);
/* Memory that a durable put of a key that is there takes while it waits for its sync. */
size_t cache_sync_bytes(void);

/* What a key is looked for by in both tiers, from here on down. */
uint64_t cache_hash(const struct cache *c, uint32_t namespace_id, const struct key *key);

/* Tiers a key is in now, as bits. Fills in what is asked for (may be NULL); `ret_chunk` borrows,
 * unpinned. */
unsigned cache_find(struct cache *c, uint32_t namespace_id, const struct key *key, uint64_t hash,
                    struct cache_place *ret_place, struct store_chunk *ret_info);
/* Is it in either tier? The store is asked only for what is not in memory. */
bool cache_has(const struct cache *c, uint32_t namespace_id, const struct key *key, uint64_t hash);
/* Before a request uses a key of a namespace that has a lifetime: drops it, from both tiers, if it
 * was put before that, as of store_born_after_ms(). Was it? Chunks that clients lease stay theirs.
 */
bool cache_expire(struct cache *c, uint32_t namespace_id, const struct key *key, uint64_t hash,
                  uint64_t born_after_ms);
/* A step, of about 100 us, of a walk that drops all that has expired from the pool; adds how many.
 * False: it has come by all, and begins anew. */
bool cache_expire_step(struct cache *c, uint64_t now_ms, uint64_t *expired);
/* A number of one request's use of a chain of keys, for all of its keys: what it brings in, and
 * touches, has been used once. */
uint32_t cache_next_use(struct cache *c);
/* Recency of both tiers. */
void cache_touch(struct cache *c, const struct cache_place *place, uint32_t use);

/* What a client says of a chunk, to the eviction policies of both tiers; of a chain, from its end
 * to its root. False: EVICT_HINT_FINAL, and something else goes on from it, as of evict.h. */
bool cache_hint(struct cache *c, const struct cache_place *place, enum evict_hint hint);

/* A client pins the chunk, as of store_retain(), or ends that. CACHE_OK; CACHE_MISS: it is in
 * memory alone; CACHE_BUSY: it is on its way to the disk, by this call perhaps, and can be pinned
 * when it is there; CACHE_QUOTA: over the limit. */
enum cache_status cache_retain(struct cache *c, const struct cache_place *place, bool retained,
                               uint64_t limit);

/* A walk through the places of a chain from its root on, before they are touched: the eviction
 * policies learn what comes before what, and which turn of a session has brought it. A turn adds
 * what it puts to what is there: the turn is one more than that of the last key that was. */
struct cache_chain {
        struct cache_place before;
        uint32_t use;
        unsigned turn; /* of what was walked through last; 0: nothing was */
        bool is_new;   /* and this use has brought it in */
        bool is_due;   /* something has come into a tier: else all is known already */
};
void cache_chain(struct cache *c, struct cache_chain *chain, const struct cache_place *place,
                 bool is_end);
/* Is that of any use to them? */
bool cache_wants_chains(const struct cache *c);
/* For many keys in a row, whatever is done with them, and many places to be touched: their memory
 * is fetched together. Step 0 for each of a few, a little later step 1, a little later the call.
 * What is in the pool is not looked for in the store, so that is fetched only if asked for. */
void cache_warm(const struct cache *c, uint64_t hash, bool of_store, unsigned step);
void cache_warm_touch(const struct cache *c, const struct cache_place *place, unsigned step);

/* Out of memory, or out of both tiers, at once. CACHE_OK, CACHE_MISS, CACHE_BUSY (memory only: not
 * on disk yet). */
enum cache_status cache_evict(struct cache *c, uint32_t namespace_id, const struct key *key,
                              uint64_t hash, bool memory_only);

/* Completes once no kill of the daemon can bring back what was evicted from both tiers before this
 * call, what was on its way to the store then included. result: 0, or STORE_BYPASSED: it may come
 * back. The caller sets `lost_before`, before its first eviction, to cache_lost_evictions(): what
 * is lost since then may be its own, or that of another caller, who is answered the same. */
struct cache_settle {
        struct list_node node; /* the cache's, as all but complete, lost_before and result */
        uint64_t lost_before;
        struct store_put store;
        struct cache *cache;
        uint64_t evictions;
        int result;
        void (*complete)(struct cache_settle *settle);
};
void cache_settle_evictions(struct cache *c, struct cache_settle *settle);
uint64_t cache_lost_evictions(const struct cache *c);

/* Found in neither tier from the call on. Completes when that is on stable storage and the chunks
 * are dropped, which cache_sweep() does in the pool. */
struct cache_purge {
        struct store_purge store; /* namespace_id, all; result, dropped */
        void (*complete)(struct cache_purge *purge);

        /* The cache's. */
        struct cache *cache;
        struct pool_purge pool;
        unsigned pending_tiers; /* that are under way */
};
void cache_purge(struct cache *c, struct cache_purge *purge);
/* Where several caches share a store: nothing is found in this one's pool from the call on, as of
 * pool_purge(). The purge of everything, through another cache, follows at once. */
void cache_forget(struct cache *c, struct pool_purge *purge);
/* How many chunks of a namespace are in memory. cache_sweep() counts them, a slice at a time. */
struct cache_count {
        uint32_t namespace_id;
        uint64_t found;
        void (*complete)(struct cache_count *count);

        /* The cache's. */
        struct list_node node;
        struct cache *cache;
        uint32_t chunk; /* where the walk goes on */
};
void cache_count(struct cache *c, struct cache_count *count);
/* Once an iteration, before cache_iterate(): goes on counting, and drops some of what was purged,
 * in about half a millisecond. False: there was neither. */
bool cache_sweep(struct cache *c);

/* A namespace was made whose number another one had: nothing of that is found any more. */
void cache_forget_namespace(struct cache *c, uint32_t namespace_id);

/* A pin or a lease has ended: a waiter for room may have it now. Cheap; acts in
 * cache_iterate().
 */
void cache_kick(struct cache *c);
/* Pins that complete() left with the caller end here. */
void cache_unpin(struct cache *c, uint32_t chunk);
/* Completes with CACHE_CANCELLED what this owner has waiting for room, for its turn to be read from
 * the store, or for the shared tier; the rest completes as it would. *most is how many, and becomes
 * what is left of that. True: more of them wait, and the list is still there. */
bool cache_cancel(struct cache *c, struct list_node *owner, uint32_t *most);
/* End of a loop turn, after everything that may make a request: lets waiters in, and out whose
 * deadline has passed. Returns when it must be called again at the latest, ns; 0: not before
 * something happens. */
uint64_t cache_iterate(struct cache *c, uint64_t now_ns);

/* Is there something for cache_iterate() to do at once? */
bool cache_has_work(const struct cache *c);

/* From now on puts, and whatever would have to wait for room or for the shared tier, end with
 * CACHE_CANCELLED; what is accepted goes on to disk. */
void cache_stop(struct cache *c);
/* Requests not complete, and chunks accepted but not written yet. 0: all is settled. */
uint64_t cache_pending(const struct cache *c);

/* Why a get is a miss, as far as it is known. In the order of the metric's values. */
enum cache_miss_reason {
        CACHE_MISS_NEVER_STORED, /* or no policy remembers it any more, or it was dropped */
        CACHE_MISS_EVICTED_POOL, /* and was not evicted from disk: it was in the pool alone */
        CACHE_MISS_EVICTED_DISK,
        CACHE_MISS_FAILED_CHECK, /* it was on disk, and its read has failed */
        CACHE_MISS_REFUSED,      /* the budget of writes did not let it be written */
        CACHE_MISS_EXPIRED,      /* it was there, and older than its namespace's lifetime */
        CACHE_MISS_REASONS,
};

struct cache_stats {
        uint64_t hits_memory, hits_disk, hits_remote, misses[CACHE_MISS_REASONS];
        uint64_t puts, put_bytes, puts_existing, puts_by_ack[CACHE_ACKS];
        uint64_t busy, waited;
        uint64_t unwritten_bytes, unwritten_chunks; /* now */
        uint64_t unwritten_limit; /* bytes, direct puts included: then puts wait */
        uint64_t direct_bytes;    /* of direct puts under way now: of the same budget */
        uint64_t queued_writes;   /* now: not handed to the store yet */
        uint64_t queued_reads;    /* likewise */
        uint64_t putting_users;   /* now: that share the budget */
        uint64_t pool_only;       /* accepted puts whose write failed: gone with the pool */
        uint64_t shared_fills;    /* gets that joined another's read */
        /* Reads for gets to come, and how many chunks of theirs were asked for. */
        uint64_t prefetched, prefetched_bytes, prefetch_hits;
        uint64_t prefetch_inflight_bytes; /* in the pool, of such reads under way now */
        /* Bytes that went between disk and clients' memory, and reads of these that were done again
         * by way of the pool. */
        uint64_t put_bytes_direct, get_bytes_direct, direct_fallbacks;
        /* From files of clients: chunks and bytes that puts have read there, and reads that failed.
         */
        uint64_t file_puts, file_put_bytes, file_failures;
        uint64_t expired; /* chunks in memory whose lifetime was over */
        /* From the shared tier: keys that it was asked for and has not answered, now; chunks that
         * came from there, and gets that joined another's. */
        uint64_t fetching, fetched, fetched_bytes, shared_fetches;
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

/* Offers the shared tier what is evicted next, of disk, and of memory what is not on disk, if it is
 * expected to be used again. At the end of an iteration; costs nothing where nothing was evicted.
 */
void cache_offer_leaving_disk(struct store *store, struct remote *remote);
void cache_offer_leaving_memory(struct cache *c);
/* For remote_params.load(), of a put of this cache's tenant: from the pool or the store into its
 * buffer; remote_put_loaded() follows, perhaps from within. */
void cache_remote_load(struct cache *c, struct remote_put *put);

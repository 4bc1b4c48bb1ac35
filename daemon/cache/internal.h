/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the cache share: its state, and a request's way between them. Only they include
 * this. */
#pragma once

#include "cache/cache.h"
#include "cache/tails.h"

enum { KIND_GET, KIND_PUT, KINDS };

enum { CACHE_FAILED_TRIES = 16 }; /* of an iteration, of each kind */

enum waiting {
        WAITING_NOT,
        WAITING_ROOM,  /* in its user's queue */
        WAITING_FILL,  /* on a chunk, until its bytes are there; on a direct put */
        WAITING_WRITE, /* on a chunk, until the store has it */
        WAITING_SYNC,
        WAITING_TURN,   /* to be read to the client's memory: in its user's queue */
        WAITING_REMOTE, /* for the shared tier: on a struct fetch of remote.c */
};

enum { CACHE_USER_BUCKETS = 64, CACHE_DEADLINES = 4096, CACHE_COMPLETED = 1024 };

/* Of a user's reads those that a client waits for come first. */
enum { READ_GET, READ_PREFETCH, READ_ORDERS };

/* What a user has to read from one volume of the store. */
struct user_reads {
        struct list_node waits[READ_ORDERS]; /* struct store_read, in order */
        struct list_node turn;               /* in path_reads.readers while there is one */
        uint64_t bytes, in_store;            /* of all; of those that the store was asked for */
};

/* What all users have to read from one volume. */
struct volume_reads {
        struct list_node readers; /* struct user_reads with some that wait, in turn */
        uint64_t n_waiting;
        uint64_t in_store_bytes, n_in_store;
};

/* A user with something that waits for room, is on its way to the store or is read from it. */
struct cache_user {
        struct list_node node; /* in its bucket of cache.users */
        uint32_t uid;
        unsigned refs;                 /* what waits, is written or is read */
        bool putting;                  /* counted in cache_stats.putting_users */
        uint64_t unwritten;            /* bytes, direct puts included */
        struct list_node waits[KINDS]; /* struct cache_request, for room, in order */
        struct list_node turn[KINDS];  /* in cache.waiting while it has some */
        struct list_node stay;         /* of these, while others are tried: see admit_waiters() */
        struct list_node ready;        /* struct store_write, that the store was not asked yet */
        struct list_node refused;      /* likewise, that it could not take */
        struct list_node write_turn;   /* in cache.writers while it has either */
        uint64_t in_store;             /* bytes that the store has been handed */
        uint64_t prefetch_inflight_bytes, n_prefetches; /* slots being filled by cache_prefetch() */
        struct user_reads reads[STORE_MAX_VOLUMES];
};

/* What is to be put into the store: of a write, or of a direct put. The bytes count against the
 * budget from cache_unwritten_begin() to cache_unwritten_end(). */
struct store_write {
        struct list_node node;   /* of its user: ready or refused */
        struct cache_user *user; /* NULL: it counts no more */
        uint64_t bytes;
        uint32_t charged; /* to the budget of writes, and not settled */
        bool direct, in_store;
};

struct cache {
        struct cache_params params;
        struct list_node users[CACHE_USER_BUCKETS];
        struct list_node waiting[KINDS]; /* users that wait for room, in turn */
        uint64_t n_waiting[KINDS];       /* requests */
        struct list_node writers; /* users with writes that the store does not have, in turn */
        uint64_t n_ready;         /* writes that the store was not asked yet */
        uint64_t in_store_bytes, n_in_store;
        struct volume_reads reads[STORE_MAX_VOLUMES];
        struct list_node dropping; /* writes whose chunk was evicted meanwhile, in that order */
        struct list_node settling; /* waiters for those, in order */
        struct list_node counting; /* struct cache_count */
        struct list_node direct_puts[256]; /* from clients' memory, by their key's hash */
        uint64_t n_direct_puts;
        struct list_node *fetches; /* keys that the shared tier is asked for, by hash, CACHE_FETCHES
                                      lists; NULL: there is no such tier */
        uint64_t n_fetches, n_prefetch_fetches; /* in these lists; of these for prefetches */
        uint64_t n_waiting_remote;              /* requests */
        struct tails tails;                     /* of direct puts and gets */
        uint64_t evictions;                     /* of chunks being written, so far */
        /* Requests that wait for room, or for the shared tier, by the tick after their deadline;
         * those of the ticks until `tick` are in `late`, or were looked at. */
        struct list_node deadlines[CACHE_DEADLINES], late;
        uint64_t tick;
        /* Any number of requests may wait for one chunk, or for one sync. When it has come, some go
         * on at once, and the others in later iterations: `settled` are to look at the chunk, which
         * they have pinned, and `finished` are to be completed. */
        struct list_node settled, finished;
        unsigned n_settled, n_completed; /* in this iteration */
        uint64_t next_deadline_ns;       /* when the next of these is due; 0: none waits */
        uint64_t retry_ns;               /* when a head-of-line wait ends; 0: none */
        uint64_t unwritten_limit, reserve;
        uint64_t unwritten;    /* bytes of all users, direct puts included */
        uint64_t pending;      /* requests, fills and writes */
        uint64_t n_prefetches; /* slots being filled by cache_prefetch() */
        uint64_t prefetching_users;
        bool kicked, retry_now, stopping;
        uint32_t expire_at; /* the pool's record that the walk for what has expired visits next */
        uint64_t lost_evictions; /* that a kill may take back: see cache_settle_evictions() */
        uint32_t uses;           /* the number of the last */
        uint64_t retry_pending;  /* of the store, when it was tried last */
        struct cache_stats stats;
};

/* A chunk on its way from a client to the store. Its pin keeps the pool's bytes until they are
 * written. */
struct write {
        struct kio_request copy;
        struct store_put store;
        struct store_write queued;
        struct cache *cache;
        struct cache_request *req; /* still to be answered; NULL: none */
        struct put_file *file;     /* that `copy` reads; NULL: it copies */
        uint64_t file_offset;
        uint32_t chunk;
        uint64_t slot_bytes;
        bool refused;      /* it ends in the pool */
        bool acknowledged; /* a put was answered "accepted": it stays in the pool if its write fails
                            */
        uint64_t drop; /* evicted while it was being written: the number of that eviction; 0: it was
                          was not */
        bool abandoned; /* its device hangs: no request waits for it, and it is not counted */
        struct list_node dropping;
};

/* What the put of a chunk from the shared tier has to come to. */
struct cache_fetched {
        uint32_t crc;
        bool is_bad; /* out: the bytes have another checksum */
        uint64_t created_ms;
};

static inline struct store_ref unpack_ref(uint64_t tag)
{
        return (struct store_ref){ .index = (uint32_t)(tag >> 32), .generation = (uint32_t)tag };
}

static inline struct write *write_of(const struct pool_chunk *pc)
{
        return pc->flags & POOL_WRITING ? (struct write *)(uintptr_t)pc->tag : NULL;
}

struct cache_place cache_place_of(const struct cache *c, uint32_t chunk);

/* --- cache.c --- */

/* It is not found any more; if it is on its way to the store it is dropped there, too. */
void cache_drop_from_pool(struct cache *c, uint32_t chunk);

void cache_request_init(struct cache *c, struct cache_request *req, int kind);
/* Completes it, now or in a later iteration. */
void cache_finish(struct cache *c, struct cache_request *req, enum cache_status status);
/* Begins an iteration, with the requests that were left to it. */
void cache_complete_finished(struct cache *c);
/* With the chunk, pinned for the caller. */
void cache_finish_with(struct cache *c, struct cache_request *req, enum cache_status status,
                       uint32_t chunk);
/* cache_find(), of a key of which the pool has this chunk. */
unsigned cache_find_from(struct cache *c, uint32_t namespace_id, const struct key *key,
                         uint64_t hash, uint32_t chunk, struct cache_place *ret_place,
                         struct store_chunk *ret_info);
/* Until cache_settle_waiters() is called with the same `waiting`. */
void cache_wait_on(struct cache *c, struct cache_request *req, uint32_t chunk,
                   enum waiting waiting);
/* Looks again at those who waited on a chunk for this. CACHE_OK: it has come about. Else gets are
 * misses; puts that waited for the bytes try for themselves; those that waited for the write fail
 * as it did, with `status`. */
void cache_settle_waiters(struct cache *c, uint32_t chunk, enum waiting which,
                          enum cache_status status);
/* The chunk is there for a get that waited elsewhere: now, or in a later iteration. */
void cache_settle_get(struct cache *c, struct cache_request *req, uint32_t chunk);
/* Puts of one key, WAITING_FILL for another that is over: each looks for itself. Where one starts
 * anew, all behind it wait for that one, unseen: what each of many finds to fail costs one try. */
void cache_try_in_turn(struct cache *c, struct list_node *puts);
/* Hands those on to the store whose evictions have all reached it. */
void cache_pass_evictions(struct cache *c);

/* The chunk is there: the get completes with it, or once its bytes are in the caller's memory. */
void cache_get_found(struct cache *c, struct cache_request *req, uint32_t chunk);

/* --- put.c, get.c: false: there is no room now --- */

bool cache_put_try(struct cache *c, struct cache_request *req);
bool cache_get_try(struct cache *c, struct cache_request *req);
/* What a put is answered with whose store_put() ended so. */
enum cache_status cache_status_of_put(int result);
/* The key is in the pool. */
void cache_put_present(struct cache *c, struct cache_request *req, uint32_t chunk);
/* Writes what is in the pool, and nowhere else. False: there is no memory. */
bool cache_write_resident(struct cache *c, uint32_t chunk, struct cache_request *req);
/* Asks the store to take it. False: it cannot now. */
bool cache_write_store(struct store_write *queued);
/* Its turn has come. */
void cache_fill_start(struct cache *c, struct store_read *read);
/* A get that waits for a read that waits for its turn does so no more. The read is not made if it
 * was for this one only. */
void cache_fill_leave(struct cache *c, struct cache_request *req);

/* --- direct.c: false: by way of the pool, then --- */

bool cache_put_direct(struct cache *c, struct cache_request *req);
bool cache_get_direct(struct cache *c, struct cache_request *req, struct store_ref ref,
                      uint32_t length, bool in_turn);
/* Its turn has come. */
void cache_direct_start(struct cache *c, struct store_read *read);
/* A get that waits for its turn waits no more; what becomes of it is the caller's. */
void cache_direct_leave(struct cache *c, struct cache_request *req);
/* Is a put of the key under way so? Then it waits for that. */
bool cache_join_direct_put(struct cache *c, struct cache_request *req);
/* Who waits for the put of the key that is under way so; NULL: none is. */
struct list_node *cache_direct_put_waiters(struct cache *c, uint32_t namespace_id,
                                           const struct key *key, uint64_t hash);
/* As cache_write_store(). */
bool cache_direct_store(struct store_write *queued);

/* --- admit.c --- */

/* May it be written to the store? Asked any number of times, it is charged once. `again`: its key
 * is known to have been used before. */
bool cache_admit(struct cache *c, struct cache_request *req, bool again);
/* The write settles what the request was charged with. */
void cache_charge_write(struct store_write *w, struct cache_request *req);
void cache_settle_charge(struct cache *c, uint32_t *charged);
bool cache_was_refused(const struct cache *c, const struct cache_request *req);
/* A second use of what was refused and is in the pool: it is written, if it can be now. */
void cache_admit_again(struct cache *c, uint32_t chunk, uint32_t use);

/* --- user.c --- */

/* The user, which is made if there is none yet; one reference more. NULL: no memory. */
struct cache_user *cache_user_get(struct cache *c, uint32_t uid);
/* NULL: it has nothing that waits or is written. */
struct cache_user *cache_user_find(const struct cache *c, uint32_t uid);
void cache_user_unref(struct cache_user *u);
/* After what it waits for or writes has changed. */
void cache_user_count(struct cache *c, struct cache_user *u);
/* So many bytes are on their way to the store from now on. 0, -ENOMEM. */
int cache_unwritten_begin(struct cache *c, struct store_write *w, uint32_t uid, uint64_t bytes);
/* They are not, or their device hangs. Twice is harmless. */
void cache_unwritten_end(struct cache *c, struct store_write *w);
/* To the store: at once if it has little to do, else in turn with other users' writes. */
void cache_queue_write(struct cache *c, struct store_write *w);
/* Hands the store what it may have now, of the users in turn. */
void cache_submit_writes(struct cache *c);
bool cache_has_writes(const struct cache *c);

/* --- read.c --- */

/* So many bytes are to be read for the user, from the volume that `ref` names. 0, -ENOMEM. */
int cache_read_begin(struct cache *c, struct store_read *r, uint32_t uid, struct store_ref ref,
                     uint32_t bytes, unsigned order);
/* They are not, or their device hangs. Twice is harmless. */
void cache_read_end(struct cache *c, struct store_read *r);
/* May the store be asked at once? Else cache_read_wait(). */
bool cache_read_is_due(const struct cache *c, const struct store_read *r);
/* The store is asked. */
void cache_read_enter(struct cache *c, struct store_read *r);
/* Until cache_fill_start() or cache_direct_start() is called for it. */
void cache_read_wait(struct cache *c, struct store_read *r);
/* A get of this user waits for it as well: it may come sooner as that user's. */
void cache_read_join(struct cache *c, struct store_read *r, uint32_t uid);
/* Starts what the store may be asked for now, of the users in turn. */
void cache_submit_reads(struct cache *c);
bool cache_has_due_reads(const struct cache *c);

/* --- remote.c: the shared tier --- */

enum { CACHE_FETCHES = 1024 };

/* 0, -ENOMEM. */
int cache_remote_init(struct cache *c);
void cache_remote_fini(struct cache *c);
/* What is in neither tier: the get waits for the shared one. False: it is a miss. */
bool cache_remote_get(struct cache *c, struct cache_request *req);
/* The same for a get that will come. CACHE_OK, CACHE_MISS, CACHE_BUSY. */
enum cache_status cache_remote_prefetch(struct cache *c, uint32_t user, uint32_t namespace_id,
                                        const struct key *key, uint64_t hash);
/* Is the chunk of this key that is being filled from there? */
bool cache_remote_is_fetching(const struct cache *c, uint32_t namespace_id, const struct key *key,
                              uint64_t hash);
/* A get waits for it no more; what becomes of it is the caller's. */
void cache_remote_leave(struct cache *c, struct cache_request *req);
/* What is under way of a namespace, of all or of one key comes to nothing: it was purged or
 * evicted. */
void cache_remote_forget(struct cache *c, bool all, uint32_t namespace_id);
void cache_remote_forget_key(struct cache *c, uint32_t namespace_id, const struct key *key,
                             uint64_t hash);
/* All that wait are cancelled. */
void cache_remote_stop(struct cache *c);
/* A chunk was put, or is used again. */
void cache_remote_offer_chunk(struct cache *c, uint32_t chunk, bool again);
void cache_remote_offer(struct cache *c, uint32_t namespace_id, const struct key *key,
                        uint64_t hash, uint32_t length, bool again);

/* --- wait.c --- */

void cache_wait_for_room(struct cache *c, struct cache_request *req);
/* A get that waits for the shared tier, until its deadline or cache_stop_waiting_remote(). */
void cache_wait_for_remote(struct cache *c, struct cache_request *req);
void cache_stop_waiting_remote(struct cache *c, struct cache_request *req);
/* Are so many bytes on their way to the store that it must wait? */
bool cache_over_budget(const struct cache *c, const struct cache_request *req);
/* Must it let others go first, who have been waiting for room longer? */
bool cache_others_first(const struct cache *c, const struct cache_request *req);

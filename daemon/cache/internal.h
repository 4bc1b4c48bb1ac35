/* SPDX-License-Identifier: Apache-2.0 */
/* The state of the cache, and the functions through which its files pass a request on. Only the
 * files of the cache include this header. */
#pragma once

#include "cache/cache.h"
#include "cache/sets.h"
#include "cache/tails.h"
#include "fair/turns.h"
#include "fair/user.h"
#include "fair/window.h"

enum { KIND_GET, KIND_PUT, KINDS };

/* Most failed attempts in an iteration to admit waiting requests of one kind, to pass one user's
 * refused writes to the store again, and to pass further writes to it. */
enum { CACHE_FAILED_TRIES = 16 };

/* The list that holds a request. Only cache_set_waiting() changes it. */
enum waiting {
        WAITING_NOT,    /* in no list, while the request is tried or its bytes are transferred; or
                           completed, and perhaps in cache.finished */
        WAITING_ROOM,   /* in the queue of its user, for a slot of the pool or room among the
                         * unwritten bytes, until there is room, its deadline, or its client's end;
                         * also while admit_waiters() tries it */
        WAITING_FILL,   /* in the waiters of a chunk or of a direct put, until the chunk's bytes are
                           in the pool or the put has ended, or until the client's end while the read
                           has not begun; also in cache.settled */
        WAITING_WRITE,  /* in the waiters of a chunk, until the store has answered its write, or the
                           device hangs */
        WAITING_SYNC,   /* with the store, which syncs or reads back a chunk that is already
                         * written */
        WAITING_TURN,   /* in the queue of its user's reads, to be read into the client's memory,
                           until that may start, or its client's end; also while it is tried */
        WAITING_REMOTE, /* in a struct fetch of remote.c, until the shared tier has answered, the
                           deadline, or the client's end */
        WAITING_END,
};

enum { CACHE_COMPLETED = 1024 };

/* The order of one user's reads: reads that a client waits for precede prefetches. */
enum { READ_GET, READ_PREFETCH };
static_assert((int)READ_PREFETCH < (int)WINDOW_ORDERS, "orders of a window");

/* A user's chunks that only the pool has, because the disk was behind; see postponed.c. */
struct postponed_user {
        struct heap_node turn;
        uint32_t first, last, n; /* indexes into postponed.chunks of the oldest and the newest;
                                  * number of chunks */
};

/* The cache's state of a user. Waiting requests, writes, reads, prefetches and postponed chunks
 * refer to the user. */
struct cache_user {
        struct fair_state state;
        bool putting;       /* the user is counted in cache_stats.putting_users */
        bool postponing;    /* the last answer of cache_over_budget() for a put that does not need
                             * the disk */
        uint64_t unwritten; /* bytes of writes, direct ones included, that the store has not
                               answered yet; postponed ones do not count */
        uint64_t copying;   /* bytes of postponed writes, see struct store_write */
        struct postponed_user postponed;
        struct turns_member waits[KINDS]; /* struct cache_request that wait for room */
        struct turns_member refused;      /* struct store_write that the store could not take yet */
        struct window_member writes, reads[STORE_MAX_VOLUMES];
        uint64_t prefetch_inflight_bytes, n_prefetches; /* bytes and number of the slots that
                                                           prefetches for this user are filling */
};

/* A chunk to be put into the store, by a write of the pool or a direct put. Its bytes count against
 * cache.unwritten_limit from cache_unwritten_begin() to cache_unwritten_end(). If the write is
 * postponed, its bytes count only until they are copied into the pool, which may take as long as
 * the client's file takes to answer, and count against a separate limit of the same size. */
struct store_write {
        struct window_item item; /* in the user's `writes` or `refused`; item.member is NULL after
                                    cache_unwritten_end() */
        uint32_t charged;        /* bytes charged to the write budget and not settled yet */
        bool direct;
        bool postponed; /* the chunk is not written until the disk has caught up */
};

struct postponed {
        struct postponed_chunk *chunks; /* NULL until a chunk is postponed */
        uint32_t free, n;  /* index of the first free element, or NONE (postponed.c); number of
                              chunks of all users */
        bool ended;        /* cache_forget_postponed() was called: no further chunk is
                              remembered */
        struct heap users; /* users with chunks, by their unwritten bytes */
};

struct cache {
        struct cache_params params;
        struct sets *sets;
        struct fair_room users;      /* struct cache_user */
        struct turns waiting[KINDS]; /* requests that wait for room, users in turn */
        uint64_t n_waiting[KINDS];   /* number of waiting requests */
        struct turns refused;        /* struct store_write that the store could not take yet, users
                                        in turn */
        struct window writes, reads[STORE_MAX_VOLUMES]; /* struct store_write, struct store_read */
        struct list_node dropping; /* writes whose chunk was evicted before they ended, in the order
                                      of the evictions */
        struct list_node settling; /* struct cache_settle that wait for the writes in `dropping`, in
                                    * order */
        struct list_node counting; /* struct cache_count */
        struct list_node direct_puts[256]; /* puts from clients' memory, by key hash */
        uint64_t n_direct_puts;
        uint64_t checking;         /* bytes of the buffers that verify.c reads into now */
        struct list_node *fetches; /* struct fetch, by key hash in CACHE_FETCHES lists; NULL without
                                      a shared tier */
        uint64_t n_fetches, n_prefetch_fetches; /* number of fetches in these lists, and of those
                                                 * that serve prefetches */
        struct tails tails;         /* pages for the last, partial blocks of direct puts and gets */
        uint64_t evictions;         /* number of evictions so far of chunks that were being
                                     * written */
        struct deadlines deadlines; /* ends of waits for room and for the shared tier */
        /* Any number of requests may wait for one chunk or one sync. When the wait ends, only some
         * of these requests continue in the same iteration. The other requests stay in a list until
         * later iterations: requests in `settled` have pinned the chunk and still have to use it,
         * and requests in `finished` still have to be completed. */
        struct list_node settled, finished;
        unsigned n_settled, n_completed; /* requests continued and completed in this iteration */
        uint64_t retry_ns;               /* time at which the waiting requests are tried again,
                                            because the first of a queue has found no room for
                                            HEAD_OF_LINE_MS (wait.c); 0 if no time is set */
        uint64_t unwritten_limit, reserve;
        uint64_t unwritten, copying; /* sums of cache_user.unwritten and cache_user.copying */
        uint64_t pending;            /* requests, fills and writes that have not completed */
        uint64_t n_prefetches; /* slots that prefetches are filling, also for announced returns */
        uint64_t prefetching_users;
        bool kicked, retry_now, stopping;
        uint32_t expire_at;      /* the pool's record that cache_expire_step() visits next */
        uint64_t lost_evictions; /* evictions that a crash may undo; see cache_settle_evictions() */
        uint32_t uses;           /* the last number of cache_next_use() */
        uint64_t retry_pending;  /* store_pending() at the last attempt to submit writes */
        struct returns returns;
        struct postponed postponed;
        struct prefetch *prefetch; /* NULL until cache_prefetch_init() */
        uint64_t now_ns;           /* time of the present iteration of the loop */
        struct cache_stats stats;
};

/* The copy of a chunk from a client into the pool, and its write to the store; or the write of a
 * chunk that only the pool has. It holds a pin on the chunk until it ends. */
struct write {
        struct kio_request copy;
        struct store_put store;
        struct store_write queued;
        struct cache *cache;
        struct cache_request *req; /* the request to answer, or NULL */
        struct put_file *file;     /* the file that `copy` reads; NULL if it copies memory */
        uint64_t file_offset;
        uint32_t chunk;
        uint64_t slot_bytes;
        bool refused;      /* the write budget refused the chunk, or the write is postponed: when
                              `copy` ends, the chunk stays in the pool and is not passed to the
                              store */
        bool acknowledged; /* a put was answered "accepted": the chunk stays in the pool if its
                              write fails */
        uint64_t drop;  /* number of the eviction that dropped the chunk while it was being written;
                           0 if none did */
        bool abandoned; /* the device hangs: no request waits for the write, and its bytes do not
                           count as unwritten */
        struct list_node dropping;
};

/* Parameters and result of a put that stores a chunk from the shared tier. */
struct cache_fetched {
        uint32_t crc;
        bool is_bad; /* set by the put if the bytes have another checksum */
        uint64_t created_ms;
};

static inline struct write *write_of(const struct pool_chunk *pc)
{
        return pc->state == POOL_COPYING || pc->state == POOL_WRITING ? pc->write : NULL;
}

/* Changes the list that holds a request; the caller moves the request. A request leaves one list
 * before it enters another. A put that waited for a chunk's bytes may stay in the list to wait for
 * the chunk's write. */
static inline void cache_set_waiting(struct cache_request *req, enum waiting waiting)
{
        static const uint8_t before[] = {
                [WAITING_NOT] = (1 << WAITING_END) - 1,
                [WAITING_ROOM] = 1 << WAITING_NOT | 1 << WAITING_TURN,
                [WAITING_FILL] = 1 << WAITING_NOT | 1 << WAITING_ROOM | 1 << WAITING_TURN,
                [WAITING_WRITE] = 1 << WAITING_NOT | 1 << WAITING_ROOM | 1 << WAITING_FILL,
                [WAITING_SYNC] = 1 << WAITING_NOT | 1 << WAITING_ROOM,
                [WAITING_TURN] = 1 << WAITING_NOT | 1 << WAITING_ROOM,
                [WAITING_REMOTE] = 1 << WAITING_NOT | 1 << WAITING_ROOM | 1 << WAITING_TURN,
        };

        assert(before[waiting] & 1 << req->waiting);
        req->waiting = (uint8_t)waiting;
}

struct cache_place cache_place_of(const struct cache *c, uint32_t chunk);

/* --- removal.c --- */

/* Drops a chunk from the pool at once. If the chunk is being written, it is dropped from the store
 * when the write ends. */
void cache_drop_from_pool(struct cache *c, uint32_t chunk);

/* --- cache.c --- */

void cache_request_init(struct cache *c, struct cache_request *req, int kind);
/* Completes a request, now or in a later iteration. */
void cache_finish(struct cache *c, struct cache_request *req, enum cache_status status);
/* Completes requests that an earlier iteration left over. Called first in each iteration. */
void cache_complete_finished(struct cache *c);
/* Completes a request with the chunk, which it pins for the caller. */
void cache_finish_with(struct cache *c, struct cache_request *req, enum cache_status status,
                       uint32_t chunk);
/* Does what cache_find() does for a key whose chunk in the pool is known. */
unsigned cache_find_from(struct cache *c, uint32_t namespace_id, const struct key *key,
                         uint64_t hash, uint32_t chunk, struct cache_place *ret_place,
                         struct store_chunk *ret_info);
/* Makes a request wait on a chunk until cache_settle_waiters() is called with the same
 * `waiting`. */
void cache_wait_on(struct cache *c, struct cache_request *req, uint32_t chunk,
                   enum waiting waiting);
/* Continues the requests that wait on a chunk for `which`. CACHE_OK means that the chunk's bytes
 * are complete (WAITING_FILL) or written (WAITING_WRITE). With any other `status`, gets are misses,
 * puts that waited for the bytes are tried again, and puts that waited for the write fail with
 * `status`. */
void cache_settle_waiters(struct cache *c, uint32_t chunk, enum waiting which,
                          enum cache_status status);
/* Continues a get that waited for the shared tier with the chunk, which is in the pool by now. The
 * get continues within the call or in a later iteration. */
void cache_settle_get(struct cache *c, struct cache_request *req, uint32_t chunk);
/* Retries puts of one key that waited for another put of it, which has ended. Once one of them
 * starts a copy, all later ones wait for that copy without an attempt of their own. If each of many
 * puts fails, each costs only one attempt. */
void cache_try_in_turn(struct cache *c, struct list_node *puts);
/* Passes settle requests to the store once all their evictions have reached it. */
void cache_pass_evictions(struct cache *c);

/* Completes a get with a chunk that is in the pool, after copying it to the caller's memory if the
 * get has any. */
void cache_get_found(struct cache *c, struct cache_request *req, uint32_t chunk);

/* --- put.c, get.c ---
 *
 * The two try functions return false if the request must wait for room (cache_wait_for_room()). */

bool cache_put_try(struct cache *c, struct cache_request *req);
bool cache_get_try(struct cache *c, struct cache_request *req);
/* Returns the status of a put whose store_put() ended with `result`. */
enum cache_status cache_status_of_put(int result);
/* Answers a put whose key is in the pool, or makes it wait for the chunk's bytes or write. Returns
 * false if the put must wait until fewer bytes are unwritten, or until other chunks have been read
 * back (verify.c). */
bool cache_put_present(struct cache *c, struct cache_request *req, uint32_t chunk);
/* Writes a chunk that only the pool has. The request waits for the write unless it needs only
 * CACHE_ACCEPTED. Returns false if memory is short. */
bool cache_write_resident(struct cache *c, uint32_t chunk, struct cache_request *req);
/* Returns whether the store may take a put later that it has refused with `r`: it has no slot now,
 * or it still drops an older chunk of the key, which was evicted during its put. */
bool cache_store_may_take(const struct cache *c, const struct store_put *put, int r);
/* Returns whether the store has refused a put because the resume of a suspended volume has brought
 * its key back since the put began. That chunk was put first, so puts that are not answered are
 * tried again. */
bool cache_store_has_again(const struct cache *c, const struct store_put *put, int r);
/* Passes a write to the store. Returns false if the store cannot take it now; otherwise the write
 * may have ended and been freed. */
bool cache_write_store(struct store_write *queued);
/* Starts a read into the pool whose turn has come. */
void cache_fill_start(struct cache *c, struct store_read *read);
/* Removes a get from the waiters of a read that waits for its turn. Abandons the read if no other
 * request needs it. */
void cache_fill_leave(struct cache *c, struct cache_request *req);

/* --- verify.c --- */

/* Reads back the chunk that the store has of a put's key, and then tries the put again; fails the
 * put if the read cannot start. Returns false if the put must wait, because this read together with
 * those in flight would exceed CHECK_BYTES (verify.c). */
bool cache_verify_existing(struct cache *c, struct cache_request *req);

/* --- direct.c ---
 *
 * cache_put_direct() and cache_get_direct() return false if the request must use the pool
 * instead. */

bool cache_put_direct(struct cache *c, struct cache_request *req);
bool cache_get_direct(struct cache *c, struct cache_request *req, struct store_ref ref,
                      uint32_t length, bool in_turn);
/* Retries a get into the client's memory whose turn has come. */
void cache_direct_start(struct cache *c, struct store_read *read);
/* Removes a get from its user's queue of reads. The caller decides how it continues. */
void cache_direct_leave(struct cache *c, struct cache_request *req);
/* Makes a put wait for a direct put of its key. Returns false if there is none. */
bool cache_join_direct_put(struct cache *c, struct cache_request *req);
/* Returns the list of requests that wait for a direct put of the key, or NULL if there is none. */
struct list_node *cache_direct_put_waiters(struct cache *c, uint32_t namespace_id,
                                           const struct key *key, uint64_t hash);
/* Does what cache_write_store() does, for a direct put. */
bool cache_direct_store(struct store_write *queued);

/* --- admit.c --- */

/* Returns whether the write budget admits a put. The put is charged once, however often this is
 * asked. `again`: the key is known to have been used before. */
bool cache_admit(struct cache *c, struct cache_request *req, bool again);
/* Moves the request's charge to the write, which settles it when it ends. */
void cache_charge_write(struct store_write *w, struct cache_request *req);
void cache_settle_charge(struct cache *c, uint32_t *charged);
bool cache_was_refused(const struct cache *c, const struct cache_request *req);
/* Returns whether a chunk that only the pool has can be written now: a volume is in use, and there
 * is room among the unwritten bytes. */
bool cache_may_write_kept(const struct cache *c, uint32_t chunk);
/* Writes a chunk that only the pool has, if there is room for it among the unwritten bytes and the
 * write budget admits it. `again`: it was used again. Returns whether it is being written. */
bool cache_write_kept(struct cache *c, uint32_t chunk, uint32_t use, bool again);

/* --- postponed.c --- */

/* Counts a postponed chunk, and remembers it to be written when the disk has caught up. May forget
 * the user's oldest chunk for it. The chunk is not remembered if memory is short, if other users
 * have filled the list, or after cache_forget_postponed(). */
void cache_postpone(struct cache *c, uint32_t chunk);
/* Returns whether cache_catch_up() has something to do. */
bool cache_may_catch_up(const struct cache *c);
/* Updates the user's place in postponed.users after its unwritten bytes have changed. */
void cache_postponed_note(struct cache *c, struct cache_user *u);
/* Writes remembered chunks while cache_may_catch_up() returns true, a limited number per call. */
void cache_catch_up(struct cache *c);
void cache_postponed_fini(struct cache *c);

/* --- schedule.c --- */

void cache_schedule_init(struct cache *c);
void cache_schedule_fini(struct cache *c);
/* Returns the user with one more reference, creating it if necessary. Returns NULL if memory is
 * short. */
struct cache_user *cache_user_get(struct cache *c, uint32_t uid);
/* Returns the user without a further reference, or NULL if the cache has no state of the user. */
struct cache_user *cache_user_find(const struct cache *c, uint32_t uid);
static inline void cache_user_ref(struct cache_user *u)
{
        fair_user_ref(u->state.user);
}
static inline void cache_user_unref(struct cache_user *u)
{
        fair_user_unref(u->state.user);
}
/* Updates the number of putting users after the user's waiting puts or unwritten bytes changed. */
void cache_user_count(struct cache *c, struct cache_user *u);
/* Charges `bytes` that are to be written to the store to the user and the cache. Returns 0 or
 * -ENOMEM. */
int cache_unwritten_begin(struct cache *c, struct store_write *w, uint32_t uid, uint64_t bytes);
/* Ends the accounting of cache_unwritten_begin(), because the write ended or its device hangs.
 * Idempotent. */
void cache_unwritten_end(struct cache *c, struct store_write *w);
/* Passes a write to the store at once if the window of writes is open and no write waits for it.
 * Otherwise, or if the store refuses the write for now, queues it in turn with other users'
 * writes. */
void cache_queue_write(struct cache *c, struct store_write *w);
/* Passes queued writes to the store while its window is open; users are served in turn. */
void cache_submit_writes(struct cache *c);
bool cache_has_writes(const struct cache *c);
/* Charges a read of `bytes` from the volume of `ref` to the user. Returns 0 or -ENOMEM. */
int cache_read_begin(struct cache *c, struct store_read *r, uint32_t uid, struct store_ref ref,
                     uint32_t bytes, unsigned order);
/* Ends the accounting of cache_read_begin(), because the read ended or its device hangs.
 * Idempotent. */
void cache_read_end(struct cache *c, struct store_read *r);
/* Returns whether the read may be passed to the store at once; otherwise call cache_read_wait(). */
bool cache_read_is_due(const struct cache *c, const struct store_read *r);
/* Returns whether a read of the chunk may start without delaying others: its volume is in use and
 * has no queued read, and the window of its reads is open. */
bool cache_may_read_ahead(const struct cache *c, struct store_ref ref);
/* Queues the read until cache_fill_start() or cache_direct_start() is called for it. */
void cache_read_wait(struct cache *c, struct store_read *r);
/* Called when a get joins a read. A read that still waits for its turn then precedes prefetches,
 * and is charged to the one of the two users that has fewer bytes of reads at the volume. */
void cache_read_join(struct cache *c, struct store_read *r, uint32_t uid);
/* Starts queued reads while the windows of their volumes are open; users are served in turn. */
void cache_submit_reads(struct cache *c);
bool cache_has_due_reads(const struct cache *c);

/* --- remote.c: the shared tier --- */

enum { CACHE_FETCHES = 1024 };

/* Returns 0 or -ENOMEM. */
int cache_remote_init(struct cache *c);
void cache_remote_fini(struct cache *c);
/* Makes a get whose key is in neither tier wait for the shared tier. Returns false if the get is a
 * miss. */
bool cache_remote_get(struct cache *c, struct cache_request *req);
/* Asks the shared tier for a key that a later get will need. Returns CACHE_OK, CACHE_MISS or
 * CACHE_BUSY. */
enum cache_status cache_remote_prefetch(struct cache *c, uint32_t user, uint32_t namespace_id,
                                        const struct key *key, uint64_t hash);
/* Returns whether the shared tier is being asked for the key. */
bool cache_remote_is_fetching(const struct cache *c, uint32_t namespace_id, const struct key *key,
                              uint64_t hash);
/* Removes a get from the waiters for the shared tier. The caller decides how it continues. */
void cache_remote_leave(struct cache *c, struct cache_request *req);
/* Abandon pending fetches of a namespace, of everything or of one key, which was purged or evicted:
 * their gets are misses, and nothing is put. */
void cache_remote_forget(struct cache *c, bool all, uint32_t namespace_id);
void cache_remote_forget_key(struct cache *c, uint32_t namespace_id, const struct key *key,
                             uint64_t hash);
/* Cancels all gets that wait for the shared tier. */
void cache_remote_stop(struct cache *c);
/* Offer the shared tier a chunk that was put or, if `again`, used again. */
void cache_remote_offer_chunk(struct cache *c, uint32_t chunk, bool again);
void cache_remote_offer(struct cache *c, uint32_t namespace_id, const struct key *key,
                        uint64_t hash, uint32_t length, bool again);

/* --- wait.c --- */

void cache_wait_for_room(struct cache *c, struct cache_request *req);
/* Counts a get as waiting for the shared tier, until its deadline or cache_stop_waiting_remote().
 * Returns 0 or -ENOMEM. */
int cache_wait_for_remote(struct cache *c, struct cache_request *req);
void cache_stop_waiting_remote(struct cache *c, struct cache_request *req);
/* Returns whether the put must wait while too many bytes are unwritten. Otherwise its chunk may
 * stay in the pool without a write: the chunk is from the shared tier, or the put needs only
 * CACHE_ACCEPTED and must not wait. */
bool cache_needs_disk(const struct cache_request *req);
/* Returns whether the chunk of a put for which too many bytes are unwritten may stay in the pool
 * without a write: it does not need the disk, and the bytes that are copied for such puts are not
 * too many, by its user's share. */
bool cache_may_postpone(const struct cache *c, const struct cache_request *req);
/* Returns the user's equal share of unwritten_limit, in bytes, among the putting users and this
 * user. `u` is NULL if the cache has no state of the user. */
uint64_t cache_share_of(const struct cache *c, const struct cache_user *u);
/* Returns whether too many bytes are unwritten for the put, by its user's share. For a put that
 * does not need the disk, this remains so until half of the share is free: a chain with holes would
 * be of little use. */
bool cache_over_budget(struct cache *c, const struct cache_request *req);
/* Returns whether the request must wait because other requests have waited longer for room. */
bool cache_others_first(struct cache *c, const struct cache_request *req);

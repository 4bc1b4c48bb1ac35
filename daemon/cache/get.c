/* SPDX-License-Identifier: Apache-2.0 */
/* Gets: from the store into the pool, and from there to the caller's memory; see cache.c for the
 * normal path and the failures. Loop thread; a worker copies. */
#include "cache/internal.h"

#include <errno.h>
#include <stdlib.h>

#include "checked.h"
#include "cleanup.h"

/* Most chunks, and most bytes, that prefetches may be reading at once, without the reserve (see
 * is_over_prefetch_limit()). The bytes are also limited to a quarter of the pool. */
enum { PREFETCH_CHUNKS = 1024 };
#define PREFETCH_BYTES (UINT64_C(128) << 20)

/* A read of a chunk from the store into the pool. */
struct fill {
        struct store_get store;
        struct cache *cache;
        uint32_t chunk;
        struct store_read read;
        /* Slot bytes that count against the limits of prefetches, and the user for whom they count;
         * NULL if the read is no prefetch, or no longer counts as one. */
        uint64_t prefetch;
        struct cache_user *prefetched_for;
        struct evict_promise promise; /* promise of the announced return for which the chunk is
                                       * read; number 0: for no return */
        uint32_t read_bytes; /* with a promise: the chunk's length, which prefetch.c counts as in
                              * flight until prefetch_read_done(); unlike `prefetch`, not the slot's
                              * size */
};

static int prefetch_begin(struct fill *f, uint32_t user)
{
        struct cache *c = f->cache;
        struct cache_user *u = cache_user_get(c, user);

        if (!u)
                return -ENOMEM;
        f->prefetched_for = u;
        f->prefetch = pool_slot_bytes(c->params.pool, f->chunk);
        c->stats.prefetch_inflight_bytes += f->prefetch;
        u->prefetch_inflight_bytes += f->prefetch;
        c->n_prefetches++;
        if (u->n_prefetches++ == 0)
                c->prefetching_users++;
        return 0;
}

static void prefetch_end(struct fill *f)
{
        struct cache *c = f->cache;
        struct cache_user *u = TAKE_PTR(f->prefetched_for);

        if (!u)
                return;
        c->stats.prefetch_inflight_bytes -= f->prefetch;
        u->prefetch_inflight_bytes -= f->prefetch;
        c->n_prefetches--;
        if (--u->n_prefetches == 0)
                c->prefetching_users--;
        cache_user_unref(u);
}

/* Returns whether a prefetch must not begin now, because it would exceed the limits, or because
 * requests that wait for room precede it. As in cache_over_budget(), a user within its share may
 * use the reserve too. */
static bool is_over_prefetch_limit(const struct cache *c, const struct cache_user *u,
                                   uint32_t length)
{
        uint64_t most = MIN(pool_bytes(c->params.pool) / 4, PREFETCH_BYTES);
        uint64_t users = c->prefetching_users + !(u && u->n_prefetches > 0);
        bool waits = u && (turns_item(&u->waits[KIND_GET]) || turns_item(&u->waits[KIND_PUT]));
        bool within = !u || u->n_prefetches == 0 ||
                      (u->n_prefetches < PREFETCH_CHUNKS / users &&
                       u->prefetch_inflight_bytes + length <= most / users);

        /* The user's own waiting requests precede its prefetches. Once the user has its share of
         * the prefetches, other users' waiting requests precede them, too, so that gets have most
         * of the room and are not delayed at the device. */
        if (waits || (!within && c->n_waiting[KIND_GET] + c->n_waiting[KIND_PUT] > 0))
                return true;
        return c->n_prefetches >= PREFETCH_CHUNKS + (within ? PREFETCH_CHUNKS / 8u : 0) ||
               c->stats.prefetch_inflight_bytes + length >
                       most + (within && c->n_prefetches > 0 && users > 1 ? c->reserve : 0);
}

/* Ends a read that prefetch_for_return() began. Passes the promise to the pool unless a get has
 * asked for the chunk since. */
static void end_prefetch_for_return(struct fill *f, bool good)
{
        struct cache *c = f->cache;
        const struct pool_chunk *pc = pool_chunk(c->params.pool, f->chunk);

        if (f->promise.number == 0)
                return;
        if (good && pc->flags & POOL_PREFETCHED)
                pool_promise(c->params.pool, f->chunk, pc->generation, &f->promise);
        f->promise.number = 0;
        prefetch_read_done(c->prefetch, f->read_bytes, c->now_ns);
}

static void fill_end(struct fill *f, int result)
{
        struct cache *c = f->cache;
        uint32_t chunk = f->chunk;
        struct pool_chunk *pc = pool_chunk(c->params.pool, chunk);
        bool good = result == 0 && f->store.length == pc->length &&
                    !pool_is_dropped(c->params.pool, chunk);

        cache_read_end(c, &f->read);
        if (good) {
                pc->ref = f->store.ref;
                pc->flags |= POOL_STORED;
                pc->cost = store_cost(c->params.store, f->store.ref) & 0xff;
                pool_commit(c->params.pool, chunk, f->store.crc);
                if (!f->prefetched_for) /* a chunk that is on disk was put before */
                        cache_remote_offer_chunk(c, chunk, true);
        } else {
                pool_set_state(pc, POOL_ACQUIRED);
                pc->ref = STORE_REF_NONE;
                pool_drop(c->params.pool, chunk);
        }
        end_prefetch_for_return(f, good);
        cache_settle_waiters(c, chunk, WAITING_FILL, good ? CACHE_OK : CACHE_MISS);
        cache_unpin(c, chunk);
        c->retry_now = true;
        prefetch_end(f);
        c->pending--;
        free(f);
}

static void on_read(struct store_get *store)
{
        fill_end(container_of(store, struct fill, store), store->result);
}

/* Ends all waiting gets with a miss and retries the waiting puts, because the device hangs. The
 * device may still write to the slot, which stays occupied until on_read(). */
static void on_read_abandoned(struct store_get *store)
{
        struct fill *f = container_of(store, struct fill, store);
        struct cache *c = f->cache;

        cache_read_end(c, &f->read);
        pool_drop(c->params.pool, f->chunk);
        cache_settle_waiters(c, f->chunk, WAITING_FILL, CACHE_MISS);
        c->retry_now = true;
        end_prefetch_for_return(f, false);
        prefetch_end(f); /* otherwise a hung device would block prefetches from other volumes */
}

static int fill_read(struct fill *f)
{
        window_submit(&f->read.item);
        return store_get(f->cache->params.store, &f->store);
}

void cache_fill_start(struct cache *c, struct store_read *read)
{
        struct fill *f = container_of(read, struct fill, read);
        bool dropped = pool_is_dropped(c->params.pool, f->chunk);
        int r;

        list_for_each (&pool_chunk(c->params.pool, f->chunk)->waiters, n)
                list_unlink(&container_of(n, struct cache_request, node)->owned);
        r = dropped ? STORE_MISS : fill_read(f);
        if (r != 0)
                fill_end(f, r);
}

/* Makes a get wait until the chunk's bytes are in the pool. The get can be cancelled while the read
 * waits for its turn. */
static void wait_for_fill(struct cache *c, struct cache_request *req, uint32_t chunk)
{
        const struct pool_chunk *pc = pool_chunk(c->params.pool, chunk);

        cache_wait_on(c, req, chunk, WAITING_FILL);
        if (pc->state == POOL_READING && req->owner && window_item_waits(&pc->fill->read.item))
                list_append(req->owner, &req->owned);
}

void cache_fill_leave(struct cache *c, struct cache_request *req)
{
        uint32_t chunk = pool_find(c->params.pool, req->namespace_id, &req->key, req->hash);
        struct pool_chunk *pc = chunk == POOL_NONE ? NULL : pool_chunk(c->params.pool, chunk);
        struct fill *f = pc && pc->state == POOL_READING ? pc->fill : NULL;

        list_unlink(&req->node);
        list_unlink(&req->owned);
        /* A dropped chunk is not found; its read ends when its turn comes. */
        if (f && !f->prefetched_for && window_item_waits(&f->read.item) && list_empty(&pc->waiters))
                fill_end(f, STORE_MISS);
}

struct wanted {
        uint32_t user, namespace_id;
        const struct key *key;
        uint64_t hash;
        struct store_ref ref;
        uint32_t length;
        uint64_t created_ms;
        uint32_t use;
        bool is_prefetch;
        bool in_turn;                        /* the read has waited for its user's turn */
        bool to_lease;                       /* the get will lease the chunk */
        const struct evict_promise *promise; /* promise of the announced return that the read is
                                              * for; NULL: for none */
        bool free_only;                      /* with `promise`: evict nothing */
};

/* Acquires a slot and starts the read, or queues it. Returns CACHE_OK with the chunk, which is
 * POOL_READING; CACHE_BUSY if there is no room now; CACHE_TOO_LARGE; or CACHE_MISS if the read
 * cannot be started. */
static enum cache_status fill_begin(struct cache *c, const struct wanted *w, uint32_t *ret_chunk)
{
        static const struct evict_promise worthless = { .seconds = UINT32_MAX };
        uint32_t chunk;
        struct fill *f;
        int r;

        sets_expect(c->sets, SETS_MEMORY, w->namespace_id, w->key);
        pool_replace_less_than(c->params.pool, w->free_only ? &worthless : w->promise);
        r = (w->to_lease ? pool_acquire_to_lease : pool_acquire)(
                c->params.pool, w->namespace_id, w->key, w->hash, w->length, w->use, &chunk);
        pool_replace_less_than(c->params.pool, NULL);
        if (r != 0)
                return r == POOL_TOO_LARGE ? CACHE_TOO_LARGE : CACHE_BUSY;
        pool_chunk(c->params.pool, chunk)->created_ms = w->created_ms;
        pool_chunk(c->params.pool, chunk)->gap = store_gap(c->params.store, w->ref);
        f = calloc(1, sizeof(*f));
        if (f) {
                f->cache = c;
                f->chunk = chunk;
                f->store = (struct store_get){
                        .namespace_id = w->namespace_id,
                        .key = *w->key,
                        .hash = w->hash,
                        .ref = w->ref,
                        .buf = pool_at(c->params.pool, chunk),
                        .room = (uint32_t)pool_slot_bytes(c->params.pool, chunk),
                        .background = w->promise != NULL,
                        .complete = on_read,
                        .abandon = on_read_abandoned,
                };
                if (w->promise) {
                        f->promise = *w->promise;
                        f->read_bytes = w->length;
                }
                f->read.in_pool = true;
                r = cache_read_begin(c, &f->read, w->user, w->ref, w->length,
                                     w->is_prefetch ? READ_PREFETCH : READ_GET);
                if (r == 0 && w->is_prefetch)
                        r = prefetch_begin(f, w->user);
                if (r == 0 && (w->in_turn || cache_read_is_due(c, &f->read)))
                        r = fill_read(f);
                else if (r == 0)
                        cache_read_wait(c, &f->read);
        }
        if (!f || r != 0) {
                if (f) {
                        prefetch_end(f);
                        cache_read_end(c, &f->read);
                }
                free(f);
                pool_drop(c->params.pool, chunk);
                cache_unpin(c, chunk);
                return CACHE_MISS;
        }
        c->pending++;
        pool_set_state(pool_chunk(c->params.pool, chunk), POOL_READING);
        pool_chunk(c->params.pool, chunk)->fill = f;
        *ret_chunk = chunk;
        return CACHE_OK;
}

/* Counts a prefetch hit if the chunk was prefetched and not used yet. */
static void note_asked(struct cache *c, uint32_t chunk)
{
        if (!(pool_chunk(c->params.pool, chunk)->flags & POOL_PREFETCHED))
                return;
        c->stats.prefetch_hits++;
        pool_set_prefetched(c->params.pool, chunk, false);
}

bool cache_get_resident(struct cache *c, uint32_t namespace_id, const struct key *key,
                        uint64_t hash, uint32_t *ret_chunk, struct cache_place *ret_place)
{
        struct pool_chunk *pc;

        *ret_chunk = pool_find(c->params.pool, namespace_id, key, hash);
        if (*ret_chunk == POOL_NONE)
                return false;
        pc = pool_chunk(c->params.pool, *ret_chunk);
        if (pool_is_filling(pc))
                return false;
        note_asked(c, *ret_chunk);
        c->stats.hits_memory++;
        *ret_place = cache_place_of(c, *ret_chunk);
        return true;
}

void cache_count_hits(struct cache *c, uint64_t keys)
{
        c->stats.hits_memory += keys;
}

struct cache_place cache_place_used(struct cache *c, uint32_t chunk)
{
        note_asked(c, chunk);
        return cache_place_of(c, chunk);
}

/* --- from the pool to the caller's memory --- */

static void on_copied(struct kio_request *copy)
{
        struct cache_request *req = container_of(copy, struct cache_request, copy);
        struct cache *c = req->cache;
        enum cache_status status = CACHE_OK;

        if (copy->result < 0)
                status = copy->result == -EFAULT ? CACHE_FAULT : CACHE_FAILED;
        else
                req->copied = (uint32_t)copy->length;
        cache_unpin(c, req->chunk);
        req->chunk = POOL_NONE;
        cache_finish(c, req, status);
}

/* Has a worker copy the requested range; a pin keeps the chunk until then. Ends the get at once if
 * it is no longer wanted, the chunk has no such range, or the range exceeds the memory. */
static void copy_out(struct cache *c, struct cache_request *req, uint32_t chunk)
{
        uint32_t whole = req->chunk_length, length;

        if (req->unwanted && *req->unwanted) {
                cache_finish(c, req, CACHE_CANCELLED);
                return;
        }
        if (req->range_offset >= whole || req->range_length > whole - req->range_offset) {
                cache_finish(c, req, CACHE_NO_RANGE);
                return;
        }
        length = req->range_length ? req->range_length : whole - req->range_offset;
        if (length > req->room) {
                req->copied = length;
                cache_finish(c, req, CACHE_TOO_LARGE);
                return;
        }
        pool_pin(c->params.pool, chunk);
        req->chunk = chunk;
        req->cache = c;
        req->copy = (struct kio_request){
                .op = KIO_COPY,
                .class = KIO_CLASS_GET,
                .src = (char *)pool_at(c->params.pool, chunk) + req->range_offset,
                .buf = req->memory,
                .vector = req->pieces,
                .guard_src = true, /* the target is the client's memory */
                .unchecked = true,
                .length = length,
                .payload = length,
                .complete = on_copied,
        };
        cache_set_waiting(req, WAITING_NOT);
        kio_submit(c->params.io, &req->copy, chunk);
}

void cache_get_found(struct cache *c, struct cache_request *req, uint32_t chunk)
{
        req->chunk_length = pool_chunk(c->params.pool, chunk)->length;
        if (!req->memory && !req->pieces) {
                cache_finish_with(c, req, CACHE_OK, chunk);
                return;
        }
        req->place = cache_place_of(c, chunk);
        copy_out(c, req, chunk);
}

/* --- from the store into the pool --- */

/* Serves a get from the pool, the store or the shared tier; `chunk` is the pool's chunk of the key,
 * or POOL_NONE. Returns false if the get must wait for room. */
static bool get_from(struct cache *c, struct cache_request *req, uint32_t chunk)
{
        struct store_chunk info;
        bool in_turn = req->waiting == WAITING_TURN;
        enum cache_status status;
        struct store_ref ref;

        if (chunk != POOL_NONE) {
                struct pool_chunk *pc = pool_chunk(c->params.pool, chunk);

                note_asked(c, chunk);
                if (!pool_is_filling(pc)) {
                        if (!req->tier)
                                req->tier = CACHE_MEMORY;
                        cache_get_found(c, req, chunk);
                        return true;
                }
                if (pc->state == POOL_READING) {
                        c->stats.shared_fills++;
                        cache_read_join(c, &pc->fill->read, req->user);
                }
                req->tier = pc->state == POOL_READING ? CACHE_DISK
                            : cache_remote_is_fetching(c, req->namespace_id, &req->key, req->hash)
                                    ? CACHE_REMOTE
                                    : CACHE_MEMORY;
                wait_for_fill(c, req, chunk);
                return true;
        }
        if (store_find(c->params.store, req->namespace_id, &req->key, req->hash, &ref, &info) !=
            0) {
                if (!cache_remote_get(c, req))
                        cache_finish(c, req, CACHE_MISS);
                return true;
        }
        if (cache_get_direct(c, req, ref, info.length, in_turn))
                return true;
        req->length = info.length;
        if (cache_others_first(c, req))
                return false;
        status = fill_begin(c,
                            &(struct wanted){
                                    .user = req->user,
                                    .namespace_id = req->namespace_id,
                                    .key = &req->key,
                                    .hash = req->hash,
                                    .ref = ref,
                                    .length = info.length,
                                    .created_ms = info.created_ms,
                                    .use = req->use,
                                    .in_turn = in_turn,
                                    .to_lease = !req->memory && !req->pieces,
                            },
                            &chunk);
        if (status == CACHE_BUSY)
                return false;
        if (status != CACHE_OK) {
                cache_finish(c, req, status);
                return true;
        }
        req->tier = CACHE_DISK;
        wait_for_fill(c, req, chunk);
        return true;
}

bool cache_get_try(struct cache *c, struct cache_request *req)
{
        return get_from(c, req, pool_find(c->params.pool, req->namespace_id, &req->key, req->hash));
}

void cache_get_rest(struct cache *c, struct cache_request *req, uint32_t chunk)
{
        cache_request_init(c, req, KIND_GET);
        if (!get_from(c, req, chunk))
                cache_wait_for_room(c, req);
}

void cache_get(struct cache *c, struct cache_request *req)
{
        cache_get_rest(c, req, pool_find(c->params.pool, req->namespace_id, &req->key, req->hash));
}

enum cache_status cache_prefetch(struct cache *c, uint32_t user, uint32_t namespace_id,
                                 const struct key *key, uint64_t hash,
                                 struct cache_place *ret_place)
{
        struct store_chunk info;
        enum cache_status status;
        uint32_t chunk = pool_find(c->params.pool, namespace_id, key, hash);
        unsigned tiers = cache_find_from(c, namespace_id, key, hash, chunk, ret_place, &info);

        if (chunk != POOL_NONE)
                return CACHE_OK; /* in the pool, or being filled */
        if (c->stopping)
                return tiers ? CACHE_CANCELLED : CACHE_MISS;
        if (!tiers)
                return cache_remote_prefetch(c, user, namespace_id, key, hash);
        if (is_over_prefetch_limit(c, cache_user_find(c, user), info.length))
                return CACHE_BUSY;
        status = fill_begin(c,
                            &(struct wanted){
                                    .user = user,
                                    .namespace_id = namespace_id,
                                    .key = key,
                                    .hash = hash,
                                    .ref = ret_place->ref,
                                    .length = info.length,
                                    .created_ms = info.created_ms,
                                    .is_prefetch = true,
                            },
                            &chunk);
        if (status != CACHE_OK)
                return status;
        pool_set_prefetched(c->params.pool, chunk, true);
        c->stats.prefetched++;
        c->stats.prefetched_bytes += info.length;
        return CACHE_OK;
}

/* --- reads ahead of announced returns --- */

/* Returns whether the unused chunks that were read for announced returns occupy the part of the
 * pool that they may have. Further such reads must then evict nothing. */
static bool is_over_unused_limit(const struct cache *c)
{
        return pool_unused_for_return(c->params.pool) >= pool_bytes(c->params.pool) / 4;
}

/* Implements prefetch_params.read(). */
static enum prefetch_answer prefetch_for_return(void *userdata, const struct prefetch_chunk *wanted,
                                                uint32_t *ret_bytes)
{
        struct cache *c = userdata;
        uint64_t hash = cache_hash(c, wanted->namespace_id, wanted->key);
        bool is_full = is_over_unused_limit(c);
        struct store_chunk info;
        enum cache_status status;
        struct store_ref ref;
        uint32_t chunk;

        if (pool_find(c->params.pool, wanted->namespace_id, wanted->key, hash) != POOL_NONE)
                return PREFETCH_PRESENT;
        if (store_find(c->params.store, wanted->namespace_id, wanted->key, hash, &ref, &info) != 0)
                return PREFETCH_ABSENT;
        if (c->n_waiting[KIND_GET] + c->n_waiting[KIND_PUT] > 0 ||
            is_over_prefetch_limit(c, cache_user_find(c, wanted->user), info.length))
                return PREFETCH_BUSY;
        if (!cache_may_read_ahead(c, ref))
                return PREFETCH_BLOCKED;
        status = fill_begin(c,
                            &(struct wanted){
                                    .user = wanted->user,
                                    .namespace_id = wanted->namespace_id,
                                    .key = wanted->key,
                                    .hash = hash,
                                    .ref = ref,
                                    .length = info.length,
                                    .created_ms = info.created_ms,
                                    .is_prefetch = true,
                                    .promise = &wanted->promise,
                                    .free_only = is_full || wanted->free_only,
                            },
                            &chunk);
        if (status == CACHE_BUSY && wanted->free_only)
                return PREFETCH_NO_ROOM;
        if (status == CACHE_BUSY)
                return pool_kept_worthier(c->params.pool) && !is_full ? PREFETCH_NO_ROOM
                                                                      : PREFETCH_BLOCKED;
        if (status != CACHE_OK)
                return PREFETCH_ABSENT;
        pool_set_for_return(c->params.pool, chunk);
        c->stats.prefetched++;
        c->stats.prefetched_bytes += info.length;
        *ret_bytes = info.length;
        return PREFETCH_STARTED;
}

int cache_prefetch_init(struct cache *c, const struct announced *announced,
                        uint64_t bytes_per_second)
{
        return prefetch_new(&c->prefetch, &(struct prefetch_params){
                                                  .announced = announced,
                                                  .bytes_per_second = bytes_per_second,
                                                  .read = prefetch_for_return,
                                                  .userdata = c,
                                          });
}

void cache_prefetch_set_rate(struct cache *c, uint64_t bytes_per_second)
{
        if (c->prefetch)
                prefetch_set_rate(c->prefetch, bytes_per_second);
}

struct key *cache_announce(struct cache *c, const struct prefetch_return *r, uint64_t now_ns)
{
        return c->prefetch ? prefetch_announce(c->prefetch, r, now_ns) : NULL;
}

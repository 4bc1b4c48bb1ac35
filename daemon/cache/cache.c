/* SPDX-License-Identifier: Apache-2.0 */
/* Finding and waiting over both tiers; put.c and get.c move the bytes, and removal.c evicts and
 * purges. Runs on the loop thread; owns the waiting requests and the writes of accepted puts.
 *
 * Put: find the key in either tier (the first put wins) -> acquire a slot of the pool -> a worker
 * copies the bytes and computes the CRC of the copy -> the chunk is visible: `accepted` -> the
 * store writes the payload, then the table: `written`.
 *
 * Get: from the pool at once -> otherwise acquire a slot of the pool -> the store reads and
 * verifies -> the chunk is visible. A request whose key is being filled or written waits for that
 * chunk, and is tried again afterwards.
 *
 * Failures: a copy that faults stores nothing. If a device hangs, the requests that wait for it are
 * answered, but the chunk keeps its slot of the pool. If a write fails, an accepted chunk stays in
 * the pool only, and a chunk that was not acknowledged is dropped. A failed read is a miss for all
 * gets that waited for it, and puts that waited are tried again. */
#include "cache/internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "checked.h"
#include "cleanup.h"

DEFINE_CLEANUP(struct cache *, cache_free);

/* Returns whether a write of the chunk is in progress, after which the store finds the chunk. */
static bool is_being_written(void *userdata, uint32_t namespace_id, const struct key *key)
{
        struct cache *c = userdata;
        uint64_t hash = store_hash(c->params.store, namespace_id, key);
        uint32_t chunk = pool_find(c->params.pool, namespace_id, key, hash);
        const struct write *w =
                chunk == POOL_NONE ? NULL : write_of(pool_chunk(c->params.pool, chunk));

        return (w && !w->refused) || cache_direct_put_waiters(c, namespace_id, key, hash);
}

int cache_new(struct cache **ret, const struct cache_params *params)
{
        struct cache *c = calloc(1, sizeof(*c));
        const struct sets_params sets = { .pool = params->pool,
                                          .store = params->store,
                                          .tenant = params->tenant,
                                          .is_being_written = is_being_written,
                                          .userdata = c };

        if (!c)
                return -ENOMEM;
        c->params = *params;
        cache_schedule_init(c);
        for (unsigned kind = 0; kind < KINDS; kind++)
                turns_init(&c->waiting[kind]);
        list_init(&c->finished);
        list_init(&c->settled);
        list_init(&c->dropping);
        list_init(&c->settling);
        list_init(&c->counting);
        for (unsigned i = 0; i < ARRAY_SIZE(c->direct_puts); i++)
                list_init(&c->direct_puts[i]);
        tails_init(&c->tails);
        if (cache_remote_init(c) < 0 || sets_new(&c->sets, &sets) < 0) {
                cache_remote_fini(c);
                free(c);
                return -ENOMEM;
        }
        c->unwritten_limit = pool_bytes(params->pool) / 4;
        c->reserve = MAX(c->unwritten_limit / 8, pool_slab_bytes(params->pool));
        *ret = c;
        return 0;
}

struct cache *cache_free(struct cache *c)
{
        if (!c)
                return NULL;
        assert(c->pending == 0 && c->n_direct_puts == 0 && c->n_fetches == 0);
        assert(c->unwritten == 0 && c->copying == 0 && c->stats.putting_users == 0);
        sets_free(c->sets);
        prefetch_free(c->prefetch);
        cache_postponed_fini(c);
        cache_schedule_fini(c);
        deadlines_fini(&c->deadlines);
        tails_fini(&c->tails);
        cache_remote_fini(c);
        free(c);
        return NULL;
}

void cache_unwatch(struct cache *c)
{
        if (c)
                sets_unwatch(c->sets);
}

struct cache_place cache_place_of(const struct cache *c, uint32_t chunk)
{
        const struct pool_chunk *pc = pool_chunk(c->params.pool, chunk);
        const struct write *w = write_of(pc);

        return (struct cache_place){
                .chunk = chunk,
                .generation = pc->generation,
                .ref = w                            ? w->store.ref
                       : pc->state == POOL_RESIDENT ? pc->ref
                                                    : STORE_REF_NONE,
        };
}

/* --- completing and waiting --- */

void cache_request_init(struct cache *c, struct cache_request *req, int kind)
{
        list_init(&req->node);
        list_init(&req->owned);
        req->deadline = (struct deadline){ .expire = NULL };
        req->kind = (uint8_t)kind;
        req->waiting = WAITING_NOT;
        req->waits_as = NULL;
        req->read = (struct store_read){ 0 };
        req->charged = 0;
        req->admission = 0;
        req->asked_remote = false;
        req->chunk = POOL_NONE;
        req->tier = 0;
        req->direct = false;
        req->chunk_length = req->copied = 0;
        req->place = (struct cache_place){ .chunk = POOL_NONE, .ref = STORE_REF_NONE };
        c->pending++;
}

/* Returns why a get is a miss. The request's `tier` is CACHE_DISK if the key was found on disk. */
static enum cache_miss_reason miss_reason(const struct cache *c, const struct cache_request *req)
{
        if (req->expired)
                return CACHE_MISS_EXPIRED;
        if (req->tier == CACHE_DISK)
                return CACHE_MISS_FAILED_CHECK;
        if (store_remembers(c->params.store, req->namespace_id, &req->key, req->hash))
                return CACHE_MISS_EVICTED_DISK;
        if (cache_was_refused(c, req))
                return CACHE_MISS_REFUSED;
        return pool_remembers(c->params.pool, req->hash) ? CACHE_MISS_EVICTED_POOL
                                                         : CACHE_MISS_NEVER_STORED;
}

void cache_finish(struct cache *c, struct cache_request *req, enum cache_status status)
{
        req->status = status;
        cache_set_waiting(req, WAITING_NOT);
        cache_settle_charge(c, &req->charged);
        if (req->kind == KIND_GET) {
                if (req->chunk_length > 0 && req->tier == CACHE_MEMORY)
                        c->stats.hits_memory++;
                else if (req->chunk_length > 0 && req->tier == CACHE_REMOTE)
                        c->stats.hits_remote++;
                else if (req->chunk_length > 0)
                        c->stats.hits_disk++;
                else if (status == CACHE_MISS)
                        c->stats.misses[miss_reason(c, req)]++;
        } else if (req->fetched) {
                /* puts by the cache itself are not counted */
        } else if (status == CACHE_OK || status == CACHE_NOT_DURABLE) {
                c->stats.puts_by_ack[req->ack]++;
        } else if (status == CACHE_EXISTS) {
                c->stats.puts_existing++;
        }
        if (status == CACHE_BUSY && !req->fetched)
                c->stats.busy++;
        if (c->n_completed++ >= CACHE_COMPLETED) {
                list_append(&c->finished, &req->node);
                return;
        }
        c->pending--;
        req->complete(req);
}

void cache_finish_with(struct cache *c, struct cache_request *req, enum cache_status status,
                       uint32_t chunk)
{
        req->chunk = chunk;
        req->place = cache_place_of(c, chunk);
        pool_pin(c->params.pool, chunk);
        cache_finish(c, req, status);
}

void cache_wait_on(struct cache *c, struct cache_request *req, uint32_t chunk, enum waiting waiting)
{
        struct list_node *waiters = &pool_chunk(c->params.pool, chunk)->waiters;

        cache_set_waiting(req, waiting);
        /* Gets precede puts: if the fill fails, settle_failed_fill() ends the gets and leaves the
         * puts. */
        if (req->kind == KIND_GET)
                list_prepend(waiters, &req->node);
        else
                list_append(waiters, &req->node);
}

/* Returns the requests that wait for the put or read of a key, or NULL if there is none. */
static struct list_node *waiters_for_key(struct cache *c, uint32_t namespace_id,
                                         const struct key *key, uint64_t hash)
{
        uint32_t chunk = pool_find(c->params.pool, namespace_id, key, hash);

        if (chunk == POOL_NONE)
                return cache_direct_put_waiters(c, namespace_id, key, hash);
        return pool_is_filling(pool_chunk(c->params.pool, chunk))
                       ? &pool_chunk(c->params.pool, chunk)->waiters
                       : NULL;
}

void cache_try_in_turn(struct cache *c, struct list_node *puts)
{
        struct list_node *n;

        while ((n = list_pop(puts))) {
                struct cache_request *req = container_of(n, struct cache_request, node);
                /* Copies the fields that are needed later, because complete() may free the
                 * request. */
                uint32_t namespace_id = req->namespace_id;
                struct key key = req->key;
                uint64_t hash = req->hash;
                struct list_node *waiters;

                cache_set_waiting(req, WAITING_NOT);
                if (c->stopping && cache_find(c, namespace_id, &key, hash, NULL, NULL) == 0)
                        cache_finish(c, req, CACHE_CANCELLED);
                else if (!cache_put_try(c, req))
                        cache_wait_for_room(c, req);
                if (list_empty(puts))
                        return;
                waiters = waiters_for_key(c, namespace_id, &key, hash);
                if (waiters)
                        list_splice(waiters, puts);
        }
}

/* Ends the gets and retries the puts that waited for a fill that failed. No request waits for the
 * write of a chunk that is still being filled. */
static void settle_failed_fill(struct cache *c, struct pool_chunk *pc)
{
        struct list_node gets = LIST_INIT(gets), puts = LIST_INIT(puts);
        struct list_node *n;

        list_splice(&puts, &pc->waiters);
        while (!list_empty(&puts) &&
               container_of(puts.next, struct cache_request, node)->kind == KIND_GET)
                list_prepend(&gets, list_pop(&puts)); /* restores the order of arrival, because
                                                       * cache_wait_on() prepended them */
        while ((n = list_pop(&gets)))
                cache_finish(c, container_of(n, struct cache_request, node), CACHE_MISS);
        cache_try_in_turn(c, &puts);
}

/* Continues one request after its wait on a chunk ended with `status`. */
static void settle_one(struct cache *c, struct cache_request *req, uint32_t chunk,
                       enum cache_status status)
{
        cache_set_waiting(req, WAITING_NOT);
        if (req->kind == KIND_GET)
                cache_get_found(c, req, chunk);
        else if (status == CACHE_OK && pool_is_dropped(c->params.pool, chunk))
                cache_finish(c, req, CACHE_EXISTS); /* the first put succeeded, and its chunk was
                                                       dropped since */
        else if (status != CACHE_OK)
                cache_finish(c, req, status);
        else if (!cache_put_present(c, req, chunk))
                cache_wait_for_room(c, req);
}

/* Continues a request like settle_one(), or leaves it to a later iteration after CACHE_COMPLETED
 * requests. */
static void settle_some(struct cache *c, struct cache_request *req, uint32_t chunk,
                        enum cache_status status)
{
        if (c->n_settled++ < CACHE_COMPLETED) {
                settle_one(c, req, chunk, status);
                return;
        }
        pool_pin(c->params.pool, chunk);
        req->chunk = chunk;
        req->status = status;
        list_append(&c->settled, &req->node);
}

void cache_settle_get(struct cache *c, struct cache_request *req, uint32_t chunk)
{
        settle_some(c, req, chunk, CACHE_OK);
}

void cache_settle_waiters(struct cache *c, uint32_t chunk, enum waiting which,
                          enum cache_status status)
{
        struct pool_chunk *pc = pool_chunk(c->params.pool, chunk);
        struct list_node settled = LIST_INIT(settled);
        struct list_node *n;

        if (which == WAITING_FILL && status != CACHE_OK) {
                settle_failed_fill(c, pc);
                return;
        }
        list_for_each_safe (&pc->waiters, node) {
                struct cache_request *req = container_of(node, struct cache_request, node);

                if (req->waiting != which)
                        continue;
                list_unlink(node);
                if (req->kind == KIND_GET)
                        list_prepend(&settled, node); /* in order of arrival; see cache_wait_on() */
                else
                        list_append(&settled, node);
        }
        while ((n = list_pop(&settled)))
                settle_some(c, container_of(n, struct cache_request, node), chunk, status);
}

void cache_complete_finished(struct cache *c)
{
        struct list_node *n;

        c->n_completed = c->n_settled = 0;
        while (c->n_completed < CACHE_COMPLETED && (n = list_pop(&c->finished))) {
                struct cache_request *req = container_of(n, struct cache_request, node);

                c->n_completed++;
                c->pending--;
                req->complete(req);
        }
        while (c->n_settled < CACHE_COMPLETED && (n = list_pop(&c->settled))) {
                struct cache_request *req = container_of(n, struct cache_request, node);
                uint32_t chunk = req->chunk;

                c->n_settled++;
                req->chunk = POOL_NONE;
                settle_one(c, req, chunk, req->status);
                cache_unpin(c, chunk);
        }
}

void cache_unpin(struct cache *c, uint32_t chunk)
{
        if (pool_unpin(c->params.pool, chunk))
                cache_kick(c);
}

void cache_kick(struct cache *c)
{
        c->kicked = true;
}

/* --- find, touch, evict, purge --- */

unsigned cache_find_from(struct cache *c, uint32_t namespace_id, const struct key *key,
                         uint64_t hash, uint32_t chunk, struct cache_place *ret_place,
                         struct store_chunk *ret_info)
{
        struct cache_place place = { .chunk = POOL_NONE, .ref = STORE_REF_NONE };
        unsigned tiers = 0;

        if (store_find(c->params.store, namespace_id, key, hash, &place.ref, ret_info) == 0)
                tiers |= CACHE_DISK;
        if (chunk != POOL_NONE && !pool_is_filling(pool_chunk(c->params.pool, chunk))) {
                const struct pool_chunk *pc = pool_chunk(c->params.pool, chunk);

                if (!tiers && ret_info)
                        *ret_info = (struct store_chunk){
                                .key = *key,
                                .namespace_id = namespace_id,
                                .length = pc->length,
                                .crc = pc->crc,
                        };
                if (!tiers)
                        place = cache_place_of(c, chunk);
                place.chunk = chunk;
                place.generation = pc->generation;
                tiers |= CACHE_MEMORY;
        }
        if (ret_place)
                *ret_place = place;
        return tiers;
}

unsigned cache_find(struct cache *c, uint32_t namespace_id, const struct key *key, uint64_t hash,
                    struct cache_place *ret_place, struct store_chunk *ret_info)
{
        return cache_find_from(c, namespace_id, key, hash,
                               pool_find(c->params.pool, namespace_id, key, hash), ret_place,
                               ret_info);
}

bool cache_has(const struct cache *c, uint32_t namespace_id, const struct key *key, uint64_t hash)
{
        uint32_t chunk = pool_find(c->params.pool, namespace_id, key, hash);

        return (chunk != POOL_NONE && !pool_is_filling(pool_chunk(c->params.pool, chunk))) ||
               store_find(c->params.store, namespace_id, key, hash, NULL, NULL) == 0;
}

uint64_t cache_hash(const struct cache *c, uint32_t namespace_id, const struct key *key)
{
        return store_hash(c->params.store, namespace_id, key);
}

void cache_warm(const struct cache *c, uint64_t hash, bool of_store, unsigned step)
{
        pool_warm(c->params.pool, hash, step);
        if (of_store)
                store_warm(c->params.store, hash, step);
}

void cache_warm_touch(const struct cache *c, const struct cache_place *place, unsigned step)
{
        if (place->chunk != POOL_NONE)
                pool_warm_touch(c->params.pool, place->chunk, step);
        store_warm_touch(c->params.store, place->ref, step);
}

uint32_t cache_next_use(struct cache *c)
{
        c->uses = c->uses == UINT32_MAX ? 1 : c->uses + 1; /* 0 means no use */
        return c->uses;
}

void cache_touch(struct cache *c, const struct cache_place *place, uint32_t use, uint8_t gap)
{
        if (place->chunk != POOL_NONE) {
                const struct pool_chunk *pc = pool_chunk(c->params.pool, place->chunk);

                pool_touch(c->params.pool, place->chunk, place->generation, use);
                pool_set_gap(c->params.pool, place->chunk, place->generation, gap);
                if (c->params.remote && pc->generation == place->generation && pc->use != use)
                        cache_remote_offer_chunk(c, place->chunk, true);
                if (pc->flags & POOL_REFUSED && pc->generation == place->generation &&
                    pc->use != use)
                        cache_write_kept(c, place->chunk, use, true);
        }
        store_touch(c->params.store, place->ref, use);
        store_set_gap(c->params.store, place->ref, gap);
}

bool cache_hint(struct cache *c, const struct cache_place *place, enum evict_hint hint)
{
        const struct pool_chunk *pc;
        struct write *w;

        /* The store has the whole chain, the pool a part of it, so the store's answer comes first.
         */
        if (!store_hint(c->params.store, place->ref, hint))
                return false;
        if (place->chunk == POOL_NONE)
                return true;
        if (!pool_hint(c->params.pool, place->chunk, place->generation, hint))
                return false;
        pc = pool_chunk(c->params.pool, place->chunk);
        w = pc->generation == place->generation ? write_of(pc) : NULL;
        if (w)
                w->store.hint = hint; /* the write may not have been passed to the store yet */
        return true;
}

void cache_promise(struct cache *c, const struct cache_place *place,
                   const struct evict_promise *promise)
{
        const struct pool_chunk *pc;
        struct write *w;

        store_hint(c->params.store, place->ref, evict_hint_return(promise->seconds));
        if (place->chunk == POOL_NONE)
                return;
        pool_promise(c->params.pool, place->chunk, place->generation, promise);
        pc = pool_chunk(c->params.pool, place->chunk);
        w = pc->generation == place->generation ? write_of(pc) : NULL;
        if (w)
                w->store.hint = evict_hint_return(promise->seconds);
}

void cache_share(struct cache *c, const struct cache_place *place)
{
        if (place->chunk != POOL_NONE &&
            pool_chunk(c->params.pool, place->chunk)->generation == place->generation)
                cache_remote_offer_chunk(c, place->chunk, true);
}

enum cache_status cache_retain(struct cache *c, const struct cache_place *place, bool retained,
                               uint64_t limit)
{
        int r = store_retain(c->params.store, place->ref, retained, limit);
        const struct pool_chunk *pc;

        if (r != STORE_MISS)
                return r == 0 ? CACHE_OK : CACHE_QUOTA;
        if (!retained)
                return CACHE_OK;
        if (place->chunk == POOL_NONE)
                return CACHE_BUSY;
        pc = pool_chunk(c->params.pool, place->chunk);
        if (pc->flags & POOL_REFUSED && !cache_may_write_kept(c, place->chunk))
                return CACHE_BUSY;
        if (pc->flags & POOL_REFUSED)
                cache_write_kept(c, place->chunk, cache_next_use(c), true);
        return write_of(pc) ? CACHE_BUSY : CACHE_MISS;
}

bool cache_wants_chains(const struct cache *c)
{
        return pool_wants_chains(c->params.pool);
}

uint64_t cache_pending(const struct cache *c)
{
        return c->pending + (c->stopping ? c->postponed.n : 0);
}

void cache_get_stats(const struct cache *c, struct cache_stats *ret)
{
        *ret = c->stats;
        returns_get_stats(&c->returns, &ret->returns);
        if (c->prefetch)
                prefetch_get_stats(c->prefetch, &ret->returns_prefetched);
        ret->unwritten_limit = c->unwritten_limit;
        ret->sets = *sets_get_stats(c->sets);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A chunk's way from the store into the pool; see cache.c. */
#include "cache-internal.h"

#include <stdlib.h>

/* A chunk on its way from the store into the pool. */
struct fill {
        struct store_get store;
        struct cache *cache;
        uint32_t chunk;
};

static void on_read(struct store_get *store)
{
        struct fill *f = container_of(store, struct fill, store);
        struct cache *c = f->cache;
        uint32_t chunk = f->chunk;
        struct pool_chunk *pc = pool_chunk(c->params.pool, chunk);
        bool good =
                store->result == 0 && store->length == pc->length && !(pc->flags & POOL_DROPPED);

        if (good) {
                pc->flags |= POOL_STORED;
                pc->tag = pack_ref(store->ref);
                pool_commit(c->params.pool, chunk, store->crc);
        } else {
                pool_drop(c->params.pool, chunk);
        }
        cache_settle_waiters(c, chunk, WAITING_FILL, good ? CACHE_OK : CACHE_MISS);
        cache_unpin(c, chunk);
        c->retry_now = true;
        c->pending--;
        free(f);
}

/* The device hangs: a miss for all who wait. The slot stays its until on_read(). */
static void on_read_abandoned(struct store_get *store)
{
        struct fill *f = container_of(store, struct fill, store);
        struct cache *c = f->cache;

        pool_drop(c->params.pool, f->chunk);
        cache_settle_waiters(c, f->chunk, WAITING_FILL, CACHE_MISS);
        c->retry_now = true;
}

bool cache_get_try(struct cache *c, struct cache_request *req)
{
        uint32_t chunk = pool_find(c->params.pool, req->namespace_id, &req->key, req->hash);
        struct store_chunk info;
        struct store_ref ref;
        struct fill *f;
        int r;

        if (chunk != POOL_NONE) {
                struct pool_chunk *pc = pool_chunk(c->params.pool, chunk);

                if (!(pc->flags & POOL_FILLING)) {
                        if (!req->tier)
                                req->tier = CACHE_MEMORY;
                        cache_finish_with(c, req, CACHE_OK, chunk);
                        return true;
                }
                if (pc->flags & POOL_READING)
                        c->stats.shared_fills++;
                req->tier = pc->flags & POOL_READING ? CACHE_DISK : CACHE_MEMORY;
                cache_wait_on(c, req, chunk, WAITING_FILL);
                return true;
        }
        if (store_find(c->params.store, req->namespace_id, &req->key, req->hash, &ref, &info) !=
            0) {
                cache_finish(c, req, CACHE_MISS);
                return true;
        }
        if (cache_get_direct(c, req, ref, info.length))
                return true;
        req->length = info.length;
        if (cache_others_first(c, req))
                return false;
        r = pool_acquire(c->params.pool, req->namespace_id, &req->key, req->hash, info.length,
                         &chunk);
        if (r == POOL_FULL)
                return false;
        if (r == POOL_TOO_LARGE) {
                cache_finish(c, req, CACHE_TOO_LARGE);
                return true;
        }
        f = calloc(1, sizeof(*f));
        if (f) {
                f->cache = c;
                f->chunk = chunk;
                f->store = (struct store_get){
                        .namespace_id = req->namespace_id,
                        .key = req->key,
                        .hash = req->hash,
                        .buf = pool_at(c->params.pool, chunk),
                        .room = (uint32_t)pool_slot_bytes(c->params.pool, chunk),
                        .complete = on_read,
                        .abandon = on_read_abandoned,
                };
                r = store_get(c->params.store, &f->store);
        }
        if (!f || r != 0) {
                free(f);
                pool_drop(c->params.pool, chunk);
                cache_unpin(c, chunk);
                cache_finish(c, req, CACHE_MISS);
                return true;
        }
        c->pending++;
        pool_chunk(c->params.pool, chunk)->flags |= POOL_READING;
        req->tier = CACHE_DISK;
        cache_wait_on(c, req, chunk, WAITING_FILL);
        return true;
}

void cache_get(struct cache *c, struct cache_request *req)
{
        cache_request_init(c, req, KIND_GET);
        if (!cache_get_try(c, req))
                cache_wait_for_room(c, req);
}

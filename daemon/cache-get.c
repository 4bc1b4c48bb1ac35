/* SPDX-License-Identifier: Apache-2.0 */
/* A chunk's way from the store into the pool; see cache.c. */
#include "cache-internal.h"

#include <stdlib.h>

#include "checked.h"

/* Reads ahead under way, beside the quarter of the pool. */
enum { AHEAD_CHUNKS = 1024 };
#define AHEAD_BYTES (UINT64_C(128) << 20)

/* A chunk on its way from the store into the pool. */
struct fill {
        struct store_get store;
        struct cache *cache;
        uint32_t chunk;
        uint64_t ahead; /* bytes of its slot, if it is a read ahead that counts */
};

static void ahead_ends(struct fill *f)
{
        f->cache->stats.ahead_bytes -= f->ahead;
        f->cache->n_ahead -= f->ahead > 0;
        f->ahead = 0;
}

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
        ahead_ends(f);
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
        ahead_ends(f); /* or a device that hangs would keep the others from reading ahead */
}

/* CACHE_OK: the chunk is the pool's, FILLING and READING. CACHE_BUSY: there is no room now. */
static enum cache_status fill_begin(struct cache *c, uint32_t namespace_id, const struct key *key,
                                    uint64_t hash, uint32_t length, uint32_t *ret_chunk,
                                    struct fill **ret)
{
        uint32_t chunk;
        struct fill *f;
        int r = pool_acquire(c->params.pool, namespace_id, key, hash, length, &chunk);

        if (r != 0)
                return r == POOL_TOO_LARGE ? CACHE_TOO_LARGE : CACHE_BUSY;
        f = calloc(1, sizeof(*f));
        if (f) {
                f->cache = c;
                f->chunk = chunk;
                f->store = (struct store_get){
                        .namespace_id = namespace_id,
                        .key = *key,
                        .hash = hash,
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
                return CACHE_MISS;
        }
        c->pending++;
        pool_chunk(c->params.pool, chunk)->flags |= POOL_READING;
        *ret_chunk = chunk;
        *ret = f;
        return CACHE_OK;
}

/* Somebody asks for what may have been read ahead. */
static void note_asked(struct cache *c, struct pool_chunk *pc)
{
        c->stats.read_ahead_used += pc->flags & POOL_AHEAD ? 1 : 0;
        pc->flags &= ~(uint32_t)POOL_AHEAD;
}

uint32_t cache_get_resident(struct cache *c, uint32_t namespace_id, const struct key *key,
                            uint64_t hash, struct cache_place *ret_place)
{
        uint32_t chunk = pool_find(c->params.pool, namespace_id, key, hash);
        struct pool_chunk *pc;

        if (chunk == POOL_NONE)
                return POOL_NONE;
        pc = pool_chunk(c->params.pool, chunk);
        if (pc->flags & POOL_FILLING)
                return POOL_NONE;
        note_asked(c, pc);
        c->stats.hits_memory++;
        *ret_place = cache_place_of(c, chunk);
        return chunk;
}

bool cache_get_try(struct cache *c, struct cache_request *req)
{
        uint32_t chunk = pool_find(c->params.pool, req->namespace_id, &req->key, req->hash);
        struct store_chunk info;
        enum cache_status status;
        struct store_ref ref;
        struct fill *f;

        if (chunk != POOL_NONE) {
                struct pool_chunk *pc = pool_chunk(c->params.pool, chunk);

                note_asked(c, pc);
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
        status = fill_begin(c, req->namespace_id, &req->key, req->hash, info.length, &chunk, &f);
        if (status == CACHE_BUSY)
                return false;
        if (status != CACHE_OK) {
                cache_finish(c, req, status);
                return true;
        }
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

enum cache_status cache_read_ahead(struct cache *c, uint32_t namespace_id, const struct key *key,
                                   uint64_t hash, struct cache_place *ret_place)
{
        struct store_chunk info;
        enum cache_status status;
        uint32_t chunk;
        struct fill *f;
        unsigned tiers = cache_find(c, namespace_id, key, hash, ret_place, &info);

        if (tiers & CACHE_MEMORY)
                return CACHE_OK;
        if (pool_find(c->params.pool, namespace_id, key, hash) != POOL_NONE)
                return CACHE_OK; /* on its way */
        if (!tiers)
                return CACHE_MISS;
        if (c->stopping)
                return CACHE_CANCELLED;
        /* Who waits for room comes first; gets have the most of it, and do not wait for the device
         * long behind these. */
        if (c->n_waiting[KIND_GET] > 0 || c->n_waiting[KIND_PUT] > 0 ||
            c->n_ahead >= AHEAD_CHUNKS ||
            c->stats.ahead_bytes + info.length > MIN(pool_bytes(c->params.pool) / 4, AHEAD_BYTES))
                return CACHE_BUSY;
        status = fill_begin(c, namespace_id, key, hash, info.length, &chunk, &f);
        if (status != CACHE_OK)
                return status;
        f->ahead = pool_slot_bytes(c->params.pool, chunk);
        c->stats.ahead_bytes += f->ahead;
        c->n_ahead++;
        pool_chunk(c->params.pool, chunk)->flags |= POOL_AHEAD;
        c->stats.read_ahead++;
        c->stats.read_ahead_bytes += info.length;
        return CACHE_OK;
}

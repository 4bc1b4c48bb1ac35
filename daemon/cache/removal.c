/* SPDX-License-Identifier: Apache-2.0 */
/* Evictions and purges that clients ask for, over both tiers, and the count of a namespace's
 * chunks. Loop thread.
 *
 * An eviction drops the chunk from the pool at once, and from the store by a tombstone. A chunk
 * that is being written is dropped from the store when its write ends; until then, evictions are
 * not settled.
 *
 * Failures: if a tombstone or a purge is lost, the evictions since then are answered as failed. */
#include "cache/internal.h"

#include "checked.h"

enum { COUNT_SLICE = 4096 }; /* records that a count visits per iteration */

void cache_drop_from_pool(struct cache *c, uint32_t chunk)
{
        struct write *w = write_of(pool_chunk(c->params.pool, chunk));

        if (w) {
                w->drop = ++c->evictions;
                w->store.drop = true;
                list_append(&c->dropping, &w->dropping);
        }
        pool_drop(c->params.pool, chunk);
        cache_kick(c);
}

enum cache_status cache_evict(struct cache *c, uint32_t namespace_id, const struct key *key,
                              uint64_t hash, bool memory_only)
{
        uint32_t chunk = pool_find_any(c->params.pool, namespace_id, key, hash);
        bool found = chunk != POOL_NONE;
        int r;

        if (memory_only) {
                if (!found)
                        return store_find(c->params.store, namespace_id, key, hash, NULL, NULL) == 0
                                       ? CACHE_OK
                                       : CACHE_MISS;
                if (pool_chunk(c->params.pool, chunk)->state != POOL_RESIDENT ||
                    store_find(c->params.store, namespace_id, key, hash, NULL, NULL) != 0)
                        return CACHE_BUSY;
                pool_drop(c->params.pool, chunk);
                cache_kick(c);
                return CACHE_OK;
        }
        cache_remote_forget_key(c, namespace_id, key, hash);
        if (found)
                cache_drop_from_pool(c, chunk);
        r = (found ? store_forget : store_drop)(c->params.store, namespace_id, key, hash);
        if (r < 0)
                return CACHE_FAILED;
        return found || r == 0 ? CACHE_OK : CACHE_MISS;
}

void cache_forget(struct cache *c, struct pool_purge *purge)
{
        purge->all = true;
        cache_remote_forget(c, true, 0);
        if (c->prefetch)
                prefetch_forget(c->prefetch, true, 0);
        pool_purge(c->params.pool, purge);
}

void cache_forget_namespace(struct cache *c, uint32_t namespace_id)
{
        cache_remote_forget(c, false, namespace_id);
        if (c->prefetch)
                prefetch_forget(c->prefetch, false, namespace_id);
        (void)pool_drop_namespace(c->params.pool, namespace_id);
        cache_kick(c);
}

static void tier_purged(struct cache_purge *purge)
{
        if (--purge->pending_tiers > 0)
                return;
        purge->cache->pending--;
        purge->complete(purge);
}

static void on_pool_purged(struct pool_purge *pool)
{
        tier_purged(container_of(pool, struct cache_purge, pool));
}

static void on_store_purged(struct store_purge *store)
{
        tier_purged(container_of(store, struct cache_purge, store));
}

void cache_purge(struct cache *c, struct cache_purge *purge)
{
        c->pending++;
        purge->cache = c;
        purge->pending_tiers = 2;
        purge->pool = (struct pool_purge){ .namespace_id = purge->store.namespace_id,
                                           .all = purge->store.all,
                                           .complete = on_pool_purged };
        purge->store.complete = on_store_purged;
        cache_remote_forget(c, purge->store.all, purge->store.namespace_id);
        if (c->prefetch)
                prefetch_forget(c->prefetch, purge->store.all, purge->store.namespace_id);
        pool_purge(c->params.pool, &purge->pool);
        store_purge(c->params.store, &purge->store);
}

void cache_count(struct cache *c, struct cache_count *count)
{
        c->pending++;
        count->cache = c;
        count->found = 0;
        count->chunk = 0;
        list_init(&count->node);
        list_append(&c->counting, &count->node);
}

/* Counts a chunk of the namespace, unless a purge in progress is to drop it. */
static void count_chunk(void *userdata, uint32_t namespace_id, const struct key *key,
                        uint32_t length)
{
        struct cache_count *count = userdata;

        count->found += namespace_id == count->namespace_id &&
                        !pool_is_dropped(count->cache->params.pool, count->chunk);
}

static void count_slice(struct cache *c)
{
        struct cache_count *count = container_of(c->counting.next, struct cache_count, node);

        if (pool_walk(c->params.pool, &count->chunk, COUNT_SLICE, count_chunk, count))
                return;
        list_unlink(&count->node);
        c->pending--;
        count->complete(count);
}

bool cache_sweep(struct cache *c)
{
        bool counts = !list_empty(&c->counting), sweeps = pool_is_sweeping(c->params.pool);

        if (counts)
                count_slice(c);
        if (sweeps) {
                (void)pool_sweep(c->params.pool);
                cache_kick(c);
        }
        return counts || sweeps;
}

/* --- evictions of chunks that are still being written --- */

void cache_pass_evictions(struct cache *c)
{
        while (!list_empty(&c->settling)) {
                struct cache_settle *settle =
                        container_of(c->settling.next, struct cache_settle, node);

                if (!list_empty(&c->dropping) &&
                    container_of(c->dropping.next, struct write, dropping)->drop <=
                            settle->evictions)
                        return;
                list_unlink(&settle->node);
                store_settle_drops(c->params.store, &settle->store);
        }
}

static void on_settled(struct store_sync *store)
{
        struct cache_settle *settle = container_of(store, struct cache_settle, store);

        settle->result = cache_lost_evictions(settle->cache) != settle->lost_before ? STORE_BYPASSED
                                                                                    : store->result;
        settle->cache->pending--;
        settle->complete(settle);
}

uint64_t cache_lost_evictions(const struct cache *c)
{
        return c->lost_evictions + store_lost_drops(c->params.store);
}

void cache_settle_evictions(struct cache *c, struct cache_settle *settle)
{
        c->pending++;
        settle->cache = c;
        settle->evictions = c->evictions;
        settle->store.complete = on_settled;
        list_init(&settle->node);
        list_append(&c->settling, &settle->node);
        cache_pass_evictions(c);
}

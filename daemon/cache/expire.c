/* SPDX-License-Identifier: Apache-2.0 */
/* Lifetimes: a chunk older than its namespace's lifetime is found in neither tier. A request checks
 * its key before it uses it. Expired chunks that no request asks for are dropped by a walk through
 * the pool, and one through the store. Loop thread.
 *
 * A lease keeps the bytes of a dropped chunk. A chunk that is being written to the disk is dropped
 * there when the write ends. A chunk that is being put is new and never expired; a read from disk
 * of an expired chunk ends as a miss. */
#include "cache/internal.h"

enum {
        STEP_COST = 4096,   /* cost that ends a step, in units of about 25 ns: about 100 us */
        LOOK_COST = 1,      /* cost of visiting a record */
        NAMESPACE_COST = 8, /* cost of looking up a namespace */
        DROP_COST = 64,     /* cost of dropping a chunk */
};

static bool is_old(const struct pool_chunk *pc, uint64_t born_after_ms)
{
        bool is_put = pc->state == POOL_ACQUIRED || pc->state == POOL_COPYING;

        return !is_put && !(pc->flags & POOL_DROPPED) && pc->created_ms < born_after_ms;
}

static void expire(struct cache *c, uint32_t chunk)
{
        c->stats.expired += !pool_is_filling(pool_chunk(c->params.pool, chunk));
        cache_drop_from_pool(c, chunk);
}

bool cache_expire(struct cache *c, uint32_t namespace_id, const struct key *key, uint64_t hash,
                  uint64_t born_after_ms)
{
        uint32_t chunk = pool_find(c->params.pool, namespace_id, key, hash);
        bool in_memory = chunk != POOL_NONE;

        /* Both tiers record the time of the put, so a chunk that is not old in memory is not old on
         * disk. */
        if (in_memory && !is_old(pool_chunk(c->params.pool, chunk), born_after_ms))
                return false;
        if (in_memory)
                expire(c, chunk);
        return store_expire(c->params.store, namespace_id, key, hash, born_after_ms) || in_memory;
}

bool cache_expire_step(struct cache *c, uint64_t now_ms, uint64_t *expired)
{
        uint64_t born_after_ms = 0;
        uint32_t namespace_id = 0; /* no namespace has this number */

        for (unsigned cost = 0; cost < STEP_COST; cost += LOOK_COST, c->expire_at++) {
                const struct pool_chunk *pc;

                if (c->expire_at >= pool_records(c->params.pool)) {
                        c->expire_at = 0;
                        return false;
                }
                pc = pool_chunk(c->params.pool, c->expire_at);
                if (pc->namespace_id != namespace_id) {
                        namespace_id = pc->namespace_id;
                        cost += NAMESPACE_COST;
                        born_after_ms = store_born_after_ms(
                                store_lifetime_s(c->params.store, namespace_id), now_ms);
                }
                if (!is_old(pc, born_after_ms))
                        continue;
                expire(c, c->expire_at);
                ++*expired;
                cost += DROP_COST;
        }
        return true;
}

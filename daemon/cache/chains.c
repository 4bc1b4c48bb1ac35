/* SPDX-License-Identifier: Apache-2.0 */
/* The chains of chunks over both tiers: the turn of each chunk, and the mean gap between the uses
 * of a chain. The store decides, because it has more of a chain than the pool. Loop thread; owns
 * nothing, and cannot fail. */
#include "cache/internal.h"

uint8_t cache_chain_gap(const struct cache *c, const struct cache_place *place, uint32_t use,
                        struct evict_return *ret)
{
        uint8_t gap;

        *ret = (struct evict_return){ 0 };
        gap = store_chain_gap(c->params.store, place->ref, use, ret);
        if (gap == EVICT_NO_GAP && place->chunk != POOL_NONE)
                gap = pool_chain_gap(c->params.pool, place->chunk, place->generation, use, ret);
        return gap;
}

void cache_note_return(struct cache *c, const struct evict_return *back)
{
        if (back->gap_s > 0)
                returns_note(&c->returns, back, c->now_ns);
}

void cache_expect_return(struct cache *c, uint8_t gap)
{
        returns_expect(&c->returns, evict_gap_seconds(gap), c->now_ns);
}

void cache_cancel_return(struct cache *c, const struct cache_place *place)
{
        struct evict_return last;

        cache_chain_gap(c, place, EVICT_NO_USE, &last);
        returns_cancel(&c->returns, last.gap_s, last.age_ns, c->now_ns);
}

uint8_t cache_gap(const struct cache *c, const struct cache_place *place)
{
        uint8_t gap = store_gap(c->params.store, place->ref);

        if (gap == EVICT_NO_GAP && place->chunk != POOL_NONE)
                gap = pool_gap(c->params.pool, place->chunk, place->generation);
        return gap;
}

uint8_t cache_remembered_gap(const struct cache *c, uint32_t namespace_id, const struct key *key,
                             uint64_t hash, struct evict_return *ret)
{
        uint8_t gap = store_remembered_gap(c->params.store, namespace_id, key, hash, ret);

        return gap != EVICT_NO_GAP ? gap : pool_remembered_gap(c->params.pool, hash, ret);
}

static int turn_in_pool(const struct cache *c, const struct cache_place *place, uint32_t use)
{
        return place->chunk == POOL_NONE
                       ? -1
                       : pool_turn(c->params.pool, place->chunk, place->generation, use);
}

int cache_turn(const struct cache *c, const struct cache_place *place, uint32_t use)
{
        int in_store = store_turn(c->params.store, place->ref, use);

        return in_store >= 0 ? in_store : turn_in_pool(c, place, use);
}

void cache_chain(struct cache *c, struct cache_chain *chain, const struct cache_place *place,
                 bool is_end)
{
        int in_pool = turn_in_pool(c, place, chain->use);
        int in_store = store_turn(c->params.store, place->ref, chain->use);
        int turn = in_store >= 0 ? in_store : in_pool;

        if (turn < 0)
                return;
        if (turn > 0) {
                chain->turn = (unsigned)turn;
                chain->is_new = false;
        } else if (!chain->is_new) {
                chain->turn++;
                chain->is_new = true;
        }
        if (in_pool >= 0)
                pool_chain(c->params.pool, place->chunk, chain->before.chunk,
                           chain->before.generation, chain->use, chain->turn, is_end);
        if (in_store >= 0)
                store_chain(c->params.store, place->ref, chain->before.ref, chain->use, chain->turn,
                            is_end);
        chain->before = *place;
}

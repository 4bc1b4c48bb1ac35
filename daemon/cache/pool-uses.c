/* SPDX-License-Identifier: Apache-2.0 */
/* Passes uses of chunks, and clients' hints about their next uses, to the eviction policy. A place
 * that a caller remembers is a record and its generation: if the record has another chunk by now,
 * or a chunk that the policy does not have because it is being filled or dropped, nothing happens.
 * Loop thread; cannot fail. */
#include "cache/pool-internal.h"

void pool_warm_touch(const struct pool *p, uint32_t chunk, unsigned step)
{
        if (chunk < p->high_water)
                evict_warm(p->evict, chunk, step);
}

static bool is_at(const struct pool *p, uint32_t chunk, uint32_t generation)
{
        return chunk < p->high_water && p->chunks[chunk].generation == generation &&
               evict_contains(p->evict, chunk);
}

void pool_touch(struct pool *p, uint32_t chunk, uint32_t generation, uint32_t use)
{
        if (is_at(p, chunk, generation))
                evict_touch(p->evict, chunk, pool_group_of(p, chunk), use);
}

bool pool_wants_chains(const struct pool *p)
{
        return evict_wants_chains(p->evict);
}

int pool_turn(const struct pool *p, uint32_t chunk, uint32_t generation, uint32_t use)
{
        return is_at(p, chunk, generation) ? (int)evict_turn(p->evict, chunk, use) : -1;
}

uint8_t pool_chain_gap(const struct pool *p, uint32_t chunk, uint32_t generation, uint32_t use,
                       struct evict_return *ret)
{
        return is_at(p, chunk, generation) ? evict_chain_gap(p->evict, chunk, use, ret)
                                           : EVICT_NO_GAP;
}

uint8_t pool_gap(const struct pool *p, uint32_t chunk, uint32_t generation)
{
        return is_at(p, chunk, generation) ? evict_gap(p->evict, chunk) : EVICT_NO_GAP;
}

void pool_set_gap(struct pool *p, uint32_t chunk, uint32_t generation, uint8_t gap)
{
        if (is_at(p, chunk, generation))
                evict_set_gap(p->evict, chunk, gap);
}

void pool_chain(struct pool *p, uint32_t chunk, uint32_t parent, uint32_t parent_generation,
                uint32_t use, unsigned turn, bool is_end)
{
        evict_set_turn(p->evict, chunk, pool_group_of(p, chunk), use, turn, is_end);
        if (parent != chunk && is_at(p, parent, parent_generation))
                evict_link(p->evict, chunk, parent);
}

bool pool_hint(struct pool *p, uint32_t chunk, uint32_t generation, enum evict_hint hint)
{
        return is_at(p, chunk, generation) ? evict_hint(p->evict, chunk, hint) : true;
}

bool pool_demote(struct pool *p, uint32_t chunk)
{
        return evict_contains(p->evict, chunk) && p->chunks[chunk].leases == 0 &&
               evict_demote(p->evict, chunk, pool_group_of(p, chunk));
}

bool pool_promote(struct pool *p, uint32_t chunk)
{
        return evict_contains(p->evict, chunk) &&
               evict_promote(p->evict, chunk, pool_group_of(p, chunk));
}

uint32_t pool_demoted(const struct pool *p)
{
        return evict_demoted(p->evict);
}

void pool_promise(struct pool *p, uint32_t chunk, uint32_t generation,
                  const struct evict_promise *promise)
{
        if (is_at(p, chunk, generation))
                evict_promise(p->evict, chunk, promise);
}

void pool_expect(struct pool *p, uint32_t use, const struct evict_promise *promise)
{
        evict_expect(p->evict, use, promise);
}

void pool_explain(const struct pool *p, uint32_t chunk, struct evict_standing *ret)
{
        *ret = (struct evict_standing){ 0 };
        if (evict_contains(p->evict, chunk))
                evict_explain(p->evict, chunk, pool_group_of(p, chunk), ret);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Floors of the pool: bytes that groups of namespaces keep, whatever other namespaces put.
 *
 * A search for room passes over a chunk without which its group would be below its floor, unless
 * the search is for a chunk of the same group. The chunk becomes the youngest of its list, so that
 * the next searches do not pass over it again: floors are at most three quarters of the pool, so
 * there are at most three such steps for each eviction in the long run. The price is that protected
 * chunks look younger to the policy than they are. A demoted chunk is worthless to its group as
 * well, so a floor does not protect it.
 *
 * A group that is below its floor keeps its own chunks as well, and takes room from other groups.
 * If these have no evictable chunk in the size class and no slab, the group evicts its own chunks.
 * Its next searches, as many as the class has chunks, then evict its own chunks at once, so that
 * not every search passes over all chunks of the class. Loop thread; cannot fail. */
#include "cache/pool-internal.h"

#include "checked.h"

static unsigned group_of(const struct pool *p, uint32_t namespace_id)
{
        unsigned i = p->floors.n > 0 ? p->floors.of(p->floors.userdata, namespace_id) : 0;

        return i < p->floors.n ? i + 1 : 0;
}

void pool_floor_begin(struct pool *p, uint32_t namespace_id)
{
        p->acquiring = group_of(p, namespace_id);
        p->keeps_own = false;
}

void pool_floor_keep_own(struct pool *p, unsigned class)
{
        uint64_t bytes = slabs_class_bytes(p->slabs, class);

        p->keeps_own = p->acquiring > 0 && p->own_only[class] == 0 &&
                       p->floor_used[p->acquiring] + bytes <= p->floors.bytes[p->acquiring - 1];
        p->own_only[class] -= p->own_only[class] > 0;
}

bool pool_floor_give_own(struct pool *p, unsigned class)
{
        uint64_t slots, used;
        uint32_t n_slabs;

        if (!p->keeps_own)
                return false;
        slabs_class_usage(p->slabs, class, &n_slabs, &slots, &used);
        p->own_only[class] = (uint32_t)used;
        p->keeps_own = false;
        return true;
}

static void add_to_group(struct pool *p, struct pool_chunk *c)
{
        c->floor = group_of(p, c->namespace_id) & 0xf;
        p->floor_used[c->floor] += slabs_slot_bytes(p->slabs, pool_slot_of(c));
}

void pool_floor_add(struct pool *p, struct pool_chunk *c)
{
        add_to_group(p, c);
        p->namespace_bytes[c->namespace_id % POOL_NAMESPACE_COUNTS] +=
                slabs_slot_bytes(p->slabs, pool_slot_of(c));
}

void pool_floor_remove(struct pool *p, const struct pool_chunk *c)
{
        uint64_t bytes = slabs_slot_bytes(p->slabs, pool_slot_of(c));

        p->floor_used[c->floor] -= bytes;
        p->namespace_bytes[c->namespace_id % POOL_NAMESPACE_COUNTS] -= bytes;
}

uint64_t pool_namespace_bytes(const struct pool *p, uint32_t namespace_id)
{
        return p->namespace_bytes[namespace_id % POOL_NAMESPACE_COUNTS];
}

uint64_t pool_all_namespaces_bytes(const struct pool *p)
{
        uint64_t sum = 0;

        for (unsigned i = 0; i <= POOL_MAX_FLOORS; i++)
                sum += p->floor_used[i];
        return sum;
}

void pool_set_floors(struct pool *p, const struct pool_floors *floors)
{
        uint64_t most = p->stats.bytes / 4 * 3, sum = 0;

        p->floors = *floors;
        for (unsigned i = 0; i < floors->n; i++)
                sum += MIN(floors->bytes[i], p->stats.bytes);
        for (unsigned i = 0; i < floors->n && sum > most; i++)
                p->floors.bytes[i] = (uint64_t)((double)MIN(floors->bytes[i], p->stats.bytes) *
                                                (double)most / (double)sum);
        for (unsigned i = 0; i <= POOL_MAX_FLOORS; i++)
                p->floor_used[i] = 0;
        for (uint32_t i = 0; i < p->high_water; i++)
                if (p->chunks[i].state != POOL_FREE && !(p->chunks[i].flags & POOL_DROPPED))
                        add_to_group(p, &p->chunks[i]);
}

void pool_get_floor(const struct pool *p, unsigned i, uint64_t *ret_used, uint64_t *ret_floor)
{
        *ret_used = i < p->floors.n ? p->floor_used[i + 1] : 0;
        *ret_floor = i < p->floors.n ? p->floors.bytes[i] : 0;
}

/* Returns whether the group would be below its floor without these bytes; false for 0 bytes and for
 * group 0, which has no floor. The group that needs the room gives up its own chunks, so the answer
 * for it is false unless keeps_own is set. */
static bool needs(const struct pool *p, unsigned group, uint64_t bytes)
{
        return group > 0 && (group != p->acquiring || p->keeps_own) && bytes > 0 &&
               p->floor_used[group] < p->floors.bytes[group - 1] + bytes;
}

bool pool_is_protected(const struct pool *p, uint32_t chunk)
{
        const struct pool_chunk *c = &p->chunks[chunk];

        return c->floor > 0 && !evict_is_demoted(p->evict, chunk) &&
               needs(p, c->floor, slabs_slot_bytes(p->slabs, pool_slot_of(c)));
}

bool pool_slab_is_protected(const struct pool *p, uint32_t slab)
{
        uint64_t sampled[POOL_MAX_FLOORS + 1] = { 0 };
        uint32_t slots = slabs_slab_slots(p->slabs, slab), step = slots / EVICT_SLAB_SAMPLE + 1;

        if (p->floors.n == 0)
                return false;
        for (uint32_t i = 0; i < slots; i += step) {
                uint32_t chunk = slabs_owner(p->slabs, (struct slab_slot){ slab, i });

                if (chunk != SLAB_NOBODY && !(p->chunks[chunk].flags & POOL_DROPPED) &&
                    !evict_is_demoted(p->evict, chunk))
                        sampled[p->chunks[chunk].floor] += p->slab_bytes / slots * step;
        }
        for (unsigned group = 1; group <= p->floors.n; group++)
                if (needs(p, group, sampled[group]))
                        return true;
        return false;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The pool keeps a few slabs without leased chunks. A slab with a leased chunk, however small,
 * cannot be cut for another size. Without this reserve, a user with a few small leases could deny
 * the pool to others.
 *
 * While there are more slabs without leased chunks than are reserved, a lease leaves its chunk in
 * place; with a pool index, pool-private.c decides that. Otherwise a chunk that would be the first
 * leased one of its slab is moved to a slab that has some: the loop copies its bytes to a slot of
 * the same size there, and may evict another chunk for it. A chunk that is read from the store for
 * a lease gets such a slot at once. A pinned or large chunk cannot be moved, and then the lease is
 * refused. Users without a lease may use all reserved slabs but one. Loop thread. */
#include "cache/pool-internal.h"

#include <string.h>

#include "checked.h"

enum {
        SLABS_RESERVE_FROM = 4, /* a pool of fewer slabs reserves none */
        MOVED_MOST = 1 << 20,   /* most bytes of a chunk that the loop moves; a larger one would
                                 * delay the loop */
};

uint32_t pool_reserved_slabs(uint32_t n_slabs)
{
        if (n_slabs < SLABS_RESERVE_FROM)
                return 0;
        return n_slabs < 8 ? 1 : MAX(n_slabs / 32, 2u);
}

bool pool_is_short_of_slabs(const struct pool *p)
{
        return p->private_wanted > 0 ? pool_is_pressed(p)
                                     : p->stats.leased_slabs + p->reserved_slabs >= p->n_slabs;
}

bool pool_may_lease(const struct pool *p, uint32_t chunk, bool is_first_of_user)
{
        const struct pool_slab *slab = &p->slab_state[pool_chunk(p, chunk)->slab];
        uint32_t least = p->private_wanted > 0 ? p->private_wanted : p->reserved_slabs;

        if (is_first_of_user && least > 1)
                least = 1;
        if (slab->leased > 0)
                return true;
        if (p->private_wanted > 0)
                return !slab->is_private || p->clear_slabs > least;
        return p->stats.leased_slabs + 1 + least <= p->n_slabs;
}

/* Evicts a chunk of the slab: among a sample, the evictable chunk that is worth least. Returns
 * whether it could. */
static bool make_room_in(struct pool *p, uint32_t slab)
{
        uint32_t slots = slabs_slab_slots(p->slabs, slab), step = slots / EVICT_SLAB_SAMPLE + 1;
        uint32_t victim = POOL_NONE;
        double least = 0;

        p->searches_left -= MIN(p->searches_left, (uint32_t)EVICT_SLAB_SAMPLE);
        for (uint32_t i = p->sample_phase++ % step; i < slots; i += step) {
                uint32_t chunk = slabs_owner(p->slabs, (struct slab_slot){ slab, i });
                double worth;

                if (chunk == SLAB_NOBODY || p->chunks[chunk].pins > 0 ||
                    !evict_contains(p->evict, chunk) || pool_is_known_held(p, chunk) ||
                    pool_is_protected(p, chunk))
                        continue;
                worth = evict_worth(p->evict, chunk, false);
                if (victim == POOL_NONE || worth < least) {
                        victim = chunk;
                        least = worth;
                }
        }
        if (victim == POOL_NONE || !pool_take_from_clients(p, victim))
                return false;
        pool_evict(p, victim);
        return true;
}

bool pool_acquire_in_leased_slab(struct pool *p, unsigned class, struct slab_slot *ret)
{
        uint32_t n;

        for (n = 0; n < p->n_slabs && p->searches_left > 0; n++) {
                uint32_t slab = (p->move_from + n) % p->n_slabs;

                p->searches_left--;
                if (!pool_slab_is_blocked(p, slab) || slab == p->emptying || slab == p->hiding ||
                    slabs_slab_class(p->slabs, slab) != (int)class)
                        continue;
                if (slabs_acquire_in(p->slabs, slab, 0, ret) == 0 ||
                    (make_room_in(p, slab) && slabs_acquire_in(p->slabs, slab, 0, ret) == 0)) {
                        p->move_from = slab + 1;
                        return true;
                }
        }
        if (n < p->n_slabs) /* the next search continues here */
                p->move_from = (p->move_from + n) % p->n_slabs;
        return false;
}

bool pool_move_to_leased_slab(struct pool *p, uint32_t chunk)
{
        struct pool_chunk *c = pool_chunk(p, chunk);
        struct slab_slot from = pool_slot_of(c), to;
        const void *bytes = pool_at(p, chunk);

        if (c->pins > 0 || !pool_is_resident(p, chunk) || c->length > MOVED_MOST ||
            c->length > p->moves_left)
                return false;
        pool_scan_holds(p);
        if (!pool_take_from_clients(p, chunk))
                return false;
        pool_floor_begin(p, c->namespace_id);
        if (!pool_acquire_in_leased_slab(p, pool_group_of(p, chunk), &to)) {
                pool_return_to_clients(p, chunk);
                return false;
        }
        p->moves_left -= c->length;
        p->stats.moved_chunks++;
        slabs_set_owner(p->slabs, to, chunk);
        c->slab = (uint16_t)to.slab;
        c->slot = (uint16_t)to.slot;
        memcpy(pool_at(p, chunk), bytes, c->length);
        slabs_release(p->slabs, from);
        pool_return_to_clients(p, chunk);
        return true;
}

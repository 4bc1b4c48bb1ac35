/* SPDX-License-Identifier: Apache-2.0 */
/* The pool's search for room: a slot for a chunk.
 *
 * The search takes a free slot of the class; else the class's coldest unpinned chunk leaves; else,
 * and when another class has a slab that was not touched for longer than that, a whole slab changes
 * its class. Loop thread. */
#include "cache/pool-internal.h"

#include <math.h>

#include "checked.h"

enum { BORROW_FACTOR = 8 }; /* a chunk may lie in a slot that is so much larger than it needs */

static bool may_evict(void *userdata, uint32_t chunk)
{
        struct pool *p = userdata;

        if (p->chunks[chunk].pins == 0 && pool_take_from_clients(p, chunk))
                return true;
        if (p->n_passed < ARRAY_SIZE(p->passed))
                p->passed[p->n_passed++] = chunk;
        return false;
}

/* The coldest unpinned chunk of the class. What is leased grows cold like everything else: where
 * there is much of it, it is made young again, in the same order, so that the next search does not
 * find it in its way. */
static uint32_t find_victim(struct pool *p, unsigned class)
{
        pool_look_at_clients(p);
        for (uint64_t stretches = p->stats.chunks / POOL_MAX_PASSED + 1; stretches > 0;
             stretches--) {
                uint32_t victim;

                p->n_passed = 0;
                victim = evict_victim(p->evict, class, may_evict, p, POOL_MAX_PASSED);
                if (victim != EVICT_NONE || p->n_passed <= POOL_MAX_PASSED)
                        return victim;
                for (uint32_t i = 0; i < p->n_passed; i++)
                        evict_refresh(p->evict, p->passed[i], class);
        }
        return EVICT_NONE;
}

static void chunk_evict(void *userdata, uint32_t chunk)
{
        struct pool *p = userdata;

        pool_leave(p, chunk);
        p->stats.evictions++;
        p->stats.evicted_bytes += p->chunks[chunk].length;
        histogram_add(&p->evicted_ages, evict_age_ns(p->evict, chunk));
        evict_note_leaving(p->evict, (unsigned)slabs_slab_class(
                                             p->slabs, pool_slot_of(&p->chunks[chunk]).slab));
        evict_remove_victim(p->evict, chunk, evict_id(p->chunks[chunk].hash));
        pool_table_remove(p, chunk);
        pool_free_chunk(p, chunk);
}

static bool is_movable(struct pool *p, uint32_t slab)
{
        for (uint32_t i = 0; i < slabs_slab_slots(p->slabs, slab); i++) {
                uint32_t chunk = slabs_owner(p->slabs, (struct slab_slot){ slab, i });

                if (chunk != SLAB_NOBODY &&
                    (p->chunks[chunk].pins > 0 || pool_is_known_held(p, chunk)))
                        return false;
        }
        return true;
}

/* What the chunks of the slab are worth together, estimated from some of them, others each time. */
static double slab_worth(struct pool *p, uint32_t slab, bool by_recency)
{
        uint32_t slots = slabs_slab_slots(p->slabs, slab), step = slots / EVICT_SLAB_SAMPLE + 1;
        uint32_t looked = 0;
        double worth = 0;

        for (uint32_t i = p->sample_phase++ % step; i < slots; i += step, looked++) {
                uint32_t chunk = slabs_owner(p->slabs, (struct slab_slot){ slab, i });

                if (chunk != SLAB_NOBODY && evict_contains(p->evict, chunk))
                        worth += evict_worth(p->evict, chunk, by_recency);
        }
        return looked > 0 ? worth * slots / looked : 0;
}

/* Empties the slab of another class that is worth least, if that is less than `most`. */
static bool take_slab(struct pool *p, unsigned class, double most, bool by_recency)
{
        uint32_t least = UINT32_MAX;

        pool_look_at_clients(p);
        for (uint32_t s = 0; s < slabs_added(p->slabs); s++) {
                int other = slabs_slab_class(p->slabs, s);
                double worth;

                if (other < 0 || (unsigned)other == class)
                        continue;
                worth = slab_worth(p, s, by_recency);
                if (worth < most && is_movable(p, s)) {
                        most = worth;
                        least = s;
                }
        }
        if (least == UINT32_MAX || !pool_take_slab_from_clients(p, least))
                return false;
        slabs_reclaim(p->slabs, least, chunk_evict, p);
        p->stats.slab_moves++;
        return true;
}

static bool make_room(struct pool *p, unsigned class)
{
        uint32_t victim = find_victim(p, class);
        uint32_t slots = (uint32_t)(p->slab_bytes / slabs_class_bytes(p->slabs, class));

        if (victim == EVICT_NONE)
                return take_slab(p, class, INFINITY, true);
        /* One look at the other classes for each slab's worth of evictions: with a slab more, so
         * many chunks that are worth as much as the victim would stay. */
        if (++p->evicted_since_look[class] >= slots) {
                p->evicted_since_look[class] = 0;
                if (take_slab(p, class, evict_slab_gain(p->evict, victim, slots, false), false)) {
                        pool_return_to_clients(p, victim);
                        return true;
                }
        }
        chunk_evict(p, victim);
        return true;
}

static bool acquire_of(struct pool *p, unsigned class, struct slab_slot *ret)
{
        int r;

        while ((r = slabs_acquire(p->slabs, class, 0, ret)) == SLAB_FULL)
                if (!make_room(p, class))
                        return false;
        return r == 0;
}

/* The class with the next larger slots, up to `most`, or -1. */
static int class_above(const struct pool *p, unsigned class, uint64_t most)
{
        uint64_t bytes = slabs_class_bytes(p->slabs, class);
        int above = -1;

        for (unsigned i = 0; i < slabs_class_count(p->slabs); i++) {
                uint64_t b = slabs_class_bytes(p->slabs, i);

                if (b > bytes && b <= most) {
                        above = (int)i;
                        most = b;
                }
        }
        return above;
}

/* A slot of the class, or, where every slab that could be given to it has a pinned chunk in it, a
 * larger one: a few small leases must not keep all other sizes out. */
bool pool_acquire_slot(struct pool *p, unsigned class, struct slab_slot *ret)
{
        uint64_t most = slabs_class_bytes(p->slabs, class) * BORROW_FACTOR;

        for (int c = (int)class; c >= 0; c = class_above(p, (unsigned)c, most))
                if (acquire_of(p, (unsigned)c, ret))
                        return true;
        return false;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The pool's search for a slot.
 *
 * The search takes a free slot of the class. If there is none, it evicts the coldest chunk of the
 * class that is not pinned, held by a client or protected by a floor. If the class has no such
 * chunk, or if another class has a slab whose chunks are worth less, a whole slab changes its class
 * instead. If no slab can, the chunk gets a slot of a larger class. Loop thread. */
#include "cache/pool-internal.h"

#include <math.h>

#include "checked.h"

enum {
        BORROW_FACTOR = 8, /* a chunk may use a slot up to this many times larger than its class */
        /* A search may pass over this many chunks even when the iteration's share is used up. */
        PASSES_LEAST = 32,
};

static bool may_evict(void *userdata, uint32_t chunk)
{
        struct pool *p = userdata;

        if (p->chunks[chunk].pins == 0 && !pool_is_protected(p, chunk) &&
            pool_take_from_clients(p, chunk))
                return true;
        if (p->n_passed < ARRAY_SIZE(p->passed))
                p->passed[p->n_passed++] = chunk;
        return false;
}

/* Takes the chunks that the current search passed over out of the way of the next searches: sets
 * aside those that are pinned or that clients hold, and makes those that the floor of their
 * namespace protects (pool-floors.c) the youngest of their lists. Returns the number of protected
 * chunks. */
static uint32_t set_aside_passed(struct pool *p)
{
        uint32_t spared = 0;

        for (uint32_t i = 0; i < p->n_passed; i++) {
                struct pool_chunk *c = &p->chunks[p->passed[i]];

                if (c->pins == 0 && pool_is_protected(p, p->passed[i])) {
                        evict_spare(p->evict, p->passed[i], pool_group_of(p, p->passed[i]));
                        spared++;
                        continue;
                }
                evict_set_aside(p->evict, p->passed[i],
                                c->pins > 0 ? POOL_LOT_PINNED : POOL_LOT_HELD);
                if (c->pins > 0)
                        c->flags |= POOL_ASIDE;
        }
        p->stats.spared += spared;
        return spared;
}

/* Returns whether the searches since the last victim have spared as many chunks as the class has,
 * so that it probably has no chunk that may be evicted. */
static bool has_spared_all(struct pool *p, unsigned class)
{
        uint64_t slots, used;
        uint32_t n_slabs;

        slabs_class_usage(p->slabs, class, &n_slabs, &slots, &used);
        return p->spared_since[class] >= used;
}

void pool_end_aside(struct pool *p, uint32_t chunk)
{
        struct pool_chunk *c = &p->chunks[chunk];

        c->flags &= ~(uint32_t)POOL_ASIDE;
        if (evict_contains(p->evict, chunk))
                evict_bring_back(p->evict, chunk, pool_group_of(p, chunk));
}

bool pool_has_given_up(struct pool *p)
{
        bool has = p->has_given_up;

        p->has_given_up = false;
        return has;
}

/* Returns the chunk of the class to evict next among those that are not pinned, not held by a
 * client and not protected by a floor. Returns EVICT_NONE if there is none or the search gives
 * up. */
static uint32_t find_victim(struct pool *p, unsigned class)
{
        uint32_t most = MAX(p->passes_left, (uint32_t)PASSES_LEAST), victim;

        pool_scan_holds(p);
        p->n_passed = 0;
        victim = evict_victim(p->evict, class, may_evict, p, most);
        p->spared_since[class] += set_aside_passed(p);
        p->passes_left -= MIN(p->passes_left, p->n_passed);
        p->gives_up = victim == EVICT_NONE && p->n_passed > most && !has_spared_all(p, class);
        if (victim != EVICT_NONE)
                p->spared_since[class] = 0;
        p->has_given_up |= p->gives_up;
        return victim;
}

void pool_set_prefetched(struct pool *p, uint32_t chunk, bool is_prefetched)
{
        struct pool_chunk *c = &p->chunks[chunk];
        uint64_t bytes = slabs_slot_bytes(p->slabs, pool_slot_of(c));

        if (is_prefetched == !!(c->flags & POOL_PREFETCHED))
                return;
        c->flags ^= POOL_PREFETCHED;
        p->stats.prefetched_unused_bytes += is_prefetched ? bytes : -bytes;
        if (!(c->flags & POOL_FOR_RETURN))
                return;
        c->flags ^= POOL_FOR_RETURN;
        p->for_return_bytes -= bytes;
}

void pool_set_for_return(struct pool *p, uint32_t chunk)
{
        struct pool_chunk *c = &p->chunks[chunk];

        pool_set_prefetched(p, chunk, true);
        if (c->flags & POOL_FOR_RETURN)
                return;
        c->flags |= POOL_FOR_RETURN;
        p->for_return_bytes += slabs_slot_bytes(p->slabs, pool_slot_of(c));
}

uint64_t pool_unused_for_return(const struct pool *p)
{
        return p->for_return_bytes;
}

void pool_evict(struct pool *p, uint32_t chunk)
{
        pool_leave(p, chunk);
        pool_notify_evicted(p, chunk);
        p->stats.evictions++;
        p->stats.prefetched_wasted += p->chunks[chunk].flags & POOL_PREFETCHED ? 1 : 0;
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
        bool is_held = pool_slab_is_held(p, slab);

        if (p->slab_state[slab].pinned > 0)
                return false;
        p->met_held |= is_held;
        return !is_held;
}

double pool_slab_worth(struct pool *p, uint32_t slab, bool by_recency)
{
        uint32_t slots = slabs_slab_slots(p->slabs, slab), step = slots / EVICT_SLAB_SAMPLE + 1;
        uint32_t sampled = 0;
        double worth = 0;

        for (uint32_t i = p->sample_phase++ % step; i < slots; i += step, sampled++) {
                uint32_t chunk = slabs_owner(p->slabs, (struct slab_slot){ slab, i });

                if (chunk != SLAB_NOBODY && evict_contains(p->evict, chunk))
                        worth += evict_worth(p->evict, chunk, by_recency);
        }
        return sampled > 0 ? worth * slots / sampled : 0;
}

/* Collects the next chunks that are to leave the slab that is being emptied. Returns false if one
 * of them is pinned. */
static bool collect_leaving(struct pool *p)
{
        uint32_t slots = slabs_slab_slots(p->slabs, p->emptying);

        p->n_leaving = 0;
        for (; p->empty_at < slots && p->n_leaving < p->empties_left; p->empty_at++) {
                struct slab_slot at = { .slab = p->emptying, .slot = p->empty_at };
                uint32_t chunk = slabs_owner(p->slabs, at);

                if (chunk == SLAB_NOBODY)
                        continue;
                if (p->chunks[chunk].pins > 0)
                        return false;
                p->leaving[p->n_leaving++] = chunk;
        }
        return true;
}

/* Evicts chunks of the slab that is being emptied, as many as may leave now. Returns true if the
 * slab is empty; it then has no class. Otherwise the emptying continues later or, if a chunk cannot
 * leave, ends, and the slab keeps its class. */
static bool empty_slab(struct pool *p)
{
        uint32_t slab = p->emptying;
        bool may_scan = pool_may_scan_now(p);

        if (p->empties_left == 0 || !may_scan) {
                p->gives_up = true;
                p->met_held |= !may_scan; /* the search waits for the next scan */
                return false;
        }
        if (!collect_leaving(p) || !pool_take_all_from_clients(p, p->leaving, p->n_leaving)) {
                p->emptying = POOL_NONE;
                slabs_reopen_slab(p->slabs, slab);
                return false;
        }
        for (uint32_t i = 0; i < p->n_leaving; i++)
                pool_evict(p, p->leaving[i]);
        p->empties_left -= p->n_leaving;
        if (p->empty_at < slabs_slab_slots(p->slabs, slab)) {
                p->gives_up = true;
                return false;
        }
        p->emptying = POOL_NONE;
        slabs_reclaim(p->slabs, slab, NULL, NULL);
        p->stats.slab_moves++;
        return true;
}

void pool_empty_more(struct pool *p)
{
        p->empties_left = MIN(p->empties_left + POOL_EMPTIED, (uint32_t)POOL_EMPTIED_AT_ONCE);
        if (p->emptying == POOL_NONE)
                return;
        p->empties_left = MIN(p->empties_left, (uint32_t)POOL_EMPTIED);
        (void)empty_slab(p);
        p->has_given_up |= p->emptying == POOL_NONE; /* requests that found no room try again in the
                                                      * next iteration */
}

bool pool_is_emptying(const struct pool *p)
{
        return p->emptying != POOL_NONE && pool_may_scan_now(p);
}

/* Returns the slab of another class that is worth least and that is_movable() permits, if it is
 * worth less than `most`; otherwise UINT32_MAX. With `keep_floors`, skips slabs that floors
 * protect. */
static uint32_t cheapest_slab(struct pool *p, unsigned class, double most, bool by_recency,
                              bool keep_floors)
{
        uint32_t least = UINT32_MAX;

        for (uint32_t s = 0; s < slabs_added(p->slabs); s++) {
                int other = slabs_slab_class(p->slabs, s);
                double worth;

                if (other < 0 || (unsigned)other == class || !is_movable(p, s) ||
                    (keep_floors && pool_slab_is_protected(p, s)))
                        continue;
                worth = pool_slab_worth(p, s, by_recency);
                if (worth < most) {
                        most = worth;
                        least = s;
                }
        }
        return least;
}

/* Empties the slab of another class that is worth least, if that is less than `most`. Returns
 * whether it is empty; a large slab takes several iterations, and the search gives up until then.
 * If `most` is infinite, the class has no other room, so a group may fall below its floor by the
 * chunks of one slab. */
static bool take_slab(struct pool *p, unsigned class, double most, bool by_recency)
{
        uint32_t least;

        if (p->emptying != POOL_NONE)
                return empty_slab(p);
        pool_scan_holds(p);
        least = cheapest_slab(p, class, most, by_recency, true);
        if (least == UINT32_MAX && p->floors.n > 0 && isinf(most) && !p->keeps_own)
                least = cheapest_slab(p, class, most, by_recency, false);
        if (least == UINT32_MAX)
                return false;
        if (!pool_may_scan_now(p)) {
                p->met_held = true;
                return false;
        }
        p->emptying = least;
        p->empty_at = 0;
        if (slabs_slab_slots(p->slabs, least) > POOL_EMPTIED_AT_ONCE)
                p->empties_left = MIN(p->empties_left, (uint32_t)POOL_EMPTIED);
        slabs_close_slab(p->slabs, least);
        return empty_slab(p);
}

/* Returns whether a victim that lies in the slab being emptied may be evicted now. Its eviction
 * frees no slot for its class, so one search could evict the whole slab; it therefore counts
 * towards the chunks that may leave the slab in this iteration. */
static bool may_leave_early(struct pool *p)
{
        if (p->empties_left == 0) {
                p->gives_up = p->has_given_up = true;
                return false;
        }
        p->empties_left--;
        return true;
}

void pool_replace_less_than(struct pool *p, const struct evict_promise *promise)
{
        p->promise = promise;
        p->kept_worthier = promise ? false : p->kept_worthier;
}

bool pool_kept_worthier(const struct pool *p)
{
        return p->kept_worthier;
}

/* Returns whether pool_replace_less_than() permits evictions at all. If not, notes that for
 * pool_kept_worthier(). */
static bool may_replace_any(struct pool *p)
{
        p->kept_worthier |= p->promise && p->promise->belief <= 0;
        return !p->promise || p->promise->belief > 0;
}

/* Returns whether pool_replace_less_than() permits evicting the victim. If not, announces the
 * victim to clients again, because it stays. */
static bool may_replace(struct pool *p, uint32_t victim)
{
        if (!p->promise || evict_is_worth_less(p->evict, victim, p->promise))
                return true;
        pool_return_to_clients(p, victim);
        p->kept_worthier = true;
        return false;
}

static bool make_room(struct pool *p, unsigned class)
{
        uint32_t victim = may_replace_any(p) ? find_victim(p, class) : EVICT_NONE;
        uint32_t slots = (uint32_t)(p->slab_bytes / slabs_class_bytes(p->slabs, class));

        if (victim == EVICT_NONE)
                return !p->gives_up && !p->promise && take_slab(p, class, INFINITY, true);
        if (!may_replace(p, victim))
                return false;
        /* The other classes are examined once for each slab's worth of evictions: one more slab
         * would keep that number of chunks, each worth as much as the victim. A read ahead of an
         * announced return (pool_replace_less_than()) empties no slab. */
        if (!p->promise && ++p->evicted_since_scan[class] >= slots) {
                p->evicted_since_scan[class] = 0;
                if (take_slab(p, class, evict_slab_gain(p->evict, victim, slots, false), false)) {
                        pool_return_to_clients(p, victim);
                        return true;
                }
        }
        if (p->chunks[victim].slab == p->emptying && !may_leave_early(p)) {
                pool_return_to_clients(p, victim);
                return false;
        }
        pool_evict(p, victim);
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

/* Finds a slot of a class that is larger than needed, if the class has a slab; evicts a chunk of
 * the class if no slot is free. Returns whether a slot was found. */
static bool acquire_larger(struct pool *p, unsigned class, struct slab_slot *ret)
{
        uint64_t slots, used;
        uint32_t n_slabs, victim;

        slabs_class_usage(p->slabs, class, &n_slabs, &slots, &used);
        if (n_slabs == 0)
                return false;
        if (used == slots) {
                victim = find_victim(p, class);
                if (victim == EVICT_NONE)
                        return false;
                pool_evict(p, victim);
        }
        return slabs_acquire(p->slabs, class, 0, ret) == 0;
}

bool pool_acquire_slot(struct pool *p, unsigned class, struct slab_slot *ret)
{
        uint64_t most = slabs_class_bytes(p->slabs, class) * BORROW_FACTOR;

        p->gives_up = false;
        pool_floor_keep_own(p, class);
        if (acquire_of(p, class, ret))
                return true;
        if (!p->gives_up && pool_floor_give_own(p, class) && acquire_of(p, class, ret))
                return true;
        /* No slab of another class can be taken, because each has a pinned, held or protected
         * chunk. The chunk uses a larger slot, so that a few small leases do not keep all other
         * sizes out. A read ahead of an announced return fails instead. */
        for (int c = slabs_class_above(p->slabs, class);
             c >= 0 && slabs_class_bytes(p->slabs, (unsigned)c) <= most && !p->gives_up &&
             !p->promise;
             c = slabs_class_above(p->slabs, (unsigned)c))
                if (acquire_larger(p, (unsigned)c, ret))
                        return true;
        return false;
}

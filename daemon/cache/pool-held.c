/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks that clients hold through the pool index, without a message: struct pool_guard.
 *
 * A chunk that is to be evicted is first hidden from clients, and then searched for among their
 * holds. If a client holds it, because it found the chunk before, the chunk stays and the search
 * for a victim continues. Chunks that were held in a recent scan are skipped like pinned ones,
 * without these steps.
 *
 * A dropped chunk is hidden at once. If there are clients, its slot and record stay until a scan
 * has shown whether one of them holds it; one scan serves all chunks that were dropped together.
 * Clients do not report when they release a hold. The remaining chunks are therefore checked again
 * when there is no room, and periodically.
 *
 * The more chunks are held, the longer a scan takes, and any client can cause scans. The guard
 * therefore sets the earliest time of the next scan, and evictions that need a scan wait until
 * then. */
#include "cache/pool-internal.h"

#include "base/clock.h"

/* Time for which a chunk that was found held counts as held without another scan. */
enum { KNOWN_NS = 1000000 };

void pool_set_guard(struct pool *p, const struct pool_guard *guard)
{
        p->guard = guard;
}

void pool_suspend_clients(struct pool *p, bool suspend)
{
        if (p->guard)
                p->guard->suspend(p->guard->userdata, suspend);
}

static bool has_clients(const struct pool *p)
{
        return p->guard && p->guard->has_clients(p->guard->userdata);
}

static void return_released(void *userdata, uint32_t chunk)
{
        struct pool *p = userdata;

        if (!has_clients(p) || !p->guard->was_held(p->guard->userdata, chunk))
                evict_bring_back(p->evict, chunk, pool_group_of(p, chunk));
}

/* Scans the holds if a scan is due. After a scan, or if there are no clients, brings chunks that
 * are not held back into the eviction order. */
static void scan_holds(struct pool *p, uint64_t max_age_ns)
{
        if (!has_clients(p) || p->guard->scan(p->guard->userdata, max_age_ns))
                (void)evict_each_aside(p->evict, POOL_LOT_HELD, return_released, p);
}

void pool_scan_holds(struct pool *p)
{
        scan_holds(p, KNOWN_NS);
}

void pool_scan_holds_now(struct pool *p)
{
        scan_holds(p, 0);
}

void pool_forget_held_slabs(struct pool *p)
{
        if (++p->held_scan == 0)
                p->held_scan = 1;
}

void pool_note_held(struct pool *p, uint32_t chunk)
{
        p->slab_state[pool_chunk(p, chunk)->slab].held_scan = p->held_scan;
}

bool pool_slab_is_held(const struct pool *p, uint32_t slab)
{
        return has_clients(p) && p->slab_state[slab].held_scan == p->held_scan;
}

uint64_t pool_next_scan_ns(const struct pool *p)
{
        return has_clients(p) ? p->guard->next_scan_ns(p->guard->userdata) : 0;
}

static bool may_scan(const struct pool *p)
{
        return clock_mono_ns() >= pool_next_scan_ns(p);
}

bool pool_is_known_held(struct pool *p, uint32_t chunk)
{
        if (!has_clients(p) || !p->guard->was_held(p->guard->userdata, chunk))
                return false;
        p->met_held = true;
        return true;
}

bool pool_take_from_clients(struct pool *p, uint32_t chunk)
{
        const struct pool_guard *g = p->guard;

        if (!g)
                return true;
        if (pool_is_known_held(p, chunk))
                return false;
        /* The index outlives its clients, so a later client must not find the chunk at its old
         * place. */
        g->changed(g->userdata, chunk, false);
        if (!has_clients(p) || !g->is_held(g->userdata, chunk))
                return true;
        pool_return_to_clients(p, chunk);
        p->met_held = true;
        return false;
}

void pool_return_to_clients(struct pool *p, uint32_t chunk)
{
        if (p->guard && pool_is_resident(p, chunk) && !pool_is_dropped(p, chunk))
                p->guard->changed(p->guard->userdata, chunk, true);
}

bool pool_may_scan_now(const struct pool *p)
{
        return !has_clients(p) || may_scan(p);
}

bool pool_take_all_from_clients(struct pool *p, const uint32_t *chunks, uint32_t n)
{
        const struct pool_guard *g = p->guard;
        bool is_held = false;

        if (!has_clients(p))
                return true;
        for (uint32_t i = 0; i < n; i++)
                g->changed(g->userdata, chunks[i], false);
        scan_holds(p, 0);
        for (uint32_t i = 0; i < n && !is_held; i++)
                is_held = g->was_held(g->userdata, chunks[i]);
        for (uint32_t i = 0; i < n && is_held; i++)
                pool_return_to_clients(p, chunks[i]);
        p->met_held |= is_held;
        return !is_held;
}

/* --- dropped chunks --- */

static void hold(struct pool *p, uint32_t chunk)
{
        p->chunks[chunk].next = p->first_held;
        p->first_held = chunk;
        p->n_held++;
}

bool pool_keep_for_clients(struct pool *p, uint32_t chunk)
{
        if (!has_clients(p))
                return false;
        pool_pin(p, chunk);
        hold(p, chunk);
        p->holds_more = true;
        return true;
}

uint32_t pool_held(const struct pool *p)
{
        return p->n_held;
}

bool pool_holds_more(const struct pool *p)
{
        return p->holds_more;
}

void pool_hold_less(struct pool *p)
{
        p->holds_more = p->holds_more || p->n_held > 0;
}

uint32_t pool_release_held(struct pool *p)
{
        const struct pool_guard *g = has_clients(p) ? p->guard : NULL;
        uint32_t chunk = p->first_held, before = p->n_held;

        p->holds_more = chunk != POOL_NONE && !may_scan(p);
        if (chunk == POOL_NONE || p->holds_more)
                return 0;
        scan_holds(p, 0);
        p->first_held = POOL_NONE;
        p->n_held = 0;
        while (chunk != POOL_NONE) {
                uint32_t next = p->chunks[chunk].next;

                if (g && g->was_held(g->userdata, chunk)) {
                        hold(p, chunk);
                } else if (--p->chunks[chunk].pins == 0) {
                        pool_count_pinned(p, &p->chunks[chunk], false);
                        pool_free_chunk(p, chunk);
                }
                chunk = next;
        }
        return before - p->n_held;
}

bool pool_was_held_up(struct pool *p)
{
        bool was = p->held_up;

        p->held_up = false;
        return was;
}

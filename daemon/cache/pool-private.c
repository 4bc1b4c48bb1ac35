/* SPDX-License-Identifier: Apache-2.0 */
/* Private slabs: a few slabs whose chunks clients do not find in the pool index, so that no client
 * can hold a chunk there. Puts and reads find room in them even if clients hold chunks in all other
 * slabs.
 *
 * A hold is never revoked from a client within its allowance, and a client can take holds in all
 * slabs at once. The slabs are therefore private from the creation of the index on. While clients
 * may exist, a slab that is not private counts as blocked, as one with leased chunks does.
 *
 * A lease may use a private slab while enough other private slabs have no leased chunk. Otherwise
 * the chunk is moved to a blocked slab, or another slab becomes private first: its chunks are
 * hidden, and then a scan shows that no client holds one of them. A small slab is hidden at once, a
 * larger one in the course of several iterations. If the scan finds a hold, the chunks are
 * announced again. When a slab ceases to be private, its chunks are announced in steps of the same
 * size. Loop thread. */
#include "cache/pool-internal.h"

#include "base/clock.h"
#include "checked.h"

enum {
        CANDIDATES = 4,         /* slabs that are compared before one of them is hidden */
        SEARCHED_MOST = 1024,   /* most slabs that one search for CANDIDATES visits */
        SEARCHES = 4,           /* searches in an iteration; each key of a message may need one */
        MOVED_FIRST = 64 << 10, /* a chunk of at most this many bytes is moved rather than leased in
                                 * place */
        PRIVATE_MOST = 2,       /* most private slabs that must stay without leased chunks; a get
                                 * of a chunk in a private slab takes a message */
};
/* Time for which pool_is_pressed() is true after a search that found no slab. */
#define PRESSED_NS UINT64_C(1000000000)

void pool_make_slabs_private(struct pool *p)
{
        uint32_t wanted = MIN(p->reserved_slabs, (uint32_t)PRIVATE_MOST);

        if (p->private_wanted > 0)
                return;
        for (unsigned pass = 0; pass < 2; pass++) {
                for (uint32_t s = p->n_slabs; s-- > 0 && p->clear_slabs < wanted;) {
                        struct pool_slab *slab = &p->slab_state[s];

                        if (slab->is_private || slab->leased > 0 ||
                            (pass == 0 && slabs_slab_class(p->slabs, s) >= 0))
                                continue;
                        slab->is_private = true;
                        p->clear_slabs++;
                        p->stats.private_slabs++;
                }
        }
        p->private_wanted = wanted;
}

bool pool_is_private(const struct pool *p, uint32_t chunk)
{
        return p->slab_state[p->chunks[chunk].slab].is_private;
}

bool pool_may_announce(const struct pool *p, uint32_t chunk)
{
        return !pool_is_private(p, chunk) && p->chunks[chunk].slab != p->hiding;
}

bool pool_slab_is_blocked(const struct pool *p, uint32_t slab)
{
        return p->slab_state[slab].leased > 0 ||
               (p->private_wanted > 0 && !p->slab_state[slab].is_private);
}

/* --- slabs that become private, and that cease to be private --- */

static void begin_announcing(struct pool *p, uint32_t slab)
{
        p->slab_state[slab].is_unannounced = true;
        p->n_unannounced++;
}

static void announce_more(struct pool *p)
{
        uint32_t slots, left = POOL_EMPTIED;

        if (p->n_unannounced == 0)
                return;
        while (!p->slab_state[p->announcing].is_unannounced) {
                p->announcing = (p->announcing + 1) % p->n_slabs;
                p->announce_at = 0;
        }
        slots = slabs_slab_slots(p->slabs, p->announcing);
        for (; p->announce_at < slots && left > 0; p->announce_at++, left--) {
                uint32_t chunk =
                        slabs_owner(p->slabs, (struct slab_slot){ p->announcing, p->announce_at });

                if (chunk != SLAB_NOBODY)
                        pool_return_to_clients(p, chunk);
        }
        if (p->announce_at < slots)
                return;
        p->slab_state[p->announcing].is_unannounced = false;
        p->n_unannounced--;
        p->announce_at = 0;
}

/* Returns whether the slab may become private, according to the last scan of holds. */
static bool may_hide(const struct pool *p, uint32_t slab)
{
        const struct pool_slab *s = &p->slab_state[slab];

        return !s->is_private && !s->is_unannounced && s->leased == 0 && slab != p->emptying &&
               !pool_slab_is_held(p, slab);
}

/* Returns the slab that is worth least among a few that may become private, or POOL_NONE. */
static uint32_t choose_slab(struct pool *p)
{
        uint32_t n = slabs_added(p->slabs), chosen = POOL_NONE;
        unsigned candidates = 0;
        double least = 0;

        for (uint32_t i = 0; i < MIN(n, (uint32_t)SEARCHED_MOST) && candidates < CANDIDATES; i++) {
                uint32_t s = p->hide_from++ % n;
                double worth;

                if (!may_hide(p, s))
                        continue;
                worth = pool_slab_worth(p, s, true);
                if (candidates++ > 0 && worth >= least)
                        continue;
                least = worth;
                chosen = s;
        }
        return chosen;
}

/* Hides the next chunks of the slab that becomes private. Returns whether the slab is private. */
static bool hide_more(struct pool *p)
{
        uint32_t slots = slabs_slab_slots(p->slabs, p->hiding), slab = p->hiding;

        for (; p->hide_at < slots && p->hides_left > 0; p->hide_at++, p->hides_left--) {
                uint32_t chunk = slabs_owner(p->slabs, (struct slab_slot){ slab, p->hide_at });

                if (chunk != SLAB_NOBODY)
                        p->guard->changed(p->guard->userdata, chunk, false);
        }
        if (p->hide_at < slots || !pool_may_scan_now(p))
                return false;
        pool_scan_holds_now(p);
        p->hiding = POOL_NONE;
        if (p->slab_state[slab].leased > 0 || pool_slab_is_held(p, slab)) {
                begin_announcing(p, slab);
                return false;
        }
        p->slab_state[slab].is_private = true;
        p->clear_slabs++;
        p->stats.private_slabs++;
        return true;
}

/* Makes another slab private. Returns whether a slab has become private in this call; a large slab
 * takes several calls, in several iterations. */
static bool hide_slab(struct pool *p)
{
        if (p->hiding != POOL_NONE)
                return hide_more(p);
        if (p->hide_searches == SEARCHES)
                return false;
        p->hide_searches++;
        pool_scan_holds(p);
        p->hiding = choose_slab(p);
        if (p->hiding == POOL_NONE) {
                p->pressed_until_ns = clock_mono_ns() + PRESSED_NS;
                return false;
        }
        p->hide_at = 0;
        if (slabs_slab_slots(p->slabs, p->hiding) > POOL_EMPTIED_AT_ONCE)
                p->hides_left = MIN(p->hides_left, (uint32_t)POOL_EMPTIED);
        return hide_more(p);
}

void pool_private_more(struct pool *p)
{
        p->hides_left = MIN(p->hides_left + POOL_EMPTIED, (uint32_t)POOL_EMPTIED_AT_ONCE);
        p->hide_searches = 0;
        announce_more(p);
        if (p->guard && p->hiding != POOL_NONE)
                (void)hide_more(p);
}

/* --- leases --- */

void pool_private_note_leased(struct pool *p, uint32_t slab, bool is_leased)
{
        uint32_t others = is_leased ? --p->clear_slabs : p->clear_slabs;

        if (others < p->private_wanted) {
                p->clear_slabs += !is_leased;
                return;
        }
        p->slab_state[slab].is_private = false;
        p->stats.private_slabs--;
        begin_announcing(p, slab);
}

bool pool_is_pressed(const struct pool *p)
{
        return p->clear_slabs <= p->private_wanted && p->pressed_until_ns > 0 &&
               clock_mono_ns() < p->pressed_until_ns;
}

/* Returns whether the chunk is moved rather than leased in place: it has at most MOVED_FIRST bytes
 * and lies in a private slab without leases. Clients then find it in the index the next time, and
 * the private slabs stay without leases. */
static bool is_moved_first(const struct pool *p, uint32_t chunk)
{
        return pool_is_private(p, chunk) && p->chunks[chunk].length <= MOVED_FIRST &&
               p->slab_state[p->chunks[chunk].slab].leased == 0;
}

static bool holds_chunks(const struct pool *p, uid_t uid)
{
        return p->guard && p->guard->has_holds(p->guard->userdata, uid);
}

bool pool_make_leasable(struct pool *p, uint32_t chunk, uid_t uid, bool is_first_of_user)
{
        bool is_tried = is_moved_first(p, chunk);

        if (is_tried && pool_move_to_leased_slab(p, chunk))
                return true;
        if (pool_may_lease(p, chunk, false))
                return true;
        /* The first lease of a user takes a slab that no other slab can replace, only if the user
         * holds no chunks through the pool index. Otherwise one user could take all slabs but one
         * from other users. */
        if (p->private_wanted > 0 && p->guard && hide_slab(p) && pool_may_lease(p, chunk, false))
                return true;
        if (is_first_of_user && pool_may_lease(p, chunk, true) && !holds_chunks(p, uid))
                return true;
        return !is_tried && pool_move_to_leased_slab(p, chunk);
}

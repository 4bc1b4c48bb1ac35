/* SPDX-License-Identifier: Apache-2.0 */
/* Postponed writes: chunks that only the pool has, because the disk was behind when they were put.
 * Loop thread.
 *
 * A put that does not need the disk (cache_needs_disk()) does not fail because too many bytes are
 * unwritten: its chunk stays in the pool without a write, and may leave like any other. When its
 * user has less than half of its share of the unwritten bytes, and there is room for more, the
 * chunks that are still in the pool are written. Each time, the user with the fewest unwritten
 * bytes writes its oldest chunk. At most MOST chunks are remembered, MOST_OF_USER of one user.
 * Beyond that, a chunk takes the place of its user's oldest one, or is not remembered if the user
 * has none. A chunk that is not remembered is written when it is used again (cache_write_kept()).
 * When the daemon stops, postponed chunks are written, too, until limits.drain ends the wait for
 * writes. No chunk is written while all volumes are bypassed, because its write would fail.
 *
 * Failures: without memory for the list, chunks are written only when they are used again. */
#include "cache/internal.h"

#include <stdlib.h>

enum {
        MOST = 65536, /* most chunks remembered: 768 KiB, allocated when the disk is behind for the
                         first time */
        MOST_OF_USER = MOST / 4 * 3,
        STEPS = 64, /* chunks handled per iteration */
        NONE = MOST,
};

struct postponed_chunk {
        uint32_t chunk, generation;
        uint32_t next; /* index of the next chunk in the list of the user, or in the free list */
};

static int allocate(struct postponed *p)
{
        p->chunks = malloc(MOST * sizeof(*p->chunks));
        if (!p->chunks)
                return -1;
        for (uint32_t i = 0; i < MOST; i++)
                p->chunks[i].next = i + 1;
        p->free = 0;
        return 0;
}

/* Removes the user's first chunk. Removing the last one ends the reference to the user, which may
 * free the user. */
static struct postponed_chunk take_first(struct cache *c, struct cache_user *u)
{
        struct postponed *p = &c->postponed;
        uint32_t place = u->postponed.first;
        struct postponed_chunk first = p->chunks[place];

        u->postponed.first = first.next;
        p->chunks[place].next = p->free;
        p->free = place;
        p->n--;
        if (--u->postponed.n == 0) {
                heap_remove(&p->users, &u->postponed.turn);
                cache_user_unref(u);
        } else {
                /* behind users with equally many unwritten bytes */
                heap_add(&p->users, &u->postponed.turn, u->unwritten);
        }
        return first;
}

void cache_postpone(struct cache *c, uint32_t chunk)
{
        const struct pool_chunk *pc = pool_chunk(c->params.pool, chunk);
        struct postponed *p = &c->postponed;
        struct cache_user *u;
        uint32_t place;

        c->stats.postponed++;
        if (p->ended || (!p->chunks && allocate(p) < 0) ||
            heap_reserve(&p->users, p->users.n + 1) < 0)
                return;
        u = cache_user_get(c, pc->user);
        if (!u)
                return;
        if (u->postponed.n > 0 && (u->postponed.n == MOST_OF_USER || p->free == NONE))
                (void)take_first(c, u);
        place = p->free;
        if (place == NONE) {
                cache_user_unref(u);
                return;
        }
        p->free = p->chunks[place].next;
        p->n++;
        p->chunks[place] = (struct postponed_chunk){ chunk, pc->generation, NONE };
        if (u->postponed.n++ == 0) {
                u->postponed.first = place;
                heap_add(&p->users, &u->postponed.turn, u->unwritten);
        } else {
                p->chunks[u->postponed.last].next = place;
                cache_user_unref(u);
        }
        u->postponed.last = place;
}

void cache_postponed_note(struct cache *c, struct cache_user *u)
{
        if (u->postponed.n > 0)
                heap_change(&c->postponed.users, &u->postponed.turn, u->unwritten);
}

/* Returns the user with the fewest unwritten bytes among those with postponed chunks, or NULL if
 * there is none. */
static struct cache_user *next_user(const struct cache *c)
{
        struct heap_node *first = heap_first(&c->postponed.users);

        return first ? container_of(first, struct cache_user, postponed.turn) : NULL;
}

/* Returns whether the chunk is still in the pool, and not written. */
static bool is_postponed(const struct cache *c, const struct postponed_chunk *postponed)
{
        const struct pool_chunk *pc = pool_chunk(c->params.pool, postponed->chunk);

        return pc->generation == postponed->generation && pc->flags & POOL_REFUSED &&
               !pool_is_dropped(c->params.pool, postponed->chunk);
}

bool cache_may_catch_up(const struct cache *c)
{
        const struct cache_user *u = next_user(c);
        const struct postponed_chunk *next;

        if (!u)
                return false;
        next = &c->postponed.chunks[u->postponed.first];
        return !is_postponed(c, next) ||
               (u->unwritten <= cache_share_of(c, u) / 2 && cache_may_write_kept(c, next->chunk));
}

void cache_catch_up(struct cache *c)
{
        if (c->stopping && store_volumes_up(c->params.store) == 0)
                cache_forget_postponed(c);
        for (unsigned steps = 0; steps < STEPS && cache_may_catch_up(c); steps++) {
                struct postponed_chunk next = take_first(c, next_user(c));

                if (is_postponed(c, &next))
                        c->stats.caught_up += cache_write_kept(
                                c, next.chunk, pool_chunk(c->params.pool, next.chunk)->use, false);
        }
}

void cache_count_postponed(const struct cache *c, uint64_t *chunks, uint64_t *bytes)
{
        const struct postponed *p = &c->postponed;

        for (unsigned i = 1; i <= p->users.n; i++) {
                const struct cache_user *u =
                        container_of(p->users.nodes[i], struct cache_user, postponed.turn);

                for (uint32_t place = u->postponed.first; place != NONE;
                     place = p->chunks[place].next)
                        if (is_postponed(c, &p->chunks[place])) {
                                ++*chunks;
                                *bytes += pool_slot_bytes(c->params.pool, p->chunks[place].chunk);
                        }
        }
}

void cache_forget_postponed(struct cache *c)
{
        struct cache_user *u;

        while ((u = next_user(c)))
                (void)take_first(c, u);
        c->postponed.ended = true;
}

void cache_postponed_fini(struct cache *c)
{
        cache_forget_postponed(c);
        heap_fini(&c->postponed.users);
        free(c->postponed.chunks);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Postponed writes: chunks that only the pool has, because the disk was behind when they were put.
 * Loop thread.
 *
 * A put that does not need the disk (cache_needs_disk()) does not fail because too many bytes are
 * unwritten: its chunk stays in the pool without a write, and may leave like any other. When
 * less than half of that limit is unwritten, the chunks that are still there are written in the
 * order of their puts. Only the last MOST are remembered: an earlier one is written when it is used
 * again (cache_write_kept()).
 *
 * Failures: without memory for the list, chunks are written only when they are used again. */
#include "cache/internal.h"

#include <stdlib.h>

enum {
        MOST = 65536, /* 512 KiB of memory, allocated when the disk is behind for the first time */
        STEPS = 64,   /* per iteration */
};

struct postponed_chunk {
        uint32_t chunk, generation;
};

void cache_postpone(struct cache *c, uint32_t chunk)
{
        struct postponed *p = &c->postponed;

        c->stats.postponed++;
        if (!p->chunks)
                p->chunks = malloc(MOST * sizeof(*p->chunks));
        if (!p->chunks)
                return;
        if (p->n == MOST) {
                p->first++;
                p->n--;
        }
        p->chunks[(p->first + p->n++) % MOST] = (struct postponed_chunk){
                chunk,
                pool_chunk(c->params.pool, chunk)->generation,
        };
}

bool cache_may_catch_up(const struct cache *c)
{
        return c->postponed.n > 0 && !c->stopping && c->unwritten <= c->unwritten_limit / 2 &&
               store_volumes_up(c->params.store) > 0;
}

void cache_catch_up(struct cache *c)
{
        struct postponed *p = &c->postponed;

        for (unsigned steps = 0; steps < STEPS && cache_may_catch_up(c); steps++) {
                struct postponed_chunk next = p->chunks[p->first++ % MOST];
                const struct pool_chunk *pc = pool_chunk(c->params.pool, next.chunk);

                p->n--;
                if (pc->generation == next.generation && pc->flags & POOL_REFUSED &&
                    !pool_is_dropped(c->params.pool, next.chunk))
                        c->stats.caught_up += cache_write_kept(c, next.chunk, pc->use, false);
        }
}

void cache_postponed_fini(struct cache *c)
{
        free(c->postponed.chunks);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The pool's purges.
 *
 * A purge takes effect at once. It has a number, and each chunk records the number of the last
 * purge before it was added. A chunk older than a purge of its namespace is dead and is not found.
 * The records are walked step by step, in a circle that all purges share, and each purge ends where
 * it began. A commit, an eviction or a new chunk of the same key that meets a dead chunk drops it,
 * so that the table never has two chunks of one key. During a purge all chunks are hidden from
 * clients, because the pool index does not show which are dead. */
#include "cache/pool-internal.h"

enum {
        /* Costs in pool_sweep(), in visits of a record: the limit of a step, a dropped chunk, and a
         * purge that ends. */
        STEP_COST = 4096,
        DROP_COST = 4,
        END_COST = 64,
};

/* Returns the latest purge that covers this namespace alone, or NULL if there is none. Older chunks
 * of the namespace are dead. */
static struct pool_purge *mark_of(const struct pool *p, uint32_t namespace_id)
{
        list_for_each (&p->marks[namespace_id % POOL_PURGE_BUCKETS], n) {
                struct pool_purge *purge = container_of(n, struct pool_purge, mark);

                if (purge->namespace_id == namespace_id)
                        return purge;
        }
        return NULL;
}

bool pool_is_purged(const struct pool *p, const struct pool_chunk *c)
{
        const struct pool_purge *mark;

        if (c->born < p->all_dead)
                return true;
        mark = mark_of(p, c->namespace_id);
        return mark && c->born < mark->number;
}

bool pool_is_dropped(const struct pool *p, uint32_t chunk)
{
        const struct pool_chunk *c = pool_chunk(p, chunk);

        return c->flags & POOL_DROPPED || pool_is_dead(p, c);
}

/* Returns whether certainly no chunk is left for the purge: the table has no chunk at all, or none
 * that counts for the namespace (pool_namespace_chunks()). */
static bool has_nothing(struct pool *p, const struct pool_purge *purge)
{
        return purge->all ? p->stats.chunks == 0
                          : *pool_namespace_chunks(p, purge->namespace_id) == 0;
}

void pool_purge(struct pool *p, struct pool_purge *purge)
{
        struct pool_purge *before = purge->all ? NULL : mark_of(p, purge->namespace_id);

        if (has_nothing(p, purge)) {
                purge->complete(purge);
                return;
        }
        if (list_empty(&p->purges))
                pool_suspend_clients(p, true);
        purge->number = ++p->n_purges;
        purge->stop = p->sweep_at;
        purge->wrapped = false;
        list_init(&purge->mark);
        if (before)
                list_unlink(&before->mark); /* the new purge covers all chunks of the earlier one */
        if (purge->all)
                p->all_dead = purge->number;
        else
                list_append(&p->marks[purge->namespace_id % POOL_PURGE_BUCKETS], &purge->mark);
        list_init(&purge->node);
        list_append(&p->purges, &purge->node);
}

/* Starts another round at the first record, and marks all purges as having wrapped. Returns their
 * number. */
static uint32_t sweep_wrap(struct pool *p)
{
        uint32_t marked = 0;

        p->sweep_at = 0;
        list_for_each (&p->purges, n) {
                container_of(n, struct pool_purge, node)->wrapped = true;
                marked++;
        }
        return marked;
}

uint32_t pool_sweep(struct pool *p)
{
        uint32_t visits = 0, cost = 0;

        while (cost < STEP_COST && !list_empty(&p->purges)) {
                struct pool_purge *first = container_of(p->purges.next, struct pool_purge, node);
                struct pool_chunk *c;

                if ((first->wrapped && p->sweep_at >= first->stop) || has_nothing(p, first)) {
                        list_unlink(&first->node);
                        list_unlink(&first->mark);
                        if (list_empty(&p->purges))
                                pool_suspend_clients(p, false);
                        first->complete(first);
                        cost += END_COST;
                        continue;
                }
                if (p->sweep_at >= p->high_water) {
                        cost += sweep_wrap(p);
                        continue;
                }
                c = &p->chunks[p->sweep_at];
                visits++;
                cost++;
                if (!(c->flags & POOL_DROPPED) && pool_is_dead(p, c)) {
                        pool_drop(p, p->sweep_at);
                        cost += DROP_COST;
                }
                p->sweep_at++;
        }
        return visits;
}

bool pool_is_sweeping(const struct pool *p)
{
        return !list_empty(&p->purges);
}

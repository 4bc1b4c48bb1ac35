/* SPDX-License-Identifier: Apache-2.0 */
/* The pool's purges.
 *
 * A purge takes effect at once: it has a number, and a chunk knows the number of the last purge
 * before it, so what is older than a purge of its namespace is dead, and found no more. The records
 * themselves are walked a step at a time, in a circle that all purges share: each ends where it
 * began. What else reaches a dead chunk before that drops it: a commit, the eviction, or a new
 * chunk of its key, so that the table never has two of one key. Meanwhile clients find nothing by
 * themselves, since they do not know what is dead. */
#include "cache/pool-internal.h"

#include "checked.h"

enum {
        /* Of pool_sweep(): what a step costs at most, and a purge that ends; in visits. */
        STEP_COST = 4096,
        DROP_COST = 4,
        END_COST = 64,
};

/* The purge that decides whether a chunk of this namespace is dead; NULL: none is under way. */
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

/* Nothing is left in the table that it might have to drop. */
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
                list_unlink(&before->mark); /* whatever that makes dead, this does as well */
        if (purge->all)
                p->all_dead = purge->number;
        else
                list_append(&p->marks[purge->namespace_id % POOL_PURGE_BUCKETS], &purge->mark);
        list_init(&purge->node);
        list_append(&p->purges, &purge->node);
}

/* Around once more: those that began at the first record are over. How many it has marked. */
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

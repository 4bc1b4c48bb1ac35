/* SPDX-License-Identifier: Apache-2.0 */
/* Removes purged chunks from the index, step by step.
 *
 * A purge takes effect at once: the list of namespaces has its sequence, and while a sweep is in
 * progress, each lookup compares the chunk's sequence with that of the purge. So a purged chunk
 * that is still in the index is not found, and a put of its key replaces it. The sweep walks
 * through the records in steps, between which the loop does other work. All purges share one
 * circular walk, and each purge ends where it began, so that many concurrent purges cost hardly
 * more than one. A chunk that is put during the sweep has a higher sequence and stays.
 *
 * Loop thread; store/purge.c calls the steps. Failures: none. */
#include "store/volume/internal.h"

enum {
        STEP_COST =
                32768, /* most cost of one step, in units of about 25 ns: less than a millisecond */
        LOOK_COST = 1, /* cost of visiting a record */
        REMOVE_COST = 64, /* cost of removing a chunk */
};

bool sweep_is_dead(const struct volume *v, uint32_t i)
{
        const struct chunk *c = volume_chunk_at(v, i);

        return !list_empty(&v->sweeps) && c->flags & CHUNK_LINKED &&
               namespaces_is_dead(v->namespaces, chunk_namespace(v, c), c->seq);
}

/* Counts a chunk, unless its put is in flight, for the last purge of its namespace, or else for the
 * last purge of everything. */
static void count(struct volume *v, const struct chunk *c)
{
        const struct namespace *ns = namespaces_get(v->namespaces, chunk_namespace(v, c));
        struct store_purge *req = ns && ns->sweep ? ns->sweep : v->sweep_all;

        if (req && !(c->flags & CHUNK_PENDING))
                req->dropped++;
}

bool sweep_is_kept(struct volume *v, uint32_t i)
{
        if (sweep_is_dead(v, i)) {
                count(v, volume_chunk_at(v, i));
                chunk_remove(v, i);
        }
        return volume_chunk_at(v, i)->flags & CHUNK_LINKED;
}

static void finish(struct volume *v, struct store_purge *req)
{
        struct namespace *ns = req->all ? NULL : namespaces_get(v->namespaces, req->namespace_id);

        list_unlink(&req->sweep);
        v->n_sweeps--;
        if (ns && ns->sweep == req)
                ns->sweep = NULL;
        if (v->sweep_all == req)
                v->sweep_all = NULL;
        req->swept = true;
        if (req->written)
                req->answer(req);
}

/* Called when the purge is on stable storage, or could not be written. */
static void on_written(struct store_purge *req)
{
        req->written = true;
        if (req->swept)
                req->answer(req);
}

void sweep_begin(struct volume *v, struct store_purge *req)
{
        struct namespace *ns = req->all ? NULL : namespaces_get(v->namespaces, req->namespace_id);

        req->answer = req->complete;
        req->complete = on_written;
        req->written = req->swept = req->wrapped = false;
        req->stop = v->sweep_at;
        list_init(&req->sweep);
        list_append(&v->sweeps, &req->sweep);
        v->n_sweeps++;
        if (ns)
                ns->sweep = req;
        else
                v->sweep_all = req;
}

/* Continues the walk at record 0, and marks all purges in progress as having passed the end. */
static void wrap(struct volume *v)
{
        v->sweep_at = 0;
        list_for_each (&v->sweeps, n)
                container_of(n, struct store_purge, sweep)->wrapped = true;
}

bool volume_sweep(struct volume *v)
{
        unsigned cost = 0;

        while (!list_empty(&v->sweeps)) {
                struct store_purge *first = container_of(v->sweeps.next, struct store_purge, sweep);

                if (first->wrapped && v->sweep_at >= first->stop) {
                        finish(v, first);
                        continue;
                }
                if (cost >= STEP_COST)
                        return true;
                if (v->sweep_at >= index_high(v->index)) {
                        cost += v->n_sweeps;
                        wrap(v);
                        continue;
                }
                cost += LOOK_COST;
                if (sweep_is_dead(v, v->sweep_at)) {
                        (void)sweep_is_kept(v, v->sweep_at);
                        cost += REMOVE_COST;
                }
                v->sweep_at++;
        }
        return false;
}

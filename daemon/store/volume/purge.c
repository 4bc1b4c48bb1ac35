/* SPDX-License-Identifier: Apache-2.0 */
/* What was purged leaves the index a step at a time.
 *
 * A purge takes effect at once: its sequence stands in the namespaces from then on, and while
 * sweeps are under way each look-up compares a chunk's sequence with it. So a chunk that is still
 * in the index is found by none of them, and a put of its key takes its place. The records
 * themselves are walked in steps between which the loop does other work. All purges share one
 * walk, in a circle: each ends where it began, so that many of them cost hardly more than one. What
 * is put meanwhile has a higher sequence and stays.
 *
 * Loop thread. There is a step a turn, and an operation that does nothing makes the next turn come;
 * its completions take the steps while the store stops. A path is not closed before its sweeps are
 * over. Failures: none
 * of its own. */
#include "base/clock.h"
#include "base/histogram.h"
#include "store/volume/internal.h"
#include "store/internal.h"

enum {
        STEP_COST = 32768, /* of one step: less than a millisecond */
        LOOK_COST = 1,
        REMOVE_COST = 64,
};

bool sweep_is_dead(const struct volume *v, uint32_t i)
{
        const struct chunk *c = volume_chunk_at(v, i);

        return !list_empty(&v->sweeps) && c->flags & CHUNK_LINKED &&
               namespaces_is_dead(v->namespaces, c->namespace_id, c->seq);
}

/* Counted by the last purge of its namespace, else by the last one of everything. */
static void count(struct volume *v, const struct chunk *c)
{
        const struct namespace *ns = namespaces_get(v->namespaces, c->namespace_id);
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

/* As the namespaces complete it. */
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

/* Around once more: those that began at the first record are over. */
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

/* --- the steps of all paths, in turn --- */

static int do_nothing(struct kio_request *req)
{
        return 0;
}

static void on_step(struct kio_request *req)
{
        struct store *s = container_of(req, struct store, sweep_io);

        s->sweeping = false;
        if (s->stopping) { /* then nobody calls for a turn */
                store_sweep(s);
                store_nudge(s);
        }
}

void store_sweep(struct store *s)
{
        bool stepped = false, more = false;
        uint64_t began_ns;

        if (s->sweeping)
                return;
        began_ns = clock_mono_ns();
        for (unsigned n = 0; n < s->n_paths; n++) {
                unsigned i = (s->sweep_path + n) % s->n_paths;

                if (!path_has_volume(s, i) || !volume_is_sweeping(s->paths[i].volume))
                        continue;
                if (stepped) {
                        s->sweep_path = i;
                        more = true;
                        break;
                }
                stepped = true;
                more = volume_sweep(s->paths[i].volume);
                volume_progress(s->paths[i].volume);
        }
        if (stepped && s->sweep_times)
                histogram_add(s->sweep_times, clock_mono_ns() - began_ns);
        if (!more)
                return;
        s->sweeping = true;
        s->sweep_io = (struct kio_request){
                .op = KIO_CALL, /* of no path: it may not wait for a device */
                .class = KIO_CLASS_GET,
                .call = do_nothing,
                .complete = on_step,
        };
        list_init(&s->sweep_io.node);
        kio_submit(s->io, &s->sweep_io, 0);
        if (s->stopping)
                kio_flush(s->io);
}

void store_time_sweeps(struct store *s, struct histogram *times)
{
        s->sweep_times = times;
}

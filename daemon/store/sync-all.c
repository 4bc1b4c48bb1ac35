/* SPDX-License-Identifier: Apache-2.0 */
/* Syncs and settled drops: what is asked of all paths, and is the same for all who ask. One pass at
 * a time of each kind: whoever comes while one runs waits for the next, since what it is about may
 * not be in this one. So one who waits costs nothing beyond its request.
 *
 * A pass is a part for each path that is up. A drop that some path misses is settled once that is
 * noted on the others (membership-record.c). Answers are given in a turn.
 *
 * Loop thread. A part is its volume's until it completes; a path is not up again before.
 *
 * Failures: a path that is left aside is waited for no longer. A sync holds if all paths kept it.
 * Drops hold if all tombstones were written, or the paths that lack them are to be emptied; in a
 * store of one path there is nobody to note that. */
#include <errno.h>

#include "store/internal.h"

void pass_init(struct store *s)
{
        for (unsigned k = 0; k < PASS_END; k++) {
                struct pass *p = &s->passes[k];

                p->kind = k;
                p->store = s;
                list_init(&p->waiting);
                list_init(&p->flying);
                for (unsigned i = 0; i < STORE_MAX_PATHS; i++) {
                        p->parts[i].pass = p;
                        p->parts[i].path = i;
                }
        }
}

/* A part came back, or its path is waited for no longer. */
static void pass_part(struct pass *p, unsigned path, int result)
{
        struct store *s = p->store;

        if (!(p->parts_waiting & 1u << path))
                return;
        p->parts_waiting &= ~(1u << path);
        if (result == 0) {
                p->well++;
        } else if (path_is_up(s, path)) {
                if (p->result == 0)
                        p->result = result;
        } else {
                p->bad = true;
                if (p->kind == PASS_DROPS)
                        set_path_missed(s, &s->paths[path]);
        }
        if (p->parts_waiting == 0)
                store_nudge(s);
}

static void part_done(struct store_put *req)
{
        struct pass_part *part = container_of(req, struct pass_part, put);

        pass_part(part->pass, part->path, req->result);
}

void pass_forget_path(struct store *s, unsigned path)
{
        for (unsigned k = 0; k < PASS_END; k++)
                pass_part(&s->passes[k], path, -EIO);
}

/* A path that is being suspended still writes what was asked of it. */
static bool takes_part(const struct pass *p, unsigned path)
{
        const struct path *q = &p->store->paths[path];

        return path_is_up(p->store, path) ||
               (p->kind == PASS_DROPS && q->suspending && !q->resting);
}

static void pass_begin(struct pass *p)
{
        struct store *s = p->store;

        list_splice(&p->flying, &p->waiting);
        p->running = true;
        p->parts_waiting = 0;
        for (unsigned i = 0; i < s->n_paths; i++)
                p->parts_waiting |= takes_part(p, i) ? 1u << i : 0;
        p->well = 0;
        p->result = 0;
        p->bad = p->noting = false;
        for (unsigned i = 0; i < s->n_paths; i++) {
                struct pass_part *part = &p->parts[i];

                if (!takes_part(p, i))
                        continue;
                part->put = (struct store_put){ .complete = part_done };
                if (p->kind == PASS_SYNC)
                        volume_sync(s->paths[i].volume, &part->put);
                else
                        volume_settle_drops(s->paths[i].volume, &part->put);
        }
        s->again = true;
}

/* NOTE_WAITS, or the answer. */
static int pass_result(struct pass *p)
{
        struct store *s = p->store;
        int r;

        if (p->kind == PASS_SYNC)
                return p->bad || p->well == 0 ? STORE_NOT_DURABLE : p->result;
        r = note_settle(s, &p->noting, &p->note_failures);
        if (r == NOTE_WAITS)
                return r;
        for (unsigned i = 0; i < s->n_paths; i++)
                if (s->paths[i].unsure)
                        r = -EIO;
        return r < 0 ? STORE_BYPASSED : p->result;
}

static void pass_step(struct pass *p)
{
        struct list_node done = LIST_INIT(done), *n;
        int r;

        if (!p->running && !list_empty(&p->waiting))
                pass_begin(p);
        if (!p->running || p->parts_waiting != 0)
                return;
        r = pass_result(p);
        if (r == NOTE_WAITS)
                return;
        p->running = false;
        list_splice(&done, &p->flying);
        while ((n = list_pop(&done))) {
                struct store_put *req = container_of(n, struct store_put, node);

                p->store->waiting--;
                req->result = r;
                req->complete(req);
        }
        store_nudge(p->store);
}

void pass_turn(struct store *s)
{
        for (unsigned k = 0; k < PASS_END; k++)
                pass_step(&s->passes[k]);
}

static void pass_join(struct store *s, enum pass_kind kind, struct store_put *req)
{
        s->waiting++;
        list_init(&req->node);
        list_append(&s->passes[kind].waiting, &req->node);
        store_nudge(s);
}

void store_sync(struct store *s, struct store_put *req)
{
        pass_join(s, PASS_SYNC, req);
}

void store_settle_drops(struct store *s, struct store_put *req)
{
        pass_join(s, PASS_DROPS, req);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Implements store_sync() and store_settle_drops(), whose work on the volumes is the same for all
 * callers. One pass over all volumes of each kind runs at a time and serves all requests that
 * waited for it. A request that arrives during a pass waits for the next one, because the running
 * pass may not cover what the request asks for.
 *
 * A pass has one request for each volume that is up. A drop that a volume misses is settled once
 * the other volumes have recorded the miss (membership-record.c). Callers' requests are completed
 * in an iteration.
 *
 * Loop thread. A volume uses its request until the request completes, and is not put into use again
 * before.
 *
 * Failures: a pass does not wait for a bypassed volume. A sync succeeds if all volumes completed
 * it. Drops are settled if all tombstones were written, or if the volumes without them are recorded
 * to be emptied; in a store of one volume no other volume can record that, and the request
 * fails. */
#include <errno.h>

#include "store/internal.h"

void sync_all_init(struct store *s)
{
        for (unsigned k = 0; k < SYNC_ALL_END; k++) {
                struct sync_all *p = &s->passes[k];

                p->kind = k;
                p->store = s;
                list_init(&p->waiting);
                list_init(&p->flying);
                for (unsigned i = 0; i < STORE_MAX_VOLUMES; i++) {
                        p->requests[i].pass = p;
                        p->requests[i].volume = i;
                }
        }
}

/* Notes the result of one volume's request, or that the pass no longer waits for the volume. */
static void sync_all_request_ended(struct sync_all *p, unsigned volume, int result)
{
        struct store *s = p->store;

        if (!(p->volumes_waiting & 1u << volume))
                return;
        p->volumes_waiting &= ~(1u << volume);
        if (result == 0) {
                p->succeeded++;
        } else if (member_is_up(s, volume)) {
                if (p->result == 0)
                        p->result = result;
        } else {
                p->bad = true;
                if (p->kind == SYNC_ALL_DROPS)
                        membership_volume_missed(s, &s->volumes[volume]);
        }
        if (p->volumes_waiting == 0)
                store_nudge(s);
}

static void request_done(struct store_put *req)
{
        struct sync_all_request *request = container_of(req, struct sync_all_request, put);

        sync_all_request_ended(request->pass, request->volume, req->result);
}

void sync_all_forget_volume(struct store *s, unsigned volume)
{
        for (unsigned k = 0; k < SYNC_ALL_END; k++)
                sync_all_request_ended(&s->passes[k], volume, -EIO);
}

/* Returns whether a pass includes the volume. A volume that is being suspended still writes
 * tombstones. */
static bool takes_part(const struct sync_all *p, unsigned volume)
{
        const struct member *q = &p->store->volumes[volume];

        return member_is_up(p->store, volume) ||
               (p->kind == SYNC_ALL_DROPS && q->suspending && !q->resting);
}

static void sync_all_begin(struct sync_all *p)
{
        struct store *s = p->store;

        list_splice(&p->flying, &p->waiting);
        p->running = true;
        p->volumes_waiting = 0;
        for (unsigned i = 0; i < s->n_volumes; i++)
                p->volumes_waiting |= takes_part(p, i) ? 1u << i : 0;
        p->succeeded = 0;
        p->result = 0;
        p->bad = p->noting = false;
        for (unsigned i = 0; i < s->n_volumes; i++) {
                struct sync_all_request *request = &p->requests[i];

                if (!takes_part(p, i))
                        continue;
                request->put = (struct store_put){ .complete = request_done };
                if (p->kind == SYNC_ALL_SYNC)
                        volume_sync(s->volumes[i].volume, &request->put);
                else
                        volume_settle_drops(s->volumes[i].volume, &request->put);
        }
        s->again = true;
}

/* Returns the result of a pass, or MEMBERSHIP_RECORD_WAITS if the record must be written first. */
static int sync_all_result(struct sync_all *p)
{
        struct store *s = p->store;
        int r;

        if (p->kind == SYNC_ALL_SYNC)
                return p->bad || p->succeeded == 0 ? STORE_NOT_DURABLE : p->result;
        r = membership_record_settle(s, &p->noting, &p->note_failures);
        if (r == MEMBERSHIP_RECORD_WAITS)
                return r;
        for (unsigned i = 0; i < s->n_volumes; i++)
                if (s->volumes[i].unsure)
                        r = -EIO;
        return r < 0 ? STORE_BYPASSED : p->result;
}

/* Returns whether a chunk that the request covers was found at startup in a state that no sync can
 * make durable. */
static bool is_in_doubt(const struct store *s, const struct store_sync *req)
{
        for (unsigned i = 0; i < s->n_volumes; i++)
                if (member_is_up(s, i) && (!req->of_one || i == store_volume_of(req->ref)) &&
                    volume_is_in_doubt(s->volumes[i].volume, req->of_one ? &req->ref : NULL))
                        return true;
        return false;
}

static void sync_all_step(struct sync_all *p)
{
        struct list_node done = LIST_INIT(done), *n;
        int r;

        if (!p->running && !list_empty(&p->waiting))
                sync_all_begin(p);
        if (!p->running || p->volumes_waiting != 0)
                return;
        r = sync_all_result(p);
        if (r == MEMBERSHIP_RECORD_WAITS)
                return;
        p->running = false;
        list_splice(&done, &p->flying);
        while ((n = list_pop(&done))) {
                struct store_sync *req = container_of(n, struct store_sync, node);

                p->store->waiting--;
                req->result = r == 0 && p->kind == SYNC_ALL_SYNC && is_in_doubt(p->store, req)
                                      ? STORE_NOT_DURABLE
                                      : r;
                req->complete(req);
        }
        store_nudge(p->store);
}

void sync_all_iterate(struct store *s)
{
        for (unsigned k = 0; k < SYNC_ALL_END; k++)
                sync_all_step(&s->passes[k]);
}

static void sync_all_join(struct store *s, enum sync_all_kind kind, struct store_sync *req)
{
        s->waiting++;
        list_init(&req->node);
        list_append(&s->passes[kind].waiting, &req->node);
        store_nudge(s);
}

void store_sync(struct store *s, struct store_sync *req)
{
        sync_all_join(s, SYNC_ALL_SYNC, req);
}

void store_settle_drops(struct store *s, struct store_sync *req)
{
        sync_all_join(s, SYNC_ALL_DROPS, req);
}

uint64_t store_lost_drops(const struct store *s)
{
        return s->lost_drops;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Implements settle.h.
 *
 * A short transfer continues from its last aligned byte; EINTR and EAGAIN are retried a bounded
 * number of times without progress; any other error is the request's result. The parts of a merged
 * request are settled one by one, and if it failed or was short, each is submitted alone. */
#include "io/settle.h"

#include <errno.h>

#include "base/clock.h"
#include "checked.h"
#include "io/counter.h"

enum { ATTEMPTS_MAX = 16, ALIGNMENT = 4096, REAP_MAX = 64 };

void settle_account(struct worker *w, uint64_t now)
{
        if (w->n_transfers > 0 && now > w->accounted_ns) {
                counter_add(&w->transfers_time_ns, w->n_transfers * (now - w->accounted_ns));
                counter_add(&w->busy_time_ns, now - w->accounted_ns);
        }
        w->accounted_ns = now;
}

/* Begins to wipe the memory of a read that failed or has a wrong checksum. Returns false if the
 * request needs no wiping, or has been wiped. */
static bool begin_wipe(struct worker *w, struct kio_request *req, int64_t result)
{
        if (req->op != KIO_READ || !req->wipe || req->wiping ||
            (result == 0 && req->crc == req->want_crc))
                return false;
        req->wiping = true;
        req->failure = (int32_t)result;
        req->progress = 0;
        counter_add(&w->wiped, 1);
        list_append(&w->compute[req->class], &req->node);
        return true;
}

void settle_request(struct worker *w, struct kio_request *req, int64_t result, uint64_t now)
{
        if (begin_wipe(w, req, result))
                return;
        req->result = result;
        req->done_ns = now;
        if (result < 0)
                counter_add(&w->errors[req->op], 1);
        else {
                counter_add(req->along ? &w->joined[req->op] : &w->ops[req->op], 1);
                if (kio_request_is_transfer(req) ||
                    (req->op == KIO_COPY && (req->buf || (req->src && req->vector))))
                        counter_add(&w->bytes[req->op], req->length);
        }
        req->state = KIO_DONE;
        list_append(&w->done, &req->node);
        counter_add(&w->finished, 1);
}

void settle_note_volume(struct worker *w, unsigned volume)
{
        struct list_node *list = &w->in_flight[volume];

        if (list_empty(list)) {
                w->busy &= ~(1u << volume);
                w->hanging &= ~(1u << volume);
                counter_set(&w->oldest_ns[volume], 0);
        } else {
                w->busy |= 1u << volume;
                counter_set(&w->oldest_ns[volume], kio_request_of(list->next)->device_ns);
        }
}

void settle_take_apart(struct worker *w, struct kio_request *req, struct list_node *ret_parts)
{
        if (req->parts)
                merge_split(&w->merge, req, ret_parts);
        else
                list_append(ret_parts, &req->node);
}

void settle_put_back(struct worker *w, struct list_node *parts)
{
        while (!list_empty(parts)) {
                struct kio_request *last = kio_request_of(parts->prev);

                list_unlink(&last->node);
                list_prepend(&w->ready[last->class], &last->node);
        }
}

static void resubmit(struct worker *w, struct kio_request *req)
{
        counter_add(&w->resubmitted, 1);
        list_prepend(&w->ready[req->class], &req->node);
}

/* Returns the request's progress after a transfer of `moved` more bytes. O_DIRECT can only
 * continue from an aligned byte; a request that is not aligned itself uses buffered I/O and can
 * continue anywhere. */
static uint64_t progress_after(const struct kio_request *req, uint64_t moved)
{
        uint64_t alignment = req->offset | (uintptr_t)req->buf | (uintptr_t)req->tail | req->length;
        uint64_t progress = req->progress + moved;

        if (progress < req->length && alignment % ALIGNMENT == 0)
                progress = round_down(progress, ALIGNMENT);
        return progress;
}

/* Handles the device's answer: moves the request to `done`, `compute` or back to `ready`. */
static void settle_answer(struct worker *w, struct kio_request *req, int32_t result, uint64_t now)
{
        uint64_t progress;

        req->settled_ns = now;
        if (result == -EINTR || result == -EAGAIN) {
                if (++req->attempts < ATTEMPTS_MAX)
                        resubmit(w, req);
                else
                        settle_request(w, req, result, now);
                return;
        }
        if (result < 0 || !kio_request_is_transfer(req)) {
                settle_request(w, req, MIN(result, 0), now);
                return;
        }
        /* More bytes than requested: the answer cannot be trusted. */
        if ((uint64_t)result > req->length - req->progress) {
                settle_request(w, req, -EIO, now);
                return;
        }
        progress = progress_after(req, (uint64_t)result);
        if (progress < req->length) {
                /* No bytes at all mean the end of the file. Transfers too short to advance are
                 * retried a bounded number of times. */
                if (progress > req->progress)
                        req->attempts = 0;
                else if (result == 0 || ++req->attempts >= ATTEMPTS_MAX) {
                        req->cut_short = true;
                        settle_request(w, req, -EIO, now);
                        return;
                }
                req->progress = progress;
                resubmit(w, req);
                return;
        }
        if (req->op == KIO_READ && req->crc_bytes > 0) {
                req->progress = 0; /* restarts from the beginning, to compute the checksum */
                list_append(&w->compute[req->class], &req->node);
                return;
        }
        settle_request(w, req, 0, now);
}

/* Handles the answer to a merged request: settles each part as if it had been answered alone, or
 * submits each part alone if the transfer failed or was short. */
static void settle_answer_of_parts(struct worker *w, struct kio_request *req, int32_t result,
                                   uint64_t now)
{
        bool all = result >= 0 && (uint64_t)result == req->length, along = false;
        struct list_node parts = LIST_INIT(parts), *n;
        uint64_t began = req->device_ns, payload = 0;
        enum kio_op op = req->op;

        merge_split(&w->merge, req, &parts);
        if (!all) {
                if (result < 0 && result != -EINTR && result != -EAGAIN)
                        counter_add(&w->errors[op], 1);
                list_for_each (&parts, i) {
                        kio_request_of(i)->attempts = 1;
                        counter_add(&w->resubmitted, 1);
                }
                settle_put_back(w, &parts);
        }
        list_for_each (&parts, i)
                payload += kio_request_of(i)->payload;
        while ((n = list_pop(&parts))) {
                struct kio_request *part = kio_request_of(n);

                part->device_ns = began;
                part->joined_payload = payload;
                part->along = along;
                along = true;
                settle_answer(w, part, (int32_t)part->length, now);
        }
}

unsigned settle_reap(struct worker *w)
{
        struct kio_done done[REAP_MAX];
        unsigned n, total = 0;

        while ((n = w->queue->ops->reap(w->queue, done, ARRAY_SIZE(done))) > 0) {
                uint64_t now = clock_mono_ns();

                settle_account(w, now);
                for (unsigned i = 0; i < n; i++) {
                        struct kio_request *req = done[i].req;

                        list_unlink(&req->node);
                        settle_note_volume(w, req->volume);
                        if (req->stuck)
                                w->n_stuck--;
                        else {
                                w->n_in_flight--;
                                w->n_in_flight_of[req->class]--;
                        }
                        if (kio_request_is_transfer(req))
                                w->n_transfers--;
                        if (req->parts)
                                settle_answer_of_parts(w, req, done[i].result, now);
                        else
                                settle_answer(w, req, done[i].result, now);
                }
                counter_set(&w->transfers, w->n_transfers);
                total += n;
                /* Stop after a bounded number, or a fast device would keep the thread from the
                 * rest of its iteration. */
                if (n < ARRAY_SIZE(done) || total >= w->places)
                        break;
        }
        return total;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Counts transfers. Runs on the loop thread, from kio_submit() and kio_reap(). Owns the
 * counters; cannot fail. The worker has left the times and the result in the request. */
#include "io/transfers.h"

#include <errno.h>

#include "checked.h"
#include "io/request.h"

void transfers_init(struct transfers *t, enum transfer_technology of_the_device)
{
        static const enum transfer_path paths[] = {
                [TRANSFERS_READ] = TRANSFER_DISK_TO_HOST,
                [TRANSFERS_WRITE] = TRANSFER_HOST_TO_DISK,
                [TRANSFERS_COPY] = TRANSFER_HOST_TO_HOST,
        };

        *t = (struct transfers){ 0 };
        for (unsigned i = 0; i < TRANSFERS_SERIES; i++) {
                t->series[i].path = paths[i];
                t->series[i].layout = TRANSFER_FULLY_CONTIGUOUS;
                t->series[i].technology = i == TRANSFERS_COPY ? TRANSFER_MEMCPY : of_the_device;
        }
}

static struct transfer_series *series_of(struct transfers *t, const struct kio_request *req)
{
        return &t->series[req->op == KIO_READ    ? TRANSFERS_READ
                          : req->op == KIO_WRITE ? TRANSFERS_WRITE
                                                 : TRANSFERS_COPY];
}

static enum transfer_result result_of(const struct kio_request *req)
{
        if (req->cut_short)
                return TRANSFER_ERROR_SHORT;
        if (req->result == -ETIMEDOUT)
                return TRANSFER_ERROR_TIMEOUT;
        if (req->result == -ECANCELED)
                return TRANSFER_ERROR_CANCELLED;
        if (req->result < 0)
                return TRANSFER_ERROR_IO;
        if (req->op == KIO_READ && req->crc != req->want_crc)
                return TRANSFER_ERROR_CHECKSUM;
        return TRANSFER_OK;
}

void transfers_begin(struct transfers *t, const struct kio_request *req)
{
        struct transfer_series *s = series_of(t, req);

        if (s->inflight++ == 0)
                s->busy_until_ns = MAX(s->busy_until_ns, req->submitted_ns);
}

/* Adds the time from busy_until_ns to the request's end. busy_until_ns is the end of the latest
 * request so far, or the submission of the first one after an idle time. Workers finish
 * independently, so requests may be reaped in another order than they finished. */
static void count_busy(struct transfer_series *s, const struct kio_request *req)
{
        if (req->done_ns > s->busy_until_ns) {
                s->busy_ns += req->done_ns - s->busy_until_ns;
                s->busy_until_ns = req->done_ns;
        }
        s->inflight--;
}

static uint64_t latency_of(const struct kio_request *req)
{
        uint64_t until = req->op == KIO_COPY ? req->done_ns : req->settled_ns;

        return until > req->device_ns ? until - req->device_ns : 0;
}

static uint64_t queued_of(const struct kio_request *req)
{
        return req->device_ns > req->submitted_ns ? req->device_ns - req->submitted_ns : 0;
}

/* Adds a request to the reader's window. A chunk counts as one region, because only the client
 * knows into how many pieces its own memory is divided. */
static void count_in_window(struct transfer_counts *c, const struct kio_request *req,
                            enum transfer_result result)
{
        struct transfer_record record = {
                .result = result,
                .blocks = 1,
                .regions = 1,
                .bytes = req->payload,
                .device_bytes = req->length,
                .size = req->joined_payload,
                .latency_ns = latency_of(req),
        };

        if (result == TRANSFER_OK && req->along)
                transfer_counts_add_blocks(c, &record);
        else
                transfer_counts_add(c, &record);
}

void transfers_end(struct transfers *t, const struct kio_request *req)
{
        struct transfer_series *s = series_of(t, req);
        enum transfer_result result = result_of(req);

        count_busy(s, req);
        if (t->window)
                count_in_window(&t->window[s - t->series], req, result);
        if (result != TRANSFER_OK) {
                s->ops[result]++;
                return;
        }
        s->blocks++;
        s->bytes += req->payload;
        s->device_bytes += req->length;
        if (req->along)
                return; /* only the first part of a merged operation counts the operation */
        s->ops[TRANSFER_OK]++;
        histogram_add(&s->sizes,
                      (req->joined_payload > 0 ? req->joined_payload : req->payload) - 1);
        histogram_add(&s->latencies, latency_of(req));
        histogram_add(&s->queued, queued_of(req));
}

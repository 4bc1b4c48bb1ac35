/* SPDX-License-Identifier: Apache-2.0 */
/* Implements slice.h. Runs on the worker's thread, between two entries into its queue. Owns
 * nothing; the request records its own progress. Memory that vanishes during a slice (guard.h)
 * ends the request with -EFAULT. */
#include "io/slice.h"

#include <string.h>

#include "checked.h"
#include "copy.h"
#include "io/guard.h"
#include "io/crc.h"

enum { SLICE_TAIL_BYTES = 4096 };

struct slice {
        struct kio_request *req;
        uint64_t bytes;
};

/* Processes one slice: a part of the body, or all payload bytes of the tail. */
static void run(void *userdata)
{
        const struct slice *s = userdata;
        struct kio_request *req = s->req;
        char *buf = req->buf ? (char *)req->buf + req->progress : NULL;
        const char *src =
                req->op == KIO_COPY && req->src ? (const char *)req->src + req->progress : NULL;

        if (req->op == KIO_READ && req->vector) {
                uint64_t bytes = s->bytes;

                buf = kio_request_at(req, req->progress, &bytes);
        } else if (req->vector) {
                char *at = (char *)req->vector->iov_base + req->vector_done;

                if (req->src)
                        buf = at;
                else
                        src = at;
        }

        if (s->bytes > 0 && req->progress >= req->body) {
                if (src) {
                        memcpy(req->tail, src, s->bytes);
                        memset((char *)req->tail + s->bytes, 0, SLICE_TAIL_BYTES - s->bytes);
                }
                req->crc = kio_crc32c_extend(req->crc, req->tail, s->bytes);
                if (!src)
                        memcpy(buf, req->tail, s->bytes);
        } else if (src && buf && req->unchecked) {
                copy_past_caches(buf, src, s->bytes);
        } else if (src && buf) {
                req->crc = kio_copy_crc32c(req->crc, buf, src, s->bytes);
        } else {
                req->crc = kio_crc32c_extend(req->crc, src ? src : buf, s->bytes);
        }
}

struct wipe {
        char *at;
        uint64_t bytes;
};

static void wipe(void *userdata)
{
        const struct wipe *w = userdata;

        memset(w->at, 0, w->bytes);
}

/* Wipes page by page, since some pages have vanished and only the others can be written. */
static void wipe_pages(struct wipe all)
{
        while (all.bytes > 0) {
                uint64_t page = SLICE_TAIL_BYTES - (uintptr_t)all.at % SLICE_TAIL_BYTES;
                struct wipe one = { .at = all.at, .bytes = MIN(all.bytes, page) };

                (void)guard_call(wipe, &one);
                all.at += one.bytes;
                all.bytes -= one.bytes;
        }
}

bool slice_wipe(struct kio_request *req, uint64_t budget, uint64_t *ret_bytes)
{
        uint64_t total = req->tail ? req->crc_bytes : req->length;
        struct wipe w = { .bytes = MIN(budget, total - req->progress) };

        w.at = kio_request_at(req, req->progress, &w.bytes);
        if (!req->guard_src)
                wipe(&w);
        else if (guard_call(wipe, &w) < 0)
                wipe_pages(w);
        req->progress += w.bytes;
        *ret_bytes = w.bytes;
        return req->progress == total;
}

int slice_run(struct kio_request *req, uint64_t budget, uint64_t *ret_bytes)
{
        uint64_t total = req->op == KIO_COPY ? req->length : req->crc_bytes;
        struct slice s = { .req = req, .bytes = total - req->progress };
        int r = 0;

        /* A slice covers a part of the body; the tail is processed as a whole. */
        if (req->progress < req->body)
                s.bytes = MIN(MIN(budget, s.bytes), req->body - req->progress);
        if (req->op == KIO_COPY && req->vector)
                s.bytes = MIN(s.bytes, req->vector->iov_len - req->vector_done);
        if (req->op == KIO_READ && s.bytes > 0)
                (void)kio_request_at(req, req->progress, &s.bytes);
        if (req->progress == 0)
                req->crc = 0;
        if (req->guard_src)
                r = guard_call(run, &s);
        else
                run(&s);
        if (r < 0)
                return r;
        req->progress += s.bytes;
        *ret_bytes = s.bytes;
        if (req->op == KIO_COPY && req->vector) {
                req->vector_done += s.bytes;
                if (req->vector_done == req->vector->iov_len && req->progress < total) {
                        req->vector++;
                        req->vector_done = 0;
                }
        }
        return req->progress == total;
}

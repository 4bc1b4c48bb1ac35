/* SPDX-License-Identifier: Apache-2.0 */
/* I/O without threads; see inline-io.h. Requests wait in two lists, calls and everything else;
 * kio_reap() takes requests, performs them by system calls or passes them to the backend, and
 * completes them. The descriptor is always readable, so that a waiting caller enters kio_reap() at
 * once.
 *
 * Failures of system calls or the backend, and planned failures, are the results of requests. */
#include "inline-io.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "checked.h"
#include "io/backend.h"
#include "io/io.h"
#include "io/guard.h"

enum { TAIL_BYTES = 4096 };

struct kio {
        struct list_node calls, others;
        uint64_t pending;
        int fd;
        unsigned depth;
        struct kio_queue *queue; /* NULL: system calls */
        struct kio_stats stats;
        struct transfers transfers; /* nothing is recorded */
};

static struct inline_io_plan plan;

void inline_io_set(const struct inline_io_plan *p)
{
        plan = *p;
}

int kio_start_with(struct kio **ret, const struct kio_params *params,
                   const struct kio_backend *backend, char ret_error[static 256])
{
        struct kio *io = calloc(1, sizeof(*io));

        assert(io && guard_install() == 0);
        list_init(&io->calls);
        list_init(&io->others);
        io->depth = params->depth;
        io->fd = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
        assert(io->fd >= 0);
        if (backend) {
                struct kio_queue_params queue = {
                        .depth = params->depth,
                        .pool = params->pool,
                        .pool_bytes = params->pool_bytes,
                        .piece_bytes = params->piece_bytes,
                        .probe_fd = -1,
                        .error = ret_error,
                };
                int r = backend->open(&io->queue, &queue);

                if (r < 0) {
                        close(io->fd);
                        free(io);
                        return r;
                }
        }
        *ret = io;
        return 0;
}

int kio_start(struct kio **ret, const struct kio_params *params, char ret_error[static 256])
{
        return kio_start_with(ret, params, NULL, ret_error);
}

struct kio *kio_stop(struct kio *io)
{
        if (!io)
                return NULL;
        assert(io->pending == 0);
        if (io->queue)
                io->queue->ops->close(io->queue);
        close(io->fd);
        free(io);
        return NULL;
}

int kio_fd(const struct kio *io)
{
        return io->fd;
}

/* Returns the bytes of the request that precede the tail: see io.h. */
static uint64_t body_of(const struct kio_request *req)
{
        if (!req->tail || (req->op == KIO_COPY && req->buf))
                return req->length;
        switch (req->op) {
        case KIO_READ:
                assert(req->length == round_up(req->crc_bytes, TAIL_BYTES));
                return round_down(req->crc_bytes, TAIL_BYTES);
        case KIO_WRITE:
                assert(req->length > 0 && req->length % TAIL_BYTES == 0);
                return req->length - TAIL_BYTES;
        case KIO_COPY:
                return round_down(req->length, TAIL_BYTES);
        default:
                return req->length;
        }
}

void kio_submit(struct kio *io, struct kio_request *req, unsigned affinity)
{
        assert(req->state == KIO_IDLE);
        assert(req->op < KIO_OP_END && req->class < KIO_CLASS_END && req->volume < KIO_VOLUMES_MAX);
        assert(req->op != KIO_READ || req->crc_bytes <= req->length);
        assert(req->op != KIO_CALL || req->call);
        req->state = KIO_QUEUED;
        req->submitted_ns = clock_mono_ns();
        req->progress = 0;
        req->parts = NULL;
        req->pieces = req->vector && req->op != KIO_COPY ? req->room : req->own_pieces;
        req->body = body_of(req);
        if (req->region) {
                assert(!atomic_load(&req->region->closing));
                req->region->in_flight++;
        }
        list_append(req->op == KIO_CALL ? &io->calls : &io->others, &req->node);
        io->pending++;
}

void kio_flush(struct kio *io)
{
}

static int64_t transfer(const struct kio_request *req)
{
        uint64_t n;

        for (uint64_t done = 0; done < req->length; done += n) {
                bool in_body = done < req->body;
                off_t offset = (off_t)(req->offset + done);
                char *at;
                ssize_t k;

                n = (in_body ? req->body : req->length) - done;
                at = in_body ? kio_request_at(req, done, &n)
                             : (char *)req->tail + (done - req->body);
                k = req->op == KIO_READ ? pread(req->fd, at, n, offset)
                                        : pwrite(req->fd, at, n, offset);
                if (k < 0 && errno != EINTR)
                        return -errno;
                if (k == 0)
                        return -EIO;
                n = k < 0 ? 0 : (uint64_t)k;
        }
        return 0;
}

/* Computes a checksum, and copies on the way: from `src` or a vector to `buf`, a vector or nowhere;
 * bytes beyond the body go through the tail. */
static void compute(void *userdata)
{
        struct kio_request *req = userdata;
        bool copies = req->op == KIO_COPY;
        uint64_t total = copies ? req->length : req->crc_bytes, used = 0, n;
        const struct iovec *v = copies ? req->vector : NULL;

        req->crc = 0;
        for (uint64_t at = 0; at < total; at += n) {
                char *place = v ? (char *)v->iov_base + used : NULL;
                char *to = v && req->src ? place : req->buf ? (char *)req->buf + at : NULL;
                const char *from = !copies          ? NULL
                                   : v && !req->src ? place
                                                    : (const char *)req->src + at;
                char *tail = at < req->body ? NULL : (char *)req->tail + (at - req->body);

                n = (at < req->body ? MIN(total, req->body) : total) - at;
                if (!copies)
                        to = kio_request_at(req, at, &n);
                if (v) {
                        n = MIN(n, v->iov_len - used);
                        used += n;
                        if (used == v->iov_len) {
                                v++;
                                used = 0;
                        }
                }
                if (at >= req->body) {
                        if (from) {
                                memcpy(tail, from, n);
                                memset(tail + n, 0, TAIL_BYTES - (at - req->body) - n);
                        }
                        req->crc = kio_crc32c_extend(req->crc, tail, n);
                        if (!from)
                                memcpy(to, tail, n);
                } else if (from && to && req->unchecked) {
                        memcpy(to, from, n);
                } else if (from && to) {
                        req->crc = kio_copy_crc32c(req->crc, to, from, n);
                } else {
                        req->crc = kio_crc32c_extend(req->crc, from ? from : to, n);
                }
        }
}

static int64_t compute_guarded(struct kio_request *req)
{
        if (req->guard_src)
                return guard_call(compute, req);
        compute(req);
        return 0;
}

static void wipe_memory(void *userdata)
{
        const struct kio_request *req = userdata;
        uint64_t total = req->tail ? req->crc_bytes : req->length, n;

        for (uint64_t at = 0; at < total; at += n) {
                n = total - at;
                memset(kio_request_at(req, at, &n), 0, n);
        }
}

static void wipe(struct kio_request *req)
{
        if (req->guard_src)
                (void)guard_call(wipe_memory, req);
        else
                wipe_memory(req);
}

static bool is_to_fail(const struct kio_request *req)
{
        if (plan.fail_in == 0 || req->op == KIO_COPY || req->op == KIO_CALL ||
            (plan.fail_ops != 0 && !(plan.fail_ops >> req->op & 1)))
                return false;
        return --plan.fail_in == 0;
}

static int64_t perform(struct kio_request *req)
{
        int64_t r;

        if (is_to_fail(req))
                return plan.error;
        switch (req->op) {
        case KIO_READ:
                r = transfer(req);
                return r < 0 || req->crc_bytes == 0 ? r : compute_guarded(req);
        case KIO_WRITE:
                return transfer(req);
        case KIO_SYNC:
                return fdatasync(req->fd) < 0 ? -errno : 0;
        case KIO_COPY:
                return compute_guarded(req);
        case KIO_CALL:
                return req->call(req);
        default:
                abort();
        }
}

static void complete(struct kio *io, struct kio_request *req, int64_t result)
{
        req->result = result;
        if (req->op == KIO_READ && req->wipe && (result < 0 || req->crc != req->want_crc))
                wipe(req);
        if (result < 0)
                io->stats.errors[req->op]++;
        else
                io->stats.ops[req->op]++;
        req->done_ns = clock_mono_ns();
        req->state = KIO_IDLE;
        if (req->region)
                req->region->in_flight--;
        io->pending--;
        req->complete(req);
}

static void push(struct kio *io, struct kio_request *req)
{
        int r = io->queue->ops->push(io->queue, req);

        assert(r == 0); /* the backend has room for all */
}

static unsigned reap_queue(struct kio *io)
{
        struct kio_done done[64];
        unsigned n = io->queue->ops->reap(io->queue, done, ARRAY_SIZE(done)), completed = 0;

        for (unsigned i = 0; i < n; i++) {
                struct kio_request *req = done[i].req;
                int64_t r = done[i].result;

                if (r > 0)
                        req->progress += (uint64_t)r;
                if (r > 0 && req->progress < req->length) {
                        push(io, req);
                        continue;
                }
                if (r >= 0 && req->progress < req->length)
                        r = -EIO;
                if (r > 0)
                        r = req->op == KIO_READ && req->crc_bytes > 0 ? compute_guarded(req) : 0;
                complete(io, req, r);
                completed++;
        }
        return completed;
}

unsigned kio_reap(struct kio *io)
{
        uint64_t most = plan.at_once ? MIN((uint64_t)plan.at_once, io->pending) : io->pending;
        unsigned completed = 0;

        for (uint64_t i = 0; i < most && !(list_empty(&io->others) && list_empty(&io->calls));
             i++) {
                struct list_node *from = list_empty(&io->others) ? &io->calls : &io->others;
                struct list_node *node =
                        plan.newest_first && from == &io->others ? from->prev : from->next;
                struct kio_request *req = container_of(node, struct kio_request, node);

                list_unlink(node);
                if (io->queue && req->op != KIO_COPY && req->op != KIO_CALL) {
                        push(io, req);
                        continue;
                }
                complete(io, req, perform(req));
                completed++;
        }
        return io->queue ? completed + reap_queue(io) : completed;
}

uint64_t kio_pending(const struct kio *io)
{
        return io->pending;
}

void kio_register_piece(struct kio *io, unsigned piece, void (*done)(void *userdata, int r),
                        void *userdata)
{
        done(userdata, 0);
}

/* Registers nothing, like the POSIX backend, and takes an iteration to report that. */
static int region_call(struct kio_request *req)
{
        return 0;
}

static void region_done(struct kio_request *req)
{
        struct kio_region *region = container_of(req, struct kio_region, step);
        bool closed = atomic_load(&region->closing);

        region->state = closed ? KIO_REGION_NONE : KIO_REGION_REGISTERED;
        region->result = closed ? 0 : -EOPNOTSUPP;
        atomic_store(&region->closing, false);
        region->complete(region);
}

static void region_step(struct kio *io, struct kio_region *region, enum kio_region_state state)
{
        bool under_way = region->state == KIO_REGION_REGISTERING;

        region->state = state;
        if (under_way)
                return;
        region->step = (struct kio_request){ .op = KIO_CALL,
                                             .call = region_call,
                                             .complete = region_done };
        kio_submit(io, &region->step, 0);
}

void kio_region_register(struct kio *io, struct kio_region *region)
{
        assert(region->state == KIO_REGION_NONE && region->bytes > 0);
        region_step(io, region, KIO_REGION_REGISTERING);
}

void kio_region_unregister(struct kio *io, struct kio_region *region)
{
        assert(region->state == KIO_REGION_REGISTERING || region->state == KIO_REGION_REGISTERED);
        assert(region->in_flight == 0);
        atomic_store(&region->closing, true);
        region_step(io, region, KIO_REGION_UNREGISTERING);
}

void kio_get_info(const struct kio *io, struct kio_info *ret)
{
        *ret = (struct kio_info){ .backend = "inline",
                                  .reason = "",
                                  .ring_flags = "",
                                  .registered_reason = "",
                                  .workers = 1,
                                  .depth = io->depth };
}

void kio_get_stats(const struct kio *io, struct kio_stats *ret)
{
        *ret = io->stats;
        ret->queued = io->pending;
}

const struct transfers *kio_transfers(const struct kio *io)
{
        return &io->transfers;
}

void kio_record_transfers(struct kio *io, struct transfer_counts *window)
{
        io->transfers.window = window;
}

bool kio_is_alive(struct kio *io)
{
        return true;
}

uint64_t kio_oldest(const struct kio *io, unsigned volume)
{
        return 0;
}

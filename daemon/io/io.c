/* SPDX-License-Identifier: Apache-2.0 */
/* The loop thread's side of io/: starts the workers and the blocking-call threads, distributes
 * requests over them, reaps completions, and reports on all of it.
 *
 * Owns the workers, the blocking-call threads and the completion queue. All functions run on the
 * loop thread.
 *
 * Choice of the back end: for each back end and each of its feature levels, best first, every
 * worker opens its queue. If one fails, all close and the next level is tried, so that all
 * workers run on the same. The last refusal is kept as the reason. Later failures are results of
 * requests; nothing else here can fail. */
#include "io/io.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "build-config.h"
#include "io/blocking-call.h"
#include "checked.h"
#include "cleanup.h"
#include "io/counter.h"
#include "io/guard.h"
#include "io/transfers.h"
#include "io/buffers.h"
#include "io/worker.h"

/* The load that one worker gets before the next is woken. Transfers are also limited to its
 * depth. */
enum {
        KIO_TRANSFER_BYTES = 32 << 20,
        KIO_COPY_BYTES = 256 * 1024,
        KIO_CHECKSUM_SHARE = 4, /* a checksum costs this fraction of a copy */
};

enum {
        KIO_WORKERS_MAX = 256,
        KIO_DEPTH_MAX = 4096,
        KIO_REAP_ROUNDS = 4,
        KIO_REAP_MAX = 64,
        KIO_TAIL_BYTES = 4096
};

struct kio {
        struct worker *workers;
        unsigned n_workers; /* number of initialized ones */
        unsigned depth;
        unsigned places; /* most reads and writes of one worker at the device */
        uint64_t spread_bytes;
        struct worker *reader; /* got the last read, if reads are spread */
        struct blocking_call
                blocking_calls[KIO_VOLUMES_MAX]; /* number 0, and those that have had a call */
        struct completion_queue completion_queue;
        struct list_node taken; /* out of the queue, to be completed by the next kio_reap() */
        uint64_t pending;

        const struct kio_backend *backend;
        char reason[512];
        char ring_flags[128];

        unsigned registering; /* workers that have not yet answered */
        int registration_result, registration_error;
        char registered_reason[256];
        bool registered_any; /* every ring has registered at least one piece */
        uint64_t registrations_refused;
        void (*registered)(void *userdata, int r);
        void *registered_userdata;

        struct regions regions;
        struct transfers transfers;
        struct stages *stages; /* never NULL */
        struct stages no_stages;
};

DEFINE_CLEANUP(struct kio *, kio_stop);

static int kio_fail(char ret_error[static 256], int error, const char *text)
{
        if (ret_error)
                snprintf(ret_error, 256, "%s: %s", text, strerror(error));
        return -error;
}

/* Opens this feature level on every worker, or closes all again if one fails. Returns 0, or the
 * first failure and its text. */
static int kio_try(struct kio *io, const struct kio_backend *backend, unsigned rung,
                   char ret_error[static 256])
{
        int r = 0;

        for (unsigned i = 0; i < io->n_workers; i++) {
                struct worker *w = &io->workers[i];

                w->backend = backend;
                w->params.rung = rung;
                w->error[0] = '\0';
                worker_give_order(w, WORKER_OPEN);
        }
        for (unsigned i = 0; i < io->n_workers; i++) {
                int k = worker_wait_answer(&io->workers[i]);

                if (k < 0 && r == 0) {
                        r = k;
                        snprintf(ret_error, 256, "%s",
                                 io->workers[i].error[0] ? io->workers[i].error : strerror(-k));
                }
        }
        if (r == 0)
                return 0;
        for (unsigned i = 0; i < io->n_workers; i++)
                worker_give_order(&io->workers[i], WORKER_CLOSE);
        for (unsigned i = 0; i < io->n_workers; i++)
                worker_wait_answer(&io->workers[i]);
        return r;
}

/* Opens the back end at its best feature level that works. io->reason keeps the last refusal. */
static int kio_descend(struct kio *io, const struct kio_backend *backend)
{
        char error[256];
        int r = -EOPNOTSUPP;

        for (unsigned rung = 0; rung < backend->rungs; rung++) {
                r = kio_try(io, backend, rung, error);
                if (r == 0) {
                        io->backend = backend;
                        transfers_init(&io->transfers,
                                       strcmp(backend->name, kio_backend_posix.name) == 0
                                               ? TRANSFER_POSIX
                                               : TRANSFER_IO_URING);
                        return 0;
                }
                snprintf(io->reason, sizeof(io->reason), "%s", error);
        }
        return r;
}

static int kio_open_queues(struct kio *io, const char *name)
{
        int r = -EOPNOTSUPP;

        if (strcmp(name, "posix") != 0) {
#if HAVE_LIBURING
                r = kio_descend(io, &kio_backend_uring);
                if (r == 0)
                        return 0;
#else
                snprintf(io->reason, sizeof(io->reason), "this daemon was built without liburing");
#endif
        }
        if (strcmp(name, "io_uring") == 0)
                return r;
        return kio_descend(io, &kio_backend_posix);
}

static void kio_prepare(struct kio *io, struct kio_request *req);

/* Submits a request to one worker, whatever its operation, because only that worker can access
 * its ring. */
static void kio_submit_to_worker(struct kio *io, struct kio_request *req, unsigned worker)
{
        kio_prepare(io, req);
        worker_submit(&io->workers[worker], req);
}

static int kio_start_workers(struct kio *io, const struct kio_params *params)
{
        int r;

        io->workers =
                aligned_alloc(_Alignof(struct worker), params->workers * sizeof(*io->workers));
        if (!io->workers)
                return -ENOMEM;
        for (; io->n_workers < params->workers; io->n_workers++) {
                struct worker *w = &io->workers[io->n_workers];

                r = worker_init(w, io->n_workers, &io->completion_queue);
                if (r < 0)
                        return r;
                w->registration_error = &io->registration_error;
                w->wanted_depth = io->depth;
                w->hang_ns = params->hang_ns;
                w->spin.limit_ns = params->spin_ns;
                w->params = (struct kio_queue_params){
                        .depth = worker_queue_depth(io->depth),
                        .threads = params->posix_threads,
                        .pool = params->pool,
                        .pool_bytes = params->pool_bytes,
                        .piece_bytes = params->piece_bytes,
                        .pool_has_data = params->pool_has_data,
                        .more_pools = params->more_pools,
                        .n_more_pools = params->n_more_pools,
                        .lock_fds = params->lock_fds,
                        .n_lock_fds = params->n_lock_fds,
                        .probe_fd = params->probe_fd,
                        .worker = io->n_workers,
                        .error = w->error,
                };
        }
        return 0;
}

static int kio_start_on(struct kio **ret, const struct kio_params *params,
                        const struct kio_backend *backend, char ret_error[static 256])
{
        _cleanup_(kio_stopp) struct kio *io = NULL;
        int r;

        if (params->workers == 0 || params->workers > KIO_WORKERS_MAX || params->depth == 0)
                return kio_fail(ret_error, EINVAL, "I/O workers and their depth");
        if (params->n_more_pools > KIO_MORE_POOLS_MAX)
                return kio_fail(ret_error, EINVAL, "I/O pools");
        if (!backend && strcmp(params->backend, "auto") != 0 &&
            strcmp(params->backend, "io_uring") != 0 && strcmp(params->backend, "posix") != 0)
                return kio_fail(ret_error, EINVAL,
                                "the I/O backend is not one of auto, io_uring, posix");
        r = guard_install();
        if (r < 0)
                return kio_fail(ret_error, -r, "installing the SIGBUS handler");

        io = aligned_alloc(_Alignof(struct kio), sizeof(*io));
        if (!io)
                return kio_fail(ret_error, ENOMEM, "I/O");
        *io = (struct kio){ 0 };
        list_init(&io->taken);
        r = completion_queue_init(&io->completion_queue);
        if (r < 0) {
                free(TAKE_PTR(io)); /* kio_stop() must not see it: nothing is initialized */
                return kio_fail(ret_error, -r, "eventfd");
        }
        io->stages = params->stages ? params->stages : &io->no_stages;
        io->depth = MIN(params->depth, (unsigned)KIO_DEPTH_MAX);
        io->spread_bytes = params->spread_bytes;
        r = blocking_call_init(&io->blocking_calls[0], 0, &io->completion_queue);
        if (r == 0)
                r = kio_start_workers(io, params);
        if (r < 0)
                return kio_fail(ret_error, -r, "starting I/O threads");

        r = backend ? kio_descend(io, backend) : kio_open_queues(io, params->backend);
        if (r < 0) {
                if (ret_error)
                        snprintf(ret_error, 256, "%.255s", io->reason);
                return r;
        }
        regions_init(&io->regions, io, io->workers, io->n_workers, kio_submit_to_worker);
        io->regions.huge = params->huge_regions;
        io->places =
                strcmp(io->backend->name, kio_backend_posix.name) == 0 && params->posix_threads > 0
                        ? MIN(io->depth, params->posix_threads)
                        : io->depth;
        snprintf(io->ring_flags, sizeof(io->ring_flags), "%s",
                 io->backend->describe(io->workers[0].queue));
        for (unsigned i = 0; i < io->n_workers; i++)
                worker_give_order(&io->workers[i], WORKER_RUN);
        *ret = TAKE_PTR(io);
        return 0;
}

int kio_start(struct kio **ret, const struct kio_params *params, char ret_error[static 256])
{
        return kio_start_on(ret, params, NULL, ret_error);
}

int kio_start_with(struct kio **ret, const struct kio_params *params,
                   const struct kio_backend *backend, char ret_error[static 256])
{
        return kio_start_on(ret, params, backend, ret_error);
}

struct kio *kio_stop(struct kio *io)
{
        if (!io)
                return NULL;
        /* The threads finish everything submitted before they end. */
        for (unsigned i = 0; i < io->n_workers; i++)
                worker_fini(&io->workers[i]);
        for (unsigned i = 0; i < KIO_VOLUMES_MAX; i++)
                blocking_call_fini(&io->blocking_calls[i]);
        regions_fini(&io->regions);
        completion_queue_fini(&io->completion_queue);
        free(io->workers);
        free(io);
        return NULL;
}

int kio_fd(const struct kio *io)
{
        return io->completion_queue.fd;
}

/* Returns how many bytes of the request belong to `buf`, or to `src` in a copy without `buf`;
 * those beyond belong to the tail. */
static uint64_t kio_body(const struct kio_request *req)
{
        uint64_t body;

        if (!req->tail || (req->op == KIO_COPY && req->buf))
                return req->length;
        assert((uintptr_t)req->tail % KIO_TAIL_BYTES == 0);
        switch (req->op) {
        case KIO_READ:
                body = round_down(req->crc_bytes, KIO_TAIL_BYTES);
                assert(req->length == round_up(req->crc_bytes, KIO_TAIL_BYTES));
                return body;
        case KIO_WRITE:
                assert(req->length > 0 && req->length % KIO_TAIL_BYTES == 0);
                return req->length - KIO_TAIL_BYTES;
        case KIO_COPY:
                return round_down(req->length, KIO_TAIL_BYTES);
        default:
                return req->length;
        }
}

static void kio_prepare(struct kio *io, struct kio_request *req)
{
        assert(req->state == KIO_IDLE);
        assert(req->op < KIO_OP_END && req->class < KIO_CLASS_END && req->volume < KIO_VOLUMES_MAX);
        assert(req->op != KIO_READ || req->crc_bytes <= req->length);
        assert(req->op != KIO_CALL || req->call);

        req->state = KIO_QUEUED;
        req->body = kio_body(req);
        req->progress = 0;
        if (req->region) {
                assert(!atomic_load(&req->region->closing));
                req->region->in_flight++;
        }
        req->attempts = 0;
        req->registered = 0;
        req->parts = NULL;
        req->pieces = req->vector && req->op != KIO_COPY ? req->room : req->own_pieces;
        req->along = req->wiping = req->cut_short = false;
        req->joined_payload = 0;
        req->submitted_ns = req->device_ns = req->settled_ns = clock_mono_ns();
        if (req->payload > 0)
                transfers_begin(&io->transfers, req);
        io->pending++;
}

static struct blocking_call *kio_blocking_call(struct kio *io, unsigned volume)
{
        struct blocking_call *c = &io->blocking_calls[volume];

        /* If the thread cannot be started, the calls run on the thread of volume 0. */
        return c->has_thread || blocking_call_init(c, volume, &io->completion_queue) == 0
                       ? c
                       : &io->blocking_calls[0];
}

/* Returns the worker for a read if reads are spread, or NULL if all workers fail. A batch ends
 * when its last checksum is compared, and a device answers many reads at about the same time;
 * several workers therefore compute the checksums concurrently. Each gets a few reads in a row,
 * which may be adjacent. Only reads count as load, because writes occupy other places and
 * compute nothing. */
static struct worker *kio_choose_reader(const struct kio *io)
{
        struct worker *least = NULL;
        uint64_t fewest = UINT64_MAX;

        for (unsigned i = 0; i < io->n_workers; i++) {
                struct worker *w = &io->workers[i];
                uint64_t shares =
                        MAX(w->load.read_bytes / io->spread_bytes, w->load.reads / io->places);

                if (shares < fewest && !counter_get(&w->failing)) {
                        fewest = shares;
                        least = w;
                }
        }
        return least;
}

/* Returns the worker for a request: the first that is not busy. Waking fewer workers is better,
 * because each needs a core besides those of the loop and the client, and a batch ends when the
 * last of them has run. A failing worker looks idle, and is chosen only if it is the request's
 * by affinity. */
static struct worker *kio_choose(struct kio *io, const struct kio_request *req, unsigned affinity)
{
        struct worker *least = &io->workers[0];

        if (req->op == KIO_READ && io->spread_bytes) {
                struct worker *reader = kio_choose_reader(io);

                return reader ? reader : &io->workers[affinity % io->n_workers];
        }
        for (unsigned i = 0; i < io->n_workers; i++) {
                struct worker *w = &io->workers[i];

                if (counter_get(&w->failing))
                        continue;
                if (req->op == KIO_COPY ? w->load.copy_bytes < KIO_COPY_BYTES
                                        : w->load.transfers < io->places &&
                                                  w->load.transfer_bytes < KIO_TRANSFER_BYTES)
                        return w;
                if (w->load.copy_bytes < least->load.copy_bytes)
                        least = w;
        }
        return req->op == KIO_COPY ? least : &io->workers[affinity % io->n_workers];
}

static void kio_load(struct worker *w, struct kio_request *req)
{
        req->worker = w->index;
        req->load = req->length;
        if (req->op != KIO_COPY) {
                w->load.transfers++;
                w->load.transfer_bytes += req->load;
                if (req->op == KIO_READ) {
                        w->load.reads++;
                        w->load.read_bytes += req->load;
                }
                return;
        }
        if (!req->buf && !(req->src && req->vector))
                req->load /= KIO_CHECKSUM_SHARE;
        w->load.copy_bytes += req->load;
}

static void kio_unload(struct kio *io, const struct kio_request *req)
{
        struct worker *w = &io->workers[req->worker];

        if (req->op == KIO_CALL)
                return;
        if (req->op == KIO_COPY) {
                w->load.copy_bytes -= req->load;
        } else {
                w->load.transfers--;
                w->load.transfer_bytes -= req->load;
                if (req->op == KIO_READ) {
                        w->load.reads--;
                        w->load.read_bytes -= req->load;
                }
        }
}

void kio_submit(struct kio *io, struct kio_request *req, unsigned affinity)
{
        struct worker *w;

        kio_prepare(io, req);
        if (req->op == KIO_CALL) {
                blocking_call_submit(kio_blocking_call(io, req->volume), req);
                return;
        }
        w = kio_choose(io, req, affinity);
        kio_load(w, req);
        if (req->op == KIO_READ && io->spread_bytes && w != io->reader) {
                /* The previous worker has its share and can begin before the other workers have
                 * theirs. */
                if (io->reader)
                        worker_flush(io->reader);
                io->reader = w;
        }
        worker_submit(w, req);
}

void kio_flush(struct kio *io)
{
        for (unsigned i = 0; i < io->n_workers; i++)
                worker_flush(&io->workers[i]);
}

/* Records the times of a finished operation. A copy has no device, so its answer counts as
 * immediate. */
static void kio_record_stages(struct kio *io, const struct kio_request *req)
{
        struct stages_event event = {
                .kind = STAGES_OPERATION,
                .op = (uint8_t)req->op,
                .background = req->class == KIO_CLASS_BACKGROUND,
                .bytes = req->length,
                .chunks = req->payload,
                .at_ns = { req->submitted_ns, req->device_ns,
                           req->op == KIO_COPY ? req->device_ns : req->settled_ns, req->done_ns,
                           clock_mono_ns() },
        };

        if (req->op != KIO_CALL)
                stages_add(io->stages, &event);
}

/* Completes up to `most` of the requests that were taken. Returns their number. */
static unsigned kio_complete(struct kio *io, unsigned most)
{
        unsigned n = 0;

        for (struct list_node *i; n < most && (i = list_pop(&io->taken)); n++) {
                struct kio_request *req = container_of(i, struct kio_request, node);

                assert(req->state == KIO_DONE);
                req->state = KIO_IDLE;
                io->pending--;
                kio_unload(io, req);
                if (req->region)
                        req->region->in_flight--;
                if (req->payload > 0)
                        transfers_end(&io->transfers, req);
                if (stages_on(io->stages))
                        kio_record_stages(io, req);
                req->complete(req);
        }
        return n;
}

unsigned kio_reap(struct kio *io)
{
        unsigned n, total = 0;

        completion_queue_begin(&io->completion_queue);
        /* Completions that arrive while complete() runs are reaped as well, but only some rounds
         * and requests, since the loop has other work. */
        for (unsigned round = 0; round < KIO_REAP_ROUNDS; round++) {
                completion_queue_take(&io->completion_queue, &io->taken);
                n = kio_complete(io, KIO_REAP_MAX - total);
                total += n;
                if (n == 0)
                        break;
        }
        completion_queue_end(&io->completion_queue, &io->taken);
        total += kio_complete(io, KIO_REAP_MAX - total);
        if (!list_empty(&io->taken))
                completion_queue_wake(&io->completion_queue);
        return total;
}

uint64_t kio_pending(const struct kio *io)
{
        return io->pending;
}

static const char *registration_text(int error)
{
        switch (error) {
        case ENOMEM:
                return "RLIMIT_MEMLOCK is too small for registering the pool with every ring";
        case EOPNOTSUPP:
                return "the kernel does not support sparse tables of registered buffers";
        }
        return NULL;
}

static void kio_registration_complete(struct kio_request *req)
{
        struct worker *w = container_of(req, struct worker, registration);
        struct kio *io = container_of(w->completion_queue, struct kio, completion_queue);
        void (*registered)(void *userdata, int r);
        int r = (int)req->result;

        if (r < 0 && io->registration_result == 0)
                io->registration_result = r;
        if (--io->registering > 0)
                return;
        io->registrations_refused += io->registration_result < 0;
        if (io->registration_result < 0 && io->registration_error == 0) {
                const char *text = registration_text(-io->registration_result);

                /* A refusal is taken as permanent, so that no further memory is pinned without
                 * use. */
                io->registration_error = io->registration_result;
                snprintf(io->registered_reason, sizeof(io->registered_reason), "%s%s%s%s",
                         text ? text : "registering the pool", text ? " (" : ": ",
                         strerror(-io->registration_result), text ? ")" : "");
        }
        io->registered_any = io->registered_any || io->registration_result == 0;
        registered = io->registered;
        io->registered = NULL;
        registered(io->registered_userdata, io->registration_result);
}

void kio_register_piece(struct kio *io, unsigned piece, void (*done)(void *userdata, int r),
                        void *userdata)
{
        assert(io->registering == 0);

        io->registering = io->n_workers;
        io->registration_result = 0;
        io->registered = done;
        io->registered_userdata = userdata;
        for (unsigned i = 0; i < io->n_workers; i++) {
                struct worker *w = &io->workers[i];

                w->piece = piece;
                w->registration = (struct kio_request){
                        .op = KIO_CALL,
                        .class = KIO_CLASS_PUT,
                        .call = worker_register_piece,
                        .complete = kio_registration_complete,
                };
                kio_submit_to_worker(io, &w->registration, i);
        }
        kio_flush(io);
}

void kio_region_register(struct kio *io, struct kio_region *region)
{
        /* If the pool cannot be registered, no region is registered either. */
        regions_register(&io->regions, region, io->registration_error);
}

void kio_region_unregister(struct kio *io, struct kio_region *region)
{
        regions_unregister(&io->regions, region);
}

void kio_get_info(const struct kio *io, struct kio_info *ret)
{
        bool registers = strcmp(io->backend->name, kio_backend_posix.name) != 0;

        *ret = (struct kio_info){
                .backend = io->backend->name,
                .reason = io->reason,
                .ring_flags = io->ring_flags,
                .registered = registers && io->registered_any && io->registration_error == 0,
                .registered_reason = !registers ? "POSIX I/O registers no memory"
                                     : !io->registered_any && io->registration_error == 0
                                             ? "nothing has been registered yet"
                                             : io->registered_reason,
                .registration_error = registers ? io->registration_error : 0,
                .registrations_refused = registers ? io->registrations_refused : 0,
                .workers = io->n_workers,
                .depth = io->depth,
        };
}

void kio_get_stats(const struct kio *io, struct kio_stats *ret)
{
        struct kio_stats s = { 0 };

        for (unsigned i = 0; i < KIO_VOLUMES_MAX; i++) {
                const struct blocking_call *c = &io->blocking_calls[i];

                s.ops[KIO_CALL] += counter_get(&c->ops);
                s.errors[KIO_CALL] += counter_get(&c->errors);
                s.queued += c->submitted - counter_get(&c->begun);
                s.wakeups += c->wakeups;
        }
        for (unsigned i = 0; i < io->n_workers; i++) {
                const struct worker *w = &io->workers[i];
                uint64_t begun = counter_get(&w->begun);

                for (unsigned op = 0; op < KIO_OP_END; op++) {
                        s.ops[op] += counter_get(&w->ops[op]);
                        s.joined[op] += counter_get(&w->joined[op]);
                        s.bytes[op] += counter_get(&w->bytes[op]);
                        s.errors[op] += counter_get(&w->errors[op]);
                }
                s.resubmitted += counter_get(&w->resubmitted);
                s.wiped += counter_get(&w->wiped);
                s.registered_ops += counter_get(&w->registered_ops);
                s.inflight += counter_get(&w->transfers);
                s.inflight_time_ns += counter_get(&w->transfers_time_ns);
                s.busy_time_ns += counter_get(&w->busy_time_ns);
                s.queued += w->submitted - begun;
                s.wakeups += w->wakeups;
                s.spun_ns += counter_get(&w->spun_ns);
        }
        *ret = s;
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
        bool alive = true;

        /* Call every function, because each records its progress for the next call. */
        for (unsigned i = 0; i < KIO_VOLUMES_MAX; i++)
                if (!blocking_call_is_alive(&io->blocking_calls[i]))
                        alive = false;
        for (unsigned i = 0; i < io->n_workers; i++)
                if (!worker_is_alive(&io->workers[i]))
                        alive = false;
        return alive;
}

uint64_t kio_oldest(const struct kio *io, unsigned volume)
{
        uint64_t now = clock_mono_ns(), oldest = now, since;

        assert(volume < KIO_VOLUMES_MAX);
        since = counter_get(&io->blocking_calls[volume].call_ns);
        if (since > 0)
                oldest = MIN(oldest, since);
        for (unsigned i = 0; i < io->n_workers; i++) {
                since = counter_get(&io->workers[i].oldest_ns[volume]);
                if (since > 0)
                        oldest = MIN(oldest, since);
                /* Registrations on the rings belong to no volume and are reported for volume 0. */
                since = volume == 0 ? counter_get(&io->workers[i].call_ns) : 0;
                if (since > 0)
                        oldest = MIN(oldest, since);
        }
        return now - oldest;
}

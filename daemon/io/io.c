/* SPDX-License-Identifier: Apache-2.0 */
/* The loop thread's side of io/ while it runs: distributes requests over the workers and the
 * blocking-call threads, reaps completions, and reports on all of it. io-start.c starts and stops
 * them. All functions run on the loop thread. Failures are results of requests; nothing else here
 * can fail. */
#include "io/internal.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "checked.h"
#include "io/counter.h"

/* Bytes of reads and writes, and bytes of copies, that one worker gets before the next is used. The
 * number of reads, writes and syncs is also limited, to kio.places. */
enum {
        KIO_TRANSFER_BYTES = 32 << 20,
        KIO_COPY_BYTES = 256 * 1024,
        KIO_CHECKSUM_SHARE = 4, /* computing a checksum costs one KIO_CHECKSUM_SHARE-th of a copy */
};

enum { KIO_REAP_ROUNDS = 4, KIO_REAP_MAX = 64, KIO_TAIL_BYTES = 4096 };

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

void kio_submit_to_worker(struct kio *io, struct kio_request *req, unsigned worker)
{
        kio_prepare(io, req);
        worker_submit(&io->workers[worker], req);
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
 * last of them has run. A failing worker has no load, because its requests fail at once; it is
 * chosen only for requests whose affinity names it. */
static struct worker *kio_choose(struct kio *io, const struct kio_request *req, unsigned affinity)
{
        struct worker *least = NULL;

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
                if (!least || w->load.copy_bytes < least->load.copy_bytes)
                        least = w;
        }
        return req->op == KIO_COPY && least ? least : &io->workers[affinity % io->n_workers];
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
                /* The previous worker has its spread_bytes of reads, and can begin before the other
                 * workers have theirs. */
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

/* Records the times of a finished operation other than a CALL. A copy has no device, so its answer
 * counts as immediate. */
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
        /* With kio_params.no_registration the caller wants nothing registered, so the error that
         * the workers return is no refusal. */
        r = io->no_registration ? 0 : io->registration_result;
        io->registrations_refused += r < 0;
        if (io->registration_result < 0 && io->registration_error == 0) {
                const char *text = registration_text(-io->registration_result);

                /* Take a refusal as permanent, so that no further memory is pinned without use. */
                io->registration_error = io->registration_result;
                snprintf(io->registered_reason, sizeof(io->registered_reason), "%s%s%s%s",
                         text ? text : "registering the pool", text ? " (" : ": ",
                         strerror(-io->registration_result), text ? ")" : "");
        }
        io->registered_any = io->registered_any || io->registration_result == 0;
        registered = io->registered;
        io->registered = NULL;
        registered(io->registered_userdata, r);
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
                .registered_reason = !registers            ? "POSIX I/O registers no memory"
                                     : io->no_registration ? "io.registration is off"
                                     : !io->registered_any && io->registration_error == 0
                                             ? "nothing has been registered yet"
                                             : io->registered_reason,
                .registration_error =
                        registers && !io->no_registration ? io->registration_error : 0,
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

/* SPDX-License-Identifier: Apache-2.0 */
/* Starts and stops the workers and the blocking-call threads of io/. Loop thread.
 *
 * Choice of the back end: for each back end and each of its feature levels, best first, every
 * worker opens its queue. If one fails, all close and the next level is tried, so that all
 * workers run on the same. The last refusal is kept as the reason. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "build-config.h"
#include "checked.h"
#include "cleanup.h"
#include "io/guard.h"
#include "io/internal.h"

enum { KIO_WORKERS_MAX = 256, KIO_DEPTH_MAX = 4096 };

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

int kio_start_with(struct kio **ret, const struct kio_params *params,
                   const struct kio_backend *backend, char ret_error[static 256])
{
        _cleanup_(kio_stopp) struct kio *io = NULL;
        int r;

        if (params->workers == 0 || params->workers > KIO_WORKERS_MAX || params->depth == 0)
                return kio_fail(ret_error, EINVAL,
                                "the number or the depth of the I/O workers is out of range");
        if (params->n_more_pools > KIO_MORE_POOLS_MAX)
                return kio_fail(ret_error, EINVAL, "there are too many pools for I/O");
        if (!backend && strcmp(params->backend, "auto") != 0 &&
            strcmp(params->backend, "io_uring") != 0 && strcmp(params->backend, "posix") != 0)
                return kio_fail(ret_error, EINVAL,
                                "the I/O backend is not one of auto, io_uring, posix");
        r = guard_install();
        if (r < 0)
                return kio_fail(ret_error, -r, "installing the SIGBUS handler");

        io = aligned_alloc(_Alignof(struct kio), sizeof(*io));
        if (!io)
                return kio_fail(ret_error, ENOMEM, "allocating the I/O workers");
        *io = (struct kio){ 0 };
        list_init(&io->taken);
        r = completion_queue_init(&io->completion_queue);
        if (r < 0) {
                free(TAKE_PTR(io)); /* io is freed here, because kio_stop() expects initialized
                                     * members */
                return kio_fail(ret_error, -r, "creating an eventfd");
        }
        io->stages = params->stages ? params->stages : &io->no_stages;
        io->depth = MIN(params->depth, (unsigned)KIO_DEPTH_MAX);
        io->spread_bytes = params->spread_bytes;
        io->no_registration = params->no_registration;
        io->registration_error = params->no_registration ? -EPERM : 0;
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
        return kio_start_with(ret, params, NULL, ret_error);
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

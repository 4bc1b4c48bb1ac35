/* SPDX-License-Identifier: Apache-2.0 */
/* The state of io/ on the loop thread, shared by io.c and io-start.c. Owns the workers, the
 * blocking-call threads and the completion queue. */
#pragma once

#include "io/blocking-call.h"
#include "io/buffers.h"
#include "io/io.h"
#include "io/transfers.h"
#include "io/worker.h"

struct kio {
        struct worker *workers;
        unsigned n_workers; /* number of initialized elements of `workers` */
        unsigned depth;
        unsigned places; /* number of unfinished reads, writes and syncs from which on a worker
                          * counts as busy, so that the next one is used (io.c); at most `depth` */
        uint64_t spread_bytes;
        struct worker *reader; /* worker that got the last read, if reads are spread
                                * (kio_params.spread_bytes) */
        struct blocking_call blocking_calls[KIO_VOLUMES_MAX]; /* by volume; number 0 always runs,
                                                                 the others from their first call
                                                                 on, unless no thread can be
                                                                 started */
        struct completion_queue completion_queue;
        struct list_node taken; /* requests taken out of the completion queue, which the next
                                 * kio_reap() completes */
        uint64_t pending;

        const struct kio_backend *backend;
        char reason[512];
        char ring_flags[128];

        unsigned registering; /* workers that have not yet answered the pending
                               * kio_register_piece(); 0: none is pending */
        int registration_result, registration_error;
        bool no_registration; /* kio_params.no_registration; registration_error is set from the
                               * start */
        char registered_reason[256];
        bool registered_any; /* at least one kio_register_piece() has succeeded on every worker */
        uint64_t registrations_refused;
        void (*registered)(void *userdata, int r);
        void *registered_userdata;

        struct regions regions;
        struct transfers transfers;
        struct stages *stages; /* never NULL */
        struct stages no_stages;
};

/* Submits a request, which may be a CALL, to the worker of this number. Registrations need this,
 * because only a worker's own thread may use its ring. */
void kio_submit_to_worker(struct kio *io, struct kio_request *req, unsigned worker);

/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a worker, which its loop (worker.c) and the answers of its device (settle.c) share.
 * Private to io/.
 *
 * Locking: `lock` protects `order`, `answer`, `inbox`, `sleeping` and `stopping`; the thread writes
 * the counters, and any thread reads them; the fields below "private to the thread" belong to the
 * thread, and before worker_run() to its creator. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "io/backend.h"
#include "io/merge.h"
#include "io/completion-queue.h"
#include "spin.h"

enum worker_order { WORKER_WAIT, WORKER_OPEN, WORKER_CLOSE, WORKER_RUN, WORKER_QUIT };

struct worker {
        unsigned index;
        struct completion_queue *completion_queue;
        pthread_t thread;
        bool has_thread;

        pthread_mutex_t lock;
        pthread_cond_t
                cond; /* signals that an order was given or answered, or that the thread must end */
        enum worker_order order;
        int answer;
        struct list_node inbox[KIO_CLASS_END];
        _Atomic uint64_t posted; /* requests ever submitted; written under `lock` */
        bool sleeping;           /* the thread sleeps and found the inbox empty, so that a new
                                  * request must wake it */
        bool stopping;

        /* Arguments and results of orders. */
        unsigned wanted_depth; /* most operations in flight: of gets, and of all other classes
                                * together */
        uint64_t hang_ns;      /* ns after which an unanswered operation makes its volume count as
                                * hanging; 0: never */
        const struct kio_backend *backend;
        struct kio_queue_params params; /* params.depth is the result of worker_queue_depth() */
        char error[256];

        /* Private to the thread. */
        struct kio_queue *queue;
        unsigned places, depth, background_max;      /* most operations in flight: in all; of gets,
                                                      * and of all other classes together; of
                                                      * background work */
        struct list_node ready[KIO_CLASS_END];       /* requests that wait for the device, by
                                                      * class */
        struct list_node compute[KIO_CLASS_END];     /* requests that wait to be copied or checked,
                                                      * by class */
        struct list_node in_flight[KIO_VOLUMES_MAX]; /* requests at the device, by volume, the
                                                      * oldest first */
        unsigned n_in_flight, n_in_flight_of[KIO_CLASS_END]; /* operations in flight, except those
                                                              * of volumes that hang */
        unsigned n_stuck;       /* operations in flight at volumes that hang */
        unsigned n_transfers;   /* reads and writes in flight, at any volume */
        uint32_t busy, hanging; /* bit masks of the volumes with operations in flight, and of those
                                 * that hang */
        uint32_t ready_turn, compute_turn;
        uint64_t accounted_ns;
        uint64_t taken; /* requests taken from the inbox, in the units of `posted` */
        struct spin spin;
        uint64_t client_ns; /* time at which the last request that a client waits for was
                             * submitted */
        uint64_t wait_ns;   /* time at which the current wait began */
        struct list_node done;
        struct merge merge;
        int broken; /* -errno while the queue cannot submit */
        unsigned backoff_ms;

        /* Counters, which this thread writes and any thread reads. */
        _Alignas(64) _Atomic uint64_t turns;
        _Atomic uint64_t failing;   /* 1: the last submission was refused */
        _Atomic uint64_t in_device; /* 1: the thread is inside a call that may block on the
                                     * device */
        _Atomic uint64_t oldest_ns[KIO_VOLUMES_MAX]; /* by volume: start of its oldest operation in
                                                      * flight; 0: none */
        _Atomic uint64_t call_ns; /* time at which registering memory began; 0: none is being
                                   * registered */
        _Atomic uint64_t ops[KIO_OP_END], joined[KIO_OP_END], bytes[KIO_OP_END], errors[KIO_OP_END];
        _Atomic uint64_t resubmitted, wiped, registered_ops, transfers, transfers_time_ns,
                busy_time_ns, begun, finished, spun_ns;

        /* Private to the loop thread. */
        _Alignas(64) uint64_t submitted;
        struct {
                uint64_t transfers, transfer_bytes, reads, read_bytes, copy_bytes;
        } load; /* requests and bytes submitted and not yet reaped */
        uint64_t seen_turns;
        bool dirty;
        uint64_t unflushed_bytes, flush_bytes; /* bytes of transfers submitted since the last flush,
                                                * and bytes at which the next flush is made; see
                                                * worker_submit() */
        uint64_t wakeups;
        struct kio_request registration; /* a CALL that registers `piece` with the queue */
        unsigned piece;
        int *registration_error; /* kio.registration_error: if negative, registering `piece` fails
                                  * with this error at once */
};

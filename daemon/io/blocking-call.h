/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that runs the blocking calls (KIO_CALL) of one volume, so that a hung device delays
 * only its own calls. The thread has its own inbox and shares the completion queue with the
 * workers. Private to io/.
 *
 * Locking: `lock` protects `inbox`, `sleeping` and `stopping`; the thread writes the counters,
 * and any thread reads them. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "io/request.h"
#include "io/completion-queue.h"

struct blocking_call {
        struct completion_queue *completion_queue;
        pthread_t thread;
        bool has_thread;

        pthread_mutex_t lock;
        pthread_cond_t cond; /* signalled when `inbox` has a request or `stopping` is set */
        struct list_node inbox[KIO_CLASS_END];
        bool sleeping, stopping;

        /* Counters, which the thread writes and any thread reads. */
        _Alignas(64) _Atomic uint64_t call_ns; /* CLOCK_MONOTONIC time at which the current call
                                                * began; 0: no call runs */
        _Atomic uint64_t ops, errors, begun, finished;

        /* Used by the loop thread only. */
        _Alignas(64) uint64_t submitted;
        uint64_t seen_finished;
        uint64_t wakeups;
};

/* Starts the thread, whose name contains the volume's number. Returns 0 or -errno. */
int blocking_call_init(struct blocking_call *c, unsigned volume,
                       struct completion_queue *completion_queue);
/* Ends the thread after it has run every submitted call. Does nothing if `c` is all zero. */
void blocking_call_fini(struct blocking_call *c);

/* Queues a call and wakes the thread. Runs on the loop thread. */
void blocking_call_submit(struct blocking_call *c, struct kio_request *req);
/* Returns whether the thread has finished a request since this function was last called, is inside
 * a request's call, or has no work. Loop thread. */
bool blocking_call_is_alive(struct blocking_call *c);

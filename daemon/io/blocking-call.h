/* SPDX-License-Identifier: Apache-2.0 */
/* One thread per volume runs the blocking calls (KIO_CALL), so that a hung device delays only the
 * calls of its own volume. It has an inbox, and shares the completion queue with the workers.
 * Private to io/.
 *
 * Locking: `lock` protects `inbox`, `sleeping` and `stopping`; the thread writes the counters, and
 * any thread reads them. */
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
        pthread_cond_t cond; /* something in `inbox`, or `stopping` */
        struct list_node inbox[KIO_CLASS_END];
        bool sleeping, stopping;

        /* counters: the thread writes, anybody reads */
        _Alignas(64) _Atomic uint64_t call_ns; /* since when it has been inside a call, 0: is not */
        _Atomic uint64_t ops, errors, begun, finished;

        /* the loop's own */
        _Alignas(64) uint64_t submitted;
        uint64_t seen_finished;
        uint64_t wakeups;
};

/* Starts the thread, which carries the volume's number in its name. 0, -errno. Then
 * blocking_call_fini() ends it, when it has worked off what it has; it does nothing to one that is
 * all zero. */
int blocking_call_init(struct blocking_call *c, unsigned volume,
                       struct completion_queue *completion_queue);
void blocking_call_fini(struct blocking_call *c);

/* The loop's thread. */
void blocking_call_submit(struct blocking_call *c, struct kio_request *req);
bool blocking_call_is_alive(struct blocking_call *c);

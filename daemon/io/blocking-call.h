/* SPDX-License-Identifier: Apache-2.0 */
/* A thread for KIO_CALL: one a path, so that a device that hangs holds up nobody else's calls; an
 * inbox, and the outbox that it shares with the workers. Only io/ includes this.
 *
 * Who may touch what: `inbox`, `sleeping` and `stopping` under `lock`; the counters are written by
 * the thread and read by anybody. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "io/request.h"
#include "io/completion-queue.h"

struct caller {
        struct outbox *outbox;
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

/* Starts the thread, which carries the path's number in its name. 0, -errno. Then caller_fini()
 * ends it, when it has worked off what it has; it does nothing to one that is all zero. */
int caller_init(struct caller *c, unsigned path, struct outbox *outbox);
void caller_fini(struct caller *c);

/* The loop's thread. */
void caller_submit(struct caller *c, struct kio_request *req);
bool caller_is_alive(struct caller *c);

/* SPDX-License-Identifier: Apache-2.0 */
/* One worker: a thread, its backend queue, its inbox; what is done goes to the outbox that all
 * workers share. Only io/ includes this.
 *
 * Who may touch what: `inbox` and `sleeping` under `lock`; the counters are written by the thread
 * and read by anybody; everything below "the thread's own" by the thread alone, and before
 * worker_run() by whoever gives the orders. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "backend.h"

struct outbox {
        pthread_mutex_t lock;
        struct list_node done;
        int fd; /* an eventfd: readable if `done` has become non-empty since it was last read */
};

enum worker_order { WORKER_WAIT, WORKER_OPEN, WORKER_CLOSE, WORKER_RUN, WORKER_QUIT };

struct worker {
        unsigned index;
        struct outbox *outbox;
        pthread_t thread;
        bool has_thread;

        pthread_mutex_t lock;
        pthread_cond_t cond; /* while starting: an order, an answer */
        enum worker_order order;
        int answer;
        struct list_node inbox[KIO_CLASS_END];
        bool sleeping; /* has looked at the inbox for the last time: wake it */
        bool stopping;

        /* orders' arguments and results */
        const struct kio_backend *backend;
        struct kio_queue_params params;
        char error[256];

        /* the thread's own */
        struct kio_queue *queue;
        unsigned depth, cap[KIO_CLASS_END];
        struct list_node ready[KIO_CLASS_END];   /* for the device */
        struct list_node compute[KIO_CLASS_END]; /* for this thread: copies, checksums, calls */
        struct list_node in_flight;              /* with the device, oldest first */
        unsigned n_in_flight, n_in_flight_of[KIO_CLASS_END], n_transfers;
        uint32_t ready_turn, compute_turn;
        uint64_t accounted_ns;
        struct list_node done;
        int broken; /* -errno while the queue cannot be submitted */
        unsigned backoff_ms;

        /* counters: this thread writes, anybody reads */
        _Alignas(64) _Atomic uint64_t turns;
        _Atomic uint64_t in_device; /* 1: inside a call that may take as long as the device likes */
        _Atomic uint64_t oldest_ns; /* when the oldest operation in flight began, 0: none */
        _Atomic uint64_t call_ns;   /* since when it has been inside a KIO_CALL, 0: is not */
        _Atomic uint64_t ops[KIO_OP_END], bytes[KIO_OP_END], errors[KIO_OP_END];
        _Atomic uint64_t resubmitted, registered_ops, transfers, transfers_time_ns, busy_time_ns,
                begun, finished;

        /* the loop's own */
        _Alignas(64) uint64_t submitted;
        uint64_t seen_turns;
        bool dirty;
        uint64_t wakeups;
        struct kio_request registration; /* op CALL: registers `piece` with the queue */
        unsigned piece;
        int *registration_error; /* in: do not even try */
};

/* Starts the thread, which waits for orders. 0, -errno. Then worker_fini() ends it. */
int worker_init(struct worker *w, unsigned index, struct outbox *outbox);
void worker_fini(struct worker *w);

void worker_give_order(struct worker *w, enum worker_order order);
/* Of OPEN: 0, -errno; of CLOSE: 0. */
int worker_wait_answer(struct worker *w);

/* The loop's thread. */
void worker_submit(struct worker *w, struct kio_request *req);
void worker_flush(struct worker *w);
/* For KIO_CALL: `req` is a worker's `registration`. */
int worker_register_piece(struct kio_request *req);
bool worker_is_alive(struct worker *w);

static inline uint64_t counter_get(const _Atomic uint64_t *c)
{
        return atomic_load_explicit(c, memory_order_relaxed);
}

static inline void counter_set(_Atomic uint64_t *c, uint64_t value)
{
        atomic_store_explicit(c, value, memory_order_relaxed);
}

/* One writer: no need of a locked add. */
static inline void counter_add(_Atomic uint64_t *c, uint64_t n)
{
        counter_set(c, counter_get(c) + n);
}

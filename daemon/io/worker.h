/* SPDX-License-Identifier: Apache-2.0 */
/* One worker: a thread, its backend queue and its inbox. Finished requests go to the completion
 * queue that all workers share. Private to io/.
 *
 * Locking: `lock` protects `inbox` and `sleeping`; the thread writes the counters, and any thread
 * reads them; the fields below "the thread's own" belong to the thread, and before worker_run() to
 * its creator. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "io/backend.h"
#include "io/merge.h"
#include "io/completion-queue.h"
#include "spin.h"

/* What a `call` that a worker runs itself may answer: call it again, in another turn. */
enum { WORKER_AGAIN = 1 };

enum worker_order { WORKER_WAIT, WORKER_OPEN, WORKER_CLOSE, WORKER_RUN, WORKER_QUIT };

struct worker {
        unsigned index;
        struct completion_queue *completion_queue;
        pthread_t thread;
        bool has_thread;

        pthread_mutex_t lock;
        pthread_cond_t cond; /* while starting: an order, an answer */
        enum worker_order order;
        int answer;
        struct list_node inbox[KIO_CLASS_END];
        _Atomic uint64_t posted; /* requests that it was ever given: written under the lock */
        bool sleeping;           /* has looked at the inbox for the last time: wake it */
        bool stopping;

        /* orders' arguments and results */
        unsigned wanted_depth; /* of gets, and of all others together */
        uint64_t hang_ns;      /* how long a volume may take for an operation; 0: for ever */
        const struct kio_backend *backend;
        struct kio_queue_params params; /* its depth is worker_queue_depth() */
        char error[256];

        /* the thread's own */
        struct kio_queue *queue;
        unsigned places, depth, background_max;      /* see worker_barred() */
        struct list_node ready[KIO_CLASS_END];       /* for the device */
        struct list_node compute[KIO_CLASS_END];     /* for this thread: copies, checksums */
        struct list_node in_flight[KIO_VOLUMES_MAX]; /* with the device, oldest first */
        unsigned n_in_flight,
                n_in_flight_of[KIO_CLASS_END]; /* but not those of volumes that hang */
        unsigned n_stuck;                      /* those */
        unsigned n_transfers;                  /* all of them */
        uint32_t busy, hanging; /* volumes with something in flight; volumes that hang: bits */
        uint32_t ready_turn, compute_turn;
        uint64_t accounted_ns;
        uint64_t taken; /* of `posted` */
        struct spin spin;
        uint64_t client_ns; /* when it was last given an operation that a client waits for */
        uint64_t wait_ns;   /* when its wait began */
        struct list_node done;
        struct merge merge;
        int broken; /* -errno while the queue cannot be submitted */
        unsigned backoff_ms;

        /* counters: this thread writes, anybody reads */
        _Alignas(64) _Atomic uint64_t turns;
        _Atomic uint64_t failing;   /* 1: what it was last asked to submit was refused */
        _Atomic uint64_t in_device; /* 1: inside a call that may take as long as the device likes */
        _Atomic uint64_t oldest_ns[KIO_VOLUMES_MAX]; /* when the oldest in flight began, 0: none */
        _Atomic uint64_t call_ns; /* since when it has been registering memory, 0: is not */
        _Atomic uint64_t ops[KIO_OP_END], joined[KIO_OP_END], bytes[KIO_OP_END], errors[KIO_OP_END];
        _Atomic uint64_t resubmitted, wiped, registered_ops, transfers, transfers_time_ns,
                busy_time_ns, begun, finished, spun_ns;

        /* the loop's own */
        _Alignas(64) uint64_t submitted;
        struct {
                uint64_t transfers, transfer_bytes, reads, read_bytes, copy_bytes;
        } load; /* what it has been given and the loop has not got back */
        uint64_t seen_turns;
        bool dirty;
        uint64_t unflushed_bytes, flush_bytes; /* of transfers; see worker_submit() */
        uint64_t wakeups;
        struct kio_request registration; /* op CALL: registers `piece` with the queue */
        unsigned piece;
        int *registration_error; /* in: do not even try */
};

/* What the queue of a worker has room for, if it shall keep `depth` of either kind in flight:
 * params.depth. */
unsigned worker_queue_depth(unsigned depth);

/* Starts the thread, which waits for orders. 0, -errno. Then worker_fini() ends it. */
int worker_init(struct worker *w, unsigned index, struct completion_queue *completion_queue);
void worker_fini(struct worker *w);

void worker_give_order(struct worker *w, enum worker_order order);
/* Of OPEN: 0, -errno; of CLOSE: 0. */
int worker_wait_answer(struct worker *w);

/* The loop's thread. */
void worker_submit(struct worker *w, struct kio_request *req);
void worker_flush(struct worker *w);
/* The `call` of a worker's `registration`, which it runs itself: the ring is its own. */
int worker_register_piece(struct kio_request *req);
bool worker_is_alive(struct worker *w);

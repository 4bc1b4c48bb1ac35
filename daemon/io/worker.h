/* SPDX-License-Identifier: Apache-2.0 */
/* A worker: a thread with its back-end queue and its inbox. Finished requests go to the
 * completion queue that all workers share. Private to io/. */
#pragma once

#include "io/worker-state.h"

/* Returned by the `call` of a request that a worker runs itself, to be called again in a later
 * iteration of the worker. */
enum { WORKER_AGAIN = 1 };

/* Returns the depth that a worker's queue needs, for kio_queue_params.depth, so that the worker
 * still has the places of `depth` (kio_params.depth) while the operations of three volumes hang. */
unsigned worker_queue_depth(unsigned depth);

/* Starts the thread, which waits for orders. Returns 0 or -errno. worker_fini() ends the thread
 * after it has finished every submitted request. */
int worker_init(struct worker *w, unsigned index, struct completion_queue *completion_queue);
void worker_fini(struct worker *w);

/* Gives an order to the thread, whose previous order must have been answered. */
void worker_give_order(struct worker *w, enum worker_order order);
/* Waits for the order to be carried out. Returns 0, or the -errno of OPEN. */
int worker_wait_answer(struct worker *w);

/* worker_submit() queues a request, and may wake the thread. worker_flush() wakes the thread if it
 * sleeps and requests are queued. Both run on the loop thread. */
void worker_submit(struct worker *w, struct kio_request *req);
void worker_flush(struct worker *w);
/* Implements the `call` of w->registration: registers w->piece. The worker runs this call itself,
 * because only its thread may use its ring. */
int worker_register_piece(struct kio_request *req);
/* Returns whether the thread has begun an iteration since this function was last called, is inside
 * a call that may block on the device, or has no work. Loop thread. */
bool worker_is_alive(struct worker *w);

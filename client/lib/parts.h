/* SPDX-License-Identifier: Apache-2.0 */
/* The interface that the library offers to client/gpu: requests that kvcache_reap() does not
 * return, and holds on the pool's mapping.
 *
 * A mapping that is registered with the GPU's driver must not be unmapped, and its addresses
 * must not be reused, until the driver has unregistered it. A hold therefore keeps the mapping
 * of a session that has ended. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kvcache-transfer.h"
#include "kvcache.h"

struct conn;
struct request;

/* Attaches or detaches a GPU. While one is attached, kvcache_close() only marks the handle, and the
 * last parts_detach() frees it. */
void parts_attach(struct kvcache *kv);
void parts_detach(struct kvcache *kv);
bool parts_is_closed(const struct kvcache *kv);

struct parts_pool {
        struct conn *conn; /* session whose pool is held; NULL: no hold */
        const uint8_t *base;
        uint64_t bytes;
        uint64_t id; /* the pool's id, as kvcache_pool_of() returns it */
};

/* Takes a hold on the pool of the current session, connecting if there is none. Returns 0, -ECHILD
 * or -ENOTCONN. */
int parts_pool_hold(struct kvcache *kv, struct parts_pool *ret);
void parts_pool_release(struct kvcache *kv, struct parts_pool *pool);
/* Returns whether the hold's session is the current one. */
bool parts_pool_is_current(const struct kvcache *kv, const struct parts_pool *pool);

/* Submits a request as kvcache_submit() does, but without an answer from the indexes. The caller
 * ends it with parts_request_take(), and kvcache_reap() never returns it. */
int parts_submit(struct kvcache *kv, const struct kvcache_request *request, struct request **ret);
bool parts_request_is_done(const struct request *q);
/* Waits for a request and frees it. Returns its error, or 0. */
int parts_request_take(struct kvcache *kv, struct request *q);

/* Counts a valid transfer as kvcache_count_transfer() does, but keeps the handle's error text. */
int parts_count_transfer(struct kvcache *kv, const struct kvcache_transfer *t);
/* Sends queued messages, takes replies that have arrived, and completes overdue requests. */
void parts_flow(struct kvcache *kv);
/* Waits until the socket is ready, `fd` is readable, or `deadline` (ns, CLOCK_MONOTONIC) or the
 * deadline of a request passes, then acts as parts_flow(). */
void parts_wait(struct kvcache *kv, int fd, int64_t deadline);

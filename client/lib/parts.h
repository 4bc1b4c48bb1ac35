/* SPDX-License-Identifier: Apache-2.0 */
/* What the library shows client/gpu besides the public calls: requests that kvcache_reap() does not
 * return, and a hold on the pool's mapping.
 *
 * A mapping that the GPU's driver knows must not be unmapped, nor its addresses used again, before
 * the driver has forgotten it: the hold keeps the mapping of a session that has ended. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kvcache-transfer.h"
#include "kvcache.h"

struct conn;
struct request;

/* The handle stays while a GPU is attached: kvcache_close() then leaves it to the last
 * parts_detach(). */
void parts_attach(struct kvcache *kv);
void parts_detach(struct kvcache *kv);
bool parts_is_closed(const struct kvcache *kv);

struct parts_pool {
        struct conn *conn; /* NULL: no hold */
        const uint8_t *base;
        uint64_t bytes;
};

/* Of the session that there is, or a new one. 0; -ECHILD; -ENOTCONN. */
int parts_pool_hold(struct kvcache *kv, struct parts_pool *ret);
void parts_pool_release(struct kvcache *kv, struct parts_pool *pool);
/* False: the session that it belongs to has ended. */
bool parts_pool_is_current(const struct kvcache *kv, const struct parts_pool *pool);

/* As kvcache_submit(), for parts_request_take(). */
int parts_submit(struct kvcache *kv, const struct kvcache_request *request, struct request **ret);
bool parts_request_is_done(const struct request *q);
/* Waits if it is not done. Its error, or 0; frees it. */
int parts_request_take(struct kvcache *kv, struct request *q);

/* As kvcache_count_transfer(), of one that is valid; the handle's text stays. */
int parts_count_transfer(struct kvcache *kv, const struct kvcache_transfer *t);
/* Sends what may be sent, takes replies that are here, completes what is overdue. */
void parts_flow(struct kvcache *kv);
/* The same, once the socket or `fd` is readable or it is `deadline` (ns, CLOCK_MONOTONIC). */
void parts_wait(struct kvcache *kv, int fd, int64_t deadline);

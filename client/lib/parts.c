/* SPDX-License-Identifier: Apache-2.0 */
/* The interface of the library to client/gpu. Runs in the handle's thread; owns nothing. */
#include "lib/parts.h"

#include <poll.h>
#include <time.h>

#include "checked.h"
#include "cleanup.h"
#include "lib/connection.h"
#include "lib/flow.h"
#include "lib/retired.h"
#include "lib/submit.h"

void parts_attach(struct kvcache *kv)
{
        kv->attached++;
}

void parts_detach(struct kvcache *kv)
{
        kv->attached--;
        if (kv->attached == 0 && kv->is_closed)
                kvcache_close(kv);
}

bool parts_is_closed(const struct kvcache *kv)
{
        return kv->is_closed;
}

int parts_pool_hold(struct kvcache *kv, struct parts_pool *ret)
{
        int r;

        r = handle_enter(kv);
        if (r < 0)
                return r;
        flow_check_idle(kv);
        r = conn_ready(kv);
        if (r == 0) {
                kv->conn->holds++;
                *ret = (struct parts_pool){ kv->conn, kv->conn->pool, kv->conn->pool_bytes,
                                            kv->conn->pool_id };
        }
        handle_leave(kv);
        return r;
}

void parts_pool_release(struct kvcache *kv, struct parts_pool *pool)
{
        if (!pool->conn)
                return;
        pool->conn->holds--;
        *pool = (struct parts_pool){ 0 };
        retired_collect(kv);
}

bool parts_pool_is_current(const struct kvcache *kv, const struct parts_pool *pool)
{
        return pool->conn && pool->conn == kv->conn;
}

int parts_submit(struct kvcache *kv, const struct kvcache_request *request, struct request **ret)
{
        _cleanup_(resolved_fini) struct resolved keys = { 0 };
        struct kvcache_request u;
        int r;

        r = handle_enter(kv);
        if (r < 0)
                return r;
        r = submit_normalize(kv, request, &u);
        if (r == 0)
                r = submit(kv, &u, &keys, 0, u.count, false,
                           handle_deadline(u.timeout_ms, kv->request_timeout_ms), true, ret);
        handle_leave(kv);
        return r;
}

bool parts_request_is_done(const struct request *q)
{
        return q->done;
}

int parts_request_take(struct kvcache *kv, struct request *q)
{
        int r = submit_finish(kv, q, NULL);

        handle_leave(kv);
        return r;
}

void parts_flow(struct kvcache *kv)
{
        if (handle_enter(kv) < 0)
                return;
        (void)flow(kv);
        request_expire(kv, handle_now_ns());
        handle_leave(kv);
}

void parts_wait(struct kvcache *kv, int fd, int64_t deadline)
{
        struct pollfd p[2] = { { .fd = fd, .events = POLLIN }, { .fd = -1 } };
        int64_t left = MIN(deadline, kv->next_deadline) - handle_now_ns();
        struct timespec timeout = { 0 };

        if (kv->conn && (kv->n_inflight > 0 || kv->want_out))
                p[1] = (struct pollfd){ .fd = kv->conn->sock,
                                        .events = POLLIN | (kv->want_out ? POLLOUT : 0) };
        left = MIN(MAX(left, INT64_C(0)), INT64_C(86400) * 1000000000);
        timeout.tv_sec = left / 1000000000;
        timeout.tv_nsec = left % 1000000000;
        (void)ppoll(p, ARRAY_SIZE(p), &timeout, NULL);
        parts_flow(kv);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The calls that send requests and return completions: submit, reap, cancel, release, flush.
 *
 * Runs in the handle's thread. A request is checked, its keys are resolved, and its messages are
 * built and queued within the call. Failures: if the session turns out to have ended before
 * anything was sent, the request is prepared once more for the next session. */
#include "lib/submit.h"

#include <errno.h>
#include <stdlib.h>

#include "checked.h"
#include "cleanup.h"
#include "lib/admin.h"
#include "lib/connection.h"
#include "lib/encode.h"
#include "lib/flow.h"
#include "lib/hits.h"
#include "lib/holds.h"
#include "lib/lookup.h"
#include "lib/memory.h"
#include "lib/retired.h"

DEFINE_CLEANUP(struct request *, request_free);

/* Prepares a session for a request: connects, opens its namespace, resolves its keys and creates
 * the staging area if it is needed. Returns 0; -EOPNOTSUPP if the daemon does not know the
 * operation or the advice; another -errno. */
static int prepare(struct kvcache *kv, const struct kvcache_request *user, struct resolved *keys,
                   uint32_t *ret_namespace)
{
        int r = conn_ready(kv);

        if (r < 0)
                return r;
        if (user->op == KVCACHE_OP_PREFETCH && !(kv->conn->features & WIRE_FEATURE_PREFETCH))
                return handle_fail(kv, -EOPNOTSUPP,
                                   "this daemon is too old for KVCACHE_OP_PREFETCH");
        if (user->op == KVCACHE_OP_HINT && !(kv->conn->features & WIRE_FEATURE_HINT))
                return handle_fail(kv, -EOPNOTSUPP, "this daemon is too old for KVCACHE_OP_HINT");
        if (encode_feature_of(user) & ~kv->conn->features)
                return handle_fail(kv, -EOPNOTSUPP, "this daemon is too old for this advice");
        if ((user->op == KVCACHE_OP_PIN || user->op == KVCACHE_OP_UNPIN) &&
            !(kv->conn->features & WIRE_FEATURE_PIN))
                return handle_fail(
                        kv, -EOPNOTSUPP,
                        "this daemon is too old for KVCACHE_OP_PIN and KVCACHE_OP_UNPIN");
        if (user->op != KVCACHE_OP_GIVE_BACK)
                r = admin_namespace_ready(kv, user->namespace_handle, ret_namespace);
        if (r < 0)
                return r;
        r = resolve(kv, user, keys);
        if (r < 0)
                return r;
        return keys->needs_staging ? memory_staging_ready(kv) : 0;
}

/* Returns the daemon's time limit in ms: seven eighths of the time left, so that its answer still
 * arrives in time; at least 1. */
static uint32_t daemons_share(int64_t deadline)
{
        int64_t left_ms = MAX((deadline - handle_now_ns()) / 1000000, (int64_t)0);

        return (uint32_t)MAX(left_ms - left_ms / 8, (int64_t)1);
}

/* Prepares and sends a request once. Returns 0; -ECONNRESET if the session ended before anything
 * was sent; another -errno. */
static int try(struct kvcache *kv, const struct kvcache_request *user, struct resolved *keys,
               size_t first, size_t count, bool more, int64_t deadline, bool waited,
               struct request **ret)
{
        _cleanup_(request_freep) struct request *q = calloc(1, sizeof(*q));
        struct encode b = {
                .kv = kv,
                .user = user,
                .keys = keys,
                .first = first,
                .count = count,
                .request = q,
        };
        int r;

        if (!q)
                return -ENOMEM;
        *q = (struct request){
                .op = user->op,
                .count = user->count,
                .results = { user->results, user->result_size },
                .user_data = user->user_data,
                .deadline = deadline,
                .run = first + count,
                .waited = waited,
        };
        TAILQ_INIT(&b.messages);

        r = prepare(kv, user, keys, &b.namespace_id);
        if (r < 0)
                return r;
        q->error = keys->refused;
        b.wait_ms = daemons_share(deadline);
        r = encode_request(&b, more);
        if (r < 0) {
                encode_undo(&b);
                return r;
        }
        /* No message was sent, so the end of the session would go unnoticed. Check for it,
         * because the keys may have been refused for limits of a daemon that has been replaced. */
        if (count > 0 && q->n_messages == 0 && flow_has_ended(kv))
                return -ECONNRESET;

        if (user->op == KVCACHE_OP_GET_INTO && (!b.into || b.lease_into))
                q->targets = resolved_take(keys);
        TAILQ_CONCAT(&kv->queue, &b.messages, link);
        TAILQ_INSERT_TAIL(&kv->requests, q, link);
        kv->next_deadline = MIN(kv->next_deadline, deadline);
        if (q->n_messages == 0)
                request_complete(kv, q);
        if (count > 0 && (user->op == KVCACHE_OP_EXISTS || user->op == KVCACHE_OP_MATCH))
                lookup_want(kv);
        if (user->op == KVCACHE_OP_GET || user->op == KVCACHE_OP_GET_INTO)
                hits_want(kv);
        /* A call that waits for the reply also takes it. */
        (void)(waited ? flow_send(kv) : flow(kv));

        if (q->done && q->n_sent == 0 && q->error == -ECONNRESET) {
                if (!waited)
                        TAILQ_REMOVE(&kv->ready, q, link);
                return -ECONNRESET;
        }
        *ret = TAKE_PTR(q);
        return 0;
}

int submit(struct kvcache *kv, const struct kvcache_request *user, struct resolved *keys,
           size_t first, size_t count, bool more, int64_t deadline, bool waited,
           struct request **ret)
{
        int r;

        /* If the daemon was restarted while the session was idle, the send is the first to
         * reveal it. The new daemon has not received the request, so the messages are built
         * again for the new session, also because the new daemon may support other features. */
        r = try(kv, user, keys, first, count, more, deadline, waited, ret);
        if (r == -ECONNRESET || ((r == -EOPNOTSUPP || r == -E2BIG) && flow_has_ended(kv))) {
                kv->error[0] = '\0';
                r = try(kv, user, keys, first, count, more, deadline, waited, ret);
        }
        if (r == -ECONNRESET)
                return handle_fail(kv, -ENOTCONN, "the connection to the daemon was lost");
        if (kv->error[0] != '\0')
                return r;
        switch (r) {
        case -ENOMEM:
                return handle_no_memory(kv);
        case -ENOBUFS:
                return handle_fail(kv, r,
                                   "the data does not fit into the staging area now: reap "
                                   "completions and try again");
        case -E2BIG:
                return handle_fail(kv, r,
                                   "a chunk is longer than the staging area of %llu bytes: raise "
                                   "memory.staging, or staging_bytes of the handle",
                                   kv->conn ? (unsigned long long)kv->conn->staging.bytes : 0ull);
        default:
                return r;
        }
}

/* Checks the size of the entries, and that members unknown to this library are zero. Returns 0,
 * -EINVAL or -E2BIG. */
static int check_entries(struct kvcache *kv, const struct kvcache_request *u)
{
        struct kvcache_entry e;

        if (!abi_size_is_valid(u->entry_size, ABI_ENTRY_MIN))
                return handle_fail(kv, -EINVAL, "the request's entry_size is not set");
        for (size_t i = 0; i < u->count; i++) {
                const struct kvcache_entry *at = abi_at(u->entries, u->entry_size, i);

                if (u->entry_size > sizeof(e) && abi_copy_in(&e, sizeof(e), at, u->entry_size) < 0)
                        return handle_is_newer(kv, "entry");
        }
        return 0;
}

/* Returns whether the advice is known and belongs to the operation. For operations that take
 * advice, a time must be given if and only if the advice is a return. */
static bool advice_is_valid(const struct kvcache_request *u)
{
        bool is_timed = u->advice == KVCACHE_ADVICE_RETURN;

        switch (u->op) {
        case KVCACHE_OP_ADVISE:
                return (unsigned)u->advice > KVCACHE_ADVICE_NONE &&
                       (unsigned)u->advice <= KVCACHE_ADVICE_SHARE && is_timed == (u->return_s > 0);
        case KVCACHE_OP_PUT:
                return (u->advice == KVCACHE_ADVICE_NONE || u->advice == KVCACHE_ADVICE_FINAL ||
                        is_timed) &&
                       is_timed == (u->return_s > 0);
        default:
                return u->advice == KVCACHE_ADVICE_NONE;
        }
}

int submit_normalize(struct kvcache *kv, const struct kvcache_request *user,
                     struct kvcache_request *ret)
{
        struct kvcache_request u = { 0 };
        uint32_t flags = 0;

        if (!user || !abi_size_is_valid(user->size, ABI_REQUEST_MIN))
                return handle_fail(kv, -EINVAL, "the request is NULL, or its size is not set");
        if (abi_copy_in(&u, sizeof(u), user, user->size) < 0 || u.reserved != 0)
                return handle_is_newer(kv, "request");
        if (u.return_s != 0 && u.op != KVCACHE_OP_HINT && u.advice == KVCACHE_ADVICE_NONE)
                return handle_fail(kv, -E2BIG, "return_s of the request is set without advice");

        if (encode_wire_op(&u) == 0)
                return handle_fail(kv, -EINVAL, "unknown operation %d", (int)u.op);
        if (!advice_is_valid(&u))
                return handle_fail(
                        kv, -EINVAL,
                        "advice %d with a return in %u s is not valid for this operation",
                        (int)u.advice, u.return_s);
        if (u.op == KVCACHE_OP_PUT)
                flags = KVCACHE_NOWAIT | KVCACHE_KEEP_LEASE | KVCACHE_MORE;
        else if (u.op == KVCACHE_OP_GET)
                flags = KVCACHE_NOWAIT | KVCACHE_MORE | KVCACHE_LEND;
        else if (u.op == KVCACHE_OP_GET_INTO)
                flags = KVCACHE_NOWAIT | KVCACHE_MORE;
        else if (u.op == KVCACHE_OP_TOUCH || u.op == KVCACHE_OP_PREFETCH)
                flags = KVCACHE_MORE;
        else if (u.op == KVCACHE_OP_EXISTS || u.op == KVCACHE_OP_MATCH || u.op == KVCACHE_OP_STAT)
                flags = KVCACHE_REMOTE;
        if (u.flags & ~flags)
                return handle_fail(kv, -EINVAL, "flags 0x%x are not valid for this operation",
                                   u.flags & ~flags);
        if ((unsigned)u.ack > KVCACHE_DURABLE)
                return handle_fail(kv, -EINVAL, "unknown acknowledgement %d", (int)u.ack);
        if (u.tiers != 0 && (u.op != KVCACHE_OP_EVICT ||
                             (u.tiers != KVCACHE_TIER_MEMORY && u.tiers != KVCACHE_TIER_ALL)))
                return handle_fail(kv, -EINVAL, "tiers 0x%x are not valid for this operation",
                                   u.tiers);
        if (u.timeout_ms < 0)
                return handle_fail(kv, -EINVAL, "timeout_ms is negative");
        if (u.count == 0) {
                *ret = u;
                return 0;
        }
        if (u.count > SIZE_MAX / ABI_MAX)
                return handle_fail(kv, -EINVAL,
                                   "the request has more keys than the address space can hold");
        if (u.op == KVCACHE_OP_GIVE_BACK && (u.entries || u.keys || !u.loans))
                return handle_fail(
                        kv, -EINVAL,
                        "KVCACHE_OP_GIVE_BACK takes loans, and neither keys nor entries");
        if (u.op != KVCACHE_OP_GIVE_BACK && u.loans)
                return handle_fail(kv, -EINVAL, "only KVCACHE_OP_GIVE_BACK takes loans");
        if (u.op != KVCACHE_OP_GIVE_BACK && !u.entries == !u.keys)
                return handle_fail(kv, -EINVAL, "the request must have either entries or keys");
        if (!u.entries && (u.op == KVCACHE_OP_PUT || u.op == KVCACHE_OP_GET_INTO))
                return handle_fail(kv, -EINVAL,
                                   "KVCACHE_OP_PUT and KVCACHE_OP_GET_INTO need entries");
        if (!u.results && u.op != KVCACHE_OP_MATCH && u.op != KVCACHE_OP_TOUCH &&
            u.op != KVCACHE_OP_PREFETCH && u.op != KVCACHE_OP_HINT && u.op != KVCACHE_OP_ADVISE)
                return handle_fail(kv, -EINVAL,
                                   "`results` is NULL, but this operation has results");
        if (u.results && !abi_size_is_valid(u.result_size, ABI_RESULT_MIN))
                return handle_fail(kv, -EINVAL, "the request's result_size is not set");
        if (u.entries) {
                int r = check_entries(kv, &u);

                if (r < 0)
                        return r;
        }
        *ret = u;
        return 0;
}

static bool is_done(struct kvcache *kv, const void *request)
{
        (void)kv;
        return ((const struct request *)request)->done;
}

int submit_finish(struct kvcache *kv, struct request *q, uint64_t *ret_value)
{
        int error;

        (void)flow_until(kv, is_done, q,
                         INT64_MAX); /* ends no later than the request's own deadline */
        error = q->error;
        if (ret_value)
                *ret_value = q->run;
        request_free(q);
        if (error == -ETIMEDOUT)
                handle_fail(kv, error, "the daemon did not answer in time");
        return error;
}

/* --- the public calls --- */

/* Completes the request at once if the lookup index or the pool index answers it. Returns whether
 * the request was completed. */
static bool answer(struct kvcache *kv, const struct kvcache_request *user, struct resolved *keys)
{
        struct request *q = calloc(1, sizeof(*q));
        uint64_t value = 0;

        if (!q)
                return false;
        if (!hits_answer(kv, user, keys) && !lookup_answer(kv, user, &value)) {
                free(q);
                return false;
        }
        *q = (struct request){
                .op = user->op,
                .count = user->count,
                .user_data = user->user_data,
                .run = value,
                .done = true,
        };
        TAILQ_INSERT_TAIL(&kv->ready, q, link);
        return true;
}

int kvcache_submit(struct kvcache *kv, const struct kvcache_request *request)
{
        _cleanup_(resolved_fini) struct resolved keys = { 0 };
        struct kvcache_request u;
        struct request *q;
        int r;

        r = handle_enter(kv);
        if (r < 0)
                return r;
        r = submit_normalize(kv, request, &u);
        if (r < 0)
                return r;
        if (!answer(kv, &u, &keys))
                r = submit(kv, &u, &keys, 0, u.count, false,
                           handle_deadline(u.timeout_ms, kv->request_timeout_ms), false, &q);
        if (r == 0)
                kv->n_async++;
        handle_leave(kv);
        return r;
}

static int take_ready(struct kvcache *kv, void *ret, size_t size, size_t max)
{
        struct request *q;
        size_t n = 0;

        while (n < max && (q = TAILQ_FIRST(&kv->ready))) {
                struct kvcache_completion c = {
                        .user_data = q->user_data,
                        .value = q->op == KVCACHE_OP_MATCH ? q->run : 0,
                        .error = q->error,
                        .op = q->op,
                        .count = q->count,
                };

                TAILQ_REMOVE(&kv->ready, q, link);
                kv->n_async--;
                abi_copy_out(abi_at(ret, size, n++), size, &c, sizeof(c));
                request_free(q);
        }
        return (int)n;
}

static bool may_reap(struct kvcache *kv, const void *what)
{
        (void)what;
        return !TAILQ_EMPTY(&kv->ready) || kv->n_async == 0;
}

int kvcache_reap_sized(struct kvcache *kv, struct kvcache_completion *ret, size_t completion_size,
                       size_t max, int timeout_ms)
{
        int64_t deadline = INT64_MAX;
        int r;

        r = handle_enter(kv);
        if (r < 0)
                return r;
        if (!ret || max == 0)
                return handle_fail(kv, -EINVAL, "the array of completions is NULL or empty");
        if (!abi_size_is_valid(completion_size, ABI_COMPLETION_MIN))
                return handle_fail(kv, -EINVAL,
                                   "%zu bytes are not the size of a struct kvcache_completion",
                                   completion_size);
        max = MIN(max, (size_t)INT32_MAX);
        if (timeout_ms >= 0)
                deadline = timeout_ms == 0 ? 0 : handle_deadline(timeout_ms, 0);

        /* The socket need not be read if completions are ready and no request is in flight. */
        if (TAILQ_EMPTY(&kv->ready) || !TAILQ_EMPTY(&kv->requests) || !TAILQ_EMPTY(&kv->queue)) {
                flow_check_idle(kv);
                (void)flow(kv);
                request_expire(kv, handle_now_ns());
        }
        (void)flow_until(kv, may_reap, NULL, deadline);
        r = take_ready(kv, ret, completion_size, max);
        handle_leave(kv);
        return r;
}

int kvcache_cancel(struct kvcache *kv, uint64_t user_data)
{
        struct request *q, *next;
        int r, n = 0;

        r = handle_enter(kv);
        if (r < 0)
                return r;
        /* A request that has been answered by now is not cancelled. */
        (void)flow(kv);
        for (q = TAILQ_FIRST(&kv->requests); q; q = next) {
                next = TAILQ_NEXT(q, link);
                if (q->user_data != user_data)
                        continue;
                request_cancel(kv, q);
                n++;
        }
        if (n > 0)
                (void)flow_send(kv);
        handle_leave(kv);
        return n;
}

size_t kvcache_inflight(const struct kvcache *kv)
{
        return kv ? kv->n_async : 0;
}

int kvcache_release(struct kvcache *kv, const struct kvcache_lease *leases, size_t n)
{
        struct lease_row row;
        int r;

        r = handle_enter(kv);
        if (r < 0)
                return r;
        if (n > 0 && !leases)
                return handle_fail(kv, -EINVAL, "`leases` is NULL, but `n` is not 0");
        for (size_t i = 0; i < n; i++) {
                if (!lease_release(&kv->leases, leases[i], &row))
                        continue;
                row.conn->leases--;
                if (row.wire.generation == 0) {
                        holds_release_lease(row.conn, &row);
                        if (row.conn != kv->conn && row.conn->leases == 0)
                                retired_collect(kv);
                        continue;
                }
                if (row.conn != kv->conn) {
                        if (row.conn->leases == 0)
                                retired_collect(kv);
                        continue;
                }
                r = message_release(kv, row.wire, row.length);
                if (r < 0)
                        break;
        }
        if (r < 0) {
                /* A release that cannot be queued ends the session, which ends the lease. */
                if (kv->conn)
                        flow_session_lost(kv, r);
                (void)handle_no_memory(kv);
        } else if (kv->release_queued) {
                (void)flow(kv);
        }
        handle_leave(kv);
        return r;
}

int kvcache_flush(struct kvcache *kv)
{
        int r;

        r = handle_enter(kv);
        if (r < 0)
                return r;
        r = message_flush_releases(kv);
        if (r == 0)
                r = flow(kv);
        handle_leave(kv);
        return r;
}

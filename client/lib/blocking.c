/* SPDX-License-Identifier: Apache-2.0 */
/* The calls that wait: a request of any size, and put and get of one key.
 *
 * Runs in the handle's thread. Owns nothing and uses submit.c.
 *
 * A put with more data than the staging area holds is sent in rounds, each with as much of the
 * chain as fits. If places of other users leave too little room, the round is halved; a round of
 * one key waits until requests in flight free their places. Failures: if a round cannot be sent,
 * its keys and those after it get the corresponding status, and the call returns the errno. */
#include <errno.h>
#include <string.h>

#include "checked.h"
#include "cleanup.h"
#include "lib/connection.h"
#include "lib/flow.h"
#include "lib/hits.h"
#include "lib/lookup.h"
#include "lib/memory.h"
#include "lib/resolve.h"
#include "lib/submit.h"

/* Returns the status of keys that were never sent because of `error`. */
static int blocking_status(int error)
{
        switch (error) {
        case -ENOBUFS:
        case -ETIMEDOUT:
        case -ENOMEM:
        case -EBUSY:
                return KVCACHE_BUSY;
        case -E2BIG:
                return KVCACHE_TOO_LARGE;
        case -EINVAL:
                return KVCACHE_INVALID;
        case -EACCES:
                return KVCACHE_DENIED;
        case -EDQUOT:
                return KVCACHE_QUOTA;
        case -EEXIST:
                return KVCACHE_MISMATCH;
        case -ENOENT:
                return KVCACHE_NO_NAMESPACE;
        case -ESHUTDOWN:
                return KVCACHE_SHUTDOWN;
        case -ENOSPC:
                return KVCACHE_NO_SPACE;
        default:
                return KVCACHE_LOST;
        }
}

/* Returns how many entries from `first` on fit into an empty staging area; at least 1. */
static size_t blocking_round(struct kvcache *kv, const struct resolved *keys, size_t first)
{
        uint64_t bytes = 0;
        size_t n = 0;

        while (first + n < keys->count) {
                const struct resolved_key *k = &keys->keys[first + n];

                if (k->status == KVCACHE_OK && !k->shared)
                        bytes += round_up(k->bytes, STAGING_ALIGN);
                if (n > 0 && bytes > kv->conn->staging.bytes)
                        break;
                n++;
        }
        return n;
}

/* Prepares a session for a put: resolves its keys, creates the staging area if one is needed, and
 * checks that each chunk that is copied there fits. Returns 0; -E2BIG if one does not; another
 * -errno. */
static int blocking_put_ready(struct kvcache *kv, const struct kvcache_request *u,
                              struct resolved *keys)
{
        int r = -ECONNRESET;

        for (int tries = 0; tries < 2 && r == -ECONNRESET; tries++) {
                r = conn_ready(kv);
                if (r == 0)
                        r = resolve(kv, u, keys);
                if (r == 0 && keys->needs_staging)
                        r = memory_staging_ready(kv);
        }
        if (r == -ECONNRESET)
                return handle_fail(kv, -ENOTCONN, "the connection to the daemon was lost");
        if (r == -ENOMEM)
                return handle_no_memory(kv);
        if (r < 0)
                return r;
        for (size_t i = 0; i < keys->count; i++) {
                const struct resolved_key *k = &keys->keys[i];

                if (k->status == KVCACHE_OK && !k->shared && k->bytes > kv->conn->staging.bytes)
                        return handle_fail(
                                kv, -E2BIG,
                                "a chunk of %llu bytes is longer than the staging area of %llu "
                                "bytes: raise memory.staging, or staging_bytes of the handle",
                                (unsigned long long)k->bytes,
                                (unsigned long long)kv->conn->staging.bytes);
        }
        return 0;
}

static bool is_answered(struct kvcache *kv, const void *n_inflight)
{
        return kv->n_inflight < *(const unsigned *)n_inflight;
}

/* Puts the entries from `first` on, at most `*n`, or fewer if the staging area is too full, and
 * waits for the answer. Sets `*n` to the number sent. Returns 0, or -errno; if nothing was sent,
 * `*n` is then 0. */
static int blocking_put_round(struct kvcache *kv, const struct kvcache_request *u,
                              struct resolved *keys, size_t first, size_t *n, int64_t deadline)
{
        struct request *q;
        unsigned before;
        int r;

        for (;;) {
                r = submit(kv, u, keys, first, *n, first + *n < u->count, deadline, true, &q);
                if (r == 0)
                        return submit_finish(kv, q, NULL);
                if (r != -ENOBUFS)
                        break;
                if (*n > 1) {
                        *n /= 2;
                        continue;
                }
                before = kv->n_inflight;
                if (before == 0 || !flow_until(kv, is_answered, &before, deadline))
                        break;
        }
        *n = 0;
        return r;
}

static int blocking_put(struct kvcache *kv, const struct kvcache_request *u, struct resolved *keys,
                        int64_t deadline, size_t *ret_sent)
{
        size_t first = 0;
        int r;

        r = blocking_put_ready(kv, u, keys);
        if (r == -E2BIG && flow_has_ended(kv)) {
                kv->error[0] = '\0';
                r = blocking_put_ready(kv, u,
                                       keys); /* the next daemon's staging area may be larger */
        }
        while (r == 0 && first < u->count) {
                size_t n = kv->conn && keys->count > 0 ? blocking_round(kv, keys, first) : 1;

                r = blocking_put_round(kv, u, keys, first, &n, deadline);
                first += n;
        }
        *ret_sent = first;
        return r;
}

/* Performs a request, and waits for its completion. `*ret_sent` gets the number of entries that
 * were sent or have a final status; the others get the status of the failure. Returns 0 or -errno.
 */
static int blocking_call(struct kvcache *kv, const struct kvcache_request *u, uint64_t *ret_value,
                         size_t *ret_sent)
{
        _cleanup_(resolved_fini) struct resolved keys = { 0 };
        struct results results = { u->results, u->result_size };
        int64_t deadline;
        uint64_t value = 0;
        struct request *q;
        int r;

        if (hits_answer(kv, u, &keys) || lookup_answer(kv, u, &value)) {
                *ret_sent = u->count;
                if (ret_value)
                        *ret_value = value;
                return 0;
        }
        deadline = handle_deadline(u->timeout_ms, kv->request_timeout_ms);
        *ret_sent = 0;
        if (u->op == KVCACHE_OP_PUT) {
                r = blocking_put(kv, u, &keys, deadline, ret_sent);
        } else {
                r = submit(kv, u, &keys, 0, u->count, false, deadline, true, &q);
                if (r == 0) {
                        r = submit_finish(kv, q, &value);
                        *ret_sent = u->count;
                }
        }
        for (size_t i = *ret_sent; results.base && i < u->count; i++)
                results_set(&results, i, &(struct kvcache_result){ .status = blocking_status(r) });
        if (ret_value)
                *ret_value = u->op == KVCACHE_OP_MATCH ? value : 0;
        return r;
}

int kvcache_submit_and_wait(struct kvcache *kv, const struct kvcache_request *request,
                            uint64_t *ret_value)
{
        struct kvcache_request u;
        size_t sent;
        int r;

        r = handle_enter(kv);
        if (r < 0)
                return r;
        r = submit_normalize(kv, request, &u);
        if (r == 0)
                r = blocking_call(kv, &u, ret_value, &sent);
        handle_leave(kv);
        return r;
}

/* Performs a request of one key. Returns the key's status, or -errno if the request could not be
 * sent. */
static int blocking_one(struct kvcache *kv, const struct kvcache_request *request,
                        const struct kvcache_result *result)
{
        struct kvcache_request u;
        size_t sent;
        int r;

        r = handle_enter(kv);
        if (r < 0)
                return r;
        r = submit_normalize(kv, request, &u);
        if (r < 0)
                return r;
        r = blocking_call(kv, &u, NULL, &sent);
        handle_leave(kv);
        return sent == 0 ? r : result->status;
}

int kvcache_put(struct kvcache *kv, uint32_t namespace_handle, const struct kvcache_key *key,
                const void *data, size_t length, enum kvcache_ack ack)
{
        struct kvcache_result result = { 0 };
        struct kvcache_entry entry = { .data = (void *)data, .length = length };
        struct kvcache_request request;
        int r;

        r = handle_enter(kv);
        if (r < 0)
                return r;
        if (!key)
                return handle_fail(kv, -EINVAL, "the key is NULL");
        entry.key = *key;
        kvcache_prep_put(&request, namespace_handle, &entry, 1, ack, &result);
        return blocking_one(kv, &request, &result);
}

static int blocking_get(struct kvcache *kv, uint32_t namespace_handle,
                        const struct kvcache_key *key, struct kvcache_result *ret)
{
        struct kvcache_request request;

        kvcache_prep_get(&request, namespace_handle, key, 1, ret);
        return blocking_one(kv, &request, ret);
}

int kvcache_get_map_sized(struct kvcache *kv, uint32_t namespace_handle,
                          const struct kvcache_key *key, struct kvcache_result *ret,
                          size_t result_size)
{
        struct kvcache_result result = { 0 };
        int r;

        r = handle_enter(kv);
        if (r < 0)
                return r;
        if (!ret)
                return handle_fail(kv, -EINVAL, "the pointer to the result is NULL");
        if (!abi_size_is_valid(result_size, ABI_RESULT_MIN))
                return handle_fail(kv, -EINVAL,
                                   "%zu bytes are not the size of a struct kvcache_result",
                                   result_size);
        r = blocking_get(kv, namespace_handle, key, &result);
        abi_copy_out(ret, result_size, &result, sizeof(result));
        return r;
}

int kvcache_get(struct kvcache *kv, uint32_t namespace_handle, const struct kvcache_key *key,
                void *buffer, size_t room, size_t *ret_length)
{
        struct kvcache_result result = { 0 };
        int r;

        r = handle_enter(kv);
        if (r < 0)
                return r;
        if (!buffer && room > 0)
                return handle_fail(kv, -EINVAL, "the buffer is NULL, but its length is not 0");
        r = blocking_get(kv, namespace_handle, key, &result);
        if (r != KVCACHE_OK)
                return r;
        if (ret_length)
                *ret_length = result.length;
        if (result.length <= room)
                memcpy(buffer, result.data, result.length);
        else
                r = KVCACHE_TOO_LARGE;
        /* The release is sent with the next request. If that fails, the session ends, and the
         * lease ends with it. */
        (void)kvcache_release(kv, &result.lease, 1);
        return r;
}

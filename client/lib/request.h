/* SPDX-License-Identifier: Apache-2.0 */
/* A user's request: cut into messages on the way out, one status per key on the way back. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "lib/handle.h"
#include "lib/resolve.h"
#include "lib/results.h"

struct message;

struct request {
        TAILQ_ENTRY(request) link; /* kvcache.requests, then .ready */
        enum kvcache_op op;
        size_t count;
        struct results results;
        struct resolved targets; /* of a `get into` that the library copies itself; else empty */
        uint64_t user_data;
        int64_t deadline;
        size_t n_messages; /* not answered yet */
        size_t n_sent;
        size_t run; /* MATCH: no key from this one on is in the leading run */
        int error;
        bool done;
        bool waited; /* by a blocking call, which frees it: it is not reaped */
};

/* Builds, queues and sends `user`'s entries [first, first + count), as part of a chain that goes on
 * if `more`. `keys` is resolved for the session if it is not, and stays the caller's. 0; -ENOBUFS,
 * -E2BIG: data does not fit the staging area now, or ever; -ENOTCONN; -EINVAL; -ENOENT, -EEXIST:
 * the namespace could not be opened again after a reconnect. With `waited`, `*ret` is the caller's,
 * to be given to request_finish(). */
int request_submit(struct kvcache *kv, const struct kvcache_request *user, struct resolved *keys,
                   size_t first, size_t count, bool more, int64_t deadline, bool waited,
                   struct request **ret);
/* Checks what can be checked before anything is sent, and brings the program's struct to this
 * library's form; entries and results stay in the program's. */
int request_normalize(struct kvcache *kv, const struct kvcache_request *user,
                      struct kvcache_request *ret);
/* Waits for it, copies its verdict, frees it. */
int request_finish(struct kvcache *kv, struct request *q, uint64_t *ret_value);

/* A message of it went out; is lost. */
void request_sent(struct request *q);
void request_lost(struct kvcache *kv, struct message *m, int error);
/* The status of its keys [first, first + count), and nothing else of their results. */
void request_set(struct request *q, size_t first, size_t count, int status);
/* One of its messages needs no more waiting for. */
void request_message_done(struct kvcache *kv, struct request *q);

/* Completes what is due by `now` with KVCACHE_PENDING. */
void request_expire(struct kvcache *kv, int64_t now);
/* Will the library copy to [data, data + bytes) when a reply comes? */
bool request_copies_to(const struct kvcache *kv, const void *data, uint64_t bytes);
void request_free_all(struct kvcache *kv);

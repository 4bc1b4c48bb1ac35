/* SPDX-License-Identifier: Apache-2.0 */
/* A user's request on its way out, and the wait for its end. */
#pragma once

#include "lib/request.h"

/* Checks what can be checked before anything is sent, and brings the program's struct to this
 * library's form; entries and results stay in the program's. */
int submit_normalize(struct kvcache *kv, const struct kvcache_request *user,
                     struct kvcache_request *ret);
/* Builds, queues and sends `user`'s entries [first, first + count), as part of a chain that goes on
 * if `more`. `keys` is resolved for the session if it is not, and stays the caller's. 0; -ENOBUFS,
 * -E2BIG: data does not fit the staging area now, or ever; -ENOTCONN; -EINVAL; -ENOENT, -EEXIST:
 * the namespace could not be opened again after a reconnect. With `waited`, `*ret` is the caller's,
 * to be given to submit_finish(). */
int submit(struct kvcache *kv, const struct kvcache_request *user, struct resolved *keys,
           size_t first, size_t count, bool more, int64_t deadline, bool waited,
           struct request **ret);
/* Waits for it, copies its verdict, frees it. */
int submit_finish(struct kvcache *kv, struct request *q, uint64_t *ret_value);

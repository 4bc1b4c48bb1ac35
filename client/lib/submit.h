/* SPDX-License-Identifier: Apache-2.0 */
/* Submits a user's request, and waits for its completion. */
#pragma once

#include "lib/request.h"

/* Checks a request as far as possible before anything is sent, and brings the program's structure
 * to this library's form. Entries and results stay in the program's memory. Returns 0; -EINVAL;
 * -E2BIG if a member is set that this library does not know. */
int submit_normalize(struct kvcache *kv, const struct kvcache_request *user,
                     struct kvcache_request *ret);
/* Builds, queues and sends the entries [first, first + count) of `user`; `more`: the chain
 * continues after them. Resolves `keys`, which the caller owns, if they are not resolved for the
 * session. `waited`: `*ret` belongs to the caller, who passes it to submit_finish(). Returns 0;
 * -ENOBUFS or -E2BIG if data does not fit into the staging area now, or ever; -E2BIG also if a key
 * has too many pieces; -EOPNOTSUPP if the daemon does not know the operation or the advice;
 * -ENOTCONN; -EINVAL; -ENOMEM; the error of the message that opens the namespace, registers a
 * buffer again or creates the staging area in a new session. */
int submit(struct kvcache *kv, const struct kvcache_request *user, struct resolved *keys,
           size_t first, size_t count, bool more, int64_t deadline, bool waited,
           struct request **ret);
/* Waits for a request and frees it. Returns its error, or 0; `*ret_value` (may be NULL) gets the
 * leading run of a MATCH. */
int submit_finish(struct kvcache *kv, struct request *q, uint64_t *ret_value);

/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers of calls that send one message and wait for its reply, such as list, purge and ping. */
#pragma once

#include "lib/message.h"

/* Gets the daemon's number of a namespace, opening the namespace again if the session is new.
 * Returns 0 or -errno. */
int admin_namespace_ready(struct kvcache *kv, uint32_t namespace_handle, uint32_t *ret_id);
void admin_namespaces_free(struct kvcache *kv);

/* Begins a call: enters the handle and connects if necessary. Returns 0, or -errno, with which the
 * call then ends. */
int admin_begin(struct kvcache *kv);
/* Ends a call: sends `m`, taking ownership of it, waits for its reply, and leaves the handle.
 * Returns 0 or -errno; -ENOMEM if `m` is NULL. */
int admin_call(struct kvcache *kv, struct message *m, struct control *c);

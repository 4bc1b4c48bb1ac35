/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers of calls that consist of one message and its reply: namespaces, list, purge, verify,
 * ping, report. */
#pragma once

#include "lib/message.h"

/* Gets the daemon's number of a namespace, opening the namespace again if the session is new.
 * Returns 0 or -errno. */
int admin_namespace_ready(struct kvcache *kv, uint32_t namespace_handle, uint32_t *ret_id);
void admin_namespaces_free(struct kvcache *kv);

/* Begins such a call: enters the handle and connects. The caller has checked its arguments. Returns
 * 0 or the call's result. */
int admin_begin(struct kvcache *kv);
/* Ends such a call: sends `m`, taking ownership of it, and waits for its reply. Returns 0 or
 * -errno. */
int admin_call(struct kvcache *kv, struct message *m, struct control *c);

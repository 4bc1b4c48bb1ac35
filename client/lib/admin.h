/* SPDX-License-Identifier: Apache-2.0 */
/* The calls that are one message and its answer: namespaces, list, purge, verify, ping, report. */
#pragma once

#include "lib/message.h"

/* The daemon's number of a namespace, opened again if the session is a new one. 0 or -errno. */
int admin_namespace_ready(struct kvcache *kv, uint32_t namespace_handle, uint32_t *ret_id);
void admin_namespaces_free(struct kvcache *kv);

/* Such a call begins here, connected, after what it checks itself: 0, or its result. */
int admin_begin(struct kvcache *kv);
/* ... and ends: sends `m`, which it swallows, and waits for its reply. 0 or -errno. */
int admin_call(struct kvcache *kv, struct message *m, struct control *c);

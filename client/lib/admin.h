/* SPDX-License-Identifier: Apache-2.0 */
/* The calls that are one message and its answer: namespaces, list, purge, verify, ping,
 * report. */
#pragma once

#include "lib/handle.h"

/* The daemon's number of a namespace, opened again if the session is a new one. 0 or -errno. */
int control_namespace_ready(struct kvcache *kv, uint32_t namespace_handle, uint32_t *ret_id);
void control_namespaces_free(struct kvcache *kv);

/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions that have ended, and the memory that their unanswered requests may still use (R17 in
 * SECURITY.md). */
#pragma once

#include "lib/handle.h"

/* Moves kv->conn to the list of ended sessions. */
void retired_add(struct kvcache *kv);
/* Frees the parts of ended sessions that are no longer needed. */
void retired_collect(struct kvcache *kv);
/* Returns whether a request names memory in [data, data + bytes) that has not been answered: one of
 * this session, queued or in flight, or one of an ended session whose daemon may still have I/O. */
bool retired_uses(struct kvcache *kv, const void *data, uint64_t bytes);

/* SPDX-License-Identifier: Apache-2.0 */
/* Answers EXISTS and MATCH from the tenant's lookup index, memory that the daemon writes,
 * without a message to the daemon. See proto/lookup.h. */
#pragma once

#include "lib/handle.h"

/* Answers the request if the index can: fills in the results, and sets `*ret_value` to the length
 * of a MATCH's leading run. Returns false if the daemon must be asked. */
bool lookup_answer(struct kvcache *kv, const struct kvcache_request *user, uint64_t *ret_value);
/* Requests the lookup index from the daemon, unless the session has it, has asked or was refused
 * recently, or may not use it. Called when a lookup goes to the daemon. */
void lookup_want(struct kvcache *kv);
/* Takes the reply to LOOKUP. `fd` is the descriptor of the index, `tally_fd` that of the page of
 * counters; -1: none. The caller keeps both. */
void lookup_take(struct kvcache *kv, const struct wire_reply *reply, int fd, int tally_fd);
/* Unmaps the index. */
void lookup_fini(struct lookup_serial *l);
/* Returns whether an EVICT is queued or in flight. An answer from the index would overtake the
 * EVICT, although the request came after it. */
bool lookup_is_overtaking(const struct kvcache *kv);
/* Returns whether the session was up within the last millisecond. The daemon's memory outlives the
 * daemon and is stale then. */
bool lookup_session_is_up(struct kvcache *kv);

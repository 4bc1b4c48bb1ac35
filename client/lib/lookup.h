/* SPDX-License-Identifier: Apache-2.0 */
/* The tenant's lookup index as this session has it: EXISTS and MATCH answered from memory that the
 * daemon writes, without a word to it. See lookup.h of proto. */
#pragma once

#include "lib/handle.h"

/* Answers the request if it can be answered here and now: fills in the results, and how long the
 * leading run of a MATCH is. False: ask the daemon. */
bool lookup_answer(struct kvcache *kv, const struct kvcache_request *user, uint64_t *ret_value);
/* The daemon is being asked: for the index, too, if there is one to be had. */
void lookup_want(struct kvcache *kv);
/* The reply to LOOKUP; the descriptors stay the caller's: of the index, of the tally. -1: none. */
void lookup_take(struct kvcache *kv, const struct wire_reply *reply, int fd, int tally_fd);
/* Unmaps it. */
void lookup_fini(struct lookup_serial *l);
/* Is an EVICT on its way, which takes effect before what comes behind it? */
bool lookup_is_overtaking(const struct kvcache *kv);
/* Was the session up a millisecond ago? The daemon's memory outlives the daemon, and says nothing
 * any more. */
bool lookup_session_is_up(struct kvcache *kv);

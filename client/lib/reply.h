/* SPDX-License-Identifier: Apache-2.0 */
/* Replies to batches: PUT, GET, EXISTS, MATCH, TOUCH, EVICT, STAT, PREFETCH. */
#pragma once

#include "lib/handle.h"

struct message;
struct wire_reply;

/* What is wrong with the results, whose number and length are right, of this reply to `m`. NULL:
 * nothing. */
const char *reply_check(const struct kvcache *kv, const struct message *m,
                        const struct wire_reply *reply);
/* Writes the results of a checked reply, or of a refusal, to the request that waits for it, if any.
 */
void reply_take(struct kvcache *kv, struct message *m, const struct wire_reply *reply);

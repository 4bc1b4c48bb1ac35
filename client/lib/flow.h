/* SPDX-License-Identifier: Apache-2.0 */
/* Messages on their way: queue, window, socket, and back by their tags. */
#pragma once

#include "lib/message.h"

/* Sends what may be sent. 0, or -errno as flow(). */
int flow_send(struct kvcache *kv);
/* Sends what may be sent and takes the replies that are there. 0, or -errno: the session has ended
 * with it, and everything in flight with the session. */
int flow(struct kvcache *kv);
/* With nothing in flight, notices that the session has ended meanwhile. */
void flow_check_idle(struct kvcache *kv);
/* The same, whatever is in flight. True: there is no session now. */
bool flow_has_ended(struct kvcache *kv);

/* Every wait of the library's: takes what comes and lets overdue requests go until `done` is true
 * of `what`, or the deadline has passed: false. */
bool flow_until(struct kvcache *kv, bool (*done)(struct kvcache *kv, const void *what),
                const void *what, int64_t deadline);
/* Sends `m`, which it swallows, and waits for its reply. 0; the refusal as -errno; -ETIMEDOUT. */
int flow_call(struct kvcache *kv, struct message *m, struct control *c, int64_t deadline);

/* The session is over: every request in flight completes with `error`, the session joins the ended
 * ones. */
void flow_session_lost(struct kvcache *kv, int error);

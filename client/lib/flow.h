/* SPDX-License-Identifier: Apache-2.0 */
/* Moves messages through the queue, the window and the socket, and finds them again by their
 * tags. */
#pragma once

#include "lib/message.h"

/* Sends queued messages while the window and the socket accept them. Returns 0 or -errno as
 * flow(). */
int flow_send(struct kvcache *kv);
/* Sends queued messages and takes the replies that have arrived. Returns 0, or -errno if the
 * session has ended, which also ends all requests in flight. */
int flow(struct kvcache *kv);
/* Takes the replies for which no call waits. If no other message is in flight, also checks whether
 * the connection has ended, and ends the session if so. */
void flow_check_idle(struct kvcache *kv);
/* Detects whether the session has ended, whatever is in flight. Returns true if there is no session
 * now. */
bool flow_has_ended(struct kvcache *kv);

/* Waits until `done(kv, what)` is true, taking replies and expiring overdue requests. Returns false
 * if `deadline` (ns, CLOCK_MONOTONIC) passes first. All waits of the library go through this
 * function. */
bool flow_until(struct kvcache *kv, bool (*done)(struct kvcache *kv, const void *what),
                const void *what, int64_t deadline);
/* Sends `m`, taking ownership of it, and waits for its reply, which fills `c`. Returns 0; the
 * daemon's refusal or the end of the session as -errno; -ETIMEDOUT; -ENOMEM if `m` is NULL. */
int flow_call(struct kvcache *kv, struct message *m, struct control *c, int64_t deadline);

/* Ends the session: ends the messages in flight and in the queue, and their requests, with `error`,
 * and adds the session to the ended ones. */
void flow_session_lost(struct kvcache *kv, int error);

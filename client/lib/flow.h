/* SPDX-License-Identifier: Apache-2.0 */
/* Sends queued messages while the window of messages in flight (kvcache.inflight) and the socket
 * accept them, and finds the message of a reply by its tag. See flow.c. */
#pragma once

#include "lib/message.h"

/* Sends queued messages while the window and the socket accept them. Returns 0, or -ECONNRESET if
 * the session ends. */
int flow_send(struct kvcache *kv);
/* Sends queued messages and takes the replies that have arrived. Returns 0, also if there is no
 * session; or -errno if the session ends in this call, which also ends its requests, queued or in
 * flight. */
int flow(struct kvcache *kv);
/* Takes the replies for which no call waits. If no other message is in flight, also checks whether
 * the connection has ended, and ends the session if so. */
void flow_check_idle(struct kvcache *kv);
/* Detects whether the session has ended, whatever is in flight. Returns true if there is no session
 * now. */
bool flow_has_ended(struct kvcache *kv);

/* Waits until `done(kv, what)` is true, taking replies and expiring overdue requests. Returns false
 * if `deadline` (ns, CLOCK_MONOTONIC) passes first. The library waits for replies in this function
 * only, except for HELLO and in parts_wait(). */
bool flow_until(struct kvcache *kv, bool (*done)(struct kvcache *kv, const void *what),
                const void *what, int64_t deadline);
/* Sends `m`, taking ownership of it, and waits for its reply, which fills `c`. Returns 0; the
 * daemon's refusal or the end of the session as -errno; the error of staging_map() for a STAGING;
 * -ETIMEDOUT; -ENOMEM if `m` is NULL. */
int flow_call(struct kvcache *kv, struct message *m, struct control *c, int64_t deadline);

/* Ends the session: ends the messages in flight and in the queue, and their requests, with `error`,
 * and adds the session to the ended ones. */
void flow_session_lost(struct kvcache *kv, int error);

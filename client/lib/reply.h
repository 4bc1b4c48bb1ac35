/* SPDX-License-Identifier: Apache-2.0 */
/* A reply is checked whole, then taken. */
#pragma once

#include "lib/message.h"

/* The reply of `bytes` bytes in kv->in: what it says goes to the request or the call that waits for
 * it, if any, and its message is freed. A descriptor that is taken over becomes -1 in `fds`. 0;
 * -EBADMSG: it is malformed, and had no effect. */
int reply_take(struct kvcache *kv, size_t bytes, int fds[static WIRE_MAX_FDS], unsigned n_fds);

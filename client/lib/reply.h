/* SPDX-License-Identifier: Apache-2.0 */
/* Checks a whole reply, then applies it. */
#pragma once

#include "lib/message.h"

/* Takes the reply of `bytes` bytes in kv->in: passes its contents to the waiting request or call,
 * if there is one, and frees its message. A descriptor that the function takes over becomes -1 in
 * `fds`. Returns 0, or -EBADMSG if the reply is malformed; it then had no effect. */
int reply_take(struct kvcache *kv, size_t bytes, int fds[static WIRE_MAX_FDS], unsigned n_fds);

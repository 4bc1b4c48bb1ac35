/* SPDX-License-Identifier: Apache-2.0 */
/* The calls about memory that the daemon shares: staging, registered buffers. */
#pragma once

#include "lib/handle.h"

/* Makes the staging area if this session has none: a round trip. 0 or -errno; the session may be
 * over then.
 */
int memory_staging_ready(struct kvcache *kv);
/* Registers `d` again if this session does not have it. `*tried` has a bit for each region that has
 * been tried before. 0; -errno: the request cannot go out. A refusal is none of these: the region
 * stays out of the session, the error text says why, and `*ret_refused` is the refusal as -errno.
 */
int memory_buffer_ready(struct kvcache *kv, const struct buffer *d, uint64_t *tried,
                        int *ret_refused);

/* SPDX-License-Identifier: Apache-2.0 */
/* The calls about shared memory: staging and registered buffers. */
#pragma once

#include "lib/handle.h"

/* Creates the staging area if this session has none, with a round trip. Returns 0 or -errno; the
 * session may have ended then. */
int memory_staging_ready(struct kvcache *kv);
/* Registers `d` if this session does not have it. `*tried` has a bit for each buffer that this
 * request has tried before. Returns 0, or -errno if the request cannot be sent. A refusal also
 * returns 0: the buffer stays unregistered, the error text gives the reason, and `*ret_refused` is
 * the refusal as -errno. */
int memory_buffer_ready(struct kvcache *kv, const struct buffer *d, uint64_t *tried,
                        int *ret_refused);

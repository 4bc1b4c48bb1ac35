/* SPDX-License-Identifier: Apache-2.0 */
/* The handle's table of registered buffers, and the changes that replies of the daemon make to
 * it. */
#pragma once

#include "lib/handle.h"

struct message;

/* Returns the buffer that contains all of [data, data + bytes), or NULL. The buffer need not be
 * registered in this session; buffers that are being unregistered are ignored. */
const struct buffer *buffer_find(struct kvcache *kv, const void *data, uint64_t bytes);
/* Returns whether [data, data + bytes) overlaps the addresses of a buffer that is a file on a disk.
 * No memory is mapped at these addresses. */
bool buffer_is_near_file(const struct kvcache *kv, const void *data, uint64_t bytes);
/* Returns the buffer with this number, or NULL. */
struct buffer *buffer_by_number(struct kvcache *kv, uint32_t number);
bool buffer_in_session(const struct kvcache *kv, const struct buffer *d);

/* Returns the fault in a reply to REGISTER, or NULL. */
const char *buffer_check(const struct kvcache *kv, const struct wire_reply *reply);
/* Apply the daemon's OK to a REGISTER and to an UNREGISTER, also if no call is waiting for that
 * reply any longer. */
void buffer_take(struct kvcache *kv, const struct message *m, const struct wire_reply *reply);
void buffer_unregistered(struct kvcache *kv, const struct message *m);

/* Unmaps the buffer if the library mapped it, closes its descriptor and removes its row. `forked`:
 * the process is a child, which does not have the mapping. */
void buffer_remove(struct kvcache *kv, struct buffer *d, bool forked);

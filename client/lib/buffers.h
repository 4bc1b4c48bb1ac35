/* SPDX-License-Identifier: Apache-2.0 */
/* The handle's table of registered buffers, and what the daemon's replies change in it. */
#pragma once

#include "lib/handle.h"

struct message;

/* The region that all of [data, data + bytes) is in, or NULL. It may not be in this session. */
const struct buffer *buffer_find(struct kvcache *kv, const void *data, uint64_t bytes);
/* Does a part of it name a file on a disk, where no memory is? */
bool buffer_is_near_file(const struct kvcache *kv, const void *data, uint64_t bytes);
/* NULL: there is none of this number. */
struct buffer *buffer_by_number(struct kvcache *kv, uint32_t number);
bool buffer_in_session(const struct kvcache *kv, const struct buffer *d);

/* What is wrong with the reply to a REGISTER, or NULL. */
const char *buffer_check(const struct kvcache *kv, const struct wire_reply *reply);
/* The daemon's OK to a REGISTER; to an UNREGISTER. A call may wait for it or not. */
void buffer_take(struct kvcache *kv, const struct message *m, const struct wire_reply *reply);
void buffer_unregistered(struct kvcache *kv, const struct message *m);

/* Unmaps it, if it is the library's mapping, and forgets it. */
void buffer_remove(struct kvcache *kv, struct buffer *d, bool forked);

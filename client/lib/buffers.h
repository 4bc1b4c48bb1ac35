/* SPDX-License-Identifier: Apache-2.0 */
/* Registered buffers: memory of the user's that the daemon moves bytes to and from by itself.
 *
 * The user knows a region by a number of the handle's, the daemon by one of the session's; a region
 * that outlives its session gets another of those when it is first needed again. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvcache.h"

struct message;
struct wire_reply;

struct buffer {
        uint32_t number;  /* the handle's; never used twice */
        uint32_t id;      /* the daemon's, in session `session` */
        uint64_t session; /* 0: in none */
        uint8_t *base;
        uint64_t offset, bytes; /* in the file */
        int fd;
        bool mapped;  /* by the library */
        bool leaving; /* being unregistered: no request names it any more */
};

/* The region that all of [data, data + bytes) is in, or NULL. It may not be in this session. */
const struct buffer *buffer_find(struct kvcache *kv, const void *data, uint64_t bytes);
/* Registers `d` again if this session does not have it. `*tried` has a bit for each region that has
 * been tried before. 0; -errno: the request cannot go out. A refusal is none of these: the region
 * stays out of the session, the error text says why, and `*ret_refused` is the refusal as -errno.
 */
int buffer_ready(struct kvcache *kv, const struct buffer *d, uint64_t *tried, int *ret_refused);

/* What is wrong with the reply to a REGISTER, or NULL. */
const char *buffer_check(const struct kvcache *kv, const struct wire_reply *reply);
/* The daemon's OK to a REGISTER; to an UNREGISTER. A call may wait for it or not. */
void buffer_take(struct kvcache *kv, const struct message *m, const struct wire_reply *reply);
void buffer_unregistered(struct kvcache *kv, const struct message *m);

/* At the handle's end. */
void buffer_free_all(struct kvcache *kv, bool forked);

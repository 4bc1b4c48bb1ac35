/* SPDX-License-Identifier: Apache-2.0 */
/* A request becomes messages. */
#pragma once

#include "handle.h"

struct build {
        struct kvcache *kv;
        const struct kvcache_request *user;
        size_t first, count; /* the user's entries that are sent now */
        struct request *request;
        uint32_t namespace_id;
        uint32_t wait_ms; /* how long the daemon may let it wait */

        struct message_list messages; /* the outcome */
        bool into;                    /* the daemon copies a `get into` */
        uint32_t per_message;
};

/* Of the op: 0 if there is none such. */
unsigned build_wire_op(enum kvcache_op op);

/* Of a put, or the room of a `get into`, pieces summed up; UINT64_MAX: more than that. */
uint64_t build_length(const struct kvcache_entry *e);
/* Do any of these puts have to be copied to the lane: are they in no memory that is shared? */
bool build_needs_lane(struct kvcache *kv, const struct kvcache_entry *entries, size_t n);

/* Fills `messages`, which is initialized; with `more`, the chain goes on after the last. 0;
 * -ENOMEM; -ENOBUFS, -E2BIG: the data does not fit into the lane now, or ever; -E2BIG: a key has
 * more pieces than a message holds; -EINVAL: memory in the lane, but in no acquired place. After a
 * failure build_undo() is due. */
int build_request(struct build *b, bool more);
void build_undo(struct build *b);

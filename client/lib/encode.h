/* SPDX-License-Identifier: Apache-2.0 */
/* A request becomes messages. */
#pragma once

#include "lib/handle.h"
#include "lib/resolve.h"

struct build {
        struct kvcache *kv;
        const struct kvcache_request *user;
        const struct resolved *keys; /* of all of the user's */
        size_t first, count;         /* those that are sent now */
        struct request *request;
        uint32_t namespace_id;
        uint32_t wait_ms; /* how long the daemon may let it wait */

        struct message_list messages; /* the outcome */
        bool into;                    /* the daemon copies a `get into` */
        uint32_t per_message;
};

/* Of the op: 0 if there is none such. */
unsigned build_wire_op(enum kvcache_op op);

/* Fills `messages`, which is initialized; with `more`, the chain goes on after the last. 0;
 * -ENOMEM; -ENOBUFS, -E2BIG: the data does not fit into the lane now, or ever; -E2BIG: a key has
 * more pieces than a message holds; -EINVAL: memory in the lane, but in no acquired place. After a
 * failure build_undo() is due. */
int build_request(struct build *b, bool more);
void build_undo(struct build *b);

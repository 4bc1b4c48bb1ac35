/* SPDX-License-Identifier: Apache-2.0 */
/* A request becomes messages. */
#pragma once

#include "lib/resolve.h"

/* Bytes that the library copies by itself: encode.c. */
enum { ENCODE_COPIES_MOST = 4 << 20 };

struct encode {
        struct kvcache *kv;
        const struct kvcache_request *user;
        const struct resolved *keys; /* of all of the user's */
        size_t first, count;         /* those that are sent now */
        struct request *request;
        uint32_t namespace_id;
        uint32_t wait_ms; /* how long the daemon may let it wait */

        struct message_list messages; /* the outcome */
        bool into;                    /* the daemon copies a `get into` ... */
        bool lease_into; /* ... but for what it has in memory, which the library does */
        uint32_t per_message;
};

/* Of the op: 0 if there is none such. */
unsigned encode_wire_op(enum kvcache_op op);

/* Fills `messages`, which is initialized; with `more`, the chain goes on after the last. 0;
 * -ENOMEM; -ENOBUFS, -E2BIG: the data does not fit into the staging area now, or ever; -E2BIG: a
 * key has more pieces than a message holds; -EINVAL: memory in the staging area, but in no acquired
 * place. After a failure encode_undo() is due. */
int encode_request(struct encode *b, bool more);
void encode_undo(struct encode *b);

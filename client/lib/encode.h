/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the messages of a request. */
#pragma once

#include "lib/resolve.h"

/* The maximum number of bytes of a `get into` of memory shared with the daemon that the library
 * copies itself; see library_copies() in encode.c. */
enum { ENCODE_COPIES_MOST = 4 << 20 };

struct encode {
        struct kvcache *kv;
        const struct kvcache_request *user;
        const struct resolved *keys; /* all entries of `user` */
        size_t first, count;         /* range of the entries that the messages carry */
        struct request *request;
        uint32_t namespace_id;
        uint32_t wait_ms; /* maximum time for which the request may wait in the daemon, ms */

        struct message_list messages; /* the messages that encode_request() has built */
        bool into;       /* `get into`: the daemon copies the chunks to their targets */
        bool lease_into; /* with `into`: chunks in memory are leased instead, and the library copies
                            them */
        uint32_t per_message;
};

/* Returns the wire op of a request, or 0 if it is unknown. */
unsigned encode_wire_op(const struct kvcache_request *user);
/* Returns the feature that the advice of an ADVISE needs, or 0. */
unsigned encode_feature_of(const struct kvcache_request *user);

/* Appends the request's messages to `b->messages`, which the caller has initialized. `more`: the
 * chain continues after the last message. Returns 0; -ENOMEM; -ENOBUFS or -E2BIG if the data does
 * not fit into the staging area now, or ever; -E2BIG if a key has more pieces than a message holds;
 * -EINVAL if memory lies in the staging area but in no acquired place. After a failure the caller
 * calls encode_undo(). */
int encode_request(struct encode *b, bool more);
void encode_undo(struct encode *b);

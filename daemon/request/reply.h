/* SPDX-License-Identifier: Apache-2.0 */
/* A request's handle: what answering a message takes, by value. An operation that is answered later
 * keeps a copy. Each is answered exactly once. Loop thread. */
#pragma once

#include "request/client.h"

struct request {
        struct client *client;
        struct wire_hdr header;
        uint64_t received_ns;
};

/* Without results. */
void request_ok(struct request req);
void request_ok_value(struct request req, uint32_t value, uint64_t value64);
/* OK, with descriptors, which stay the caller's. takes_fds() has allowed them. */
void request_reply_fds(struct request req, uint32_t value, uint64_t value64, const int *fds,
                       unsigned n_fds);
/* `status` is not OK; `text` says why. */
void request_fail(struct request req, enum wire_status status, const char *text);
void request_fail_value(struct request req, enum wire_status status, uint32_t value,
                        uint64_t value64, const char *text);
/* With results behind the reply's head, `bytes` together. Fills in the head's header. */
void request_reply(struct request req, struct wire_reply *reply, size_t bytes);

/* Memory for an operation that is kept until it is answered, all zero, charged to the client
 * with `beside`: what the rooms below keep for it meanwhile. NULL: there is none, and the request
 * has been refused. */
void *request_operation_new(struct request req, size_t bytes, size_t beside);
/* Once it is answered, or just before. `charged`: both together. */
void request_operation_free(struct request req, void *op, size_t charged);

/* SPDX-License-Identifier: Apache-2.0 */
/* The handle of a request, passed by value, which suffices to answer a message. An operation that
 * is answered later keeps a copy. Each request is answered exactly once. Loop thread. */
#pragma once

#include "request/client.h"

struct request {
        struct client *client;
        struct wire_hdr header;
        uint64_t received_ns;
};

/* Answer with OK and without results. `value` and `value64` are fields of the reply's head. */
void request_ok(struct request req);
void request_ok_value(struct request req, uint32_t value, uint64_t value64);
/* Answers with OK and descriptors, which remain the caller's. takes_fds() must have permitted
 * them. */
void request_reply_fds(struct request req, uint32_t value, uint64_t value64, const int *fds,
                       unsigned n_fds);
/* Answer with a failure: `status` is not WIRE_OK, and `text` gives the reason. */
void request_fail(struct request req, enum wire_status status, const char *text);
void request_fail_value(struct request req, enum wire_status status, uint32_t value,
                        uint64_t value64, const char *text);
/* Answers with results that follow the reply's head, `bytes` of head and results together. Fills in
 * the header of the head. */
void request_reply(struct request req, struct wire_reply *reply, size_t bytes);

/* Returns zeroed memory for an operation that is kept until it is answered. Charges the client for
 * it and for `beside` bytes, which lower rooms keep for the operation. Returns NULL after having
 * refused the request, if there is no memory or a limit refuses the charge. */
void *request_operation_new(struct request req, size_t bytes, size_t beside);
/* Frees an operation after its answer or just before. `charged`: the sum of `bytes` and
 * `beside`. */
void request_operation_free(struct request req, void *op, size_t charged);

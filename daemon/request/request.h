/* SPDX-License-Identifier: Apache-2.0 */
/* From a checked message to what it asks of pool and store, and back to a reply.
 *
 * A message becomes a batch: its keys are started a few at a time (rule R16), each ends with a
 * status, and the reply goes out when all have. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "request/client.h"

enum {
        REQUEST_KEYS_PER_ITERATION = 64, /* of one client */
        REQUEST_SMALL_KEYS = 8,
};

/* One message that wire_check_request() has passed, other than HELLO, with as many descriptors as
 * wire_request_fds() says. `msg` is the caller's again afterwards, and so are the descriptors that
 * are not -1 then. */
void request_dispatch(struct client *client, const void *msg, int *fds);
/* Starts up to REQUEST_KEYS_PER_ITERATION keys of what was dispatched; of a client that has ended,
 * none. True if all are started. */
bool request_run(struct client *client);
/* Has it so little to start that others need not be served before it? */
bool request_is_small(const struct client *client);

/* SPDX-License-Identifier: Apache-2.0 */
/* Executes checked messages on pool and store, and replies.
 *
 * A message becomes a batch: its keys are started a few at a time (R16 in SECURITY.md), each ends
 * with a status, and the reply is sent when all have ended. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "request/client.h"

enum {
        REQUEST_KEYS_PER_ITERATION = 64, /* most keys of a client that one iteration starts */
        REQUEST_SMALL_KEYS = 8,          /* see request_is_small() */
};

/* Dispatches a message other than HELLO that wire_check_request() has accepted, with as many
 * descriptors as wire_request_fds() requires. Afterwards `msg` is the caller's again, and so are
 * the descriptors that have not been set to -1. */
void request_dispatch(struct client *client, const void *msg, int *fds);
/* Starts up to REQUEST_KEYS_PER_ITERATION keys of dispatched messages; if the client has ended, it
 * ends them with WIRE_SHUTDOWN instead. Returns whether none is left to start. */
bool request_run(struct client *client);
/* Returns whether the client has so few keys to start that it need not let other clients go first:
 * those of one message with at most REQUEST_SMALL_KEYS keys, or none. */
bool request_is_small(const struct client *client);

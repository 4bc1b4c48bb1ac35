/* SPDX-License-Identifier: Apache-2.0 */
/* Ends a client and releases its resources. Loop thread. */
#pragma once

#include "request/client.h"

/* Releases everything that the client holds. inflight must be 0, and the staging area must have
 * been taken over. */
void client_fini(struct client *client);
/* Begins the end of a client whose peer has closed or is to be closed. Registered buffers are
 * unregistered now, and messages in flight end unanswered. client_settle() cancels waiting keys and
 * ends the leases. */
void client_abandon(struct client *client);
/* Performs slow work in steps: touches long complete chains, and for an abandoned client cancels
 * waiting keys and ends leases and loans. *steps is the permitted cost, in keys and leases, and is
 * reduced by the cost used. Returns whether more remains. */
bool client_settle(struct client *client, uint32_t *steps);

/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a client: what it holds ends with it. Loop thread. */
#pragma once

#include "request/client.h"

/* Gives back all it holds. inflight must be 0, and the staging area be handed over. */
void client_fini(struct client *client);
/* The peer has closed, or is to be closed: registered buffers end now, what is in flight ends
 * unanswered; client_settle() cancels what waits for room, and gives the leases back. */
void client_abandon(struct client *client);
/* Does some of what would take long at once: touches the long chains that are over, and of a client
 * that is abandoned cancels the keys that wait for room and gives back the leases. *steps is what
 * it may cost, in keys and leases, and becomes what is left of that. True: there is more to do. */
bool client_settle(struct client *client, uint32_t *steps);

/* SPDX-License-Identifier: Apache-2.0 */
/* What clients get from memory by themselves, by the pool index: POOL_INDEX, and what the daemon
 * learns of it afterwards. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "request/client.h"
#include "request/reply.h"

/* POOL_INDEX. */
void hits_join(struct request req);
/* Its session ends: it gets nothing by itself any more. */
void hits_end(struct client *client);
/* Continues with what the client used before it ended: touches some of it, and takes the words that
 * were read off *steps, which may be overdrawn by one request. Returns whether there is more. */
bool hits_settle_some(struct client *client, uint32_t *steps);
/* Before the client is closed. Touches nothing more. */
void hits_leave(struct client *client);
/* It has opened the namespace, or the lifetime of that has changed. */
void hits_allow(struct client *client, uint32_t id);
/* The same, for all clients of the tenant. */
void hits_allow_all(struct tenant *tenant, uint32_t id);
/* It has the namespace no more. */
void hits_forget(struct client *client, uint32_t number);

/* How many chunks it may still read: its leases, and what it holds by itself. */
uint64_t hits_leases(const struct client *client);
/* Each of these. */
void hits_each_leased(const struct client *client, void (*each)(void *userdata, uint32_t chunk),
                      void *userdata);

/* Counts what it has got by itself since the last time. */
void hits_count(struct client *client, uint64_t now_ns);
/* Before a message of the client takes effect: touches what it had used by itself before, unless
 * that is very much, of this client or of those before it in the iteration. A HINT would otherwise
 * come before the use that it follows. */
void hits_catch_up(struct client *client);
/* At the end of an iteration: fills the indexes, and touches what clients have used by themselves,
 * for a moment. True: there is more to do at once. */
bool hits_iterate(struct service *service, uint64_t now_ns);
/* Later in it: frees what was dropped in the iteration and no client holds. When it is to be called
 * again at the latest: if that was too early for another scan of all holds, or something found no
 * room where clients held what could have left; 0: there is neither. */
uint64_t hits_retry_ns(struct service *service, uint64_t now_ns);
/* About once a second. */
void hits_tick(struct service *service);
/* While it lasts every client asks the daemon. As often ended as begun. */
void hits_suspend(struct service *service, bool suspend);

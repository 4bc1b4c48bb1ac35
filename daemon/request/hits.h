/* SPDX-License-Identifier: Apache-2.0 */
/* Hits that clients get from memory themselves through the pool index: POOL_INDEX, and accounting
 * for the hits afterwards. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "request/client.h"
#include "request/reply.h"

/* Handles POOL_INDEX: lets the client join the pool index. */
void hits_join(struct request req);
/* Ends the client's permission to get chunks through the pool index, because its session ends. */
void hits_end(struct client *client);
/* Continues after hits_end() with the hits that the client had not yet accounted for: touches some
 * of their chunks, and subtracts the words read from *steps. Returns whether more hits remain. */
bool hits_settle_some(struct client *client, uint32_t *steps);
/* Leaves the pool index, before the client is closed. Hits that remain are counted, but their
 * chunks are not touched. */
void hits_leave(struct client *client);
/* Lets the client get chunks of a namespace through the pool index, or forbids that if the
 * namespace has a lifetime. Called after the client has opened the namespace or the lifetime has
 * changed. */
void hits_allow(struct client *client, uint32_t id);
/* Calls hits_allow() for all clients of the tenant. */
void hits_allow_all(struct tenant *tenant, uint32_t id);
/* Revokes the permission for a namespace that the client no longer has. */
void hits_forget(struct client *client, uint32_t number);

/* Returns the number of the client's leases and holds, each of which lets it still read a chunk. */
uint64_t hits_leases(const struct client *client);
/* Calls each() with the chunk of each lease and hold; a chunk that has several is passed several
 * times. */
void hits_each_leased(const struct client *client, void (*each)(void *userdata, uint32_t chunk),
                      void *userdata);

/* Adds the hits that the client has recorded in its page since the last call to the counters of its
 * tenant. */
void hits_count(struct client *client, uint64_t now_ns);
/* Touches the chunks that the client has got itself, the last chunk of each request first, within a
 * limit per iteration for all clients. Called before a message of the client is handled: without
 * this, a HINT would precede the use that it refers to. */
void hits_catch_up(struct client *client);
/* Fills the indexes, and touches chunks that clients have used themselves, for a limited time at
 * the end of an iteration. Returns whether there is more to do immediately, for the indexes. */
bool hits_iterate(struct service *service, uint64_t now_ns);
/* Returns whether hits_iterate() has more chunks to touch. No client waits for that. */
bool hits_are_behind(const struct service *service);
/* Frees the dropped chunks that no client holds, if chunks were dropped or a client left since the
 * last time, or if a retry is due; waiting requests then try again. Returns the time by which it
 * must be called again, or 0. Another call is needed if holds may not be scanned yet, or if a
 * request found no room because of holds. */
uint64_t hits_retry_ns(struct service *service, uint64_t now_ns);
/* Revises which namespaces clients may read without a message, and frees dropped chunks. Call it
 * about once a second. */
void hits_tick(struct service *service);
/* Suspends or resumes the pool index; while suspended, every client asks the daemon. Calls nest. */
void hits_suspend(struct service *service, bool suspend);

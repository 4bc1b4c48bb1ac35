/* SPDX-License-Identifier: Apache-2.0 */
/* A router that learns from the events of each host's cache which blocks the host holds.
 *
 * An event says that a block entered or left a host's cache. The event reaches the router after the
 * lag, so the router may not know of new blocks yet, and may still expect evicted ones. Events
 * arrive in the order of their publication.
 *
 * The router sends a request to the host with the lowest cost. Each block of the request that the
 * host, as far as the router knows, has to compute costs ROUTER_WEIGHT. Each block that the router
 * gave the host to compute within the last ROUTER_WINDOW_S seconds costs 1, as a measure of its
 * load. Among equals the router takes the host with the fewest requests so far, then the first
 * one. A smaller weight distributes the work more equally, but loses hits: with a weight of 1
 * instead of 16, the hit rate of four hosts with a trace of chats is 9 percentage points lower. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct router;

enum { ROUTER_WINDOW_S = 60, ROUTER_WEIGHT = 16 };

/* Creates a router for `hosts` hosts and blocks below `n_blocks`. Returns 0 or -ENOMEM. */
int router_new(struct router **ret, uint32_t hosts, uint32_t n_blocks, uint64_t lag_ns);
struct router *router_free(struct router *r);

/* Publishes an event. Returns 0 or -ENOMEM. */
int router_publish(struct router *r, uint32_t host, uint32_t block, bool is_cached,
                   uint64_t now_ns);
/* Chooses the host of a request, after the events that have arrived by now. `*ret_expected`:
 * number of leading blocks of the request that the router expects on that host. Returns 0 or
 * -ENOMEM. */
int router_choose(struct router *r, const uint32_t *blocks, size_t n, uint64_t now_ns,
                  uint32_t *ret_host, size_t *ret_expected);

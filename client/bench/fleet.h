/* SPDX-License-Identifier: Apache-2.0 */
/* Simulates a workload on a fleet of hosts, without data. Each host has its own cache; all may
 * share a tier behind their caches.
 *
 * A request goes to one host. It hits its longest prefix of blocks in the host's cache or in the
 * shared tier; afterwards all of its blocks are in the host's cache, as in simulate.h, so that a
 * host's contents do not depend on the shared tier. Blocks written to the shared tier can be read
 * from the next request on. The shared tier evicts the least recently used block, the end of a
 * chain first: a request that reads or writes it touches all of the request's blocks there. */
#pragma once

#include <stdint.h>

#include "simulate.h"

enum { FLEET_MAX_HOSTS = 1024, FLEET_WINDOW_MS = 60 * 1000 };

enum fleet_write {
        FLEET_WRITE_NEVER,
        FLEET_WRITE_REUSED, /* blocks that a host hits in its own cache */
        FLEET_WRITE_ALL,    /* blocks that a host computes */
};

enum fleet_route {
        FLEET_ROUTE_SESSION, /* sessions are assigned to hosts in turn, with all of their
                                requests */
        FLEET_ROUTE_RANDOM,  /* requests are assigned pseudo-randomly, identically in each run */
        FLEET_ROUTE_EVENTS,  /* a router chooses by the events of the hosts, see fleet-router.h */
};

struct fleet {
        const struct simulation *simulation; /* the workload; its `announced` is used, and its write
                                                budget is ignored */
        const char *policy;                  /* policy of the hosts' caches; not "opt" */
        uint32_t capacity;                   /* size of each host's cache, in blocks, 1 or more */
        uint32_t shared;                     /* size of the shared tier, in blocks; 0: no shared
                                                tier */
        enum fleet_write write;
        enum fleet_route route;
        uint64_t lag_ns;    /* FLEET_ROUTE_EVENTS: time until an event reaches the router */
        uint32_t *sessions; /* session of each request; owned */
        uint32_t n_sessions;
        uint64_t blocks_bound; /* number of blocks that a single cache of unlimited size would hit,
                                  if it served all requests of the fleet: an upper bound. Set by
                                  fleet_init() */
};

/* Finds the sessions of a simulation, which must outlive `f`; the other members may be set before
 * or after. Returns 0 or -ENOMEM.
 *
 * A request continues a session if it repeats all blocks of the session's latest request, or all
 * but the last, which may be partial, and if the last repeated block was the session's own. Any
 * other request begins a session. */
int fleet_init(struct fleet *f, const struct simulation *s);
void fleet_fini(struct fleet *f);

struct fleet_result {
        uint64_t blocks_asked;
        uint64_t blocks_hit_local; /* blocks of prefixes found in the host's cache: without a shared
                                      tier, all hits */
        uint64_t blocks_hit; /* blocks of prefixes found in the host's cache or the shared tier */
        uint64_t loads;      /* number of requests that read from the shared tier */
        uint64_t blocks_read, blocks_written;
        uint64_t most_computed; /* number of blocks that the host with the most work computes */
        /* FLEET_ROUTE_EVENTS: number of leading blocks that the router expected on the chosen
         * hosts, and number of these blocks that were no longer there. */
        uint64_t blocks_expected, blocks_stale;
        uint64_t busiest_read; /* largest number of blocks read from the shared tier within a window
                                  of FLEET_WINDOW_MS */
        uint64_t blocks_stored, evictions; /* shared tier: number of blocks stored at the end;
                                              number of evictions */
        uint64_t touches;
        double seconds; /* CPU time of the simulation, s */
};

/* Simulates `hosts` hosts, 1 to FLEET_MAX_HOSTS. Returns 0; -EINVAL if a number is out of range or
 * there is no such policy; -ENOMEM. */
int fleet_run(const struct fleet *f, uint32_t hosts, struct fleet_result *ret);

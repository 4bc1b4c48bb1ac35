/* SPDX-License-Identifier: Apache-2.0 */
/* Plays a workload on a fleet of hosts, without data: each has a cache of its own, and behind all
 * of them may be a shared tier.
 *
 * A request goes to one host. It hits its longest prefix of blocks that are in the host's cache or
 * in the shared tier, and then all of its blocks are in the host's cache, as in simulate.h: what a
 * host holds does not depend on the shared tier. What is written to the shared tier is there for
 * the next request on. The shared tier evicts the least recently used block, the end of a chain
 * first: a request that reads from it or writes to it touches all of its blocks that are there. */
#pragma once

#include <stdint.h>

#include "simulate.h"

enum { FLEET_MAX_HOSTS = 1024, FLEET_WINDOW_MS = 60 * 1000 };

enum fleet_write {
        FLEET_WRITE_NEVER,
        FLEET_WRITE_REUSED, /* what a host has hit in its own cache */
        FLEET_WRITE_ALL,    /* what a host has computed */
};

enum fleet_route {
        FLEET_ROUTE_SESSION, /* all requests of a session to one host, the sessions in turn */
        FLEET_ROUTE_RANDOM,  /* each request to any host, to the same one each time */
};

struct fleet {
        const struct simulation *simulation; /* its `announced` holds, its budget does not */
        const char *policy;                  /* of the hosts' caches; not "opt" */
        uint32_t capacity;                   /* of each of them, in blocks, 1 or more */
        uint32_t shared;                     /* of the shared tier, in blocks; 0: there is none */
        enum fleet_write write;
        enum fleet_route route;
        uint32_t *sessions; /* by request; owned */
        uint32_t n_sessions;
        uint64_t blocks_bound; /* what one cache for everything would hit */
};

/* The others may be set before or after. 0, -ENOMEM.
 *
 * A request continues a session if it repeats all but the last block of the session's latest
 * request, which may be partial, or all of them, and that block was the session's own; any other
 * request begins one. */
int fleet_init(struct fleet *f, const struct simulation *s);
void fleet_fini(struct fleet *f);

struct fleet_result {
        uint64_t blocks_asked;
        uint64_t blocks_hit_local; /* of the prefix in the host's cache: all hits without a tier */
        uint64_t blocks_hit;       /* of the prefix in either */
        uint64_t loads;            /* requests that read from the shared tier */
        uint64_t blocks_read, blocks_written;
        uint64_t busiest_read;             /* blocks, within a window of FLEET_WINDOW_MS */
        uint64_t blocks_stored, evictions; /* of the shared tier, at the end */
        uint64_t touches;
        double seconds; /* of CPU time */
};

/* `hosts`: 1 to FLEET_MAX_HOSTS. 0, -EINVAL, -ENOMEM. */
int fleet_run(const struct fleet *f, uint32_t hosts, struct fleet_result *ret);

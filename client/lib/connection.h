/* SPDX-License-Identifier: Apache-2.0 */
/* One session with one daemon process: its socket, its memory as mapped here, and what still hangs
 * on it.
 *
 * A session that has ended is kept while its memory may be read: the pool and the socket
 * until the last lease is given back (a daemon that ended the session but lives frees the leases
 * when the socket closes), the staging area until its places are released and no I/O of a dead
 * daemon can reach them any more. Of registered memory it knows until then which requests have
 * named it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "lib/staging.h"
#include "lib/lookup.h"
#include "lib/tally.h"
#include "wire.h"

struct kvcache;
struct message;

TAILQ_HEAD(message_list, message);

/* A registered buffer as this session knows it. */
struct conn_region {
        uint32_t id; /* the daemon's number */
        uint8_t *base;
        uint64_t bytes;
};

enum { CONN_WAIT_MS = 20 }; /* that one receive on the socket waits at most */

struct conn {
        TAILQ_ENTRY(conn) link; /* kvcache.ended */
        int sock;               /* -1: closed */
        int live_fd; /* the liveness file: locked by the daemon while its I/O can run; -1: settled
                      */
        const uint8_t *pool; /* NULL: unmapped */
        uint64_t pool_bytes;
        uint64_t max_chunk, staging_max, features;
        uint32_t max_keys, max_inflight, max_message;
        uint16_t version;
        uint8_t instance[WIRE_INSTANCE_BYTES];
        struct staging staging;
        struct lookup_serial lookup; /* of a session that is up */
        struct tally tally;          /* likewise */
        struct conn_region regions[WIRE_MAX_REGIONS];
        unsigned n_regions;
        uint64_t leases;            /* that the user holds */
        struct message_list ghosts; /* sent, never answered, and they name the client's memory */
};
TAILQ_HEAD(conn_list, conn);

/* Connects and shakes hands, maps the pool. Waits until `deadline` (ns, CLOCK_MONOTONIC) at most;
 * on failure the handle's error text says what was tried. */
int conn_open(struct conn **ret, struct kvcache *kv, int64_t deadline);
/* Closes the socket and unmaps the pool: no lease is held any more. */
void conn_close_pool(struct conn *c);
/* In a child after fork(): the mappings are not there, and the connection stays the parent's. */
struct conn *conn_free(struct conn *c, bool forked);

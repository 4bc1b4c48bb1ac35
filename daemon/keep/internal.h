/* SPDX-License-Identifier: Apache-2.0 */
/* The state of the keep, and the functions that its files share. Only the files of keep/ include
 * this header. */
#pragma once

#include "io/io.h"
#include "keep/keep.h"

struct keep_ref {
        uint32_t chunk, generation;
};

/* The chunks of a pool that are to be verified, in order of their last use, the latest at the
 * end. */
struct keep_queue {
        struct keep_ref *refs;
        uint64_t left;
};

/* A client of this daemon or of an earlier one whose leases outlive its session. */
struct holder {
        char name[KEEP_NAME_BYTES];
        unsigned tenant;
        int fd;         /* socket whose peer is the client; owned */
        bool is_new;    /* the service manager does not have the socket yet */
        bool is_closed; /* the peer has closed, and the leases are being ended */
        uint32_t *chunks;
        uint32_t n_chunks, room;
};

struct keep {
        struct keep_params params;
        struct keep_tenant *tenants;
        struct keep_queue *queues; /* one per tenant */
        unsigned turn;
        struct check *checks;
        unsigned n_checks, n_checking;
        uint64_t began_ns;
        bool stopping;

        struct holder *holders; /* unordered; an ended holder is removed */
        unsigned n_holders, holders_room;
        unsigned n_closed;            /* holders whose peer has closed */
        uint64_t name_of_this, names; /* name_of_this: Unix time in ms at which this daemon created
                                       * the keep; names: sockets named since; both are parts of
                                       * sockets' names, which are therefore never reused */
        int closed_fd;                /* epoll descriptor that reports closed peers */
        struct event *closed;
        struct keep_stats stats;
};

/* --- holders.c --- */

int holders_init(struct keep *k);
void holders_fini(struct keep *k);
/* Adds a holder at the end of the list, and takes over the descriptor, also on failure. Returns 0
 * or -errno. */
int holders_add_take_fd(struct keep *k, const char *name, unsigned tenant, int fd, bool is_new);
/* Adds a chunk to the last holder. The caller leases the chunk. Returns 0 or -ENOMEM. */
int holders_add_chunk(struct keep *k, uint32_t chunk);
/* Starts to watch the last holder's socket for the end of its peer. Returns 0 or -errno. */
int holders_watch(struct keep *k);
/* Ends a bounded number of leases of holders whose peer has closed. Returns whether more are left.
 */
bool holders_iterate(struct keep *k);

/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this room share. Only they include this. */
#pragma once

#include "io/io.h"
#include "keep/keep.h"

struct keep_ref {
        uint32_t chunk, generation;
};

/* What is to be verified of a pool, what was used last at the end. */
struct keep_queue {
        struct keep_ref *refs;
        uint64_t left;
};

/* A client, of this daemon or of one before, whose leases outlive its session. */
struct holder {
        char name[KEEP_NAME_BYTES];
        unsigned tenant;
        int fd;      /* -1: it has ended */
        bool is_new; /* the service manager does not have it yet */
        uint32_t *chunks;
        uint32_t n_chunks, room;
};

struct keep {
        struct keep_params params;
        struct keep_tenant *tenants;
        struct keep_queue *queues; /* one a tenant */
        unsigned turn;
        struct check *checks;
        unsigned n_checks, n_checking;
        uint64_t began_ns;
        bool stopping;

        struct holder *holders; /* in no order; an ended one is removed */
        unsigned n_holders, holders_room;
        uint64_t name_of_this, names; /* of sockets: never the same twice */
        int closed_fd;                /* the epoll that says which peers have closed */
        struct event *closed;
        struct keep_stats stats;
};

/* --- holders.c --- */

int holders_init(struct keep *k);
void holders_fini(struct keep *k);
/* Swallows the descriptor. The holder it then has as its last. 0, -errno. */
int holders_add_take_fd(struct keep *k, const char *name, unsigned tenant, int fd, bool is_new);
/* Of the last: its lease on the chunk is taken by the caller. */
int holders_add_chunk(struct keep *k, uint32_t chunk);
/* Its peer's end is waited for from now on. */
int holders_watch(struct keep *k);

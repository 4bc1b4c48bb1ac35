/* SPDX-License-Identifier: Apache-2.0 */
/* Leases: what a client may read in the pool, and for which a chunk stays where it is. A lease
 * belongs to one connection and is named by a number and a generation, so that a stale one is
 * recognised. The loop thread frees it: when its client releases it, or when the client's end of
 * the socket is closed, however its session ended (client_settle() in request/client-end.c).
 *
 * Leases are charged by tenant/quota.h; what is bounded here is what that cannot see: how much of
 * the pool is leased, where a chunk that is leased twice counts once. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define LEASE_NONE UINT32_MAX

enum lease_answer {
        LEASE_FULL = 1, /* all connections together hold enough, or the table is full: wait */
        LEASE_STALE = 2,
};

struct lease {
        uint32_t id;
        uint32_t generation; /* never 0 */
};

struct lease_user;

/* What one connection holds. */
struct lease_holder {
        uint32_t first; /* LEASE_NONE: none; see lease_holder_init() */
        uint32_t count;
        uint64_t bytes;
        struct lease_user *user;
        bool admin; /* it has no share to keep within */
};

struct lease_limits {
        uint64_t bytes_all; /* distinct bytes that all connections lease */
        /* Of `bytes_all`, and of all leases that there may be, a user has at most LEASE_SHARE times
         * what is left, so that there is something left for one more user. A chunk that several of
         * its connections lease counts once. */
        bool shared;
};

/* One user alone comes to three quarters of all. */
enum { LEASE_SHARE = 3 };

struct pool;
struct leases;

int leases_new(struct leases **ret, struct pool *pool, uint32_t max,
               const struct lease_limits *limits);
struct leases *leases_free(struct leases *l);
/* Bytes that may be leased. */
uint64_t leases_bytes_most(const struct leases *l);
void leases_set_limits(struct leases *l, const struct lease_limits *limits);

/* A connection of this user. 0, -ENOMEM. */
int lease_holder_init(struct leases *l, struct lease_holder *h, uid_t uid, bool admin);
/* It holds no lease any more. Harmless before lease_holder_init(). */
void lease_holder_fini(struct leases *l, struct lease_holder *h);

/* 0 and a lease; LEASE_FULL: that, or the user's share of what is left. */
int lease_acquire(struct leases *l, struct lease_holder *h, uint32_t chunk, struct lease *ret);
/* 0, LEASE_STALE (also another's). */
int lease_release(struct leases *l, struct lease_holder *h, struct lease lease);
/* Each of them, with its chunk. */
void lease_walk(const struct leases *l, const struct lease_holder *h,
                void (*each)(void *userdata, uint32_t chunk), void *userdata);
/* So many at most, the latest first; how many there were. */
uint32_t lease_release_some(struct leases *l, struct lease_holder *h, uint32_t most);

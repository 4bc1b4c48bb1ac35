/* SPDX-License-Identifier: Apache-2.0 */
/* Leases: permissions of clients to read chunks in the pool, which stay in place meanwhile. A lease
 * belongs to one connection and is named by a number and a generation, so that a stale one is
 * recognised. The loop thread frees it when its client releases it, or when the client's end of the
 * socket is closed, however its session ended (client_settle() in request/client-end.c).
 *
 * tenant/quota.h charges leases. This file limits how much of the pool is leased, which the quota
 * cannot see, because a chunk that is leased twice counts once. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define LEASE_NONE UINT32_MAX

enum lease_answer {
        LEASE_FULL = 1, /* a limit of bytes, the user's share or the table is reached, or too few
                         * slabs would be left without leased chunks; the client may retry later */
        LEASE_STALE = 2,
};

struct lease {
        uint32_t id;
        uint32_t generation; /* never 0 */
};

struct lease_user;

/* The leases of one connection. */
struct lease_holder {
        uint32_t first; /* id of the latest lease, the first of a list; LEASE_NONE if there is
                           none */
        uint32_t count;
        uint64_t bytes;
        struct lease_user *user;
        bool admin; /* exempt from the user's share, and from the slabs that must stay without
                       leased chunks */
};

struct lease_limits {
        uint64_t bytes_all; /* limit of the bytes of leased slots; a slot counts once, however many
                               leases its chunk has */
        /* Limits each user to LEASE_SHARE times the unused rest, both of `bytes_all` and of the
         * number of leases, so that another user always finds room. A chunk that several
         * connections of a user lease counts once. */
        bool shared;
};

/* Factor of lease_limits.shared. With 3, a user that leases alone gets at most three quarters of a
 * limit. */
enum { LEASE_SHARE = 3 };

struct pool;
struct leases;

int leases_new(struct leases **ret, struct pool *pool, uint32_t max,
               const struct lease_limits *limits);
struct leases *leases_free(struct leases *l);
/* Returns lease_limits.bytes_all. */
uint64_t leases_bytes_most(const struct leases *l);
void leases_set_limits(struct leases *l, const struct lease_limits *limits);

/* Initializes the leases of a connection of this user. Returns 0 or -ENOMEM. */
int lease_holder_init(struct leases *l, struct lease_holder *h, uid_t uid, bool admin);
/* Ends a holder, whose leases must all have been released. No effect on a holder of zeros. */
void lease_holder_fini(struct lease_holder *h);

/* Leases a chunk. Returns 0, or LEASE_FULL if a limit of bytes, the user's share or the table is
 * reached, or if too few slabs would be left without leased chunks. */
int lease_acquire(struct leases *l, struct lease_holder *h, uint32_t chunk, struct lease *ret);
/* Releases a lease. Returns 0, or LEASE_STALE if it was released already or belongs to another
 * connection. */
int lease_release(struct leases *l, struct lease_holder *h, struct lease lease);
/* Calls each() with the chunk of every lease of the connection. */
void lease_walk(const struct leases *l, const struct lease_holder *h,
                void (*each)(void *userdata, uint32_t chunk), void *userdata);
/* Releases up to `most` leases of the connection, the latest first, and returns their number. */
uint32_t lease_release_some(struct leases *l, struct lease_holder *h, uint32_t most);

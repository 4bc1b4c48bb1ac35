/* SPDX-License-Identifier: Apache-2.0 */
/* Who is at the other end, and what may it hold (rules R9, R10). A peer's credentials are taken
 * once, at accept (SO_PEERCRED), and pinned: a process that changes its uid later keeps what it
 * had.
 *
 * A tenant is a set of users and groups that share a pool, a scope of namespace names and limits.
 * Tenants are numbered here by their place in the configuration: 0 is `default`, which comes last
 * when a peer is looked up, and takes whom access.users and access.groups admit.
 *
 * What a connection holds is charged to three at once: its user, its tenant, and all together; each
 * has a limit, and nothing is charged unless it fits all three. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { TENANT_DEFAULT = 0, TENANTS_MAX = 16, PEER_MAX_GROUPS = 64 };

struct peer {
        pid_t pid;
        uid_t uid;
        gid_t gid;
        gid_t groups[PEER_MAX_GROUPS];
        unsigned n_groups;
};

/* 0, -errno. */
int peer_from_socket(int fd, struct peer *ret);

/* A list of users and groups from the configuration: names or numbers. */
struct tenant_access {
        char *const *users;
        unsigned n_users;
        char *const *groups;
        unsigned n_groups;
};

enum tenant_thing {
        TENANT_CONNECTIONS,
        TENANT_LEASES,
        TENANT_LEASED_BYTES, /* of each lease: a chunk leased twice counts twice */
        TENANT_LANES,
        TENANT_LANE_BYTES,
        TENANT_DONATED_BYTES, /* of regions, however much of them is used */
        TENANT_REGIONS,       /* donated ones: each takes a mapping */
        TENANT_KEYS,          /* of requests that are not answered yet */
        TENANT_REQUESTS,      /* not answered yet */
        TENANT_REQUEST_BYTES, /* memory kept for requests, unsent replies and open chains */
        TENANT_UNREAD_FDS,    /* in replies that the peer has not been seen to have read */
        TENANT_THINGS,
};

#define TENANT_NO_LIMIT UINT64_MAX

struct tenant_limits {
        uint64_t most[TENANT_THINGS];
        /* Of a user's limits: besides `most`, it holds at most TENANT_SHARE times what is left of
         * the limit of all. So however many users take what they can, there is something left for
         * one more. That does not hold for admins, who are trusted with more than that. */
        bool shared[TENANT_THINGS];
};

/* One user alone comes to three quarters of all. */
enum { TENANT_SHARE = 3 };

struct tenant_params {
        const char *name;
        struct tenant_access access; /* tenant 0: empty lets anyone in */
        struct tenant_limits limits;
};

struct tenants;

/* `all`: of all tenants together; `user`: of each uid. -EINVAL: a name that this host does not
 * know; it is in `ret_error`. */
int tenants_new(struct tenants **ret, const struct tenant_params *params, unsigned n,
                const struct tenant_access *admins, const struct tenant_limits *all,
                const struct tenant_limits *user, char ret_error[static 256]);
struct tenants *tenants_free(struct tenants *t);
/* What is over a lowered limit stays charged; nothing is added before it fits. */
void tenants_set_limits(struct tenants *t, unsigned tenant, const struct tenant_limits *limits);
void tenants_set_common_limits(struct tenants *t, const struct tenant_limits *all,
                               const struct tenant_limits *user);

enum tenant_answer {
        TENANT_REFUSED = 1,
        TENANT_QUOTA_USER = 2,
        TENANT_QUOTA = 3, /* the tenant's limit */
        TENANT_FULL = 4,  /* the limit of all together, or a user's share of what is left of it: it
                             passes without the caller's doing */
};

/* Which tenant is this peer of, and is it an admin? 0, or TENANT_REFUSED: uid 65534, or not in any
 * list. */
int tenants_identify(const struct tenants *t, const struct peer *p, unsigned *ret_tenant,
                     bool *ret_admin);

/* What one connection holds. */
struct tenant_user;
struct tenant_holder {
        struct tenants *tenants; /* NULL: not open */
        struct tenant_user *user;
        unsigned tenant;
        bool admin; /* it has no share to keep within, but may take all that is left */
        uint64_t used[TENANT_THINGS];
};

/* Charges the connection. 0, TENANT_QUOTA_USER, TENANT_QUOTA, TENANT_FULL, -ENOMEM. */
int tenant_holder_open(struct tenant_holder *ret, struct tenants *t, unsigned tenant, uid_t uid);
/* Gives back whatever is still charged. */
void tenant_holder_close(struct tenant_holder *h);
/* 0, TENANT_QUOTA_USER, TENANT_QUOTA, TENANT_FULL: nothing is charged. */
int tenant_charge(struct tenant_holder *h, enum tenant_thing what, uint64_t amount);
/* The same over any limit, for what has to be kept since something charged led to it. */
void tenant_charge_anyway(struct tenant_holder *h, enum tenant_thing what, uint64_t amount);
void tenant_uncharge(struct tenant_holder *h, enum tenant_thing what, uint64_t amount);
/* Uncharges what is over `used`: for what is released somewhere else. */
void tenant_settle(struct tenant_holder *h, enum tenant_thing what, uint64_t used);

/* The user that a connection is charged to: the same pointer for all connections of one uid, as
 * long as it has one. */
uid_t tenant_user_uid(const struct tenant_user *user);

/* "connections", "lane bytes": for messages. */
const char *tenant_thing_name(enum tenant_thing what);
/* Its key in the sections "limits", there also with "uid_" in front, and "tenants"; NULL: it has
 * none. */
const char *tenant_thing_key(enum tenant_thing what);

struct tenant_usage {
        uint64_t used[TENANT_THINGS], most[TENANT_THINGS];
        uint64_t refused[TENANT_THINGS]; /* charges that one of the three limits stood against */
};
unsigned tenants_count(const struct tenants *t);
const char *tenants_name(const struct tenants *t, unsigned tenant);
void tenants_get_usage(const struct tenants *t, unsigned tenant, struct tenant_usage *ret);
/* `refused`: of all tenants. */
void tenants_get_total(const struct tenants *t, struct tenant_usage *ret);
void tenants_get_user_limits(const struct tenants *t, struct tenant_limits *ret);
/* The most that any one user holds of each thing. */
void tenants_get_largest_user(const struct tenants *t, uint64_t ret[static TENANT_THINGS]);
uint64_t tenants_users(const struct tenants *t); /* uids with a connection */

/* SPDX-License-Identifier: Apache-2.0 */
/* Which user is at the other end of a connection, and what that user may hold (rules R9, R10). A
 * peer's credentials are taken once, at accept (SO_PEERCRED), and pinned: a process that changes
 * its uid later keeps what it had.
 *
 * A tenant is a set of users and groups that share a pool, a scope of namespace names and limits.
 * Tenants are numbered here by their place in the configuration: 0 is `default`, which comes last
 * when a peer is looked up, and takes whom access.users and access.groups admit.
 *
 * What a connection holds is charged to four at once: itself, its user, its tenant, and all
 * together; each has a limit, and nothing is charged unless it fits all four. Loop thread. */
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
struct quota_access {
        char *const *users;
        unsigned n_users;
        char *const *groups;
        unsigned n_groups;
};

enum quota_thing {
        QUOTA_CONNECTIONS,
        QUOTA_LEASES,
        QUOTA_LEASED_BYTES, /* of each lease: a chunk leased twice counts twice */
        QUOTA_STAGINGS,
        QUOTA_STAGING_BYTES,
        QUOTA_REGISTERED_BYTES, /* mapped for regions, however much is used; once for those that
                                   share */
        QUOTA_REGIONS,          /* registered ones: each may take a mapping */
        QUOTA_KEYS,             /* of requests that are not answered yet */
        QUOTA_REQUESTS,         /* not answered yet */
        QUOTA_REQUEST_BYTES,    /* memory kept for requests, unsent replies and open chains */
        QUOTA_UNREAD_FDS,       /* in replies that the peer has not been seen to have read */
        QUOTA_DEFERRED_FDS,     /* of requests that wait for their user's turn */
        QUOTA_LOANS,            /* chunks that clients read from the data files by themselves */
        QUOTA_LOANED_BYTES,     /* of these, in pages */
        QUOTA_FILES,            /* regions that are files on a disk, each an open descriptor */
        QUOTA_THINGS,
};

#define QUOTA_NO_LIMIT UINT64_MAX

struct quota_limits {
        uint64_t most[QUOTA_THINGS];
        /* Of a user's limits: besides `most`, it holds at most QUOTA_SHARE times what is left of
         * the limit of all. So however many users take what they can, there is something left for
         * one more. That does not hold for admins, who are trusted with more than that. */
        bool shared[QUOTA_THINGS];
};

/* One user alone comes to three quarters of all. */
enum { QUOTA_SHARE = 3 };

struct quota_params {
        const char *name;
        struct quota_access access; /* tenant 0: empty lets anyone in */
        struct quota_limits limits;
};

struct quotas;

/* `all`: of all tenants together; `user`: of each uid. -EINVAL: a name that this host does not
 * know; it is in `ret_error`. */
int quotas_new(struct quotas **ret, const struct quota_params *params, unsigned n,
               const struct quota_access *admins, const struct quota_limits *all,
               const struct quota_limits *user, char ret_error[static 256]);
struct quotas *quotas_free(struct quotas *t);
/* What is over a lowered limit stays charged; nothing is added before it fits. */
void quotas_set_limits(struct quotas *t, unsigned tenant, const struct quota_limits *limits);
/* What one connection of the tenant may hold; without a call there is no limit. */
void quotas_set_connection_limits(struct quotas *t, unsigned tenant,
                                  const struct quota_limits *limits);
void quotas_set_common_limits(struct quotas *t, const struct quota_limits *all,
                              const struct quota_limits *user);

enum quota_answer {
        QUOTA_REFUSED = 1,
        QUOTA_OVER_USER = 2,
        QUOTA_OVER_TENANT = 3, /* the tenant's limit */
        QUOTA_FULL = 4, /* the limit of all together, or a user's share of what is left of it: it
                            passes without the caller's doing */
        QUOTA_OVER_CONNECTION = 5,
};

/* Which tenant is this peer of, and is it an admin? 0, or QUOTA_REFUSED: uid 65534, or not in any
 * list. */
int quotas_identify(const struct quotas *t, const struct peer *p, unsigned *ret_tenant,
                    bool *ret_admin);

/* Returns a digest of everything on which quotas_identify() depends except the peer: with the same
 * digest, each peer has the same answer. */
uint64_t quotas_digest(const struct quotas *t);

/* What one connection holds, or what is left of one that has ended. */
struct quota_user;
struct quota_holder {
        struct quotas *tenants; /* NULL: not open */
        struct quota_user *user;
        unsigned tenant;
        bool admin; /* it has no share to keep within, but may take all that is left */
        uint64_t used[QUOTA_THINGS];
};

/* Charges the connection. 0, QUOTA_OVER_USER, QUOTA_OVER_TENANT, QUOTA_FULL, -ENOMEM. */
int quota_holder_open(struct quota_holder *ret, struct quotas *t, unsigned tenant, uid_t uid);
/* Gives back whatever is still charged. */
void quota_holder_close(struct quota_holder *h);
/* 0; QUOTA_OVER_CONNECTION, QUOTA_OVER_USER, QUOTA_OVER_TENANT, QUOTA_FULL: nothing is charged. */
int quota_charge(struct quota_holder *h, enum quota_thing what, uint64_t amount);
/* Would it be charged? To ask counts as no refusal. */
bool quota_has_room(const struct quota_holder *h, enum quota_thing what, uint64_t amount);
/* The same over any limit, for what has to be kept since something charged led to it. */
void quota_charge_anyway(struct quota_holder *h, enum quota_thing what, uint64_t amount);
void quota_uncharge(struct quota_holder *h, enum quota_thing what, uint64_t amount);
/* Uncharges what is over `used`: for what is released somewhere else. */
void quota_settle(struct quota_holder *h, enum quota_thing what, uint64_t used);

/* `to` is charged for so much of what `from` is: the user, the tenant and all together are charged
 * as before. `to` is of the same user and tenant, or all zero: then it has no connection, may
 * outlive the one that `from` has, and is to be closed like any other. */
void quota_hand_over(struct quota_holder *to, struct quota_holder *from, enum quota_thing what,
                     uint64_t amount);

/* The user that a connection is charged to: the same pointer for all connections of one uid, as
 * long as anything is charged to it. */
uid_t quota_user_uid(const struct quota_user *user);

/* "connections", "staging bytes": for messages. */
const char *quota_thing_name(enum quota_thing what);
/* Its key in the sections "limits", there also with "uid_" in front, and "tenants"; NULL: it has
 * none. */
const char *quota_thing_key(enum quota_thing what);

struct quota_usage {
        uint64_t used[QUOTA_THINGS], most[QUOTA_THINGS];
        uint64_t refused[QUOTA_THINGS]; /* charges that one of the four limits stood against */
};
const char *quotas_tenant_name(const struct quotas *t, unsigned tenant);
void quotas_get_usage(const struct quotas *t, unsigned tenant, struct quota_usage *ret);
/* `refused`: of all tenants. */
void quotas_get_total(const struct quotas *t, struct quota_usage *ret);
void quotas_get_user_limits(const struct quotas *t, struct quota_limits *ret);
/* The most that any one user holds of each thing. */
void quotas_get_largest_user(const struct quotas *t, uint64_t ret[static QUOTA_THINGS]);
uint64_t quotas_users(const struct quotas *t); /* uids that anything is charged to */

/* SPDX-License-Identifier: Apache-2.0 */
/* Identifies the user of a connection, and limits what users, tenants and connections may hold (R9
 * and R10 in SECURITY.md). A peer's credentials are read once, at accept (SO_PEERCRED), and kept: a
 * process that changes its uid later keeps its rights.
 *
 * A tenant is a set of users and groups that share a pool, a scope of namespace names and limits.
 * Tenants are numbered by their place in the configuration. Number 0 is `default`, which is
 * searched last when a peer is identified, and admits peers by access.users and access.groups.
 *
 * Everything that a connection holds is charged to four accounts: the connection, its user, its
 * tenant, and the total. Each has a limit, and quota_charge() charges nothing unless it fits all
 * four. Loop thread. */
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

/* Reads the credentials of the peer of a socket. A peer in more than PEER_MAX_GROUPS groups has
 * only its primary group. Returns 0 or -errno. */
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
        QUOTA_LEASED_BYTES, /* sum over leases: a chunk leased twice counts twice */
        QUOTA_STAGINGS,
        QUOTA_STAGING_BYTES,
        QUOTA_REGISTERED_BYTES, /* bytes of the mappings of regions, whether or not they are used; a
                                   mapping that regions share counts once */
        QUOTA_REGIONS,          /* registered regions, each of which may need a mapping */
        QUOTA_KEYS,             /* keys of requests that are not answered yet */
        QUOTA_REQUESTS,         /* requests that are not answered yet */
        QUOTA_REQUEST_BYTES,    /* memory kept for requests, unsent replies, open chains, pages that
                                 * clients share, and a recording */
        QUOTA_UNREAD_FDS,   /* descriptors in replies that the peer has not read, as far as known */
        QUOTA_DEFERRED_FDS, /* descriptors of requests that wait for their user's turn */
        QUOTA_LOANS,        /* chunks that clients read directly from data files */
        QUOTA_LOANED_BYTES, /* bytes of the chunks that QUOTA_LOANS counts, in whole pages */
        QUOTA_FILES,        /* regions that are files on a disk, each with an open descriptor */
        QUOTA_THINGS,
};

#define QUOTA_NO_LIMIT UINT64_MAX

struct quota_limits {
        uint64_t most[QUOTA_THINGS];
        /* Used in a user's limits: in addition to `most`, a user holds at most QUOTA_SHARE times
         * the unused rest of the total limit, so that something is always left for another user.
         * Admins are trusted and exempt. */
        bool shared[QUOTA_THINGS];
};

/* Factor of quota_limits.shared. With 3, a single user holds at most three quarters of the
 * total. */
enum { QUOTA_SHARE = 3 };

struct quota_params {
        const char *name;
        struct quota_access access; /* for tenant 0, empty lists admit every peer whose uid is
                                     * known, see quotas_identify() */
        struct quota_limits limits;
};

struct quotas;

/* Creates the accounts of `n` tenants. `all` limits all tenants together, `user` each uid. Returns
 * 0, -ENOMEM, or -EINVAL with a text in `ret_error` that names a user or group unknown to this
 * host. */
int quotas_new(struct quotas **ret, const struct quota_params *params, unsigned n,
               const struct quota_access *admins, const struct quota_limits *all,
               const struct quota_limits *user, char ret_error[static 256]);
struct quotas *quotas_free(struct quotas *t);
/* Sets a tenant's limits. Charges above a lowered limit stay; further charges are refused until
 * they fit. */
void quotas_set_limits(struct quotas *t, unsigned tenant, const struct quota_limits *limits);
/* Sets the limits of each connection of the tenant; initially there are none. */
void quotas_set_connection_limits(struct quotas *t, unsigned tenant,
                                  const struct quota_limits *limits);
void quotas_set_common_limits(struct quotas *t, const struct quota_limits *all,
                              const struct quota_limits *user);

enum quota_answer {
        QUOTA_REFUSED = 1,
        QUOTA_OVER_USER = 2,
        QUOTA_OVER_TENANT = 3, /* the tenant's limit is reached */
        QUOTA_FULL = 4, /* the total limit is reached, or the user's share of its unused rest;
                         * temporary */
        QUOTA_OVER_CONNECTION = 5,
};

/* Finds the tenant of a peer, and whether the peer is an admin: root, the daemon's own user, or a
 * user whom the list of admins names. Returns 0, or QUOTA_REFUSED for a peer that is no admin and
 * that no tenant admits. A uid that the kernel could not map (65534, unless the daemon itself runs
 * as that uid) is admitted only if a list of users names it. */
int quotas_identify(const struct quotas *t, const struct peer *p, unsigned *ret_tenant,
                    bool *ret_admin);

/* Returns a digest of everything on which quotas_identify() depends except the peer: with the same
 * digest, each peer has the same answer. */
uint64_t quotas_digest(const struct quotas *t);

/* The charges of one connection, or those that remain after it ended. */
struct quota_user;
struct quota_holder {
        struct quotas *tenants; /* NULL if not open */
        struct quota_user *user;
        unsigned tenant;
        bool admin; /* exempt from the user's share */
        uint64_t used[QUOTA_THINGS];
};

/* Opens a holder and charges it for the connection, within the user's share as for a user that is
 * no admin; the caller sets `admin` afterwards. Returns 0, QUOTA_OVER_USER, QUOTA_OVER_TENANT,
 * QUOTA_FULL or -ENOMEM. */
int quota_holder_open(struct quota_holder *ret, struct quotas *t, unsigned tenant, uid_t uid);
/* Ends a holder: uncharges everything that is still charged to it. No effect on a holder that is
 * not open. */
void quota_holder_close(struct quota_holder *h);
/* Charges `amount`. Returns 0, or QUOTA_OVER_CONNECTION, QUOTA_OVER_USER, QUOTA_OVER_TENANT or
 * QUOTA_FULL without charging anything. */
int quota_charge(struct quota_holder *h, enum quota_thing what, uint64_t amount);
/* Returns whether a charge would succeed. Does not count as a refusal. */
bool quota_has_room(const struct quota_holder *h, enum quota_thing what, uint64_t amount);
/* Charges `amount` regardless of limits, for objects that a charged request made necessary or whose
 * number another limit bounds. */
void quota_charge_anyway(struct quota_holder *h, enum quota_thing what, uint64_t amount);
void quota_uncharge(struct quota_holder *h, enum quota_thing what, uint64_t amount);
/* Reduces the charge to `used`, after objects were released without quota_uncharge(). */
void quota_settle(struct quota_holder *h, enum quota_thing what, uint64_t used);

/* Moves a charge from one connection to another; the user, the tenant and the total stay charged.
 * `to` is of the same user and tenant, or all zero. In the second case it has no connection, may
 * outlive that of `from`, and must be closed like any other holder. */
void quota_hand_over(struct quota_holder *to, struct quota_holder *from, enum quota_thing what,
                     uint64_t amount);

/* Returns the uid of a user. All connections of one uid have the same user pointer while anything
 * is charged to it. */
uid_t quota_user_uid(const struct quota_user *user);

/* Returns a name for messages, such as "staging bytes". */
const char *quota_thing_name(enum quota_thing what);
/* Returns the last part of the configuration keys that limit a thing: limits.KEY, limits.uid_KEY
 * and, for most things, tenants.KEY. Returns NULL if there are none. */
const char *quota_thing_key(enum quota_thing what);

struct quota_usage {
        uint64_t used[QUOTA_THINGS], most[QUOTA_THINGS];
        uint64_t refused[QUOTA_THINGS]; /* charges that one of the four limits refused */
};
const char *quotas_tenant_name(const struct quotas *t, unsigned tenant);
void quotas_get_usage(const struct quotas *t, unsigned tenant, struct quota_usage *ret);
/* Fills in the total; `refused` is the sum over all tenants. */
void quotas_get_total(const struct quotas *t, struct quota_usage *ret);
void quotas_get_user_limits(const struct quotas *t, struct quota_limits *ret);
/* Fills in the most that any single user holds of each thing. */
void quotas_get_largest_user(const struct quotas *t, uint64_t ret[static QUOTA_THINGS]);
uint64_t quotas_users(const struct quotas *t); /* number of uids with a charge */

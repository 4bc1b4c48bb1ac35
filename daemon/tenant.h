/* SPDX-License-Identifier: Apache-2.0 */
/* Who is at the other end, and what may it hold. A peer's credentials are taken once, at accept
 * (SO_PEERCRED), and pinned: a process that changes its uid later keeps what it had. There is the
 * one tenant `default`; its number is in every table and format. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { TENANT_DEFAULT = 0, PEER_MAX_GROUPS = 64 };

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

struct tenant_limits {
        uint64_t connections;
        uint64_t lane_bytes;  /* of all lanes together */
};

struct tenants;

/* -EINVAL: a name that this host does not know; it is in `ret_error`. */
int tenants_new(struct tenants **ret, const struct tenant_access *clients,
                const struct tenant_access *admins, const struct tenant_limits *limits,
                char ret_error[static 256]);
struct tenants *tenants_free(struct tenants *t);
void tenants_set_limits(struct tenants *t, const struct tenant_limits *limits);

enum tenant_answer { TENANT_REFUSED = 1, TENANT_QUOTA = 2 };

/* Which tenant is this peer of, and is it an admin? 0, or TENANT_REFUSED: uid 65534, or not in any
 * list. */
int tenants_identify(const struct tenants *t, const struct peer *p, uint16_t *ret_tenant,
                     bool *ret_admin);

/* Charges; 0 or TENANT_QUOTA. What was charged is uncharged by the same amount. */
int tenants_charge_connection(struct tenants *t, uint16_t tenant);
void tenants_uncharge_connection(struct tenants *t, uint16_t tenant);
int tenants_charge_lane(struct tenants *t, uint16_t tenant, uint64_t bytes);
void tenants_uncharge_lane(struct tenants *t, uint16_t tenant, uint64_t bytes);

struct tenant_usage {
        uint64_t connections, lane_bytes, lanes;
};
void tenants_get_usage(const struct tenants *t, uint16_t tenant, struct tenant_usage *ret);

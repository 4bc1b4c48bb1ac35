/* SPDX-License-Identifier: Apache-2.0 */
/* The namespaces that exist, seen from outside the store: how many a user, a tenant and the store
 * have and may have (rule R10), how many sessions have one open, and the largest of them.
 *
 * A namespace belongs to the user who made it, for as long as it exists: limits hold over
 * reconnects and restarts. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/log.h"
#include "store/store.h"

enum {
        NAMES_MAX_TENANTS = 16,
        NAMES_USER_AUTO = 512, /* limits.uid_namespaces: auto; half of its tenant's if that is less */
        NAMES_SHOWN = 20,      /* of the largest: in the status, in metrics */
        NAMES_WARN_PERCENT = 80,
};

struct names;

/* Whose limit it is. */
enum names_scope { NAMES_SESSION, NAMES_USER, NAMES_TENANT, NAMES_STORE, NAMES_SCOPES };

struct names_tenant {
        uint16_t store_tenant;
        const char *name; /* borrowed */
        unsigned most;    /* 0: an equal share of what a store can have */
};

struct names_limits {
        unsigned user; /* 0: auto */
        struct names_tenant tenants[NAMES_MAX_TENANTS];
        unsigned n_tenants;
};

/* `hidden`: namespaces of the tenant of this number are nothing that users see. */
int names_new(struct names **ret, const struct store *store, uint16_t hidden);
struct names *names_free(struct names *n);
void names_set_limits(struct names *n, const struct names_limits *limits);

/* What `scope` has, and may have. */
struct names_use {
        enum names_scope scope;
        unsigned has, most;
};
/* May this user have one more? False: `ret` is what stands against it, and the refusal is counted. */
bool names_may_make(struct names *n, uint16_t store_tenant, uint32_t uid, struct names_use *ret);
void names_count_refusal(struct names *n, enum names_scope scope);
/* One was made: logs a warning where that has brought user, tenant or store to NAMES_WARN_PERCENT
 * of its limit. */
void names_made(struct names *n, uint16_t store_tenant, uint32_t uid);
/* One was removed. */
void names_removed(struct names *n, uint32_t id);
/* Those of the start, in one line, if the store or a tenant has so many. */
void names_log_started(struct names *n);

/* A session opened it, and closed it. 0, -ENOMEM. */
int names_ref(struct names *n, uint32_t id);
void names_unref(struct names *n, uint32_t id);
unsigned names_sessions(const struct names *n, uint32_t id);
/* Unix time: now while a session has it open, else when the last one closed it; 0: not since the
 * start. */
uint64_t names_last_used_ms(const struct names *n, uint32_t id);

struct names_stats {
        unsigned count, most;         /* of the store; those that keep tenants' numbers are not among them */
        unsigned tenants_near, users_near; /* at NAMES_WARN_PERCENT of their limit */
        bool store_near;
        uint64_t removed;
        uint64_t refused[NAMES_SCOPES];
};
void names_get_stats(struct names *n, struct names_stats *ret);
/* False: it is not one of those in the limits. */
bool names_get_tenant(struct names *n, uint16_t store_tenant, struct names_use *ret);
struct names_use names_get_user(struct names *n, uint16_t store_tenant, uint32_t uid);

struct names_largest {
        struct store_namespace list[NAMES_SHOWN]; /* by bytes, the largest first */
        unsigned n;
        unsigned count;         /* of all */
        uint64_t chunks, bytes; /* of all */
};
/* `only`: of the tenant of this number; -1: of all. */
void names_get_largest(const struct names *n, int only, struct names_largest *ret);

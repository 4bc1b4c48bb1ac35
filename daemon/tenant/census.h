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
        CENSUS_MAX_TENANTS = 16,
        CENSUS_USER_AUTO =
                512,       /* limits.uid_namespaces: auto; half of its tenant's if that is less */
        CENSUS_SHOWN = 20, /* of the largest: in the status, in metrics */
        CENSUS_WARN_PERCENT = 80,
};

struct census;

/* Whose limit it is. */
enum census_scope { CENSUS_SESSION, CENSUS_USER, CENSUS_TENANT, CENSUS_STORE, CENSUS_SCOPES };

struct census_tenant {
        uint16_t store_tenant;
        const char *name; /* borrowed */
        unsigned most;    /* 0: an equal share of what a store can have */
};

struct census_limits {
        unsigned user; /* 0: auto */
        struct census_tenant tenants[CENSUS_MAX_TENANTS];
        unsigned n_tenants;
};

/* `hidden`: namespaces of the tenant of this number are nothing that users see. */
int census_new(struct census **ret, const struct store *store, uint16_t hidden);
struct census *census_free(struct census *n);
void census_set_limits(struct census *n, const struct census_limits *limits);

/* What `scope` has, and may have. */
struct census_use {
        enum census_scope scope;
        unsigned has, most;
};
/* Returns whether this user may have one more; if not, `ret` is the limit that was reached. */
bool census_may_make(struct census *n, uint16_t store_tenant, uint32_t uid, struct census_use *ret);
void census_count_refusal(struct census *n, enum census_scope scope);
/* Returns the highest id of all namespaces that exist or have been removed. */
uint32_t census_highest_id(struct census *n);
/* One was made: logs a warning where that has brought user, tenant or store to CENSUS_WARN_PERCENT
 * of its limit. */
void census_made(struct census *n, uint16_t store_tenant, uint32_t uid);
/* One was removed. */
void census_removed(struct census *n, uint32_t id);
/* Logs those found at startup, in one line, if the store or a tenant has many. */
void census_log_started(struct census *n);

/* A session opened it, and closed it. 0, -ENOMEM. */
int census_ref(struct census *n, uint32_t id);
void census_unref(struct census *n, uint32_t id);
unsigned census_sessions(const struct census *n, uint32_t id);
/* Unix time: now while a session has it open, else when the last one closed it; 0: not since
 * startup. */
uint64_t census_last_used_ms(const struct census *n, uint32_t id);

/* A namespace without sessions, and without chunks on the volumes that are up. */
struct census_unused {
        uint32_t id;
        uint64_t since_ns; /* time of clock_mono_ns(), at the earliest when the census was made */
};
/* Finds the one that has been unused for longest. A namespace counts as used when this function or
 * census_note_used() last found it so, or when its last session closed it. `tenant`: only of this
 * tenant's, -1: of all; `owner`: only of this user's, STORE_NO_OWNER: of all. */
bool census_find_unused(struct census *n, int tenant, uint32_t owner, struct census_unused *ret);
/* Records that a namespace was found to be used now, by chunks in memory. */
void census_note_used(struct census *n, uint32_t id);
/* Begins or ends a removal of a namespace; meanwhile census_find_unused() does not find it. */
void census_claim(struct census *n, uint32_t id, bool claimed);
/* Counts one that was removed because it was unused. */
void census_count_expired(struct census *n);

struct census_stats {
        unsigned count,
                most; /* of the store; those that keep tenants' numbers are not among them */
        unsigned tenants_near, users_near; /* at CENSUS_WARN_PERCENT of their limit */
        bool store_near;
        uint64_t removed, expired; /* expired: of those removed */
        uint64_t refused[CENSUS_SCOPES];
};
void census_get_stats(struct census *n, struct census_stats *ret);
/* False: it is not one of those in the limits. */
bool census_get_tenant(struct census *n, uint16_t store_tenant, struct census_use *ret);
struct census_use census_get_user(struct census *n, uint16_t store_tenant, uint32_t uid);

struct census_largest {
        struct store_namespace list[CENSUS_SHOWN]; /* by bytes, the largest first */
        unsigned n;
        unsigned count;         /* of all */
        uint64_t chunks, bytes; /* of all */
};
/* `only`: of the tenant of this number; -1: of all. */
void census_get_largest(const struct census *n, int only, struct census_largest *ret);

/* SPDX-License-Identifier: Apache-2.0 */
/* Counts namespaces for the layers above the store: how many a user, a tenant and the store have
 * and may have (R10 in SECURITY.md), how many sessions have each one open, and which are the
 * largest.
 *
 * A namespace belongs to the user that made it for as long as it exists, so the limits hold across
 * reconnects and restarts. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/log.h"
#include "store/store.h"

enum {
        NAMESPACE_MAX_TENANTS = 16,
        NAMESPACE_USER_AUTO = 512,  /* limits.uid_namespaces: auto means half of the tenant's limit,
                                       and at most this */
        NAMESPACE_LARGEST_MAX = 20, /* most namespaces in struct largest_namespaces, for the status
                                     * and the metrics */
        NAMESPACE_WARN_PERCENT = 80,
};

struct namespace_counts;

/* The kind of account whose limit applies. NAMESPACES_OF_SESSION limits the namespaces that one
 * session has open; request/handshake.c checks it. */
enum namespace_scope {
        NAMESPACES_OF_SESSION,
        NAMESPACES_OF_USER,
        NAMESPACES_OF_TENANT,
        NAMESPACES_OF_STORE,
        NAMESPACE_SCOPES
};

struct namespace_tenant {
        uint16_t store_tenant;
        const char *name; /* owned by the caller */
        unsigned most;    /* limit of the tenant's namespaces; 0: an equal share of the store's
                           * limit */
};

struct namespace_limits {
        unsigned user; /* limit of one user's namespaces in each tenant, within the tenant's own
                        * limit; 0: auto, see NAMESPACE_USER_AUTO */
        struct namespace_tenant tenants[NAMESPACE_MAX_TENANTS];
        unsigned n_tenants;
};

/* Creates the counts. `hidden` is the store's number of the tenant whose namespaces users do not
 * see, and no limit counts (TENANT_IDS). Returns 0 or -ENOMEM. */
int namespace_counts_new(struct namespace_counts **ret, const struct store *store, uint16_t hidden);
struct namespace_counts *namespace_counts_free(struct namespace_counts *n);
void namespace_counts_set_limits(struct namespace_counts *n, const struct namespace_limits *limits);

/* The number of namespaces that `scope` has, and its limit. */
struct namespace_use {
        enum namespace_scope scope;
        unsigned has, most;
        const char *setting; /* a user's limit has the settings that give it, or "a fixed limit" */
};
/* Returns whether the user may make one more namespace in the tenant. If not, fills in the count
 * and the limit that was reached; a tenant that the limits do not name may have none. */
bool namespace_counts_may_make(struct namespace_counts *n, uint16_t store_tenant, uint32_t uid,
                               struct namespace_use *ret);
void namespace_counts_count_refusal(struct namespace_counts *n, enum namespace_scope scope);
/* Returns the highest id of all namespaces that exist or were counted since startup. */
uint32_t namespace_counts_highest_id(struct namespace_counts *n);
/* Logs a warning if a new namespace has made its user, its tenant or the store reach
 * NAMESPACE_WARN_PERCENT of the limit. The counts themselves follow the store's list. A tenant is
 * named only if there are several, and warnings are rate-limited. */
void namespace_counts_made(struct namespace_counts *n, uint16_t store_tenant, uint32_t uid);
/* Counts a removed namespace, and forgets its last use. No session may have it open. */
void namespace_counts_removed(struct namespace_counts *n, uint32_t id);
/* Logs a warning at startup if the store is at NAMESPACE_WARN_PERCENT of its limit or above, and
 * for each such tenant if there are several. */
void namespace_counts_log_started(struct namespace_counts *n);

/* Count a session that opens or closes the namespace. namespace_counts_ref() returns 0, or -ENOMEM
 * if the table is full. */
int namespace_counts_ref(struct namespace_counts *n, uint32_t id);
void namespace_counts_unref(struct namespace_counts *n, uint32_t id);
unsigned namespace_counts_sessions(const struct namespace_counts *n, uint32_t id);
/* Returns the Unix time of the last use: now while a session has the namespace open, otherwise when
 * the last session closed it; 0 if none has since startup. */
uint64_t namespace_counts_last_used_ms(const struct namespace_counts *n, uint32_t id);

/* A namespace without sessions, and without chunks on the volumes that are up. */
struct unused_namespace {
        uint32_t id;
        uint64_t since_ns; /* time of clock_mono_ns(), not before the counts were created */
};
/* Finds the namespace that has been unused for longest. Returns false if every namespace is used or
 * claimed. A namespace counts as used when this function or namespace_counts_note_used() last found
 * it used, or when its last session closed it; otherwise when it was made, or at startup if that is
 * later. `tenant` and `owner` restrict the search to a tenant's or a user's namespaces; -1 and
 * STORE_NO_OWNER mean all. */
bool namespace_counts_find_unused(struct namespace_counts *n, int tenant, uint32_t owner,
                                  struct unused_namespace *ret);
/* Records that a namespace is used now, although it has no session and no chunk on the volumes that
 * are up: memory, or an offline volume, may have chunks of it. */
void namespace_counts_note_used(struct namespace_counts *n, uint32_t id);
/* Begins or ends a removal of a namespace; meanwhile namespace_counts_find_unused() does not find
 * it. */
void namespace_counts_claim(struct namespace_counts *n, uint32_t id, bool claimed);
/* Counts a namespace that was removed because it was unused. */
void namespace_counts_count_expired(struct namespace_counts *n);

struct namespace_counts_stats {
        unsigned count, most; /* the store's count and limit, without hidden namespaces */
        unsigned tenants_near, users_near; /* tenants, and users in a tenant, at
                                            * NAMESPACE_WARN_PERCENT of their limit or above; a user
                                            * counts once for each such tenant */
        bool store_near;
        uint64_t removed, expired; /* removed: namespaces removed so far; expired: those that were
                                    * removed because they were unused */
        uint64_t refused[NAMESPACE_SCOPES];
};
void namespace_counts_get_stats(struct namespace_counts *n, struct namespace_counts_stats *ret);
/* Fills in a tenant's count and limit. Returns false if the limits do not name the tenant. */
bool namespace_counts_get_tenant(struct namespace_counts *n, uint16_t store_tenant,
                                 struct namespace_use *ret);
struct namespace_use namespace_counts_get_user(struct namespace_counts *n, uint16_t store_tenant,
                                               uint32_t uid);

struct largest_namespaces {
        struct store_namespace list[NAMESPACE_LARGEST_MAX]; /* the largest first, by bytes */
        unsigned n;
        unsigned count;         /* number of the namespaces, of which `list` has the largest */
        uint64_t chunks, bytes; /* sums over these `count` namespaces */
};
/* Fills in the largest namespaces of the tenant with the store's number `only`, or of all tenants
 * except the hidden one if `only` is -1. */
void namespace_counts_get_largest(const struct namespace_counts *n, int only,
                                  struct largest_namespaces *ret);

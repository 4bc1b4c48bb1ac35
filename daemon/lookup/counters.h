/* SPDX-License-Identifier: Apache-2.0 */
/* Counts by namespace how many of the requested keys of a tenant were found, for lookups (EXISTS,
 * MATCH) and for gets.
 *
 * A lookup counts all its keys as requested; a MATCH finds those of the leading run. A get counts a
 * hit for a key that is in a tier of the cache, and a miss for one that is in no tier or failed its
 * check. A key that ends otherwise (no room, a quota) counts as neither. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "store/store.h"

enum counted_kind {
        COUNTED_LOOKUPS,     /* answered by the daemon */
        COUNTED_OWN_LOOKUPS, /* answered by clients themselves, from the lookup index */
        COUNTED_GETS,
        COUNTED_KINDS,
};

struct lookup_counts {
        uint64_t found, missing;
};

struct lookup_counters_row;

/* The counts of a tenant. A struct of zeros is valid and has no counts. */
struct lookup_counters {
        struct lookup_counts all[COUNTED_KINDS]; /* includes removed namespaces */
        uint64_t declined; /* keys that clients found but did not load, because computing was
                            * faster */
        struct lookup_counters_row *rows;
        unsigned n_rows, room;
        unsigned last;    /* index of the row found last */
        uint64_t version; /* store_namespaces_version() when that row was found */
};

/* Adds keys to the counts of a namespace. If the store lacks the namespace, or there is no memory
 * for its row, only `all` counts them. */
void lookup_counters_add(struct lookup_counters *t, const struct store *store,
                         uint32_t namespace_id, enum counted_kind kind, struct lookup_counts keys);
/* Returns the counts of a namespace; zeros if no key of it was requested. */
void lookup_counters_get(const struct lookup_counters *t, const struct store_namespace *ns,
                         struct lookup_counts ret[COUNTED_KINDS]);
void lookup_counters_fini(struct lookup_counters *t);

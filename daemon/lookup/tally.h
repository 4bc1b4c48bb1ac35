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

enum tally_kind {
        TALLY_LOOKUPS,     /* answered by the daemon */
        TALLY_OWN_LOOKUPS, /* answered by clients themselves, from the lookup index */
        TALLY_GETS,
        TALLY_KINDS,
};

struct tally_keys {
        uint64_t found, missing;
};

struct tally_row;

/* The counts of a tenant. All zero is empty. */
struct tally {
        struct tally_keys all[TALLY_KINDS]; /* includes removed namespaces */
        uint64_t declined; /* keys that clients found but did not load, because computing was
                            * faster */
        struct tally_row *rows;
        unsigned n_rows, room;
        unsigned last;    /* the row found last */
        uint64_t version; /* version of the store's namespaces at that time */
};

/* Adds keys to the counts of a namespace. If the store lacks the namespace, or there is no memory
 * for its row, only `all` counts them. */
void tally_add(struct tally *t, const struct store *store, uint32_t namespace_id,
               enum tally_kind kind, struct tally_keys keys);
/* Returns the counts of a namespace; zeros if no key of it was requested. */
void tally_get(const struct tally *t, const struct store_namespace *ns,
               struct tally_keys ret[TALLY_KINDS]);
void tally_fini(struct tally *t);

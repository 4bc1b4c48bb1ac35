/* SPDX-License-Identifier: Apache-2.0 */
/* Counts by namespace how many of the keys that a tenant's clients asked for were found, for
 * lookups (EXISTS, MATCH) and for gets.
 *
 * A lookup counts all its keys as asked; a MATCH finds those of the leading run. A get counts a hit
 * for a key that a tier of the cache has, and a miss for one that neither has or that failed its
 * check; a key that ends otherwise (no room, a quota) counts as neither. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "store/store.h"

enum tally_kind {
        TALLY_LOOKUPS,     /* answered by the daemon */
        TALLY_OWN_LOOKUPS, /* by clients, from the lookup index */
        TALLY_GETS,
        TALLY_KINDS,
};

struct tally_keys {
        uint64_t found, missing;
};

struct tally_row;

/* Of a tenant; all zero is empty. */
struct tally {
        struct tally_keys all[TALLY_KINDS]; /* of removed namespaces, too */
        uint64_t declined; /* keys that clients found and did not get, as computing was faster */
        struct tally_row *rows;
        unsigned n_rows, room;
        unsigned last;    /* the row that was found last, */
        uint64_t version; /* when the store's namespaces were these */
};

/* Of a namespace that the store does not have, or without memory for its row, the keys are in `all`
 * alone. */
void tally_add(struct tally *t, const struct store *store, uint32_t namespace_id,
               enum tally_kind kind, struct tally_keys keys);
/* Zeros of a namespace for which none was asked. */
void tally_get(const struct tally *t, const struct store_namespace *ns,
               struct tally_keys ret[TALLY_KINDS]);
void tally_fini(struct tally *t);

/* SPDX-License-Identifier: Apache-2.0 */
/* How many of the keys that clients of a tenant asked for were there: by namespace, for look-ups
 * (EXISTS, MATCH) and for gets.
 *
 * A look-up asks for all its keys; a MATCH finds those of the leading run. A get finds what a tier
 * of the cache has, and misses what neither has or what failed its check; a key that ends otherwise
 * (no room, a quota) is in neither number. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "store/store.h"

enum tally_kind {
        TALLY_LOOKUPS,     /* answered by the daemon */
        TALLY_OWN_LOOKUPS, /* by clients, from the look-up index */
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

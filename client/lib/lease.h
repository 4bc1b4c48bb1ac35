/* SPDX-License-Identifier: Apache-2.0 */
/* Leases, numbered by the library.
 *
 * Two daemon processes can issue the same {id, generation}. The user's lease therefore names a row
 * of this table, and the row names the session of the lease. Releasing a lease of an ended daemon
 * never ends a lease of its successor, and releasing a lease twice releases it once. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kvcache.h"
#include "wire.h"

struct conn;

struct lease_row {
        struct conn *conn;      /* session of the lease; NULL: the row is free */
        struct wire_lease wire; /* the daemon's name of the lease; generation 0: the library took a
                                   hold on the chunk, at place `id` of the pool index's page */
        uint32_t generation;    /* number of uses of the row; never 0 */
        uint32_t length; /* bytes that the user may read under the lease: of the chunk, or of the
                            range that was requested */
        uint32_t next_free;
};

struct lease_table {
        struct lease_row *rows;
        uint32_t n_rows, room;
        uint32_t first_free; /* index of the first free row, plus one; 0: none */
};

void lease_table_fini(struct lease_table *t);
/* Adds a lease and sets `*ret` to its name. Returns 0 or -ENOMEM. */
int lease_acquire(struct lease_table *t, struct conn *conn, struct wire_lease wire, uint32_t length,
                  struct kvcache_lease *ret);
/* Frees the row of a lease and copies it to `*ret`. Returns false if there is no such lease. */
bool lease_release(struct lease_table *t, struct kvcache_lease lease, struct lease_row *ret);

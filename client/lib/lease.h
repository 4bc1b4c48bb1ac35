/* SPDX-License-Identifier: Apache-2.0 */
/* Leases under numbers of the library's own.
 *
 * Two daemon processes can give out the same {id, generation}, so what the user holds names a row
 * of this table, and the row says which session the lease belongs to: releasing a lease of an ended
 * daemon never ends one of its successor, and a lease that is released twice is released once. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kvcache.h"
#include "wire.h"

struct conn;

struct lease_row {
        struct conn *conn; /* NULL: free */
        struct wire_lease wire;
        uint32_t generation; /* of the row; never 0 */
        uint32_t length;     /* bytes that it keeps in the pool */
        uint32_t next_free;
};

struct lease_table {
        struct lease_row *rows;
        uint32_t n_rows, room;
        uint32_t first_free; /* a row's number plus one; 0: none */
};

void lease_table_fini(struct lease_table *t);
/* 0 or -ENOMEM. */
int lease_acquire(struct lease_table *t, struct conn *conn, struct wire_lease wire, uint32_t length,
                  struct kvcache_lease *ret);
/* Frees the row and says what it held; false: there is no such lease. */
bool lease_release(struct lease_table *t, struct kvcache_lease lease, struct lease_row *ret);

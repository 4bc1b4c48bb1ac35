/* SPDX-License-Identifier: Apache-2.0 */
/* Leases, numbered by the library: an array of rows with a free list. Runs in the handle's thread.
 * Owns the rows, but not the sessions that they name. */
#include "lib/lease.h"

#include <errno.h>
#include <stdlib.h>

#include "checked.h"

void lease_table_fini(struct lease_table *t)
{
        free(t->rows);
        *t = (struct lease_table){ 0 };
}

int lease_acquire(struct lease_table *t, struct conn *conn, struct wire_lease wire, uint32_t length,
                  struct kvcache_lease *ret)
{
        struct lease_row *row;
        uint32_t i;

        if (t->first_free != 0) {
                i = t->first_free - 1;
                t->first_free = t->rows[i].next_free;
        } else {
                if (t->n_rows == t->room) {
                        uint32_t room = MAX(2 * t->room, 64u);
                        struct lease_row *rows = NULL;

                        if (room < UINT32_MAX / 2)
                                rows = realloc(t->rows, room * sizeof(*rows));
                        if (!rows)
                                return -ENOMEM;
                        t->rows = rows;
                        t->room = room;
                }
                i = t->n_rows++;
                t->rows[i].generation = 1;
        }
        row = &t->rows[i];
        *row = (struct lease_row){
                .conn = conn, .wire = wire, .generation = row->generation, .length = length
        };
        *ret = (struct kvcache_lease){ .id = i, .generation = row->generation };
        return 0;
}

bool lease_release(struct lease_table *t, struct kvcache_lease lease, struct lease_row *ret)
{
        struct lease_row *row;

        if (lease.id >= t->n_rows)
                return false;
        row = &t->rows[lease.id];
        if (!row->conn || row->generation != lease.generation)
                return false;
        *ret = *row;
        row->conn = NULL;
        row->generation = MAX(row->generation + 1, 1u);
        row->next_free = t->first_free;
        t->first_free = lease.id + 1;
        return true;
}

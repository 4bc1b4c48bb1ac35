/* SPDX-License-Identifier: Apache-2.0 */
/* The rows are an array, ascending by namespace: the store bounds how many there can be. */
#include "tally.h"

#include <stdlib.h>
#include <string.h>

#include "checked.h"

struct tally_row {
        uint32_t namespace_id;
        struct tally_keys keys[TALLY_KINDS];
};

/* The first row that is not before the namespace's. */
static unsigned place_of(const struct tally *t, uint32_t namespace_id)
{
        unsigned low = 0, high = t->n_rows;

        while (low < high) {
                unsigned middle = low + (high - low) / 2;

                if (t->rows[middle].namespace_id < namespace_id)
                        low = middle + 1;
                else
                        high = middle;
        }
        return low;
}

static bool is_row(const struct tally *t, unsigned at, uint32_t namespace_id)
{
        return at < t->n_rows && t->rows[at].namespace_id == namespace_id;
}

/* NULL: there is to be none. */
static struct tally_row *row_for(struct tally *t, const struct store *store, uint32_t namespace_id)
{
        unsigned at = t->last;

        if (!is_row(t, at, namespace_id))
                at = place_of(t, namespace_id);
        if (!is_row(t, at, namespace_id)) {
                if (!store_namespace_get(store, namespace_id))
                        return NULL;
                if (t->n_rows == t->room) {
                        unsigned room = MAX(2 * t->room, 8u);
                        struct tally_row *rows = realloc(t->rows, room * sizeof(*rows));

                        if (!rows)
                                return NULL;
                        t->rows = rows;
                        t->room = room;
                }
                memmove(&t->rows[at + 1], &t->rows[at], (t->n_rows - at) * sizeof(*t->rows));
                t->rows[at] = (struct tally_row){ .namespace_id = namespace_id };
                t->n_rows++;
        }
        t->last = at;
        return &t->rows[at];
}

void tally_add(struct tally *t, const struct store *store, uint32_t namespace_id,
               enum tally_kind kind, struct tally_keys keys)
{
        struct tally_row *row;

        if (keys.found == 0 && keys.missing == 0)
                return;
        t->all[kind].found += keys.found;
        t->all[kind].missing += keys.missing;
        row = row_for(t, store, namespace_id);
        if (!row)
                return;
        row->keys[kind].found += keys.found;
        row->keys[kind].missing += keys.missing;
}

void tally_get(const struct tally *t, uint32_t namespace_id, struct tally_keys ret[TALLY_KINDS])
{
        unsigned at = place_of(t, namespace_id);

        if (is_row(t, at, namespace_id))
                memcpy(ret, t->rows[at].keys, sizeof(t->rows[at].keys));
        else
                memset(ret, 0, sizeof(t->rows[at].keys));
}

void tally_forget(struct tally *t, uint32_t namespace_id)
{
        unsigned at = place_of(t, namespace_id);

        if (!is_row(t, at, namespace_id))
                return;
        t->n_rows--;
        memmove(&t->rows[at], &t->rows[at + 1], (t->n_rows - at) * sizeof(*t->rows));
}

void tally_fini(struct tally *t)
{
        free(t->rows);
        *t = (struct tally){ 0 };
}

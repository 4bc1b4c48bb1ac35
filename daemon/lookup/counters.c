/* SPDX-License-Identifier: Apache-2.0 */
/* Implements counters.h. The rows are an array, ascending by namespace. This module is not notified
 * when a namespace is removed. Therefore a row belongs to the namespace with its number and
 * creation time, and a later namespace with that number begins at zero. Before the array grows, the
 * rows of removed namespaces are dropped, so that it is never much longer than the store's list. */
#include "lookup/counters.h"

#include <stdlib.h>
#include <string.h>

#include "base/search.h"
#include "checked.h"

struct lookup_counters_row {
        uint32_t namespace_id;
        uint64_t created_ms;
        struct lookup_counts keys[COUNTED_KINDS];
};

/* Returns the index of the first row that is not before the namespace's. */
static unsigned place_of(const struct lookup_counters *t, uint32_t namespace_id)
{
        return search_first(t->n_rows, i, t->rows[i].namespace_id < namespace_id);
}

static bool is_row(const struct lookup_counters *t, unsigned at, uint32_t namespace_id)
{
        return at < t->n_rows && t->rows[at].namespace_id == namespace_id;
}

static void drop_removed(struct lookup_counters *t, const struct store *store)
{
        unsigned n = 0;

        for (unsigned i = 0; i < t->n_rows; i++) {
                const struct store_namespace *ns =
                        store_namespace_get(store, t->rows[i].namespace_id);

                if (ns && ns->created_ms == t->rows[i].created_ms)
                        t->rows[n++] = t->rows[i];
        }
        t->n_rows = n;
}

/* Makes room for one more row. Returns false without memory. */
static bool has_room(struct lookup_counters *t, const struct store *store)
{
        unsigned room = MAX(2 * t->room, 8u);
        struct lookup_counters_row *rows;

        if (t->n_rows < t->room)
                return true;
        drop_removed(t, store);
        if (t->n_rows < t->room / 2)
                return true;
        rows = realloc(t->rows, room * sizeof(*rows));
        if (rows) {
                t->rows = rows;
                t->room = room;
        }
        return t->n_rows < t->room;
}

/* Returns the row of a namespace, or NULL if the store lacks the namespace or there is no
 * memory. */
static struct lookup_counters_row *row_for(struct lookup_counters *t, const struct store *store,
                                           uint32_t namespace_id)
{
        uint64_t created_ms, version = store_namespaces_version(store);
        const struct store_namespace *ns;
        unsigned at;

        if (is_row(t, t->last, namespace_id) && t->version == version)
                return &t->rows[t->last];
        ns = store_namespace_get(store, namespace_id);
        if (!ns)
                return NULL;
        created_ms = ns->created_ms;
        at = place_of(t, namespace_id);
        if (!is_row(t, at, namespace_id)) {
                if (!has_room(t, store))
                        return NULL;
                at = place_of(t, namespace_id);
                memmove(&t->rows[at + 1], &t->rows[at], (t->n_rows - at) * sizeof(*t->rows));
                t->rows[at] = (struct lookup_counters_row){ namespace_id, created_ms };
                t->n_rows++;
        } else if (t->rows[at].created_ms != created_ms) {
                t->rows[at] = (struct lookup_counters_row){ namespace_id, created_ms };
        }
        t->last = at;
        t->version = version;
        return &t->rows[at];
}

void lookup_counters_add(struct lookup_counters *t, const struct store *store,
                         uint32_t namespace_id, enum counted_kind kind, struct lookup_counts keys)
{
        struct lookup_counters_row *row;

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

void lookup_counters_get(const struct lookup_counters *t, const struct store_namespace *ns,
                         struct lookup_counts ret[COUNTED_KINDS])
{
        unsigned at = place_of(t, ns->id);

        if (is_row(t, at, ns->id) && t->rows[at].created_ms == ns->created_ms)
                memcpy(ret, t->rows[at].keys, sizeof(t->rows[at].keys));
        else
                memset(ret, 0, sizeof(t->rows[at].keys));
}

void lookup_counters_fini(struct lookup_counters *t)
{
        free(t->rows);
        *t = (struct lookup_counters){ 0 };
}

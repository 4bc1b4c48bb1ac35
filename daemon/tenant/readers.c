/* SPDX-License-Identifier: Apache-2.0 */
/* See readers.h. */
#include "tenant/readers.h"

#include <stdlib.h>
#include <string.h>

#include "checked.h"

static bool is_same(const struct peer *a, const struct peer *b)
{
        return a->uid == b->uid && a->gid == b->gid && a->n_groups == b->n_groups &&
               memcmp(a->groups, b->groups, a->n_groups * sizeof(a->groups[0])) == 0;
}

void readers_note(struct readers *r, const struct peer *p)
{
        /* A client that connects again is usually one of the last recorded. */
        for (unsigned i = r->n; i-- > 0;)
                if (is_same(&r->items[i], p))
                        return;
        if (r->n == r->room && r->n < READERS_MAX) {
                unsigned room = MAX(2 * r->room, 8u);
                struct peer *items = reallocarray(r->items, room, sizeof(*items));

                if (items) {
                        r->items = items;
                        r->room = room;
                }
        }
        if (r->n == r->room)
                r->incomplete = true;
        else
                r->items[r->n++] = *p;
}

void readers_fini(struct readers *r)
{
        free(r->items);
        *r = (struct readers){ 0 };
}

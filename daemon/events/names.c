/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of namespaces in events: a hash table by the store's id, with linear probing. A
 * namespace gets the next number when an event or a snapshot first names it, and no number is used
 * twice, so that a number names one namespace from its creation to its removal.
 *
 * The table has room for all namespaces that can exist. If removals were missed and it is full
 * nevertheless, it is emptied and readers find a gap. */
#include "events/internal.h"

#include <string.h>

static uint32_t place_of(uint32_t id)
{
        return id * UINT32_C(2654435761) % BINDINGS;
}

/* Returns the id's binding, or the free place where it belongs. */
static struct binding *search(const struct events_ring *r, uint32_t id)
{
        uint32_t i = place_of(id);

        while (r->bindings[i].id != 0 && r->bindings[i].id != id)
                i = (i + 1) % BINDINGS;
        return &r->bindings[i];
}

static void forget_all(struct events_ring *r)
{
        memset(r->bindings, 0, BINDINGS * sizeof(*r->bindings));
        r->n_bindings = 0;
        r->latest = NULL;
        ring_reset(r);
}

struct binding *binding_of(struct events_ring *r, uint32_t id)
{
        struct binding *b = search(r, id);
        const struct store_namespace *ns;

        if (b->id == 0) {
                ns = store_namespace_get(r->all->store, id);
                if (!ns || ns->tenant != r->number || id == 0)
                        return NULL;
                if (r->n_bindings >= BINDINGS / 2) {
                        forget_all(r);
                        b = search(r, id);
                }
                *b = (struct binding){ .id = id, .number = ++r->last_number };
                r->n_bindings++;
        }
        r->latest = b;
        return b;
}

struct binding *binding_find(struct events_ring *r, uint32_t id, uint32_t number)
{
        struct binding *b = search(r, id);

        return b->id == id && b->number == number ? b : NULL;
}

uint32_t binding_remove(struct events_ring *r, uint32_t id)
{
        struct binding *b = search(r, id);
        uint32_t number = b->number, hole = (uint32_t)(b - r->bindings);

        if (b->id == 0)
                return 0;
        /* Move later bindings into the hole, because searches for them would end there. */
        for (uint32_t i = (hole + 1) % BINDINGS; r->bindings[i].id != 0; i = (i + 1) % BINDINGS) {
                uint32_t wanted = place_of(r->bindings[i].id);

                if ((i - wanted) % BINDINGS < (i - hole) % BINDINGS)
                        continue;
                r->bindings[hole] = r->bindings[i];
                hole = i;
        }
        r->bindings[hole] = (struct binding){ 0 };
        r->n_bindings--;
        r->latest = NULL;
        return number;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Fair queueing among tenants. A tenant's items are served in order, and all tenants with waiting
 * items get the same number of bytes, however much each has waiting. Pure; the caller owns the
 * items. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"

enum { FAIR_FLOWS = 64 }; /* tenants whose numbers are equal modulo this share a flow */

struct fair_flow {
        struct list_node waiting;
        uint64_t n, bytes; /* waiting items and their bytes */
        uint64_t start;    /* virtual time at which the next is due */
};

struct fair {
        struct fair_flow flows[FAIR_FLOWS];
        uint64_t busy; /* bit mask of the flows with waiting items */
        uint64_t now;  /* virtual time: the bytes served to each busy flow */
};

void fair_init(struct fair *f);
static inline unsigned fair_number(uint16_t tenant) /* returns the tenant's flow */
{
        return tenant % FAIR_FLOWS;
}
static inline const struct fair_flow *fair_flow(const struct fair *f, uint16_t tenant)
{
        return &f->flows[fair_number(tenant)];
}
static inline bool fair_is_empty(const struct fair *f)
{
        return f->busy == 0;
}

/* Queues an item of `bytes` for a tenant. */
void fair_append(struct fair *f, uint16_t tenant, struct list_node *node, uint64_t bytes);
/* Removes a waiting item, which was appended with the same `bytes`. */
void fair_remove(struct fair *f, uint16_t tenant, struct list_node *node, uint64_t bytes);
/* Returns the item to serve next, or NULL if none waits. Flows with a bit in `except` are
 * skipped. */
struct list_node *fair_first(const struct fair *f, uint64_t except);
/* Charges `bytes` served to a tenant, which delays its next items. */
void fair_charge(struct fair *f, uint16_t tenant, uint64_t bytes);
/* Returns the flow with the largest share of `bytes` or of `n` items waiting, whichever share is
 * larger, or NULL if nothing waits. */
const struct fair_flow *fair_longest(const struct fair *f, uint64_t bytes, uint64_t n);

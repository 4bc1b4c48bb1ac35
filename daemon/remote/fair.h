/* SPDX-License-Identifier: Apache-2.0 */
/* Fair queueing among tenants: what one tenant has waiting is served in its order, and of the
 * tenants that have something waiting each gets as many bytes as any other, however much it has
 * waiting. Pure; the caller owns what waits. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"

enum { FAIR_FLOWS = 64 }; /* tenants beyond that share one with another */

struct fair_flow {
        struct list_node waiting;
        uint64_t n, bytes; /* of these */
        uint64_t start;    /* virtual time at which the next is due */
};

struct fair {
        struct fair_flow flows[FAIR_FLOWS];
        uint64_t busy; /* a bit for each flow with something waiting */
        uint64_t now;  /* virtual time: bytes that each busy flow has been served */
};

void fair_init(struct fair *f);
static inline unsigned fair_number(uint16_t tenant) /* of its flow */
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

void fair_append(struct fair *f, uint16_t tenant, struct list_node *node, uint64_t bytes);
/* It was appended with as many bytes, and waits no more. */
void fair_remove(struct fair *f, uint16_t tenant, struct list_node *node, uint64_t bytes);
/* What is to be served next; NULL: nothing waits. Flows that have a bit in `except` are passed
 * over.
 */
struct list_node *fair_first(const struct fair *f, uint64_t except);
/* `bytes` are served to it now, at the expense of its tenant's next ones. */
void fair_charge(struct fair *f, uint16_t tenant, uint64_t bytes);
/* The flow with the largest share of `bytes` or of `n` waiting, whichever is larger; NULL: nothing
 * waits. */
const struct fair_flow *fair_longest(const struct fair *f, uint64_t bytes, uint64_t n);

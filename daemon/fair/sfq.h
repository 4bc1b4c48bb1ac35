/* SPDX-License-Identifier: Apache-2.0 */
/* Fair queueing among tenants. (cache/prefetch.c queues users by it, whose index takes the place of
 * the tenant's number.) A tenant's items are served in order, and all flows with waiting items get
 * the same number of bytes, however much each has waiting. A flow is the queue of one tenant, or of
 * several whose numbers are equal modulo SFQ_FLOWS. The caller owns the items. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"

enum { SFQ_FLOWS = 64 }; /* tenants whose numbers are equal modulo this share a flow */

struct sfq_flow {
        struct list_node waiting;
        uint64_t n, bytes; /* waiting items and their bytes */
        uint64_t start;    /* virtual time at which the flow's next item is due */
};

struct sfq {
        struct sfq_flow flows[SFQ_FLOWS];
        uint64_t busy; /* bit mask of the flows with waiting items */
        uint64_t now;  /* virtual time: the latest `start` of a flow that was served */
};

void sfq_init(struct sfq *f);
static inline unsigned sfq_number(uint16_t tenant) /* returns the index of the tenant's flow */
{
        return tenant % SFQ_FLOWS;
}
static inline const struct sfq_flow *sfq_flow(const struct sfq *f, uint16_t tenant)
{
        return &f->flows[sfq_number(tenant)];
}
static inline bool sfq_is_empty(const struct sfq *f)
{
        return f->busy == 0;
}

/* Appends an item of `bytes` to its tenant's flow. */
void sfq_append(struct sfq *f, uint16_t tenant, struct list_node *node, uint64_t bytes);
/* Removes a waiting item, which was appended with the same `bytes`. */
void sfq_remove(struct sfq *f, uint16_t tenant, struct list_node *node, uint64_t bytes);
/* Returns the item to serve next, or NULL if none waits. Flows with a bit in `except` are
 * skipped. */
struct list_node *sfq_first(const struct sfq *f, uint64_t except);
/* Charges `bytes` served to a tenant, which delays its next items. */
void sfq_charge(struct sfq *f, uint16_t tenant, uint64_t bytes);
/* Returns the flow with the largest share, or NULL if nothing waits. A flow's share is the larger
 * one of its waiting bytes divided by `bytes` and its waiting items divided by `n`. */
const struct sfq_flow *sfq_longest(const struct sfq *f, uint64_t bytes, uint64_t n);

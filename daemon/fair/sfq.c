/* SPDX-License-Identifier: Apache-2.0 */
/* Implements sfq.h by start-time fair queueing (Goyal, Vin, Cheng, 1996). Each flow has the virtual
 * time at which its next item is due, which advances by the bytes served to it; the flow with the
 * earliest time goes first. A flow without waiting items resumes at the later of its own time and
 * that of the item served last, so it gains no credit while idle. */
#include "fair/sfq.h"

#include <stddef.h>

#include "checked.h"

void sfq_init(struct sfq *f)
{
        *f = (struct sfq){ .busy = 0 };
        for (unsigned i = 0; i < SFQ_FLOWS; i++)
                list_init(&f->flows[i].waiting);
}

static uint64_t bit(uint16_t tenant)
{
        return UINT64_C(1) << sfq_number(tenant);
}

void sfq_append(struct sfq *f, uint16_t tenant, struct list_node *node, uint64_t bytes)
{
        struct sfq_flow *flow = &f->flows[sfq_number(tenant)];

        if (flow->n == 0)
                flow->start = MAX(flow->start, f->now);
        list_append(&flow->waiting, node);
        flow->n++;
        flow->bytes += bytes;
        f->busy |= bit(tenant);
}

void sfq_remove(struct sfq *f, uint16_t tenant, struct list_node *node, uint64_t bytes)
{
        struct sfq_flow *flow = &f->flows[sfq_number(tenant)];

        list_unlink(node);
        flow->n--;
        flow->bytes -= bytes;
        if (flow->n == 0)
                f->busy &= ~bit(tenant);
}

struct list_node *sfq_first(const struct sfq *f, uint64_t except)
{
        const struct sfq_flow *first = NULL;

        for (uint64_t left = f->busy & ~except; left; left &= left - 1) {
                const struct sfq_flow *flow = &f->flows[__builtin_ctzll(left)];

                if (!first || flow->start < first->start)
                        first = flow;
        }
        return first ? first->waiting.next : NULL;
}

void sfq_charge(struct sfq *f, uint16_t tenant, uint64_t bytes)
{
        struct sfq_flow *flow = &f->flows[sfq_number(tenant)];

        f->now = MAX(f->now, flow->start);
        flow->start += bytes;
}

static double share_of(const struct sfq_flow *flow, uint64_t bytes, uint64_t n)
{
        return MAX((double)flow->bytes / (double)bytes, (double)flow->n / (double)n);
}

const struct sfq_flow *sfq_longest(const struct sfq *f, uint64_t bytes, uint64_t n)
{
        const struct sfq_flow *longest = NULL;

        for (uint64_t left = f->busy; left; left &= left - 1) {
                const struct sfq_flow *flow = &f->flows[__builtin_ctzll(left)];

                if (!longest || share_of(flow, bytes, n) > share_of(longest, bytes, n))
                        longest = flow;
        }
        return longest;
}

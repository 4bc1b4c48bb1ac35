/* SPDX-License-Identifier: Apache-2.0 */
/* What the pool is about to evict.
 *
 * Evictions of a class are counted as they happen, which is all that a search for room pays. Every
 * few of them the caller gets the chunks that stand next in the policy's order: more than are
 * evicted until the next report, so that it has some time with each. */
#include "cache/pool-internal.h"

void pool_note_eviction(struct pool *p, unsigned class)
{
        uint32_t *until = &p->until_report[class];

        if (*until == EVICT_REPORT_DUE)
                return;
        if (*until == 0)
                p->report_due = true;
        --*until; /* from 0 on: it is due */
}

struct report {
        struct pool *pool;
        void (*each)(void *userdata, uint32_t chunk, double chance);
        void *userdata;
};

static void report(void *userdata, uint32_t chunk)
{
        struct report *to = userdata;

        if (to->pool->chunks[chunk].pins == 0)
                to->each(to->userdata, chunk, evict_chance(to->pool->evict, chunk));
}

void pool_report_leaving(struct pool *p,
                         void (*each)(void *userdata, uint32_t chunk, double chance),
                         void *userdata)
{
        struct report to = { .pool = p, .each = each, .userdata = userdata };

        if (!p->report_due)
                return;
        p->report_due = false;
        for (unsigned i = 0; i < slabs_class_count(p->slabs); i++)
                if (p->until_report[i] == EVICT_REPORT_DUE) {
                        uint32_t n_slabs, interval;
                        uint64_t slots, used;

                        slabs_class_usage(p->slabs, i, &n_slabs, &slots, &used);
                        interval = evict_leaving_interval(used);
                        p->until_report[i] = interval - 1;
                        evict_next(p->evict, i, 2 * interval, report, &to);
                }
}

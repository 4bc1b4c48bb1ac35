/* SPDX-License-Identifier: Apache-2.0 */
/* Reports chunks that the pool is about to evict. evict.h says when reports are due; pinned chunks
 * are not reported, because they stay. */
#include "cache/pool-internal.h"

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

        if (!evict_reports_are_due(p->evict))
                return;
        for (unsigned i = 0; i < slabs_class_count(p->slabs); i++) {
                uint32_t n_slabs;
                uint64_t slots, used;

                slabs_class_usage(p->slabs, i, &n_slabs, &slots, &used);
                evict_report_leaving(p->evict, i, used, report, &to);
        }
}

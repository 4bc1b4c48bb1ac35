/* SPDX-License-Identifier: Apache-2.0 */
/* Implements history-collect.h. Reads only the counters that the history needs, because a snapshot
 * of all metrics takes ten times as long. Keeps nothing, cannot fail. */
#include "report/history-collect.h"

#include <string.h>

#include "cache/cache.h"
#include "report/history.h"
#include "report/sums.h"
#include "session/session.h"

static void collect(const struct status_sources *from, struct history_counters *ret)
{
        const struct service *service = from->service;
        uint64_t *counters = ret->counters;
        struct cache_stats cache;
        struct pool_stats pool;
        struct store_stats store;

        memset(ret, 0, sizeof(*ret));
        sessions_count_lookups(from->sessions);
        for (unsigned i = 0; i < service->n_tenants; i++) {
                const struct traffic *t = &service->tenants[i].traffic;
                struct lookup_counts lookups =
                        status_lookups(service->tenants[i].lookup_counters.all);

                counters[HISTORY_LOOKUP_KEYS] += lookups.found + lookups.missing;
                counters[HISTORY_LOOKUP_FOUND] += lookups.found;
                counters[HISTORY_GET_BYTES] += t->get_bytes_map + t->get_bytes_into;
                histogram_merge(&ret->latency[HISTORY_GET], &t->got[GOT_MEMORY]);
                histogram_merge(&ret->latency[HISTORY_GET], &t->got[GOT_DISK]);
                histogram_merge(&ret->latency[HISTORY_GET], &t->got[GOT_REMOTE]);
                for (unsigned k = 0; k < CACHE_ACKS; k++)
                        histogram_merge(&ret->latency[HISTORY_PUT], &t->put[k]);
        }
        status_collect_cache(service, &cache);
        counters[HISTORY_GET_FOUND] = cache_hits(&cache);
        counters[HISTORY_GET_KEYS] = counters[HISTORY_GET_FOUND] + cache_misses(&cache);
        counters[HISTORY_PUT_BYTES] = cache.put_bytes;
        status_collect_pools(service, &pool);
        counters[HISTORY_EVICTIONS_MEMORY] = pool.evictions;
        store_get_stats(service->store, &store);
        counters[HISTORY_EVICTIONS_DISK] = store.evictions;
        counters[HISTORY_DISK_READ_BYTES] = store.bytes_read;
        counters[HISTORY_DISK_WRITTEN_BYTES] = store.payload_bytes_written +
                                               store.table_bytes_written +
                                               store.prewrite_bytes_written;
}

void history_tick(struct history *h, const struct status_sources *from, uint64_t now_ns)
{
        static struct history_counters counters; /* too large for the stack */

        if (!history_is_due(h, now_ns))
                return;
        collect(from, &counters);
        history_add(h, now_ns, &counters);
}

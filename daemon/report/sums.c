/* SPDX-License-Identifier: Apache-2.0 */
/* Implements sums.h. Reads each tenant's cache, pool and key counts; keeps nothing, cannot fail. */
#include "report/sums.h"

#include "checked.h"
#include "request/request.h"

void status_collect_cache(const struct service *service, struct cache_stats *ret)
{
        *ret = (struct cache_stats){ 0 };
        for (unsigned i = 0; i < service->n_tenants; i++) {
                struct cache_stats c;

                cache_get_stats(service->tenants[i].cache, &c);
                ret->hits_memory += c.hits_memory;
                ret->hits_disk += c.hits_disk;
                ret->hits_remote += c.hits_remote;
                for (unsigned k = 0; k < CACHE_MISS_REASONS; k++)
                        ret->misses[k] += c.misses[k];
                ret->puts += c.puts;
                ret->put_bytes += c.put_bytes;
                ret->puts_existing += c.puts_existing;
                for (unsigned k = 0; k < ARRAY_SIZE(c.puts_by_ack); k++)
                        ret->puts_by_ack[k] += c.puts_by_ack[k];
                ret->busy += c.busy;
                ret->waited += c.waited;
                ret->unwritten_bytes += c.unwritten_bytes;
                ret->unwritten_chunks += c.unwritten_chunks;
                ret->unwritten_limit += c.unwritten_limit;
                ret->direct_bytes += c.direct_bytes;
                ret->queued_writes += c.queued_writes;
                ret->queued_reads += c.queued_reads;
                ret->putting_users += c.putting_users;
                ret->pool_only += c.pool_only;
                ret->postponed += c.postponed;
                ret->caught_up += c.caught_up;
                ret->put_checks += c.put_checks;
                ret->shared_fills += c.shared_fills;
                ret->prefetched += c.prefetched;
                ret->prefetched_bytes += c.prefetched_bytes;
                ret->prefetch_hits += c.prefetch_hits;
                ret->prefetch_inflight_bytes += c.prefetch_inflight_bytes;
                for (unsigned k = 0; k < PREFETCH_OUTCOMES; k++)
                        ret->returns_prefetched.outcomes[k] += c.returns_prefetched.outcomes[k];
                ret->returns_prefetched.chains += c.returns_prefetched.chains;
                ret->returns_prefetched.chunks += c.returns_prefetched.chunks;
                ret->returns_prefetched.bytes += c.returns_prefetched.bytes;
                ret->put_bytes_direct += c.put_bytes_direct;
                ret->get_bytes_direct += c.get_bytes_direct;
                ret->direct_fallbacks += c.direct_fallbacks;
                ret->file_puts += c.file_puts;
                ret->file_put_bytes += c.file_put_bytes;
                ret->file_failures += c.file_failures;
                ret->expired += c.expired;
                ret->returns.expected += c.returns.expected;
                ret->returns.in_time += c.returns.in_time;
                ret->returns.late += c.returns.late;
                ret->returns.evicted += c.returns.evicted;
                ret->returns.missed += c.returns.missed;
                ret->fetching += c.fetching;
                ret->fetched += c.fetched;
                ret->fetched_bytes += c.fetched_bytes;
                ret->shared_fetches += c.shared_fetches;
                for (unsigned tier = 0; tier < SETS_TIERS; tier++) {
                        ret->sets.demoted[tier] += c.sets.demoted[tier];
                        ret->sets.promoted[tier] += c.sets.promoted[tier];
                        ret->sets.missed[tier] += c.sets.missed[tier];
                }
        }
}

void status_collect_pools(const struct service *service, struct pool_stats *ret)
{
        *ret = (struct pool_stats){ 0 };
        for (unsigned i = 0; i < service->n_tenants; i++) {
                struct pool_stats p;

                pool_get_stats(service->tenants[i].pool, &p);
                ret->bytes += p.bytes;
                ret->populated_bytes += p.populated_bytes;
                ret->huge_bytes += p.huge_bytes;
                ret->used_bytes += p.used_bytes;
                ret->payload_bytes += p.payload_bytes;
                ret->pinned_bytes += p.pinned_bytes;
                ret->leased_bytes += p.leased_bytes;
                ret->leased_slabs += p.leased_slabs;
                ret->private_slabs += p.private_slabs;
                ret->moved_chunks += p.moved_chunks;
                ret->chunks += p.chunks;
                ret->evictions += p.evictions;
                ret->evicted_bytes += p.evicted_bytes;
                ret->slab_moves += p.slab_moves;
                ret->spared += p.spared;
                ret->prefetched_unused_bytes += p.prefetched_unused_bytes;
                ret->prefetched_wasted += p.prefetched_wasted;
                evict_add_stats(&ret->evict, &p.evict);
        }
}

struct lookup_counts status_lookups(const struct lookup_counts of[COUNTED_KINDS])
{
        return (struct lookup_counts){
                .found = of[COUNTED_LOOKUPS].found + of[COUNTED_OWN_LOOKUPS].found,
                .missing = of[COUNTED_LOOKUPS].missing + of[COUNTED_OWN_LOOKUPS].missing,
        };
}

const char *status_hit_ratio(const struct service *service, double *ret_ratio)
{
        struct lookup_counts lookups = { 0 }, gets = { 0 }, of;

        for (unsigned i = 0; i < service->n_tenants; i++) {
                struct cache_stats cache;

                of = status_lookups(service->tenants[i].lookup_counters.all);
                lookups.found += of.found;
                lookups.missing += of.missing;
                cache_get_stats(service->tenants[i].cache, &cache);
                gets.found += cache_hits(&cache);
                gets.missing += cache_misses(&cache);
        }
        of = lookups.found + lookups.missing > 0 ? lookups : gets;
        if (of.found + of.missing == 0)
                return NULL;
        *ret_ratio = (double)of.found / (double)(of.found + of.missing);
        return lookups.found + lookups.missing > 0 ? "lookups" : "gets";
}

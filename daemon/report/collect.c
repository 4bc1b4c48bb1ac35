/* SPDX-License-Identifier: Apache-2.0 */
/* Collects the snapshot of all metrics. Each counter is read from the part that counts it; nothing
 * is kept. Loop thread; cannot fail. */
#include "report/collect.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "keep/keep.h"
#include "learned/learned.h"
#include "build-config.h"
#include "config/config.h"
#include "checked.h"
#include "events/events.h"
#include "evict/admission.h"
#include "request/request.h"
#include "report/collect-io.h"
#include "report/sums.h"
#include "report/http.h"
#include "report/health.h"
#include "report/process.h"
#include "session/session.h"
#include "wire.h"

static_assert((int)METRICS_OPS >= (int)WIRE_OP_END, "each op has its counter");
static_assert((int)METRICS_STATUSES >= (int)WIRE_STATUS_END, "each status has its counter");
static_assert((int)METRICS_GOT == (int)GOT, "each result has its counter");
static_assert((int)METRICS_ACKS == (int)CACHE_ACKS, "each class has its histogram");
static_assert((int)METRICS_STAGES == (int)STAGES, "each stage has its histogram");

static void add_lookups(struct metrics *s, unsigned by, const struct lookup_counts *keys)
{
        s->lookup_keys[by] += (double)(keys->found + keys->missing);
        s->lookup_found[by] += (double)keys->found;
}

static void collect_traffic(const struct service *service, struct metrics *s)
{
        struct store_loan_stats loans;
        struct cache_stats cache;

        for (unsigned k = 0; k < service->n_tenants; k++) {
                const struct traffic *t = &service->tenants[k].traffic;

                for (unsigned i = 0; i < WIRE_OP_END; i++) {
                        s->requests[i] += (double)t->requests[i];
                        histogram_merge(&s->request_duration[i], &t->latency[i]);
                }
                for (unsigned i = 0; i < WIRE_STATUS_END; i++)
                        s->key_results[i] += (double)t->results[i];
                add_lookups(s, METRICS_LOOKUPS_DAEMON,
                            &service->tenants[k].lookup_counters.all[COUNTED_LOOKUPS]);
                add_lookups(s, METRICS_LOOKUPS_CLIENT,
                            &service->tenants[k].lookup_counters.all[COUNTED_OWN_LOOKUPS]);
                s->loads_declined += (double)service->tenants[k].lookup_counters.declined;
                s->impossible_tallies += (double)service->tenants[k].impossible_tallies;
                s->get_bytes[METRICS_FORM_MAP] += (double)t->get_bytes_map;
                s->get_bytes[METRICS_FORM_INTO] += (double)t->get_bytes_into;
                s->registered_buffers += (double)service->tenants[k].registered.regions;
                s->registered_shared_buffers += (double)service->tenants[k].registered.shared;
                s->registered_files += (double)service->tenants[k].registered.files;
                s->client_descriptors[METRICS_FD_REGISTRATION] +=
                        (double)service->tenants[k].registered.opening +
                        (double)service->tenants[k].registered.files;
                s->registrations_refused[METRICS_REGISTERED_REGION] +=
                        (double)service->tenants[k].registered.refused;
                s->registered_in_rings_bytes += (double)service->tenants[k].registered.ring_bytes;
                s->registered_huge_bytes += (double)service->tenants[k].registered.huge_bytes;
                for (unsigned i = 0; i < METRICS_GOT; i++)
                        histogram_merge(&s->get_duration[i], &t->got[i]);
                for (unsigned i = 0; i < METRICS_ACKS; i++)
                        histogram_merge(&s->put_duration[i], &t->put[i]);
                for (unsigned i = 0; i < METRICS_NOT_LENT; i++)
                        s->not_lent[i] += (double)t->not_lent[i + 1];
                s->lent_files += (double)t->lent_files;
        }
        store_get_loans(service->store, &loans);
        s->lent_chunks = (double)loans.lent;
        s->lent_bytes = (double)loans.lent_bytes;
        s->loans_ended[METRICS_LOAN_RIGHT] = (double)loans.returned;
        s->loans_ended[METRICS_LOAN_VOID] = (double)loans.returned_void;
        s->loans_ended[METRICS_LOAN_ABANDONED] = (double)loans.abandoned;

        status_collect_cache(service, &cache);
        s->busy = (double)cache.busy;
        s->hits[METRICS_TIER_MEMORY] = (double)cache.hits_memory;
        s->hits[METRICS_TIER_DISK] = (double)cache.hits_disk;
        s->hits[METRICS_TIER_REMOTE] = (double)cache.hits_remote;
        static_assert((int)METRICS_MISSES == (int)CACHE_MISS_REASONS, "a value each");
        for (unsigned i = 0; i < METRICS_MISSES; i++)
                s->misses[i] = (double)cache.misses[i];
        s->gets[GOT_MEMORY] = (double)cache.hits_memory;
        s->gets[GOT_DISK] = (double)cache.hits_disk;
        s->gets[GOT_LENT] = (double)loans.lent;
        s->gets[GOT_REMOTE] = (double)cache.hits_remote;
        s->gets[GOT_MISS] = (double)cache_misses(&cache);
        s->expired[METRICS_TIER_MEMORY] = (double)cache.expired;
        static_assert((int)SETS_MEMORY == METRICS_TIER_MEMORY &&
                              (int)SETS_DISK == METRICS_TIER_DISK,
                      "tiers have one order");
        for (unsigned i = 0; i < METRICS_TIERS; i++) {
                s->set_demoted[i] = (double)cache.sets.demoted[i];
                s->set_promoted[i] = (double)cache.sets.promoted[i];
                s->set_missed[i] = (double)cache.sets.missed[i];
        }
        s->puts = (double)cache.puts;
        s->put_bytes = (double)cache.put_bytes;
        for (unsigned i = 0; i < METRICS_ACKS; i++)
                s->put_acks[i] = (double)cache.puts_by_ack[i];
        s->put_exists = (double)cache.puts_existing;
        s->put_pool_only = (double)cache.pool_only;
        s->put_postponed = (double)cache.postponed;
        s->put_caught_up = (double)cache.caught_up;
        s->put_checks = (double)cache.put_checks;
        s->shared_fills = (double)cache.shared_fills;
        s->remote_fetching = (double)cache.fetching;
        s->remote_fetched = (double)cache.fetched;
        s->remote_fetched_bytes = (double)cache.fetched_bytes;
        s->remote_shared_gets = (double)cache.shared_fetches;
        s->prefetched_chunks = (double)cache.prefetched;
        s->prefetched_bytes = (double)cache.prefetched_bytes;
        s->prefetch_hits = (double)cache.prefetch_hits;
        s->prefetch_inflight_bytes = (double)cache.prefetch_inflight_bytes;
        static_assert((int)PREFETCH_OUTCOMES == (int)METRICS_PREFETCHES, "one value each");
        for (unsigned i = 0; i < METRICS_PREFETCHES; i++)
                s->return_prefetches[i] = (double)cache.returns_prefetched.outcomes[i];
        s->return_scheduled = (double)cache.returns_prefetched.chains;
        s->return_prefetched_chunks = (double)cache.returns_prefetched.chunks;
        s->return_prefetched_bytes = (double)cache.returns_prefetched.bytes;
        s->put_bytes_direct = (double)cache.put_bytes_direct;
        s->get_bytes_direct = (double)cache.get_bytes_direct;
        s->direct_fallbacks = (double)cache.direct_fallbacks;
        s->file_puts = (double)cache.file_puts;
        s->file_put_bytes = (double)cache.file_put_bytes;
        s->file_failures = (double)cache.file_failures;
        s->room_waits = (double)cache.waited;
        s->pool_unwritten_bytes = (double)cache.unwritten_bytes;
        s->unwritten_limit = (double)cache.unwritten_limit;
        s->direct_unwritten_bytes = (double)cache.direct_bytes;
        s->queued_writes = (double)cache.queued_writes;
        s->queued_reads = (double)cache.queued_reads;
        s->putting_users = (double)cache.putting_users;
        s->return_expected = (double)cache.returns.expected;
        s->return_outcomes[METRICS_RETURN_IN_TIME] = (double)cache.returns.in_time;
        s->return_outcomes[METRICS_RETURN_MISSED] = (double)cache.returns.missed;
        s->return_late = (double)cache.returns.late;
        s->return_evicted = (double)cache.returns.evicted;
}

static double limit_of(uint64_t limit)
{
        return limit == QUOTA_NO_LIMIT ? INFINITY : (double)limit;
}

static_assert((int)METRICS_NOT_LENT == WIRE_LEND_END - 1, "a reason each");
static_assert((int)METRICS_RESOURCES == (int)QUOTA_THINGS, "a resource is what is charged");

static void collect_resources(const struct quotas *tenants, struct metrics *s)
{
        uint64_t largest[QUOTA_THINGS];
        struct quota_usage all;
        struct quota_limits user;

        quotas_get_total(tenants, &all);
        quotas_get_user_limits(tenants, &user);
        quotas_get_largest_user(tenants, largest);
        for (unsigned i = 0; i < QUOTA_THINGS; i++) {
                s->resource_used[i] = (double)all.used[i];
                s->resource_limit[i] = limit_of(all.most[i]);
                s->resource_user_limit[i] = limit_of(user.most[i]);
                s->resource_largest_user[i] = (double)largest[i];
                s->resource_refused[i] = (double)all.refused[i];
        }
        s->users = (double)quotas_users(tenants);
}

static void collect_sessions(const struct status_sources *from, struct metrics *s)
{
        struct sessions_stats sessions;
        struct quota_usage usage;

        sessions_get_stats(from->sessions, &sessions);
        s->counted_sessions = (double)sessions.counted;
        s->uncounted_sessions = (double)sessions.uncounted;
        s->sessions = (double)sessions.open;
        s->deferred_requests = (double)sessions.deferred;
        for (unsigned i = 0; i < METRICS_LOOP; i++)
                histogram_merge(&s->loop_duration[i], &from->loop[i]);
        s->spin[METRICS_SPIN_LOOP] = (double)from->loop_spun_ns / 1e9;
        for (unsigned i = 0; i < METRICS_STAGES; i++)
                histogram_merge(&s->stage_duration[i], &from->service->stages.time[i]);
        s->sessions_accepted = (double)sessions.accepted;
        s->sessions_refused[METRICS_REFUSED_LIMIT] = (double)sessions.refused_limit;
        s->sessions_refused[METRICS_REFUSED_CREDENTIALS] = (double)sessions.refused_credentials;
        s->sessions_refused[METRICS_REFUSED_HANDSHAKE] = (double)sessions.refused_handshake;
        s->sessions_ended[METRICS_ENDED_CLOSED] = (double)sessions.ended_closed;
        s->sessions_ended[METRICS_ENDED_BAD_FRAME] = (double)sessions.ended_bad_frame;
        s->sessions_ended[METRICS_ENDED_TIMEOUT] = (double)sessions.ended_timeout;
        s->sessions_ended[METRICS_ENDED_SHUTDOWN] = (double)sessions.ended_shutdown;
        s->log_held_back =
                (double)(sessions.lines_held_back + from->service->audit_lines_held_back);

        quotas_get_total(from->service->quotas, &usage);
        s->leases = (double)usage.used[QUOTA_LEASES];
        s->leased_bytes = (double)usage.used[QUOTA_LEASED_BYTES];
        s->stagings = (double)usage.used[QUOTA_STAGINGS];
        s->staging_bytes = (double)usage.used[QUOTA_STAGING_BYTES];
        s->registered_bytes = (double)usage.used[QUOTA_REGISTERED_BYTES];
        s->descriptors_closing = (double)sessions.disposing;
        s->stagings_closing = (double)sessions.stagings_closing;
        s->client_descriptors[METRICS_FD_CONNECTION] = (double)sessions.open;
        s->client_descriptors[METRICS_FD_STAGING] = (double)usage.used[QUOTA_STAGINGS];
        s->client_descriptors[METRICS_FD_DEFERRED_REQUEST] = (double)usage.used[QUOTA_DEFERRED_FDS];
        s->client_descriptors[METRICS_FD_UNSENT_REPLY] = (double)sessions.unsent_fds;
        s->client_descriptors[METRICS_FD_CLOSING] = (double)sessions.disposing;
        s->replies_held = (double)sessions.replies_held;
}

static void note_belief(void *userdata, uint32_t source, float belief,
                        const struct announced_stats *stats)
{
        struct metrics *s = userdata;

        if (stats->made > 0)
                s->hint_belief = MIN(s->hint_belief, (double)belief);
}

static void collect_announced(struct metrics *s, const struct tenant *of)
{
        struct announced_stats stats;

        announced_get_stats(of->announced, &stats);
        s->hint_announcements[0] += (double)stats.came_true;
        s->hint_announcements[1] += (double)stats.early;
        s->hint_announcements[2] += (double)stats.late;
        s->hint_announcements[3] += (double)stats.unmeasured;
        s->hint_announcements[4] += (double)stats.disbelieved;
        s->hint_open += (double)stats.open;
        announced_each_source(of->announced, note_belief, s);
}

/* Collects the metrics of tenants: of `only`, or of all if it is NULL. */
static void collect_tenants(const struct service *service, const struct tenant *only,
                            struct metrics *s)
{
        s->hint_belief = 1;
        for (unsigned i = 0; i < service->n_tenants; i++) {
                const struct tenant *of = &service->tenants[i];
                struct store_tenant_usage stored;
                struct lookup_counts lookups;
                struct quota_usage usage;
                struct cache_stats cache;
                struct pool_stats pool;

                if (only && of != only)
                        continue;
                snprintf(s->tenant_names[i], sizeof(s->tenant_names[i]), "%s",
                         quotas_tenant_name(service->quotas, i));
                quotas_get_usage(service->quotas, i, &usage);
                pool_get_stats(of->pool, &pool);
                store_get_tenant(service->store, of->store_tenant, &stored);
                s->tenant_connections[i] = (double)usage.used[QUOTA_CONNECTIONS];
                s->tenant_connections_limit[i] = limit_of(usage.most[QUOTA_CONNECTIONS]);
                s->tenant_leases[i] = (double)usage.used[QUOTA_LEASES];
                s->tenant_leases_limit[i] = limit_of(usage.most[QUOTA_LEASES]);
                s->tenant_leased_bytes[i] = (double)usage.used[QUOTA_LEASED_BYTES];
                s->tenant_leased_bytes_limit[i] = limit_of(usage.most[QUOTA_LEASED_BYTES]);
                s->tenant_staging_bytes[i] = (double)usage.used[QUOTA_STAGING_BYTES];
                s->tenant_staging_bytes_limit[i] = limit_of(usage.most[QUOTA_STAGING_BYTES]);
                s->tenant_registered_bytes[i] = (double)usage.used[QUOTA_REGISTERED_BYTES];
                s->tenant_registered_bytes_limit[i] = limit_of(usage.most[QUOTA_REGISTERED_BYTES]);
                s->tenant_keys[i] = (double)usage.used[QUOTA_KEYS];
                s->tenant_keys_limit[i] = limit_of(usage.most[QUOTA_KEYS]);
                s->tenant_requests[i] = (double)usage.used[QUOTA_REQUESTS];
                s->tenant_request_bytes[i] = (double)usage.used[QUOTA_REQUEST_BYTES];
                s->tenant_unread_fds[i] = (double)usage.used[QUOTA_UNREAD_FDS];
                s->chains_split += (double)of->traffic.chains_split;
                for (unsigned h = 0; h < METRICS_HINTS; h++)
                        s->hints[h] += (double)of->traffic.hints[h];
                collect_announced(s, of);
                s->tenant_stored_bytes[i] = (double)stored.bytes;
                s->tenant_stored_bytes_limit[i] = limit_of(stored.limit);
                s->tenant_pinned_bytes[i] = (double)stored.retained;
                s->tenant_pinned_bytes_limit[i] = (double)of->pinned_limit;
                s->tenant_pool_bytes_limit[i] = (double)pool.bytes;
                s->tenant_pool_bytes[i] = (double)pool.used_bytes;
                lookups = status_lookups(of->lookup_counters.all);
                s->tenant_lookup_keys[i] = (double)(lookups.found + lookups.missing);
                s->tenant_lookup_found_keys[i] = (double)lookups.found;
                cache_get_stats(of->cache, &cache);
                s->tenant_get_found_keys[i] = (double)cache_hits(&cache);
                s->tenant_get_keys[i] = s->tenant_get_found_keys[i] + (double)cache_misses(&cache);
                s->tenant_get_bytes[i] =
                        (double)(of->traffic.get_bytes_map + of->traffic.get_bytes_into);
                s->tenant_put_bytes[i] = (double)cache.put_bytes;
                for (unsigned k = 0; k < QUOTA_THINGS; k++)
                        s->tenant_refused[i] += (double)usage.refused[k];
        }
}

static void collect_evict(const struct evict_stats *of, unsigned tier, struct metrics *s)
{
        s->evict_ghosts[tier] = (double)of->ghosts;
        s->evict_ghosts_max[tier] = (double)of->ghosts_max;
        s->evict_ghost_hits[tier] = (double)of->ghost_hits;
        s->evict_yielded[tier] = (double)of->yielded;
        s->set_incomplete[tier] = (double)of->demoted;
        s->set_evicted[tier] = (double)of->demoted_victims;
        s->evict_chunk_bytes[tier] = (double)of->item_bytes;
        s->evict_ghost_bytes[tier] = (double)of->ghost_bytes;
}

static void collect_pool(const struct service *service, struct metrics *s)
{
        struct pool_stats p;

        status_collect_pools(service, &p);
        s->pool_bytes = (double)p.bytes;
        s->pool_populated_bytes = (double)p.populated_bytes;
        s->pool_huge_bytes = (double)p.huge_bytes;
        s->pool_used_bytes = (double)p.used_bytes;
        s->pool_live_bytes = (double)p.payload_bytes;
        s->pool_leased_bytes = (double)p.leased_bytes;
        s->pool_leased_slabs = (double)p.leased_slabs;
        s->pool_private_slabs = (double)p.private_slabs;
        s->pool_moved_chunks = (double)p.moved_chunks;
        s->pool_chunks = (double)p.chunks;
        s->floor_spared = (double)p.spared;
        s->prefetch_wasted = (double)p.prefetched_wasted;
        s->prefetch_unused_bytes = (double)p.prefetched_unused_bytes;
        s->evicted_from_pool = (double)p.evictions;
        collect_evict(&p.evict, METRICS_TIER_MEMORY, s);
        for (unsigned i = 0; i < service->n_tenants; i++)
                histogram_merge(&s->evicted_ages[METRICS_TIER_MEMORY],
                                pool_evicted_ages(service->tenants[i].pool));
}

/* Sums up, over all pools, the bytes that each entry of memory.floors keeps for its namespaces, and
 * the bytes that these use. A small pool keeps less than the configured size (pool_set_floors()).
 */
static void collect_floors(const struct status_sources *from, struct metrics *s)
{
        const struct config_strings *floors = &from->config->memory.floors;
        uint64_t used, floor, bytes;
        size_t prefix;

        for (unsigned i = 0; i < floors->n; i++) {
                if (!config_split_floor(floors->items[i], &prefix, &bytes))
                        continue;
                snprintf(s->floor_names[i], sizeof(s->floor_names[i]), "%.*s", (int)prefix,
                         floors->items[i]);
                for (unsigned k = 0; k < from->service->n_tenants; k++) {
                        pool_get_floor(from->service->tenants[k].pool, i, &used, &floor);
                        s->floor_used_bytes[i] += (double)used;
                        s->floor_bytes[i] += (double)floor;
                }
        }
}

static void collect_pool_indexes(const struct service *service, struct metrics *s)
{
        for (unsigned i = 0; i < service->n_tenants; i++) {
                const struct tenant *t = &service->tenants[i];
                struct pool_client *client = NULL;
                struct pool_index_stats stats;

                s->pool_index_held_chunks += pool_held(t->pool);
                s->pool_index_hits += (double)t->traffic.own_hits;
                s->pool_index_untold += (double)t->traffic.own_hits_untold;
                if (!t->pool_index)
                        continue;
                pool_index_get_stats(t->pool_index, &stats);
                s->pool_index_bytes += (double)stats.bytes;
                s->pool_index_entries += (double)stats.entries;
                s->pool_index_unplaced += (double)stats.unplaced;
                s->pool_index_clients += (double)stats.clients;
                s->pool_index_revoked += (double)stats.revoked;
                while ((client = pool_index_next_client(t->pool_index, client)))
                        s->pool_index_holds += pool_index_holds(client);
        }
}

static void collect_lookups(const struct lookups *lookups, struct metrics *s)
{
        struct lookups_stats l;

        if (!lookups)
                return;
        lookups_get_stats(lookups, &l);
        s->lookup_tables = (double)l.tables;
        s->lookup_building = (double)l.building;
        s->lookup_entries = (double)l.entries;
        s->lookup_unplaced = (double)l.unplaced;
        s->lookup_bytes = (double)l.bytes;
        s->lookup_buckets = (double)l.buckets;
        s->lookup_overflowed = (double)l.overflowed;
        s->lookup_builds = (double)l.builds;
        s->lookup_failed_builds = (double)l.failed;
}

static void collect_events(const struct events *events, struct metrics *s)
{
        struct events_stats e;

        if (!events)
                return;
        events_get_stats(events, &e);
        s->events_ring_bytes = (double)e.ring_bytes;
        s->events_waiting = (double)e.waiting;
        s->events_written = (double)e.written;
        s->events_overwritten = (double)e.overwritten;
        s->events_sent = (double)e.sent;
        s->events_gaps = (double)e.gaps;
        s->events_resets = (double)e.resets;
        s->events_snapshot_entries = (double)e.snapshot_entries;
}

static void collect_admission(const struct admission *admission, struct metrics *s)
{
        struct admission_stats a;

        admission_get_stats(admission, &a);
        s->write_budget = (double)a.budget;
        s->write_budget_available = (double)a.available;
        s->write_budget_left = a.budget > a.written_day ? (double)(a.budget - a.written_day) : 0;
        s->written_day = (double)a.written_day;
        s->admission_writes[METRICS_ADMITTED_FIRST] = (double)a.admitted_first;
        s->admission_writes[METRICS_ADMITTED_AGAIN] = (double)a.admitted_again;
        s->admission_writes[METRICS_NOT_ADMITTED_FIRST] = (double)a.refused_first;
        s->admission_writes[METRICS_NOT_ADMITTED_DRY] = (double)a.refused_dry;
        s->admission_charged_bytes = (double)a.charged_bytes;
        s->admission_refused_bytes = (double)a.refused_bytes;
        s->admission_probability = a.probability;
        s->admission_remembered = (double)a.remembered;
}

static void collect_store(const struct store *store, struct metrics *s)
{
        struct store_stats st;

        store_get_stats(store, &st);
        s->store_limit_bytes = (double)st.limit;
        s->store_used_bytes = (double)st.used_bytes;
        s->store_reserved_bytes = (double)st.used_bytes;
        s->store_payload_bytes = (double)st.payload_bytes;
        s->store_live_bytes = (double)st.payload_bytes;
        s->store_chunks = (double)st.chunks;
        s->store_entries_max = (double)st.entries_max;
        s->store_segments = (double)st.segments;
        static_assert((int)METRICS_MEMORY_PARTS == (int)STORE_MEMORY_PARTS, "a value each");
        for (unsigned i = 0; i < STORE_MEMORY_PARTS; i++) {
                s->store_memory[i] = (double)st.memory[i];
                s->index_bytes += (double)st.memory[i];
        }
        s->store_bypassed = st.bypassed;
        s->evictions = (double)st.evictions;
        s->pinned_evictions = (double)st.retained_evictions;
        s->expired[METRICS_TIER_DISK] = (double)st.expired;
        collect_evict(&st.evict, METRICS_TIER_DISK, s);
        store_get_evicted_ages(store, &s->evicted_ages[METRICS_TIER_DISK]);
        s->evicted_bytes = (double)st.evicted_bytes;
        s->drops = (double)st.drops;
        s->purges = (double)st.purges;
        s->slab_moves = (double)st.slab_moves;
        s->handovers = (double)st.handovers;
        s->handover_replacements = (double)st.handover_replacements;
        s->handover_failures = (double)st.handover_failures;
        s->store_detached_files = (double)st.detached_files;
        s->store_files_given_up = (double)st.files_given_up;
        s->store_written_bytes[METRICS_WRITTEN_PAYLOAD] = (double)st.payload_bytes_written;
        s->store_written_bytes[METRICS_WRITTEN_TABLE] = (double)st.table_bytes_written;
        s->store_written_bytes[METRICS_WRITTEN_PREWRITE] = (double)st.prewrite_bytes_written;
        s->store_writes[METRICS_WRITTEN_PAYLOAD] = (double)st.payload_writes;
        s->store_writes[METRICS_WRITTEN_TABLE] = (double)st.table_writes;
        s->chunk_reads = (double)st.reads;
        s->chunk_read_bytes = (double)st.bytes_read;
        s->chunk_syncs = (double)st.syncs;
        s->crc_failures = (double)st.crc_failures;
        s->crc_rereads = (double)st.crc_rereads;
        s->scrub_bytes = (double)st.scrub_bytes;
        s->scrub_chunks = (double)st.scrub_chunks;
        s->scrub_failures = (double)st.scrub_failures;
        s->scrub_passes = (double)st.scrub_passes;
        s->last_scrub_pass = (double)st.scrub_last_pass_ms / 1e3;
        s->pass_progress =
                st.scrub_segments ? (double)st.scrub_segments_done / (double)st.scrub_segments : 0;
        s->store_errors[METRICS_ERROR_READ] = (double)st.read_errors;
        s->store_errors[METRICS_ERROR_WRITE] = (double)st.write_errors;
        s->store_errors[METRICS_ERROR_SYNC] = (double)st.sync_errors;
        s->table_pages_written = (double)st.table_pages_written;
        s->table_entries_written = (double)st.table_entries_written;
        s->table_entries_carried = (double)st.table_entries_carried;
        s->store_lost_chunks = (double)st.lost_chunks;
        s->recovered_chunks = (double)st.recovered_chunks;
        s->recovery_skipped_pages = (double)st.skipped_pages;
        s->recovery_seconds = (double)st.recover_ms / 1e3;
}

static void collect_recording(const struct service *service, struct metrics *s)
{
        s->recording = service->recorder != NULL;
        s->recordings = (double)service->recorded.recordings;
        s->recorded_keys = (double)service->recorded.keys;
        s->recorded_keys_lost = (double)service->recorded.lost;
}

static void collect_learned(const struct learned *learned, struct metrics *s)
{
        struct learned_stats l;

        if (!learned)
                return;
        learned_get_stats(learned, &l);
        s->learned_saves = (double)l.saves;
        s->learned_save_errors = (double)l.save_errors;
        s->learned_saved = (double)l.saved_ms / 1e3;
        s->learned_file_bytes = (double)l.file_bytes;
        s->learned_restored = (double)l.restored_chunks;
}

static void collect_kept(const struct status_sources *from, struct metrics *s)
{
        struct keep_stats k;

        if (!from->keep)
                return;
        keep_get_stats(from->keep, &k);
        s->kept_ready = *from->keep_ready;
        s->kept_chunks[0] = (double)k.verified;
        static_assert(METRICS_KEPT == KEEP_REFUSALS + 1, "a value each");
        for (unsigned i = 0; i < KEEP_REFUSALS; i++)
                s->kept_chunks[i + 1] = (double)k.refused[i];
        s->kept_bytes = (double)k.verified_bytes;
        s->kept_forbidden = (double)k.forbidden_pools;
        s->kept_pending = (double)k.pending;
        s->kept_clients = (double)k.holders;
        s->kept_leases = (double)k.held_slots;
}

static void collect_process(const struct status_sources *from, struct metrics *s)
{
        struct process_stats p;

        process_get_stats(&p);
        s->process_cpu = (double)p.cpu_ns / 1e9;
        s->process_start_time = (double)from->started_unix_ms / 1e3;
        s->process_resident = (double)p.resident_bytes;
        s->process_virtual = (double)p.virtual_bytes;
        s->process_open_fds = (double)p.open_fds;
        s->process_max_fds = limit_of(p.max_fds);
        s->open_descriptors = (double)p.open_fds;
}

void status_collect(const struct status_sources *from, const struct tenant *only,
                    struct metrics *ret)
{
        static struct status_health health; /* too large for the stack */
        struct store_stats store;
        struct kio_info io;
        char number[16];

        memset(ret, 0, sizeof(*ret));
        sessions_count_lookups(from->sessions);
        store_get_stats(from->service->store, &store);
        kio_get_info(from->service->io, &io);
        snprintf(number, sizeof(number), "%d", WIRE_VERSION_MAX);
        metrics_info_add(ret->build, sizeof(ret->build), "version", KVCACHE_BUILD_VERSION);
        metrics_info_add(ret->build, sizeof(ret->build), "protocol", number);
        metrics_info_add(ret->io, sizeof(ret->io), "backend", io.backend);
        metrics_info_add(ret->io, sizeof(ret->io), "ring_flags", io.ring_flags);
        metrics_info_add(ret->io, sizeof(ret->io), "direct", store.direct ? "yes" : "no");
        metrics_info_add(ret->io, sizeof(ret->io), "registered", io.registered ? "yes" : "no");

        ret->start_time = (double)from->started_unix_ms / 1e3;
        ret->uptime = (double)(clock_mono_ns() - from->started_ns) / 1e9;
        status_get_health(from, &health);
        ret->ready = health.ready;
        for (unsigned i = 0; i < health.n; i++)
                ret->degraded[health.degraded[i].reason]++;
        ret->config_reloads = (double)from->config_reloads;
        ret->reload_pending = cJSON_GetArraySize(from->reload_pending);
        ret->config_reloads_refused = (double)from->config_reloads_refused;
        collect_process(from, ret);
        collect_traffic(from->service, ret);
        collect_sessions(from, ret);
        if (!only ||
            from->service->n_tenants <= 1) { /* the totals reveal the activity of other tenants */
                collect_resources(from->service->quotas, ret);
                collect_floors(from, ret);
        }
        collect_tenants(from->service, only, ret);
        collect_pool(from->service, ret);
        collect_pool_indexes(from->service, ret);
        collect_lookups(from->service->lookups, ret);
        collect_events(from->service->events, ret);
        collect_store(from->service->store, ret);
        collect_admission(from->service->admission, ret);
        status_collect_io(from, ret);
        collect_recording(from->service, ret);
        collect_learned(from->learned, ret);
        collect_kept(from, ret);
        if (from->http) {
                struct http_stats http;

                http_get_stats(from->http, &http);
                ret->http_connections = (double)http.connections;
                ret->http_open = (double)http.open;
                ret->http_refused = (double)http.connections_refused;
                ret->http_deadlines = (double)http.deadlines;
                ret->http_requests = (double)http.requests;
                ret->http_requests_refused[METRICS_HTTP_401] = (double)http.unauthorized;
                ret->http_requests_refused[METRICS_HTTP_421] = (double)http.misdirected;
                ret->http_requests_refused[METRICS_HTTP_429] = (double)http.over_rate;
        }
}

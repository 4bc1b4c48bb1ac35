/* SPDX-License-Identifier: Apache-2.0 */
/* The status as JSON, for http and request/, and the log lines of startup. Loop thread; owns
 * nothing. Numbers that are metrics come from the snapshot of collect.c. */
#include "report/status.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "units.h"
#include "build-config.h"
#include "checked.h"
#include "config/config.h"
#include "remote/remote.h"
#include "keep/keep.h"
#include "evict/admission.h"
#include "report/stages-print.h"
#include "report/sums.h"
#include "report/http.h"
#include "report/protobuf.h"
#include "report/collect.h"
#include "report/health.h"
#include "session/session.h"
#include "report/namespace-view.h"
#include "report/namespaces.h"

enum { DAY_SECONDS = 24 * 3600, LIFE_MIN_SECONDS = 60 };

/* --- the status as JSON --- */

/* Adds a number, unless the object has it. KEY_limit turns KEY into {"used", "limit"}; an infinite
 * limit is omitted. */
static void add_number(void *userdata, const char *key, double value)
{
        size_t length = strlen(key), base = length - MIN(length, strlen("_limit"));
        cJSON *o = userdata, *used, *pair;
        char name[64];

        snprintf(name, sizeof(name), "%.*s", (int)base, key);
        used = strcmp(key + base, "_limit") == 0 ? cJSON_GetObjectItem(o, name) : NULL;
        if (used) {
                pair = cJSON_CreateObject();
                cJSON_AddNumberToObject(pair, "used", used->valuedouble);
                if (isfinite(value))
                        cJSON_AddNumberToObject(pair, "limit", value);
                cJSON_ReplaceItemInObject(o, name, pair);
        } else if (isfinite(value) && !cJSON_GetObjectItem(o, key)) {
                cJSON_AddNumberToObject(o, key, value);
        }
}

/* Adds the name of the host, which in a container is that of the container. */
static void add_host(cJSON *root)
{
        struct utsname host;

        if (uname(&host) == 0)
                cJSON_AddStringToObject(root, "host", host.nodename);
}

static void add_tenants(cJSON *root, const struct metrics *s)
{
        cJSON *list = cJSON_AddArrayToObject(root, "tenants");

        for (unsigned i = 0; i < METRICS_TENANTS; i++) {
                cJSON *o;

                if (!s->tenant_names[i][0])
                        continue;
                o = cJSON_CreateObject();
                cJSON_AddStringToObject(o, "name", s->tenant_names[i]);
                metrics_walk(s, "tenant", i, add_number, o);
                cJSON_AddItemToArray(list, o);
        }
}

/* Adds the usage of each resource by clients, and its limits. */
static void add_resources(cJSON *root, const struct metrics *s)
{
        cJSON *list = cJSON_AddObjectToObject(root, "resources");

        for (unsigned i = 0; i < METRICS_RESOURCES; i++)
                metrics_walk(s, "resource", i, add_number,
                             cJSON_AddObjectToObject(list, metrics_resource_name(i)));
}

static void add_io(cJSON *root, const struct kio *io, const struct store_stats *store)
{
        cJSON *o = cJSON_AddObjectToObject(root, "io");
        struct kio_info info;

        kio_get_info(io, &info);
        cJSON_AddStringToObject(o, "backend", info.backend);
        cJSON_AddStringToObject(o, "reason", info.reason);
        cJSON_AddStringToObject(o, "ring_flags", info.ring_flags);
        cJSON_AddBoolToObject(o, "registered", info.registered);
        cJSON_AddStringToObject(o, "registered_reason", info.registered_reason);
        cJSON_AddNumberToObject(o, "workers", info.workers);
        cJSON_AddNumberToObject(o, "depth", info.depth);
        cJSON_AddBoolToObject(o, "direct", store->direct);
        cJSON_AddStringToObject(o, "direct_reason", store->direct_reason);
}

/* Adds quantiles of how long evicted chunks had been unused, if any were evicted. */
static void add_ages(cJSON *tier, const struct histogram *ages)
{
        cJSON *o;

        if (ages->count == 0)
                return;
        o = cJSON_AddObjectToObject(tier, "evicted_age_seconds");
        cJSON_AddNumberToObject(o, "p10", (double)histogram_quantile(ages, 0.1) / 1e9);
        cJSON_AddNumberToObject(o, "p50", (double)histogram_quantile(ages, 0.5) / 1e9);
        cJSON_AddNumberToObject(o, "p90", (double)histogram_quantile(ages, 0.9) / 1e9);
}

/* Adds the number of chains that are expected back, the outcomes of such predictions, and the
 * numbers of prefetches. */
static void add_returns(cJSON *eviction, const struct metrics *s)
{
        cJSON *o = cJSON_AddObjectToObject(eviction, "returns");

        cJSON_AddNumberToObject(o, "expected", s->return_expected);
        cJSON_AddNumberToObject(o, "in_time", s->return_outcomes[METRICS_RETURN_IN_TIME]);
        cJSON_AddNumberToObject(o, "missed", s->return_outcomes[METRICS_RETURN_MISSED]);
        cJSON_AddNumberToObject(o, "late", s->return_late);
        cJSON_AddNumberToObject(o, "evicted", s->return_evicted);
        cJSON_AddNumberToObject(o, "prefetched", s->prefetched_chunks);
        cJSON_AddNumberToObject(o, "prefetch_hits", s->prefetch_hits);
        cJSON_AddNumberToObject(o, "prefetch_wasted", s->prefetch_wasted);
        cJSON_AddNumberToObject(o, "prefetch_unused_bytes", s->prefetch_unused_bytes);
}

/* Adds the number of announced returns by outcome. */
static void add_announced(cJSON *eviction, const struct metrics *s)
{
        static const char *const outcomes[METRICS_ANNOUNCED] = { "true", "early", "late",
                                                                 "unmeasured", "disbelieved" };
        cJSON *o = cJSON_AddObjectToObject(eviction, "announced_returns");

        cJSON_AddNumberToObject(o, "open", s->hint_open);
        for (unsigned i = 0; i < METRICS_ANNOUNCED; i++)
                cJSON_AddNumberToObject(o, outcomes[i], s->hint_announcements[i]);
        cJSON_AddNumberToObject(o, "least_belief", s->hint_belief);
}

/* Adds the numbers of prefetches ahead of announced returns. */
static void add_prefetched(cJSON *eviction, const struct metrics *s)
{
        static const char *const outcomes[METRICS_PREFETCHES] = { "read",       "in_memory",
                                                                  "ended",      "disbelieved",
                                                                  "worth_less", "late",
                                                                  "refused",    "dropped" };
        cJSON *o = cJSON_AddObjectToObject(eviction, "prefetched_returns");

        cJSON_AddNumberToObject(o, "scheduled", s->return_scheduled);
        for (unsigned i = 0; i < METRICS_PREFETCHES; i++)
                cJSON_AddNumberToObject(o, outcomes[i], s->return_prefetches[i]);
        cJSON_AddNumberToObject(o, "chunks", s->return_prefetched_chunks);
        cJSON_AddNumberToObject(o, "bytes", s->return_prefetched_bytes);
}

/* Adds the eviction policy, its memory and its statistics by tier. */
static void add_eviction(cJSON *root, const char *policy, const struct metrics *s)
{
        static const char *const tiers[METRICS_TIERS] = { "memory", "disk" };
        cJSON *o = cJSON_AddObjectToObject(root, "eviction");

        cJSON_AddStringToObject(o, "policy", policy);
        cJSON_AddNumberToObject(o, "chunk_bytes", s->evict_chunk_bytes[METRICS_TIER_MEMORY]);
        cJSON_AddNumberToObject(o, "ghost_bytes", s->evict_ghost_bytes[METRICS_TIER_MEMORY]);
        for (unsigned i = 0; i < METRICS_TIERS; i++) {
                cJSON *tier = cJSON_AddObjectToObject(o, tiers[i]);

                cJSON_AddNumberToObject(tier, "ghosts", s->evict_ghosts[i]);
                cJSON_AddNumberToObject(tier, "ghosts_max", s->evict_ghosts_max[i]);
                cJSON_AddNumberToObject(tier, "ghost_hits", s->evict_ghost_hits[i]);
                cJSON_AddNumberToObject(tier, "yielded", s->evict_yielded[i]);
                add_ages(tier, &s->evicted_ages[i]);
        }
        add_returns(o, s);
        add_announced(o, s);
        add_prefetched(o, s);
}

static void add_pool(cJSON *root, const struct service *service, const struct metrics *s)
{
        cJSON *o = cJSON_AddObjectToObject(root, "pool");

        cJSON_AddBoolToObject(o, "index", service->pool_index);
        metrics_walk(s, "pool", 0, add_number, o);
        cJSON_AddNumberToObject(o, "slab_bytes", (double)pool_slab_bytes(service->tenants[0].pool));
        cJSON_AddStringToObject(o, "huge_pages",
                                !pool_uses_huge_pages(service->tenants[0].pool) ? "off"
                                : s->pool_huge_bytes == s->pool_populated_bytes ? "all"
                                : s->pool_huge_bytes > 0                        ? "some"
                                                                                : "none");
}

/* Adds the outcome of keeping the previous daemon's memory, and whether this daemon's memory will
 * be kept. */
static void add_kept(cJSON *root, const struct status_sources *from)
{
        cJSON *o = cJSON_AddObjectToObject(root, "kept_memory");
        struct keep_stats k;

        keep_get_stats(from->keep, &k);
        cJSON_AddBoolToObject(o, "ready", *from->keep_ready);
        cJSON_AddStringToObject(o, "reason", *from->keep_ready ? "" : from->keep_why_not);
        cJSON_AddNumberToObject(o, "chunks", (double)k.mapped);
        cJSON_AddNumberToObject(o, "verified", (double)k.verified);
        cJSON_AddNumberToObject(o, "verified_bytes", (double)k.verified_bytes);
        cJSON_AddNumberToObject(o, "pending", (double)k.pending);
        cJSON_AddNumberToObject(o, "damaged", (double)k.refused[KEEP_DAMAGED]);
        cJSON_AddNumberToObject(o, "forbidden_pools", (double)k.forbidden_pools);
        cJSON_AddNumberToObject(o, "verify_seconds", (double)k.verify_ns / 1e9);
        cJSON_AddNumberToObject(o, "clients", (double)k.holders);
        cJSON_AddNumberToObject(o, "leases", (double)k.held_slots);
}

static void add_lookups(cJSON *root, const struct status_sources *from, const struct metrics *s)
{
        cJSON *o = cJSON_AddObjectToObject(root, "lookup_index");

        cJSON_AddBoolToObject(o, "enabled", from->service->lookups != NULL);
        metrics_walk(s, "lookup", 0, add_number, o);
}

/* Adds the memory that the store's chunks take, by part. */
static void add_entries(cJSON *root, const struct metrics *s)
{
        static const char *const parts[] = { "records_bytes", "hash_table_bytes", "slots_bytes",
                                             "table_bytes",   "eviction_bytes",   "forks_bytes",
                                             "ghosts_bytes" };
        cJSON *o = cJSON_AddObjectToObject(root, "entries");

        static_assert(ARRAY_SIZE(parts) == METRICS_MEMORY_PARTS, "a name each");
        cJSON_AddNumberToObject(o, "chunks", s->store_chunks);
        for (unsigned i = 0; i < METRICS_MEMORY_PARTS; i++)
                cJSON_AddNumberToObject(o, parts[i], s->store_memory[i]);
        cJSON_AddNumberToObject(o, "lookup_index_bytes", s->lookup_bytes);
}

static void add_events(cJSON *root, const struct status_sources *from, const struct metrics *s)
{
        cJSON *o = cJSON_AddObjectToObject(root, "events");

        cJSON_AddBoolToObject(o, "enabled", from->service->events != NULL);
        metrics_walk(s, "events", 0, add_number, o);
}

/* Adds the volumes under their earlier name "paths", which existing programs read. */
static void add_paths(cJSON *o, const struct status_sources *from)
{
        cJSON *list = cJSON_AddArrayToObject(o, "paths");
        struct store_volume_stats p;

        for (unsigned i = 0; store_get_volume_stats(from->service->store, i, &p); i++) {
                cJSON *one = cJSON_CreateObject();

                cJSON_AddStringToObject(one, "path", p.path);
                cJSON_AddStringToObject(one, "state", status_volume_state(&p));
                cJSON_AddItemToArray(list, one);
        }
}

static void add_volumes(cJSON *o, const struct status_sources *from)
{
        cJSON *list = cJSON_AddArrayToObject(o, "volumes");
        struct store_volume_stats p;

        for (unsigned i = 0; store_get_volume_stats(from->service->store, i, &p); i++) {
                cJSON *one = cJSON_CreateObject(), *errors;

                cJSON_AddStringToObject(one, "volume", p.path);
                cJSON_AddStringToObject(one, "state", status_volume_state(&p));
                cJSON_AddStringToObject(one, "reason", p.reason);
                cJSON_AddNumberToObject(one, "since_unix_ms",
                                        (double)(p.since_ms ?: from->started_unix_ms));
                cJSON_AddNumberToObject(one, "bypasses", (double)p.bypasses);
                cJSON_AddNumberToObject(one, "limit_bytes", (double)p.stats.limit);
                cJSON_AddNumberToObject(one, "used_bytes", (double)p.stats.used_bytes);
                cJSON_AddNumberToObject(one, "reserved_bytes", (double)p.stats.used_bytes);
                cJSON_AddNumberToObject(one, "payload_bytes", (double)p.stats.payload_bytes);
                cJSON_AddNumberToObject(one, "live_bytes", (double)p.stats.payload_bytes);
                cJSON_AddNumberToObject(one, "chunks", (double)p.stats.chunks);
                cJSON_AddNumberToObject(one, "segments", (double)p.stats.segments);
                cJSON_AddStringToObject(one, "file_system", p.file_system);
                cJSON_AddStringToObject(one, "file_system_warning", p.file_system_warning);
                cJSON_AddStringToObject(one, "file_system_advice", p.file_system_advice);
                cJSON_AddBoolToObject(one, "full", p.full);
                cJSON_AddNumberToObject(one, "full_refusals", (double)p.full_refusals);
                errors = cJSON_AddObjectToObject(one, "errors");
                cJSON_AddNumberToObject(errors, "read", (double)p.stats.read_errors);
                cJSON_AddNumberToObject(errors, "write", (double)p.stats.write_errors);
                cJSON_AddNumberToObject(errors, "sync", (double)p.stats.sync_errors);
                cJSON_AddNumberToObject(errors, "checksum", (double)p.stats.crc_failures);
                cJSON_AddNumberToObject(one, "lost_chunks", (double)p.stats.lost_chunks);
                cJSON_AddNumberToObject(one, "lost_files", (double)p.stats.lost_files);
                cJSON_AddBoolToObject(one, "direct", p.stats.direct);
                cJSON_AddNumberToObject(one, "pending", (double)p.pending);
                cJSON_AddNumberToObject(one, "oldest_operation_seconds", (double)p.oldest_ns / 1e9);
                cJSON_AddItemToArray(list, one);
        }
}

static void add_store(cJSON *root, const struct status_sources *from, const struct store_stats *st,
                      const struct metrics *s)
{
        cJSON *o = cJSON_AddObjectToObject(root, "store");

        cJSON_AddNumberToObject(o, "slots", (double)st->slots);
        cJSON_AddNumberToObject(o, "segments_max", (double)st->segments_max);
        cJSON_AddNumberToObject(o, "segment_bytes", (double)st->segment_bytes);
        cJSON_AddNumberToObject(o, "recovered_chunks", (double)st->recovered_chunks);
        cJSON_AddBoolToObject(o, "clean_start", st->clean_start);
        cJSON_AddBoolToObject(o, "bypassed", st->bypassed);
        metrics_walk(s, "store", 0, add_number, o);
        add_volumes(o, from);
        add_paths(o, from);
}

/* Adds the bytes written to disk, the write budget, and the expected life of the drives. */
static void add_writes(cJSON *root, const struct status_sources *from)
{
        cJSON *o = cJSON_AddObjectToObject(root, "writes");
        double endurance = (double)from->config->store.rated_endurance;
        struct admission_stats a;

        admission_get_stats(from->service->admission, &a);
        cJSON_AddNumberToObject(o, "budget_bytes", (double)a.budget);
        cJSON_AddNumberToObject(o, "day_bytes", (double)a.written_day);
        cJSON_AddNumberToObject(o, "day_seconds", (double)a.seconds_day);
        if (a.budget > 0) {
                cJSON_AddNumberToObject(o, "available_bytes", (double)a.available);
                cJSON_AddNumberToObject(o, "probability", a.probability);
        }
        cJSON_AddNumberToObject(o, "admitted_first", (double)a.admitted_first);
        cJSON_AddNumberToObject(o, "admitted_again", (double)a.admitted_again);
        cJSON_AddNumberToObject(o, "refused_first", (double)a.refused_first);
        cJSON_AddNumberToObject(o, "refused_dry", (double)a.refused_dry);
        cJSON_AddNumberToObject(o, "refused_bytes", (double)a.refused_bytes);
        if (endurance == 0)
                return;
        cJSON_AddNumberToObject(o, "rated_endurance_bytes", endurance);
        if (a.written_day > 0 && a.seconds_day >= LIFE_MIN_SECONDS)
                cJSON_AddNumberToObject(o, "life_days",
                                        endurance / (double)a.written_day * (double)a.seconds_day /
                                                DAY_SECONDS);
        if (a.budget > 0)
                cJSON_AddNumberToObject(o, "life_at_budget_days", endurance / (double)a.budget);
}

static void add_scrub(cJSON *root, const struct config *config, const struct store_stats *st,
                      const struct metrics *s)
{
        cJSON *o = cJSON_AddObjectToObject(cJSON_GetObjectItem(root, "store"), "scrub");

        cJSON_AddNumberToObject(o, "rate_bytes", (double)config->store.scrub_rate);
        cJSON_AddNumberToObject(o, "interval_seconds",
                                (double)config->store.scrub_interval_ms / 1e3);
        cJSON_AddBoolToObject(o, "running", st->scrub_segments > 0);
        cJSON_AddNumberToObject(o, "segments_done", (double)st->scrub_segments_done);
        cJSON_AddNumberToObject(o, "segments", (double)st->scrub_segments);
        cJSON_AddNumberToObject(o, "last_pass_ms", (double)st->scrub_last_pass_ms);
        metrics_walk(s, "scrub", 0, add_number, o);
}

/* Adds the state and the statistics of the shared tier. */
static void add_remote(cJSON *root, const struct status_sources *from, const struct metrics *s)
{
        static const char *const breakers[] = {
                [REMOTE_CLOSED] = "closed", [REMOTE_OPEN] = "open", [REMOTE_HALF_OPEN] = "half open"
        };
        cJSON *o = cJSON_AddObjectToObject(root, "remote");
        const struct config *c = from->config;
        struct remote_status r;
        double rejected = 0, errors = 0, dropped = 0;

        cJSON_AddStringToObject(o, "backend", c->remote.backend);
        if (!from->service->remote)
                return;
        remote_get_status(from->service->remote, &r);
        cJSON_AddStringToObject(o, "breaker", breakers[r.breaker]);
        cJSON_AddNumberToObject(o, "since_seconds",
                                r.since_ns ? (double)(clock_mono_ns() - r.since_ns) / 1e9 : 0);
        cJSON_AddStringToObject(o, "reason", r.reason);
        cJSON_AddBoolToObject(o, "full", r.full);
        cJSON_AddBoolToObject(o, "sweeping", r.sweeping);
        cJSON_AddNumberToObject(o, "read_rate_bytes", (double)r.rate_bytes);
        cJSON_AddNumberToObject(o, "read_latency_seconds", (double)r.latency_ns / 1e9);
        cJSON_AddStringToObject(o, "write", c->remote.write);
        cJSON_AddNumberToObject(o, "write_rate_bytes", (double)c->remote.write_rate);
        cJSON_AddNumberToObject(o, "hits", s->remote_gets[METRICS_REMOTE_HIT]);
        cJSON_AddNumberToObject(o, "misses", s->remote_gets[METRICS_REMOTE_MISS]);
        cJSON_AddNumberToObject(o, "late", s->remote_gets[METRICS_REMOTE_LATE]);
        cJSON_AddNumberToObject(o, "puts", s->remote_puts[METRICS_REMOTE_WRITTEN]);
        for (unsigned i = METRICS_REMOTE_DROPPED; i < METRICS_REMOTE_PUTS; i++)
                dropped += s->remote_puts[i];
        for (unsigned i = 0; i < METRICS_REMOTE_REJECTIONS; i++)
                rejected += s->remote_rejected[i];
        for (unsigned i = 0; i < METRICS_REMOTE_OPS; i++)
                errors += s->remote_errors[i];
        cJSON_AddNumberToObject(o, "puts_dropped", dropped);
        cJSON_AddNumberToObject(o, "offered_used_again", s->remote_offers[REMOTE_USED_AGAIN]);
        cJSON_AddNumberToObject(o, "offered_evicted", s->remote_offers[REMOTE_LEAVING]);
        cJSON_AddNumberToObject(o, "rejected", rejected);
        cJSON_AddNumberToObject(o, "errors", errors);
        cJSON_AddNumberToObject(o, "reading_bytes", s->remote_inflight_bytes[METRICS_REMOTE_READ]);
        cJSON_AddNumberToObject(o, "writing_bytes", s->remote_inflight_bytes[METRICS_REMOTE_WRITE]);
        metrics_walk(s, "remote", 0, add_number, o); /* numbers only; the rest is added above as
                                                      * text */
}

static void add_totals(cJSON *root, const struct service *service, const struct metrics *s)
{
        cJSON *o = cJSON_AddObjectToObject(root, "totals");
        double ratio = 0, misses = 0;
        const char *of = status_hit_ratio(service, &ratio);
        cJSON *reasons;

        if (of) {
                cJSON_AddNumberToObject(o, "hit_ratio", ratio);
                cJSON_AddStringToObject(o, "hit_ratio_of", of);
        }
        cJSON_AddNumberToObject(o, "lookup_keys",
                                s->lookup_keys[METRICS_LOOKUPS_DAEMON] +
                                        s->lookup_keys[METRICS_LOOKUPS_CLIENT]);
        cJSON_AddNumberToObject(o, "lookup_found_keys",
                                s->lookup_found[METRICS_LOOKUPS_DAEMON] +
                                        s->lookup_found[METRICS_LOOKUPS_CLIENT]);

        cJSON_AddNumberToObject(o, "puts", s->puts);
        cJSON_AddNumberToObject(o, "puts_postponed", s->put_postponed);
        cJSON_AddNumberToObject(o, "puts_caught_up", s->put_caught_up);
        for (unsigned i = 0; i < METRICS_MISSES; i++)
                misses += s->misses[i];
        cJSON_AddNumberToObject(o, "gets",
                                s->hits[METRICS_TIER_MEMORY] + s->hits[METRICS_TIER_DISK] +
                                        s->hits[METRICS_TIER_REMOTE] + misses);
        cJSON_AddNumberToObject(o, "hits_memory", s->hits[METRICS_TIER_MEMORY]);
        cJSON_AddNumberToObject(o, "hits_disk", s->hits[METRICS_TIER_DISK]);
        cJSON_AddNumberToObject(o, "hits_remote", s->hits[METRICS_TIER_REMOTE]);
        cJSON_AddNumberToObject(o, "misses", misses);
        reasons = cJSON_AddObjectToObject(o, "misses_by_reason");
        for (unsigned i = 0; i < METRICS_MISSES; i++)
                cJSON_AddNumberToObject(reasons, metrics_miss_reason(i), s->misses[i]);
        cJSON_AddNumberToObject(o, "loads_declined", s->loads_declined);
        cJSON_AddNumberToObject(o, "evictions", s->evictions);
        cJSON_AddNumberToObject(o, "expired_memory", s->expired[METRICS_TIER_MEMORY]);
        cJSON_AddNumberToObject(o, "expired_disk", s->expired[METRICS_TIER_DISK]);
        cJSON_AddNumberToObject(o, "bytes_put", s->put_bytes);
        cJSON_AddNumberToObject(o, "bytes_got",
                                s->get_bytes[METRICS_FORM_MAP] + s->get_bytes[METRICS_FORM_INTO]);
        cJSON_AddNumberToObject(o, "crc_failures", s->crc_failures);
}

static void add_health(cJSON *root, const struct status_sources *from)
{
        static struct status_health health; /* too large for the stack */
        cJSON *list;

        status_get_health(from, &health);
        cJSON_AddBoolToObject(root, "ready", health.ready);
        cJSON_AddStringToObject(root, "state", health.state);
        cJSON_AddStringToObject(root, "health", health.n > 0 ? "degraded" : "ok");
        list = cJSON_AddArrayToObject(root, "degraded");
        for (unsigned i = 0; i < health.n; i++) {
                cJSON *o = cJSON_CreateObject();

                cJSON_AddStringToObject(o, "reason",
                                        metrics_degradation_name(health.degraded[i].reason));
                cJSON_AddStringToObject(o, "text", health.degraded[i].text);
                cJSON_AddItemToArray(list, o);
        }
}

/* Adds the changes that wait for a restart: with their values for admins; the keys alone over HTTP,
 * since values name users and paths; and nothing for other clients. */
static void add_reload_pending(cJSON *root, const struct status_sources *from,
                               const struct tenant *only, const struct client *viewer)
{
        cJSON *list;
        const cJSON *one;

        if (only)
                return;
        list = cJSON_AddArrayToObject(root, "reload_pending");
        cJSON_ArrayForEach(one, from->reload_pending)
        {
                const char *text = one->valuestring;
                bool of_tenant = strncmp(text, "tenant ", strlen("tenant ")) == 0;
                const char *end = strstr(text, ": ");
                cJSON *key;

                if (end && of_tenant)
                        end = strstr(end + 2, ": ");
                key = cJSON_CreateString(text);
                if (key && !viewer && end)
                        key->valuestring[end - text] = '\0';
                cJSON_AddItemToArray(list, key);
        }
}

/* Adds the names of the files of the configuration, for admins. */
static void add_configuration(cJSON *root, const struct status_sources *from,
                              const struct tenant *only, const struct client *viewer)
{
        cJSON *o;

        if (only || !viewer || !from->config_files)
                return;
        o = cJSON_AddObjectToObject(root, "configuration");
        cJSON_AddItemToObject(o, "files", cJSON_Duplicate(from->config_files, true));
        cJSON_AddNumberToObject(o, "read_unix_ms", (double)from->config_read_unix_ms);
}

static void print_status(const struct status_sources *from, const struct tenant *only,
                         const struct status_namespaces *scope, FILE *out)
{
        static struct metrics s; /* too large for the stack */
        struct store_stats store;
        char instance[2 * WIRE_INSTANCE_BYTES + 1];
        cJSON *root = cJSON_CreateObject(), *sessions;
        char *text;

        status_collect(from, only, &s);
        status_collect_namespace_limits(from->service, scope, &s);
        store_get_stats(from->service->store, &store);
        for (unsigned i = 0; i < WIRE_INSTANCE_BYTES; i++)
                snprintf(instance + 2 * i, 3, "%02x", from->instance[i]);

        cJSON_AddStringToObject(root, "version", KVCACHE_BUILD_VERSION);
        add_host(root);
        cJSON_AddNumberToObject(root, "pid", getpid());
        cJSON_AddStringToObject(root, "instance", instance);
        cJSON_AddNumberToObject(root, "uptime_seconds", s.uptime);
        add_health(root, from);
        add_reload_pending(root, from, only, scope->viewer);
        add_configuration(root, from, only, scope->viewer);
        cJSON_AddStringToObject(root, "socket", from->socket);
        cJSON_AddStringToObject(root, "http", from->http ? http_address(from->http) : "off");
        cJSON_AddBoolToObject(root, "http_token", from->http && http_needs_token(from->http));
        add_io(root, from->service->io, &store);
        add_pool(root, from->service, &s);
        add_kept(root, from);
        add_lookups(root, from, &s);
        add_entries(root, &s);
        add_events(root, from, &s);
        add_store(root, from, &store, &s);
        add_eviction(root, from->config->eviction.policy, &s);
        add_writes(root, from);
        add_scrub(root, from->config, &store, &s);
        add_remote(root, from, &s);
        sessions = cJSON_AddObjectToObject(root, "sessions");
        cJSON_AddNumberToObject(sessions, "connections", s.sessions);
        if (from->config->listen.idle_ms)
                cJSON_AddNumberToObject(sessions, "idle_stop_seconds",
                                        (double)from->config->listen.idle_ms / 1000);
        cJSON_AddNumberToObject(sessions, "leases", s.leases);
        cJSON_AddNumberToObject(sessions, "stagings", s.stagings);
        cJSON_AddNumberToObject(sessions, "staging_bytes", s.staging_bytes);
        cJSON_AddNumberToObject(sessions, "stagings_closing", s.stagings_closing);
        cJSON_AddNumberToObject(sessions, "registered_buffers", s.registered_buffers);
        cJSON_AddNumberToObject(sessions, "registered_bytes", s.registered_bytes);
        cJSON_AddNumberToObject(sessions, "registered_in_rings_bytes", s.registered_in_rings_bytes);
        cJSON_AddNumberToObject(sessions, "registered_huge_bytes", s.registered_huge_bytes);
        add_tenants(root, &s);
        if (!only || from->service->n_tenants <= 1)
                add_resources(root, &s);
        status_add_namespaces(root, from->service, scope);
        add_totals(root, from->service, &s);

        text = cJSON_Print(root);
        if (text)
                fprintf(out, "%s\n", text);
        free(text);
        cJSON_Delete(root);
}

/* --- callbacks for http and request/ --- */

/* Returns the view of an HTTP client. It belongs to no tenant, with a token or without. If there
 * are several tenants, it therefore does not see the names of namespaces. */
static struct status_namespaces seen_by_http(const struct status_sources *from)
{
        return (struct status_namespaces){ .named = from->service->n_tenants == 1 };
}

void status_print_status(void *userdata, FILE *out)
{
        const struct status_sources *from = userdata;
        struct status_namespaces scope = seen_by_http(from);

        print_status(from, NULL, &scope, out);
}

void status_print_metrics(void *userdata, enum http_metrics format, FILE *out)
{
        static struct metrics stats; /* too large for the stack */
        const struct status_sources *from = userdata;
        struct status_namespaces scope = seen_by_http(from);

        status_collect(from, NULL, &stats);
        status_collect_namespaces(from->service, &scope, &stats);
        if (format == HTTP_METRICS_PROTOBUF)
                metrics_print_protobuf(&stats, out);
        else if (format == HTTP_METRICS_OPENMETRICS)
                metrics_print_openmetrics(&stats, out);
        else
                metrics_print_prometheus(&stats, out);
}

void status_report(void *userdata, const struct client *client, enum wire_report what, FILE *out)
{
        static struct metrics stats;
        const struct status_sources *from = userdata;
        const struct tenant *only = client->admin ? NULL : client->tenant;
        struct status_namespaces scope = { .viewer = client, .named = true };

        if (what == WIRE_REPORT_STATUS) {
                print_status(from, only, &scope, out);
                return;
        }
        if (what == WIRE_REPORT_CONFIG) {
                config_print(from->config, out);
                return;
        }
        if (what == WIRE_REPORT_NAMESPACES) {
                namespace_view_print_json(from, client, out);
                return;
        }
        if (what == WIRE_REPORT_STAGES) {
                stages_print(&from->service->stages, out);
                return;
        }
        status_collect(from, only, &stats);
        status_collect_namespaces(from->service, &scope, &stats);
        if (what == WIRE_REPORT_STATS)
                metrics_print_json(&stats, out);
        else
                metrics_print_prometheus(&stats, out);
}

void status_log_started(const struct status_sources *from)
{
        const struct service *service = from->service;
        struct store_stats store;
        struct kio_info io;
        char others[64] = "", workers[UNITS_TEXT], chunks[UNITS_TEXT], took[UNITS_TEXT],
             limit[UNITS_TEXT], largest[UNITS_TEXT], pool[UNITS_TEXT];

        store_get_stats(service->store, &store);
        kio_get_info(service->io, &io);
        log_at(io.reason[0] ? LOG_LEVEL_NOTICE : LOG_LEVEL_INFO, "I/O: %s, %s of depth %u%s%s%s%s",
               io.backend, units_count(io.workers, "worker", workers), io.depth,
               io.ring_flags[0] ? ", " : "", io.ring_flags, io.reason[0] ? "; " : "", io.reason);
        if (!store.direct)
                log_notice("io.direct: O_DIRECT is not used: %s", store.direct_reason);
        if (from->config->store.path.n > 1)
                snprintf(others, sizeof(others), " and %zu more (%u of %zu volumes in use)",
                         (size_t)from->config->store.path.n - 1, store_volumes_up(service->store),
                         (size_t)from->config->store.path.n);
        log_info("store: %s%s, %s found in %s%s, limit %s, largest chunk %s",
                 store_volume_path(service->store, 0), others,
                 units_count(store.recovered_chunks, "chunk", chunks),
                 units_ms(store.recover_ms, took), store.clean_start ? "" : " (not closed cleanly)",
                 units_bytes(store.limit, limit),
                 units_bytes(MIN(pool_slab_bytes(service->tenants[0].pool),
                                 store_max_chunk(service->store)),
                             largest));
        if (store.skipped_pages)
                log_warning("store: skipped %s as damaged: chunks that were recorded only there "
                            "are lost, and all others are kept; no action is needed",
                            units_count(store.skipped_pages, "table page", chunks));
        for (unsigned i = 1; i < service->n_tenants; i++)
                log_info("tenant %s: its number in the store is %u, and its memory pool has %s",
                         quotas_tenant_name(service->quotas, i), service->tenants[i].store_tenant,
                         units_bytes(pool_bytes(service->tenants[i].pool), pool));
        namespace_counts_log_started(service->namespace_counts);
        log_info("ready: socket %s, HTTP %s%s, memory pool %s", from->socket,
                 from->http ? http_address(from->http) : "off",
                 from->http && http_needs_token(from->http) ? " with a token" : "",
                 units_bytes(pool_bytes(service->tenants[0].pool), pool));
}

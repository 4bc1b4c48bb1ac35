/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the figures of the interval between two pages of metrics. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "common.h"
#include "top.h"

struct interval {
        const struct samples *now, *before; /* `before` may be NULL */
        double seconds;
};

/* --- members --- */

static double rate(const struct interval *t, const char *name, const char *value)
{
        return samples_growth(t->now, t->before, name, value) / t->seconds;
}

static void add_rate(cJSON *o, const char *key, const struct interval *t, const char *name,
                     const char *value)
{
        json_add_number(o, key, rate(t, name, value));
}

static void add_rate_of_all(cJSON *o, const char *key, const struct interval *t, const char *name)
{
        json_add_number(o, key, samples_growth_sum(t->now, t->before, name) / t->seconds);
}

static void add_now(cJSON *o, const char *key, const struct interval *t, const char *name,
                    const char *value)
{
        json_add_number(o, key, samples_number(t->now, name, value));
}

static void add_ratio(cJSON *o, const char *key, double part, double whole)
{
        json_add_number(o, key, whole > 0 ? part / whole : NAN);
}

/* --- rows, in the order of their traffic --- */

struct ranked {
        cJSON *row;
        double traffic, size; /* order of rows: by `traffic`, and for equal traffic by `size` */
};

static int compare_ranks(const void *a, const void *b)
{
        const struct ranked *x = a, *y = b;

        if (x->traffic < y->traffic || x->traffic > y->traffic)
                return x->traffic < y->traffic ? 1 : -1;
        if (x->size < y->size || x->size > y->size)
                return x->size < y->size ? 1 : -1;
        return 0;
}

/* Adds the array `key`, with a row for each value of the first label of metric `name`, except those
 * for which `row_of` returns NULL. Rows with the most traffic come first. */
static void add_rows(cJSON *root, const char *key, const struct interval *t, const char *name,
                     cJSON *(*row_of)(const struct interval *t, const char *value,
                                      struct ranked *ret))
{
        cJSON *list = cJSON_AddArrayToObject(root, key);
        _cleanup_(freep) struct ranked *rows = calloc(t->now->n + 1, sizeof(*rows));
        size_t n = 0;

        for (size_t i = 0; rows && i < t->now->n; i++) {
                const struct sample *sample = &t->now->list[i];

                if (strcmp(sample->name, name) != 0 || !*sample->label || *sample->le)
                        continue;
                rows[n].row = row_of(t, sample->value, &rows[n]);
                n += rows[n].row != NULL;
        }
        if (n > 1)
                qsort(rows, n, sizeof(*rows), compare_ranks);
        for (size_t i = 0; i < n; i++)
                cJSON_AddItemToArray(list, rows[i].row);
}

/* Adds KEY_seconds, an upper bound of the quantile. If the quantile is above the largest edge of
 * a bucket, KEY_seconds is null, and KEY_above_seconds is that edge. */
static void add_quantile(cJSON *o, const char *key, const struct interval *t, const char *duration,
                         const char *value, double quantile)
{
        double above = NAN, most;
        char name[96];

        most = samples_quantile(t->now, t->before, duration, value, quantile, &above);
        snprintf(name, sizeof(name), "%s_seconds", key);
        json_add_number(o, name, most);
        snprintf(name, sizeof(name), "%s_above_seconds", key);
        if (!isnan(above))
                cJSON_AddNumberToObject(o, name, above);
}

static double known(double value)
{
        return isfinite(value) ? value : 0;
}

/* Returns the row of an operation that was requested in the interval, or NULL. */
static cJSON *operation_row(const struct interval *t, const char *op, struct ranked *ret)
{
        static const char duration[] = "kvcache_request_duration_seconds";
        double per_second = rate(t, "kvcache_requests_total", op);
        cJSON *o;

        if (!(per_second > 0))
                return NULL;
        o = cJSON_CreateObject();
        ret->traffic = per_second;
        cJSON_AddStringToObject(o, "op", op);
        json_add_number(o, "per_second", per_second);
        add_quantile(o, "p50", t, duration, op, 0.5);
        add_quantile(o, "p99", t, duration, op, 0.99);
        return o;
}

static const char *volume_state(const struct samples *now, const char *volume)
{
        static const char *const states[][2] = { { "kvcache_volume_up", "up" },
                                                 { "kvcache_volume_hung", "hung" },
                                                 { "kvcache_volume_suspended", "suspended" },
                                                 { "kvcache_volume_resuming", "resuming" } };

        for (size_t i = 0; i < ARRAY_SIZE(states); i++)
                if (samples_number(now, states[i][0], volume) > 0)
                        return states[i][1];
        return "bypassed";
}

static cJSON *volume_row(const struct interval *t, const char *volume, struct ranked *ret)
{
        double read = rate(t, "kvcache_volume_read_bytes_total", volume);
        double written = rate(t, "kvcache_volume_written_bytes_total", volume);
        double errors = rate(t, "kvcache_volume_read_errors_total", volume) +
                        rate(t, "kvcache_volume_write_errors_total", volume) +
                        rate(t, "kvcache_volume_sync_errors_total", volume) +
                        known(rate(t, "kvcache_volume_checksum_errors_total", volume));
        cJSON *o = cJSON_CreateObject();

        ret->traffic = known(read) + known(written);
        ret->size = known(samples_number(t->now, "kvcache_volume_used_bytes", volume));
        cJSON_AddStringToObject(o, "volume", volume);
        cJSON_AddStringToObject(o, "state", volume_state(t->now, volume));
        cJSON_AddBoolToObject(o, "full", samples_number(t->now, "kvcache_volume_full", volume) > 0);
        json_add_number(o, "read_bytes_per_second", read);
        json_add_number(o, "written_bytes_per_second", written);
        json_add_number(o, "errors_per_second", errors);
        add_now(o, "pending_operations", t, "kvcache_volume_pending_operations", volume);
        add_now(o, "used_bytes", t, "kvcache_volume_used_bytes", volume);
        add_now(o, "limit_bytes", t, "kvcache_volume_limit_bytes", volume);
        add_now(o, "chunks", t, "kvcache_volume_chunks", volume);
        return o;
}

static cJSON *tenant_row(const struct interval *t, const char *tenant, struct ranked *ret)
{
        double gets = rate(t, "kvcache_tenant_get_keys_total", tenant);
        double lookups = rate(t, "kvcache_tenant_lookup_keys_total", tenant);
        double put = rate(t, "kvcache_tenant_put_bytes_total", tenant);
        double got = rate(t, "kvcache_tenant_get_bytes_total", tenant);
        cJSON *o = cJSON_CreateObject();

        ret->traffic = known(put) + known(got);
        ret->size = known(gets) + known(lookups);
        cJSON_AddStringToObject(o, "tenant", tenant);
        json_add_number(o, "put_bytes_per_second", put);
        json_add_number(o, "get_bytes_per_second", got);
        json_add_number(o, "get_keys_per_second", gets);
        add_ratio(o, "get_hit_ratio", rate(t, "kvcache_tenant_get_found_keys_total", tenant), gets);
        json_add_number(o, "lookup_keys_per_second", lookups);
        add_ratio(o, "lookup_hit_ratio", rate(t, "kvcache_tenant_lookup_found_keys_total", tenant),
                  lookups);
        add_rate(o, "refusals_per_second", t, "kvcache_tenant_quota_refusals_total", tenant);
        add_now(o, "connections", t, "kvcache_tenant_connections", tenant);
        add_now(o, "keys_in_flight", t, "kvcache_tenant_keys", tenant);
        add_now(o, "pool_used_bytes", t, "kvcache_tenant_pool_used_bytes", tenant);
        add_now(o, "stored_bytes", t, "kvcache_tenant_stored_bytes", tenant);
        return o;
}

static cJSON *namespace_row(const struct interval *t, const char *namespace, struct ranked *ret)
{
        double lookups = rate(t, "kvcache_namespace_lookup_keys_total", namespace);
        cJSON *o;

        /* "other" is the sum of all namespaces without a row. */
        if (strcmp(namespace, "other") == 0 &&
            !(samples_number(t->now, "kvcache_namespace_chunks", namespace) > 0))
                return NULL;
        o = cJSON_CreateObject();
        ret->traffic = known(lookups);
        ret->size = known(samples_number(t->now, "kvcache_namespace_stored_bytes", namespace));
        cJSON_AddStringToObject(o, "namespace", namespace);
        json_add_number(o, "lookup_keys_per_second", lookups);
        add_ratio(o, "lookup_hit_ratio",
                  rate(t, "kvcache_namespace_lookup_found_keys_total", namespace), lookups);
        add_now(o, "chunks", t, "kvcache_namespace_chunks", namespace);
        add_now(o, "stored_bytes", t, "kvcache_namespace_stored_bytes", namespace);
        add_now(o, "pool_used_bytes", t, "kvcache_namespace_pool_used_bytes", namespace);
        return o;
}

static cJSON *floor_row(const struct interval *t, const char *prefix, struct ranked *ret)
{
        double used = samples_number(t->now, "kvcache_floor_used_bytes", prefix);
        cJSON *o = cJSON_CreateObject();

        ret->traffic = 0;
        ret->size = known(used);
        cJSON_AddStringToObject(o, "prefix", prefix);
        json_add_number(o, "used_bytes", used);
        add_now(o, "floor_bytes", t, "kvcache_floor_bytes", prefix);
        add_ratio(o, "pool_share", used, samples_number(t->now, "kvcache_pool_bytes", ""));
        return o;
}

/* --- sections --- */

static void add_head(cJSON *root, const struct interval *t)
{
        const struct sample *build = samples_find(t->now, "kvcache_build_info", NULL);
        cJSON *degraded;

        cJSON_AddStringToObject(root, "version", build ? build->value : "");
        cJSON_AddBoolToObject(root, "ready", samples_number(t->now, "kvcache_ready", "") > 0);
        add_now(root, "uptime_seconds", t, "kvcache_uptime_seconds", "");
        degraded = cJSON_AddObjectToObject(root, "degraded");
        for (size_t i = 0; i < t->now->n; i++) {
                const struct sample *sample = &t->now->list[i];

                if (strcmp(sample->name, "kvcache_degraded") == 0 && sample->number > 0)
                        json_add_number(degraded, sample->value, sample->number);
        }
        add_now(root, "connections", t, "kvcache_sessions", "");
        add_now(root, "leases", t, "kvcache_leases", "");
}

static void add_requests(cJSON *root, const struct interval *t)
{
        cJSON *o = cJSON_AddObjectToObject(root, "requests");

        add_rate_of_all(o, "per_second", t, "kvcache_requests_total");
        add_rate(o, "busy_per_second", t, "kvcache_busy_answers_total", "");
        add_rate_of_all(o, "refusals_per_second", t, "kvcache_tenant_quota_refusals_total");
        add_rows(o, "operations", t, "kvcache_requests_total", operation_row);
}

/* Adds the latency of gets that this tier answered. */
static void add_latency(cJSON *o, const char *tier, const struct interval *t)
{
        static const char duration[] = "kvcache_get_duration_seconds";
        char key[64];

        snprintf(key, sizeof(key), "%s_p50", tier);
        add_quantile(o, key, t, duration, tier, 0.5);
        snprintf(key, sizeof(key), "%s_p99", tier);
        add_quantile(o, key, t, duration, tier, 0.99);
}

static void add_gets(cJSON *root, const struct interval *t)
{
        cJSON *o = cJSON_AddObjectToObject(root, "gets");
        double memory = rate(t, "kvcache_hits_total", "memory");
        double disk = rate(t, "kvcache_hits_total", "disk");
        double misses = samples_growth_sum(t->now, t->before, "kvcache_misses_total") / t->seconds;
        double evicted = rate(t, "kvcache_misses_total", "evicted_disk") +
                         rate(t, "kvcache_misses_total", "evicted_pool");

        json_add_number(o, "keys_per_second", memory + disk + misses);
        json_add_number(o, "memory_hits_per_second", memory);
        json_add_number(o, "disk_hits_per_second", disk);
        json_add_number(o, "misses_per_second", misses);
        add_ratio(o, "memory_ratio", memory, memory + disk + misses);
        add_ratio(o, "disk_ratio", disk, memory + disk + misses);
        add_ratio(o, "miss_ratio", misses, memory + disk + misses);
        add_ratio(o, "evicted_miss_ratio", evicted, misses);
        add_latency(o, "memory", t);
        add_latency(o, "disk", t);
        add_rate_of_all(o, "bytes_per_second", t, "kvcache_get_bytes_total");
}

static void add_lookups(cJSON *root, const struct interval *t)
{
        cJSON *o = cJSON_AddObjectToObject(root, "lookups");
        double keys = samples_growth_sum(t->now, t->before, "kvcache_lookup_keys_total");

        json_add_number(o, "keys_per_second", keys / t->seconds);
        add_ratio(o, "hit_ratio",
                  samples_growth_sum(t->now, t->before, "kvcache_lookup_found_keys_total"), keys);
        add_rate(o, "declined_per_second", t, "kvcache_loads_declined_total", "");
}

static void add_tiers(cJSON *root, const struct interval *t)
{
        cJSON *o = cJSON_AddObjectToObject(root, "puts");

        add_rate(o, "chunks_per_second", t, "kvcache_puts_total", "");
        add_rate(o, "bytes_per_second", t, "kvcache_put_bytes_total", "");

        o = cJSON_AddObjectToObject(root, "pool");
        add_now(o, "used_bytes", t, "kvcache_pool_used_bytes", "");
        add_now(o, "size_bytes", t, "kvcache_pool_size_bytes", "");
        add_now(o, "leased_bytes", t, "kvcache_pool_leased_bytes", "");
        add_now(o, "unwritten_bytes", t, "kvcache_pool_unwritten_bytes", "");
        add_rate(o, "evictions_per_second", t, "kvcache_pool_evictions_total", "");

        o = cJSON_AddObjectToObject(root, "store");
        add_now(o, "used_bytes", t, "kvcache_store_used_bytes", "");
        add_now(o, "live_bytes", t, "kvcache_store_live_bytes", "");
        add_now(o, "limit_bytes", t, "kvcache_store_limit_bytes", "");
        add_now(o, "chunks", t, "kvcache_store_chunks", "");
        add_rate(o, "read_bytes_per_second", t, "kvcache_store_read_bytes_total", "");
        add_rate_of_all(o, "written_bytes_per_second", t, "kvcache_store_written_bytes_total");
        add_rate(o, "evictions_per_second", t, "kvcache_evictions_total", "");
}

/* Adds the share of the daemon's predictions that a chain will be used again, its returns, that
 * came true, and the results of the prefetches for them. */
static void add_returns(cJSON *root, const struct interval *t)
{
        cJSON *o = cJSON_AddObjectToObject(root, "returns");
        double in_time = rate(t, "kvcache_return_outcomes_total", "in_time");
        double missed = rate(t, "kvcache_return_outcomes_total", "missed");

        add_now(o, "expected", t, "kvcache_return_expected", "");
        json_add_number(o, "in_time_per_second", in_time);
        json_add_number(o, "missed_per_second", missed);
        add_ratio(o, "in_time_ratio", in_time, in_time + missed);
        add_rate(o, "late_per_second", t, "kvcache_return_late_total", "");
        add_rate(o, "evicted_per_second", t, "kvcache_return_evicted_total", "");
        add_rate(o, "prefetched_per_second", t, "kvcache_prefetched_chunks_total", "");
        add_ratio(o, "prefetch_hit_ratio", rate(t, "kvcache_prefetch_hits_total", ""),
                  rate(t, "kvcache_prefetched_chunks_total", ""));
        add_ratio(o, "prefetch_waste_ratio", rate(t, "kvcache_prefetch_wasted_total", ""),
                  rate(t, "kvcache_prefetched_chunks_total", ""));
}

/* Adds the number of open announcements by clients that a chain will be used again, and how many
 * others came true or not in the interval. */
static void add_announced(cJSON *root, const struct interval *t)
{
        cJSON *o = cJSON_AddObjectToObject(root, "announced");
        double came_true = rate(t, "kvcache_hint_announcements_total", "true");
        double wrong = rate(t, "kvcache_hint_announcements_total", "early") +
                       rate(t, "kvcache_hint_announcements_total", "late");

        add_now(o, "open", t, "kvcache_hint_open_announcements", "");
        json_add_number(o, "true_per_second", came_true);
        json_add_number(o, "false_per_second", wrong);
        add_ratio(o, "true_ratio", came_true, came_true + wrong);
}

/* Adds the queues in which requests wait, from the socket to the device. */
static void add_queues(cJSON *root, const struct interval *t)
{
        cJSON *o = cJSON_AddObjectToObject(root, "queues");

        add_now(o, "deferred_requests", t, "kvcache_deferred_requests", "");
        add_now(o, "reads", t, "kvcache_queued_reads", "");
        add_now(o, "writes", t, "kvcache_queued_writes", "");
        add_now(o, "io_queued", t, "kvcache_io_queued", "");
        add_now(o, "io_inflight", t, "kvcache_io_inflight", "");
}

cJSON *top_figures(const struct samples *now, const struct samples *before, double seconds)
{
        struct interval t = { .now = now, .before = before, .seconds = seconds };
        cJSON *root = cJSON_CreateObject();

        add_head(root, &t);
        add_requests(root, &t);
        add_gets(root, &t);
        add_lookups(root, &t);
        add_tiers(root, &t);
        add_returns(root, &t);
        add_announced(root, &t);
        add_queues(root, &t);
        add_rows(root, "volumes", &t, "kvcache_volume_up", volume_row);
        add_rows(root, "tenants", &t, "kvcache_tenant_connections", tenant_row);
        add_rows(root, "floors", &t, "kvcache_floor_bytes", floor_row);
        add_rows(root, "namespaces", &t, "kvcache_namespace_chunks", namespace_row);
        return root;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "status.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "build-config.h"
#include "checked.h"
#include "config.h"
#include "dispatch.h"
#include "http.h"
#include "memory/backing.h"
#include "session.h"

static_assert((int)STATS_OPS >= (int)WIRE_OP_END, "each op has its counter");
static_assert((int)STATS_STATUSES >= (int)WIRE_STATUS_END, "each status has its counter");
static_assert((int)STATS_IO_OPS == (int)KIO_OP_END, "each I/O op has its counter");

static void collect_traffic(const struct dispatch_env *env, struct stats *s)
{
        const struct traffic *t = &env->traffic;
        struct cache_stats cache;

        for (unsigned i = 0; i < WIRE_OP_END; i++) {
                s->requests[i] = (double)t->requests[i];
                s->request_duration[i] = t->latency[i];
        }
        for (unsigned i = 0; i < WIRE_STATUS_END; i++)
                s->key_results[i] = (double)t->results[i];
        s->get_bytes[STATS_FORM_MAP] = (double)t->get_bytes_map;
        s->get_bytes[STATS_FORM_INTO] = (double)t->get_bytes_into;

        cache_get_stats(env->cache, &cache);
        s->busy = (double)cache.busy;
        s->hits[STATS_TIER_MEMORY] = (double)cache.hits_memory;
        s->hits[STATS_TIER_DISK] = (double)cache.hits_disk;
        s->misses = (double)cache.misses;
        s->puts = (double)cache.puts;
        s->put_bytes = (double)cache.put_bytes;
        for (unsigned i = 0; i < STATS_ACKS; i++)
                s->put_acks[i] = (double)cache.puts_by_ack[i];
        s->put_exists = (double)cache.puts_existing;
        s->put_pool_only = (double)cache.pool_only;
        s->shared_fills = (double)cache.shared_fills;
        s->room_waits = (double)cache.waited;
        s->pool_unwritten_bytes = (double)cache.unwritten_bytes;
}

static void collect_sessions(const struct status_sources *from, struct stats *s)
{
        struct sessions_stats sessions;
        struct tenant_usage usage;

        sessions_get_stats(from->sessions, &sessions);
        s->sessions = (double)sessions.open;
        s->sessions_accepted = (double)sessions.accepted;
        s->sessions_refused[STATS_REFUSED_LIMIT] = (double)sessions.refused_limit;
        s->sessions_refused[STATS_REFUSED_CREDENTIALS] = (double)sessions.refused_credentials;
        s->sessions_refused[STATS_REFUSED_HANDSHAKE] = (double)sessions.refused_handshake;
        s->sessions_ended[STATS_ENDED_CLOSED] = (double)sessions.ended_closed;
        s->sessions_ended[STATS_ENDED_BAD_FRAME] = (double)sessions.ended_bad_frame;
        s->sessions_ended[STATS_ENDED_TIMEOUT] = (double)sessions.ended_timeout;
        s->sessions_ended[STATS_ENDED_SHUTDOWN] = (double)sessions.ended_shutdown;
        s->log_held_back = (double)sessions.lines_held_back;

        tenants_get_usage(from->env->tenants, TENANT_DEFAULT, &usage);
        s->leases = (double)leases_count(from->env->leases);
        s->leased_bytes = (double)leases_bytes(from->env->leases);
        s->lanes = (double)usage.lanes;
        s->lane_bytes = (double)usage.lane_bytes;
}

static void collect_pool(const struct pool *pool, struct stats *s)
{
        struct pool_stats p;

        pool_get_stats(pool, &p);
        s->pool_bytes = (double)p.bytes;
        s->pool_populated_bytes = (double)p.populated_bytes;
        s->pool_used_bytes = (double)p.used_bytes;
        s->pool_leased_bytes = (double)p.leased_bytes;
        s->pool_chunks = (double)p.chunks;
        s->pool_evictions = (double)p.evictions;
}

static void collect_store(const struct store *store, struct stats *s)
{
        struct store_stats st;

        store_get_stats(store, &st);
        s->store_limit_bytes = (double)st.limit;
        s->store_used_bytes = (double)st.used_bytes;
        s->store_payload_bytes = (double)st.payload_bytes;
        s->store_chunks = (double)st.chunks;
        s->store_entries_max = (double)st.entries_max;
        s->store_segments = (double)st.segments;
        s->store_index_bytes = (double)st.index_bytes;
        s->store_bypassed = st.bypassed;
        s->namespaces = (double)st.namespaces;
        s->evictions = (double)st.evictions;
        s->evicted_bytes = (double)st.evicted_bytes;
        s->drops = (double)st.drops;
        s->purges = (double)st.purges;
        s->slab_moves = (double)st.slab_moves;
        s->store_written_bytes[STATS_WRITTEN_PAYLOAD] = (double)st.payload_bytes_written;
        s->store_written_bytes[STATS_WRITTEN_TABLE] = (double)st.table_bytes_written;
        s->store_written_bytes[STATS_WRITTEN_PREWRITE] = (double)st.prewrite_bytes_written;
        s->store_writes[STATS_WRITTEN_PAYLOAD] = (double)st.payload_writes;
        s->store_writes[STATS_WRITTEN_TABLE] = (double)st.table_writes;
        s->store_reads = (double)st.reads;
        s->store_read_bytes = (double)st.bytes_read;
        s->store_syncs = (double)st.syncs;
        s->crc_failures = (double)st.crc_failures;
        s->crc_rereads = (double)st.crc_rereads;
        s->store_errors[STATS_ERROR_READ] = (double)st.read_errors;
        s->store_errors[STATS_ERROR_WRITE] = (double)st.write_errors;
        s->store_errors[STATS_ERROR_SYNC] = (double)st.sync_errors;
        s->table_pages_written = (double)st.table_pages_written;
        s->table_entries_written = (double)st.table_entries_written;
        s->table_entries_carried = (double)st.table_entries_carried;
        s->recovered_chunks = (double)st.recovered_chunks;
        s->recovery_skipped_pages = (double)st.skipped_pages;
        s->recovery_seconds = (double)st.recover_ms / 1e3;
}

static void collect_io(const struct kio *io, struct stats *s)
{
        struct kio_stats k;

        kio_get_stats(io, &k);
        for (unsigned i = 0; i < STATS_IO_OPS; i++) {
                s->io_ops[i] = (double)k.ops[i];
                s->io_bytes[i] = (double)k.bytes[i];
                s->io_errors[i] = (double)k.errors[i];
        }
        s->io_resubmitted = (double)k.resubmitted;
        s->io_registered_ops = (double)k.registered_ops;
        s->io_inflight = (double)k.inflight;
        s->io_queued = (double)k.queued;
        s->io_inflight_seconds = (double)k.inflight_time_ns / 1e9;
        s->io_busy_seconds = (double)k.busy_time_ns / 1e9;
        s->io_wakeups = (double)k.wakeups;
}

void status_collect(const struct status_sources *from, struct stats *ret)
{
        struct store_stats store;
        struct kio_info io;
        char number[16];

        memset(ret, 0, sizeof(*ret));
        store_get_stats(from->env->store, &store);
        kio_get_info(from->env->io, &io);
        snprintf(number, sizeof(number), "%d", WIRE_VERSION_MAX);
        stats_info_add(ret->build, sizeof(ret->build), "version", KVCACHE_BUILD_VERSION);
        stats_info_add(ret->build, sizeof(ret->build), "protocol", number);
        stats_info_add(ret->io, sizeof(ret->io), "backend", io.backend);
        stats_info_add(ret->io, sizeof(ret->io), "ring_flags", io.ring_flags);
        stats_info_add(ret->io, sizeof(ret->io), "direct", store.direct ? "yes" : "no");
        stats_info_add(ret->io, sizeof(ret->io), "registered", io.registered ? "yes" : "no");

        ret->start_time = (double)from->started_unix_ms / 1e3;
        ret->uptime = (double)(clock_mono_ns() - from->started_ns) / 1e9;
        ret->ready = from->ready && !from->draining;
        ret->config_reloads = (double)from->config_reloads;
        collect_traffic(from->env, ret);
        collect_sessions(from, ret);
        collect_pool(from->env->pool, ret);
        collect_store(from->env->store, ret);
        collect_io(from->env->io, ret);
        if (from->http) {
                struct http_stats http;

                http_get_stats(from->http, &http);
                ret->http_connections = (double)http.connections;
                ret->http_refused = (double)http.connections_refused;
                ret->http_deadlines = (double)http.deadlines;
                ret->http_requests = (double)http.requests;
        }
}

/* --- JSON --- */

static void add_namespaces(cJSON *root, const struct store *store)
{
        cJSON *list = cJSON_AddArrayToObject(root, "namespaces");
        const struct store_namespace *ns;

        for (unsigned i = 0; (ns = store_namespace_at(store, i)); i++) {
                cJSON *o = cJSON_CreateObject();

                cJSON_AddStringToObject(o, "name", ns->name);
                cJSON_AddStringToObject(o, "tenant", "default");
                cJSON_AddNumberToObject(o, "chunks", (double)ns->chunks);
                cJSON_AddNumberToObject(o, "bytes", (double)ns->bytes);
                cJSON_AddNumberToObject(o, "chunk_bytes", (double)ns->chunk_bytes);
                cJSON_AddStringToObject(o, "fingerprint", ns->fingerprint);
                cJSON_AddItemToArray(list, o);
        }
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

static void add_pool(cJSON *root, const struct dispatch_env *env, const struct stats *s)
{
        cJSON *o = cJSON_AddObjectToObject(root, "pool");

        cJSON_AddNumberToObject(o, "bytes", s->pool_bytes);
        cJSON_AddNumberToObject(o, "populated_bytes", s->pool_populated_bytes);
        cJSON_AddNumberToObject(o, "used_bytes", s->pool_used_bytes);
        cJSON_AddNumberToObject(o, "chunks", s->pool_chunks);
        cJSON_AddNumberToObject(o, "leased_bytes", s->pool_leased_bytes);
        cJSON_AddNumberToObject(o, "unwritten_bytes", s->pool_unwritten_bytes);
        cJSON_AddNumberToObject(o, "slab_bytes", (double)pool_slab_bytes(env->pool));
        cJSON_AddStringToObject(o, "huge_pages", backing_huge_pages());
}

static void add_store(cJSON *root, const struct store *store, const struct store_stats *st)
{
        cJSON *o = cJSON_AddObjectToObject(root, "store");
        cJSON *paths = cJSON_AddArrayToObject(o, "path");
        const char *path;

        for (unsigned i = 0; (path = store_path(store, i)); i++)
                cJSON_AddItemToArray(paths, cJSON_CreateString(path));
        cJSON_AddNumberToObject(o, "limit_bytes", (double)st->limit);
        cJSON_AddNumberToObject(o, "used_bytes", (double)st->used_bytes);
        cJSON_AddNumberToObject(o, "payload_bytes", (double)st->payload_bytes);
        cJSON_AddNumberToObject(o, "chunks", (double)st->chunks);
        cJSON_AddNumberToObject(o, "slots", (double)st->slots);
        cJSON_AddNumberToObject(o, "entries_max", (double)st->entries_max);
        cJSON_AddNumberToObject(o, "segments", (double)st->segments);
        cJSON_AddNumberToObject(o, "segments_max", (double)st->segments_max);
        cJSON_AddNumberToObject(o, "segment_bytes", (double)st->segment_bytes);
        cJSON_AddNumberToObject(o, "recovered_chunks", (double)st->recovered_chunks);
        cJSON_AddBoolToObject(o, "clean_start", st->clean_start);
        cJSON_AddBoolToObject(o, "bypassed", st->bypassed);
}

static void add_totals(cJSON *root, const struct stats *s)
{
        cJSON *o = cJSON_AddObjectToObject(root, "totals");

        cJSON_AddNumberToObject(o, "puts", s->puts);
        cJSON_AddNumberToObject(o, "gets",
                                s->hits[STATS_TIER_MEMORY] + s->hits[STATS_TIER_DISK] + s->misses);
        cJSON_AddNumberToObject(o, "hits_memory", s->hits[STATS_TIER_MEMORY]);
        cJSON_AddNumberToObject(o, "hits_disk", s->hits[STATS_TIER_DISK]);
        cJSON_AddNumberToObject(o, "misses", s->misses);
        cJSON_AddNumberToObject(o, "evictions", s->evictions);
        cJSON_AddNumberToObject(o, "bytes_put", s->put_bytes);
        cJSON_AddNumberToObject(o, "bytes_got",
                                s->get_bytes[STATS_FORM_MAP] + s->get_bytes[STATS_FORM_INTO]);
        cJSON_AddNumberToObject(o, "crc_failures", s->crc_failures);
}

void status_print_status(void *userdata, FILE *out)
{
        const struct status_sources *from = userdata;
        static struct stats s; /* large; one thread */
        struct store_stats store;
        char instance[2 * WIRE_INSTANCE_BYTES + 1];
        cJSON *root = cJSON_CreateObject(), *sessions;
        char *text;

        status_collect(from, &s);
        store_get_stats(from->env->store, &store);
        for (unsigned i = 0; i < WIRE_INSTANCE_BYTES; i++)
                snprintf(instance + 2 * i, 3, "%02x", from->instance[i]);

        cJSON_AddStringToObject(root, "version", KVCACHE_BUILD_VERSION);
        cJSON_AddNumberToObject(root, "pid", getpid());
        cJSON_AddStringToObject(root, "instance", instance);
        cJSON_AddNumberToObject(root, "uptime_seconds", s.uptime);
        cJSON_AddBoolToObject(root, "ready", from->ready && !from->draining);
        cJSON_AddStringToObject(root, "socket", from->config->listen.socket);
        cJSON_AddStringToObject(root, "http", from->http ? http_address(from->http) : "off");
        add_io(root, from->env->io, &store);
        add_pool(root, from->env, &s);
        add_store(root, from->env->store, &store);
        sessions = cJSON_AddObjectToObject(root, "sessions");
        cJSON_AddNumberToObject(sessions, "connections", s.sessions);
        cJSON_AddNumberToObject(sessions, "leases", s.leases);
        cJSON_AddNumberToObject(sessions, "lanes", s.lanes);
        cJSON_AddNumberToObject(sessions, "lane_bytes", s.lane_bytes);
        add_namespaces(root, from->env->store);
        add_totals(root, &s);

        text = cJSON_Print(root);
        if (text)
                fprintf(out, "%s\n", text);
        free(text);
        cJSON_Delete(root);
}

/* --- for http and dispatch --- */

void status_print_metrics(void *userdata, bool openmetrics, FILE *out)
{
        static struct stats stats; /* large; one thread */

        status_collect(userdata, &stats);
        if (openmetrics)
                stats_print_openmetrics(&stats, out);
        else
                stats_print_prometheus(&stats, out);
}

void status_report(void *userdata, enum wire_report what, FILE *out)
{
        static struct stats stats;
        const struct status_sources *from = userdata;

        switch (what) {
        case WIRE_REPORT_STATUS:
                status_print_status(userdata, out);
                break;
        case WIRE_REPORT_STATS:
                status_collect(from, &stats);
                stats_print_json(&stats, out);
                break;
        case WIRE_REPORT_METRICS:
                status_print_metrics(userdata, false, out);
                break;
        default:
                config_print(from->config, out);
                break;
        }
}

bool status_is_ready(void *userdata, const char **ret_why_not)
{
        const struct status_sources *from = userdata;

        *ret_why_not = from->draining ? "stopping" : "starting";
        return from->ready && !from->draining;
}

bool status_is_healthy(void *userdata, const char **ret_why_not)
{
        const struct status_sources *from = userdata;
        struct store_stats store;

        store_get_stats(from->env->store, &store);
        if (store.bypassed) {
                *ret_why_not = "the store's device failed and is bypassed";
                return false;
        }
        if (kio_oldest_ns(from->env->io) > from->config->io.hang_ms * 1000000) {
                *ret_why_not = "a device operation does not end (io.hang)";
                return false;
        }
        return true;
}

void status_log_started(const struct status_sources *from)
{
        const struct dispatch_env *env = from->env;
        struct store_stats store;
        struct kio_info io;

        store_get_stats(env->store, &store);
        kio_get_info(env->io, &io);
        log_info("I/O: %s, %u workers of depth %u%s%s%s%s", io.backend, io.workers, io.depth,
                 io.ring_flags[0] ? ", " : "", io.ring_flags, io.reason[0] ? "; " : "", io.reason);
        if (!store.direct)
                log_notice("O_DIRECT is not used: %s", store.direct_reason);
        log_info("store: %s, %" PRIu64 " chunks found in %" PRIu64
                 " ms%s, limit %.1f GiB, largest chunk %" PRIu64 " KiB",
                 store_path(env->store, 0), store.recovered_chunks, store.recover_ms,
                 store.clean_start ? "" : " (not closed cleanly)", (double)store.limit / (1 << 30),
                 MIN(pool_slab_bytes(env->pool), store_max_chunk(env->store)) >> 10);
        if (store.skipped_pages)
                log_warning("store: %" PRIu64
                            " damaged table pages were left out: what only they named is gone",
                            store.skipped_pages);
        log_info("ready: socket %s, metrics %s, memory pool %" PRIu64 " MiB",
                 from->config->listen.socket, from->http ? http_address(from->http) : "off",
                 pool_bytes(env->pool) >> 20);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Implements collect-io.h. Each counter is read from the part that counts it; nothing is kept. Loop
 * thread; cannot fail. */
#include "report/collect-io.h"

#include <stdio.h>
#include <string.h>

#include "benchmark/benchmark.h"
#include "checked.h"
#include "remote/remote.h"
#include "request/request.h"
#include "text.h"

static_assert((int)METRICS_IO_OPS == (int)KIO_OP_END, "each I/O op has its counter");
static_assert((int)METRICS_REMOTE_REJECTIONS == (int)REMOTE_REJECTIONS - 1, "a reason each");
static_assert((int)METRICS_REMOTE_OPS == (int)BACKEND_OP_END, "each operation has its counter");

static void collect_remote(const struct remote *remote, struct metrics *s)
{
        static const double breakers[] = {
                [REMOTE_CLOSED] = 0, [REMOTE_HALF_OPEN] = 1, [REMOTE_OPEN] = 2
        };
        static struct remote_stats r; /* too large for the stack */
        struct remote_status status;

        if (!remote)
                return;
        remote_get_stats(remote, &r);
        remote_get_status(remote, &status);
        s->remote_breaker = breakers[status.breaker];
        s->remote_trips = (double)r.trips;
        s->remote_full = status.full;
        s->remote_namespaces = status.namespaces;
        s->remote_unknown_namespaces = status.unknown;
        s->remote_gets[METRICS_REMOTE_HIT] = (double)r.hits;
        s->remote_gets[METRICS_REMOTE_MISS] = (double)r.misses;
        s->remote_gets[METRICS_REMOTE_LATE] = (double)r.late;
        for (unsigned i = 0; i < ARRAY_SIZE(r.refused); i++)
                s->remote_gets[METRICS_REMOTE_NO_ENGINE + i] = (double)r.refused[i];
        s->remote_get_bytes = (double)r.get_bytes;
        for (unsigned i = 0; i < METRICS_REMOTE_REJECTIONS; i++)
                s->remote_rejected[i] = (double)r.rejected[i + 1];
        s->remote_deletes = (double)r.deletes;
        s->remote_probes = (double)r.probes;
        s->remote_searches = (double)r.searches;
        s->remote_puts[METRICS_REMOTE_WRITTEN] = (double)r.puts;
        s->remote_puts[METRICS_REMOTE_EXISTING] = (double)r.puts_existing;
        for (unsigned i = 0; i < ARRAY_SIZE(r.dropped); i++)
                s->remote_puts[METRICS_REMOTE_DROPPED + i] = (double)r.dropped[i];
        for (unsigned i = 0; i < METRICS_REMOTE_OFFERS; i++)
                s->remote_offers[i] = (double)r.offers[i];
        s->remote_put_bytes = (double)r.put_bytes;
        s->remote_queued = (double)r.queued;
        s->remote_queued_bytes = (double)r.queued_bytes;
        s->remote_inflight_bytes[METRICS_REMOTE_READ] = (double)r.reading_bytes;
        s->remote_inflight_bytes[METRICS_REMOTE_WRITE] = (double)r.writing_bytes;
        s->remote_operations = (double)r.inflight;
        for (unsigned i = 0; i < METRICS_REMOTE_OPS; i++)
                s->remote_errors[i] = (double)r.errors[i];
        s->remote_purges[METRICS_REMOTE_OWN] = (double)r.purges;
        s->remote_purges[METRICS_REMOTE_OTHER] = (double)r.purges_seen;
        histogram_merge(&s->remote_duration[METRICS_REMOTE_READ], &r.get_times);
        histogram_merge(&s->remote_duration[METRICS_REMOTE_WRITE], &r.put_times);
}

static void collect_volumes(const struct status_sources *from, struct metrics *s)
{
        const struct store *store = from->service->store;
        struct store_volume_stats p;

        for (unsigned i = 0; i < METRICS_VOLUMES && store_get_volume_stats(store, i, &p); i++) {
                char *name = s->volume_names[i];

                snprintf(name, METRICS_VOLUME_NAME, "%s", p.path);
                for (text_clean(name); *name; name++)
                        if (*name == '"' || *name == '\\')
                                *name = '?';
                s->volume_bypassed[i] = p.state != STORE_VOLUME_UP;
                s->volume_up[i] = p.state == STORE_VOLUME_UP;
                s->volume_failed[i] = p.state == STORE_VOLUME_BYPASSED && !p.hung;
                s->volume_hung[i] = p.state == STORE_VOLUME_BYPASSED && p.hung;
                s->volume_suspended[i] = p.state == STORE_VOLUME_SUSPENDED;
                s->volume_resuming[i] = p.state == STORE_VOLUME_RESUMING;
                s->volume_state_since[i] = (double)(p.since_ms ?: from->started_unix_ms) / 1e3;
                s->volume_bypasses[i] = (double)p.bypasses;
                s->volume_read_errors[i] = (double)p.stats.read_errors;
                s->volume_write_errors[i] = (double)p.stats.write_errors;
                s->volume_sync_errors[i] = (double)p.stats.sync_errors;
                s->volume_checksum_errors[i] = (double)p.stats.crc_failures;
                s->volume_lost_chunks[i] = (double)p.stats.lost_chunks;
                s->volume_lost_files[i] = (double)p.stats.lost_files;
                s->volume_full[i] = p.full;
                s->volume_full_refusals[i] = (double)p.full_refusals;
                s->volume_limit_bytes[i] = (double)p.stats.limit;
                s->volume_live_bytes[i] = (double)p.stats.payload_bytes;
                s->volume_used_bytes[i] = (double)p.stats.used_bytes;
                s->volume_chunks[i] = (double)p.stats.chunks;
                s->volume_pending[i] = (double)p.pending;
                s->volume_written_bytes[i] =
                        (double)(p.stats.payload_bytes_written + p.stats.table_bytes_written +
                                 p.stats.prewrite_bytes_written);
                s->volume_read_bytes[i] = (double)p.stats.bytes_read;
        }
}

static void collect_io(const struct kio *io, struct metrics *s)
{
        struct kio_info info;
        struct kio_stats k;

        kio_get_info(io, &info);
        s->registrations_refused[METRICS_REGISTERED_POOL] = (double)info.registrations_refused;

        kio_get_stats(io, &k);
        for (unsigned i = 0; i < METRICS_IO_OPS; i++) {
                s->io_ops[i] = (double)k.ops[i];
                s->io_merged[i] = (double)k.joined[i];
                s->io_bytes[i] = (double)k.bytes[i];
                s->io_errors[i] = (double)k.errors[i];
        }
        s->io_resubmitted = (double)k.resubmitted;
        s->io_wiped = (double)k.wiped;
        s->io_registered_ops = (double)k.registered_ops;
        s->io_inflight = (double)k.inflight;
        s->io_queued = (double)k.queued;
        s->io_inflight_seconds = (double)k.inflight_time_ns / 1e9;
        s->io_busy_seconds = (double)k.busy_time_ns / 1e9;
        s->io_wakeups = (double)k.wakeups;
        s->spin[METRICS_SPIN_WORKERS] = (double)k.spun_ns / 1e9;
}

static_assert((int)METRICS_TRANSFERS == (int)TRANSFERS_SERIES + (int)BENCH_CLIENT_SERIES,
              "all that is recorded, by the daemon and by clients");

static void collect_series(const struct transfer_series *from, unsigned i, struct metrics *s)
{
        snprintf(s->transfer_names[i], METRICS_TRANSFER_NAME, "%s,%s,%s",
                 transfer_path_name(from->path), transfer_layout_name(from->layout),
                 transfer_technology_name(from->technology));
        s->transfer_bytes[i] = (double)from->bytes;
        s->transfer_device_bytes[i] = (double)from->device_bytes;
        s->transfer_blocks[i] = (double)from->blocks;
        s->transfer_busy[i] = (double)from->busy_ns / 1e9;
        s->transfer_duration[i] = from->latencies;
        s->transfer_sizes[i] = from->sizes;
        for (unsigned r = 0; r < TRANSFER_RESULTS; r++) {
                unsigned op = i * TRANSFER_RESULTS + r;

                snprintf(s->transfer_op_names[op], METRICS_TRANSFER_NAME, "%.80s,%s",
                         s->transfer_names[i], transfer_result_name(r));
                s->transfer_ops[op] = (double)from->ops[r];
        }
}

/* Adds a client's series to the daemon's series of the same name. */
static void merge_series(struct transfer_series *to, const struct transfer_series *from)
{
        for (unsigned r = 0; r < TRANSFER_RESULTS; r++)
                to->ops[r] += from->ops[r];
        to->blocks += from->blocks;
        to->bytes += from->bytes;
        to->device_bytes += from->device_bytes;
        to->busy_ns += from->busy_ns;
        histogram_merge(&to->sizes, &from->sizes);
        histogram_merge(&to->latencies, &from->latencies);
}

static bool is_same_series(const struct transfer_series *a, const struct transfer_series *b)
{
        return a->path == b->path && a->layout == b->layout && a->technology == b->technology;
}

static_assert((int)METRICS_QUEUED == (int)TRANSFERS_SERIES, "each series has its operation");

static void collect_transfers(const struct transfers *own, struct bench *bench, struct metrics *s)
{
        static struct transfer_series all[METRICS_TRANSFERS]; /* too large for the stack */
        unsigned n = TRANSFERS_SERIES, n_clients, k;
        const struct transfer_series *clients = bench_clients(bench, &n_clients);

        memcpy(all, own->series, sizeof(own->series));
        for (unsigned i = 0; i < METRICS_QUEUED; i++)
                s->io_queue_duration[i] = own->series[i].queued;
        for (unsigned i = 0; i < n_clients; i++) {
                for (k = 0; k < TRANSFERS_SERIES && !is_same_series(&all[k], &clients[i]); k++)
                        ;
                if (k < TRANSFERS_SERIES)
                        merge_series(&all[k], &clients[i]);
                else
                        all[n++] = clients[i];
        }
        for (unsigned i = 0; i < n; i++)
                collect_series(&all[i], i, s);
}

static void collect_bench(const struct bench *bench, struct metrics *s)
{
        struct bench_stats b;

        bench_get_stats(bench, &b);
        s->bench_sessions = b.sessions;
        s->bench_session_enabled = b.enabled;
        s->bench_session_saves = (double)b.saved;
        s->bench_session_save_errors = (double)b.save_errors;
        s->transfer_impossible = (double)b.impossible;
}

void status_collect_io(const struct status_sources *from, struct metrics *ret)
{
        const struct service *service = from->service;

        collect_remote(service->remote, ret);
        collect_volumes(from, ret);
        collect_io(service->io, ret);
        collect_transfers(kio_transfers(service->io), service->bench, ret);
        collect_bench(service->bench, ret);
}

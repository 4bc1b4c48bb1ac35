/* SPDX-License-Identifier: Apache-2.0 */
/* Decides whether the daemon is alive, ready or degraded, for the probes, the status, the metrics
 * and the page.
 *
 * Alive: the loop runs this code, and the workers advance. Ready: clients are served and a put can
 * reach a disk. Degraded: the daemon works with less than was configured. Each reason is a sentence
 * and a label of kvcache_degraded. A deliberate setting (io.backend posix, io.direct off) is not a
 * degradation. */
#include "report/health.h"

#include <stdarg.h>
#include <string.h>

#include "base/clock.h"
#include "units.h"
#include "checked.h"
#include "config/config.h"
#include "remote/remote.h"
#include "request/request.h"
#include "report/sums.h"
#include "cache/populate.h"

/* Time for which a volume counts as degraded after a checksum mismatch. */
#define CHECKSUMS_NS (UINT64_C(3600) * 1000000000)

/* Time for which a volume counts as degraded after opening it found files missing or short. */
#define LOSSES_NS (UINT64_C(3600) * 1000000000)

/* --- volumes --- */

const char *status_volume_state(const struct store_volume_stats *p)
{
        static const char *const names[STORE_VOLUME_STATE_END] = {
                [STORE_VOLUME_UP] = "up",
                [STORE_VOLUME_BYPASSED] = "bypassed",
                [STORE_VOLUME_SUSPENDED] = "suspended",
                [STORE_VOLUME_RESUMING] = "resuming",
        };

        /* Operations that were submitted before the device hung are still pending. */
        if (p->state == STORE_VOLUME_BYPASSED && p->hung && p->pending > 0)
                return "hung";
        return names[p->state];
}

/* Describes the state and the reason of a volume that is not up. */
static void describe_volume(const struct store_volume_stats *p, char ret[static STATUS_TEXT])
{
        const char *state = status_volume_state(p), *after = "";
        bool by_hand = p->state == STORE_VOLUME_SUSPENDED &&
                       strcmp(p->reason, STORE_SUSPENDED_BY_HAND) == 0;

        if (p->state == STORE_VOLUME_BYPASSED && p->hung && p->pending == 0)
                after = "; its device answers again: resume the volume";
        snprintf(ret, STATUS_TEXT, "volume %.200s is %s%s%.250s%s", p->path,
                 by_hand                             ? p->reason
                 : p->state == STORE_VOLUME_RESUMING ? "being resumed"
                                                     : state,
                 by_hand || !p->reason[0]             ? ""
                 : p->state == STORE_VOLUME_SUSPENDED ? " by an admin; before that: "
                                                      : ": ",
                 by_hand ? "" : p->reason, after);
}

/* --- degradations --- */

__attribute__((format(printf, 3, 4))) static void
add(struct status_health *h, enum metrics_degradation reason, const char *fmt, ...)
{
        va_list args;

        if (h->n == ARRAY_SIZE(h->degraded))
                return;
        h->degraded[h->n].reason = reason;
        va_start(args, fmt);
        vsnprintf(h->degraded[h->n++].text, STATUS_TEXT, fmt, args);
        va_end(args);
}

static void check_checksums(const struct store_volume_stats *p, uint64_t now_ns,
                            struct status_health *h)
{
        uint64_t failed_ns = p->stats.crc_failed_ns;
        char chunks[UNITS_TEXT], since[UNITS_TEXT];

        if (failed_ns == 0 || now_ns - MIN(now_ns, failed_ns) > CHECKSUMS_NS)
                return;
        add(h, METRICS_DEGRADED_VOLUME_CHECKSUMS,
            "volume %.200s returned wrong bytes for %s since startup, most recently %s ago; they "
            "are dropped: run kvcachectl verify, and look at the device",
            p->path, units_count(p->stats.crc_failures, "chunk", chunks),
            units_ms((now_ns - MIN(now_ns, failed_ns)) / 1000000, since));
}

/* Reports losses that opening the volume found within the last LOSSES_NS. Leaves out the number of
 * chunks if it is unknown, because the table is missing, cut or replaced. */
static void check_losses(const struct store_volume_stats *p, uint64_t now_ns,
                         struct status_health *h)
{
        uint64_t found_ns = p->stats.lost_ns;
        char chunks[UNITS_TEXT], files[UNITS_TEXT], since[UNITS_TEXT];

        if (found_ns == 0 || now_ns - MIN(now_ns, found_ns) > LOSSES_NS)
                return;
        add(h, METRICS_DEGRADED_VOLUME_LOSSES,
            "volume %.200s lost %s, as %s of it had been removed or cut; found when it was opened "
            "%s ago, and the log names the files",
            p->path,
            p->stats.lost_chunks > 0 ? units_count(p->stats.lost_chunks, "chunk", chunks)
                                     : "chunks",
            units_count(p->stats.lost_files, "file", files),
            units_ms((now_ns - MIN(now_ns, found_ns)) / 1000000, since));
}

static void check_volumes(const struct store *store, struct status_health *h)
{
        static const enum metrics_degradation of_state[STORE_VOLUME_STATE_END] = {
                [STORE_VOLUME_BYPASSED] = METRICS_DEGRADED_VOLUME_FAILED,
                [STORE_VOLUME_SUSPENDED] = METRICS_DEGRADED_VOLUME_SUSPENDED,
                [STORE_VOLUME_RESUMING] = METRICS_DEGRADED_VOLUME_RESUMING,
        };
        struct store_volume_stats p;
        char text[STATUS_TEXT];
        uint64_t now_ns = clock_mono_ns();

        for (unsigned i = 0; store_get_volume_stats(store, i, &p); i++) {
                if (p.state == STORE_VOLUME_UP) {
                        if (p.full)
                                add(h, METRICS_DEGRADED_VOLUME_FULL,
                                    "volume %.200s does not grow: its file system has no free "
                                    "space above store.reserve",
                                    p.path);
                        check_checksums(&p, now_ns, h);
                        check_losses(&p, now_ns, h);
                        continue;
                }
                describe_volume(&p, text);
                add(h,
                    p.state == STORE_VOLUME_BYPASSED && p.hung ? METRICS_DEGRADED_VOLUME_HUNG
                                                               : of_state[p.state],
                    "%s", text);
        }
}

static void look_at_io(const struct status_sources *from, struct status_health *h)
{
        const struct config *c = from->config;
        struct store_stats store;
        struct kio_info io;
        bool posix;

        kio_get_info(from->service->io, &io);
        store_get_stats(from->service->store, &store);
        posix = strcmp(io.backend, "posix") == 0;
        if (posix && strcmp(c->io.backend, "posix") != 0)
                add(h, METRICS_DEGRADED_IO_FALLBACK, "I/O uses threads instead of io_uring: %s",
                    io.reason);
        if (c->io.direct && !store.direct && !store.bypassed)
                add(h, METRICS_DEGRADED_IO_BUFFERED,
                    "I/O uses the page cache instead of O_DIRECT: %s", store.direct_reason);
        if (!posix && io.registration_error < 0)
                add(h, METRICS_DEGRADED_IO_UNREGISTERED,
                    "the memory pool is not registered with the I/O rings: %s",
                    io.registered_reason);
}

static void check_remote(const struct remote *remote, struct status_health *h)
{
        struct remote_status s;
        char since[UNITS_TEXT];

        if (!remote)
                return;
        remote_get_status(remote, &s);
        if (s.breaker != REMOTE_CLOSED)
                add(h, METRICS_DEGRADED_REMOTE_OFFLINE,
                    "the shared tier (%s) has been offline for %s: %.160s; the daemon retries "
                    "periodically",
                    s.backend, units_ms((clock_mono_ns() - s.since_ns) / 1000000, since), s.reason);
        else if (s.full)
                add(h, METRICS_DEGRADED_REMOTE_FULL,
                    "the shared tier (%s) is full: nothing is written there", s.backend);
}

void status_get_health(const struct status_sources *from, struct status_health *ret)
{
        struct store_stats store;
        struct pool_stats pool;
        char have[UNITS_TEXT], want[UNITS_TEXT];

        store_get_stats(from->service->store, &store);
        ret->n = 0;
        ret->state = from->draining   ? "stopping"
                     : !from->ready   ? "starting"
                     : store.bypassed ? "offline"
                                      : "ready";
        ret->ready = strcmp(ret->state, "ready") == 0;
        if (store.bypassed)
                add(ret, METRICS_DEGRADED_STORE_OFFLINE,
                    "no volume of the store is in use: nothing is written to disk or read from it; "
                    "kvcachectl device ls says why");
        check_volumes(from->service->store, ret);
        look_at_io(from, ret);
        check_remote(from->service->remote, ret);
        if (from->populate && populate_is_short(from->populate)) {
                status_collect_pools(from->service, &pool);
                add(ret, METRICS_DEGRADED_POOL_SHORT,
                    "the memory pool has %s of %s: the host is short of memory",
                    units_bytes(pool.populated_bytes, have), units_bytes(pool.bytes, want));
        }
        if (!from->http && strcmp(from->config->listen.http, "off") != 0)
                add(ret, METRICS_DEGRADED_HTTP_OFF,
                    "nothing is served over HTTP: %.100s was in use at startup; set "
                    "listen.http to another address, and restart the daemon",
                    from->config->listen.http);
}

/* --- the probes /readyz and /healthz --- */

bool status_is_ready(void *userdata, const char **ret_text)
{
        static struct status_health health; /* too large for the stack */
        static char text[sizeof(health.degraded) + 256];
        int n;

        status_get_health(userdata, &health);
        n = snprintf(text, sizeof(text), "%s",
                     strcmp(health.state, "ready") == 0      ? "ready"
                     : strcmp(health.state, "stopping") == 0 ? "not ready: stopping"
                     : strcmp(health.state, "offline") == 0
                             ? "not ready: no volume of the store is in use; chunks live in memory "
                               "only"
                             : "not ready: starting");
        for (unsigned i = 0; i < health.n; i++)
                n += snprintf(text + n, sizeof(text) - (size_t)n, "\ndegraded: %s",
                              health.degraded[i].text);
        *ret_text = text;
        return health.ready;
}

bool status_is_healthy(void *userdata, const char **ret_text)
{
        const struct status_sources *from = userdata;
        static char text[160];
        char since[UNITS_TEXT];

        *ret_text = "ok";
        if (!from->workers_stuck_ns)
                return true;
        snprintf(text, sizeof(text),
                 "a worker thread has made no progress for %s: restart the daemon if this lasts",
                 units_ms(from->workers_stuck_ns / 1000000, since));
        *ret_text = text;
        return false;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The composition root. Builds the parts from the bottom up, runs the loop, and takes them down in
 * reverse.
 *
 * In a loop iteration libevent first handles readable descriptors: sessions read and handle
 * requests, and completions of workers are reaped. Then store, sessions and cache do the work that
 * they deferred to the end of the iteration. Finally the workers are woken for the submitted
 * requests; if there are many, they are woken earlier.
 *
 * A failure at startup is one line and an exit status; after startup only a signal ends the loop
 * (server-stop.c). */
#include "server-internal.h"

#include <errno.h>
#include <signal.h>

#include "base/clock.h"
#include "units.h"
#include "benchmark/benchmark.h"
#include "learned/learned.h"
#include "events/events.h"
#include "remote/remote.h"
#include "report/sums.h"
#include "request/hits.h"
#include "request/audit.h"
#include "request/recorder.h"
#include "checked.h"

enum {
        STATUS_LINE_MS = 10000,
        TICK_MS = 1000,
        WORKERS_STUCK_MS = 10000,
};

static void on_done(evutil_socket_t fd, short what, void *userdata)
{
        struct server *s = userdata;

        sessions_woken(s->sessions);
        kio_reap(s->service.io);
}

static void on_wait(evutil_socket_t fd, short what, void *userdata)
{
        /* the timer only wakes the loop; cache_iterate() checks the deadlines */
}

static void on_term(evutil_socket_t fd, short what, void *userdata)
{
        server_begin_drain(userdata);
}

/* Returns whether no client has been connected for listen.idle. Returns false if that is 0, and
 * once the daemon is stopping. */
static bool is_idle(struct server *s, uint64_t now_ns)
{
        struct sessions_stats sessions;
        char idle[UNITS_TEXT];

        sessions_get_stats(s->sessions, &sessions);
        if (sessions.open > 0 || sessions.accepted != s->idle.accepted || s->idle.since_ns == 0) {
                s->idle.accepted = sessions.accepted;
                s->idle.since_ns = now_ns;
        }
        if (s->draining || s->config->listen.idle_ms == 0 ||
            now_ns - s->idle.since_ns < s->config->listen.idle_ms * UINT64_C(1000000))
                return false;
        log_info("no client has been connected for %s (listen.idle), so the daemon stops",
                 units_ms(s->config->listen.idle_ms, idle));
        return true;
}

static void on_drain_late(evutil_socket_t fd, short what, void *userdata)
{
        ((struct server *)userdata)->drain_late = true;
}

static void on_hangup(evutil_socket_t fd, short what, void *userdata)
{
        server_reload(userdata, NULL);
}

/* Checks the workers for /healthz and the watchdog. This is the only caller of kio_is_alive(),
 * because its answer covers the time since the last call. */
static void check_workers(struct server *s)
{
        uint64_t now = clock_mono_ns(), stuck_ns;
        char since[UNITS_TEXT];

        if (kio_is_alive(s->service.io)) {
                if (s->sources.workers_stuck_ns)
                        log_notice("all worker threads make progress again");
                s->workers_alive_ns = now;
                s->sources.workers_stuck_ns = 0;
                return;
        }
        stuck_ns = now - s->workers_alive_ns;
        if (stuck_ns < WORKERS_STUCK_MS * UINT64_C(1000000))
                return;
        if (!s->sources.workers_stuck_ns)
                log_error("a worker thread has made no progress for %s; /healthz answers 503, and "
                          "systemd restarts a daemon with WatchdogSec= if this lasts",
                          units_ms(stuck_ns / 1000000, since));
        s->sources.workers_stuck_ns = stuck_ns;
}

/* Feeds the watchdog. The loop runs this, so the watchdog is fed only while the loop iterates and
 * every worker makes progress. */
static void on_watchdog(evutil_socket_t fd, short what, void *userdata)
{
        struct server *s = userdata;

        if (!s->sources.workers_stuck_ns)
                notify_watchdog();
}

static void on_tick(evutil_socket_t fd, short what, void *userdata)
{
        struct server *s = userdata;

        if (is_idle(s, clock_mono_ns()))
                server_begin_drain(s);
        check_workers(s);
        store_tick(s->service.store);
        server_count_writes(s);
        server_start_expiry(s);
        server_expire_namespaces(s, clock_mono_ns());
        bench_tick(s->service.bench, clock_mono_ns());
        learned_tick(s->learned, clock_mono_ns(), s->config->eviction.save_interval_ms);
        recorder_tick(&s->service, clock_mono_ns());
        audit_tick(&s->service, clock_mono_ns());
        history_tick(&s->history, &s->sources, clock_mono_ns());
        namespace_view_tick(&s->sources, clock_mono_ns());
        if (s->service.lookups)
                lookups_tick(s->service.lookups, clock_mono_ns());
        hits_tick(&s->service);
        for (unsigned i = 0; i < s->service.n_tenants; i++)
                announced_expire(s->tenants[i].announced, clock_mono_ns());
        sessions_end_revoked(s->sessions);
}

static void on_status_line(evutil_socket_t fd, short what, void *userdata)
{
        struct server *s = userdata;
        static struct status_health health; /* static, because it is large and only the loop thread
                                             * uses it */
        struct sessions_stats sessions;
        struct store_stats store;
        char hits[64] = "";
        double ratio;
        const char *of;
        char clients[UNITS_TEXT], chunks[UNITS_TEXT], live[UNITS_TEXT], reserved[UNITS_TEXT],
                limit[UNITS_TEXT];

        sessions_count_lookups(s->sessions);
        of = status_hit_ratio(&s->service, &ratio);
        if (of)
                snprintf(hits, sizeof(hits), ", %.1f %% of keys found (%s)", 100 * ratio, of);
        sessions_get_stats(s->sessions, &sessions);
        store_get_stats(s->service.store, &store);
        status_get_health(&s->sources, &health);
        notify_status(
                "%s%s; %s, %s on disk: %s live, %s reserved of %s%s", health.state,
                health.n > 0 ? ", degraded (see \"kvcachectl status\")" : "",
                units_count(sessions.open, "client", clients),
                units_count(store.chunks, "chunk", chunks), units_bytes(store.payload_bytes, live),
                units_bytes(store.used_bytes, reserved), units_bytes(store.limit, limit), hits);
}

uint64_t server_available_memory(void *userdata)
{
        bool limited;

        return config_available_memory("", &limited);
}

static void on_slab(void *userdata, unsigned pool)
{
        struct server *s = userdata;
        char bytes[UNITS_TEXT];
        struct pool_stats all;

        cache_kick(s->tenants[pool].cache);
        if (pool_next_slab(s->tenants[pool].pool) >= 0)
                return;
        status_collect_pools(&s->service, &all);
        if (all.populated_bytes == all.bytes)
                log_debug("all %s of the memory pool are in memory", units_bytes(all.bytes, bytes));
}

static void on_short_of_memory(void *userdata)
{
        struct server *s = userdata;
        char populated[UNITS_TEXT], all[UNITS_TEXT];
        struct pool_stats pool;

        status_collect_pools(&s->service, &pool);
        log_warning("the host is short of memory; the pool stops growing at %s of %s for now",
                    units_bytes(pool.populated_bytes, populated), units_bytes(pool.bytes, all));
}

/* Logs the consequence and the remedy of a refusal to register memory. With POSIX I/O nothing is
 * registered, so there is no refusal. */
static void on_registration_refused(void *userdata)
{
        const struct server *s = userdata;
        struct kio_info io;

        kio_get_info(s->service.io, &io);
        if (io.registration_error < 0)
                log_warning(
                        "the pool is not registered with the I/O rings: %s; reads and writes use "
                        "more CPU time%s",
                        io.registered_reason,
                        io.registration_error == -ENOMEM
                                ? ". Raise the limit above memory.pool times io.workers "
                                  "(LimitMEMLOCK=infinity in the unit, or \"ulimit -l unlimited\")"
                                : "");
}

static int add_events(struct server *s)
{
        uint64_t watchdog_us = notify_watchdog_us();
        long tick_ms = (long)MIN(s->config->io.hang_ms / 4, (uint64_t)TICK_MS);

        s->done = event_new(s->base, kio_fd(s->service.io), EV_READ | EV_PERSIST, on_done, s);
        s->wait = evtimer_new(s->base, on_wait, s);
        s->term = evsignal_new(s->base, SIGTERM, on_term, s);
        s->interrupt = evsignal_new(s->base, SIGINT, on_term, s);
        s->hangup = evsignal_new(s->base, SIGHUP, on_hangup, s);
        s->watchdog = event_new(s->base, -1, EV_PERSIST, on_watchdog, s);
        s->status_line = event_new(s->base, -1, EV_PERSIST, on_status_line, s);
        s->drain = evtimer_new(s->base, on_drain_late, s);
        s->workers_alive_ns = clock_mono_ns();
        s->tick = event_new(s->base, -1, EV_PERSIST, on_tick, s);
        if (!s->done || !s->wait || !s->term || !s->interrupt || !s->hangup || !s->watchdog ||
            !s->status_line || !s->drain || !s->tick || server_add_expiry(s) < 0)
                return -ENOMEM;
        event_add(s->done, NULL);
        event_add(s->term, NULL);
        event_add(s->interrupt, NULL);
        event_add(s->hangup, NULL);
        event_add(s->tick,
                  &(struct timeval){ .tv_sec = tick_ms / 1000, .tv_usec = tick_ms % 1000 * 1000 });
        if (notify_wanted())
                event_add(s->status_line, &(struct timeval){ .tv_sec = STATUS_LINE_MS / 1000 });
        if (watchdog_us)
                event_add(s->watchdog,
                          &(struct timeval){ .tv_sec = (time_t)(watchdog_us / 2000000),
                                             .tv_usec = (suseconds_t)(watchdog_us / 2 % 1000000) });
        return 0;
}

/* Drops purged chunks of one pool per iteration; pools with such chunks take turns. */
static void sweep(struct server *s)
{
        uint64_t began_ns = clock_mono_ns();

        for (unsigned i = 0; i < s->service.n_tenants; i++) {
                if (!cache_sweep(s->tenants[s->sweep_turn++ % s->service.n_tenants].cache))
                        continue;
                histogram_add(&s->sources.loop[METRICS_LOOP_PURGE_MEMORY],
                              clock_mono_ns() - began_ns);
                return;
        }
}

/* Offers the shared tier the chunks that are evicted next. */
static void offer_leaving(struct server *s)
{
        cache_offer_leaving_disk(s->service.store, s->service.remote);
        for (unsigned i = 0; i < s->service.n_tenants; i++)
                cache_offer_leaving_memory(s->tenants[i].cache);
}

bool server_iterate(struct server *s)
{
        uint64_t deadline, of_store, of_hits, of_events = 0, now = clock_mono_ns();
        bool more, unhurried;

        store_iterate(s->service.store);
        more = sessions_iterate(s->sessions);
        sweep(s);
        if (s->service.remote)
                offer_leaving(s);
        deadline = s->service.remote ? remote_iterate(s->service.remote, now) : 0;
        /* Runs after all calls that may submit a request or end a wait. */
        for (unsigned i = 0; i < s->service.n_tenants; i++) {
                uint64_t of_this = cache_iterate(s->tenants[i].cache, now);

                if (deadline == 0 || (of_this != 0 && of_this < deadline))
                        deadline = of_this;
        }
        store_iterate(s->service.store);
        of_store = store_deadline_ns(s->service.store);
        if (deadline == 0 || (of_store != 0 && of_store < deadline))
                deadline = of_store;
        if (s->service.lookups)
                more |= lookups_iterate(s->service.lookups, now, LOOKUPS_SLICE_NS);
        more = learned_iterate(s->learned) || more || sessions_active(s->sessions);
        more |= server_iterate_keep(s);
        more |= hits_iterate(&s->service, now);
        of_hits = hits_retry_ns(&s->service, now);
        if (deadline == 0 || (of_hits != 0 && of_hits < deadline))
                deadline = of_hits;
        if (s->service.events)
                more |= events_iterate(s->service.events, now, &of_events);
        if (deadline == 0 || (of_events != 0 && of_events < deadline))
                deadline = of_events;
        for (unsigned i = 0; i < s->service.n_tenants; i++)
                more = more || cache_has_work(s->tenants[i].cache);
        kio_flush(s->service.io);
        unhurried = sessions_are_ending(s->sessions) || hits_are_behind(&s->service);
        if (s->draining || more) {
                more |= unhurried;
        } else {
                uint64_t rest = rest_until(&s->rest, unhurried, now);

                more = unhurried && rest == 0;
                if (deadline == 0 || (rest != 0 && rest < deadline))
                        deadline = rest;
        }
        s->wake_ns = more ? 0 : deadline;
        if (s->wake_ns > 0) {
                uint64_t left_us = deadline > now ? (deadline - now) / 1000 + 1 : 1;

                event_add(s->wait,
                          &(struct timeval){ .tv_sec = (time_t)(left_us / 1000000),
                                             .tv_usec = (suseconds_t)(left_us % 1000000) });
        }
        return more;
}

/* Sleeps until an event arrives, unless there is more to do. If a client's request arrived within
 * SPIN_CLIENT_NS and recent waits were short, polls without sleeping for a moment instead; if no
 * event arrives in that time, the loop iterates once and sleeps then. */
static void wait_for_events(struct server *s, bool more)
{
        uint64_t now, end, budget = 0;
        bool polls;

        if (s->spin.limit_ns == 0) {
                sessions_poll_begins(s->sessions);
                event_base_loop(s->base, EVLOOP_ONCE | (more ? EVLOOP_NONBLOCK : 0));
                return;
        }
        now = clock_mono_ns();
        sessions_poll_begins(s->sessions);
        if (!s->has_polled)
                s->wait_began_ns = now;
        if (!more && !s->has_polled)
                budget = spin_budget_of_daemon(&s->spin, sessions_received_ns(s->sessions), now);
        polls = budget > 0;
        end = spin_end(now, budget, s->wake_ns);
        do
                event_base_loop(s->base, EVLOOP_ONCE | (more || polls ? EVLOOP_NONBLOCK : 0));
        while (polls && !sessions_woken_ns(s->sessions) && !sessions_active(s->sessions) &&
               clock_mono_ns() < end);
        s->has_polled = polls && !sessions_woken_ns(s->sessions);
        if (more)
                return;
        now = clock_mono_ns();
        if (polls)
                s->sources.loop_spun_ns += now - s->wait_began_ns;
        if (!s->has_polled)
                spin_learn(&s->spin, now - s->wait_began_ns);
}

static void run_loop(struct server *s)
{
        bool more = false;

        while (!s->draining ||
               ((server_caches_pending(s) > 0 || sessions_busy(s->sessions)) && !s->drain_late)) {
                wait_for_events(s, more);
                more = server_iterate(s);
                if (sessions_woken_ns(s->sessions))
                        histogram_add(&s->sources.loop[METRICS_LOOP_ITERATION],
                                      clock_mono_ns() - sessions_woken_ns(s->sessions));
        }
}

static int start(struct server *s)
{
        struct populate_params populate = {
                .available = server_available_memory,
                .on_slab = on_slab,
                .on_short = on_short_of_memory,
                .on_refused = on_registration_refused,
                .userdata = s,
        };
        struct pool *pools[CONFIG_MAX_TENANTS];
        int r;

        s->staging_bytes_auto = config_auto_staging(s->config, "");
        server_raise_limits();
        signal(SIGPIPE, SIG_IGN);
        signal(SIGXFSZ, SIG_IGN); /* makes a write beyond RLIMIT_FSIZE fail with EFBIG */
        signal(SIGIO, SIG_IGN);   /* store/volume/lend.c uses file leases, which send this signal */
        r = notify_inherit(&s->inherited);
        if (r < 0)
                return server_fail(r, "taking over the inherited sockets", NULL);
        s->base = event_base_new();
        if (!s->base)
                return server_fail(-ENOMEM, "making the event loop", NULL);
        r = liveness_open(&s->liveness);
        if (r < 0)
                return server_fail(r, "making the liveness file", NULL);
        if ((r = server_check_listener(s)) != 0 || (r = server_start_tenants(s)) != 0 ||
            (r = server_start_pools(s)) != 0 || (r = server_start_store(s)) != 0 ||
            (r = server_start_service(s)) != 0)
                return r;
        s->sources = (struct status_sources){
                .config = s->config,
                .service = &s->service,
                .namespaces = &s->namespace_history,
                .sessions = s->sessions,
                .started_unix_ms = clock_unix_ms(),
                .started_ns = clock_mono_ns(),
                .learned = s->learned,
                .keep = s->keep.keep,
                .keep_ready = &s->keep.ready,
                .keep_why_not = s->keep.why_not,
                .instance = s->instance,
        };
        server_note_files(s, s->config, s->params->config_read_unix_ms);
        r = add_events(s);
        if (r < 0)
                return server_fail(r, "adding events to the event loop", NULL);
        if ((r = server_start_listener(s)) != 0 || (r = server_start_http(s)) != 0)
                return r;
        s->sources.http = s->http;

        for (unsigned i = 0; i < s->service.n_tenants; i++)
                pools[i] = s->tenants[i].pool;
        populate.pools = pools;
        populate.n_pools = s->service.n_tenants;
        populate.io = s->service.io;
        populate.reserve_bytes = MIN(server_available_memory(NULL) / 16, (uint64_t)256 << 20);
        r = populate_start(&s->populate, s->base, &populate);
        if (r < 0)
                return server_fail(r, "populating the memory pool", NULL);
        s->sources.populate = s->populate;
        return 0;
}

int server_run(const struct server_params *params)
{
        struct server s = {
                .params = params,
                .config = params->config,
                .liveness = { .locked_fd = -1, .handout_fd = -1 },
                .inherited = { .listen = -1, .http = -1 },
                .exhausted = LOG_RATELIMIT_INIT(1),
                .full = LOG_RATELIMIT_INIT(1),
                .findings = LOG_RATELIMIT_INIT(10),
        };
        int status;

        notify_status("starting: opening the store and reading its tables; nothing is served yet");
        status = start(&s);
        if (status == 0) {
                s.sources.ready = true;
                status_log_started(&s.sources);
                history_tick(&s.history, &s.sources, clock_mono_ns());
                notify_ready();
                on_status_line(-1, 0, &s);
                server_iterate(&s);
                run_loop(&s);
                server_close_all(&s);
                s.closed = true;
                log_info("stopped");
        }
        server_fini(&s);
        return status;
}

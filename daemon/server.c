/* SPDX-License-Identifier: Apache-2.0 */
/* The composition root. Builds the parts from the bottom up, runs the loop, and takes them down in
 * reverse.
 *
 * In a loop iteration libevent first handles readable descriptors: sessions read and handle
 * requests, and completions of workers are reaped. Then store, sessions and cache do the work that
 * they deferred to the end of the iteration. Finally the workers are woken for the submitted
 * requests; if there are many, they are woken earlier.
 *
 * A clean stop (SIGTERM, SIGINT): the daemon accepts and reads nothing new, answers the requests
 * that it has read and writes the chunks that it has accepted, for at most limits.drain. Then it
 * closes all sessions, and waits for operations of a hung device for io.hang at most. A failure at
 * startup is one line and an exit status; after startup only a signal ends the loop. */
#include "server-internal.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "units.h"
#include "benchmark/benchmark.h"
#include "learned/learned.h"
#include "events/events.h"
#include "evict/admission.h"
#include "fair/user.h"
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
        POLL_MS = 100,
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

/* --- sums over all tenants --- */

static struct cache_stats cache_stats(const struct server *s)
{
        struct cache_stats sum;

        status_collect_cache(&s->service, &sum);
        return sum;
}

static uint64_t caches_pending(const struct server *s)
{
        uint64_t pending = 0;

        for (unsigned i = 0; i < s->service.n_tenants; i++)
                pending += cache_pending(s->tenants[i].cache);
        return pending;
}

/* Counts the accepted chunks that are not on disk yet. */
static uint64_t count_unwritten(const struct server *s, uint64_t *ret_bytes)
{
        struct cache_stats cache = cache_stats(s);
        uint64_t chunks = cache.unwritten_chunks;

        *ret_bytes = cache.unwritten_bytes;
        for (unsigned i = 0; i < s->service.n_tenants; i++)
                cache_count_postponed(s->tenants[i].cache, &chunks, ret_bytes);
        return chunks;
}

static void begin_drain(struct server *s)
{
        char chunks[UNITS_TEXT], most[UNITS_TEXT];
        uint64_t unwritten, bytes;

        if (s->draining)
                return;
        s->draining = s->sources.draining = true;
        s->service.stopping = true;
        s->listener = listener_free(s->listener);
        sessions_drain(s->sessions);
        if (s->service.lookups)
                lookups_stop(s->service.lookups);
        if (s->service.events)
                events_stop(s->service.events);
        hits_suspend(&s->service, true);
        for (unsigned i = 0; i < s->service.n_tenants; i++)
                cache_stop(s->tenants[i].cache);
        server_stop_remote(s);
        populate_stop(s->populate);
        keep_stop(s->keep.keep);
        unwritten = count_unwritten(s, &bytes);
        if (unwritten > 0) {
                units_count(unwritten, "chunk", chunks);
                units_ms(s->config->limits.drain_ms, most);
                notify_stopping("writing %s not on disk yet", chunks);
                log_info("stopping: %s not on disk yet; writing for at most %s (limits.drain)",
                         chunks, most);
        } else {
                notify_stopping("every chunk is on disk");
                log_info("stopping");
        }
        event_add(s->drain,
                  &(struct timeval){
                          .tv_sec = (time_t)(s->config->limits.drain_ms / 1000),
                          .tv_usec = (suseconds_t)(s->config->limits.drain_ms % 1000 * 1000) });
}

static void on_term(evutil_socket_t fd, short what, void *userdata)
{
        begin_drain(userdata);
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
                begin_drain(s);
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

/* Does the work that was deferred to the end of the iteration. Returns true if the next iteration
 * must not wait. */
static bool run_iteration(struct server *s)
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
               ((caches_pending(s) > 0 || sessions_busy(s->sessions)) && !s->drain_late)) {
                wait_for_events(s, more);
                more = run_iteration(s);
                if (sessions_woken_ns(s->sessions))
                        histogram_add(&s->sources.loop[METRICS_LOOP_ITERATION],
                                      clock_mono_ns() - sessions_woken_ns(s->sessions));
        }
}

/* Returns whether everything has completed except the freeing of memory, which takes time but
 * cannot hang. */
static bool is_settled_except_memory(const struct server *s)
{
        return sessions_empty(s->sessions) && caches_pending(s) == 0 &&
               store_pending(s->service.store) == 0 &&
               kio_pending(s->service.io) <=
                       sessions_disposing(s->sessions) + sessions_stagings_closing(s->sessions);
}

static bool is_settled(const struct server *s)
{
        return sessions_stagings_closing(s->sessions) == 0 && is_settled_except_memory(s);
}

/* Exits without waiting for a device that has not answered for io.hang, and names the volume of the
 * oldest operation. The store is left as after a crash: it is not marked clean, and recovered at
 * the next startup. The kernel keeps the lock until the operations end. */
static void exit_without_device(struct server *s)
{
        char count[UNITS_TEXT], hang[UNITS_TEXT];
        const char *slowest = store_slowest_volume(s->service.store);

        log_error("stopping: %s did not complete within %s (io.hang)%s%s; exiting without marking "
                  "the store clean. Check the device; the next startup recovers the store",
                  units_count(MAX(kio_pending(s->service.io), UINT64_C(1)), "operation", count),
                  units_ms(s->config->io.hang_ms, hang), slowest ? ", the oldest on volume " : "",
                  slowest ? slowest : "");
        http_stop(s->http);
        _exit(EXIT_STATUS_IO);
}

/* Exits if a device hangs while the store is being closed, which blocks. */
static void on_close_late(int number)
{
        static const char text[] = "stopping: a device hangs while the store is closed; exiting "
                                   "without waiting for it. The next startup recovers the store\n";

        (void)!write(STDERR_FILENO, text, sizeof(text) - 1);
        _exit(EXIT_STATUS_IO);
}

/* Closes every session, and waits until every operation has completed. If a device has not answered
 * for io.hang, the process exits instead. */
static void close_all(struct server *s)
{
        uint64_t unwritten_bytes, unwritten = count_unwritten(s, &unwritten_bytes);
        char chunks[UNITS_TEXT], bytes[UNITS_TEXT];

        if (unwritten > 0)
                log_warning("stopping: limits.drain has passed; %s accepted, %s in all, will be "
                            "lost unless their writes in flight complete%s",
                            units_count(unwritten, "chunk", chunks),
                            units_bytes(unwritten_bytes, bytes),
                            s->keep.ready ? " or the next daemon takes over the memory" : "");
        for (unsigned i = 0; i < s->service.n_tenants; i++)
                cache_forget_postponed(s->tenants[i].cache);
        sessions_stop(s->sessions, server_hold_leases, s);
        bench_stop(s->service.bench);
        learned_stop(s->learned);
        store_stop(s->service.store);
        s->drain_late = false;
        event_add(s->drain, &(struct timeval){ .tv_sec = (time_t)(s->config->io.hang_ms / 1000),
                                               .tv_usec = (suseconds_t)(s->config->io.hang_ms %
                                                                        1000 * 1000) });
        while (!is_settled(s)) {
                bool more = run_iteration(s);

                if (is_settled(s))
                        break;
                if (s->drain_late && !is_settled_except_memory(s))
                        exit_without_device(s);
                event_base_loop(s->base, EVLOOP_ONCE | (more ? EVLOOP_NONBLOCK : 0));
        }
}

static void free_event(struct event *e)
{
        if (e)
                event_free(e);
}

/* Closes the store. After a failed startup some operations may still be in flight. */
static void close_store(struct server *s)
{
        if (s->service.io)
                store_stop(s->service.store);
        while (s->service.io && store_pending(s->service.store) > 0)
                kio_wait(s->service.io, POLL_MS);
        store_close(s->service.store);
}

static void server_fini(struct server *s)
{
        bool held_up = s->sessions && sessions_disposing(s->sessions) > 0;

        listener_free(s->listener);
        http_stop(s->http);
        populate_free(s->populate);
        if (!held_up)
                sessions_free(s->sessions);
        s->service.lookups = lookups_free(s->service.lookups);
        s->service.events = events_free(s->service.events);
        if (s->service.store) {
                if (s->draining) {
                        signal(SIGALRM, on_close_late);
                        alarm((unsigned)(s->config->io.hang_ms / 1000));
                }
                if (s->closed)
                        server_number_memory(s);
                for (unsigned i = 0; i < s->service.n_tenants; i++)
                        cache_unwatch(s->tenants[i].cache);
                close_store(s);
                alarm(0);
                if (s->closed)
                        server_hand_on_memory(s);
        }
        if (held_up) {
                log_warning("stopping: the closing of a file that a client passed hangs; exiting "
                            "without waiting for it");
                _exit(EXIT_SUCCESS);
        }
        kio_stop(s->service.io);
        bench_free(s->service.bench);
        learned_free(s->learned);
        free(s->learned_file);
        keep_free(s->keep.keep);
        keep_file_free(s->keep.file);
        cJSON_Delete(s->sources.reload_pending);
        cJSON_Delete(s->sources.config_files);
        notify_drop_kept(&s->inherited);
        for (unsigned i = 0; i < s->service.n_tenants; i++) {
                request_fini(&s->tenants[i]);
                tenant_close(&s->tenants[i]);
        }
        server_free_remote(s);
        admission_free(s->service.admission);
        namespace_counts_free(s->service.namespace_counts);
        stages_fini(&s->service.stages);
        quotas_free(s->service.quotas);
        assert(fair_users() == 0);
        free_event(s->done);
        free_event(s->wait);
        free_event(s->term);
        free_event(s->interrupt);
        free_event(s->hangup);
        free_event(s->watchdog);
        free_event(s->status_line);
        free_event(s->tick);
        free_event(s->expiry);
        free_event(s->drain);
        if (s->base)
                event_base_free(s->base);
        liveness_close(&s->liveness);
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
                run_iteration(&s);
                run_loop(&s);
                close_all(&s);
                s.closed = true;
                log_info("stopped");
        }
        server_fini(&s);
        return status;
}

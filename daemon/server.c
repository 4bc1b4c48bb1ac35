/* SPDX-License-Identifier: Apache-2.0 */
/* The composition root. Builds the parts from the bottom up, runs the loop, takes them down in
 * reverse.
 *
 * A loop turn: libevent calls what is readable (sessions read and dispatch, workers' results are
 * reaped), then store, sessions and cache do what they put off to the turn's end, then the workers
 * are woken once for all that was submitted.
 *
 * The end (SIGTERM, SIGINT): nothing new is accepted or read, what was asked before is answered,
 * what was accepted is written; then everybody is closed. A failure at start is one line and an
 * exit status; after that only a signal ends the loop. */
#include "server.h"

#include <errno.h>
#include <event2/event.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "build-config.h"
#include "checked.h"
#include "cleanup.h"
#include "config.h"
#include "dispatch.h"
#include "http.h"
#include "listener.h"
#include "memory/liveness.h"
#include "memory/populate.h"
#include "notify.h"
#include "session.h"
#include "status.h"

enum {
        MAX_LEASES = 4 << 20,
        POSIX_THREADS = 8, /* of one worker */
        STATUS_LINE_MS = 10000,
};

struct server {
        const struct server_params *params;
        struct config *config;
        struct event_base *base;

        struct liveness liveness;
        struct pool *pool;
        struct store *store;
        struct kio *io;
        struct cache *cache;
        struct leases *leases;
        struct tenants *tenants;
        struct dispatch_env env;
        struct sessions *sessions;
        struct listener *listener;
        struct http *http;
        struct populate *populate;

        struct event *done, *wait, *term, *interrupt, *hangup, *watchdog, *status_line, *drain;
        struct status_sources sources;
        uint8_t instance[WIRE_INSTANCE_BYTES];
        struct notify_sockets inherited;
        uint64_t
                lane_bytes_all; /* of all clients: half of the memory that was available at start */
        bool draining, drain_late;
        struct log_ratelimit exhausted;
};

/* --- at start --- */

static int exit_status_of(int r)
{
        switch (r) {
        case -EACCES:
        case -EPERM:
                return EXIT_STATUS_PERMISSION;
        case -EBUSY:
        case -EADDRINUSE:
        case -EAGAIN:
                return EXIT_STATUS_BUSY;
        case -EIO:
        case -ENOSPC:
        case -EROFS:
        case -EDQUOT:
                return EXIT_STATUS_IO;
        case -EPROTO:
        case -EUCLEAN:
                return EXIT_STATUS_STORE;
        default:
                return EXIT_STATUS_FAILURE;
        }
}

static int fail(int r, const char *what, const char *error)
{
        if (error && error[0])
                log_error("%s", error);
        else
                log_error("%s: %s", what, strerror(-r));
        return exit_status_of(r);
}

/* Descriptors for the connections that are allowed, and what memory may be locked: as far as the
 * hard limits go. */
static void raise_limits(void)
{
        static const int which[] = { RLIMIT_NOFILE, RLIMIT_MEMLOCK };

        for (unsigned i = 0; i < ARRAY_SIZE(which); i++) {
                struct rlimit limit;

                if (getrlimit(which[i], &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
                        limit.rlim_cur = limit.rlim_max;
                        (void)setrlimit(which[i], &limit);
                }
        }
}

static int start_store(struct server *s)
{
        const struct config *c = s->config;
        struct store_params params = {
                .paths = (const char *const *)c->store.path.items,
                .n_paths = c->store.path.n,
                .limit = c->store.limit,
                .segment_bytes = c->store.segment,
                .entries = c->store.entries,
                .prewrite = c->store.prewrite,
                .direct = c->io.direct,
                .policy = c->eviction.policy,
                .pool_slab_bytes = pool_slab_bytes(s->pool),
        };
        int locks[STORE_MAX_PATHS + 1];
        struct kio_params io = {
                .backend = c->io.backend,
                .workers = (unsigned)c->io.workers,
                .depth = (unsigned)c->io.depth,
                .posix_threads = POSIX_THREADS,
                .pool = pool_base(s->pool),
                .pool_bytes = pool_bytes(s->pool),
                .piece_bytes = pool_slab_bytes(s->pool),
                .lock_fds = locks,
        };
        char error[512] = "";
        int r;

        if (getrandom(&params.secret, sizeof(params.secret), 0) != sizeof(params.secret) ||
            getrandom(s->instance, sizeof(s->instance), 0) != sizeof(s->instance))
                return fail(-EIO, "getrandom", NULL);
        r = store_prepare(&s->store, &params, error);
        if (r < 0)
                return fail(r, "store", error);
        io.n_lock_fds = store_lock_fds(s->store, locks);
        locks[io.n_lock_fds++] = s->liveness.locked_fd;
        io.probe_fd = store_probe_fd(s->store);
        r = kio_start(&s->io, &io, error);
        if (r < 0)
                return fail(r, "I/O workers", error);
        r = store_open(s->store, s->io, error);
        if (r < 0)
                return fail(r, "store", error);
        return 0;
}

static struct tenant_limits tenant_limits(const struct server *s)
{
        return (struct tenant_limits){
                .connections = s->config->limits.connections,
                .lane_bytes = s->lane_bytes_all,
        };
}

static struct lease_limits lease_limits(const struct server *s)
{
        return (struct lease_limits){
                .count = (uint32_t)s->config->limits.leases,
                .bytes = s->config->limits.leased_bytes,
                .bytes_all = pool_bytes(s->pool) / 2,
        };
}

static int start_service(struct server *s)
{
        const struct config *c = s->config;
        struct tenant_access clients = { c->access.users.items, c->access.users.n,
                                         c->access.groups.items, c->access.groups.n };
        struct tenant_access admins = { c->access.admin_users.items, c->access.admin_users.n,
                                        c->access.admin_groups.items, c->access.admin_groups.n };
        struct tenant_limits tenant = tenant_limits(s);
        struct lease_limits lease = lease_limits(s);
        struct sessions_params sessions = {
                .base = s->base,
                .env = &s->env,
                .liveness_fd = s->liveness.handout_fd,
                .handshake_ms = c->limits.handshake_ms,
        };
        const struct store_namespace *ns;
        char error[256] = "";
        int r;

        r = tenants_new(&s->tenants, &clients, &admins, &tenant, error);
        if (r < 0) {
                fail(r, "access", error);
                return EXIT_STATUS_CONFIG;
        }
        r = leases_new(&s->leases, s->pool, MAX_LEASES, &lease);
        if (r < 0)
                return fail(r, "leases", NULL);
        r = cache_new(&s->cache,
                      &(struct cache_params){ .pool = s->pool, .store = s->store, .io = s->io });
        if (r < 0)
                return fail(r, "cache", NULL);
        for (unsigned i = 0; (ns = store_namespace_at(s->store, i)); i++)
                pool_declare(s->pool, ns->chunk_bytes);

        s->env.cache = s->cache;
        s->env.pool = s->pool;
        s->env.leases = s->leases;
        s->env.store = s->store;
        s->env.io = s->io;
        s->env.tenants = s->tenants;
        s->env.lane_max = c->memory.lane;
        s->env.wait_ms = c->limits.wait_ms;
        s->env.report = status_report;
        s->env.userdata = &s->sources;
        memcpy(sessions.instance, s->instance, sizeof(s->instance));
        r = sessions_new(&s->sessions, &sessions);
        if (r < 0)
                return fail(r, "sessions", NULL);
        return 0;
}

static void on_connection(void *userdata, int fd)
{
        struct server *s = userdata;

        sessions_accept_take_fd(s->sessions, fd);
}

static void on_exhausted(void *userdata, int error)
{
        struct server *s = userdata;
        uint32_t held_back;

        if (log_ratelimit_pass(&s->exhausted, &held_back))
                log_warning("cannot accept connections: %s: they wait (limits.connections, "
                            "LimitNOFILE=)",
                            strerror(-error));
}

static int start_http(struct server *s)
{
        const struct config *c = s->config;
        struct http_params params = {
                .address = c->listen.http,
                .inherited_fd = s->inherited.http,
                .max_connections = (unsigned)c->limits.http_connections,
                .deadline_ms = c->limits.http_ms,
                .print_metrics = status_print_metrics,
                .print_status = status_print_status,
                .is_ready = status_is_ready,
                .is_healthy = status_is_healthy,
                .userdata = &s->sources,
        };
        char error[256] = "";
        int r;

        if (strcmp(c->listen.http, "off") == 0 && params.inherited_fd < 0)
                return 0;
        r = http_start(&s->http, s->base, &params, error);
        if (r == -EADDRINUSE && !config_given(c, "listen.http")) {
                log_warning("%s: going on without metrics over HTTP (set listen.http to another "
                            "address)",
                            error[0] ? error : "listen.http: the address is in use");
                return 0;
        }
        if (r == -EINVAL) {
                fail(r, "listen.http", error);
                return EXIT_STATUS_CONFIG;
        }
        return r < 0 ? fail(r, "listen.http", error) : 0;
}

static int start_listener(struct server *s)
{
        struct listener_params params = {
                .path = s->config->listen.socket,
                .mode = s->config->listen.mode,
                .inherited_fd = s->inherited.listen,
                .on_connection = on_connection,
                .on_exhausted = on_exhausted,
                .userdata = s,
        };
        char error[256] = "";
        int r = listener_new(&s->listener, s->base, &params, error);

        return r < 0 ? fail(r, "listen.socket", error) : 0;
}

/* --- while running --- */

static void on_done(evutil_socket_t fd, short what, void *userdata)
{
        kio_reap(((struct server *)userdata)->io);
}

static void on_wait(evutil_socket_t fd, short what, void *userdata)
{
        /* Only to wake the loop: cache_turn() looks at the deadlines. */
}

static void begin_drain(struct server *s)
{
        struct cache_stats cache;

        if (s->draining)
                return;
        s->draining = s->sources.draining = true;
        s->env.stopping = true;
        s->listener = listener_free(s->listener);
        sessions_drain(s->sessions);
        cache_stop(s->cache);
        populate_stop(s->populate);
        cache_get_stats(s->cache, &cache);
        notify_stopping("writing %" PRIu64 " chunks that are not on disk yet",
                        cache.unwritten_chunks);
        if (cache.unwritten_chunks)
                log_info("stopping: writing %" PRIu64
                         " chunks that are not on disk yet, for at most %" PRIu64 " s",
                         cache.unwritten_chunks, s->config->limits.drain_ms / 1000);
        else
                log_info("stopping");
        event_add(s->drain,
                  &(struct timeval){
                          .tv_sec = (time_t)(s->config->limits.drain_ms / 1000),
                          .tv_usec = (suseconds_t)(s->config->limits.drain_ms % 1000 * 1000) });
}

static void on_term(evutil_socket_t fd, short what, void *userdata)
{
        begin_drain(userdata);
}

static void on_drain_late(evutil_socket_t fd, short what, void *userdata)
{
        ((struct server *)userdata)->drain_late = true;
}

static void say_info(const char *text)
{
        log_info("%s", text);
}

static void say_warning(const char *text)
{
        log_warning("%s", text);
}

static void apply_reloadable(struct server *s)
{
        const struct config *c = s->config;
        struct tenant_limits tenant = tenant_limits(s);
        struct lease_limits lease = lease_limits(s);
        enum log_level level;

        if (log_level_from_name(c->log.level, &level) == 0)
                log_set_level(level);
        tenants_set_limits(s->tenants, &tenant);
        leases_set_limits(s->leases, &lease);
        sessions_set_handshake(s->sessions, c->limits.handshake_ms);
        s->env.wait_ms = c->limits.wait_ms;
        if (s->http)
                http_set_limits(s->http, (unsigned)c->limits.http_connections, c->limits.http_ms);
}

static void on_hangup(evutil_socket_t fd, short what, void *userdata)
{
        struct server *s = userdata;
        struct config_error error = {};
        struct config next;
        unsigned changed;

        if (s->draining)
                return;
        notify_reloading();
        config_init(&next);
        if (config_load_all(&next, s->params->config_path, s->params->config_must_exist, environ,
                            s->params->sets, s->params->n_sets, say_warning, &error) < 0) {
                log_error("reload: %s: nothing was changed", error.text);
        } else {
                changed = config_reload(s->config, &next, say_info);
                apply_reloadable(s);
                s->sources.config_reloads++;
                log_info("reload: %u settings changed", changed);
        }
        config_fini(&next);
        notify_ready();
}

/* Fed only while the loop turns (it runs this) and every worker makes progress. */
static void on_watchdog(evutil_socket_t fd, short what, void *userdata)
{
        struct server *s = userdata;

        if (kio_is_alive(s->io))
                notify_watchdog();
}

static void on_status_line(evutil_socket_t fd, short what, void *userdata)
{
        struct server *s = userdata;
        struct sessions_stats sessions;
        struct store_stats store;
        struct cache_stats cache;
        uint64_t hits, gets;

        sessions_get_stats(s->sessions, &sessions);
        store_get_stats(s->store, &store);
        cache_get_stats(s->cache, &cache);
        hits = cache.hits_memory + cache.hits_disk;
        gets = hits + cache.misses;
        notify_status("%" PRIu64 " clients, %" PRIu64
                      " chunks on disk, %.1f of %.1f GiB, %.1f %% of gets hit",
                      sessions.open, store.chunks, (double)store.used_bytes / (1 << 30),
                      (double)store.limit / (1 << 30),
                      gets ? 100.0 * (double)hits / (double)gets : 0.0);
}

static uint64_t available_memory(void *userdata)
{
        bool limited;

        return config_available_memory("", &limited);
}

static void on_slab(void *userdata)
{
        cache_kick(((struct server *)userdata)->cache);
}

static void on_short_of_memory(void *userdata)
{
        struct server *s = userdata;
        struct pool_stats pool;

        pool_get_stats(s->pool, &pool);
        log_warning("the host is short of memory: the pool stays at %" PRIu64 " of %" PRIu64
                    " MiB for now",
                    pool.populated_bytes >> 20, pool.bytes >> 20);
}

static int add_events(struct server *s)
{
        uint64_t watchdog_us = notify_watchdog_us();

        s->done = event_new(s->base, kio_fd(s->io), EV_READ | EV_PERSIST, on_done, s);
        s->wait = evtimer_new(s->base, on_wait, s);
        s->term = evsignal_new(s->base, SIGTERM, on_term, s);
        s->interrupt = evsignal_new(s->base, SIGINT, on_term, s);
        s->hangup = evsignal_new(s->base, SIGHUP, on_hangup, s);
        s->watchdog = event_new(s->base, -1, EV_PERSIST, on_watchdog, s);
        s->status_line = event_new(s->base, -1, EV_PERSIST, on_status_line, s);
        s->drain = evtimer_new(s->base, on_drain_late, s);
        if (!s->done || !s->wait || !s->term || !s->interrupt || !s->hangup || !s->watchdog ||
            !s->status_line || !s->drain)
                return -ENOMEM;
        event_add(s->done, NULL);
        event_add(s->term, NULL);
        event_add(s->interrupt, NULL);
        event_add(s->hangup, NULL);
        if (notify_wanted())
                event_add(s->status_line, &(struct timeval){ .tv_sec = STATUS_LINE_MS / 1000 });
        if (watchdog_us)
                event_add(s->watchdog,
                          &(struct timeval){ .tv_sec = (time_t)(watchdog_us / 2000000),
                                             .tv_usec = (suseconds_t)(watchdog_us / 2 % 1000000) });
        return 0;
}

/* What was put off to the turn's end. True if the next turn must not wait. */
static bool turn(struct server *s)
{
        uint64_t deadline, now = clock_mono_ns();
        bool more;

        store_turn(s->store);
        more = sessions_turn(s->sessions);
        deadline = cache_turn(s->cache, now); /* after all that may wait for something has come */
        store_turn(s->store);
        more = more || cache_has_work(s->cache) || sessions_active(s->sessions);
        kio_flush(s->io);
        if (deadline && !more) {
                uint64_t left_us = deadline > now ? (deadline - now) / 1000 + 1 : 1;

                event_add(s->wait,
                          &(struct timeval){ .tv_sec = (time_t)(left_us / 1000000),
                                             .tv_usec = (suseconds_t)(left_us % 1000000) });
        }
        return more;
}

static void run_loop(struct server *s)
{
        bool more = false;

        while (!s->draining ||
               ((cache_pending(s->cache) > 0 || sessions_busy(s->sessions)) && !s->drain_late)) {
                event_base_loop(s->base, EVLOOP_ONCE | (more ? EVLOOP_NONBLOCK : 0));
                more = turn(s);
        }
}

/* Everybody is closed, and every operation ends. */
static void close_all(struct server *s)
{
        struct cache_stats cache;

        cache_get_stats(s->cache, &cache);
        if (cache.unwritten_chunks)
                log_warning("stopping: the time to write is over (limits.drain): %" PRIu64
                            " accepted chunks, %" PRIu64
                            " MiB, are lost unless their writes still end",
                            cache.unwritten_chunks, cache.unwritten_bytes >> 20);
        sessions_stop(s->sessions);
        store_stop(s->store);
        while (!sessions_empty(s->sessions) || cache_pending(s->cache) > 0 ||
               store_pending(s->store) > 0 || kio_pending(s->io) > 0) {
                bool more = turn(s);

                if (sessions_empty(s->sessions) && cache_pending(s->cache) == 0 &&
                    store_pending(s->store) == 0 && kio_pending(s->io) == 0)
                        break;
                event_base_loop(s->base, EVLOOP_ONCE | (more ? EVLOOP_NONBLOCK : 0));
        }
}

static void free_event(struct event *e)
{
        if (e)
                event_free(e);
}

static void server_fini(struct server *s)
{
        listener_free(s->listener);
        http_stop(s->http);
        populate_free(s->populate);
        sessions_free(s->sessions);
        cache_free(s->cache);
        if (s->store)
                store_close(s->store);
        kio_stop(s->io);
        leases_free(s->leases);
        tenants_free(s->tenants);
        pool_free(s->pool);
        free_event(s->done);
        free_event(s->wait);
        free_event(s->term);
        free_event(s->interrupt);
        free_event(s->hangup);
        free_event(s->watchdog);
        free_event(s->status_line);
        free_event(s->drain);
        if (s->base)
                event_base_free(s->base);
        liveness_close(&s->liveness);
}

static int start(struct server *s)
{
        struct populate_params populate = {
                .available = available_memory,
                .on_slab = on_slab,
                .on_short = on_short_of_memory,
                .userdata = s,
        };
        bool limited;
        int r;

        s->lane_bytes_all = config_available_memory("", &limited) / 2;
        raise_limits();
        signal(SIGPIPE, SIG_IGN);
        r = notify_inherit(&s->inherited);
        if (r < 0)
                return fail(r, "inherited sockets", NULL);
        s->base = event_base_new();
        if (!s->base)
                return fail(-ENOMEM, "event loop", NULL);
        r = liveness_open(&s->liveness);
        if (r < 0)
                return fail(r, "liveness file", NULL);
        r = pool_new(&s->pool, s->config->memory.pool, s->config->eviction.policy);
        if (r < 0)
                return fail(r, "memory pool", NULL);
        if ((r = start_store(s)) != 0 || (r = start_service(s)) != 0)
                return r;
        s->sources = (struct status_sources){
                .config = s->config,
                .env = &s->env,
                .sessions = s->sessions,
                .started_unix_ms = clock_unix_ms(),
                .started_ns = clock_mono_ns(),
                .instance = s->instance,
        };
        r = add_events(s);
        if (r < 0)
                return fail(r, "events", NULL);
        if ((r = start_listener(s)) != 0 || (r = start_http(s)) != 0)
                return r;
        s->sources.http = s->http;

        populate.pool = s->pool;
        populate.io = s->io;
        populate.reserve_bytes =
                MIN(config_available_memory("", &limited) / 16, (uint64_t)256 << 20);
        r = populate_start(&s->populate, s->base, &populate);
        if (r < 0)
                return fail(r, "memory pool", NULL);
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
        };
        int status = start(&s);

        if (status == 0) {
                s.sources.ready = true;
                status_log_started(&s.sources);
                notify_ready();
                turn(&s);
                run_loop(&s);
                close_all(&s);
                log_info("stopped");
        }
        server_fini(&s);
        return status;
}

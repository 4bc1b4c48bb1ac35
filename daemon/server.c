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
#include <poll.h>
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
#include "tenant-number.h"

enum {
        MAX_LEASES = 4 << 20,
        POSIX_THREADS = 8, /* of one worker */
        STATUS_LINE_MS = 10000,
        TICK_MS = 1000,
        POLL_MS = 100,
};

struct server {
        const struct server_params *params;
        struct config *config;
        struct event_base *base;

        struct liveness liveness;
        struct store *store;
        struct kio *io;
        struct tenants *tenants;
        struct dispatch_env env[CONFIG_MAX_TENANTS]; /* with a pool, leases and a cache each */
        const struct config_tenant *tenant[CONFIG_MAX_TENANTS]; /* [0]: may be NULL */
        unsigned n_env;
        struct sessions *sessions;
        struct listener *listener;
        struct http *http;
        struct populate *populate;

        struct event *done, *wait, *term, *interrupt, *hangup, *watchdog, *status_line, *drain,
                *tick;
        struct status_sources sources;
        uint8_t instance[WIRE_INSTANCE_BYTES];
        struct notify_sockets inherited;
        uint64_t lane_bytes_auto; /* half of the memory that was available at start */
        bool draining, drain_late;
        struct log_ratelimit exhausted, findings, full;
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

/* Who there is: `default`, and the others in the order of the configuration. */
static int start_pools(struct server *s)
{
        const struct config *c = s->config;

        s->n_env = 1;
        for (unsigned i = 0; i < c->n_tenants; i++)
                if (strcmp(c->tenants[i].name, "default") == 0)
                        s->tenant[0] = &c->tenants[i];
                else
                        s->tenant[s->n_env++] = &c->tenants[i];
        for (unsigned i = 0; i < s->n_env; i++) {
                int r = pool_new(&s->env[i].pool, i == 0 ? c->memory.pool : s->tenant[i]->pool,
                                 c->eviction.policy);

                if (r < 0)
                        return fail(r, i == 0 ? "memory pool" : s->tenant[i]->name, NULL);
        }
        return 0;
}

static const char *tenant_name(const struct server *s, unsigned i)
{
        return i == 0 ? "default" : s->tenant[i]->name;
}

static struct store_scrub scrub_settings(const struct server *s)
{
        return (struct store_scrub){
                .rate = s->config->store.scrub_rate,
                .interval_ms = s->config->store.scrub_interval_ms,
        };
}

static void on_finding(void *userdata, const struct store_finding *finding)
{
        struct server *s = userdata;
        const struct store_namespace *ns =
                store_namespace_get(s->store, finding->chunk->namespace_id);
        char key[KEY_HEX_BYTES + 1];
        uint32_t held_back;

        if (!log_ratelimit_pass(&s->findings, &held_back))
                return;
        key_to_hex(&finding->chunk->key, key);
        log_warning("%s/segment-%04x: %" PRIu32 " bytes at %" PRIu64
                    " %s: dropped (namespace \"%s\", key %s)",
                    finding->path, finding->segment, finding->chunk->length, finding->offset,
                    finding->error ? strerror(-finding->error) : "do not match their checksum",
                    ns ? ns->name : "", key);
        if (held_back > 0)
                log_warning("%" PRIu32 " more of these were not told one by one", held_back);
}

static void on_path(void *userdata, unsigned i, enum store_path_event event, const char *text)
{
        struct server *s = userdata;
        const char *path = store_path(s->store, i);
        uint32_t held_back;

        switch (event) {
        case STORE_PATH_IS_BYPASSED:
                log_error("store path %s is bypassed: %s; its chunks are misses until \"kvcachectl "
                          "device resume %s\" or a restart%s",
                          path, text, path,
                          store_paths_up(s->store) ? "" : "; no path is left: nothing is stored");
                break;
        case STORE_PATH_IS_SUSPENDED:
                log_notice("store path %s is suspended", path);
                break;
        case STORE_PATH_IS_RESUMED:
                log_notice("store path %s is used again", path);
                break;
        case STORE_PATH_IS_FULL:
                if (log_ratelimit_pass(&s->full, &held_back))
                        log_warning("store path %s: its file system is full, or nearly "
                                    "(store.reserve): the path does not grow",
                                    path);
                break;
        case STORE_PATH_HAS_ROOM:
                log_notice("store path %s: its file system has room again", path);
                break;
        case STORE_PATH_IS_EMPTIED:
                log_warning(
                        "store path %s was left aside while chunks were purged or dropped: what "
                        "it held is dropped",
                        path);
                break;
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
                .error_budget = (uint32_t)c->store.error_budget,
                .hang_ms = c->io.hang_ms,
                .reserve = c->store.reserve,
                .scrub = scrub_settings(s),
                .on_path = on_path,
                .on_finding = on_finding,
                .userdata = s,
        };
        struct kio_pool more_pools[CONFIG_MAX_TENANTS];
        const char *names[CONFIG_MAX_TENANTS];
        uint16_t numbers[CONFIG_MAX_TENANTS];
        int locks[STORE_MAX_PATHS + 1];
        struct kio_params io = {
                .backend = c->io.backend,
                .workers = (unsigned)c->io.workers,
                .depth = (unsigned)c->io.depth,
                .posix_threads = POSIX_THREADS,
                .hang_ns = c->io.hang_ms * UINT64_C(1000000),
                .pool = pool_base(s->env[0].pool),
                .pool_bytes = pool_bytes(s->env[0].pool),
                .piece_bytes = pool_slab_bytes(s->env[0].pool),
                .more_pools = more_pools,
                .n_more_pools = s->n_env - 1,
                .lock_fds = locks,
        };
        char error[512] = "";
        int r;

        for (unsigned i = 0; i < s->n_env; i++) {
                const struct pool *pool = s->env[i].pool;

                params.pool_slab_bytes = MAX(params.pool_slab_bytes, pool_slab_bytes(pool));
                names[i] = tenant_name(s, i);
                if (i > 0)
                        more_pools[i - 1] =
                                (struct kio_pool){ .base = pool_base(pool),
                                                   .bytes = pool_bytes(pool),
                                                   .piece_bytes = pool_slab_bytes(pool) };
        }

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
        r = tenant_numbers_assign(s->store, s->io, names, s->n_env, numbers, error);
        if (r < 0)
                return fail(r, "store", error);
        for (unsigned i = 0; i < s->n_env; i++)
                s->env[i].store_tenant = numbers[i];
        return 0;
}

/* --- limits: those of the configuration, where 0 is "auto" --- */

static uint64_t or_none(uint64_t limit)
{
        return limit ? limit : TENANT_NO_LIMIT;
}

static struct tenant_limits tenant_limits(const struct server *s, unsigned tenant)
{
        static const struct config_tenant none;
        const struct config_tenant *t = s->tenant[tenant] ? s->tenant[tenant] : &none;

        return (struct tenant_limits){ {
                [TENANT_CONNECTIONS] = or_none(t->connections),
                [TENANT_LEASES] = or_none(t->leases),
                [TENANT_LEASED_BYTES] = or_none(t->leased_bytes),
                [TENANT_LANES] = TENANT_NO_LIMIT,
                [TENANT_LANE_BYTES] = or_none(t->lane_bytes),
                [TENANT_DONATED_BYTES] = or_none(t->donated),
                [TENANT_KEYS] = or_none(t->keys),
        } };
}

static uint64_t three_quarters_of_the_machine(void)
{
        return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) / 4 * 3;
}

static struct tenant_limits all_limits(const struct server *s)
{
        const struct config *c = s->config;

        return (struct tenant_limits){ {
                [TENANT_CONNECTIONS] = c->limits.connections,
                [TENANT_LEASES] = TENANT_NO_LIMIT,
                [TENANT_LEASED_BYTES] = TENANT_NO_LIMIT,
                [TENANT_LANES] = TENANT_NO_LIMIT,
                [TENANT_LANE_BYTES] =
                        c->limits.lane_bytes ? c->limits.lane_bytes : s->lane_bytes_auto,
                [TENANT_DONATED_BYTES] =
                        c->limits.donated ? c->limits.donated : three_quarters_of_the_machine(),
                [TENANT_KEYS] = c->limits.keys,
        } };
}

static struct tenant_limits user_limits(const struct server *s)
{
        const struct config *c = s->config;
        uint64_t lanes = all_limits(s).most[TENANT_LANE_BYTES];
        struct tenant_limits limits = { {
                [TENANT_LEASES] = or_none(c->limits.uid_leases),
                [TENANT_LEASED_BYTES] = or_none(c->limits.uid_leased_bytes),
                [TENANT_LANES] = TENANT_NO_LIMIT,
                [TENANT_LANE_BYTES] =
                        c->limits.uid_lane_bytes ? c->limits.uid_lane_bytes : lanes - lanes / 4,
                [TENANT_DONATED_BYTES] = or_none(c->limits.uid_donated),
        } };

        config_uid_limits(c, &limits.most[TENANT_CONNECTIONS], &limits.most[TENANT_KEYS]);
        return limits;
}

/* Half of the pool may be leased, and by default a quarter by one connection (rule R11). */
static struct lease_limits lease_limits(const struct server *s, unsigned tenant)
{
        uint64_t pool = pool_bytes(s->env[tenant].pool);

        return (struct lease_limits){
                .count = (uint32_t)s->config->limits.leases,
                .bytes = tenant == 0 ? s->config->limits.leased_bytes
                                     : MIN(s->config->limits.leased_bytes, pool / 4),
                .bytes_all = pool / 2,
        };
}

static void apply_tenant_limits(struct server *s)
{
        struct tenant_limits all = all_limits(s), user = user_limits(s);

        tenants_set_common_limits(s->tenants, &all, &user);
        for (unsigned i = 0; i < s->n_env; i++) {
                struct tenant_limits limits = tenant_limits(s, i);
                struct lease_limits leases = lease_limits(s, i);

                tenants_set_limits(s->tenants, i, &limits);
                leases_set_limits(s->env[i].leases, &leases);
                store_set_tenant_limit(s->store, s->env[i].store_tenant,
                                       s->tenant[i] ? s->tenant[i]->stored_bytes : 0);
        }
}

static int start_tenants(struct server *s)
{
        const struct config *c = s->config;
        struct tenant_access admins = { c->access.admin_users.items, c->access.admin_users.n,
                                        c->access.admin_groups.items, c->access.admin_groups.n };
        struct tenant_limits all = all_limits(s), user = user_limits(s);
        struct tenant_params params[CONFIG_MAX_TENANTS];
        char error[256] = "";
        int r;

        for (unsigned i = 0; i < s->n_env; i++) {
                const struct config_strings *users =
                        i == 0 ? &c->access.users : &s->tenant[i]->users;
                const struct config_strings *groups =
                        i == 0 ? &c->access.groups : &s->tenant[i]->groups;

                params[i] = (struct tenant_params){
                        .name = tenant_name(s, i),
                        .access = { users->items, users->n, groups->items, groups->n },
                        .limits = tenant_limits(s, i),
                };
        }
        r = tenants_new(&s->tenants, params, s->n_env, &admins, &all, &user, error);
        if (r < 0) {
                fail(r, "access", error);
                return EXIT_STATUS_CONFIG;
        }
        return 0;
}

static int start_tenant(struct server *s, unsigned tenant)
{
        struct dispatch_env *env = &s->env[tenant];
        struct lease_limits limits = lease_limits(s, tenant);
        const struct store_namespace *ns;
        int r;

        r = leases_new(&env->leases, env->pool, MAX_LEASES, &limits);
        if (r < 0)
                return fail(r, "leases", NULL);
        r = cache_new(&env->cache,
                      &(struct cache_params){ .pool = env->pool, .store = s->store, .io = s->io });
        if (r < 0)
                return fail(r, "cache", NULL);
        for (unsigned i = 0; (ns = store_namespace_at(s->store, i)); i++)
                if (ns->tenant == env->store_tenant)
                        pool_declare(env->pool, ns->chunk_bytes);
        env->all = s->env;
        env->n_all = s->n_env;
        env->tenant = tenant;
        env->store = s->store;
        env->io = s->io;
        env->tenants = s->tenants;
        env->quota_lines = (struct log_ratelimit)LOG_RATELIMIT_INIT(1);
        env->lane_max = s->config->memory.lane;
        env->wait_ms = s->config->limits.wait_ms;
        env->report = status_report;
        env->userdata = &s->sources;
        return 0;
}

static int start_service(struct server *s)
{
        const struct config *c = s->config;
        struct sessions_params sessions = {
                .base = s->base,
                .env = s->env,
                .liveness_fd = s->liveness.handout_fd,
                .handshake_ms = c->limits.handshake_ms,
        };
        int r;

        for (unsigned i = 0; i < s->n_env; i++) {
                r = start_tenant(s, i);
                if (r != 0)
                        return r;
        }
        apply_tenant_limits(s);
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
        struct server *s = userdata;

        sessions_woken(s->sessions);
        kio_reap(s->io);
}

static void on_wait(evutil_socket_t fd, short what, void *userdata)
{
        /* Only to wake the loop: cache_turn() looks at the deadlines. */
}

/* --- of all tenants together --- */

static struct cache_stats cache_stats(const struct server *s)
{
        struct cache_stats sum;

        status_collect_cache(s->env, &sum);
        return sum;
}

static uint64_t caches_pending(const struct server *s)
{
        uint64_t pending = 0;

        for (unsigned i = 0; i < s->n_env; i++)
                pending += cache_pending(s->env[i].cache);
        return pending;
}

static void begin_drain(struct server *s)
{
        struct cache_stats cache;

        if (s->draining)
                return;
        s->draining = s->sources.draining = true;
        for (unsigned i = 0; i < s->n_env; i++)
                s->env[i].stopping = true;
        s->listener = listener_free(s->listener);
        sessions_drain(s->sessions);
        for (unsigned i = 0; i < s->n_env; i++)
                cache_stop(s->env[i].cache);
        populate_stop(s->populate);
        cache = cache_stats(s);
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
        struct store_scrub scrub;
        enum log_level level;

        if (log_level_from_name(c->log.level, &level) == 0)
                log_set_level(level);
        apply_tenant_limits(s);
        sessions_set_handshake(s->sessions, c->limits.handshake_ms);
        for (unsigned i = 0; i < s->n_env; i++)
                s->env[i].wait_ms = c->limits.wait_ms;
        scrub = scrub_settings(s);
        store_set_scrub(s->store, &scrub);
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

static void on_tick(evutil_socket_t fd, short what, void *userdata)
{
        store_tick(((struct server *)userdata)->store);
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
        cache = cache_stats(s);
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

static void on_slab(void *userdata, unsigned pool)
{
        cache_kick(((struct server *)userdata)->env[pool].cache);
}

static void on_short_of_memory(void *userdata)
{
        struct server *s = userdata;
        struct pool_stats pool;

        status_collect_pools(s->env, &pool);
        log_warning("the host is short of memory: the pool stays at %" PRIu64 " of %" PRIu64
                    " MiB for now",
                    pool.populated_bytes >> 20, pool.bytes >> 20);
}

static int add_events(struct server *s)
{
        uint64_t watchdog_us = notify_watchdog_us();
        long tick_ms = (long)MIN(s->config->io.hang_ms / 4, (uint64_t)TICK_MS);

        s->done = event_new(s->base, kio_fd(s->io), EV_READ | EV_PERSIST, on_done, s);
        s->wait = evtimer_new(s->base, on_wait, s);
        s->term = evsignal_new(s->base, SIGTERM, on_term, s);
        s->interrupt = evsignal_new(s->base, SIGINT, on_term, s);
        s->hangup = evsignal_new(s->base, SIGHUP, on_hangup, s);
        s->watchdog = event_new(s->base, -1, EV_PERSIST, on_watchdog, s);
        s->status_line = event_new(s->base, -1, EV_PERSIST, on_status_line, s);
        s->drain = evtimer_new(s->base, on_drain_late, s);
        s->tick = event_new(s->base, -1, EV_PERSIST, on_tick, s);
        if (!s->done || !s->wait || !s->term || !s->interrupt || !s->hangup || !s->watchdog ||
            !s->status_line || !s->drain || !s->tick)
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

/* What was put off to the turn's end. True if the next turn must not wait. */
static bool turn(struct server *s)
{
        uint64_t deadline, of_store, now = clock_mono_ns();
        bool more;

        store_turn(s->store);
        more = sessions_turn(s->sessions);
        /* After all that may wait for something has come. */
        deadline = 0;
        for (unsigned i = 0; i < s->n_env; i++) {
                uint64_t of_this = cache_turn(s->env[i].cache, now);

                if (deadline == 0 || (of_this != 0 && of_this < deadline))
                        deadline = of_this;
        }
        store_turn(s->store);
        of_store = store_deadline_ns(s->store);
        if (deadline == 0 || (of_store != 0 && of_store < deadline))
                deadline = of_store;
        for (unsigned i = 0; i < s->n_env; i++)
                more = more || cache_has_work(s->env[i].cache);
        more = more || sessions_active(s->sessions);
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
               ((caches_pending(s) > 0 || sessions_busy(s->sessions)) && !s->drain_late)) {
                sessions_poll_begins(s->sessions);
                event_base_loop(s->base, EVLOOP_ONCE | (more ? EVLOOP_NONBLOCK : 0));
                more = turn(s);
        }
}

/* Everybody is closed, and every operation ends. */
static void close_all(struct server *s)
{
        struct cache_stats cache = cache_stats(s);

        if (cache.unwritten_chunks)
                log_warning("stopping: the time to write is over (limits.drain): %" PRIu64
                            " accepted chunks, %" PRIu64
                            " MiB, are lost unless their writes still end",
                            cache.unwritten_chunks, cache.unwritten_bytes >> 20);
        sessions_stop(s->sessions);
        store_stop(s->store);
        while (!sessions_empty(s->sessions) || caches_pending(s) > 0 ||
               store_pending(s->store) > 0 || kio_pending(s->io) > 0) {
                bool more = turn(s);

                if (sessions_empty(s->sessions) && caches_pending(s) == 0 &&
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

/* After a start that failed something may still be under way. */
static void close_store(struct server *s)
{
        if (s->io)
                store_stop(s->store);
        while (s->io && store_pending(s->store) > 0) {
                struct pollfd p = { .fd = kio_fd(s->io), .events = POLLIN };

                kio_flush(s->io);
                (void)poll(&p, 1, POLL_MS);
                kio_reap(s->io);
        }
        store_close(s->store);
}

static void server_fini(struct server *s)
{
        listener_free(s->listener);
        http_stop(s->http);
        populate_free(s->populate);
        sessions_free(s->sessions);
        for (unsigned i = 0; i < s->n_env; i++)
                cache_free(s->env[i].cache);
        if (s->store)
                close_store(s);
        kio_stop(s->io);
        for (unsigned i = 0; i < s->n_env; i++)
                leases_free(s->env[i].leases);
        tenants_free(s->tenants);
        for (unsigned i = 0; i < s->n_env; i++)
                pool_free(s->env[i].pool);
        free_event(s->done);
        free_event(s->wait);
        free_event(s->term);
        free_event(s->interrupt);
        free_event(s->hangup);
        free_event(s->watchdog);
        free_event(s->status_line);
        free_event(s->tick);
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
        struct pool *pools[CONFIG_MAX_TENANTS];
        bool limited;
        int r;

        s->lane_bytes_auto = config_available_memory("", &limited) / 2;
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
        if ((r = start_pools(s)) != 0 || (r = start_tenants(s)) != 0 || (r = start_store(s)) != 0 ||
            (r = start_service(s)) != 0)
                return r;
        s->sources = (struct status_sources){
                .config = s->config,
                .env = s->env,
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

        for (unsigned i = 0; i < s->n_env; i++)
                pools[i] = s->env[i].pool;
        populate.pools = pools;
        populate.n_pools = s->n_env;
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
                .full = LOG_RATELIMIT_INIT(1),
                .findings = LOG_RATELIMIT_INIT(10),
        };
        int status = start(&s);

        if (status == 0) {
                s.sources.ready = true;
                status_log_started(&s.sources);
                notify_ready();
                on_status_line(-1, 0, &s);
                turn(&s);
                run_loop(&s);
                close_all(&s);
                log_info("stopped");
        }
        server_fini(&s);
        return status;
}

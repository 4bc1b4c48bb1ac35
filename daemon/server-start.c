/* SPDX-License-Identifier: Apache-2.0 */
/* Starts the parts from the bottom up: pools, store and I/O, tenants, the service, HTTP, and the
 * socket. Runs once, on the thread that becomes the loop thread; recovery of the store blocks here.
 * A failure is one log line and an exit status; server.c takes down what was started. */
#include "server-internal.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>

#include "benchmark/benchmark.h"
#include "checked.h"
#include "events/events.h"
#include "request/audit.h"
#include "snapshot.h"
#include "tenant/ids.h"
#include "units.h"

enum {
        POSIX_THREADS = 8, /* I/O threads of one worker */
        SPREAD_BYTES = 128 * 1024,
};

static int exit_status_of(int r)
{
        switch (r) {
        case -EACCES:
        case -EPERM:
        case -EROFS:
                return EXIT_STATUS_PERMISSION;
        case -EBUSY:
        case -EADDRINUSE:
        case -EAGAIN:
                return EXIT_STATUS_BUSY;
        case -EIO:
        case -ENOSPC:
        case -EDQUOT:
                return EXIT_STATUS_IO;
        case -EPROTO:
        case -EUCLEAN:
                return EXIT_STATUS_STORE;
        default:
                return EXIT_STATUS_FAILURE;
        }
}

int server_fail(int r, const char *what, const char *error)
{
        if (error && error[0])
                log_error("%s", error);
        else
                log_error("cannot start: %s: %s", what, strerror(-r));
        return exit_status_of(r);
}

/* Raises the limits of descriptors, for the connections that are allowed, and of locked memory, up
 * to the hard limits. */
void server_raise_limits(void)
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

const char *server_tenant_name(const struct server *s, unsigned i)
{
        return i == 0 ? "default" : s->tenant_config[i]->name;
}

int server_start_pools(struct server *s)
{
        const struct config *c = s->config;

        server_read_map(s);
        for (unsigned i = 0; i < s->service.n_tenants; i++) {
                int r = server_open_pool(
                        s, i, server_tenant_name(s, i),
                        i == 0 ? c->memory.pool : s->tenant_config[i]->pool,
                        config_pool_is_automatic(c, i == 0 ? NULL : s->tenant_config[i]));

                if (r < 0) {
                        char what[CONFIG_TENANT_NAME + UNITS_TEXT + 64], size[UNITS_TEXT];

                        units_bytes(i == 0 ? c->memory.pool : s->tenant_config[i]->pool, size);
                        snprintf(what, sizeof(what), "making the memory pool of tenant %s, %s (%s)",
                                 server_tenant_name(s, i), size,
                                 i == 0 ? "memory.pool" : "tenants.pool");
                        return server_fail(r, what, NULL);
                }
                if (strcmp(c->memory.huge_pages, "off") != 0)
                        pool_use_huge_pages(s->tenants[i].pool);
        }
        return 0;
}

static void on_finding(void *userdata, const struct store_finding *finding)
{
        struct server *s = userdata;
        const struct store_namespace *ns =
                store_namespace_get(s->service.store, finding->chunk->namespace_id);
        char key[KEY_HEX_BYTES + 1], count[UNITS_TEXT];
        uint32_t held_back;

        if (!log_ratelimit_pass(&s->findings, &held_back))
                return;
        key_to_hex(&finding->chunk->key, key);
        log_warning("%s/segment-%04x: %" PRIu32 " bytes at %" PRIu64
                    " %s%s; the chunk is dropped (namespace \"%s\", key %s)",
                    finding->path, finding->segment, finding->chunk->length, finding->offset,
                    finding->error ? "cannot be read: " : "do not match their checksum",
                    finding->error ? strerror(-finding->error) : "", ns ? ns->name : "", key);
        if (held_back > 0)
                log_warning("store: dropped %s without a line of their own, because they could not "
                            "be read or did not match their checksums",
                            units_count(held_back, "more chunk", count));
}

static void on_volume(void *userdata, unsigned i, enum store_volume_event event, const char *text)
{
        struct server *s = userdata;
        const char *path = store_volume_path(s->service.store, i);
        uint32_t held_back;

        const char *rest =
                store_volumes_up(s->service.store)
                        ? ""
                        : "; no volume of the store is in use: nothing is written to disk";

        switch (event) {
        case STORE_VOLUME_IS_BYPASSED:
                log_error("volume %s is bypassed: %s; its chunks are misses until \"kvcachectl "
                          "device resume %s\" or a restart%s",
                          path, text, path, rest);
                break;
        case STORE_VOLUME_IS_SUSPENDED:
                log_notice("volume %s is suspended by an admin; its chunks are misses until "
                           "\"kvcachectl device resume %s\" or a restart%s",
                           path, path, rest);
                break;
        case STORE_VOLUME_IS_RESUMED:
                log_notice("volume %s is in use again", path);
                break;
        case STORE_VOLUME_IS_FULL:
                if (log_ratelimit_pass(&s->full, &held_back))
                        log_warning("volume %s: the file system has no free space above "
                                    "store.reserve; the volume does not grow",
                                    path);
                break;
        case STORE_VOLUME_HAS_ROOM:
                log_notice("volume %s: the file system has free space again; the volume may grow",
                           path);
                break;
        case STORE_VOLUME_IS_EMPTIED:
                log_warning("volume %s was offline while chunks were purged or dropped, so all of "
                            "its chunks are dropped",
                            path);
                break;
        case STORE_VOLUME_IS_NEW:
                log_notice("volume %s: the directory was empty, and a new volume was created in it",
                           path);
                break;
        case STORE_VOLUME_GAVE_UP:
                log_warning("volume %s: evicted the data file %s, as the file system has no room "
                            "for a write",
                            path, text);
                break;
        case STORE_VOLUME_COPIED:
                log_warning("volume %s: access rights have changed while other processes have "
                            "data files open that were lent to them: %s replaced by copies, and "
                            "the old files get no further chunk; a process that may read chunks "
                            "from data files opens the new ones",
                            path, text);
                break;
        case STORE_VOLUME_HAS_LOST:
                log_warning("volume %s: %s", path, text);
                break;
        case STORE_VOLUME_KEEPS_POLICY:
                log_error("volume %s keeps the eviction policy of the daemon's startup instead of "
                          "eviction.policy: %s; the next reload tries again",
                          path, text);
                break;
        }
}

static struct store_params store_params_of(struct server *s)
{
        const struct config *c = s->config;

        return (struct store_params){
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
                .rights = server_rights(s),
                .scrub = server_scrub(s),
                .on_volume = on_volume,
                .on_finding = on_finding,
                .userdata = s,
        };
}

/* Returns the longest time for which the loop may poll, from io.spin. */
static uint32_t spin_limit(const struct config *c)
{
        if (strcmp(c->io.spin, "off") == 0)
                return 0;
        if (strcmp(c->io.spin, "long") == 0)
                return SPIN_LONG_LIMIT_NS;
        return strcmp(c->io.spin, "on") == 0 ? SPIN_LIMIT_NS : spin_limit_of_host();
}

/* Returns whether there are twice as many cores as workers, loop and one client, so that a worker
 * that polls keeps no other thread from its core. */
static bool has_cores_for_all(const struct config *c)
{
        return spin_cpus() >= 2 * (c->io.workers + 2);
}

static void warn_of_file_systems(const struct server *s)
{
        struct store_volume_stats volume;

        for (unsigned i = 0; store_get_volume_stats(s->service.store, i, &volume); i++)
                if (*volume.file_system_warning)
                        log_warning("store.path: %s: %s", volume.path, volume.file_system_warning);
}

int server_start_store(struct server *s)
{
        const struct config *c = s->config;
        struct store_params params = store_params_of(s);
        struct kio_pool more_pools[CONFIG_MAX_TENANTS];
        const char *names[CONFIG_MAX_TENANTS];
        uint16_t numbers[CONFIG_MAX_TENANTS];
        int locks[STORE_MAX_VOLUMES + 1];
        struct kio_params io = {
                .backend = c->io.backend,
                .workers = (unsigned)c->io.workers,
                .depth = (unsigned)c->io.depth,
                .posix_threads = POSIX_THREADS,
                .hang_ns = c->io.hang_ms * UINT64_C(1000000),
                .spin_ns = spin_limit(c),
                .spread_bytes = has_cores_for_all(c) ? SPREAD_BYTES : 0,
                .huge_regions = strcmp(c->memory.huge_pages, "all") == 0,
                .no_registration = !c->io.registration,
                .pool = pool_base(s->tenants[0].pool),
                .pool_bytes = pool_bytes(s->tenants[0].pool),
                .piece_bytes = pool_slab_bytes(s->tenants[0].pool),
                .pool_has_data = s->keep.kept[0] >= 0,
                .more_pools = more_pools,
                .n_more_pools = s->service.n_tenants - 1,
                .lock_fds = locks,
        };
        char error[512] = "";
        int r;

        s->spin.limit_ns = io.spin_ns;
        for (unsigned i = 0; i < s->service.n_tenants; i++) {
                const struct pool *pool = s->tenants[i].pool;

                params.pool_slab_bytes = MAX(params.pool_slab_bytes, pool_slab_bytes(pool));
                names[i] = server_tenant_name(s, i);
                if (i > 0)
                        more_pools[i - 1] =
                                (struct kio_pool){ .base = pool_base(pool),
                                                   .bytes = pool_bytes(pool),
                                                   .piece_bytes = pool_slab_bytes(pool) };
        }

        if (server_read_learned(s, &params.secret) < 0 ||
            getrandom(s->instance, sizeof(s->instance), 0) != sizeof(s->instance))
                return server_fail(-EIO, "getting random numbers from the kernel", NULL);
        r = store_prepare(&s->service.store, &params, error);
        if (r < 0)
                return server_fail(r, "opening the store", error);
        io.n_lock_fds = store_lock_fds(s->service.store, locks);
        locks[io.n_lock_fds++] = s->liveness.locked_fd;
        io.probe_fd = store_probe_fd(s->service.store);
        io.stages = &s->service.stages;
        r = kio_start(&s->service.io, &io, error);
        if (r < 0)
                return server_fail(r, "starting the I/O workers", error);
        r = store_open(s->service.store, s->service.io, error);
        if (r < 0)
                return server_fail(r, "opening the store", error);
        warn_of_file_systems(s);
        r = tenant_ids_assign(s->service.store, s->service.io, names, s->service.n_tenants, numbers,
                              error);
        if (r < 0)
                return server_fail(r, "opening the store", error);
        for (unsigned i = 0; i < s->service.n_tenants; i++)
                s->tenants[i].store_tenant = numbers[i];
        r = server_start_learned(s, &params.secret);
        return r != 0 ? r : server_start_keep(s);
}

/* Numbers the tenants: `default`, and the others in the order of the configuration. */
static void number_tenants(struct server *s)
{
        const struct config *c = s->config;

        s->service.tenants = s->tenants;
        s->service.n_tenants = 1;
        for (unsigned i = 0; i < c->n_tenants; i++)
                if (strcmp(c->tenants[i].name, "default") == 0)
                        s->tenant_config[0] = &c->tenants[i];
                else
                        s->tenant_config[s->service.n_tenants++] = &c->tenants[i];
}

int server_start_tenants(struct server *s)
{
        const struct config *c = s->config;
        struct quota_access admins = { c->access.admin_users.items, c->access.admin_users.n,
                                       c->access.admin_groups.items, c->access.admin_groups.n };
        struct quota_limits all = server_all_limits(s), user = server_user_limits(s);
        struct quota_params params[CONFIG_MAX_TENANTS];
        char error[256] = "";
        int r;

        number_tenants(s);
        for (unsigned i = 0; i < s->service.n_tenants; i++) {
                const struct config_strings *users =
                        i == 0 ? &c->access.users : &s->tenant_config[i]->users;
                const struct config_strings *groups =
                        i == 0 ? &c->access.groups : &s->tenant_config[i]->groups;

                params[i] = (struct quota_params){
                        .name = server_tenant_name(s, i),
                        .access = { users->items, users->n, groups->items, groups->n },
                        .limits = server_tenant_limits(s, i),
                };
        }
        r = quotas_new(&s->service.quotas, params, s->service.n_tenants, &admins, &all, &user,
                       error);
        if (r < 0) {
                server_fail(r, "reading access and tenants", error);
                return EXIT_STATUS_CONFIG;
        }
        return 0;
}

/* Returns the index of the entry of memory.floors whose prefix is the longest one that the
 * namespace's name begins with, or the number of entries if it begins with none. */
static unsigned floor_of_namespace(void *userdata, uint32_t namespace_id)
{
        const struct server *s = userdata;
        const struct config_strings *floors = &s->config->memory.floors;
        const struct store_namespace *ns = store_namespace_get(s->service.store, namespace_id);
        unsigned found = floors->n;
        size_t longest = 0;

        for (unsigned i = 0; ns && i < floors->n; i++)
                if (s->floor_prefix[i] > longest &&
                    strncmp(ns->name, floors->items[i], s->floor_prefix[i]) == 0) {
                        longest = s->floor_prefix[i];
                        found = i;
                }
        return found;
}

static void set_floors(struct server *s, struct pool *pool)
{
        const struct config_strings *items = &s->config->memory.floors;
        struct pool_floors floors = { .n = items->n, .of = floor_of_namespace, .userdata = s };

        static_assert((int)CONFIG_MAX_FLOORS == (int)POOL_MAX_FLOORS, "each has a group");
        for (unsigned i = 0; i < items->n; i++)
                (void)config_split_floor(items->items[i], &s->floor_prefix[i], &floors.bytes[i]);
        pool_set_floors(pool, &floors);
}

static int start_tenant(struct server *s, unsigned number)
{
        struct lease_limits limits = server_lease_limits(s, number);
        struct tenant *tenant = &s->tenants[number];
        int r;

        tenant->number = number;
        s->service.pool_index = s->config->memory.pool_index;
        r = tenant_open(tenant, &s->service, &limits);
        set_floors(s, tenant->pool);
        if (r == 0)
                r = request_init(tenant);
        if (r == 0)
                r = cache_prefetch_init(tenant->cache, tenant->announced,
                                        s->config->memory.prefetch);
        return r < 0 ? server_fail(r, server_tenant_name(s, number), NULL) : 0;
}

static int start_lookups(struct server *s)
{
        struct lookups_tenant tenants[CONFIG_MAX_TENANTS];
        int r;

        if (!s->config->memory.lookup_index)
                return 0;
        for (unsigned i = 0; i < s->service.n_tenants; i++)
                tenants[i] = (struct lookups_tenant){ .store_tenant = s->tenants[i].store_tenant,
                                                      .pool = s->tenants[i].pool };
        r = lookups_new(&s->service.lookups, &(struct lookups_params){
                                                     .store = s->service.store,
                                                     .io = s->service.io,
                                                     .tenants = tenants,
                                                     .n_tenants = s->service.n_tenants,
                                                     .available = server_available_memory,
                                             });
        return r < 0 ? server_fail(r, "making the lookup index", NULL) : 0;
}

static int start_events(struct server *s)
{
        struct events_tenant tenants[CONFIG_MAX_TENANTS];
        int r;

        if (s->config->events.ring == 0)
                return 0;
        for (unsigned i = 0; i < s->service.n_tenants; i++)
                tenants[i] = (struct events_tenant){ .store_tenant = s->tenants[i].store_tenant,
                                                     .pool = s->tenants[i].pool };
        r = events_new(&s->service.events, &(struct events_params){
                                                   .store = s->service.store,
                                                   .tenants = tenants,
                                                   .n_tenants = s->service.n_tenants,
                                                   .ring_bytes = s->config->events.ring,
                                           });
        return r < 0 ? server_fail(r, "making the ring of events", NULL) : 0;
}

static void warn_of_bench(void *userdata, const char *text)
{
        log_warning("%s", text);
}

/* Starts benchmark sessions, whose files are in the folder of the first volume. */
static int start_bench(struct server *s)
{
        static const char *const variables[] = { "KVCACHE_BENCH_SESSION",
                                                 "DYNAMO_BENCHMARK_SESSION" };
        char folder[PATH_MAX];
        struct bench_params params = { .io = s->service.io,
                                       .folder = folder,
                                       .warn = warn_of_bench };
        int r;

        snprintf(folder, sizeof(folder), "%s/bench", store_volume_path(s->service.store, 0));
        r = bench_new(&s->service.bench, &params);
        if (r < 0)
                return server_fail(r, "loading the benchmark sessions", NULL);
        for (size_t i = 0; i < ARRAY_SIZE(variables); i++) {
                const char *name = getenv(variables[i]);

                if (!name || !*name)
                        continue;
                r = bench_resume(s->service.bench, name);
                if (r < 0)
                        log_warning("%s: cannot activate benchmark session \"%s\": %s",
                                    variables[i], name,
                                    r == -EINVAL ? "it is not " SNAPSHOT_NAME_RULE
                                    : r == -ENOSPC
                                            ? "there are too many benchmark sessions; delete one"
                                            : strerror(-r));
                else
                        log_info("benchmark session %s is active (%s)", name, variables[i]);
                break;
        }
        return 0;
}

int server_start_service(struct server *s)
{
        const struct config *c = s->config;
        struct sessions_params sessions = {
                .base = s->base,
                .service = &s->service,
                .liveness_fd = s->liveness.handout_fd,
                .handshake_ms = c->limits.handshake_ms,
                .spin_us = s->spin.limit_ns / 1000,
                .costly = &s->sources.loop[METRICS_LOOP_COSTLY],
        };
        int r = start_lookups(s);

        if (r == 0)
                r = start_events(s);
        if (r == 0)
                r = server_start_admission(s);
        if (r == 0)
                r = server_start_remote(s);
        if (r != 0)
                return r;
        r = namespace_counts_new(&s->service.namespace_counts, s->service.store, TENANT_IDS);
        if (r < 0)
                return server_fail(r, "counting the namespaces", NULL);
        store_time_sweeps(s->service.store, &s->sources.loop[METRICS_LOOP_PURGE]);
        for (unsigned i = 0; i < s->service.n_tenants; i++) {
                r = start_tenant(s, i);
                if (r != 0)
                        return r;
        }
        s->service.staging_max = c->memory.staging;
        s->service.wait_ms = c->limits.wait_ms;
        server_apply_gds(s);
        server_apply_stages(s);
        audit_init(&s->service);
        s->service.report = status_report;
        s->service.reload = server_print_reload;
        s->service.server_userdata = s;
        s->service.userdata = &s->sources;
        server_apply_limits(s);
        memcpy(sessions.instance, s->instance, sizeof(s->instance));
        r = start_bench(s);
        if (r != 0)
                return r;
        r = sessions_new(&s->sessions, &sessions);
        if (r < 0)
                return server_fail(r, "making the table of sessions", NULL);
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
                log_warning("cannot accept connections: %s; new connections wait. Check "
                            "limits.connections and LimitNOFILE=",
                            strerror(-error));
}

int server_start_http(struct server *s)
{
        const struct config *c = s->config;
        struct http_params params = {
                .address = c->listen.http,
                .inherited_fd = s->inherited.http,
                .allow_remote = c->http.allow_remote,
                .hosts = c->http.hosts.items,
                .n_hosts = c->http.hosts.n,
                .rate = c->limits.http_rate,
                .max_connections = (unsigned)c->limits.http_connections,
                .deadline_ms = c->limits.http_ms,
                .made = &s->sources.loop[METRICS_LOOP_HTTP],
                .pages = {
                        .history = &s->history,
                        .print_metrics = status_print_metrics,
                        .print_status = status_print_status,
                        .find_namespace = namespace_view_find,
                        .print_namespace = namespace_view_print_page,
                        .is_ready = status_is_ready,
                        .is_healthy = status_is_healthy,
                        .userdata = &s->sources,
                },
        };
        char error[256] = "";
        int r;

        if (strcmp(c->listen.http, "off") == 0 && params.inherited_fd < 0)
                return 0;
        r = http_token_read(&params.token, c->http.token_file, error);
        if (r < 0) {
                int status = server_fail(r, "http.token_file", error);

                return r == -EACCES ? status : EXIT_STATUS_CONFIG;
        }
        r = http_start(&s->http, s->base, &params, error);
        explicit_bzero(&params.token, sizeof(params.token));
        if (r == -EADDRINUSE && !config_given(c, "listen.http")) {
                log_warning(
                        "%s; continuing without HTTP metrics. Set listen.http to another address",
                        error[0] ? error : "listen.http: the address is in use");
                return 0;
        }
        if (r == -EINVAL) {
                server_fail(r, "listen.http", error);
                return EXIT_STATUS_CONFIG;
        }
        if (r == -EADDRINUSE && error[0]) {
                size_t n = strlen(error);

                snprintf(error + n, sizeof(error) - n,
                         ": set listen.http to another address, or to off");
        }
        if (r == 0 && http_is_remote(s->http) && !http_needs_token(s->http))
                log_warning("listen.http: every host that can reach %s may read the metrics and "
                            "the status; set http.token_file to require a token",
                            http_address(s->http));
        return r < 0 ? server_fail(r, "listen.http", error) : 0;
}

int server_check_listener(const struct server *s)
{
        char error[256] = "";
        int r = s->inherited.listen >= 0 ? 0 : listener_check_path(s->config->listen.socket, error);

        return r < 0 ? server_fail(r, "listen.socket", error) : 0;
}

int server_start_listener(struct server *s)
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

        if (r < 0)
                return server_fail(r, "listen.socket", error);
        listener_get_path(s->listener, s->sources.socket, sizeof(s->sources.socket));
        return 0;
}

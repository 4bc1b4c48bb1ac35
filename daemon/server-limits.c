/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the limits of connections, users, tenants and all clients from the configuration, in
 * which 0 is "auto", and applies other keys that a reload may change. Runs at startup and at a
 * reload, on the loop thread; keeps no state. */
#include "server-internal.h"

#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "checked.h"
#include "evict/admission.h"

enum {
        MAX_REGIONS = 16384,   /* registered regions of all clients: a quarter of the mappings that
                                * a process may have */
        MAX_FILES = 64,        /* registered files of all clients; one thread reads them all */
        BYTES_OF_A_KEY = 1024, /* default of limits.request_memory, for each key of limits.keys */
        REQUEST_MEMORY_MIN = 2 << 20,
        UNREAD_FDS_MIN = 64,
};

static uint64_t or_none(uint64_t limit)
{
        return limit ? limit : QUOTA_NO_LIMIT;
}

struct quota_limits server_tenant_limits(const struct server *s, unsigned tenant)
{
        static const struct config_tenant none;
        const struct config_tenant *t = s->tenant_config[tenant] ? s->tenant_config[tenant] : &none;

        return (struct quota_limits){ {
                [QUOTA_CONNECTIONS] = or_none(t->connections),
                [QUOTA_LEASES] = or_none(t->leases),
                [QUOTA_LEASED_BYTES] = or_none(t->leased_bytes),
                [QUOTA_STAGINGS] = QUOTA_NO_LIMIT,
                [QUOTA_STAGING_BYTES] = or_none(t->staging_bytes),
                [QUOTA_REGISTERED_BYTES] = or_none(t->registered),
                [QUOTA_REGIONS] = QUOTA_NO_LIMIT,
                [QUOTA_KEYS] = or_none(t->keys),
                [QUOTA_REQUESTS] = QUOTA_NO_LIMIT,
                [QUOTA_REQUEST_BYTES] = QUOTA_NO_LIMIT,
                [QUOTA_UNREAD_FDS] = QUOTA_NO_LIMIT,
                [QUOTA_DEFERRED_FDS] = or_none(t->connections),
                [QUOTA_LOANS] = QUOTA_NO_LIMIT,
                [QUOTA_LOANED_BYTES] = QUOTA_NO_LIMIT,
                [QUOTA_FILES] = QUOTA_NO_LIMIT,
        } };
}

/* Returns the limit of unread descriptors: half of RLIMIT_NOFILE, but at least UNREAD_FDS_MIN. The
 * kernel counts descriptors in flight against the user that sends them, and sends none while there
 * are more than RLIMIT_NOFILE. Other processes of the daemon's user may have the other half. */
static uint64_t half_of_the_files(void)
{
        struct rlimit limit;

        if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY)
                return INT32_MAX / 2;
        return MAX((uint64_t)limit.rlim_cur / 2, (uint64_t)UNREAD_FDS_MIN);
}

static uint64_t three_quarters_of_the_machine(void)
{
        return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) / 4 * 3;
}

struct quota_limits server_all_limits(const struct server *s)
{
        const struct config *c = s->config;

        return (struct quota_limits){ {
                [QUOTA_CONNECTIONS] = c->limits.connections,
                [QUOTA_LEASES] = QUOTA_NO_LIMIT,
                [QUOTA_LEASED_BYTES] = QUOTA_NO_LIMIT,
                [QUOTA_STAGINGS] = QUOTA_NO_LIMIT,
                [QUOTA_STAGING_BYTES] =
                        c->limits.staging_bytes ? c->limits.staging_bytes : s->staging_bytes_auto,
                [QUOTA_REGISTERED_BYTES] = c->limits.registered ? c->limits.registered
                                                                : three_quarters_of_the_machine(),
                [QUOTA_REGIONS] = MAX_REGIONS,
                [QUOTA_KEYS] = c->limits.keys,
                [QUOTA_REQUESTS] = c->limits.requests,
                [QUOTA_REQUEST_BYTES] = c->limits.request_memory
                                                ? c->limits.request_memory
                                                : MAX(c->limits.keys * BYTES_OF_A_KEY,
                                                      (uint64_t)REQUEST_MEMORY_MIN),
                [QUOTA_UNREAD_FDS] =
                        c->limits.unread_fds ? c->limits.unread_fds : half_of_the_files(),
                /* A connection has at most one deferred request, with at most one descriptor. */
                [QUOTA_DEFERRED_FDS] = c->limits.connections,
                [QUOTA_LOANS] = STORE_LOANS_MAX,
                /* Lent chunks cannot be evicted, so they may be a quarter of the store only. */
                [QUOTA_LOANED_BYTES] = c->store.limit / 4,
                [QUOTA_FILES] = MAX_FILES,
        } };
}

/* Sets a user's limit. By default a user has at most three quarters of the total limit, and at most
 * QUOTA_SHARE times the unused rest of it (tenant/quota.h). A user alone reaches the three
 * quarters. */
static void set_user_limit(struct quota_limits *limits, enum quota_thing what, uint64_t configured,
                           uint64_t of_all)
{
        limits->most[what] = configured ? configured : of_all - of_all / 4;
        limits->shared[what] = !configured;
}

struct quota_limits server_user_limits(const struct server *s)
{
        const struct config *c = s->config;
        struct quota_limits all = server_all_limits(s);
        struct quota_limits limits = { .most = {
                                               [QUOTA_LEASES] = or_none(c->limits.uid_leases),
                                               [QUOTA_LEASED_BYTES] =
                                                       or_none(c->limits.uid_leased_bytes),
                                               [QUOTA_STAGINGS] = QUOTA_NO_LIMIT,
                                       } };
        const struct {
                enum quota_thing what;
                uint64_t configured;
        } things[] = {
                { QUOTA_STAGING_BYTES, c->limits.uid_staging_bytes },
                { QUOTA_REGIONS, 0 },
                { QUOTA_LOANS, 0 },
                { QUOTA_LOANED_BYTES, 0 },
                { QUOTA_FILES, 0 },
                { QUOTA_REQUESTS, c->limits.uid_requests },
                { QUOTA_REQUEST_BYTES, c->limits.uid_request_memory },
                { QUOTA_UNREAD_FDS, c->limits.uid_unread_fds },
                { QUOTA_KEYS, c->limits.uid_keys },
        };

        for (unsigned i = 0; i < ARRAY_SIZE(things); i++)
                set_user_limit(&limits, things[i].what, things[i].configured,
                               all.most[things[i].what]);
        /* An admin may register as much as all users together. */
        limits.most[QUOTA_REGISTERED_BYTES] = or_none(c->limits.uid_registered);
        limits.shared[QUOTA_REGISTERED_BYTES] = !c->limits.uid_registered;
        config_uid_limits(c, &limits.most[QUOTA_CONNECTIONS], &limits.most[QUOTA_KEYS]);
        limits.most[QUOTA_DEFERRED_FDS] = limits.most[QUOTA_CONNECTIONS];
        /* If few connections are allowed, one user may have all of them. */
        limits.shared[QUOTA_CONNECTIONS] =
                !c->limits.uid_connections &&
                limits.most[QUOTA_CONNECTIONS] < all.most[QUOTA_CONNECTIONS];
        return limits;
}

static_assert((int)LEASE_SHARE == 3, "config_auto_leased_bytes() is three quarters of the half");

/* Returns the limits of a connection. By default it may lease three eighths of the pool, as much as
 * a user who leases alone (server_lease_limits()), so that an engine need not divide its leases
 * among connections. */
static struct quota_limits connection_limits(const struct server *s, unsigned tenant)
{
        uint64_t pool = pool_bytes(s->tenants[tenant].pool);
        struct quota_limits limits = { 0 };

        for (unsigned i = 0; i < QUOTA_THINGS; i++)
                limits.most[i] = QUOTA_NO_LIMIT;
        limits.most[QUOTA_LEASES] = s->config->limits.leases;
        limits.most[QUOTA_LEASED_BYTES] =
                tenant == 0 ? s->config->limits.leased_bytes
                            : MIN(s->config->limits.leased_bytes, config_auto_leased_bytes(pool));
        return limits;
}

/* Returns the limits of a tenant's leases: half of its pool in all and, unless
 * limits.uid_leased_bytes is set, for a user who leases alone at most three quarters of that
 * (lease_limits.shared; rules R10 and R11 of SECURITY.md). */
struct lease_limits server_lease_limits(const struct server *s, unsigned tenant)
{
        return (struct lease_limits){
                .bytes_all = pool_bytes(s->tenants[tenant].pool) / 2,
                .shared = !s->config->limits.uid_leased_bytes,
        };
}

static void apply_names_limits(struct server *s)
{
        struct namespace_limits limits = { .user = (unsigned)s->config->limits.uid_namespaces,
                                           .n_tenants = s->service.n_tenants };

        for (unsigned i = 0; i < s->service.n_tenants; i++)
                limits.tenants[i] = (struct namespace_tenant){
                        .store_tenant = s->tenants[i].store_tenant,
                        .name = tenant_name(&s->tenants[i]),
                        .most = s->tenant_config[i] ? (unsigned)s->tenant_config[i]->namespaces : 0,
                };
        namespace_counts_set_limits(s->service.namespace_counts, &limits);
}

static uint64_t pinned_limit(const struct server *s, unsigned tenant)
{
        const struct config_tenant *t = s->tenant_config[tenant];
        uint64_t stored = t && t->stored_bytes ? t->stored_bytes : s->config->store.limit;

        return t && t->pinned_bytes ? t->pinned_bytes : stored / 4;
}

void server_apply_limits(struct server *s)
{
        struct quota_limits all = server_all_limits(s), user = server_user_limits(s);

        quotas_set_common_limits(s->service.quotas, &all, &user);
        apply_names_limits(s);
        for (unsigned i = 0; i < s->service.n_tenants; i++) {
                struct quota_limits limits = server_tenant_limits(s, i);
                struct quota_limits connection = connection_limits(s, i);
                struct lease_limits leases = server_lease_limits(s, i);

                quotas_set_limits(s->service.quotas, i, &limits);
                quotas_set_connection_limits(s->service.quotas, i, &connection);
                leases_set_limits(s->tenants[i].leases, &leases);
                store_set_tenant_limit(s->service.store, s->tenants[i].store_tenant,
                                       s->tenant_config[i] ? s->tenant_config[i]->stored_bytes : 0);
                s->tenants[i].pinned_limit = pinned_limit(s, i);
        }
}

struct store_scrub server_scrub(const struct server *s)
{
        return (struct store_scrub){
                .rate = s->config->store.scrub_rate,
                .interval_ms = s->config->store.scrub_interval_ms,
        };
}

static enum service_gds gds_of(const char *text)
{
        return strcmp(text, "on") == 0     ? SERVICE_GDS_ON
               : strcmp(text, "auto") == 0 ? SERVICE_GDS_AUTO
                                           : SERVICE_GDS_OFF;
}

void server_apply_gds(struct server *s)
{
        s->service.gds = gds_of(s->config->io.gds);
        s->service.gds_puts = s->service.gds == SERVICE_GDS_OFF ? SERVICE_GDS_OFF
                                                                : gds_of(s->config->io.gds_puts);
}

void server_apply_stages(struct server *s)
{
        if (stages_set(&s->service.stages, s->config->io.stages) < 0)
                log_error("io.stages: out of memory; stage times are not recorded until the next "
                          "reload");
}

void server_apply_policy(struct server *s)
{
        const char *policy = s->config->eviction.policy;
        uint64_t began = clock_mono_ns();
        bool changed = false;
        int r = 0;

        for (unsigned i = 0; i < s->service.n_tenants; i++) {
                int one = pool_set_policy(s->tenants[i].pool, policy);

                changed = changed || one > 0;
                r = MIN(r, one);
        }
        r = MIN(r, store_set_policy(s->service.store, policy));
        if (r < 0)
                log_error("eviction.policy: %s; at least one pool or volume keeps its previous "
                          "policy until the next reload",
                          strerror(-r));
        else if (changed)
                log_info("eviction.policy: switched to %s in %.3f s", policy,
                         (double)(clock_mono_ns() - began) / 1e9);
}

int server_start_admission(struct server *s)
{
        enum { REMEMBERED_OF_ENTRIES = 4, REMEMBERED_MAX = 4 << 20 };
        uint64_t remembered = MIN(s->config->store.entries, (uint64_t)REMEMBERED_MAX);
        uint64_t seed, now = clock_mono_ns();
        int r;

        /* The instance number cannot be the seed: clients receive it in HELLO, and could choose
         * keys that are admitted. */
        if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed))
                return server_fail(-EIO, "getting random numbers from the kernel", NULL);
        remembered = MIN(remembered * REMEMBERED_OF_ENTRIES, (uint64_t)REMEMBERED_MAX);
        r = admission_new(&s->service.admission, remembered, seed, now);
        if (r == 0)
                r = admission_set_budget(s->service.admission, s->config->store.write_budget, now);
        if (r < 0)
                return server_fail(r, "applying store.write_budget", NULL);
        server_count_writes(s);
        return 0;
}

void server_apply_budget(struct server *s)
{
        if (admission_set_budget(s->service.admission, s->config->store.write_budget,
                                 clock_mono_ns()) < 0)
                log_error("store.write_budget: out of memory for the table of keys; the previous "
                          "budget applies until the next reload");
}

void server_count_writes(struct server *s)
{
        struct store_stats st;

        store_get_stats(s->service.store, &st);
        admission_count_written(s->service.admission,
                                st.payload_bytes_written + st.table_bytes_written +
                                        st.prewrite_bytes_written,
                                clock_mono_ns());
}

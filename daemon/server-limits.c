/* SPDX-License-Identifier: Apache-2.0 */
/* Limits: those of the configuration, where 0 is "auto". */
#include "server-internal.h"

#include <sys/resource.h>
#include <unistd.h>

#include "checked.h"

enum {
        MAX_REGIONS = 16384,   /* a quarter of the mappings that a process may have */
        BYTES_OF_A_KEY = 1024, /* of limits.request_memory */
        REQUEST_MEMORY_MIN = 2 << 20,
        UNREAD_FDS_MIN = 64,
};

static uint64_t or_none(uint64_t limit)
{
        return limit ? limit : TENANT_NO_LIMIT;
}

struct tenant_limits server_tenant_limits(const struct server *s, unsigned tenant)
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
                [TENANT_REGIONS] = TENANT_NO_LIMIT,
                [TENANT_KEYS] = or_none(t->keys),
                [TENANT_REQUESTS] = TENANT_NO_LIMIT,
                [TENANT_REQUEST_BYTES] = TENANT_NO_LIMIT,
                [TENANT_UNREAD_FDS] = TENANT_NO_LIMIT,
        } };
}

/* The kernel counts descriptors on their way against the user that sends them, and sends none while
 * there are more than RLIMIT_NOFILE; other processes of the daemon's user may have some, too. */
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

struct tenant_limits server_all_limits(const struct server *s)
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
                [TENANT_REGIONS] = MAX_REGIONS,
                [TENANT_KEYS] = c->limits.keys,
                [TENANT_REQUESTS] = c->limits.requests,
                [TENANT_REQUEST_BYTES] = c->limits.request_memory
                                                 ? c->limits.request_memory
                                                 : MAX(c->limits.keys * BYTES_OF_A_KEY,
                                                       (uint64_t)REQUEST_MEMORY_MIN),
                [TENANT_UNREAD_FDS] =
                        c->limits.unread_fds ? c->limits.unread_fds : half_of_the_files(),
        } };
}

/* Where nothing is configured a user has three quarters of what all have, and a share of what is
 * left (quota.h), which comes to the same for one user alone. */
static void set_user_limit(struct tenant_limits *limits, enum tenant_thing what,
                           uint64_t configured, uint64_t of_all)
{
        limits->most[what] = configured ? configured : of_all - of_all / 4;
        limits->shared[what] = !configured;
}

struct tenant_limits server_user_limits(const struct server *s)
{
        const struct config *c = s->config;
        struct tenant_limits all = server_all_limits(s);
        struct tenant_limits limits = { .most = {
                                                [TENANT_LEASES] = or_none(c->limits.uid_leases),
                                                [TENANT_LEASED_BYTES] =
                                                        or_none(c->limits.uid_leased_bytes),
                                                [TENANT_LANES] = TENANT_NO_LIMIT,
                                        } };
        const struct {
                enum tenant_thing what;
                uint64_t configured;
        } things[] = {
                { TENANT_LANE_BYTES, c->limits.uid_lane_bytes },
                { TENANT_REGIONS, 0 },
                { TENANT_REQUESTS, c->limits.uid_requests },
                { TENANT_REQUEST_BYTES, c->limits.uid_request_memory },
                { TENANT_UNREAD_FDS, c->limits.uid_unread_fds },
                { TENANT_KEYS, c->limits.uid_keys },
        };

        for (unsigned i = 0; i < ARRAY_SIZE(things); i++)
                set_user_limit(&limits, things[i].what, things[i].configured,
                               all.most[things[i].what]);
        /* An admin may lend all. */
        limits.most[TENANT_DONATED_BYTES] = or_none(c->limits.uid_donated);
        limits.shared[TENANT_DONATED_BYTES] = !c->limits.uid_donated;
        config_uid_limits(c, &limits.most[TENANT_CONNECTIONS], &limits.most[TENANT_KEYS]);
        /* Of few connections one user may have all. */
        limits.shared[TENANT_CONNECTIONS] =
                !c->limits.uid_connections &&
                limits.most[TENANT_CONNECTIONS] < all.most[TENANT_CONNECTIONS];
        return limits;
}

/* Half of the pool may be leased, three quarters of that by one user, and by default a quarter of
 * the pool by one connection (rules R10, R11). */
struct lease_limits server_lease_limits(const struct server *s, unsigned tenant)
{
        uint64_t pool = pool_bytes(s->env[tenant].pool);

        return (struct lease_limits){
                .count = (uint32_t)s->config->limits.leases,
                .bytes = tenant == 0 ? s->config->limits.leased_bytes
                                     : MIN(s->config->limits.leased_bytes, pool / 4),
                .bytes_all = pool / 2,
                .shared = !s->config->limits.uid_leased_bytes,
        };
}

static void apply_names_limits(struct server *s)
{
        struct census_limits limits = { .user = (unsigned)s->config->limits.uid_namespaces,
                                        .n_tenants = s->n_env };

        for (unsigned i = 0; i < s->n_env; i++)
                limits.tenants[i] = (struct census_tenant){
                        .store_tenant = s->env[i].store_tenant,
                        .name = tenants_name(s->tenants, i),
                        .most = s->tenant[i] ? (unsigned)s->tenant[i]->namespaces : 0,
                };
        census_set_limits(s->census, &limits);
}

void server_apply_limits(struct server *s)
{
        struct tenant_limits all = server_all_limits(s), user = server_user_limits(s);

        tenants_set_common_limits(s->tenants, &all, &user);
        apply_names_limits(s);
        for (unsigned i = 0; i < s->n_env; i++) {
                struct tenant_limits limits = server_tenant_limits(s, i);
                struct lease_limits leases = server_lease_limits(s, i);

                tenants_set_limits(s->tenants, i, &limits);
                leases_set_limits(s->env[i].leases, &leases);
                store_set_tenant_limit(s->store, s->env[i].store_tenant,
                                       s->tenant[i] ? s->tenant[i]->stored_bytes : 0);
        }
}

struct store_scrub server_scrub(const struct server *s)
{
        return (struct store_scrub){
                .rate = s->config->store.scrub_rate,
                .interval_ms = s->config->store.scrub_interval_ms,
        };
}

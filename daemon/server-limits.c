/* SPDX-License-Identifier: Apache-2.0 */
/* Limits: those of the configuration, where 0 is "auto". */
#include "server-internal.h"

#include <unistd.h>

#include "checked.h"

enum { MAX_REGIONS = 16384 }; /* a quarter of the mappings that a process may have */

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
        } };
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
        } };
}

struct tenant_limits server_user_limits(const struct server *s)
{
        const struct config *c = s->config;
        uint64_t lanes = server_all_limits(s).most[TENANT_LANE_BYTES];
        struct tenant_limits limits = { {
                [TENANT_LEASES] = or_none(c->limits.uid_leases),
                [TENANT_LEASED_BYTES] = or_none(c->limits.uid_leased_bytes),
                [TENANT_LANES] = TENANT_NO_LIMIT,
                [TENANT_LANE_BYTES] =
                        c->limits.uid_lane_bytes ? c->limits.uid_lane_bytes : lanes - lanes / 4,
                [TENANT_DONATED_BYTES] = or_none(c->limits.uid_donated),
                [TENANT_REGIONS] = MAX_REGIONS - MAX_REGIONS / 4,
        } };

        config_uid_limits(c, &limits.most[TENANT_CONNECTIONS], &limits.most[TENANT_KEYS]);
        return limits;
}

/* Half of the pool may be leased, and by default a quarter by one connection (rule R11). */
struct lease_limits server_lease_limits(const struct server *s, unsigned tenant)
{
        uint64_t pool = pool_bytes(s->env[tenant].pool);

        return (struct lease_limits){
                .count = (uint32_t)s->config->limits.leases,
                .bytes = tenant == 0 ? s->config->limits.leased_bytes
                                     : MIN(s->config->limits.leased_bytes, pool / 4),
                .bytes_all = pool / 2,
        };
}

static void apply_names_limits(struct server *s)
{
        struct names_limits limits = { .user = (unsigned)s->config->limits.uid_namespaces,
                                       .n_tenants = s->n_env };

        for (unsigned i = 0; i < s->n_env; i++)
                limits.tenants[i] = (struct names_tenant){
                        .store_tenant = s->env[i].store_tenant,
                        .name = tenants_name(s->tenants, i),
                        .most = s->tenant[i] ? (unsigned)s->tenant[i]->namespaces : 0,
                };
        names_set_limits(s->names, &limits);
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

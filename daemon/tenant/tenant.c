/* SPDX-License-Identifier: Apache-2.0 */
/* See tenant.h. A tenant is opened at startup after the store. The chunk sizes that its namespaces
 * have declared by then get slot classes in the pool. Fails only if memory is short. */
#include "tenant/tenant.h"

#include "lookup/pool-index.h"
#include "tenant/ids.h"

enum { MAX_LEASES = 4 << 20 };

int tenant_open(struct tenant *t, struct service *service, const struct lease_limits *limits)
{
        const struct cache_params params = { .pool = t->pool,
                                             .store = service->store,
                                             .io = service->io,
                                             .admission = service->admission,
                                             .remote = service->remote,
                                             .tenant = t->store_tenant };
        const struct store_namespace *ns;
        int r;

        t->service = service;
        t->quota_lines = (struct log_ratelimit)LOG_RATELIMIT_INIT(1);
        t->region_lines = (struct log_ratelimit)LOG_RATELIMIT_INIT(4);
        r = leases_new(&t->leases, t->pool, MAX_LEASES, limits);
        if (r < 0)
                return r;
        r = cache_new(&t->cache, &params);
        if (r == 0 && service->pool_index)
                r = pool_index_new(&t->pool_index, t->pool, service->io);
        if (r < 0)
                return r;
        for (unsigned i = 0; (ns = store_namespace_at(service->store, i)); i++)
                if (ns->tenant == t->store_tenant)
                        pool_declare(t->pool, ns->chunk_bytes);
        return 0;
}

void tenant_close(struct tenant *t)
{
        t->cache = cache_free(t->cache);
        t->leases = leases_free(t->leases);
        lookup_counters_fini(&t->lookup_counters);
        t->pool_index = pool_index_free(t->pool_index);
        t->pool = pool_free(t->pool);
        readers_fini(&t->readers);
}

const char *tenant_name(const struct tenant *t)
{
        return quotas_tenant_name(t->service->quotas, t->number);
}

struct tenant *tenant_in_store(const struct service *service, uint16_t store_tenant)
{
        for (unsigned i = 0; i < service->n_tenants; i++)
                if (service->tenants[i].store_tenant == store_tenant)
                        return &service->tenants[i];
        return NULL;
}

const char *tenant_name_in_store(const struct service *service, uint16_t store_tenant)
{
        const struct tenant *t = tenant_in_store(service, store_tenant);

        if (t)
                return tenant_name(t);
        return store_tenant == 0 ? "default" : tenant_id_name(service->store, store_tenant);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Implements namespaces.h. Owns nothing, cannot fail. The largest namespaces come from
 * tenant/namespace-counts.h, and their requested and found keys from lookup/counters.h. */
#include "report/namespaces.h"

#include <stdio.h>
#include <string.h>

#include "request/request.h"
#include "report/sums.h"

enum { FINGERPRINT_SHOWN = 512 }; /* bytes of a fingerprint that are shown, of at most 4096 */

static_assert((int)METRICS_NAMESPACES == (int)NAMESPACE_LARGEST_MAX,
              "each of the largest has its series");

const char *status_tenant_name(const struct service *service, uint16_t store_tenant)
{
        const char *name = tenant_name_in_store(service, store_tenant);

        return name ? name : "(not configured)";
}

/* Returns the store's number of the tenant to which the view is limited, or -1. */
static int tenant_seen(const struct client *viewer)
{
        return viewer && !viewer->admin ? viewer->tenant->store_tenant : -1;
}

/* --- the status --- */

struct lookup_counts status_namespace_keys(const struct service *service,
                                           const struct store_namespace *ns,
                                           struct lookup_counts *ret_gets)
{
        const struct tenant *tenant = tenant_in_store(service, ns->tenant);
        struct lookup_counts keys[COUNTED_KINDS] = { 0 };

        if (tenant)
                lookup_counters_get(&tenant->lookup_counters, ns, keys);
        *ret_gets = keys[COUNTED_GETS];
        return status_lookups(keys);
}

static void add_keys(cJSON *o, const struct service *service, const struct store_namespace *ns)
{
        struct lookup_counts gets, lookups = status_namespace_keys(service, ns, &gets);

        cJSON_AddNumberToObject(o, "lookup_keys", (double)(lookups.found + lookups.missing));
        cJSON_AddNumberToObject(o, "lookup_found_keys", (double)lookups.found);
        cJSON_AddNumberToObject(o, "get_keys", (double)(gets.found + gets.missing));
        cJSON_AddNumberToObject(o, "get_found_keys", (double)gets.found);
}

static void add_namespace(cJSON *list, const struct service *service,
                          const struct store_namespace *ns)
{
        cJSON *o = cJSON_CreateObject();
        char fingerprint[FINGERPRINT_SHOWN + sizeof("...")];

        snprintf(fingerprint, sizeof(fingerprint), "%.*s%s", FINGERPRINT_SHOWN, ns->fingerprint,
                 strlen(ns->fingerprint) > FINGERPRINT_SHOWN ? "..." : "");
        cJSON_AddStringToObject(o, "name", ns->name);
        cJSON_AddStringToObject(o, "tenant", status_tenant_name(service, ns->tenant));
        cJSON_AddNumberToObject(o, "chunks", (double)ns->chunks);
        cJSON_AddNumberToObject(o, "bytes", (double)ns->bytes);
        cJSON_AddNumberToObject(o, "chunk_bytes", (double)ns->chunk_bytes);
        add_keys(o, service, ns);
        cJSON_AddStringToObject(o, "fingerprint", fingerprint);
        cJSON_AddNumberToObject(o, "sessions",
                                namespace_counts_sessions(service->namespace_counts, ns->id));
        cJSON_AddItemToArray(list, o);
}

static bool is_near(const struct namespace_use *use)
{
        return (uint64_t)use->has * 100 >= (uint64_t)use->most * NAMESPACE_WARN_PERCENT;
}

/* Writes a text about the limits that are nearly reached, or "" if there are none. */
static void warning_text(const struct namespace_counts_stats *all,
                         const struct namespace_use *tenant, const struct namespace_use *user,
                         char *ret, size_t room)
{
        size_t n = 0;

        ret[0] = '\0';
        if (all && all->store_near)
                n += (size_t)snprintf(ret + n, room - n,
                                      "the store has %u of at most %u namespaces", all->count,
                                      all->most);
        if (all && all->tenants_near)
                n += (size_t)snprintf(ret + n, room - n, "%s%u %s at %d %% of its limit or more",
                                      n ? "; " : "", all->tenants_near,
                                      all->tenants_near == 1 ? "tenant is" : "tenants are",
                                      NAMESPACE_WARN_PERCENT);
        if (all && all->users_near)
                n += (size_t)snprintf(ret + n, room - n, "%s%u %s at %d %% of its limit or more",
                                      n ? "; " : "", all->users_near,
                                      all->users_near == 1 ? "user is" : "users are",
                                      NAMESPACE_WARN_PERCENT);
        if (tenant && is_near(tenant))
                n += (size_t)snprintf(ret + n, room - n,
                                      "the tenant has %u of at most %u namespaces", tenant->has,
                                      tenant->most);
        if (user && is_near(user))
                n += (size_t)snprintf(ret + n, room - n,
                                      "%suser has made %u of at most %u namespaces",
                                      n ? "; this " : "this ", user->has, user->most);
        if (n)
                snprintf(ret + n, room - n, ": remove some (kvcachectl namespace rm)");
}

void status_add_namespaces(cJSON *root, const struct service *service,
                           const struct status_namespaces *scope)
{
        struct largest_namespaces largest;
        cJSON *list = cJSON_AddArrayToObject(root, "namespaces"),
              *usage = cJSON_AddObjectToObject(root, "namespace_usage");
        struct namespace_counts_stats stats;
        struct namespace_use tenant, user;
        char warning[400];
        int only = tenant_seen(scope->viewer);
        unsigned shown;

        namespace_counts_get_stats(service->namespace_counts, &stats);
        namespace_counts_get_largest(service->namespace_counts, only, &largest);
        shown = scope->named ? largest.n : 0;
        for (unsigned i = 0; i < shown; i++)
                add_namespace(list, service, &largest.list[i]);
        if (scope->viewer)
                user = namespace_counts_get_user(service->namespace_counts,
                                                 scope->viewer->tenant->store_tenant,
                                                 scope->viewer->uid);
        if (only < 0) {
                warning_text(&stats, NULL, scope->viewer ? &user : NULL, warning, sizeof(warning));
                cJSON_AddNumberToObject(usage, "count", stats.count);
                cJSON_AddNumberToObject(usage, "limit", stats.most);
        } else {
                namespace_counts_get_tenant(service->namespace_counts, (uint16_t)only, &tenant);
                warning_text(NULL, &tenant, &user, warning, sizeof(warning));
                cJSON_AddNumberToObject(usage, "count", tenant.has);
                cJSON_AddNumberToObject(usage, "limit", tenant.most);
        }
        cJSON_AddNumberToObject(usage, "chunks", (double)largest.chunks);
        cJSON_AddNumberToObject(usage, "bytes", (double)largest.bytes);
        cJSON_AddNumberToObject(usage, "shown", shown);
        if (scope->viewer) {
                cJSON_AddNumberToObject(usage, "user_count", user.has);
                cJSON_AddNumberToObject(usage, "user_limit", user.most);
        }
        cJSON_AddStringToObject(usage, "warning", warning);
}

/* --- metrics --- */

/* Converts a name to a label value that needs no escaping in any format. Different names have
 * different values, and none has the value "other". */
static void label_of(const struct service *service, const struct store_namespace *ns,
                     char ret[static METRICS_NAMESPACE_NAME])
{
        size_t n = 0;

        if (service->n_tenants > 1)
                n = (size_t)snprintf(ret, METRICS_NAMESPACE_NAME,
                                     "%s:", status_tenant_name(service, ns->tenant));
        for (const char *p = ns->name; *p; p++) {
                bool escape = *p == '%' || *p == '"' || *p == '\\' ||
                              (p == ns->name && n == 0 && strcmp(p, "other") == 0);

                n += (size_t)snprintf(ret + n, METRICS_NAMESPACE_NAME - n, escape ? "%%%02X" : "%c",
                                      (unsigned)*p);
        }
}

void status_collect_namespace_limits(const struct service *service,
                                     const struct status_namespaces *scope, struct metrics *s)
{
        struct namespace_counts_stats stats;
        int only = tenant_seen(scope->viewer);

        namespace_counts_get_stats(service->namespace_counts, &stats);
        s->namespaces = stats.count;
        s->namespaces_most = stats.most;
        s->namespaces_removed = (double)stats.removed;
        s->namespaces_expired = (double)stats.expired;
        for (unsigned i = 0; i < METRICS_NAMESPACE_SCOPES; i++)
                s->namespaces_refused[i] = (double)stats.refused[i];
        s->namespaces_near[NAMESPACES_OF_USER] = stats.users_near;
        s->namespaces_near[NAMESPACES_OF_TENANT] = stats.tenants_near;
        s->namespaces_near[NAMESPACES_OF_STORE] = stats.store_near;
        for (unsigned i = 0; i < service->n_tenants; i++) {
                struct namespace_use use;

                if (only >= 0 && service->tenants[i].store_tenant != only)
                        continue;
                if (!namespace_counts_get_tenant(service->namespace_counts,
                                                 service->tenants[i].store_tenant, &use))
                        continue;
                s->tenant_namespaces[i] = use.has;
                s->tenant_namespaces_limit[i] = use.most;
        }
}

/* Returns the bytes of memory that the chunks of a namespace occupy; 0 if its tenant is not
 * configured. */
static double pool_bytes_of(const struct service *service, const struct store_namespace *ns)
{
        const struct tenant *tenant = tenant_in_store(service, ns->tenant);

        return tenant ? (double)pool_namespace_bytes(tenant->pool, ns->id) : 0;
}

/* Returns the bytes of memory that the chunks of all namespaces occupy that the viewer sees. */
static double pool_bytes_of_all(const struct service *service, int only)
{
        double sum = 0;

        for (unsigned i = 0; i < service->n_tenants; i++)
                if (only < 0 || service->tenants[i].store_tenant == only)
                        sum += (double)pool_all_namespaces_bytes(service->tenants[i].pool);
        return sum;
}

void status_collect_namespaces(const struct service *service, const struct status_namespaces *scope,
                               struct metrics *s)
{
        struct largest_namespaces largest;
        struct lookup_counts lookups, gets;

        status_collect_namespace_limits(service, scope, s);
        namespace_counts_get_largest(service->namespace_counts, tenant_seen(scope->viewer),
                                     &largest);
        strcpy(s->namespace_names[METRICS_NAMESPACES], "other");
        s->namespace_chunks[METRICS_NAMESPACES] = (double)largest.chunks;
        s->namespace_bytes[METRICS_NAMESPACES] = (double)largest.bytes;
        s->namespace_pool_bytes[METRICS_NAMESPACES] =
                pool_bytes_of_all(service, tenant_seen(scope->viewer));
        for (unsigned i = 0; scope->named && i < largest.n; i++) {
                label_of(service, &largest.list[i], s->namespace_names[i]);
                s->namespace_chunks[i] = (double)largest.list[i].chunks;
                s->namespace_bytes[i] = (double)largest.list[i].bytes;
                lookups = status_namespace_keys(service, &largest.list[i], &gets);
                s->namespace_lookup_keys[i] = (double)(lookups.found + lookups.missing);
                s->namespace_lookup_found[i] = (double)lookups.found;
                s->namespace_get_keys[i] = (double)(gets.found + gets.missing);
                s->namespace_get_found[i] = (double)gets.found;
                s->namespace_chunks[METRICS_NAMESPACES] -= s->namespace_chunks[i];
                s->namespace_bytes[METRICS_NAMESPACES] -= s->namespace_bytes[i];
                s->namespace_pool_bytes[i] = pool_bytes_of(service, &largest.list[i]);
                s->namespace_pool_bytes[METRICS_NAMESPACES] -= s->namespace_pool_bytes[i];
        }
}

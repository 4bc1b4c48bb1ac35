/* SPDX-License-Identifier: Apache-2.0 */
/* Implements namespace-view.h. Owns nothing. Without memory, the report is empty. */
#include "report/namespace-view.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include <cjson/cJSON.h>

#include "base/clock.h"
#include "report/namespaces.h"
#include "report/page-namespace.h"
#include "report/sources.h"
#include "request/request.h"

static_assert((int)NAMESPACE_LARGEST_MAX + (int)NAMESPACE_WATCHED <= (int)NAMESPACE_ROWS,
              "each sampled namespace has a row");

/* --- the history --- */

static struct namespace_now now_of(const struct service *service, const struct store_namespace *ns)
{
        struct lookup_counts gets, lookups = status_namespace_keys(service, ns, &gets);

        return (struct namespace_now){
                .of = { ns->id, ns->created_ms },
                .counters = { [NAMESPACE_LOOKUP_KEYS] = lookups.found + lookups.missing,
                              [NAMESPACE_LOOKUP_FOUND] = lookups.found,
                              [NAMESPACE_GET_KEYS] = gets.found + gets.missing,
                              [NAMESPACE_GET_FOUND] = gets.found },
                .chunks = ns->chunks,
                .bytes = ns->bytes,
        };
}

static bool is_listed(const struct namespace_now *list, unsigned n, uint32_t id)
{
        for (unsigned i = 0; i < n; i++)
                if (list[i].of.id == id)
                        return true;
        return false;
}

void namespace_view_tick(const struct status_sources *from, uint64_t now_ns)
{
        static struct largest_namespaces largest; /* too large for the stack */
        static struct namespace_now list[NAMESPACE_ROWS];
        const struct service *service = from->service;
        struct namespace_history *h = from->namespaces;
        unsigned n = 0;

        if (!namespace_history_is_due(h, now_ns))
                return;
        namespace_counts_get_largest(service->namespace_counts, -1, &largest);
        for (; n < largest.n; n++)
                list[n] = now_of(service, &largest.list[n]);
        for (unsigned i = 0; i < h->n_watched; i++) {
                const struct store_namespace *ns =
                        store_namespace_get(service->store, h->watched[i].id);

                if (ns && ns->created_ms == h->watched[i].created_ms && !is_listed(list, n, ns->id))
                        list[n++] = now_of(service, ns);
        }
        namespace_history_add(h, now_ns, list, n);
}

/* --- the next to be evicted --- */

/* Collects the next chunks of some namespaces. */
struct collected {
        const struct namespace_id *ids;
        struct namespace_next *next; /* as many */
        unsigned n, visited;
};

static void insert_leaving(struct namespace_next *next, const struct store_leaving *leaving)
{
        unsigned at = next->n_first;

        while (at > 0 && next->first[at - 1].place > leaving->place)
                at--;
        if (at == NAMESPACE_NEXT_SHOWN)
                return;
        if (next->n_first < NAMESPACE_NEXT_SHOWN)
                next->n_first++;
        memmove(&next->first[at + 1], &next->first[at],
                (next->n_first - 1 - at) * sizeof(next->first[0]));
        next->first[at] = (struct namespace_leaving){ .place = leaving->place,
                                                      .length = leaving->length,
                                                      .age_s = (double)leaving->age_ns / 1e9,
                                                      .chance = leaving->chance,
                                                      .key = *leaving->key };
}

static void note_leaving(void *userdata, const struct store_leaving *leaving)
{
        struct collected *c = userdata;

        c->visited++;
        for (unsigned i = 0; i < c->n; i++) {
                if (c->ids[i].id != leaving->namespace_id)
                        continue;
                c->next[i].n++;
                c->next[i].bytes += leaving->length;
                insert_leaving(&c->next[i], leaving);
                return;
        }
}

/* --- HTTP --- */

static bool is_shown(const struct service *service, const struct store_namespace *ns)
{
        return ns && service->n_tenants == 1 && ns->tenant == service->tenants[0].store_tenant;
}

bool namespace_view_find(void *userdata, const char *name, size_t length, uint32_t *ret_id)
{
        const struct status_sources *from = userdata;
        const struct service *service = from->service;
        const struct store_namespace *ns = NULL;

        if (service->n_tenants == 1 && wire_name_check(name, length) == 0)
                ns = store_namespace_find(service->store, service->tenants[0].store_tenant, name,
                                          length);
        if (!is_shown(service, ns))
                return false;
        *ret_id = ns->id;
        return true;
}

void namespace_view_print_page(void *userdata, uint32_t id, bool paused, FILE *out)
{
        static struct namespace_next next; /* too large for the stack */
        const struct status_sources *from = userdata;
        const struct service *service = from->service;
        const struct store_namespace *ns = store_namespace_get(service->store, id);
        struct page_namespace page = {
                .next = &next,
                .history = from->namespaces,
                .now_ns = clock_mono_ns(),
                .unix_ms = clock_unix_ms(),
                .paused = paused,
        };
        struct collected c = { .ids = &page.of, .next = &next, .n = 1 };
        struct utsname host;

        if (uname(&host) == 0)
                page.host = host.nodename;
        if (is_shown(service, ns)) {
                struct namespace_now now = now_of(service, ns);

                page.ns = ns;
                page.of = now.of;
                memcpy(page.counters, now.counters, sizeof(page.counters));
                page.sessions = namespace_counts_sessions(service->namespace_counts, id);
                page.last_used_ms = namespace_counts_last_used_ms(service->namespace_counts, id);
                namespace_history_watch(from->namespaces, page.now_ns, &now);
                next = (struct namespace_next){ 0 };
                store_next(service->store, ns->tenant, NAMESPACE_NEXT_VISITED, note_leaving, &c);
                page.visited = c.visited;
        }
        page_namespace_print(out, &page);
}

/* --- the report --- */

static cJSON *add_column(cJSON *o, const char *name)
{
        return cJSON_AddArrayToObject(o, name);
}

static void append(cJSON *column, double value)
{
        cJSON_AddItemToArray(column, cJSON_CreateNumber(value));
}

/* Adds the samples as columns, because an object for each would be several times as long. */
static void add_samples(cJSON *o, const struct namespace_history *h, struct namespace_id of,
                        uint64_t now_ns)
{
        static const char *const names[NAMESPACE_COUNTERS] = { "lookup_keys", "lookup_found_keys",
                                                               "get_keys", "get_found_keys" };
        cJSON *samples = cJSON_AddObjectToObject(o, "samples"), *counted[NAMESPACE_COUNTERS];
        cJSON *ages = add_column(samples, "age_seconds"), *spans = add_column(samples, "seconds");
        cJSON *chunks = add_column(samples, "chunks"), *bytes = add_column(samples, "bytes");
        const struct namespace_sample *s;

        for (unsigned k = 0; k < NAMESPACE_COUNTERS; k++)
                counted[k] = add_column(samples, names[k]);
        for (unsigned i = 0; (s = namespace_history_get(h, of, now_ns, i)); i++) {
                append(ages, (double)((now_ns - s->end_ns) / 1000000) / 1e3);
                append(spans, (double)(s->span_ns / 1000000) / 1e3);
                append(chunks, (double)s->chunks);
                append(bytes, (double)s->bytes);
                for (unsigned k = 0; k < NAMESPACE_COUNTERS; k++)
                        append(counted[k], (double)s->counted[k]);
        }
}

static void add_next(cJSON *o, const struct namespace_next *next, unsigned visited)
{
        cJSON *evicted = cJSON_AddObjectToObject(o, "evicted_next"), *list;
        char hex[KEY_HEX_BYTES + 1];

        cJSON_AddNumberToObject(evicted, "of", visited);
        cJSON_AddNumberToObject(evicted, "chunks", next->n);
        cJSON_AddNumberToObject(evicted, "bytes", (double)next->bytes);
        list = cJSON_AddArrayToObject(evicted, "first");
        for (unsigned i = 0; i < next->n_first; i++) {
                const struct namespace_leaving *l = &next->first[i];
                cJSON *one = cJSON_CreateObject();

                key_to_hex(&l->key, hex);
                cJSON_AddStringToObject(one, "key", hex);
                cJSON_AddNumberToObject(one, "place", l->place);
                cJSON_AddNumberToObject(one, "bytes", l->length);
                cJSON_AddNumberToObject(one, "age_seconds", round(l->age_s * 1e3) / 1e3);
                cJSON_AddNumberToObject(one, "chance", round(l->chance * 1e3) / 1e3);
                cJSON_AddItemToArray(list, one);
        }
}

/* Adds the sampled namespaces of one tenant, for whose chunks the store is asked once. */
static void add_tenant(cJSON *list, const struct status_sources *from, const struct tenant *tenant,
                       uint64_t now_ns)
{
        const struct service *service = from->service;
        const struct namespace_history *h = from->namespaces;
        static struct namespace_next next[NAMESPACE_ROWS]; /* too large for the stack */
        struct namespace_id ids[NAMESPACE_ROWS];
        struct collected c = { .ids = ids, .next = next };

        memset(next, 0, sizeof(next));
        for (unsigned i = 0; i < NAMESPACE_ROWS; i++) {
                struct namespace_id of = h->rows[i].last.of;
                const struct store_namespace *ns =
                        of.id ? store_namespace_get(service->store, of.id) : NULL;

                if (ns && ns->created_ms == of.created_ms && ns->tenant == tenant->store_tenant)
                        ids[c.n++] = of;
        }
        if (c.n == 0)
                return;
        store_next(service->store, tenant->store_tenant,
                   NAMESPACE_NEXT_VISITED / service->n_tenants, note_leaving, &c);
        for (unsigned i = 0; i < c.n; i++) {
                const struct store_namespace *ns = store_namespace_get(service->store, ids[i].id);
                cJSON *o = cJSON_CreateObject();

                cJSON_AddStringToObject(o, "name", ns->name);
                cJSON_AddStringToObject(o, "tenant", status_tenant_name(service, ns->tenant));
                add_samples(o, h, ids[i], now_ns);
                add_next(o, &next[i], c.visited);
                cJSON_AddItemToArray(list, o);
        }
}

void namespace_view_print_json(const struct status_sources *from, const struct client *viewer,
                               FILE *out)
{
        const struct service *service = from->service;
        cJSON *root = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(root, "namespaces");
        uint64_t now_ns = clock_mono_ns();
        char *text;

        for (unsigned i = 0; i < service->n_tenants; i++)
                if (viewer->admin || viewer->tenant == &service->tenants[i])
                        add_tenant(list, from, &service->tenants[i], now_ns);
        cJSON_AddNumberToObject(root, "sample_seconds", NAMESPACE_SAMPLE_S);
        text = cJSON_PrintUnformatted(root);
        if (text)
                fprintf(out, "%s\n", text);
        free(text);
        cJSON_Delete(root);
}

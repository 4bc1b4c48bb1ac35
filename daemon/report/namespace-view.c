/* SPDX-License-Identifier: Apache-2.0 */
/* Implements namespace-view.h. Owns nothing. Without memory, namespaces are missing from the
 * report, which has their number. */
#include "report/namespace-view.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include <cjson/cJSON.h>

#include "base/clock.h"
#include "cleanup.h"
#include "report/namespaces.h"
#include "report/page-namespace.h"
#include "report/sources.h"
#include "request/request.h"

enum {
        /* Bytes of all namespaces in a report, which proto/README.md promises to be below 256 KiB;
         * the rest of the report is less than 1 KiB. */
        NAMESPACE_REPORT_BYTES = 255 << 10,
};

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
        struct largest_namespaces largest;
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

/* The state of a walk over the chunks that are evicted next, which collects those of `n`
 * namespaces. */
struct collected {
        const struct namespace_id *ids;
        struct namespace_next *next; /* array of results, parallel to `ids` */
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

bool namespace_view_print_page(void *userdata, uint32_t id, bool paused, FILE *out)
{
        struct namespace_next next = { 0 };
        const struct status_sources *from = userdata;
        const struct service *service = from->service;
        const struct store_namespace *ns = store_namespace_get(service->store, id);
        struct page_namespace page = {
                .ns = ns,
                .next = &next,
                .history = from->namespaces,
                .now_ns = clock_mono_ns(),
                .unix_ms = clock_unix_ms(),
                .paused = paused,
        };
        struct collected c = { .ids = &page.of, .next = &next, .n = 1 };
        struct namespace_now now;
        struct utsname host;

        if (!is_shown(service, ns))
                return false;
        if (uname(&host) == 0)
                page.host = host.nodename;
        now = now_of(service, ns);
        page.of = now.of;
        memcpy(page.counters, now.counters, sizeof(page.counters));
        page.sessions = namespace_counts_sessions(service->namespace_counts, id);
        page.last_used_ms = namespace_counts_last_used_ms(service->namespace_counts, id);
        namespace_history_watch(from->namespaces, page.now_ns, &now);
        store_next(service->store, ns->tenant, NAMESPACE_NEXT_VISITED, note_leaving, &c);
        page.visited = c.visited;
        page_namespace_print(out, &page);
        return true;
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

/* The namespaces that a client sees, with their chunks that are evicted next. */
struct listed {
        struct namespace_id ids[NAMESPACE_ROWS];
        uint64_t bytes[NAMESPACE_ROWS]; /* bytes of each namespace in its latest sample */
        struct namespace_next next[NAMESPACE_ROWS];
        unsigned visited[NAMESPACE_ROWS]; /* chunks examined for `next` of each namespace */
        unsigned n;
};

/* Lists the sampled namespaces of one tenant, for whose chunks the store is asked once. */
static void list_tenant(struct listed *list, const struct status_sources *from,
                        const struct tenant *tenant)
{
        const struct service *service = from->service;
        unsigned first = list->n;
        struct collected c = { .ids = &list->ids[first], .next = &list->next[first] };

        for (unsigned i = 0; i < NAMESPACE_ROWS; i++) {
                const struct namespace_now *last = &from->namespaces->rows[i].last;
                const struct store_namespace *ns =
                        last->of.id ? store_namespace_get(service->store, last->of.id) : NULL;

                if (!ns || ns->created_ms != last->of.created_ms ||
                    ns->tenant != tenant->store_tenant)
                        continue;
                list->ids[list->n] = last->of;
                list->bytes[list->n++] = last->bytes;
        }
        c.n = list->n - first;
        if (c.n > 0)
                store_next(service->store, tenant->store_tenant,
                           NAMESPACE_NEXT_VISITED / service->n_tenants, note_leaving, &c);
        for (unsigned i = first; i < list->n; i++)
                list->visited[i] = c.visited;
}

static unsigned largest_of(const struct listed *list)
{
        unsigned largest = 0;

        for (unsigned i = 1; i < list->n; i++)
                if (list->bytes[i] > list->bytes[largest])
                        largest = i;
        return largest;
}

static void take_out(struct listed *list, unsigned i)
{
        list->n--;
        list->ids[i] = list->ids[list->n];
        list->bytes[i] = list->bytes[list->n];
        list->next[i] = list->next[list->n];
        list->visited[i] = list->visited[list->n];
}

/* Returns the JSON of a namespace, which the caller frees, or NULL without memory. */
static char *namespace_text(const struct status_sources *from, const struct listed *list,
                            unsigned i, uint64_t now_ns)
{
        const struct store_namespace *ns =
                store_namespace_get(from->service->store, list->ids[i].id);
        cJSON *o = cJSON_CreateObject();
        char *text;

        cJSON_AddStringToObject(o, "name", ns->name);
        cJSON_AddStringToObject(o, "tenant", status_tenant_name(from->service, ns->tenant));
        add_samples(o, from->namespaces, list->ids[i], now_ns);
        add_next(o, &list->next[i], list->visited[i]);
        text = cJSON_PrintUnformatted(o);
        cJSON_Delete(o);
        return text;
}

/* One namespace takes up to 16 KiB: 8 columns of 60 numbers, 20 chunks, and a name that JSON
 * doubles. So at least 15 namespaces always fit. */
void namespace_view_print_json(const struct status_sources *from, const struct client *viewer,
                               FILE *out)
{
        static struct listed list; /* too large for the stack */
        const struct service *service = from->service;
        uint64_t now_ns = clock_mono_ns();
        unsigned shown = 0, left_out = 0;
        size_t bytes = 0;

        memset(&list, 0, sizeof(list));
        for (unsigned i = 0; i < service->n_tenants; i++)
                if (viewer->admin || viewer->tenant == &service->tenants[i])
                        list_tenant(&list, from, &service->tenants[i]);
        fputs("{\"namespaces\":[", out);
        while (list.n > 0) {
                unsigned i = largest_of(&list);
                _cleanup_(freep) char *text =
                        left_out == 0 ? namespace_text(from, &list, i, now_ns) : NULL;

                take_out(&list, i);
                if (!text || bytes + strlen(text) + 1 > NAMESPACE_REPORT_BYTES) {
                        left_out++;
                        continue;
                }
                bytes += strlen(text) + 1;
                fprintf(out, "%s%s", shown++ > 0 ? "," : "", text);
        }
        fprintf(out, "],\"sample_seconds\":%d,\"left_out\":%u}\n", NAMESPACE_SAMPLE_S, left_out);
}

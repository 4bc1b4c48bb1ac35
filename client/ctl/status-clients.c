/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl status: the sessions, tenants, limits and namespaces. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "answer.h"
#include "checked.h"
#include "human.h"
#include "screen.h"
#include "section.h"
#include "status-parts.h"
#include "table.h"
#include "units.h"

void status_print_sessions(cJSON *status, bool detail)
{
        _cleanup_(cJSON_Deletep) cJSON *sessions = section_object(status, "sessions");
        char stagings[HUMAN_BYTES], leases[HUMAN_BYTES], connections[HUMAN_BYTES];
        char registered[HUMAN_BYTES], in_rings[HUMAN_BYTES], regions[HUMAN_BYTES];
        char huge[HUMAN_BYTES];
        uint64_t n_regions, closing;
        char stop[HUMAN_BYTES];
        double idle;

        if (!sessions)
                return;
        if (detail)
                section_begin("Sessions");
        human_count(section_count(sessions, "connections"), connections);
        human_things(section_count(sessions, "leases"), "lease", leases);
        units_bytes(section_count(sessions, "staging_bytes"), stagings);
        section_line(detail ? "now" : "sessions", "%s connected, with %s and %s of staging areas",
                     connections, leases, stagings);
        if (section_number(sessions, "idle_stop_seconds", &idle)) {
                human_seconds(idle, stop);
                section_line("", "stops after %s without a client (listen.idle)", stop);
        }
        (void)section_count(sessions, "stagings");
        closing = section_count(sessions, "stagings_closing");
        human_things(closing, "area", stagings);
        if (closing > 0 && detail)
                section_line("closing", "staging of ended sessions, %s", stagings);
        n_regions = section_count(sessions, "registered_buffers");
        human_things(n_regions, "region", regions);
        units_bytes(section_count(sessions, "registered_bytes"), registered);
        units_bytes(section_count(sessions, "registered_in_rings_bytes"), in_rings);
        units_bytes(section_count(sessions, "registered_huge_bytes"), huge);
        if (n_regions > 0)
                section_line("registered",
                             "%s in %s, %s of it registered with the rings, %s in huge pages",
                             registered, regions, in_rings, huge);
        if (detail)
                section_rest(sessions);
}

/* Prints a table, fitted to the width of a terminal. */
static void print_table(struct text_table *table)
{
        enum { INDENT = 2 };
        unsigned lines, columns = 0;

        if (screen_possible())
                screen_size(&lines, &columns);
        text_table_fit(table, columns > INDENT ? columns - INDENT : 0);
        text_table_print(table, "  ", section_out());
}

/* Formats a use and its limit: "12 of 64", or "12" without a limit. */
static void format_limited(cJSON *tenant, const char *name,
                           const char *(*format)(uint64_t value, char ret[static HUMAN_BYTES]),
                           char ret[static 2 * HUMAN_BYTES + 8])
{
        cJSON *pair = cJSON_GetObjectItemCaseSensitive(tenant, name);
        char used[HUMAN_BYTES], limit[HUMAN_BYTES];
        double most;

        format(section_count(pair, "used"), used);
        if (section_number(pair, "limit", &most)) {
                format(answer_count(most), limit);
                snprintf(ret, 2 * HUMAN_BYTES + 8, "%s of %s", used, limit);
        } else {
                snprintf(ret, 2 * HUMAN_BYTES + 8, "%s", used);
        }
}

static double stored_by(const cJSON *tenant)
{
        const cJSON *pair = cJSON_GetObjectItemCaseSensitive(tenant, "stored_bytes");

        return (double)answer_count_of(pair, "used");
}

/* Removes the tenant with the most stored bytes from the array and returns it. */
static cJSON *take_largest(cJSON *tenants)
{
        cJSON *largest = tenants->child, *tenant;

        cJSON_ArrayForEach(tenant, tenants)
        {
                if (stored_by(tenant) > stored_by(largest))
                        largest = tenant;
        }
        return cJSON_DetachItemViaPointer(tenants, largest);
}

void status_print_tenants(cJSON *status, bool detail)
{
        static const struct {
                const char *name, *heading;
                bool bytes, summary;
        } columns[] = { { "pool_bytes", "pool", true, true },
                        { "stored_bytes", "stored", true, true },
                        { "connections", "connections", false, true },
                        { "leased_bytes", "leased", true, false },
                        { "staging_bytes", "stagings", true, false },
                        { "registered_bytes", "registered", true, false },
                        { "keys", "keys in flight", false, false } };
        enum { FEW = 5 };
        _cleanup_(cJSON_Deletep) cJSON *tenants =
                cJSON_DetachItemFromObjectCaseSensitive(status, "tenants");
        _cleanup_(text_table_freep) struct text_table *table =
                text_table_new(detail ? "lrrrrrrrr" : "lrrrr");
        const char *row[TABLE_MAX_COLUMNS];
        unsigned n = 0;

        /* The summary shows a single tenant's numbers in other sections. */
        if (!cJSON_IsArray(tenants) || cJSON_GetArraySize(tenants) < (detail ? 1 : 2))
                return;
        section_begin("Tenants");
        row[n++] = "name";
        for (unsigned i = 0; i < ARRAY_SIZE(columns); i++)
                if (detail || columns[i].summary)
                        row[n++] = columns[i].heading;
        row[n] = "refused";
        text_table_add(table, row);
        for (unsigned shown = 0; cJSON_GetArraySize(tenants) > 0 && (detail || shown < FEW);
             shown++) {
                _cleanup_(cJSON_Deletep) cJSON *tenant = take_largest(tenants);
                char name[80], refused[HUMAN_BYTES];
                char cells[ARRAY_SIZE(columns)][2 * HUMAN_BYTES + 8];

                n = 0;
                section_text(tenant, "name", name, sizeof(name));
                row[n++] = name;
                for (unsigned i = 0; i < ARRAY_SIZE(columns); i++) {
                        format_limited(tenant, columns[i].name,
                                       columns[i].bytes ? units_bytes : human_count, cells[i]);
                        if (detail || columns[i].summary)
                                row[n++] = cells[i];
                }
                row[n] = human_count(section_count(tenant, "refused"), refused);
                text_table_add(table, row);
        }
        print_table(table);
        if (cJSON_GetArraySize(tenants) > 0)
                fprintf(section_out(), "  ... and %d more: kvcachectl status tenants\n",
                        cJSON_GetArraySize(tenants));
}

/* Prints limits that have refused requests, and limits of which a user has used at least four
 * fifths. */
void status_print_limits(cJSON *status, bool detail)
{
        _cleanup_(cJSON_Deletep) cJSON *resources =
                cJSON_DetachItemFromObjectCaseSensitive(status, "resources");
        _cleanup_(text_table_freep) struct text_table *table = text_table_new("lrrrrr");
        cJSON *resource;
        unsigned rows = 0;

        text_table_row(table, "resource", "used", "limit", "largest user", "user limit", "refused");
        cJSON_ArrayForEach(resource, resources)
        {
                static const char *const names[] = { "used", "limit", "largest_user", "user_limit",
                                                     "refused" };
                enum { USED, LIMIT, LARGEST_USER, USER_LIMIT, REFUSED };
                char cells[ARRAY_SIZE(names)][HUMAN_BYTES];
                double values[ARRAY_SIZE(names)];

                for (unsigned i = 0; i < ARRAY_SIZE(names); i++)
                        if (!section_number(resource, names[i], &values[i]))
                                values[i] = INFINITY;
                if (values[REFUSED] == 0 && values[LARGEST_USER] < 0.8 * values[USER_LIMIT])
                        continue;
                for (unsigned i = 0; i < ARRAY_SIZE(names); i++) {
                        if (!isfinite(values[i]))
                                strcpy(cells[i], "-");
                        else if (i != REFUSED && strstr(resource->string, "bytes"))
                                units_bytes(answer_count(values[i]), cells[i]);
                        else
                                human_count(answer_count(values[i]), cells[i]);
                }
                text_table_row(table, resource->string, cells[0], cells[1], cells[2], cells[3],
                               cells[4]);
                if (values[LARGEST_USER] > 0.9 * values[USER_LIMIT])
                        text_table_color(table, COLOR_WARNING, section_colored());
                rows++;
        }
        if (rows == 0 && !(detail && resources && resources->child))
                return;
        section_begin("Limits that were reached, or nearly");
        if (rows == 0)
                fputs("  none\n", section_out());
        else
                print_table(table);
}

/* Takes the fingerprint in the form that --fingerprint accepts: lines joined by commas, as in
 * "dtype=fp8,model=x". */
static void take_fingerprint(cJSON *namespace, char *ret, size_t room)
{
        char *text =
                cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(namespace, "fingerprint"));

        for (char *p = text; p && *p; p++)
                if (*p == '\n')
                        *p = p[1] ? ',' : '\0';
        section_text(namespace, "fingerprint", ret, room);
}

/* Formats the hit ratio of lookups or, if there were none, of gets. */
static void format_hits(cJSON *namespace, char ret[static HUMAN_BYTES])
{
        uint64_t looked_up = section_count(namespace, "lookup_keys");
        uint64_t found = section_count(namespace, "lookup_found_keys");
        uint64_t gets = section_count(namespace, "get_keys");
        uint64_t got = section_count(namespace, "get_found_keys");

        human_percent(looked_up ? found : got, looked_up ? looked_up : gets, ret);
}

static void add_namespace(struct text_table *table, cJSON *namespace, bool detail)
{
        char name[300], tenant[64], fingerprint[200], chunks[HUMAN_BYTES], bytes[HUMAN_BYTES],
                each[HUMAN_BYTES], hits[HUMAN_BYTES];
        double chunk_bytes;

        section_text(namespace, "name", name, sizeof(name));
        if (section_text(namespace, "tenant", tenant, sizeof(tenant)) &&
            strcmp(tenant, "default") != 0) {
                char both[sizeof(name)];

                snprintf(both, sizeof(both), "%.60s:%.235s", tenant, name);
                memcpy(name, both, sizeof(name));
        }
        human_count(section_count(namespace, "chunks"), chunks);
        units_bytes(section_count(namespace, "bytes"), bytes);
        format_hits(namespace, hits);
        if (section_number(namespace, "chunk_bytes", &chunk_bytes) && chunk_bytes > 0)
                units_bytes(answer_count(chunk_bytes), each);
        else
                strcpy(each, "-");
        take_fingerprint(namespace, fingerprint, sizeof(fingerprint));
        text_table_row(table, name, chunks, bytes, each, hits, detail ? fingerprint : NULL);
}

void status_print_namespaces(cJSON *status, bool detail)
{
        enum { FEW = 5 };
        _cleanup_(cJSON_Deletep) cJSON *namespaces =
                cJSON_DetachItemFromObjectCaseSensitive(status, "namespaces");
        _cleanup_(cJSON_Deletep) cJSON *usage = section_object(status, "namespace_usage");
        _cleanup_(text_table_freep) struct text_table *table =
                text_table_new(detail ? "lrrrrl" : "lrrrr");
        char counted[HUMAN_BYTES], most[HUMAN_BYTES], warning[512], heading[128] = "Namespaces";
        uint64_t count, limit, shown = 0;
        cJSON *namespace;

        if (!cJSON_IsArray(namespaces))
                return;
        count = section_count(usage, "count");
        limit = section_count(usage, "limit");
        section_text(usage, "warning", warning, sizeof(warning));
        human_count(count, counted);
        human_count(limit, most);
        if (limit)
                snprintf(heading, sizeof(heading), "Namespaces: %s of at most %s", counted, most);
        section_begin(heading);
        if (cJSON_GetArraySize(namespaces) == 0 && count == 0) {
                fputs("  none yet: a client makes the first\n", section_out());
                return;
        }
        text_table_row(table, "name", "chunks", "bytes", "chunk size", "hits", "fingerprint");
        cJSON_ArrayForEach(namespace, namespaces)
        {
                if (!detail && shown == FEW)
                        break;
                add_namespace(table, namespace, detail);
                shown++;
        }
        print_table(table);
        if (count > shown) {
                human_count(count - shown, counted);
                fprintf(section_out(), "  ... and %s more: kvcachectl namespace ls\n", counted);
        }
        if (warning[0])
                fprintf(section_out(), "  %sWARNING%s: %s\n",
                        color_begin(COLOR_WARNING, section_colored()),
                        color_end(COLOR_WARNING, section_colored()), warning);
}

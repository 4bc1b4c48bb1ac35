/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl status: the sessions, tenants, limits and namespaces. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "answer.h"
#include "checked.h"
#include "common.h"
#include "human.h"
#include "section.h"
#include "status-parts.h"
#include "table.h"
#include "units.h"

static void print_sessions(cJSON *status)
{
        _cleanup_(cJSON_Deletep) cJSON *sessions = section_object(status, "sessions");
        char stagings[HUMAN_BYTES], leases[HUMAN_BYTES], connections[HUMAN_BYTES];
        char registered[HUMAN_BYTES], in_rings[HUMAN_BYTES], regions[HUMAN_BYTES];
        uint64_t n_regions, closing;

        if (!sessions)
                return;
        puts("\nSessions");
        human_count(section_count(sessions, "connections"), connections);
        human_things(section_count(sessions, "leases"), "lease", leases);
        units_bytes(section_count(sessions, "staging_bytes"), stagings);
        section_line("now", "%s connected, with %s and %s of staging areas", connections, leases,
                     stagings);
        (void)section_count(sessions, "stagings");
        closing = section_count(sessions, "stagings_closing");
        human_things(closing, "area", stagings);
        if (closing > 0)
                section_line("closing", "staging of ended sessions, %s", stagings);
        n_regions = section_count(sessions, "registered_buffers");
        human_things(n_regions, "region", regions);
        units_bytes(section_count(sessions, "registered_bytes"), registered);
        units_bytes(section_count(sessions, "registered_in_rings_bytes"), in_rings);
        if (n_regions > 0)
                section_line("registered", "%s in %s, %s of it registered with the rings",
                             registered, regions, in_rings);
        section_rest(sessions);
}

/* "12 of 64", or "12". */
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

static void print_tenants(cJSON *status)
{
        static const struct {
                const char *name;
                bool bytes;
        } columns[] = { { "pool_bytes", true },    { "stored_bytes", true },
                        { "connections", false },  { "leased_bytes", true },
                        { "staging_bytes", true }, { "registered_bytes", true },
                        { "keys", false } };
        _cleanup_(cJSON_Deletep) cJSON *tenants =
                cJSON_DetachItemFromObjectCaseSensitive(status, "tenants");
        _cleanup_(text_table_freep) struct text_table *table = text_table_new("lrrrrrrrr");
        cJSON *tenant;

        /* With one there is nothing to tell apart, and its numbers are above. */
        if (!cJSON_IsArray(tenants) || cJSON_GetArraySize(tenants) < 2)
                return;
        puts("\nTenants");
        text_table_row(table, "name", "pool", "stored", "connections", "leased", "stagings",
                       "registered", "keys in flight", "refused");
        cJSON_ArrayForEach(tenant, tenants)
        {
                char name[80], refused[HUMAN_BYTES];
                char cells[ARRAY_SIZE(columns)][2 * HUMAN_BYTES + 8];

                section_text(tenant, "name", name, sizeof(name));
                for (unsigned i = 0; i < ARRAY_SIZE(columns); i++)
                        format_limited(tenant, columns[i].name,
                                       columns[i].bytes ? units_bytes : human_count, cells[i]);
                human_count(section_count(tenant, "refused"), refused);
                text_table_row(table, name, cells[0], cells[1], cells[2], cells[3], cells[4],
                               cells[5], cells[6], refused);
        }
        text_table_print(table, "  ", stdout);
}

/* What clients have been refused, and what a user has four fifths of its limit of. */
static void print_resources(cJSON *status)
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
                rows++;
        }
        if (rows == 0)
                return;
        puts("\nLimits that were reached, or nearly");
        text_table_print(table, "  ", stdout);
}

/* "dtype=fp8,model=x", as --fingerprint takes it: the lines of the text are joined. */
static void take_fingerprint(cJSON *namespace, char *ret, size_t room)
{
        char *text =
                cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(namespace, "fingerprint"));

        for (char *p = text; p && *p; p++)
                if (*p == '\n')
                        *p = p[1] ? ',' : '\0';
        section_text(namespace, "fingerprint", ret, room);
}

static void print_namespaces(cJSON *status)
{
        _cleanup_(cJSON_Deletep) cJSON *namespaces =
                cJSON_DetachItemFromObjectCaseSensitive(status, "namespaces");
        _cleanup_(cJSON_Deletep) cJSON *usage = section_object(status, "namespace_usage");
        _cleanup_(text_table_freep) struct text_table *table = text_table_new("lrrrl");
        char counted[HUMAN_BYTES], most[HUMAN_BYTES], warning[512];
        uint64_t count, limit;
        cJSON *namespace;
        int shown;

        if (!cJSON_IsArray(namespaces))
                return;
        count = section_count(usage, "count");
        limit = section_count(usage, "limit");
        section_text(usage, "warning", warning, sizeof(warning));
        human_count(count, counted);
        human_count(limit, most);
        if (limit)
                printf("\nNamespaces: %s of at most %s\n", counted, most);
        else
                puts("\nNamespaces");
        shown = cJSON_GetArraySize(namespaces);
        if (shown == 0 && count == 0) {
                puts("  none yet: a client makes the first");
                return;
        }
        text_table_row(table, "name", "chunks", "bytes", "chunk size", "fingerprint");
        cJSON_ArrayForEach(namespace, namespaces)
        {
                char name[300], tenant[64], fingerprint[200], chunks[HUMAN_BYTES],
                        bytes[HUMAN_BYTES], each[HUMAN_BYTES];
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
                if (section_number(namespace, "chunk_bytes", &chunk_bytes) && chunk_bytes > 0)
                        units_bytes(answer_count(chunk_bytes), each);
                else
                        strcpy(each, "-");
                take_fingerprint(namespace, fingerprint, sizeof(fingerprint));
                text_table_row(table, name, chunks, bytes, each, fingerprint);
        }
        text_table_print(table, "  ", stdout);
        if (count > (uint64_t)shown) {
                human_count(count - (uint64_t)shown, counted);
                printf("  ... and %s more: kvcachectl namespace ls\n", counted);
        }
        if (warning[0])
                printf("  WARNING: %s\n", warning);
}

void status_print_clients(cJSON *status)
{
        print_sessions(status);
        print_tenants(status);
        print_resources(status);
        print_namespaces(status);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl status: how the daemon is.
 *
 * The daemon answers in JSON, which --json hands on as it came. For people the known members are
 * laid out by hand; whatever a newer daemon adds is shown below them under its own name, with its
 * unit taken from the name's end. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "answer.h"
#include "commands.h"
#include "common.h"
#include "human.h"
#include "progress.h"
#include "text.h"
#include "units.h"
#include "checked.h"
#include "table.h"

/* --- taking members out of an object; what is left is shown generically --- */

static bool take_number(cJSON *object, const char *name, double *ret)
{
        cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

        if (!cJSON_IsNumber(item) || !isfinite(item->valuedouble))
                return false;
        *ret = item->valuedouble;
        cJSON_DeleteItemFromObjectCaseSensitive(object, name);
        return true;
}

static uint64_t take_count(cJSON *object, const char *name)
{
        double value;

        return take_number(object, name, &value) ? answer_count(value) : 0;
}

static bool take_text(cJSON *object, const char *name, char *ret, size_t room)
{
        cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

        ret[0] = '\0';
        if (!cJSON_IsString(item))
                return false;
        snprintf(ret, room, "%s", item->valuestring);
        for (size_t n = strlen(ret); n > 0 && ret[n - 1] == '\n'; n--)
                ret[n - 1] = '\0';
        text_clean(ret);
        cJSON_DeleteItemFromObjectCaseSensitive(object, name);
        return *ret != '\0';
}

static bool take_bool(cJSON *object, const char *name, bool *ret)
{
        cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

        if (!cJSON_IsBool(item))
                return false;
        *ret = cJSON_IsTrue(item);
        cJSON_DeleteItemFromObjectCaseSensitive(object, name);
        return true;
}

/* --- lines --- */

enum { LABEL_WIDTH = 16 };

__attribute__((format(printf, 2, 3))) static void line(const char *label, const char *format, ...)
{
        va_list arguments;

        printf("  %-*s  ", LABEL_WIDTH, label);
        va_start(arguments, format);
        vprintf(format, arguments);
        va_end(arguments);
        putchar('\n');
}

/* What no line above has taken. */
static void print_rest(const cJSON *object)
{
        const cJSON *item;

        cJSON_ArrayForEach(item, object)
        {
                char label[64], text[1024];

                if (cJSON_IsString(item) && !*item->valuestring)
                        continue;
                snprintf(label, sizeof(label), "%s", item->string ? item->string : "");
                for (char *p = label; *p; p++)
                        if (*p == '_' || (unsigned char)*p < 0x20)
                                *p = ' ';
                answer_format(item, text, sizeof(text));
                line(label, "%s", text);
        }
}

/* "1.2 GiB of 4 GiB  [#####...............]  30 %" */
static void print_use(const char *label, uint64_t used, uint64_t all)
{
        enum { WIDTH = 24 };
        char used_text[HUMAN_BYTES], all_text[HUMAN_BYTES], bar[WIDTH + 1];
        double part = all ? (double)used / (double)all : 0;

        units_bytes(used, used_text);
        units_bytes(all, all_text);
        progress_bar(part, WIDTH, bar);
        line(label, "%s of %s  [%s] %.0f %%", used_text, all_text, bar, 100 * part);
}

static cJSON *take_object(cJSON *status, const char *name)
{
        cJSON *object = cJSON_DetachItemFromObjectCaseSensitive(status, name);

        if (cJSON_IsObject(object))
                return object;
        cJSON_Delete(object);
        return NULL;
}

static void print_head(cJSON *status)
{
        char version[64], text[512], up[HUMAN_BYTES] = "";
        bool ready = true, has_ready = take_bool(status, "ready", &ready);
        _cleanup_(cJSON_Deletep) cJSON *degraded =
                cJSON_DetachItemFromObjectCaseSensitive(status, "degraded");
        char state[32], health[32];
        double seconds, pid;
        cJSON *one;

        take_text(status, "version", version, sizeof(version));
        printf("kvcache-daemon %s", version);
        if (take_text(status, "state", state, sizeof(state)))
                printf(", %s%s", has_ready && !ready ? "not ready: " : "", state);
        else if (has_ready)
                printf(", %s", ready ? "ready" : "not ready");
        if (take_text(status, "health", health, sizeof(health)) && strcmp(health, "ok") != 0)
                printf(", %s", health);
        if (take_number(status, "uptime_seconds", &seconds)) {
                human_seconds(seconds, up);
                printf(", up %s", up);
        }
        if (take_number(status, "pid", &pid))
                printf(", pid %.0f", pid);
        putchar('\n');
        if (take_text(status, "socket", text, sizeof(text)))
                line("socket", "%s", text);
        if (take_text(status, "http", text, sizeof(text)))
                line("http", "%s", text);
        if (take_text(status, "instance", text, sizeof(text)))
                line("instance", "%s", text);
        cJSON_ArrayForEach(one, degraded)
        {
                if (take_text(one, "text", text, sizeof(text)))
                        line("DEGRADED", "%s", text);
        }
}

/* "yes" or "no", and why. */
static void print_why(cJSON *io, const char *name, const char *reason_name, const char *label)
{
        char reason[512];
        bool on, known = take_bool(io, name, &on),
                 has_reason = take_text(io, reason_name, reason, sizeof(reason));

        if (known)
                line(label, "%s%s%s", on ? "yes" : "no", has_reason ? ": " : "", reason);
        else if (has_reason)
                line(label, "%s", reason);
}

static void print_io(cJSON *status)
{
        _cleanup_(cJSON_Deletep) cJSON *io = take_object(status, "io");
        char backend[64], text[512];
        uint64_t workers, depth;

        if (!io)
                return;
        puts("\nI/O");
        take_text(io, "backend", backend, sizeof(backend));
        if (take_text(io, "reason", text, sizeof(text)))
                line("backend", "%s: %s", backend, text);
        else
                line("backend", "%s", backend);
        if (take_text(io, "ring_flags", text, sizeof(text)))
                line("ring flags", "%s", text);
        print_why(io, "direct", "direct_reason", "O_DIRECT");
        print_why(io, "registered", "registered_reason", "registered");
        workers = take_count(io, "workers");
        depth = take_count(io, "depth");
        if (workers && depth)
                line("workers", "%llu, %llu operations in flight each at most",
                     (unsigned long long)workers, (unsigned long long)depth);
        else if (workers)
                line("workers", "%llu", (unsigned long long)workers);
        print_rest(io);
}

static void print_pool(cJSON *status)
{
        _cleanup_(cJSON_Deletep) cJSON *pool = take_object(status, "pool");
        char chunks[HUMAN_BYTES], leased[HUMAN_BYTES], unwritten[HUMAN_BYTES],
                populated[HUMAN_BYTES];
        uint64_t bytes, n;
        double populated_bytes, live;
        char huge[64];

        if (!pool)
                return;
        puts("\nMemory");
        bytes = take_count(pool, "bytes");
        print_use("used", take_count(pool, "used_bytes"), bytes);
        if (take_number(pool, "live_bytes", &live)) {
                units_bytes(answer_count(live), populated);
                line("live", "%s: the payload of its chunks, which take whole slots", populated);
        }
        if (take_number(pool, "populated_bytes", &populated_bytes) &&
            answer_count(populated_bytes) < bytes) {
                units_bytes(answer_count(populated_bytes), populated);
                line("populated", "%s so far", populated);
        }
        n = take_count(pool, "chunks");
        human_count(n, chunks);
        units_bytes(take_count(pool, "leased_bytes"), leased);
        units_bytes(take_count(pool, "unwritten_bytes"), unwritten);
        line("chunks", "%s; %s leased, %s not yet on disk", chunks, leased, unwritten);
        n = take_count(pool, "huge_bytes");
        units_bytes(n, populated);
        if (take_text(pool, "huge_pages", huge, sizeof(huge)))
                line("huge pages", "%s",
                     strcmp(huge, "some") == 0   ? populated
                     : strcmp(huge, "none") == 0 ? "none: the system gives none"
                                                 : huge);
        print_rest(pool);
}

/* One more line on memory: what clients look keys up in by themselves. */
static void print_lookups(cJSON *status)
{
        _cleanup_(cJSON_Deletep) cJSON *index = take_object(status, "lookup_index");
        char bytes[HUMAN_BYTES], entries[HUMAN_BYTES], unplaced[HUMAN_BYTES], built[64] = "";
        uint64_t tables, building, asked_for;
        bool enabled = true;

        if (!index)
                return;
        (void)take_bool(index, "enabled", &enabled);
        tables = take_count(index, "tables");
        building = take_count(index, "building");
        units_bytes(take_count(index, "bytes"), bytes);
        human_count(take_count(index, "entries"), entries);
        asked_for = take_count(index, "unplaced");
        human_count(asked_for, unplaced);
        if (building)
                snprintf(built, sizeof(built), "; %llu being built", (unsigned long long)building);
        if (!enabled)
                line("lookups", "off (memory.lookup_index): clients ask");
        else if (tables == 0)
                line("lookups", "no client has asked for an index%s", built);
        else
                line("lookups", "%s for clients, %s entries%s%s%s%s", bytes, entries,
                     asked_for ? ", " : "", asked_for ? unplaced : "",
                     asked_for ? " without a place" : "", built);
        /* The rest is in "kvcachectl stats". */
        (void)take_count(index, "buckets");
        (void)take_count(index, "overflowed");
        (void)take_count(index, "builds");
        (void)take_count(index, "failed_builds");
        print_rest(index);
}

/* What reads the disk back, how far it is, and what it has found. */
static void print_scrub(cJSON *store)
{
        _cleanup_(cJSON_Deletep) cJSON *scrub = take_object(store, "scrub");
        char rate[HUMAN_BYTES], interval[HUMAN_BYTES], part[HUMAN_BYTES], last[HUMAN_BYTES],
                found[HUMAN_BYTES], checked[HUMAN_BYTES];
        uint64_t bytes, done, all, ended, failures;
        double seconds = 0;
        bool running = false;

        if (!scrub)
                return;
        bytes = take_count(scrub, "rate_bytes");
        take_number(scrub, "interval_seconds", &seconds);
        take_bool(scrub, "running", &running);
        done = take_count(scrub, "segments_done");
        all = take_count(scrub, "segments");
        ended = take_count(scrub, "last_pass_ms");
        failures = take_count(scrub, "failures");
        units_bytes(bytes, rate);
        human_seconds(seconds, interval);
        human_percent(done, all, part);
        if (ended)
                human_time(ended, last);
        if (bytes == 0)
                line("scrub", "off");
        else
                line("scrub", "%s/s, every %s; %s%s; last pass ended: %s", rate, interval,
                     running ? "now at " : "idle", running ? part : "", ended ? last : "not yet");
        human_count(failures, found);
        human_things(take_count(scrub, "chunks"), "chunk", checked);
        line("scrubbed", "%s, %s dropped", checked, found);
        cJSON_DeleteItemFromObjectCaseSensitive(scrub, "passes");
        cJSON_DeleteItemFromObjectCaseSensitive(scrub, "bytes");
        print_rest(scrub);
}

/* How each path is, where that says more than its name: it is one of several, or not in use.
 * `ret_offline`: chunks that lie on those. */
static bool print_volumes(cJSON *states, uint64_t *ret_offline)
{
        int n = cJSON_GetArraySize(states);
        cJSON *one;

        cJSON_ArrayForEach(one, states)
        {
                char live[HUMAN_BYTES], reserved[HUMAN_BYTES], limit[HUMAN_BYTES], path[512],
                        state[64], reason[512], since[HUMAN_BYTES];

                if (!take_text(one, "path", path, sizeof(path)) ||
                    !take_text(one, "state", state, sizeof(state)))
                        return false;
                if (!take_text(one, "reason", reason, sizeof(reason)))
                        reason[0] = '\0';
                units_bytes(take_count(one, "payload_bytes"), live);
                units_bytes(take_count(one, "used_bytes"), reserved);
                units_bytes(take_count(one, "limit_bytes"), limit);
                human_time(take_count(one, "since_unix_ms"), since);
                if (strcmp(state, "up") != 0)
                        *ret_offline += take_count(one, "chunks");
                if (strcmp(state, "up") != 0 && strncmp(reason, state, strlen(state)) == 0)
                        line("path", "%s: %s, since %s", path, reason, since);
                else if (strcmp(state, "up") != 0)
                        line("path", "%s: %s since %s%s%s", path, state, since,
                             reason[0] ? ": " : "", reason);
                else if (n > 1)
                        line("path", "%s: %s live, %s reserved of %s", path, live, reserved, limit);
                else
                        line("path", "%s", path);
        }
        return n > 0;
}

static void print_store(cJSON *status)
{
        _cleanup_(cJSON_Deletep) cJSON *store = take_object(status, "store");
        _cleanup_(cJSON_Deletep) cJSON *paths = NULL, *states = NULL;
        char reserved[HUMAN_BYTES], all[HUMAN_BYTES], away[HUMAN_BYTES], chunks[HUMAN_BYTES],
                most[HUMAN_BYTES], segment[HUMAN_BYTES];
        const cJSON *path;
        uint64_t segments, segments_max, used, limit, bypassed, offline = 0;
        bool is_bypassed;

        if (!store)
                return;
        puts("\nStore");
        paths = cJSON_DetachItemFromObjectCaseSensitive(store, "path");
        states = cJSON_DetachItemFromObjectCaseSensitive(store, "paths");
        if (!print_volumes(states, &offline))
                cJSON_ArrayForEach(path, paths)
                {
                        char text[512];

                        answer_format(path, text, sizeof(text));
                        line("path", "%s", text);
                }
        if (cJSON_IsString(paths))
                line("path", "%s", paths->valuestring);
        limit = take_count(store, "limit_bytes");
        used = take_count(store, "used_bytes");
        print_use("live", take_count(store, "payload_bytes"), limit);
        units_bytes(used, reserved);
        units_bytes(limit, all);
        line("reserved", "%s of %s: chunks, preformatted space, tables", reserved, all);
        cJSON_DeleteItemFromObjectCaseSensitive(store, "reserved_bytes");
        cJSON_DeleteItemFromObjectCaseSensitive(store, "live_bytes");
        human_count(take_count(store, "chunks"), chunks);
        human_count(take_count(store, "entries_max"), most);
        if (offline > 0) {
                human_count(offline, away);
                line("chunks", "%s of at most %s; %s of them on paths that are not in use", chunks,
                     most, away);
        } else {
                line("chunks", "%s of at most %s", chunks, most);
        }
        segments = take_count(store, "segments");
        segments_max = take_count(store, "segments_max");
        units_bytes(take_count(store, "segment_bytes"), segment);
        line("segments", "%llu of at most %llu, %s each or less", (unsigned long long)segments,
             (unsigned long long)segments_max, segment);
        if (take_bool(store, "bypassed", &is_bypassed))
                bypassed = is_bypassed;
        else
                bypassed = take_count(store, "bypassed");
        if (bypassed)
                line("OFFLINE", "no path is in use: every lookup on disk is a miss, and no put "
                                "reaches the disk");
        print_scrub(store);
        print_rest(store);
}

static void print_sessions(cJSON *status)
{
        _cleanup_(cJSON_Deletep) cJSON *sessions = take_object(status, "sessions");
        char stagings[HUMAN_BYTES], leases[HUMAN_BYTES], connections[HUMAN_BYTES];
        char registered[HUMAN_BYTES], in_rings[HUMAN_BYTES], regions[HUMAN_BYTES];
        uint64_t n_regions;

        if (!sessions)
                return;
        puts("\nSessions");
        human_count(take_count(sessions, "connections"), connections);
        human_things(take_count(sessions, "leases"), "lease", leases);
        units_bytes(take_count(sessions, "staging_bytes"), stagings);
        line("now", "%s connected, with %s and %s of staging areas", connections, leases, stagings);
        n_regions = take_count(sessions, "registered_buffers");
        human_things(n_regions, "region", regions);
        units_bytes(take_count(sessions, "registered_bytes"), registered);
        units_bytes(take_count(sessions, "registered_in_rings_bytes"), in_rings);
        if (n_regions > 0)
                line("registered", "%s in %s, %s of it registered with the rings", registered,
                     regions, in_rings);
        print_rest(sessions);
}

/* "12 of 64", or "12". */
static void format_limited(cJSON *tenant, const char *name,
                           const char *(*format)(uint64_t value, char ret[static HUMAN_BYTES]),
                           char ret[static 2 * HUMAN_BYTES + 8])
{
        cJSON *pair = cJSON_GetObjectItemCaseSensitive(tenant, name);
        char used[HUMAN_BYTES], limit[HUMAN_BYTES];
        double most;

        format(take_count(pair, "used"), used);
        if (take_number(pair, "limit", &most)) {
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

                take_text(tenant, "name", name, sizeof(name));
                for (unsigned i = 0; i < ARRAY_SIZE(columns); i++)
                        format_limited(tenant, columns[i].name,
                                       columns[i].bytes ? units_bytes : human_count, cells[i]);
                human_count(take_count(tenant, "refused"), refused);
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
                        if (!take_number(resource, names[i], &values[i]))
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

static void print_namespaces(cJSON *status)
{
        _cleanup_(cJSON_Deletep) cJSON *namespaces =
                cJSON_DetachItemFromObjectCaseSensitive(status, "namespaces");
        _cleanup_(cJSON_Deletep) cJSON *usage = take_object(status, "namespace_usage");
        _cleanup_(text_table_freep) struct text_table *table = text_table_new("lrrrl");
        char counted[HUMAN_BYTES], most[HUMAN_BYTES], warning[512];
        uint64_t count, limit;
        cJSON *namespace;
        int shown;

        if (!cJSON_IsArray(namespaces))
                return;
        /* An older daemon tells all, and nothing of limits. */
        count = take_count(usage, "count");
        limit = take_count(usage, "limit");
        take_text(usage, "warning", warning, sizeof(warning));
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

                take_text(namespace, "name", name, sizeof(name));
                if (take_text(namespace, "tenant", tenant, sizeof(tenant)) &&
                    strcmp(tenant, "default") != 0) {
                        char both[sizeof(name)];

                        snprintf(both, sizeof(both), "%.60s:%.235s", tenant, name);
                        memcpy(name, both, sizeof(name));
                }
                human_count(take_count(namespace, "chunks"), chunks);
                units_bytes(take_count(namespace, "bytes"), bytes);
                if (take_number(namespace, "chunk_bytes", &chunk_bytes) && chunk_bytes > 0)
                        units_bytes(answer_count(chunk_bytes), each);
                else
                        strcpy(each, "-");
                take_text(namespace, "fingerprint", fingerprint, sizeof(fingerprint));
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

/* Of the keys looked up, or, while there are none, of those got: the daemon says which. */
static void print_hit_ratio(cJSON *totals, uint64_t gets, uint64_t hits)
{
        uint64_t keys = take_count(totals, "lookup_keys");
        uint64_t found = take_count(totals, "lookup_found_keys");
        char of[32] = "", asked[HUMAN_BYTES], there[HUMAN_BYTES], part[HUMAN_BYTES];
        double ratio;

        if (!take_number(totals, "hit_ratio", &ratio) ||
            !take_text(totals, "hit_ratio_of", of, sizeof(of)))
                return;
        if (strcmp(of, "gets") == 0) {
                keys = gets;
                found = hits;
        }
        human_count(keys, asked);
        human_count(found, there);
        human_percent(found, keys, part);
        line("hit ratio", "%s of the keys of %s (%s of %s)", part, of, there, asked);
}

static void print_totals(cJSON *status)
{
        _cleanup_(cJSON_Deletep) cJSON *totals = take_object(status, "totals");
        char a[HUMAN_BYTES], b[HUMAN_BYTES], c[HUMAN_BYTES];
        uint64_t memory, disk, misses, failures;

        if (!totals)
                return;
        puts("\nSince it started");
        human_things(take_count(totals, "puts"), "chunk", a);
        units_bytes(take_count(totals, "bytes_put"), b);
        line("put", "%s, %s", a, b);
        memory = take_count(totals, "hits_memory");
        disk = take_count(totals, "hits_disk");
        misses = take_count(totals, "misses");
        cJSON_DeleteItemFromObjectCaseSensitive(totals, "gets"); /* the sum of these */
        human_things(memory + disk, "chunk", a);
        units_bytes(take_count(totals, "bytes_got"), b);
        line("got", "%s, %s", a, b);
        human_count(memory, a);
        human_count(disk, b);
        human_count(misses, c);
        line("gets", "%s from memory, %s from disk; %s miss%s", a, b, c, misses == 1 ? "" : "es");
        print_hit_ratio(totals, memory + disk + misses, memory + disk);
        human_count(take_count(totals, "evictions"), a);
        line("evictions", "%s", a);
        failures = take_count(totals, "crc_failures");
        if (failures) {
                human_things(failures, "chunk", a);
                line("BAD CHECKSUM",
                     "%s: the disk returned other bytes than were written; dropped, and misses", a);
        }
        print_rest(totals);
}

static int run_status(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        _cleanup_(cJSON_Deletep) cJSON *status = NULL;
        const cJSON *item, *next;
        const char *argument;
        int r, first;

        r = option_next(ctl, self, argc, argv, &argument, &first);
        if (r < 0)
                return ctl->exit_status;
        r = answer_no_operands(self, argc, argv, first);
        if (r)
                return r;
        r = answer_fetch(ctl, KVCACHE_REPORT_STATUS, "status", &status);
        if (r || !status)
                return r;

        print_head(status);
        print_io(status);
        print_pool(status);
        print_lookups(status);
        print_store(status);
        print_sessions(status);
        print_tenants(status);
        print_resources(status);
        print_namespaces(status);
        print_totals(status);
        /* Members of a newer daemon: objects as sections, the others as lines. */
        for (item = status->child; item; item = next) {
                next = item->next;
                if (!cJSON_IsObject(item))
                        continue;
                printf("\n%c%s\n",
                       item->string[0] >= 'a' && item->string[0] <= 'z' ? item->string[0] - 32
                                                                        : item->string[0],
                       item->string[0] ? item->string + 1 : "");
                print_rest(item);
                cJSON_Delete(cJSON_DetachItemViaPointer(status, (cJSON *)item));
        }
        if (status->child) {
                puts("\nOther");
                print_rest(status);
        }
        return EXIT_OK;
}

const struct command command_status = {
        .name = "status",
        .arguments = "",
        .summary = "whether the daemon is ready, what it uses and what it holds",
        .help = "Shows whether the daemon is ready, what is degraded and why; which kind of I/O\n"
                "it uses, and why not a faster one; how much memory and disk are in use; its\n"
                "sessions, tenants and namespaces; and what it has done since it started.",
        .run = run_status,
};

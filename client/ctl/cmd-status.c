/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl status: how the daemon is.
 *
 * The daemon answers in JSON, which --json hands on as it came. For people the known members are
 * laid out by hand; whatever a newer daemon adds is shown below them under its own name, with its
 * unit taken from the name's end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "answer.h"
#include "checked.h"
#include "commands.h"
#include "common.h"
#include "human.h"
#include "section.h"
#include "status-parts.h"
#include "units.h"

static void print_head(cJSON *status)
{
        char version[64], text[512], up[HUMAN_BYTES] = "";
        bool ready = true, has_ready = section_bool(status, "ready", &ready);
        _cleanup_(cJSON_Deletep) cJSON *degraded =
                cJSON_DetachItemFromObjectCaseSensitive(status, "degraded");
        char state[32], health[32];
        double seconds, pid;
        cJSON *one;

        section_text(status, "version", version, sizeof(version));
        printf("kvcache-daemon %s", version);
        if (section_text(status, "state", state, sizeof(state)))
                printf(", %s%s", has_ready && !ready ? "not ready: " : "", state);
        else if (has_ready)
                printf(", %s", ready ? "ready" : "not ready");
        if (section_text(status, "health", health, sizeof(health)) && strcmp(health, "ok") != 0)
                printf(", %s", health);
        if (section_number(status, "uptime_seconds", &seconds)) {
                human_seconds(seconds, up);
                printf(", up %s", up);
        }
        if (section_number(status, "pid", &pid))
                printf(", pid %.0f", pid);
        putchar('\n');
        if (section_text(status, "socket", text, sizeof(text)))
                section_line("socket", "%s", text);
        if (section_text(status, "http", text, sizeof(text)))
                section_line("http", "%s%s", text,
                             cJSON_IsTrue(cJSON_GetObjectItem(status, "http_token"))
                                     ? ", with a token"
                                     : "");
        if (section_text(status, "instance", text, sizeof(text)))
                section_line("instance", "%s", text);
        cJSON_ArrayForEach(one, degraded)
        {
                if (section_text(one, "text", text, sizeof(text)))
                        section_line("DEGRADED", "%s", text);
        }
}

/* "yes" or "no", and why. */
static void print_why(cJSON *io, const char *name, const char *reason_name, const char *label)
{
        char reason[512];
        bool on, known = section_bool(io, name, &on),
                 has_reason = section_text(io, reason_name, reason, sizeof(reason));

        if (known)
                section_line(label, "%s%s%s", on ? "yes" : "no", has_reason ? ": " : "", reason);
        else if (has_reason)
                section_line(label, "%s", reason);
}

static void print_io(cJSON *status)
{
        _cleanup_(cJSON_Deletep) cJSON *io = section_object(status, "io");
        char backend[64], text[512];
        uint64_t workers, depth;

        if (!io)
                return;
        puts("\nI/O");
        section_text(io, "backend", backend, sizeof(backend));
        if (section_text(io, "reason", text, sizeof(text)))
                section_line("backend", "%s: %s", backend, text);
        else
                section_line("backend", "%s", backend);
        if (section_text(io, "ring_flags", text, sizeof(text)))
                section_line("ring flags", "%s", text);
        print_why(io, "direct", "direct_reason", "O_DIRECT");
        print_why(io, "registered", "registered_reason", "registered");
        workers = section_count(io, "workers");
        depth = section_count(io, "depth");
        if (workers && depth)
                section_line("workers", "%llu, %llu operations in flight each at most",
                             (unsigned long long)workers, (unsigned long long)depth);
        else if (workers)
                section_line("workers", "%llu", (unsigned long long)workers);
        section_rest(io);
}

static void print_pool(cJSON *status)
{
        _cleanup_(cJSON_Deletep) cJSON *pool = section_object(status, "pool");
        char chunks[HUMAN_BYTES], leased[HUMAN_BYTES], unwritten[HUMAN_BYTES],
                populated[HUMAN_BYTES];
        uint64_t bytes, n;
        double populated_bytes, live;
        char huge[64];

        if (!pool)
                return;
        puts("\nMemory");
        bytes = section_count(pool, "bytes");
        section_use("used", section_count(pool, "used_bytes"), bytes);
        if (section_number(pool, "live_bytes", &live)) {
                units_bytes(answer_count(live), populated);
                section_line("live", "%s: the bytes of the chunks, which occupy whole slots",
                             populated);
        }
        if (section_number(pool, "populated_bytes", &populated_bytes) &&
            answer_count(populated_bytes) < bytes) {
                units_bytes(answer_count(populated_bytes), populated);
                section_line("populated", "%s so far", populated);
        }
        n = section_count(pool, "chunks");
        human_count(n, chunks);
        units_bytes(section_count(pool, "leased_bytes"), leased);
        units_bytes(section_count(pool, "unwritten_bytes"), unwritten);
        section_line("chunks", "%s; %s leased, %s not yet on disk", chunks, leased, unwritten);
        n = section_count(pool, "huge_bytes");
        units_bytes(n, populated);
        if (section_text(pool, "huge_pages", huge, sizeof(huge)))
                section_line("huge pages", "%s",
                             strcmp(huge, "some") == 0   ? populated
                             : strcmp(huge, "none") == 0 ? "none: the system has none left"
                                                         : huge);
        units_bytes(section_count(pool, "slab_bytes"), populated);
        section_line("slabs", "%s each", populated);
        section_rest(pool);
}

/* One more line on memory: the index in which clients look up keys by themselves. */
static void print_lookups(cJSON *status)
{
        _cleanup_(cJSON_Deletep) cJSON *index = section_object(status, "lookup_index");
        char bytes[HUMAN_BYTES], entries[HUMAN_BYTES], unplaced[HUMAN_BYTES], built[64] = "";
        uint64_t tables, building, asked_for;
        bool enabled = true;

        if (!index)
                return;
        (void)section_bool(index, "enabled", &enabled);
        tables = section_count(index, "tables");
        building = section_count(index, "building");
        units_bytes(section_count(index, "bytes"), bytes);
        human_count(section_count(index, "entries"), entries);
        asked_for = section_count(index, "unplaced");
        human_count(asked_for, unplaced);
        if (building)
                snprintf(built, sizeof(built), "; %llu being built", (unsigned long long)building);
        if (!enabled)
                section_line("lookup index", "off (memory.lookup_index): clients ask the daemon");
        else if (tables == 0)
                section_line("lookup index", "none: no client has asked for it%s", built);
        else
                section_line("lookup index", "%s, %s entries%s%s%s%s", bytes, entries,
                             asked_for ? ", " : "", asked_for ? unplaced : "",
                             asked_for ? " without a place" : "", built);
        /* The rest is in "kvcachectl stats". */
        (void)section_count(index, "buckets");
        (void)section_count(index, "overflowed");
        (void)section_count(index, "builds");
        (void)section_count(index, "failed_builds");
        section_rest(index);
}

/* How long what was evicted had not been used. */
static void print_ages(cJSON *of, const char *tier)
{
        _cleanup_(cJSON_Deletep) cJSON *ages = section_object(of, "evicted_age_seconds");
        char label[32], p10[HUMAN_BYTES], p50[HUMAN_BYTES], p90[HUMAN_BYTES];
        double seconds;

        if (!ages)
                return;
        human_seconds(section_number(ages, "p10", &seconds) ? seconds : 0, p10);
        human_seconds(section_number(ages, "p50", &seconds) ? seconds : 0, p50);
        human_seconds(section_number(ages, "p90", &seconds) ? seconds : 0, p90);
        snprintf(label, sizeof(label), "%s ages", tier);
        section_line(label,
                     "half of what was evicted had been unused for %s, a tenth for at most %s, a "
                     "tenth for %s "
                     "and more",
                     p50, p10, p90);
        section_rest(ages);
}

static void print_ghosts(cJSON *eviction, const char *tier)
{
        _cleanup_(cJSON_Deletep) cJSON *ghosts = section_object(eviction, tier);
        char now[HUMAN_BYTES], most[HUMAN_BYTES], hits[HUMAN_BYTES];
        uint64_t ghosts_max;

        if (!ghosts)
                return;
        human_count(section_count(ghosts, "ghosts"), now);
        ghosts_max = section_count(ghosts, "ghosts_max");
        human_count(ghosts_max, most);
        human_count(section_count(ghosts, "ghost_hits"), hits);
        if (ghosts_max > 0)
                section_line(tier, "%s evicted chunks remembered, of at most %s; %s came back", now,
                             most, hits);
        print_ages(ghosts, tier);
        section_rest(ghosts);
}

static void print_eviction(cJSON *status)
{
        _cleanup_(cJSON_Deletep) cJSON *eviction = section_object(status, "eviction");
        char policy[32] = "", chunk[HUMAN_BYTES], ghost[HUMAN_BYTES];

        if (!eviction)
                return;
        puts("\nEviction");
        if (section_text(eviction, "policy", policy, sizeof(policy)))
                section_line("policy", "%s", policy);
        human_count(section_count(eviction, "chunk_bytes"), chunk);
        human_count(section_count(eviction, "ghost_bytes"), ghost);
        section_line("takes", "%s bytes for each chunk, %s for each evicted one", chunk, ghost);
        print_ghosts(eviction, "memory");
        print_ghosts(eviction, "disk");
        section_rest(eviction);
}

/* Days, as years if there are many. */
static void life_text(double days, char ret[static HUMAN_BYTES])
{
        if (days >= 2 * 365)
                snprintf(ret, HUMAN_BYTES, "%.1f years", MIN(days / 365, 999.0));
        else
                snprintf(ret, HUMAN_BYTES, "%.0f days", days);
}

static void print_life(cJSON *writes)
{
        char endurance[HUMAN_BYTES], now[HUMAN_BYTES], budget[HUMAN_BYTES];
        uint64_t bytes = section_count(writes, "rated_endurance_bytes");
        double days_now, days_budget;
        bool has_now = section_number(writes, "life_days", &days_now);
        bool has_budget = section_number(writes, "life_at_budget_days", &days_budget);

        if (has_now)
                life_text(days_now, now);
        if (has_budget)
                life_text(days_budget, budget);
        units_bytes(bytes, endurance);
        if (bytes > 0 && (has_now || has_budget))
                section_line("drive life", "%s%s%s%s%s, of %s rated", has_now ? now : "",
                             has_now ? " at the rate of the last day" : "",
                             has_now && has_budget ? ", " : "", has_budget ? budget : "",
                             has_budget ? " at the whole budget" : "", endurance);
}

static void print_writes(cJSON *status)
{
        _cleanup_(cJSON_Deletep) cJSON *writes = section_object(status, "writes");
        char a[HUMAN_BYTES], b[HUMAN_BYTES], c[HUMAN_BYTES];
        uint64_t budget, day, seconds, first, again, refused, dry;
        double available, probability;

        if (!writes)
                return;
        puts("\nWrites to disk");
        budget = section_count(writes, "budget_bytes");
        day = section_count(writes, "day_bytes");
        seconds = section_count(writes, "day_seconds");
        units_bytes(day, a);
        human_seconds((double)seconds, b);
        section_line("written", "%s in the last %s", a, b);
        units_bytes(budget, a);
        human_percent(day, budget, b);
        if (budget > 0)
                section_line("budget", "%s a day (%s of it used)", a, b);
        else
                section_line("budget", "none (store.write_budget)");
        if (section_number(writes, "available_bytes", &available)) {
                units_bytes((uint64_t)(available < 0 ? -available : available), a);
                section_line("available", "%s%s", a, available < 0 ? " overdrawn" : "");
        }
        first = section_count(writes, "admitted_first");
        again = section_count(writes, "admitted_again");
        human_count(first, a);
        human_count(again, b);
        if (section_number(writes, "probability", &probability))
                section_line("admitted", "%s new chunks, now %.1f %% of them; %s seen before", a,
                             100 * probability, b);
        refused = section_count(writes, "refused_first");
        dry = section_count(writes, "refused_dry");
        units_bytes(section_count(writes, "refused_bytes"), c);
        human_count(refused, a);
        human_count(dry, b);
        if (refused + dry > 0)
                section_line("refused", "%s new chunks, %s with the budget used up; %s", a, b, c);
        print_life(writes);
        section_rest(writes);
}

/* Of the keys looked up, or, while there are none, of those got: the daemon says which. */
static void print_hit_ratio(cJSON *totals, uint64_t gets, uint64_t hits)
{
        uint64_t keys = section_count(totals, "lookup_keys");
        uint64_t found = section_count(totals, "lookup_found_keys");
        char of[32] = "", asked[HUMAN_BYTES], there[HUMAN_BYTES], part[HUMAN_BYTES];
        double ratio;

        if (!section_number(totals, "hit_ratio", &ratio) ||
            !section_text(totals, "hit_ratio_of", of, sizeof(of)))
                return;
        if (strcmp(of, "gets") == 0) {
                keys = gets;
                found = hits;
        }
        human_count(keys, asked);
        human_count(found, there);
        human_percent(found, keys, part);
        section_line("hit ratio", "%s of the keys of %s (%s of %s)", part, of, there, asked);
}

/* A line, of the reasons that there have been. */
static void print_misses(cJSON *totals, uint64_t misses)
{
        static const struct {
                const char *name, *text;
        } reasons[] = {
                { "never_stored", "never stored, or forgotten" },
                { "evicted_disk", "evicted from disk" },
                { "evicted_pool", "evicted from memory" },
                { "failed_check", "failed check" },
                { "refused", "not written for the budget of writes" },
        };
        _cleanup_(cJSON_Deletep) cJSON *by = section_object(totals, "misses_by_reason");
        char text[ARRAY_SIZE(reasons) * (HUMAN_BYTES + 48)] = "", n[HUMAN_BYTES];
        size_t at = 0;

        for (size_t i = 0; by && i < ARRAY_SIZE(reasons); i++) {
                uint64_t of = section_count(by, reasons[i].name);

                if (of == 0)
                        continue;
                human_count(of, n);
                at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%s %s", at > 0 ? ", " : "",
                                       n, reasons[i].text);
        }
        if (misses > 0 && at > 0)
                section_line("misses", "%s", text);
}

static void print_totals(cJSON *status)
{
        _cleanup_(cJSON_Deletep) cJSON *totals = section_object(status, "totals");
        char a[HUMAN_BYTES], b[HUMAN_BYTES], c[HUMAN_BYTES];
        uint64_t memory, disk, misses, declined, failures;

        if (!totals)
                return;
        puts("\nSince it started");
        human_things(section_count(totals, "puts"), "chunk", a);
        units_bytes(section_count(totals, "bytes_put"), b);
        section_line("put", "%s, %s", a, b);
        memory = section_count(totals, "hits_memory");
        disk = section_count(totals, "hits_disk");
        misses = section_count(totals, "misses");
        cJSON_DeleteItemFromObjectCaseSensitive(totals, "gets"); /* the sum of these */
        human_things(memory + disk, "chunk", a);
        units_bytes(section_count(totals, "bytes_got"), b);
        section_line("got", "%s, %s", a, b);
        human_count(memory, a);
        human_count(disk, b);
        human_count(misses, c);
        section_line("gets", "%s from memory, %s from disk; %s miss%s", a, b, c,
                     misses == 1 ? "" : "es");
        print_misses(totals, misses);
        print_hit_ratio(totals, memory + disk + misses, memory + disk);
        declined = section_count(totals, "loads_declined");
        if (declined) {
                human_things(declined, "chunk", a);
                section_line("declined", "%s: there, and faster to compute than to load", a);
        }
        human_count(section_count(totals, "evictions"), a);
        section_line("evictions", "%s", a);
        failures = section_count(totals, "crc_failures");
        if (failures) {
                human_things(failures, "chunk", a);
                section_line(
                        "BAD CHECKSUM",
                        "%s: the disk returned other bytes than were written; dropped, and misses",
                        a);
        }
        section_rest(totals);
}

static int run_status(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        _cleanup_(cJSON_Deletep) cJSON *status = NULL;
        const cJSON *item, *next;
        int r;

        if (!answer_no_arguments(ctl, self, argc, argv))
                return ctl->exit_status;
        r = answer_fetch(ctl, KVCACHE_REPORT_STATUS, "status", &status);
        if (r || !status)
                return r;

        print_head(status);
        print_io(status);
        print_pool(status);
        print_lookups(status);
        status_print_store(status);
        print_eviction(status);
        print_writes(status);
        status_print_clients(status);
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
                section_rest(item);
                cJSON_Delete(cJSON_DetachItemViaPointer(status, (cJSON *)item));
        }
        if (status->child) {
                puts("\nOther");
                section_rest(status);
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

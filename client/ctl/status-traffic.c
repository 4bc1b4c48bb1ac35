/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl status: writes to disk, and totals since the daemon started. */
#include <stdio.h>
#include <string.h>

#include "answer.h"
#include "checked.h"
#include "human.h"
#include "section.h"
#include "status-parts.h"
#include "units.h"

/* Formats days, as years from two years on. */
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

void status_print_writes(cJSON *status, bool detail)
{
        _cleanup_(cJSON_Deletep) cJSON *writes = section_object(status, "writes");
        char a[HUMAN_BYTES], b[HUMAN_BYTES], c[HUMAN_BYTES];
        uint64_t budget, day, seconds, first, again, refused, dry;
        double available, probability;

        if (!writes)
                return;
        if (detail)
                section_begin("Writes to disk");
        budget = section_count(writes, "budget_bytes");
        day = section_count(writes, "day_bytes");
        seconds = section_count(writes, "day_seconds");
        units_bytes(day, a);
        human_seconds((double)seconds, b);
        if (seconds > 0)
                section_line("written", "%s in the last %s", a, b);
        else
                section_line("written", "%s in the first second", a);
        units_bytes(budget, a);
        human_percent(day, budget, b);
        if (budget > 0)
                section_warn((double)day > 0.9 * (double)budget ? COLOR_WARNING : COLOR_NONE,
                             "budget", "%s a day (%s of it used)", a, b);
        else if (detail)
                section_line("budget", "none (store.write_budget)");
        if (section_number(writes, "available_bytes", &available)) {
                units_bytes(answer_count(available < 0 ? -available : available), a);
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
        if (detail)
                section_rest(writes);
}

/* Prints the hit ratio of lookups or, if there were none, of gets; the daemon reports which. */
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

/* Prints a line of the reasons for misses, if there were any. */
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
                { "expired", "expired" },
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

/* Prints a line of expired chunks, if there were any. */
static void print_expired(cJSON *totals)
{
        uint64_t memory = section_count(totals, "expired_memory"),
                 disk = section_count(totals, "expired_disk");
        char a[HUMAN_BYTES], b[HUMAN_BYTES];

        if (memory + disk == 0)
                return;
        human_count(memory, a);
        human_count(disk, b);
        section_line("expired", "%s chunks in memory, %s on disk: their namespaces have a lifetime",
                     a, b);
}

void status_print_totals(cJSON *status, bool detail)
{
        _cleanup_(cJSON_Deletep) cJSON *totals = section_object(status, "totals");
        char a[HUMAN_BYTES], b[HUMAN_BYTES], c[HUMAN_BYTES];
        uint64_t postponed, caught_up, memory, disk, remote, misses, declined, failures;
        char d[HUMAN_BYTES + 32] = "";

        if (!totals)
                return;
        section_begin("Since it started");
        human_things(section_count(totals, "puts"), "chunk", a);
        units_bytes(section_count(totals, "bytes_put"), b);
        section_line("put", "%s, %s", a, b);
        postponed = section_count(totals, "puts_postponed");
        caught_up = section_count(totals, "puts_caught_up");
        if (postponed > 0) {
                human_things(postponed, "chunk", a);
                human_count(caught_up, b);
                section_line("postponed",
                             "%s: the disk was behind; %s were written once it had "
                             "caught up, others at their next use",
                             a, b);
        }
        memory = section_count(totals, "hits_memory");
        disk = section_count(totals, "hits_disk");
        remote = section_count(totals, "hits_remote");
        misses = section_count(totals, "misses");
        /* "gets" is the sum of these four members. */
        cJSON_DeleteItemFromObjectCaseSensitive(totals, "gets");
        human_things(memory + disk + remote, "chunk", a);
        units_bytes(section_count(totals, "bytes_got"), b);
        section_line("got", "%s, %s", a, b);
        human_count(memory, a);
        human_count(disk, b);
        human_count(misses, c);
        if (remote > 0) {
                char from_there[HUMAN_BYTES];

                human_count(remote, from_there);
                snprintf(d, sizeof(d), ", %s from the shared tier", from_there);
        }
        section_line("gets", "%s from memory, %s from disk%s; %s miss%s", a, b, d, c,
                     misses == 1 ? "" : "es");
        print_misses(totals, misses);
        print_hit_ratio(totals, memory + disk + remote + misses, memory + disk + remote);
        declined = section_count(totals, "loads_declined");
        if (declined) {
                human_things(declined, "chunk", a);
                section_line("declined", "%s stored, but faster to compute than to load", a);
        }
        human_count(section_count(totals, "evictions"), a);
        section_line("evictions", "%s", a);
        print_expired(totals);
        failures = section_count(totals, "crc_failures");
        if (failures) {
                human_things(failures, "chunk", a);
                section_warn(COLOR_BAD, "BAD CHECKSUM",
                             "the disk returned wrong bytes for %s; the daemon drops such chunks, "
                             "and their gets are misses",
                             a);
        }
        if (detail)
                section_rest(totals);
}

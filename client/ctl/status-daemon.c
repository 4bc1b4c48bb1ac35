/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl status: the daemon's I/O, memory and eviction. */
#include <stdio.h>
#include <string.h>

#include "answer.h"
#include "checked.h"
#include "human.h"
#include "section.h"
#include "status-parts.h"
#include "units.h"

/* Prints a line with "yes" or "no" and the reason, as far as the daemon reports them. */
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

/* Prints one line about I/O, and a line for each reason that the daemon reports for a property. */
static void print_io_summary(cJSON *io)
{
        char backend[64], text[512];
        bool direct = false, registered = false;
        bool has_direct = section_bool(io, "direct", &direct);
        bool has_registered = section_bool(io, "registered", &registered);
        uint64_t workers = section_count(io, "workers");

        section_text(io, "backend", backend, sizeof(backend));
        section_line("I/O", "backend %s%s%s%s%s, %llu worker%s", backend,
                     has_direct ? ", O_DIRECT " : "",
                     !has_direct ? ""
                     : direct    ? "yes"
                                 : "no",
                     has_registered ? ", registered " : "",
                     !has_registered ? ""
                     : registered    ? "yes"
                                     : "no",
                     (unsigned long long)workers, workers == 1 ? "" : "s");
        if (section_text(io, "reason", text, sizeof(text)))
                section_line("", "%s: %s", backend, text);
        if (section_text(io, "direct_reason", text, sizeof(text)))
                section_line("", "O_DIRECT: %s", text);
        if (section_text(io, "registered_reason", text, sizeof(text)))
                section_line("", "registered: %s", text);
}

void status_print_io(cJSON *status, bool detail)
{
        _cleanup_(cJSON_Deletep) cJSON *io = section_object(status, "io");
        char backend[64], text[512];
        uint64_t workers, depth;

        if (!io)
                return;
        if (!detail) {
                print_io_summary(io);
                return;
        }
        section_begin("I/O");
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

/* Prints the state of the pool index, through which clients get chunks without a message. */
static void print_pool_index(cJSON *pool)
{
        char entries[HUMAN_BYTES], hits[HUMAN_BYTES], clients[UNITS_TEXT], holds[UNITS_TEXT];
        bool enabled;

        if (!section_bool(pool, "index", &enabled))
                return;
        human_count(section_count(pool, "index_entries"), entries);
        human_count(section_count(pool, "index_hits"), hits);
        units_count(section_count(pool, "index_clients"), "client", clients);
        units_count(section_count(pool, "index_holds"), "chunk", holds);
        if (!enabled)
                section_line("pool index", "off (memory.pool_index): clients ask the daemon");
        else if (section_count(pool, "index_bytes") == 0)
                section_line("pool index", "none: no client has asked for it");
        else
                section_line("pool index", "%s entries; %s, %s held, %s keys got", entries, clients,
                             holds, hits);
        /* The other members are in "kvcachectl stats". */
        (void)section_count(pool, "index_unplaced");
        (void)section_count(pool, "index_held_chunks");
        (void)section_count(pool, "index_untold");
        (void)section_count(pool, "index_revoked");
}

static void print_pool(cJSON *status, bool detail)
{
        _cleanup_(cJSON_Deletep) cJSON *pool = section_object(status, "pool");
        char chunks[HUMAN_BYTES], leased[HUMAN_BYTES], unwritten[HUMAN_BYTES],
                populated[HUMAN_BYTES];
        uint64_t bytes, n;
        double populated_bytes, live;
        char huge[64];

        if (!pool)
                return;
        section_begin("Memory");
        bytes = section_count(pool, "bytes");
        section_use("used", section_count(pool, "used_bytes"), bytes);
        if (section_number(pool, "live_bytes", &live) && detail) {
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
        if (!detail)
                return;
        n = section_count(pool, "huge_bytes");
        units_bytes(n, populated);
        if (section_text(pool, "huge_pages", huge, sizeof(huge)))
                section_line("huge pages", "%s",
                             strcmp(huge, "some") == 0   ? populated
                             : strcmp(huge, "none") == 0 ? "none: the system has none left"
                                                         : huge);
        units_bytes(section_count(pool, "slab_bytes"), populated);
        section_line("slabs", "%s each", populated);
        print_pool_index(pool);
        section_rest(pool);
}

/* Prints how much of the previous daemon's memory this daemon has taken over, and whether its
 * own memory will survive a restart. */
static void print_kept(cJSON *status, bool detail)
{
        _cleanup_(cJSON_Deletep) cJSON *kept = section_object(status, "kept_memory");
        char verified[HUMAN_BYTES], chunks[HUMAN_BYTES], count[HUMAN_BYTES], reason[512] = "",
                                                                             leases[128] = "";
        uint64_t all, damaged, pending, clients, forbidden;
        double ignored;
        bool ready;

        if (!kept || !section_bool(kept, "ready", &ready))
                return;
        all = section_count(kept, "chunks");
        human_count(all, chunks);
        human_count(section_count(kept, "verified"), verified);
        pending = section_count(kept, "pending");
        damaged = section_count(kept, "damaged");
        clients = section_count(kept, "clients");
        forbidden = section_count(kept, "forbidden_pools");
        human_count(section_count(kept, "leases"), count);
        (void)section_number(kept, "verified_bytes", &ignored);
        (void)section_number(kept, "verify_seconds", &ignored);
        (void)section_text(kept, "reason", reason, sizeof(reason));
        if (clients > 0)
                snprintf(leases, sizeof(leases), "; %s chunks are leased to clients of before",
                         count);
        if (all > 0) {
                section_line("memory kept", "%s of %s chunks verified%s%s", verified, chunks,
                             pending > 0 ? " so far" : "", leases);
                if (damaged > 0)
                        section_line("damaged", "%llu chunks did not match their checksum",
                                     (unsigned long long)damaged);
        }
        if (forbidden > 0)
                section_line(
                        "memory dropped",
                        "%llu of the previous daemon's pools: clients that had mapped them lost "
                        "their rights; the log names the users",
                        (unsigned long long)forbidden);
        if (detail)
                section_line("at restart", "%s%s",
                             ready ? "the memory is kept" : "the memory is lost: ",
                             ready       ? ""
                             : reason[0] ? reason
                                         : "the pool cannot be handed over");
        section_rest(kept);
}

/* Prints the state of the lookup index, in which clients look up keys without a message. */
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
        /* The other members are in "kvcachectl stats". */
        (void)section_count(index, "buckets");
        (void)section_count(index, "overflowed");
        (void)section_count(index, "builds");
        (void)section_count(index, "failed_builds");
        section_rest(index);
}

static void print_events(cJSON *status)
{
        _cleanup_(cJSON_Deletep) cJSON *events = section_object(status, "events");
        char bytes[HUMAN_BYTES], written[HUMAN_BYTES], gaps[HUMAN_BYTES];
        bool enabled = true;

        if (!events)
                return;
        (void)section_bool(events, "enabled", &enabled);
        units_bytes(section_count(events, "ring_bytes"), bytes);
        human_count(section_count(events, "written"), written);
        human_count(section_count(events, "gaps"), gaps);
        if (!enabled)
                section_line("events", "off (events.ring)");
        else
                section_line("events", "%s, %s written, %llu readers waiting, %s gaps", bytes,
                             written, (unsigned long long)section_count(events, "waiting"), gaps);
        /* The other members are in "kvcachectl stats". */
        (void)section_count(events, "waiting");
        (void)section_count(events, "overwritten");
        (void)section_count(events, "sent");
        (void)section_count(events, "resets");
        (void)section_count(events, "snapshot_entries");
        section_rest(events);
}

/* Prints the bytes of memory for each chunk in the store, by part. The records of evicted
 * chunks, which the eviction policy remembers, are printed separately. */
static void print_entries(cJSON *status)
{
        static const struct {
                const char *member, *name;
        } parts[] = {
                { "records_bytes", "records" },
                { "hash_table_bytes", "hash table" },
                { "slots_bytes", "slots" },
                { "table_bytes", "table" },
                { "eviction_bytes", "eviction" },
                { "forks_bytes", "forks of chains" },
                { "lookup_index_bytes", "lookup index" },
        };
        _cleanup_(cJSON_Deletep) cJSON *entries = section_object(status, "entries");
        char all[HUMAN_BYTES], ghosts[HUMAN_BYTES], count[HUMAN_BYTES], list[512];
        uint64_t chunks, bytes = 0;
        size_t n = 0;

        if (!entries)
                return;
        chunks = section_count(entries, "chunks");
        list[0] = '\0';
        for (unsigned i = 0; i < ARRAY_SIZE(parts); i++) {
                uint64_t part = section_count(entries, parts[i].member);

                bytes += part;
                if (part > 0 && chunks > 0)
                        n += (size_t)snprintf(list + n, sizeof(list) - n, "%s%s %.1f",
                                              n > 0 ? ", " : "", parts[i].name,
                                              (double)part / (double)chunks);
        }
        units_bytes(bytes, all);
        units_bytes(section_count(entries, "ghosts_bytes"), ghosts);
        human_things(chunks, "chunk", count);
        if (chunks > 0)
                section_line("entries", "%s for %s on disk, and %s for evicted ones", all, count,
                             ghosts);
        if (chunks > 0)
                section_line("bytes a chunk", "%.1f: %s", (double)bytes / (double)chunks, list);
        section_rest(entries);
}

void status_print_memory(cJSON *status, bool detail)
{
        print_pool(status, detail);
        print_kept(status, detail);
        if (detail) {
                print_lookups(status);
                print_entries(status);
                print_events(status);
        }
}

/* Formats an age, rounded up to two significant digits because the daemon's buckets are an eighth
 * of an octave wide. */
static void format_age(cJSON *ages, const char *name, char ret[static HUMAN_BYTES])
{
        double seconds = 0;

        section_number(ages, name, &seconds);
        seconds = human_round_up(seconds);
        if (seconds >= 10 && seconds < 60)
                snprintf(ret, HUMAN_BYTES, "%.0f s", seconds);
        else
                human_seconds(seconds, ret);
}

/* Prints how long evicted chunks had been unused. */
static void print_ages(cJSON *of, const char *tier)
{
        _cleanup_(cJSON_Deletep) cJSON *ages = section_object(of, "evicted_age_seconds");
        char label[32], p10[HUMAN_BYTES], p50[HUMAN_BYTES], p90[HUMAN_BYTES];

        if (!ages)
                return;
        format_age(ages, "p10", p10);
        format_age(ages, "p50", p50);
        format_age(ages, "p90", p90);
        snprintf(label, sizeof(label), "%s ages", tier);
        section_line(label,
                     "a tenth of what was evicted had been unused for at most %s, half for at most "
                     "%s, nine tenths for at most %s",
                     p10, p50, p90);
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

/* Prints the results of prefetches for predicted returns, if there were any. */
static void print_prefetches(cJSON *returns)
{
        uint64_t prefetched = section_count(returns, "prefetched");
        char chunks[HUMAN_BYTES], used[HUMAN_BYTES], wasted[HUMAN_BYTES], unused[HUMAN_BYTES];

        human_things(prefetched, "chunk", chunks);
        human_percent(section_count(returns, "prefetch_hits"), prefetched, used);
        human_percent(section_count(returns, "prefetch_wasted"), prefetched, wasted);
        units_bytes(section_count(returns, "prefetch_unused_bytes"), unused);
        if (prefetched > 0)
                section_line("prefetched", "%s; %s used, %s evicted unused, %s unused in memory",
                             chunks, used, wasted, unused);
}

/* Prints how many of the daemon's predictions that a chain will be used again, its returns, came
 * true. */
static void print_returns(cJSON *eviction)
{
        _cleanup_(cJSON_Deletep) cJSON *returns = section_object(eviction, "returns");
        char expected[HUMAN_BYTES], percent[HUMAN_BYTES], late[HUMAN_BYTES], evicted[HUMAN_BYTES];
        uint64_t in_time, judged;

        if (!returns)
                return;
        in_time = section_count(returns, "in_time");
        judged = in_time + section_count(returns, "missed");
        human_things(section_count(returns, "expected"), "chain", expected);
        human_percent(in_time, judged, percent);
        human_count(section_count(returns, "late"), late);
        human_count(section_count(returns, "evicted"), evicted);
        section_line("returns", "%s expected back; %s of those before came in time, %s came late",
                     expected, percent, late);
        section_line("", "%s came back when their end had been evicted", evicted);
        print_prefetches(returns);
        section_rest(returns);
}

/* Prints how many of the returns of chains that clients have announced came true, if there were
 * any. */
static void print_announced(cJSON *eviction)
{
        _cleanup_(cJSON_Deletep) cJSON *announced = section_object(eviction, "announced_returns");
        uint64_t open, came_true, wrong, ignored;
        char texts[4][HUMAN_BYTES];
        double belief = 1;

        if (!announced)
                return;
        open = section_count(announced, "open");
        came_true = section_count(announced, "true");
        wrong = section_count(announced, "early") + section_count(announced, "late");
        ignored = section_count(announced, "unmeasured") + section_count(announced, "disbelieved");
        section_number(announced, "least_belief", &belief);
        if (open + came_true + wrong + ignored > 0)
                section_line("announced",
                             "%s returns open; %s came true, %s did not, %s were not "
                             "believed; the least belief in a user is %.0f %%",
                             human_count(open, texts[0]), human_count(came_true, texts[1]),
                             human_count(wrong, texts[2]), human_count(ignored, texts[3]),
                             100 * belief);
        section_rest(announced);
}

/* Prints the results of reading the chunks of chains into memory before their announced returns, if
 * there were any. */
static void print_prefetched_returns(cJSON *eviction)
{
        _cleanup_(cJSON_Deletep) cJSON *o = section_object(eviction, "prefetched_returns");
        uint64_t scheduled, read, in_memory, ended, others;
        char texts[5][HUMAN_BYTES];

        if (!o)
                return;
        scheduled = section_count(o, "scheduled");
        read = section_count(o, "read");
        in_memory = section_count(o, "in_memory");
        ended = section_count(o, "ended");
        others = section_count(o, "disbelieved") + section_count(o, "worth_less") +
                 section_count(o, "late") + section_count(o, "refused") +
                 section_count(o, "dropped");
        if (scheduled + read + in_memory + ended + others > 0) {
                section_line("ahead",
                             "%s returns scheduled; read from disk for %s, nothing to read for "
                             "%s, %s came before, %s skipped",
                             human_count(scheduled, texts[0]), human_count(read, texts[1]),
                             human_count(in_memory, texts[2]), human_count(ended, texts[3]),
                             human_count(others, texts[4]));
                human_things(section_count(o, "chunks"), "chunk", texts[0]);
                section_line("", "%s read ahead, %s", texts[0],
                             units_bytes(section_count(o, "bytes"), texts[1]));
        }
        section_rest(o);
}

void status_print_eviction(cJSON *status, bool detail)
{
        _cleanup_(cJSON_Deletep) cJSON *eviction = section_object(status, "eviction");
        char policy[32] = "", chunk[HUMAN_BYTES], ghost[HUMAN_BYTES];

        if (!eviction || !detail)
                return;
        section_begin("Eviction");
        if (section_text(eviction, "policy", policy, sizeof(policy)))
                section_line("policy", "%s", policy);
        human_count(section_count(eviction, "chunk_bytes"), chunk);
        human_count(section_count(eviction, "ghost_bytes"), ghost);
        section_line("takes", "%s bytes for each chunk, %s for each evicted one", chunk, ghost);
        print_ghosts(eviction, "memory");
        print_ghosts(eviction, "disk");
        print_returns(eviction);
        print_announced(eviction);
        print_prefetched_returns(eviction);
        section_rest(eviction);
}

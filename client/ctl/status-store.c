/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl status: the store, its volumes and its scrubbing. */
#include <stdio.h>
#include <string.h>

#include "common.h"
#include "human.h"
#include "section.h"
#include "status-parts.h"
#include "units.h"

/* Prints the findings of scrubbing, and with `detail` its rate and progress. Without `detail`,
 * prints nothing if no chunk has failed the check. */
static void print_scrub(cJSON *store, bool detail)
{
        _cleanup_(cJSON_Deletep) cJSON *scrub = section_object(store, "scrub");
        char rate[HUMAN_BYTES], interval[HUMAN_BYTES], part[HUMAN_BYTES], last[HUMAN_BYTES],
                found[HUMAN_BYTES], checked[HUMAN_BYTES];
        uint64_t bytes, done, all, ended, failures;
        double seconds = 0;
        bool running = false;

        if (!scrub)
                return;
        bytes = section_count(scrub, "rate_bytes");
        section_number(scrub, "interval_seconds", &seconds);
        section_bool(scrub, "running", &running);
        done = section_count(scrub, "segments_done");
        all = section_count(scrub, "segments");
        ended = section_count(scrub, "last_pass_ms");
        failures = section_count(scrub, "failures");
        units_bytes(bytes, rate);
        human_seconds(seconds, interval);
        human_percent(done, all, part);
        if (ended)
                human_time(ended, last);
        if (!detail && failures == 0)
                return;
        if (!detail)
                ;
        else if (bytes == 0)
                section_line("scrub", "off");
        else
                section_line("scrub", "%s/s, every %s; %s%s; last pass ended: %s", rate, interval,
                             running ? "now at " : "idle", running ? part : "",
                             ended ? last : "not yet");
        human_count(failures, found);
        human_things(section_count(scrub, "chunks"), "chunk", checked);
        section_warn(failures > 0 ? COLOR_BAD : COLOR_NONE, "scrubbed", "%s, %s dropped", checked,
                     found);
        if (!detail)
                return;
        cJSON_DeleteItemFromObjectCaseSensitive(scrub, "passes");
        cJSON_DeleteItemFromObjectCaseSensitive(scrub, "bytes");
        section_rest(scrub);
}

static enum color color_of(const char *state)
{
        return strcmp(state, "suspended") == 0 || strcmp(state, "resuming") == 0 ? COLOR_WARNING
                                                                                 : COLOR_BAD;
}

/* Prints the state of each volume; for a single volume in use, only its name. Without `detail`,
 * volumes in use are only counted beyond the first few. Returns the number of chunks on volumes
 * that are not in use. */
static uint64_t print_volumes(cJSON *volumes, bool detail)
{
        enum { FEW = 4 };
        int n = cJSON_GetArraySize(volumes), shown = 0;
        uint64_t offline = 0;
        cJSON *one;

        cJSON_ArrayForEach(one, volumes)
        {
                char live[HUMAN_BYTES], reserved[HUMAN_BYTES], limit[HUMAN_BYTES], name[512],
                        state[64], reason[512], warning[512], since[HUMAN_BYTES];
                bool up;

                section_text(one, "volume", name, sizeof(name));
                section_text(one, "state", state, sizeof(state));
                section_text(one, "reason", reason, sizeof(reason));
                up = strcmp(state, "up") == 0;
                units_bytes(section_count(one, "payload_bytes"), live);
                units_bytes(section_count(one, "used_bytes"), reserved);
                units_bytes(section_count(one, "limit_bytes"), limit);
                human_time(section_count(one, "since_unix_ms"), since);
                if (!up)
                        offline += section_count(one, "chunks");
                if (!up && strncmp(reason, state, strlen(state)) == 0)
                        section_warn(color_of(state), "volume", "%s: %s, since %s", name, reason,
                                     since);
                else if (!up)
                        section_warn(color_of(state), "volume", "%s: %s since %s%s%s", name, state,
                                     since, reason[0] ? ": " : "", reason);
                else if (!detail && ++shown > FEW)
                        continue;
                else if (n > 1)
                        section_line("volume", "%s: %s live, %s reserved of %s", name, live,
                                     reserved, limit);
                else
                        section_line("volume", "%s", name);
                section_text(one, "file_system_warning", warning, sizeof(warning));
                if (warning[0])
                        section_warn(COLOR_WARNING, "", "%s", warning);
        }
        if (shown > FEW)
                section_line("", "and %d more in use: kvcachectl device ls", shown - FEW);
        return offline;
}

void status_print_store(cJSON *status, bool detail)
{
        _cleanup_(cJSON_Deletep) cJSON *store = section_object(status, "store"), *volumes = NULL;
        char reserved[HUMAN_BYTES], all[HUMAN_BYTES], away[HUMAN_BYTES], chunks[HUMAN_BYTES],
                most[HUMAN_BYTES], segment[HUMAN_BYTES];
        uint64_t segments, segments_max, limit, offline;
        bool bypassed = false, clean;

        if (!store)
                return;
        section_begin("Store");
        volumes = cJSON_DetachItemFromObjectCaseSensitive(store, "volumes");
        /* "paths" is an earlier name of "volumes". */
        cJSON_DeleteItemFromObjectCaseSensitive(store, "paths");
        offline = print_volumes(volumes, detail);
        limit = section_count(store, "limit_bytes");
        section_use("live", section_count(store, "payload_bytes"), limit);
        units_bytes(section_count(store, "used_bytes"), reserved);
        units_bytes(limit, all);
        section_line("reserved", "%s of %s: chunks, preformatted space, tables", reserved, all);
        /* These members duplicate used_bytes and payload_bytes. */
        cJSON_DeleteItemFromObjectCaseSensitive(store, "reserved_bytes");
        cJSON_DeleteItemFromObjectCaseSensitive(store, "live_bytes");
        human_count(section_count(store, "chunks"), chunks);
        human_count(section_count(store, "entries_max"), most);
        human_count(offline, away);
        section_line("chunks", "%s of at most %s%s%s%s", chunks, most, offline ? "; " : "",
                     offline ? away : "", offline ? " of them on volumes that are not in use" : "");
        segments = section_count(store, "segments");
        segments_max = section_count(store, "segments_max");
        units_bytes(section_count(store, "segment_bytes"), segment);
        human_things(section_count(store, "slots"), "slot", all);
        if (detail)
                section_line("segments", "%llu of at most %llu, %s each or less, with %s",
                             (unsigned long long)segments, (unsigned long long)segments_max,
                             segment, all);
        human_things(section_count(store, "recovered_chunks"), "chunk", all);
        if (section_bool(store, "clean_start", &clean) && detail)
                section_line("recovered", "%s at startup, from a store that %s", all,
                             clean ? "is new or was closed cleanly" : "was not closed cleanly");
        section_bool(store, "bypassed", &bypassed);
        if (bypassed)
                section_warn(COLOR_BAD, "OFFLINE",
                             "no volume is in use: every lookup on disk is a miss, and "
                             "no put reaches the disk");
        print_scrub(store, detail);
        if (detail)
                section_rest(store);
}

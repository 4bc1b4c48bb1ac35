/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl status, and remote status: the shared tier. */
#include <string.h>

#include "answer.h"
#include "human.h"
#include "section.h"
#include "status-parts.h"
#include "units.h"

/* Prints a state such as "s3, in use for 2 h", or "s3, NOT IN USE for 12.0 s: " and the reason. */
static void print_breaker(cJSON *remote, const char *label, const char *backend)
{
        char breaker[32] = "", reason[256] = "", since[HUMAN_BYTES];
        double seconds = 0;
        bool is_closed;

        (void)section_text(remote, "breaker", breaker, sizeof(breaker));
        (void)section_number(remote, "since_seconds", &seconds);
        (void)section_text(remote, "reason", reason, sizeof(reason));
        human_seconds(seconds, since);
        is_closed = strcmp(breaker, "closed") == 0;
        if (is_closed)
                section_line(label, "%s, in use for %s%s%s", backend, since,
                             reason[0] ? "; last error: " : "", reason);
        else
                section_warn(COLOR_BAD, label, "%s, %s for %s%s%s", backend,
                             strcmp(breaker, "open") == 0 ? "NOT IN USE" : "being tried again",
                             since, reason[0] ? ": " : "", reason);
}

static void print_reads(cJSON *remote)
{
        uint64_t rate = section_count(remote, "read_rate_bytes");
        char hits[HUMAN_BYTES], misses[HUMAN_BYTES], late[HUMAN_BYTES], text[HUMAN_BYTES],
                took[HUMAN_BYTES];
        uint64_t n_late = section_count(remote, "late"),
                 in = section_count(remote, "reading_bytes");
        double latency = 0;

        human_count(section_count(remote, "hits"), hits);
        human_count(section_count(remote, "misses"), misses);
        human_count(n_late, late);
        section_line("reads", "%s found, %s not there, %s late", hits, misses, late);
        if (section_number(remote, "read_latency_seconds", &latency) && rate > 0) {
                units_bytes(rate, text);
                human_ns(answer_count(latency * 1e9), took);
                section_line("", "%s/s, %s each, lately", text, took);
        }
        if (in > 0) {
                units_bytes(in, text);
                section_line("", "%s being read", text);
        }
}

static void print_writes(cJSON *remote)
{
        char write[32] = "", puts[HUMAN_BYTES], dropped[HUMAN_BYTES], rate[HUMAN_BYTES],
             text[HUMAN_BYTES], bytes[HUMAN_BYTES];
        uint64_t limit = section_count(remote, "write_rate_bytes");
        bool full = false;

        (void)section_text(remote, "write", write, sizeof(write));
        (void)section_bool(remote, "full", &full);
        human_count(section_count(remote, "puts"), puts);
        human_count(section_count(remote, "puts_dropped"), dropped);
        units_bytes(limit, rate);
        section_line("writes", "%s; %s written, %s dropped; at most %s%s", write, puts, dropped,
                     limit > 0 ? rate : "as fast as it goes", limit > 0 ? "/s" : "");
        human_count(section_count(remote, "offered_used_again"), puts);
        human_count(section_count(remote, "offered_evicted"), dropped);
        section_line("", "queued: %s as they were used again, %s as they were about to be evicted",
                     puts, dropped);
        if (full)
                section_warn(COLOR_WARNING, "FULL", "the storage has no room: nothing is written");
        human_things(section_count(remote, "queued"), "chunk", text);
        units_bytes(section_count(remote, "queued_bytes"), bytes);
        section_line("queue", "%s, %s", text, bytes);
        units_bytes(section_count(remote, "writing_bytes"), text);
        section_line("", "%s being written", text);
}

static void print_detail(cJSON *remote, const char *backend)
{
        char a[HUMAN_BYTES], b[HUMAN_BYTES];
        uint64_t unknown, rejected;
        bool sweeping = false;

        print_breaker(remote, "backend", backend);
        print_reads(remote);
        print_writes(remote);
        human_count(section_count(remote, "namespaces"), a);
        unknown = section_count(remote, "unknown_namespaces");
        human_count(unknown, b);
        section_line("namespaces", "%s%s%s%s", a, unknown > 0 ? ", " : "", unknown > 0 ? b : "",
                     unknown > 0 ? " of which are not asked for yet, as it is not known whether "
                                   "they were purged"
                                 : "");
        human_count(section_count(remote, "errors"), a);
        section_line("errors", "%s", a);
        rejected = section_count(remote, "rejected");
        if (rejected > 0) {
                human_things(rejected, "object", a);
                section_warn(COLOR_BAD, "REJECTED",
                             "the shared tier returned wrong bytes for %s; the daemon deletes such "
                             "objects, and their gets are misses",
                             a);
        }
        if (section_bool(remote, "sweeping", &sweeping) && sweeping)
                section_line("sweeping", "yes");
        section_rest(remote);
}

void status_print_remote(cJSON *status, bool detail)
{
        _cleanup_(cJSON_Deletep) cJSON *remote = section_object(status, "remote");
        char backend[32] = "off";

        if (!remote)
                return;
        (void)section_text(remote, "backend", backend, sizeof(backend));
        if (strcmp(backend, "off") == 0) {
                if (detail) {
                        section_begin("Shared tier");
                        section_line("backend", "off (remote.backend)");
                }
                return;
        }
        if (!detail) {
                print_breaker(remote, "shared tier", backend);
                return;
        }
        section_begin("Shared tier");
        print_detail(remote, backend);
}

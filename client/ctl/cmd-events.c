/* SPDX-License-Identifier: Apache-2.0 */
/* events: prints the chunks that are stored in memory and on disk, and those that are removed. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#include "checked.h"
#include "commands.h"
#include "common.h"
#include "units.h"
#include "interrupt.h"

enum { OPTION_SNAPSHOT = OPTION_LONG };
enum { WAIT_MS = 1000, EVENTS_MAX = 1024 };

static const struct option_row events_options[] = {
        { 'f', "follow", NULL, "continue with new events until interrupted" },
        { OPTION_SNAPSHOT, "snapshot", NULL,
          "print all stored chunks first, and again after each gap, instead of earlier events" },
        { 0 },
};

struct printer {
        struct ctl *ctl;
        struct kvcache_events_position at;
        bool follow, snapshot;
        cJSON *objects; /* with --json and without --follow, the array of all events; else NULL */
};

static const char *kind_text(const struct kvcache_event *e, bool is_snapshot)
{
        if (is_snapshot)
                return "snapshot";
        switch (e->kind) {
        case KVCACHE_EVENT_STORED:
                return "stored";
        case KVCACHE_EVENT_REMOVED:
                return "removed";
        case KVCACHE_EVENT_NAMESPACE_REMOVED:
                return "namespace_removed";
        default:
                return "unknown";
        }
}

static const char *tier_text(uint32_t tier)
{
        return tier == KVCACHE_TIER_MEMORY ? "memory" : tier == KVCACHE_TIER_DISK ? "disk" : "-";
}

/* Prints a JSON object in one line with --follow; otherwise adds it to the array that is printed at
 * the end. Takes ownership of the object. Returns an exit status. */
static int emit(const struct printer *p, cJSON *object)
{
        _cleanup_(freep) char *text = NULL;

        if (p->objects)
                return cJSON_AddItemToArray(p->objects, object) ? EXIT_OK : complain_memory();
        text = cJSON_PrintUnformatted(object);
        cJSON_Delete(object);
        if (!text)
                return complain_memory();
        puts(text);
        return EXIT_OK;
}

static int print_json_event(const struct printer *p, const struct kvcache_event *e, const char *hex,
                            bool is_snapshot)
{
        cJSON *o = cJSON_CreateObject();

        cJSON_AddStringToObject(o, "kind", kind_text(e, is_snapshot));
        if (!is_snapshot) {
                cJSON_AddNumberToObject(o, "sequence", (double)e->sequence);
                cJSON_AddNumberToObject(o, "time_ms", (double)e->time_ms);
        }
        cJSON_AddNumberToObject(o, "namespace_number", e->namespace_number);
        if (e->namespace_name)
                cJSON_AddStringToObject(o, "namespace", e->namespace_name);
        if (e->kind != KVCACHE_EVENT_NAMESPACE_REMOVED) {
                cJSON_AddStringToObject(o, "key", hex);
                cJSON_AddStringToObject(o, "tier", tier_text(e->tier));
                cJSON_AddNumberToObject(o, "bytes", (double)e->length);
        }
        return emit(p, o);
}

static void print_text_event(const struct kvcache_event *e, const char *hex, bool is_snapshot)
{
        time_t seconds = (time_t)(e->time_ms / 1000);
        char when[16] = "", bytes[UNITS_TEXT];
        struct tm tm;

        if (!is_snapshot && localtime_r(&seconds, &tm) && strftime(when, sizeof(when), "%T", &tm))
                printf("%s.%03u  ", when, (unsigned)(e->time_ms % 1000));
        if (e->kind == KVCACHE_EVENT_NAMESPACE_REMOVED)
                printf("%-9s #%u", "removed", e->namespace_number);
        else
                printf("%-9s %-6s %s  %s  ", kind_text(e, is_snapshot), tier_text(e->tier), hex,
                       units_bytes(e->length, bytes));
        if (e->namespace_name)
                print_safe(e->namespace_name, stdout);
        else if (e->kind != KVCACHE_EVENT_NAMESPACE_REMOVED)
                printf("#%u", e->namespace_number);
        putchar('\n');
}

static int print_events(const struct printer *p, const struct kvcache_event *events, int n,
                        bool is_snapshot)
{
        for (int i = 0; i < n; i++) {
                char hex[KEY_TEXT_BYTES];
                int r;

                key_print(&events[i].key, hex);
                if (!p->ctl->json) {
                        print_text_event(&events[i], hex, is_snapshot);
                        continue;
                }
                r = print_json_event(p, &events[i], hex, is_snapshot);
                if (r)
                        return r;
        }
        return EXIT_OK;
}

static int print_mark(const struct printer *p, const char *kind, const char *text)
{
        cJSON *o;

        if (!p->ctl->json) {
                if (text)
                        puts(text);
                return EXIT_OK;
        }
        o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "kind", kind);
        cJSON_AddNumberToObject(o, "next", (double)p->at.next);
        return emit(p, o);
}

static bool is_done(void)
{
        return interrupted || fflush(stdout) != 0 || ferror(stdout);
}

/* Prints all chunks, and then the end of the snapshot. If the daemon has restarted meanwhile, sets
 * `*ret_stale` and returns EXIT_OK; otherwise returns an exit status. After a signal or a failed
 * write the snapshot stays without an end; print() reports the write. */
static int print_snapshot(struct printer *p, struct kvcache_event *events, bool *ret_stale)
{
        uint64_t cursor = 0;
        int n, r;

        *ret_stale = false;
        do {
                n = kvcache_events_snapshot(p->ctl->kv, &p->at, &cursor, events, EVENTS_MAX);
                if (n == -ESTALE) {
                        *ret_stale = true;
                        return EXIT_OK;
                }
                if (n < 0)
                        return complain_call(p->ctl, n, "events");
                r = print_events(p, events, n, true);
                if (r)
                        return r;
        } while (cursor != 0 && !is_done());
        if (cursor != 0)
                return interrupted ? complain(EXIT_INTERRUPTED,
                                              "events: interrupted; the snapshot is incomplete")
                                   : EXIT_OK;
        return print_mark(p, "snapshot_end", NULL);
}

/* Continues after events were lost: with a snapshot, or at the oldest event that the daemon still
 * has. `is_first`: no events have been requested before, so that none were lost to the user.
 * Returns an exit status. */
static int cross_gap(struct printer *p, struct kvcache_event *events, bool is_first)
{
        bool is_stale = false;
        int r = EXIT_OK;

        if (!is_first || p->snapshot)
                r = print_mark(p, "gap", is_first ? NULL : "gap: some events were lost");
        if (r)
                return r;
        if (!p->snapshot) {
                p->at.next = p->at.oldest;
                return EXIT_OK;
        }
        r = print_snapshot(p, events, &is_stale);
        if (is_stale)
                p->at = (struct kvcache_events_position){
                        0
                }; /* the next request returns -ESTALE and the position of the restarted daemon */
        return r;
}

static int print_all(struct printer *p)
{
        static struct kvcache_event events[EVENTS_MAX];
        bool is_first = true;

        while (!is_done()) {
                int n = kvcache_events_next(p->ctl->kv, &p->at, events, ARRAY_SIZE(events),
                                            p->follow ? WAIT_MS : 0);
                int r;

                if (interrupted)
                        break;
                if (n < 0 && n != -ESTALE)
                        return complain_call(p->ctl, n, "events");
                if (n == 0 && !p->follow)
                        break;
                r = n == -ESTALE ? cross_gap(p, events, is_first)
                                 : print_events(p, events, n, false);
                if (r)
                        return r;
                is_first = false;
        }
        return interrupted && !p->follow
                       ? complain(EXIT_INTERRUPTED,
                                  "events: interrupted; later events were not printed")
                       : EXIT_OK;
}

static int print(struct printer *p)
{
        _cleanup_(cJSON_Deletep) cJSON *object = NULL;
        int r;

        if (p->ctl->json && !p->follow) {
                object = cJSON_CreateObject();
                p->objects = cJSON_AddArrayToObject(object, "events");
                if (!p->objects)
                        return complain_memory();
        }
        r = print_all(p);
        if (r)
                return r;
        if (object) {
                cJSON_AddNumberToObject(object, "next", (double)p->at.next);
                return print_json(object);
        }
        return fflush(stdout) != 0 || ferror(stdout) ? complain_output(errno) : EXIT_OK;
}

static int run_events(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        struct printer p = { .ctl = ctl };
        const char *argument;
        int option, first, r;

        while ((option = option_next(ctl, self, argc, argv, &argument, &first)) > 0) {
                p.follow |= option == 'f';
                p.snapshot |= option == OPTION_SNAPSHOT;
        }
        if (option < 0)
                return ctl->exit_status;
        if (first < argc)
                return usage_error(self, "events takes no operand, but '%s' is one", argv[first]);
        r = ctl_connect(ctl);
        if (r)
                return r;
        interrupt_catch();
        return print(&p);
}

const struct command command_events = {
        .name = "events",
        .arguments = "",
        .summary = "print which chunks appear and leave, in memory and on disk",
        .help = "Prints the events that the daemon still has of your tenant, oldest first: "
                "\"stored\"\n"
                "when memory or the disk has gained a chunk, \"removed\" when it no longer has "
                "it.\n"
                "With --json and --follow each line is an object.\n"
                "\n"
                "The daemon keeps events if events.ring gives them room; when the ring is full, "
                "new\n"
                "events take the place of the oldest ones. After a gap in the events --snapshot "
                "prints\n"
                "all chunks, so that a reader of the output knows what is stored.\n",
        .options = events_options,
        .run = run_events,
};

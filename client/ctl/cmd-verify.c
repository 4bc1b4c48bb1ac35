/* SPDX-License-Identifier: Apache-2.0 */
/* verify: reads back all data on disk and compares checksums. A running daemon does so on request,
 * a part of a segment at a time; with --store, this process opens a store that no daemon has open.
 * Bad chunks are dropped, which repairs the store, because a miss is recomputed. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "answer.h"
#include "commands.h"
#include "common.h"
#include "human.h"
#include "latency.h"
#include "units.h"
#include "offline.h"
#include "progress.h"
#include "table.h"
#include "checked.h"
#include "interrupt.h"

/* Exit statuses of verify. They differ from those of other commands, so that a script can tell
 * damage from a run that was not completed. */
enum { EXIT_ALL_GOOD = 0, EXIT_DROPPED = 1, EXIT_NOT_RUN = 2 };

enum { OPTION_VOLUME = OPTION_LONG, OPTION_STORE, MAX_STORES = STORE_MAX_VOLUMES };

static const struct option_row verify_options[] = {
        { OPTION_VOLUME, "volume", "VOLUME",
          "only this volume of the daemon's store: its directory, or its number from 0" },
        { OPTION_STORE, "store", "DIR",
          "the store in DIR, which no daemon has open; may be given\nonce for each volume" },
        { 'v', "verbose", NULL, "also list the segments without damage" },
        { 0 },
};

struct counts {
        uint64_t chunks, bytes, mismatched, unreadable, skipped;
};

static uint64_t dropped(const struct counts *c)
{
        return c->mismatched + c->unreadable;
}

static void add(struct counts *sum, const struct counts *c)
{
        sum->chunks += c->chunks;
        sum->bytes += c->bytes;
        sum->mismatched += c->mismatched;
        sum->unreadable += c->unreadable;
        sum->skipped += c->skipped;
}

/* State of one run of the command. */
struct run {
        struct ctl *ctl;
        struct offline *offline; /* NULL: the daemon verifies */
        bool verbose;
        bool hopeless; /* the failure affects every volume, so the command ends */
        struct progress progress;
        double began, part_before,
                part_of; /* began: start of the run, s; part_before, part_of: start and length of
                            the current volume's share of the progress, 0 to 1 */
        struct counts sum;
        uint64_t segments, skipped_pages, lost_files;
        cJSON *json,
                *json_volume; /* `json`: array of all volumes; `json_volume`: the current volume */
        struct text_table *table; /* table of the current volume */
        bool table_used;
};

static double now_seconds(void)
{
        return (double)latency_now_ns() / 1e9;
}

/* --- output --- */

static void show_progress(struct run *run, const struct counts *volume, double part)
{
        char chunks[HUMAN_BYTES], bytes[HUMAN_BYTES], tail[256];
        double seconds = now_seconds() - run->began;
        uint64_t all_bytes = run->sum.bytes + volume->bytes;

        human_count(run->sum.chunks + volume->chunks, chunks);
        units_bytes(all_bytes, bytes);
        snprintf(tail, sizeof(tail), " %3.0f %%  %s chunks  %s  %.2f GB/s  %" PRIu64 " bad",
                 part * 100, chunks, bytes, seconds > 0 ? (double)all_bytes / seconds / 1e9 : 0,
                 dropped(&run->sum) + dropped(volume));
        progress_show(&run->progress, part, tail);
}

static void json_counts(cJSON *object, const struct counts *c)
{
        cJSON_AddNumberToObject(object, "chunks", (double)c->chunks);
        cJSON_AddNumberToObject(object, "bytes", (double)c->bytes);
        cJSON_AddNumberToObject(object, "mismatched", (double)c->mismatched);
        cJSON_AddNumberToObject(object, "unreadable", (double)c->unreadable);
        cJSON_AddNumberToObject(object, "dropped", (double)dropped(c));
        cJSON_AddNumberToObject(object, "skipped", (double)c->skipped);
}

static void report_segment(struct run *run, uint32_t segment, const struct counts *c)
{
        char name[16], chunks[HUMAN_BYTES], bytes[HUMAN_BYTES], mismatched[HUMAN_BYTES],
                unreadable[HUMAN_BYTES], skipped[HUMAN_BYTES];

        run->segments++;
        if (run->ctl->json) {
                cJSON *o = cJSON_CreateObject();

                cJSON_AddNumberToObject(o, "segment", segment);
                json_counts(o, c);
                cJSON_AddItemToArray(cJSON_GetObjectItem(run->json_volume, "segments"), o);
                return;
        }
        if (!run->verbose && dropped(c) == 0 && c->skipped == 0)
                return;
        if (!run->table_used)
                text_table_row(run->table, "segment", "chunks", "size", "mismatched", "unreadable",
                               "not read");
        run->table_used = true;
        snprintf(name, sizeof(name), "%04" PRIx32, segment);
        human_count(c->chunks, chunks);
        units_bytes(c->bytes, bytes);
        human_count(c->mismatched, mismatched);
        human_count(c->unreadable, unreadable);
        human_count(c->skipped, skipped);
        text_table_row(run->table, name, chunks, bytes, mismatched, unreadable, skipped);
}

static void path_begin(struct run *run, const char *name)
{
        if (run->ctl->json) {
                run->json_volume = cJSON_CreateObject();
                cJSON_AddStringToObject(run->json_volume, "volume", name);
                cJSON_AddArrayToObject(run->json_volume, "segments");
                cJSON_AddItemToArray(run->json, run->json_volume);
                return;
        }
        run->table = text_table_new("lrrrrr");
        run->table_used = false;
}

static void path_end(struct run *run, const char *name, const struct counts *c)
{
        add(&run->sum, c);
        if (run->ctl->json) {
                json_counts(run->json_volume, c);
                return;
        }
        if (run->table_used) {
                progress_end(&run->progress);
                print_safe(name, stdout);
                putchar('\n');
                text_table_print(run->table, "  ", stdout);
                progress_init(&run->progress);
        }
        run->table = text_table_free(run->table);
}

/* --- one volume --- */

static int step(struct run *run, struct kvcache_verify *v)
{
        return run->offline ? offline_verify(run->offline, v) : kvcache_verify(run->ctl->kv, v);
}

/* Verifies a volume from its first segment to its last, or until a signal. Returns 0; -ENODEV if
 * too many consecutive chunks could not be read; another negative errno of step(). `*ret_paths`
 * (may be NULL) gets the number of volumes in the store. */
static int verify_volume(struct run *run, unsigned volume, struct counts *ret, uint32_t *ret_paths)
{
        struct kvcache_verify v = { .size = sizeof(v), .volume = volume };
        struct counts in_segment = { 0 };

        while (!interrupted) {
                uint32_t segment = v.segment;
                struct counts c;
                int r = step(run, &v);

                if (r == -EBUSY) {
                        /* The daemon is busy with verifying for other clients, so try again
                         * later. */
                        nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
                        continue;
                }
                if (r < 0)
                        return r;
                c = (struct counts){ .chunks = v.chunks,
                                     .bytes = v.bytes,
                                     .mismatched = v.mismatched,
                                     .unreadable = v.unreadable,
                                     .skipped = v.skipped };
                add(ret, &c);
                add(&in_segment, &c);
                if (ret_paths)
                        *ret_paths = v.volumes;
                if (v.segment != segment || v.gave_up) {
                        if (in_segment.chunks > 0 || in_segment.skipped > 0)
                                report_segment(run, segment, &in_segment);
                        in_segment = (struct counts){ 0 };
                }
                if (v.gave_up)
                        return -ENODEV;
                show_progress(run, ret,
                              run->part_before +
                                      run->part_of *
                                              (v.segments ? (double)v.segment / v.segments : 1));
                if (v.segment >= v.segments)
                        return 0;
        }
        return 0;
}

static int do_volume(struct run *run, unsigned volume, const char *name, uint32_t *ret_paths)
{
        struct counts c = { 0 };
        int r;

        path_begin(run, name);
        r = verify_volume(run, volume, &c, ret_paths);
        path_end(run, name, &c);
        if (r < 0)
                progress_end(&run->progress);
        run->hopeless = r == -EACCES || errno_unreachable(r);
        if (r == -EACCES) {
                complain_admin("verify");
                return EXIT_NOT_RUN;
        }
        if (r == -ENODEV)
                return complain(EXIT_NOT_RUN,
                                "%s: many consecutive chunks could not be read, so the device has "
                                "failed, and the rest of the volume was not verified; look for its "
                                "errors with dmesg and smartctl",
                                name);
        if (r < 0 && run->offline)
                return complain(EXIT_NOT_RUN, "%s: the volume was not verified to its end: %s",
                                name, strerror(-r));
        if (r < 0)
                complain_call(run->ctl, r, name);
        return r < 0 ? EXIT_NOT_RUN : EXIT_OK;
}

/* --- a running daemon's store --- */

static const char *volume_name(const cJSON *volumes, unsigned i, char *room, size_t bytes)
{
        const char *name = answer_text(cJSON_GetArrayItem(volumes, (int)i), "volume");

        if (*name)
                return name;
        snprintf(room, bytes, "volume %u", i);
        return room;
}

static int verify_online(struct run *run, const char *wanted)
{
        _cleanup_(cJSON_Deletep) cJSON *volumes = NULL;
        uint32_t first = 0, n;
        int r, status = EXIT_OK;

        run->ctl->request_timeout_ms = LONG_CALL_MS;
        r = ctl_connect(run->ctl);
        if (r)
                return EXIT_NOT_RUN;
        (void)answer_volumes(run->ctl, &volumes); /* if this fails, volumes are printed by number */
        n = MAX((uint32_t)cJSON_GetArraySize(volumes), UINT32_C(1));
        if (wanted) {
                r = answer_volume_number(volumes, wanted);
                if (r < 0)
                        return complain(EXIT_NOT_RUN,
                                        "verify: the daemon's store has no volume '%s'; "
                                        "\"kvcachectl device ls\" lists the volumes",
                                        wanted);
                first = (uint32_t)r;
                n = first + 1;
        }
        for (uint32_t i = first; i < n && !interrupted && !run->hopeless; i++) {
                char room[32];

                run->part_of = 1.0 / (n - first);
                run->part_before = (i - first) * run->part_of;
                r = do_volume(run, i, volume_name(volumes, i, room, sizeof(room)),
                              wanted ? NULL : &n);
                status = r ? r : status;
        }
        return status;
}

/* --- a store without a daemon --- */

static void on_finding(void *userdata, const struct store_finding *finding)
{
        struct run *run = userdata;
        struct kvcache_key key;
        char text[KEY_TEXT_BYTES];
        const char *ns = offline_namespace(run->offline, finding->chunk->namespace_id);

        memcpy(key.bytes, finding->chunk->key.bytes, sizeof(key.bytes));
        key_print(&key, text);
        if (run->ctl->json) {
                cJSON *list = cJSON_GetObjectItem(run->json_volume, "findings"),
                      *o = cJSON_CreateObject();

                if (!list)
                        list = cJSON_AddArrayToObject(run->json_volume, "findings");
                cJSON_AddStringToObject(o, "namespace", ns);
                cJSON_AddStringToObject(o, "key", text);
                cJSON_AddNumberToObject(o, "segment", finding->segment);
                cJSON_AddNumberToObject(o, "offset", (double)finding->offset);
                cJSON_AddNumberToObject(o, "length", finding->chunk->length);
                cJSON_AddStringToObject(o, "error",
                                        finding->error ? strerror(-finding->error)
                                                       : "checksum does not match");
                cJSON_AddItemToArray(list, o);
                return;
        }
        progress_end(&run->progress);
        printf("dropped: %s in namespace ", text);
        print_safe(ns, stdout);
        printf(": %s\n", finding->error ? strerror(-finding->error) : "checksum does not match");
        progress_init(&run->progress);
}

/* Prints that files are missing. The daemon's next startup reports them by name. */
static void report_losses(const char *directory, const struct store_stats *st)
{
        if (st->lost_files == 0)
                return;
        print_safe(directory, stdout);
        printf(": %" PRIu64 " file%s missing or short, and %" PRIu64 " chunk%s lost\n",
               st->lost_files, st->lost_files == 1 ? " is" : "s are", st->lost_chunks,
               st->lost_chunks == 1 ? " is" : "s are");
}

/* Reports damaged table pages and lost files that recovery has found, if any. With --json, also
 * adds how many chunks it has found. */
static void report_start(struct run *run, const char *directory)
{
        struct store_stats st;

        offline_get_stats(run->offline, &st);
        run->skipped_pages += st.skipped_pages;
        run->lost_files += st.lost_files;
        if (run->ctl->json) {
                cJSON_AddBoolToObject(run->json_volume, "clean", st.clean_start);
                cJSON_AddNumberToObject(run->json_volume, "chunks_found",
                                        (double)st.recovered_chunks);
                cJSON_AddNumberToObject(run->json_volume, "damaged_table_pages",
                                        (double)st.skipped_pages);
                cJSON_AddNumberToObject(run->json_volume, "lost_files", (double)st.lost_files);
                cJSON_AddNumberToObject(run->json_volume, "lost_chunks", (double)st.lost_chunks);
                return;
        }
        if (st.skipped_pages == 0 && st.lost_files == 0 && st.clean_start)
                return;
        progress_end(&run->progress);
        report_losses(directory, &st);
        if (st.skipped_pages == 0 && st.clean_start) {
                progress_init(&run->progress);
                return;
        }
        print_safe(directory, stdout);
        if (!st.clean_start)
                fputs(": the store was not closed cleanly", stdout);
        if (st.skipped_pages > 0)
                printf("%s %" PRIu64 " table page%s damaged: chunks that were recorded only there "
                       "are lost, and all others are kept; no action is needed",
                       st.clean_start ? ":" : ";", st.skipped_pages,
                       st.skipped_pages == 1 ? " is" : "s are");
        putchar('\n');
        progress_init(&run->progress);
}

static int verify_offline(struct run *run, const char *const *stores, unsigned n)
{
        int r, status = EXIT_OK;

        for (unsigned i = 0; i < n && !interrupted; i++) {
                run->part_before = (double)i / n;
                run->part_of = 1.0 / n;
                r = offline_open(&run->offline, stores[i], on_finding, run);
                if (r == EXIT_OK) {
                        r = do_volume(run, 0, stores[i], NULL);
                        report_start(run, stores[i]);
                        run->offline = offline_close(run->offline);
                }
                status = r == EXIT_OK ? status : EXIT_NOT_RUN;
        }
        return status;
}

/* --- the command --- */

/* Returns whether everything was read; otherwise the store must not be called good. */
static bool is_complete(const struct run *run, int status)
{
        return status == EXIT_OK && !interrupted && run->sum.skipped == 0;
}

static void print_sum(const struct run *run, bool complete)
{
        char chunks[HUMAN_BYTES], bytes[HUMAN_BYTES], segments[HUMAN_BYTES], seconds[HUMAN_BYTES],
                bad[HUMAN_BYTES], unreadable[HUMAN_BYTES];
        double took = now_seconds() - run->began;

        human_count(run->sum.chunks, chunks);
        units_bytes(run->sum.bytes, bytes);
        human_count(run->segments, segments);
        human_seconds(took, seconds);
        printf("%s chunk%s in %s segment%s, %s, in %s", chunks, run->sum.chunks == 1 ? "" : "s",
               segments, run->segments == 1 ? "" : "s", bytes, seconds);
        if (took > 0 && run->sum.bytes > 0)
                printf(" (%.2f GB/s)", (double)run->sum.bytes / took / 1e9);
        if (dropped(&run->sum) > 0) {
                human_count(run->sum.mismatched, bad);
                human_count(run->sum.unreadable, unreadable);
                printf(": %s did not match, %s could not be read: dropped", bad, unreadable);
        } else if (run->skipped_pages == 0 && run->lost_files == 0) {
                fputs(complete ? ": all good" : ": nothing bad so far", stdout);
        }
        if (run->skipped_pages > 0)
                printf("%s %" PRIu64 " table page%s damaged", dropped(&run->sum) > 0 ? ";" : ":",
                       run->skipped_pages, run->skipped_pages == 1 ? "" : "s");
        if (run->sum.skipped > 0)
                printf("; %" PRIu64 " were not read", run->sum.skipped);
        putchar('\n');
}

static int finish(struct run *run, int status)
{
        progress_end(&run->progress);
        if (run->ctl->json && (status == EXIT_OK || cJSON_GetArraySize(run->json) > 0)) {
                _cleanup_(cJSON_Deletep) cJSON *object = cJSON_CreateObject();

                cJSON_AddItemToObject(object, "volumes", TAKE_PTR(run->json));
                json_counts(object, &run->sum);
                cJSON_AddNumberToObject(object, "seconds", now_seconds() - run->began);
                cJSON_AddBoolToObject(object, "complete", is_complete(run, status));
                if (print_json(object) != EXIT_OK)
                        return EXIT_NOT_RUN;
        } else if (!run->ctl->json && (run->sum.chunks > 0 || status == EXIT_OK)) {
                print_sum(run, is_complete(run, status));
        }
        if (status != EXIT_OK)
                return status;
        if (interrupted)
                return complain(EXIT_INTERRUPTED,
                                "verify: interrupted; the rest of the store was not verified");
        if (dropped(&run->sum) > 0 || run->skipped_pages > 0 || run->lost_files > 0)
                return EXIT_DROPPED;
        return run->sum.skipped > 0 ? EXIT_NOT_RUN : EXIT_ALL_GOOD;
}

static int run_verify(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        const char *stores[MAX_STORES], *volume = NULL, *argument;
        struct run run = { .ctl = ctl };
        unsigned n_stores = 0;
        int r, first;

        while ((r = option_next(ctl, self, argc, argv, &argument, &first)) > 0)
                switch (r) {
                case OPTION_VOLUME:
                        volume = argument;
                        break;
                case OPTION_STORE:
                        if (n_stores == MAX_STORES)
                                return usage_error(self, "--store: a store has at most %d volumes",
                                                   MAX_STORES);
                        stores[n_stores++] = argument;
                        break;
                case 'v':
                        run.verbose = true;
                        break;
                }
        if (r < 0)
                return ctl->exit_status;
        if (first < argc)
                return usage_error(self,
                                   "unexpected argument '%s'; name a volume with --volume, or a "
                                   "store with --store",
                                   argv[first]);
        if (volume && n_stores > 0)
                return usage_error(self, "--volume is for a running daemon, and --store for a "
                                         "store that no daemon has open");
        if (ctl->json && !(run.json = cJSON_CreateArray())) {
                complain_memory();
                return EXIT_NOT_RUN;
        }
        interrupt_catch(); /* a signal must not end the process before the store is closed */
        run.began = now_seconds();
        progress_init(&run.progress);
        r = n_stores > 0 ? verify_offline(&run, stores, n_stores) : verify_online(&run, volume);
        r = finish(&run, r);
        cJSON_Delete(run.json);
        return r;
}

const struct command command_verify = {
        .name = "verify",
        .arguments = "",
        .summary = "read back every chunk on disk, and drop damaged ones",
        .help = "Reads back every chunk of the store and compares its checksum. A chunk that "
                "fails\n"
                "the comparison twice, or cannot be read twice, is dropped, and is a miss from "
                "then\n"
                "on. A running daemon verifies its store while it serves clients (for admins), "
                "and\n"
                "its log names each chunk that it drops. --store verifies a store that no daemon "
                "has\n"
                "open, and prints the keys of the chunks that it drops.\n"
                "\n"
                "Exit status: 0 every chunk is intact; 1 damaged chunks were dropped; 2 some or\n"
                "all of the store could not be verified; 130 interrupted.",
        .options = verify_options,
        .run = run_verify,
};

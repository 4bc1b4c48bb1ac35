/* SPDX-License-Identifier: Apache-2.0 */
/* Implements learned.h: saves and restores eviction state.
 *
 * A save proceeds in steps of a tenth of a millisecond, between which chunks are put, used and
 * evicted. It is therefore no snapshot, and one chunk may have two records, one as present and one
 * as evicted. Then a blocking-call thread sorts the records, writes the file under another name,
 * syncs and renames it, so that a kill leaves either the old or the new file.
 *
 * Owns the file being made, and the call. Needs 24 bytes of memory per record during a save.
 * Failures: lack of memory and device errors are counted each time and reported once until a save
 * succeeds, and the next save tries again; a change of the policy cancels the save. */
#include "learned/learned.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/small-file.h"
#include "cache/pool.h"
#include "checked.h"
#include "cleanup.h"
#include "io/io.h"
#include "learned/format.h"
#include "store/store.h"

enum {
        STEP = 1024, /* records examined by a step */
        LEARNED_THREAD = KIO_VOLUMES_MAX - 7,
};
static_assert((int)LEARNED_THREAD > (int)STORE_MAX_VOLUMES,
              "the store numbers its volumes from 1 on");

#define FILE_NAME "learned"
#define NEW_NAME  FILE_NAME ".new"

struct learned {
        struct learned_params params;
        struct pool **pools;
        char *folder;

        /* The file that the save in progress builds; NULL if none is in progress. */
        struct learned_head *file;
        size_t room, used;
        unsigned source; /* source of the section: index of a pool, or n_pools plus that of a
                          * volume */
        struct learned_section *section;
        uint64_t max_chunks, max_remembered; /* limits of the section's records */
        uint32_t chunk, remembered;          /* positions in the source; UINT32_MAX at its end */

        struct kio_request call; /* while `writing`, call and file belong to the thread */
        bool writing, stopping;
        uint64_t began_ns;
        uint64_t touches; /* sum over all policies when the last successful save began */
        uint64_t touches_now;
        bool failed; /* the last save failed, and was reported */
        struct learned_stats stats;
};

/* --- reading --- */

static int fail(char error[static LEARNED_ERROR_BYTES], int r, const char *text)
{
        snprintf(error, LEARNED_ERROR_BYTES, "%s", text);
        return r;
}

int learned_read(const char *folder, struct learned_head **ret,
                 char ret_error[static LEARNED_ERROR_BYTES])
{
        _cleanup_(closep) int dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        _cleanup_(freep) void *file = NULL;
        const char *wrong;
        size_t bytes;
        int r = dir < 0 ? -errno
                        : small_file_load(dir, FILE_NAME, LEARNED_MAX_BYTES, &file, &bytes);

        if (r == -EMEDIUMTYPE || r == -EFBIG)
                return fail(ret_error, -EBADMSG,
                            r == -EFBIG ? "the file is too large" : "it is not a regular file");
        if (r < 0)
                return fail(ret_error, r, strerror(-r));
        wrong = learned_check(file, bytes);
        if (wrong)
                return fail(ret_error, -EBADMSG, wrong);
        *ret = TAKE_PTR(file);
        return 0;
}

void learned_secret(const struct learned_head *file, struct key_secret *ret)
{
        *ret = file->secret;
}

static void restore_section(struct learned *l, const struct learned_head *file,
                            const struct learned_section *s)
{
        const struct evict_record *remembered = &s->records[s->n_chunks];
        struct store_order order = {
                .policy = s->policy,
                .learned = &s->learned,
                .chunks = s->records,
                .n_chunks = s->n_chunks,
                .remembered = remembered,
                .n_remembered = s->n_remembered,
                .saved_ms = file->saved_ms,
        };

        if (s->tier == LEARNED_VOLUME)
                l->stats.restored_chunks += store_restore_order(l->params.store, s->number, &order);
        else if (s->number < l->params.n_pools)
                (void)pool_restore_learned(l->pools[s->number], s->policy, &s->learned, remembered,
                                           s->n_remembered);
}

static uint64_t count_remembered(const struct learned *l)
{
        struct evict_stats sum = { 0 };

        for (unsigned i = 0; i < store_volumes(l->params.store); i++) {
                const struct evict *e = store_eviction(l->params.store, i);
                struct evict_stats one;

                if (!e)
                        continue;
                evict_get_stats(e, &one);
                evict_add_stats(&sum, &one);
        }
        return sum.ghosts;
}

/* --- sources: the policies of pools and volumes --- */

static unsigned n_sources(const struct learned *l)
{
        return l->params.n_pools + store_volumes(l->params.store);
}

/* Returns the policy of a source, which is a pool or a volume. Returns NULL for a volume that is
 * offline. */
static const struct evict *source(const struct learned *l, unsigned i)
{
        return i < l->params.n_pools ? pool_eviction(l->pools[i])
                                     : store_eviction(l->params.store, i - l->params.n_pools);
}

static uint64_t chunks_of(const struct learned *l, unsigned i)
{
        struct store_volume_stats volume;

        if (i < l->params.n_pools ||
            !store_get_volume_stats(l->params.store, i - l->params.n_pools, &volume))
                return 0;
        return MIN(volume.stats.chunks,
                   (uint64_t)LEARNED_MAX_CHUNKS / store_volumes(l->params.store));
}

static uint64_t remembered_of(const struct learned *l, unsigned i)
{
        struct evict_stats stats;

        evict_get_stats(source(l, i), &stats);
        return MIN(stats.ghosts, (uint64_t)LEARNED_MAX_REMEMBERED / n_sources(l));
}

static uint64_t count_touches(const struct learned *l)
{
        uint64_t sum = 0;

        for (unsigned i = 0; i < n_sources(l); i++) {
                const struct evict *e = source(l, i);

                sum += e ? evict_touches(e) : 0;
        }
        return sum;
}

/* --- saving, on the loop --- */

static void end(struct learned *l, int result)
{
        char text[512];

        if (result == 0) {
                l->stats.saves++;
                l->stats.saved_ms = l->file->saved_ms;
                l->stats.file_bytes = l->file->bytes;
                l->touches = l->touches_now;
                l->failed = false;
        } else if (result != -ECANCELED) {
                l->stats.save_errors++;
                if (!l->failed) {
                        snprintf(text, sizeof(text),
                                 "%s/" FILE_NAME
                                 ": cannot save eviction state: %s; the daemon retries",
                                 l->folder, strerror(-result));
                        l->params.warn(l->params.userdata, text);
                }
                l->failed = true;
        }
        free(l->file);
        l->file = NULL;
}

static void begin(struct learned *l, uint64_t now_ns)
{
        size_t room = sizeof(*l->file);

        l->began_ns = now_ns;
        l->touches_now = count_touches(l);
        for (unsigned i = 0; i < MIN(n_sources(l), (unsigned)LEARNED_MAX_SECTIONS); i++)
                if (source(l, i))
                        room += sizeof(*l->section) + (chunks_of(l, i) + remembered_of(l, i)) *
                                                              sizeof(struct evict_record);
        l->file = malloc(room);
        if (!l->file) {
                end(l, -ENOMEM);
                return;
        }
        *l->file = (struct learned_head){ .saved_ms = clock_unix_ms(), .secret = l->params.secret };
        l->room = room;
        l->used = sizeof(*l->file);
        l->source = 0;
        l->section = NULL;
}

/* Begins the section of the next source that is online, among the first LEARNED_MAX_SECTIONS.
 * Returns false if there is none, or if the file has no room for a section. */
static bool begin_section(struct learned *l)
{
        for (; l->source < MIN(n_sources(l), (unsigned)LEARNED_MAX_SECTIONS); l->source++) {
                const struct evict *e = source(l, l->source);
                bool is_pool = l->source < l->params.n_pools;

                if (!e || l->room - l->used < sizeof(*l->section))
                        continue;
                l->section = (void *)((char *)l->file + l->used);
                *l->section = (struct learned_section){
                        .tier = is_pool ? LEARNED_POOL : LEARNED_VOLUME,
                        .number = l->source - (is_pool ? 0 : l->params.n_pools),
                };
                snprintf(l->section->policy, sizeof(l->section->policy), "%s", evict_policy(e));
                evict_save(e, &l->section->learned);
                l->used += sizeof(*l->section);
                l->max_chunks = chunks_of(l, l->source);
                l->max_remembered = remembered_of(l, l->source);
                l->chunk = is_pool ? UINT32_MAX : 0;
                l->remembered = 0;
                l->file->n_sections++;
                return true;
        }
        return false;
}

/* Returns how many more records the section may have. */
static uint32_t room_for(const struct learned *l, uint64_t n, uint64_t max)
{
        uint64_t room = (l->room - l->used) / sizeof(struct evict_record);

        return (uint32_t)MIN(max - MIN(n, max), room);
}

/* Adds records to the section. Returns false if it is complete, or its volume went offline. */
static bool step_section(struct learned *l)
{
        struct learned_section *s = l->section;
        const struct evict *e = source(l, l->source);
        struct evict_record *to = (void *)((char *)l->file + l->used);
        uint32_t n, room;

        if (!e) /* the volume went offline: its records so far are still useful */
                return false;
        room = room_for(l, s->n_chunks, l->max_chunks);
        if (l->chunk != UINT32_MAX && room > 0) {
                n = store_save_order(l->params.store, s->number, &l->chunk, STEP, to, room);
                s->n_chunks += n;
        } else {
                l->chunk = UINT32_MAX;
                room = room_for(l, s->n_remembered, l->max_remembered);
                if (l->remembered == UINT32_MAX || room == 0)
                        return false;
                n = evict_save_remembered(e, &l->remembered, STEP, to, room);
                s->n_remembered += n;
        }
        l->used += n * sizeof(struct evict_record);
        return true;
}

static int run_call(struct kio_request *call);

static void on_written(struct kio_request *call)
{
        struct learned *l = container_of(call, struct learned, call);

        l->writing = false;
        end(l, (int)call->result);
        if (l->stopping)
                learned_stop(l);
}

static void hand_over(struct learned *l)
{
        l->call = (struct kio_request){
                .op = KIO_CALL,
                .class = KIO_CLASS_BACKGROUND,
                .volume = LEARNED_THREAD,
                .call = run_call,
                .complete = on_written,
        };
        l->writing = true;
        kio_submit(l->params.io, &l->call, 0);
}

bool learned_iterate(struct learned *l)
{
        if (!l->file || l->writing)
                return false;
        if (l->section && source(l, l->source) &&
            strcmp(l->section->policy, evict_policy(source(l, l->source))) != 0) {
                end(l, -ECANCELED);
                return false;
        }
        if (l->section && step_section(l))
                return true;
        l->source += l->section != NULL;
        l->section = NULL;
        if (begin_section(l))
                return true;
        hand_over(l);
        return false;
}

/* Returns whether the file may be written: the first volume, whose directory has the file, must be
 * online. A suspended volume may not be mounted, and a hung device would block the write. */
static bool has_folder(const struct learned *l)
{
        return store_eviction(l->params.store, 0) != NULL;
}

void learned_tick(struct learned *l, uint64_t now_ns, uint64_t interval_ms)
{
        if (l->file || now_ns - MIN(l->began_ns, now_ns) < interval_ms * 1000000 ||
            !has_folder(l) || count_touches(l) == l->touches)
                return;
        begin(l, now_ns);
}

void learned_stop(struct learned *l)
{
        bool first = !l->stopping;

        l->stopping = true;
        if (l->writing)
                return; /* on_written() calls this function again */
        if (!l->file && (first || !l->failed) && has_folder(l) && count_touches(l) != l->touches)
                begin(l, clock_mono_ns());
        while (l->file && learned_iterate(l))
                ;
}

/* --- writing, on the thread --- */

static int by_time(const void *a, const void *b)
{
        const struct evict_record *x = a, *y = b;

        if (x->time != y->time)
                return x->time < y->time ? -1 : 1;
        return x->touched < y->touched ? -1 : x->touched > y->touched;
}

static int run_call(struct kio_request *call)
{
        struct learned *l = container_of(call, struct learned, call);
        _cleanup_(closep) int folder = open(l->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        size_t at = sizeof(*l->file);

        if (folder < 0)
                return -errno;
        for (uint32_t i = 0; i < l->file->n_sections; i++) {
                struct learned_section *s = (void *)((char *)l->file + at);

                qsort(s->records, s->n_chunks, sizeof(s->records[0]), by_time);
                at += learned_section_bytes(s);
        }
        learned_seal(l->file, l->used);
        /* The hashes and their secret are private to the daemon. */
        return small_file_replace(folder, FILE_NAME, NEW_NAME, 0600, l->file, l->used);
}

/* --- creation and end --- */

int learned_new(struct learned **ret, const struct learned_params *params,
                const struct learned_head *file, uint64_t now_ns)
{
        struct learned *l = calloc(1, sizeof(*l));
        struct pool **pools = calloc(MAX(params->n_pools, 1U), sizeof(pools[0]));
        char *folder = strdup(params->folder);

        if (!l || !pools || !folder) {
                free(l);
                free(pools);
                free(folder);
                return -ENOMEM;
        }
        memcpy(pools, params->pools, params->n_pools * sizeof(pools[0]));
        *l = (struct learned){
                .params = *params, .pools = pools, .folder = folder, .began_ns = now_ns
        };
        if (file) {
                for (const struct learned_section *s = NULL; (s = learned_next(file, s));)
                        restore_section(l, file, s);
                l->stats.saved_ms = file->saved_ms;
                l->stats.restored_remembered = count_remembered(l);
        }
        l->touches = count_touches(l);
        *ret = l;
        return 0;
}

struct learned *learned_free(struct learned *l)
{
        if (l) {
                free(l->file);
                free(l->folder);
                free(l->pools);
                free(l);
        }
        return NULL;
}

void learned_get_stats(const struct learned *l, struct learned_stats *ret)
{
        *ret = l->stats;
}

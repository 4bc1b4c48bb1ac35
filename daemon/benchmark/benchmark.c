/* SPDX-License-Identifier: Apache-2.0 */
/* Implements benchmark.h. While a session is active and enabled, the I/O recorder adds completed
 * transfers to `window`, at the cost of one branch otherwise. This file moves the window into the
 * session, once a second and at every command. The recorder and this file run on the loop thread,
 * so that a reset is exact: it excludes all transfers completed earlier, and no later ones. Clients
 * count their own transfers in pages (client-pages.c), which are read at the same times.
 *
 * Owns the sessions. Failures: if the session cannot have another metric, for lack of memory or
 * because of MAX_METRICS, transfers of that path, layout and technology are missing from it. */
#include "benchmark/benchmark.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "benchmark/internal.h"
#include "build-config.h"
#include "checked.h"
#include "cleanup.h"

enum { PATH_BYTES = 4096, MAX_METRICS = 512 };

static const uint64_t save_every_ns = UINT64_C(5000000000), ask_every_ns = UINT64_C(100000000);

static struct bench_session *session_free(struct bench_session *s)
{
        if (s) {
                free(s->snapshot.layouts);
                free(s->snapshot.metrics);
                free(s);
        }
        return NULL;
}

/* Stores the name of this host, which may differ from that in an earlier file, because the daemon
 * counts here. */
static void name_host(struct snapshot *s)
{
        snapshot_name_host(s, KVCACHE_BUILD_VERSION);
}

/* --- sessions by name --- */

static unsigned place_of(const struct bench *b, const char *name)
{
        unsigned i = 0;

        while (i < b->n_sessions && strcmp(b->sessions[i]->snapshot.name, name) < 0)
                i++;
        return i;
}

static struct bench_session *find(const struct bench *b, const char *name)
{
        unsigned i = place_of(b, name);

        return i < b->n_sessions && strcmp(b->sessions[i]->snapshot.name, name) == 0
                       ? b->sessions[i]
                       : NULL;
}

/* Inserts a session. There must be room, and no session of this name. */
static void insert(struct bench *b, struct bench_session *s)
{
        unsigned i = place_of(b, s->snapshot.name);

        memmove(&b->sessions[i + 1], &b->sessions[i], (b->n_sessions - i) * sizeof(b->sessions[0]));
        b->sessions[i] = s;
        b->n_sessions++;
}

static void take_out(struct bench *b, struct bench_session *s)
{
        unsigned i = place_of(b, s->snapshot.name);

        b->n_sessions--;
        memmove(&b->sessions[i], &b->sessions[i + 1], (b->n_sessions - i) * sizeof(b->sessions[0]));
}

/* --- counting --- */

/* Finds or creates the metric of a path, layout and technology. Returns NULL if the session has
 * MAX_METRICS already, or memory is short. */
static struct snapshot_metric *metric_of(struct snapshot *s, unsigned path, unsigned layout,
                                         unsigned technology)
{
        struct snapshot_metric key = { .path = path, .layout = layout, .technology = technology },
                               *metrics;
        int order = 1;
        size_t i = 0;

        while (i < s->n_metrics && (order = snapshot_metric_compare(&s->metrics[i], &key)) < 0)
                i++;
        if (i < s->n_metrics && order == 0)
                return &s->metrics[i];
        if (s->n_metrics >= MAX_METRICS)
                return NULL;
        metrics = realloc(s->metrics, (s->n_metrics + 1) * sizeof(*metrics));
        if (!metrics)
                return NULL;
        s->metrics = metrics;
        memmove(&metrics[i + 1], &metrics[i], (s->n_metrics - i) * sizeof(*metrics));
        metrics[i] = key;
        transfer_counts_init(&metrics[i].counts);
        s->n_metrics++;
        return &metrics[i];
}

static bool is_empty(const struct transfer_counts *c)
{
        uint64_t any = c->transfers | c->blocks;

        for (unsigned i = 0; i < TRANSFER_RESULTS; i++)
                any |= c->errors[i];
        return any == 0;
}

/* Marks a session as changed. Times are unique and ascending, so that after a kill the younger of
 * two active sessions can be determined. */
static void changed(struct bench *b, struct bench_session *s)
{
        b->updated_ms = MAX(clock_unix_ms(), b->updated_ms + 1);
        snapshot_name_time(b->updated_ms, s->snapshot.updated);
        s->dirty = true;
}

/* Empties the window, so that it contains only later transfers. */
static void empty_window(struct bench *b)
{
        const struct transfers *t = kio_transfers(b->params.io);

        for (unsigned i = 0; i < TRANSFERS_SERIES; i++) {
                transfer_counts_init(&b->window[i]);
                b->busy_ns[i] = t->series[i].busy_ns;
        }
        b->counted_ns = clock_mono_ns();
}

static void add(struct bench *b, unsigned path, unsigned layout, unsigned technology,
                const struct transfer_counts *new, uint64_t busy_ns)
{
        struct snapshot_metric *m;

        if (is_empty(new) && busy_ns == 0)
                return;
        b->changed_ns = clock_mono_ns();
        changed(b, b->active);
        m = metric_of(&b->active->snapshot, path, layout, technology);
        if (!m)
                return;
        transfer_counts_merge(&m->counts, new);
        m->latency_secs += (double)new->latency_ns / 1e9;
        m->busy_secs += (double)busy_ns / 1e9;
}

static void add_series(struct bench *b, unsigned i)
{
        const struct transfer_series *s = &kio_transfers(b->params.io)->series[i];

        add(b, s->path, s->layout, s->technology, &b->window[i], s->busy_ns - b->busy_ns[i]);
}

static bool is_counting(const struct bench *b)
{
        return b->active && b->active->snapshot.enabled;
}

void bench_add(struct bench *b, unsigned path, unsigned layout, unsigned technology,
               const struct transfer_counts *counts, uint64_t busy_ns)
{
        bench_clients_add(b, path, layout, technology, counts, busy_ns);
        if (is_counting(b))
                add(b, path, layout, technology, counts, busy_ns);
}

/* Limits busy times to the enabled time, since those of concurrent clients add up. */
static void bound_busy(struct snapshot *s)
{
        for (size_t i = 0; i < s->n_metrics; i++)
                s->metrics[i].busy_secs = MIN(s->metrics[i].busy_secs, s->enabled_secs);
}

/* Reads at most `pages` client pages. If the active session is enabled, adds all transfers since
 * the last call to it. */
static void count(struct bench *b, unsigned pages)
{
        uint64_t since = b->counted_ns;

        bench_pages_read(b, clock_mono_ns(), pages);
        if (!is_counting(b))
                return;
        for (unsigned i = 0; i < TRANSFERS_SERIES; i++)
                add_series(b, i);
        empty_window(b);
        b->active->snapshot.enabled_secs += (double)(b->counted_ns - since) / 1e9;
        bound_busy(&b->active->snapshot);
}

/* Applies a change of the active session or of its state to the recorder. count() must have run
 * before. */
static void apply(struct bench *b)
{
        empty_window(b);
        bench_pages_new_epoch(b);
        kio_record_transfers(b->params.io, is_counting(b) ? b->window : NULL);
}

/* --- saving --- */

static void save(struct bench *b, struct bench_session *s)
{
        _cleanup_(freep) char *text = NULL;
        size_t bytes = 0;
        FILE *out;
        int r;

        if (!b->files || !s->dirty || s->saving)
                return;
        out = open_memstream(&text, &bytes);
        r = out ? bench_print(b, s, NULL, out) : -ENOMEM;
        if (out && fclose(out) != 0)
                r = -ENOMEM;
        s->saved_ns = clock_mono_ns();
        if (r < 0 || bench_files_write(b->files, s->snapshot.name, TAKE_PTR(text), bytes) < 0)
                return;
        s->dirty = false;
        s->saving = true;
}

void bench_saved(struct bench *b, const char *name, int result)
{
        struct bench_session *s = find(b, name);
        char text[256];

        if (s)
                s->saving = false;
        if (result == 0) {
                b->saved++;
                b->save_failed = false;
                if (s)
                        save(b, s); /* saves again if a command has changed the session during the
                                     * write, because the daemon may stop */
                return;
        }
        b->save_errors++;
        if (s)
                s->dirty = true;
        if (b->save_failed)
                return;
        b->save_failed = true;
        snprintf(text, sizeof(text),
                 "benchmark session %s cannot be saved: %s; the daemon keeps it in memory and "
                 "retries",
                 name, strerror(-result));
        b->params.warn(b->params.userdata, text);
}

void bench_deleted(struct bench *b, const char *name, int result)
{
        char text[256];

        if (result == 0) {
                b->saved++;
                return;
        }
        b->save_errors++;
        snprintf(text, sizeof(text),
                 "cannot delete the file of benchmark session %s: %s; the session returns after a "
                 "restart unless the file is deleted",
                 name, strerror(-result));
        b->params.warn(b->params.userdata, text);
}

/* --- commands --- */

static int session_new(struct bench *b, const char *name, struct bench_session **ret)
{
        struct bench_session *s;

        if (b->n_sessions == BENCH_MAX_SESSIONS)
                return -ENOSPC;
        s = calloc(1, sizeof(*s));
        if (!s)
                return -ENOMEM;
        snprintf(s->snapshot.name, sizeof(s->snapshot.name), "%s", name);
        insert(b, s);
        *ret = s;
        return 0;
}

static void make_zero(struct bench *b, struct bench_session *s)
{
        s->snapshot.n_metrics = 0;
        s->snapshot.enabled_secs = 0;
        changed(b, s);
}

/* Finds the session of a command other than INIT and LIST; "" names the active one. Returns 0,
 * -ENOENT if no session has the name, or -ESRCH if no session is active. */
static int session_of(const struct bench *b, const char *name, struct bench_session **ret)
{
        *ret = *name ? find(b, name) : b->active;
        if (*ret)
                return 0;
        return *name ? -ENOENT : -ESRCH;
}

static int init(struct bench *b, const char *name, unsigned flags, struct bench_session **ret)
{
        struct bench_session *s = find(b, name);
        int r;

        if (s && !(flags & (BENCH_RESUME | BENCH_FORCE)))
                return -EEXIST;
        if (!s) {
                r = session_new(b, name, &s);
                if (r < 0)
                        return r;
                snapshot_name_time(clock_unix_ms(), s->snapshot.created);
        } else if (!(flags & BENCH_RESUME)) {
                make_zero(b, s);
                snapshot_name_time(clock_unix_ms(), s->snapshot.created);
        }
        if (b->active)
                b->active->dirty = true; /* rewrites the file of the previous session, which still
                                          * says that the session is active */
        name_host(&s->snapshot);
        s->snapshot.enabled = true;
        b->active = s;
        b->changed_ns = clock_mono_ns();
        changed(b, s);
        *ret = s;
        return 0;
}

static void drop(struct bench *b, struct bench_session *s)
{
        int r;

        if (b->active == s)
                b->active = NULL;
        take_out(b, s);
        r = b->files ? bench_files_delete(b->files, s->snapshot.name) : 0;
        if (r < 0)
                bench_deleted(b, s->snapshot.name, r);
        session_free(s);
}

static void run(struct bench *b, enum bench_command command, struct bench_session *s)
{
        if (command == BENCH_RESET) {
                make_zero(b, s);
        } else if (command == BENCH_ENABLE || command == BENCH_DISABLE) {
                s->snapshot.enabled = command == BENCH_ENABLE;
                changed(b, s);
        }
}

static int print(struct bench *b, struct bench_session *s, FILE *out)
{
        char path[PATH_BYTES];

        if (b->files)
                bench_files_path(b->files, s->snapshot.name, sizeof(path), path);
        return bench_print(b, s, b->files ? path : NULL, out);
}

/* Returns the number of pages to read for a caller without rights, which may ask at any rate: 0 if
 * pages were read for such a caller less than ask_every_ns ago. */
static unsigned pages_for_anyone(struct bench *b)
{
        uint64_t now_ns = clock_mono_ns();

        if (now_ns - b->asked_ns < ask_every_ns)
                return 0;
        b->asked_ns = now_ns;
        return BENCH_PAGES_AT_ONCE;
}

int bench_command(struct bench *b, enum bench_command command, const char *name, unsigned flags,
                  FILE *out)
{
        struct bench_session *s = NULL;
        int r;

        if ((*name || command == BENCH_INIT) && !snapshot_name_valid(name))
                return -EINVAL;
        count(b, flags & BENCH_UNSAVED ? pages_for_anyone(b) : UINT_MAX);
        if (command == BENCH_LIST)
                return bench_print_list(b, out);
        r = command == BENCH_INIT ? init(b, name, flags, &s) : session_of(b, name, &s);
        if (r < 0)
                return r;
        run(b, command, s);
        r = print(b, s, out);
        if (command == BENCH_DELETE)
                drop(b, s);
        apply(b);
        for (unsigned i = 0; i < b->n_sessions && !(flags & BENCH_UNSAVED); i++)
                save(b, b->sessions[i]);
        return r;
}

int bench_resume(struct bench *b, const char *name)
{
        struct bench_session *s;
        int r;

        if (!snapshot_name_valid(name))
                return -EINVAL;
        r = init(b, name, BENCH_RESUME, &s);
        if (r < 0)
                return r;
        apply(b);
        save(b, s);
        return 0;
}

/* --- creation and end --- */

void bench_adopt(struct bench *b, struct snapshot *snapshot)
{
        struct bench_session *s;
        bool was_active = snapshot->active;

        if (find(b, snapshot->name) || session_new(b, snapshot->name, &s) < 0) {
                snapshot_free(snapshot);
                return;
        }
        s->snapshot = *snapshot;
        free(snapshot);
        /* If the daemon was killed between two writes, two files may be active; the younger one
         * wins. */
        if (was_active &&
            (!b->active || strcmp(b->active->snapshot.updated, s->snapshot.updated) < 0))
                b->active = s;
}

int bench_new(struct bench **ret, const struct bench_params *params)
{
        struct bench *b = calloc(1, sizeof(*b));
        int r = 0;

        if (!b)
                return -ENOMEM;
        b->params = *params;
        list_init(&b->pages);
        if (params->folder)
                r = bench_files_new(&b->files, b, params->folder);
        if (r < 0) {
                free(b);
                return r;
        }
        if (b->files)
                bench_files_read(b->files);
        b->params.folder = NULL; /* belongs to the caller */
        if (b->active)
                name_host(&b->active->snapshot);
        b->changed_ns = clock_mono_ns();
        apply(b);
        *ret = b;
        return 0;
}

struct bench *bench_free(struct bench *b)
{
        if (b) {
                for (unsigned i = 0; i < b->n_sessions; i++)
                        session_free(b->sessions[i]);
                bench_files_free(b->files);
                free(b);
        }
        return NULL;
}

void bench_tick(struct bench *b, uint64_t now_ns)
{
        count(b, BENCH_PAGES_AT_ONCE);
        for (unsigned i = 0; i < b->n_sessions; i++)
                if (now_ns - MIN(b->sessions[i]->saved_ns, now_ns) >= save_every_ns)
                        save(b, b->sessions[i]);
}

void bench_stop(struct bench *b)
{
        count(b, UINT_MAX);
        kio_record_transfers(b->params.io, NULL);
        for (unsigned i = 0; i < b->n_sessions; i++)
                save(b, b->sessions[i]);
}

void bench_get_stats(const struct bench *b, struct bench_stats *ret)
{
        *ret = (struct bench_stats){
                .sessions = b->n_sessions,
                .active = b->active,
                .enabled = is_counting(b),
                .saved = b->saved,
                .save_errors = b->save_errors,
                .impossible = b->impossible,
        };
        if (b->active)
                snprintf(ret->name, sizeof(ret->name), "%.64s", b->active->snapshot.name);
}

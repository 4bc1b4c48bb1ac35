/* SPDX-License-Identifier: Apache-2.0 */
/* Benchmark sessions (kvcache-bench session): named counts of chunk transfers between commands. At
 * most one session is active; while it is also enabled, completed transfers are added to it. Each
 * session is saved in a file, so that an active one continues when the daemon restarts.
 *
 * Loop thread; a blocking-call thread writes the files. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "io/io.h"

enum {
        BENCH_MAX_SESSIONS = 64,
        /* The number of the blocking-call thread. Such a thread has a number like a volume of the
         * store, but one that no volume has. */
        BENCH_THREAD = KIO_VOLUMES_MAX - 6,
        /* Most combinations of path, layout and technology counted for clients; the last one
         * collects all further combinations. */
        BENCH_CLIENT_SERIES = 17,
};

struct bench;

struct bench_params {
        struct kio *io;
        const char
                *folder; /* directory of the files, created by the first write; NULL: do not save */
        /* Reports a session that cannot be saved, or an invalid file, by one line of text. */
        void (*warn)(void *userdata, const char *text);
        void *userdata;
};

struct bench_stats {
        unsigned sessions;
        bool active, enabled;
        uint64_t saved, save_errors; /* files of sessions written or deleted so far, and failures to
                                      * do so */
        uint64_t impossible;         /* readings of a client's page of which at least one slot was
                                      * discarded, because its counts were impossible */
        char name[65];               /* name of the active session; "": none */
};

/* Creates the module and reads the saved sessions. Returns 0 or -ENOMEM. */
int bench_new(struct bench **ret, const struct bench_params *params);
/* Frees the module. No call may be in flight (kio_pending()). */
struct bench *bench_free(struct bench *b);

enum bench_command {
        BENCH_INIT = 1,
        BENCH_STATUS,
        BENCH_RESET,
        BENCH_ENABLE,
        BENCH_DISABLE,
        BENCH_LIST,
        BENCH_DELETE,
        BENCH_COMMAND_END,
};
enum {
        BENCH_RESUME = 1 << 0, /* with INIT: continue an existing session of this name */
        /* with INIT: empty an existing session of this name, and begin it again */
        BENCH_FORCE = 1 << 1,
        /* Set for a caller that is not an admin. The command saves nothing, which is left to
         * bench_tick(), and reads only some client pages, so transfers counted by clients may be a
         * second old, or more if there are hundreds of clients. */
        BENCH_UNSAVED = 1 << 2,
};

/* Executes a command. `name`: "" means the active session, except for INIT, which needs a name.
 * `out` gets the session as JSON, for DELETE as it was before, for LIST an array. Returns 0;
 * -EINVAL for an invalid name; -EEXIST if INIT names an existing session without a flag that
 * permits it; -ENOENT if the session does not exist; -ESRCH if none is active; -ENOSPC if there are
 * BENCH_MAX_SESSIONS; or -ENOMEM, although the command may have taken effect. */
int bench_command(struct bench *b, enum bench_command command, const char *name, unsigned flags,
                  FILE *out);

/* Executes INIT with BENCH_RESUME, before clients are served, without printing the session. Returns
 * 0, -EINVAL, -ENOSPC or -ENOMEM as bench_command() does. */
int bench_resume(struct bench *b, const char *name);

/* Adds new transfers to the active session if it is enabled, and begins to save sessions that have
 * changed and whose last save began at least 5 s ago. Call it about once a second. */
void bench_tick(struct bench *b, uint64_t now_ns);
/* Adds the last transfers to the active session, and saves changed sessions, before the daemon
 * stops; kio_pending() counts the writes. */
void bench_stop(struct bench *b);
void bench_get_stats(const struct bench *b, struct bench_stats *ret);

/* --- transfers counted by clients --- */

struct bench_page;

size_t bench_page_bytes(void); /* memory of a page and of its copy, which the caller charges */
/* Creates a page of zeros for a client connected since `since_ns`. The caller passes *ret_fd to the
 * client and closes it. Returns 0 or -errno. */
int bench_page_open(struct bench *b, uint64_t since_ns, struct bench_page **ret, int *ret_fd);
/* Reads a page, which may be NULL, for the last time, and frees it. Returns NULL. */
struct bench_page *bench_page_close(struct bench *b, struct bench_page *p, uint64_t now_ns);
/* Reads the pages of a bounded number of clients, and returns the sums over all clients, `*ret_n`
 * series. The array belongs to `b`. */
const struct transfer_series *bench_clients(struct bench *b, unsigned *ret_n);

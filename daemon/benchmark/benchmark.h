/* SPDX-License-Identifier: Apache-2.0 */
/* Benchmark sessions (kvcache-bench session): named counts of the transfers of chunks, from one
 * command to another. At most one is active; while it is enabled as well, what completes is added
 * to it. Each is kept in a file, so that an active session goes on when the daemon starts again.
 *
 * Loop thread; the files are written by a blocking-call thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "io/io.h"

enum {
        BENCH_MAX_SESSIONS = 64,
        BENCH_THREAD = KIO_VOLUMES_MAX - 6,
        /* Paths, layouts and technologies of what clients move; the last of them is that of all for
           which there is no other. */
        BENCH_CLIENT_SERIES = 17,
};

struct bench;

struct bench_params {
        struct kio *io;
        const char *folder; /* of the files; made when the first is written. NULL: there are none */
        /* A session that cannot be kept, or a file that is none; a line of text. */
        void (*warn)(void *userdata, const char *text);
        void *userdata;
};

struct bench_stats {
        unsigned sessions;
        bool active, enabled;
        uint64_t saved, save_errors;
        uint64_t impossible; /* readings of clients' counters of which something was left out */
        char name[65];       /* of the active one; "": there is none */
};

/* Reads the sessions that the folder has. 0, -ENOMEM. */
int bench_new(struct bench **ret, const struct bench_params *params);
/* None of its calls may be under way (kio_pending()). */
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
        BENCH_RESUME = 1 << 0, /* of INIT, for a name that exists */
        BENCH_FORCE = 1 << 1,
        /* The caller may only ask: no file is written for this command, bench_tick() writes them;
           and what clients have moved by themselves may be a second old, and more where they are
           hundreds. */
        BENCH_UNSAVED = 1 << 2,
};

/* `name`: "": the active one. `out` gets the session as JSON, of DELETE as it was; of LIST an
 * array. 0; -EINVAL: not a name; -EEXIST; -ENOENT: there is no such session; -ESRCH: none is
 * active; -ENOSPC: there are BENCH_MAX_SESSIONS; -ENOMEM. */
int bench_command(struct bench *b, enum bench_command command, const char *name, unsigned flags,
                  FILE *out);

/* INIT with RESUME, before anything is served. */
int bench_resume(struct bench *b, const char *name);

/* About once a second: the active session's file is written when it has changed and is 5 s old. */
void bench_tick(struct bench *b, uint64_t now_ns);
/* The daemon stops: what has changed is written, which kio_pending() counts. */
void bench_stop(struct bench *b);
void bench_get_stats(const struct bench *b, struct bench_stats *ret);

/* --- what clients move by themselves --- */

struct bench_page;

/* A page of zeros for a client that is connected since `since_ns`. *ret_fd: to be handed to the
 * client and then closed. 0, -errno. */
int bench_page_open(struct bench *b, uint64_t since_ns, struct bench_page **ret, int *ret_fd);
/* Reads it for the last time. Returns NULL. */
struct bench_page *bench_page_close(struct bench *b, struct bench_page *p, uint64_t now_ns);
/* The sum of all clients, read now: `*ret_n` series. */
const struct transfer_series *bench_clients(struct bench *b, unsigned *ret_n);

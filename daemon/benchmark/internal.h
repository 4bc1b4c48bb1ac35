/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this room share. */
#pragma once

#include "base/list.h"
#include "benchmark/benchmark.h"
#include "snapshot.h"

struct bench_session {
        struct snapshot snapshot; /* but `active` and `idle`, which are made when it is printed */
        bool dirty;               /* changed since it was saved last */
        bool saving;
        uint64_t saved_ns;
};

struct bench {
        struct bench_params params;
        struct bench_files *files;                          /* NULL: there is no folder */
        struct bench_session *sessions[BENCH_MAX_SESSIONS]; /* by name */
        unsigned n_sessions;
        struct bench_session *active;
        /* Of the active one, since it was looked at last; and the recorder's, then. */
        struct transfer_counts window[TRANSFERS_SERIES];
        uint64_t busy_ns[TRANSFERS_SERIES];
        uint64_t counted_ns; /* when */
        uint64_t changed_ns; /* when something was last found to have moved */
        uint64_t updated_ms; /* the last `updated` that was given out: each is later than that */
        uint64_t saved, save_errors;
        bool save_failed;       /* the last save did: said once */
        struct list_node pages; /* struct bench_page: the clients' */
        uint64_t asked_ns;      /* when they were last read for who may only ask */
        uint32_t epoch;         /* of the smallest and largest sizes in them */
        uint64_t impossible;    /* readings of which something was left out */
        struct transfer_series clients[BENCH_CLIENT_SERIES]; /* of all clients, ever */
        unsigned n_clients;
};

/* --- client-pages.c --- */

enum { BENCH_PAGES_AT_ONCE = 128 };

/* What has come since: bench_add(). Of at most so many clients that have something new. */
void bench_pages_read(struct bench *b, uint64_t now_ns, unsigned most);
/* Smallest and largest sizes begin anew. */
void bench_pages_new_epoch(struct bench *b);

/* --- clients.c --- */

void bench_clients_add(struct bench *b, unsigned path, unsigned layout, unsigned technology,
                       const struct transfer_counts *c, uint64_t busy_ns);

/* --- json.c --- */

/* One line; `file`: the session's, NULL: it has none, or none is to be named. 0, -ENOMEM. */
int bench_print(const struct bench *b, const struct bench_session *s, const char *file, FILE *out);
int bench_print_list(const struct bench *b, FILE *out);

/* --- files.c --- */

struct bench_files;

/* `folder` need not exist. 0, -ENOMEM. */
int bench_files_new(struct bench_files **ret, struct bench *b, const char *folder);
struct bench_files *bench_files_free(struct bench_files *f);
/* Reads those that are there, each into a session of its own: bench_adopt(). */
void bench_files_read(struct bench_files *f);
/* Writes it, sometime; then bench_saved(). Takes the text. 0, -ENOMEM. */
int bench_files_write(struct bench_files *f, const char *name, char *text, size_t bytes);
/* Deletes it, sometime after what was to be written; then bench_deleted(). 0, -ENOMEM. */
int bench_files_delete(struct bench_files *f, const char *name);
/* The path of a session's file. */
void bench_files_path(const struct bench_files *f, const char *name, size_t bytes, char *ret);

/* --- benchmark.c --- */

/* A session that was read. Takes it. */
void bench_adopt(struct bench *b, struct snapshot *snapshot);
void bench_saved(struct bench *b, const char *name, int result);
void bench_deleted(struct bench *b, const char *name, int result);
/* What a client has moved by itself: into the sum of all clients, and the active session. */
void bench_add(struct bench *b, unsigned path, unsigned layout, unsigned technology,
               const struct transfer_counts *counts, uint64_t busy_ns);

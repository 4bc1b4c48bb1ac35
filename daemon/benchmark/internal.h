/* SPDX-License-Identifier: Apache-2.0 */
/* Interfaces between the files of this room. Loop thread. */
#pragma once

#include "base/list.h"
#include "benchmark/benchmark.h"
#include "snapshot.h"

struct bench_session {
        struct snapshot snapshot; /* the session's counts; bench_print() sets `active` and `idle` in
                                   * the copy that it prints */
        bool dirty;               /* the session has changed since the last save */
        bool saving;
        uint64_t saved_ns;
};

struct bench {
        struct bench_params params;
        struct bench_files *files;                          /* NULL: sessions are not saved */
        struct bench_session *sessions[BENCH_MAX_SESSIONS]; /* sorted by name */
        unsigned n_sessions;
        struct bench_session *active;
        /* Transfers since `counted_ns`, while the active session is enabled, and the recorder's
         * busy times at `counted_ns`. */
        struct transfer_counts window[TRANSFERS_SERIES];
        uint64_t busy_ns[TRANSFERS_SERIES];
        uint64_t counted_ns; /* time at which the window was last emptied: by an update of the
                              * active session, or by a command */
        uint64_t changed_ns; /* time at which a transfer was last added to the active session; INIT
                              * and startup count as one */
        uint64_t updated_ms; /* last value of a session's change time; each is later than the one
                              * before */
        uint64_t saved, save_errors;
        bool save_failed;       /* the last save failed, and was reported */
        struct list_node pages; /* struct bench_page of the clients */
        uint64_t asked_ns;      /* time at which the pages were last read for a caller without
                                 * rights */
        uint32_t epoch;         /* number in the pages by which clients know when to restart their
                                 * smallest and largest sizes */
        uint64_t impossible;    /* see bench_stats */
        struct transfer_series clients[BENCH_CLIENT_SERIES]; /* sums of all clients since startup */
        unsigned n_clients;
};

/* --- client-pages.c --- */

enum { BENCH_PAGES_AT_ONCE = 128 };

/* Reads the pages of at most `most` clients with new counts, and passes them to bench_add(). */
void bench_pages_read(struct bench *b, uint64_t now_ns, unsigned most);
/* Makes clients restart their smallest and largest sizes, because another session begins. */
void bench_pages_new_epoch(struct bench *b);

/* --- clients.c --- */

/* Adds transfers to the sum of all clients. */
void bench_clients_add(struct bench *b, unsigned path, unsigned layout, unsigned technology,
                       const struct transfer_counts *c, uint64_t busy_ns);

/* --- json.c --- */

/* Print one session, or the list of all, as one line of JSON. `file`: the path of the session's
 * file, added to the output; NULL: omit it. Return 0 or -ENOMEM. */
int bench_print(const struct bench *b, const struct bench_session *s, const char *file, FILE *out);
int bench_print_list(const struct bench *b, FILE *out);

/* --- files.c --- */

struct bench_files;

/* Prepares the files in `folder`, which need not exist. Returns 0 or -ENOMEM. */
int bench_files_new(struct bench_files **ret, struct bench *b, const char *folder);
struct bench_files *bench_files_free(struct bench_files *f);
/* Reads all files, and passes each session to bench_adopt(). */
void bench_files_read(struct bench_files *f);
/* Writes a session in the background and then calls bench_saved(). Takes the text, also if it
 * fails. Returns 0 or -ENOMEM; bench_saved() is not called then. */
int bench_files_write(struct bench_files *f, const char *name, char *text, size_t bytes);
/* Deletes a session's file in the background, after pending writes, and then calls bench_deleted().
 * Returns 0 or -ENOMEM; bench_deleted() is not called then. */
int bench_files_delete(struct bench_files *f, const char *name);
/* Formats the path of the session's file into `ret`, which has room for `bytes`; does not access
 * the file. */
void bench_files_path(const struct bench_files *f, const char *name, size_t bytes, char *ret);

/* --- benchmark.c --- */

/* Adds a session that was read from a file. Takes the snapshot, and drops it if there is a session
 * of its name, no room for another one, or no memory. */
void bench_adopt(struct bench *b, struct snapshot *snapshot);
/* Report the end of bench_files_write() and bench_files_delete(): 0 or -errno. */
void bench_saved(struct bench *b, const char *name, int result);
void bench_deleted(struct bench *b, const char *name, int result);
/* Adds transfers of a client to the sum of all clients and to the active session. */
void bench_add(struct bench *b, unsigned path, unsigned layout, unsigned technology,
               const struct transfer_counts *counts, uint64_t busy_ns);

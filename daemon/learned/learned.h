/* SPDX-License-Identifier: Apache-2.0 */
/* Eviction state across restarts: how often and how soon chunks of each class are reused, which
 * were evicted, and the order of use of the chunks on disk. It is saved to a file in the first
 * volume's directory, periodically and at shutdown, unless that volume is offline, and is applied
 * to the chunks that recovery finds.
 *
 * Only the quality of eviction depends on it: without the file, or with a damaged one, the daemon
 * starts without learned state. Loop thread; a blocking-call thread writes. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "key.h"

enum { LEARNED_ERROR_BYTES = 256 };

struct kio;
struct learned;
struct learned_head;
struct pool;
struct store;

/* Reads the file of the directory. Returns 0 and *ret, which the caller frees; -ENOENT if there is
 * none; or -EBADMSG or -errno and a text. */
int learned_read(const char *folder, struct learned_head **ret,
                 char ret_error[static LEARNED_ERROR_BYTES]);
/* Returns the secret with which the store must hash keys, so that the ids in the file match its
 * chunks. */
void learned_secret(const struct learned_head *file, struct key_secret *ret);

struct learned_params {
        struct kio *io;
        struct store *store;
        struct pool *const *pools; /* copied */
        unsigned n_pools;
        const char *folder;
        struct key_secret secret;
        /* Reports a file that cannot be written, as one line of text; once, until a write
         * succeeds. */
        void (*warn)(void *userdata, const char *text);
        void *userdata;
};

struct learned_stats {
        uint64_t saves, save_errors;
        uint64_t saved_ms;   /* Unix time in ms at which the last successful save began, including
                              * an earlier daemon's; 0: none */
        uint64_t file_bytes; /* size of the file; 0 if this daemon has not written it */
        uint64_t restored_chunks, restored_remembered;
};

/* Creates the module and restores `file`, which may be NULL, before clients are served. Returns 0
 * or -ENOMEM. */
int learned_new(struct learned **ret, const struct learned_params *params,
                const struct learned_head *file, uint64_t now_ns);
/* Frees the module. No call may be in flight (kio_pending()). */
struct learned *learned_free(struct learned *l);

/* Begins a save if none is in progress, the last one began at least interval_ms ago, chunks have
 * been used since the last successful one, and the first volume is online. Call it once a
 * second. */
void learned_tick(struct learned *l, uint64_t now_ns, uint64_t interval_ms);
/* Runs the next step of a save, which takes a tenth of a millisecond. Call it once per iteration.
 * Returns whether there is more to do. */
bool learned_iterate(struct learned *l);
/* Saves for the last time, if chunks have been used since the last successful save and the first
 * volume is online. Call it before store_stop(). The file is complete when no call is in flight. */
void learned_stop(struct learned *l);

void learned_get_stats(const struct learned *l, struct learned_stats *ret);

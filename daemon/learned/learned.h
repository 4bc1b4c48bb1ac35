/* SPDX-License-Identifier: Apache-2.0 */
/* What eviction has learned, over a restart: how often and how soon chunks of each class are used
 * again, what was evicted, and the order of use of the chunks on disk. It is saved to a file in the
 * folder of the first volume, once in a while and at shutdown while that volume is not offline, and
 * laid over what recovery finds.
 *
 * Nothing depends on it but how well the daemon evicts: without the file, with a damaged one, or
 * one of another store it begins with nothing learned. Loop thread; a blocking-call thread writes.
 */
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

/* Reads the file of the folder. 0: *ret, to be freed. -ENOENT: there is none. Else -errno, or
 * -EBADMSG, and a text. */
int learned_read(const char *folder, struct learned_head **ret,
                 char ret_error[static LEARNED_ERROR_BYTES]);
/* That the store must hash keys with for what was read to be of its chunks. */
void learned_secret(const struct learned_head *file, struct key_secret *ret);

struct learned_params {
        struct kio *io;
        struct store *store;
        struct pool *const *pools; /* copied */
        unsigned n_pools;
        const char *folder;
        struct key_secret secret;
        /* A file that cannot be written, once until one can; a line of text. */
        void (*warn)(void *userdata, const char *text);
        void *userdata;
};

struct learned_stats {
        uint64_t saves, save_errors;
        uint64_t saved_ms;   /* when the last save began, of an earlier daemon's too; 0: none */
        uint64_t file_bytes; /* of it, if this daemon has written it */
        uint64_t restored_chunks, restored_remembered;
};

/* What was read is restored, before anything is put; NULL: nothing was. 0, -ENOMEM. */
int learned_new(struct learned **ret, const struct learned_params *params,
                const struct learned_head *file, uint64_t now_ns);
/* None of its calls may be under way (kio_pending()). */
struct learned *learned_free(struct learned *l);

/* Once a second: begins to save if the last time is so long ago, and anything was used since. */
void learned_tick(struct learned *l, uint64_t now_ns, uint64_t interval_ms);
/* Once an iteration: a step of what was begun, a tenth of a millisecond. True: there is more. */
bool learned_iterate(struct learned *l);
/* Before store_stop(): saves for the last time. It is written when no call is under way any more.
 */
void learned_stop(struct learned *l);

void learned_get_stats(const struct learned *l, struct learned_stats *ret);

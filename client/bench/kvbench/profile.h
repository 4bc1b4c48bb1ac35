/* SPDX-License-Identifier: Apache-2.0 */
/* The engine of profile: a workload, the sides on which it is measured, and the results.
 *
 * A workload is `n_blocks` blocks of `io_size` bytes. They belong to `users`, each with one chain
 * of blocks. `clients` threads move them in pieces, which are short runs of one user's chain. A
 * pass moves all blocks once. A side is a way to move them: through the daemon (through.h), or
 * directly to a file (raw.h). With two sides, passes alternate, so that changes in the machine's
 * speed affect both sides equally.
 *
 * Only the time of moving blocks is measured. A write streams all its blocks: a place in shared
 * memory is filled once, and stamped for each block. A write from GPU memory proceeds in windows,
 * whose blocks are generated first. A read proceeds in windows: the clock runs while a window is
 * fetched, and stops while its bytes are compared.
 *
 * Every function that returns int, except profile_init(), returns 0, or a negative errno after it
 * has called profile_fail() with the reason: the first reason is printed, and ends all threads.
 * Such a function returns -ECANCELED without a reason if the user has interrupted the job. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "cleanup.h"
#include "kvcache.h"
#include "latency.h"
#include "profile-content.h"

enum {
        PROFILE_TEXT_BYTES = 1024,
        PROFILE_DEPTH = 64, /* RAW's I/Os in flight at the device, of all clients together */
        PROFILE_MAX_DEPTH = 1024,
        PROFILE_REQUESTED = 512,   /* blocks in requests to the daemon that are in flight, of all
                                      clients together */
        PROFILE_PIECE_BLOCKS = 16, /* maximum blocks of a piece */
        PROFILE_PIECE_BYTES = 2 << 20,
        PROFILE_MAX_CLIENTS = 256,
        PROFILE_WINDOW_BYTES = 128 << 20, /* bytes of a window of a read, of all clients together */
        /* bytes of a window of blocks in GPU memory, of all clients together */
        PROFILE_GPU_WINDOW_BYTES = 512 << 20,
        PROFILE_GPU_REQUESTED = 2048,
        PROFILE_GPU_PIECE_BLOCKS = 512,
        PROFILE_GPU_PIECE_BYTES = 16 << 20,
        PROFILE_STUCK_MS = 60000,
};

struct profile_job {
        const char *name;        /* name of the namespace; the contents of blocks depend on it */
        const char *fingerprint; /* canonical text of the namespace */
        uint64_t io_size, n_blocks;
        bool write;
        bool cold;      /* blocks are dropped from the daemon's memory before each read pass */
        bool check_all; /* blocks are read back after every measured write pass, rather than only
                           after the last */
        uint64_t users;
        unsigned clients;
        uint64_t iterations, warmup;
};

/* A run of `count` blocks from `first` on, of one user's chain. */
struct profile_piece {
        uint64_t first;
        uint32_t count;
        uint32_t at; /* position of the run's first block in the client's window */
        bool root;   /* the run begins the user's chain */
};

/* Counters of one client in passes that are measured, or in those that are not; or their sums. */
struct profile_tally {
        uint64_t operations, blocks, bytes; /* number of moves (profile_count()), and the blocks and
                                               bytes that they moved */
        uint64_t bytes_memory, bytes_disk;  /* bytes read from either tier of the daemon */
        uint64_t bytes_verified;
        struct latency latency, prepare, post, transfer; /* per operation, ns */
        double latency_sum, prepare_sum, post_sum, transfer_sum;
};

/* The work of one client in a window. */
struct profile_work {
        const struct profile_piece *pieces;
        size_t n_pieces;
        size_t n_blocks; /* number of blocks in all pieces */
        bool write;
        uint64_t generation;         /* generation of the contents; writes count down to 0 */
        struct profile_tally *tally; /* counters of the client */
};

/* State shared by all clients while a job runs. */
struct profile {
        const struct profile_job *job;
        const atomic_int *interrupted;
        struct kvcache_key *keys; /* key of each block */
        struct content content;

        atomic_bool stop;
        uint64_t piece_blocks; /* maximum blocks of a piece */
        _Atomic uint64_t done_blocks;
        uint64_t all_blocks; /* number of blocks to move in all passes, including passes that are
                                not measured */
        void (*on_progress)(void *userdata, uint64_t done,
                            uint64_t all); /* called at most ten times a second; may be NULL */
        void *userdata;
        uint64_t shown_ns;
        atomic_flag told;
        char error[PROFILE_TEXT_BYTES];
};

enum profile_pass { PROFILE_WRITE, PROFILE_READ, PROFILE_READ_COLD };

/* A side. `self` is its own state; `client` was returned by client_new(), in the thread that uses
 * it. */
struct profile_side {
        const char *name; /* "KVCACHE" or "RAW" */
        void *self;
        uint64_t window_bytes; /* maximum bytes of blocks that one client can hold between move and
                                  check */
        uint64_t piece_bytes;  /* maximum bytes of a piece; 0: unlimited */
        uint64_t depth;        /* maximum number of blocks in flight per client */
        uint64_t piece_blocks; /* maximum blocks of a piece; above 0: this side alone determines the
                                  size of pieces, by this member, `piece_bytes` and `depth` */

        int (*client_new)(void *self, struct profile *p, void **ret);
        void (*client_free)(void *client);
        /* Prepares a pass, in the thread that runs the job. May be NULL. */
        int (*before)(void *self, struct profile *p, enum profile_pass pass);
        /* Prepares each window, in the client's thread and outside of measured time: generates the
         * blocks to write, or overwrites the memory for blocks to read. May be NULL; a side that
         * has it writes in windows, too. */
        int (*prepare)(void *client, const struct profile_work *work);
        /* Moves the blocks. Measured; returns when every block has been moved. */
        int (*move)(void *client, const struct profile_work *work);
        /* Checks the blocks of a window that was read: compares every byte, and releases the
         * blocks. */
        int (*check)(void *client, const struct profile_work *work);
};

/* The result of a side. */
struct profile_result {
        const char *name;
        double seconds;
        struct profile_tally tally; /* sum over all clients */
};

static inline uint64_t profile_now_ns(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline double profile_bandwidth(const struct profile_result *r) /* GB/s */
{
        return r->seconds > 0 ? (double)r->tally.bytes / r->seconds / 1e9 : 0;
}

/* Computes keys and allocates contents. Returns 0 or -ENOMEM. */
int profile_init(struct profile *p, const struct profile_job *job, const atomic_int *interrupted);
void profile_fini(struct profile *p);
/* Ends the job with a reason; later calls keep the first reason. Returns -ECANCELED. */
int profile_fail(struct profile *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool profile_should_stop(struct profile *p);
/* Counts one operation of `blocks` blocks. `at`: start of preparing, start and end of posting, and
 * end of the operation, ns. */
void profile_count(struct profile_tally *t, uint64_t blocks, uint64_t io_size,
                   const uint64_t at[4]);

void profile_tally_merge(struct profile_tally *to, const struct profile_tally *from);
void profile_tally_fini(struct profile_tally *t);

/* Runs the job on all sides and fills a result for each. Returns 0, or negative with the reason in
 * p->error. */
int profile_run(struct profile *p, struct profile_side *const *sides, unsigned n_sides,
                struct profile_result *ret);
/* Runs one write pass that is not measured, so that there are blocks to read. */
int profile_write_once(struct profile *p, struct profile_side *side);
void profile_result_fini(struct profile_result *r);

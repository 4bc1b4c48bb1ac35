/* SPDX-License-Identifier: Apache-2.0 */
/* profile's engine: a workload, the sides on which it is measured, and what came out.
 *
 * A workload is `n_blocks` blocks of `io_size` bytes. They belong to `users`, each of whom has one
 * chain of them; `clients` threads move them in pieces, which are short runs of one user's chain.
 * A pass moves all blocks once. A side is a way to move them: through the daemon (through.h), or
 * straight on a file (raw.h). With two sides, their passes take turns, so that a machine whose
 * speed drifts moves both.
 *
 * What is measured is moving, and nothing else. A write streams all its blocks: a place in shared
 * memory is filled once, and stamped for each block; from GPU memory it goes in windows, which are
 * made there first. A read goes in windows: the clock runs while a window is fetched and stands
 * while every byte of it is compared.
 *
 * Every function that returns int gives 0, or a negative errno after it has given profile_fail()
 * the reason: the first reason is the one that is printed, and ends all threads. */
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
        PROFILE_DEPTH = 64, /* I/Os of RAW at the device, of all clients together */
        PROFILE_MAX_DEPTH = 1024,
        PROFILE_REQUESTED = 512,   /* blocks that are requested of the daemon, likewise */
        PROFILE_PIECE_BLOCKS = 16, /* most blocks of a piece */
        PROFILE_PIECE_BYTES = 2 << 20,
        PROFILE_MAX_CLIENTS = 256,
        PROFILE_WINDOW_BYTES = 128 << 20,     /* of a read, of all clients together */
        PROFILE_GPU_WINDOW_BYTES = 512 << 20, /* and of what passes through GPU memory */
        PROFILE_GPU_REQUESTED = 2048,
        PROFILE_GPU_PIECE_BLOCKS = 512,
        PROFILE_GPU_PIECE_BYTES = 16 << 20,
        PROFILE_STUCK_MS = 60000,
};

struct profile_job {
        const char *name;        /* what its blocks depend on: a namespace's name */
        const char *fingerprint; /* and its canonical text */
        uint64_t io_size, n_blocks;
        bool write;
        bool cold;      /* before each read, what is in memory is dropped */
        bool check_all; /* read back after every write, not after the last alone */
        uint64_t users;
        unsigned clients;
        uint64_t iterations, warmup;
};

/* So many blocks from `first` on, of one user's chain. */
struct profile_piece {
        uint64_t first;
        uint32_t count;
        uint32_t at; /* position of its first block in the window */
        bool root;   /* begins the user's chain */
};

/* What one client did in what counts. */
struct profile_tally {
        uint64_t operations, blocks, bytes; /* moved */
        uint64_t bytes_memory, bytes_disk;  /* of those read: where the daemon had them */
        uint64_t bytes_verified;
        struct latency latency, prepare, post, transfer; /* of each operation, ns */
        double latency_sum, prepare_sum, post_sum, transfer_sum;
};

/* What one client is to move now. */
struct profile_work {
        const struct profile_piece *pieces;
        size_t n_pieces;
        size_t n_blocks; /* of all pieces */
        bool write;
        uint64_t generation;         /* of the contents: writes count down to 0 */
        struct profile_tally *tally; /* the client's own */
};

/* What all clients share while a job runs. */
struct profile {
        const struct profile_job *job;
        const atomic_int *interrupted;
        struct kvcache_key *keys; /* of each block */
        struct content content;

        atomic_bool stop;
        uint64_t piece_blocks; /* most blocks of a piece */
        _Atomic uint64_t done_blocks;
        uint64_t all_blocks; /* of all passes, those that count for nothing too */
        void (*on_progress)(void *userdata, uint64_t done,
                            uint64_t all); /* now and then; may be NULL */
        void *userdata;
        uint64_t shown_ns;
        atomic_flag told;
        char error[PROFILE_TEXT_BYTES];
};

enum profile_pass { PROFILE_WRITE, PROFILE_READ, PROFILE_READ_COLD };

/* A side. `self` is its own; `client` is what client_new() made, in the thread that uses it. */
struct profile_side {
        const char *name; /* "KVCACHE", "RAW" */
        void *self;
        uint64_t window_bytes; /* that one client can hold between move and check */
        uint64_t piece_bytes;  /* most of a piece; 0: any */
        uint64_t depth;        /* blocks on their way, of one client */
        uint64_t piece_blocks; /* most of a piece, where it is this side that decides; 0: any */

        int (*client_new)(void *self, struct profile *p, void **ret);
        void (*client_free)(void *client);
        /* Before a pass, by the thread that runs the job: what must be so for it. */
        int (*before)(void *self, struct profile *p, enum profile_pass pass);
        /* Before each window, in the client's thread and outside of the measured time: what is to
         * be moved is made, or what must not be there is removed. May be NULL; a side that has it
         * writes in windows, too. */
        int (*prepare)(void *client, const struct profile_work *work);
        /* Measured: returns when every block has been moved. */
        int (*move)(void *client, const struct profile_work *work);
        /* After a read: compares every byte, and gives back what was held. */
        int (*check)(void *client, const struct profile_work *work);
};

/* What a side came to. */
struct profile_result {
        const char *name;
        double seconds;
        struct profile_tally tally; /* of all clients */
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

/* Keys and contents. -ENOMEM. */
int profile_init(struct profile *p, const struct profile_job *job, const atomic_int *interrupted);
void profile_fini(struct profile *p);
/* Ends the job; the first reason is kept. Returns -ECANCELED. */
int profile_fail(struct profile *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool profile_should_stop(struct profile *p);
/* One operation of `blocks` blocks is done. Times: begin of preparing, of posting, end of posting,
 * and of all. */
void profile_count(struct profile_tally *t, uint64_t blocks, uint64_t io_size,
                   const uint64_t at[4]);

void profile_tally_merge(struct profile_tally *to, const struct profile_tally *from);
void profile_tally_fini(struct profile_tally *t);

/* Runs the job on all sides and fills a result for each. 0, or negative: p->error says why. */
int profile_run(struct profile *p, struct profile_side *const *sides, unsigned n_sides,
                struct profile_result *ret);
/* One write pass that counts for nothing, so that there is something to read. */
int profile_write_once(struct profile *p, struct profile_side *side);
void profile_result_fini(struct profile_result *r);

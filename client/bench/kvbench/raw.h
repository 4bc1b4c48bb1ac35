/* SPDX-License-Identifier: Apache-2.0 */
/* The side RAW: the same blocks, straight on one file, with no daemon: what the disk gives.
 *
 * The file is as large as all blocks, each rounded up to 4 KiB, and they are spread over it. I/O is
 * O_DIRECT where the file system can do it. Memory is of plain pages, as the daemon's is.
 * With io_uring a client is one ring with registered memory and file, where allowed; with POSIX
 * calls it is threads that read and write. */
#pragma once

#include "profile.h"

enum raw_io { RAW_AUTO, RAW_URING, RAW_POSIX };

/* What is not given is chosen. */
struct raw_options {
        const char *directory;
        const char *file; /* in it; NULL: one without a name, which goes when it is closed */
        enum raw_io io;
        uint64_t window_bytes, depth; /* per client, as the other side has them; 0: its own */
};

struct raw {
        struct raw_options options;
        struct profile_side side;
        int fd;
        char path[512]; /* for messages */
        bool direct;
        bool uring;
        bool fresh;     /* the file holds nothing of this job yet */
        char note[256]; /* why it is not what was wished: "" when it is */
        uint64_t stride;
        uint64_t spread; /* a number without a factor in common with the number of blocks */
};

/* Where a block is in the file. Neighbours of a chain are not neighbours there: what is measured is
 * I/O of the block's size, and not of what the block layer could join. */
static inline uint64_t raw_offset(const struct raw *raw, uint64_t block, uint64_t n_blocks)
{
        return (uint64_t)((unsigned __int128)block * raw->spread % n_blocks) * raw->stride;
}

/* 0; negative after profile_fail(). Makes the file, at its full size. */
int raw_open(struct raw *raw, struct profile *p, const struct raw_options *options);
void raw_close(struct raw *raw);

/* --- inside RAW --- */

/* One client. Blocks of the window, or, when writing, those on their way, have a slot each. */
struct raw_client {
        struct raw *raw;
        struct profile *profile;
        uint8_t *slots; /* `n_slots` of `stride` */
        uint64_t n_slots, depth;
        void *ring; /* raw-uring.c */
};

int raw_uring_new(struct raw_client *c);
void raw_uring_free(struct raw_client *c);
int raw_uring_move(struct raw_client *c, const struct profile_work *work);
int raw_posix_move(struct raw_client *c, const struct profile_work *work);
/* Is there io_uring here? 0; -errno, with why. */
int raw_uring_probe(char *ret_why, size_t room);
/* `got` of one I/O: bytes, or -errno. */
int raw_check_io(struct raw_client *c, uint64_t block, bool write, int64_t got);

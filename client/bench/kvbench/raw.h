/* SPDX-License-Identifier: Apache-2.0 */
/* The side RAW reads and writes the same blocks in one file, without a daemon, to show the limit of
 * the disk.
 *
 * The file has room for all blocks, each rounded up to 4 KiB, and they are spread over it. I/O
 * is O_DIRECT if the file system supports it. Memory consists of ordinary pages, as the
 * daemon's pool does on a system without huge pages. With io_uring, a client is one ring with
 * registered memory and file, if permitted; with POSIX calls, it is threads that read and write. */
#pragma once

#include "profile.h"

enum raw_io { RAW_AUTO, RAW_URING, RAW_POSIX };

/* Options of RAW. */
struct raw_options {
        const char *directory; /* required */
        const char *file; /* name in the directory; NULL: a file without a name, which is deleted
                        when closed */
        enum raw_io io;
        uint64_t window_bytes, depth; /* values per client of the side KVCACHE, so that both sides
                                         are comparable; 0: RAW's own */
};

struct raw {
        struct raw_options options;
        struct profile_side side;
        int fd;
        char path[512]; /* path of the file, for messages */
        bool direct;
        bool uring;
        bool fresh;     /* the file has no data of this job yet */
        char note[256]; /* deviation from what was requested; "": none */
        uint64_t stride;
        uint64_t spread; /* distance of consecutive blocks in the file, in blocks; has no common
                            factor with the number of blocks */
};

/* Returns a block's offset in the file. Neighbours in a chain are not neighbours in the file, so
 * that I/Os of the block's size are measured, which the block layer cannot merge. */
static inline uint64_t raw_offset(const struct raw *raw, uint64_t block, uint64_t n_blocks)
{
        return (uint64_t)((unsigned __int128)block * raw->spread % n_blocks) * raw->stride;
}

/* Opens the file, allocates its full size unless it has data to read, and chooses the I/O method.
 * Returns 0, or negative after profile_fail(). */
int raw_open(struct raw *raw, struct profile *p, const struct raw_options *options);
void raw_close(struct raw *raw);

/* --- internal to RAW --- */

/* One client. Each block of a read window, or each write in flight, has a slot. */
struct raw_client {
        struct raw *raw;
        struct profile *profile;
        uint8_t *slots; /* `n_slots` slots of `stride` bytes */
        uint64_t n_slots, depth;
        void *ring; /* owned by raw-uring.c */
};

int raw_uring_new(struct raw_client *c);
void raw_uring_free(struct raw_client *c);
int raw_uring_move(struct raw_client *c, const struct profile_work *work);
int raw_posix_move(struct raw_client *c, const struct profile_work *work);
/* Checks whether io_uring is available. Returns 0, or -errno with the reason in `ret_why`. */
int raw_uring_probe(char *ret_why, size_t room);
/* Checks the result `got` of one I/O: bytes, or -errno. Returns 0 if the whole block was moved,
 * otherwise negative after profile_fail(). */
int raw_check_io(struct raw_client *c, uint64_t block, bool write, int64_t got);

/* SPDX-License-Identifier: Apache-2.0 */
/* Where the pool's bytes are. No client, root included, can write to them, punch a hole into them
 * or resize them with the descriptor that it gets: without that it could have a read into a
 * registered buffer end in zeros, and succeed. There are two kinds:
 *
 * Sealed: a memfd, mapped read-write once by this process and then sealed
 * SHRINK|GROW|FUTURE_WRITE|SEAL. No process can map it writable again, a successor of this daemon
 * included: its bytes end with this process and its clients.
 *
 * Kept: an unnamed file on a tmpfs that is mounted twice, read-write at DIRECTORY/rw and read-only
 * at DIRECTORY/ro. The daemon has it open through the first, and clients get it as it was opened
 * through the second: the kernel refuses every way to write by that one, opening it again through
 * /proc included. A process that is given the writable descriptor can take the memory over. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct backing {
        int fd;          /* read-only, for handing out; -1: none */
        int writable_fd; /* of a kept one; -1 */
        void *base;
        uint64_t bytes;
};

enum { BACKING_ERROR_BYTES = 256 };

/* Sealed. 0, -errno. */
int backing_open(struct backing *ret, const char *name, uint64_t bytes);
/* Kept. 0; -errno, and what stands against it. */
int backing_open_kept(struct backing *ret, const char *directory, uint64_t bytes,
                      char ret_error[static BACKING_ERROR_BYTES]);
/* One that another process has opened so. Both descriptors are the backing's then; on failure they
 * are the caller's. */
int backing_take_fds(struct backing *ret, int writable_fd, int fd, uint64_t bytes,
                     char ret_error[static BACKING_ERROR_BYTES]);
static inline bool backing_is_kept(const struct backing *b)
{
        return b->writable_fd >= 0;
}
void backing_close(struct backing *b);

/* Makes [offset, offset + bytes) present. Blocks: a worker's job. 0, -ENOMEM. */
int backing_populate(const struct backing *b, uint64_t offset, uint64_t bytes);

enum { BACKING_HUGE_PAGE = 2 << 20 };

/* The same, in huge pages where the system has them. What the administrator has set for the huge
 * pages of such memory by itself (shmem_enabled) does not matter, unless it is "deny"; a kernel
 * before 6.1 goes by that alone. *ret_huge: bytes that lie in huge pages now, of whole ones in the
 * range. Only for what nothing is registered in yet. */
int backing_populate_huge(const struct backing *b, uint64_t offset, uint64_t bytes,
                          uint64_t *ret_huge);

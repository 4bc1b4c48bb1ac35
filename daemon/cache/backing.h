/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a pool. No client, root included, can write to it, punch a hole into it or resize
 * it with the descriptor that it receives. Otherwise a client could make a read into a registered
 * buffer succeed with zeros. There are two kinds:
 *
 * Sealed: a memfd, mapped read-write once by this process and then sealed
 * SHRINK|GROW|FUTURE_WRITE|SEAL. No process, not even a successor of this daemon, can map it
 * writable again, so the memory ends with this process and its clients.
 *
 * Kept: an unnamed file on a tmpfs that is mounted twice, read-write at DIRECTORY/rw and read-only
 * at DIRECTORY/ro. The daemon opens it through the first mount. Clients receive a descriptor opened
 * through the second, with which the kernel refuses every way to write, including opening the file
 * again through /proc. A process that receives the writable descriptor can take over the memory. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct backing {
        int fd;          /* read-only, passed to clients; -1 if none */
        int writable_fd; /* descriptor of a kept file; -1 if sealed */
        void *base;
        uint64_t bytes;
};

enum { BACKING_ERROR_BYTES = 256 };

/* Creates a sealed backing. Returns 0 or -errno. */
int backing_open(struct backing *ret, const char *name, uint64_t bytes);
/* Creates a kept backing. Returns 0, or -errno and a text with the reason. */
int backing_open_kept(struct backing *ret, const char *directory, uint64_t bytes,
                      char ret_error[static BACKING_ERROR_BYTES]);
/* Takes over a kept backing that another process created. The backing owns both descriptors on
 * success, and the caller on failure. Returns as backing_open_kept() does. */
int backing_take_fds(struct backing *ret, int writable_fd, int fd, uint64_t bytes,
                     char ret_error[static BACKING_ERROR_BYTES]);
static inline bool backing_is_kept(const struct backing *b)
{
        return b->writable_fd >= 0;
}
void backing_close(struct backing *b);

/* Populates [offset, offset + bytes) with memory. Blocks, so call it on a blocking-call thread.
 * Returns 0 or -errno. */
int backing_populate(const struct backing *b, uint64_t offset, uint64_t bytes);

enum { BACKING_HUGE_PAGE = 2 << 20 };

/* Populates like backing_populate(), with huge pages where the system has them. The setting
 * shmem_enabled matters only if it is "deny", except before Linux 6.1, where it alone decides. Sets
 * *ret_huge to the bytes of the range that lie in huge pages. No ring may have registered the range
 * yet. */
int backing_populate_huge(const struct backing *b, uint64_t offset, uint64_t bytes,
                          uint64_t *ret_huge);

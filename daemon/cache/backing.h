/* SPDX-License-Identifier: Apache-2.0 */
/* Where the pool's bytes are: one small module, so that another backing can take its place.
 *
 * A memfd, mapped read-write once by this process and then sealed SHRINK|GROW|FUTURE_WRITE|SEAL:
 * no process, a successor of this daemon included, can map it writable, punch it or resize it
 * again. Without FUTURE_WRITE a client could punch a hole under a registered buffer and read zeros
 * as success. Clients get a descriptor that was opened read-only. */
#pragma once

#include <stdint.h>

struct backing {
        int fd; /* read-only, for handing out; -1: none */
        void *base;
        uint64_t bytes;
};

int backing_open(struct backing *ret, const char *name, uint64_t bytes);
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

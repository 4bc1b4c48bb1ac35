/* SPDX-License-Identifier: Apache-2.0 */
/* See backing.h. Opened and closed on the loop thread; backing_populate() and
 * backing_populate_huge() block, and run on a blocking-call thread (populate.c). Owns the mapping
 * and the read-only descriptor; the memfd's own is closed once it is mapped.
 *
 * Failures: populating stops with the errno where the host has no memory, and what is there stays;
 * where there are no huge pages it goes on with small ones. */
#include "cache/backing.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "checked.h"
#include "cleanup.h"
#include "mapping.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static int reopen_read_only(int fd)
{
        char path[64];
        int ro;

        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        ro = open(path, O_RDONLY | O_CLOEXEC);
        return ro < 0 ? -errno : ro;
}

int backing_open(struct backing *ret, const char *name, uint64_t bytes)
{
        _cleanup_(closep) int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
        _cleanup_(closep) int ro = -1;
        void *base;
        int r = 0;

        if (fd < 0)
                return -errno;
        if (ftruncate(fd, (off_t)bytes) < 0)
                return -errno;
        /* Opened before the mode is taken away: an unprivileged daemon could not open it
         * afterwards. */
        ro = reopen_read_only(fd);
        if (ro < 0)
                return ro;

        base = mapping_shared(fd, bytes, PROT_READ | PROT_WRITE);
        if (base == MAP_FAILED)
                return -errno;
        if (madvise(base, bytes, MADV_DONTDUMP) < 0 || fchmod(fd, 0400) < 0 ||
            fcntl(fd, F_ADD_SEALS,
                  F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) < 0)
                r = -errno;
        if (r < 0) {
                munmap(base, bytes);
                return r;
        }
        (void)madvise(base, bytes,
                      MADV_HUGEPAGE); /* taken where the system offers it for shared memory */
        (void)madvise(base, bytes, MADV_DONTFORK);

        *ret = (struct backing){ .fd = TAKE_FD(ro), .base = base, .bytes = bytes };
        return 0;
}

void backing_close(struct backing *b)
{
        if (b->base)
                munmap(b->base, b->bytes);
        if (b->fd >= 0)
                close(b->fd);
        *b = (struct backing){ .fd = -1 };
}

int backing_populate(const struct backing *b, uint64_t offset, uint64_t bytes)
{
        if (madvise((char *)b->base + offset, bytes, MADV_POPULATE_WRITE) == 0)
                return 0;
        if (errno != EINVAL)
                return -errno;
        /* A kernel before 5.14: touch each page, and leave what is there. */
        for (uint64_t i = 0; i < bytes; i += 4096)
                (void)__atomic_fetch_or((char *)b->base + offset + i, 0, __ATOMIC_RELAXED);
        return 0;
}

/* Huge, if its first page is there and the others are not: then the kernel need only clear it. */
static int make_huge(char *page)
{
        if (madvise(page, 4096, MADV_POPULATE_WRITE) < 0)
                return -errno;
        return madvise(page, BACKING_HUGE_PAGE, MADV_COLLAPSE) < 0 ? -errno : 0;
}

int backing_populate_huge(const struct backing *b, uint64_t offset, uint64_t bytes,
                          uint64_t *ret_huge)
{
        uint64_t end = round_down(offset + bytes, BACKING_HUGE_PAGE);

        *ret_huge = 0;
        for (uint64_t at = round_up(offset, BACKING_HUGE_PAGE); at < end; at += BACKING_HUGE_PAGE) {
                int r = make_huge((char *)b->base + at);

                if (r == 0)
                        *ret_huge += BACKING_HUGE_PAGE;
                else if (r == -EINVAL)
                        break; /* this kernel cannot, or is configured not to */
        }
        return backing_populate(b, offset, bytes);
}

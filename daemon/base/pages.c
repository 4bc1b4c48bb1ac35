/* SPDX-License-Identifier: Apache-2.0 */
/* Implements pages.h. Any thread; nothing is owned. Requests to the kernel are advice. If it is not
 * followed, pages are small, or are populated on first touch. Unmapping proceeds in pieces, because
 * other threads of the process have to wait for each. */
#include "base/pages.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#include "checked.h"
#include "cleanup.h"

enum {
        PAGE_BYTES = 4096,
        HUGE_BYTES = 2 * 1024 * 1024,
        PIECE_BYTES = 8 * 1024 * 1024,
};

void *pages_map(uint64_t bytes)
{
        void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

        if (p == MAP_FAILED)
                return NULL;
        (void)madvise(p, bytes, MADV_HUGEPAGE);
        return p;
}

int pages_share(const char *name, uint64_t bytes, int protection, void **ret, int *ret_fd)
{
        _cleanup_(closep) int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
        void *base;

        if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0 ||
            fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
                return -errno;
        base = mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);
        if (base == MAP_FAILED)
                return -errno;
        (void)madvise(base, bytes, MADV_DONTDUMP);
        (void)madvise(base, bytes, MADV_DONTFORK);
        *ret = base;
        *ret_fd = TAKE_FD(fd);
        return 0;
}

void pages_unmap(void *p, uint64_t bytes)
{
        uint64_t at = (uintptr_t)p, end = at + bytes;

        while (at < end) {
                uint64_t next = MIN(round_down(at, PIECE_BYTES) + PIECE_BYTES, end);

                /* A huge page of 1 GiB cannot be unmapped in part, so unmap all of it. */
                if (munmap((void *)(uintptr_t)at, next - at) < 0) {
                        (void)munmap((void *)(uintptr_t)at, end - at);
                        return;
                }
                at = next;
        }
}

void pages_wish_huge(void *p, uint64_t bytes)
{
        uint64_t begin = round_up((uintptr_t)p, HUGE_BYTES),
                 end = round_down((uintptr_t)p + bytes, HUGE_BYTES);

        if (begin < end)
                (void)madvise((void *)(uintptr_t)begin, end - begin, MADV_HUGEPAGE);
}

void pages_populate(void *p, uint64_t bytes)
{
#ifdef MADV_POPULATE_WRITE
        uint64_t end = (uintptr_t)p + bytes;

        for (uint64_t at = round_down((uintptr_t)p, PAGE_BYTES); at < end; at += PIECE_BYTES)
                if (madvise((void *)(uintptr_t)at, MIN(end - at, (uint64_t)PIECE_BYTES),
                            MADV_POPULATE_WRITE) < 0)
                        return;
#endif
}

void pages_unpopulate(void *p, uint64_t bytes)
{
        uint64_t begin = round_up((uintptr_t)p, PAGE_BYTES),
                 end = round_down((uintptr_t)p + bytes, PAGE_BYTES);

        if (begin < end)
                (void)madvise((void *)(uintptr_t)begin, end - begin, MADV_DONTNEED);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* See staging.h. The loop thread opens a staging area when its client asks for one;
 * session/staging-closer.h closes it. A failure leaves nothing open. */
#include "cache/staging.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>

#include "base/pages.h"
#include "checked.h"
#include "cleanup.h"

int staging_open(struct staging *ret, uint64_t bytes)
{
        _cleanup_(closep) int fd =
                memfd_create("kvcache-staging area", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        void *base;

        if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0)
                return -errno;
        if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
                return -errno;
        base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (base == MAP_FAILED)
                return -errno;
        (void)madvise(base, bytes, MADV_DONTDUMP);
        (void)madvise(base, bytes, MADV_DONTFORK);
        *ret = (struct staging){ .fd = TAKE_FD(fd), .base = base, .bytes = bytes };
        return 0;
}

void staging_close(struct staging *l)
{
        if (l->base)
                pages_unmap(l->base, l->bytes);
        if (l->fd >= 0)
                close(l->fd);
        *l = (struct staging){ .fd = -1 };
}

void *staging_at(const struct staging *l, uint64_t offset, uint64_t length)
{
        if (!l->base || !range_within(offset, length, l->bytes))
                return NULL;
        return (char *)l->base + offset;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* See staging.h. The loop thread opens a staging area when its client asks for one;
 * session/staging-closer.h closes it. A failure leaves nothing open. */
#include "cache/staging.h"

#include <sys/mman.h>
#include <unistd.h>

#include "base/pages.h"
#include "checked.h"

int staging_open(struct staging *ret, uint64_t bytes)
{
        void *base;
        int fd, r = pages_share("kvcache-staging area", bytes, PROT_READ | PROT_WRITE, &base, &fd);

        if (r == 0)
                *ret = (struct staging){ .fd = fd, .base = base, .bytes = bytes };
        return r;
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

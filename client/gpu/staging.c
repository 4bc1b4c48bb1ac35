/* SPDX-License-Identifier: Apache-2.0 */
/* The staging memory of an attached GPU; see staging.h. Owns the file and the registrations with
 * daemon and driver. */
#include "gpu/staging.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "checked.h"
#include "cleanup.h"

enum {
        STAGING_PAGE = 4096, /* the daemon's direct I/O needs this alignment */
        STAGING_LEAST = 256 * 1024,
};

static int staging_open_buffer(struct staging_memory *m, struct kvcache *kv, uint64_t bytes)
{
        struct kvcache_buffer_options o = { .size = sizeof(o), .bytes = bytes };
        _cleanup_(closep) int fd = memfd_create("kvcache-gpu", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        void *base;
        int r;

        if (fd < 0)
                return -errno;
        if (ftruncate(fd, (off_t)bytes) < 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) < 0)
                return -errno;
        o.fd = fd;
        r = kvcache_buffer_register(kv, &o, &m->buffer, &base);
        if (r < 0)
                return r;
        m->place = base;
        m->bytes = bytes;
        m->is_buffer = true;
        m->fd = TAKE_FD(fd);
        return 0;
}

/* Acquires a place in the handle's staging area: `bytes`, or half as much after each refusal, but
 * at least STAGING_LEAST. Returns 0 or -errno. */
static int staging_open_place(struct staging_memory *m, struct kvcache *kv, uint64_t bytes)
{
        void *base = NULL;
        int r = -E2BIG;

        for (; bytes >= STAGING_LEAST; bytes /= 2) {
                r = kvcache_staging_acquire(kv, bytes, &base);
                if (r != -E2BIG && r != -ENOBUFS)
                        break;
        }
        if (r < 0)
                return r;
        m->place = base;
        m->bytes = bytes;
        return 0;
}

static void staging_register(struct staging_memory *m, const struct driver *d)
{
        cu_address device;

        if (d->host_register(m->place, m->bytes,
                             CU_HOST_REGISTER_PORTABLE | CU_HOST_REGISTER_MAPPED) != CU_OK)
                return;
        if (d->host_address(&device, m->place, 0) == CU_OK)
                m->device = device + (uint64_t)(m->base - (uint8_t *)m->place);
        else
                (void)d->host_unregister(m->place);
}

int staging_memory_open(struct staging_memory *ret, struct kvcache *kv, const struct driver *d,
                        uint64_t bytes)
{
        struct staging_memory m = { .fd = -1 };
        int r;

        r = staging_open_buffer(&m, kv, bytes);
        if (r < 0 && bytes / 2 >= STAGING_LEAST)
                r = staging_open_buffer(&m, kv, bytes / 2);
        if (r < 0)
                r = staging_open_place(&m, kv, bytes);
        if (r < 0)
                return r;
        m.base = (uint8_t *)round_up((uintptr_t)m.place, STAGING_PAGE);
        m.part_bytes = round_down(
                (m.bytes - (uint64_t)(m.base - (uint8_t *)m.place)) / STAGING_PARTS, STAGING_PAGE);
        staging_register(&m, d);
        *ret = m;
        return 0;
}

void staging_memory_close(struct staging_memory *m, struct kvcache *kv, const struct driver *d)
{
        if (m->device)
                (void)d->host_unregister(m->place);
        if (m->is_buffer)
                (void)kvcache_buffer_unregister(kv, m->buffer);
        else if (m->place)
                kvcache_staging_release(kv, m->place);
        closep(&m->fd);
        *m = (struct staging_memory){ .fd = -1 };
}

int staging_part_acquire(struct staging_memory *m)
{
        for (int i = 0; m->base && i < STAGING_PARTS; i++)
                if (!m->taken[i]) {
                        m->taken[i] = true;
                        return i;
                }
        return -1;
}

void staging_part_release(struct staging_memory *m, int part)
{
        m->taken[part] = false;
}

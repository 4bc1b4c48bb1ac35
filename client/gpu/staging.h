/* SPDX-License-Identifier: Apache-2.0 */
/* The memory through which blocks pass between the GPU and the daemon: shared with the daemon,
 * registered with the driver, and divided into parts, each of which belongs to one batch at a time.
 *
 * The memory is a registered buffer of the daemon or, failing that, a range of the handle's staging
 * area. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "gpu/driver.h"
#include "kvcache.h"

enum { STAGING_PARTS = 8 };

struct staging_memory {
        void *place; /* the mapped buffer, or the place in the staging area; NULL if none */
        uint64_t bytes;
        uint8_t *base; /* start of the parts, aligned */
        uint64_t part_bytes;
        bool is_buffer;
        uint32_t buffer;
        int fd;
        cu_address device; /* device address of `base`; 0 if not registered with the driver */
        bool taken[STAGING_PARTS];
};

/* Opens the staging memory: registers a buffer of `bytes`, or of half as many, or takes a range of
 * the handle's staging area. Returns 0, or -errno if all attempts fail. A driver that refuses to
 * register the memory is no failure, but makes copies slower. */
int staging_memory_open(struct staging_memory *ret, struct kvcache *kv, const struct driver *d,
                        uint64_t bytes);
/* Closes the staging memory. Its requests must have ended, and no part may be taken. */
void staging_memory_close(struct staging_memory *m, struct kvcache *kv, const struct driver *d);

/* Returns a free part, or -1 if all are taken. */
int staging_part_acquire(struct staging_memory *m);
void staging_part_release(struct staging_memory *m, int part);
static inline uint8_t *staging_part(const struct staging_memory *m, int part)
{
        return m->base + (uint64_t)part * m->part_bytes;
}

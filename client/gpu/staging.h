/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that blocks pass through between the GPU and the daemon: shared with the daemon,
 * registered with the driver, in parts that are used one at a time.
 *
 * It is a registered buffer of the daemon's, else a place of the handle's staging. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "gpu/driver.h"
#include "kvcache.h"

enum { STAGING_PARTS = 8 };

struct staging_memory {
        void *place; /* as the library gave it; NULL: none */
        uint64_t bytes;
        uint8_t *base; /* of the parts: aligned */
        uint64_t part_bytes;
        bool is_buffer;
        uint32_t buffer;
        int fd;
        cu_address device; /* of `base`; 0: not registered with the driver */
        bool taken[STAGING_PARTS];
};

/* 0, or -errno of the daemon's second refusal; kvcache_error() says why. A driver that does not
 * register it is no failure: copies are slower then. */
int staging_memory_open(struct staging_memory *ret, struct kvcache *kv, const struct driver *d,
                        uint64_t bytes);
/* Its requests have ended and no part is taken. */
void staging_memory_close(struct staging_memory *m, struct kvcache *kv, const struct driver *d);

/* -1: all are taken. */
int staging_part_acquire(struct staging_memory *m);
void staging_part_release(struct staging_memory *m, int part);
static inline uint8_t *staging_part(const struct staging_memory *m, int part)
{
        return m->base + (uint64_t)part * m->part_bytes;
}

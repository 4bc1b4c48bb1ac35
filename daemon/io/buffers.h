/* SPDX-License-Identifier: Apache-2.0 */
/* Registration of client memory as buffers of the rings. A region is a range of client memory,
 * struct kio_region in request.h; kio_region_register() in io.h registers it. Private to io/.
 *
 * Threads: while a request is at a ring's worker, that ring's `pieces`, `attempts` and `error`
 * belong to the worker. All other fields belong to the loop thread, which does not change them
 * while a worker may read them. */
#pragma once

#include <stdatomic.h>

#include "checked.h"
#include "io/request.h"
#include "io/worker.h"

enum {
        REGIONS_PIECE_BYTES = 16 << 20, /* bytes; registering one piece blocks a ring for 0.3 ms,
                                         * with 4 KiB pages */
        REGIONS_BUFFERS = 4096,         /* buffer numbers per ring, shared by all regions */
};

/* The state of one region in one ring. The first `pieces` pieces of the region are registered
 * there. */
struct regions_ring {
        struct kio_request req;
        struct kio_region *region;
        struct worker *worker;
        uint32_t pieces;
        uint32_t attempts;
        int error;
};

/* The regions of one kio, and the buffer numbers that they share. */
struct regions {
        bool huge; /* regions are moved to huge pages */
        struct kio *io;
        struct worker *workers;
        unsigned n_workers;
        void (*submit)(struct kio *io, struct kio_request *req, unsigned worker);

        struct list_node list;
        unsigned n_unused;
        uint16_t unused[REGIONS_BUFFERS]; /* free buffer numbers, which are the same in every
                                           * ring */
};

/* Initializes an empty set of regions. `submit` must pass a request to the worker of the given
 * number. */
void regions_init(struct regions *r, struct kio *io, struct worker *workers, unsigned n_workers,
                  void (*submit)(struct kio *io, struct kio_request *req, unsigned worker));
/* Releases every region without waiting. Call it after the rings are closed. Does nothing if `r`
 * is all zero. */
void regions_fini(struct regions *r);

/* Implement kio_region_register() and kio_region_unregister() (io.h). If `refused` is an -errno
 * instead of 0, nothing is registered, and this is the result. */
void regions_register(struct regions *r, struct kio_region *region, int refused);
void regions_unregister(struct regions *r, struct kio_region *region);

/* Returns the number of the buffer that contains all of [buf, buf + length) in the ring of
 * `worker`, or -1. Runs on that worker. */
static inline int regions_find_buffer(const struct kio_region *region, unsigned worker,
                                      const char *buf, uint64_t length)
{
        uint64_t at = (uintptr_t)buf - (uintptr_t)region->base, piece = at / REGIONS_PIECE_BYTES;

        if (!region->rings || (uintptr_t)buf < (uintptr_t)region->base ||
            !range_within(at, length, region->bytes) ||
            !range_within(at % REGIONS_PIECE_BYTES, length, REGIONS_PIECE_BYTES) ||
            piece >= region->rings[worker].pieces)
                return -1;
        return region->buffers[piece];
}

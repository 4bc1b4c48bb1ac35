/* SPDX-License-Identifier: Apache-2.0 */
/* Clients' memory as the rings see it; struct kio_region in io.h is what users see. Private to io/.
 *
 * Threads: a ring's `pieces` belongs to its worker. All else belongs to the loop thread, and does
 * not change while a worker may read it. */
#pragma once

#include <stdatomic.h>

#include "checked.h"
#include "io/request.h"
#include "io/worker.h"

enum {
        REGIONS_PIECE_BYTES = 16 << 20, /* a ring is held up by one for 0.3 ms with 4 KiB pages */
        REGIONS_BUFFERS = 4096,         /* of each ring, for all regions together */
};

/* A region in one ring: its first `pieces` pieces are registered there. */
struct regions_ring {
        struct kio_request req;
        struct kio_region *region;
        struct worker *worker;
        uint32_t pieces;
        uint32_t attempts;
        int error;
};

/* All of a kio. */
struct regions {
        struct kio *io;
        struct worker *workers;
        unsigned n_workers;
        void (*submit)(struct kio *io, struct kio_request *req, unsigned worker);

        struct list_node list;
        unsigned n_unused;
        uint16_t unused[REGIONS_BUFFERS]; /* numbers of buffers, the same for every ring */
};

void regions_init(struct regions *r, struct kio *io, struct worker *workers, unsigned n_workers,
                  void (*submit)(struct kio *io, struct kio_request *req, unsigned worker));
/* Call it after the rings are closed. Does nothing if all is zero. */
void regions_fini(struct regions *r);

/* `refused`: 0, or why nothing can be registered. */
void regions_register(struct regions *r, struct kio_region *region, int refused);
void regions_unregister(struct regions *r, struct kio_region *region);

/* A ring's worker: the number of the buffer that has all of [buf, buf + length), or -1. */
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

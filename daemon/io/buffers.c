/* SPDX-License-Identifier: Apache-2.0 */
/* Registers client memory with the rings, and unregisters it.
 *
 * A region is cut into pieces of one size; each piece is one buffer in the table of every ring.
 * This module assigns the buffer numbers, which are the same in every ring. A ring registers the
 * pieces in order, so that a count records which ones it has; I/O to other pieces, and I/O that
 * crosses two pieces, goes unregistered.
 *
 * Runs on the loop thread, except run_*. Owns the numbers, and every field of a region that is
 * not marked "in" or "out", from its registration until it is unregistered.
 *
 * Normal path: the blocking-call thread of the region's volume populates the pages step by step,
 * since page faults are nine tenths of the cost (2.9 of 3.2 ms for 16 MiB of 4 KiB pages). It
 * moves them to huge pages, if huge_regions is set: a request to a disk lists contiguous pieces of
 * memory, and is cut where its list is full. A pinned page cannot be moved, so this comes first.
 * Then every worker registers one piece per iteration until it has all. Unregistering removes the
 * pieces in reverse order. Many regions can be in progress; each ring alternates between them.
 *
 * Failures: pages that cannot be populated are populated later, by the registration. A ring that
 * refuses a piece keeps the pieces it has and takes no more of that region; the first error is
 * the result. Unregistering a region ends a registration in progress. */
#include "io/buffers.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

enum {
        REGIONS_MAP_STEP = REGIONS_PIECE_BYTES,
        REGIONS_HUGE_PAGE = 2 << 20,
        REGIONS_ATTEMPTS_MAX = 16,
};
/* Most bytes of a region that are moved to huge pages, because moving copies the memory, at some
 * GB/s, and delays the registration. */
#define REGIONS_HUGE_MAX (UINT64_C(4) << 30)

static void region_next(struct kio_region *region);

void regions_init(struct regions *r, struct kio *io, struct worker *workers, unsigned n_workers,
                  void (*submit)(struct kio *io, struct kio_request *req, unsigned worker))
{
        r->io = io;
        r->workers = workers;
        r->n_workers = n_workers;
        r->submit = submit;
        list_init(&r->list);
        r->n_unused = REGIONS_BUFFERS;
        for (unsigned i = 0; i < REGIONS_BUFFERS; i++)
                r->unused[i] = (uint16_t)(REGIONS_BUFFERS - 1 - i);
}

static void region_free(struct kio_region *region)
{
        struct regions *r = region->regions;

        for (uint32_t i = region->n_buffers; i > 0; i--)
                r->unused[r->n_unused++] = region->buffers[i - 1];
        region->n_buffers = 0;
        free(region->buffers);
        region->buffers = NULL;
        free(region->rings);
        region->rings = NULL;
        list_unlink(&region->node);
        region->in_flight = 0;
        atomic_store(&region->closing, false);
        region->state = KIO_REGION_NONE;
}

void regions_fini(struct regions *r)
{
        if (!r->io)
                return;
        while (!list_empty(&r->list))
                region_free(container_of(r->list.next, struct kio_region, node));
}

/* --- steps on other threads --- */

/* Moves populated pages to huge pages. Pages that the client, or I/O, has pinned stay as they are.
 * Any other failure ends the attempts: the kernel or the file system has no huge pages for this
 * mapping, or is out of them. */
static void make_huge(struct kio_region *region, char *at, uint64_t bytes)
{
        if (!region->huge || region->mapped >= REGIONS_HUGE_MAX)
                return;
        if (madvise(at, bytes, MADV_COLLAPSE) == 0)
                region->huge_bytes += round_down(bytes, REGIONS_HUGE_PAGE);
        else
                region->huge = errno == EAGAIN;
}

/* Populates the next pages of a region, on the blocking-call thread. Errors are ignored, because
 * populating only saves time later. */
static int run_map(struct kio_request *req)
{
        struct kio_region *region = container_of(req, struct kio_region, step);
        uint64_t bytes = MIN((uint64_t)REGIONS_MAP_STEP, region->to_map - region->mapped);
        char *at = (char *)region->base + region->mapped;

        if (bytes > 0) {
                (void)madvise(at, bytes, MADV_POPULATE_WRITE);
                make_huge(region, at, bytes);
        }
        region->mapped += bytes;
        return 0;
}

static int ring_set(const struct regions_ring *ring, uint32_t piece, bool empty)
{
        const struct kio_region *region = ring->region;
        uint64_t at = (uint64_t)piece * REGIONS_PIECE_BYTES;
        struct kio_queue *q = ring->worker->queue;

        if (!q->ops->set_buffer)
                return -EOPNOTSUPP;
        return empty ? q->ops->set_buffer(q, region->buffers[piece], NULL, 0)
                     : q->ops->set_buffer(q, region->buffers[piece], (char *)region->base + at,
                                          MIN((uint64_t)REGIONS_PIECE_BYTES, region->bytes - at));
}

/* Registers one piece, on the ring's worker. */
static int run_register(struct kio_request *req)
{
        struct regions_ring *ring = container_of(req, struct regions_ring, req);
        const struct kio_region *region = ring->region;
        int r;

        if (ring->pieces == region->n_buffers || atomic_load(&region->closing))
                return 0;
        r = ring_set(ring, ring->pieces, false);
        if (r < 0)
                return r;
        ring->pieces++;
        return ring->pieces < region->n_buffers ? WORKER_AGAIN : 0;
}

/* Unregisters one piece, on the ring's worker. A failure is retried a bounded number of times,
 * since memory for it may become available and the client's pages must not stay pinned. */
static int run_unregister(struct kio_request *req)
{
        struct regions_ring *ring = container_of(req, struct regions_ring, req);
        int r;

        if (ring->pieces == 0)
                return ring->error;
        r = ring_set(ring, ring->pieces - 1, true);
        if (r < 0 && ++ring->attempts < REGIONS_ATTEMPTS_MAX)
                return WORKER_AGAIN;
        if (r < 0 && ring->error == 0)
                ring->error = r;
        ring->attempts = 0;
        ring->pieces--;
        return ring->pieces > 0 ? WORKER_AGAIN : ring->error;
}

/* --- steps on the loop thread --- */

static void on_step(struct kio_request *req)
{
        region_next(container_of(req, struct kio_region, step));
}

static void on_ring(struct kio_request *req)
{
        struct regions_ring *ring = container_of(req, struct regions_ring, req);
        struct kio_region *region = ring->region;

        if (req->result < 0 && region->ring_result == 0)
                region->ring_result = (int)req->result;
        if (--region->waiting == 0)
                region_next(region);
}

static void region_ask_rings(struct kio_region *region, int (*call)(struct kio_request *req))
{
        struct regions *r = region->regions;

        region->waiting = r->n_workers;
        region->ring_result = 0;
        for (unsigned i = 0; i < r->n_workers; i++) {
                struct regions_ring *ring = &region->rings[i];

                ring->region = region;
                ring->worker = &r->workers[i];
                ring->error = 0;
                ring->req = (struct kio_request){
                        .op = KIO_CALL,
                        .class = KIO_CLASS_PUT,
                        .call = call,
                        .complete = on_ring,
                };
                list_init(&ring->req.node);
                r->submit(r->io, &ring->req, i);
        }
        kio_flush(r->io);
}

static void region_map_step(struct kio_region *region)
{
        region->step = (struct kio_request){
                .op = KIO_CALL,
                .class = KIO_CLASS_BACKGROUND,
                .volume = region->volume,
                .call = run_map,
                .complete = on_step,
        };
        list_init(&region->step.node);
        kio_submit(region->regions->io, &region->step, 0);
        kio_flush(region->regions->io);
}

static void region_registered(struct kio_region *region)
{
        uint32_t pieces = region->n_buffers;

        for (unsigned i = 0; region->rings && i < region->regions->n_workers; i++)
                pieces = MIN(pieces, region->rings[i].pieces);
        region->registered_bytes = MIN((uint64_t)pieces * REGIONS_PIECE_BYTES, region->bytes);
        region->result = region->refused                            ? region->refused
                         : region->ring_result                      ? region->ring_result
                         : region->registered_bytes < region->bytes ? -ENOSPC
                                                                    : 0;
        region->state = KIO_REGION_REGISTERED;
}

/* Advances the region after its current step has finished. */
static void region_next(struct kio_region *region)
{
        bool closing = atomic_load(&region->closing);

        switch (region->state) {
        case KIO_REGION_MAPPING:
                if (!closing && region->mapped < region->to_map) {
                        region_map_step(region);
                        return;
                }
                region->state = KIO_REGION_REGISTERING;
                if (!closing && region->n_buffers > 0) {
                        region_ask_rings(region, run_register);
                        return;
                }
                __attribute__((fallthrough));
        case KIO_REGION_REGISTERING:
                region_registered(region);
                if (!closing) {
                        region->complete(region);
                        return;
                }
                __attribute__((fallthrough));
        case KIO_REGION_REGISTERED:
                region->state = KIO_REGION_UNREGISTERING;
                if (region->n_buffers > 0)
                        region_ask_rings(region, run_unregister);
                else
                        region_map_step(region); /* maps nothing, so that complete() never runs
                                                  * within the caller */
                return;
        case KIO_REGION_UNREGISTERING:
                region->result = region->ring_result;
                region->registered_bytes = 0;
                region_free(region);
                region->complete(region);
                return;
        default:
                assert(!"a region that is not registered");
        }
}

void regions_register(struct regions *r, struct kio_region *region, int refused)
{
        uint64_t pieces =
                region->bytes / REGIONS_PIECE_BYTES + (region->bytes % REGIONS_PIECE_BYTES != 0);
        uint32_t n = (uint32_t)MIN(pieces, (uint64_t)r->n_unused);

        assert(region->state == KIO_REGION_NONE && region->in_flight == 0 && region->complete);
        assert((uintptr_t)region->base % 4096 == 0 && region->bytes > 0);

        region->regions = r;
        region->result = 0;
        region->registered_bytes = 0;
        region->refused = refused;
        region->ring_result = 0;
        region->n_buffers = 0;
        region->mapped = region->to_map = region->huge_bytes = 0;
        region->huge = r->huge && region->may_be_huge;
        list_init(&region->node);
        list_append(&r->list, &region->node);
        region->state = KIO_REGION_MAPPING;
        if (refused == 0 && n > 0) {
                region->buffers = malloc(n * sizeof(*region->buffers));
                region->rings = calloc(r->n_workers, sizeof(*region->rings));
                if (!region->buffers || !region->rings) {
                        region->refused = -ENOMEM;
                } else {
                        for (; region->n_buffers < n; region->n_buffers++)
                                region->buffers[region->n_buffers] = r->unused[--r->n_unused];
                        region->to_map = MIN((uint64_t)n * REGIONS_PIECE_BYTES, region->bytes);
                }
        }
        region_map_step(region);
}

void regions_unregister(struct regions *r, struct kio_region *region)
{
        assert(region->regions == r && region->state != KIO_REGION_NONE);
        assert(region->in_flight == 0 && !atomic_load(&region->closing));

        atomic_store(&region->closing, true);
        if (region->state == KIO_REGION_REGISTERED)
                region_next(region);
}

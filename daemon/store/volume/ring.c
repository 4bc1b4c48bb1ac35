/* SPDX-License-Identifier: Apache-2.0 */
/* Grows the ring's file as segments are cut, so that it has room for STORE_RING_ENTRIES per slot.
 * The added part of the file is allocated, filled with zeros and synced, and is used once no table
 * write is in flight. If the limit has no room for the growth, and the ring has fewer than two
 * entries per slot, the coldest segment is removed.
 *
 * A few large slots need only a few pages. But a short ring wraps often, and needs a sync each
 * time, for which a disk with a volatile cache must also write all payloads in its cache. So the
 * ring gets at least a small share of the limit, if there is room.
 *
 * Loop thread; the file is extended on the blocking-call thread. Failures: the ring stays as it is.
 * The growth is tried again after a pause if slots need it, and otherwise at the next startup. */
#include <errno.h>

#include "base/clock.h"
#include "checked.h"
#include "store/volume/internal.h"

bool ring_is_growing(const struct volume *v)
{
        return v->growing_pages > 0;
}

/* Allocates the added part of the file. Runs on the blocking-call thread. */
static int grow_file(struct kio_request *req)
{
        struct volume *v = container_of(req, struct volume, grow_io);

        uint64_t bytes = (uint64_t)v->growing_pages * DISK_PAGE;
        /* Makes the removal of a data file durable first. If that file reappeared after a power
         * loss, all files together would exceed the limit, and startup would remove a file that is
         * needed. */
        int r = sync_names(v);

        if (r == 0)
                r = volume_check_space(v, bytes - v->growth_zeroed);
        if (r < 0)
                return r;
        v->charged_if_growth_fails = bytes;
        return dir_allocate(v->table_fd, bytes);
}

static bool slots_need_more(const struct volume *v)
{
        return ring_pages_for(v->cut_slots) > table_pages(v->table);
}

static void growth_submit(struct volume *v, enum kio_op op);

static void growth_failed(struct volume *v)
{
        v->growing_pages = 0;
        v->table_charged = v->charged_if_growth_fails;
        if (slots_need_more(v))
                v->no_room_until_ns = clock_mono_ns() + STORE_FULL_PAUSE_NS;
        else
                v->no_ring_share = true;
        put_serve_waiting(v);
}

/* Makes the growth wait for a sync of the table. The growth counts as an operation until then, so
 * that the volume is not closed before. */
static void growth_want_sync(struct volume *v)
{
        v->operations++;
        v->growth_waiting = true;
}

void ring_growth_synced(struct volume *v, int r)
{
        v->operations--;
        if (r < 0) {
                growth_failed(v);
                return;
        }
        v->growth_done = true;
        if (!table_in_flight(v->table))
                ring_use_growth(v);
}

/* Continues the growth after the file was allocated or a write of zeros ended. With store.prewrite,
 * the added part is filled with zeros, like segments, so that a later table write need not wait for
 * the file system to allocate or convert extents. */
static void growth_complete(struct kio_request *req)
{
        struct volume *v = container_of(req, struct volume, grow_io);
        uint64_t end = (uint64_t)v->growing_pages * DISK_PAGE;

        v->operations--;
        sync_note_names(v, req->result);
        if (req->result < 0) {
                if (slots_need_more(v) || !volume_is_no_space(req->result))
                        volume_note_error(v, "extending the file \"table\"", req->result);
                growth_failed(v);
        } else {
                if (req->op == KIO_WRITE) {
                        v->growth_zeroed += req->length;
                        v->stats.prewrite_bytes_written += req->length;
                }
                if (v->growth_zeroed < end && v->params.prewrite)
                        growth_submit(v, KIO_WRITE);
                else
                        growth_want_sync(v);
        }
        volume_progress(v);
}

static void growth_submit(struct volume *v, enum kio_op op)
{
        uint64_t end = (uint64_t)v->growing_pages * DISK_PAGE;

        v->grow_io = (struct kio_request){
                .op = op,
                .class = KIO_CLASS_PUT,
                .volume = v->kio_volume,
                .fd = v->table_fd,
                .call = op == KIO_CALL ? grow_file : NULL,
                .complete = growth_complete,
        };
        if (op == KIO_WRITE) {
                v->grow_io.offset = v->growth_zeroed;
                v->grow_io.buf = v->zeros;
                v->grow_io.length = MIN((uint64_t)STORE_PREWRITE_BYTES, end - v->growth_zeroed);
        }
        list_init(&v->grow_io.node);
        v->operations++;
        kio_submit(v->io, &v->grow_io, 0);
}

void ring_use_growth(struct volume *v)
{
        int r;

        if (!v->growth_done)
                return;
        v->growth_done = false;
        r = table_grow(v->table, v->growing_pages);
        if (r == -EAGAIN) {
                growth_want_sync(v);
                return;
        }
        if (r < 0) {
                growth_failed(v);
                return;
        }
        v->growing_pages = 0;
        put_serve_waiting(v);
}

/* Returns the preferred number of pages. The pages that slots need are requested before the ring's
 * share of the limit, because there may not be room for both. */
static uint32_t pages_wished(const struct volume *v)
{
        uint64_t share =
                round_down(v->params.limit / STORE_RING_SHARE / DISK_PAGE, STORE_RING_STEP_PAGES);

        if (v->no_ring_share || slots_need_more(v))
                return ring_pages_for(v->cut_slots);
        return (uint32_t)MIN(share, (uint64_t)STORE_RING_SHARE_PAGES);
}

void ring_iterate(struct volume *v)
{
        uint32_t pages = table_pages(v->table), want = pages_wished(v);
        uint64_t charged = volume_charged(v) - v->table_charged, room;

        if (ring_is_growing(v) || want <= pages || v->stopping || v->bypassed || v->params.as_is ||
            clock_mono_ns() < v->no_room_until_ns)
                return;
        room = v->params.limit > charged ? (v->params.limit - charged) / DISK_PAGE : 0;
        want = (uint32_t)MIN((uint64_t)want, round_down(room, STORE_RING_STEP_PAGES));
        if (want <= pages) {
                if ((uint64_t)pages * DISK_PAGE_ENTRIES < 2 * v->cut_slots) {
                        uint32_t slab = room_take_slab(v);

                        if (slab != UINT32_MAX) {
                                segment_retire(v, slab);
                                /* A new segment would have to be removed again, so none is made,
                                 * unless this one was larger than new ones are. */
                                v->ring_is_short |= v->segments[slab]->bytes <= v->segment_bytes;
                        }
                }
                return;
        }
        v->growing_pages = want;
        v->growth_zeroed = (uint64_t)pages * DISK_PAGE;
        v->charged_if_growth_fails = v->table_charged;
        v->table_charged = (uint64_t)want * DISK_PAGE;
        growth_submit(v, KIO_CALL);
}

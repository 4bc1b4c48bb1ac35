/* SPDX-License-Identifier: Apache-2.0 */
/* Makes, prewrites and removes data files, and computes how many the limit allows.
 *
 * A segment is one file of payload, and the slab of the same number in the slot allocator. Segments
 * are made in advance, up to a third of the limit and at most STORE_PREFORMATTED_MAX bytes. The
 * blocking-call thread allocates the file. While the volume is idle, the file is then filled with
 * zeros (prewritten), one write at a time, because the first write into an allocated but unwritten
 * extent takes 1.5 times as long as a later one. The segment is added to the allocator when all of
 * it is prewritten, or earlier when a put needs it. After that the segment is not prewritten
 * further, and puts into it wait for a write of zeros that is in flight. Nothing is prewritten
 * while puts or gets run: a concurrent write of zeros costs the device more than it saves the put.
 *
 * Everything that occupies the disk is charged against the limit before it is created: the fixed
 * files, the ring at the size to which it is growing, and each segment with a page for the file
 * system's metadata. The next segment is cut short, or not made, if it does not fit together with
 * the ring pages for its slots, which are estimated with the smallest slots in use. If a full store
 * gets smaller slots, the ring may become too short for them; the coldest segment is then removed
 * to make room for the ring.
 *
 * Failures: after the file system was full, no file is made for STORE_FULL_PAUSE_NS; existing files
 * stay in use. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "checked.h"
#include "cleanup.h"
#include "store/volume/internal.h"

enum {
        GUESSED_SLOT_BYTES = 64 * 1024, /* slot size to assume before any slot is in use */
        MIN_CUT_SEGMENT = 64 * 1024     /* bytes of the smallest segment that is worth a file */
};
static const uint64_t quiet_ns =
        UINT64_C(5) *
        1000000; /* time without puts and gets after which the volume counts as idle */

struct segment *segment_new(struct volume *v, uint32_t number)
{
        struct segment *seg = calloc(1, sizeof(*seg));

        if (!seg)
                return NULL;
        seg->volume = v;
        seg->number = number;
        seg->fd = -1;
        seg->tenant = SEGMENT_UNKNOWN;
        list_init(&seg->waiting);
        list_init(&seg->dirty_node);
        list_init(&seg->record_node);
        list_init(&seg->record.item.node);
        return seg;
}

struct segment *segment_free(struct segment *seg)
{
        if (!seg)
                return NULL;
        if (seg->fd >= 0)
                close(seg->fd);
        free(seg);
        return NULL;
}

/* --- the limit --- */

uint64_t segment_bytes_for(uint64_t limit, uint64_t wished)
{
        /* Whole MiB, so that slots of common sizes fill a segment without a rest, and large enough
         * that the limit needs no more than DISK_SEGMENTS_MAX files. */
        uint64_t bytes = MAX(round_down(MIN(wished, limit / 64), STORE_MIN_SEGMENT),
                             (uint64_t)STORE_MIN_SEGMENT);
        uint64_t least = round_up(limit / DISK_SEGMENTS_MAX, STORE_MIN_SEGMENT);

        return MAX(bytes, least);
}

uint32_t ring_pages_for(uint64_t slots)
{
        uint64_t pages = (STORE_RING_ENTRIES * slots + DISK_PAGE_ENTRIES - 1) / DISK_PAGE_ENTRIES;

        pages = round_up(pages, STORE_RING_STEP_PAGES);
        return (uint32_t)MIN(MAX(pages, (uint64_t)STORE_RING_MIN_PAGES),
                             round_down((uint64_t)TABLE_MAX_PAGES - 1, STORE_RING_STEP_PAGES));
}

static uint64_t charged_but_ring(const struct volume *v)
{
        return (uint64_t)DISK_SUPERBLOCKS * DISK_PAGE + STORE_SLACK_BYTES +
               namespaces_charged(v->namespaces) + v->segments_charged;
}

uint64_t volume_charged(const struct volume *v)
{
        return charged_but_ring(v) + v->table_charged;
}

static uint64_t segment_charge(uint64_t bytes)
{
        return bytes + DISK_PAGE;
}

uint64_t segments_least_limit(const struct volume *v)
{
        return charged_but_ring(v) - v->segments_charged + segment_charge(MIN_CUT_SEGMENT) +
               (uint64_t)STORE_RING_MIN_PAGES * DISK_PAGE;
}

/* Returns the smallest slot size in use, or `slot_bytes` if that is smaller. Returns
 * GUESSED_SLOT_BYTES if no slot is in use and `slot_bytes` is UINT64_MAX. */
static uint64_t smallest_slot(const struct volume *v, uint64_t slot_bytes)
{
        uint64_t smallest = slot_bytes;

        for (unsigned i = 0; i < slabs_class_count(v->slabs); i++) {
                uint32_t slabs;
                uint64_t slots, used;

                slabs_class_usage(v->slabs, i, &slabs, &slots, &used);
                if (used > 0)
                        smallest = MIN(smallest, slabs_class_bytes(v->slabs, i));
        }
        return smallest == UINT64_MAX ? GUESSED_SLOT_BYTES : smallest;
}

/* Returns the payload bytes of the next segment, or 0 if the limit has no room for one of at least
 * `slot_bytes`. */
static uint64_t next_bytes(const struct volume *v, uint64_t slot_bytes)
{
        uint64_t slot = smallest_slot(v, slot_bytes ? slot_bytes : UINT64_MAX);
        uint64_t slots = v->cut_slots, charged = charged_but_ring(v), low = 0, high, least;

        for (uint32_t i = 0; i < v->n_segments; i++)
                if (v->segments[i]->fd >= 0 && v->segments[i]->slot_bytes == 0)
                        slots += v->segments[i]->bytes / slot;

        /* Binary search for the largest number of slots that fit; the last one may be cut off at
         * the segment's end. */
        high = v->segment_bytes / slot + 1;
        while (low < high) {
                uint64_t n = (low + high + 1) / 2;
                uint64_t bytes = MIN(n * slot, v->segment_bytes);
                uint64_t ring = MAX(v->table_charged,
                                    (uint64_t)ring_pages_for(slots + bytes / slot) * DISK_PAGE);

                if (charged + segment_charge(bytes) + ring <= v->params.limit)
                        low = n;
                else
                        high = n - 1;
        }
        least = MAX(slot_bytes, (uint64_t)MIN_CUT_SEGMENT);
        low = MIN(low * slot, v->segment_bytes);
        return low >= least ? low : 0;
}

uint64_t segments_next_bytes(const struct volume *v)
{
        return next_bytes(v, 0);
}

uint64_t segments_max(const struct volume *v)
{
        uint64_t charged = volume_charged(v), each = segment_charge(v->segment_bytes);
        uint64_t room = v->params.limit > charged ? v->params.limit - charged : 0;
        uint64_t there = v->n_segments - v->n_retired + (v->formatting != NULL);

        /* the last segment may be smaller than the others */
        return MIN(there + room / each + (room % each >= segment_charge(MIN_CUT_SEGMENT)),
                   MAX(there, (uint64_t)DISK_SEGMENTS_MAX));
}

/* --- making files --- */

/* Creates the file of the segment that is being made. Runs on the blocking-call thread, or on the
 * thread that opens the volume. */
static int make_file(struct kio_request *req)
{
        struct volume *v = container_of(req, struct volume, format_io);
        struct segment *seg = v->formatting;
        char name[DIR_SEGMENT_NAME_BYTES];
        int r;

        r = volume_check_space(v, seg->bytes); /* checked for a sparse file, too, because its blocks
                                                  are allocated later */
        if (r < 0)
                return r;
        dir_segment_name(seg->number, name);
        seg->fd = dir_open_file(v->dir, name, O_RDWR | O_CREAT | O_EXCL);
        if (seg->fd == -EEXIST) {
                /* the file is unused, because the segments that recovery found are open already */
                unlinkat(v->dir->fd, name, 0);
                seg->fd = dir_open_file(v->dir, name, O_RDWR | O_CREAT | O_EXCL);
        }
        if (seg->fd < 0)
                return seg->fd;
        if (v->params.prewrite)
                r = dir_allocate(seg->fd, seg->bytes);
        else
                r = ftruncate(seg->fd, (off_t)seg->bytes) < 0 ? -errno : 0;
        if (r == 0) {
                int64_t usage = dir_file_usage(seg->fd);

                seg->charged = segment_charge(MAX(seg->bytes, usage < 0 ? 0 : (uint64_t)usage));
                return 0;
        }
        close(seg->fd);
        seg->fd = -1;
        unlinkat(v->dir->fd, name, 0);
        return r;
}

static int format_begin(struct volume *v, uint64_t bytes)
{
        struct segment **p = realloc(v->segments, (v->n_segments + 1) * sizeof(struct segment *));
        struct segment *seg;

        if (!p)
                return -ENOMEM;
        v->segments = p;
        seg = segment_new(v, v->n_segments);
        if (!seg)
                return -ENOMEM;
        seg->bytes = bytes;
        seg->tenant = SEGMENT_ZERO;
        seg->charged = segment_charge(bytes);
        seg->prewritten = v->params.prewrite ? 0 : bytes;
        v->segments_charged += seg->charged;
        v->formatting = seg;
        return 0;
}

static void format_end(struct volume *v, uint64_t charged_before, int r)
{
        struct segment *seg = TAKE_PTR(v->formatting);

        v->segments_charged -= charged_before;
        if (r < 0) {
                v->no_room_until_ns = clock_mono_ns() + STORE_FULL_PAUSE_NS;
                segment_free(seg);
                if (v->open && r == -ESTALE) { /* from dir_open_file(): the directory was emptied,
                                                * so evicting chunks does not help */
                        v->identity.failed = IDENTITY_FAILURES;
                        volume_bypass(v, "its file \"" DIR_SUPERBLOCK
                                         "\" was removed while the daemon used it; chunks written "
                                         "there since then are lost: restart the daemon");
                } else if (v->open) {
                        volume_note_error(v, "creating a data file", r);
                }
                return;
        }
        if (v->full && v->params.prewrite) /* making a sparse file does not show that the file
                                              system has room */
                volume_note_full(v, false);
        v->segments_charged += seg->charged;
        v->segments[v->n_segments++] = seg;
        v->names_dirty = true;
}

static void format_complete(struct kio_request *req)
{
        struct volume *v = container_of(req, struct volume, format_io);

        v->operations--;
        format_end(v, segment_charge(v->formatting->bytes), (int)req->result);
        put_serve_waiting(v);
        volume_progress(v);
}

static bool may_format(const struct volume *v)
{
        return !v->params.as_is && !v->formatting && !v->stopping && !v->bypassed &&
               !v->ring_is_short && v->n_segments < DISK_SEGMENTS_MAX &&
               clock_mono_ns() >= v->no_room_until_ns;
}

bool segments_format_next(struct volume *v, uint64_t slot_bytes)
{
        uint64_t bytes;

        if (!may_format(v) || slot_bytes >= v->no_room_for)
                return false;
        bytes = next_bytes(v, slot_bytes);
        if (bytes == 0)
                v->no_room_for = slot_bytes; /* There is no room for larger slots either, until a
                                              * segment is cut anew or removed. */
        if (bytes == 0 || format_begin(v, bytes) < 0)
                return false;
        v->format_io = (struct kio_request){
                .op = KIO_CALL,
                .class = KIO_CLASS_PUT,
                .volume = v->kio_volume,
                .call = make_file,
                .complete = format_complete,
        };
        list_init(&v->format_io.node);
        v->operations++;
        kio_submit(v->io, &v->format_io, v->formatting->number);
        return true;
}

int segments_format_now(struct volume *v)
{
        uint64_t bytes = next_bytes(v, 0);
        int r;

        if (bytes == 0)
                return -ENOSPC;
        r = format_begin(v, bytes);
        if (r < 0)
                return r;
        r = make_file(&v->format_io);
        format_end(v, segment_charge(bytes), r);
        return r;
}

/* --- prewriting, and adding to the allocator --- */

bool segments_add_next(struct volume *v)
{
        uint32_t next = slabs_added(v->slabs);

        return next < v->n_segments && slabs_add(v->slabs, v->segments[next]->bytes) == 0;
}

static void prewrite_complete(struct kio_request *req)
{
        struct volume *v = container_of(req, struct volume, prewrite_io);
        struct segment *seg = TAKE_PTR(v->prewriting);

        v->operations--;
        seg->prewriting = false;
        if (req->result < 0) {
                /* if the error persists, a put's write into the file will fail, too */
                v->stats.write_errors++;
                volume_note_error(v, "filling a new data file with zeros", req->result);
                seg->prewritten = seg->bytes;
        } else {
                seg->prewritten += req->length;
                v->stats.prewrite_bytes_written += req->length;
        }
        put_resume(v, seg);
        volume_progress(v);
}

/* Returns whether the volume has been idle for quiet_ns. A write of zeros occupies the device as
 * long as the put that it speeds up, so concurrently with puts it costs more than it saves. */
static bool is_quiet(struct volume *v)
{
        uint64_t now;

        if (v->pins > v->lent_pins || !turns_is_empty(&v->slot_waiting)) {
                v->quiet_from_ns = 0;
                return false;
        }
        now = clock_mono_ns();
        if (v->quiet_from_ns == 0)
                v->quiet_from_ns = now + quiet_ns;
        return now >= v->quiet_from_ns;
}

/* Returns the next segment to prewrite, or NULL if there is none, one is being prewritten, or the
 * volume stops or is bypassed. */
static struct segment *find_unwritten(const struct volume *v)
{
        if (v->prewriting || v->stopping || v->bypassed)
                return NULL;
        for (uint32_t i = slabs_added(v->slabs); i < v->n_segments; i++)
                if (v->segments[i]->prewritten < v->segments[i]->bytes)
                        return v->segments[i];
        return NULL;
}

uint64_t segments_deadline_ns(const struct volume *v)
{
        return find_unwritten(v) ? v->quiet_from_ns : 0;
}

static void prewrite_iterate(struct volume *v)
{
        struct segment *seg = NULL;
        bool quiet = is_quiet(v);

        while (slabs_added(v->slabs) < v->n_segments) {
                seg = v->segments[slabs_added(v->slabs)];
                if (seg->prewritten < seg->bytes || !segments_add_next(v))
                        break;
        }
        seg = find_unwritten(v);
        if (!seg || !quiet)
                return;
        v->prewriting = seg;
        seg->prewriting = true;
        v->prewrite_io = (struct kio_request){
                .op = KIO_WRITE,
                .class = KIO_CLASS_BACKGROUND,
                .volume = v->kio_volume,
                .fd = seg->fd,
                .offset = seg->prewritten,
                .buf = v->zeros,
                .length = MIN((uint64_t)STORE_PREWRITE_BYTES, seg->bytes - seg->prewritten),
                .complete = prewrite_complete,
        };
        list_init(&v->prewrite_io.node);
        v->operations++;
        kio_submit(v->io, &v->prewrite_io, seg->number);
}

void segments_iterate(struct volume *v)
{
        uint32_t preformatted = slabs_free_count(v->slabs) + v->n_segments - slabs_added(v->slabs);
        uint64_t wanted = v->params.prewrite ? MIN(v->params.limit / STORE_PREFORMATTED_PART,
                                                   STORE_PREFORMATTED_MAX)
                                             : 0;

        if (preformatted < STORE_SEGMENTS_PREFORMATTED || preformatted * v->segment_bytes < wanted)
                segments_format_next(v, 0);
        prewrite_iterate(v);
}

/* --- cutting and removing --- */

void segment_note_cut(struct volume *v, uint32_t slab)
{
        struct segment *seg = v->segments[slab];
        int class = slabs_slab_class(v->slabs, slab);
        uint64_t slot_bytes = slabs_class_bytes(v->slabs, (unsigned)class);
        int tenant = slabs_class_group(v->slabs, (unsigned)class);
        bool is_new;

        if (seg->slot_bytes == slot_bytes && seg->tenant == tenant)
                return;
        if (seg->tenant != tenant)
                handover_begin(v, seg, tenant);
        v->no_room_for = UINT64_MAX;
        if (seg->slot_bytes)
                v->cut_slots -= seg->bytes / seg->slot_bytes;
        is_new = seg->slot_bytes == 0;
        seg->slot_bytes = slot_bytes;
        /* the first entry with the new epoch voids the entries of the old one */
        seg->epoch = ++v->seq;
        seg->unrecorded |= is_new && seg->handing_over;
        if (is_new && !seg->unrecorded)
                mark_want(v, MARK_SIZES);
        v->cut_slots += seg->bytes / slot_bytes;
}

/* Takes a slab out of use: assigns an owner that is not a chunk to all its slots, and removes the
 * file. */
void segment_retire(struct volume *v, uint32_t slab)
{
        struct segment *seg = v->segments[slab];
        char name[DIR_SEGMENT_NAME_BYTES];
        unsigned class = 0;

        assert(slabs_slab_class(v->slabs, slab) < 0 && !seg->prewriting && !seg->syncing &&
               !seg->handing_over);
        for (unsigned i = 0; i < slabs_class_count(v->slabs); i++) {
                uint64_t bytes = slabs_class_bytes(v->slabs, i);

                if (bytes <= seg->bytes && bytes > slabs_class_bytes(v->slabs, class))
                        class = i;
        }
        if (slabs_assign(v->slabs, slab, class) < 0)
                return;
        for (uint32_t i = 0; i < slabs_slab_slots(v->slabs, slab); i++)
                slabs_occupy(v->slabs, (struct slab_slot){ .slab = slab, .slot = i },
                             index_max(v->index)); /* a number above those of all chunks */

        if (seg->slot_bytes)
                v->cut_slots -= seg->bytes / seg->slot_bytes;
        seg->slot_bytes = 0;
        seg->unrecorded = false;
        v->segments_charged -= seg->charged;
        v->no_room_for = UINT64_MAX;
        seg->charged = 0;
        seg->dirty = seg->sync_wanted = false;
        list_unlink(&seg->dirty_node);
        if (seg->fd >= 0) {
                close(seg->fd);
                seg->fd = -1;
                seg->lent_as = 0;
                dir_segment_name(seg->number, name);
                unlinkat(v->dir->fd, name, 0);
        }
        if (v->open)
                mark_want(v, MARK_SIZES);
        v->n_retired++;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Passes a data file from one tenant to another: writes a record to the table that voids the
 * entries of the old tenant, syncs the table, fills the whole file with zeros, and syncs the file.
 * Puts into the file wait until the end. The first cut of a file is recorded in the same way, but
 * without the zeros, if the table may have entries of an earlier file with the same number.
 *
 * If another process still has the file open, because it was lent to a client, perhaps before this
 * daemon started, that process could read the new tenant's bytes. Such a file is not filled with
 * zeros but replaced by a new one; the other process keeps the old file, which no longer has a
 * name.
 *
 * Loop thread; the zeros are written on the blocking-call thread. Failures: the file is not used
 * for the new tenant, and the puts that wait for the file fail with the error. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "cleanup.h"
#include "store/volume/internal.h"

/* Returns whether the store may have had chunks of another tenant. That is assumed if an id was
 * assigned whose namespace is missing, because the tenant of a removed or lost namespace is
 * unknown. */
static bool has_other_tenants(const struct volume *v, int tenant)
{
        const struct namespace *ns;

        if (namespaces_next_id(v->namespaces) != namespaces_count(v->namespaces) + 1)
                return true;
        for (unsigned i = 0; (ns = namespaces_at(v->namespaces, i)); i++)
                if (ns->seen.tenant != tenant)
                        return true;
        return false;
}

/* Replaces the data file by a new one, which gets its name and its descriptor number. Runs on the
 * blocking-call thread. */
static int replace_file(struct segment *seg)
{
        struct volume *v = seg->volume;
        char name[DIR_SEGMENT_NAME_BYTES], other[DIR_SEGMENT_NAME_BYTES];
        _cleanup_(closep) int fd = -1;
        int r = volume_check_space(v, v->params.prewrite ? seg->bytes : 0);

        if (r < 0)
                return r;
        dir_segment_name(seg->number, name);
        dir_replacement_name(seg->number, other);
        unlinkat(v->dir->fd, other, 0);
        fd = dir_open_file(v->dir, other, O_RDWR | O_CREAT | O_EXCL);
        if (fd < 0)
                return fd;
        if (v->params.prewrite)
                r = dir_allocate(fd, seg->bytes);
        else
                r = ftruncate(fd, (off_t)seg->bytes) < 0 ? -errno : 0;
        if (r == 0 && fsync(fd) < 0)
                r = -errno;
        if (r == 0 && renameat(v->dir->fd, other, v->dir->fd, name) < 0)
                r = -errno;
        if (r < 0) {
                unlinkat(v->dir->fd, other, 0);
                return r;
        }
        if (dup3(fd, seg->fd, O_CLOEXEC) < 0)
                return -errno;
        seg->replaced = true;
        return sync_names(v);
}

/* Fills the file with zeros and syncs it, or replaces it if another process has it open. Runs on
 * the blocking-call thread. */
static int zero_file(struct kio_request *req)
{
        struct segment *seg = container_of(req, struct segment, handover_io);
        off_t bytes = (off_t)seg->bytes;
        bool sparse = !seg->volume->params.prewrite;
        int r = -EOPNOTSUPP;

        if (file_is_shared(seg->fd) > 0)
                return replace_file(seg);
        if (!sparse)
                r = fallocate(seg->fd, FALLOC_FL_ZERO_RANGE, 0, bytes) < 0 ? -errno : 0;
        if (r == -EOPNOTSUPP)
                r = fallocate(seg->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, bytes) < 0
                            ? -errno
                            : 0;
        if (r == -EOPNOTSUPP)
                r = ftruncate(seg->fd, 0) < 0 || ftruncate(seg->fd, bytes) < 0 ? -errno : 0;
        if (r == 0 && !sparse)
                r = dir_allocate(seg->fd, seg->bytes);
        if (r == 0 && fdatasync(seg->fd) < 0)
                r = -errno;
        return r;
}

/* Ends a hand-over; the puts that wait for it continue or fail. */
static void handover_end(struct segment *seg, int r)
{
        struct volume *v = seg->volume;

        v->operations--;
        v->stats.handover_replacements += seg->replaced;
        seg->replaced = false;
        seg->handing_over = false;
        seg->handover = r;
        if (r < 0) {
                v->stats.handover_failures++;
                seg->tenant = SEGMENT_UNKNOWN; /* the next put that gets a slot here starts another
                                                  hand-over */
        } else {
                v->stats.handovers++;
        }
        put_resume(v, seg);
}

static void wiped(struct kio_request *req)
{
        struct segment *seg = container_of(req, struct segment, handover_io);
        struct volume *v = seg->volume;

        sync_note_names(v, req->result);
        if (req->result < 0) {
                v->stats.write_errors++;
                volume_note_error(v, "wiping a data file for another tenant", req->result);
        }
        handover_end(seg, (int)req->result);
        volume_progress(v);
}

void handover_synced(struct segment *seg, int r)
{
        struct volume *v = seg->volume;

        if (r == 0 && seg->unrecorded) {
                seg->unrecorded = false;
                mark_want(v, MARK_SIZES);
        }
        if (r < 0 || !seg->to_wipe) {
                handover_end(seg, r);
                return;
        }
        seg->handover_io = (struct kio_request){
                .op = KIO_CALL,
                .class = KIO_CLASS_PUT,
                .volume = v->kio_volume,
                .call = zero_file,
                .complete = wiped,
        };
        list_init(&seg->handover_io.node);
        kio_submit(v->io, &seg->handover_io, seg->number);
}

void handover_entry(const struct segment *seg, struct disk_entry *ret)
{
        *ret = (struct disk_entry){
                .seq = DISK_HANDOVER_SEQ,
                .segment = seg->number,
                .slot_pages = (uint32_t)(seg->slot_bytes / DISK_PAGE),
                .length = DISK_PAGE,
                .tenant = (uint16_t)seg->tenant,
                .namespace_id = DISK_HANDOVER_NAMESPACE,
                .created_ms = clock_unix_ms(),
                .segment_epoch = seg->epoch,
        };
}

void handover_written(struct segment *seg, int r)
{
        if (r < 0)
                handover_end(seg, r);
        else
                list_append(&seg->volume->records_waiting, &seg->record_node);
}

/* Begins a hand-over. The record in the table is needed because startup accepts the entries of the
 * old cut until an entry with the new epoch is in the table, and these would refer to the new
 * tenant's bytes. If the store never had another tenant, no record is needed, unless the table has
 * entries that are void only by the recorded sizes, which the first cut of the file changes. A
 * newly made file gets a record, too, because an earlier file may have had its number. In a store
 * of several tenants each first cut of a file costs a table page and a sync; only the puts into
 * this segment wait for these. */
void handover_begin(struct volume *v, struct segment *seg, int tenant)
{
        int from = seg->tenant;
        bool passes = from >= 0 || has_other_tenants(v, tenant);

        seg->tenant = tenant;
        seg->handover = 0;
        seg->lent_as = 0;
        if (!passes && seg->number >= v->void_below)
                return;
        seg->handing_over = true;
        seg->to_wipe = passes && from != SEGMENT_ZERO;
        seg->record.kind = WORK_HANDOVER;
        v->operations++;
        table_add(v, &seg->record.item);
}

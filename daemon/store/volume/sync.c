/* SPDX-License-Identifier: Apache-2.0 */
/* Makes writes durable: one pass of fdatasync over the segments that requests wait for, the
 * directory if it has new names, and the table.
 *
 * One pass runs at a time. A request that arrives during a pass waits for the next pass, because
 * the running one may not cover its writes. Passes are also started for the ring
 * (table_wants_sync()), for hand-overs and for the growth of the ring. Two syncs of the table must
 * not run concurrently, because the kernel reports a failure to only one of them.
 *
 * After a failed sync, the success of a later sync proves nothing, because the kernel may have
 * dropped the pages that it could not write. After a failed sync of a segment or of the directory,
 * the volume answers NOT_DURABLE. The superblock records the failure (doubt_seq), so that chunks of
 * this process count as not durable after the next startup, too. After a failed sync of the table
 * the volume is bypassed: the pages that the sync was to cover may be the newest copies of durable
 * entries, so the older copies must not be overwritten. The answer is also NOT_DURABLE if the file
 * system keeps nothing across a power loss. */
#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "checked.h"
#include "store/volume/internal.h"

void sync_mark_dirty(struct segment *seg)
{
        if (!seg->dirty)
                list_append(&seg->volume->dirty_segments, &seg->dirty_node);
        seg->dirty = true;
}

void sync_want(struct segment *seg)
{
        seg->sync_wanted = true;
}

void sync_want_all(struct volume *v)
{
        list_for_each (&v->dirty_segments, n)
                sync_want(container_of(n, struct segment, dirty_node));
}

static void sync_note_failed(struct volume *v, int64_t r, unsigned marks)
{
        v->stats.sync_errors++;
        v->sync_failed = true;
        if (marks & ~v->sync_marks)
                mark_want(v, marks);
        v->sync_marks |= marks;
        volume_note_error(v, "syncing its files", r);
}

int sync_names(struct volume *v)
{
        int r = dir_sync(v->dir);

        if (r < 0)
                v->names_unsynced = true;
        return r;
}

void sync_note_names(struct volume *v, int64_t r)
{
        if (atomic_exchange(&v->names_unsynced, false))
                sync_note_failed(v, r, MARK_UNSYNCED | MARK_DOUBT);
}

static void sync_one_done(struct volume *v, int64_t result, unsigned marks)
{
        struct list_node *n;
        int r;

        v->operations--;
        v->stats.syncs++;
        if (result < 0)
                sync_note_failed(v, result, marks);
        assert(v->sync_outstanding > 0);
        if (--v->sync_outstanding > 0)
                return;
        r = v->sync_failed || !v->dir->can_sync ? STORE_NOT_DURABLE : 0;
        while ((n = list_pop(&v->sync_flying)))
                put_finish(v, container_of(n, struct store_put, node), r);
}

static void segment_synced(struct kio_request *req)
{
        struct segment *seg = container_of(req, struct segment, sync);
        struct volume *v = seg->volume;

        seg->syncing = false;
        sync_one_done(v, req->result, MARK_UNSYNCED | MARK_DOUBT);
        volume_progress(v);
}

static void table_synced(struct kio_request *req)
{
        struct volume *v = container_of(req, struct volume, table_sync_io);
        int r = (int)MIN(req->result, 0);
        struct list_node *n;

        if (r < 0) {
                char reason[128];

                snprintf(reason, sizeof(reason), "the table cannot be synced: %s", strerror(-r));
                volume_bypass(v, reason);
        }
        table_sync_end(v->table, r);
        /* If an earlier sync has failed, this success does not show that its pages, with records of
         * hand-overs, are on the disk. */
        r = table_failure(v->table);
        while ((n = list_pop(&v->records_flying)))
                handover_synced(container_of(n, struct segment, record_node), r);
        if (v->growth_flying) {
                v->growth_flying = false;
                ring_growth_synced(v, r);
        }
        sync_one_done(v, req->result, MARK_UNSYNCED);
        volume_progress(v);
}

static void names_synced(struct kio_request *req)
{
        struct volume *v = container_of(req, struct volume, names_sync_io);

        sync_one_done(v, req->result, MARK_UNSYNCED | MARK_DOUBT);
        volume_progress(v);
}

static void submit_sync(struct volume *v, struct kio_request *req, int fd,
                        void (*complete)(struct kio_request *), unsigned affinity)
{
        *req = (struct kio_request){
                .op = KIO_SYNC,
                .class = KIO_CLASS_PUT,
                .volume = v->kio_volume,
                .fd = fd,
                .complete = complete,
        };
        list_init(&req->node);
        v->operations++;
        v->sync_outstanding++;
        kio_submit(v->io, req, affinity);
}

/* Returns whether the table needs a sync although no request waits for one: the table itself wants
 * one, the record of a segment's first cut or hand-over waits to become durable, or the ring is to
 * grow. */
static bool is_table_due(const struct volume *v)
{
        return table_wants_sync(v->table) || !list_empty(&v->records_waiting) || v->growth_waiting;
}

void sync_iterate(struct volume *v)
{
        struct list_node *n;

        if (v->sync_outstanding > 0 || (list_empty(&v->sync_waiting) && !is_table_due(v)))
                return;
        if (v->sync_failed || !v->dir->can_sync) {
                while ((n = list_pop(&v->sync_waiting)))
                        put_finish(v, container_of(n, struct store_put, node), STORE_NOT_DURABLE);
                if (!is_table_due(v))
                        return;
        }
        list_splice(&v->sync_flying, &v->sync_waiting);
        list_splice(&v->records_flying, &v->records_waiting);
        v->growth_flying = v->growth_waiting;
        v->growth_waiting = false;
        list_for_each_safe (&v->dirty_segments, i) {
                struct segment *seg = container_of(i, struct segment, dirty_node);

                if (!seg->sync_wanted)
                        continue;
                /* The segment is marked clean before the sync begins, because a later write marks
                 * it dirty again. */
                list_unlink(&seg->dirty_node);
                seg->dirty = seg->sync_wanted = false;
                seg->syncing = true;
                submit_sync(v, &seg->sync, seg->fd, segment_synced, seg->number);
        }
        if (v->names_dirty && !list_empty(&v->sync_flying)) {
                v->names_dirty = false;
                submit_sync(v, &v->names_sync_io, v->dir->fd, names_synced, 0);
        }
        table_sync_begin(v->table);
        submit_sync(v, &v->table_sync_io, v->table_fd, table_synced, 0);
}

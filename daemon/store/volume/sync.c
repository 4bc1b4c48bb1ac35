/* SPDX-License-Identifier: Apache-2.0 */
/* Durability: one pass of fdatasync over the segments that somebody waits for, the directory if it
 * has new names, and the table, for all who wait.
 *
 * One pass at a time; who comes while one runs waits for the next, since its writes may not be in
 * this one. The ring asks for passes too, to keep its promise about power loss. A failed sync is
 * never repeated and believed: the kernel may have dropped what it could not write, so from then on
 * everything is answered NOT_DURABLE, and the next start must look at all of the ring. NOT_DURABLE
 * is the answer as well where the file system keeps nothing over a power loss. */
#include <assert.h>

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

void sync_note_failed(struct volume *v, int64_t r)
{
        v->stats.sync_errors++;
        if (!v->sync_failed) {
                v->sync_failed = true;
                mark_want(v, MARK_UNSYNCED);
        }
        volume_note_error(v, "a sync", r);
}

static void sync_one_done(struct volume *v, int64_t result)
{
        struct list_node *n;
        int r;

        v->operations--;
        v->stats.syncs++;
        if (result < 0)
                sync_note_failed(v, result);
        assert(v->sync_outstanding > 0);
        if (--v->sync_outstanding > 0)
                return;
        table_sync_end(v->table, v->sync_failed ? -1 : 0);
        r = v->sync_failed || !v->dir->can_sync ? STORE_NOT_DURABLE : 0;
        while ((n = list_pop(&v->sync_flying)))
                put_finish(v, container_of(n, struct store_put, node), r);
}

static void segment_synced(struct kio_request *req)
{
        struct segment *seg = container_of(req, struct segment, sync);
        struct volume *v = seg->volume;

        seg->syncing = false;
        sync_one_done(v, req->result);
        volume_progress(v);
}

static void table_synced(struct kio_request *req)
{
        struct volume *v = container_of(req, struct volume, table_sync_io);

        sync_one_done(v, req->result);
        volume_progress(v);
}

static void names_synced(struct kio_request *req)
{
        struct volume *v = container_of(req, struct volume, names_sync_io);

        sync_one_done(v, req->result);
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

void sync_iterate(struct volume *v)
{
        struct list_node *n;

        if (v->sync_outstanding > 0 ||
            (list_empty(&v->sync_waiting) && !table_wants_sync(v->table)))
                return;
        if (v->sync_failed || !v->dir->can_sync) {
                while ((n = list_pop(&v->sync_waiting)))
                        put_finish(v, container_of(n, struct store_put, node), STORE_NOT_DURABLE);
                if (!table_wants_sync(v->table))
                        return;
        }
        list_splice(&v->sync_flying, &v->sync_waiting);
        list_for_each_safe (&v->dirty_segments, i) {
                struct segment *seg = container_of(i, struct segment, dirty_node);

                if (!seg->sync_wanted)
                        continue;
                /* Clean before the sync begins: what is written meanwhile makes it dirty again. */
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

/* SPDX-License-Identifier: Apache-2.0 */
/* Durability: one pass of fdatasync over the segments that somebody waits for, the directory if it
 * has new names, and the table, for all who wait.
 *
 * One pass at a time; who comes while one runs waits for the next, since its writes may not be in
 * this one. The ring asks for passes too, to keep its promise about power loss. A failed sync is
 * never repeated and believed: the kernel may have dropped what it could not write, so from then on
 * everything is answered NOT_DURABLE. The same where the file system keeps nothing over a power
 * loss. */
#include <assert.h>

#include "store/internal.h"

void sync_mark_dirty(struct segment *seg)
{
        if (!seg->dirty)
                list_append(&seg->store->dirty_segments, &seg->dirty_node);
        seg->dirty = true;
}

void sync_want(struct segment *seg)
{
        seg->sync_wanted = true;
}

void sync_want_all(struct store *s)
{
        list_for_each (&s->dirty_segments, n)
                sync_want(container_of(n, struct segment, dirty_node));
}

static void sync_one_done(struct store *s, int64_t result)
{
        struct list_node *n;
        int r;

        s->operations--;
        s->stats.syncs++;
        if (result < 0) {
                s->stats.sync_errors++;
                s->sync_failed = true;
        }
        assert(s->sync_outstanding > 0);
        if (--s->sync_outstanding > 0)
                return;
        table_sync_end(s->table, s->sync_failed ? -1 : 0);
        r = s->sync_failed || !s->dir->can_sync ? STORE_NOT_DURABLE : 0;
        while ((n = list_pop(&s->sync_flying)))
                put_finish(s, container_of(n, struct store_put, node), r);
}

static void segment_synced(struct kio_request *req)
{
        struct segment *seg = container_of(req, struct segment, sync);
        struct store *s = seg->store;

        seg->syncing = false;
        sync_one_done(s, req->result);
        store_progress(s);
}

static void table_synced(struct kio_request *req)
{
        struct store *s = container_of(req, struct store, table_sync_io);

        sync_one_done(s, req->result);
        store_progress(s);
}

static void names_synced(struct kio_request *req)
{
        struct store *s = container_of(req, struct store, names_sync_io);

        sync_one_done(s, req->result);
        store_progress(s);
}

static void submit_sync(struct store *s, struct kio_request *req, int fd,
                        void (*complete)(struct kio_request *), unsigned affinity)
{
        *req = (struct kio_request){
                .op = KIO_SYNC, .class = KIO_CLASS_PUT, .fd = fd, .complete = complete
        };
        list_init(&req->node);
        s->operations++;
        s->sync_outstanding++;
        kio_submit(s->io, req, affinity);
}

void sync_turn(struct store *s)
{
        struct list_node *n;

        if (s->sync_outstanding > 0 ||
            (list_empty(&s->sync_waiting) && !table_wants_sync(s->table)))
                return;
        if (s->sync_failed || !s->dir->can_sync) {
                while ((n = list_pop(&s->sync_waiting)))
                        put_finish(s, container_of(n, struct store_put, node), STORE_NOT_DURABLE);
                if (!table_wants_sync(s->table))
                        return;
        }
        list_splice(&s->sync_flying, &s->sync_waiting);
        list_for_each_safe (&s->dirty_segments, i) {
                struct segment *seg = container_of(i, struct segment, dirty_node);

                if (!seg->sync_wanted)
                        continue;
                /* Clean before the sync begins: what is written meanwhile makes it dirty again. */
                list_unlink(&seg->dirty_node);
                seg->dirty = seg->sync_wanted = false;
                seg->syncing = true;
                submit_sync(s, &seg->sync, seg->fd, segment_synced, seg->number);
        }
        if (s->names_dirty && !list_empty(&s->sync_flying)) {
                s->names_dirty = false;
                submit_sync(s, &s->names_sync_io, s->dir->fd, names_synced, 0);
        }
        table_sync_begin(s->table);
        submit_sync(s, &s->table_sync_io, s->table_fd, table_synced, 0);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A chunk on its way in: slot, payload write, table entry, and if asked for a sync.
 *
 * From store_put() on the chunk has its record: in the eviction order, in the index for a second
 * put to find, and pinned. Nobody finds it to read before its entry is on disk. Puts that need a
 * file that is being made wait in order, with everything but a slot. Payloads are written in
 * parallel; their entries go to the ring, which writes all that queued up while its last write
 * flew.
 *
 * A purge takes a put in flight out of the index at once; the put then ends with -ECANCELED
 * wherever it is, and an entry that went out all the same is older than the purge. Drops do not see
 * puts in flight.
 *
 * Failures: a failed payload write gives the slot back and is the put's result; nothing was said to
 * the table. A failed table write bypasses the path: puts are refused, gets go on. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "checked.h"
#include "store/internal.h"

struct put_private {
        struct table_work work;
        struct store *store;
        uint32_t class;
        uint64_t drops; /* store_settle_drops(): those begun before it */
};
static_assert(sizeof(struct put_private) <= sizeof(((struct store_put *)0)->store_private),
              "room in the request");

struct tombstone {
        struct table_work work;
        struct key key;
        uint64_t seq;
        uint32_t namespace_id;
        uint16_t tenant;
};

static struct put_private *private(struct store_put *req)
{
        return (struct put_private *)req->store_private;
}

void put_finish(struct store *s, struct store_put *req, int result)
{
        req->result = result;
        list_append(&s->done_puts, &req->node);
}

/* Nothing was stored. */
static void put_cancel(struct store *s, struct store_put *req, int result)
{
        uint32_t i = req->ref.index;

        if (store_chunk_at(s, i)->flags & CHUNK_LINKED)
                chunk_remove(s, i);
        chunk_unpin(s, i);
        put_finish(s, req, result);
}

static void payload_written(struct kio_request *io)
{
        struct store_put *req = container_of(io, struct store_put, io);
        struct store *s = private(req)->store;
        struct chunk *c = store_chunk_at(s, req->ref.index);

        sync_mark_dirty(s->segments[c->slab]);
        if (io->result < 0) {
                s->stats.write_errors++;
                put_cancel(s, req, (int)io->result);
        } else {
                s->stats.payload_writes++;
                s->stats.payload_bytes_written += io->length;
                if (!(c->flags & CHUNK_LINKED))
                        put_cancel(s, req, -ECANCELED);
                else if (s->bypassed)
                        put_cancel(s, req, STORE_BYPASSED);
                else
                        table_queue(s->table, &private(req)->work.item);
        }
        store_progress(s);
}

static void put_write(struct store *s, struct store_put *req)
{
        const struct chunk *c = store_chunk_at(s, req->ref.index);
        struct segment *seg = s->segments[c->slab];

        if (seg->prewriting) {
                list_append(&seg->waiting, &req->node);
                return;
        }
        req->io = (struct kio_request){
                .op = KIO_WRITE,
                .class = KIO_CLASS_PUT,
                .fd = seg->fd,
                .offset = chunk_offset(s, c),
                .buf = (void *)req->buf,
                .length = round_up(req->length, DISK_PAGE),
                .complete = payload_written,
        };
        list_init(&req->io.node);
        kio_submit(s->io, &req->io, req->ref.index);
}

void put_resume(struct store *s, struct segment *seg)
{
        struct list_node waiting = LIST_INIT(waiting), *n;

        list_splice(&waiting, &seg->waiting);
        while ((n = list_pop(&waiting)))
                put_write(s, container_of(n, struct store_put, node));
}

void put_serve_waiting(struct store *s)
{
        uint64_t waiting = 0;

        while (!list_empty(&s->slot_waiting)) {
                struct store_put *req = container_of(s->slot_waiting.next, struct store_put, node);
                int r;

                if (!(store_chunk_at(s, req->ref.index)->flags & CHUNK_LINKED))
                        r = -ECANCELED;
                else if (s->bypassed)
                        r = STORE_BYPASSED;
                else
                        r = room_acquire(s, req->ref.index, private(req)->class);
                if (r == ROOM_WAIT)
                        return;
                if (r == STORE_FULL) {
                        /* What is pinned by others comes free; what only waits here does not. */
                        if (waiting == 0)
                                list_for_each (&s->slot_waiting, n)
                                        waiting++;
                        if (s->pins > waiting)
                                return;
                        r = -ENOSPC;
                }
                list_unlink(&req->node);
                waiting = 0;
                if (r == 0)
                        put_write(s, req);
                else
                        put_cancel(s, req, r);
        }
}

int store_put(struct store *s, struct store_put *req)
{
        uint32_t i;
        int r, class;

        assert(s->open);
        if (s->stopping || s->bypassed)
                return STORE_BYPASSED;
        if (req->length == 0 || req->length > s->max_chunk)
                return STORE_TOO_LARGE;
        if (!namespaces_get(s->namespaces, req->namespace_id))
                return -EINVAL;
        if (index_find(s->index, req->namespace_id, &req->key, req->hash) != INDEX_NONE)
                return STORE_EXISTS;
        class = slabs_class_for(s->slabs, req->length);
        if (class < 0)
                return STORE_TOO_LARGE;
        while ((i = index_acquire(s->index)) == INDEX_NONE)
                if (!room_evict_any(s, (unsigned)class))
                        return STORE_FULL;

        struct chunk *c = store_chunk_at(s, i);

        c->key = req->key;
        c->seq = ++s->seq;
        c->created_ms = clock_unix_ms();
        memcpy(c->parent, req->parent.bytes, sizeof(c->parent));
        c->namespace_id = req->namespace_id;
        c->tenant = req->tenant;
        c->length = req->length;
        c->crc = req->crc;
        c->flags |= CHUNK_PENDING;
        index_link(s->index, i, req->hash);
        evict_insert(s->evict, i, (uint32_t) class, req->length);
        chunk_pin(s, i);

        req->ref = (struct store_ref){ .index = i, .generation = c->generation };
        *private(req) = (struct put_private){ .store = s, .class = (uint32_t) class };
        list_init(&private(req)->work.item.node);
        list_init(&req->node);

        r = list_empty(&s->slot_waiting) ? room_acquire(s, i, (unsigned)class) : ROOM_WAIT;
        if (r == ROOM_WAIT) {
                list_append(&s->slot_waiting, &req->node);
        } else if (r == 0) {
                put_write(s, req);
        } else {
                chunk_remove(s, i);
                chunk_unpin(s, i);
                req->ref = STORE_REF_NONE;
                return r;
        }
        s->requests++;
        return 0;
}

void chunk_publish(struct store *s, uint32_t i, uint32_t table_position)
{
        struct chunk *c = store_chunk_at(s, i);
        struct namespace *ns = namespaces_get(s->namespaces, c->namespace_id);

        assert(ns);
        c->flags &= (uint8_t)~CHUNK_PENDING;
        c->table_position = table_position;
        table_place(s->table, table_position, i);
        ns->seen.chunks++;
        ns->seen.bytes += c->length;
        s->chunks++;
        s->payload_bytes += c->length;
}

void chunk_drop(struct store *s, uint32_t i)
{
        const struct chunk *c = store_chunk_at(s, i);
        struct tombstone *t = s->bypassed ? NULL : malloc(sizeof(*t));

        /* Without one the key may come back; whoever waits for it to be settled is told. */
        if (!t)
                s->drops_forgotten = true;
        if (t) {
                *t = (struct tombstone){
                        .work.is_tombstone = true,
                        .key = c->key,
                        .seq = ++s->seq,
                        .namespace_id = c->namespace_id,
                        .tenant = c->tenant,
                };
                s->tombstones++;
                s->drops_begun++;
                table_queue(s->table, &t->work.item);
        }
        chunk_remove(s, i);
}

/* Tombstones are written in the order of the drops, so who asked first is settled first. */
static void drops_settle(struct store *s)
{
        while (!list_empty(&s->drops_waiting)) {
                struct store_put *req = container_of(s->drops_waiting.next, struct store_put, node);

                if (private(req)->drops > s->drops_written)
                        return;
                list_unlink(&req->node);
                put_finish(s, req, s->drops_forgotten ? STORE_BYPASSED : 0);
                if (list_empty(&s->drops_waiting))
                        s->drops_forgotten = false;
        }
}

void store_settle_drops(struct store *s, struct store_put *req)
{
        s->requests++;
        list_init(&req->node);
        *private(req) = (struct put_private){ .store = s, .drops = s->drops_begun };
        list_append(&s->drops_waiting, &req->node);
        drops_settle(s);
}

/* --- the table's questions and answers --- */

void entry_from_chunk(const struct store *s, const struct chunk *c, struct disk_entry *ret)
{
        const struct segment *seg = s->segments[c->slab];

        *ret = (struct disk_entry){
                .key = c->key,
                .seq = c->seq,
                .segment = c->slab,
                .slot_offset = (uint32_t)(chunk_offset(s, c) / DISK_PAGE),
                .slot_pages = (uint32_t)(seg->slot_bytes / DISK_PAGE),
                .length = c->length,
                .payload_crc = c->crc,
                .tenant = c->tenant,
                .namespace_id = c->namespace_id,
                .created_ms = c->created_ms,
                .segment_epoch = seg->epoch,
        };
        memcpy(ret->parent, c->parent, sizeof(ret->parent));
}

static struct store_put *put_of(struct table_work *work)
{
        return container_of((void *)container_of(work, struct put_private, work), struct store_put,
                            store_private);
}

static bool fill(void *userdata, struct table_item *item, struct disk_entry *ret)
{
        struct store *s = userdata;
        struct table_work *work = container_of(item, struct table_work, item);

        if (work->is_tombstone) {
                const struct tombstone *t = container_of(work, struct tombstone, work);

                *ret = (struct disk_entry){
                        .key = t->key,
                        .seq = t->seq,
                        .tenant = t->tenant,
                        .flags = DISK_ENTRY_TOMBSTONE,
                        .namespace_id = t->namespace_id,
                };
                return true;
        }

        const struct chunk *c = store_chunk_at(s, put_of(work)->ref.index);

        if (!(c->flags & CHUNK_LINKED))
                return false;
        entry_from_chunk(s, c, ret);
        return true;
}

static void written(void *userdata, struct table_item *item, uint32_t position, int r)
{
        struct store *s = userdata;
        struct table_work *work = container_of(item, struct table_work, item);

        if (work->is_tombstone) {
                s->tombstones--;
                s->drops_written++;
                if (r < 0)
                        s->drops_forgotten = true;
                free(container_of(work, struct tombstone, work));
                drops_settle(s);
                return;
        }

        struct store_put *req = put_of(work);
        struct chunk *c = store_chunk_at(s, req->ref.index);

        if (r == -ECANCELED || !(c->flags & CHUNK_LINKED)) {
                put_cancel(s, req, -ECANCELED);
        } else if (r < 0) {
                put_cancel(s, req, STORE_BYPASSED);
        } else {
                chunk_publish(s, req->ref.index, position);
                s->stats.puts++;
                if (req->durable) {
                        sync_want(s->segments[c->slab]);
                        list_append(&s->sync_waiting, &req->node);
                } else {
                        put_finish(s, req, 0);
                }
                chunk_unpin(s, req->ref.index);
        }
}

static bool live(void *userdata, uint32_t i, uint32_t position, struct disk_entry *ret)
{
        const struct store *s = userdata;
        const struct chunk *c = store_chunk_at(s, i);

        if (c->table_position != position)
                return false;
        if (ret)
                entry_from_chunk(s, c, ret);
        return true;
}

static void moved(void *userdata, uint32_t i, uint32_t position)
{
        store_chunk_at(userdata, i)->table_position = position;
}

const struct table_ops store_table_ops = {
        .fill = fill, .written = written, .live = live, .moved = moved
};

static void table_written(struct kio_request *io)
{
        struct store *s = container_of(io, struct store, table_io);

        s->operations--;
        if (io->result < 0) {
                s->stats.write_errors++;
                s->bypassed = true;
        } else {
                s->stats.table_writes++;
                s->stats.table_bytes_written += io->length;
        }
        table_complete(s->table, (int)io->result);
        ring_use_growth(s);
        put_serve_waiting(s);
        store_progress(s);
}

void table_kick(struct store *s)
{
        const void *buf;
        uint64_t offset, bytes;

        if (!table_compose(s->table, &buf, &offset, &bytes))
                return;
        s->table_io = (struct kio_request){
                .op = KIO_WRITE,
                .class = KIO_CLASS_PUT,
                .fd = s->table_fd,
                .offset = offset,
                .buf = (void *)buf,
                .length = bytes,
                .complete = table_written,
        };
        list_init(&s->table_io.node);
        s->operations++;
        kio_submit(s->io, &s->table_io, 0);
}

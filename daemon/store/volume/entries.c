/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the table: the queued entries of puts, tombstones, and records of segments.
 *
 * One write of the ring is in flight at a time. It takes all entries that are queued when it
 * begins, once one of them is due. The entries of a batch of puts are not due at once
 * (table_hold()); other entries are.
 *
 * Loop thread. Failures: a write that finds no room on the file system is tried again after a data
 * file was removed (space.c). Any other failed write bypasses the volume: puts are refused, gets
 * continue. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "checked.h"
#include "store/volume/internal.h"

enum {
        /* Queued entries, and payload bytes of their puts, from which on the entries are written
         * without waiting for others of their batch. */
        HELD_ENTRIES = 16,
        HELD_BYTES = 2 << 20,
        MOST_TRIES = 4 /* most retries of one write for lack of room */
};

void table_add(struct volume *v, struct table_item *item)
{
        table_queue(v->table, item);
        v->table_due = true;
}

void table_hold(struct volume *v, struct table_item *item, uint32_t payload_bytes)
{
        table_queue(v->table, item);
        v->table_held_bytes += payload_bytes;
        if (table_queued(v->table) >= HELD_ENTRIES || v->table_held_bytes >= HELD_BYTES)
                v->table_due = true;
}

void entry_from_chunk(const struct volume *v, uint32_t i, struct disk_entry *ret)
{
        const struct chunk *c = volume_chunk_at(v, i);
        const struct segment *seg = v->segments[c->slab];
        uint32_t parent = evict_parent(v->evict, i);

        *ret = (struct disk_entry){
                .key = c->key,
                .seq = c->seq,
                .segment = c->slab,
                .slot_offset = (uint32_t)(chunk_offset(v, c) / DISK_PAGE),
                .slot_pages = (uint32_t)(seg->slot_bytes / DISK_PAGE),
                .length = c->length,
                .payload_crc = c->crc,
                .tenant = (uint16_t)seg->tenant,
                .namespace_id = chunk_namespace(v, c),
                .created_ms = c->created_ms,
                .segment_epoch = seg->epoch,
        };
        if (parent != EVICT_NONE)
                memcpy(ret->parent, volume_chunk_at(v, parent)->key.bytes, sizeof(ret->parent));
}

static bool fill(void *userdata, struct table_item *item, struct disk_entry *ret)
{
        struct table_work *work = container_of(item, struct table_work, item);

        switch (work->kind) {
        case WORK_HANDOVER:
                handover_entry(container_of(work, struct segment, record), ret);
                return true;
        case WORK_TOMBSTONE:
                tombstone_entry(work, ret);
                return true;
        case WORK_PUT:
                break;
        }
        return put_entry(work, ret);
}

static void written(void *userdata, struct table_item *item, uint32_t page, int r)
{
        struct table_work *work = container_of(item, struct table_work, item);

        switch (work->kind) {
        case WORK_HANDOVER:
                handover_written(container_of(work, struct segment, record), r);
                break;
        case WORK_TOMBSTONE:
                tombstone_written(userdata, work, r);
                break;
        case WORK_PUT:
                put_entry_written(work, page, r);
                break;
        }
}

static void entry(void *userdata, uint32_t i, struct disk_entry *ret)
{
        const struct volume *v = userdata;

        entry_from_chunk(v, i, ret);
}

const struct table_ops volume_table_ops = { .fill = fill, .written = written, .entry = entry };

static void table_complete_with(struct volume *v, int r)
{
        table_complete(v->table, r);
        ring_use_growth(v);
        put_serve_waiting(v);
}

/* Handles a failed table write. The pages may have reached the disk, where the next startup would
 * find them, with entries of puts that failed and of keys that were dropped since. So the
 * superblock marks these pages as void before any put is answered. The live entries that the pages
 * carried forward still exist in their old pages. */
static void table_failed(struct volume *v, int r)
{
        char reason[128];

        v->stats.write_errors++;
        snprintf(reason, sizeof(reason), "the table cannot be written: %s", strerror(-r));
        volume_bypass(v, reason);
        v->table_error = r;
        v->void_position = (uint32_t)(v->table_io.offset / DISK_PAGE);
        v->void_pages = (uint32_t)(v->table_io.length / DISK_PAGE);
        mark_want(v, MARK_VOID);
}

void table_is_void(struct volume *v, int r)
{
        if (r < 0)
                v->ops.doubtful(v->ops.userdata, v);
        table_complete_with(v, v->table_error);
}

static void table_submit(struct volume *v);

static void table_written(struct kio_request *io)
{
        struct volume *v = container_of(io, struct volume, table_io);
        /* if the device hung, the puts were answered as failed, so a write that was in flight
         * counts as failed, too */
        bool is_late = v->abandoned && !v->table_composed_late;
        int r = io->result >= 0 && is_late ? -ETIMEDOUT : (int)MIN(io->result, 0);

        v->operations--;
        if (volume_lacks_room(r) && v->table_tries < MOST_TRIES && space_make(v, v->space_epoch)) {
                v->table_tries++;
                table_submit(v); /* writes the same pages to the same place */
        } else if (r < 0) {
                table_failed(v, r);
        } else {
                v->stats.table_writes++;
                v->stats.table_bytes_written += io->length;
                table_complete_with(v, 0);
        }
        volume_progress(v);
}

static void table_submit(struct volume *v)
{
        list_init(&v->table_io.node);
        v->operations++;
        kio_submit(v->io, &v->table_io, 0);
}

void table_kick(struct volume *v)
{
        const void *buf;
        uint64_t offset, bytes;

        if (!v->table_due)
                return;
        if (!table_compose(v->table, &buf, &offset, &bytes)) {
                if (!table_has_queued(v->table)) {
                        v->table_due = false;
                        v->table_held_bytes = 0;
                }
                return;
        }
        v->table_due = table_has_queued(v->table);
        v->table_held_bytes = 0;
        v->table_composed_late = v->abandoned;
        v->table_io = (struct kio_request){
                .op = KIO_WRITE,
                .class = KIO_CLASS_PUT,
                .volume = v->kio_volume,
                .fd = v->table_fd,
                .offset = offset,
                .buf = (void *)buf,
                .length = bytes,
                .complete = table_written,
        };
        v->table_tries = 0;
        table_submit(v);
}

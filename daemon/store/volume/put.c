/* SPDX-License-Identifier: Apache-2.0 */
/* Puts: slot, payload write, table entry, and a sync if requested.
 *
 * From volume_put() on, the chunk has a pinned record, which is in the eviction order, and in the
 * index, where a second put of the key finds it. No get finds it before its entry is on disk. A put
 * that needs a file that is being made waits in the queue of its tenant, with its record but
 * without a slot. Payloads are written in parallel. When a payload is written, its entry is queued
 * for the ring; each write of the ring takes all entries that were queued during the write before.
 *
 * Puts of a batch are answered together, so their entries wait for each other: writing some entries
 * while the batch has payloads in flight gains nothing, and would make the last of them wait for
 * the table. At most HELD_ENTRIES entries, or entries for HELD_BYTES of payload, wait, so that the
 * table is written concurrently with a large batch. No entry waits beyond the next volume_tick(),
 * because a payload may hang. The waiting entries are written together with any other entry that is
 * due.
 *
 * The payload may be written while its checksum is computed (summing). The entry is written after
 * both. Writing it concurrently with the payload would save a wait, but after a crash the entry
 * might exist without its payload. No get would return the wrong bytes, because the checksum does
 * not match. But a client whose put was not answered, and which puts the key again, would be
 * answered that the key exists, and its later gets would miss.
 *
 * A purge removes a put in flight from the index. The put then ends with -ECANCELED, and an entry
 * of it that was written has a lower sequence than the purge. A drop does not affect a put in
 * flight, but the caller can set store_put.drop: the chunk is then dropped once its entry is on
 * disk. If a tombstone is written for an older chunk of the key, the put in flight gets a sequence
 * above that of the tombstone. If its entry was queued before, it is written again with the new
 * sequence before the put is answered.
 *
 * Failures: a failed payload write releases the slot, and its error is the put's result; no entry
 * is written. If the file system had no room, the put first tries other slots (space.c). Client
 * memory that cannot be read does not count as an error of the device. A failed table write
 * bypasses the volume: puts are refused, gets continue. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "checked.h"
#include "store/volume/internal.h"

enum {
        /* Queued entries, and payload bytes of their puts, from which on the entries are written
         * without waiting for others of their batch. */
        HELD_ENTRIES = 16,
        HELD_BYTES = 2 << 20,
        MOST_TRIES = 16 /* most retries of one put for lack of room */
};

struct put_private {
        struct table_work work;
        uint64_t seq; /* sequence of the queued entry */
        struct volume *volume;
        uint32_t class;          /* size class of the chunk */
        bool is_payload_written; /* the payload is written, and the put waits only for its checksum
                                  */
        uint8_t tries, epoch; /* number of attempts that failed for lack of room; volume.space_epoch
                                 when the last write began */
        uint8_t batch;        /* index in volume.batches; VOLUME_BATCHES if none */
};
static_assert(sizeof(struct put_private) <= sizeof(((struct store_put *)0)->store_private),
              "room in the request");

static struct put_private *private(struct store_put *req)
{
        return (struct put_private *)req->store_private;
}

void put_finish(struct volume *v, struct store_put *req, int result)
{
        req->result = result;
        list_unlink(&req->node);
        list_append(&v->done_puts, &req->node);
}

/* Ends a put that has stored no chunk: removes its record from the index. */
static void put_cancel(struct volume *v, struct store_put *req, int result)
{
        uint32_t i = req->ref.index;

        if (volume_chunk_at(v, i)->flags & CHUNK_LINKED)
                chunk_remove(v, i);
        chunk_unpin(v, i);
        put_finish(v, req, result);
}

void table_add(struct volume *v, struct table_item *item)
{
        table_queue(v->table, item);
        v->table_due = true;
}

/* Counts a payload that is being written for its batch. If VOLUME_BATCHES batches are in progress
 * already, the put counts as a put without a batch. */
static void batch_begin(struct volume *v, struct store_put *req)
{
        struct put_batch *b = NULL;

        private(req)->batch = VOLUME_BATCHES;
        for (unsigned i = 0; req->batch && i < VOLUME_BATCHES; i++) {
                if (v->batches[i].writing > 0 && v->batches[i].id == req->batch) {
                        b = &v->batches[i];
                        break;
                }
                if (v->batches[i].writing == 0)
                        b = &v->batches[i];
        }
        if (!b)
                return;
        b->id = req->batch;
        b->writing++;
        private(req)->batch = (uint8_t)(b - v->batches);
}

/* Ends a put's part in its batch, because its payload is written and its checksum known, or because
 * it has failed. After the last put of the batch, or a put without a batch, the queued entries are
 * due. */
static void batch_end(struct volume *v, struct store_put *req)
{
        unsigned i = private(req)->batch;

        if (i == VOLUME_BATCHES || --v->batches[i].writing == 0)
                v->table_due = true;
}

/* Returns whether the put's batch still has payloads in flight. */
static bool batch_is_writing(const struct volume *v, struct store_put *req)
{
        unsigned i = private(req)->batch;

        return i < VOLUME_BATCHES && v->batches[i].writing > 0 && v->batches[i].id == req->batch;
}

void volume_tick(struct volume *v)
{
        if (v->open && table_has_queued(v->table))
                v->table_due = true;
        identity_tick(v);
}

static void queue_entry(struct volume *v, struct store_put *req)
{
        if (!sweep_is_kept(v, req->ref.index)) {
                put_cancel(v, req, -ECANCELED);
        } else if (v->bypassed) {
                put_cancel(v, req, STORE_BYPASSED);
        } else {
                private(req)->seq = volume_chunk_at(v, req->ref.index)->seq;
                table_queue(v->table, &private(req)->work.item);
                v->table_held_bytes += req->length;
                if (!batch_is_writing(v, req) || table_queued(v->table) >= HELD_ENTRIES ||
                    v->table_held_bytes >= HELD_BYTES)
                        v->table_due = true;
        }
}

/* Continues a put whose payload is written and whose checksum is known. */
static void payload_complete(struct volume *v, struct store_put *req)
{
        if (req->sum_result < 0) {
                put_cancel(v, req, req->sum_result);
                return;
        }
        volume_chunk_at(v, req->ref.index)->crc = req->crc;
        queue_entry(v, req);
}

/* Stores the checksum, and continues the put if its payload is written. The record is not accessed
 * before that, because a put that has failed, or waits for another slot, may have lost it. */
void volume_put_checksum(struct store_put *req, int r, uint32_t crc)
{
        struct volume *v = private(req)->volume;

        req->summing = false;
        req->sum_result = r;
        req->crc = crc;
        if (!private(req)->is_payload_written)
                return;
        private(req)->is_payload_written = false;
        batch_end(v, req);
        payload_complete(v, req);
        volume_progress(v);
}

static void wait_for_slot(struct volume *v, struct store_put *req);

/* Returns whether a write has failed for lack of room on the file system. EFBIG is excluded,
 * because removing other files does not help if a file exceeds RLIMIT_FSIZE. */
static bool is_full(int64_t r)
{
        return volume_is_no_space(r) && r != -EFBIG;
}

/* Makes a put wait for another slot, because the file system has no room for a write to its slot.
 * Returns false if the put has been retried MOST_TRIES times or was purged, or if no data file can
 * be removed. */
static bool put_again(struct volume *v, struct store_put *req)
{
        struct put_private *p = private(req);
        struct chunk *c = volume_chunk_at(v, req->ref.index);

        if (p->tries == MOST_TRIES || !sweep_is_kept(v, req->ref.index) || !space_make(v, p->epoch))
                return false;
        p->tries++;
        room_return(v, c);
        list_unlink(&req->node);
        wait_for_slot(v, req);
        return true;
}

static void payload_written(struct kio_request *io)
{
        struct store_put *req = container_of(io, struct store_put, io);
        struct volume *v = private(req)->volume;
        const struct chunk *c = volume_chunk_at(v, req->ref.index);

        sync_mark_dirty(v->segments[c->slab]);
        if (io->result < 0 || !req->summing)
                batch_end(v, req);
        if (io->result == -EFAULT && req->foreign) {
                put_cancel(v, req, -EFAULT);
        } else if (io->result < 0) {
                v->stats.write_errors += !is_full(io->result);
                volume_note_error(v, "writing a chunk", io->result);
                if (!is_full(io->result) || !put_again(v, req))
                        put_cancel(v, req, (int)io->result);
        } else {
                v->given_up_in_vain = 0;
                v->stats.payload_writes++;
                v->stats.payload_bytes_written += io->length;
                if (v->full && clock_mono_ns() - v->full_ns > STORE_FULL_PAUSE_NS)
                        volume_note_full(v, false);
                private(req)->is_payload_written = req->summing;
                if (!req->summing)
                        payload_complete(v, req);
        }
        volume_progress(v);
}

static void put_write(struct volume *v, struct store_put *req)
{
        const struct chunk *c = volume_chunk_at(v, req->ref.index);
        struct segment *seg = v->segments[c->slab];

        if (seg->prewriting || seg->handing_over) {
                list_append(&seg->waiting, &req->node);
                return;
        }
        private(req)->epoch = v->space_epoch;
        if (seg->handover < 0 && is_full(seg->handover) && put_again(v, req))
                return;
        if (seg->handover < 0) {
                put_cancel(v, req, v->bypassed ? STORE_BYPASSED : seg->handover);
                return;
        }
        list_append(&v->puts_flying, &req->node);
        req->io = (struct kio_request){
                .op = KIO_WRITE,
                .class = KIO_CLASS_PUT,
                .volume = v->kio_volume,
                .fd = seg->fd,
                .offset = chunk_offset(v, c),
                .buf = (void *)req->buf,
                .vector = req->vector,
                .room = req->vector_room,
                .length = round_up(req->length, DISK_PAGE),
                .payload = req->length,
                .region = req->region,
                .tail = req->length % DISK_PAGE ? req->tail : NULL,
                .complete = payload_written,
        };
        list_init(&req->io.node);
        batch_begin(v, req);
        kio_submit(v->io, &req->io, chunk_affinity(v, c));
}

/* Handles a device that hangs: ends the puts that wait for a segment, and calls abandon() for the
 * puts that are at the device. */
void puts_abandon(struct volume *v)
{
        struct list_node *n;

        for (uint32_t i = 0; i < v->n_segments; i++)
                while ((n = list_pop(&v->segments[i]->waiting)))
                        put_cancel(v, container_of(n, struct store_put, node), STORE_BYPASSED);
        list_for_each_safe (&v->puts_flying, i) {
                struct store_put *req = container_of(i, struct store_put, node);
                void (*abandon)(struct store_put * req) = req->abandon;

                req->abandon = NULL;
                req->purges = UINT64_MAX; /* the put was answered, so placement_put_done() must not
                                             try it on another volume */
                if (abandon)
                        abandon(req);
        }
}

void put_resume(struct volume *v, struct segment *seg)
{
        struct list_node waiting = LIST_INIT(waiting), *n;

        list_splice(&waiting, &seg->waiting);
        while ((n = list_pop(&waiting)))
                put_write(v, container_of(n, struct store_put, node));
}

static struct tenant_room *room_of(struct volume *v, const struct store_put *req)
{
        struct tenant_room *room = &v->tenants[req->tenant];

        if (!room->puts.items.next)
                turns_member_init(&room->puts);
        return room;
}

static void wait_for_slot(struct volume *v, struct store_put *req)
{
        turns_add(&v->slot_waiting, &room_of(v, req)->puts, &req->node);
        v->n_slot_waiting++;
}

static int acquire_room(struct volume *v, uint32_t chunk, unsigned class, uint32_t use)
{
        int r;

        evict_serve(v->evict, use);
        r = room_acquire(v, chunk, class);
        evict_serve(v->evict, EVICT_NO_USE);
        return r;
}

/* Acquires a slot for the tenant's next put and starts its write, or ends the put. Returns false if
 * the put must continue to wait. */
static bool serve_next(struct volume *v, struct turns_member *puts)
{
        struct store_put *req = container_of(turns_item(puts), struct store_put, node);
        int r;

        if (!sweep_is_kept(v, req->ref.index))
                r = -ECANCELED;
        else if (v->bypassed)
                r = STORE_BYPASSED;
        else
                r = acquire_room(v, req->ref.index, private(req)->class, req->use);
        if (r == ROOM_WAIT)
                return false;
        if (r == STORE_FULL) {
                /* Slots that other operations have pinned will become free. The pins of the puts
                 * that wait here, and of loans, do not end by waiting. */
                if (v->pins - v->lent_pins > v->n_slot_waiting)
                        return false;
                r = -ENOSPC;
        }
        turns_remove(puts, &req->node);
        v->n_slot_waiting--;
        if (r == 0)
                put_write(v, req);
        else
                put_cancel(v, req, r);
        return true;
}

/* Serves the puts that wait for a slot: tenants in turn, and the puts of each tenant in order. A
 * tenant for which there is no slot does not delay the others. */
void put_serve_waiting(struct volume *v)
{
        struct turns_member *puts;
        struct turns turns;

        if (turns_is_empty(&v->slot_waiting))
                return;
        /* Acquiring a slot may call this function again, which then finds no waiting puts. */
        turns_init(&turns);
        turns_move(&turns, &v->slot_waiting);
        while ((puts = turns_next(&turns))) {
                if (serve_next(v, puts))
                        turns_requeue(&turns, puts);
                else
                        turns_park(&turns, puts);
        }
        turns_unpark(&turns);
        turns_move(&v->slot_waiting, &turns);
}

int volume_put(struct volume *v, struct store_put *req)
{
        struct namespace *ns;
        uint32_t i;
        int r, class;

        assert(v->open);
        if (v->stopping || v->bypassed || v->params.as_is)
                return STORE_BYPASSED;
        if (req->length == 0 || req->length > v->max_chunk)
                return STORE_TOO_LARGE;
        ns = namespaces_get(v->namespaces, req->namespace_id);
        if (!ns)
                return -EINVAL;
        i = index_find(v->index, req->namespace_id, &req->key, req->hash);
        if (i != INDEX_NONE && sweep_is_kept(v, i))
                return STORE_EXISTS;
        class = slabs_class_of(v->slabs, req->tenant, req->length);
        if (class < 0)
                return class == -ENOSPC ? STORE_FULL : STORE_TOO_LARGE;
        while ((i = index_acquire(v->index)) == INDEX_NONE)
                if (!room_evict_any(v, (unsigned)class))
                        return STORE_FULL;

        struct chunk *c = volume_chunk_at(v, i);

        c->key = req->key;
        c->created_ms = MIN(req->created_ms ? req->created_ms : clock_unix_ms(), CHUNK_CREATED_MAX);
        c->length = req->length;
        c->crc = req->crc;
        c->flags |= CHUNK_PENDING;
        ns->pending++;
        index_link(v->index, i, req->namespace_id, req->hash);
        evict_insert_known(v->evict, i, (uint32_t) class, req->length, evict_id(req->hash),
                           req->use, (enum evict_place)req->place);
        evict_set_gap(v->evict, i, req->gap);
        evict_set_cost(v->evict, i, req->cost);
        if (req->hint != EVICT_HINT_NONE)
                (void)evict_hint(v->evict, i, req->hint);
        chunk_pin(v, i);

        r = turns_is_empty(&v->slot_waiting) ? acquire_room(v, i, (unsigned)class, req->use)
                                             : ROOM_WAIT;
        if (r != 0 && r != ROOM_WAIT) {
                chunk_remove(v, i);
                chunk_unpin(v, i);
                return r;
        }
        c->seq = ++v->seq; /* a refused put takes no sequence */
        c->own = !req->foreign;
        req->ref = volume_ref(v, i);
        *private(req) = (struct put_private){ .volume = v, .class = (uint32_t) class };
        list_init(&private(req)->work.item.node);
        list_init(&req->node);
        v->requests++;
        if (r == ROOM_WAIT)
                wait_for_slot(v, req);
        else
                put_write(v, req);
        return 0;
}

void chunk_publish(struct volume *v, uint32_t i)
{
        struct chunk *c = volume_chunk_at(v, i);
        struct namespace *ns = namespaces_get(v->namespaces, chunk_namespace(v, c));

        assert(ns);
        ns->pending -= (c->flags & CHUNK_PENDING) != 0;
        c->flags &= ~(unsigned)CHUNK_PENDING;
        ns->seen.chunks++;
        ns->seen.bytes += c->length;
        v->chunks++;
        v->payload_bytes += c->length;
        if (v->ops.placement &&
            v->ops.placement(v->ops.userdata, chunk_namespace(v, c), &c->key) != v->number) {
                c->flags |= CHUNK_DISPLACED;
                v->displaced++;
        }
        chunk_notify(v, i, ns, true);
}

void chunk_notify(const struct volume *v, uint32_t i, const struct namespace *ns, bool is_there)
{
        const struct chunk *c;
        struct store_change change;
        struct key key;

        if (!v->watches || list_empty(v->watches))
                return;
        c = volume_chunk_at(v, i);
        key = c->key;
        change = (struct store_change){
                .at = store_walk_at(v->number, i),
                .namespace_id = ns->seen.id,
                .length = c->length,
                .tenant = ns->seen.tenant,
                .is_there = is_there,
                .is_evicted = !is_there && v->evicting,
                .key = &key,
        };
        list_for_each (v->watches, n) {
                const struct store_watch *watch = container_of(n, struct store_watch, node);

                watch->changed(watch->userdata, &change);
        }
}

/* --- callbacks of the table --- */

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

static struct store_put *put_of(struct table_work *work)
{
        return container_of((void *)container_of(work, struct put_private, work), struct store_put,
                            store_private);
}

static bool fill(void *userdata, struct table_item *item, struct disk_entry *ret)
{
        struct volume *v = userdata;
        struct table_work *work = container_of(item, struct table_work, item);

        if (work->kind == WORK_HANDOVER) {
                handover_entry(container_of(work, struct segment, record), ret);
                return true;
        }
        if (work->kind == WORK_TOMBSTONE) {
                tombstone_entry(work, ret);
                return true;
        }

        if (!sweep_is_kept(v, put_of(work)->ref.index))
                return false;
        entry_from_chunk(v, put_of(work)->ref.index, ret);
        memcpy(ret->parent, put_of(work)->parent.bytes, sizeof(ret->parent));
        /* a tombstone that was queued after this entry must have a higher sequence than the
         * entry */
        ret->seq = private(put_of(work))->seq;
        return true;
}

static void written(void *userdata, struct table_item *item, uint32_t page, int r)
{
        struct volume *v = userdata;
        struct table_work *work = container_of(item, struct table_work, item);

        if (work->kind == WORK_HANDOVER) {
                handover_written(container_of(work, struct segment, record), r);
                return;
        }
        if (work->kind == WORK_TOMBSTONE) {
                tombstone_written(v, work, r);
                return;
        }

        struct store_put *req = put_of(work);
        struct chunk *c = volume_chunk_at(v, req->ref.index);

        if (r == -ECANCELED || !sweep_is_kept(v, req->ref.index)) {
                put_cancel(v, req, -ECANCELED);
        } else if (r < 0) {
                put_cancel(v, req, STORE_BYPASSED);
        } else if (c->seq != private(req)->seq) {
                queue_entry(v, req); /* a tombstone was queued after this entry, so the entry is
                                        written again */
        } else {
                table_place(v->table, page, req->ref.index);
                req->ref = volume_ref(v, req->ref.index); /* a tombstone changes the sequence */
                chunk_publish(v, req->ref.index);
                v->stats.puts++;
                if (req->durable) {
                        sync_want(v->segments[c->slab]);
                        list_unlink(&req->node);
                        list_append(&v->sync_waiting, &req->node);
                } else {
                        put_finish(v, req, 0);
                }
                /* The chunk is dropped now and not after complete(), which may wait for a sync,
                 * because gets and puts of the key would find it until then. */
                if (req->drop)
                        (void)volume_drop(v, req->namespace_id, &req->key, req->hash, false);
                chunk_unpin(v, req->ref.index);
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

void put_table_is_void(struct volume *v, int r)
{
        if (r < 0)
                v->ops.doubtful(v->ops.userdata, v);
        table_complete_with(v, v->table_error);
}

static void table_submit(struct volume *v);

static void table_written(struct kio_request *io)
{
        struct volume *v = container_of(io, struct volume, table_io);
        /* if the device hung, the puts were answered as failed, so the write counts as failed,
         * too */
        int r = io->result >= 0 && v->abandoned ? -ETIMEDOUT : (int)MIN(io->result, 0);

        v->operations--;
        if (is_full(r) && v->table_tries < MOST_TRIES / 4 && space_make(v, v->space_epoch)) {
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

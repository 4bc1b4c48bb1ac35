/* SPDX-License-Identifier: Apache-2.0 */
/* Puts: slot, payload write, table entry, and a sync if requested.
 *
 * From volume_put() on, the chunk has a pinned record, which is in the eviction order, and in the
 * index, where a second put of the key finds it. No get finds it before its payload and its entry
 * are on disk. A put that needs a file that is being made waits in the queue of its tenant, with
 * its record but without a slot. Payloads are written in parallel.
 *
 * The entry needs the checksum. If the caller supplies it with the put, the entry is queued when
 * the payload is written. If the checksum is computed while the payload is being written (summing),
 * the entry is queued as soon as the checksum is known, and is mostly written beside the payload,
 * so that the caller waits for the device only once. A crash may then leave the entry without its
 * payload. The checksum detects that when the chunk is read, and before a later put of the key is
 * answered that it exists (cache/verify.c). If the payload fails after its entry was given to the
 * table, a tombstone is written before the put ends, so that no startup finds the chunk.
 *
 * Puts of a batch are answered together, so their entries wait for each other: writing some entries
 * while others of the batch cannot be queued yet gains nothing, and would make the last of them
 * wait for the table. table_hold() has the bounds. No entry waits beyond the next volume_tick(),
 * because a payload may hang. The waiting entries are written together with any other entry that is
 * due.
 *
 * A purge removes a put in flight from the index. The put then ends with -ECANCELED, and an entry
 * of it that was written has a lower sequence than the purge. A drop does not affect a put in
 * flight, but the caller can set store_put.drop: the chunk is then dropped once it is on disk. If a
 * tombstone is written for an older chunk of the key, the put in flight gets a sequence above that
 * of the tombstone. If its entry was queued before, it is written again with the new sequence
 * before the put is answered.
 *
 * Failures: a failed payload write releases the slot, and its error is the put's result. If the
 * file system had no room, the put first tries other slots (space.c), and its entry gets a new
 * sequence. Client memory that cannot be read does not count as an error of the device. After a
 * failed table write the volume is bypassed (entries.c), and its puts fail. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "checked.h"
#include "store/volume/internal.h"

enum {
        MOST_TRIES = 16, /* most retries of one put for lack of room */
        BATCH_ENDED = VOLUME_BATCHES + 1
};

struct put_private {
        struct table_work work;
        uint64_t seq; /* sequence of the queued entry */
        struct volume *volume;
        int result;           /* why the put fails; 0 as long as it does not */
        uint16_t class;       /* size class of the chunk */
        uint8_t tries, epoch; /* number of attempts that failed for lack of room; volume.space_epoch
                                 when the last write began */
        uint8_t batch;        /* index in volume.batches; VOLUME_BATCHES if the put belongs to no
                                 batch there, BATCH_ENDED once its part has ended */
        bool is_writing : 1;  /* the payload is being written */
        bool is_written : 1;  /* the payload is written */
        bool is_queued : 1;   /* the entry is queued for the table or being written */
        bool is_placed : 1;   /* the entry is written, and the table knows its page */
        bool is_on_disk : 1;  /* an entry of the put is in a page that was written */
        bool is_tombstone : 1; /* the queued entry is a tombstone, because the payload failed */
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

/* Counts a put whose payload is being written, and whose entry cannot be queued yet, for its batch.
 * If VOLUME_BATCHES batches are in progress already, the put counts as a put without a batch. */
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

/* Ends a put's part in its batch, if that has not ended yet: its entry is queued, or it has failed.
 * After the last put of the batch, or a put without a batch, the queued entries are due. */
static void batch_end(struct volume *v, struct store_put *req)
{
        unsigned i = private(req)->batch;

        private(req)->batch = BATCH_ENDED;
        if (i == VOLUME_BATCHES || (i < VOLUME_BATCHES && --v->batches[i].writing == 0))
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

/* Makes the table forget the entry of a put, which another entry will follow. */
static void entry_forget(struct volume *v, struct store_put *req)
{
        table_forget(v->table, req->ref.index);
        private(req)->is_placed = false;
}

/* Answers a put that is at a device which hangs. */
static void put_abandon(struct store_put *req)
{
        void (*abandon)(struct store_put * req) = req->abandon;

        req->abandon = NULL;
        req->purges = UINT64_MAX; /* the put was answered, so placement_put_done() must not try it
                                     on another volume */
        if (abandon)
                abandon(req);
}

/* Keeps a failed put until its payload and its entry, or its tombstone, are at rest. */
static void put_linger(struct volume *v, struct store_put *req)
{
        list_unlink(&req->node);
        list_append(&v->puts_flying, &req->node);
        if (v->abandoned)
                put_abandon(req);
}

/* Ends a put that has failed. If its entry may be on the disk, a tombstone is written first, also
 * to a bypassed volume, so that no startup finds the chunk. A put whose payload or entry is still
 * in flight ends when both are at rest. */
static void put_fail(struct volume *v, struct store_put *req, int result)
{
        struct put_private *p = private(req);

        if (p->result == 0)
                p->result = result;
        batch_end(v, req);
        if (p->is_writing || p->is_queued) {
                put_linger(v, req);
        } else if (p->is_on_disk && !p->is_tombstone && sweep_is_kept(v, req->ref.index)) {
                entry_forget(v, req);
                p->seq = ++v->seq;
                p->is_tombstone = p->is_queued = true;
                table_add(v, &p->work.item);
                put_linger(v, req);
        } else {
                put_cancel(v, req, p->result);
        }
}

/* Queues the entry of a put whose checksum is known. */
static void queue_entry(struct volume *v, struct store_put *req)
{
        struct put_private *p = private(req);

        if (req->sum_result < 0) {
                put_fail(v, req, req->sum_result);
        } else if (!sweep_is_kept(v, req->ref.index)) {
                put_fail(v, req, -ECANCELED);
        } else if (v->bypassed) {
                put_fail(v, req, STORE_BYPASSED);
        } else {
                struct chunk *c = volume_chunk_at(v, req->ref.index);

                c->crc = req->crc;
                p->seq = c->seq;
                p->is_queued = true;
                table_hold(v, &p->work.item, req->length);
                if (!batch_is_writing(v, req))
                        v->table_due = true;
                batch_end(v, req);
        }
}

/* Stores the checksum, and queues the entry if the payload is being written for the first time or
 * is written. The record is not accessed otherwise, because a put that waits for another slot, or
 * has failed, may have lost it. */
void volume_put_checksum(struct store_put *req, int r, uint32_t crc)
{
        struct put_private *p = private(req);
        struct volume *v = p->volume;

        req->summing = false;
        req->sum_result = r;
        req->crc = crc;
        if (p->result != 0 || !(p->is_written || (p->is_writing && p->tries == 0)))
                return;
        queue_entry(v, req);
        volume_progress(v);
}

static void wait_for_slot(struct volume *v, struct store_put *req);
static void put_continue(struct volume *v, struct store_put *req);

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
        entry_forget(v, req);
        /* An entry that is on the disk or queued names the slot that the put gives up, so the next
         * one needs a higher sequence. */
        if (p->is_on_disk || p->is_queued)
                c->seq = ++v->seq;
        room_return(v, c);
        list_unlink(&req->node);
        wait_for_slot(v, req);
        return true;
}

/* Ends a put whose payload and entry are written. */
static void put_complete(struct volume *v, struct store_put *req)
{
        struct chunk *c = volume_chunk_at(v, req->ref.index);

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
        /* The chunk is dropped now and not after complete(), which may wait for a sync, because
         * gets and puts of the key would find it until then. */
        if (req->drop)
                (void)volume_drop(v, req->namespace_id, &req->key, req->hash, false);
        chunk_unpin(v, req->ref.index);
}

/* Continues a put whose payload is written, or whose entry was given to the table. */
static void put_continue(struct volume *v, struct store_put *req)
{
        struct put_private *p = private(req);
        const struct chunk *c = volume_chunk_at(v, req->ref.index);

        if (p->result != 0) {
                put_fail(v, req, p->result);
        } else if (!p->is_written || p->is_queued || req->summing) {
                return;
        } else if (!sweep_is_kept(v, req->ref.index)) {
                put_fail(v, req, -ECANCELED);
        } else if (p->is_placed && c->seq == p->seq && !v->abandoned && !identity_is_lost(v)) {
                put_complete(v, req);
        } else {
                /* There is no entry, a tombstone was queued after it, the put was answered as
                 * failed because the device hung, or the next startup will not find its files. */
                entry_forget(v, req);
                queue_entry(v, req);
        }
}

static void payload_written(struct kio_request *io)
{
        struct store_put *req = container_of(io, struct store_put, io);
        struct volume *v = private(req)->volume;
        const struct chunk *c = volume_chunk_at(v, req->ref.index);

        private(req)->is_writing = false;
        if (io->result < 0)
                batch_end(v, req);
        sync_mark_dirty(v->segments[c->slab]);
        if (io->result == -EFAULT && req->foreign) {
                put_fail(v, req, -EFAULT);
        } else if (io->result < 0) {
                v->stats.write_errors += !volume_lacks_room(io->result);
                volume_note_error(v, "writing a chunk", io->result);
                if (!volume_lacks_room(io->result) || private(req)->result != 0 ||
                    !put_again(v, req))
                        put_fail(v, req, (int)io->result);
        } else {
                v->given_up_in_vain = 0;
                v->stats.payload_writes++;
                v->stats.payload_bytes_written += io->length;
                if (v->full && clock_mono_ns() - v->full_ns > STORE_FULL_PAUSE_NS)
                        volume_note_full(v, false);
                private(req)->is_written = true;
                put_continue(v, req);
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
        if (seg->handover < 0 && volume_lacks_room(seg->handover) && put_again(v, req))
                return;
        if (seg->handover < 0) {
                put_fail(v, req, v->bypassed ? STORE_BYPASSED : seg->handover);
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
        private(req)->is_writing = true;
        private(req)->is_written = false;
        kio_submit(v->io, &req->io, chunk_affinity(v, c));
}

/* Handles a device that hangs: ends the puts that wait for a segment, and calls abandon() for the
 * puts that are at the device. */
void puts_abandon(struct volume *v)
{
        struct list_node *n;

        for (uint32_t i = 0; i < v->n_segments; i++)
                while ((n = list_pop(&v->segments[i]->waiting)))
                        put_fail(v, container_of(n, struct store_put, node), STORE_BYPASSED);
        list_for_each_safe (&v->puts_flying, i)
                put_abandon(container_of(i, struct store_put, node));
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
                put_fail(v, req, r);
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
        *private(req) = (struct put_private){ .volume = v,
                                              .class = (uint16_t) class,
                                              .batch = BATCH_ENDED };
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

/* --- entries --- */

static struct store_put *put_of(struct table_work *work)
{
        return container_of((void *)container_of(work, struct put_private, work), struct store_put,
                            store_private);
}

bool put_entry(struct table_work *work, struct disk_entry *ret)
{
        struct store_put *req = put_of(work);
        struct put_private *p = private(req);
        struct volume *v = p->volume;
        const struct chunk *c = volume_chunk_at(v, req->ref.index);

        if (!sweep_is_kept(v, req->ref.index))
                return false;
        if (p->is_tombstone) {
                *ret = (struct disk_entry){
                        .key = req->key,
                        .seq = p->seq,
                        .tenant = req->tenant,
                        .flags = DISK_ENTRY_TOMBSTONE,
                        .namespace_id = req->namespace_id,
                };
                return true;
        }
        if (p->result != 0 || v->abandoned)
                return false; /* the put has failed */
        /* The put waits for another slot, or for its segment's hand-over, which must be on the disk
         * before any entry names the segment; or the entry is outdated, and another one follows. */
        if (!(p->is_writing || p->is_written) || c->seq != p->seq)
                return false;
        entry_from_chunk(v, req->ref.index, ret);
        memcpy(ret->parent, req->parent.bytes, sizeof(ret->parent));
        return true;
}

void put_entry_written(struct table_work *work, uint32_t page, int r)
{
        struct store_put *req = put_of(work);
        struct put_private *p = private(req);
        struct volume *v = p->volume;

        p->is_queued = false;
        if (r == 0 && !p->is_tombstone) /* a page that could not be written is marked as void */
                p->is_on_disk = true;
        if (!p->is_writing && !p->is_written && p->result == 0)
                return; /* the entry named a slot that the put has given up */
        if (p->is_tombstone && r < 0 && r != -ECANCELED) {
                p->result = STORE_BYPASSED;
                v->lost_puts = true;
        }
        if (p->result == 0 && r < 0 && r != -ECANCELED) {
                p->result = STORE_BYPASSED;
        } else if (p->result == 0 && r == 0 && sweep_is_kept(v, req->ref.index) &&
                   p->seq == volume_chunk_at(v, req->ref.index)->seq) {
                table_place(v->table, page, req->ref.index);
                p->is_placed = true;
        }
        put_continue(v, req);
}

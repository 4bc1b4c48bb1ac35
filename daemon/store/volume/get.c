/* SPDX-License-Identifier: Apache-2.0 */
/* Gets: the chunk's slot is pinned, the chunk is read into the caller's buffer, and its CRC is
 * compared.
 *
 * A chunk that does not match its CRC is read once more, because a bus or a buffer may have been at
 * fault. After a second mismatch the chunk is dropped with a tombstone, the mismatch is counted,
 * and the get is a miss. If the device cannot read the chunk, it is dropped without a second read,
 * and the get ends with the device's error. A chunk that is dropped or purged during its read is a
 * miss, too. If a read fails, or the
 * bytes do not match, the worker fills the buffer with zeros before it reports the result, because
 * clients can see the buffer.
 *
 * If the buffer is shared with a client (`foreign`), the client may have written to it, or have
 * truncated the file behind it. So neither a mismatch nor missing memory shows that the chunk or
 * the device is at fault. The caller gets the error, and nothing is dropped or counted. */
#include <assert.h>
#include <errno.h>

#include "checked.h"
#include "store/volume/internal.h"

struct get_private {
        struct volume *volume;
        uint32_t attempts; /* number of reads that did not match */
};
static_assert(sizeof(struct get_private) <= sizeof(((struct store_get *)0)->store_private),
              "room in the request");

static struct get_private *private(struct store_get *req)
{
        return (struct get_private *)req->store_private;
}

static void get_read(struct volume *v, struct store_get *req);

static void get_finish(struct volume *v, struct store_get *req, int result)
{
        volume_chunk_at(v, req->ref.index)->reading = false;
        chunk_unpin(v, req->ref.index);
        req->result = result;
        list_unlink(&req->node);
        list_append(&v->done_gets, &req->node);
}

static void payload_read(struct kio_request *io)
{
        struct store_get *req = container_of(io, struct store_get, io);
        struct volume *v = private(req)->volume;
        uint32_t i = req->ref.index;
        bool linked = volume_chunk_at(v, i)->flags & CHUNK_LINKED;

        if (io->result == -EFAULT && req->foreign) {
                get_finish(v, req, -EFAULT);
        } else if (io->result < 0) {
                v->stats.read_errors++;
                volume_note_error(v, "reading a chunk", io->result);
                if (linked && volume_is_loss(io->result) && !v->bypassed)
                        chunk_condemn(v, i, (int)io->result);
                get_finish(v, req, (int)io->result);
        } else {
                v->stats.reads++;
                v->stats.bytes_read += io->length;
                if (!linked) {
                        get_finish(v, req, STORE_MISS);
                } else if (io->crc == req->crc) {
                        v->stats.gets++;
                        if (!req->foreign)
                                volume_chunk_at(v, i)->verified = true;
                        get_finish(v, req, 0);
                } else if (req->foreign) {
                        volume_chunk_at(v, i)->verified = false;
                        get_finish(v, req, STORE_SUSPECT);
                } else if (private(req)->attempts++ == 0) {
                        v->stats.crc_rereads++;
                        get_read(v, req);
                } else {
                        bool was_whole = volume_was_whole(volume_chunk_at(v, i));

                        chunk_condemn(v, i, 0);
                        if (was_whole)
                                volume_note_mismatch(v, "reading a chunk");
                        get_finish(v, req, STORE_MISS);
                }
        }
        volume_progress(v);
}

static void get_read(struct volume *v, struct store_get *req)
{
        const struct chunk *c = volume_chunk_at(v, req->ref.index);

        req->io = (struct kio_request){
                .op = KIO_READ,
                .class = req->background ? KIO_CLASS_BACKGROUND : KIO_CLASS_GET,
                .volume = v->kio_volume,
                .fd = v->segments[c->slab]->fd,
                .offset = chunk_offset(v, c),
                .buf = req->buf,
                .vector = req->vector,
                .room = req->vector_room,
                .length = round_up(c->length, DISK_PAGE),
                .crc_bytes = c->length,
                .payload = c->length,
                .region = req->region,
                .tail = c->length % DISK_PAGE ? req->tail : NULL,
                .guard_src = req->foreign,
                .wipe = true,
                .want_crc = c->crc,
                .complete = payload_read,
        };
        list_init(&req->io.node);
        kio_submit(v->io, &req->io, chunk_affinity(v, c));
}

int volume_get(struct volume *v, struct store_get *req)
{
        uint32_t i = req->ref.index;
        struct chunk *c = volume_chunk_at(v, i);

        /* A chunk has at most CHUNK_PINS_MAX references, of which loans take half at most. More
         * concurrent reads of one chunk than the rest are not needed. */
        if (v->stopping || v->bypassed || c->pins == CHUNK_PINS_MAX)
                return STORE_MISS;
        req->length = c->length;
        req->crc = c->crc;
        if ((req->tail ? c->length : round_up(c->length, DISK_PAGE)) > req->room)
                return STORE_TOO_LARGE;
        *private(req) = (struct get_private){ .volume = v };
        list_init(&req->node);
        list_append(&v->gets_flying, &req->node);
        chunk_pin(v, i);
        c->reading = true;
        v->requests++;
        get_read(v, req);
        return 0;
}

/* Returns whether the chunk is being read, so that the caller can share the read. The first of
 * several gets of a chunk that ends clears the mark. The function then returns false although other
 * gets are in flight, which costs one more read. */
bool volume_is_reading(const struct volume *v, struct store_ref ref)
{
        const struct chunk *c = volume_chunk_of(v, ref);

        return c && c->reading;
}

bool volume_is_unverified(const struct volume *v, struct store_ref ref)
{
        const struct chunk *c = volume_chunk_of(v, ref);

        return c && c->seq <= v->opened_seq && !c->verified;
}

void gets_abandon(struct volume *v)
{
        list_for_each_safe (&v->gets_flying, n) {
                struct store_get *req = container_of(n, struct store_get, node);
                void (*abandon)(struct store_get * req) = req->abandon;

                req->abandon = NULL;
                if (abandon)
                        abandon(req);
        }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A key of a PUT. Its bytes are in the client's staging area or a registered buffer, from which the
 * cache copies or writes them, or in a registered file, from which it reads them. Loop thread.
 *
 * Failures: a range outside the client's memory is INVALID. A put ends as its acknowledgement class
 * requires. A lease that cannot be granted with it is no failure; the result shows that there is
 * none. */
#include "request/internal.h"

static void put_done(struct cache_request *req)
{
        struct slot *s = container_of(req, struct slot, req);
        struct batch *b = s->batch;
        struct client *client = b->request.client;
        struct wire_put_result *result = batch_result(b, slot_index(s));
        enum wire_status status = batch_slot_status(s);

        if (req->status == CACHE_OK || req->status == CACHE_NOT_DURABLE)
                histogram_add(&client->tenant->traffic.put[req->ack], batch_age(b));
        b->part->places[slot_index(s)] = req->place;
        if (req->status != CACHE_EXISTS)
                chain_part_note_new(b->part);
        if (req->chunk != POOL_NONE) {
                result->length = pool_chunk(client->tenant->pool, req->chunk)->length;
                /* A lease that cannot be granted does not fail the put; a flag in the result shows
                 * whether there is a lease. */
                if ((b->head.hdr.flags & WIRE_F_LEASE) && !client->ended &&
                    client_lease(client, req->chunk, &result->lease) == WIRE_OK) {
                        result->flags = WIRE_RESULT_LEASED;
                        result->offset = pool_offset(client->tenant->pool, req->chunk);
                }
                cache_unpin(client->tenant->cache, req->chunk);
        }
        result->status = (uint16_t)status;
        batch_key_end(b, status);
}

static bool find_bytes(struct batch *b, struct cache_request *req, const struct wire_put *entry)
{
        bool in_pieces = b->head.hdr.flags & WIRE_F_PIECES;

        if (!in_pieces && entry->region != WIRE_REGION_STAGING &&
            entry->region <= WIRE_MAX_REGIONS && (b->regions >> (entry->region - 1) & 1))
                req->file =
                        buffer_file(b->request.client, entry->region, entry->offset, entry->length);
        if (!req->file)
                return batch_find_memory(b, req, entry->offset, entry->region, entry->length);
        req->file_offset = entry->offset;
        req->room = entry->length;
        return entry->length > 0;
}

void request_put(struct batch *b, uint32_t i)
{
        const struct wire_put *entry = batch_entry(b, i);
        struct client *client = b->request.client;
        struct slot *s = &b->slots[i];

        if (!find_bytes(b, &s->req, entry) || key_is_root(&entry->key)) {
                ((struct wire_put_result *)batch_result(b, i))->status = WIRE_INVALID;
                batch_key_end(b, WIRE_INVALID);
                return;
        }
        batch_request_init(b, i, &entry->key, put_done);
        s->req.length = entry->length;
        s->req.cost = (uint8_t)evict_cost_level(UINT64_C(1000) * entry->cost_us, entry->length);
        s->req.ack = (enum cache_ack)b->head.ack;
        s->req.batch = b->number;
        s->req.promise = b->promise;
        /* A lease, and a put from a file, require the chunk in the pool. */
        s->req.may_be_direct = !(b->head.hdr.flags & WIRE_F_LEASE) && !s->req.file;
        s->req.parent =
                i > 0 ? ((const struct wire_put *)batch_entry(b, i - 1))->key : b->head.parent;
        cache_put(client->tenant->cache, &s->req);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A key of a GET: mapped, which is a lease on its chunk in the pool, or into the client's memory.
 */
#include <errno.h>

#include "request/internal.h"

/* How much of the chunk is asked for. False: it has no such bytes. */
static bool find_range(struct client *client, const struct wire_get *entry, uint32_t chunk,
                       struct wire_get_result *result, uint32_t *ret_length)
{
        uint32_t whole = pool_chunk(client->tenant->pool, chunk)->length;

        result->chunk_length = whole;
        if (entry->range_offset >= whole || entry->range_length > whole - entry->range_offset)
                return false;
        *ret_length = entry->range_length ? entry->range_length : whole - entry->range_offset;
        return true;
}

/* A lease on where it lies. */
static enum wire_status get_mapped(struct client *client, const struct wire_get *entry,
                                   uint32_t chunk, struct wire_get_result *result)
{
        enum wire_status status;
        uint32_t length;

        if (!find_range(client, entry, chunk, result, &length))
                return WIRE_INVALID;
        status = client_lease(client, chunk, &result->lease);
        if (status == WIRE_OK) {
                result->flags = WIRE_RESULT_LEASED;
                result->offset = pool_offset(client->tenant->pool, chunk) + entry->range_offset;
                result->length = length;
                client->tenant->traffic.get_bytes_map += length;
        }
        return status;
}

static void get_answer(struct batch *b, uint32_t i, enum wire_status status)
{
        ((struct wire_get_result *)batch_result(b, i))->status = (uint16_t)status;
        batch_key_end(b, status);
}

static void get_end(struct slot *s, enum wire_status status)
{
        if (s->req.chunk != POOL_NONE)
                cache_unpin(s->batch->request.client->tenant->cache, s->req.chunk);
        get_answer(s->batch, slot_index(s), status);
}

static void on_copied(struct kio_request *copy)
{
        struct slot *s = container_of(copy, struct slot, copy);
        struct wire_get_result *result = batch_result(s->batch, slot_index(s));

        if (copy->result < 0) {
                get_end(s, copy->result == -EFAULT ? WIRE_INVALID : WIRE_FAILED);
                return;
        }
        result->length = (uint32_t)copy->length;
        s->batch->request.client->tenant->traffic.get_bytes_into += copy->length;
        get_end(s, WIRE_OK);
}

static void get_done(struct cache_request *req)
{
        struct slot *s = container_of(req, struct slot, req);
        struct batch *b = s->batch;
        struct client *client = b->request.client;
        struct wire_get_result *result = batch_result(b, slot_index(s));
        const struct wire_get *entry = batch_entry(b, slot_index(s));
        enum wire_status status = batch_slot_status(s);
        uint32_t length;

        b->part->places[slot_index(s)] = req->place;
        b->keys.found += status == WIRE_OK;
        b->keys.missing += status == WIRE_MISS;
        if (status == WIRE_OK && req->direct) {
                result->tier = (uint8_t)req->tier;
                result->chunk_length = req->length;
                result->length = req->length;
                client->tenant->traffic.get_bytes_into += req->length;
        }
        if (status != WIRE_OK || req->direct) {
                get_end(s, status);
                return;
        }
        result->tier = (uint8_t)req->tier;
        if (!(b->head.hdr.flags & WIRE_F_INTO)) {
                get_end(s, client->gone ? WIRE_SHUTDOWN
                                        : get_mapped(client, entry, req->chunk, result));
                return;
        }
        if (!find_range(client, entry, req->chunk, result, &length)) {
                get_end(s, WIRE_INVALID);
                return;
        }
        if (client->gone) {
                get_end(s, WIRE_SHUTDOWN);
                return;
        }
        if (length > entry->into_length) {
                result->length = length;
                get_end(s, WIRE_TOO_LARGE);
                return;
        }
        s->copy = (struct kio_request){
                .op = KIO_COPY,
                .class = KIO_CLASS_GET,
                .src = (char *)pool_at(client->tenant->pool, req->chunk) + entry->range_offset,
                .buf = req->memory,
                .vector = req->pieces,
                .guard_src = true, /* the target: the client's */
                .length = length,
                .complete = on_copied,
        };
        kio_submit(client->tenant->service->io, &s->copy, req->chunk);
}

/* What is in memory and to be mapped needs no more than this. */
static bool get_at_once(struct batch *b, uint32_t i, const struct wire_get *entry)
{
        struct wire_get_result *result = batch_result(b, i);
        uint32_t chunk = cache_get_resident(b->request.client->tenant->cache, b->head.namespace_id,
                                            &entry->key, batch_hash(b, i), &b->part->places[i]);

        if (chunk == POOL_NONE)
                return false;
        result->tier = CACHE_MEMORY;
        b->keys.found++;
        get_answer(b, i, get_mapped(b->request.client, entry, chunk, result));
        return true;
}

void request_get(struct batch *b, uint32_t i)
{
        const struct wire_get *entry = batch_entry(b, i);
        bool into = b->head.hdr.flags & WIRE_F_INTO;
        struct cache_request *req;

        if (key_is_root(&entry->key)) {
                get_answer(b, i, WIRE_INVALID);
                return;
        }
        if (!into && get_at_once(b, i, entry))
                return;
        if (!b->slots && !batch_add_slots(b)) {
                get_answer(b, i, WIRE_BUSY);
                return;
        }
        req = &b->slots[i].req;
        if (into && !batch_find_memory(b, req, entry->into_offset, entry->into_region,
                                       entry->into_length)) {
                get_answer(b, i, WIRE_INVALID);
                return;
        }
        batch_request_init(b, i, &entry->key, get_done);
        req->may_be_direct = into && entry->range_offset == 0 && entry->range_length == 0;
        cache_get(b->request.client->tenant->cache, req);
}

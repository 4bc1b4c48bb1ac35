/* SPDX-License-Identifier: Apache-2.0 */
/* A key of a GET: mapped, which means a lease on its chunk in the pool, or copied into the client's
 * memory. Loop thread.
 *
 * A key in memory is answered within the call; one on disk when the cache has read it (get_done()).
 * Failures: a lease over a limit and a range outside the chunk are the key's status; the other keys
 * of the message continue. */
#include "request/internal.h"

/* Computes the length of the requested range; 0 in the entry requests the rest of the chunk.
 * Returns false if the chunk has no such bytes. */
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

/* Leases a chunk and returns its location to the client. */
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

static void count_got(struct batch *b, unsigned got)
{
        histogram_add(&b->request.client->tenant->traffic.got[got], batch_age(b));
}

/* Reads the clock once for all keys found in memory, because a read for each key would add a tenth
 * to the cost of a hit. */
void request_got(struct batch *b)
{
        struct histogram *h = &b->request.client->tenant->traffic.got[GOT_MEMORY];
        uint64_t age;

        if (b->resident == 0)
                return;
        age = batch_age(b);
        histogram_add_many(h, age, b->resident);
        histogram_add_to_sum(h, age * b->resident);
        b->resident = 0;
}

static void get_done(struct cache_request *req)
{
        struct slot *s = container_of(req, struct slot, req);
        struct batch *b = s->batch;
        struct client *client = b->request.client;
        uint32_t i = slot_index(s);
        struct wire_get_result *result = batch_result(b, i);
        enum wire_status status = batch_slot_status(s);

        b->part->places[i] = req->place;
        if (req->tier == CACHE_DISK || req->tier == CACHE_REMOTE)
                chain_part_note_new(b->part);
        b->keys.found += req->chunk_length > 0;
        b->keys.missing += status == WIRE_MISS;
        result->chunk_length = req->chunk_length;
        if (req->chunk_length > 0) {
                result->tier = (uint8_t)req->tier;
                count_got(b, req->tier == CACHE_MEMORY   ? GOT_MEMORY
                             : req->tier == CACHE_REMOTE ? GOT_REMOTE
                                                         : GOT_DISK);
        } else if (status == WIRE_MISS) {
                count_got(b, GOT_MISS);
        }
        if (b->head.hdr.flags & WIRE_F_INTO) {
                result->length = req->copied;
                if (status == WIRE_OK)
                        client->tenant->traffic.get_bytes_into += req->copied;
        } else if (status == WIRE_OK) {
                status = client->ended ? WIRE_SHUTDOWN
                                       : get_mapped(client, batch_entry(b, i), req->chunk, result);
        }
        if (req->chunk != POOL_NONE)
                cache_unpin(client->tenant->cache, req->chunk);
        get_answer(b, i, status);
}

/* Answers a key of a GET that maps, if its chunk is in memory. Otherwise returns false, and stores
 * the key's chunk in the pool or POOL_NONE. */
static bool get_at_once(struct batch *b, uint32_t i, const struct wire_get *entry,
                        uint32_t *ret_chunk)
{
        struct wire_get_result *result = batch_result(b, i);

        if (!cache_get_resident(b->request.client->tenant->cache, b->head.namespace_id, &entry->key,
                                batch_hash(b, i), ret_chunk, &b->part->places[i]))
                return false;
        if (b->head.count > 1 && b->head.count <= BATCH_FETCH_TOUCHES)
                cache_warm_touch(b->request.client->tenant->cache, &b->part->places[i], 0);
        result->tier = CACHE_MEMORY;
        b->keys.found++;
        b->resident++;
        get_answer(b, i, get_mapped(b->request.client, entry, *ret_chunk, result));
        return true;
}

/* Answers a key that is in memory and fits the client's buffer with a lease, so that the client
 * copies it. Returns false if it is not in memory or cannot be leased; then a worker copies it, or
 * the key's status gives the reason. */
static bool get_leased(struct batch *b, uint32_t i, const struct wire_get *entry)
{
        struct client *client = b->request.client;
        struct pool *pool = client->tenant->pool;
        struct wire_get_result *result = batch_result(b, i);
        uint32_t chunk = pool_find(pool, b->head.namespace_id, &entry->key, batch_hash(b, i));
        uint32_t length;

        if (chunk == POOL_NONE || pool_is_filling(pool_chunk(pool, chunk)) ||
            !find_range(client, entry, chunk, result, &length) || length > entry->into_length ||
            !client_has_room_for_lease(client, chunk) ||
            client_lease(client, chunk, &result->lease) != WIRE_OK)
                return false;
        (void)cache_get_resident(client->tenant->cache, b->head.namespace_id, &entry->key,
                                 batch_hash(b, i), &chunk, &b->part->places[i]);
        if (b->head.count > 1 && b->head.count <= BATCH_FETCH_TOUCHES)
                cache_warm_touch(client->tenant->cache, &b->part->places[i], 0);
        result->flags = WIRE_RESULT_LEASED;
        result->offset = pool_offset(pool, chunk) + entry->range_offset;
        result->length = length;
        result->tier = CACHE_MEMORY;
        client->tenant->traffic.get_bytes_into += length;
        b->keys.found++;
        b->resident++;
        get_answer(b, i, WIRE_OK);
        return true;
}

void request_get(struct batch *b, uint32_t i)
{
        const struct wire_get *entry = batch_entry(b, i);
        bool into = b->head.hdr.flags & WIRE_F_INTO;
        struct cache *cache = b->request.client->tenant->cache;
        struct cache_request *req;
        uint32_t chunk;

        if (key_is_root(&entry->key)) {
                get_answer(b, i, WIRE_INVALID);
                return;
        }
        if (!into && get_at_once(b, i, entry, &chunk))
                return;
        if ((b->head.hdr.flags & WIRE_F_LEND) && loan_begin(b, i, &entry->key))
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
        if (into && (b->head.hdr.flags & WIRE_F_LEASE) && get_leased(b, i, entry))
                return;
        batch_request_init(b, i, &entry->key, get_done);
        req->range_offset = entry->range_offset;
        req->range_length = entry->range_length;
        req->unwanted = &b->request.client->ended;
        req->may_be_direct = into && entry->range_offset == 0 && entry->range_length == 0;
        if (into)
                cache_get(cache, req);
        else
                cache_get_rest(cache, req, chunk);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The common parts of all batches: memory, the end of a key and of the batch, and the location of a
 * key's bytes in the client's memory. Loop thread.
 *
 * A batch is one block (memory.h), except for the slots of a PUT, of a GET into the client's
 * memory, or of another GET that has to wait. It is charged to its client's user, and outlives the
 * client's session until its last key has ended. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "request/audit.h"
#include "request/internal.h"

enum {
        WAIT_MAX_MS = 600 * 1000,
        NS_PER_MS = 1000000,
        ALIGNMENT = 16,
};

static bool needs_slots(const struct wire_batch *msg)
{
        return msg->hdr.op == WIRE_PUT ||
               (msg->hdr.op == WIRE_GET && (msg->hdr.flags & WIRE_F_INTO));
}

/* Wire pieces are converted to iovecs in place. */
static_assert(sizeof(struct iovec) == sizeof(struct wire_piece), "in place");
static_assert(_Alignof(struct iovec) <= ALIGNMENT, "in place");

enum wire_status batch_new(struct request req, const struct wire_batch *msg, struct batch **ret)
{
        struct client *client = req.client;
        unsigned op = msg->hdr.op;
        size_t entries = msg->count * wire_entry_bytes(op);
        size_t pieces = msg->pieces * sizeof(struct wire_piece);
        size_t found = (msg->pieces + 7u) / 8u;
        size_t reply = sizeof(struct wire_reply) + msg->count * wire_result_bytes(op);
        size_t entries_at = round_up(sizeof(struct batch), ALIGNMENT);
        size_t places_at = entries_at + round_up(entries, ALIGNMENT);
        size_t reply_at = places_at + pieces;
        size_t found_at = reply_at + round_up(reply, ALIGNMENT);
        size_t part_at = found_at + round_up(found, ALIGNMENT);
        size_t bytes = part_at + (wire_op_is_chained(op) ? chain_part_bytes(msg->count) : 0);
        uint64_t charged = bytes + msg->count * (needs_slots(msg) ? sizeof(struct slot) : 0);
        enum wire_status status = client_charge_request(client, charged);
        uint8_t *block = NULL;
        struct slot *slots = NULL;
        struct batch *b;
        bool again = false;

        if (status != WIRE_OK)
                return status;
        block = request_block_take(client->tenant->request_memory, bytes, &again);
        b = (struct batch *)block;
        if (b && needs_slots(msg))
                slots = calloc(msg->count, sizeof(*slots));
        if (!b || (needs_slots(msg) && !slots)) {
                if (b)
                        request_block_release(client->tenant->request_memory, b, again);
                client_uncharge_request(client, charged);
                return WIRE_BUSY;
        }
        *b = (struct batch){
                .request = req,
                .number = ++client->tenant->service->batches,
                .head = *msg,
                .entries = memcpy(block + entries_at, msg + 1, entries),
                .slots = slots,
                .places = memcpy(block + places_at, (const uint8_t *)(msg + 1) + entries, pieces),
                .found = memset(block + found_at, 0, found),
                .charged = charged,
                .reply = memset(block + reply_at, 0, reply),
                .reply_bytes = reply,
                .part_room = block + part_at,
                .again = again,
        };
        list_init(&b->waits);
        list_append(&client->batches, &b->inflight);
        b->settle.lost_before = cache_lost_evictions(client->tenant->cache);
        *ret = b;
        return WIRE_OK;
}

bool batch_add_slots(struct batch *b)
{
        uint64_t bytes = b->head.count * sizeof(*b->slots);

        if (client_charge(b->request.client, QUOTA_REQUEST_BYTES, bytes) != WIRE_OK)
                return false;
        b->slots = calloc(b->head.count, sizeof(*b->slots));
        if (!b->slots) {
                quota_uncharge(&b->request.client->holds, QUOTA_REQUEST_BYTES, bytes);
                return false;
        }
        b->charged += bytes;
        return true;
}

/* Frees a batch and ends its charge. No key of it may be in progress. */
static void batch_free(struct batch *b)
{
        client_uncharge_request(b->request.client, b->charged);
        free(b->slots);
        list_unlink(&b->inflight);
        request_block_release(b->request.client->tenant->request_memory, b, b->again);
}

static void record_stages(const struct batch *b)
{
        struct stages_event event = {
                .kind = STAGES_BATCH,
                .op = (uint8_t)b->head.hdr.op,
                .keys = b->head.count,
                .at_ns = { b->request.received_ns, b->started_ns, b->submitted_ns,
                           clock_mono_ns() },
        };

        stages_add(&b->request.client->tenant->service->stages, &event);
}

/* Returns the name of the operation for the audit trail, or NULL if the message is not audited. */
static const char *audited_operation(const struct wire_batch *head)
{
        static const char evict[] = "evict", evict_memory[] = "evict from memory", pin[] = "pin",
                          unpin[] = "unpin";

        if (head->hdr.op == WIRE_EVICT)
                return head->tiers == WIRE_TIER_MEMORY ? evict_memory : evict;
        if (head->hdr.op == WIRE_HINT && head->hint == WIRE_HINT_PIN)
                return pin;
        if (head->hdr.op == WIRE_HINT && head->hint == WIRE_HINT_UNPIN)
                return unpin;
        return NULL;
}

static void audit_batch(const struct batch *b)
{
        const char *operation = audited_operation(&b->head);
        const uint16_t *results = batch_result(b, 0);
        uint64_t chunks = 0;

        if (!operation)
                return;
        for (uint32_t i = 0; i < b->head.count; i++)
                chunks += results[i] == WIRE_OK;
        audit_add(b->request.client, operation, b->head.namespace_id, chunks);
}

static void batch_end(struct batch *b)
{
        struct client *client = b->request.client;
        struct wire_reply *reply = (struct wire_reply *)b->reply;

        *reply = (struct wire_reply){
                .status = WIRE_OK,
                .count = wire_result_bytes(b->head.hdr.op) ? b->head.count : 0,
                .value = b->value,
                .value64 = b->value64,
        };
        lookup_counters_add(&client->tenant->lookup_counters, client->tenant->service->store,
                            b->head.namespace_id,
                            b->head.hdr.op == WIRE_GET ? COUNTED_GETS : COUNTED_LOOKUPS, b->keys);
        if (client->tenant->service->recorder && b->head.hdr.op == WIRE_GET)
                recorder_got(client->tenant->service->recorder, b);
        client->keys_inflight -= b->head.count;
        buffers_unuse(client, b->regions);
        quota_uncharge(&client->holds, QUOTA_KEYS, b->head.count);
        audit_batch(b);
        request_reply(b->request, reply, b->reply_bytes);
        if (stages_on(&client->tenant->service->stages) && b->started_ns > 0)
                record_stages(b);
        /* Touch the chunks after the reply, so that the client does not wait for the touches; the
         * next request is handled afterwards. */
        if (b->part)
                chain_part_end(client->tenant->cache, b->part);
        batch_free(b);
}

/* Answers an EVICT after the store has recorded it, because an evicted chunk must not reappear
 * after a kill. */
static void on_settled(struct cache_settle *settle)
{
        struct batch *b = container_of(settle, struct batch, settle);
        uint16_t *results = batch_result(b, 0);

        for (uint32_t i = 0; i < b->head.count; i++) {
                if (results[i] == WIRE_OK && settle->result != 0)
                        results[i] = WIRE_FAILED;
                b->request.client->tenant->traffic.results[results[i]]++;
        }
        batch_end(b);
}

bool batch_is_settled_at_its_end(const struct batch *b)
{
        return b->head.hdr.op == WIRE_EVICT && b->head.tiers != WIRE_TIER_MEMORY;
}

void batch_keys_ended(struct batch *b)
{
        if (!batch_is_settled_at_its_end(b)) {
                batch_end(b);
                return;
        }
        b->settle.complete = on_settled;
        cache_settle_evictions(b->request.client->tenant->cache, &b->settle);
}

void batch_key_end(struct batch *b, enum wire_status status)
{
        if (!batch_is_settled_at_its_end(b))
                b->request.client->tenant->traffic.results[status]++;
        b->done++;
        if (b->done == b->head.count && !b->running)
                batch_keys_ended(b);
}

uint64_t batch_age(const struct batch *b)
{
        return clock_mono_ns() - b->request.received_ns;
}

enum wire_status batch_status(enum cache_status status)
{
        static const enum wire_status map[CACHE_STATUS_END] = {
                [CACHE_OK] = WIRE_OK,
                [CACHE_MISS] = WIRE_MISS,
                [CACHE_EXISTS] = WIRE_EXISTS_ALREADY,
                [CACHE_BUSY] = WIRE_BUSY,
                [CACHE_TOO_LARGE] = WIRE_TOO_LARGE,
                [CACHE_NOT_DURABLE] = WIRE_NOT_DURABLE,
                [CACHE_FAILED] = WIRE_FAILED,
                [CACHE_NO_SPACE] = WIRE_NO_SPACE,
                [CACHE_FAULT] = WIRE_INVALID,
                [CACHE_QUOTA] = WIRE_QUOTA,
                [CACHE_NO_RANGE] = WIRE_INVALID,
                [CACHE_CANCELLED] = WIRE_SHUTDOWN,
        };

        return map[status];
}

enum wire_status batch_slot_status(const struct slot *s)
{
        /* BUSY: the key reached the cache after the cancellation, found no room, and was not
         * allowed to wait. */
        if (s->batch->cancelled &&
            (s->req.status == CACHE_CANCELLED || s->req.status == CACHE_BUSY))
                return WIRE_CANCELLED;
        return batch_status(s->req.status);
}

static uint64_t deadline_of(const struct batch *b)
{
        uint64_t ms = b->head.timeout_ms ? b->head.timeout_ms
                                         : b->request.client->tenant->service->wait_ms;

        return b->request.received_ns + MIN(ms, (uint64_t)WAIT_MAX_MS) * NS_PER_MS;
}

/* Charges memory that the cache needs for a key between the client's memory and the disk, or ends
 * such a charge if `bytes` is negative. A refusal does not refuse the request, so it is not
 * logged. */
static bool charge_key(struct cache_request *req, int64_t bytes)
{
        struct quota_holder *holds =
                &container_of(req, struct slot, req)->batch->request.client->holds;

        if (bytes >= 0)
                return quota_charge(holds, QUOTA_REQUEST_BYTES, (uint64_t)bytes) == 0;
        quota_uncharge(holds, QUOTA_REQUEST_BYTES, (uint64_t)-bytes);
        return true;
}

void batch_request_init(struct batch *b, uint32_t i, const struct key *key,
                        void (*complete)(struct cache_request *))
{
        struct slot *s = &b->slots[i];

        s->batch = b;
        s->req.owner = &b->waits;
        s->req.namespace_id = b->head.namespace_id;
        s->req.tenant = b->request.client->tenant->store_tenant;
        s->req.user = b->request.client->uid;
        s->req.key = *key;
        s->req.hash = batch_hash(b, i);
        s->req.expired = b->is_expired;
        s->req.use = b->part ? chain_part_use(b->part) : 0;
        s->req.gap = b->part ? chain_part_gap(b->part) : EVICT_NO_GAP;
        s->req.chain_place = b->part ? chain_part_place(b->part, i) : EVICT_PLACE_UNKNOWN;
        s->req.nowait = (b->head.hdr.flags & WIRE_F_NOWAIT) || b->request.client->ended;
        s->req.deadline_ns = deadline_of(b);
        s->req.charge = charge_key;
        s->req.complete = complete;
}

/* --- location of a key's bytes --- */

static bool names_memory(const struct wire_batch *b)
{
        return b->hdr.op == WIRE_PUT || (b->hdr.op == WIRE_GET && (b->hdr.flags & WIRE_F_INTO));
}

uint64_t batch_regions(const struct client *client, const struct wire_batch *msg)
{
        const struct wire_put *put = (const struct wire_put *)(msg + 1);
        const struct wire_get *get = (const struct wire_get *)(msg + 1);
        const struct wire_piece *piece = wire_batch_pieces(msg);
        uint64_t regions = 0;

        if (!names_memory(msg) || !client->buffers.usable)
                return 0;
        for (unsigned i = 0; i < msg->pieces; i++)
                regions |= buffers_bit(client, piece[i].region);
        for (unsigned i = 0; i < msg->count && !(msg->hdr.flags & WIRE_F_PIECES); i++)
                regions |= buffers_bit(client, msg->hdr.op == WIRE_PUT ? put[i].region
                                                                       : get[i].into_region);
        return regions;
}

static void *place_at(const struct batch *b, uint32_t region, uint64_t offset, uint64_t length,
                      struct kio_region **ret_region)
{
        *ret_region = NULL;
        if (region == WIRE_REGION_STAGING)
                return staging_at(&b->request.client->staging, offset, length);
        if (region > WIRE_MAX_REGIONS || !(b->regions >> (region - 1) & 1))
                return NULL;
        return buffer_at(b->request.client, region, offset, length, ret_region);
}

static bool in_staging(const struct batch *b, const void *at)
{
        const struct staging *l = &b->request.client->staging;

        return l->base && (uintptr_t)at - (uintptr_t)l->base < l->bytes;
}

bool batch_find_memory(struct batch *b, struct cache_request *req, uint64_t first, uint32_t n,
                       uint32_t length)
{
        req->room = length;
        if (!(b->head.hdr.flags & WIRE_F_PIECES)) {
                req->memory = place_at(b, n, first, length, &req->region);
                return req->memory && length > 0;
        }
        req->pieces = b->places + first;
        req->in_regions = true;
        for (uint64_t i = first; i < first + n; i++) {
                struct kio_region *region;
                struct wire_piece piece;
                void *at;

                /* The piece was found for an earlier key, whose copy may be reading the iovec now.
                 * It stays valid, because neither the staging area nor a buffer in use moves before
                 * the batch ends. */
                if (b->found[i / 8] >> (i % 8) & 1) {
                        req->in_regions &= !in_staging(b, b->places[i].iov_base);
                        continue;
                }
                memcpy(&piece, &b->places[i], sizeof(piece));
                at = place_at(b, piece.region, piece.offset, piece.length, &region);
                if (!at)
                        return false;
                req->in_regions &= piece.region != WIRE_REGION_STAGING;
                b->places[i] = (struct iovec){ .iov_base = at, .iov_len = piece.length };
                b->found[i / 8] |= (uint8_t)(1u << (i % 8));
        }
        return true;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A batch's life: dispatch_message() copies what it needs of the message and queues it;
 * dispatch_run() starts its keys in order, a few a loop turn; each key ends in key_end(), at once
 * or later; the last one sends the reply and frees the batch. */
#include "dispatch.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "admin.h"
#include "base/clock.h"
#include "chain.h"
#include "checked.h"
#include "opening.h"

enum {
        WAIT_MAX_MS = 600 * 1000,
        NS_PER_MS = 1000000,
        FETCH_KEYS = 16,
};

/* --- batches --- */

struct batch;

/* One key of a PUT or GET under way. */
struct slot {
        struct cache_request req;
        struct kio_request copy; /* get into */
        struct batch *batch;
};

struct batch {
        struct list_node node; /* in client.unstarted until all keys are */
        struct client *client;
        struct wire_batch head;
        uint64_t received_ns;
        uint32_t started, done;
        uint64_t hashes[2 * FETCH_KEYS]; /* of the keys around `started` */
        uint32_t value;        /* MATCH: the run; else stale releases */
        bool running;          /* dispatch_run() is in it: it ends it */
        struct chain_part *part;
        uint8_t *entries;      /* then pieces */
        struct slot *slots;    /* PUT; GET, once a key is not at hand */
        struct iovec *places;  /* of pieces: where they are */
        uint64_t regions;      /* donated ones that it names, by bit: kept until it ends */
        struct cache_settle settle; /* EVICT */
        uint8_t *reply;        /* head and results */
        size_t reply_bytes;
};

static void batch_free(struct batch *b)
{
        free(b->slots);
        free(b->places);
        free(b->reply);
        free(b);
}

static void *result_at(const struct batch *b, uint32_t i)
{
        return b->reply + sizeof(struct wire_reply) + i * wire_result_bytes(b->head.hdr.op);
}

static const void *entry_at(const struct batch *b, uint32_t i)
{
        return b->entries + i * wire_entry_bytes(b->head.hdr.op);
}

/* Of a key that is being started. */
static uint64_t hash_at(const struct batch *b, uint32_t i)
{
        return b->hashes[i % ARRAY_SIZE(b->hashes)];
}

static void batch_end(struct batch *b)
{
        struct client *client = b->client;
        struct wire_reply *reply = (struct wire_reply *)b->reply;

        *reply = (struct wire_reply){
                .hdr = {
                        .len = (uint32_t)b->reply_bytes,
                        .op = b->head.hdr.op | WIRE_REPLY,
                        .tag = b->head.hdr.tag,
                },
                .status = WIRE_OK,
                .count = wire_result_bytes(b->head.hdr.op) ? b->head.count : 0,
                .value = b->value,
        };
        client->keys_inflight -= b->head.count;
        donations_unuse(client, b->regions);
        tenant_uncharge(&client->holds, TENANT_KEYS, b->head.count);
        client_answer(client, b->received_ns, reply);
        /* Who was answered need not wait for this, and nothing is asked before it is done. */
        if (b->part)
                chain_part_end(client->env->cache, b->part);
        batch_free(b);
}

/* What is evicted must not come back after a kill: it may be answered once the store has written
 * that. */
static void on_settled(struct cache_settle *settle)
{
        struct batch *b = container_of(settle, struct batch, settle);
        uint16_t *results = result_at(b, 0);

        for (uint32_t i = 0; i < b->head.count; i++) {
                if (results[i] == WIRE_OK && settle->result != 0)
                        results[i] = WIRE_FAILED;
                b->client->env->traffic.results[results[i]]++;
        }
        batch_end(b);
}

static bool is_settled_at_its_end(const struct batch *b)
{
        return b->head.hdr.op == WIRE_EVICT && b->head.tiers != WIRE_TIER_MEMORY;
}

static void keys_ended(struct batch *b)
{
        if (!is_settled_at_its_end(b)) {
                batch_end(b);
                return;
        }
        b->settle.complete = on_settled;
        cache_settle_evictions(b->client->env->cache, &b->settle);
}

static void key_end(struct batch *b, enum wire_status status)
{
        if (!is_settled_at_its_end(b))
                b->client->env->traffic.results[status]++;
        b->done++;
        if (b->done == b->head.count && !b->running)
                keys_ended(b);
}

static enum wire_status status_of(enum cache_status status)
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
                [CACHE_CANCELLED] = WIRE_SHUTDOWN,
        };

        return map[status];
}

static uint64_t deadline_of(const struct batch *b)
{
        uint64_t ms = b->head.timeout_ms ? b->head.timeout_ms : b->client->env->wait_ms;

        return b->received_ns + MIN(ms, (uint64_t)WAIT_MAX_MS) * NS_PER_MS;
}

static void request_init(struct batch *b, uint32_t i, const struct key *key,
                         void (*complete)(struct cache_request *))
{
        struct slot *s = &b->slots[i];

        s->batch = b;
        s->req.owner = b->client;
        s->req.namespace_id = b->head.namespace_id;
        s->req.tenant = b->client->env->store_tenant;
        s->req.key = *key;
        s->req.hash = hash_at(b, i);
        s->req.nowait = (b->head.hdr.flags & WIRE_F_NOWAIT) || b->client->gone;
        s->req.deadline_ns = deadline_of(b);
        s->req.complete = complete;
}

static uint32_t index_of(const struct slot *s)
{
        return (uint32_t)(s - s->batch->slots);
}

/* --- where a key's bytes are, or shall go --- */

static bool names_memory(const struct wire_batch *b)
{
        return b->hdr.op == WIRE_PUT || (b->hdr.op == WIRE_GET && (b->hdr.flags & WIRE_F_INTO));
}

/* The donated regions that it names and may, by bit. */
static uint64_t regions_of(const struct client *client, const struct wire_batch *msg)
{
        const struct wire_put *put = (const struct wire_put *)(msg + 1);
        const struct wire_get *get = (const struct wire_get *)(msg + 1);
        const struct wire_piece *piece = wire_batch_pieces(msg);
        uint64_t regions = 0;

        if (!names_memory(msg) || !client->donations.usable)
                return 0;
        for (unsigned i = 0; i < msg->pieces; i++)
                regions |= donations_bit(client, piece[i].region);
        for (unsigned i = 0; i < msg->count && !(msg->hdr.flags & WIRE_F_PIECES); i++)
                regions |= donations_bit(client, msg->hdr.op == WIRE_PUT ? put[i].region
                                                                         : get[i].into_region);
        return regions;
}

static void *place_at(const struct batch *b, uint32_t region, uint64_t offset, uint64_t length,
                      struct kio_region **ret_region)
{
        *ret_region = NULL;
        if (region == WIRE_REGION_LANE)
                return lane_at(&b->client->lane, offset, length);
        if (region > WIRE_MAX_REGIONS || !(b->regions >> (region - 1) & 1))
                return NULL;
        return donation_at(b->client, region, offset, length, ret_region);
}

/* Fills in the request's memory. False: some of it is not the client's to name. `first`, `n`,
 * `length`: as of the entry. */
static bool find_memory(struct batch *b, struct cache_request *req, uint64_t first, uint32_t n,
                        uint32_t length)
{
        const struct wire_piece *piece =
                (const struct wire_piece *)(b->entries + b->head.count * wire_entry_bytes(
                                                                                 b->head.hdr.op));

        req->room = length;
        if (!(b->head.hdr.flags & WIRE_F_PIECES)) {
                req->memory = place_at(b, n, first, length, &req->region);
                return req->memory && length > 0;
        }
        req->pieces = b->places + first;
        for (uint64_t i = first; i < first + n; i++) {
                struct kio_region *region;

                /* Found for an earlier key: neither the lane nor a region that the batch uses moves
                 * before it ends, and that key's copy may be reading it now. */
                if (b->places[i].iov_base)
                        continue;
                b->places[i] = (struct iovec){
                        .iov_base = place_at(b, piece[i].region, piece[i].offset, piece[i].length,
                                             &region),
                        .iov_len = piece[i].length,
                };
                if (!b->places[i].iov_base)
                        return false;
        }
        return true;
}

/* --- PUT --- */

static void put_done(struct cache_request *req)
{
        struct slot *s = container_of(req, struct slot, req);
        struct batch *b = s->batch;
        struct client *client = b->client;
        struct wire_put_result *result = result_at(b, index_of(s));
        enum wire_status status = status_of(req->status);

        b->part->places[index_of(s)] = req->place;
        if (req->chunk != POOL_NONE) {
                result->length = pool_chunk(client->env->pool, req->chunk)->length;
                /* A lease that cannot be had does not make the put fail: the flag says which there
                 * is. */
                if ((b->head.hdr.flags & WIRE_F_LEASE) && !client->gone &&
                    client_lease(client, req->chunk, &result->lease) == WIRE_OK) {
                        result->flags = WIRE_RESULT_LEASED;
                        result->offset = pool_offset(client->env->pool, req->chunk);
                }
                cache_unpin(client->env->cache, req->chunk);
        }
        result->status = (uint16_t)status;
        key_end(b, status);
}

static void put_start(struct batch *b, uint32_t i)
{
        const struct wire_put *entry = entry_at(b, i);
        struct client *client = b->client;
        struct slot *s = &b->slots[i];

        if (!find_memory(b, &s->req, entry->offset, entry->region, entry->length) ||
            key_is_root(&entry->key)) {
                ((struct wire_put_result *)result_at(b, i))->status = WIRE_INVALID;
                key_end(b, WIRE_INVALID);
                return;
        }
        request_init(b, i, &entry->key, put_done);
        s->req.length = entry->length;
        s->req.ack = (enum cache_ack)b->head.ack;
        /* A lease needs the chunk in the pool. */
        s->req.may_be_direct = !(b->head.hdr.flags & WIRE_F_LEASE);
        s->req.parent = i > 0 ? ((const struct wire_put *)entry_at(b, i - 1))->key : b->head.parent;
        cache_put(client->env->cache, &s->req);
}

/* --- GET --- */

/* How much of the chunk is asked for. False: it has no such bytes. */
static bool find_range(struct client *client, const struct wire_get *entry, uint32_t chunk,
                       struct wire_get_result *result, uint32_t *ret_length)
{
        uint32_t whole = pool_chunk(client->env->pool, chunk)->length;

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
                result->offset = pool_offset(client->env->pool, chunk) + entry->range_offset;
                result->length = length;
                client->env->traffic.get_bytes_map += length;
        }
        return status;
}

static void get_end(struct slot *s, enum wire_status status)
{
        struct wire_get_result *result = result_at(s->batch, index_of(s));

        if (s->req.chunk != POOL_NONE)
                cache_unpin(s->batch->client->env->cache, s->req.chunk);
        result->status = (uint16_t)status;
        key_end(s->batch, status);
}

static void on_copied(struct kio_request *copy)
{
        struct slot *s = container_of(copy, struct slot, copy);
        struct wire_get_result *result = result_at(s->batch, index_of(s));

        if (copy->result < 0) {
                get_end(s, copy->result == -EFAULT ? WIRE_INVALID : WIRE_FAILED);
                return;
        }
        result->length = (uint32_t)copy->length;
        s->batch->client->env->traffic.get_bytes_into += copy->length;
        get_end(s, WIRE_OK);
}

static void get_done(struct cache_request *req)
{
        struct slot *s = container_of(req, struct slot, req);
        struct batch *b = s->batch;
        struct client *client = b->client;
        struct wire_get_result *result = result_at(b, index_of(s));
        const struct wire_get *entry = entry_at(b, index_of(s));
        enum wire_status status = status_of(req->status);
        uint32_t length;

        b->part->places[index_of(s)] = req->place;
        if (status == WIRE_OK && req->direct) {
                result->tier = (uint8_t)req->tier;
                result->chunk_length = req->length;
                result->length = req->length;
                client->env->traffic.get_bytes_into += req->length;
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
                .src = (char *)pool_at(client->env->pool, req->chunk) + entry->range_offset,
                .buf = req->memory,
                .vector = req->pieces,
                .guard_src = true, /* the target: the client's */
                .length = length,
                .complete = on_copied,
        };
        kio_submit(client->env->io, &s->copy, req->chunk);
}

/* What is in memory and to be mapped needs no more than this. */
static bool get_at_once(struct batch *b, uint32_t i, const struct wire_get *entry)
{
        struct wire_get_result *result = result_at(b, i);
        uint32_t chunk = cache_get_resident(b->client->env->cache, b->head.namespace_id,
                                            &entry->key, hash_at(b, i), &b->part->places[i]);

        if (chunk == POOL_NONE)
                return false;
        result->tier = CACHE_MEMORY;
        result->status = (uint16_t)get_mapped(b->client, entry, chunk, result);
        key_end(b, result->status);
        return true;
}

static void get_refuse(struct batch *b, uint32_t i, enum wire_status status)
{
        ((struct wire_get_result *)result_at(b, i))->status = (uint16_t)status;
        key_end(b, status);
}

static void get_start(struct batch *b, uint32_t i)
{
        const struct wire_get *entry = entry_at(b, i);
        bool into = b->head.hdr.flags & WIRE_F_INTO;
        struct cache_request *req;

        if (key_is_root(&entry->key)) {
                get_refuse(b, i, WIRE_INVALID);
                return;
        }
        if (!into && get_at_once(b, i, entry))
                return;
        if (!b->slots)
                b->slots = calloc(b->head.count, sizeof(*b->slots));
        if (!b->slots) {
                get_refuse(b, i, WIRE_BUSY);
                return;
        }
        req = &b->slots[i].req;
        if (into &&
            !find_memory(b, req, entry->into_offset, entry->into_region, entry->into_length)) {
                get_refuse(b, i, WIRE_INVALID);
                return;
        }
        request_init(b, i, &entry->key, get_done);
        req->may_be_direct = into && entry->range_offset == 0 && entry->range_length == 0;
        cache_get(b->client->env->cache, req);
}

/* --- what is answered at once --- */

static void look_up(struct batch *b, uint32_t i)
{
        const struct key *key = entry_at(b, i);
        struct cache *cache = b->client->env->cache;
        uint32_t ns = b->head.namespace_id;
        uint64_t hash = hash_at(b, i);
        struct store_chunk info;
        struct wire_stat_result *stat;
        enum wire_status status = WIRE_MISS;
        unsigned tiers;

        switch (b->head.hdr.op) {
        case WIRE_EXISTS:
                tiers = cache_find(cache, ns, key, hash, NULL, NULL);
                *(uint8_t *)result_at(b, i) = (uint8_t)tiers;
                status = tiers ? WIRE_OK : WIRE_MISS;
                break;
        case WIRE_MATCH:
                if (cache_find(cache, ns, key, hash, NULL, NULL)) {
                        b->value = i + 1;
                        status = WIRE_OK;
                } else {
                        /* The run ends here: the rest need not be looked at. */
                        b->started = b->head.count;
                        b->done = b->head.count - 1;
                }
                break;
        case WIRE_TOUCH:
                if (cache_find(cache, ns, key, hash, &b->part->places[i], NULL))
                        status = WIRE_OK;
                *(uint16_t *)result_at(b, i) = (uint16_t)status;
                break;
        case WIRE_PREFETCH:
                status = status_of(cache_read_ahead(cache, ns, key, hash, &b->part->places[i]));
                *(uint16_t *)result_at(b, i) = (uint16_t)status;
                break;
        case WIRE_EVICT:
                status = status_of(
                        cache_evict(cache, ns, key, hash, b->head.tiers == WIRE_TIER_MEMORY));
                *(uint16_t *)result_at(b, i) = (uint16_t)status;
                break;
        case WIRE_STAT: {
                struct cache_place place;

                stat = result_at(b, i);
                tiers = cache_find(cache, ns, key, hash, &place, &info);
                if (tiers) {
                        status = WIRE_OK;
                        stat->tiers = (uint16_t)tiers;
                        stat->length = info.length;
                        stat->crc32c = info.crc;
                        stat->created_ms = info.created_ms;
                        if (place.chunk != POOL_NONE)
                                stat->leases =
                                        pool_chunk(b->client->env->pool, place.chunk)->leases;
                }
                stat->status = (uint16_t)status;
                break;
        }
        default:
                break;
        }
        key_end(b, status);
}

/* --- messages --- */

static void dispatch_batch(struct client *client, const struct wire_batch *msg,
                           uint64_t received_ns)
{
        unsigned op = msg->hdr.op;
        uint32_t stale = client_release(client, wire_batch_releases(msg), msg->releases);
        size_t entries_bytes =
                msg->count * wire_entry_bytes(op) + msg->pieces * sizeof(struct wire_piece);
        const uint8_t *entries = (const uint8_t *)(msg + 1);
        uint32_t ns = client_namespace(client, msg->namespace_id);
        enum wire_status status;
        struct batch *b;

        client->env->traffic.keys[op] += msg->count;
        if (msg->count > 0 && ns == 0) {
                client_reply(client, &msg->hdr, received_ns, WIRE_NO_NAMESPACE, stale, 0,
                               "this session has not opened that namespace", NULL, 0);
                return;
        }
        if (msg->count > 0 && op == WIRE_PUT && client->env->stopping) {
                client_reply(client, &msg->hdr, received_ns, WIRE_SHUTDOWN, stale, 0,
                               "the daemon is stopping", NULL, 0);
                return;
        }
        if (msg->count == 0) {
                client_reply(client, &msg->hdr, received_ns, WIRE_OK, stale, 0, NULL, NULL, 0);
                return;
        }
        status = client_charge(client, TENANT_KEYS, msg->count);
        if (status != WIRE_OK) {
                client_reply(client, &msg->hdr, received_ns, status, stale, 0,
                               status == WIRE_BUSY
                                       ? "all clients together have too many keys in flight"
                                       : "this user or tenant has too many keys in flight",
                               NULL, 0);
                return;
        }

        b = calloc(1, sizeof(*b) + entries_bytes);
        if (b) {
                b->client = client;
                b->head = *msg;
                b->head.namespace_id = ns;
                b->received_ns = received_ns;
                b->value = op == WIRE_MATCH ? 0 : stale;
                b->entries = memcpy(b + 1, entries, entries_bytes);
                b->reply_bytes = sizeof(struct wire_reply) + msg->count * wire_result_bytes(op);
                b->reply = calloc(1, b->reply_bytes);
                if (op == WIRE_PUT)
                        b->slots = calloc(msg->count, sizeof(*b->slots));
                if (msg->pieces > 0)
                        b->places = calloc(msg->pieces, sizeof(*b->places));
        }
        if (!b || !b->reply || (op == WIRE_PUT && !b->slots) ||
            (msg->pieces > 0 && !b->places) ||
            (wire_op_is_chained(op) &&
             chain_join(client, msg, entry_at(b, msg->count - 1u), &b->part) < 0)) {
                if (b)
                        batch_free(b);
                tenant_uncharge(&client->holds, TENANT_KEYS, msg->count);
                client_reply(client, &msg->hdr, received_ns, WIRE_BUSY, stale, 0, "out of memory",
                               NULL, 0);
                return;
        }
        b->regions = regions_of(client, msg);
        donations_use(client, b->regions);
        client->keys_inflight += msg->count;
        list_append(&client->unstarted, &b->node);
}

static void hash_keys(struct batch *b, uint32_t first)
{
        for (uint32_t i = first; i < first + FETCH_KEYS && i < b->head.count; i++)
                b->hashes[i % ARRAY_SIZE(b->hashes)] =
                        cache_hash(b->client->env->cache, b->head.namespace_id,
                                   entry_at(b, i)); /* every entry begins with its key */
}

static void fetch_keys(const struct batch *b, uint32_t first, unsigned step)
{
        bool of_store = b->head.hdr.op != WIRE_GET; /* what is not in memory takes long enough */

        for (uint32_t i = first; i < first + FETCH_KEYS && i < b->head.count; i++)
                cache_prefetch(b->client->env->cache, hash_at(b, i), of_store, step);
}

/* Before each key: a few keys ahead all are hashed, and their memory is fetched together. */
static void look_ahead(struct batch *b, uint32_t i)
{
        if (i % FETCH_KEYS != 0)
                return;
        if (i == 0)
                hash_keys(b, 0);
        if (b->head.count < FETCH_KEYS / 2)
                return;
        if (i == 0)
                fetch_keys(b, 0, 0);
        fetch_keys(b, i, 1);
        hash_keys(b, i + FETCH_KEYS);
        fetch_keys(b, i + FETCH_KEYS, 0);
}

bool dispatch_is_small(const struct client *client)
{
        const struct list_node *first = client->unstarted.next;

        return list_empty(&client->unstarted) ||
               (first == client->unstarted.prev &&
                container_of(first, struct batch, node)->head.count <= DISPATCH_SMALL_KEYS);
}

bool dispatch_run(struct client *client)
{
        unsigned budget = DISPATCH_KEYS_PER_TURN;

        while (!list_empty(&client->unstarted) && budget > 0) {
                struct batch *b = container_of(client->unstarted.next, struct batch, node);
                bool started;

                b->running = true;
                while (b->started < b->head.count && budget > 0) {
                        uint32_t i = b->started++;

                        budget--;
                        look_ahead(b, i);
                        if (client->gone) {
                                if (is_settled_at_its_end(b))
                                        *(uint16_t *)result_at(b, i) = WIRE_SHUTDOWN;
                                key_end(b, WIRE_SHUTDOWN);
                        } else if (b->head.hdr.op == WIRE_PUT)
                                put_start(b, i);
                        else if (b->head.hdr.op == WIRE_GET)
                                get_start(b, i);
                        else
                                look_up(b, i);
                }
                b->running = false;
                started = b->started == b->head.count;
                if (!started)
                        return false;
                list_unlink(&b->node);
                if (b->done == b->head.count)
                        keys_ended(b);
        }
        return list_empty(&client->unstarted);
}

static void dispatch_ping(struct client *client, const struct wire_hdr *msg, uint64_t received_ns)
{
        struct {
                struct wire_reply reply;
                uint8_t payload[WIRE_MAX_PING];
        } out;
        size_t payload = msg->len - sizeof(*msg);

        out.reply = (struct wire_reply){
                .hdr = { .len = (uint32_t)(sizeof(out.reply) + payload),
                         .op = msg->op | WIRE_REPLY,
                         .tag = msg->tag },
        };
        memcpy(out.payload, msg + 1, payload);
        client_answer(client, received_ns, &out.reply);
}

void dispatch_message(struct client *client, const void *msg, int *fds)
{
        const struct wire_hdr *hdr = msg;
        uint64_t now = client->readable_ns ? client->readable_ns : clock_mono_ns();

        client->inflight++;
        client->env->traffic.requests[hdr->op]++;
        switch (hdr->op) {
        case WIRE_PING:
                dispatch_ping(client, msg, now);
                break;
        case WIRE_NAMESPACE:
                opening_namespace(client, msg, now);
                break;
        case WIRE_LANE:
                opening_lane(client, msg, now);
                break;
        case WIRE_DONATE:
                donation_open(client, msg, &fds[0], now);
                break;
        case WIRE_WITHDRAW:
                donation_withdraw(client, msg, now);
                break;
        case WIRE_LOOKUP:
                opening_lookup(client, msg, now);
                break;
        case WIRE_LIST:
                admin_list(client, msg, now);
                break;
        case WIRE_PURGE:
                admin_purge(client, msg, now);
                break;
        case WIRE_REPORT:
                admin_report(client, msg, now);
                break;
        case WIRE_VERIFY:
                admin_verify(client, msg, now);
                break;
        case WIRE_DEVICE:
                admin_device(client, msg, now);
                break;
        default:
                dispatch_batch(client, msg, now);
                break;
        }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A batch's life: dispatch_message() copies what it needs of the message and queues it;
 * dispatch_run() starts its keys in order, a few a loop turn; each key ends in key_end(), at once
 * or later; the last one sends the reply and frees the batch.
 *
 * Recency: the places of all keys of a chain are kept, over as many messages as it has (a GET of
 * what is there and a PUT of the rest are one chain), and touched from its end to its root when the
 * last of them is answered. */
#include "dispatch.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "admin.h"
#include "base/clock.h"
#include "checked.h"
#include "cleanup.h"

enum {
        CHAIN_MAX_KEYS = 64 * 1024, /* a longer one is touched in parts */
        WAIT_MAX_MS = 600 * 1000,
        NS_PER_MS = 1000000,
};

/* --- chains --- */

struct chain_part {
        struct list_node node;
        uint32_t n;
        struct cache_place places[];
};

struct chain {
        struct list_node parts; /* root first */
        unsigned unanswered;    /* parts whose batch is under way */
        uint32_t keys;
        bool open;              /* another message may continue it */
};

static void part_touch(struct cache *cache, const struct chain_part *part)
{
        for (uint32_t i = part->n; i-- > 0;)
                cache_touch(cache, &part->places[i]);
}

static void chain_settle(struct cache *cache, struct chain *ch)
{
        if (ch->open || ch->unanswered > 0)
                return;
        for (struct list_node *n = ch->parts.prev, *before = n->prev; n != &ch->parts;
             n = before, before = n->prev) {
                struct chain_part *part = container_of(n, struct chain_part, node);

                part_touch(cache, part);
                list_unlink(n);
                free(part);
        }
        free(ch);
}

static void chain_close(struct client *client)
{
        struct chain *ch = TAKE_PTR(client->chain);

        if (ch) {
                ch->open = false;
                chain_settle(client->env->cache, ch);
        }
}

/* The part for a batch of `count` keys: of the chain it continues, or of a new one. */
static int chain_join(struct client *client, const struct wire_batch *b, const struct key *last,
                      struct chain **ret_chain, struct chain_part **ret_part)
{
        struct chain_part *part;
        struct chain *ch;

        if (client->chain && (!key_equal(&client->chain_last, &b->parent) ||
                              client->chain->keys + b->count > CHAIN_MAX_KEYS))
                chain_close(client);
        part = calloc(1, sizeof(*part) + b->count * sizeof(part->places[0]));
        if (!part)
                return -ENOMEM;
        ch = client->chain;
        if (!ch) {
                ch = calloc(1, sizeof(*ch));
                if (!ch) {
                        free(part);
                        return -ENOMEM;
                }
                list_init(&ch->parts);
        }
        part->n = b->count;
        for (uint32_t i = 0; i < part->n; i++)
                part->places[i] = (struct cache_place){ .chunk = POOL_NONE, .ref = STORE_REF_NONE };
        list_append(&ch->parts, &part->node);
        ch->keys += b->count;
        ch->unanswered++;
        ch->open = b->hdr.flags & WIRE_F_MORE;
        client->chain = ch->open ? ch : NULL;
        client->chain_last = *last;
        *ret_chain = ch;
        *ret_part = part;
        return 0;
}

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
        uint32_t value;        /* MATCH: the run; else stale releases */
        bool running;          /* dispatch_run() is in it: it ends it */
        struct chain *chain;
        struct chain_part *part;
        uint8_t *entries;
        struct slot *slots;    /* PUT and GET */
        struct cache_settle settle; /* EVICT */
        uint8_t *reply;        /* head and results */
        size_t reply_bytes;
};

static void batch_free(struct batch *b)
{
        free(b->slots);
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

/* Answered: counts, sends unless nobody listens, and lets the client go on. */
static void answer(struct client *client, uint64_t received_ns, const struct wire_reply *reply,
                   const int *fds, unsigned n_fds)
{
        unsigned op = reply->hdr.op & ~(unsigned)WIRE_REPLY;

        histogram_add(&client->env->traffic.latency[op], clock_mono_ns() - received_ns);
        assert(client->inflight > 0);
        client->inflight--;
        if (!client->gone)
                client->send(client, reply, reply->hdr.len, fds, n_fds);
        client->idle(client);
}

void dispatch_answer(struct client *client, uint64_t received_ns, const struct wire_reply *reply)
{
        answer(client, received_ns, reply, NULL, 0);
}

void dispatch_reply(struct client *client, const struct wire_hdr *request, uint64_t received_ns,
                    enum wire_status status, uint32_t value, uint64_t value64, const char *text,
                    const int *fds, unsigned n_fds)
{
        struct {
                struct wire_reply reply;
                char text[WIRE_MAX_TEXT];
        } msg;
        size_t text_bytes =
                status != WIRE_OK && text ? MIN(strlen(text), (size_t)WIRE_MAX_TEXT) : 0;

        msg.reply = (struct wire_reply){
                .hdr = {
                        .len = (uint32_t)(sizeof(msg.reply) + text_bytes),
                        .op = request->op | WIRE_REPLY,
                        .tag = request->tag,
                },
                .status = (uint16_t)status,
                .value = value,
                .value64 = value64,
        };
        if (text_bytes)
                memcpy(msg.text, text, text_bytes);
        answer(client, received_ns, &msg.reply, fds, n_fds);
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
        if (b->chain) {
                b->chain->unanswered--;
                /* While the rest of the chain is still to come, this part must not be the next to
                 * be evicted. */
                if (b->chain->open || b->chain->unanswered > 0)
                        part_touch(client->env->cache, b->part);
                chain_settle(client->env->cache, b->chain);
        }
        client->keys_inflight -= b->head.count;
        tenant_uncharge(&client->holds, TENANT_KEYS, b->head.count);
        answer(client, b->received_ns, reply, NULL, 0);
        batch_free(b);
}

/* What is evicted must not come back after a kill: it may be answered once the store has written
 * that. */
static void on_settled(struct cache_settle *settle)
{
        struct batch *b = container_of(settle, struct batch, settle);
        uint16_t *results = result_at(b, 0);

        for (uint32_t i = 0; i < b->head.count && settle->result != 0; i++)
                if (results[i] == WIRE_OK)
                        results[i] = WIRE_FAILED;
        batch_end(b);
}

static void keys_ended(struct batch *b)
{
        if (b->head.hdr.op != WIRE_EVICT || b->head.tiers == WIRE_TIER_MEMORY) {
                batch_end(b);
                return;
        }
        b->settle.complete = on_settled;
        cache_settle_evictions(b->client->env->cache, &b->settle);
}

static void key_end(struct batch *b, enum wire_status status)
{
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

/* --- quotas --- */

/* OK, or what a charge that was refused is answered with. */
static enum wire_status charge(struct client *client, enum tenant_thing what, uint64_t amount)
{
        struct dispatch_env *env = client->env;
        uint32_t held_back;
        int r = tenant_charge(&client->holds, what, amount);

        if (r == 0)
                return WIRE_OK;
        if (log_ratelimit_pass(&env->quota_lines, &held_back))
                log_notice("tenant %s: %s are at the limit of %s",
                           tenants_name(env->tenants, env->tenant), tenant_thing_name(what),
                           r == TENANT_QUOTA_USER ? "one user (limits.uid_*)"
                           : r == TENANT_QUOTA    ? "the tenant (tenants)"
                                                  : "all clients together (limits)");
        return r == TENANT_FULL ? WIRE_BUSY : WIRE_QUOTA;
}

/* After leases were given back. */
static void settle_leases(struct client *client)
{
        tenant_settle(&client->holds, TENANT_LEASES, client->leases.count);
        tenant_settle(&client->holds, TENANT_LEASED_BYTES, client->leases.bytes);
}

/* A lease on the chunk: OK and filled in, or what stands against it. */
static enum wire_status take_lease(struct client *client, uint32_t chunk, struct wire_lease *ret)
{
        enum wire_status status = charge(client, TENANT_LEASES, 1);
        struct lease lease;
        int r;

        if (status == WIRE_OK)
                status = charge(client, TENANT_LEASED_BYTES,
                                pool_slot_bytes(client->env->pool, chunk));
        if (status != WIRE_OK) {
                settle_leases(client);
                return status;
        }
        r = lease_acquire(client->env->leases, &client->leases, chunk, &lease);
        if (r != 0)
                settle_leases(client);
        switch (r) {
        case 0:
                *ret = (struct wire_lease){ .id = lease.id, .generation = lease.generation };
                return WIRE_OK;
        case LEASE_QUOTA:
                return WIRE_QUOTA;
        default:
                return WIRE_BUSY;
        }
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
        s->req.nowait = (b->head.hdr.flags & WIRE_F_NOWAIT) || b->client->gone;
        s->req.deadline_ns = deadline_of(b);
        s->req.complete = complete;
}

static uint32_t index_of(const struct slot *s)
{
        return (uint32_t)(s - s->batch->slots);
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
                    take_lease(client, req->chunk, &result->lease) == WIRE_OK) {
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

        s->req.src = entry->region == WIRE_REGION_LANE
                             ? lane_at(&client->lane, entry->offset, entry->length)
                             : NULL;
        if (!s->req.src || entry->length == 0 || key_is_root(&entry->key)) {
                ((struct wire_put_result *)result_at(b, i))->status = WIRE_INVALID;
                key_end(b, WIRE_INVALID);
                return;
        }
        request_init(b, i, &entry->key, put_done);
        s->req.length = entry->length;
        s->req.ack = (enum cache_ack)b->head.ack;
        s->req.parent = i > 0 ? ((const struct wire_put *)entry_at(b, i - 1))->key : b->head.parent;
        cache_put(client->env->cache, &s->req);
}

/* --- GET --- */

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
                get_end(s, WIRE_FAILED);
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
        const struct pool_chunk *pc;
        uint32_t length;

        b->part->places[index_of(s)] = req->place;
        if (status != WIRE_OK) {
                get_end(s, status);
                return;
        }
        pc = pool_chunk(client->env->pool, req->chunk);
        result->tier = (uint8_t)req->tier;
        result->chunk_length = pc->length;
        if (entry->range_offset >= pc->length ||
            entry->range_length > pc->length - entry->range_offset) {
                get_end(s, WIRE_INVALID);
                return;
        }
        length = entry->range_length ? entry->range_length : pc->length - entry->range_offset;

        if (client->gone) {
                get_end(s, WIRE_SHUTDOWN);
                return;
        }
        if (b->head.hdr.flags & WIRE_F_INTO) {
                if (length > entry->into_length) {
                        result->length = length;
                        get_end(s, WIRE_TOO_LARGE);
                        return;
                }
                s->copy = (struct kio_request){
                        .op = KIO_COPY,
                        .class = KIO_CLASS_GET,
                        .src = (char *)pool_at(client->env->pool, req->chunk) + entry->range_offset,
                        .buf = lane_at(&client->lane, entry->into_offset, length),
                        .guard_src =
                                true, /* the target: memory for the lane's page may be refused */
                        .length = length,
                        .complete = on_copied,
                };
                kio_submit(client->env->io, &s->copy, req->chunk);
                return;
        }
        status = take_lease(client, req->chunk, &result->lease);
        if (status == WIRE_OK) {
                result->flags = WIRE_RESULT_LEASED;
                result->offset = pool_offset(client->env->pool, req->chunk) + entry->range_offset;
                result->length = length;
                client->env->traffic.get_bytes_map += length;
        }
        get_end(s, status);
}

static void get_start(struct batch *b, uint32_t i)
{
        const struct wire_get *entry = entry_at(b, i);
        bool into = b->head.hdr.flags & WIRE_F_INTO;

        if (key_is_root(&entry->key) ||
            (into && (entry->into_region != WIRE_REGION_LANE || entry->into_length == 0 ||
                      !lane_at(&b->client->lane, entry->into_offset, entry->into_length)))) {
                ((struct wire_get_result *)result_at(b, i))->status = WIRE_INVALID;
                key_end(b, WIRE_INVALID);
                return;
        }
        request_init(b, i, &entry->key, get_done);
        cache_get(b->client->env->cache, &b->slots[i].req);
}

/* --- what is answered at once --- */

static void look_up(struct batch *b, uint32_t i)
{
        const struct key *key = entry_at(b, i);
        struct cache *cache = b->client->env->cache;
        struct store_chunk info;
        struct wire_stat_result *stat;
        enum wire_status status = WIRE_MISS;
        unsigned tiers;

        switch (b->head.hdr.op) {
        case WIRE_EXISTS:
                tiers = cache_find(cache, b->head.namespace_id, key, NULL, NULL);
                *(uint8_t *)result_at(b, i) = (uint8_t)tiers;
                status = tiers ? WIRE_OK : WIRE_MISS;
                break;
        case WIRE_MATCH:
                if (cache_find(cache, b->head.namespace_id, key, NULL, NULL)) {
                        b->value = i + 1;
                        status = WIRE_OK;
                } else {
                        /* The run ends here: the rest need not be looked at. */
                        b->started = b->head.count;
                        b->done = b->head.count - 1;
                }
                break;
        case WIRE_TOUCH:
                if (cache_find(cache, b->head.namespace_id, key, &b->part->places[i], NULL))
                        status = WIRE_OK;
                *(uint16_t *)result_at(b, i) = (uint16_t)status;
                break;
        case WIRE_EVICT:
                status = status_of(cache_evict(cache, b->head.namespace_id, key,
                                               b->head.tiers == WIRE_TIER_MEMORY));
                *(uint16_t *)result_at(b, i) = (uint16_t)status;
                break;
        case WIRE_STAT: {
                struct cache_place place;

                stat = result_at(b, i);
                tiers = cache_find(cache, b->head.namespace_id, key, &place, &info);
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

static uint32_t release_riders(struct client *client, const struct wire_batch *b)
{
        const struct wire_lease *leases = wire_batch_releases(b);
        uint32_t stale = 0;

        for (unsigned i = 0; i < b->releases; i++) {
                struct lease lease = { .id = leases[i].id, .generation = leases[i].generation };

                if (lease_release(client->env->leases, &client->leases, lease) != 0)
                        stale++;
        }
        if (b->releases) {
                settle_leases(client);
                cache_kick(client->env->cache);
        }
        return stale;
}

static bool is_chained(unsigned op)
{
        return op == WIRE_PUT || op == WIRE_GET || op == WIRE_TOUCH;
}

static void dispatch_batch(struct client *client, const struct wire_batch *msg,
                           uint64_t received_ns)
{
        unsigned op = msg->hdr.op;
        uint32_t stale = release_riders(client, msg);
        size_t entries_bytes = msg->count * wire_entry_bytes(op);
        const uint8_t *entries = (const uint8_t *)(msg + 1);
        uint32_t ns = client_namespace(client, msg->namespace_id);
        enum wire_status status;
        struct batch *b;

        client->env->traffic.keys[op] += msg->count;
        if (msg->count > 0 && ns == 0) {
                dispatch_reply(client, &msg->hdr, received_ns, WIRE_NO_NAMESPACE, stale, 0,
                               "this session has not opened that namespace", NULL, 0);
                return;
        }
        if (msg->count > 0 && op == WIRE_PUT && client->env->stopping) {
                dispatch_reply(client, &msg->hdr, received_ns, WIRE_SHUTDOWN, stale, 0,
                               "the daemon is stopping", NULL, 0);
                return;
        }
        if (msg->count == 0) {
                dispatch_reply(client, &msg->hdr, received_ns, WIRE_OK, stale, 0, NULL, NULL, 0);
                return;
        }
        status = charge(client, TENANT_KEYS, msg->count);
        if (status != WIRE_OK) {
                dispatch_reply(client, &msg->hdr, received_ns, status, stale, 0,
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
                if (op == WIRE_PUT || op == WIRE_GET)
                        b->slots = calloc(msg->count, sizeof(*b->slots));
        }
        if (!b || !b->reply || ((op == WIRE_PUT || op == WIRE_GET) && !b->slots) ||
            (is_chained(op) &&
             chain_join(client, msg, entry_at(b, msg->count - 1u), &b->chain, &b->part) < 0)) {
                if (b)
                        batch_free(b);
                tenant_uncharge(&client->holds, TENANT_KEYS, msg->count);
                dispatch_reply(client, &msg->hdr, received_ns, WIRE_BUSY, stale, 0, "out of memory",
                               NULL, 0);
                return;
        }
        client->keys_inflight += msg->count;
        list_append(&client->unstarted, &b->node);
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
                        if (client->gone)
                                key_end(b, WIRE_SHUTDOWN);
                        else if (b->head.hdr.op == WIRE_PUT)
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

struct namespace_open {
        struct store_namespace_open store;
        struct client *client;
        struct wire_hdr hdr;
        uint64_t received_ns;
};

/* The client's number for the store's namespace; 0: not opened yet. */
static uint32_t number_of(const struct client *client, uint32_t id)
{
        for (unsigned i = 0; i < client->n_namespaces; i++)
                if (client->namespaces[i] == id)
                        return i + 1;
        return 0;
}

/* Where there are several tenants each has its share of the namespaces that a store can have. */
static bool has_its_share(const struct dispatch_env *env, const char *name, size_t length)
{
        const struct store_namespace *ns;
        unsigned own = 0;

        if (env->n_all <= 1)
                return false;
        for (unsigned i = 0; (ns = store_namespace_at(env->store, i)); i++) {
                if (ns->tenant != env->store_tenant)
                        continue;
                if (strlen(ns->name) == length && memcmp(ns->name, name, length) == 0)
                        return false;
                own++;
        }
        return own >= STORE_MAX_NAMESPACES / TENANTS_MAX;
}

static void on_namespace(struct store_namespace_open *store)
{
        struct namespace_open *op = container_of(store, struct namespace_open, store);
        struct client *client = op->client;
        const struct store_namespace *ns = store->namespace;
        struct wire_hdr hdr = op->hdr;
        uint64_t received_ns = op->received_ns;
        char text[WIRE_MAX_TEXT];
        int result = store->result;
        uint32_t number = result == 0 ? number_of(client, ns->id) : 0;

        if (result == STORE_MISMATCH) {
                char diff[512];

                wire_fingerprint_diff(ns->fingerprint, strlen(ns->fingerprint), store->fingerprint,
                                      store->fingerprint_length, diff, sizeof(diff));
                snprintf(text, sizeof(text), "namespace \"%s\" exists with another fingerprint: %s",
                         ns->name, diff);
        }
        free(op);
        if (result == 0 && number == 0 && client->n_namespaces < CLIENT_MAX_NAMESPACES) {
                client->namespaces[client->n_namespaces++] = ns->id;
                number = client->n_namespaces;
        }
        if (result == 0 && number == 0) {
                dispatch_reply(client, &hdr, received_ns, WIRE_QUOTA, 0, 0,
                               "this session has opened too many namespaces", NULL, 0);
        } else if (result == 0) {
                if (ns->chunk_bytes)
                        pool_declare(client->env->pool, ns->chunk_bytes);
                dispatch_reply(client, &hdr, received_ns, WIRE_OK, number, ns->chunk_bytes, NULL,
                               NULL, 0);
        } else if (result == STORE_MISMATCH) {
                dispatch_reply(client, &hdr, received_ns, WIRE_MISMATCH, 0, 0, text, NULL, 0);
        } else if (result == STORE_MISS) {
                dispatch_reply(client, &hdr, received_ns, WIRE_NO_NAMESPACE, 0, 0,
                               "there is no such namespace", NULL, 0);
        } else if (result == -ENOSPC) {
                dispatch_reply(client, &hdr, received_ns, WIRE_QUOTA, 0, 0,
                               "the store has no room for another namespace", NULL, 0);
        } else {
                snprintf(text, sizeof(text), "the namespace could not be written: %s",
                         strerror(result < 0 ? -result : EIO));
                dispatch_reply(client, &hdr, received_ns, WIRE_FAILED, 0, 0, text, NULL, 0);
        }
}

static void dispatch_namespace(struct client *client, const struct wire_namespace *msg,
                               uint64_t received_ns)
{
        const char *name = (const char *)(msg + 1), *fingerprint = name + msg->name_length;
        bool attach = msg->hdr.flags & WIRE_F_ATTACH;
        struct namespace_open *op;

        if (wire_fingerprint_check(fingerprint, msg->fingerprint_length) < 0 ||
            memchr(name, '\0', msg->name_length)) {
                dispatch_reply(client, &msg->hdr, received_ns, WIRE_INVALID, 0, 0,
                               memchr(name, '\0', msg->name_length)
                                       ? "the namespace's name has a NUL byte"
                                       : "the fingerprint is not canonical: lines key=value, "
                                         "sorted by key, each ended by a newline",
                               NULL, 0);
                return;
        }
        if (!attach && has_its_share(client->env, name, msg->name_length)) {
                dispatch_reply(client, &msg->hdr, received_ns, WIRE_QUOTA, 0, 0,
                               "this tenant has as many namespaces as one may have", NULL, 0);
                return;
        }
        op = calloc(1, sizeof(*op) + msg->fingerprint_length);
        if (!op) {
                dispatch_reply(client, &msg->hdr, received_ns, WIRE_BUSY, 0, 0, "out of memory",
                               NULL, 0);
                return;
        }
        op->client = client;
        op->hdr = msg->hdr;
        op->received_ns = received_ns;
        op->store = (struct store_namespace_open){
                .tenant = client->env->store_tenant,
                .name = name,
                .name_length = msg->name_length,
                /* Kept: a refusal compares it once more. */
                .fingerprint = memcpy(op + 1, fingerprint, msg->fingerprint_length),
                .fingerprint_length = msg->fingerprint_length,
                .chunk_bytes = msg->chunk_bytes,
                .attach = attach,
                .complete = on_namespace,
        };
        store_namespace_open(client->env->store, &op->store);
}

static void dispatch_lane(struct client *client, const struct wire_lane *msg, uint64_t received_ns)
{
        struct dispatch_env *env = client->env;
        uint64_t bytes = msg->bytes ? msg->bytes : env->lane_max;
        enum wire_status status;
        int r;

        if (client->lane.base) {
                dispatch_reply(client, &msg->hdr, received_ns, WIRE_INVALID, 0, 0,
                               "this session has its lane already", NULL, 0);
                return;
        }
        if (bytes > env->lane_max) {
                dispatch_reply(client, &msg->hdr, received_ns, WIRE_TOO_LARGE, 0, env->lane_max,
                               "a lane of that size is over memory.lane", NULL, 0);
                return;
        }
        bytes = round_up(bytes, 4096);
        status = charge(client, TENANT_LANE_BYTES, bytes);
        if (status == WIRE_OK) {
                status = charge(client, TENANT_LANES, 1);
                if (status != WIRE_OK)
                        tenant_uncharge(&client->holds, TENANT_LANE_BYTES, bytes);
        }
        if (status != WIRE_OK) {
                dispatch_reply(client, &msg->hdr, received_ns, WIRE_QUOTA, 0, 0,
                               "all lanes together are at their limit", NULL, 0);
                return;
        }
        r = lane_open(&client->lane, bytes);
        if (r < 0) {
                tenant_uncharge(&client->holds, TENANT_LANE_BYTES, bytes);
                tenant_uncharge(&client->holds, TENANT_LANES, 1);
                dispatch_reply(client, &msg->hdr, received_ns, WIRE_BUSY, 0, 0, strerror(-r), NULL,
                               0);
                return;
        }
        dispatch_reply(client, &msg->hdr, received_ns, WIRE_OK, 0, bytes, NULL, &client->lane.fd,
                       1);
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
        answer(client, received_ns, &out.reply, NULL, 0);
}

void dispatch_message(struct client *client, const void *msg, size_t bytes)
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
                dispatch_namespace(client, msg, now);
                break;
        case WIRE_LANE:
                dispatch_lane(client, msg, now);
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

/* --- clients --- */

void client_init(struct client *client, struct dispatch_env *env)
{
        *client = (struct client){ .env = env, .lane = { .fd = -1 } };
        lease_holder_init(&client->leases);
        list_init(&client->unstarted);
}

uint32_t client_namespace(const struct client *client, uint32_t number)
{
        return number > 0 && number <= client->n_namespaces ? client->namespaces[number - 1] : 0;
}

void client_abandon(struct client *client)
{
        client->gone = true;
        lease_release_all(client->env->leases, &client->leases);
        settle_leases(client);
        cache_kick(client->env->cache);
        cache_cancel(client->env->cache, client);
}

void client_fini(struct client *client)
{
        assert(client->inflight == 0);
        chain_close(client);
        lease_release_all(client->env->leases, &client->leases);
        settle_leases(client);
        if (client->lane.base) {
                tenant_uncharge(&client->holds, TENANT_LANE_BYTES, client->lane.bytes);
                tenant_uncharge(&client->holds, TENANT_LANES, 1);
                lane_close(&client->lane);
        }
}

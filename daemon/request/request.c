/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a batch: request_dispatch() copies the message and queues the batch; request_run()
 * starts its keys in order, a few per iteration; each key ends in batch_key_end(), at once or
 * later; the last one sends the reply and frees the batch. Loop thread.
 *
 * Failures: an error of the whole message, or a limit, is its answer, and none of its keys is
 * started; an error of one key is that key's status. */
#include <math.h>
#include <string.h>

#include "request/admin.h"
#include "base/clock.h"
#include "request/chain.h"
#include "request/events-request.h"
#include "request/internal.h"
#include "request/handshake.h"
#include "request/hits.h"
#include "remote/remote.h"

/* --- operations answered at once --- */

/* Returns the number of consecutive keys from key `i` on that the shared tier has, which extend the
 * run. Sets WIRE_MATCH_SEARCHING in it if the tier's answer is not complete yet. */
static uint64_t match_remote(struct batch *b, uint32_t i)
{
        static uint64_t hashes[WIRE_MAX_KEYS]; /* too large for the stack */
        const struct cache *cache = b->request.client->tenant->cache;
        uint32_t n = b->head.count - i, there;
        bool is_known = true;

        for (uint32_t j = 0; j < n; j++)
                hashes[j] = cache_hash(cache, b->head.namespace_id, batch_entry(b, i + j));
        there = remote_match(b->request.client->tenant->service->remote, b->head.namespace_id,
                             batch_entry(b, i), hashes, n, &is_known);
        return there | (is_known ? 0 : WIRE_MATCH_SEARCHING);
}

static bool asks_remote(const struct batch *b)
{
        return b->head.hdr.flags & WIRE_F_REMOTE && b->request.client->tenant->service->remote;
}

/* Returns the bit of the shared tier if that is known to have the key; does not search it. */
static unsigned remote_tier(const struct batch *b, uint64_t hash)
{
        return asks_remote(b) && remote_presence(b->request.client->tenant->service->remote,
                                                 b->head.namespace_id, hash) == 1
                       ? WIRE_TIER_REMOTE
                       : 0;
}

static enum wire_status look_up_match(struct batch *b, bool has, uint32_t i)
{
        if (has) {
                b->value = i + 1;
                b->keys.found++;
                return WIRE_OK;
        }
        if (asks_remote(b))
                b->value64 = match_remote(b, i);
        /* The run ends before this key, so the keys after it need no lookup. */
        b->keys.missing += b->head.count - i;
        b->started = b->head.count;
        b->done = b->head.count - 1;
        return WIRE_MISS;
}

static_assert((int)EVICT_CLASS_END == (int)WIRE_CLASS_END, "the same classes");

static struct wire_standing standing_of(const struct evict_standing *s, bool is_pinned)
{
        double ratio = s->least_density > 0 ? s->density / s->least_density : 0, worth = 0;

        if (s->class == EVICT_CLASS_NONE)
                return (struct wire_standing){ 0 };
        if (s->least_density > 0)
                worth = ratio > 0 ? 256 * log2(ratio) : INT16_MIN;
        else if (s->density > 0)
                worth = INT16_MAX;
        return (struct wire_standing){
                .age = (uint32_t)MIN(s->age, (uint64_t)UINT32_MAX),
                .worth = (int16_t)MAX(MIN(worth, (double)INT16_MAX), (double)INT16_MIN),
                .class = (uint8_t)s->class,
                .flags = (uint8_t)((s->is_next ? WIRE_STANDING_NEXT : 0) |
                                   (is_pinned ? WIRE_STANDING_PINNED : 0) |
                                   (s->is_continued ? WIRE_STANDING_CONTINUED : 0) |
                                   (s->is_retained ? WIRE_STANDING_RETAINED : 0) |
                                   s->cost << WIRE_STANDING_COST_BIT),
        };
}

static enum wire_status look_up_stat(struct batch *b, uint32_t i, struct cache *cache,
                                     const struct key *key, uint64_t hash)
{
        struct wire_stat_result *stat = batch_result(b, i);
        struct store_chunk info;
        struct evict_standing standing;
        struct cache_place place;
        unsigned tiers = cache_find(cache, b->head.namespace_id, key, hash, &place, &info);

        if (tiers) {
                stat->length = info.length;
                stat->crc32c = info.crc;
                stat->created_ms = info.created_ms;
                if (tiers & CACHE_DISK) {
                        bool is_pinned = store_explain(b->request.client->tenant->service->store,
                                                       place.ref, &standing);

                        stat->disk = standing_of(&standing, is_pinned);
                }
                if (place.chunk != POOL_NONE) {
                        const struct pool *pool = b->request.client->tenant->pool;
                        const struct pool_chunk *chunk = pool_chunk(pool, place.chunk);

                        stat->leases = chunk->leases;
                        pool_explain(pool, place.chunk, &standing);
                        stat->memory = standing_of(&standing, chunk->pins > 0);
                }
        }
        tiers |= remote_tier(b, hash);
        stat->tiers = (uint16_t)tiers;
        stat->status = tiers ? WIRE_OK : WIRE_MISS;
        return tiers ? WIRE_OK : WIRE_MISS;
}

static void look_up(struct batch *b, uint32_t i)
{
        const struct key *key = batch_entry(b, i);
        struct cache *cache = b->request.client->tenant->cache;
        uint32_t ns = b->head.namespace_id;
        uint64_t hash = batch_hash(b, i);
        enum wire_status status = WIRE_MISS;
        unsigned tiers;

        switch (b->head.hdr.op) {
        case WIRE_EXISTS:
                tiers = cache_find(cache, ns, key, hash, NULL, NULL);
                *(uint8_t *)batch_result(b, i) = (uint8_t)(tiers | remote_tier(b, hash));
                status = tiers ? WIRE_OK : WIRE_MISS;
                b->keys.found += tiers != 0;
                b->keys.missing += tiers == 0;
                break;
        case WIRE_MATCH:
                status = look_up_match(b, cache_has(cache, ns, key, hash), i);
                break;
        case WIRE_TOUCH:
                if (cache_find(cache, ns, key, hash, &b->part->places[i], NULL))
                        status = WIRE_OK;
                *(uint16_t *)batch_result(b, i) = (uint16_t)status;
                break;
        case WIRE_PREFETCH:
                status = batch_status(cache_prefetch(cache, b->request.client->uid, ns, key, hash,
                                                     &b->part->places[i]));
                *(uint16_t *)batch_result(b, i) = (uint16_t)status;
                break;
        case WIRE_EVICT:
                status = batch_status(
                        cache_evict(cache, ns, key, hash, b->head.tiers == WIRE_TIER_MEMORY));
                *(uint16_t *)batch_result(b, i) = (uint16_t)status;
                break;
        case WIRE_HINT:
                status = hint_look_up(b, i, cache, key, hash);
                break;
        case WIRE_GIVE_BACK:
                status = loan_end(b->request.client, batch_entry(b, i));
                *(uint16_t *)batch_result(b, i) = (uint16_t)status;
                break;
        case WIRE_STAT:
                status = look_up_stat(b, i, cache, key, hash);
                break;
        default:
                break;
        }
        batch_key_end(b, status);
}

/* --- messages --- */

/* Returns the time before which chunks have expired, reading the clock once per message and only
 * for namespaces with a lifetime. EVICT ignores lifetimes. */
static uint64_t born_after_ms(const struct client *client, unsigned op, uint32_t ns)
{
        uint32_t lifetime_s = wire_op_has_keys(op) && op != WIRE_EVICT
                                      ? store_lifetime_s(client->tenant->service->store, ns)
                                      : 0;

        return lifetime_s > 0 ? store_born_after_ms(lifetime_s, clock_unix_ms()) : 0;
}

/* Finds the deepest key of a PUT whose mean gap the eviction policies remember. Such a key shows
 * that the session returns with a chain whose end was evicted meanwhile. Examines at most `*budget`
 * keys, which is reduced by their number. Returns whether the search has ended. */
static bool find_remembered_gap(struct batch *b, unsigned *budget)
{
        struct cache *cache = b->request.client->tenant->cache;
        uint32_t ns = b->head.namespace_id;

        for (; b->gap_keys > 0 && chain_part_wants_gap(b->part, b->gap_keys - 1); --*budget) {
                const struct key *key;
                struct evict_return back;
                uint8_t gap;

                if (*budget == 0)
                        return false;
                key = batch_entry(b, --b->gap_keys); /* every entry begins with its key */
                gap = cache_remembered_gap(cache, ns, key, cache_hash(cache, ns, key), &back);
                if (gap != EVICT_NO_GAP)
                        chain_part_set_gap(b->part, b->gap_keys, gap, &back);
        }
        b->gap_keys = 0;
        return true;
}

static void request_batch(struct request req, const struct wire_batch *msg)
{
        struct client *client = req.client;
        unsigned op = msg->hdr.op;
        uint32_t stale;
        uint32_t ns = client_namespace(client, msg->namespace_id);
        enum wire_status status;
        struct batch *b;

        hits_catch_up(client);
        stale = client_release(client, wire_batch_releases(msg), msg->releases);
        client->tenant->traffic.keys[op] += msg->count;
        if (msg->count > 0 && ns == 0 && wire_op_has_keys(op)) {
                request_fail_value(req, WIRE_NO_NAMESPACE, stale, 0,
                                   "this session has not opened that namespace");
                return;
        }
        if (msg->count > 0 && op == WIRE_PUT && client->tenant->service->stopping) {
                request_fail_value(req, WIRE_SHUTDOWN, stale, 0, "the daemon is stopping");
                return;
        }
        if (msg->count == 0) {
                request_ok_value(req, stale, 0);
                return;
        }
        status = client_charge(client, QUOTA_KEYS, msg->count);
        if (status != WIRE_OK) {
                request_fail_value(req, status, stale, 0,
                                   status == WIRE_BUSY
                                           ? "all clients together have too many keys in flight "
                                             "(limits.keys), or this user has its share of "
                                             "the rest"
                                           : "this user or tenant has too many keys in flight "
                                             "(limits.uid_keys, tenants.keys)");
                return;
        }

        status = batch_new(req, msg, &b);
        if (status != WIRE_OK) {
                quota_uncharge(&client->holds, QUOTA_KEYS, msg->count);
                request_fail_value(req, status, stale, 0, client_refusal(status));
                return;
        }
        b->head.namespace_id = ns;
        b->born_after_ms = born_after_ms(client, op, ns);
        b->value = op == WIRE_MATCH ? 0 : stale;
        if (client->tenant->service->recorder && op == WIRE_PUT)
                recorder_put(client->tenant->service->recorder, b);
        if (wire_op_is_chained(op))
                b->part = chain_join(client, msg, ns, batch_entry(b, msg->count - 1u),
                                     req.received_ns, b->part_room);
        if (op == WIRE_PUT && cache_wants_chains(client->tenant->cache))
                b->gap_keys = msg->count;
        if (op == WIRE_HINT)
                hint_begin(b);
        else if (op == WIRE_PUT)
                hint_expect(b);
        b->regions = batch_regions(client, msg);
        buffers_use(client, b->regions);
        client->keys_inflight += msg->count;
        list_append(&client->unstarted, &b->node);
}

static void hash_keys(struct batch *b, uint32_t first)
{
        for (uint32_t i = first; i < first + BATCH_FETCH_KEYS && i < b->head.count; i++)
                b->hashes[i % ARRAY_SIZE(b->hashes)] =
                        cache_hash(b->request.client->tenant->cache, b->head.namespace_id,
                                   batch_entry(b, i)); /* every entry begins with its key */
}

static void fetch_keys(const struct batch *b, uint32_t first, unsigned step)
{
        bool of_store = b->head.hdr.op != WIRE_GET; /* a GET of a key that is not in memory is slow
                                                     * anyway */

        for (uint32_t i = first; i < first + BATCH_FETCH_KEYS && i < b->head.count; i++)
                cache_warm(b->request.client->tenant->cache, batch_hash(b, i), of_store, step);
}

/* Prefetches for the touches of keys found in memory. Each was prefetched when it was found; this
 * prefetches its neighbours in the eviction order. */
static void fetch_touches(const struct batch *b, uint32_t first)
{
        for (uint32_t i = first; i < first + BATCH_FETCH_KEYS; i++)
                cache_warm_touch(b->request.client->tenant->cache, &b->part->places[i], 1);
}

/* Prepares the next keys: hashes them some keys ahead, and prefetches their memory in two steps,
 * each about one step of keys before its use. */
static void warm_next(struct batch *b, uint32_t i)
{
        enum { STEP = BATCH_FETCH_KEYS };

        static_assert(ARRAY_SIZE(b->hashes) >= 3 * STEP, "those of two steps ahead, and its own");
        if (i % STEP != 0 || !wire_op_has_keys(b->head.hdr.op))
                return;
        if (i == 0)
                hash_keys(b, 0);
        if (b->head.count < STEP / 2)
                return;
        if (i == 0) {
                fetch_keys(b, 0, 0);
                hash_keys(b, STEP);
                fetch_keys(b, STEP, 0);
                fetch_keys(b, 0, 1);
        }
        fetch_keys(b, i + STEP, 1);
        hash_keys(b, i + 2 * STEP);
        fetch_keys(b, i + 2 * STEP, 0);
        if (i > 0 && b->head.hdr.op == WIRE_GET && b->head.count <= BATCH_FETCH_TOUCHES &&
            (b->head.hdr.flags & (WIRE_F_INTO | WIRE_F_LEASE)) != WIRE_F_INTO)
                fetch_touches(b, i - STEP);
}

/* Drops the key's chunk if it has expired, before the key is looked up. */
static void expire(struct batch *b, uint32_t i)
{
        b->is_expired = cache_expire(b->request.client->tenant->cache, b->head.namespace_id,
                                     batch_entry(b, i), batch_hash(b, i), b->born_after_ms);
}

bool request_is_small(const struct client *client)
{
        const struct list_node *first = client->unstarted.next;

        return list_empty(&client->unstarted) ||
               (first == client->unstarted.prev &&
                container_of(first, struct batch, node)->head.count <= REQUEST_SMALL_KEYS);
}

bool request_run(struct client *client)
{
        unsigned budget = REQUEST_KEYS_PER_ITERATION;

        while (!list_empty(&client->unstarted) && budget > 0) {
                struct batch *b = container_of(client->unstarted.next, struct batch, node);
                bool started;

                if (!client->ended && !find_remembered_gap(b, &budget))
                        return false;
                b->running = true;
                if (stages_on(&client->tenant->service->stages) && b->started == 0)
                        b->started_ns = clock_mono_ns();
                while (b->started < b->head.count && budget > 0) {
                        uint32_t i = b->started++;

                        budget--;
                        warm_next(b, i);
                        if (b->born_after_ms > 0)
                                expire(b, i);
                        hint_note_use(b, i, batch_hash(b, i));
                        if (client->ended) {
                                if (batch_is_settled_at_its_end(b))
                                        *(uint16_t *)batch_result(b, i) = WIRE_SHUTDOWN;
                                batch_key_end(b, WIRE_SHUTDOWN);
                        } else if (b->head.hdr.op == WIRE_PUT)
                                request_put(b, i);
                        else if (b->head.hdr.op == WIRE_GET)
                                request_get(b, i);
                        else
                                look_up(b, i);
                }
                request_got(b);
                b->running = false;
                started = b->started == b->head.count;
                if (!started)
                        return false;
                list_unlink(&b->node);
                if (stages_on(&client->tenant->service->stages))
                        b->submitted_ns = clock_mono_ns();
                if (b->done == b->head.count)
                        batch_keys_ended(b);
        }
        return list_empty(&client->unstarted);
}

static void request_ping(struct request req, const struct wire_hdr *msg)
{
        struct {
                struct wire_reply reply;
                uint8_t payload[WIRE_MAX_PING];
        } out;
        size_t payload = msg->len - sizeof(*msg);

        out.reply = (struct wire_reply){ .status = WIRE_OK };
        memcpy(out.payload, msg + 1, payload);
        request_reply(req, &out.reply, sizeof(out.reply) + payload);
}

void request_dispatch(struct client *client, const void *msg, int *fds)
{
        const struct wire_hdr *hdr = msg;
        struct request req = {
                .client = client,
                .header = *hdr,
                .received_ns = client->readable_ns ? client->readable_ns : clock_mono_ns(),
        };

        client->inflight++;
        client->tenant->traffic.requests[hdr->op]++;
        switch (hdr->op) {
        case WIRE_PING:
                request_ping(req, msg);
                break;
        case WIRE_CANCEL:
                cancel_batch(req, msg);
                break;
        case WIRE_NAMESPACE:
                if (hdr->flags & WIRE_F_SET)
                        admin_namespace_set(req, msg);
                else
                        handshake_namespace(req, msg);
                break;
        case WIRE_STAGING:
                handshake_staging(req, msg);
                break;
        case WIRE_REGISTER:
                buffer_open(req, msg, &fds[0]);
                break;
        case WIRE_UNREGISTER:
                buffer_unregister(req, msg);
                break;
        case WIRE_LOOKUP:
                handshake_lookup(req);
                break;
        case WIRE_POOL_INDEX:
                hits_join(req);
                break;
        case WIRE_TRANSFERS:
                handshake_transfers(req);
                break;
        case WIRE_LENT_FILE:
                loan_file(req, msg);
                break;
        case WIRE_LIST:
                admin_list(req, msg);
                break;
        case WIRE_NAMESPACES:
                admin_namespaces(req, msg);
                break;
        case WIRE_NAMESPACE_REMOVE:
                admin_namespace_remove(req, msg);
                break;
        case WIRE_PURGE:
                admin_purge(req, msg);
                break;
        case WIRE_REPORT:
                admin_report(req, msg);
                break;
        case WIRE_VERIFY:
                admin_verify(req, msg);
                break;
        case WIRE_DEVICE:
                admin_device(req, msg);
                break;
        case WIRE_RELOAD:
                admin_reload(req);
                break;
        case WIRE_SWEEP:
                admin_sweep(req, msg);
                break;
        case WIRE_RECORD:
                recorder_start(req, msg);
                break;
        case WIRE_EVENTS:
                events_request(req, msg);
                break;
        case WIRE_BENCH:
                admin_bench(req, msg);
                break;
        default:
                request_batch(req, msg);
                break;
        }
}

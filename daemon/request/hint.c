/* SPDX-License-Identifier: Apache-2.0 */
/* HINTs of clients, and the return of its chain that a PUT announces. Loop thread; owns nothing.
 *
 * A hint about reuse is advice: it reaches the eviction policies only if enough of its user's
 * announcements came true (evict/announced.h). A hint that a chain has ended can harm only that
 * chain, and is always applied. The other kinds are requests: pin, demote, share.
 *
 * Failures: an absent key is a MISS, a refused request is the status of its key. */
#include "request/internal.h"

#include "base/clock.h"

/* Returns whether a hint concerns the reuse of a chain. The keys of such a hint are processed from
 * the end of the chain to its root. */
static bool is_of_reuse(const struct wire_batch *head)
{
        return head->hint == WIRE_HINT_FINAL || head->hint == WIRE_HINT_RETURN ||
               head->hint == WIRE_HINT_TOOL_CALL || head->hint == WIRE_HINT_TURN_END;
}

void hint_begin(struct batch *b)
{
        struct key *keys = (struct key *)b->entries;

        if (!is_of_reuse(&b->head))
                return;
        for (uint32_t i = 0; i < b->head.count / 2u; i++) {
                struct key key = keys[i];

                keys[i] = keys[b->head.count - 1u - i];
                keys[b->head.count - 1u - i] = key;
        }
}

/* --- announcements of returns --- */

/* Returns the id of the key before the first of a HINT, or 0 if that is unknown. A client sends the
 * parts of a chain that is longer than a message from its end to its root. */
static uint64_t hinted_parent(const struct batch *b)
{
        const struct cache *cache = b->request.client->tenant->cache;

        return b->head.hdr.op == WIRE_HINT && !key_is_root(&b->head.parent)
                       ? evict_id(cache_hash(cache, b->head.namespace_id, &b->head.parent))
                       : 0;
}

/* Records an announcement of the batch's user for the chain that ends with a key, or for the part
 * of a chain whose next part the user has just announced. */
static void announce(struct batch *b, uint64_t hash, enum announced_kind kind, uint32_t seconds)
{
        struct client *client = b->request.client;
        struct tenant *tenant = client->tenant;
        uint64_t now_ns = clock_mono_ns(), due_ns = now_ns + seconds * UINT64_C(1000000000);
        uint64_t id = evict_id(hash), parent = hinted_parent(b);

        b->is_announced = true;
        if (kind != ANNOUNCED_RETURN ||
            !announced_take_part(tenant->announced, client->uid, id, due_ns, &b->promise))
                b->promise = (struct evict_promise){
                        .number = ++tenant->service->announcements,
                        .seconds = seconds,
                        .belief = announced_make(tenant->announced, client->uid, id, kind, seconds,
                                                 now_ns),
                };
        if (parent != 0)
                announced_expect_part(tenant->announced, client->uid, parent, due_ns, &b->promise);
        if (kind != ANNOUNCED_RETURN || b->promise.belief <= 0)
                return;
        batch_prefetch(b, id);
        b->promise.seconds = announced_seconds(tenant->announced, client->uid, seconds);
}

void hint_note_use(const struct batch *b, uint32_t i, uint64_t hash)
{
        unsigned op = b->head.hdr.op;

        if (b->is_announced && i == b->head.count - 1u)
                return; /* a PUT has announced the next use of this key, see hint_expect() */
        if (op == WIRE_GET || op == WIRE_PUT || op == WIRE_TOUCH)
                announced_use(b->request.client->tenant->announced, b->request.client->uid,
                              evict_id(hash), b->request.received_ns);
}

/* Returns the kind of announcement in a hint of reuse other than FINAL. */
static enum announced_kind kind_of(const struct wire_batch *head)
{
        return head->hint == WIRE_HINT_RETURN      ? ANNOUNCED_RETURN
               : head->hint == WIRE_HINT_TOOL_CALL ? ANNOUNCED_TOOL_CALL
                                                   : ANNOUNCED_TURN_END;
}

void hint_expect(struct batch *b)
{
        const struct key *last =
                batch_entry(b, b->head.count - 1u); /* an entry begins with its key */
        unsigned expects = b->head.expects;
        uint64_t hash;

        if (expects == WIRE_EXPECTS_FINAL) {
                b->promise = (struct evict_promise){
                        .number = ++b->request.client->tenant->service->announcements, .belief = 1
                };
        } else if (expects >= WIRE_EXPECTS_RETURN) {
                hash = cache_hash(b->request.client->tenant->cache, b->head.namespace_id, last);
                announced_use(b->request.client->tenant->announced, b->request.client->uid,
                              evict_id(hash), b->request.received_ns);
                announce(b, hash, ANNOUNCED_RETURN, wire_expects_seconds((uint8_t)expects));
                if (b->promise.belief <= 0)
                        b->promise.number = 0;
        }
}

/* --- the kinds of hints --- */

static unsigned effect_of_pin(bool retained, enum cache_status status)
{
        if (!retained)
                return HINTS_UNPINNED;
        return status == CACHE_OK      ? HINTS_PINNED
               : status == CACHE_QUOTA ? HINTS_PIN_REFUSED
                                       : HINTS_PIN_EARLY;
}

static enum wire_status look_up_pin(struct batch *b, struct cache *cache,
                                    const struct cache_place *place)
{
        bool retained = b->head.hint == WIRE_HINT_PIN;
        struct tenant *tenant = b->request.client->tenant;
        enum cache_status status = cache_retain(cache, place, retained, tenant->pinned_limit);

        tenant->traffic.hints[effect_of_pin(retained, status)]++;
        return batch_status(status);
}

/* Applies the end of a chain to one key, and ends the user's announced return of a chain that ends
 * with the key, so that the chain is not read ahead of it. Returns the effect. */
static unsigned look_up_final(struct batch *b, struct cache *cache, const struct cache_place *place,
                              uint64_t hash)
{
        struct client *client = b->request.client;

        if (!b->is_shared)
                b->is_shared = !cache_hint(cache, place, EVICT_HINT_FINAL);
        if (b->is_shared)
                return HINTS_SHARED;
        announced_cancel(client->tenant->announced, client->uid, evict_id(hash),
                         b->request.received_ns);
        return HINTS_FINAL;
}

/* Handles one key of a hint of reuse, in the order from the end of the chain to its root. Returns
 * the effect. */
static unsigned look_up_reuse(struct batch *b, struct cache *cache, const struct cache_place *place,
                              uint64_t hash)
{
        bool is_final = b->head.hint == WIRE_HINT_FINAL;

        if (!is_final && !b->is_announced)
                announce(b, hash, kind_of(&b->head), b->head.return_s);
        if (!is_final && b->promise.belief <= 0)
                return HINTS_DISBELIEVED;
        switch (b->head.hint) {
        case WIRE_HINT_RETURN:
                cache_promise(cache, place, &b->promise);
                return HINTS_RETURN;
        case WIRE_HINT_TOOL_CALL:
                cache_hint(cache, place, EVICT_HINT_SOON);
                return HINTS_TOOL_CALL;
        case WIRE_HINT_TURN_END:
                cache_hint(cache, place, EVICT_HINT_LATER);
                return HINTS_TURN_END;
        default:
                return look_up_final(b, cache, place, hash);
        }
}

/* Drops the copy in memory of a chunk on disk, unless a client or an operation uses it. */
static enum wire_status look_up_demote(struct batch *b, struct cache *cache, const struct key *key,
                                       const struct cache_place *place, uint64_t hash)
{
        enum cache_status status = CACHE_BUSY;

        if (place->chunk == POOL_NONE ||
            pool_chunk(b->request.client->tenant->pool, place->chunk)->pins == 0)
                status = cache_evict(cache, b->head.namespace_id, key, hash, true);
        b->request.client->tenant->traffic
                .hints[status == CACHE_OK ? HINTS_DEMOTED : HINTS_DEMOTE_BUSY]++;
        return batch_status(status);
}

static enum wire_status look_up_share(struct batch *b, struct cache *cache,
                                      const struct cache_place *place)
{
        if (!b->request.client->tenant->service->remote || place->chunk == POOL_NONE)
                return WIRE_OK;
        cache_share(cache, place);
        b->request.client->tenant->traffic.hints[HINTS_OFFERED]++;
        return WIRE_OK;
}

static enum wire_status look_up(struct batch *b, struct cache *cache, const struct key *key,
                                const struct cache_place *place, uint64_t hash)
{
        switch (b->head.hint) {
        case WIRE_HINT_PIN:
        case WIRE_HINT_UNPIN:
                return look_up_pin(b, cache, place);
        case WIRE_HINT_DEMOTE:
                return look_up_demote(b, cache, key, place, hash);
        case WIRE_HINT_SHARE:
                return look_up_share(b, cache, place);
        default:
                b->request.client->tenant->traffic.hints[look_up_reuse(b, cache, place, hash)]++;
                return WIRE_OK;
        }
}

enum wire_status hint_look_up(struct batch *b, uint32_t i, struct cache *cache,
                              const struct key *key, uint64_t hash)
{
        uint32_t result = is_of_reuse(&b->head) ? b->head.count - 1 - i : i;
        enum wire_status status = WIRE_MISS;
        struct cache_place place;

        if (cache_find(cache, b->head.namespace_id, key, hash, &place, NULL))
                status = look_up(b, cache, key, &place, hash);
        *(uint16_t *)batch_result(b, result) = (uint16_t)status;
        return status;
}

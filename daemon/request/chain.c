/* SPDX-License-Identifier: Apache-2.0 */
/* A chain is open while another message may continue it: the client's last message announced that,
 * and the next one names the last key of the chain as its parent. A chain is touched and freed when
 * it is closed and all its messages are answered. A long chain is touched range by range, over
 * several iterations. */
#include "request/chain.h"

#include <assert.h>
#include <stdlib.h>

#include "checked.h"
#include "cleanup.h"
#include "request/memory.h"

enum {
        CHAIN_MAX_KEYS = 64 * 1024, /* a longer chain is touched in parts */
        RANGE_MIN = 16,             /* places in the first range of a chain; a later range has as
                                     * many as all before it together, at most RANGE_MAX, or as many
                                     * as its message needs */
        RANGE_MAX = 1024,
        RANGE_OVERHEAD = 32, /* bytes that the allocator adds to a range */
        RANGE_STEPS = 64,    /* cost of settling one range, in steps of client_settle(), where
                              * ending one lease is one step */
        WARM_DISTANCE = 12,  /* keys between the prefetch of a key's memory and its use */
};

/* Places of consecutive keys of a chain, shared by as many messages as have room in it. */
struct range {
        struct list_node node;
        uint32_t n, room;
        struct cache_place places[];
};

struct chain {
        struct client *client;    /* client whose user is charged for the chain */
        struct list_node node;    /* in the client's chains_over */
        struct list_node ranges;  /* struct range, from the root to the end */
        struct list_node *walked; /* the range that `walk` visits next */
        struct cache_chain walk;
        struct chain_gap gap;
        unsigned new_turn;   /* turn of the keys that the chain's puts add; see struct chain_part */
        unsigned unanswered; /* messages of the chain that are not answered yet */
        uint32_t keys;
        bool open; /* another message may continue the chain */
};

uint32_t chain_part_use(const struct chain_part *part)
{
        return part->chain ? part->chain->walk.use : part->walk.use;
}

void chain_part_note_new(struct chain_part *part)
{
        (part->chain ? &part->chain->walk : &part->walk)->is_due = true;
}

/* Walks along keys from the root. `is_end`: these keys are the last of the chain. */
static void walk(struct cache *cache, struct cache_chain *walk, const struct cache_place *places,
                 uint32_t n, bool is_end)
{
        if (!walk->is_due || !cache_wants_chains(cache))
                return;
        for (uint32_t i = 0; i < n; i++) {
                if (i + WARM_DISTANCE < n)
                        cache_warm_touch(cache, &places[i + WARM_DISTANCE], 0);
                cache_chain(cache, walk, &places[i], is_end && i == n - 1);
        }
}

static void touch(struct cache *cache, const struct cache_place *places, uint32_t n, uint32_t use,
                  uint8_t gap)
{
        if (n == 1) {
                cache_touch(cache, places, use, gap);
                return;
        }
        /* Prefetch a few keys ahead, since their memory is scattered over the index. */
        for (uint32_t i = 0; i < n + 2 * WARM_DISTANCE; i++) {
                if (i < n)
                        cache_warm_touch(cache, &places[n - 1 - i], 0);
                if (i >= WARM_DISTANCE && i - WARM_DISTANCE < n)
                        cache_warm_touch(cache, &places[n - 1 - (i - WARM_DISTANCE)], 1);
                if (i >= 2 * WARM_DISTANCE)
                        cache_touch(cache, &places[n - 1 - (i - 2 * WARM_DISTANCE)], use, gap);
        }
}

/* --- the mean gap of a chain --- */

static uint32_t keys_of(const struct chain_part *part)
{
        return part->chain ? part->chain->keys : part->n;
}

static uint8_t gap_of(const struct chain_gap *gap, uint32_t keys)
{
        return gap->mean != EVICT_NO_GAP && gap->depth >= keys / 2 ? gap->mean : gap->inherited;
}

uint8_t chain_part_gap(const struct chain_part *part)
{
        return gap_of(part->chain ? &part->chain->gap : &part->gap, keys_of(part));
}

enum evict_place chain_part_place(const struct chain_part *part, uint32_t i)
{
        if (part->is_last && i == part->n - 1)
                return EVICT_PLACE_END;
        return (part->chain ? part->chain->new_turn : part->new_turn) >= EVICT_LAST_TURN
                       ? EVICT_PLACE_CONTINUATION
                       : EVICT_PLACE_UNKNOWN;
}

bool chain_part_wants_gap(const struct chain_part *part, uint32_t i)
{
        const struct chain_gap *gap = part->chain ? &part->chain->gap : &part->gap;

        return part->first + i >= keys_of(part) / 2 &&
               (gap->mean == EVICT_NO_GAP || part->first + i > gap->depth);
}

void chain_part_set_gap(struct chain_part *part, uint32_t i, uint8_t gap,
                        const struct evict_return *back)
{
        struct chain_gap *g = part->chain ? &part->chain->gap : &part->gap;

        g->back = *back;
        g->mean = gap;
        g->depth = part->first + i;
}

/* Measures the gap that this use ends, by the deepest key of a GET that was used before. Called
 * before the keys are touched. A PUT measures nothing, because its keys are new or have been used a
 * moment ago by the same prompt. */
static void measure_gap(struct cache *cache, struct chain_part *part, uint32_t use)
{
        struct evict_return back;
        uint8_t gap = EVICT_NO_GAP;

        if (part->is_put || !cache_wants_chains(cache))
                return;
        for (uint32_t i = part->n; i-- > 0 && chain_part_wants_gap(part, i);) {
                gap = cache_chain_gap(cache, &part->places[i], use, &back);
                if (gap != EVICT_NO_GAP) {
                        chain_part_set_gap(part, i, gap, &back);
                        return;
                }
        }
}

/* Counts the use of a complete chain as a return, if its gap is known, and expects the next
 * return. */
static void note_return(struct cache *cache, const struct chain_gap *gap, uint32_t keys)
{
        if (gap->mean != EVICT_NO_GAP && gap->depth >= keys / 2)
                cache_note_return(cache, &gap->back);
        cache_expect_return(cache, gap_of(gap, keys));
}

/* --- places of a chain's keys, and their touches --- */

static uint64_t range_bytes(uint32_t room)
{
        return sizeof(struct range) + room * sizeof(struct cache_place);
}

/* Adds room for at least `n` places at the end of the chain. Returns NULL if there is no memory, or
 * none for this user. */
static struct range *range_add(struct chain *ch, uint32_t n)
{
        struct request_memory *memory = ch->client->tenant->request_memory;
        struct quota_holder *holds = &ch->client->holds;
        uint32_t room = MAX(MIN(MAX(ch->keys, (uint32_t)RANGE_MIN), (uint32_t)RANGE_MAX), n);
        struct range *range;
        uint64_t charge = range_bytes(room) + RANGE_OVERHEAD;

        if (quota_charge(holds, QUOTA_REQUEST_BYTES, charge) != 0)
                return NULL;
        if (room == RANGE_MAX && memory->n_chain_spares > 0)
                range = memory->chain_spares[--memory->n_chain_spares];
        else
                range = malloc(range_bytes(room));
        if (!range) {
                quota_uncharge(holds, QUOTA_REQUEST_BYTES, charge);
                return NULL;
        }
        range->n = 0;
        range->room = room;
        list_init(&range->node);
        list_append(&ch->ranges, &range->node);
        return range;
}

/* Returns places for a message of `n` keys, or NULL as range_add() does. */
static struct cache_place *places_take(struct chain *ch, uint32_t n)
{
        struct range *range =
                list_empty(&ch->ranges) ? NULL : container_of(ch->ranges.prev, struct range, node);
        struct cache_place *places;

        if (!range || n > range->room - range->n)
                range = range_add(ch, n);
        if (!range)
                return NULL;
        places = range->places + range->n;
        range->n += n;
        ch->keys += n;
        return places;
}

/* Performs one step of settling a complete chain: walks through the next range from the root; after
 * the last range, touches and frees one range at a time from the end. */
static void settle_range(struct chain *ch)
{
        struct request_memory *memory = ch->client->tenant->request_memory;
        struct range *last = container_of(ch->ranges.prev, struct range, node);

        if (ch->walked != &ch->ranges) {
                struct range *next = container_of(ch->walked, struct range, node);

                walk(ch->client->tenant->cache, &ch->walk, next->places, next->n, next == last);
                ch->walked = ch->walked->next;
                return;
        }
        touch(ch->client->tenant->cache, last->places, last->n, ch->walk.use,
              gap_of(&ch->gap, ch->keys));
        list_unlink(&last->node);
        quota_uncharge(&ch->client->holds, QUOTA_REQUEST_BYTES,
                       range_bytes(last->room) + RANGE_OVERHEAD);
        if (last->room == RANGE_MAX && memory->n_chain_spares < REQUEST_CHAIN_SPARES)
                memory->chain_spares[memory->n_chain_spares++] = last;
        else
                free(last);
}

static void chain_free(struct chain *ch)
{
        assert(list_empty(&ch->ranges));
        quota_uncharge(&ch->client->holds, QUOTA_REQUEST_BYTES, sizeof(*ch));
        list_unlink(&ch->node);
        free(ch);
}

/* Ends the chain if it is complete: touches a chain of up to RANGE_MAX keys now, and a longer one
 * in later iterations. */
static void chain_settle(struct chain *ch)
{
        if (ch->open || ch->unanswered > 0)
                return;
        note_return(ch->client->tenant->cache, &ch->gap, ch->keys);
        ch->walked = ch->ranges.next;
        if (ch->keys > RANGE_MAX) {
                list_append(&ch->client->chains_over, &ch->node);
                ch->client->idle(ch->client);
                return;
        }
        while (!list_empty(&ch->ranges))
                settle_range(ch);
        chain_free(ch);
}

bool chain_settle_some(struct client *client, uint32_t *steps)
{
        while (*steps > 0 && !list_empty(&client->chains_over)) {
                struct chain *ch = container_of(client->chains_over.next, struct chain, node);

                *steps -= MIN(*steps, (uint32_t)RANGE_STEPS);
                settle_range(ch);
                if (list_empty(&ch->ranges))
                        chain_free(ch);
        }
        return !list_empty(&client->chains_over);
}

void chain_close(struct client *client)
{
        struct chain *ch = TAKE_PTR(client->chain);

        if (ch) {
                ch->open = false;
                chain_settle(ch);
        }
}

/* Begins a walk for a new use. The walk of a PUT continues from the parent that the message names,
 * if a tier has that key, and the PUT inherits the gap of a parent of a later turn. A parent of a
 * first turn may be a beginning that sessions share. */
static void walk_begin(struct client *client, const struct wire_batch *b, uint32_t namespace_id,
                       struct cache_chain *walk, struct chain_gap *gap)
{
        struct cache *cache = client->tenant->cache;
        struct cache_place parent;

        *walk = (struct cache_chain){
                .before = { .chunk = POOL_NONE, .ref = STORE_REF_NONE },
                .use = cache_next_use(cache),
        };
        if (b->hdr.op != WIRE_PUT || key_is_root(&b->parent) || !cache_wants_chains(cache))
                return;
        walk->turn = 1;
        if (cache_find(cache, namespace_id, &b->parent, cache_hash(cache, namespace_id, &b->parent),
                       &parent, NULL)) {
                cache_chain(cache, walk, &parent, false);
                cache_cancel_return(cache, &parent);
                if (walk->turn > 1)
                        gap->inherited = cache_gap(cache, &parent);
        }
}

/* Finds the turn of the keys that the part brings, from the key that they continue. The walk sets
 * the same turn when the chain is complete; the policies need it before, because they may evict new
 * chunks first. */
static void find_new_turn(struct cache *cache, const struct wire_batch *b, uint32_t namespace_id,
                          struct chain_part *part)
{
        const struct cache_chain *walk = part->chain ? &part->chain->walk : &part->walk;
        unsigned *turn = part->chain ? &part->chain->new_turn : &part->new_turn;
        struct cache_place parent;
        uint64_t hash;

        if (*turn != 0 || !cache_wants_chains(cache))
                return;
        *turn = walk->turn + 1;
        if (walk->turn > 0 || key_is_root(&b->parent))
                return;
        hash = cache_hash(cache, namespace_id, &b->parent);
        if (cache_find(cache, namespace_id, &b->parent, hash, &parent, NULL))
                *turn = (unsigned)MAX(cache_turn(cache, &parent, walk->use), 0) + 1;
}

/* Creates a chain. Returns NULL if there is no memory, or none for this user. */
static struct chain *chain_new(struct client *client, const struct wire_batch *b,
                               uint32_t namespace_id)
{
        struct chain *ch;

        if (quota_charge(&client->holds, QUOTA_REQUEST_BYTES, sizeof(*ch)) != 0)
                return NULL;
        ch = calloc(1, sizeof(*ch));
        if (!ch) {
                quota_uncharge(&client->holds, QUOTA_REQUEST_BYTES, sizeof(*ch));
                return NULL;
        }
        ch->client = client;
        list_init(&ch->node);
        list_init(&ch->ranges);
        walk_begin(client, b, namespace_id, &ch->walk, &ch->gap);
        return ch;
}

/* --- the life of a chain --- */

struct chain_part *chain_join(struct client *client, const struct wire_batch *b,
                              uint32_t namespace_id, const struct key *last, uint64_t now_ns,
                              void *room)
{
        bool more = b->hdr.flags & WIRE_F_MORE;
        struct chain_part *part = room;
        struct cache_place *places;
        struct chain *ch;

        *part = (struct chain_part){
                .places = (struct cache_place *)(part + 1),
                .n = b->count,
                .is_put = b->hdr.op == WIRE_PUT,
                .is_last = !more,
        };
        if (client->chain && !key_equal(&client->chain_last, &b->parent))
                chain_close(client);
        if (client->chain && client->chain->keys + b->count > CHAIN_MAX_KEYS) {
                client->tenant->traffic.chains_split++;
                chain_close(client);
        }
        ch = client->chain;
        if (ch || more) {
                if (!ch)
                        ch = chain_new(client, b, namespace_id);
                places = ch ? places_take(ch, b->count) : NULL;
                if (places) {
                        part->chain = ch;
                        part->places = places;
                        part->first = ch->keys - b->count;
                        ch->unanswered++;
                        ch->open = more;
                        if (more && !client->chain)
                                client->chain_opened(client);
                        client->chain = more ? ch : NULL;
                        client->chain_last = *last;
                        client->chain_ns = now_ns;
                } else {
                        client->tenant->traffic.chains_split++;
                        if (client->chain)
                                chain_close(client);
                        else if (ch)
                                chain_settle(ch);
                }
        }
        if (!part->chain)
                walk_begin(client, b, namespace_id, &part->walk, &part->gap);
        if (part->is_put)
                find_new_turn(client->tenant->cache, b, namespace_id, part);
        for (uint32_t i = 0; i < part->n; i++)
                part->places[i] = (struct cache_place){ .chunk = POOL_NONE, .ref = STORE_REF_NONE };
        return part;
}

void chain_touch(struct cache *cache, struct cache_place *places, uint32_t n)
{
        uint32_t use = cache_next_use(cache);
        struct chain_part part = { .places = places, .n = n };

        measure_gap(cache, &part, use);
        note_return(cache, &part.gap, n);
        touch(cache, places, n, use, chain_part_gap(&part));
}

void chain_part_end(struct cache *cache, struct chain_part *part)
{
        struct chain *ch = part->chain;

        measure_gap(cache, part, chain_part_use(part));
        if (!ch) {
                walk(cache, &part->walk, part->places, part->n, true);
                note_return(cache, &part->gap, part->n);
                touch(cache, part->places, part->n, part->walk.use, chain_part_gap(part));
                return;
        }
        ch->unanswered--;
        /* Touch this part now, so that it is not the next to be evicted before the rest of the
         * chain arrives. The gap that counts is known only when the chain is complete. */
        if (ch->open || ch->unanswered > 0)
                touch(cache, part->places, part->n, ch->walk.use, EVICT_NO_GAP);
        chain_settle(ch);
}

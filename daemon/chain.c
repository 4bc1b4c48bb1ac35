/* SPDX-License-Identifier: Apache-2.0 */
/* A chain is open while another message may continue it: the client's last one said so, and the next
 * one names its last key as its parent. It is touched, and freed, once it is not open and every
 * message of it is answered. */
#include "chain.h"

#include <stdlib.h>
#include <string.h>

#include "cleanup.h"

enum {
        CHAIN_MAX_KEYS = 64 * 1024, /* a longer one is touched in parts */
        PART_KEYS = 256,            /* parts of fewer are joined until they are that large */
        PART_OVERHEAD = 32,         /* of the allocator's */
        FETCH_AHEAD = 12,
};

struct chain {
        struct client *client;  /* whose user is charged */
        struct list_node parts; /* root first */
        unsigned unanswered;    /* parts whose batch is under way */
        uint32_t keys;
        bool open;              /* another message may continue it */
};

static void part_touch(struct cache *cache, const struct chain_part *part)
{
        const struct cache_place *places = part->places;

        if (part->n == 1) {
                cache_touch(cache, places);
                return;
        }
        /* The memory of a few more is fetched meanwhile: it is all over the index. */
        for (uint32_t i = 0; i < part->n + 2 * FETCH_AHEAD; i++) {
                if (i < part->n)
                        cache_prefetch_touch(cache, &places[part->n - 1 - i], 0);
                if (i >= FETCH_AHEAD && i - FETCH_AHEAD < part->n)
                        cache_prefetch_touch(cache, &places[part->n - 1 - (i - FETCH_AHEAD)], 1);
                if (i >= 2 * FETCH_AHEAD)
                        cache_touch(cache, &places[part->n - 1 - (i - 2 * FETCH_AHEAD)]);
        }
}

/* --- what is kept --- */

static uint64_t part_charge(uint32_t room)
{
        return chain_part_bytes(room) + PART_OVERHEAD;
}

/* In a chain, with room for so many places. NULL: there is no memory, or not for this user. */
static struct chain_part *part_new(struct chain *ch, uint32_t room)
{
        struct tenant_holder *holds = &ch->client->holds;
        struct chain_part *part;

        if (tenant_charge(holds, TENANT_REQUEST_BYTES, part_charge(room)) != 0)
                return NULL;
        part = malloc(chain_part_bytes(room));
        if (!part) {
                tenant_uncharge(holds, TENANT_REQUEST_BYTES, part_charge(room));
                return NULL;
        }
        part->chain = ch;
        part->room = room;
        part->n = 0;
        part->answered = false;
        list_init(&part->node);
        return part;
}

static void part_free(struct chain_part *part)
{
        list_unlink(&part->node);
        tenant_uncharge(&part->chain->client->holds, TENANT_REQUEST_BYTES, part_charge(part->room));
        free(part);
}

static void part_clear(struct chain_part *part, uint32_t n)
{
        part->n = n;
        for (uint32_t i = 0; i < n; i++)
                part->places[i] = (struct cache_place){ .chunk = POOL_NONE, .ref = STORE_REF_NONE };
}

/* Moves the second part's places behind the first's. */
static void part_join(struct chain_part *first, struct chain_part *second)
{
        memcpy(first->places + first->n, second->places, second->n * sizeof(*second->places));
        first->n += second->n;
        part_free(second);
}

/* A chain of many small messages takes hardly more than its places. */
static void parts_compact(struct chain *ch, struct chain_part *part)
{
        struct chain_part *before = part->node.prev == &ch->parts
                                            ? NULL
                                            : container_of(part->node.prev, struct chain_part, node);
        struct chain_part *larger;

        if (part->n >= PART_KEYS)
                return;
        if (before && before->answered && part->n <= before->room - before->n) {
                part_join(before, part);
                return;
        }
        /* Alone it stays as it is. */
        if (!before || !before->answered || before->n >= PART_KEYS ||
            before->room >= 2 * PART_KEYS || part->node.next != &ch->parts)
                return;
        larger = part_new(ch, 2 * PART_KEYS);
        if (!larger)
                return;
        larger->answered = true;
        list_append(&before->node, &larger->node); /* in front of it */
        part_join(larger, before);
        part_join(larger, part);
}

static void chain_settle(struct cache *cache, struct chain *ch)
{
        if (ch->open || ch->unanswered > 0)
                return;
        for (struct list_node *n = ch->parts.prev, *before = n->prev; n != &ch->parts;
             n = before, before = n->prev) {
                struct chain_part *part = container_of(n, struct chain_part, node);

                part_touch(cache, part);
                part_free(part);
        }
        tenant_uncharge(&ch->client->holds, TENANT_REQUEST_BYTES, sizeof(*ch));
        free(ch);
}

void chain_close(struct client *client)
{
        struct chain *ch = TAKE_PTR(client->chain);

        if (ch) {
                ch->open = false;
                chain_settle(client->env->cache, ch);
        }
}

/* NULL: there is no memory, or not for this user. */
static struct chain *chain_new(struct client *client)
{
        struct chain *ch;

        if (tenant_charge(&client->holds, TENANT_REQUEST_BYTES, sizeof(*ch)) != 0)
                return NULL;
        ch = calloc(1, sizeof(*ch));
        if (!ch) {
                tenant_uncharge(&client->holds, TENANT_REQUEST_BYTES, sizeof(*ch));
                return NULL;
        }
        ch->client = client;
        list_init(&ch->parts);
        return ch;
}

static struct chain_part *part_alone(struct wire_batch const *b, void *room)
{
        struct chain_part *part = room;

        part->chain = NULL;
        part->room = b->count;
        part_clear(part, b->count);
        return part;
}

/* --- the life of a chain --- */

struct chain_part *chain_join(struct client *client, const struct wire_batch *b,
                              const struct key *last, uint64_t now_ns, void *room)
{
        bool more = b->hdr.flags & WIRE_F_MORE;
        struct chain_part *part;
        struct chain *ch;

        if (client->chain && !key_equal(&client->chain_last, &b->parent))
                chain_close(client);
        if (client->chain && client->chain->keys + b->count > CHAIN_MAX_KEYS) {
                client->env->traffic.chains_split++;
                chain_close(client);
        }
        ch = client->chain;
        if (!ch && !more)
                return part_alone(b, room);
        if (!ch)
                ch = chain_new(client);
        part = ch ? part_new(ch, b->count) : NULL;
        if (!part) {
                client->env->traffic.chains_split++;
                if (client->chain)
                        chain_close(client);
                else if (ch)
                        chain_settle(client->env->cache, ch);
                return part_alone(b, room);
        }
        part_clear(part, b->count);
        list_append(&ch->parts, &part->node);
        ch->keys += b->count;
        ch->unanswered++;
        ch->open = more;
        if (more && !client->chain)
                client->chain_opened(client);
        client->chain = more ? ch : NULL;
        client->chain_last = *last;
        client->chain_ns = now_ns;
        return part;
}

void chain_part_end(struct cache *cache, struct chain_part *part)
{
        struct chain *ch = part->chain;

        if (!ch) {
                part_touch(cache, part);
                return;
        }
        ch->unanswered--;
        part->answered = true;
        /* While the rest of the chain is still to come, this part must not be the next to be
         * evicted. */
        if (ch->open || ch->unanswered > 0) {
                part_touch(cache, part);
                parts_compact(ch, part);
        }
        chain_settle(cache, ch);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A chain is open while another message may continue it: the client's last one said so, and the next
 * one names its last key as its parent. It is touched, and freed, once it is not open and every
 * message of it is answered. */
#include "chain.h"

#include <errno.h>
#include <stdlib.h>

#include "cleanup.h"

enum {
        CHAIN_MAX_KEYS = 64 * 1024, /* a longer one is touched in parts */
        FETCH_AHEAD = 12,
};

struct chain {
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

void chain_close(struct client *client)
{
        struct chain *ch = TAKE_PTR(client->chain);

        if (ch) {
                ch->open = false;
                chain_settle(client->env->cache, ch);
        }
}

static struct chain_part *part_init(void *memory, struct chain *ch, uint32_t n)
{
        struct chain_part *part = memory;

        part->chain = ch;
        part->n = n;
        for (uint32_t i = 0; i < n; i++)
                part->places[i] = (struct cache_place){ .chunk = POOL_NONE, .ref = STORE_REF_NONE };
        return part;
}

int chain_join(struct client *client, const struct wire_batch *b, const struct key *last,
               void *room, struct chain_part **ret)
{
        _cleanup_(freep) void *memory = NULL;
        struct chain_part *part;
        struct chain *ch;

        if (client->chain && (!key_equal(&client->chain_last, &b->parent) ||
                              client->chain->keys + b->count > CHAIN_MAX_KEYS))
                chain_close(client);
        ch = client->chain;
        if (!ch && !(b->hdr.flags & WIRE_F_MORE)) {
                *ret = part_init(room, NULL, b->count);
                return 0;
        }
        memory = malloc(chain_part_bytes(b->count));
        if (!memory)
                return -ENOMEM;
        if (!ch) {
                ch = calloc(1, sizeof(*ch));
                if (!ch)
                        return -ENOMEM;
                list_init(&ch->parts);
        }
        part = part_init(TAKE_PTR(memory), ch, b->count);
        list_append(&ch->parts, &part->node);
        ch->keys += b->count;
        ch->unanswered++;
        ch->open = b->hdr.flags & WIRE_F_MORE;
        client->chain = ch->open ? ch : NULL;
        client->chain_last = *last;
        *ret = part;
        return 0;
}

void chain_part_end(struct cache *cache, struct chain_part *part)
{
        struct chain *ch = part->chain;

        if (!ch) {
                part_touch(cache, part);
                return;
        }
        ch->unanswered--;
        /* While the rest of the chain is still to come, this part must not be the next to be
         * evicted. */
        if (ch->open || ch->unanswered > 0)
                part_touch(cache, part);
        chain_settle(cache, ch);
}

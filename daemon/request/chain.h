/* SPDX-License-Identifier: Apache-2.0 */
/* Chains of keys, as long as they are under way: the places of all their keys are kept, over as
 * many messages as a chain has (a GET of what is there and a PUT of the rest are one), and touched
 * from its end to its root when the last of them is answered. What is kept is charged to the
 * client's user; where that is at its limit a chain is touched in parts, and no message is refused
 * for it. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "cache/cache.h"
#include "request/client.h"

/* The places of one message's keys, to be filled in: a stretch of its chain's, or the message's
 * own.
 */
struct chain_part {
        struct chain *chain;     /* NULL: this is all of it */
        struct cache_chain walk; /* then */
        struct cache_place *places;
        uint32_t n;
};

/* With places of its own. */
static inline size_t chain_part_bytes(uint32_t n)
{
        return sizeof(struct chain_part) + n * sizeof(struct cache_place);
}

/* The use that all of its keys belong to. */
uint32_t chain_part_use(const struct chain_part *part);
/* A key of it has been put, or came from disk. */
void chain_part_brings(struct chain_part *part);

/* The part for a message of `b->count` keys, of which `last` is the last: of the chain that it
 * continues, or of a new one. `namespace_id`: the store's. It lies in `room`, chain_part_bytes() of
 * the caller's until chain_part_end(). */
struct chain_part *chain_join(struct client *client, const struct wire_batch *b,
                              uint32_t namespace_id, const struct key *last, uint64_t now_ns,
                              void *room);
/* The message is answered. */
void chain_part_end(struct cache *cache, struct chain_part *part);
/* What a client has got by itself, as one message without a chain before or behind it. */
void chain_touch(struct cache *cache, const struct cache_place *places, uint32_t n);
/* No message continues what is open. */
void chain_close(struct client *client);
/* What is long is not touched at once when it is over: for as many steps of client_settle() as
 * there are. True: there is more. */
bool chain_settle_some(struct client *client, uint32_t *steps);

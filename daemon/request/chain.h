/* SPDX-License-Identifier: Apache-2.0 */
/* Chains of keys in progress. The places of all keys of a chain (struct cache_place: where a key's
 * chunk lies) are kept over all its messages. A GET of the present keys and a PUT of the missing
 * ones form one chain. The chain is touched from its end to its root when its last message is
 * answered. The memory is charged to the client's user; at the user's limit a chain is touched in
 * parts, and no message is refused for it. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "cache/cache.h"
#include "request/client.h"

/* The mean gap of a chain (see evict.h), as known from the keys handled so far. A gap counts only
 * if its key is in the deeper half of the chain. Prompts share their first keys, and the time since
 * another session used these says nothing about this session. */
struct chain_gap {
        uint8_t mean;      /* EVICT_NO_GAP: no key with a gap was found */
        uint32_t depth;    /* number of keys before the key with this gap */
        uint8_t inherited; /* gap of the chunk that a put continues; used if no key has a gap that
                            * counts */
        struct evict_return back; /* the return of the chain from which `mean` was measured */
};

/* The places of one message's keys, for the message to fill in. They are a range of the chain's
 * places, or the message's own. */
struct chain_part {
        struct chain *chain;     /* NULL: the message is the whole chain */
        struct cache_chain walk; /* used if chain is NULL */
        struct chain_gap gap;    /* used if chain is NULL */
        struct cache_place *places;
        uint32_t first; /* number of the chain's keys before this part */
        uint32_t n;
        unsigned new_turn; /* turn of the keys that the message's puts add, 0 if not known yet; used
                            * if chain is NULL */
        bool is_put, is_last;
};

/* Returns the bytes of a part with places of its own. */
static inline size_t chain_part_bytes(uint32_t n)
{
        return sizeof(struct chain_part) + n * sizeof(struct cache_place);
}

/* Returns the use to which all keys of the chain belong. */
uint32_t chain_part_use(const struct chain_part *part);
/* Returns the mean gap that is known of the chain before the part's keys are touched. */
uint8_t chain_part_gap(const struct chain_part *part);
/* Returns the place in the chain (evict.h) of key `i` of the part, if the message is a PUT. */
enum evict_place chain_part_place(const struct chain_part *part, uint32_t i);
/* Returns whether the gap of key `i` of the part would count if all deeper keys had none. */
bool chain_part_wants_gap(const struct chain_part *part, uint32_t i);
/* Records the mean gap of key `i` of the part: the present one, or the one that the key had when it
 * was evicted. */
void chain_part_set_gap(struct chain_part *part, uint32_t i, uint8_t gap,
                        const struct evict_return *back);
/* Records that the message put a key of the part, or read it from disk, so that the policies must
 * learn the chain. */
void chain_part_note_new(struct chain_part *part);

/* Returns the part for a message of `b->count` keys, the last of which is `last`. It belongs to the
 * chain that the message continues, or to a new one, or has places of its own: if the message is a
 * whole chain, or there is no memory for more. `namespace_id`: the store's. The part is in `room`,
 * chain_part_bytes() of the caller's memory, which must stay until chain_part_end(). */
struct chain_part *chain_join(struct client *client, const struct wire_batch *b,
                              uint32_t namespace_id, const struct key *last, uint64_t now_ns,
                              void *room);
/* Ends a part, because its message is answered. If the chain is complete, touches it now or, if it
 * is long, leaves that to chain_settle_some(). */
void chain_part_end(struct cache *cache, struct chain_part *part);
/* Touches chunks that a client read through the pool index, without a message (hits.h), as one
 * complete chain. */
void chain_touch(struct cache *cache, struct cache_place *places, uint32_t n);
/* Closes the open chain, because no message continues it. */
void chain_close(struct client *client);
/* Touches long chains that are complete, step by step. *steps is the permitted cost, in the unit of
 * client_settle(), and is reduced by the cost used. Returns whether more remain. */
bool chain_settle_some(struct client *client, uint32_t *steps);

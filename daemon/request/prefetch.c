/* SPDX-License-Identifier: Apache-2.0 */
/* Passes the keys of an announced return to the cache, which reads those on disk before the return
 * (cache/prefetch.h). The keys are those of the announcing message; a HINT may continue
 * a chain. Loop thread; owns nothing. */
#include "request/internal.h"

#include "base/clock.h"

uint64_t batch_hint_parent(const struct batch *b)
{
        const struct cache *cache = b->request.client->tenant->cache;

        return b->head.hdr.op == WIRE_HINT && !key_is_root(&b->head.parent)
                       ? evict_id(cache_hash(cache, b->head.namespace_id, &b->head.parent))
                       : 0;
}

void batch_prefetch(const struct batch *b, uint64_t id)
{
        const struct prefetch_return announced = {
                .user = b->request.client->uid,
                .namespace_id = b->head.namespace_id,
                .id = id,
                .parent = batch_hint_parent(b),
                .seconds = b->promise.seconds,
                .number = b->promise.number,
                .n = b->head.count,
        };
        struct key *keys =
                cache_announce(b->request.client->tenant->cache, &announced, clock_mono_ns());
        bool is_reversed = b->head.hdr.op == WIRE_HINT; /* hint_begin() has put the keys of a HINT
                                                         * in this order */

        for (uint32_t i = 0; keys && i < b->head.count; i++)
                memcpy(&keys[i], batch_entry(b, is_reversed ? b->head.count - 1 - i : i),
                       sizeof(keys[i])); /* an entry begins with its key */
}

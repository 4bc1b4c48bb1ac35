/* SPDX-License-Identifier: Apache-2.0 */
/* Passes the keys of an announced return to the cache, which reads those on disk before the return
 * (cache/prefetch.h). The keys are those of the announcing message. Loop thread; owns nothing. */
#include "request/internal.h"

#include "base/clock.h"

void batch_prefetch(const struct batch *b, uint64_t id)
{
        const struct prefetch_return announced = {
                .user = b->request.client->uid,
                .namespace_id = b->head.namespace_id,
                .id = id,
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

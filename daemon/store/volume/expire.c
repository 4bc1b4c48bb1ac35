/* SPDX-License-Identifier: Apache-2.0 */
/* Drops chunks that are older than their namespace's lifetime. Like evicted chunks, they leave the
 * index without a write. So they may be found again after a crash, until their slots are reused,
 * and are expired then, too. The policy does not remember them, because expiry says nothing about
 * which chunks are worth keeping.
 *
 * Loop thread; the store calls the steps. Failures: none. A chunk with I/O on its slot is no longer
 * found, and keeps the slot until the I/O ends. */
#include "store/volume/internal.h"

enum {
        STEP_COST = 4096, /* cost of one step, about 100 us */
        LOOK_COST = 1,
        NAMESPACE_COST = 8,
        REMOVE_COST = 64,
};

static bool is_old(const struct chunk *c, uint64_t born_after_ms)
{
        return (c->flags & (CHUNK_LINKED | CHUNK_PENDING)) == CHUNK_LINKED &&
               c->created_ms < born_after_ms;
}

static void expire(struct volume *v, uint32_t i)
{
        v->evicted++;
        v->stats.expired++;
        chunk_remove(v, i);
}

bool volume_expire(struct volume *v, struct store_ref ref, uint64_t born_after_ms)
{
        const struct chunk *c = volume_chunk_of(v, ref);

        if (!c || !is_old(c, born_after_ms))
                return false;
        expire(v, ref.index);
        volume_nudge(v);
        return true;
}

bool volume_expire_step(struct volume *v, uint64_t now_ms, uint64_t *expired)
{
        uint64_t born_after_ms = 0;
        uint32_t namespace_id = 0; /* no namespace has this number */

        for (unsigned cost = 0; cost < STEP_COST; cost += LOOK_COST, v->expire_at++) {
                const struct chunk *c;

                if (v->expire_at >= index_high(v->index)) {
                        v->expire_at = 0;
                        return false;
                }
                c = volume_chunk_at(v, v->expire_at);
                if (!(c->flags & CHUNK_LINKED))
                        continue;
                if (chunk_namespace(v, c) != namespace_id) {
                        const struct namespace *ns =
                                namespaces_get(v->namespaces, chunk_namespace(v, c));

                        namespace_id = chunk_namespace(v, c);
                        cost += NAMESPACE_COST;
                        born_after_ms = ns ? store_born_after_ms(ns->seen.lifetime_s, now_ms) : 0;
                }
                /* purged chunks are dropped, and counted, by the purge */
                if (!is_old(c, born_after_ms) || sweep_is_dead(v, v->expire_at))
                        continue;
                expire(v, v->expire_at);
                ++*expired;
                cost += REMOVE_COST;
        }
        return true;
}

uint32_t volume_records(const struct volume *v)
{
        return v->open ? index_high(v->index) : 0;
}

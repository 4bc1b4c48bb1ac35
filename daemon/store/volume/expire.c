/* SPDX-License-Identifier: Apache-2.0 */
/* Drops chunks that are older than their namespace's lifetime. Expired chunks are removed from the
 * index without a write, like evicted chunks. So startup after a crash may find them again until
 * their slots are reused, and they are then dropped again. The eviction policy does not remember
 * expired chunks, because expiry says nothing about the worth of a chunk.
 *
 * Loop thread; the store calls the steps. Failures: none. A dropped chunk with I/O on its slot is
 * no longer found, and its slot is freed when the I/O ends. */
#include "store/volume/internal.h"

enum {
        STEP_COST = 4096,   /* most cost of one step, in units of about 25 ns: about 100 us */
        LOOK_COST = 1,      /* cost of visiting a record */
        NAMESPACE_COST = 8, /* cost of looking up a namespace */
        REMOVE_COST = 64,   /* cost of removing a chunk */
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
                /* a purged chunk is left to the purge, which counts it */
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

/* SPDX-License-Identifier: Apache-2.0 */
/* Restores the eviction order after a restart. The disk records when a chunk was put, but not when
 * and how often it was used. Recovery orders chunks by the time of their puts; the saved order then
 * replaces this order, before any put.
 *
 * A chunk is recognized by the hash of its key, so the secret of the hash must be the one under
 * which the order was saved. Loop thread. Malformed records, and records of missing chunks, are
 * skipped. A chunk that was put after the order was saved becomes younger than all chunks in the
 * saved order; a chunk that was put before, but is not in the saved order, becomes older than
 * these. */
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "store/volume/internal.h"

enum { DISTANCE = 16 }; /* number of records by which prefetches run ahead of the restore */

const struct evict *volume_eviction(const struct volume *v)
{
        return v->open ? v->evict : NULL;
}

static bool is_in_order(const struct volume *v, uint32_t i)
{
        return volume_chunk_at(v, i)->flags & CHUNK_USED && evict_contains(v->evict, i);
}

uint32_t volume_save_order(const struct volume *v, uint32_t *cursor, uint32_t max_records,
                           struct evict_record *ret, uint32_t room)
{
        uint32_t high = index_high(v->index), n = 0;

        for (; *cursor < high && max_records > 0 && n < room; max_records--, ++*cursor) {
                const struct chunk *c = volume_chunk_at(v, *cursor);
                struct key key;

                if (!is_in_order(v, *cursor) || c->flags & CHUNK_PENDING)
                        continue;
                key = c->key;
                evict_save_item(v->evict, *cursor,
                                evict_id(key_hash(&v->params.secret, chunk_namespace(v, c), &key)),
                                &ret[n++]);
        }
        if (*cursor >= high)
                *cursor = UINT32_MAX;
        return n;
}

struct restored {
        struct volume *v;
        uint8_t *chunks; /* chunks that were restored, one bit per record number */
        uint64_t saved_ms;
};

static bool is_new(void *userdata, uint32_t i)
{
        const struct restored *r = userdata;

        return !(r->chunks[i / 8] & 1u << i % 8) &&
               volume_chunk_at(r->v, i)->created_ms > r->saved_ms;
}

static bool has_new(struct restored *r)
{
        for (uint32_t i = 0; i < index_high(r->v->index); i++)
                if (is_in_order(r->v, i) && is_new(r, i))
                        return true;
        return false;
}

/* Restores the chunk that a record describes. Returns true if the chunk exists, the record is valid
 * for it, and the chunk had not been restored before. */
static bool restore_chunk(struct volume *v, const struct evict_record *record,
                          struct restored *restored)
{
        uint32_t i = index_find_hash(v->index, record->id);
        const struct chunk *c;
        bool is_first;

        if (i == INDEX_NONE || !is_in_order(v, i))
                return false;
        c = volume_chunk_at(v, i);
        if (c->slab == INDEX_NO_SLAB ||
            !evict_restore_item(v->evict, i, (uint32_t)slabs_slab_class(v->slabs, c->slab), record))
                return false;
        if (record->flags & EVICT_RECORD_RETAINED && !(c->flags & CHUNK_PENDING))
                chunk_retain(restored->v, i, true);
        is_first = !(restored->chunks[i / 8] & 1u << i % 8);
        restored->chunks[i / 8] |= (uint8_t)(1u << i % 8);
        return is_first;
}

uint32_t volume_restore_order(struct volume *v, const struct store_order *order)
{
        struct restored restored = { .v = v, .saved_ms = order->saved_ms };
        _cleanup_(freep) uint8_t *chunks = NULL;
        uint32_t n = 0;

        if (!v->open || strcmp(order->policy, evict_policy(v->evict)) != 0)
                return 0;
        chunks = calloc(index_high(v->index) / 8 + 1, 1);
        if (!chunks || !evict_restore(v->evict, order->learned))
                return 0;
        restored.chunks = chunks;
        for (uint64_t i = 0; i < order->n_remembered; i++)
                evict_restore_remembered(v->evict, &order->remembered[i]);
        for (uint64_t i = 0; i < order->n_chunks; i++) {
                if (i + 2 * DISTANCE < order->n_chunks)
                        index_warm(v->index, order->chunks[i + 2 * DISTANCE].id, 0);
                if (i + DISTANCE < order->n_chunks)
                        index_warm(v->index, order->chunks[i + DISTANCE].id, 1);
                n += restore_chunk(v, &order->chunks[i], &restored);
        }
        if (has_new(&restored))
                evict_restore_rest(v->evict, is_new, &restored);
        return n;
}

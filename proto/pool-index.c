/* SPDX-License-Identifier: Apache-2.0 */
/* The pool index, as both sides see it; see pool-index.h. Owns nothing, allocates nothing. */
#include "pool-index.h"

#include <string.h>

bool pool_index_view_init(struct pool_index_view *ret, const void *map, uint64_t bytes)
{
        struct pool_index_header h;
        const char *buckets = (const char *)map + POOL_INDEX_HEADER_BYTES;

        if (bytes < POOL_INDEX_HEADER_BYTES)
                return false;
        memcpy(&h, map, offsetof(struct pool_index_header, state));
        if (h.magic != POOL_INDEX_MAGIC || h.version != POOL_INDEX_VERSION ||
            h.header_bytes != POOL_INDEX_HEADER_BYTES || h.bytes != bytes || h.n_buckets == 0 ||
            h.n_records == 0 || h.n_records == UINT32_MAX ||
            pool_index_bytes(h.n_buckets, h.n_records) > bytes)
                return false;
        *ret = (struct pool_index_view){
                .header = map,
                .buckets = (const struct pool_index_bucket *)buckets,
                .records =
                        (const struct pool_index_record *)(buckets + (uint64_t)h.n_buckets *
                                                                             sizeof(*ret->buckets)),
                .n_buckets = h.n_buckets,
                .n_records = h.n_records,
                .secret = h.secret,
        };
        return true;
}

bool pool_index_read(const struct pool_index_record *r, uint64_t tag, const struct key *k,
                     struct pool_index_entry *ret)
{
        uint32_t serial = __atomic_load_n(&r->serial, __ATOMIC_ACQUIRE);
        bool is_it = (serial & 1) && __atomic_load_n(&r->tag, __ATOMIC_RELAXED) == tag &&
                     key_equal(&r->key, k);

        *ret = (struct pool_index_entry){
                .offset = __atomic_load_n(&r->offset, __ATOMIC_RELAXED),
                .length = __atomic_load_n(&r->length, __ATOMIC_RELAXED),
                .generation = __atomic_load_n(&r->generation, __ATOMIC_RELAXED),
        };
        POOL_INDEX_FENCE(__ATOMIC_ACQUIRE);
        return is_it && __atomic_load_n(&r->serial, __ATOMIC_RELAXED) == serial;
}

int64_t pool_index_find(const struct pool_index_view *v, uint64_t hash, unsigned *at)
{
        struct lookup_pair p = pool_index_places(hash, v->n_buckets);

        for (; *at < 2 * POOL_INDEX_WORDS; ++*at) {
                const struct pool_index_bucket *b = &v->buckets[*at < POOL_INDEX_WORDS ? p.a : p.b];
                uint64_t word =
                        __atomic_load_n(&b->words[*at % POOL_INDEX_WORDS], __ATOMIC_RELAXED);
                uint32_t number = (uint32_t)word;

                if (number == 0 || (word ^ hash) >> 32 != 0 || number > v->n_records)
                        continue;
                ++*at;
                return number - 1;
        }
        return POOL_INDEX_NONE;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The pool index, for both sides; see pool-index.h. Owns nothing, allocates nothing. */
#include "pool-index.h"

#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

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

/* words_of() returns a bit for each word of the bucket that has the upper half of the hash. If that
 * half is 0, free words have a bit, too. The code has no branches, because the position of the word
 * cannot be predicted. */
#if defined(__SSE2__)
/* Loads two words in one access. The daemon writes meanwhile, and each word must be as it stored
 * it. */
static inline __m128 load_two(const uint64_t *words)
{
        __m128i loaded;

        __asm__ volatile("movdqa %1, %0" : "=x"(loaded) : "m"(*(const __m128i *)words));
        return _mm_castsi128_ps(loaded);
}

static unsigned words_of(const struct pool_index_bucket *b, uint64_t hash)
{
        const __m128i wanted = _mm_set1_epi32((int)(hash >> 32));
        unsigned words = 0;

        for (unsigned i = 0; i < POOL_INDEX_WORDS; i += 4) {
                __m128 upper = _mm_shuffle_ps(load_two(&b->words[i]), load_two(&b->words[i + 2]),
                                              _MM_SHUFFLE(3, 1, 3, 1));
                __m128i equal = _mm_cmpeq_epi32(_mm_castps_si128(upper), wanted);

                words |= (unsigned)_mm_movemask_ps(_mm_castsi128_ps(equal)) << i;
        }
        return words;
}
#else
static unsigned words_of(const struct pool_index_bucket *b, uint64_t hash)
{
        unsigned words = 0;

        for (unsigned i = 0; i < POOL_INDEX_WORDS; i++) {
                uint64_t word = __atomic_load_n(&b->words[i], __ATOMIC_RELAXED);

                words |= (unsigned)((word ^ hash) >> 32 == 0) << i;
        }
        return words;
}
#endif

uint32_t pool_index_find(const struct pool_index_view *v, uint64_t hash, bool first_only,
                         unsigned *at)
{
        struct lookup_pair p = pool_index_places(hash, v->n_buckets);
        unsigned end =
                first_only && *at < POOL_INDEX_WORDS ? POOL_INDEX_WORDS : 2 * POOL_INDEX_WORDS;

        while (*at < end) {
                unsigned word = *at % POOL_INDEX_WORDS, first = *at - word, words;
                const struct pool_index_bucket *b = &v->buckets[first == 0 ? p.a : p.b];
                uint32_t number;

                words = words_of(b, hash) >> word;
                if (words == 0) {
                        *at = first + POOL_INDEX_WORDS;
                        continue;
                }
                word += (unsigned)__builtin_ctz(words);
                *at = first + word + 1;
                /* The word may have changed since; its record reveals that. */
                number = (uint32_t)__atomic_load_n(&b->words[word], __ATOMIC_RELAXED);
                if (number > 0 && number <= v->n_records)
                        return number - 1;
        }
        return POOL_INDEX_NONE;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Searches keys with AVX2; implements window.h. Built for every x86-64 and called only if the
 * processor supports it, so each function has the target attribute, and the file has no compiler
 * flag for AVX2.
 *
 * A register holds key_hash() of four keys, one in each word. Two registers are computed at
 * once: each round depends on the one before it, and the second register uses the idle cycles. */
#include "lib/window.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))

enum { WIDTH = 4, GROUP = 2 * WIDTH };

struct sip {
        __m256i v0, v1, v2, v3;
};

#define ROTATE(x, b) _mm256_or_si256(_mm256_slli_epi64(x, b), _mm256_srli_epi64(x, 64 - (b)))
#define SWAP(x)      _mm256_shuffle_epi32(x, _MM_SHUFFLE(2, 3, 0, 1)) /* rotates by 32 bits */

AVX2 static inline void sip_round(struct sip *s)
{
        s->v0 = _mm256_add_epi64(s->v0, s->v1);
        s->v2 = _mm256_add_epi64(s->v2, s->v3);
        s->v1 = _mm256_xor_si256(ROTATE(s->v1, 13), s->v0);
        s->v3 = _mm256_xor_si256(ROTATE(s->v3, 16), s->v2);
        s->v0 = SWAP(s->v0);
        s->v2 = _mm256_add_epi64(s->v2, s->v1);
        s->v0 = _mm256_add_epi64(s->v0, s->v3);
        s->v1 = _mm256_xor_si256(ROTATE(s->v1, 17), s->v2);
        s->v3 = _mm256_xor_si256(ROTATE(s->v3, 21), s->v0);
        s->v2 = SWAP(s->v2);
}

AVX2 static inline struct sip sip_begin(const struct key_secret *secret)
{
        long long k0 = (long long)secret->words[0], k1 = (long long)secret->words[1];

        return (struct sip){
                _mm256_set1_epi64x(k0 ^ 0x736f6d6570736575),
                _mm256_set1_epi64x(k1 ^ 0x646f72616e646f6d),
                _mm256_set1_epi64x(k0 ^ 0x6c7967656e657261),
                _mm256_set1_epi64x(k1 ^ 0x7465646279746573),
        };
}

AVX2 static inline __m256i sip_end(const struct sip *s)
{
        return _mm256_xor_si256(_mm256_xor_si256(s->v0, s->v1), _mm256_xor_si256(s->v2, s->v3));
}

/* Loads four keys; register i gets word i of each. */
AVX2 static inline void load_keys(const uint8_t *at, size_t stride, __m256i ret[static WIDTH])
{
        __m256i a = _mm256_loadu_si256((const __m256i *)at),
                b = _mm256_loadu_si256((const __m256i *)(at + stride)),
                c = _mm256_loadu_si256((const __m256i *)(at + 2 * stride)),
                d = _mm256_loadu_si256((const __m256i *)(at + 3 * stride));
        __m256i ab_even = _mm256_unpacklo_epi64(a, b), ab_odd = _mm256_unpackhi_epi64(a, b),
                cd_even = _mm256_unpacklo_epi64(c, d), cd_odd = _mm256_unpackhi_epi64(c, d);

        ret[0] = _mm256_permute2x128_si256(ab_even, cd_even, 0x20);
        ret[1] = _mm256_permute2x128_si256(ab_odd, cd_odd, 0x20);
        ret[2] = _mm256_permute2x128_si256(ab_even, cd_even, 0x31);
        ret[3] = _mm256_permute2x128_si256(ab_odd, cd_odd, 0x31);
}

/* Returns all ones in each word whose key is all zeros. */
AVX2 static inline __m256i roots(const __m256i words[static WIDTH])
{
        return _mm256_cmpeq_epi64(_mm256_or_si256(_mm256_or_si256(words[0], words[1]),
                                                  _mm256_or_si256(words[2], words[3])),
                                  _mm256_setzero_si256());
}

/* Computes lookup_hash() of eight keys. Returns false if one is the root. */
AVX2 static inline bool hash_group(const struct key_secret *secret, const uint8_t *at,
                                   size_t stride, uint64_t ret[static GROUP])
{
        struct sip a = sip_begin(secret), b = a;
        __m256i words_a[WIDTH + 1], words_b[WIDTH + 1], any_root;

        load_keys(at, stride, words_a);
        load_keys(at + WIDTH * stride, stride, words_b);
        words_a[WIDTH] = words_b[WIDTH] =
                _mm256_set1_epi64x((long long)(KEY_BYTES + 4) << 56); /* namespace 0 */
        for (int i = 0; i <= WIDTH; i++) {
                a.v3 = _mm256_xor_si256(a.v3, words_a[i]);
                b.v3 = _mm256_xor_si256(b.v3, words_b[i]);
                sip_round(&a);
                sip_round(&b);
                a.v0 = _mm256_xor_si256(a.v0, words_a[i]);
                b.v0 = _mm256_xor_si256(b.v0, words_b[i]);
        }
        a.v2 = _mm256_xor_si256(a.v2, _mm256_set1_epi64x(0xff));
        b.v2 = _mm256_xor_si256(b.v2, _mm256_set1_epi64x(0xff));
        for (int i = 0; i < 3; i++) {
                sip_round(&a);
                sip_round(&b);
        }
        _mm256_storeu_si256((__m256i *)ret, sip_end(&a));
        _mm256_storeu_si256((__m256i *)(ret + WIDTH), sip_end(&b));
        any_root = _mm256_or_si256(roots(words_a), roots(words_b));
        return _mm256_testz_si256(any_root, any_root);
}

AVX2 static bool hash(const struct look *look, size_t first, struct window *ret)
{
        const uint8_t *at = window_begin(look, first, ret);
        bool all_keys = true;
        size_t i = 0;

        for (; i + GROUP <= ret->n; i += GROUP, at += GROUP * look->stride) {
                all_keys &= hash_group(look->secret, at, look->stride, ret->hashes + i);
                for (size_t j = i; j < i + GROUP; j++)
                        lookup_warm_first(look->view, ret->hashes[j]);
        }
        for (; i < ret->n; i++, at += look->stride) {
                const struct key *k = (const struct key *)at;

                all_keys &= !key_is_root(k);
                ret->hashes[i] = lookup_hash(look->secret, k);
                lookup_warm_first(look->view, ret->hashes[i]);
        }
        return all_keys;
}

AVX2 static void hash_keys(const struct key_secret *secret, const uint8_t *keys, size_t stride,
                           size_t n, uint64_t *ret)
{
        for (; n >= GROUP; n -= GROUP, keys += GROUP * stride, ret += GROUP)
                (void)hash_group(secret, keys, stride, ret);
        for (; n > 0; n--, keys += stride)
                *ret++ = lookup_hash(secret, (const struct key *)keys);
}

/* Loads half a bucket in one instruction. The daemon may write meanwhile, so the comparison and
 * later code must use the words of one load. The load is aligned, so each word is as the daemon
 * stored it. */
AVX2 static inline __m256i load_words(const uint32_t *words)
{
        __m256i loaded;

        __asm__ volatile("vmovdqa %1, %0" : "=x"(loaded) : "m"(*(const __m256i *)words));
        return loaded;
}

/* Returns the words with this tag, and zeros in place of the others. */
AVX2 static inline __m256i words_of(__m256i words, __m256i tag, __m256i tag_bits)
{
        return _mm256_and_si256(_mm256_cmpeq_epi32(_mm256_and_si256(words, tag_bits), tag), words);
}

/* Returns whether the bucket has a word with the tag of this hash, in any tier. */
AVX2 static inline bool is_in(const struct lookup_bucket *b, uint64_t hash)
{
        __m256i tag_bits = _mm256_set1_epi32((int)LOOKUP_TAG_BITS);
        __m256i tag = _mm256_set1_epi32((int)lookup_tag(hash));
        __m256i low = words_of(load_words(b->words), tag, tag_bits);
        __m256i high = words_of(load_words(b->words + LOOKUP_WORDS / 2), tag, tag_bits);

        return !_mm256_testz_si256(_mm256_or_si256(low, high),
                                   _mm256_set1_epi32((int)LOOKUP_TIER_BITS));
}

/* Prefetches without a branch on the result, which cannot be predicted: for a key that was
 * found, the first bucket is prefetched again, which costs nothing. The empty asm statement
 * keeps compilers from turning the expression into a branch. */
AVX2 static void find_first(const struct look *look, struct window *w)
{
        const struct lookup_bucket *buckets = look->view->buckets;
        uint32_t n_buckets = look->view->n_buckets;
        unsigned absent = 0;

        for (size_t i = 0; i < w->n; i++) {
                struct lookup_pair p = lookup_main(w->hashes[i], n_buckets);
                uint32_t is_absent = !is_in(&buckets[p.a], w->hashes[i]);

                absent |= is_absent << i;
                __asm__("" : "+r"(is_absent));
                warm(&buckets[p.a ^ ((p.a ^ p.b) & -is_absent)]);
        }
        w->absent = absent;
}

AVX2 static void find_second(const struct look *look, struct window *w)
{
        const struct lookup_view *v = look->view;
        unsigned found = 0;

        for (unsigned left = w->absent; left; left &= left - 1) {
                unsigned i = (unsigned)__builtin_ctz(left);
                struct lookup_pair p = lookup_main(w->hashes[i], v->n_buckets);

                found |= (unsigned)is_in(&v->buckets[p.b], w->hashes[i]) << i;
        }
        w->absent &= ~found;
}

const struct window_ways window_avx2 = {
        .hash = hash,
        .find_first = find_first,
        .find_second = find_second,
        .hash_keys = hash_keys,
};
#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Implements stream.h. The file is built for every x86-64 and each function declares the
 * instructions that it uses; stream_way() offers it only if the processor has them. Other
 * processors have no implementation.
 *
 * The checksum is folded ("Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
 * Instruction", Intel 2009): the state has 128 bytes, and each step multiplies it and adds the
 * next 128 bytes. The final state has the same checksum as all folded bytes, and libisal
 * computes it. */
#include "io/stream.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <isa-l/crc.h>

#include "checked.h"

#define NARROW __attribute__((target("sse4.1,pclmul")))
#define WIDE   __attribute__((target("avx2,pclmul,vpclmulqdq")))

enum {
        AHEAD = 1024, /* distance in bytes at which the source is prefetched */
        LINE = 64     /* bytes of a cache line */
};

/* x^(8 * 128 + 32) and x^(8 * 128 - 32) modulo the polynomial of CRC32C, bits reversed and shifted
 * by one: for the lower and the upper half of 16 bytes. */
#define FOLD_LOW  0x6992cea2
#define FOLD_HIGH 0x0d3b6092

static void warm(const char *from)
{
        _mm_prefetch(from + AHEAD, _MM_HINT_T0);
        _mm_prefetch(from + AHEAD + LINE, _MM_HINT_T0);
}

static uint32_t crc_of_state(void *state)
{
        return crc32_iscsi(state, STREAM_UNIT, 0);
}

NARROW static uint32_t copy_crc_narrow(uint32_t crc, void *to, const void *from, size_t bytes)
{
        enum { WORDS = STREAM_UNIT / sizeof(__m128i) };
        const __m128i fold = _mm_set_epi64x(FOLD_HIGH, FOLD_LOW);
        const char *f = from;
        __m128i state[WORDS], *t = to;

        for (unsigned i = 0; i < WORDS; i++) {
                state[i] = _mm_loadu_si128((const __m128i *)f + i);
                _mm_stream_si128(t + i, state[i]);
        }
        state[0] = _mm_xor_si128(state[0], _mm_cvtsi32_si128((int)crc));
        for (size_t at = STREAM_UNIT; at < bytes; at += STREAM_UNIT) {
                f += STREAM_UNIT;
                t += WORDS;
                warm(f);
#pragma GCC unroll 8
                for (unsigned i = 0; i < WORDS; i++) {
                        __m128i word = _mm_loadu_si128((const __m128i *)f + i);
                        __m128i low = _mm_clmulepi64_si128(state[i], fold, 0x00),
                                high = _mm_clmulepi64_si128(state[i], fold, 0x11);

                        _mm_stream_si128(t + i, word);
                        state[i] = _mm_xor_si128(_mm_xor_si128(low, high), word);
                }
        }
        _mm_sfence();
        return crc_of_state(state);
}

WIDE static uint32_t copy_crc_wide(uint32_t crc, void *to, const void *from, size_t bytes)
{
        enum { WORDS = STREAM_UNIT / sizeof(__m256i) };
        const __m256i fold = _mm256_set_epi64x(FOLD_HIGH, FOLD_LOW, FOLD_HIGH, FOLD_LOW);
        const char *f = from;
        __m256i state[WORDS], *t = to;

        for (unsigned i = 0; i < WORDS; i++) {
                state[i] = _mm256_loadu_si256((const __m256i *)f + i);
                _mm256_stream_si256(t + i, state[i]);
        }
        state[0] = _mm256_xor_si256(state[0], _mm256_set_epi32(0, 0, 0, 0, 0, 0, 0, (int)crc));
        for (size_t at = STREAM_UNIT; at < bytes; at += STREAM_UNIT) {
                f += STREAM_UNIT;
                t += WORDS;
                warm(f);
#pragma GCC unroll 4
                for (unsigned i = 0; i < WORDS; i++) {
                        __m256i word = _mm256_loadu_si256((const __m256i *)f + i);
                        __m256i low = _mm256_clmulepi64_epi128(state[i], fold, 0x00),
                                high = _mm256_clmulepi64_epi128(state[i], fold, 0x11);

                        _mm256_stream_si256(t + i, word);
                        state[i] = _mm256_xor_si256(_mm256_xor_si256(low, high), word);
                }
        }
        _mm_sfence();
        return crc_of_state(state);
}

static const struct stream_way narrow = { "PCLMULQDQ", copy_crc_narrow };
static const struct stream_way wide = { "VPCLMULQDQ", copy_crc_wide };

const struct stream_way *stream_way(unsigned i)
{
        const struct stream_way *ways[2];
        unsigned n = 0;

        if (!__builtin_cpu_supports("sse4.1") || !__builtin_cpu_supports("pclmul"))
                return NULL;
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("vpclmulqdq"))
                ways[n++] = &wide;
        ways[n++] = &narrow;
        return i < n ? ways[i] : NULL;
}
#else
const struct stream_way *stream_way(unsigned i)
{
        (void)i;
        return NULL;
}
#endif

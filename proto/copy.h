/* SPDX-License-Identifier: Apache-2.0 */
/* A copy that bypasses the caches on its target side. An ordinary copy first reads the target's
 * lines into the cache, where they displace other data. x86-64 only; elsewhere the copy is
 * memcpy(). */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

/* Bytes below which copy_past_caches() calls memcpy(), because the bytes of a short copy are likely
 * to be read soon, from the caches. */
enum { COPY_PAST_CACHES_LEAST = 16 * 1024 };

/* Copies `bytes` bytes. Other threads see them once they synchronize with this one. */
static inline void copy_past_caches(void *to, const void *from, size_t bytes)
{
#if defined(__x86_64__)
        enum { WORD = sizeof(__m128i), STEP = 8 * WORD, AHEAD = 1024 };
        const char *source = from;
        char *target = to;
        size_t head;

        if (bytes < COPY_PAST_CACHES_LEAST) {
                memcpy(to, from, bytes);
                return;
        }
        head = (WORD - (uintptr_t)target % WORD) % WORD;
        memcpy(target, source, head);
        for (target += head, source += head, bytes -= head; bytes >= STEP;
             target += STEP, source += STEP, bytes -= STEP) {
                _mm_prefetch(source + AHEAD, _MM_HINT_T0);
                _mm_prefetch(source + AHEAD + STEP / 2, _MM_HINT_T0);
                for (unsigned i = 0; i < STEP; i += WORD)
                        _mm_stream_si128((__m128i *)(target + i),
                                         _mm_loadu_si128((const __m128i *)(source + i)));
        }
        _mm_sfence();
        memcpy(target, source, bytes);
#else
        memcpy(to, from, bytes);
#endif
}

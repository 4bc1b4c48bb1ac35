/* SPDX-License-Identifier: Apache-2.0 */
/* A copy whose target goes past the caches: a plain one first reads the target's lines there, and
 * drives out what others have. On x86-64 only; elsewhere it is memcpy(). */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

enum { COPY_PAST_CACHES_LEAST = 16 * 1024 }; /* a shorter one is rather wanted in the cache */

/* Other threads see it once they synchronize with this one. */
static inline void copy_past_caches(void *to, const void *from, size_t bytes)
{
#if defined(__x86_64__)
        enum { WORD = sizeof(__m128i), STEP = 8 * WORD, AHEAD = 1024 };
        const char *f = from;
        char *t = to;
        size_t head;

        if (bytes < COPY_PAST_CACHES_LEAST) {
                memcpy(to, from, bytes);
                return;
        }
        head = (WORD - (uintptr_t)t % WORD) % WORD;
        memcpy(t, f, head);
        for (t += head, f += head, bytes -= head; bytes >= STEP;
             t += STEP, f += STEP, bytes -= STEP) {
                _mm_prefetch(f + AHEAD, _MM_HINT_T0);
                _mm_prefetch(f + AHEAD + STEP / 2, _MM_HINT_T0);
                for (unsigned i = 0; i < STEP; i += WORD)
                        _mm_stream_si128((__m128i *)(t + i),
                                         _mm_loadu_si128((const __m128i *)(f + i)));
        }
        _mm_sfence();
        memcpy(t, f, bytes);
#else
        memcpy(to, from, bytes);
#endif
}

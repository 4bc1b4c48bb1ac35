/* SPDX-License-Identifier: Apache-2.0 */
#include "payload.h"

#include <endian.h>
#include <string.h>

#include "checked.h"

enum {
        WORD_BYTES = 8,
        LANES = 4,
        STRIDE_BYTES = LANES * WORD_BYTES,
        LOOK_BYTES = 4096, /* number of bytes that are compared before the result is checked */
};

struct seeds {
        uint64_t of[LANES];
};

/* Mixes a word. The function is bijective, so that words at different positions with the same seed
 * always differ. */
static inline uint64_t mix(uint64_t x)
{
        x ^= x >> 32;
        x *= 0xd6e8feb86659fd93u;
        x ^= x >> 29;
        return x;
}

static struct seeds seeds_of(const struct kvcache_key *key)
{
        struct seeds s;
        uint64_t words[KVCACHE_KEY_BYTES / WORD_BYTES];

        memcpy(words, key->bytes, sizeof(words));
        for (unsigned lane = 0; lane < LANES; lane++) {
                uint64_t h = 0x243f6a8885a308d3u * (2 * lane + 1);

                for (unsigned i = 0; i < ARRAY_SIZE(words); i++)
                        h = mix(mix(h ^ le64toh(words[i])) + 0x9e3779b97f4a7c15u);
                s.of[lane] = h;
        }
        return s;
}

static inline uint64_t word_at(const struct seeds *s, unsigned lane, uint64_t i)
{
        return htole64(mix(s->of[lane] + i * 0x9e3779b97f4a7c15u));
}

void payload_fill(const struct kvcache_key *key, void *data, size_t bytes)
{
        struct seeds s = seeds_of(key);
        uint8_t *out = data;
        uint64_t i = 0;
        size_t at = 0;

        for (; bytes - at >= STRIDE_BYTES; at += STRIDE_BYTES, i += LANES) {
                for (unsigned lane = 0; lane < LANES; lane++) {
                        uint64_t word = word_at(&s, lane, i + lane);

                        memcpy(out + at + lane * WORD_BYTES, &word, WORD_BYTES);
                }
        }
        for (; at < bytes; i++) {
                uint64_t word = word_at(&s, i % LANES, i);
                size_t n = MIN(bytes - at, (size_t)WORD_BYTES);

                memcpy(out + at, &word, n);
                at += n;
        }
}

static uint64_t count_wrong(const struct seeds *s, const uint8_t *in, size_t from, size_t to,
                            size_t *ret_first)
{
        uint64_t wrong = 0;

        for (size_t at = from; at < to; at++) {
                uint64_t i = at / WORD_BYTES;
                uint64_t word = word_at(s, i % LANES, i);
                uint8_t expected[WORD_BYTES];

                memcpy(expected, &word, WORD_BYTES);
                if (in[at] == expected[at % WORD_BYTES])
                        continue;
                if (wrong++ == 0)
                        *ret_first = at;
        }
        return wrong;
}

uint64_t payload_verify(const struct kvcache_key *key, const void *data, size_t bytes,
                        size_t *ret_first)
{
        struct seeds s = seeds_of(key);
        const uint8_t *in = data;
        uint64_t wrong = 0;
        size_t first = 0;

        for (size_t from = 0; from < bytes; from += LOOK_BYTES) {
                size_t to = MIN(bytes, from + LOOK_BYTES), at = from, here = 0;
                uint64_t i = from / WORD_BYTES, difference = 0, n;

                for (; to - at >= STRIDE_BYTES; at += STRIDE_BYTES, i += LANES) {
                        uint64_t words[LANES];

                        memcpy(words, in + at, STRIDE_BYTES);
                        for (unsigned lane = 0; lane < LANES; lane++)
                                difference |= words[lane] ^ word_at(&s, lane, i + lane);
                }
                /* Slow path: count wrong bytes in all of this part if it has a difference,
                 * otherwise only in the tail that fills no stride. */
                n = count_wrong(&s, in, difference ? from : at, to, &here);
                if (n > 0 && wrong == 0)
                        first = here;
                wrong += n;
        }
        if (wrong > 0)
                *ret_first = first;
        return wrong;
}

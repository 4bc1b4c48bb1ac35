/* SPDX-License-Identifier: Apache-2.0 */
/* Contents of chunks: a stamp {magic, number, size, pattern}, then words that the pattern's number
 * yields. */
#include <string.h>

#include "bench.h"

static const uint64_t magic = 0x6b76626e63683031;

struct stamp {
        uint64_t magic, number, size, pattern;
};

static uint64_t mix(uint64_t x)
{
        x += 0x9e3779b97f4a7c15;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
        x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
        return x ^ (x >> 31);
}

struct kvcache_key content_key(uint64_t number)
{
        struct kvcache_key key;

        for (unsigned i = 0; i < sizeof(key) / sizeof(uint64_t); i++) {
                uint64_t word = mix(number * 4 + i);

                memcpy(key.bytes + i * sizeof(word), &word, sizeof(word));
        }
        key.bytes[0] |= 1;
        return key;
}

uint64_t bench_sample(const struct bench_options *o, uint64_t i, uint64_t n)
{
        uint64_t stretch = o->count / n;

        return o->first + i * stretch + mix(i) % stretch;
}

struct kvcache_key bench_key(const struct bench_options *o, uint64_t number)
{
        struct kvcache_key key;

        if (!o->plain_keys)
                return content_key(number);
        memset(key.bytes, 0xa5, sizeof(key.bytes));
        memcpy(key.bytes, &number, sizeof(number));
        return key;
}

/* Computes word i of a pattern. */
static uint64_t word_at(uint64_t pattern, uint64_t i)
{
        return mix(pattern << 32 ^ i);
}

void content_fill(void *place, uint64_t size, uint64_t pattern)
{
        uint8_t *p = place;

        for (uint64_t at = 0; at < size; at += sizeof(uint64_t)) {
                uint64_t word = word_at(pattern, at / sizeof(word));

                memcpy(p + at, &word, size - at < sizeof(word) ? size - at : sizeof(word));
        }
}

void content_stamp(void *place, uint64_t size, uint64_t number, uint64_t pattern)
{
        struct stamp stamp = { .magic = magic, .number = number, .size = size, .pattern = pattern };

        memcpy(place, &stamp, sizeof(stamp));
}

bool content_check(const void *data, uint64_t length, uint64_t size, uint64_t number)
{
        const uint8_t *p = data;
        struct stamp stamp;

        if (length != size)
                return false;
        memcpy(&stamp, p, sizeof(stamp));
        if (stamp.magic != magic || stamp.number != number || stamp.size != size)
                return false;
        for (uint64_t at = sizeof(stamp); at < size; at += sizeof(uint64_t)) {
                uint64_t word = word_at(stamp.pattern, at / sizeof(word));

                if (memcmp(p + at, &word, size - at < sizeof(word) ? size - at : sizeof(word)) != 0)
                        return false;
        }
        return true;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "profile-content.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"

enum { SECTOR_BYTES = 512, STAMP_BYTES = 16 };

static inline uint64_t mix(uint64_t x)
{
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        return x ^ (x >> 31);
}

int content_init(struct content *c, size_t bytes, const char *name)
{
        uint64_t seed = 0x243f6a8885a308d3u;
        uint8_t *pattern = malloc(round_up(bytes, 8));

        if (!pattern)
                return -ENOMEM;
        for (const char *p = name; *p; p++)
                seed = mix(seed ^ (unsigned char)*p);
        for (size_t i = 0; i < round_up(bytes, 8); i += 8) {
                uint64_t word = htole64(mix(seed + i * 0x9e3779b97f4a7c15u));

                memcpy(pattern + i, &word, 8);
        }
        *c = (struct content){ .seed = seed, .pattern = pattern, .bytes = bytes };
        return 0;
}

void content_fini(struct content *c)
{
        free(c->pattern);
        *c = (struct content){ 0 };
}

void content_fill(const struct content *c, void *place)
{
        memcpy(place, c->pattern, c->bytes);
}

/* Computes the stamp of a sector. The first word identifies the job, the block and the generation;
 * the second identifies the sector, the block and the generation. */
static inline void stamp_of(const struct content *c, uint64_t block, uint64_t generation,
                            uint64_t sector, uint8_t ret[static STAMP_BYTES])
{
        uint64_t words[2] = { htole64(mix(c->seed ^ mix(block + 1) ^ generation << 56)),
                              htole64(sector << 32 ^ generation ^ block << 8) };

        memcpy(ret, words, STAMP_BYTES);
}

void content_stamp(const struct content *c, void *place, uint64_t block, uint64_t generation)
{
        uint8_t *out = place, stamp[STAMP_BYTES];

        for (size_t at = 0; at < c->bytes; at += SECTOR_BYTES) {
                stamp_of(c, block, generation, at / SECTOR_BYTES, stamp);
                memcpy(out + at, stamp, MIN(c->bytes - at, (size_t)STAMP_BYTES));
        }
}

static uint64_t count_wrong(const uint8_t *data, const uint8_t *expected, size_t n, size_t at,
                            uint64_t wrong, size_t *ret_first)
{
        uint64_t here = 0;

        for (size_t i = 0; i < n; i++) {
                if (data[i] == expected[i])
                        continue;
                if (wrong + here++ == 0)
                        *ret_first = at + i;
        }
        return here;
}

uint64_t content_check(const struct content *c, const void *data, uint64_t block,
                       uint64_t generation, size_t *ret_first)
{
        const uint8_t *in = data;
        uint8_t stamp[STAMP_BYTES];
        uint64_t wrong = 0;

        for (size_t at = 0; at < c->bytes; at += SECTOR_BYTES) {
                size_t n = MIN(c->bytes - at, (size_t)SECTOR_BYTES),
                       stamped = MIN(n, (size_t)STAMP_BYTES);

                stamp_of(c, block, generation, at / SECTOR_BYTES, stamp);
                if (memcmp(in + at, stamp, stamped) == 0 &&
                    memcmp(in + at + stamped, c->pattern + at + stamped, n - stamped) == 0)
                        continue;
                wrong += count_wrong(in + at, stamp, stamped, at, wrong, ret_first);
                wrong += count_wrong(in + at + stamped, c->pattern + at + stamped, n - stamped,
                                     at + stamped, wrong, ret_first);
        }
        return wrong;
}

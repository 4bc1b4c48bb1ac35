/* SPDX-License-Identifier: Apache-2.0 */
/* An array of numbers in as few bits as its largest number needs, one after the other. */
#pragma once

#include <assert.h>
#include <stdint.h>
#include <string.h>

/* An access reads eight bytes, from the byte in which the number begins, so up to seven bytes after
 * the last number are accessed. A number of at most 32 bits always lies within these eight. */
enum { PACKED_PADDING = 7 };

struct packed {
        uint8_t *base;
        unsigned bits; /* size of each number in bits */
};

/* Returns the number of bits that numbers up to `most` need, at least one. */
static inline unsigned packed_bits(uint32_t most)
{
        return most == 0 ? 1 : 32 - (unsigned)__builtin_clz(most);
}

/* Returns the bytes that the first `n` numbers take. The memory at `base` needs PACKED_PADDING
 * bytes more than all its numbers take. */
static inline uint64_t packed_bytes(uint64_t n, unsigned bits)
{
        return (n * bits + 7) / 8;
}

static inline uint32_t packed_get(const struct packed *p, uint64_t i)
{
        uint64_t at = i * p->bits, word;

        memcpy(&word, p->base + at / 8, sizeof(word));
        return (uint32_t)(word >> at % 8 & ((UINT64_C(1) << p->bits) - 1));
}

static inline void packed_set(struct packed *p, uint64_t i, uint32_t number)
{
        uint64_t at = i * p->bits, mask = (UINT64_C(1) << p->bits) - 1, word;

        assert(number <= mask);
        memcpy(&word, p->base + at / 8, sizeof(word));
        word = (word & ~(mask << at % 8)) | (uint64_t)number << at % 8;
        memcpy(p->base + at / 8, &word, sizeof(word));
}

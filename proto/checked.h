/* SPDX-License-Identifier: Apache-2.0 */
/* Sums that say when they overflow, and the few roundings everybody needs. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define checked_add(a, b, ret) (!__builtin_add_overflow((a), (b), (ret)))
#define checked_sub(a, b, ret) (!__builtin_sub_overflow((a), (b), (ret)))
#define checked_mul(a, b, ret) (!__builtin_mul_overflow((a), (b), (ret)))

/* Does [offset, offset + length) lie within [0, size)? Never overflows. */
static inline bool range_within(uint64_t offset, uint64_t length, uint64_t size)
{
        return offset <= size && length <= size - offset;
}

/* `to` is a power of two; the caller knows that `n + to` does not overflow. */
static inline uint64_t round_up(uint64_t n, uint64_t to)
{
        return (n + to - 1) & ~(to - 1);
}

static inline uint64_t round_down(uint64_t n, uint64_t to)
{
        return n & ~(to - 1);
}

#define MIN(a, b)                                    \
        ({                                           \
                __typeof__(a) min_a_ = (a);          \
                __typeof__(b) min_b_ = (b);          \
                min_a_ < min_b_ ? min_a_ : min_b_;   \
        })
#define MAX(a, b)                                    \
        ({                                           \
                __typeof__(a) max_a_ = (a);          \
                __typeof__(b) max_b_ = (b);          \
                max_a_ > max_b_ ? max_a_ : max_b_;   \
        })
#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

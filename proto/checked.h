/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic that reports overflow, and common rounding functions. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define checked_add(a, b, ret) (!__builtin_add_overflow((a), (b), (ret)))
#define checked_sub(a, b, ret) (!__builtin_sub_overflow((a), (b), (ret)))
#define checked_mul(a, b, ret) (!__builtin_mul_overflow((a), (b), (ret)))

/* Returns whether [offset, offset + length) lies within [0, size). Never overflows. */
static inline bool range_within(uint64_t offset, uint64_t length, uint64_t size)
{
        return offset <= size && length <= size - offset;
}

/* Rounds up to a multiple of `to`, a power of two. The caller knows that `n + to` does not
 * overflow. */
static inline uint64_t round_up(uint64_t n, uint64_t to)
{
        return (n + to - 1) & ~(to - 1);
}

static inline uint64_t round_down(uint64_t n, uint64_t to)
{
        return n & ~(to - 1);
}

/* MIN() and MAX() evaluate each argument once and may be nested. */
#define CHECKED_PASTE_(a, b) a##b
#define CHECKED_PASTE(a, b)  CHECKED_PASTE_(a, b)
#define CHECKED_PICK(a, b, op, name_a, name_b)                                                     \
        ({                                                                                         \
                __typeof__(a) name_a = (a);                                                        \
                __typeof__(b) name_b = (b);                                                        \
                name_a op name_b ? name_a : name_b;                                                \
        })
#define CHECKED_PICK_UNIQUE(a, b, op, n)                                                           \
        CHECKED_PICK(a, b, op, CHECKED_PASTE(pick_a_, n), CHECKED_PASTE(pick_b_, n))
#define MIN(a, b)     CHECKED_PICK_UNIQUE(a, b, <, __COUNTER__)
#define MAX(a, b)     CHECKED_PICK_UNIQUE(a, b, >, __COUNTER__)
#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

/* SPDX-License-Identifier: Apache-2.0 */
/* A few keys of a lookup in the shared index, under way together, so that none waits for the memory
 * of another: hashed and their first buckets fetched, then searched there and the second buckets of
 * the others fetched, then searched there. Runs in the handle's thread and owns nothing.
 *
 * There are two ways of it with the same answers: plain C, and AVX2 where the processor has it,
 * eight hashes at a time and a bucket in two comparisons. Nothing here fails. What is not found is
 * to be asked of lookup_find_surely(), which alone can say that a key is absent. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/lookup.h"

enum { WINDOW_KEYS = 32 }; /* as many as there are bits for */

/* All keys of a lookup. */
struct look {
        const struct lookup_view *view;
        const struct key_secret *secret;
        const uint8_t *keys;
        size_t stride, count;
};

struct window {
        size_t first, n;
        uint64_t hashes[WINDOW_KEYS];
        unsigned absent; /* bits: so far not seen */
};

struct window_ways {
        /* Computes the hashes of the keys from `first` on, and warms their first buckets. False:
         * one is the root, which is never stored. */
        bool (*hash)(const struct look *look, size_t first, struct window *ret);
        /* Marks as absent which keys are not in their first bucket, and warms the second of these.
         */
        void (*find_first)(const struct look *look, struct window *w);
        /* Of those, takes off the mark which are in their second. */
        void (*find_second)(const struct look *look, struct window *w);
        /* Only lookup_hash(), of n keys. */
        void (*hash_keys)(const struct key_secret *secret, const uint8_t *keys, size_t stride,
                          size_t n, uint64_t *ret);
};

extern const struct window_ways window_plain;
#if defined(__x86_64__)
extern const struct window_ways window_avx2; /* for processors that have it */
#endif

/* The quicker one that this processor can do. */
static inline const struct window_ways *window_best(void)
{
#if defined(__x86_64__)
        if (__builtin_cpu_supports("avx2"))
                return &window_avx2;
#endif
        return &window_plain;
}

/* The part of hash() that is the same: which keys are in it, none of them absent so far. Their
 * first. */
static inline const uint8_t *window_begin(const struct look *look, size_t first, struct window *ret)
{
        ret->first = first < look->count ? first : look->count;
        ret->n = look->count - ret->first < WINDOW_KEYS ? look->count - ret->first : WINDOW_KEYS;
        ret->absent = 0;
        return look->keys + ret->first * look->stride;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Searches several keys in the lookup index at once, so that no key waits for the memory of
 * another. All keys are hashed while their first buckets are fetched. Then all keys are searched in
 * the first buckets while the second buckets of keys that are not there are fetched, and these keys
 * are searched in the second buckets. Runs in the handle's thread and owns nothing.
 *
 * Plain C and AVX2 give the same answers; AVX2 computes eight hashes at a time and compares half a
 * bucket at a time. Nothing here fails. The caller passes absent keys to
 * lookup_find_surely(), which alone can confirm that a key is absent. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/lookup.h"

enum { WINDOW_KEYS = 32 }; /* the number of bits in window.absent */

/* All keys of a request, and the index that is searched; lib/hits.c leaves `view` NULL. */
struct look {
        const struct lookup_view *view;
        const struct key_secret *secret;
        const uint8_t *keys;
        size_t stride, count;
};

struct window {
        size_t first, n;
        uint64_t hashes[WINDOW_KEYS];
        unsigned absent; /* one bit per key: not found so far */
};

struct window_ways {
        /* Hashes the keys from `first` on, and prefetches their first buckets. Returns false if one
         * key is the root, which is never stored. */
        bool (*hash)(const struct look *look, size_t first, struct window *ret);
        /* Marks keys that are not in their first bucket as absent, and prefetches their second
         * buckets. */
        void (*find_first)(const struct look *look, struct window *w);
        /* Clears the mark of absent keys that are in their second bucket. */
        void (*find_second)(const struct look *look, struct window *w);
        /* Computes lookup_hash() of `n` keys, and prefetches nothing. */
        void (*hash_keys)(const struct key_secret *secret, const uint8_t *keys, size_t stride,
                          size_t n, uint64_t *ret);
};

extern const struct window_ways window_plain;
#if defined(__x86_64__)
extern const struct window_ways window_avx2; /* requires a processor with AVX2 */
#endif

/* Returns the faster implementation that this processor supports. */
static inline const struct window_ways *window_best(void)
{
#if defined(__x86_64__)
        if (__builtin_cpu_supports("avx2"))
                return &window_avx2;
#endif
        return &window_plain;
}

/* Initializes the window at key `first`, with no key absent. Returns the address of its first key.
 * Shared by both implementations of hash(). */
static inline const uint8_t *window_begin(const struct look *look, size_t first, struct window *ret)
{
        ret->first = first < look->count ? first : look->count;
        ret->n = look->count - ret->first < WINDOW_KEYS ? look->count - ret->first : WINDOW_KEYS;
        ret->absent = 0;
        return look->keys + ret->first * look->stride;
}

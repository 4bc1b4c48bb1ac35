/* SPDX-License-Identifier: Apache-2.0 */
/* Searches keys in plain C; implements window.h. */
#include "lib/window.h"

static bool hash(const struct look *look, size_t first, struct window *ret)
{
        const uint8_t *at = window_begin(look, first, ret);
        bool all_keys = true;

        for (size_t i = 0; i < ret->n; i++, at += look->stride) {
                const struct key *k = (const struct key *)at;

                all_keys &= !key_is_root(k);
                ret->hashes[i] = lookup_hash(look->secret, k);
                lookup_warm_first(look->view, ret->hashes[i]);
        }
        return all_keys;
}

static void find_first(const struct look *look, struct window *w)
{
        for (size_t i = 0; i < w->n; i++) {
                bool is_there = lookup_is_in_first(look->view, w->hashes[i]);

                w->absent |= (unsigned)!is_there << i;
                if (!is_there)
                        lookup_warm_second(look->view, w->hashes[i]);
        }
}

static void find_second(const struct look *look, struct window *w)
{
        for (unsigned left = w->absent; left; left &= left - 1) {
                unsigned i = (unsigned)__builtin_ctz(left);

                if (lookup_is_in_second(look->view, w->hashes[i]))
                        w->absent &= ~(1u << i);
        }
}

static void hash_keys(const struct key_secret *secret, const uint8_t *keys, size_t stride, size_t n,
                      uint64_t *ret)
{
        for (; n > 0; n--, keys += stride)
                *ret++ = lookup_hash(secret, (const struct key *)keys);
}

const struct window_ways window_plain = {
        .hash = hash,
        .find_first = find_first,
        .find_second = find_second,
        .hash_keys = hash_keys,
};

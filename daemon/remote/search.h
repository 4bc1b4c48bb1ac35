/* SPDX-License-Identifier: Apache-2.0 */
/* How far a chain of keys reaches on the shared tier: a binary search, since what comes first in a
 * chain is written first, and deleted last. Pure: the caller probes the keys. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "key.h"

enum { SEARCH_KEYS = 4096 }; /* at most */

struct search {
        uint32_t n, low, high; /* keys[low - 1] is there, keys[high] is not */
        unsigned probes;
        struct key *keys;
        uint64_t *hashes;
};

/* Copies `n` keys, the first and every stride-th after it. 0, -ENOMEM. */
int search_init(struct search *s, const struct key *keys, const uint64_t *hashes, uint32_t n,
                uint32_t stride);
void search_fini(struct search *s);
/* The key to be probed next; false: none, it is known that the first s->low are there. At most
 * log2(n) + 1 are. */
bool search_next(const struct search *s, uint32_t *ret);
void search_answer(struct search *s, uint32_t key, bool there);

/* SPDX-License-Identifier: Apache-2.0 */
/* Finds how far a chain of keys reaches on the shared tier by binary search, because the beginning
 * of a chain is written first and deleted last. Pure: the caller probes the keys. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "key.h"

enum { SEARCH_KEYS = 4096 }; /* most keys of one search */

struct search {
        uint32_t n, low, high; /* keys before `low` are present; keys from `high` on are absent */
        unsigned probes;
        struct key *keys;
        uint64_t *hashes;
};

/* Starts a search over `n` keys, which it copies: the first and every stride-th after it. Returns 0
 * or -ENOMEM. */
int search_init(struct search *s, const struct key *keys, const uint64_t *hashes, uint32_t n,
                uint32_t stride);
void search_fini(struct search *s);
/* Stores the index of the key to probe next, at most log2(n) + 1 times. Returns false if the search
 * has ended and the first s->low keys are known to be present. */
bool search_next(const struct search *s, uint32_t *ret);
/* Reports whether the probed key is present. */
void search_answer(struct search *s, uint32_t key, bool there);

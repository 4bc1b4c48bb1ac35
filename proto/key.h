/* SPDX-License-Identifier: Apache-2.0 */
/* The name of a chunk: exactly 32 opaque bytes, usually an engine's hash chained over the whole
 * prefix. The all-zero key is the root: the parent of a chain's first chunk, and never the name of
 * a chunk. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { KEY_BYTES = 32, KEY_HEX_BYTES = 2 * KEY_BYTES };

struct key {
        uint8_t bytes[KEY_BYTES];
};

static inline bool key_equal(const struct key *a, const struct key *b)
{
        return memcmp(a->bytes, b->bytes, KEY_BYTES) == 0;
}

static inline bool key_is_root(const struct key *k)
{
        static const struct key root;

        return key_equal(k, &root);
}

/* A secret with which keys are hashed, so that a client that chooses keys cannot choose their hash
 * buckets. */
struct key_secret {
        uint64_t words[2];
};

/* Returns SipHash-1-3 over (namespace id, key). The tables of both tiers use this value, which is
 * computed once. */
uint64_t key_hash(const struct key_secret *secret, uint32_t namespace_id, const struct key *k);

/* Writes 64 lower-case hex digits and a NUL. */
void key_to_hex(const struct key *k, char ret_hex[static KEY_HEX_BYTES + 1]);
/* Parses exactly 64 hex digits of either case. Returns 0 or -EINVAL. */
int key_from_hex(const char *hex, struct key *ret);

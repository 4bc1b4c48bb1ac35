/* SPDX-License-Identifier: Apache-2.0 */
/* The lookup index, for both sides; see lookup.h. Owns nothing, allocates nothing. */
#include "lookup.h"

#include <string.h>

#include "checked.h"

enum { BLOCK = KEY_BYTES, TRIES = 8 };

/* Hashes the name in blocks of 32 bytes: two key_hash() of a block are the secret for the next
 * block. Each hash includes the name's length. */
void lookup_namespace_secret(const struct key_secret *table, const char *name, size_t length,
                             struct key_secret *ret)
{
        struct key_secret s = *table;

        for (size_t at = 0; at == 0 || at < length; at += BLOCK) {
                struct key block = { 0 };
                uint32_t step = (uint32_t)(2 * length + 1);

                memcpy(block.bytes, name + at, MIN(length - at, (size_t)BLOCK));
                s = (struct key_secret){ { key_hash(&s, step, &block),
                                           key_hash(&s, step + 1, &block) } };
        }
        *ret = s;
}

bool lookup_view_init(struct lookup_view *ret, const void *map, uint64_t bytes)
{
        struct lookup_header h;

        if (bytes < LOOKUP_HEADER_BYTES)
                return false;
        memcpy(&h, map, offsetof(struct lookup_header, state));
        if (h.magic != LOOKUP_MAGIC || h.version != LOOKUP_VERSION ||
            h.header_bytes != LOOKUP_HEADER_BYTES || h.bytes != bytes || h.n_buckets == 0 ||
            h.n_stash == 0 || h.n_stash > UINT32_MAX - h.n_buckets ||
            lookup_bytes(h.n_buckets, h.n_stash) != bytes)
                return false;
        *ret = (struct lookup_view){
                .header = map,
                .buckets = (const struct lookup_bucket *)((const char *)map + LOOKUP_HEADER_BYTES),
                .n_buckets = h.n_buckets,
                .n_stash = h.n_stash,
                .secret = h.secret,
        };
        return true;
}

/* The daemon moves a key between tiers by inserting the new word, incrementing the count of
 * removals, and then removing the old word. A reader that misses the old word therefore sees the
 * new count. If the count was already higher when the reader began, the reader sees the new
 * word. */
unsigned lookup_find_surely(const struct lookup_view *v, uint64_t hash, uint64_t removals)
{
        for (int i = 0; i < TRIES; i++) {
                unsigned found = lookup_find(v, hash);
                uint64_t now = lookup_removals(v);

                if (found != 0 || now == removals)
                        return found;
                removals = now;
        }
        return LOOKUP_UNKNOWN;
}

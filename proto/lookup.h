/* SPDX-License-Identifier: Apache-2.0 */
/* The lookup index says which keys of a tenant are in which tier. The index is memory that the
 * daemon writes and the tenant's clients read. README.md, section 5.4, specifies it; this header
 * has the structures and functions for both sides.
 *
 * The table is a header followed by buckets of sixteen words, one cache line each: `n_buckets` main
 * buckets, then `n_stash` buckets of the stash. A word represents a chunk in one tier: 29 bits of
 * its hash, which are its tag, and the tier. It is inserted and removed as a whole and never moved.
 * A word has two main buckets, and is in the first unless the second has more room. If both were
 * full, it is in one of two buckets of the stash; if these were full, too, it is not in the table.
 * A bucket that was ever full is marked for the lifetime of the table: a lookup that ends at marked
 * buckets has no definite answer.
 *
 * Words of different keys may be equal. Either of a key's buckets follows from the other one and
 * the tag, so that keys of one tag that share a bucket share both: whichever of their words a
 * removal takes, the other one remains where a lookup finds it. An absent key seems to be present
 * if its buckets have a word of its tag, which happens to one in 18 million.
 *
 * Every value that a reader gets here may be wrong, but all its accesses stay within the memory
 * that lookup_view_init() has checked. */
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "key.h"
#include "warm.h"

#define LOOKUP_MAGIC UINT64_C(0x31584449504b4f4c) /* "LOKPIDX1" */

enum {
        LOOKUP_VERSION = 2,
        LOOKUP_HEADER_BYTES = 4096,
        LOOKUP_WORDS = 16, /* words per bucket */
        LOOKUP_STASH_PART = 32,
        LOOKUP_STALE_MS = 3000, /* ms that the index's clock may be behind; if it is further behind,
                                   the daemon has stopped */
};

enum lookup_state {
        LOOKUP_BUILDING = 0, /* not visible to clients yet */
        LOOKUP_LIVE = 1,
        LOOKUP_SUPERSEDED = 2, /* no longer updated: a new index has replaced this one, or will */
};

struct lookup_header {
        uint64_t magic;           /*   0 */
        uint32_t version;         /*   8 */
        uint32_t header_bytes;    /*  12  offset of the first bucket */
        uint64_t bytes;           /*  16  size of the file */
        uint32_t n_buckets;       /*  24 */
        uint32_t n_stash;         /*  28 */
        struct key_secret secret; /*  32  secret of this table */
        uint64_t reserved[2];     /*  48 */
        uint64_t state;           /*  64  enum lookup_state; atomic, like clock_ms and removals */
        uint64_t clock_ms;        /*  72  CLOCK_MONOTONIC, written about once a second */
        uint64_t reserved_line[6];
        uint64_t removals; /* 128  incremented before a word is removed */
};
static_assert(offsetof(struct lookup_header, secret) == 32, "shared format");
static_assert(offsetof(struct lookup_header, state) == 64, "shared format");
static_assert(offsetof(struct lookup_header, removals) == 128, "shared format");

struct lookup_bucket {
        _Alignas(8) uint32_t words[LOOKUP_WORDS];
};
static_assert(sizeof(struct lookup_bucket) == 64, "shared format");

/* Bits of a word. The two lowest are enum wire_tier; if both are zero, there is no word. */
#define LOOKUP_TIER_BITS UINT32_C(3)
#define LOOKUP_OVERFLOW  UINT32_C(4) /* only in a bucket's first word: the bucket was ever full */
#define LOOKUP_TAG_BITS  (~UINT32_C(7))

/* Bit in the result of lookup_find(), in addition to the tiers: the key may be in further tiers. */
enum { LOOKUP_UNKNOWN = 1 << 2 };

/* Computes the secret with which a table hashes a namespace's keys. The secret is derived from
 * the namespace's name, so that clients need not know the number of the namespace in the store. */
void lookup_namespace_secret(const struct key_secret *table, const char *name, size_t length,
                             struct key_secret *ret);

static inline uint64_t lookup_hash(const struct key_secret *namespace_secret, const struct key *k)
{
        return key_hash(namespace_secret, 0, k);
}

/* --- positions of a word --- */

struct lookup_pair {
        uint32_t a, b;
};

static inline struct lookup_pair lookup_pair_of(uint64_t mixed, uint32_t n)
{
        return (struct lookup_pair){
                .a = (uint32_t)((mixed >> 32) * n >> 32),
                .b = (uint32_t)((mixed & UINT32_MAX) * n >> 32),
        };
}

/* Returns the tag of a hash, as it is in words. */
static inline uint32_t lookup_tag(uint64_t hash)
{
        return (uint32_t)hash & LOOKUP_TAG_BITS;
}

/* Returns the bucket, out of `n`, that forms a pair with bucket `a` for this tag. The function is
 * its own inverse: lookup_other() of the returned bucket is `a`. */
static inline uint32_t lookup_other(uint32_t a, uint32_t tag, uint32_t n)
{
        uint32_t sum = (uint32_t)((uint64_t)tag * n >> 32); /* a + b, modulo n */

        return sum >= a ? sum - a : sum + (n - a);
}

/* Returns the main buckets of a hash. */
static inline struct lookup_pair lookup_main(uint64_t hash, uint32_t n_buckets)
{
        uint32_t a = (uint32_t)((hash >> 32) * n_buckets >> 32);

        return (struct lookup_pair){ .a = a, .b = lookup_other(a, lookup_tag(hash), n_buckets) };
}

/* Returns the stash buckets of a hash, numbered after the main buckets. Hashes with the same tag
 * and the same main buckets, in any order, have the same ones. */
static inline struct lookup_pair lookup_stash(uint64_t hash, uint32_t n_buckets, uint32_t n_stash)
{
        struct lookup_pair p = lookup_main(hash, n_buckets);
        uint32_t tag = lookup_tag(hash), first = p.a < p.b ? p.a : p.b;
        uint64_t m = ((uint64_t)first << 32 | tag) * UINT64_C(0xd6e8feb86659fd93);

        p.a = (uint32_t)((m >> 32) * n_stash >> 32);
        p.b = lookup_other(p.a, tag, n_stash);
        return (struct lookup_pair){ .a = n_buckets + p.a, .b = n_buckets + p.b };
}

static inline uint64_t lookup_bytes(uint32_t n_buckets, uint32_t n_stash)
{
        return LOOKUP_HEADER_BYTES + ((uint64_t)n_buckets + n_stash) * sizeof(struct lookup_bucket);
}

/* --- lookups --- */

/* A reader's view of a table whose header it has checked. The members do not change. */
struct lookup_view {
        const struct lookup_header *header;
        const struct lookup_bucket *buckets;
        uint32_t n_buckets, n_stash;
        struct key_secret secret;
};

/* Checks the header of the table that is mapped at `map`, a file of `bytes` bytes. Initializes
 * `*ret`, or returns false if the header is malformed or does not fit the size. */
bool lookup_view_init(struct lookup_view *ret, const void *map, uint64_t bytes);

static inline uint64_t lookup_state(const struct lookup_view *v)
{
        return __atomic_load_n(&v->header->state, __ATOMIC_ACQUIRE);
}

static inline uint64_t lookup_clock_ms(const struct lookup_view *v)
{
        return __atomic_load_n(&v->header->clock_ms, __ATOMIC_RELAXED);
}

static inline uint64_t lookup_removals(const struct lookup_view *v)
{
        return __atomic_load_n(&v->header->removals, __ATOMIC_ACQUIRE);
}

static inline void lookup_warm_first(const struct lookup_view *v, uint64_t hash)
{
        warm(&v->buckets[lookup_main(hash, v->n_buckets).a]);
}

static inline void lookup_warm_second(const struct lookup_view *v, uint64_t hash)
{
        warm(&v->buckets[lookup_main(hash, v->n_buckets).b]);
}

/* Prefetches both stash buckets of a hash. */
static inline void lookup_warm_stash(const struct lookup_view *v, uint64_t hash)
{
        struct lookup_pair p = lookup_stash(hash, v->n_buckets, v->n_stash);

        warm(&v->buckets[p.a]);
        warm(&v->buckets[p.b]);
}

/* Compares the words 2 * i and 2 * i + 1, loaded at once, with `tag`. Returns the bits below the
 * tag of each word that has this tag, combined with OR; zero if neither has it. */
static inline uint32_t lookup_compare(const struct lookup_bucket *b, int i, uint32_t tag)
{
        uint64_t two = __atomic_load_n((const uint64_t *)b->words + i, __ATOMIC_ACQUIRE);
        uint32_t v = (uint32_t)two ^ tag, w = (uint32_t)(two >> 32) ^ tag;

        return (v <= ~LOOKUP_TAG_BITS ? v : 0) | (w <= ~LOOKUP_TAG_BITS ? w : 0);
}

/* Returns the tiers of the words with this hash in a bucket, and the bucket's overflow bit.
 * Unrolled and without branches, because the position of the word cannot be predicted. */
static inline unsigned lookup_scan(const struct lookup_bucket *b, uint64_t hash)
{
        uint32_t tag = lookup_tag(hash);
        uint32_t first = __atomic_load_n(&b->words[0], __ATOMIC_ACQUIRE);
        uint32_t low = lookup_compare(b, 0, tag) | lookup_compare(b, 1, tag);
        uint32_t high = lookup_compare(b, 4, tag) | lookup_compare(b, 5, tag);

        static_assert(LOOKUP_WORDS == 16, "each of them once");
        low |= lookup_compare(b, 2, tag) | lookup_compare(b, 3, tag);
        high |= lookup_compare(b, 6, tag) | lookup_compare(b, 7, tag);
        return ((low | high) & LOOKUP_TIER_BITS) | (first & LOOKUP_OVERFLOW);
}

/* Returns whether the first bucket, where most words are, has a word with this hash. */
static inline bool lookup_is_in_first(const struct lookup_view *v, uint64_t hash)
{
        return lookup_scan(&v->buckets[lookup_main(hash, v->n_buckets).a], hash) & LOOKUP_TIER_BITS;
}

/* Returns whether the second bucket has a word with this hash. */
static inline bool lookup_is_in_second(const struct lookup_view *v, uint64_t hash)
{
        return lookup_scan(&v->buckets[lookup_main(hash, v->n_buckets).b], hash) & LOOKUP_TIER_BITS;
}

/* Returns the tiers of a key as enum wire_tier bits, and LOOKUP_UNKNOWN if all four buckets of the
 * key were ever full. A key that moves between tiers meanwhile may seem to be in neither; a key is
 * certainly absent only if lookup_removals() has not changed since before the call. */
static inline unsigned lookup_find(const struct lookup_view *v, uint64_t hash)
{
        struct lookup_pair p = lookup_main(hash, v->n_buckets);
        unsigned a = lookup_scan(&v->buckets[p.a], hash), b = lookup_scan(&v->buckets[p.b], hash);
        unsigned tiers = (a | b) & LOOKUP_TIER_BITS;

        if (__builtin_expect(!(a & b & LOOKUP_OVERFLOW), 1))
                return tiers;
        p = lookup_stash(hash, v->n_buckets, v->n_stash);
        a = lookup_scan(&v->buckets[p.a], hash);
        b = lookup_scan(&v->buckets[p.b], hash);
        tiers |= (a | b) & LOOKUP_TIER_BITS;
        return a & b & LOOKUP_OVERFLOW ? tiers | LOOKUP_UNKNOWN : tiers;
}

/* Returns the tiers as lookup_find() does, and repeats the lookup until an absent key is certain.
 * Returns LOOKUP_UNKNOWN if the table changes too fast for that. `removals`: lookup_removals()
 * before the first lookup of this key. */
unsigned lookup_find_surely(const struct lookup_view *v, uint64_t hash, uint64_t removals);

/* SPDX-License-Identifier: Apache-2.0 */
/* The pool index: where the chunks of a tenant's pool are, in memory that the daemon writes and the
 * tenant's clients read, and the page by which a client holds chunks there. With both a client gets
 * a chunk that is in memory without a message. README.md, section 5.7, is its specification; this
 * is its C side.
 *
 * The index is a header, buckets of eight words, a cache line each, and one record for each chunk
 * that the pool can have, a cache line each. A word is the upper half of a key's hash and the
 * number of a record; it is in one of two buckets. What found no place is not there: a client that
 * does not find a key asks the daemon.
 *
 * Holding is a hazard pointer. The client writes the record's number and the chunk's length into
 * its page, issues a fence, and only then looks whether the record still has the key. The daemon
 * takes a record back by making its serial even, issues a fence, and then looks for it in all
 * clients' pages. So at least one of both sees the other: a chunk that a client has found after
 * holding it stays where it is until the client releases it. Where a record's hold may stand is
 * given by its number, so that to look for one is two cache lines of each client.
 *
 * Neither side trusts the other. The client copies the header once and checks it; the daemon takes
 * what is in a page for numbers that may be wrong. */
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "key.h"
#include "lookup.h"
#include "warm.h"

#define POOL_INDEX_MAGIC UINT64_C(0x3158444950564b4c) /* "LKVPIDX1" */

enum {
        POOL_INDEX_VERSION = 1,
        POOL_INDEX_HEADER_BYTES = 4096,
        POOL_INDEX_WORDS = 8, /* of a bucket */

        POOL_PAGE_NAMESPACES = 256,
        POOL_PAGE_BUCKETS = 1024,
        POOL_PAGE_WAYS = 8, /* holds of a bucket */
        POOL_PAGE_HOLDS = POOL_PAGE_BUCKETS * POOL_PAGE_WAYS,
        POOL_PAGE_RING = 8192, /* words; a power of two */
};

struct pool_index_header {
        uint64_t magic;           /*   0 */
        uint32_t version;         /*   8 */
        uint32_t header_bytes;    /*  12  where the buckets begin */
        uint64_t bytes;           /*  16  of the file */
        uint32_t n_buckets;       /*  24 */
        uint32_t n_records;       /*  28 */
        struct key_secret secret; /*  32 */
        uint64_t reserved[2];     /*  48 */
        uint64_t state;           /*  64  enum lookup_state; atomic */
        uint64_t reserved_line[7];
};
static_assert(offsetof(struct pool_index_header, secret) == 32, "shared format");
static_assert(sizeof(struct pool_index_header) == 128, "shared format");

struct pool_index_bucket {
        uint64_t words[POOL_INDEX_WORDS];
};
static_assert(sizeof(struct pool_index_bucket) == 64, "shared format");

/* A sequence lock: what was read of it is of one chunk, and that is there, if `serial` was odd
 * before and is the same after. */
struct pool_index_record {
        struct key key;      /*  0 */
        uint64_t tag;        /* 32  of its namespace */
        uint64_t offset;     /* 40  of its bytes, in the pool */
        uint32_t length;     /* 48 */
        uint32_t generation; /* 52  of this chunk among those that had this record */
        uint32_t serial;     /* 56  odd: the chunk is there; atomic */
        uint32_t reserved;   /* 60 */
};
static_assert(sizeof(struct pool_index_record) == 64, "shared format");

/* What a client got by itself, by namespace: the numbers only grow. */
struct pool_page_count {
        uint64_t keys;         /*  0 */
        uint64_t mapped_bytes; /*  8  of those that it read in the pool */
        uint64_t copied_bytes; /* 16  of those that it copied to its own memory */
        uint64_t untold;       /* 24  keys of these that found no room in the ring */
};
static_assert(sizeof(struct pool_page_count) == 32, "shared format");

/* A client's page, which both write: `taken`, `allowance` and `tags` the daemon, the rest the
 * client. All are atomic. */
struct pool_page {
        uint64_t written; /*     0  words of the ring that were ever written */
        uint64_t reserved0[7];
        uint64_t taken;     /*    64  words of the ring that were ever read */
        uint64_t allowance; /*    72  bytes that may be held at a time, by pool_page_held() */
        uint64_t reserved1[6];
        uint64_t tags[POOL_PAGE_NAMESPACES];   /*   128  of the session's namespaces, by number less
                                                  one; 0: the daemon is to be asked */
        uint64_t used[POOL_PAGE_BUCKETS / 64]; /*  2176  by bit: the bucket may have holds; where
                                                  it is not set, nothing is held */
        uint64_t reserved2[224];
        struct pool_page_count counts[POOL_PAGE_NAMESPACES]; /*  4096  likewise */
        uint64_t holds[POOL_PAGE_BUCKETS][POOL_PAGE_WAYS];   /* 12288  pool_page_hold(); 0: free */
        uint64_t ring[POOL_PAGE_RING]; /* 77824  requests: pool_page_touches(), then so many times
                                          pool_page_touch() */
};
static_assert(offsetof(struct pool_page, taken) == 64, "shared format");
static_assert(offsetof(struct pool_page, tags) == 128, "shared format");
static_assert(offsetof(struct pool_page, used) == 2176, "shared format");
static_assert(offsetof(struct pool_page, counts) == 4096, "shared format");
static_assert(offsetof(struct pool_page, holds) == 12288, "shared format");
static_assert(offsetof(struct pool_page, ring) == 77824, "shared format");
enum { POOL_PAGE_BYTES = sizeof(struct pool_page), POOL_MAX_TOUCHES = 1024 };
static_assert(POOL_PAGE_BYTES % 4096 == 0, "shared format");

static inline uint64_t pool_page_touches(uint32_t n)
{
        return ~(uint64_t)UINT32_MAX | n;
}

static inline uint64_t pool_page_touch(uint32_t record, uint32_t generation)
{
        return (uint64_t)record << 32 | generation;
}

static inline uint64_t pool_page_hold(uint32_t record, uint32_t length)
{
        return ((uint64_t)record + 1) << 32 | length;
}

/* What it counts for: no chunk takes less of the pool. */
static inline uint64_t pool_page_held(uint32_t length)
{
        return ((uint64_t)length + 4095) & ~UINT64_C(4095);
}

static inline uint32_t pool_page_bucket(uint32_t record)
{
        return record % POOL_PAGE_BUCKETS;
}

/* The protocol's fences. gcc's ThreadSanitizer has none, and gcc refuses them with it; what they
 * are between is two processes, of which it sees one. */
#if defined(__SANITIZE_THREAD__)
#define POOL_INDEX_FENCE(order) __sync_synchronize()
#else
#define POOL_INDEX_FENCE(order) __atomic_thread_fence(order)
#endif

/* --- where a word may be --- */

/* What the keys of a namespace are hashed with, by key_hash() as those of namespace 0. */
static inline struct key_secret pool_index_secret(const struct key_secret *secret, uint64_t tag)
{
        return (struct key_secret){ { secret->words[0] ^ tag, secret->words[1] } };
}

static inline uint64_t pool_index_hash(const struct key_secret *secret, uint64_t tag,
                                       const struct key *k)
{
        struct key_secret s = pool_index_secret(secret, tag);

        return key_hash(&s, 0, k);
}

static inline struct lookup_pair pool_index_places(uint64_t hash, uint32_t n_buckets)
{
        uint64_t m = hash * UINT64_C(0x9e3779b97f4a7c15);

        return lookup_pair_of(m ^ m >> 32, n_buckets);
}

static inline uint64_t pool_index_word(uint64_t hash, uint32_t record)
{
        return (hash & ~(uint64_t)UINT32_MAX) | (record + UINT32_C(1));
}

static inline uint64_t pool_index_bytes(uint32_t n_buckets, uint32_t n_records)
{
        return POOL_INDEX_HEADER_BYTES + (uint64_t)n_buckets * sizeof(struct pool_index_bucket) +
               (uint64_t)n_records * sizeof(struct pool_index_record);
}

/* --- looking --- */

/* An index as a reader has checked it: nothing of it changes under him. */
struct pool_index_view {
        const struct pool_index_header *header;
        const struct pool_index_bucket *buckets;
        const struct pool_index_record *records;
        uint32_t n_buckets, n_records;
        struct key_secret secret;
};

/* `map`: the whole file, `bytes` long. False: it is malformed. */
bool pool_index_view_init(struct pool_index_view *ret, const void *map, uint64_t bytes);

static inline bool pool_index_is_live(const struct pool_index_view *v)
{
        return __atomic_load_n(&v->header->state, __ATOMIC_ACQUIRE) == LOOKUP_LIVE;
}

/* The first of its buckets, where most are. */
static inline void pool_index_warm_first(const struct pool_index_view *v, uint64_t hash)
{
        warm(&v->buckets[pool_index_places(hash, v->n_buckets).a]);
}

static inline void pool_index_warm_second(const struct pool_index_view *v, uint64_t hash)
{
        warm(&v->buckets[pool_index_places(hash, v->n_buckets).b]);
}

/* What a record says, at one moment. False: of no chunk, or not of this key. */
struct pool_index_entry {
        uint64_t offset;
        uint32_t length, generation;
};
bool pool_index_read(const struct pool_index_record *r, uint64_t tag, const struct key *k,
                     struct pool_index_entry *ret);

#define POOL_INDEX_NONE UINT32_MAX
/* The number of a record that may have a key with this hash: that of the word `*at` of its two
 * buckets, 0 to begin with, or of one behind it; `*at` then is the one behind what was found. With
 * `first_only`, not beyond the first bucket, if `*at` is in it. POOL_INDEX_NONE: there are no more,
 * and `*at` is the first word that was not looked at. */
uint32_t pool_index_find(const struct pool_index_view *v, uint64_t hash, bool first_only,
                         unsigned *at);

/* SPDX-License-Identifier: Apache-2.0 */
/* The pool index: the positions of the chunks in a tenant's pool, in memory that the daemon writes
 * and the tenant's clients read, and the page through which a client holds chunks there. With both,
 * a client gets a chunk in memory without a message. README.md, section 5.7, specifies both; this
 * header has the structures and functions for both sides.
 *
 * The index consists of a header, buckets of eight words, and one record for each chunk that the
 * pool can have; buckets and records are a cache line each. A word has the upper half of a key's
 * hash and the number of a record, and is in one of two buckets. A chunk whose buckets are full is
 * not in the index: a client that does not find a key asks the daemon.
 *
 * A hold is a hazard pointer. The client writes the record's number and the chunk's length into its
 * page, issues a fence, and then checks that the record still has the key. To reclaim a record, the
 * daemon makes its serial even, issues a fence, and then searches all clients' pages for it. At
 * least one of them sees the other's write, so a chunk that a client has found after holding it
 * stays in place until the client releases it. The number of a record determines where its hold may
 * be, so that the daemon reads only two cache lines of each client's page.
 *
 * Neither side trusts the other. The client copies the header once and checks it; the daemon
 * treats the contents of a page as numbers that may be wrong. */
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
        POOL_INDEX_WORDS = 8, /* words per bucket */

        POOL_PAGE_NAMESPACES = 256,
        POOL_PAGE_BUCKETS = 1024,
        POOL_PAGE_WAYS = 8, /* holds per bucket */
        POOL_PAGE_HOLDS = POOL_PAGE_BUCKETS * POOL_PAGE_WAYS,
        POOL_PAGE_RING = 8192, /* words in the ring; a power of two */
};

struct pool_index_header {
        uint64_t magic;           /*   0 */
        uint32_t version;         /*   8 */
        uint32_t header_bytes;    /*  12  offset of the first bucket */
        uint64_t bytes;           /*  16  size of the file */
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

/* The record of a chunk, which `serial` protects as a sequence lock: a reader's copy of the
 * record is valid if `serial` was odd before the copy and is unchanged after it. */
struct pool_index_record {
        struct key key;      /*  0 */
        uint64_t tag;        /* 32  number that the daemon chose for the key's namespace */
        uint64_t offset;     /* 40  offset of its bytes in the pool */
        uint32_t length;     /* 48 */
        uint32_t generation; /* 52  distinguishes successive chunks of this record */
        uint32_t serial;     /* 56  odd: the chunk is in the pool; atomic */
        uint32_t reserved;   /* 60 */
};
static_assert(sizeof(struct pool_index_record) == 64, "shared format");

/* Counters of gets that a client served itself, per namespace. They only grow. */
struct pool_page_count {
        uint64_t keys;         /*  0 */
        uint64_t mapped_bytes; /*  8  bytes that the client read in the pool */
        uint64_t copied_bytes; /* 16  bytes that the client copied to its own memory */
        uint64_t untold;       /* 24 keys of gets that did not fit into the ring */
};
static_assert(sizeof(struct pool_page_count) == 32, "shared format");

/* A client's page. The daemon writes `taken`, `allowance` and `tags`, the client everything else.
 * All stores are atomic, and so are all reads of words that the other side writes. */
struct pool_page {
        uint64_t written; /*     0  number of words ever written to the ring */
        uint64_t reserved0[7];
        uint64_t taken;     /*    64  number of words ever read from the ring */
        uint64_t allowance; /*    72  bytes that may be held at a time, as counted by
                               pool_page_held() */
        uint64_t reserved1[6];
        uint64_t tags[POOL_PAGE_NAMESPACES]; /*   128  indexed by the number of a namespace of the
                                                session, minus one: the tag in the records of its
                                                keys; 0: ask the daemon */
        uint64_t used[POOL_PAGE_BUCKETS /
                      64]; /*  2176  bit per bucket: it may have holds; 0: it has none */
        uint64_t reserved2[224];
        struct pool_page_count counts[POOL_PAGE_NAMESPACES]; /*  4096  indexed as `tags` */
        uint64_t holds[POOL_PAGE_BUCKETS][POOL_PAGE_WAYS];   /* 12288  pool_page_hold(); 0: free */
        uint64_t ring[POOL_PAGE_RING]; /* 77824 uses, for recency: for a request of n keys
                                          pool_page_touches(n), then n words of pool_page_touch() */
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

/* Returns the bytes that a hold counts for: the length rounded up to 4,096 bytes, the least that a
 * chunk takes of the pool. */
static inline uint64_t pool_page_held(uint32_t length)
{
        return ((uint64_t)length + 4095) & ~UINT64_C(4095);
}

static inline uint32_t pool_page_bucket(uint32_t record)
{
        return record % POOL_PAGE_BUCKETS;
}

/* The fences of the protocol. With ThreadSanitizer, for which gcc rejects __atomic_thread_fence(),
 * a full barrier replaces each of them. */
#if defined(__SANITIZE_THREAD__)
#define POOL_INDEX_FENCE(order) __sync_synchronize()
#else
#define POOL_INDEX_FENCE(order) __atomic_thread_fence(order)
#endif

/* --- hashes of keys, and positions of words --- */

/* Returns the secret with which key_hash() hashes the keys of the namespace with this tag. The
 * namespace id that it also hashes is 0. */
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

/* --- lookups --- */

/* A reader's view of an index whose header it has checked. The members do not change. */
struct pool_index_view {
        const struct pool_index_header *header;
        const struct pool_index_bucket *buckets;
        const struct pool_index_record *records;
        uint32_t n_buckets, n_records;
        struct key_secret secret;
};

/* Checks the header of the index that is mapped at `map`, a file of `bytes` bytes. Initializes
 * `*ret`, or returns false if the header is malformed or does not fit the size. */
bool pool_index_view_init(struct pool_index_view *ret, const void *map, uint64_t bytes);

static inline bool pool_index_is_live(const struct pool_index_view *v)
{
        return __atomic_load_n(&v->header->state, __ATOMIC_ACQUIRE) == LOOKUP_LIVE;
}

/* Prefetches the first bucket, where most words are. */
static inline void pool_index_warm_first(const struct pool_index_view *v, uint64_t hash)
{
        warm(&v->buckets[pool_index_places(hash, v->n_buckets).a]);
}

static inline void pool_index_warm_second(const struct pool_index_view *v, uint64_t hash)
{
        warm(&v->buckets[pool_index_places(hash, v->n_buckets).b]);
}

/* A consistent copy of a record. pool_index_read() returns false if the record has no chunk, has
 * another key, or changed meanwhile; `*ret` is then undefined. */
struct pool_index_entry {
        uint64_t offset;
        uint32_t length, generation;
};
bool pool_index_read(const struct pool_index_record *r, uint64_t tag, const struct key *k,
                     struct pool_index_entry *ret);

#define POOL_INDEX_NONE UINT32_MAX
/* Searches the two buckets of a hash for records that may have the key. The search begins at word
 * `*at`, 0 for the first call, and sets `*at` to the word after the match. With `first_only` it
 * stops at the end of the first bucket, if `*at` lies there. Returns a record number, or
 * POOL_INDEX_NONE after the last, with `*at` at the first word that was not searched. */
uint32_t pool_index_find(const struct pool_index_view *v, uint64_t hash, bool first_only,
                         unsigned *at);

/* SPDX-License-Identifier: Apache-2.0 */
/* The map of the memory that a daemon hands on to its successor: what lies where in each pool, and
 * which slots clients of the old one may still read.
 *
 * The index, of one CRC: a head; the pools, each with the slot size of each of its slabs; the
 * holders, each with its slots; the credentials of the clients that were given each pool. A map
 * whose index does not match it is of no use. Behind it the chunks, pool by pool, the one that was
 * used last at the end: each has a CRC of its own, of the map's number, too, and one that does not
 * match it costs itself alone.
 *
 * It is of this host: numbers are as the machine has them. */
#pragma once

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "evict/evict.h"
#include "key.h"

enum {
        KEEP_VERSION = 2,
        KEEP_MAX_POOLS = 64,
        KEEP_MAX_HOLDERS = 4000, /* the unit's FileDescriptorStoreMax= has room for them */
        KEEP_MAX_READERS = 1024, /* recorded for each pool */
        KEEP_MAX_GROUPS = 64,
        KEEP_NUMBER_BYTES = 16,
        KEEP_NAME_BYTES = 64, /* of pools: a tenant's; of holders: a descriptor's. With its NUL */
};

struct keep_head {
        char magic[8];
        uint32_t version;
        uint32_t crc;                      /* CRC32C of what follows, up to index_bytes */
        uint64_t bytes;                    /* of the map */
        uint64_t index_bytes;              /* the chunks begin there */
        uint8_t number[KEEP_NUMBER_BYTES]; /* random: the store has the same */
        uint64_t saved_ms;                 /* Unix time */
        uint32_t n_pools, n_holders;
        uint64_t rights; /* digest of the access rights under which the pools were handed out */
        uint32_t n_readers;
        uint32_t reserved;
};
static_assert(sizeof(struct keep_head) == 80, "map format");

enum { KEEP_POOL_MANY_READERS = 1 };

struct keep_pool {
        char name[KEEP_NAME_BYTES];  /* of the tenant */
        char files[KEEP_NAME_BYTES]; /* its descriptors are named so, with -rw and -ro */
        char policy[8];              /* of the records */
        uint64_t bytes, slab_bytes;
        uint64_t inode;
        uint64_t n_chunks;
        uint32_t n_slabs;      /* that were open */
        uint32_t flags;        /* KEEP_POOL_MANY_READERS: not all of its readers are recorded */
        uint32_t slot_bytes[]; /* of each; 0: not cut. An even number of them is written */
};
static_assert(sizeof(struct keep_pool) == 176, "map format");

struct keep_slot {
        uint32_t slab, slot;
};

struct keep_holder {
        char name[KEEP_NAME_BYTES]; /* of the socket whose end is to be waited for */
        uint32_t pool;              /* by position */
        uint32_t n_slots;
        struct keep_slot slots[];
};
static_assert(sizeof(struct keep_holder) == 72, "map format");

/* The credentials of a client that was given the pool, and may have it mapped still. */
struct keep_reader {
        uint32_t pool; /* by position */
        uint32_t uid, gid;
        uint32_t n_groups;
        uint32_t groups[KEEP_MAX_GROUPS];
};
static_assert(sizeof(struct keep_reader) == 272, "map format");

struct keep_chunk {
        struct key key;
        uint64_t created_ms; /* when it was put, Unix time */
        uint32_t namespace_id, length;
        uint32_t payload_crc;
        uint32_t slab, slot;
        uint32_t flags; /* KEEP_STORED, KEEP_REFUSED */
        uint32_t user;  /* of one that is KEEP_REFUSED */
        uint32_t crc;   /* CRC32C of all else, of its position and of the map's number */
        struct evict_record record;
};
static_assert(sizeof(struct keep_chunk) == 88, "map format");

enum { KEEP_STORED = 1, KEEP_REFUSED = 2 };

struct keep_map {
        const struct keep_head *head;
        const struct keep_pool *pools[KEEP_MAX_POOLS];
        const struct keep_chunk *chunks[KEEP_MAX_POOLS]; /* of each: n_chunks */
        const struct keep_holder *holders[KEEP_MAX_HOLDERS];
        const struct keep_reader *readers; /* n_readers */
};

static inline size_t keep_pool_bytes(uint32_t n_slabs)
{
        return sizeof(struct keep_pool) + ((size_t)n_slabs + n_slabs % 2) * sizeof(uint32_t);
}

static inline size_t keep_holder_bytes(uint32_t n_slots)
{
        return sizeof(struct keep_holder) + (size_t)n_slots * sizeof(struct keep_slot);
}

/* Magic, version, bytes and CRC of a map that is complete otherwise. */
void keep_seal(struct keep_head *map, size_t bytes, size_t index_bytes);
/* NULL: it is one, and *ret is where its parts are. Else what is wrong with it. `map`: aligned to
 * 8. */
const char *keep_check(const void *map, size_t bytes, struct keep_map *ret);

/* `position`: of all pools' chunks together. */
uint32_t keep_chunk_crc(const struct keep_head *head, const struct keep_chunk *chunk,
                        uint64_t position);

/* SPDX-License-Identifier: Apache-2.0 */
/* The format of the map that a daemon leaves for its successor: the layout of each pool, and the
 * slots that clients of the old daemon may still read.
 *
 * The index has one CRC. It consists of a head; the pools, each with the slot size of each of its
 * slabs; the holders, each with its slots; and the credentials of the clients that received each
 * pool. A map whose index does not match its CRC is not used. The chunks follow, pool by pool, in
 * order of their last use, the latest at the end. Each chunk has a CRC of its own, which includes
 * the map's number; a chunk that does not match its CRC is skipped alone.
 *
 * The map is valid on this host only: numbers have the machine's byte order. */
#pragma once

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "evict/evict.h"
#include "key.h"

enum {
        KEEP_VERSION = 3,
        KEEP_MAX_POOLS = 64,
        KEEP_MAX_HOLDERS = 4000, /* most clients' sockets in a map; the unit's
                                  * FileDescriptorStoreMax= allows for them */
        KEEP_MAX_READERS = 1024, /* most clients of one pool whose credentials are recorded */
        KEEP_MAX_GROUPS = 64,
        KEEP_NUMBER_BYTES = 16,
        KEEP_NAME_BYTES = 64, /* name of a pool's tenant or of a holder's descriptor, with a NUL */
};

struct keep_head {
        char magic[8];
        uint32_t version;
        uint32_t crc;                      /* CRC32C of the following bytes, up to index_bytes */
        uint64_t bytes;                    /* bytes of the whole map */
        uint64_t index_bytes;              /* length of the index; the chunks follow it */
        uint8_t number[KEEP_NUMBER_BYTES]; /* random number of the map; a file in the store's folder
                                            * has a copy, see keep_number_put() */
        uint64_t saved_ms;                 /* Unix time at which the map was written, in ms */
        uint32_t n_pools, n_holders;
        uint64_t rights; /* digest of the access rights under which the pools were handed out */
        uint32_t n_readers;
        uint32_t reserved;
};
static_assert(sizeof(struct keep_head) == 80, "map format");

enum { KEEP_POOL_MANY_READERS = 1 };

struct keep_pool {
        char name[KEEP_NAME_BYTES];  /* name of the tenant */
        char files[KEEP_NAME_BYTES]; /* prefix of the names of its descriptors, which end in -rw and
                                      * -ro */
        char policy[8];              /* eviction policy that wrote the chunks' records */
        uint64_t bytes, slab_bytes;
        uint64_t inode;
        uint64_t n_chunks;
        uint32_t n_slabs;      /* number of open slabs */
        uint32_t flags;        /* KEEP_POOL_MANY_READERS: not all clients that received the pool are
                                * recorded */
        uint32_t slot_bytes[]; /* slot size of each slab, 0 if it is not cut; padded to an even
                                  number */
};
static_assert(sizeof(struct keep_pool) == 176, "map format");

struct keep_slot {
        uint32_t slab, slot;
};

struct keep_holder {
        char name[KEEP_NAME_BYTES]; /* name of the descriptor of the client's socket */
        uint32_t pool;              /* position of the pool in the map */
        uint32_t n_slots;
        struct keep_slot slots[];
};
static_assert(sizeof(struct keep_holder) == 72, "map format");

/* The credentials of a client that received the pool, and may still have it mapped. */
struct keep_reader {
        uint32_t pool; /* position of the pool in the map */
        uint32_t uid, gid;
        uint32_t n_groups;
        uint32_t groups[KEEP_MAX_GROUPS];
};
static_assert(sizeof(struct keep_reader) == 272, "map format");

struct keep_chunk {
        struct key key;
        uint64_t created_ms; /* Unix time of the put in ms */
        uint32_t namespace_id, length;
        uint32_t payload_crc;
        uint32_t slab, slot;
        uint32_t flags; /* KEEP_STORED: POOL_STORED was set; KEEP_REFUSED: POOL_REFUSED was set
                         * (cache/pool.h) */
        uint32_t user;  /* uid of the user of a KEEP_REFUSED chunk */
        uint32_t crc;   /* CRC32C of the other fields, the chunk's position and the map's number */
        struct evict_record record;
};
static_assert(sizeof(struct keep_chunk) == 96, "map format");

enum { KEEP_STORED = 1, KEEP_REFUSED = 2 };

struct keep_map {
        const struct keep_head *head;
        const struct keep_pool *pools[KEEP_MAX_POOLS];
        const struct keep_chunk *chunks[KEEP_MAX_POOLS]; /* n_chunks of each pool, in order of last
                                                          * use */
        const struct keep_holder *holders[KEEP_MAX_HOLDERS];
        const struct keep_reader *readers; /* array of n_readers elements */
};

static inline size_t keep_pool_bytes(uint32_t n_slabs)
{
        return sizeof(struct keep_pool) + ((size_t)n_slabs + n_slabs % 2) * sizeof(uint32_t);
}

static inline size_t keep_holder_bytes(uint32_t n_slots)
{
        return sizeof(struct keep_holder) + (size_t)n_slots * sizeof(struct keep_slot);
}

/* Fills in magic, version, lengths and CRC of a map that is complete otherwise. */
void keep_seal(struct keep_head *map, size_t bytes, size_t index_bytes);
/* Checks a map, which must be aligned to 8 bytes. Returns NULL and fills in *ret if it is valid,
 * and otherwise a text that describes the error. */
const char *keep_check(const void *map, size_t bytes, struct keep_map *ret);

/* Computes a chunk's CRC. `position` is the chunk's index among the chunks of all pools in the
 * map. */
uint32_t keep_chunk_crc(const struct keep_head *head, const struct keep_chunk *chunk,
                        uint64_t position);

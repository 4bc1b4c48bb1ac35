/* SPDX-License-Identifier: Apache-2.0 */
/* The index from keys to the locations of chunks, in memory: one array of chunk records, and a hash
 * table of their numbers.
 *
 * A record has a number below a bound that is given at startup. The same number names the chunk in
 * the eviction order, in the table's pages and as the owner of its slot. A number may be reused;
 * the sequence of the put then shows that the record belongs to another chunk. Address space is
 * reserved at startup, and memory is allocated as records are used: 60 bytes for each record, and 5
 * bytes of the hash table for each linked one.
 *
 * A record holds nothing that can be derived: the hash is computed from the key, the tenant is that
 * of the slab, and the table finds the entry's page in the ring. In place of a 32-bit namespace id
 * the record has a shorter number, which the index assigns to each id with linked chunks. */
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "key.h"
#include "warm.h"

#define INDEX_NONE    UINT32_MAX /* returned if there is no record */
#define INDEX_NO_SLAB 0x7fffu

enum chunk_flags {
        CHUNK_USED = 1,      /* the record is in use */
        CHUNK_LINKED = 2,    /* the record is in the hash table, so index_find() returns it */
        CHUNK_PENDING = 4,   /* the chunk's put is in flight; a second put of the key finds the
                                record, and a get does not */
        CHUNK_DISPLACED = 8, /* the chunk's placement is another volume of the store */
};

enum {
        CHUNK_SEQ_BITS = 52,
        CHUNK_PINS_BITS = 11,
        CHUNK_CREATED_BITS = 43, /* Unix time in milliseconds, up to the year 2248 */
        CHUNK_SLOT_BITS = 24,    /* enough bits to number all slots of 4 KiB in CHUNK_FILE_BYTES */
        CHUNK_LENGTH_BITS = 27, /* enough bits for lengths below 128 MiB, twice the largest chunk */
        CHUNK_NAME_BITS = 13,   /* enough bits to number twice STORE_MAX_NAMESPACES */
};
#define CHUNK_SEQ_MAX     ((UINT64_C(1) << CHUNK_SEQ_BITS) - 1)
#define CHUNK_PINS_MAX    ((1u << CHUNK_PINS_BITS) - 1)
#define CHUNK_CREATED_MAX ((UINT64_C(1) << CHUNK_CREATED_BITS) - 1)
#define CHUNK_SLOTS_MAX   (1u << CHUNK_SLOT_BITS)
#define CHUNK_LENGTH_MAX  ((1u << CHUNK_LENGTH_BITS) - 1)
/* The part of a data file, in bytes, that can hold chunks: 64 GiB, the largest value of
 * store.segment. */
#define CHUNK_FILE_BYTES (UINT64_C(4096) * CHUNK_SLOTS_MAX)

/* A record of the index. Packed, because its 60 bytes are no multiple of the alignment of a 64-bit
 * word. */
struct chunk {
        struct key key; /* in a free record: the number of the next free record plus one */
        uint64_t seq : CHUNK_SEQ_BITS;   /* sequence of the put; higher than that of any tombstone
                                            that was queued for the key during the put */
        uint64_t pins : CHUNK_PINS_BITS; /* references by I/O and loans: while there are any, the
                                            chunk is not evicted and its slot is not reused */
        uint64_t reading : 1; /* a store_get() is among the references; see volume_is_reading() */
        uint64_t created_ms : CHUNK_CREATED_BITS; /* Unix time of the put */
        uint64_t own : 1;      /* this process wrote the chunk, from its own memory and not from a
                                  client's */
        uint64_t slab : 15;    /* slab, which is also the segment, of the slot; INDEX_NO_SLAB if the
                                  chunk has no slot */
        uint64_t flags : 4;    /* enum chunk_flags */
        uint64_t verified : 1; /* this process has read the chunk from the disk, and its checksum
                                  matched */
        uint64_t slot : CHUNK_SLOT_BITS;     /* number of the slot in its slab */
        uint64_t length : CHUNK_LENGTH_BITS; /* payload in bytes */
        uint64_t name : CHUNK_NAME_BITS;     /* number of the namespace of a linked record; see
                                                index_namespace_of() */
        uint32_t crc;
} __attribute__((packed, aligned(4)));
static_assert(sizeof(struct chunk) == 60, "the documented memory a chunk");

struct index;

/* Creates an index of up to `max_chunks` records. `hash` must compute from a namespace and key the
 * same hash that callers pass to the functions below. Returns 0 or -ENOMEM. */
int index_new(struct index **ret, uint32_t max_chunks,
              uint64_t (*hash)(const void *userdata, uint32_t namespace_id, const struct key *key),
              const void *userdata);
struct index *index_free(struct index *ix);

/* Returns a record that is used, not linked, without a slot and otherwise zero; INDEX_NONE if all
 * are used. */
uint32_t index_acquire(struct index *ix);
/* Enlarges the hash table for `chunks` records in one step. No effect if any record is linked. */
void index_reserve(struct index *ix, uint32_t chunks);
/* Populates the memory of the records [from, to). Any thread, also while others use the records. */
void index_populate(const struct index *ix, uint32_t from, uint32_t to);
/* Frees the memory of records that have not been used since startup or index_reset(). */
void index_unpopulate(const struct index *ix);
/* Sets whether index_acquire() populates memory ahead of the records in use, which is the default.
 * Recovery turns this off and calls index_populate() instead. */
void index_populate_ahead(struct index *ix, bool on);
/* Makes record 0 the next one to be acquired. No record may be used, and no caller may keep a
 * record's number. */
void index_reset(struct index *ix);
/* Frees a record, which must not be linked. */
void index_release(struct index *ix, uint32_t i);
/* Makes a record visible to index_find() under its key and this namespace, under which no other
 * record may be linked. The linked records may be of INDEX_NAMESPACES namespaces at most. */
enum { INDEX_NAMESPACES = (1 << CHUNK_NAME_BITS) - 1 };
void index_link(struct index *ix, uint32_t i, uint32_t namespace_id, uint64_t hash);
/* Removes a record from the hash table. The record no longer has a namespace. */
void index_unlink(struct index *ix, uint32_t i);
/* Returns the namespace of a linked record. */
uint32_t index_namespace_of(const struct index *ix, const struct chunk *c);

/* Returns the linked record of this key and namespace, or INDEX_NONE. */
uint32_t index_find(const struct index *ix, uint32_t namespace_id, const struct key *key,
                    uint64_t hash);
/* Returns a linked record with this 64-bit hash, or INDEX_NONE. Does not compare the key. */
uint32_t index_find_hash(const struct index *ix, uint64_t hash);
/* Prefetches the cache lines of many lookups in a row: call index_warm() with step 0 for each
 * lookup, then with step 1 for each, and then index_find() for each. */
void index_warm(const struct index *ix, uint64_t hash, unsigned step);
struct chunk *index_chunk(const struct index *ix, uint32_t i);
/* Prefetches a record, which begins in one cache line and mostly ends in the next. */
static inline void chunk_warm(const struct chunk *c)
{
        warm(c);
        warm(&c->crc);
}

uint32_t index_max(const struct index *ix);  /* number of records that the index can hold */
uint32_t index_used(const struct index *ix); /* number of records in use */
uint32_t index_high(const struct index *ix); /* all records in use have lower numbers than this */
/* Stores the approximate memory in use, in bytes: of the records, and of the hash table. */
void index_bytes(const struct index *ix, uint64_t *ret_records, uint64_t *ret_buckets);

/* SPDX-License-Identifier: Apache-2.0 */
/* Key to location, in memory: one array of chunk records, and a hash table of their numbers.
 *
 * A record is a number below the bound given at startup; the same number names the chunk in the
 * eviction order, in the table's pages and as the owner of its slot. The sequence of the put is its
 * chunk's own: a number kept for too long is recognized by it. Memory is reserved at startup and
 * touched as records are used: 60 bytes a chunk, and five of the hash table for each linked one.
 *
 * The record leaves out everything that follows from something else: the hash follows from the key,
 * the tenant from the slab, and the table knows the place in the ring. The namespace is a number
 * that the index gives to each id with linked chunks, because there are few of them and ids have 32
 * bits. */
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "key.h"
#include "warm.h"

#define INDEX_NONE    UINT32_MAX
#define INDEX_NO_SLAB 0x7fffu

enum chunk_flags {
        CHUNK_USED = 1,      /* the record is one */
        CHUNK_LINKED = 2,    /* index_find() finds it */
        CHUNK_PENDING = 4,   /* a put in flight: only a second put may see it */
        CHUNK_DISPLACED = 8, /* the chunk's placement is another volume of the store */
};

enum {
        CHUNK_SEQ_BITS = 52,
        CHUNK_PINS_BITS = 11,
        CHUNK_CREATED_BITS = 43, /* milliseconds up to the year 2248 */
        CHUNK_SLOT_BITS = 24,    /* slots of 4 KiB in the largest data file, see below */
        CHUNK_LENGTH_BITS = 27,  /* twice the largest chunk of a pool */
        CHUNK_NAME_BITS = 13,    /* twice STORE_MAX_NAMESPACES */
};
#define CHUNK_SEQ_MAX     ((UINT64_C(1) << CHUNK_SEQ_BITS) - 1)
#define CHUNK_PINS_MAX    ((1u << CHUNK_PINS_BITS) - 1)
#define CHUNK_CREATED_MAX ((UINT64_C(1) << CHUNK_CREATED_BITS) - 1)
#define CHUNK_SLOTS_MAX   (1u << CHUNK_SLOT_BITS)
#define CHUNK_LENGTH_MAX  ((1u << CHUNK_LENGTH_BITS) - 1)
/* The part of a data file that can have chunks: 64 GiB, the most that store.segment can be. */
#define CHUNK_FILE_BYTES (UINT64_C(4096) * CHUNK_SLOTS_MAX)

/* A record. Packed, because 60 is no multiple of the alignment of a 64-bit word. */
struct chunk {
        struct key key; /* in a free record, the number of the next free one plus one */
        uint64_t seq : CHUNK_SEQ_BITS;
        uint64_t pins : CHUNK_PINS_BITS; /* I/O on its slot: neither evicted nor reused */
        uint64_t reading : 1;            /* a get is among the reads; see volume_is_reading() */
        uint64_t created_ms : CHUNK_CREATED_BITS;
        uint64_t own : 1;      /* written since startup from the daemon's memory, not a client's */
        uint64_t slab : 15;    /* = segment; INDEX_NO_SLAB: none yet */
        uint64_t flags : 4;    /* enum chunk_flags */
        uint64_t verified : 1; /* read back from the disk since startup, and correct */
        uint64_t slot : CHUNK_SLOT_BITS;
        uint64_t length : CHUNK_LENGTH_BITS;
        uint64_t name : CHUNK_NAME_BITS; /* while linked: index_namespace_of() */
        uint32_t crc;
} __attribute__((packed, aligned(4)));
static_assert(sizeof(struct chunk) == 60, "the documented memory a chunk");

struct index;

/* `hash` computes the hash of a chunk's key and namespace that callers pass to the functions
 * below. */
int index_new(struct index **ret, uint32_t max_chunks,
              uint64_t (*hash)(const void *userdata, uint32_t namespace_id, const struct key *key),
              const void *userdata);
struct index *index_free(struct index *ix);

/* Returns a record that is used, not linked and otherwise zero; INDEX_NONE if all are used. */
uint32_t index_acquire(struct index *ix);
/* Makes the hash table large enough for `chunks` records at once. No effect if any record is
 * linked. */
void index_reserve(struct index *ix, uint32_t chunks);
/* Populates the memory of the records [from, to). Any thread, also while others use the records. */
void index_populate(const struct index *ix, uint32_t from, uint32_t to);
/* Frees the memory under the records that have not been used since startup or index_reset(). */
void index_unpopulate(const struct index *ix);
/* Has memory populated before records are acquired, which is the default, or does not, because
 * index_populate() is called for that. */
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
/* Ends that; the record no longer has a namespace. */
void index_unlink(struct index *ix, uint32_t i);
/* Returns the namespace of a linked record. */
uint32_t index_namespace_of(const struct index *ix, const struct chunk *c);

uint32_t index_find(const struct index *ix, uint32_t namespace_id, const struct key *key,
                    uint64_t hash);
/* Finds a linked record by its 64-bit hash alone, without comparing the key. */
uint32_t index_find_hash(const struct index *ix, uint64_t hash);
/* Prefetches for many lookups in a row: call it with step 0 for all of them, then with step 1, then
 * index_find(). */
void index_warm(const struct index *ix, uint64_t hash, unsigned step);
struct chunk *index_chunk(const struct index *ix, uint32_t i);
/* Prefetches a record, which begins in one cache line and mostly ends in the next. */
static inline void chunk_warm(const struct chunk *c)
{
        warm(c);
        warm(&c->crc);
}

uint32_t index_max(const struct index *ix);
uint32_t index_used(const struct index *ix); /* records */
uint32_t index_high(const struct index *ix); /* all used ones are below */
/* Store the memory touched, about, of the records and of the hash table. */
void index_bytes(const struct index *ix, uint64_t *ret_records, uint64_t *ret_buckets);

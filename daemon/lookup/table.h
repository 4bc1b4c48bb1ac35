/* SPDX-License-Identifier: Apache-2.0 */
/* One table of the lookup index, on the writer's side: the memory specified by proto/lookup.h, and
 * its counters. A table is a multiset of words: an addition inserts one, a removal deletes an equal
 * one. Different chunks may have equal words, which the table does not distinguish. Loop thread;
 * readers are other processes. */
#pragma once

#include <stdint.h>

#include "lookup.h"
#include "io/io.h"
#include "cache/backing.h"
#include "warm.h"

enum { LOOKUP_TABLE_NAMES = 64, LOOKUP_TABLE_MIN_BUCKETS = 2048 };

struct lookup_table {
        struct backing backing;
        struct lookup_header *header;
        struct lookup_bucket *buckets;
        uint32_t n_buckets, n_stash;
        struct key_secret secret;
        uint64_t words;    /* words in the table */
        uint64_t unplaced; /* words that found no place in the table, minus removals of such
                            * words */
        uint64_t overflowed, stash_overflowed; /* main buckets, and buckets of the stash, that an
                                                  addition has found full */

        /* Cached secrets of namespaces, indexed by the lowest bits of their numbers. Filled by the
         * owner. */
        struct lookup_table_name {
                uint32_t id; /* id of the namespace; 0: the entry is free */
                bool of_tenant;
                struct key_secret secret;
        } names[LOOKUP_TABLE_NAMES];

        struct kio_request closing; /* the owner's blocking call, which frees the table */
};

/* Returns the number of main buckets for this number of words at a load of `percent`. */
uint32_t lookup_table_buckets(uint64_t words, unsigned percent);
/* Returns the size of a table with this number of main buckets. */
uint64_t lookup_table_bytes(uint32_t n_buckets);
/* Creates an empty table in state BUILDING, with its own secret. Only its header is populated.
 * Returns 0 or -errno. */
int lookup_table_new(struct lookup_table **ret, uint32_t n_buckets);
struct lookup_table *lookup_table_free(struct lookup_table *t);

static inline void lookup_table_set_state(struct lookup_table *t, enum lookup_state state)
{
        __atomic_store_n(&t->header->state, (uint64_t)state, __ATOMIC_RELEASE);
}

static inline void lookup_table_set_clock(struct lookup_table *t, uint64_t ms)
{
        __atomic_store_n(&t->header->clock_ms, ms, __ATOMIC_RELAXED);
}

/* Add or remove the word of a key's hash and tier. `tier`: one value of enum wire_tier. */
void lookup_table_add(struct lookup_table *t, uint64_t hash, unsigned tier);
void lookup_table_remove(struct lookup_table *t, uint64_t hash, unsigned tier);

/* Prefetches the buckets for a coming addition or removal. */
static inline void lookup_table_warm(const struct lookup_table *t, uint64_t hash)
{
        struct lookup_pair p = lookup_main(hash, t->n_buckets);

        warm(&t->buckets[p.a], 1);
        warm(&t->buckets[p.b], 1);
}

/* Returns the number of words for which the main buckets have room. */
static inline uint64_t lookup_table_room(const struct lookup_table *t)
{
        return (uint64_t)t->n_buckets * LOOKUP_WORDS;
}

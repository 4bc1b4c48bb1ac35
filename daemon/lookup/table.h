/* SPDX-License-Identifier: Apache-2.0 */
/* One table of the lookup index, as its writer has it: the memory that proto/lookup.h describes,
 * and its counters. It is a multiset of words: each add inserts one, each remove takes an equal one
 * out. It does not know where the words come from. Loop thread; readers are other processes. */
#pragma once

#include <stdint.h>

#include "lookup.h"
#include "io/io.h"
#include "cache/backing.h"
#include "warm.h"

enum { LOOKUP_TABLE_NAMES = 64, LOOKUP_TABLE_MIN_BUCKETS = 4096 };

struct lookup_table {
        struct backing backing;
        struct lookup_header *header;
        struct lookup_bucket *buckets;
        uint32_t n_buckets, n_stash;
        struct key_secret secret;
        uint64_t words;    /* that are in it */
        uint64_t unplaced; /* that had no place, less what was removed of them as far as known */
        uint64_t overflowed, stash_overflowed; /* buckets that were full once */

        /* Secrets of namespaces, by the lowest bits of their numbers; the owner's. */
        struct lookup_table_name {
                uint32_t id; /* 0: none */
                bool of_tenant;
                struct key_secret secret;
        } names[LOOKUP_TABLE_NAMES];

        struct kio_request closing; /* the owner's, to have it freed off the loop */
};

/* Main buckets for so many words at a load of `percent`. */
uint32_t lookup_table_buckets(uint64_t words, unsigned percent);
/* Bytes of a table with these main buckets. */
uint64_t lookup_table_bytes(uint32_t n_buckets);
/* Empty, BUILDING, with a secret of its own; none of its memory is touched but the header. 0,
 * -errno. */
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

/* `tier`: enum wire_tier, one of them. */
void lookup_table_add(struct lookup_table *t, uint64_t hash, unsigned tier);
void lookup_table_remove(struct lookup_table *t, uint64_t hash, unsigned tier);

/* One of these is to be called with this hash soon. */
static inline void lookup_table_warm(const struct lookup_table *t, uint64_t hash)
{
        struct lookup_pair p = lookup_main(hash, t->n_buckets);

        warm(&t->buckets[p.a], 1);
        warm(&t->buckets[p.b], 1);
}

/* Words of the main buckets. */
static inline uint64_t lookup_table_room(const struct lookup_table *t)
{
        return (uint64_t)t->n_buckets * LOOKUP_WORDS;
}

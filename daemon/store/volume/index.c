/* SPDX-License-Identifier: Apache-2.0 */
/* The index: see index.h. Runs on the loop thread.
 *
 * Both arrays are private mappings that cost nothing until touched. Free records are a stack, so
 * the used ones stay low in the array; above the high mark nothing has been touched yet. The
 * buckets grow with the records, one at a time (linear hashing): each new one takes its share of
 * the one that is next in turn, so that no link ever has to wait for a table to be made anew. The
 * hash is the caller's keyed one: a client that picks keys cannot pick buckets. It is made again
 * when a record leaves its bucket, rather than kept.
 *
 * The ids of namespaces are interned: a record has the number of its namespace's name. A name lasts
 * while linked records use it. Names are found by their ids in chains through a small table. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/pages-ahead.h"
#include "base/pages.h"
#include "checked.h"
#include "cleanup.h"
#include "warm.h"
#include "store/volume/index.h"

enum { MIN_BUCKETS = 1024, NAME_BUCKETS = 4096 };

struct name {
        uint32_t id;
        uint32_t records; /* linked; 0: the name is free */
        uint16_t next;    /* in its chain, or of the free names; 0: none */
};

struct index {
        uint64_t (*hash)(const void *userdata, uint32_t namespace_id, const struct key *key);
        const void *userdata;
        struct chunk *chunks;
        uint32_t *buckets; /* record + 1; 0: empty, as fresh memory is */
        uint64_t chunks_bytes, buckets_bytes;
        struct pages_ahead chunks_ahead, buckets_ahead;
        uint32_t n_buckets, max_buckets;
        uint32_t mask; /* (mask + 1) / 2 <= n_buckets <= mask */
        uint32_t max, used, high, linked;
        uint32_t free; /* the top of the stack, plus one */
        uint16_t name_of[NAME_BUCKETS], free_name, names_high;
        struct name names[INDEX_NAMESPACES + 1]; /* number 0 is no name's */
};

DEFINE_CLEANUP(struct index *, index_free);

static uint32_t *bucket_of(const struct index *ix, uint32_t hash)
{
        uint32_t b = hash & ix->mask;

        return &ix->buckets[b < ix->n_buckets ? b : b & ix->mask >> 1];
}

static void set_buckets(struct index *ix, uint32_t n)
{
        ix->n_buckets = n;
        while (ix->mask < n)
                ix->mask = 2 * ix->mask + 1;
}

/* --- names --- */

static uint16_t *name_bucket(struct index *ix, uint32_t namespace_id)
{
        return &ix->name_of[namespace_id % NAME_BUCKETS];
}

/* Returns the number of a namespace's name, for one more record. */
static unsigned name_take(struct index *ix, uint32_t namespace_id)
{
        uint16_t *bucket = name_bucket(ix, namespace_id), n = *bucket;

        while (n != 0 && ix->names[n].id != namespace_id)
                n = ix->names[n].next;
        if (n == 0) {
                n = ix->free_name;
                if (n != 0)
                        ix->free_name = ix->names[n].next;
                else
                        n = ++ix->names_high;
                assert(n <= INDEX_NAMESPACES);
                ix->names[n] = (struct name){ .id = namespace_id, .next = *bucket };
                *bucket = n;
        }
        ix->names[n].records++;
        return n;
}

static void name_drop(struct index *ix, unsigned n)
{
        struct name *name = &ix->names[n];
        uint16_t *link = name_bucket(ix, name->id);

        assert(name->records > 0);
        if (--name->records > 0)
                return;
        while (*link != n)
                link = &ix->names[*link].next;
        *link = name->next;
        name->next = ix->free_name;
        ix->free_name = (uint16_t)n;
}

uint32_t index_namespace_of(const struct index *ix, const struct chunk *c)
{
        return ix->names[c->name].id;
}

static uint64_t hash_of(const struct index *ix, const struct chunk *c)
{
        return ix->hash(ix->userdata, index_namespace_of(ix, c), &c->key);
}

/* --- records --- */

int index_new(struct index **ret, uint32_t max_chunks,
              uint64_t (*hash)(const void *userdata, uint32_t namespace_id, const struct key *key),
              const void *userdata)
{
        _cleanup_(index_freep) struct index *ix = calloc(1, sizeof(*ix));
        uint64_t buckets = MIN_BUCKETS;

        if (!ix)
                return -ENOMEM;
        /* Owners in slab.h are below 2^31. */
        assert(max_chunks > 0 && max_chunks <= INT32_MAX);
        while (buckets < max_chunks)
                buckets *= 2;

        ix->hash = hash;
        ix->userdata = userdata;
        ix->max = max_chunks;
        ix->max_buckets = (uint32_t)buckets;
        ix->mask = 2 * MIN_BUCKETS - 1;
        set_buckets(ix, MIN_BUCKETS);
        ix->chunks_bytes = (uint64_t)max_chunks * sizeof(struct chunk);
        ix->buckets_bytes = buckets * sizeof(uint32_t);
        ix->chunks = pages_map(ix->chunks_bytes);
        ix->buckets = pages_map(ix->buckets_bytes);
        if (!ix->chunks || !ix->buckets)
                return -ENOMEM;
        pages_ahead_init(&ix->chunks_ahead, ix->chunks, ix->chunks_bytes);
        pages_ahead_init(&ix->buckets_ahead, ix->buckets, ix->buckets_bytes);
        *ret = TAKE_PTR(ix);
        return 0;
}

struct index *index_free(struct index *ix)
{
        if (!ix)
                return NULL;
        pages_ahead_fini(&ix->chunks_ahead);
        pages_ahead_fini(&ix->buckets_ahead);
        if (ix->chunks)
                munmap(ix->chunks, ix->chunks_bytes);
        if (ix->buckets)
                munmap(ix->buckets, ix->buckets_bytes);
        free(ix);
        return NULL;
}

struct chunk *index_chunk(const struct index *ix, uint32_t i)
{
        assert(i < ix->high);
        return &ix->chunks[i];
}

uint32_t index_acquire(struct index *ix)
{
        struct chunk *c;
        uint32_t i;

        if (ix->free != 0) {
                i = ix->free - 1;
                ix->free = ix->chunks[i].next;
        } else if (ix->high < ix->max) {
                i = ix->high++;
                pages_ahead_use(&ix->chunks_ahead, (uint64_t)ix->high * sizeof(struct chunk));
        } else {
                return INDEX_NONE;
        }
        c = &ix->chunks[i];
        assert(!(c->flags & CHUNK_USED));
        *c = (struct chunk){ .flags = CHUNK_USED, .slab = INDEX_NO_SLAB };
        ix->used++;
        return i;
}

void index_release(struct index *ix, uint32_t i)
{
        struct chunk *c = index_chunk(ix, i);

        assert((c->flags & CHUNK_USED) && !(c->flags & CHUNK_LINKED) && c->pins == 0);
        c->flags = 0;
        c->seq = 0;
        c->slab = INDEX_NO_SLAB;
        c->next = ix->free & INT32_MAX;
        ix->free = i + 1;
        ix->used--;
}

void index_reset(struct index *ix)
{
        assert(ix->used == 0);
        ix->high = 0;
        ix->free = 0;
}

void index_reserve(struct index *ix, uint32_t chunks)
{
        if (ix->linked == 0)
                set_buckets(ix, MAX(ix->n_buckets, MIN(chunks, ix->max_buckets)));
}

void index_populate(const struct index *ix, uint32_t from, uint32_t to)
{
        to = MIN(to, ix->max);
        if (from < to)
                pages_populate(&ix->chunks[from], (uint64_t)(to - from) * sizeof(struct chunk));
}

void index_populate_ahead(struct index *ix, bool on)
{
        if (on) {
                pages_ahead_restart(&ix->chunks_ahead, (uint64_t)ix->high * sizeof(struct chunk));
                pages_ahead_restart(&ix->buckets_ahead, (uint64_t)ix->n_buckets * sizeof(uint32_t));
        } else {
                pages_ahead_pause(&ix->chunks_ahead);
                pages_ahead_pause(&ix->buckets_ahead);
        }
}

void index_unpopulate(const struct index *ix)
{
        pages_unpopulate(&ix->chunks[ix->high],
                         (uint64_t)(ix->max - ix->high) * sizeof(struct chunk));
}

/* Adds a bucket and moves the chunks that now belong there. */
static void split(struct index *ix)
{
        uint32_t n = ix->n_buckets;
        uint32_t *from = bucket_of(ix, n), *to = &ix->buckets[n];
        uint32_t left = 0, moved = 0, next;

        pages_ahead_use(&ix->buckets_ahead, ((uint64_t)n + 1) * sizeof(uint32_t));
        for (uint32_t i = *from; i != 0; i = next) {
                struct chunk *c = &ix->chunks[i - 1];
                uint32_t *chain = ((uint32_t)hash_of(ix, c) & ix->mask) == n ? &moved : &left;

                next = c->next;
                c->next = *chain & INT32_MAX;
                *chain = i;
        }
        *from = left;
        *to = moved;
        set_buckets(ix, n + 1);
}

void index_link(struct index *ix, uint32_t i, uint32_t namespace_id, uint64_t hash)
{
        struct chunk *c = index_chunk(ix, i);
        uint32_t *bucket;

        assert((c->flags & CHUNK_USED) && !(c->flags & CHUNK_LINKED));
        if (++ix->linked > ix->n_buckets && ix->n_buckets < ix->max_buckets)
                split(ix);
        bucket = bucket_of(ix, (uint32_t)hash);
        c->next = *bucket & INT32_MAX;
        *bucket = i + 1;
        c->name = name_take(ix, namespace_id) & INDEX_NAMESPACES;
        c->flags |= CHUNK_LINKED;
}

void index_unlink(struct index *ix, uint32_t i)
{
        struct chunk *c = index_chunk(ix, i), *before = NULL;
        uint32_t *bucket = bucket_of(ix, (uint32_t)hash_of(ix, c));

        assert(c->flags & CHUNK_LINKED);
        for (uint32_t at = *bucket; at != i + 1; at = before->next) {
                assert(at != 0);
                before = &ix->chunks[at - 1];
        }
        if (before)
                before->next = c->next;
        else
                *bucket = c->next;
        name_drop(ix, c->name);
        c->next = 0;
        c->name = 0;
        c->flags &= ~(unsigned)CHUNK_LINKED & 0xf;
        ix->linked--;
}

/* Compares the keys first: keys of other namespaces that share a bucket differ, too. */
uint32_t index_find(const struct index *ix, uint32_t namespace_id, const struct key *key,
                    uint64_t hash)
{
        for (uint32_t i = *bucket_of(ix, (uint32_t)hash); i != 0; i = ix->chunks[i - 1].next) {
                const struct chunk *c = &ix->chunks[i - 1];

                if (key_equal(&c->key, key) && index_namespace_of(ix, c) == namespace_id)
                        return i - 1;
        }
        return INDEX_NONE;
}

uint32_t index_find_hash(const struct index *ix, uint64_t hash)
{
        uint32_t i = *bucket_of(ix, (uint32_t)hash);

        while (i != 0 && hash_of(ix, &ix->chunks[i - 1]) != hash)
                i = ix->chunks[i - 1].next;
        return i != 0 ? i - 1 : INDEX_NONE;
}

void index_warm(const struct index *ix, uint64_t hash, unsigned step)
{
        const uint32_t *bucket = bucket_of(ix, (uint32_t)hash);

        if (step == 0)
                warm(bucket);
        else if (*bucket != 0)
                warm(&ix->chunks[*bucket - 1]);
}

uint32_t index_max(const struct index *ix)
{
        return ix->max;
}

uint32_t index_used(const struct index *ix)
{
        return ix->used;
}

uint32_t index_high(const struct index *ix)
{
        return ix->high;
}

void index_bytes(const struct index *ix, uint64_t *ret_records, uint64_t *ret_buckets)
{
        *ret_records = (uint64_t)ix->high * sizeof(struct chunk);
        *ret_buckets = (uint64_t)ix->n_buckets * sizeof(ix->buckets[0]);
}

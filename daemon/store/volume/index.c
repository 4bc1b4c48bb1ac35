/* SPDX-License-Identifier: Apache-2.0 */
/* Implements index.h. Runs on the loop thread.
 *
 * The arrays of records and buckets are private mappings, whose memory is allocated on first use.
 * Free records form a stack, so that low numbers are reused first; records at or above `high` have
 * never been used.
 *
 * The hash table has buckets of sixteen words, a cache line each. A word holds the number of a
 * linked record plus one, in as many bits as the largest number needs; the other bits are a tag,
 * computed from the record's hash, so that a lookup rarely reads a wrong record. A hash determines
 * two buckets, and the word is in one of them. If both are full, a word of one bucket is moved to
 * its own other bucket, if possible one that has room for it, and so on until a bucket has room.
 * The hash is keyed, so that a client cannot choose keys that share a bucket. It is computed again
 * when a word moves, and not stored. Words without room after MOST_MOVES moves, which are unlikely
 * with a good hash, go to a list that each lookup searches.
 *
 * The number of buckets grows with the number of linked records, by one bucket at a time (linear
 * hashing): each new bucket takes over words of one existing bucket, so that the table is never
 * rebuilt as a whole.
 *
 * Namespace ids are interned: each id with linked records has a `struct name`, and a record stores
 * the number of this struct. Names are found by id in a small hash table with chains. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/pages-ahead.h"
#include "base/pages.h"
#include "checked.h"
#include "cleanup.h"
#include "warm.h"
#include "store/volume/index.h"

enum {
        WORDS = 16,        /* words of a bucket */
        LOAD_PERCENT = 90, /* percentage of words in use; with more, a link would move many words
                            * while the table grows */
        PROBES = 4,        /* words of a full bucket of which one that can move is sought */
        MIN_BUCKETS = 64,  /* buckets of an empty index */
        MOST_MOVES = 256,  /* words that one link moves at most */
        NAME_BUCKETS = 4096,
};

typedef uint32_t four_words __attribute__((vector_size(16)));

struct bucket {
        union {
                uint32_t words[WORDS]; /* 0 if unused, as in new memory */
                four_words fours[WORDS / 4];
        };
};
static_assert(sizeof(struct bucket) == 64, "a cache line");

/* The two buckets of a hash, which may be the same, and its tag. */
struct place {
        struct bucket *a, *b;
        uint32_t tag;
};

/* A namespace id that linked records use. */
struct name {
        uint32_t id;
        uint32_t records; /* number of linked records with this id; 0 if the struct is free */
        uint16_t next;    /* number of the next struct in the bucket's chain, or in the list of free
                             ones; 0 at the end */
};

struct index {
        uint64_t (*hash)(const void *userdata, uint32_t namespace_id, const struct key *key);
        const void *userdata;
        struct chunk *chunks;
        struct bucket *buckets;
        uint32_t *rest; /* words that found no room in their buckets */
        uint64_t chunks_bytes, buckets_bytes, rest_bytes;
        struct pages_ahead chunks_ahead, buckets_ahead;
        uint32_t n_buckets, max_buckets;
        uint32_t mask;    /* (mask + 1) / 2 <= n_buckets <= mask */
        uint32_t numbers; /* mask of the bits of a word that hold a record's number plus one */
        uint32_t max, used, high, linked, n_rest;
        uint32_t turn; /* number of words probed so far, which selects the next one */
        uint32_t free; /* 1 + the number of the record at the top of the stack of free ones; 0 if
                          the stack is empty */
        uint16_t name_of[NAME_BUCKETS], free_name, names_high;
        struct name names[INDEX_NAMESPACES + 1]; /* by number; number 0 is not used */
};

DEFINE_CLEANUP(struct index *, index_free);

static inline struct bucket *bucket_of(const struct index *ix, uint32_t hash)
{
        uint32_t b = hash & ix->mask;

        return &ix->buckets[b < ix->n_buckets ? b : b & ix->mask >> 1];
}

/* Returns the buckets and the tag of a hash. A tag is never 0, so no tag matches an unused word. It
 * is computed from a product with the hash, because the bits of the hash itself determine the
 * buckets. */
static inline struct place place_of(const struct index *ix, uint64_t hash)
{
        uint32_t tag = (uint32_t)(hash * UINT64_C(0x9e3779b97f4a7c15) >> 32) & ~ix->numbers;

        return (struct place){
                .a = bucket_of(ix, (uint32_t)hash),
                .b = bucket_of(ix, (uint32_t)(hash >> 32)),
                .tag = tag != 0 ? tag : ix->numbers + 1,
        };
}

/* Returns the number of buckets for this number of linked records. */
static uint32_t buckets_for(uint32_t chunks)
{
        return (uint32_t)MAX((uint64_t)chunks * 100 / (LOAD_PERCENT * WORDS) + 1,
                             (uint64_t)MIN_BUCKETS);
}

static void set_buckets(struct index *ix, uint32_t n)
{
        ix->n_buckets = n;
        while (ix->mask < n)
                ix->mask = 2 * ix->mask + 1;
}

/* --- names: short numbers that stand for namespaces --- */

static uint16_t *name_bucket(struct index *ix, uint32_t namespace_id)
{
        return &ix->name_of[namespace_id % NAME_BUCKETS];
}

/* Returns the number of the struct name of a namespace, and counts one more record for it. */
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

        if (!ix)
                return -ENOMEM;
        /* a record's number must be a valid owner for slab.h, below 2^31 */
        assert(max_chunks > 0 && max_chunks <= INT32_MAX);
        while (ix->numbers < max_chunks)
                ix->numbers = 2 * ix->numbers + 1;
        ix->hash = hash;
        ix->userdata = userdata;
        ix->max = max_chunks;
        ix->max_buckets = buckets_for(max_chunks);
        ix->mask = 2 * MIN_BUCKETS - 1;
        set_buckets(ix, MIN_BUCKETS);
        ix->chunks_bytes = (uint64_t)max_chunks * sizeof(struct chunk);
        ix->buckets_bytes = (uint64_t)ix->max_buckets * sizeof(struct bucket);
        ix->rest_bytes = (uint64_t)max_chunks * sizeof(uint32_t);
        ix->chunks = pages_map(ix->chunks_bytes);
        ix->buckets = pages_map(ix->buckets_bytes);
        ix->rest = pages_map(ix->rest_bytes);
        if (!ix->chunks || !ix->buckets || !ix->rest)
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
        if (ix->rest)
                munmap(ix->rest, ix->rest_bytes);
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
                memcpy(&ix->free, ix->chunks[i].key.bytes, sizeof(ix->free));
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
        memcpy(c->key.bytes, &ix->free, sizeof(ix->free));
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
                set_buckets(ix, MAX(ix->n_buckets, buckets_for(MIN(chunks, ix->max))));
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
                pages_ahead_restart(&ix->buckets_ahead,
                                    (uint64_t)ix->n_buckets * sizeof(struct bucket));
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

static uint32_t record_of(const struct index *ix, uint32_t word)
{
        return (word & ix->numbers) - 1;
}

static uint64_t hash_of_word(const struct index *ix, uint32_t word)
{
        return hash_of(ix, &ix->chunks[record_of(ix, word)]);
}

static unsigned count_used(const struct bucket *b)
{
        unsigned n = 0;

        for (unsigned i = 0; i < WORDS; i++)
                n += b->words[i] != 0;
        return n;
}

/* Adds a word to a bucket that has room. */
static void add_to(struct bucket *b, uint32_t word)
{
        unsigned i = 0;

        while (b->words[i] != 0)
                i++;
        b->words[i] = word;
}

/* Adds a word to the emptier of its buckets. Returns false if both are full. */
static bool add(const struct place *p, uint32_t word)
{
        unsigned in_a = count_used(p->a), in_b = count_used(p->b);

        if (MIN(in_a, in_b) == WORDS)
                return false;
        add_to(in_a <= in_b ? p->a : p->b, word);
        return true;
}

/* Returns the other bucket of a word that is in this bucket. */
static struct bucket *other_bucket(const struct index *ix, const struct bucket *b, uint32_t word)
{
        struct place p = place_of(ix, hash_of_word(ix, word));

        return p.a == b ? p.b : p.a;
}

/* Chooses the word of a full bucket that will move: of PROBES words one whose other bucket has
 * room, or else the first. Sets *ret_other to its other bucket. Their records and buckets are
 * prefetched together, because each is most likely a cache miss. */
static uint32_t *choose_move(struct index *ix, struct bucket *b, struct bucket **ret_other)
{
        uint32_t *words[PROBES];
        struct bucket *others[PROBES];
        unsigned chosen = 0;

        for (unsigned i = 0; i < PROBES; i++) {
                words[i] = &b->words[ix->turn++ % WORDS];
                chunk_warm(&ix->chunks[record_of(ix, *words[i])]);
        }
        for (unsigned i = 0; i < PROBES; i++) {
                others[i] = other_bucket(ix, b, *words[i]);
                warm(others[i]);
        }
        while (chosen < PROBES && count_used(others[chosen]) == WORDS)
                chosen++;
        chosen %= PROBES;
        *ret_other = others[chosen];
        return words[chosen];
}

/* Adds a word to a full bucket, from which another word moves to its other bucket. The word that is
 * left after MOST_MOVES moves goes to `rest`. */
static void add_by_moves(struct index *ix, struct bucket *to, uint32_t word)
{
        for (unsigned moves = 0; moves < MOST_MOVES; moves++) {
                struct bucket *other;
                uint32_t *at = choose_move(ix, to, &other), moved = *at;

                *at = word;
                word = moved;
                to = other;
                if (count_used(to) < WORDS) {
                        add_to(to, word);
                        return;
                }
        }
        assert(ix->n_rest < ix->max);
        ix->rest[ix->n_rest++] = word;
}

static void place(struct index *ix, uint64_t hash, uint32_t number)
{
        struct place p = place_of(ix, hash);

        if (!add(&p, p.tag | number))
                add_by_moves(ix, p.a, p.tag | number);
}

/* Adds a bucket and moves the words that now belong to it. Also tries again to place one word that
 * had found no room. */
static void split(struct index *ix)
{
        uint32_t n = ix->n_buckets;
        struct bucket *from = bucket_of(ix, n), *to = &ix->buckets[n];

        pages_ahead_use(&ix->buckets_ahead, ((uint64_t)n + 1) * sizeof(struct bucket));
        set_buckets(ix, n + 1);
        for (unsigned i = 0; i < WORDS; i++) {
                uint32_t word = from->words[i];
                struct place p;

                if (word == 0)
                        continue;
                p = place_of(ix, hash_of_word(ix, word));
                if (p.a == from || p.b == from)
                        continue;
                add_to(to, word);
                from->words[i] = 0;
        }
        if (ix->n_rest > 0) {
                uint32_t word = ix->rest[--ix->n_rest];

                place(ix, hash_of_word(ix, word), word & ix->numbers);
        }
}

void index_link(struct index *ix, uint32_t i, uint32_t namespace_id, uint64_t hash)
{
        struct chunk *c = index_chunk(ix, i);

        assert((c->flags & CHUNK_USED) && !(c->flags & CHUNK_LINKED));
        if (buckets_for(++ix->linked) > ix->n_buckets)
                split(ix);
        c->name = name_take(ix, namespace_id) & INDEX_NAMESPACES;
        c->flags |= CHUNK_LINKED;
        place(ix, hash, i + 1);
}

/* Returns the word of record `i` among these words, or NULL if it is not there. */
static uint32_t *word_in(const struct index *ix, uint32_t *words, uint32_t n, uint32_t i)
{
        for (uint32_t j = 0; j < n; j++)
                if ((words[j] & ix->numbers) == i + 1)
                        return &words[j];
        return NULL;
}

void index_unlink(struct index *ix, uint32_t i)
{
        struct chunk *c = index_chunk(ix, i);
        struct place p = place_of(ix, hash_of(ix, c));
        uint32_t *word;

        assert(c->flags & CHUNK_LINKED);
        warm(p.b, 1);
        word = word_in(ix, p.a->words, WORDS, i) ?: word_in(ix, p.b->words, WORDS, i);
        if (word) {
                *word = 0;
        } else {
                word = word_in(ix, ix->rest, ix->n_rest, i);
                assert(word);
                *word = ix->rest[--ix->n_rest];
        }
        name_drop(ix, c->name);
        c->name = 0;
        c->flags &= ~(unsigned)CHUNK_LINKED & 0xf;
        ix->linked--;
}

/* Returns the words of a bucket that have this tag, one bit for each. */
static inline unsigned matches_in(const struct index *ix, const struct bucket *b, uint32_t tag)
{
        four_words wanted = tag - (four_words){ 0 }, tags = ~ix->numbers - (four_words){ 0 };
        four_words bits = { 1, 2, 4, 8 }, found = { 0 };

        for (unsigned i = 0; i < WORDS / 4; i++, bits <<= 4)
                found |= (four_words)((b->fours[i] & tags) == wanted) & bits;
        return found[0] | found[1] | found[2] | found[3];
}

/* Returns the words of both buckets that have the tag, one bit for each. Checks both buckets
 * without a branch, because a branch on the bucket with the word could not be predicted. */
static inline unsigned matches_of(const struct index *ix, const struct place *p)
{
        static_assert(2 * WORDS <= 32, "a bit each");
        return matches_in(ix, p->a, p->tag) | matches_in(ix, p->b, p->tag) << WORDS;
}

/* Returns the record of the lowest of these matches. */
static inline uint32_t first_of(const struct index *ix, const struct place *p, unsigned matches)
{
        unsigned i = (unsigned)__builtin_ctz(matches);

        return ((i < WORDS ? p->a : p->b)->words[i % WORDS] & ix->numbers) - 1;
}

/* Returns whether record `i` has this key and namespace. Compares the keys first, because they
 * differ in most records with the same tag. */
static inline bool is_key(const struct index *ix, uint32_t i, uint32_t namespace_id,
                          const struct key *key)
{
        const struct chunk *c = &ix->chunks[i];

        return key_equal(&c->key, key) && index_namespace_of(ix, c) == namespace_id;
}

uint32_t index_find(const struct index *ix, uint32_t namespace_id, const struct key *key,
                    uint64_t hash)
{
        struct place p = place_of(ix, hash);

        for (unsigned left = matches_of(ix, &p); left != 0; left &= left - 1) {
                uint32_t i = first_of(ix, &p, left);

                if (is_key(ix, i, namespace_id, key))
                        return i;
        }
        for (uint32_t j = 0; j < ix->n_rest; j++)
                if (is_key(ix, record_of(ix, ix->rest[j]), namespace_id, key))
                        return record_of(ix, ix->rest[j]);
        return INDEX_NONE;
}

uint32_t index_find_hash(const struct index *ix, uint64_t hash)
{
        struct place p = place_of(ix, hash);

        for (unsigned left = matches_of(ix, &p); left != 0; left &= left - 1) {
                uint32_t i = first_of(ix, &p, left);

                if (hash_of(ix, &ix->chunks[i]) == hash)
                        return i;
        }
        for (uint32_t j = 0; j < ix->n_rest; j++)
                if (hash_of_word(ix, ix->rest[j]) == hash)
                        return record_of(ix, ix->rest[j]);
        return INDEX_NONE;
}

void index_warm(const struct index *ix, uint64_t hash, unsigned step)
{
        struct place p = place_of(ix, hash);

        if (step == 0) {
                warm(p.a);
                warm(p.b);
                return;
        }
        for (unsigned left = matches_of(ix, &p); left != 0; left &= left - 1)
                chunk_warm(&ix->chunks[first_of(ix, &p, left)]);
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
        *ret_buckets = (uint64_t)ix->n_buckets * sizeof(struct bucket) +
                       (uint64_t)ix->n_rest * sizeof(ix->rest[0]);
}

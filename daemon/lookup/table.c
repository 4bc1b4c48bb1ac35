/* SPDX-License-Identifier: Apache-2.0 */
/* Implements table.h; see proto/lookup.h for the readers.
 *
 * The single writer stores whole words with release order, so that a reader that sees a word
 * removed also sees everything added before. A removal is counted before the word is cleared;
 * lookup_find_surely() in proto/lookup.h explains why. */
#include "lookup/table.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>

#include "checked.h"
#include "cleanup.h"

enum { BUCKETS_OF_A_PAGE = 4096 / sizeof(struct lookup_bucket) };

DEFINE_CLEANUP(struct lookup_table *, lookup_table_free);

uint32_t lookup_table_buckets(uint64_t words, unsigned percent)
{
        uint64_t n = MIN(words, UINT64_C(1) << 40) * 100 / percent / LOOKUP_WORDS + 1;

        return (uint32_t)MIN(n, UINT64_C(1) << 31);
}

/* Returns the number of stash buckets: at least one, and such that all buckets together fill whole
 * pages. */
static uint32_t stash_for(uint32_t n_buckets)
{
        uint32_t n = MAX(n_buckets / LOOKUP_STASH_PART, 1u);

        return (uint32_t)round_up((uint64_t)n_buckets + n, BUCKETS_OF_A_PAGE) - n_buckets;
}

uint64_t lookup_table_bytes(uint32_t n_buckets)
{
        return lookup_bytes(n_buckets, stash_for(n_buckets));
}

int lookup_table_new(struct lookup_table **ret, uint32_t n_buckets)
{
        _cleanup_(lookup_table_freep) struct lookup_table *t = calloc(1, sizeof(*t));
        int r;

        if (!t)
                return -ENOMEM;
        t->backing.fd = -1;
        t->n_buckets = n_buckets;
        t->n_stash = stash_for(n_buckets);
        if (getrandom(&t->secret, sizeof(t->secret), 0) != sizeof(t->secret))
                return -EIO;
        r = backing_open(&t->backing, "kvcache-lookup", lookup_table_bytes(n_buckets));
        if (r < 0)
                return r;
        r = backing_populate(&t->backing, 0, LOOKUP_HEADER_BYTES);
        if (r < 0)
                return r;
        t->header = t->backing.base;
        t->buckets = (struct lookup_bucket *)((char *)t->backing.base + LOOKUP_HEADER_BYTES);
        *t->header = (struct lookup_header){
                .magic = LOOKUP_MAGIC,
                .version = LOOKUP_VERSION,
                .header_bytes = LOOKUP_HEADER_BYTES,
                .bytes = t->backing.bytes,
                .n_buckets = t->n_buckets,
                .n_stash = t->n_stash,
                .secret = t->secret,
                .state = LOOKUP_BUILDING,
        };
        *ret = TAKE_PTR(t);
        return 0;
}

struct lookup_table *lookup_table_free(struct lookup_table *t)
{
        if (!t)
                return NULL;
        backing_close(&t->backing);
        free(t);
        return NULL;
}

/* --- words --- */

static uint32_t get(const struct lookup_bucket *b, unsigned i)
{
        return __atomic_load_n(&b->words[i], __ATOMIC_RELAXED);
}

static void set(struct lookup_bucket *b, unsigned i, uint32_t word)
{
        __atomic_store_n(&b->words[i], word, __ATOMIC_RELEASE);
}

static unsigned used(const struct lookup_bucket *b)
{
        unsigned n = 0;

        for (unsigned i = 0; i < LOOKUP_WORDS; i++)
                n += (get(b, i) & LOOKUP_TIER_BITS) != 0;
        return n;
}

static void overflow(struct lookup_bucket *b, uint64_t *count)
{
        uint32_t first = get(b, 0);

        if (first & LOOKUP_OVERFLOW)
                return;
        set(b, 0, first | LOOKUP_OVERFLOW);
        ++*count;
}

/* Adds a word to the first of two buckets, or to the emptier one when the first is more than half
 * full. This fills them almost as evenly as always choosing the emptier one, and three of four
 * words are where a reader looks first. If both are full, marks both as overflowed and returns
 * false. */
static bool put(struct lookup_table *t, struct lookup_pair p, uint32_t word, uint64_t *overflowed)
{
        struct lookup_bucket *a = &t->buckets[p.a], *b = &t->buckets[p.b];
        unsigned in_a = used(a), in_b = used(b);
        struct lookup_bucket *to = in_a <= LOOKUP_WORDS / 2 || in_a <= in_b ? a : b;

        if (MIN(in_a, in_b) == LOOKUP_WORDS) {
                overflow(a, overflowed);
                overflow(b, overflowed);
                return false;
        }
        for (unsigned i = 0;; i++) {
                uint32_t old = get(to, i);

                if (old & LOOKUP_TIER_BITS)
                        continue;
                set(to, i, word | (old & LOOKUP_OVERFLOW));
                return true;
        }
}

static bool take(struct lookup_table *t, uint32_t bucket, uint32_t word)
{
        struct lookup_bucket *b = &t->buckets[bucket];

        for (unsigned i = 0; i < LOOKUP_WORDS; i++) {
                uint32_t old = get(b, i);

                if ((old & ~LOOKUP_OVERFLOW) != word)
                        continue;
                __atomic_store_n(&t->header->removals, t->header->removals + 1, __ATOMIC_RELEASE);
                set(b, i, old & LOOKUP_OVERFLOW);
                return true;
        }
        return false;
}

void lookup_table_add(struct lookup_table *t, uint64_t hash, unsigned tier)
{
        uint32_t word = lookup_tag(hash) | tier;

        if (put(t, lookup_main(hash, t->n_buckets), word, &t->overflowed) ||
            put(t, lookup_stash(hash, t->n_buckets, t->n_stash), word, &t->stash_overflowed))
                t->words++;
        else
                t->unplaced++;
}

void lookup_table_remove(struct lookup_table *t, uint64_t hash, unsigned tier)
{
        uint32_t word = lookup_tag(hash) | tier;
        struct lookup_pair main = lookup_main(hash, t->n_buckets),
                           stash = lookup_stash(hash, t->n_buckets, t->n_stash);

        if (take(t, main.a, word) || take(t, main.b, word) || take(t, stash.a, word) ||
            take(t, stash.b, word))
                t->words--;
        else
                t->unplaced -= t->unplaced > 0;
}

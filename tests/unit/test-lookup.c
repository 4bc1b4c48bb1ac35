/* SPDX-License-Identifier: Apache-2.0 */
/* The lookup index: a table is a multiset that never reports a word in it as absent, even while
 * words are added and removed during a lookup. An index over a real pool and store always says
 * which keys can be found there, however much changes while it is being built. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/sanitizers.h"
#include "checked.h"
#include "lookup/index.h"
#include "lookup/table.h"
#include "tiers.h"
#include "wire.h"

/* --- a table by itself --- */

static uint64_t seed = 88172645463325252u;

static uint64_t draw(void)
{
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        return seed * UINT64_C(0x2545f4914f6cdd1d);
}

static struct lookup_view view_of(const struct lookup_table *t)
{
        struct lookup_view v;

        assert_true(lookup_view_init(&v, t->header, t->backing.bytes));
        return v;
}

static struct lookup_table *table_of(uint32_t n_buckets)
{
        struct lookup_table *t;

        assert_int_equal(lookup_table_new(&t, n_buckets), 0);
        return t;
}

static unsigned find(const struct lookup_table *t, uint64_t hash)
{
        struct lookup_view v = view_of(t);

        return lookup_find_surely(&v, hash, lookup_removals(&v));
}

static void an_empty_table_has_nothing(void **state)
{
        struct lookup_table *t = table_of(64);

        assert_int_equal(find(t, 0), 0);
        assert_int_equal(find(t, UINT64_MAX), 0);
        for (int i = 0; i < 1000; i++)
                assert_int_equal(find(t, draw()), 0);
        assert_int_equal(t->header->state, LOOKUP_BUILDING);
        assert_int_equal(t->backing.bytes % 4096, 0);
        lookup_table_free(t);
}

static void each_tier_has_a_word_of_its_own(void **state)
{
        struct lookup_table *t = table_of(64);
        uint64_t hashes[] = { 0, 7, UINT64_MAX, draw() };

        for (unsigned i = 0; i < ARRAY_SIZE(hashes); i++) {
                uint64_t h = hashes[i];

                lookup_table_add(t, h, WIRE_TIER_MEMORY);
                assert_int_equal(find(t, h), WIRE_TIER_MEMORY);
                lookup_table_add(t, h, WIRE_TIER_DISK);
                assert_int_equal(find(t, h), WIRE_TIER_ALL);
                lookup_table_remove(t, h, WIRE_TIER_MEMORY);
                assert_int_equal(find(t, h), WIRE_TIER_DISK);
                lookup_table_remove(t, h, WIRE_TIER_DISK);
                assert_int_equal(find(t, h), 0);
        }
        assert_int_equal(t->words, 0);
        lookup_table_free(t);
}

static void a_word_that_was_put_twice_is_there_until_it_was_taken_twice(void **state)
{
        struct lookup_table *t = table_of(64);
        uint64_t h = draw();

        lookup_table_add(t, h, WIRE_TIER_DISK);
        lookup_table_add(t, h ^ 5, WIRE_TIER_DISK); /* the lowest bits are not of the tag */
        assert_int_equal(t->words, 2);
        lookup_table_remove(t, h, WIRE_TIER_DISK);
        assert_int_equal(find(t, h), WIRE_TIER_DISK);
        lookup_table_remove(t, h, WIRE_TIER_DISK);
        assert_int_equal(find(t, h), 0);
        lookup_table_remove(t, h, WIRE_TIER_DISK);
        assert_int_equal(t->words, 0);
        assert_int_equal(t->unplaced, 0);
        lookup_table_free(t);
}

/* Adds more words than the main buckets and the stash hold. */
static void what_finds_no_place_is_not_called_absent(void **state)
{
        enum { WORDS = 1200 };
        struct lookup_table *t = table_of(2);
        uint64_t room = ((uint64_t)t->n_buckets + t->n_stash) * LOOKUP_WORDS, hashes[WORDS];
        unsigned found = 0, unknown = 0, absent = 0, first_unplaced = WORDS;

        for (unsigned i = 0; i < WORDS; i++) {
                hashes[i] = draw();
                lookup_table_add(t, hashes[i], 1 + i % 2);
                if (t->unplaced > 0 && first_unplaced == WORDS)
                        first_unplaced = i;
                for (unsigned k = 0; k <= i; k++)
                        assert_int_not_equal(find(t, hashes[k]), 0);
        }
        assert_true(first_unplaced > room / 2 && first_unplaced < room);
        assert_int_equal(t->words + t->unplaced, WORDS);
        assert_true(t->words <= room);
        for (unsigned i = 0; i < WORDS; i++)
                if (find(t, hashes[i]) & WIRE_TIER_ALL)
                        found++;
                else
                        unknown++;
        assert_int_equal(found, t->words);
        assert_int_equal(unknown, t->unplaced);

        /* A bucket keeps the mark that it was full. */
        for (unsigned i = 0; i < WORDS; i++)
                lookup_table_remove(t, hashes[i], 1 + i % 2);
        assert_int_equal(t->words, 0);
        assert_int_equal(t->unplaced, 0);
        for (unsigned i = 0; i < WORDS; i++)
                if (find(t, hashes[i]) == LOOKUP_UNKNOWN)
                        absent++;
        assert_true(absent > WORDS / 2);
        lookup_table_add(t, hashes[0], WIRE_TIER_DISK);
        assert_true(find(t, hashes[0]) & WIRE_TIER_DISK);
        lookup_table_free(t);
}

/* At the usual load of tables, nearly every word has a place, mostly in the bucket that a reader
 * visits first, even after some of the words have been replaced by others. */
static void a_table_at_rest_places_nearly_all(void **state)
{
        enum { WORDS = 200000, REPLACED = WORDS / 20 };
        struct lookup_table *t = table_of(lookup_table_buckets(WORDS, 97));
        static uint64_t old[REPLACED];
        uint64_t begin;
        unsigned in_first = 0, unknown = 0;
        struct lookup_view v = view_of(t);

        for (unsigned i = 0; i < REPLACED; i++)
                lookup_table_add(t, old[i] = draw(), WIRE_TIER_DISK);
        begin = seed;
        for (unsigned i = REPLACED; i < WORDS; i++)
                lookup_table_add(t, draw(), WIRE_TIER_DISK);
        for (unsigned i = 0; i < REPLACED; i++) {
                lookup_table_remove(t, old[i], WIRE_TIER_DISK);
                lookup_table_add(t, draw(), WIRE_TIER_DISK);
        }
        assert_true(t->overflowed < t->n_buckets / 2 && t->stash_overflowed == 0);
        assert_true(t->unplaced <= WORDS / 10000);
        seed = begin;
        for (unsigned i = 0; i < WORDS; i++)
                in_first += lookup_is_in_first(&v, draw());
        assert_true(in_first > WORDS * 7 / 10);
        for (unsigned i = 0; i < WORDS; i++)
                unknown += find(t, draw()) != 0;
        assert_true(unknown < WORDS / 1000);
        assert_true(t->backing.bytes * 10 < WORDS * 43 + 20 * 4096);
        lookup_table_free(t);
}

/* Compares a table with an oracle, at all degrees of fullness. */
static void a_table_is_a_multiset_whatever_happens(void **state)
{
        enum { HASHES = 6000, STEPS = SANITIZES_THREADS ? 60000 : 300000 }; /* on one thread */
        static uint64_t hashes[HASHES];
        static uint8_t counts[HASHES][3];
        struct lookup_table *t = table_of(600);
        uint64_t words = 0;

        memset(counts, 0, sizeof(counts));
        for (unsigned i = 0; i < HASHES; i++)
                hashes[i] = draw();
        for (unsigned step = 0; step < STEPS; step++) {
                unsigned i = (unsigned)(draw() % HASHES), tier = 1 + (unsigned)(draw() >> 40) % 2;
                /* The load swings between nothing and more than there is room for. */
                bool add = draw() % 100 < (step / 30000 % 2 ? 30u : 70u);
                unsigned expected, got;

                if (add && counts[i][tier] < 3) {
                        lookup_table_add(t, hashes[i], tier);
                        counts[i][tier]++;
                        words++;
                } else if (!add && counts[i][tier] > 0) {
                        lookup_table_remove(t, hashes[i], tier);
                        counts[i][tier]--;
                        words--;
                }
                for (unsigned k = 0; k < 4; k++) {
                        unsigned j = k == 0 ? i : (unsigned)(draw() % HASHES);

                        expected = (counts[j][1] ? 1u : 0u) | (counts[j][2] ? 2u : 0u);
                        got = find(t, hashes[j]);
                        assert_int_equal(got & ~expected & WIRE_TIER_ALL, 0);
                        if (!(got & LOOKUP_UNKNOWN))
                                assert_int_equal(got, expected);
                }
                assert_true(t->words + t->unplaced >= words || t->unplaced == 0);
        }
        assert_true(t->overflowed > 0 && t->stash_overflowed > 0);
        lookup_table_free(t);
}

/* Returns whether two pairs are the same, in any order. */
static bool is_same_pair(struct lookup_pair p, struct lookup_pair q)
{
        return (p.a == q.a && p.b == q.b) || (p.a == q.b && p.b == q.a);
}

static bool shares_a_bucket(struct lookup_pair p, struct lookup_pair q)
{
        return p.a == q.a || p.a == q.b || p.b == q.a || p.b == q.b;
}

/* Hashes of one tag that share a bucket share both, and those of the stash, too. */
static void hashes_of_one_tag_share_both_buckets_or_none(void **state)
{
        const uint32_t sizes[] = { 1, 2, 3, 7, 64, 1000, 65537, UINT32_MAX / 2 };
        unsigned shared = 0, stashes_shared = 0;

        for (unsigned s = 0; s < ARRAY_SIZE(sizes); s++)
                for (unsigned i = 0; i < 20000; i++) {
                        uint32_t n = sizes[s], n_stash = 1 + (uint32_t)(draw() % MIN(n, 50U));
                        uint64_t one = draw(), other = (draw() << 32) | (uint32_t)one;
                        struct lookup_pair p = lookup_main(one, n), q = lookup_main(other, n);
                        struct lookup_pair in_stash = lookup_stash(one, n, n_stash),
                                           others = lookup_stash(other, n, n_stash);

                        assert_true(p.a < n && p.b < n);
                        assert_true(in_stash.a >= n && in_stash.a < n + n_stash);
                        assert_true(in_stash.b >= n && in_stash.b < n + n_stash);
                        assert_int_equal(lookup_other(p.b, lookup_tag(one), n), p.a);
                        assert_true(is_same_pair(p, q) || !shares_a_bucket(p, q));
                        assert_true(is_same_pair(in_stash, others) ||
                                    !shares_a_bucket(in_stash, others));
                        if (is_same_pair(p, q))
                                assert_true(is_same_pair(in_stash, others));
                        shared += is_same_pair(p, q);
                        stashes_shared += is_same_pair(in_stash, others) && !is_same_pair(p, q);
                }
        assert_true(shared > 20000 && stashes_shared > 1000);
}

/* Keys have few tags, so that many of their words are equal. Whatever is removed, a key that is
 * present is found in its tiers. */
static void equal_words_of_other_keys_hide_none(void **state)
{
        enum { HASHES = 3000, STEPS = SANITIZES_THREADS ? 50000 : 200000, TAGS = 5 };
        static uint64_t hashes[HASHES];
        static bool is_in[HASHES][3];
        struct lookup_table *t = table_of(150);
        unsigned unknown = 0;

        memset(is_in, 0, sizeof(is_in));
        for (unsigned i = 0; i < HASHES; i++)
                hashes[i] = (draw() << 32) | (uint32_t)(i % TAGS) * 0x2fedcba8;
        for (unsigned step = 0; step < STEPS; step++) {
                unsigned i = (unsigned)(draw() % HASHES), tier = 1 + (unsigned)(draw() >> 40) % 2;
                bool add = draw() % 100 < (step / 20000 % 2 ? 30u : 70u);

                if (add && !is_in[i][tier])
                        lookup_table_add(t, hashes[i], tier);
                else if (!add && is_in[i][tier])
                        lookup_table_remove(t, hashes[i], tier);
                is_in[i][tier] = add;
                for (unsigned k = 0; k < 8; k++) {
                        unsigned j = k == 0 ? i : (unsigned)(draw() % HASHES);
                        unsigned expected = (is_in[j][1] ? 1u : 0u) | (is_in[j][2] ? 2u : 0u);
                        unsigned got = find(t, hashes[j]);

                        assert_true(got & LOOKUP_UNKNOWN || (got & expected) == expected);
                        unknown += (got & LOOKUP_UNKNOWN) != 0;
                }
        }
        assert_true(t->overflowed > 0 && t->stash_overflowed > 0 && unknown > 0);
        lookup_table_free(t);
}

/* --- a reader beside the writer --- */

enum { MOVERS = 64, MOVES = 60000 };

struct race {
        struct lookup_table *t;
        uint64_t hashes[MOVERS];
        int done;
        uint64_t wrong;
};

static void *reader(void *userdata)
{
        struct race *r = userdata;
        struct lookup_view v = view_of(r->t);

        while (!__atomic_load_n(&r->done, __ATOMIC_ACQUIRE))
                for (unsigned i = 0; i < MOVERS; i++) {
                        unsigned found = lookup_find_surely(&v, r->hashes[i], lookup_removals(&v));

                        if (found == 0)
                                __atomic_add_fetch(&r->wrong, 1, __ATOMIC_RELAXED);
                }
        return NULL;
}

/* Each key is always in a tier, and moves between them as fast as possible, among others that fill
 * and empty its buckets. */
static void what_moves_between_tiers_is_never_absent(void **state)
{
        static struct race r;
        unsigned tier[MOVERS];
        uint64_t others[256] = { 0 };
        pthread_t threads[2];

        r = (struct race){ .t = table_of(16) };
        for (unsigned i = 0; i < MOVERS; i++) {
                r.hashes[i] = draw();
                tier[i] = WIRE_TIER_MEMORY;
                lookup_table_add(r.t, r.hashes[i], tier[i]);
        }
        assert_int_equal(r.t->unplaced, 0);
        for (unsigned i = 0; i < ARRAY_SIZE(threads); i++)
                assert_int_equal(pthread_create(&threads[i], NULL, reader, &r), 0);
        for (unsigned n = 0; n < MOVES; n++) {
                unsigned i = (unsigned)(draw() % MOVERS), k = (unsigned)(draw() % 64);

                lookup_table_add(r.t, r.hashes[i], tier[i] ^ WIRE_TIER_ALL);
                lookup_table_remove(r.t, r.hashes[i], tier[i]);
                tier[i] ^= WIRE_TIER_ALL;
                if (others[k])
                        lookup_table_remove(r.t, others[k], WIRE_TIER_DISK);
                others[k] = others[k] ? 0 : draw();
                if (others[k])
                        lookup_table_add(r.t, others[k], WIRE_TIER_DISK);
        }
        __atomic_store_n(&r.done, 1, __ATOMIC_RELEASE);
        for (unsigned i = 0; i < ARRAY_SIZE(threads); i++)
                assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(r.wrong, 0);
        lookup_table_free(r.t);
}

/* --- checks of a reader --- */

static void a_header_that_makes_no_sense_is_refused(void **state)
{
        struct lookup_table *t = table_of(64);
        struct lookup_header good = *t->header, h;
        struct lookup_view v;
        char *copy = malloc(t->backing.bytes);
        const uint64_t bytes = t->backing.bytes;

        assert_non_null(copy);
        memcpy(copy, t->header, bytes);
        assert_true(lookup_view_init(&v, copy, bytes));
#define REFUSED(change)                                                                            \
        do {                                                                                       \
                h = good;                                                                          \
                change;                                                                            \
                memcpy(copy, &h, sizeof(h));                                                       \
                assert_false(lookup_view_init(&v, copy, bytes));                                   \
        } while (0)
        REFUSED(h.magic++);
        REFUSED(h.version = 1);
        REFUSED(h.version = 3);
        REFUSED(h.header_bytes = 64);
        REFUSED(h.header_bytes = 8192);
        REFUSED(h.bytes += 64);
        REFUSED(h.bytes -= 64);
        REFUSED(h.n_buckets++);
        REFUSED(h.n_buckets--);
        REFUSED(h.n_buckets = 0);
        REFUSED(h.n_stash = 0);
        REFUSED((h.n_buckets += h.n_stash, h.n_stash = 0));
        REFUSED(h.n_buckets = UINT32_MAX);
        REFUSED(h.n_stash = UINT32_MAX);
        REFUSED((h.n_buckets = UINT32_MAX, h.n_stash = good.n_buckets + good.n_stash + 1));
#undef REFUSED
        memcpy(copy, &good, sizeof(good));
        for (uint64_t n = 0; n < bytes; n += n < 4096 ? 1 : 64)
                assert_false(lookup_view_init(&v, copy, n));
        assert_true(lookup_view_init(&v, copy, bytes));
        free(copy);
        lookup_table_free(t);
}

/* A lookup ends and stays within the table with any words. */
static void words_of_any_kind_do_no_harm(void **state)
{
        struct lookup_table *t = table_of(64);
        struct lookup_view v = view_of(t);

        for (unsigned round = 0; round < 50; round++) {
                for (uint64_t i = 0; i < ((uint64_t)t->n_buckets + t->n_stash) * LOOKUP_WORDS; i++)
                        t->buckets[i / LOOKUP_WORDS].words[i % LOOKUP_WORDS] =
                                (uint32_t)draw() | (round % 2 ? LOOKUP_OVERFLOW : 0);
                for (unsigned i = 0; i < 1000; i++)
                        assert_true(lookup_find_surely(&v, draw(), draw()) < 8);
        }
        lookup_table_free(t);
}

static void no_process_can_write_to_it_but_the_writer(void **state)
{
        struct lookup_table *t = table_of(64);
        int seals = fcntl(t->backing.fd, F_GET_SEALS);
        char byte = 0;

        assert_int_equal(fcntl(t->backing.fd, F_GETFL) & O_ACCMODE, O_RDONLY);
        assert_int_equal(seals & 0x17, 0x17);
        assert_int_equal(pwrite(t->backing.fd, &byte, 1, 0), -1);
        assert_true(mmap(NULL, 4096, PROT_WRITE, MAP_SHARED, t->backing.fd, 0) == MAP_FAILED);
        lookup_table_free(t);
}

/* --- hashes: what proto/README.md says, in numbers --- */

static void a_namespaces_secret_comes_from_its_name(void **state)
{
        struct key_secret table = { { 1, 2 } }, s, other;
        struct key key;
        char name[256];

        memset(key.bytes, 0xaa, sizeof(key.bytes));
        lookup_namespace_secret(&table, "t", 1, &s);
        assert_int_equal(s.words[0], UINT64_C(0x103d31c6bac883d4));
        assert_int_equal(s.words[1], UINT64_C(0xf265197671f113ba));
        assert_int_equal(lookup_hash(&s, &key), UINT64_C(0xccbe628a518365c8));

        memset(name, 'x', sizeof(name));
        lookup_namespace_secret(&table, name, 100, &s);
        assert_int_equal(s.words[0], UINT64_C(0x1bfda09cd73157ea));
        assert_int_equal(s.words[1], UINT64_C(0xfc303264f93c79fa));
        for (size_t a = 1; a < sizeof(name); a++)
                for (size_t b = a + 1; b < sizeof(name); b += 31) {
                        lookup_namespace_secret(&table, name, a, &s);
                        lookup_namespace_secret(&table, name, b, &other);
                        assert_memory_not_equal(&s, &other, sizeof(s));
                }
        lookup_namespace_secret(&table, "a", 1, &s);
        lookup_namespace_secret(&table, "a\0", 2, &other);
        assert_memory_not_equal(&s, &other, sizeof(s));
        table.words[1]++;
        lookup_namespace_secret(&table, "a", 1, &other);
        assert_memory_not_equal(&s, &other, sizeof(s));
}

/* --- over a pool and a store --- */

enum { KEYS = 600, LENGTH = 5000 };

static struct tiers t;
static struct lookups *lookups;
static uint64_t available;
static uint32_t ns_b; /* a second namespace of the tenant */

static uint64_t say_available(void *userdata)
{
        return available;
}

static int setup(void **state)
{
        t = (struct tiers){ .limit = 64 << 20 };
        tiers_open(&t);
        ns_b = tiers_namespace(&t, "b");
        available = UINT64_MAX;
        assert_int_equal(lookups_new(&lookups,
                                     &(struct lookups_params){
                                             .store = t.store,
                                             .io = t.io,
                                             .tenants = &(struct lookups_tenant){ .pool = t.pool },
                                             .n_tenants = 1,
                                             .available = say_available,
                                             .min_buckets = 8,
                                     }),
                         0);
        return 0;
}

static int teardown(void **state)
{
        lookups_stop(lookups);
        tiers_settle(&t);
        while (kio_pending(t.io) > 0) {
                tiers_wait_io(&t);
                kio_reap(t.io);
        }
        lookups = lookups_free(lookups);
        tiers_remove(&t);
        return 0;
}

struct asked {
        struct lookup_wait wait;
        unsigned completed;
};

static void on_answer(struct lookup_wait *wait)
{
        container_of(wait, struct asked, wait)->completed++;
}

static int ask(struct asked *a)
{
        *a = (struct asked){ .wait = { .complete = on_answer } };
        list_init(&a->wait.node);
        return lookups_ask(lookups, 0, &a->wait);
}

/* Runs one step of the build, however fast the machine is. */
static bool step(void)
{
        bool more;

        kio_reap(t.io);
        more = lookups_iterate(lookups, clock_mono_ns(), 0);
        kio_flush(t.io);
        return more;
}

static void build(void)
{
        struct asked a;

        if (ask(&a) == 0)
                return;
        while (a.completed == 0)
                step();
        assert_int_equal(a.wait.result, 0);
}

static struct lookups_stats stats(void)
{
        struct lookups_stats s;

        lookups_get_stats(lookups, &s);
        return s;
}

/* A client's view of the index. */
struct reading {
        void *base;
        uint64_t bytes;
        struct lookup_view view;
        struct key_secret secrets[2]; /* secrets of the two namespaces */
};

static void reading_open(struct reading *r)
{
        int fd = lookups_fd(lookups, 0, &r->bytes);

        assert_true(fd >= 0);
        r->base = mmap(NULL, r->bytes, PROT_READ, MAP_SHARED, fd, 0);
        assert_true(r->base != MAP_FAILED);
        assert_true(lookup_view_init(&r->view, r->base, r->bytes));
        lookup_namespace_secret(&r->view.secret, "a", 1, &r->secrets[0]);
        lookup_namespace_secret(&r->view.secret, "b", 1, &r->secrets[1]);
}

static void reading_close(struct reading *r)
{
        munmap(r->base, r->bytes);
}

static struct key key_of(uint32_t n)
{
        struct key k = { .bytes = { 'l', 'u' } };

        memcpy(k.bytes + 4, &n, sizeof(n));
        return k;
}

static uint32_t namespace_of(uint32_t n)
{
        return n % 5 == 0 ? ns_b : t.ns;
}

static uint64_t hash_of(uint32_t n)
{
        struct key k = key_of(n);

        return cache_hash(t.cache, namespace_of(n), &k);
}

/* Checks that the index has exactly the keys that the cache finds. */
static void assert_is_truth(const struct reading *r, uint32_t keys)
{
        for (uint32_t n = 0; n < keys; n++) {
                struct key k = key_of(n);
                unsigned truth = cache_find(t.cache, namespace_of(n), &k, hash_of(n), NULL, NULL);
                unsigned found =
                        lookup_find_surely(&r->view, lookup_hash(&r->secrets[n % 5 == 0], &k),
                                           lookup_removals(&r->view));

                assert_int_equal(found & ~truth & WIRE_TIER_ALL, 0);
                if (!(found & LOOKUP_UNKNOWN))
                        assert_int_equal(found, truth);
        }
}

static void assert_live_is_truth(uint32_t keys)
{
        struct reading r;

        reading_open(&r);
        assert_int_equal(lookup_state(&r.view), LOOKUP_LIVE);
        assert_is_truth(&r, keys);
        reading_close(&r);
}

struct req {
        struct cache_request req;
        bool done;
};

static char bytes[LENGTH];

static void on_cached(struct cache_request *req)
{
        if (req->chunk != POOL_NONE)
                cache_unpin(t.cache, req->chunk);
        container_of(req, struct req, req)->done = true;
}

static void start(struct req *r, uint32_t n)
{
        *r = (struct req){
                .req = {
                        .namespace_id = namespace_of(n),
                        .key = key_of(n),
                        .hash = hash_of(n),
                        .deadline_ns = clock_mono_ns() + 60000000000u,
                        .complete = on_cached,
                },
        };
}

static void put(uint32_t n, enum cache_ack ack)
{
        struct req r;

        start(&r, n);
        r.req.memory = bytes;
        r.req.length = LENGTH;
        r.req.ack = ack;
        cache_put(t.cache, &r.req);
        kio_flush(t.io);
        tiers_wait(&t, &r.done);
}

static void get(uint32_t n)
{
        struct req r;

        start(&r, n);
        cache_get(t.cache, &r.req);
        kio_flush(t.io);
        tiers_wait(&t, &r.done);
}

static void evict(uint32_t n, bool memory_only)
{
        struct key k = key_of(n);

        (void)cache_evict(t.cache, namespace_of(n), &k, hash_of(n), memory_only);
}

static void purged(struct cache_purge *req)
{
        *(bool *)((char *)req + sizeof(*req)) = true;
}

static void purge(uint32_t ns)
{
        struct {
                struct cache_purge req;
                bool done;
        } p = { .req = { .store.namespace_id = ns, .complete = purged } };

        cache_purge(t.cache, &p.req);
        tiers_wait(&t, &p.done);
}

static void forgotten(struct pool_purge *purge)
{
        *(bool *)((char *)purge + sizeof(*purge)) = true;
}

static void forget(void)
{
        struct {
                struct pool_purge purge;
                bool done;
        } f = { .purge = { .complete = forgotten } };

        cache_forget(t.cache, &f.purge);
        tiers_wait(&t, &f.done);
}

/* Sends any request to any client. */
static void change(uint32_t keys)
{
        uint32_t n = (uint32_t)(draw() % keys);

        switch (draw() % 8) {
        case 0:
        case 1:
        case 2:
                put(n, CACHE_ACCEPTED);
                break;
        case 3:
                put(n, CACHE_WRITTEN);
                break;
        case 4:
                evict(n, true);
                break;
        case 5:
                evict(n, false);
                break;
        default:
                get(n);
                break;
        }
}

static void there_is_none_until_somebody_asks(void **state)
{
        struct asked a;

        for (uint32_t n = 0; n < 20; n++)
                put(n, CACHE_WRITTEN);
        for (int i = 0; i < 10; i++)
                assert_false(step());
        assert_int_equal(lookups_fd(lookups, 0, &(uint64_t){ 0 }), -1);
        assert_int_equal(stats().bytes, 0);
        assert_int_equal(ask(&a), LOOKUP_WAIT);
        step();
        assert_int_equal(stats().building, 1);
        while (a.completed == 0)
                step();
        assert_int_equal(stats().building, 0);
        assert_int_equal(a.completed, 1);
        assert_int_equal(a.wait.result, 0);
        assert_int_equal(stats().tables, 1);
        assert_int_equal(stats().builds, 1);
        assert_true(stats().bytes > 0);
        assert_int_equal(ask(&a), 0);
        assert_live_is_truth(40);
}

static void it_is_kept_up(void **state)
{
        struct reading r;

        build();
        reading_open(&r);
        assert_is_truth(&r, KEYS);
        for (unsigned i = 0; i < 300; i++) {
                change(20);
                assert_is_truth(&r, 20);
        }
        purge(t.ns);
        assert_is_truth(&r, 20);
        purge(ns_b);
        assert_is_truth(&r, 20);
        tiers_settle(&t);
        assert_int_equal(stats().entries, 0);
        for (uint32_t n = 0; n < 20; n++)
                put(n, CACHE_WRITTEN);
        forget();
        assert_is_truth(&r, 20);
        reading_close(&r);
}

/* The index follows evictions by the pool and by the store. */
static void it_follows_evictions(void **state)
{
        struct reading r;
        struct store_stats store;
        struct pool_stats pool;
        uint32_t n = 0;

        build();
        reading_open(&r);
        do {
                for (uint32_t end = n + 200; n < end; n++)
                        put(n, CACHE_WRITTEN);
                store_get_stats(t.store, &store);
                pool_get_stats(t.pool, &pool);
        } while (n < 20000 && (pool.evictions == 0 || store.evictions == 0));
        assert_true(pool.evictions > 0 && store.evictions > 0);
        assert_is_truth(&r, n);
        assert_true(stats().entries + stats().unplaced == store.chunks + pool.chunks ||
                    stats().unplaced > 0);
        reading_close(&r);
}

static void a_build_misses_nothing_that_happens_meanwhile(void **state)
{
        for (uint32_t n = 0; n < KEYS; n += 2)
                put(n, CACHE_WRITTEN);
        for (unsigned round = 0; round < 8; round++) {
                struct asked a;
                unsigned steps = 0;

                lookups_free(lookups);
                assert_int_equal(
                        lookups_new(&lookups,
                                    &(struct lookups_params){
                                            .store = t.store,
                                            .io = t.io,
                                            .tenants = &(struct lookups_tenant){ .pool = t.pool },
                                            .n_tenants = 1,
                                            .min_buckets = 8,
                                    }),
                        0);
                assert_int_equal(ask(&a), LOOKUP_WAIT);
                while (a.completed == 0) {
                        step();
                        for (unsigned i = draw() % 12; i > 0; i--)
                                change(KEYS);
                        steps++;
                }
                assert_true(steps > 8); /* the build was interrupted */
                assert_live_is_truth(KEYS);
        }
}

static void one_that_is_full_is_replaced_and_says_so(void **state)
{
        struct reading r;
        uint64_t builds;

        build();
        builds = stats().builds;
        reading_open(&r);
        for (uint32_t n = 0; n < KEYS; n++) {
                put(n, CACHE_WRITTEN);
                if (lookup_state(&r.view) == LOOKUP_SUPERSEDED) {
                        reading_close(&r);
                        reading_open(&r);
                        assert_int_equal(lookup_state(&r.view), LOOKUP_LIVE);
                }
                assert_is_truth(&r, n + 1);
                step();
        }
        while (step())
                ;
        assert_true(stats().builds > builds + 2);
        assert_int_equal(stats().tables, 1);
        assert_int_equal(stats().building, 0);
        reading_close(&r);
        assert_live_is_truth(KEYS);
        assert_int_equal(stats().unplaced, 0);
}

static uint64_t calls(void)
{
        struct kio_stats io;

        kio_get_stats(t.io, &io);
        return io.ops[KIO_CALL];
}

/* Freeing a large table takes milliseconds. */
static void a_table_that_was_replaced_is_freed_off_the_loop(void **state)
{
        uint64_t before;

        for (uint32_t n = 0; n < KEYS; n++)
                put(n, CACHE_WRITTEN);
        build();
        purge(t.ns);
        tiers_settle(&t);
        before = calls();
        lookups_tick(lookups, clock_mono_ns() + UINT64_C(61) * 1000000000);
        while (stats().builds < 2)
                step();
        while (kio_pending(t.io) > 0) {
                tiers_wait_io(&t);
                kio_reap(t.io);
        }
        assert_int_equal(calls() - before, 2); /* a single allocation for the memory of the new
                                                  table */
}

static void one_that_is_nearly_empty_is_replaced_by_a_smaller_one(void **state)
{
        uint64_t bytes_before;

        for (uint32_t n = 0; n < KEYS; n++)
                put(n, CACHE_WRITTEN);
        build();
        bytes_before = stats().bytes;
        purge(t.ns);
        lookups_tick(lookups, clock_mono_ns());
        assert_false(step()); /* not at once */
        lookups_tick(lookups, clock_mono_ns() + UINT64_C(61) * 1000000000);
        while (stats().builds < 2)
                step();
        assert_true(stats().bytes < bytes_before);
        assert_live_is_truth(KEYS);
}

static void without_memory_the_waiters_are_answered(void **state)
{
        struct asked a;
        struct reading r;
        uint64_t failed_ns;

        available = 4096;
        assert_int_equal(ask(&a), LOOKUP_WAIT);
        failed_ns = clock_mono_ns(); /* at the earliest */
        while (a.completed == 0)
                step();
        assert_int_equal(a.wait.result, -ENOMEM);
        assert_int_equal(stats().failed, 1);
        assert_int_equal(stats().bytes, 0);
        /* A request that arrives soon afterwards waits for the next attempt instead of causing
         * one. */
        assert_int_equal(ask(&a), LOOKUP_WAIT);
        for (unsigned i = 0; i < 1000; i++)
                (void)lookups_iterate(lookups, failed_ns + i, 0);
        assert_int_equal(stats().failed, 1);
        assert_int_equal(a.completed, 0);
        lookups_cancel(&a.wait);

        /* A table that cannot grow stays, and reports no stored key as absent. */
        available = UINT64_MAX;
        build();
        available = 4096;
        reading_open(&r);
        for (uint32_t n = 0; n < KEYS; n++) {
                put(n, CACHE_WRITTEN);
                step();
        }
        assert_int_equal(stats().failed, 2); /* and is not retried all the time */
        assert_true(stats().unplaced > 0);
        assert_true(stats().overflowed > 0 && stats().overflowed <= stats().buckets);
        assert_int_equal(lookup_state(&r.view), LOOKUP_LIVE);
        assert_is_truth(&r, KEYS);
        reading_close(&r);
}

static void a_client_that_ends_waits_no_more(void **state)
{
        struct asked a, b, c;

        assert_int_equal(ask(&a), LOOKUP_WAIT);
        assert_int_equal(ask(&b), LOOKUP_WAIT);
        step();
        lookups_cancel(&a.wait);
        assert_int_equal(a.completed, 1);
        assert_int_equal(a.wait.result, -ECANCELED);
        assert_int_equal(b.completed, 0);
        lookups_stop(lookups);
        assert_int_equal(b.completed, 1);
        assert_int_equal(b.wait.result, -ESHUTDOWN);
        assert_int_equal(ask(&c), -ESHUTDOWN);
        for (int i = 0; i < 100; i++)
                assert_false(step());
        assert_int_equal(a.completed + b.completed, 2);
}

static void clients_of_a_daemon_that_stops_see_it(void **state)
{
        struct reading r;

        build();
        reading_open(&r);
        lookups_stop(lookups);
        put(1, CACHE_WRITTEN); /* accepted chunks are still written */
        assert_is_truth(&r, KEYS);
        lookups = lookups_free(lookups);
        assert_int_equal(lookup_state(&r.view), LOOKUP_SUPERSEDED);
        put(2, CACHE_WRITTEN); /* no table sees it */
        reading_close(&r);
        assert_int_equal(lookups_new(&lookups,
                                     &(struct lookups_params){
                                             .store = t.store,
                                             .io = t.io,
                                             .tenants = &(struct lookups_tenant){ .pool = t.pool },
                                             .n_tenants = 1,
                                     }),
                         0);
}

static void the_clock_is_written_by_the_tick(void **state)
{
        struct reading r;
        uint64_t now = clock_mono_ns();

        build();
        reading_open(&r);
        assert_true(lookup_clock_ms(&r.view) >= now / 1000000);
        lookups_tick(lookups, now + UINT64_C(5000) * 1000000);
        assert_int_equal(lookup_clock_ms(&r.view), now / 1000000 + 5000);
        reading_close(&r);
}

/* The index has no word of another tenant's chunks. */
static void a_tenant_has_its_own(void **state)
{
        struct lookups_tenant both[] = { { .store_tenant = 0, .pool = t.pool },
                                         { .store_tenant = 1, .pool = NULL } };
        struct asked a = { .wait = { .complete = on_answer } };
        struct pool *other;
        uint64_t n_bytes;

        assert_int_equal(pool_new(&other, 16 << 20, "lru"), 0);
        both[1].pool = other;
        for (uint32_t n = 0; n < 50; n++)
                put(n, CACHE_WRITTEN);
        lookups_free(lookups);
        assert_int_equal(lookups_new(&lookups,
                                     &(struct lookups_params){
                                             .store = t.store,
                                             .io = t.io,
                                             .tenants = both,
                                             .n_tenants = 2,
                                             .min_buckets = 8,
                                     }),
                         0);
        list_init(&a.wait.node);
        assert_int_equal(lookups_ask(lookups, 1, &a.wait), LOOKUP_WAIT);
        while (a.completed == 0)
                step();
        assert_int_equal(a.wait.result, 0);
        assert_int_equal(stats().tables, 1);
        assert_int_equal(stats().entries, 0);
        for (uint32_t n = 50; n < 80; n++)
                put(n, CACHE_WRITTEN);
        assert_int_equal(stats().entries, 0);
        assert_int_equal(lookups_fd(lookups, 0, &n_bytes), -1);
        build();
        assert_int_equal(stats().tables, 2);
        assert_int_equal(stats().entries, 160);
        assert_live_is_truth(100);
        lookups_stop(lookups);
        lookups = lookups_free(lookups);
        pool_free(other);
        assert_int_equal(lookups_new(&lookups,
                                     &(struct lookups_params){
                                             .store = t.store,
                                             .io = t.io,
                                             .tenants = both,
                                             .n_tenants = 1,
                                     }),
                         0);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(an_empty_table_has_nothing),
                cmocka_unit_test(each_tier_has_a_word_of_its_own),
                cmocka_unit_test(a_word_that_was_put_twice_is_there_until_it_was_taken_twice),
                cmocka_unit_test(what_finds_no_place_is_not_called_absent),
                cmocka_unit_test(a_table_at_rest_places_nearly_all),
                cmocka_unit_test(a_table_is_a_multiset_whatever_happens),
                cmocka_unit_test(hashes_of_one_tag_share_both_buckets_or_none),
                cmocka_unit_test(equal_words_of_other_keys_hide_none),
                cmocka_unit_test(what_moves_between_tiers_is_never_absent),
                cmocka_unit_test(a_header_that_makes_no_sense_is_refused),
                cmocka_unit_test(words_of_any_kind_do_no_harm),
                cmocka_unit_test(no_process_can_write_to_it_but_the_writer),
                cmocka_unit_test(a_namespaces_secret_comes_from_its_name),
#define OVER_TIERS(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
                OVER_TIERS(there_is_none_until_somebody_asks),
                OVER_TIERS(it_is_kept_up),
                OVER_TIERS(it_follows_evictions),
                OVER_TIERS(a_build_misses_nothing_that_happens_meanwhile),
                OVER_TIERS(one_that_is_full_is_replaced_and_says_so),
                OVER_TIERS(a_table_that_was_replaced_is_freed_off_the_loop),
                OVER_TIERS(one_that_is_nearly_empty_is_replaced_by_a_smaller_one),
                OVER_TIERS(without_memory_the_waiters_are_answered),
                OVER_TIERS(a_client_that_ends_waits_no_more),
                OVER_TIERS(clients_of_a_daemon_that_stops_see_it),
                OVER_TIERS(the_clock_is_written_by_the_tick),
                OVER_TIERS(a_tenant_has_its_own),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

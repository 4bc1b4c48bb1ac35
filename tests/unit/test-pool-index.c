/* SPDX-License-Identifier: Apache-2.0 */
/* The pool index over a real pool: clients find the chunks in memory there, held chunks stay at
 * their place, and a lying client harms only itself. The client's side is written out here, from
 * proto/pool-index.h. */
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
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "cache/pool.h"
#include "checked.h"
#include "lookup/pool-index.h"
#include "lookup/pool-judge.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

enum { KIB = 1 << 10, MIB = 1 << 20, POOL = 16 * MIB, CLIENTS = 128, UID = 1000, OTHER_UID = 1001 };
#define SECOND      UINT64_C(1000000000)
#define MILLISECOND (SECOND / 1000)

/* --- the clock --- */

static uint64_t now_ns;
int __wrap_clock_gettime(clockid_t which, struct timespec *ret);
int __real_clock_gettime(clockid_t which, struct timespec *ret);

int __wrap_clock_gettime(clockid_t which, struct timespec *ret)
{
        if (which != CLOCK_MONOTONIC || now_ns == 0)
                return __real_clock_gettime(which, ret);
        *ret = (struct timespec){ .tv_sec = (time_t)(now_ns / SECOND),
                                  .tv_nsec = (long)(now_ns % SECOND) };
        return 0;
}

/* --- the pool's guard --- */

static const struct pool_guard *guard; /* the index */
void __wrap_pool_set_guard(struct pool *p, const struct pool_guard *g);
void __real_pool_set_guard(struct pool *p, const struct pool_guard *g);

void __wrap_pool_set_guard(struct pool *p, const struct pool_guard *g)
{
        guard = g;
        __real_pool_set_guard(p, g);
}

/* Does nothing: these tests need slabs that clients can hold all of. test-pool-private.c has
 * private slabs. */
void __wrap_pool_make_slabs_private(struct pool *p);

void __wrap_pool_make_slabs_private(struct pool *p)
{
}

/* --- a pool, its index, and clients --- */

static struct pool *pool;
static struct pool_index *pi;
static struct pool_client clients[CLIENTS];
static struct pool_page *pages[CLIENTS]; /* the clients' own mappings */
static void *map;
static uint64_t map_bytes;
static struct pool_index_view view;

static int setup(void **state)
{
        uint64_t huge;

        now_ns = 1000 * SECOND;
        assert_int_equal(pool_new(&pool, POOL, "lru"), 0);
        while (pool_next_slab(pool) >= 0) {
                uint64_t bytes = pool_slab_bytes(pool);

                assert_int_equal(
                        pool_populate(pool, (uint64_t)pool_next_slab(pool) * bytes, bytes, &huge),
                        0);
                assert_int_equal(pool_open_slab(pool, 0), 0);
        }
        assert_int_equal(pool_index_new(&pi, pool, NULL), 0);
        return 0;
}

/* Lets the last reading of the holds expire. */
static void pass_time(void)
{
        now_ns += 2 * MILLISECOND;
}

static void leave(unsigned i)
{
        if (pages[i])
                munmap(pages[i], POOL_PAGE_BYTES);
        pages[i] = NULL;
        pool_index_leave(&clients[i]);
        pass_time();
}

static int teardown(void **state)
{
        for (unsigned i = 0; i < CLIENTS; i++)
                leave(i);
        if (map)
                munmap(map, map_bytes);
        map = NULL;
        assert_null(pool_index_free(pi));
        pool_free(pool);
        now_ns = 0;
        return 0;
}

static struct pool_index_stats stats(void)
{
        struct pool_index_stats s;

        pool_index_get_stats(pi, &s);
        return s;
}

static int join_as(unsigned i, uid_t uid, uint64_t most)
{
        int fd, page_fd, r;
        uint64_t bytes;

        r = pool_index_join(pi, &clients[i], uid, most, &fd, &bytes, &page_fd);
        if (r < 0)
                return r;
        pages[i] = mmap(NULL, POOL_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, page_fd, 0);
        assert_true(pages[i] != MAP_FAILED);
        close(page_fd);
        if (!map) {
                map_bytes = bytes;
                map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
                assert_true(map != MAP_FAILED);
                assert_true(pool_index_view_init(&view, map, bytes));
        }
        return 0;
}

/* Joins the first client: namespace 1 is its number 1, and 2 its number 2. */
static void join(unsigned i)
{
        assert_int_equal(join_as(i, UID, POOL), 0);
        while (pool_index_iterate(pi))
                ;
        pool_index_allow(&clients[i], 1, 1);
        pool_index_allow(&clients[i], 2, 2);
}

static struct key key_of(uint32_t n)
{
        struct key k = { { 1 } };

        memcpy(k.bytes + 4, &n, sizeof(n));
        return k;
}

static int acquire(uint32_t n, uint32_t length, uint32_t *ret)
{
        struct key k = key_of(n);

        return pool_acquire(pool, 1, &k, n, length, 0, ret);
}

static void commit(uint32_t chunk)
{
        pool_commit(pool, chunk, 0);
        pool_unpin(pool, chunk);
}

static uint32_t add(uint32_t n, uint32_t length)
{
        uint32_t chunk;

        assert_int_equal(acquire(n, length, &chunk), 0);
        memset(pool_at(pool, chunk), (int)(n & 0xff), length);
        commit(chunk);
        return chunk;
}

static bool is_there(uint32_t n)
{
        struct key k = key_of(n);

        return pool_find(pool, 1, &k, n) != POOL_NONE;
}

/* Finds a record as a client does; NULL: a client would ask the daemon. */
static const struct pool_index_record *find_as(uint64_t tag, uint32_t n)
{
        struct key k = key_of(n);
        uint64_t hash = pool_index_hash(&view.secret, tag, &k);
        struct pool_index_entry entry;
        unsigned at = 0;
        uint32_t number;

        while ((number = pool_index_find(&view, hash, false, &at)) != POOL_INDEX_NONE)
                if (pool_index_read(&view.records[number], tag, &k, &entry))
                        return &view.records[number];
        return NULL;
}

static const struct pool_index_record *find(uint32_t n)
{
        return find_as(pages[0]->tags[0], n);
}

static uint32_t chunk_of(uint32_t n)
{
        struct key k = key_of(n);
        uint32_t chunk = pool_find(pool, 1, &k, n);

        assert_int_not_equal(chunk, POOL_NONE);
        return chunk;
}

static void hold_raw(unsigned i, uint32_t bucket, uint32_t way, uint64_t hold)
{
        pages[i]->holds[bucket][way] = hold;
        pages[i]->used[bucket / 64] |= UINT64_C(1) << bucket % 64;
}

static uint64_t hold_of(uint32_t chunk)
{
        return pool_page_hold(chunk, pool_chunk(pool, chunk)->length);
}

static void hold(unsigned i, uint32_t chunk)
{
        uint32_t bucket = pool_page_bucket(chunk), way = 0;

        while (pages[i]->holds[bucket][way] != 0)
                assert_true(++way < POOL_PAGE_WAYS);
        hold_raw(i, bucket, way, hold_of(chunk));
}

static void let_go(unsigned i, uint32_t chunk)
{
        uint32_t bucket = pool_page_bucket(chunk), left = 0;

        for (uint32_t way = 0; way < POOL_PAGE_WAYS; way++) {
                uint64_t *hold = &pages[i]->holds[bucket][way];

                if (*hold >> 32 == chunk + 1)
                        *hold = 0;
                left += *hold != 0;
        }
        if (left == 0)
                pages[i]->used[bucket / 64] &= ~(UINT64_C(1) << bucket % 64);
        pass_time();
}

/* Makes a hold of no chunk, which counts with these bytes. */
static void hold_bytes(unsigned i, uint32_t way, uint32_t bytes)
{
        uint32_t none = pool_max_chunks(pool);

        hold_raw(i, pool_page_bucket(none), way, bytes == 0 ? 0 : pool_page_hold(none, bytes));
}

/* Drops a chunk that no client holds, so that its slot is free. */
static void drop(uint32_t chunk)
{
        pool_drop(pool, chunk);
        (void)pool_release_held(pool);
}

/* Fills the pool with chunks of 1 MiB, numbered from `first` on. */
enum { FULL = POOL / MIB };
static void fill(uint32_t first)
{
        for (uint32_t i = 0; i < FULL; i++)
                add(first + i, MIB);
}

/* Fills the pool with chunks of 4 KiB, numbered from 0 on; the first client holds the first
 * `held`. */
enum { ALL = POOL / 4096 };
static void fill_with_pages(uint32_t held)
{
        for (uint32_t i = 0; i < ALL; i++)
                add(i, 4096);
        for (uint32_t i = 0; i < held; i++)
                hold(0, chunk_of(i));
}

/* --- the index --- */

static void what_is_put_is_announced_until_it_leaves(void **state)
{
        const struct pool_index_record *r;
        uint32_t chunk, other;

        join(0);
        assert_null(find(1));
        assert_int_equal(acquire(1, MIB, &chunk), 0);
        assert_null(find(1));
        pool_commit(pool, chunk, 0);
        r = find(1);
        assert_ptr_equal(r, &view.records[chunk]);
        assert_int_equal(r->offset, pool_offset(pool, chunk));
        assert_int_equal(r->length, MIB);
        assert_int_equal(r->generation, pool_chunk(pool, chunk)->generation);
        assert_int_equal(stats().entries, 1);
        pool_unpin(pool, chunk);

        pool_drop(pool, chunk);
        assert_null(find(1));
        assert_int_equal(stats().entries, 0);
        assert_int_equal(pool_release_held(pool), 1);
        /* The record is used again, by another generation. */
        other = add(2, 3 * KIB);
        assert_int_equal(other, chunk);
        assert_null(find(1));
        r = find(2);
        assert_int_equal(r->length, 3 * KIB);
        assert_int_equal(r->generation, pool_chunk(pool, other)->generation);

        /* A chunk is dropped while it is filled, and pinned while it is dropped. */
        assert_int_equal(acquire(3, KIB, &chunk), 0);
        pool_drop(pool, chunk);
        commit(chunk);
        assert_null(find(3));
        chunk = add(4, KIB);
        pool_pin(pool, chunk);
        pool_drop(pool, chunk);
        assert_null(find(4));
        pool_unpin(pool, chunk);

        pool_drop(pool, other);
        pool_release_held(pool);
        fill(10);
        for (uint32_t i = 0; i < 2 * FULL; i++) {
                add(100 + i, MIB);
                assert_int_equal(stats().entries, FULL);
                for (uint32_t n = 10; n < 100 + 2 * FULL; n++)
                        assert_int_equal(find(n) != NULL, is_there(n));
        }
        assert_int_equal(stats().unplaced, 0);
}

static struct pool_purge purge;
static bool is_purged;

static void on_purged(struct pool_purge *p)
{
        is_purged = true;
}

static void the_index_is_filled_step_by_step_with_what_was_there_before(void **state)
{
        enum { CHUNKS = 1300 };
        unsigned steps = 1, found = 0;
        uint32_t chunk;

        assert_false(pool_index_iterate(pi)); /* there is none */
        assert_int_equal(stats().bytes, 0);
        for (uint32_t i = 0; i < CHUNKS; i++)
                add(i, 4096);
        assert_int_equal(acquire(5000, 4096, &chunk), 0); /* not yet there */
        assert_int_equal(join_as(0, UID, POOL), 0);
        pool_index_allow(&clients[0], 1, 1);
        assert_int_equal(stats().bytes, map_bytes);
        for (uint32_t i = 0; i < CHUNKS; i++)
                assert_null(find(i));
        assert_true(pool_index_iterate(pi));
        for (uint32_t i = 0; i < CHUNKS; i++)
                found += find(i) != NULL;
        assert_true(found > 0 && found < CHUNKS);
        /* Drops a chunk that the walk has yet to reach, and one that it has passed. */
        pool_drop(pool, 0);
        pool_drop(pool, CHUNKS - 1);
        add(CHUNKS, 4096);
        add(CHUNKS + 1, 4096);
        while (pool_index_iterate(pi))
                steps++;
        assert_true(steps >= 2 && steps < 20);
        for (uint32_t i = 0; i < CHUNKS + 2; i++)
                assert_int_equal(find(i) != NULL, is_there(i));
        assert_null(find(5000));
        commit(chunk);
        assert_non_null(find(5000));
        assert_int_equal(stats().entries, CHUNKS + 1);
        assert_false(pool_index_iterate(pi));
}

static void what_a_purge_has_still_to_drop_is_not_announced(void **state)
{
        for (uint32_t i = 0; i < 100; i++)
                add(i, 4096);
        is_purged = false;
        purge = (struct pool_purge){ .namespace_id = 1, .complete = on_purged };
        pool_purge(pool, &purge);
        assert_false(is_purged);
        join(0);
        for (uint32_t i = 0; i < 100; i++)
                assert_null(find(i));
        assert_false(pool_index_is_live(&view));
        add(7, KIB); /* put again, over a purged chunk */
        assert_int_equal(find(7)->length, KIB);
        while (!is_purged)
                pool_sweep(pool);
        assert_int_equal(find(7)->length, KIB);
        assert_int_equal(stats().entries, 1);

        purge = (struct pool_purge){ .namespace_id = 1, .complete = on_purged };
        is_purged = false;
        pool_purge(pool, &purge);
        while (!is_purged)
                pool_sweep(pool);
        assert_null(find(7));
}

/* A client cannot distinguish chunks that a purge has yet to drop. */
static void while_a_purge_is_under_way_clients_find_nothing(void **state)
{
        static struct pool_purge other;

        join(0);
        for (uint32_t i = 0; i < 100; i++)
                add(i, 4096);
        assert_true(pool_index_is_live(&view));
        purge = (struct pool_purge){ .namespace_id = 1, .complete = on_purged };
        other = (struct pool_purge){ .all = true, .complete = on_purged };
        pool_purge(pool, &purge);
        assert_false(pool_index_is_live(&view));
        assert_non_null(find(5));
        pool_purge(pool, &other);
        assert_false(pool_index_is_live(&view));
        while (pool_is_sweeping(pool)) {
                assert_false(pool_index_is_live(&view));
                pool_sweep(pool);
        }
        assert_true(pool_index_is_live(&view));
        for (uint32_t i = 0; i < 100; i++)
                assert_null(find(i));
        /* A purge of nothing, and one while the index is suspended for another reason. */
        pool_purge(pool, &purge);
        assert_true(pool_index_is_live(&view));
        add(5, 4096);
        pool_index_suspend(pi, true);
        pool_purge(pool, &purge);
        pool_index_suspend(pi, false);
        assert_false(pool_index_is_live(&view));
        while (pool_is_sweeping(pool))
                pool_sweep(pool);
        assert_true(pool_index_is_live(&view));
}

static void what_is_not_verified_yet_is_not_announced(void **state)
{
        struct pool_kept kept = { .key = key_of(1), .hash = 1, .namespace_id = 1, .length = 4096 };
        struct pool *own = pool;
        uint32_t chunk;
        int fd, page;
        uint64_t bytes;

        pool_index_free(pi);
        pool_free(own);
        assert_int_equal(pool_new(&pool, POOL, "lru"), 0);
        assert_int_equal(pool_keep_slab(pool, 4096), 0);
        assert_int_equal(pool_open_slab(pool, 0), 0);
        assert_int_equal(pool_keep_chunk(pool, &kept, &chunk), 0);
        assert_int_equal(pool_index_new(&pi, pool, NULL), 0);
        join(0);
        assert_null(find(1));
        pool_verify(pool, chunk);
        assert_non_null(find(1));
        assert_int_equal(pool_index_join(pi, &clients[1], UID, POOL, &fd, &bytes, &page), 0);
        assert_int_equal(bytes, map_bytes);
        close(page);
}

/* The keys share two buckets, and are as many as these have words. */
static void what_finds_no_place_is_asked_for(void **state)
{
        enum { KEYS = 24 };
        uint32_t keys[KEYS], n = 0, found = 0;
        int32_t placed = -1, unplaced = -1;

        join(0);
        for (uint32_t i = 0; n < KEYS; i++) {
                struct key k = key_of(i);
                struct lookup_pair p = pool_index_places(
                        pool_index_hash(&view.secret, pages[0]->tags[0], &k), view.n_buckets);

                if (p.a < 2 && p.b < 2)
                        keys[n++] = i;
        }
        for (uint32_t i = 0; i < KEYS; i++)
                add(keys[i], 4096);
        for (uint32_t i = 0; i < KEYS; i++) {
                assert_true(is_there(keys[i]));
                if (find(keys[i])) {
                        found++;
                        placed = (int32_t)i;
                } else {
                        unplaced = (int32_t)i;
                }
        }
        assert_true(found <= 2 * POOL_INDEX_WORDS && found >= POOL_INDEX_WORDS);
        assert_int_equal(stats().entries, found);
        assert_int_equal(stats().unplaced, KEYS - found);
        assert_true(placed >= 0 && unplaced >= 0);
        /* All keys are removed, whether they were in the index or not, and there is room again. */
        for (uint32_t i = 0; i < KEYS; i++) {
                struct key k = key_of(keys[i]);

                pool_drop(pool, pool_find(pool, 1, &k, keys[i]));
                assert_null(find(keys[i]));
        }
        assert_int_equal(stats().entries, 0);
        add(keys[unplaced], 4096);
        assert_non_null(find(keys[unplaced]));
}

static void while_it_is_suspended_it_says_so(void **state)
{
        pool_index_suspend(pi, true);
        join(0);
        add(1, KIB);
        assert_false(pool_index_is_live(&view));
        assert_non_null(find(1));
        pool_index_suspend(pi, true);
        pool_index_suspend(pi, false);
        assert_false(pool_index_is_live(&view));
        pool_index_suspend(pi, false);
        assert_true(pool_index_is_live(&view));
        pool_index_suspend(pi, true);
        assert_false(pool_index_is_live(&view));
}

static void files_are_sealed_and_the_index_is_read_only(void **state)
{
        const int always = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW;
        uint64_t bytes;
        struct stat st;
        int fd, page;

        assert_int_equal(pool_index_join(pi, &clients[0], UID, POOL, &fd, &bytes, &page), 0);
        assert_int_equal(fcntl(fd, F_GET_SEALS), always | F_SEAL_FUTURE_WRITE);
        assert_int_equal(fstat(fd, &st), 0);
        assert_int_equal(st.st_size, bytes);
        assert_ptr_equal(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
        assert_int_equal(fcntl(page, F_GET_SEALS), always);
        assert_int_equal(fstat(page, &st), 0);
        assert_int_equal(st.st_size, POOL_PAGE_BYTES);
        assert_int_equal(ftruncate(page, 0), -1);
        assert_int_equal(ftruncate(page, 2 * POOL_PAGE_BYTES), -1);
        close(page);
        assert_true(bytes <= POOL / 50);
}

/* --- the reader's view --- */

static void a_malformed_header_is_refused(void **state)
{
        enum { BUCKETS = 3, RECORDS = 5 };
        union {
                struct pool_index_header header;
                uint8_t bytes[POOL_INDEX_HEADER_BYTES + 4096];
        } *m = calloc(1, sizeof(*m));
        const struct pool_index_header good = {
                .magic = POOL_INDEX_MAGIC,
                .version = POOL_INDEX_VERSION,
                .header_bytes = POOL_INDEX_HEADER_BYTES,
                .bytes = sizeof(*m),
                .n_buckets = BUCKETS,
                .n_records = RECORDS,
                .secret = { { 7, 8 } },
        };
        struct pool_index_header bad[16];
        struct pool_index_view v;
        unsigned n = 0;

        assert_non_null(m);
        m->header = good;
        assert_true(pool_index_view_init(&v, m, sizeof(*m)));
        assert_int_equal(v.n_buckets, BUCKETS);
        assert_int_equal(v.n_records, RECORDS);
        assert_memory_equal(&v.secret, &good.secret, sizeof(v.secret));
        assert_ptr_equal(v.buckets, m->bytes + POOL_INDEX_HEADER_BYTES);
        assert_ptr_equal(v.records, (const uint8_t *)(v.buckets + BUCKETS));

        /* A header is valid if its arrays end with the last byte. */
        m->header.n_buckets = 4096 / 64 - RECORDS;
        assert_true(pool_index_view_init(&v, m, sizeof(*m)));

        for (; n < ARRAY_SIZE(bad); n++)
                bad[n] = good;
        n = 0;
        bad[n++].magic ^= 1;
        bad[n++].version++;
        bad[n++].version--;
        bad[n++].header_bytes = 128;
        bad[n++].header_bytes *= 2;
        bad[n++].bytes--;
        bad[n++].bytes++;
        bad[n++].bytes = 0;
        bad[n++].n_buckets = 0;
        bad[n++].n_buckets = 4096 / 64 - RECORDS + 1;
        bad[n++].n_buckets = UINT32_MAX;
        bad[n++].n_records = 0;
        bad[n++].n_records = 4096 / 64 - BUCKETS + 1;
        bad[n++].n_records = UINT32_MAX;
        bad[n++].n_records = UINT32_MAX - 1;
        for (unsigned i = 0; i < n; i++) {
                m->header = bad[i];
                assert_false(pool_index_view_init(&v, m, sizeof(*m)));
        }
        m->header = good;
        assert_false(pool_index_view_init(&v, m, sizeof(*m) - 4096));
        assert_false(pool_index_view_init(&v, m, sizeof(*m) - 1));
        /* Memory too short for a header is not read at all. */
        for (unsigned short_of = 0; short_of < 200; short_of += 50) {
                void *cut = malloc(short_of + 1);

                memcpy(cut, m, short_of);
                assert_false(pool_index_view_init(&v, cut, short_of));
                free(cut);
        }
        free(m);
}

/* Readers fetch the second bucket only for words that are not in the first one. */
static void a_word_is_in_its_first_bucket_while_that_is_half_empty(void **state)
{
        enum { N = 3000 };
        unsigned in_first = 0, in_second = 0;

        join(0);
        for (uint32_t n = 0; n < N; n++)
                add(n, 4 * KIB);
        for (uint32_t n = 0; n < N; n++) {
                struct key k = key_of(n);
                uint64_t hash = pool_index_hash(&view.secret, pages[0]->tags[0], &k);
                struct lookup_pair p = pool_index_places(hash, view.n_buckets);
                unsigned at = 0, used[2] = { 0 };

                assert_non_null(find(n));
                for (unsigned i = 0; i < POOL_INDEX_WORDS; i++) {
                        used[0] += view.buckets[p.a].words[i] != 0;
                        used[1] += view.buckets[p.b].words[i] != 0;
                }
                if (pool_index_find(&view, hash, true, &at) != POOL_INDEX_NONE) {
                        in_first++;
                        continue;
                }
                in_second++;
                assert_true(used[0] > POOL_INDEX_WORDS / 2);
                assert_true(used[1] > 0);
        }
        assert_int_equal(stats().unplaced, 0);
        assert_in_range(in_first, N * 3 / 4, N);
        assert_true(in_second > 0);
}

/* Any words of both buckets may have the compared half of the hash, or be free. */
static void candidates_are_those_of_any_contents(void **state)
{
        enum { RECORDS = 16, BUCKETS = 64, ROUNDS = 20000 };
        struct pool_index_bucket *buckets = aligned_alloc(64, BUCKETS * sizeof(*buckets));
        struct pool_index_view v = { .buckets = buckets,
                                     .n_buckets = BUCKETS,
                                     .n_records = RECORDS };
        static const uint32_t halves[] = { 0, 1, UINT32_C(0x80000000), UINT32_MAX };
        unsigned found = 0;

        assert_non_null(buckets);
        srandom(19);
        for (unsigned round = 0; round < ROUNDS; round++) {
                uint64_t upper = halves[random() % ARRAY_SIZE(halves)];
                uint64_t hash = upper << 32 | (uint32_t)random();
                struct lookup_pair p = pool_index_places(hash, BUCKETS);
                struct pool_index_bucket *both[] = { &buckets[p.a], &buckets[p.b] };
                unsigned at = 0, first_at = 0;

                for (unsigned i = 0; i < 2 * POOL_INDEX_WORDS; i++)
                        both[i / POOL_INDEX_WORDS]->words[i % POOL_INDEX_WORDS] =
                                (uint64_t)halves[random() % ARRAY_SIZE(halves)] << 32 |
                                (uint32_t)(random() % (RECORDS + 2));
                for (unsigned i = 0; i < 2 * POOL_INDEX_WORDS; i++) {
                        uint64_t word = both[i / POOL_INDEX_WORDS]->words[i % POOL_INDEX_WORDS];
                        uint32_t number = (uint32_t)word;

                        if (i == POOL_INDEX_WORDS && first_at < POOL_INDEX_WORDS) {
                                assert_int_equal(pool_index_find(&v, hash, true, &first_at),
                                                 POOL_INDEX_NONE);
                                assert_int_equal(first_at, POOL_INDEX_WORDS);
                        }
                        if (word >> 32 != upper || number == 0 || number > RECORDS)
                                continue;
                        assert_int_equal(pool_index_find(&v, hash, false, &at), number - 1);
                        assert_int_equal(at, i + 1);
                        if (first_at < POOL_INDEX_WORDS) {
                                assert_int_equal(pool_index_find(&v, hash, true, &first_at),
                                                 number - 1);
                                assert_int_equal(first_at, i + 1);
                        }
                        found++;
                }
                assert_int_equal(pool_index_find(&v, hash, false, &at), POOL_INDEX_NONE);
        }
        assert_true(found > ROUNDS);
        free(buckets);
}

/* Words with the same half of a hash are candidates, one after the other; invalid words are
 * none. */
static void each_candidate_is_found_once(void **state)
{
        enum { RECORDS = 10, BUCKETS = 8 };
        struct {
                struct pool_index_header header;
                uint8_t rest[POOL_INDEX_HEADER_BYTES - sizeof(struct pool_index_header)];
                struct pool_index_bucket buckets[BUCKETS];
                struct pool_index_record records[RECORDS];
                uint8_t up[64];
        } *m = calloc(1, sizeof(*m));
        const struct key k = key_of(1);
        struct pool_index_entry entry;
        struct pool_index_view v;
        struct lookup_pair p;
        uint64_t hash;
        unsigned at = 0;

        assert_non_null(m);
        m->header = (struct pool_index_header){ .magic = POOL_INDEX_MAGIC,
                                                .version = POOL_INDEX_VERSION,
                                                .header_bytes = POOL_INDEX_HEADER_BYTES,
                                                .bytes = sizeof(*m),
                                                .n_buckets = BUCKETS,
                                                .n_records = RECORDS };
        assert_true(pool_index_view_init(&v, m, sizeof(*m)));
        for (hash = UINT64_C(0x123456789abcdef0);; hash += UINT64_C(0x9e3779b97f4a7c15)) {
                p = pool_index_places(hash, BUCKETS);
                if (p.a != p.b)
                        break;
        }
        assert_int_equal(pool_index_find(&v, hash, true, &at), POOL_INDEX_NONE);
        assert_int_equal(at, POOL_INDEX_WORDS);
        assert_int_equal(pool_index_find(&v, hash, false, &at), POOL_INDEX_NONE);
        assert_int_equal(at, 2 * POOL_INDEX_WORDS);
        m->buckets[p.a].words[0] = pool_index_word(hash, RECORDS);        /* beyond the last */
        m->buckets[p.a].words[1] = pool_index_word(hash, UINT32_MAX);     /* wraps to none */
        m->buckets[p.a].words[2] = pool_index_word(hash, 3);              /* one */
        m->buckets[p.a].words[3] = pool_index_word(hash ^ 1ull << 32, 4); /* another's */
        m->buckets[p.a].words[7] = pool_index_word(hash ^ 1, 5); /* equal upper half of the hash */
        m->buckets[p.b].words[0] = pool_index_word(hash, UINT32_MAX - 1);
        m->buckets[p.b].words[7] = pool_index_word(hash, RECORDS - 1);
        for (unsigned first_only = 0; first_only < 2; first_only++) {
                at = 0;
                assert_int_equal(pool_index_find(&v, hash, first_only, &at), 3);
                assert_int_equal(pool_index_find(&v, hash, first_only, &at), 5);
                assert_int_equal(at, POOL_INDEX_WORDS);
                /* The search continues at the beginning of the second bucket. */
                assert_int_equal(pool_index_find(&v, hash, first_only, &at), RECORDS - 1);
                assert_int_equal(pool_index_find(&v, hash, first_only, &at), POOL_INDEX_NONE);
                assert_int_equal(pool_index_find(&v, hash, first_only, &at), POOL_INDEX_NONE);
        }
        m->buckets[p.a].words[7] = 0;
        at = 3;
        assert_int_equal(pool_index_find(&v, hash, true, &at), POOL_INDEX_NONE);
        assert_int_equal(at, POOL_INDEX_WORDS);
        assert_int_equal(pool_index_find(&v, hash, true, &at), RECORDS - 1);
        /* An empty last word in the first bucket is not replaced by the second bucket. */
        m->buckets[p.a].words[7] = pool_index_word(hash, RECORDS);
        at = 3;
        assert_int_equal(pool_index_find(&v, hash, true, &at), POOL_INDEX_NONE);
        assert_int_equal(at, POOL_INDEX_WORDS);
        /* A free word belongs to no hash. */
        at = 0;
        memset(m->buckets, 0, sizeof(m->buckets));
        assert_int_equal(pool_index_find(&v, 1, false, &at), POOL_INDEX_NONE);

        /* Only a candidate that has the key now counts. */
        m->records[5] = (struct pool_index_record){
                .key = k, .tag = 9, .serial = 1, .offset = 4096, .length = 77, .generation = 3
        };
        m->records[3] = (struct pool_index_record){ .key = key_of(2), .tag = 9, .serial = 1 };
        assert_true(pool_index_read(&v.records[5], 9, &k, &entry));
        assert_int_equal(entry.offset, 4096);
        assert_int_equal(entry.length, 77);
        assert_int_equal(entry.generation, 3);
        assert_false(pool_index_read(&v.records[3], 9, &k, &entry));
        assert_false(pool_index_read(&v.records[5], 8, &k, &entry));
        m->records[5].serial = 2;
        assert_false(pool_index_read(&v.records[5], 9, &k, &entry));
        free(m);
}

/* --- namespaces --- */

static void a_namespace_is_found_by_its_own_tag_alone(void **state)
{
        struct key k = key_of(1);
        uint64_t one, two;
        uint32_t chunk;

        assert_int_equal(join_as(0, UID, POOL), 0);
        assert_int_equal(join_as(1, OTHER_UID, POOL), 0);
        for (unsigned i = 0; i < POOL_PAGE_NAMESPACES; i++)
                assert_int_equal(pages[0]->tags[i], 0);
        pool_index_allow(&clients[0], 0, 1);
        pool_index_allow(&clients[0], POOL_PAGE_NAMESPACES + 1, 1);
        pool_index_allow(&clients[0], UINT32_MAX, 1);
        pool_index_allow(&clients[5], 1, 1); /* has not joined */
        for (unsigned i = 0; i < POOL_PAGE_NAMESPACES; i++)
                assert_int_equal(pages[0]->tags[i], 0);
        pool_index_allow(&clients[0], 1, 1);
        pool_index_allow(&clients[0], POOL_PAGE_NAMESPACES, 2);
        pool_index_allow(&clients[1], 7, 2);
        one = pages[0]->tags[0];
        two = pages[0]->tags[POOL_PAGE_NAMESPACES - 1];
        assert_true(one != 0 && two != 0 && one != two);
        assert_int_equal(pages[1]->tags[6], two);
        assert_int_equal(pages[1]->tags[0], 0);

        add(1, KIB);
        assert_int_equal(pool_acquire(pool, 2, &k, 1, 2 * KIB, 0, &chunk), 0);
        commit(chunk);
        assert_int_equal(find_as(one, 1)->length, KIB);
        assert_int_equal(find_as(two, 1)->length, 2 * KIB);
        assert_null(find_as(one ^ two, 1));
        assert_null(find_as(0, 1));
        pool_index_allow(&clients[0], 1, 0);
        assert_int_equal(pages[0]->tags[0], 0);
        pool_drop_namespace(pool, 1);
        assert_null(find_as(one, 1));
        assert_non_null(find_as(two, 1));
}

/* --- holding --- */

static void what_is_held_stays_and_the_next_one_leaves(void **state)
{
        uint32_t chunk;

        join(0);
        fill(0);
        chunk = chunk_of(0);
        hold(0, chunk);
        add(100, MIB);
        assert_true(is_there(0) && find(0));
        assert_false(is_there(1) || find(1));
        assert_false(pool_was_held_up(pool)); /* there was room */
        assert_int_equal(pool_index_holds(&clients[0]), 1);

        let_go(0, chunk);
        add(101, MIB);
        assert_false(is_there(0) || find(0));
        assert_true(is_there(2));
        assert_int_equal(pool_index_holds(&clients[0]), 0);
}

/* Each client holds through its own page, in any word of the record's bucket. */
static void who_holds_does_not_matter(void **state)
{
        uint32_t chunk[FULL];

        join(0);
        join(1);
        join(2);
        for (uint32_t i = 0; i < FULL; i++)
                chunk[i] = add(i, MIB);
        /* Allowances are less than a chunk here: that does not matter at once. */
        hold_raw(0, pool_page_bucket(chunk[0]), POOL_PAGE_WAYS - 1, hold_of(chunk[0]));
        hold(1, chunk[1]);
        hold(2, chunk[1]);
        hold(2, chunk[2]);
        add(100, MIB);
        assert_true(is_there(0) && is_there(1) && is_there(2) && !is_there(3));
        let_go(1, chunk[1]);
        add(101, MIB);
        assert_true(is_there(0) && is_there(1) && is_there(2) && !is_there(4));
        leave(2);
        add(102, MIB);
        assert_true(is_there(0) && !is_there(1) && is_there(2));
}

/* Otherwise the daemon could not sum up what a client holds. */
static void without_its_bit_a_bucket_holds_nothing(void **state)
{
        uint32_t chunk, other;

        join(0);
        fill(0);
        for (uint32_t i = 0; i < FULL; i++)
                hold(0, chunk_of(i));
        chunk = chunk_of(3);
        other = chunk_of(4);
        assert_true(pool_page_bucket(chunk) % 64 != pool_page_bucket(other) % 64);
        pages[0]->used[pool_page_bucket(chunk) / 64] &=
                ~(UINT64_C(1) << pool_page_bucket(chunk) % 64);
        assert_int_equal(pool_index_holds(&clients[0]), FULL - 1);
        add(100, MIB);
        assert_true(!is_there(3) && is_there(4));
        memset(pages[0]->used, 0, sizeof(pages[0]->used));
        assert_int_equal(pool_index_holds(&clients[0]), 0);
        pass_time();
        for (uint32_t i = 0; i < 2 * FULL; i++)
                add(200 + i, MIB);
        assert_false(pool_was_held_up(pool));
        other = chunk_of(200 + FULL);
        hold_raw(0, pool_page_bucket(other), 0, hold_of(other));
        pages[0]->used[pool_page_bucket(other) / 64] = 0;
        pool_drop(pool, other);
        assert_int_equal(pool_release_held(pool), 1);
}

static void where_all_is_held_the_pool_is_full(void **state)
{
        uint32_t chunk[FULL], other, n = 0;

        join(0);
        fill(0);
        for (uint32_t i = 0; i < FULL; i++) {
                chunk[i] = chunk_of(i);
                hold(0, chunk[i]);
        }
        assert_false(pool_was_held_up(pool));
        assert_int_equal(acquire(100, MIB, &other), POOL_FULL);
        assert_int_equal(acquire(100, 4096, &other), POOL_FULL);
        assert_true(pool_was_held_up(pool));
        assert_false(pool_was_held_up(pool));
        for (uint32_t i = 0; i < FULL; i++)
                assert_true(is_there(i) && find(i));
        let_go(0, chunk[7]);
        add(100, MIB);
        for (uint32_t i = 0; i < FULL; i++)
                n += is_there(i);
        assert_int_equal(n, FULL - 1);
        assert_false(is_there(7));
        /* The pool is full for another reason. */
        for (uint32_t i = 0; i < FULL; i++)
                let_go(0, chunk[i]);
        for (uint32_t i = 0; i < pool_records(pool); i++)
                pool_pin(pool, i);
        assert_int_equal(acquire(101, MIB, &other), POOL_FULL);
        assert_false(pool_was_held_up(pool));
}

/* Asks the index in the pool's place, and counts. */
static unsigned n_asked;

static bool count_is_held(void *userdata, uint32_t chunk)
{
        n_asked++;
        return guard->is_held(userdata, chunk);
}

/* The search for a victim uses the result of a recent scan instead of reading each client's page
 * every time. */
static void what_is_known_to_be_held_is_not_asked_for(void **state)
{
        enum { HELD = 2048, PUTS = 64 };
        static struct pool_guard counting;

        join(0);
        fill_with_pages(HELD);
        counting = *guard;
        counting.is_held = count_is_held;
        __real_pool_set_guard(pool, &counting);
        n_asked = 0;
        for (uint32_t i = 0; i < PUTS; i++)
                add(ALL + i, 4096);
        assert_true(n_asked >= PUTS && n_asked <= 2 * PUTS);
        for (uint32_t i = 0; i < ALL; i++)
                assert_int_equal(is_there(i), i < HELD || i >= HELD + PUTS);
        /* The page is not read again either when all chunks are held. */
        for (uint32_t i = HELD + PUTS; i < ALL + PUTS; i++)
                hold(0, chunk_of(i));
        now_ns += 10 * MILLISECOND;
        n_asked = 0;
        for (uint32_t i = 0, chunk; i < PUTS; i++)
                assert_int_equal(acquire(2 * ALL, 4096, &chunk), POOL_FULL);
        assert_int_equal(n_asked, 0);
        __real_pool_set_guard(pool, guard);
}

/* Chunks found held when all holds were read count as held until they are read again. */
static void what_was_let_go_meanwhile_leaves_a_moment_later(void **state)
{
        uint32_t chunk;

        join(0);
        fill(0);
        chunk = chunk_of(0);
        hold(0, chunk);
        add(100, MIB);
        pages[0]->holds[pool_page_bucket(chunk)][0] = 0;
        add(101, MIB);
        assert_true(is_there(0) && !is_there(1) && !is_there(2));
        now_ns += MILLISECOND;
        add(102, MIB);
        assert_true(is_there(0) && !is_there(3));
        now_ns += 1;
        add(103, MIB);
        assert_true(!is_there(0) && is_there(4));
        /* A new hold takes effect at once. */
        chunk = chunk_of(4);
        hold(0, chunk);
        add(104, MIB);
        assert_true(is_there(4) && !is_there(5));
}

/* Reading this many holds takes long, so the result of a scan is used for longer, and dropped
 * chunks wait for longer. */
static void holds_are_read_the_less_often_the_more_there_are(void **state)
{
        enum { HELD = ALL - 64 };
        uint64_t rest_ns;
        uint32_t chunk;

        join(0);
        assert_true(guard->next_scan_ns(guard->userdata) <= now_ns);
        fill_with_pages(HELD);
        now_ns += SECOND;
        add(ALL, 4096); /* looks */
        rest_ns = guard->next_scan_ns(guard->userdata) - now_ns;
        assert_true(rest_ns > 3 * MILLISECOND && rest_ns < 20 * MILLISECOND);

        memset(pages[0]->holds, 0, sizeof(pages[0]->holds));
        memset(pages[0]->used, 0, sizeof(pages[0]->used));
        chunk = chunk_of(HELD / 2);
        pool_drop(pool, chunk);
        assert_int_equal(pool_release_held(pool), 0);
        assert_true(pool_holds_more(pool));
        assert_int_equal(pool_next_scan_ns(pool), now_ns + rest_ns);
        now_ns += rest_ns - 1;
        add(ALL + 1, 4096);
        assert_true(is_there(0));
        assert_int_equal(pool_release_held(pool), 0);
        assert_int_equal(pool_held(pool), 1);
        now_ns += 1;
        assert_int_equal(pool_release_held(pool), 1);
        assert_false(pool_holds_more(pool));
        assert_int_equal(pool_held(pool), 0);
        /* There are no holds any more, so the next scan may run at any time. */
        assert_true(pool_next_scan_ns(pool) <= now_ns);
        add(ALL + 2, 4096); /* where that was */
        add(ALL + 3, 4096);
        assert_false(is_there(0));
}

/* A slab with held chunks is not taken more often than that either. */
static void a_slab_that_may_be_held_stays_until_that_can_be_seen(void **state)
{
        enum { HELD = 2048 };
        uint32_t chunk;

        join(0);
        fill_with_pages(HELD);
        now_ns += SECOND;
        add(ALL, 4096); /* looks */
        assert_false(pool_was_held_up(pool));
        assert_int_equal(acquire(ALL + 1, MIB, &chunk), POOL_FULL);
        assert_true(pool_was_held_up(pool));
        now_ns = guard->next_scan_ns(guard->userdata);
        assert_int_equal(acquire(ALL + 1, MIB, &chunk), 0);
        commit(chunk);
}

/* Checks that the bytes of a chunk are unchanged. */
static void assert_bytes(uint64_t offset, uint8_t value)
{
        const uint8_t *at = (const uint8_t *)pool_base(pool) + offset;

        for (uint32_t i = 0; i < MIB; i++)
                assert_int_equal(at[i], value);
}

/* Adds chunks until the next one of their size is in another slab. */
static void fill_slab_beside(uint32_t chunk)
{
        uint64_t left = pool_slab_bytes(pool) / (64 * KIB) - 1;

        while (left > 0)
                assert_int_equal(pool_chunk(pool, add(0x10000 + (uint32_t)left--, 64 * KIB))->slab,
                                 pool_chunk(pool, chunk)->slab);
}

static void a_chunk_moves_only_if_no_client_holds_it(void **state)
{
        uint32_t leased, chunk;
        uint64_t offset;

        join(0);
        leased = add(0x61, 64 * KIB);
        pool_lease(pool, leased);
        fill_slab_beside(leased);
        chunk = add(0x62, 64 * KIB);
        assert_true(pool_chunk(pool, chunk)->slab != pool_chunk(pool, leased)->slab);
        offset = pool_offset(pool, chunk);
        hold(0, chunk);
        assert_false(pool_move_to_leased_slab(pool, chunk));
        assert_true(find(0x62) && find(0x62)->offset == offset);
        let_go(0, chunk);
        pass_time();
        assert_true(pool_move_to_leased_slab(pool, chunk));
        /* Clients find the chunk at its new place. */
        assert_int_equal(pool_chunk(pool, chunk)->slab, pool_chunk(pool, leased)->slab);
        assert_true(find(0x62) && find(0x62)->offset == pool_offset(pool, chunk));
        assert_true(pool_offset(pool, chunk) != offset);
        pool_unlease(pool, leased);
}

static void a_chunk_that_moves_without_clients_is_found_at_its_new_place(void **state)
{
        uint32_t leased, chunk;

        join(0);
        leased = add(0x61, 64 * KIB);
        pool_lease(pool, leased);
        fill_slab_beside(leased);
        chunk = add(0x62, 64 * KIB);
        leave(0);
        assert_true(pool_move_to_leased_slab(pool, chunk));
        join(0);
        assert_int_equal(find(0x62)->offset, pool_offset(pool, chunk));
        pool_unlease(pool, leased);
}

static void what_is_dropped_keeps_its_slot_while_it_is_held(void **state)
{
        uint32_t chunk, other;
        uint64_t offset;
        struct pool_stats s;

        join(0);
        chunk = add(0x5a, MIB);
        other = add(0x5b, MIB);
        offset = pool_offset(pool, chunk);
        hold(0, chunk);
        assert_false(pool_holds_more(pool));
        pool_drop(pool, chunk);
        pool_drop(pool, other);
        assert_false(is_there(0x5a) || find(0x5a));
        assert_int_equal(pool_held(pool), 2);
        assert_true(pool_holds_more(pool));
        assert_int_equal(pool_release_held(pool), 1);
        assert_false(pool_holds_more(pool));
        assert_int_equal(pool_held(pool), 1);
        for (uint32_t i = 0; i < 3 * FULL; i++) {
                assert_true(pool_offset(pool, add(1000 + i, MIB)) != offset);
                assert_int_equal(pool_held(pool), 1);
        }
        assert_bytes(offset, 0x5a);
        assert_int_equal(pool_release_held(pool), 0);
        assert_int_equal(pool_held(pool), 1);
        pool_get_stats(pool, &s);
        assert_int_equal(s.used_bytes, POOL);
        assert_int_equal(s.pinned_bytes, MIB);
        assert_int_equal(s.chunks, FULL - 1);
        /* Put again meanwhile: in another place. */
        add(0x5a, MIB);
        assert_int_not_equal(find(0x5a)->offset, offset);

        let_go(0, chunk);
        assert_int_equal(pool_held(pool), 1); /* the client has not reported it */
        assert_int_equal(pool_release_held(pool), 1);
        assert_int_equal(pool_held(pool), 0);
        pool_get_stats(pool, &s);
        assert_int_equal(s.used_bytes, POOL - MIB);
        assert_int_equal(s.pinned_bytes, 0);
        assert_int_equal(pool_offset(pool, add(2000, MIB)), offset);
        pool_release_held(pool);
}

/* Leases end, purges sweep, and namespaces go, all the same. */
static void however_it_was_dropped(void **state)
{
        uint32_t leased, purged, of_namespace;
        struct key k = key_of(1);

        join(0);
        leased = add(1, MIB);
        pool_lease(pool, leased);
        hold(0, leased);
        pool_drop(pool, leased);
        assert_int_equal(pool_held(pool), 0); /* the lease keeps it */
        assert_true(pool_unlease(pool, leased));
        assert_int_equal(pool_held(pool), 1);

        purged = add(2, MIB);
        hold(0, purged);
        is_purged = false;
        purge = (struct pool_purge){ .namespace_id = 1, .complete = on_purged };
        pool_purge(pool, &purge);
        while (!is_purged)
                pool_sweep(pool);
        assert_int_equal(pool_held(pool), 2);

        assert_int_equal(pool_acquire(pool, 2, &k, 1, MIB, 0, &of_namespace), 0);
        commit(of_namespace);
        hold(0, of_namespace);
        pool_drop_namespace(pool, 2);
        assert_int_equal(pool_held(pool), 3);
        assert_true(leased != purged && purged != of_namespace);

        let_go(0, purged);
        assert_int_equal(pool_release_held(pool), 1);
        assert_int_equal(pool_held(pool), 2);
        /* A full pool searches for released holds itself. */
        fill(100);
        assert_int_equal(pool_held(pool), 2);
        for (uint32_t i = 0; i < pool_records(pool); i++)
                if (pool_is_resident(pool, i))
                        pool_pin(pool, i);
        let_go(0, leased);
        add(200, MIB);
        assert_int_equal(pool_held(pool), 1);
        leave(0);
        assert_int_equal(pool_release_held(pool), 1);
        assert_int_equal(pool_held(pool), 0);
}

/* Held is a chunk in each slab, then in each but the youngest. */
static void a_slab_is_moved_that_nobody_holds_a_chunk_of(void **state)
{
        const uint32_t per_slab = (uint32_t)(pool_slab_bytes(pool) / (64 * KIB)),
                       all = POOL / (64 * KIB);
        struct pool_stats s;
        uint32_t chunk, n = 0, spared = POOL_NONE;

        join(0);
        for (uint32_t i = 0; i < all; i++) {
                chunk = add(i, 64 * KIB);
                if (i % per_slab == per_slab / 2) {
                        hold(0, chunk);
                        spared = chunk;
                        n++;
                }
        }
        assert_int_equal(n, POOL / pool_slab_bytes(pool));
        assert_int_equal(acquire(1000, MIB, &chunk), POOL_FULL);
        assert_true(pool_was_held_up(pool));
        for (uint32_t i = 0; i < all; i++)
                assert_true(is_there(i) && find(i));
        pool_get_stats(pool, &s);
        assert_int_equal(s.slab_moves, 0);

        let_go(0, spared);
        add(1000, MIB);
        assert_false(pool_is_resident(pool, spared) && pool_chunk(pool, spared)->length < MIB);
        pool_get_stats(pool, &s);
        assert_int_equal(s.slab_moves, 1);
        n = 0;
        for (uint32_t i = 0; i < all; i++) {
                assert_int_equal(find(i) != NULL, is_there(i));
                n += is_there(i);
        }
        assert_int_equal(n, all - per_slab);
}

static void a_hold_of_something_else_holds_nothing(void **state)
{
        uint32_t chunk, bucket, n = 0, records;

        join(0);
        fill(0);
        chunk = chunk_of(0);
        bucket = pool_page_bucket(chunk);
        records = pool_records(pool);
        hold_raw(0, bucket, n++, pool_page_hold(chunk, MIB - 1));
        hold_raw(0, bucket, n++, pool_page_hold(chunk, MIB + 1));
        hold_raw(0, bucket, n++, pool_page_hold(chunk, 0));
        hold_raw(0, bucket, n++, MIB); /* an invalid record */
        hold_raw(0, bucket, n++, UINT64_MAX);
        n = 0;
        bucket += 3;
        hold_raw(0, bucket, n++, pool_page_hold(records, MIB));
        hold_raw(0, bucket, n++, pool_page_hold(pool_max_chunks(pool), MIB));
        hold_raw(0, bucket, n++, pool_page_hold(UINT32_MAX, MIB));
        hold_raw(0, bucket, n++, pool_page_hold(UINT32_MAX - 1, MIB));
        add(100, MIB);
        assert_false(is_there(0));
        assert_true(is_there(1));
        assert_false(pool_was_held_up(pool));
        chunk = chunk_of(1);
        hold_raw(0, pool_page_bucket(chunk), 0, pool_page_hold(chunk, MIB - 1));
        pool_drop(pool, chunk);
        assert_int_equal(pool_held(pool), 1);
        assert_int_equal(pool_release_held(pool), 1);
        /* The slab of the other chunks is cut for another size. */
        add(101, 4096);
}

/* Holds are looked for where they belong. */
static void a_hold_in_another_bucket_holds_nothing(void **state)
{
        uint32_t chunk;

        join(0);
        fill(0);
        chunk = chunk_of(0);
        hold_raw(0, (pool_page_bucket(chunk) + 1) % POOL_PAGE_BUCKETS, 0, hold_of(chunk));
        assert_int_equal(pool_index_holds(&clients[0]), 0);
        add(100, MIB);
        assert_false(is_there(0));
        chunk = chunk_of(1);
        hold_raw(0, (pool_page_bucket(chunk) + 1) % POOL_PAGE_BUCKETS, 0, hold_of(chunk));
        pool_drop(pool, chunk);
        assert_int_equal(pool_release_held(pool), 1);
}

/* Kept for a client of an earlier process: a place without a chunk, so without a length. */
static void a_hold_of_no_bytes_holds_nothing(void **state)
{
        struct pool_stats s;
        uint32_t chunk;

        pool_index_free(pi);
        pool_free(pool);
        assert_int_equal(pool_new(&pool, POOL, "lru"), 0);
        assert_int_equal(pool_keep_slab(pool, 4096), 0);
        assert_int_equal(pool_open_slab(pool, 0), 0);
        assert_int_equal(pool_keep_slot(pool, 0, 3, &chunk), 0);
        assert_int_equal(pool_index_new(&pi, pool, NULL), 0);
        join(0);
        hold_raw(0, pool_page_bucket(chunk), 0, pool_page_hold(chunk, 0));
        assert_int_equal(pool_index_holds(&clients[0]), 0);
        assert_true(pool_unlease(pool, chunk));
        assert_int_equal(pool_held(pool), 1);
        assert_int_equal(pool_release_held(pool), 1);
        pool_get_stats(pool, &s);
        assert_int_equal(s.used_bytes, 0);
}

/* This is independent of the client's actions and of the fate of the chunk. */
static void what_is_not_verified_is_never_announced(void **state)
{
        struct pool_kept kept = { .namespace_id = 1, .length = 4096 };
        const uint32_t slots = (uint32_t)(POOL / 4096);
        uint32_t chunk[2], other, n = 0;

        pool_index_free(pi);
        pool_free(pool);
        assert_int_equal(pool_new(&pool, POOL, "lru"), 0);
        while (pool_next_slab(pool) >= 0) {
                assert_int_equal(pool_keep_slab(pool, 4096), 0);
                assert_int_equal(pool_open_slab(pool, 0), 0);
        }
        for (; n < 2; n++) {
                kept.key = key_of(n);
                kept.hash = n;
                kept.slot = (uint16_t)n;
                assert_int_equal(pool_keep_chunk(pool, &kept, &chunk[n]), 0);
        }
        assert_int_equal(pool_index_new(&pi, pool, NULL), 0);
        join(0);
        hold(0, chunk[0]);
        hold(0, chunk[1]);
        while (n < slots)
                add(n++, 4096);
        /* The chunks are the oldest, and are chosen as victims. */
        for (unsigned i = 0; i < 8; i++) {
                add(n++, 4096);
                assert_null(find(0));
                assert_null(find(1));
                pass_time();
        }
        /* Moving a slab does not drop held chunks either. */
        for (uint32_t i = 2; i < n; i++)
                if (is_there(i))
                        hold(0, chunk_of(i));
        assert_int_equal(acquire(n, MIB, &other), POOL_FULL);
        assert_null(find(0));
        assert_null(find(1));
}

static void on_held(void *userdata, uint32_t chunk)
{
        uint32_t *seen = userdata;

        seen[0]++;
        seen[seen[0]] = chunk;
}

static void what_a_client_holds_can_be_listed(void **state)
{
        uint32_t seen[16] = { 0 }, dropped, there, evicted, filling;

        join(0);
        dropped = add(1, MIB);
        there = add(2, KIB);
        evicted = add(3, 4096);
        assert_int_equal(acquire(4, 4096, &filling), 0);
        hold(0, dropped);
        hold(0, there);
        hold(0, filling);
        hold_raw(0, pool_page_bucket(there), 5, pool_page_hold(there, KIB + 1));
        pool_drop(pool, dropped);
        pool_drop(pool, evicted);
        assert_int_equal(pool_release_held(pool), 1);
        hold_raw(0, pool_page_bucket(evicted), 0, pool_page_hold(evicted, 4096));
        pool_index_each_hold(&clients[0], on_held, seen);
        assert_int_equal(seen[0], 2);
        assert_int_equal(seen[1], dropped);
        assert_int_equal(seen[2], there);
        assert_int_equal(pool_index_holds(&clients[0]), 2);
        pool_index_each_hold(&clients[1], on_held, seen); /* has not joined */
        assert_int_equal(pool_index_holds(&clients[1]), 0);
        assert_int_equal(seen[0], 2);
        /* A hold that exceeds the allowance is not reported. */
        hold_bytes(0, 7, 3 * MIB);
        pool_index_each_hold(&clients[0], on_held, seen);
        assert_int_equal(seen[0], 2);
        assert_int_equal(pool_index_holds(&clients[0]), 2);
        commit(filling);
}

/* Both sides run at the same time, on two threads: a chunk that a client has found again after
 * holding it keeps the bytes of its key until the hold ends, while the daemon drops chunks and
 * puts others into their slots as fast as possible. Only the memory order decides which side is
 * first. */

enum {
        RACED_KEYS = 4,
        RACED_BYTES = 256,
        RACED_WORDS = RACED_BYTES / 8,
        RACED_MS = 400,
        RACED_LONG_MS = 10000,
        COLD_BYTES = 16 * MIB,
        COLD_LINES = 6,
};

static struct {
        const uint8_t *bytes; /* the client's mapping of the pool */
        uint8_t *cold;
        uint64_t held, wrong;
        bool stop;
} raced;

/* Stores miss the caches, so that the processor's next stores wait for them, while its loads do
 * not. */
static void chill(uint8_t *cold, uint64_t *at)
{
        for (unsigned i = 0; i < COLD_LINES; i++) {
                *at = (*at + 97 * 4096 + 64) % COLD_BYTES;
                __atomic_store_n(&cold[*at], (uint8_t)i, __ATOMIC_RELAXED);
        }
}

static uint8_t *make_cold(void)
{
        uint8_t *cold = malloc(COLD_BYTES);

        assert_non_null(cold);
        memset(cold, 1, COLD_BYTES);
        return cold;
}

static uint64_t real_ns(void)
{
        struct timespec t;

        __real_clock_gettime(CLOCK_MONOTONIC, &t);
        return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

static bool has_bytes_of(uint64_t offset, uint32_t n)
{
        const uint64_t *words = (const uint64_t *)(raced.bytes + offset);
        bool same = true;

        for (unsigned i = 0; i < RACED_WORDS; i++)
                same &= __atomic_load_n(&words[i], __ATOMIC_RELAXED) == n;
        return same;
}

static void *race(void *unused)
{
        const uint64_t tag = __atomic_load_n(&pages[0]->tags[0], __ATOMIC_ACQUIRE);
        uint64_t at = 0;

        for (uint32_t n = 0; !__atomic_load_n(&raced.stop, __ATOMIC_RELAXED);
             n = (n + 1) % RACED_KEYS) {
                const struct pool_index_record *r = find_as(tag, n);
                struct key k = key_of(n);
                uint64_t *place;
                uint32_t record;
                struct pool_index_entry e;
                bool same = true;

                if (!r)
                        continue;
                chill(raced.cold, &at);
                record = (uint32_t)(r - view.records);
                place = &pages[0]->holds[pool_page_bucket(record)][0];
                __atomic_store_n(place, pool_page_hold(record, RACED_BYTES), __ATOMIC_RELAXED);
                POOL_INDEX_FENCE(__ATOMIC_SEQ_CST);
                if (pool_index_read(r, tag, &k, &e) && e.length == RACED_BYTES) {
                        __atomic_store_n(&raced.held, raced.held + 1, __ATOMIC_RELAXED);
                        for (unsigned again = 0; again < 20; again++)
                                same &= has_bytes_of(e.offset, n);
                }
                raced.wrong += !same;
                __atomic_store_n(place, 0, __ATOMIC_RELEASE);
        }
        return NULL;
}

static void add_raced(uint32_t n)
{
        uint64_t *words;
        uint32_t chunk;

        assert_int_equal(acquire(n, RACED_BYTES, &chunk), 0);
        words = pool_at(pool, chunk);
        for (unsigned i = 0; i < RACED_WORDS; i++)
                __atomic_store_n(&words[i], n, __ATOMIC_RELAXED);
        commit(chunk);
}

static void what_was_found_again_keeps_its_bytes_until_it_is_let_go(void **state)
{
        uint64_t end, drops = 0, kept = 0, at = COLD_BYTES / 2;
        uint8_t *cold = make_cold();
        pthread_t client;

        join(0);
        pages[0]->used[0] = UINT64_MAX; /* records are few */
        memset(&raced, 0, sizeof(raced));
        raced.cold = make_cold();
        raced.bytes = mmap(NULL, POOL, PROT_READ, MAP_SHARED, pool_fd(pool), 0);
        assert_true(raced.bytes != MAP_FAILED);
        for (uint32_t n = 0; n + 1 < RACED_KEYS; n++)
                add_raced(n);
        assert_int_equal(pthread_create(&client, NULL, race, NULL), 0);
        end = real_ns() +
              (getenv("KVCACHE_TEST_LONG") ? RACED_LONG_MS : RACED_MS) * (SECOND / 1000);
        /* A dropped chunk stays absent until the next drop, and an absent chunk's slot is
         * reused. */
        while (real_ns() < end || __atomic_load_n(&raced.held, __ATOMIC_RELAXED) == 0)
                for (unsigned i = 0; i < 64; i++, drops++) {
                        uint32_t n = (uint32_t)drops % RACED_KEYS;
                        struct key k = key_of(n);
                        uint32_t chunk = pool_find(pool, 1, &k, n);

                        chill(cold, &at);
                        drop(chunk);
                        kept += pool_held(pool);
                        add_raced((n + RACED_KEYS - 1) % RACED_KEYS);
                }
        __atomic_store_n(&raced.stop, true, __ATOMIC_RELAXED);
        assert_int_equal(pthread_join(client, NULL), 0);
        munmap((void *)raced.bytes, POOL);
        free(cold);
        free(raced.cold);
        print_message("%llu drops, %llu of what was held; %llu holds\n", (unsigned long long)drops,
                      (unsigned long long)kept, (unsigned long long)raced.held);
        assert_int_equal(raced.wrong, 0);
        assert_true(raced.held > 0 && drops > 0);
        pool_release_held(pool);
        assert_int_equal(pool_held(pool), 0);
}

/* --- allowances --- */

static void an_allowance_is_a_part_of_what_is_left(void **state)
{
        const uint64_t most = 80 * MIB, least = 64 * KIB;
        uint64_t of_user = 0, first;
        unsigned n = 0, others = 0;

        assert_int_equal(join_as(0, UID, 8 * least - 1), -EDQUOT);
        assert_int_equal(stats().bytes, 0);
        assert_null(clients[0].index);
        assert_int_equal(join_as(0, UID, 0), -EDQUOT);
        while (n < CLIENTS / 2 && join_as(n, UID, most) == 0) {
                uint64_t left = MIN(most - of_user, most * 3 / 4 - of_user);

                assert_int_equal(pages[n]->allowance, left / 8);
                assert_int_equal(clients[n].allowance, left / 8);
                of_user += pages[n++]->allowance;
                assert_int_equal(stats().allowed, of_user);
                assert_int_equal(stats().clients, n);
        }
        assert_true(n > 10 && n < CLIENTS / 2);
        assert_true(of_user <= most * 3 / 4);
        assert_int_equal(join_as(n, UID, most), -EDQUOT);
        /* Another user gets the usual share of the rest. */
        assert_int_equal(join_as(n, OTHER_UID, most), 0);
        first = pages[n]->allowance;
        assert_int_equal(first, (most - of_user) / 8);
        for (others = 1; n + others < CLIENTS && join_as(n + others, OTHER_UID, most) == 0;)
                others++;
        assert_true(n + others < CLIENTS);
        assert_true(stats().allowed <= most);
        /* A client that leaves returns its allowance exactly. */
        leave(n);
        assert_int_equal(join_as(n, OTHER_UID, most), 0);
        assert_true(pages[n]->allowance >= first / 8);
        for (unsigned i = 0; i < n + others; i++)
                leave(i);
        assert_int_equal(stats().allowed, 0);
        assert_int_equal(stats().clients, 0);
        assert_int_equal(join_as(0, UID, most), 0);
        assert_int_equal(pages[0]->allowance, most * 3 / 4 / 8);
        /* However much there is. */
        leave(0);
        assert_int_equal(join_as(0, UID, UINT64_C(1) << 40), 0);
        assert_int_equal(pages[0]->allowance, 1 << 30);
}

/* Advances the time, and makes the daemon scan holds of this number of bytes. */
static void look_at(uint32_t bytes, uint64_t passed_ns)
{
        static uint32_t n = 1000;

        hold_bytes(0, 6, bytes / 2);
        hold_bytes(0, 7, (bytes + 1) / 2);
        now_ns += passed_ns;
        add(n++, MIB);
}

static void a_client_is_revoked_that_holds_too_much_for_long(void **state)
{
        uint32_t chunk, seen[8] = { 0 };
        const uint32_t most = 3 * MIB;

        join(0);
        fill(0);
        chunk = chunk_of(0);
        assert_int_equal(pages[0]->allowance, most / 2);
        hold(0, chunk);
        assert_int_equal(pool_chunk(pool, chunk)->length, MIB);
        /* Up to twice the allowance is tolerated. */
        for (unsigned i = 0; i < 200; i++)
                look_at(most - MIB, SECOND);
        assert_false(clients[0].revoked);
        /* The daemon uses the allowance that it has given, not the one in the page. */
        pages[0]->allowance = UINT64_MAX;
        for (unsigned i = 0; i < 200; i++)
                look_at(most - MIB + 1, 2 * MILLISECOND);
        assert_false(clients[0].revoked); /* often, but not for long */
        look_at(most - MIB + 1, SECOND - 401 * MILLISECOND);
        assert_false(clients[0].revoked);
        assert_true(is_there(0));
        look_at(most - MIB + 1, 10 * MILLISECOND);
        assert_true(clients[0].revoked);
        assert_int_equal(stats().revoked, 1);
        /* A revoked client finds nothing before its holds stop counting, and afterwards. */
        assert_int_equal(pages[0]->tags[0], 0);
        pool_index_allow(&clients[0], 1, 1);
        assert_int_equal(pages[0]->tags[0], 0);
        pass_time();
        add(2000, MIB);
        assert_false(is_there(0));

        /* A revoked client holds nothing. */
        assert_int_equal(pool_index_holds(&clients[0]), 0);
        pool_index_each_hold(&clients[0], on_held, seen);
        assert_int_equal(seen[0], 0);
        chunk = add(1, MIB);
        hold(0, chunk);
        pool_drop(pool, chunk);
        pool_release_held(pool);
        assert_int_equal(pool_held(pool), 0);
        fill(100);
        assert_int_equal(stats().revoked, 1);
        leave(0);
        assert_int_equal(stats().revoked, 1);
        assert_int_equal(stats().allowed, 0);
        /* The user of that client is refused for a while; other users are not. */
        assert_int_equal(join_as(0, UID, POOL), -EACCES);
        assert_int_equal(join_as(1, OTHER_UID, POOL), 0);
        now_ns += 59 * SECOND;
        assert_int_equal(join_as(0, UID, POOL), -EACCES);
        now_ns += SECOND;
        assert_int_equal(join_as(0, UID, POOL), 0);
}

/* A scan that finds less cancels one earlier scan that found too much. */
static void who_lets_go_now_and_then_is_revoked_all_the_same(void **state)
{
        unsigned looks = 0;

        join(0);
        fill(0);
        for (; !clients[0].revoked && looks < 1000; looks++)
                look_at(looks % 4 == 3 ? 0 : 4 * MIB, 20 * MILLISECOND);
        assert_true(looks >= 120 && looks <= 130);
}

static void who_holds_too_much_less_often_than_not_is_not_revoked(void **state)
{
        join(0);
        fill(0);
        for (unsigned looks = 0; looks < 1000; looks++)
                look_at(looks % 2 ? 0 : 4 * MIB, SECOND);
        assert_false(clients[0].revoked);
}

/* Lets another of the user's clients hold too much, and the daemon read the holds again. */
static void look_at_turn(unsigned client, unsigned n_clients, uint64_t passed_ns)
{
        static uint32_t n = 5000;

        for (unsigned i = 0; i < n_clients; i++)
                hold_bytes(i, 6, 0);
        hold_bytes(client, 6, 4 * MIB);
        now_ns += passed_ns;
        add(n++, MIB);
}

static void clients_of_a_user_that_take_turns_are_revoked(void **state)
{
        enum { N = 3 };
        unsigned looks = 0;

        for (unsigned i = 0; i < N; i++)
                assert_int_equal(join_as(i, UID, POOL), 0);
        assert_int_equal(join_as(N, OTHER_UID, POOL), 0);
        fill(0);
        while (stats().revoked == 0 && looks < 1000) {
                look_at_turn(looks / 10 % N, N, 20 * MILLISECOND);
                looks++;
        }
        assert_int_equal(looks, 64);
        /* Each other client of the user is revoked by the first scan that finds it above the limit;
         * another user's is not. */
        for (unsigned i = 0; i < N; i++)
                look_at_turn(i, N, 20 * MILLISECOND);
        for (unsigned i = 0; i < N; i++)
                assert_true(clients[i].revoked);
        assert_false(clients[N].revoked);
        assert_int_equal(stats().revoked, N);
}

static void findings_outlive_the_session(void **state)
{
        unsigned looks = 0;

        fill(0);
        for (int r; (r = join_as(0, UID, POOL)) == 0 && looks < 1000; looks += 8) {
                for (unsigned i = 0; i < 8; i++)
                        look_at_turn(0, 1, 20 * MILLISECOND);
                leave(0);
        }
        assert_int_equal(looks, 64);
        assert_int_equal(join_as(0, UID, POOL), -EACCES);
        assert_int_equal(stats().revoked, 1);
}

static void a_barred_user_is_not_forgotten_for_others(void **state)
{
        struct pool_judge j = { 0 };
        uint64_t ns = 1;

        for (unsigned i = 0; i < 64; i++) {
                pool_judge_note_over(&j, UID);
                pool_judge_end_scan(&j, ns += 20 * MILLISECOND);
        }
        assert_true(pool_judge_is_barred(&j, UID, ns));
        for (unsigned i = 0; i < 10 * POOL_JUDGE_USERS; i++) {
                pool_judge_note_over(&j, 100000 + i);
                if (i % 7 == 0)
                        pool_judge_end_scan(&j, ns += MILLISECOND);
        }
        assert_true(pool_judge_is_barred(&j, UID, ns));
        /* Scans that find nothing make the judge forget the other users; time makes it forget the
         * first. */
        for (unsigned i = 0; i < 64; i++)
                pool_judge_end_scan(&j, ns += MILLISECOND);
        assert_int_equal(j.n, 1);
        pool_judge_end_scan(&j, ns + 60 * SECOND);
        assert_int_equal(j.n, 0);
}

/* A client looks a chunk up, holds it, and looks it up again, while the daemon ends its session: in
 * any order, the client notices that, or the daemon sees the hold. */
static void a_session_that_ended_gives_out_nothing_more(void **state)
{
        uint64_t tag;
        uint32_t chunk;

        join(0);
        join(1);
        fill(0);
        tag = pages[0]->tags[0];
        chunk = chunk_of(0);
        pool_index_close(&clients[0]);
        hold(0, chunk);
        POOL_INDEX_FENCE(__ATOMIC_SEQ_CST);
        assert_int_not_equal(pages[0]->tags[0], tag);
        for (unsigned i = 0; i < POOL_PAGE_NAMESPACES; i++)
                assert_int_equal(pages[0]->tags[i], 0);
        assert_int_equal(pages[1]->tags[0], tag);
        /* Earlier holds last until the client leaves. */
        assert_int_equal(pool_index_holds(&clients[0]), 1);
        add(100, MIB);
        assert_true(is_there(0));
        leave(0);
        add(101, MIB);
        assert_false(is_there(0));
        pool_index_close(&clients[0]); /* the client has left */
}

/* This includes scans for chunks that were dropped under its holds. Other clients keep theirs. */
static void one_that_is_revoked_is_no_longer_waited_for(void **state)
{
        uint32_t mine, other;

        join(0);
        join(1);
        mine = add(1, MIB);
        other = add(2, MIB);
        hold(0, mine);
        hold(1, other);
        hold(0, other);
        pool_drop(pool, mine);
        pool_drop(pool, other);
        hold_bytes(0, 7, UINT32_MAX);
        for (unsigned i = 0; i < 63; i++) {
                assert_int_equal(pool_release_held(pool), 0);
                assert_int_equal(pool_held(pool), 2);
                now_ns += SECOND;
        }
        assert_false(clients[0].revoked);
        pool_release_held(pool);
        assert_true(clients[0].revoked);
        assert_false(clients[1].revoked);
        pool_release_held(pool);
        assert_int_equal(pool_held(pool), 1);
        leave(1);
        assert_int_equal(pool_release_held(pool), 1);
        assert_int_equal(pool_held(pool), 0);
}

/* Each chunk takes at least a page of the pool. */
static void short_chunks_count_as_whole_pages(void **state)
{
        enum { CHUNKS = 1000 };

        join(0);
        for (uint32_t i = 0; i < CHUNKS; i++)
                hold(0, add(i, 1));
        assert_in_range(pages[0]->allowance, CHUNKS, CHUNKS * 4096 / 2 - 1);
        for (uint32_t i = 0; i < 100 && !clients[0].revoked; i++) {
                drop(add(CHUNKS + i, 1));
                now_ns += SECOND;
        }
        assert_true(clients[0].revoked);
}

static void who_leaves_gives_everything_back(void **state)
{
        uint32_t chunk, n = 0;

        join(0);
        join(1);
        assert_ptr_equal(pool_index_next_client(pi, NULL), &clients[0]);
        assert_ptr_equal(pool_index_next_client(pi, &clients[0]), &clients[1]);
        assert_null(pool_index_next_client(pi, &clients[1]));
        fill(0);
        for (uint32_t i = 0; i < FULL; i++) {
                chunk = (uint32_t)(find(i) - view.records);
                hold(1, chunk);
                if (i % 2)
                        pool_drop(pool, chunk);
        }
        assert_int_equal(pool_held(pool), FULL / 2);
        assert_int_equal(acquire(100, MIB, &chunk), POOL_FULL);
        assert_false(pool_holds_more(pool));
        leave(1);
        assert_true(pool_holds_more(pool)); /* once for all that leave at a time */
        assert_int_equal(pool_release_held(pool), FULL / 2);
        assert_null(clients[1].index);
        pool_index_leave(&clients[1]); /* the client has left */
        assert_int_equal(stats().clients, 1);
        for (uint32_t i = 0; i < FULL / 2; i++)
                add(100 + i, MIB);
        for (uint32_t i = 0; i < FULL; i++)
                n += is_there(i);
        assert_int_equal(n, FULL / 2);
        assert_null(pool_index_next_client(pi, &clients[0]));
}

/* --- counters of clients --- */

static struct pool_index_count count(unsigned number, bool is_possible)
{
        struct pool_index_count c = { 99, 99, 99, 99 };

        assert_int_equal(pool_index_count(&clients[0], number, now_ns, &c), is_possible);
        return c;
}

static void assert_count(struct pool_index_count c, uint64_t keys, uint64_t mapped, uint64_t copied,
                         uint64_t untold)
{
        assert_int_equal(c.keys, keys);
        assert_int_equal(c.mapped_bytes, mapped);
        assert_int_equal(c.copied_bytes, copied);
        assert_int_equal(c.untold, untold);
}

static void counts_bring_what_was_got_since_the_last(void **state)
{
        join(0);
        now_ns += SECOND;
        assert_count(count(1, true), 0, 0, 0, 0);
        pages[0]->counts[0] = (struct pool_page_count){ 10, 1000, 3 * MIB, 2 };
        pages[0]->counts[255] = (struct pool_page_count){ 1, 0, 7, 0 };
        assert_count(count(1, true), 10, 1000, 3 * MIB, 2);
        assert_count(count(1, true), 0, 0, 0, 0);
        assert_count(count(256, true), 1, 0, 7, 0);
        pages[0]->counts[0] = (struct pool_page_count){ 11, 1000, 3 * MIB + 5, 3 };
        assert_count(count(1, true), 1, 0, 5, 1);
        /* A counter that decreases adds nothing, and counts from its new value. */
        pages[0]->counts[0] = (struct pool_page_count){ 5, 1, 1, 1 };
        assert_count(count(1, false), 0, 0, 0, 0);
        pages[0]->counts[0] = (struct pool_page_count){ 7, 2, 3, 2 };
        assert_count(count(1, true), 2, 1, 2, 1);
        assert_count(count(0, true), 0, 0, 0, 0);
        assert_count(count(257, true), 0, 0, 0, 0);
        assert_count(count(UINT32_MAX, true), 0, 0, 0, 0);
        assert_true(pool_index_count(&clients[1], 1, now_ns, &(struct pool_index_count){ 0 }));
}

static void what_cannot_be_true_is_left_out(void **state)
{
        const uint64_t slab = pool_slab_bytes(pool);
        struct pool_index_count c;

        join(0);
        /* A client that has just joined cannot have got anything. */
        pages[0]->counts[0] = (struct pool_page_count){ 1, 1, 1, 1 };
        assert_count(count(1, false), 0, 0, 0, 0);
        pages[0]->counts[1].keys = 1;
        assert_false(pool_index_count(&clients[0], 2, 0, &c)); /* nor before */
        now_ns += 4000;                                        /* a thousand keys */
        pages[0]->counts[0].keys = 401;
        assert_count(count(1, true), 400, 0, 0, 0);
        /* The limit applies to all namespaces together. */
        pages[0]->counts[2].keys = 601;
        assert_count(count(3, false), 600, 0, 0, 0);
        pages[0]->counts[2].keys = 602;
        assert_count(count(3, false), 0, 0, 0, 0);
        now_ns += 4;
        pages[0]->counts[2].keys = 603;
        assert_count(count(3, true), 1, 0, 0, 0);

        now_ns += SECOND;
        /* If there are more bytes than the keys can have, only the keys count. */
        pages[0]->counts[3] = (struct pool_page_count){ 2, 100 * slab, 2 * slab, 0 };
        assert_count(count(4, false), 2, 0, 0, 0);
        pages[0]->counts[4] = (struct pool_page_count){ 2, 2 * slab, UINT64_MAX, 0 };
        assert_count(count(5, false), 2, 0, 0, 0);
        pages[0]->counts[5] = (struct pool_page_count){ 2, 1, 1, 3 };
        assert_count(count(6, false), 2, 0, 0, 0);
        /* Later bytes count from there. */
        pages[0]->counts[5] = (struct pool_page_count){ 4, 2 * slab, 1, 3 };
        assert_count(count(6, true), 2, 2 * slab - 1, 0, 0);
        pages[0]->counts[6] =
                (struct pool_page_count){ UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX };
        c = count(7, false);
        assert_true(c.keys > 0 && c.keys <= SECOND / 4 + 1001);
        assert_true(c.untold == 0 && c.mapped_bytes == 0 && c.copied_bytes == 0);
        /* Bytes of rejected keys do not count either. */
        pages[0]->counts[8].keys = UINT64_C(1) << 63;
        (void)count(9, false);
        now_ns += SECOND;
        pages[0]->counts[8] = (struct pool_page_count){ UINT64_C(1) << 63, UINT64_MAX, 0, 0 };
        assert_count(count(9, false), 0, 0, 0, 0);
        pages[0]->counts[8] =
                (struct pool_page_count){ UINT64_C(1) << 63, 0, 0, UINT64_C(1) << 62 };
        assert_count(count(9, false), 0, 0, 0, 0);
        /* Bytes count up to the maximum for the accepted keys. */
        pages[0]->counts[9] = (struct pool_page_count){ 2, slab, 0, 1 };
        assert_count(count(10, true), 2, slab, 0, 1);
        pages[0]->counts[9] = (struct pool_page_count){ 2, 3 * slab - 1, 0, 2 };
        assert_count(count(10, true), 0, 2 * slab - 1, 0, 1);
        pages[0]->counts[9].mapped_bytes++;
        assert_count(count(10, false), 0, 0, 0, 0);
        pages[0]->counts[9].untold++;
        assert_count(count(10, false), 0, 0, 0, 0);
        pages[0]->counts[9].mapped_bytes = 0;
        (void)count(10, true);
        pages[0]->counts[9].mapped_bytes =
                UINT64_MAX; /* a sum that is a little more than nothing */
        assert_count(count(10, false), 0, 0, 0, 0);
        pages[0]->counts[10].keys = UINT64_C(1) << 62; /* uses up the rest */
        (void)count(11, false);
        /* The client has used its possible lookups, and has more a moment later. */
        pages[0]->counts[7].keys = 1;
        assert_count(count(8, false), 0, 0, 0, 0);
        now_ns += 4;
        pages[0]->counts[7].keys = 2;
        assert_count(count(8, true), 1, 0, 0, 0);
}

/* --- touches --- */

static struct pool_index_touch touches[POOL_MAX_TOUCHES];
static uint32_t words; /* words read for these */

static int take_touches(void)
{
        words = UINT32_MAX;
        return pool_index_take_touches(&clients[0], POOL_MAX_TOUCHES, touches, &words);
}

/* Writes a request into the ring as a client does. */
static void tell_head(uint64_t head)
{
        pages[0]->ring[pages[0]->written++ % POOL_PAGE_RING] = head;
}

static void tell(const uint32_t *chunks, uint32_t n)
{
        tell_head(pool_page_touches(n));
        for (uint32_t i = 0; i < n; i++)
                tell_head(pool_page_touch(chunks[i], pool_chunk(pool, chunks[i])->generation));
}

static int take_part(uint32_t most)
{
        return pool_index_take_touches(&clients[0], most, touches, &words);
}

static void a_long_request_is_taken_in_parts_from_its_end(void **state)
{
        uint32_t chunks[5];

        join(0);
        for (uint32_t i = 0; i < 5; i++)
                chunks[i] = add(i, 4096);
        tell(chunks, 5);
        assert_int_equal(take_part(2), 2);
        assert_int_equal(words, 2);
        assert_int_equal(touches[0].chunk, chunks[3]);
        assert_int_equal(touches[1].chunk, chunks[4]);
        assert_int_equal(pages[0]->taken, 0);
        assert_int_equal(take_part(2), 2);
        assert_int_equal(touches[0].chunk, chunks[1]);
        assert_int_equal(take_part(2), 1);
        assert_int_equal(words, 2);
        assert_int_equal(touches[0].chunk, chunks[0]);
        assert_int_equal(pages[0]->taken, 6);
        assert_int_equal(take_part(2), -1);

        /* The client writes a shorter list over the head of one that is taken in part. */
        tell(chunks, 5);
        assert_int_equal(take_part(1), 1);
        pages[0]->ring[6] = pool_page_touches(2);
        assert_int_equal(take_part(4), 2);
        assert_int_equal(pages[0]->taken, 9);
}

static void touches_are_taken_request_by_request(void **state)
{
        uint32_t chunks[3];

        join(0);
        for (uint32_t i = 0; i < 3; i++)
                chunks[i] = add(i, 4096);
        assert_int_equal(take_touches(), -1);
        assert_int_equal(pool_index_take_touches(&clients[1], POOL_MAX_TOUCHES, touches, &words),
                         -1); /* not joined */
        assert_int_equal(words, 0);
        tell(chunks, 3);
        tell((uint32_t[]){ chunks[2] }, 1);
        tell(NULL, 0);
        assert_int_equal(take_touches(), 3);
        assert_int_equal(words, 4);
        for (unsigned i = 0; i < 3; i++) {
                assert_int_equal(touches[i].chunk, chunks[i]);
                assert_int_equal(touches[i].generation, pool_chunk(pool, chunks[i])->generation);
        }
        assert_int_equal(pages[0]->taken, 4);
        assert_int_equal(take_touches(), 1);
        assert_int_equal(touches[0].chunk, chunks[2]);
        assert_int_equal(pages[0]->taken, 6);
        assert_int_equal(take_touches(), 0);
        assert_int_equal(words, 1);
        assert_int_equal(pages[0]->taken, 7);
        assert_int_equal(take_touches(), -1);
        assert_int_equal(words, 0);
        assert_int_equal(pages[0]->taken, 7);
}

static void the_ring_goes_round(void **state)
{
        uint32_t chunks[POOL_MAX_TOUCHES];

        join(0);
        for (uint32_t i = 0; i < POOL_MAX_TOUCHES; i++)
                chunks[i] = add(i, 4096);
        for (unsigned round = 0; round < 50; round++) {
                tell(chunks, POOL_MAX_TOUCHES - round);
                assert_int_equal(take_touches(), POOL_MAX_TOUCHES - round);
                for (unsigned i = 0; i < POOL_MAX_TOUCHES - round; i++)
                        assert_int_equal(touches[i].chunk, chunks[i]);
        }
        assert_true(pages[0]->taken > 5 * POOL_PAGE_RING);
        assert_int_equal(pages[0]->taken, pages[0]->written);
        /* The ring is filled to its last word. */
        for (unsigned i = 0; i < 7; i++)
                tell(chunks, POOL_MAX_TOUCHES);
        tell(chunks, POOL_MAX_TOUCHES - 8);
        assert_int_equal(pages[0]->written - pages[0]->taken, POOL_PAGE_RING);
        for (unsigned i = 0; i < 7; i++)
                assert_int_equal(take_touches(), POOL_MAX_TOUCHES);
        assert_int_equal(take_touches(), POOL_MAX_TOUCHES - 8);
        assert_int_equal(take_touches(), -1);
        assert_int_equal(pages[0]->taken, pages[0]->written);
}

static void nonsense_in_the_ring_is_passed_by(void **state)
{
        uint32_t chunk;

        join(0);
        chunk = add(1, 4096);
        for (unsigned what = 0; what < 9; what++) {
                switch (what) {
                case 0: /* no head */
                        tell_head(3);
                        break;
                case 1: /* a touch where a head should be */
                        tell_head(pool_page_touch(chunk, 0));
                        tell_head(pool_page_touch(chunk, 0));
                        break;
                case 2: /* more than a request has */
                        tell_head(pool_page_touches(POOL_MAX_TOUCHES + 1));
                        pages[0]->written += POOL_MAX_TOUCHES + 1;
                        break;
                case 3:
                        tell_head(UINT64_MAX);
                        break;
                case 4: /* more than has been written */
                        tell_head(pool_page_touches(2));
                        tell_head(pool_page_touch(chunk, 0));
                        break;
                case 5:
                        tell_head(pool_page_touches(1));
                        break;
                case 6: /* more than the ring has */
                        tell(&chunk, 1);
                        pages[0]->written += POOL_PAGE_RING - 1;
                        break;
                case 7: /* the counter decreases */
                        pages[0]->written -= 1;
                        break;
                default:
                        pages[0]->written += UINT64_C(1) << 63;
                }
                assert_int_equal(take_touches(), -1);
                assert_int_equal(pages[0]->taken, pages[0]->written);
                assert_int_equal(take_touches(), -1);
                tell(&chunk, 1);
                assert_int_equal(take_touches(), 1);
                assert_int_equal(touches[0].chunk, chunk);
        }
        /* The daemon ignores what a client writes to `taken`. */
        pages[0]->taken = 12345;
        tell(&chunk, 1);
        assert_int_equal(take_touches(), 1);
        assert_int_equal(pages[0]->taken, pages[0]->written);
}

static void what_is_not_there_any_more_is_not_touched(void **state)
{
        uint32_t chunks[8], n = 0;
        struct pool_stats s;

        join(0);
        for (uint32_t i = 0; i < 4; i++)
                chunks[i] = add(i, 4096);
        assert_int_equal(acquire(9, 4096, &chunks[4]), 0); /* not yet */
        tell(chunks, 5);
        pool_drop(pool, chunks[1]);
        pool_drop(pool, chunks[2]);
        assert_int_equal(pool_release_held(pool), 2);
        add(20, 4096); /* in one's place, with another generation */
        tell_head(pool_page_touches(3));
        tell_head(pool_page_touch(UINT32_MAX, 0));
        tell_head(pool_page_touch(pool_records(pool), 0));
        tell_head(pool_page_touch(pool_max_chunks(pool), 0));
        assert_int_equal(take_touches(), 2);
        assert_int_equal(words, 6); /* words that touch nothing have been read, too */
        assert_int_equal(touches[n++].chunk, chunks[0]);
        assert_int_equal(touches[n++].chunk, chunks[3]);
        assert_int_equal(take_touches(), 0);
        assert_int_equal(words, 4);
        pool_get_stats(pool, &s);
        assert_int_equal(s.chunks, 4);
        commit(chunks[4]);
}

static void clients_take_turns(void **state)
{
        assert_null(pool_index_turn(pi));
        join(0);
        assert_ptr_equal(pool_index_turn(pi), &clients[0]);
        assert_ptr_equal(pool_index_turn(pi), &clients[0]);
        join(1);
        join(2);
        for (unsigned i = 0; i < 7; i++)
                assert_ptr_equal(pool_index_turn(pi), &clients[i % 3]);
        leave(1);
        for (unsigned i = 0; i < 4; i++)
                assert_ptr_equal(pool_index_turn(pi), &clients[i % 2 ? 0 : 2]);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
                TEST(what_is_put_is_announced_until_it_leaves),
                TEST(the_index_is_filled_step_by_step_with_what_was_there_before),
                TEST(what_a_purge_has_still_to_drop_is_not_announced),
                TEST(what_is_not_verified_yet_is_not_announced),
                TEST(what_is_not_verified_is_never_announced),
                TEST(while_a_purge_is_under_way_clients_find_nothing),
                TEST(what_finds_no_place_is_asked_for),
                TEST(while_it_is_suspended_it_says_so),
                TEST(files_are_sealed_and_the_index_is_read_only),
                cmocka_unit_test(a_malformed_header_is_refused),
                cmocka_unit_test(each_candidate_is_found_once),
                cmocka_unit_test(candidates_are_those_of_any_contents),
                TEST(a_word_is_in_its_first_bucket_while_that_is_half_empty),
                TEST(a_namespace_is_found_by_its_own_tag_alone),
                TEST(what_is_held_stays_and_the_next_one_leaves),
                TEST(who_holds_does_not_matter),
                TEST(without_its_bit_a_bucket_holds_nothing),
                TEST(where_all_is_held_the_pool_is_full),
                TEST(what_is_known_to_be_held_is_not_asked_for),
                TEST(what_was_let_go_meanwhile_leaves_a_moment_later),
                TEST(holds_are_read_the_less_often_the_more_there_are),
                TEST(a_slab_that_may_be_held_stays_until_that_can_be_seen),
                TEST(a_chunk_moves_only_if_no_client_holds_it),
                TEST(a_chunk_that_moves_without_clients_is_found_at_its_new_place),
                TEST(what_is_dropped_keeps_its_slot_while_it_is_held),
                TEST(however_it_was_dropped),
                TEST(a_slab_is_moved_that_nobody_holds_a_chunk_of),
                TEST(a_hold_of_something_else_holds_nothing),
                TEST(a_hold_in_another_bucket_holds_nothing),
                TEST(a_hold_of_no_bytes_holds_nothing),
                TEST(what_a_client_holds_can_be_listed),
                TEST(what_was_found_again_keeps_its_bytes_until_it_is_let_go),
                TEST(an_allowance_is_a_part_of_what_is_left),
                TEST(a_client_is_revoked_that_holds_too_much_for_long),
                TEST(who_lets_go_now_and_then_is_revoked_all_the_same),
                TEST(who_holds_too_much_less_often_than_not_is_not_revoked),
                TEST(clients_of_a_user_that_take_turns_are_revoked),
                TEST(findings_outlive_the_session),
                TEST(a_barred_user_is_not_forgotten_for_others),
                TEST(one_that_is_revoked_is_no_longer_waited_for),
                TEST(a_session_that_ended_gives_out_nothing_more),
                TEST(short_chunks_count_as_whole_pages),
                TEST(who_leaves_gives_everything_back),
                TEST(counts_bring_what_was_got_since_the_last),
                TEST(what_cannot_be_true_is_left_out),
                TEST(touches_are_taken_request_by_request),
                TEST(a_long_request_is_taken_in_parts_from_its_end),
                TEST(the_ring_goes_round),
                TEST(nonsense_in_the_ring_is_passed_by),
                TEST(what_is_not_there_any_more_is_not_touched),
                TEST(clients_take_turns),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

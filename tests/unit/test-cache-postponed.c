/* SPDX-License-Identifier: Apache-2.0 */
/* The cache while the disk is behind: accepted puts stay in memory, and are written later. */
#include <stdlib.h>

#include "cache-fixture.h"
#include "checked.h"

enum { BIG = 2, N = 24 }; /* the keys of the first puts; further puts */

/* Has the device hold all writes, and accepts as many bytes as may be unwritten. */
static void fall_behind(void)
{
        hold(KIO_WRITE, 1);
        for (unsigned i = 0; i < BIG; i++) {
                struct req r;

                put_bytes(&r, 1000 + i, CACHE_ACCEPTED, 1, (uint32_t)pool_slab_bytes(t.pool));
                expect(&r, CACHE_OK);
        }
        assert_int_equal(stats().unwritten_bytes, pool_bytes(t.pool) / 4);
}

/* Puts chunks that must not wait, and are accepted although the disk is behind. */
static void put_postponed(unsigned from, unsigned to)
{
        for (unsigned i = from; i < to; i++) {
                struct req r;

                put_as(i % 3, &r, i, CACHE_ACCEPTED, SMALL, true);
                expect(&r, CACHE_OK);
        }
}

static void catch_up(void)
{
        release();
        tiers_settle(&t);
        while (cache_may_catch_up(t.cache) || stats().unwritten_chunks > 0) {
                tiers_iterate(&t);
                if (stats().unwritten_chunks > 0) {
                        tiers_wait_io(&t);
                        kio_reap(t.io);
                }
        }
        tiers_settle(&t);
}

static void accepted_puts_do_not_wait_for_the_disk(void **state)
{
        uint64_t unwritten;
        struct req written;

        fall_behind();
        unwritten = stats().unwritten_bytes;
        put_postponed(0, N);
        /* Users below their share have a reserve, which they use first. */
        assert_in_range(stats().postponed, N / 3, N);
        assert_in_range(stats().unwritten_bytes, unwritten, unwritten + pool_slab_bytes(t.pool));
        put_as(0, &written, N, CACHE_WRITTEN, SMALL, true);
        expect(&written, CACHE_BUSY);
        for (unsigned i = 0; i < N; i++) {
                assert_int_equal(tiers_of(i) & CACHE_MEMORY, CACHE_MEMORY);
                expect_get(i, CACHE_OK, 1);
        }
        release();
        tiers_settle(&t);
}

static void postponed_chunks_are_written_when_the_disk_has_caught_up(void **state)
{
        fall_behind();
        put_postponed(0, N);
        catch_up();
        assert_true(stats().postponed > 0);
        assert_int_equal(stats().caught_up, stats().postponed);
        assert_int_equal(stats().pool_only, 0);
        for (unsigned i = 0; i < N; i++) {
                assert_int_equal(tiers_of(i) & CACHE_DISK, CACHE_DISK);
                assert_int_equal(evict(i, true), CACHE_OK);
                expect_get(i, CACHE_OK, 1);
        }
}

/* Has user 0 occupy so many of the unwritten bytes. */
static void occupy(struct store_write *w, uint64_t bytes)
{
        *w = (struct store_write){ 0 };
        assert_int_equal(cache_unwritten_begin(t.cache, w, 0, bytes), 0);
}

/* Alternating chunks on disk would be of no use for a chain. */
static void chunks_are_postponed_until_half_of_the_share_is_free(void **state)
{
        static const struct {
                unsigned eighths; /* the unwritten bytes, in parts of the limit */
                bool is_postponed;
        } steps[] = {
                { 2, false }, { 6, false }, { 8, true }, { 6, true }, { 5, true },
                { 4, false }, { 7, false }, { 8, true }, { 7, true }, { 0, false },
        };
        uint64_t limit = pool_bytes(t.pool) / 4;
        struct store_write w[2];

        occupy(&w[1], 0); /* keeps the cache's state of the user */
        for (unsigned i = 0; i < ARRAY_SIZE(steps); i++) {
                uint64_t before = stats().postponed;
                struct req r;

                occupy(&w[0], limit * steps[i].eighths / 8);
                put_as(0, &r, i, CACHE_ACCEPTED, 4 * KIB, true);
                expect(&r, CACHE_OK);
                assert_int_equal(stats().postponed - before, steps[i].is_postponed);
                tiers_settle(&t);
                cache_unwritten_end(t.cache, &w[0]);
        }
        cache_unwritten_end(t.cache, &w[1]);
        catch_up();
}

static void an_accepted_put_that_may_wait_does_so_until_its_deadline(void **state)
{
        struct req r[3];

        fall_behind();
        put_bytes(&r[0], 0, CACHE_ACCEPTED, 1, SMALL);
        put_bytes(&r[1], 1, CACHE_WRITTEN, 1, SMALL);
        tiers_iterate(&t);
        assert_false(r[0].done || r[1].done);
        t.later_ns += UINT64_C(61000000000);
        tiers_iterate(&t);
        expect(&r[0], CACHE_OK);
        expect(&r[1], CACHE_BUSY);
        assert_int_equal(stats().postponed, 1);
        put_bytes(&r[2], 2, CACHE_ACCEPTED, 1, SMALL);
        assert_false(r[2].done);
        release();
        expect(&r[2], CACHE_OK);
        assert_int_equal(stats().postponed, 1);
        tiers_settle(&t);
}

/* A small put that the disk has room for does not overtake a large one that waits for it. Accepted
 * puts that must not wait are not held up by that one. */
static void puts_that_wait_for_the_disk_keep_their_order(void **state)
{
        uint64_t limit = pool_bytes(t.pool) / 4;
        struct req large, small, quick;
        struct store_write w;

        occupy(&w, limit - SMALL);
        put_bytes(&large, 0, CACHE_WRITTEN, 1, (uint32_t)pool_slab_bytes(t.pool));
        tiers_iterate(&t);
        put_bytes(&small, 1, CACHE_WRITTEN, 1, 4 * KIB);
        put_as(0, &quick, 2, CACHE_ACCEPTED, 4 * KIB, true);
        expect(&quick, CACHE_OK);
        assert_int_equal(tiers_of(1), 0);
        assert_false(large.done || small.done);
        cache_unwritten_end(t.cache, &w);
        cache_kick(t.cache);
        expect(&large, CACHE_OK);
        expect(&small, CACHE_OK);
        tiers_settle(&t);
}

static void a_postponed_chunk_that_left_memory_is_not_written(void **state)
{
        uint64_t postponed;
        struct req again;

        fall_behind();
        put_postponed(0, N);
        postponed = stats().postponed;
        for (unsigned i = 0; i < N; i++)
                assert_int_equal(evict(i, false), CACHE_OK);
        /* Other keys get the records that the evicted chunks had. */
        for (unsigned i = N; i < N + 4; i++) {
                put_as(0, &again, i, CACHE_ACCEPTED, SMALL, true);
                expect(&again, CACHE_OK);
        }
        catch_up();
        assert_true(stats().caught_up <= stats().postponed - postponed);
        for (unsigned i = 0; i < N; i++)
                expect_get(i, CACHE_MISS, 0);
        for (unsigned i = N; i < N + 4; i++)
                expect_get(i, CACHE_OK, 1);
}

static void a_written_put_of_a_postponed_chunk_has_it_written(void **state)
{
        struct req r;

        fall_behind();
        put_postponed(0, N);
        assert_int_equal(tiers_of(N - 1), CACHE_MEMORY);
        put(&r, N - 1, CACHE_WRITTEN);
        assert_false(r.done);
        release();
        expect(&r, CACHE_EXISTS);
        assert_int_equal(tiers_of(N - 1) & CACHE_DISK, CACHE_DISK);
        tiers_settle(&t);
}

/* Any number of chunks may be postponed, and puts that are to be written would write them all. Such
 * a put waits as it does for a new key, also if it has waited for the bytes of the first put. */
static void written_puts_of_postponed_chunks_keep_the_limit(void **state)
{
        enum { MANY = 120, JOINED = MANY / 2 };
        static struct req first[MANY], r[MANY];
        struct req refused;

        fall_behind();
        put_postponed(0, JOINED);
        for (unsigned i = JOINED; i < MANY; i++)
                put_as(0, &first[i], i, CACHE_ACCEPTED, SMALL, true);
        for (unsigned i = 0; i < MANY; i++)
                put_bytes(&r[i], i, CACHE_WRITTEN, 1, SMALL);
        for (unsigned i = JOINED; i < MANY; i++)
                expect(&first[i], CACHE_OK);
        tiers_iterate(&t);
        assert_in_range(stats().unwritten_bytes, 0,
                        stats().unwritten_limit + pool_slab_bytes(t.pool));
        put_as(0, &refused, 0, CACHE_WRITTEN, SMALL, true);
        expect(&refused, CACHE_BUSY);
        release();
        for (unsigned i = 0; i < MANY; i++) {
                expect(&r[i], CACHE_EXISTS);
                assert_int_equal(tiers_of(i) & CACHE_DISK, CACHE_DISK);
        }
        tiers_settle(&t);
}

/* The bytes of a put occupy the pool until they are copied, which takes long from a slow file. */
static void copies_of_postponed_chunks_leave_room_to_other_users(void **state)
{
        enum { MANY = 200 };
        static struct req r[MANY];
        struct pool_stats pool;
        struct req other;
        unsigned busy = 0;

        put_cold(5000);
        fall_behind();
        for (unsigned i = 0; i < MANY; i++)
                put_as(1, &r[i], i, CACHE_ACCEPTED, SMALL, true);
        pool_get_stats(t.pool, &pool);
        assert_in_range(pool.pinned_bytes, pool.bytes / 2, pool.bytes * 3 / 4);
        get(&other, 5000);
        expect(&other, CACHE_OK);
        put_as(2, &other, 5001, CACHE_ACCEPTED, SMALL, true);
        expect(&other, CACHE_OK);
        for (unsigned i = 0; i < MANY; i++) {
                tiers_wait(&t, &r[i].done);
                busy += r[i].req.status == CACHE_BUSY;
        }
        assert_in_range(busy, 1, MANY / 2 + 10);
        put_postponed(6000, 6000 + N); /* the copies have ended */
        catch_up();
}

/* The device is idle, however much its user has copied. */
static void copies_of_postponed_chunks_do_not_count_as_unwritten(void **state)
{
        uint64_t limit = pool_bytes(t.pool) / 4;
        static struct req r[40], written;
        struct store_write w;

        occupy(&w, limit);
        for (unsigned i = 0; i < ARRAY_SIZE(r); i++)
                put_as(0, &r[i], i, CACHE_ACCEPTED, SMALL, true);
        assert_int_equal(stats().unwritten_bytes, 0);
        cache_unwritten_end(t.cache, &w);
        put_as(0, &written, 100, CACHE_ACCEPTED, SMALL, true);
        for (unsigned i = 0; i < ARRAY_SIZE(r); i++)
                expect(&r[i], CACHE_OK);
        expect(&written, CACHE_OK);
        assert_int_equal(stats().postponed, ARRAY_SIZE(r));
        catch_up();
}

static enum cache_status pin(uint32_t n)
{
        struct cache_place place;
        struct key k = key_of(n);

        (void)cache_find(t.cache, t.ns, &k, cache_hash(t.cache, t.ns, &k), &place, NULL);
        return cache_retain(t.cache, &place, true, UINT64_MAX);
}

/* A client repeats a pin that is BUSY, and gives up one whose chunk is only in memory. */
static void a_postponed_chunk_can_be_pinned_when_it_is_written(void **state)
{
        struct req r;

        fall_behind();
        put_as(0, &r, 0, CACHE_ACCEPTED, SMALL, true);
        expect(&r, CACHE_OK);
        assert_int_equal(stats().postponed, 1);
        assert_int_equal(pin(0), CACHE_BUSY);
        catch_up();
        assert_int_equal(pin(0), CACHE_OK);
}

static void a_postponed_chunk_whose_write_fails_stays_in_memory(void **state)
{
        fall_behind();
        put_postponed(0, N);
        release();
        refuse(KIO_WRITE, 1, UINT64_MAX);
        catch_up();
        for (unsigned i = 0; i < N; i++)
                expect_get(i, CACHE_OK, 1);
        assert_false(cache_may_catch_up(t.cache));
}

/* Begins the writes that can begin. The device holds them. */
static void begin_to_catch_up(void)
{
        do
                tiers_iterate(&t);
        while (cache_may_catch_up(t.cache));
}

static uint64_t unwritten_of(uint32_t user)
{
        const struct cache_user *u = cache_user_find(t.cache, user);

        return u ? u->unwritten : 0;
}

/* The store's eviction order depends on them as on those of a chunk that is written at once. */
static void postponed_chunks_keep_their_place_and_gap(void **state)
{
        struct key k = key_of(1);
        struct store_write w;
        const struct write *write;
        static struct req r;

        occupy(&w, pool_bytes(t.pool));
        start(&r, 1);
        r.src = malloc(SMALL);
        assert_non_null(r.src);
        fill(r.src, 1, 1, SMALL);
        r.req.nowait = true;
        r.req.memory = r.src;
        r.req.length = SMALL;
        r.req.gap = 7;
        r.req.cost = 3;
        r.req.chain_place = EVICT_PLACE_CONTINUATION;
        cache_put(t.cache, &r.req);
        kio_flush(t.io);
        expect(&r, CACHE_OK);
        hold(KIO_WRITE, 1);
        cache_unwritten_end(t.cache, &w);
        begin_to_catch_up();
        write = write_of(
                pool_chunk(t.pool, pool_find(t.pool, t.ns, &k, cache_hash(t.cache, t.ns, &k))));
        assert_non_null(write);
        assert_int_equal(write->store.gap, 7);
        assert_int_equal(write->store.cost, 3);
        assert_int_equal(write->store.place, EVICT_PLACE_CONTINUATION);
        catch_up();
}

static void test_R16_users_take_turns_in_catching_up(void **state)
{
        enum { MANY = 60, FEW = 4 };
        struct store_write w;
        struct req r;

        occupy(&w, pool_bytes(t.pool)); /* no user has a reserve */
        for (unsigned i = 0; i < MANY + FEW; i++) {
                put_as(i < MANY ? 1 : 2, &r, i, CACHE_ACCEPTED, SMALL, true);
                expect(&r, CACHE_OK);
        }
        assert_int_equal(stats().postponed, MANY + FEW);
        hold(KIO_WRITE, 1);
        cache_unwritten_end(t.cache, &w);
        begin_to_catch_up();
        assert_int_equal(unwritten_of(2), FEW * SMALL);
        assert_in_range(unwritten_of(1), FEW * SMALL, stats().unwritten_limit / 2 - FEW * SMALL);
        catch_up();
        assert_int_equal(stats().caught_up, MANY + FEW);
        assert_int_equal(fair_users(), 0);
}

/* Only one chunk at a time has room. */
static void test_R16_users_with_large_chunks_take_turns(void **state)
{
        enum { EACH = 2 };
        uint32_t large = (uint32_t)pool_slab_bytes(t.pool);
        struct store_write w[2];
        struct req r;

        occupy(&w[0], pool_bytes(t.pool));
        for (unsigned i = 0; i < 2 * EACH; i++) {
                put_as(1 + i / EACH, &r, i, CACHE_ACCEPTED, large, true);
                expect(&r, CACHE_OK);
        }
        occupy(&w[1], large);
        cache_unwritten_end(t.cache, &w[0]);
        for (unsigned i = 0; i < 2 * EACH; i++) {
                hold(KIO_WRITE, 1);
                begin_to_catch_up();
                assert_int_equal(unwritten_of(1 + i % 2), large);
                assert_int_equal(stats().unwritten_bytes, large);
                release();
                while (stats().unwritten_bytes > 0) {
                        tiers_wait_io(&t);
                        kio_reap(t.io);
                        store_iterate(t.store);
                        kio_flush(t.io);
                }
        }
        cache_unwritten_end(t.cache, &w[1]);
        catch_up();
}

/* A user that loads much with puts that wait leaves others their share of the disk. */
static void test_R16_unwritten_bytes_of_others_do_not_end_catching_up(void **state)
{
        enum { FEW = 8 };
        struct store_write w[2];
        struct req r;

        occupy(&w[0], stats().unwritten_limit * 3 / 4);
        occupy(&w[1], pool_bytes(t.pool));
        for (unsigned i = 0; i < FEW; i++) {
                put_as(1, &r, i, CACHE_ACCEPTED, SMALL, true);
                expect(&r, CACHE_OK);
        }
        assert_int_equal(stats().postponed, FEW);
        hold(KIO_WRITE, 1);
        cache_unwritten_end(t.cache, &w[1]);
        begin_to_catch_up();
        assert_int_equal(unwritten_of(1), FEW * SMALL);
        cache_unwritten_end(t.cache, &w[0]);
        catch_up();
}

static void test_R16_one_users_postponed_chunks_leave_places_to_others(void **state)
{
        struct store_write w;
        struct req r[2];
        struct key k = key_of(1);
        uint32_t chunk;

        occupy(&w, pool_bytes(t.pool));
        for (unsigned i = 0; i < 2; i++) {
                put_as(1 + i, &r[i], i, CACHE_ACCEPTED, SMALL, true);
                expect(&r[i], CACHE_OK);
        }
        /* The other user postpones its chunk again and again. */
        chunk = pool_find(t.pool, t.ns, &k, cache_hash(t.cache, t.ns, &k));
        for (unsigned i = 0; i < 200000; i++)
                cache_postpone(t.cache, chunk);
        put_as(3, &r[0], 2, CACHE_ACCEPTED, SMALL, true);
        expect(&r[0], CACHE_OK);
        cache_unwritten_end(t.cache, &w);
        catch_up();
        assert_int_equal(stats().caught_up, 3);
        for (unsigned i = 0; i < 3; i++)
                assert_int_equal(tiers_of(i) & CACHE_DISK, CACHE_DISK);
}

/* In a small pool a chunk can be larger than half of the unwritten bytes may be. */
static void a_large_postponed_chunk_is_written_when_it_has_room(void **state)
{
        struct store_write w;
        struct req r;

        tiers_close(&t);
        t.pool_bytes = 8 * MIB;
        tiers_open(&t);
        occupy(&w, pool_bytes(t.pool));
        put_as(0, &r, 0, CACHE_ACCEPTED, SMALL, true);
        expect(&r, CACHE_OK);
        put_as(0, &r, 1, CACHE_ACCEPTED, (uint32_t)pool_slab_bytes(t.pool), true);
        expect(&r, CACHE_OK);
        hold(KIO_WRITE, 1);
        cache_unwritten_end(t.cache, &w);
        begin_to_catch_up();
        catch_up();
        assert_int_equal(stats().caught_up, 2);
        assert_int_equal(tiers_of(1) & CACHE_DISK, CACHE_DISK);
        t.pool_bytes = 0;
}

struct resume {
        struct store_device device;
        bool done;
};

static void on_resumed(struct store_device *device)
{
        container_of(device, struct resume, device)->done = true;
}

/* A write that begins while no volume is in use fails, and would not be tried again. */
static void postponed_chunks_are_written_when_a_bypassed_volume_is_resumed(void **state)
{
        struct resume resume = { .device.complete = on_resumed };
        uint64_t postponed;

        tiers_close(&t);
        t.hang_ms = 200;
        tiers_open(&t);
        fall_behind();
        put_postponed(0, N);
        postponed = stats().postponed;
        while (store_volumes_up(t.store) > 0) {
                store_tick(t.store);
                tiers_iterate(&t);
        }
        assert_int_equal(stats().unwritten_bytes, 0);
        for (unsigned i = 0; i < N; i++)
                expect_get(i, CACHE_OK, 1); /* a use has a chunk written, too */
        release();
        tiers_settle(&t);
        store_resume(t.store, &resume.device);
        tiers_wait(&t, &resume.done);
        assert_int_equal(resume.device.result, 0);
        catch_up();
        assert_int_equal(stats().caught_up, postponed);
        for (unsigned i = 0; i < N; i += 3)
                assert_int_equal(tiers_of(i) & CACHE_DISK, CACHE_DISK);
        t.hang_ms = 0;
}

static void postponed_chunks_are_written_after_the_stop(void **state)
{
        uint64_t chunks = 0, bytes = 0, pending;
        static struct req late;

        fall_behind();
        put_postponed(0, N);
        assert_int_equal(evict(N - 3, false), CACHE_OK);
        put_as(0, &late, N, CACHE_ACCEPTED, SMALL, true); /* is copied when the cache stops */
        cache_count_postponed(t.cache, &chunks, &bytes);
        assert_int_equal(chunks, stats().postponed - 1);
        assert_int_equal(bytes, chunks * SMALL);
        pending = cache_pending(t.cache);
        cache_stop(t.cache);
        assert_int_equal(cache_pending(t.cache), pending + stats().postponed);
        expect(&late, CACHE_OK);
        release();
        tiers_settle(&t);
        assert_int_equal(stats().caught_up, chunks + 1);
        for (unsigned i = 0; i <= N; i++)
                assert_int_equal(tiers_of(i) & CACHE_DISK, i == N - 3 ? 0 : CACHE_DISK);
        assert_int_equal(fair_users(), 0);
}

/* The daemon waits for its writes, but not for ever, and not for volumes that are not in use. */
static void a_stop_does_not_wait_for_postponed_chunks_that_are_forgotten(void **state)
{
        static struct req late;

        fall_behind();
        put_postponed(0, N);
        put_as(0, &late, N, CACHE_ACCEPTED, SMALL, true);
        cache_stop(t.cache);
        cache_forget_postponed(t.cache);
        expect(&late, CACHE_OK);
        release();
        tiers_settle(&t);
        assert_int_equal(stats().caught_up, 0);
        assert_int_equal(cache_pending(t.cache), 0);
}

static void a_stop_forgets_postponed_chunks_without_a_volume(void **state)
{
        tiers_close(&t);
        t.hang_ms = 200;
        tiers_open(&t);
        fall_behind();
        put_postponed(0, N);
        cache_stop(t.cache);
        while (store_volumes_up(t.store) > 0) {
                store_tick(t.store);
                tiers_iterate(&t);
        }
        tiers_iterate(&t);
        assert_false(cache_may_catch_up(t.cache));
        release();
        tiers_settle(&t);
        assert_int_equal(stats().caught_up, 0);
        t.hang_ms = 0;
}

int main(void)
{
        static const struct CMUnitTest tests[] = {
                TEST(accepted_puts_do_not_wait_for_the_disk),
                TEST(postponed_chunks_are_written_when_the_disk_has_caught_up),
                TEST(chunks_are_postponed_until_half_of_the_share_is_free),
                TEST(an_accepted_put_that_may_wait_does_so_until_its_deadline),
                TEST(puts_that_wait_for_the_disk_keep_their_order),
                TEST(a_postponed_chunk_that_left_memory_is_not_written),
                TEST(a_written_put_of_a_postponed_chunk_has_it_written),
                TEST(written_puts_of_postponed_chunks_keep_the_limit),
                TEST(copies_of_postponed_chunks_leave_room_to_other_users),
                TEST(copies_of_postponed_chunks_do_not_count_as_unwritten),
                TEST(a_postponed_chunk_can_be_pinned_when_it_is_written),
                TEST(a_postponed_chunk_whose_write_fails_stays_in_memory),
                TEST(postponed_chunks_keep_their_place_and_gap),
                TEST(test_R16_users_take_turns_in_catching_up),
                TEST(test_R16_users_with_large_chunks_take_turns),
                TEST(test_R16_unwritten_bytes_of_others_do_not_end_catching_up),
                TEST(test_R16_one_users_postponed_chunks_leave_places_to_others),
                TEST(a_large_postponed_chunk_is_written_when_it_has_room),
                TEST(postponed_chunks_are_written_when_a_bypassed_volume_is_resumed),
                TEST(postponed_chunks_are_written_after_the_stop),
                TEST(a_stop_does_not_wait_for_postponed_chunks_that_are_forgotten),
                TEST(a_stop_forgets_postponed_chunks_without_a_volume),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The cache: gets, shared reads, and prefetches. */

#include "cache-fixture.h"

static void gets_of_one_key_share_one_read(void **state)
{
        struct store_stats before, after;
        struct req r[5];

        put_cold(1);
        store_get_stats(t.store, &before);
        get_reading(&r[0], 1);
        for (unsigned i = 1; i < 5; i++)
                get(&r[i], 1);
        release();
        for (unsigned i = 0; i < 5; i++) {
                expect(&r[i], CACHE_OK);
                assert_int_equal(r[i].req.tier, CACHE_DISK);
                assert_int_equal(r[i].version, 1);
        }
        store_get_stats(t.store, &after);
        assert_int_equal(after.reads - before.reads, 1);
        assert_int_equal(stats().shared_fills, 4);
        assert_int_equal(tiers_of(1), CACHE_MEMORY | CACHE_DISK);
}

static void what_is_prefetched_is_a_hit_then(void **state)
{
        struct store_stats before, after;
        struct req r;

        assert_int_equal(prefetch(1), CACHE_MISS);
        put_cold(1);
        store_get_stats(t.store, &before);
        assert_int_equal(prefetch(1), CACHE_OK);
        assert_int_equal(prefetch(1), CACHE_OK); /* already being read: once is enough */
        tiers_settle(&t);
        assert_int_equal(tiers_of(1), CACHE_MEMORY | CACHE_DISK);
        assert_int_equal(prefetch(1), CACHE_OK);
        for (unsigned i = 0; i < 2; i++) {
                get(&r, 1);
                expect(&r, CACHE_OK);
                assert_int_equal(r.req.tier, CACHE_MEMORY);
                assert_int_equal(r.version, 1);
        }
        store_get_stats(t.store, &after);
        assert_int_equal(after.reads - before.reads, 1);
        assert_int_equal(stats().prefetched, 1);
        assert_int_equal(stats().prefetched_bytes, LENGTH);
        assert_int_equal(stats().prefetch_hits, 1);
        assert_int_equal(stats().shared_fills, 0);
}

static void a_get_joins_a_prefetch(void **state)
{
        struct req r;

        put_cold(1);
        hold(KIO_READ, 1);
        assert_int_equal(prefetch(1), CACHE_OK);
        tiers_wait_hits(&t, 1);
        get(&r, 1);
        release();
        expect(&r, CACHE_OK);
        assert_int_equal(r.version, 1);
        assert_int_equal(stats().shared_fills, 1);
        assert_int_equal(stats().prefetch_hits, 1);
}

static void what_is_evicted_or_cannot_be_read_meanwhile_is_not_there(void **state)
{
        put_cold(1);
        hold(KIO_READ, 1);
        assert_int_equal(prefetch(1), CACHE_OK);
        tiers_wait_hits(&t, 1);
        assert_int_equal(evict(1, false), CACHE_OK);
        assert_true(stats().prefetch_inflight_bytes >= LENGTH);
        release();
        tiers_settle(&t);
        assert_int_equal(tiers_of(1), 0);
        assert_int_equal(prefetch(1), CACHE_MISS);
        assert_int_equal(stats().prefetch_inflight_bytes, 0);

        put_cold(2);
        refuse(KIO_READ, 1, FAULT_FOR_EVER);
        assert_int_equal(prefetch(2), CACHE_OK);
        tiers_settle(&t);
        fault_set(NULL);
        assert_false(tiers_of(2) & CACHE_MEMORY);
        assert_int_equal(stats().prefetch_hits, 0);
        assert_int_equal(stats().prefetch_inflight_bytes, 0);
        expect_put(3, CACHE_WRITTEN, CACHE_OK);
}

/* Gets have most of the pool, however much is prefetched. */
static void prefetches_take_a_quarter_of_the_pool(void **state)
{
        uint64_t most = pool_bytes(t.pool) / 4 / LENGTH, begun = 0;

        for (uint32_t n = 0; n < most + 8; n++)
                put_cold(n);
        hold(KIO_READ, 1);
        while (begun < most + 8 && prefetch((uint32_t)begun) == CACHE_OK)
                begun++;
        assert_in_range(begun, most / 2, most); /* slots are larger than their chunks */
        assert_in_range(stats().prefetch_inflight_bytes, begun * LENGTH,
                        pool_bytes(t.pool) / 4 + 2 * LENGTH);
        assert_int_equal(prefetch((uint32_t)begun), CACHE_BUSY);
        assert_int_equal(prefetch(0), CACHE_OK); /* on its way */
        assert_int_equal(prefetch(1000000), CACHE_MISS);
        release();
        tiers_settle(&t);
        assert_int_equal(stats().prefetch_inflight_bytes, 0);
        assert_int_equal(prefetch((uint32_t)begun), CACHE_OK);
        tiers_settle(&t);
        assert_int_equal(stats().prefetched, begun + 1);
}

static void a_read_that_fails_is_a_miss_for_all_and_a_put_goes_on(void **state)
{
        struct req a, b, p;

        put_cold(1);
        hold(KIO_READ, 1);
        get(&a, 1);
        tiers_wait_hits(&t, 1);
        get(&b, 1);
        put_bytes(&p, 1, CACHE_WRITTEN, 2, LENGTH);
        assert_false(p.done);
        assert_int_equal(evict(1, false), CACHE_OK);
        release();
        expect(&a, CACHE_MISS);
        expect(&b, CACHE_MISS);
        expect(&p, CACHE_OK);
        expect_get(1, CACHE_OK, 2);

        put_cold(2);
        refuse(KIO_READ, 1, 1);
        get(&a, 2);
        put_bytes(&p, 2, CACHE_WRITTEN, 3, LENGTH);
        expect(&a, CACHE_MISS);
        expect(&p, CACHE_OK);
        expect_get(2, CACHE_OK, 3);
}

static void a_put_that_finds_a_read_exists_when_it_arrives(void **state)
{
        struct req g, p;

        put_cold(1);
        get_reading(&g, 1);
        put_bytes(&p, 1, CACHE_WRITTEN, 2, LENGTH);
        assert_false(p.done);
        release();
        expect(&p, CACHE_EXISTS);
        assert_int_equal(p.version, 1);
        expect(&g, CACHE_OK);
}

static void a_chunk_that_was_dropped_and_put_again_answers_each_with_its_own(void **state)
{
        struct req old, fresh, p;

        put_cold(1);
        get_reading(&old, 1);
        assert_int_equal(evict(1, false), CACHE_OK);
        put_bytes(&p, 1, CACHE_WRITTEN, 2, LENGTH);
        expect(&p, CACHE_OK);
        get(&fresh, 1);
        expect(&fresh, CACHE_OK);
        assert_int_equal(fresh.version, 2);
        assert_false(old.done);
        release();
        expect(&old, CACHE_MISS);
        expect_get(1, CACHE_OK, 2);
}

int main(int argc, char **argv)
{
        const struct CMUnitTest tests[] = {
                TEST(gets_of_one_key_share_one_read),
                TEST(what_is_prefetched_is_a_hit_then),
                TEST(a_get_joins_a_prefetch),
                TEST(what_is_evicted_or_cannot_be_read_meanwhile_is_not_there),
                TEST(prefetches_take_a_quarter_of_the_pool),
                TEST(a_read_that_fails_is_a_miss_for_all_and_a_put_goes_on),
                TEST(a_put_that_finds_a_read_exists_when_it_arrives),
                TEST(a_chunk_that_was_dropped_and_put_again_answers_each_with_its_own),
        };

        if (argc > 1)
                cmocka_set_test_filter(argv[1]);
        return cmocka_run_group_tests(tests, NULL, NULL);
}

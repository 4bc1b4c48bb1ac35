/* SPDX-License-Identifier: Apache-2.0 */
/* The cache: the share of room and devices that one user may have, so that others make progress. */

#include "cache-fixture.h"

static void test_R16_one_users_unwritten_bytes_leave_another_its_share(void **state)
{
        enum { MANY = 16, N = 8 };
        struct req first, r[MANY], other[N], too_much;
        uint32_t large = (uint32_t)pool_slab_bytes(t.pool);

        hold(KIO_WRITE, 1);
        for (unsigned i = 0; i < 2; i++) {
                put_as(1, &first, 50 + i, CACHE_ACCEPTED, large, false);
                expect(&first, CACHE_OK);
        }
        assert_int_equal(stats().unwritten_bytes, pool_bytes(t.pool) / 4);
        for (unsigned i = 0; i < MANY; i++)
                put_as(1, &r[i], 100 + i, CACHE_WRITTEN, large, false);
        tiers_iterate(&t);

        /* The first user has the whole budget and waits for more. The other one is admitted
         * nevertheless, also without waiting, as long as it has no more than its half. */
        for (unsigned i = 0; i < N; i++) {
                put_as(2, &other[i], 200 + i, CACHE_ACCEPTED, SMALL, true);
                expect(&other[i], CACHE_OK);
        }
        assert_int_equal(stats().putting_users, 2);
        put_as(2, &too_much, 300, CACHE_WRITTEN, large, true);
        expect(&too_much, CACHE_BUSY);
        put_as(1, &too_much, 301, CACHE_WRITTEN, SMALL, true);
        expect(&too_much, CACHE_BUSY);
        assert_true(stats().unwritten_bytes <= pool_bytes(t.pool) / 4 + large);
        release();
        for (unsigned i = 0; i < MANY; i++)
                expect(&r[i], CACHE_OK);
}

static void test_R16_users_that_wait_for_room_are_let_in_in_turn(void **state)
{
        enum { MANY = 12 };
        uint32_t pinned[SLABS], large = (uint32_t)pool_slab_bytes(t.pool);
        struct req many[MANY], one;
        unsigned before = 0;

        pin_every_slab(pinned, SLABS);
        for (unsigned i = 0; i < MANY; i++)
                put_as(1, &many[i], i, CACHE_WRITTEN, large, false);
        put_as(2, &one, 100, CACHE_WRITTEN, large, false);
        tiers_iterate(&t);
        unpin_all(pinned, 1); /* a single slot, so that requests end in the order of their turns */
        tiers_wait(&t, &one.done);
        unpin_all(pinned + 1, SLABS - 1);
        for (unsigned i = 0; i < MANY; i++)
                before += many[i].done;
        assert_int_equal(one.req.status, CACHE_OK);
        assert_in_range(before, 0, 4);
        for (unsigned i = 0; i < MANY; i++)
                expect(&many[i], CACHE_OK);
}

/* The store is handed a window's worth; what else was accepted waits, and a write of a user that
 * has nothing there is the next. */
static void test_R16_another_users_write_stands_behind_a_window_at_most(void **state)
{
        /* With this many, the last is submitted after a further window has ended. */
        enum { MANY = 3000 };
        static struct req r[MANY];
        struct req other;

        tiers_close(&t);
        t.pool_bytes = 64 * MIB;
        tiers_open(&t);
        hold(KIO_WRITE, 1);
        for (unsigned i = 0; i < MANY; i++) {
                put_as(1, &r[i], i, CACHE_WRITTEN, 1000, false);
                if (i % 100 == 99)
                        tiers_iterate(&t);
        }
        reap_copies(MANY);
        put_as(2, &other, MANY, CACHE_WRITTEN, 1000, false);
        reap_copies(MANY + 1);
        assert_int_equal(stats().queued_writes, MANY + 1 - 1024);
        release();
        tiers_wait(&t, &other.done);
        assert_int_equal(other.req.status, CACHE_OK);
        for (unsigned i = 0; i < MANY; i++)
                expect(&r[i], CACHE_OK);
        assert_true(other.nth < r[MANY - 1].nth);
        assert_int_equal(stats().queued_writes, 0);
}

/* Puts chunks under the keys 0 to READS + 1, with a pool that has room for all. */
static void put_reads(void)
{
        tiers_close(&t);
        t.pool_bytes = 32 * MIB;
        tiers_open(&t);
        for (uint32_t n = 0; n < READS + 2; n++)
                put_cold_of_one_page(n);
}

/* Returns the bytes that the store has been asked to read for this user and has not read. */
static uint64_t asked_for(uint32_t user)
{
        const struct cache_user *u = cache_user_find(t.cache, user);

        return u ? u->reads[0].in_flight : 0;
}

static void test_R16_another_users_read_stands_behind_a_window_at_most(void **state)
{
        struct req other;

        put_reads();
        hold(KIO_READ, 1);
        for (unsigned i = 0; i < READS; i++)
                get_as(1, &reads[i], i);
        assert_int_equal(stats().queued_reads, READS - WINDOW);
        get_as(2, &other, READS);
        assert_int_equal(stats().queued_reads, READS - WINDOW + 1);
        assert_int_equal(asked_for(2), 0);
        release();
        wait_for_more_reads();
        assert_int_equal(asked_for(2), 4096);
        expect(&other, CACHE_OK);
        expect_reads(0, CACHE_OK);
        assert_int_equal(stats().queued_reads, 0);
}

/* A get of a chunk for which another user's read waits runs in the requester's own turn. */
static void test_R16_a_read_that_is_shared_comes_when_the_first_of_its_users_is_served(void **state)
{
        struct req other;

        put_reads();
        hold(KIO_READ, 1);
        for (unsigned i = 0; i < READS; i++)
                get_as(1, &reads[i], i);
        get_as(2, &other, READS - 1);
        assert_int_equal(stats().shared_fills, 1);
        assert_int_equal(stats().queued_reads, READS - WINDOW);
        release();
        wait_for_more_reads();
        assert_int_equal(asked_for(2), 4096);
        expect(&other, CACHE_OK);
        expect_reads(0, CACHE_OK);
}

/* Reads into the pool that wait for their turn are not made if all that wait for them are
 * cancelled. */
static void reads_into_the_pool_that_wait_for_their_turn_are_cancelled(void **state)
{
        struct list_node others = LIST_INIT(others), owner = LIST_INIT(owner);
        struct req shared, prefetched;
        uint32_t most = 50;

        put_reads();
        hold(KIO_READ, 1);
        for (unsigned i = 0; i < READS; i++) {
                start(&reads[i], i);
                reads[i].req.user = 1;
                reads[i].req.owner = i < WINDOW ? &others : &owner;
                cache_get(t.cache, &reads[i].req);
        }
        get_as(2, &shared, READS - 1);
        assert_int_equal(prefetch_as(1, READS + 1), CACHE_OK);
        get_as(1, &prefetched, READS + 1);
        list_unlink(&prefetched.req.owned);
        list_append(&owner, &prefetched.req.owned);
        assert_int_equal(stats().queued_reads, READS - WINDOW + 1);

        assert_true(cache_cancel(t.cache, &owner, &most));
        assert_int_equal(stats().queued_reads, READS - WINDOW + 1 - 50);
        most = UINT32_MAX;
        assert_false(cache_cancel(t.cache, &owner, &most));
        assert_true(list_empty(&owner));
        assert_int_equal(stats().queued_reads, 2); /* the device has these */
        expect_reads(WINDOW, CACHE_CANCELLED);
        expect(&prefetched, CACHE_CANCELLED);
        most = UINT32_MAX;
        assert_false(cache_cancel(t.cache, &others, &most)); /* with the device */
        assert_int_equal(most, UINT32_MAX);
        assert_false(reads[0].done || shared.done);

        /* The key can be requested again while the others are being read. */
        get_as(1, &reads[WINDOW], WINDOW);
        release();
        for (unsigned i = 0; i <= WINDOW; i++)
                expect(&reads[i], CACHE_OK);
        expect(&shared, CACHE_OK);
        tiers_settle(&t);
        assert_int_equal(tiers_of(READS + 1), CACHE_DISK | CACHE_MEMORY);
        assert_int_equal(tiers_of(WINDOW + 1), CACHE_DISK);
}

/* A chunk purged while its read waited is a miss. */
static void a_read_that_waits_may_be_purged(void **state)
{
        struct purge p;

        put_reads();
        hold(KIO_READ, 1);
        for (unsigned i = 0; i < READS; i++)
                get_as(1, &reads[i], i);
        purge(&p);
        release();
        expect_reads(WINDOW, CACHE_MISS);
        expect_reads(0, CACHE_MISS);
        tiers_wait(&t, &p.done);
}

/* A user's gets go before its prefetches; users have equal shares. */
static void test_R16_reads_ahead_leave_other_users_their_share(void **state)
{
        uint64_t most = pool_bytes(t.pool) / 4, first = 0, second = 0, cold = 2 * most / LENGTH;
        struct req g;

        for (uint32_t n = 0; n < cold; n++)
                put_cold(n);
        hold(KIO_READ, 1);
        while (prefetch_as(1, (uint32_t)first) == CACHE_OK)
                first++;
        assert_in_range(stats().prefetch_inflight_bytes, most - 2 * SMALL, most);
        while (prefetch_as(2, (uint32_t)(first + second)) == CACHE_OK)
                second++;
        assert_in_range(second, 2, first);
        assert_int_equal(prefetch_as(1, (uint32_t)(first + second)), CACHE_BUSY);
        /* A get of a user that has no room left for prefetches is read nevertheless. */
        get_as(1, &g, (uint32_t)(first + second));
        release();
        expect(&g, CACHE_OK);
        tiers_settle(&t);
        assert_int_equal(stats().prefetch_inflight_bytes, 0);
        assert_int_equal(prefetch_as(1, (uint32_t)(first + second + 1)), CACHE_OK);
        tiers_settle(&t);
}

static void test_R16_reads_ahead_stand_behind_the_users_own_gets(void **state)
{
        struct req last;

        put_reads();
        hold(KIO_READ, 1);
        for (unsigned i = 0; i < READS - 1; i++)
                get_as(1, &reads[i], i);
        assert_int_equal(prefetch_as(1, READS), CACHE_OK);
        get_as(1, &reads[READS - 1], READS - 1);
        assert_int_equal(stats().queued_reads, READS - WINDOW + 1);
        /* A get of a chunk that is being prefetched turns the prefetch into a get. */
        get_as(1, &last, READS);
        release();
        expect(&last, CACHE_OK);
        expect_reads(0, CACHE_OK);
        assert_int_equal(stats().prefetch_hits, 1);
}

int main(int argc, char **argv)
{
        const struct CMUnitTest tests[] = {
                TEST(test_R16_one_users_unwritten_bytes_leave_another_its_share),
                TEST(test_R16_users_that_wait_for_room_are_let_in_in_turn),
                TEST(test_R16_another_users_write_stands_behind_a_window_at_most),
                TEST(test_R16_another_users_read_stands_behind_a_window_at_most),
                TEST(test_R16_a_read_that_is_shared_comes_when_the_first_of_its_users_is_served),
                TEST(reads_into_the_pool_that_wait_for_their_turn_are_cancelled),
                TEST(a_read_that_waits_may_be_purged),
                TEST(test_R16_reads_ahead_leave_other_users_their_share),
                TEST(test_R16_reads_ahead_stand_behind_the_users_own_gets),
        };

        if (argc > 1)
                cmocka_set_test_filter(argv[1]);
        return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The cache: reads from disk before announced returns. The tests move the cache's clock. */

#include "cache-fixture.h"
#include "cleanup.h"
#include "evict/announced.h"

#define SECOND UINT64_C(1000000000)

enum { USER = 5, RATE = 1 << 30, FILL = 100000 };

static struct announced *announced;

static uint64_t now(void)
{
        return tiers_now(&t);
}

/* Makes the user's announcements come true, a hundredth of the announced time too early. */
static void earn(void)
{
        for (uint64_t id = 1000; id < 1010; id++) {
                announced_make(announced, USER, id, ANNOUNCED_RETURN, 1, now());
                announced_use(announced, USER, id, now() + SECOND / 100 * 99);
        }
}

static int setup_prefetch(void **state)
{
        int r = setup(state);

        assert_int_equal(announced_new(&announced), 0);
        assert_int_equal(cache_prefetch_init(t.cache, announced, RATE), 0);
        assert_int_equal(pool_set_policy(t.pool, "cq"), 1);
        earn();
        tiers_iterate(&t);
        return r;
}

static int teardown_prefetch(void **state)
{
        int r = teardown(state);

        announced = announced_free(announced);
        return r;
}

/* Announces that chunks first to first + n - 1 are used in this number of seconds. */
static void announce(uint64_t id, uint32_t seconds, uint32_t first, uint32_t n)
{
        struct key *keys;

        announced_make(announced, USER, id, ANNOUNCED_RETURN, seconds, now());
        keys = cache_announce(t.cache,
                              &(struct prefetch_return){ .user = USER,
                                                         .namespace_id = t.ns,
                                                         .id = id,
                                                         .seconds = seconds,
                                                         .number = id,
                                                         .n = n },
                              now());
        assert_non_null(keys);
        for (uint32_t i = 0; i < n; i++)
                keys[i] = key_of(first + n - 1 - i);
}

/* Lets the clock pass, and what is due then run. */
static void pass(uint64_t seconds)
{
        t.later_ns += seconds * SECOND;
        tiers_iterate(&t);
        tiers_settle(&t);
}

static struct prefetch_stats prefetched(void)
{
        return stats().returns_prefetched;
}

static void a_chain_on_disk_is_read_before_its_return(void **state)
{
        struct req r;

        for (uint32_t n = 1; n <= 4; n++)
                put_cold(n);
        announce(1, 100, 1, 4);
        pass(50);
        assert_int_equal(tiers_of(1), CACHE_DISK);
        pass(47);
        for (uint32_t n = 1; n <= 4; n++)
                assert_int_equal(tiers_of(n), CACHE_MEMORY | CACHE_DISK);
        assert_int_equal(prefetched().chunks, 4);
        assert_int_equal(prefetched().bytes, 4 * LENGTH);
        assert_int_equal(prefetched().inflight_bytes, 0);
        assert_int_equal(prefetched().outcomes[PREFETCH_READ], 1);
        get(&r, 2);
        expect(&r, CACHE_OK);
        assert_int_equal(r.req.tier, CACHE_MEMORY);
        assert_int_equal(r.version, 1);
        assert_int_equal(stats().prefetch_hits, 1);
}

static void clients_reads_come_first(void **state)
{
        for (uint32_t n = 0; n < READS; n++)
                put_cold_of_one_page(n);
        put_cold_of_one_page(READS);
        announce(1, 100, READS, 1);
        hold(KIO_READ, 1);
        for (uint32_t n = 0; n < READS; n++)
                get(&reads[n], n);
        assert_true(stats().queued_reads > 0);
        t.later_ns += 97 * SECOND;
        for (unsigned i = 0; i < 10; i++) {
                tiers_iterate(&t);
                t.later_ns += SECOND / 100;
        }
        assert_int_equal(prefetched().chunks, 0);
        assert_int_equal(prefetched().chains, 1);
        release();
        expect_reads(0, CACHE_OK);
        pass(1);
        assert_int_equal(prefetched().chunks, 1);
        assert_int_equal(tiers_of(READS), CACHE_MEMORY | CACHE_DISK);
}

/* Fills the pool with chunks whose use is announced in this number of seconds. Returns how many are
 * in memory. */
static uint64_t fill_pool(uint32_t seconds)
{
        struct pool_stats pool;
        uint32_t n = FILL;

        do {
                struct evict_promise promise = { .number = n, .seconds = seconds, .belief = 1 };
                struct cache_place place;
                struct key key = key_of(n);

                expect_put(n, CACHE_WRITTEN, CACHE_OK);
                assert_true(cache_find(t.cache, t.ns, &key, cache_hash(t.cache, t.ns, &key), &place,
                                       NULL));
                cache_promise(t.cache, &place, &promise);
                n++;
                pool_get_stats(t.pool, &pool);
        } while (pool.evictions == 0);
        return pool.chunks;
}

static uint64_t evictions(void)
{
        struct pool_stats pool;

        pool_get_stats(t.pool, &pool);
        return pool.evictions;
}

static void chunks_that_are_needed_sooner_stay(void **state)
{
        uint64_t before;

        put_cold(1);
        announce(1, 1000, 1, 1);
        pass(965);
        assert_int_equal(prefetched().outcomes[PREFETCH_READ], 0);
        (void)fill_pool(10);
        before = evictions();
        pass(6);
        assert_int_equal(prefetched().outcomes[PREFETCH_WORTH_LESS], 1);
        assert_int_equal(evictions(), before);
        assert_int_equal(tiers_of(1), CACHE_DISK);
}

/* Announces a chain of SPARE + 3 chunks that returns later than all other chunks in memory, with
 * free slots for SPARE of them, and lets its reads begin. Returns the number of evictions before.
 */
enum { SPARE = 3 };
static uint64_t read_a_chain_that_is_worth_least(void)
{
        uint64_t before;

        for (uint32_t n = 1; n <= SPARE + 3; n++)
                put_cold(n);
        cache_prefetch_set_rate(t.cache, LENGTH); /* one chunk per iteration */
        announce(1, 1000, 1, SPARE + 3);
        pass(965);
        (void)fill_pool(10);
        for (uint32_t n = FILL + 1; n <= FILL + SPARE; n++)
                assert_int_equal(evict(n, true), CACHE_OK);
        before = evictions();
        for (unsigned i = 0; prefetched().chains > 0 && i < 20; i++)
                pass(1);
        return before;
}

static void a_chain_does_not_replace_its_own_beginning(void **state)
{
        uint64_t before = read_a_chain_that_is_worth_least();

        assert_int_equal(prefetched().outcomes[PREFETCH_WORTH_LESS], 1);
        assert_int_equal(prefetched().chunks, SPARE);
        assert_int_equal(evictions(), before);
        for (uint32_t i = 0; i < SPARE; i++)
                assert_int_equal(tiers_of(SPARE + 3 - i), CACHE_MEMORY | CACHE_DISK);
}

/* The beginning of a chain is of use without its end, but not the end without its beginning. */
static void a_chain_that_was_read_is_evicted_from_its_end(void **state)
{
        (void)read_a_chain_that_is_worth_least();
        for (uint32_t left = SPARE; left-- > 0;) {
                expect_put(100 + left, CACHE_WRITTEN, CACHE_OK);
                for (uint32_t i = 0; i < SPARE; i++)
                        assert_int_equal(tiers_of(SPARE + 3 - i),
                                         (i < left ? CACHE_MEMORY : 0) | CACHE_DISK);
        }
}

static void chunks_that_are_needed_later_make_room(void **state)
{
        uint64_t before;

        put_cold(1);
        announce(1, 1000, 1, 1);
        pass(965);
        (void)fill_pool(3000);
        before = evictions();
        pass(6);
        assert_int_equal(prefetched().outcomes[PREFETCH_READ], 1);
        assert_int_equal(evictions(), before + 1);
        assert_int_equal(tiers_of(1), CACHE_MEMORY | CACHE_DISK);
        /* The chunk is worth as much as its promise says: it is not the next to be evicted. */
        expect_put(2, CACHE_WRITTEN, CACHE_OK);
        assert_int_equal(tiers_of(1), CACHE_MEMORY | CACHE_DISK);
}

/* A policy that knows no announced times compares them with the time since the last use. */
static void with_lru_only_chunks_that_are_older_make_room(void **state)
{
        assert_int_equal(pool_set_policy(t.pool, "lru"), 1);
        put_cold(1);
        put_cold(2);
        announce(1, 1000, 1, 1);
        announce(2, 1100, 2, 1);
        pass(965);
        (void)fill_pool(3000);
        pass(6);
        assert_int_equal(prefetched().outcomes[PREFETCH_WORTH_LESS], 1);
        pass(100);
        assert_int_equal(prefetched().outcomes[PREFETCH_READ], 1);
        assert_int_equal(tiers_of(1), CACHE_DISK);
        assert_int_equal(tiers_of(2), CACHE_MEMORY | CACHE_DISK);
}

/* No slab of the pool has slots of the size of chunk 1. A prefetch takes no slab from another size,
 * and waits until a slot is free. */
static void a_size_without_a_slab_delays_no_other_chain(void **state)
{
        struct req r;

        put_bytes(&r, 1, CACHE_WRITTEN, 1, SMALL);
        expect(&r, CACHE_OK);
        assert_int_equal(evict(1, true), CACHE_OK);
        put_cold(2);
        (void)fill_pool(3000);
        announce(1, 100, 1, 1);
        announce(2, 104, 2, 1);
        pass(101);
        assert_int_equal(tiers_of(1), CACHE_DISK);
        assert_int_equal(tiers_of(2), CACHE_MEMORY | CACHE_DISK);
        assert_int_equal(prefetched().outcomes[PREFETCH_READ], 1);
        assert_int_equal(prefetched().chains, 1);
        pass(30);
        assert_int_equal(prefetched().outcomes[PREFETCH_LATE], 1);
}

static void unused_chunks_take_at_most_a_quarter_of_the_pool_from_others(void **state)
{
        uint64_t most = pool_bytes(t.pool) / 4;
        uint32_t n = (uint32_t)(most / LENGTH) + 20;
        struct req r;

        for (uint32_t i = 0; i < n; i++)
                put_cold(i);
        (void)fill_pool(3000);
        announce(1, 100, 0, n);
        pass(97);
        for (unsigned i = 0; i < 100; i++) {
                t.later_ns += SECOND / 100;
                tiers_settle(&t);
                tiers_iterate(&t);
        }
        tiers_settle(&t);
        assert_in_range(pool_unused_for_return(t.pool), most, most + 24 * 1024);
        assert_int_equal(tiers_of(0), CACHE_DISK);
        get(&r, n - 1);
        expect(&r, CACHE_OK);
        assert_in_range(pool_unused_for_return(t.pool), most - 24 * 1024, most);
        pass(1);
        assert_in_range(pool_unused_for_return(t.pool), most, most + 24 * 1024);
        /* Evicted without a use. */
        assert_int_equal(evict(n - 2, true), CACHE_OK);
        assert_in_range(pool_unused_for_return(t.pool), most - 24 * 1024, most);
}

static void purged_while_it_is_read(void **state)
{
        struct purge p;

        put_cold(1);
        put_cold(2);
        announce(1, 100, 1, 1);
        announce(2, 1000, 2, 1);
        hold(KIO_READ, 1);
        t.later_ns += 97 * SECOND;
        tiers_iterate(&t);
        tiers_wait_hits(&t, 1);
        assert_int_equal(prefetched().inflight_bytes, LENGTH);
        purge(&p);
        assert_int_equal(prefetched().chains, 0);
        assert_int_equal(prefetched().outcomes[PREFETCH_DROPPED], 1);
        release();
        tiers_wait(&t, &p.done);
        tiers_settle(&t);
        assert_int_equal(prefetched().inflight_bytes, 0);
        assert_int_equal(tiers_of(1), 0);
        pass(1000);
        assert_int_equal(prefetched().chunks, 1);
}

static void stopped_while_it_is_read(void **state)
{
        put_cold(1);
        put_cold(2);
        announce(1, 100, 1, 1);
        announce(2, 1000, 2, 1);
        hold(KIO_READ, 1);
        t.later_ns += 97 * SECOND;
        tiers_iterate(&t);
        tiers_wait_hits(&t, 1);
        cache_stop(t.cache);
        assert_int_equal(prefetched().chains, 0);
        assert_int_equal(cache_pending(t.cache), 1);
        release();
        tiers_settle(&t);
        assert_int_equal(cache_pending(t.cache), 0);
        assert_int_equal(prefetched().inflight_bytes, 0);
}

static void a_failed_read_leaves_nothing(void **state)
{
        put_cold(1);
        announce(1, 100, 1, 1);
        refuse(KIO_READ, 1, FAULT_FOR_EVER);
        pass(97);
        fault_set(NULL);
        assert_int_equal(prefetched().inflight_bytes, 0);
        assert_false(tiers_of(1) & CACHE_MEMORY);
        assert_int_equal(pool_unused_for_return(t.pool), 0);
        assert_int_equal(stats().prefetch_inflight_bytes, 0);
}

static void free_room_may_have_more_unused_chunks(void **state)
{
        uint32_t n = (uint32_t)(pool_bytes(t.pool) / 2 / LENGTH);

        for (uint32_t i = 0; i < n; i++)
                put_cold(i);
        announce(1, 100, 0, n);
        t.later_ns += 97 * SECOND;
        for (unsigned i = 0; prefetched().chains > 0 && i < 1000; i++)
                pass(0);
        assert_int_equal(prefetched().chunks, n);
        assert_int_equal(evictions(), 0);
}

/* A user whose chains return far too early has them read early. */
static void a_chain_read_early_evicts_for_a_part_of_its_chunks(void **state)
{
        uint64_t before;

        for (uint64_t id = 2000; id < 2100; id++) {
                announced_make(announced, USER, id, ANNOUNCED_RETURN, 10, now());
                announced_use(announced, USER, id, now() + 6 * SECOND);
        }
        for (uint32_t n = 1; n <= 20; n++)
                put_cold(n);
        (void)fill_pool(3000);
        before = evictions();
        announce(1, 100, 1, 20);
        pass(90);
        assert_int_equal(prefetched().chunks, 4);
        assert_int_equal(prefetched().outcomes[PREFETCH_READ], 1);
        assert_int_equal(evictions(), before + 4);
        assert_int_equal(tiers_of(17), CACHE_MEMORY | CACHE_DISK);
        assert_int_equal(tiers_of(16), CACHE_DISK);
        /* Free slots may have the rest. */
        for (uint32_t n = 0; n < 100; n++)
                (void)evict(FILL + 100 + n, true);
        announce(2, 100, 1, 20);
        pass(90);
        assert_int_equal(prefetched().chunks, 20);
        assert_int_equal(evictions(), before + 4);
}

/* The limit is for chunks that announcements have brought. Another user may have prefetched as much
 * by requests, and may never use it. */
static void prefetches_by_request_do_not_count_as_unused(void **state)
{
        uint32_t n = (uint32_t)(pool_bytes(t.pool) / 3 / LENGTH);

        put_cold(1);
        announce(1, 100, 1, 1);
        for (uint32_t i = 0; i < n; i++)
                put_cold(1000 + i);
        for (uint32_t i = 0; i < n; i++) {
                enum cache_status status = prefetch_as(USER + 1, 1000 + i);

                for (; status == CACHE_BUSY; status = prefetch_as(USER + 1, 1000 + i))
                        tiers_settle(&t);
                assert_int_equal(status, CACHE_OK);
        }
        tiers_settle(&t);
        (void)fill_pool(3000);
        for (uint32_t i = 0; i < n; i++)
                assert_int_equal(tiers_of(1000 + i), CACHE_MEMORY | CACHE_DISK);
        pass(97);
        assert_int_equal(prefetched().outcomes[PREFETCH_READ], 1);
        assert_int_equal(tiers_of(1), CACHE_MEMORY | CACHE_DISK);
}

/* A search compares the slabs of other sizes after as many evictions as a slab has slots. */
static void many_prefetched_chunks_take_no_slab_of_another_size(void **state)
{
        uint32_t n = (uint32_t)(pool_slab_bytes(t.pool) / LENGTH) + 20;
        struct pool_stats before, after;
        struct req r;

        for (uint32_t i = 0; i < n; i++)
                put_cold(i);
        for (uint32_t i = 0; i < 8; i++) {
                put_bytes(&r, 1000 + i, CACHE_WRITTEN, 1, SMALL);
                expect(&r, CACHE_OK);
        }
        (void)fill_pool(3000);
        pool_get_stats(t.pool, &before);
        announce(1, 100, 0, n);
        pass(97);
        for (unsigned i = 0; prefetched().chains > 0 && i < 1000; i++) {
                t.later_ns += SECOND / 100;
                tiers_settle(&t);
                tiers_iterate(&t);
        }
        tiers_settle(&t);
        pool_get_stats(t.pool, &after);
        assert_int_equal(prefetched().chunks, n);
        assert_int_equal(after.evictions - before.evictions, n);
        assert_int_equal(after.slab_moves, before.slab_moves);
        for (uint32_t i = 0; i < 8; i++)
                assert_int_equal(tiers_of(1000 + i), CACHE_MEMORY | CACHE_DISK);
}

#define PREFETCH_TEST(name) cmocka_unit_test_setup_teardown(name, setup_prefetch, teardown_prefetch)

int main(void)
{
        const struct CMUnitTest tests[] = {
                PREFETCH_TEST(a_chain_on_disk_is_read_before_its_return),
                PREFETCH_TEST(clients_reads_come_first),
                PREFETCH_TEST(chunks_that_are_needed_sooner_stay),
                PREFETCH_TEST(a_chain_does_not_replace_its_own_beginning),
                PREFETCH_TEST(a_chain_that_was_read_is_evicted_from_its_end),
                PREFETCH_TEST(chunks_that_are_needed_later_make_room),
                PREFETCH_TEST(with_lru_only_chunks_that_are_older_make_room),
                PREFETCH_TEST(a_size_without_a_slab_delays_no_other_chain),
                PREFETCH_TEST(unused_chunks_take_at_most_a_quarter_of_the_pool_from_others),
                PREFETCH_TEST(prefetches_by_request_do_not_count_as_unused),
                PREFETCH_TEST(many_prefetched_chunks_take_no_slab_of_another_size),
                PREFETCH_TEST(free_room_may_have_more_unused_chunks),
                PREFETCH_TEST(a_chain_read_early_evicts_for_a_part_of_its_chunks),
                PREFETCH_TEST(purged_while_it_is_read),
                PREFETCH_TEST(stopped_while_it_is_read),
                PREFETCH_TEST(a_failed_read_leaves_nothing),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

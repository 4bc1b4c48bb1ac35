/* SPDX-License-Identifier: Apache-2.0 */
/* The cache: requests that wait for room in the pool or in the store, and a drain. */
#include <stdlib.h>

#include "base/clock.h"
#include "cache-fixture.h"

static int setup_small_store(void **state)
{
        t = (struct tiers){ .limit = 4 * MIB };
        tiers_open(&t);
        return 0;
}

static void who_finds_no_room_waits_until_there_is_some(void **state)
{
        uint32_t pinned[SLABS], large;
        struct req p, g;

        assert_int_equal(pool_bytes(t.pool) / pool_slab_bytes(t.pool), SLABS);
        large = (uint32_t)pool_slab_bytes(t.pool);
        put_bytes(&p, 1, CACHE_WRITTEN, 1, large);
        expect(&p, CACHE_OK);
        assert_int_equal(evict(1, true), CACHE_OK);
        pin_every_slab(pinned, SLABS);

        get(&g, 1);
        put_bytes(&p, 2, CACHE_WRITTEN, 1, large);
        tiers_iterate(&t);
        assert_false(g.done || p.done);
        assert_int_equal(stats().waited, 2);
        unpin_all(pinned, SLABS);
        assert_true(cache_has_work(t.cache));
        expect(&g, CACHE_OK);
        expect(&p, CACHE_OK);
}

static void who_does_not_want_to_wait_is_told_busy_at_once(void **state)
{
        uint32_t pinned[SLABS], large = (uint32_t)pool_slab_bytes(t.pool);
        struct req p, g;

        put_bytes(&p, 1, CACHE_WRITTEN, 1, large);
        expect(&p, CACHE_OK);
        assert_int_equal(evict(1, true), CACHE_OK);
        pin_every_slab(pinned, SLABS);
        start(&g, 1);
        g.req.nowait = true;
        cache_get(t.cache, &g.req);
        assert_true(g.done);
        assert_int_equal(g.req.status, CACHE_BUSY);
        start(&p, 2);
        p.req.nowait = true;
        p.req.memory = (void *)"";
        p.req.length = large;
        cache_put(t.cache, &p.req);
        assert_true(p.done);
        assert_int_equal(p.req.status, CACHE_BUSY);
        assert_int_equal(stats().busy, 2);
        unpin_all(pinned, SLABS);
}

static void a_wait_ends_at_its_deadline(void **state)
{
        uint32_t pinned[SLABS], large = (uint32_t)pool_slab_bytes(t.pool);
        struct req soon, late;
        uint64_t now, next;

        pin_every_slab(pinned, SLABS);
        put_bytes(&late, 2, CACHE_WRITTEN, 1, large);
        put_bytes(&soon, 1, CACHE_WRITTEN, 1, large);
        now = clock_mono_ns();
        assert_true(soon.req.deadline_ns > now && late.req.deadline_ns <= soon.req.deadline_ns);
        soon.req.deadline_ns -= 1000000000;
        late.req.deadline_ns += 1000000000;

        /* The cache returns the time of the next necessary iteration, which must not stay in the
         * past. */
        next = cache_iterate(t.cache, now);
        for (unsigned turns = 0; !soon.done; turns++) {
                assert_true(next != 0 && turns < 100);
                now = MAX(now, next);
                next = cache_iterate(t.cache, now);
        }
        assert_int_equal(soon.req.status, CACHE_BUSY);
        assert_false(late.done);
        for (unsigned turns = 0; !late.done; turns++) {
                assert_true(next != 0 && turns < 100);
                now = MAX(now, next);
                next = cache_iterate(t.cache, now);
        }
        assert_int_equal(late.req.status, CACHE_BUSY);
        assert_int_equal(cache_iterate(t.cache, now), 0);
        unpin_all(pinned, SLABS);
}

static void a_wait_that_is_cancelled_ends_and_others_do_not(void **state)
{
        uint32_t pinned[SLABS], large = (uint32_t)pool_slab_bytes(t.pool);
        struct req mine[5], other, in_flight;
        struct list_node another = LIST_INIT(another);
        uint32_t most = 0;

        pin_every_slab(pinned, SLABS);
        put_bytes(&in_flight, 3, CACHE_WRITTEN, 1, SMALL);
        for (unsigned i = 0; i < 5; i++)
                put_bytes(&mine[i], 10 + i, CACHE_WRITTEN, 1, large);
        put_bytes(&other, 2, CACHE_WRITTEN, 1, large);
        list_unlink(&other.req.owned);
        list_append(&another, &other.req.owned);
        assert_true(cache_cancel(t.cache, &waits, &most));
        assert_false(mine[0].done);
        most = 3;
        assert_true(cache_cancel(t.cache, &waits, &most));
        assert_int_equal(most, 0);
        assert_true(mine[2].done && !mine[3].done);
        most = 10;
        assert_false(cache_cancel(t.cache, &waits, &most));
        assert_int_equal(most, 8);
        assert_false(cache_cancel(t.cache, &waits, &most));
        assert_int_equal(most, 8);
        assert_true(!other.done && !in_flight.done);
        for (unsigned i = 0; i < 5; i++)
                expect(&mine[i], CACHE_CANCELLED);
        expect(&in_flight, CACHE_OK);
        unpin_all(pinned, SLABS);
        expect(&other, CACHE_OK);
}

/* An iteration answers a bounded number of the requests that waited for one write. */
static void many_that_wait_for_one_write_are_answered_a_few_a_turn(void **state)
{
        enum { MANY = 6000, TURN = 2 * 1024 };
        struct req first, *many = calloc(MANY, sizeof(*many));
        uint64_t until;

        assert_non_null(many);
        put_writing(&first, 1, CACHE_WRITTEN);
        for (unsigned i = 0; i < MANY; i++)
                put(&many[i], 1, i % 2 ? CACHE_WRITTEN : CACHE_DURABLE);
        assert_false(many[0].done);
        until = completions + 1 + MANY;
        release();
        while (completions < until) {
                uint64_t before = completions;

                kio_reap(t.io);
                tiers_iterate(&t);
                assert_in_range(completions - before, 0, TURN);
                if (completions == before && !cache_has_work(t.cache))
                        tiers_wait_io(&t);
        }
        assert_int_equal(first.req.status, CACHE_OK);
        for (unsigned i = 0; i < MANY; i++)
                assert_int_equal(many[i].req.status, CACHE_EXISTS);
        free(many);
}

/* An iteration ends a bounded number of waits, and an owner without waiting requests ends at
 * once. */
static void many_waits_end_a_few_a_turn(void **state)
{
        enum { MANY = 20000, TURN = 2048, OWNERS = 2000 };
        uint32_t pinned[SLABS], large = (uint32_t)pool_slab_bytes(t.pool);
        struct list_node another = LIST_INIT(another);
        struct req *many = calloc(MANY, sizeof(*many));
        unsigned done = 0, turns = 0;
        uint32_t most = UINT32_MAX;
        clock_t alone, beside;
        uint64_t now;

        assert_non_null(many);
        pin_every_slab(pinned, SLABS);
        alone = clock();
        for (unsigned i = 0; i < OWNERS; i++)
                (void)cache_cancel(t.cache, &another, &most);
        alone = clock() - alone;
        for (unsigned i = 0; i < MANY; i++) {
                start(&many[i], i + 1);
                many[i].req.memory = (void *)"";
                many[i].req.length = large;
                cache_put(t.cache, &many[i].req);
        }
        beside = clock();
        for (unsigned i = 0; i < OWNERS; i++)
                (void)cache_cancel(t.cache, &another, &most);
        beside = clock() - beside;
        assert_in_range(beside, 0, 10 * alone + CLOCKS_PER_SEC / 50);

        now = many[MANY - 1].req.deadline_ns + 1000000000;
        while (done < MANY) {
                unsigned before = done;

                assert_true(turns++ < 100 * MANY / TURN);
                (void)cache_iterate(t.cache, now);
                done = 0;
                for (unsigned i = 0; i < MANY; i++)
                        if (many[i].done) {
                                assert_int_equal(many[i].req.status, CACHE_BUSY);
                                done++;
                        }
                assert_in_range(done - before, 0, TURN);
        }
        unpin_all(pinned, SLABS);
        free(many);
}

static bool is_in_pool(uint32_t n)
{
        struct key k = key_of(n);

        return pool_find(t.pool, t.ns, &k, store_hash(t.store, t.ns, &k)) != POOL_NONE;
}

/* Large and small puts with little room for unwritten bytes get it in their order. */
static void puts_are_let_in_in_order(void **state)
{
        enum { N = 6 };
        struct req first, r[N];
        bool all = false;

        /* The budget of unwritten bytes is a quarter of the pool. */
        hold(KIO_WRITE, 1);
        for (unsigned i = 0; i < 2; i++) {
                put_bytes(&first, 50 + i, CACHE_ACCEPTED, 1, (uint32_t)pool_slab_bytes(t.pool));
                expect(&first, CACHE_OK);
        }
        for (unsigned i = 0; i < N; i++) {
                put_bytes(&r[i], i, CACHE_WRITTEN, 1,
                          i % 2 ? 4 * KIB : (uint32_t)pool_slab_bytes(t.pool));
                /* The unwritten bytes will be written, however long that takes. */
                t.later_ns += 200000000;
                tiers_iterate(&t);
                assert_false(is_in_pool(i));
        }
        assert_int_equal(stats().unwritten_bytes, pool_bytes(t.pool) / 4);
        release();
        while (!all) {
                unsigned in = 0;

                tiers_wait_io(&t);
                kio_reap(t.io);
                tiers_iterate(&t);
                while (in < N && is_in_pool(in))
                        in++;
                for (unsigned i = in; i < N; i++)
                        assert_false(is_in_pool(i));
                all = in == N;
        }
        for (unsigned i = 0; i < N; i++)
                expect(&r[i], CACHE_OK);
}

/* Puts a chunk for this user that came from the shared tier. */
static void put_fetched(struct req *r, uint32_t n, char *bytes, uint32_t length,
                        struct cache_fetched *fetched)
{
        static const bool unwanted = false;

        fill(bytes, n, 1, length);
        *fetched = (struct cache_fetched){ .crc = kio_crc32c(bytes, length), .created_ms = 1 };
        start(r, n);
        r->req.memory = bytes;
        r->req.length = length;
        r->req.ack = CACHE_ACCEPTED;
        r->req.fetched = fetched;
        r->req.unwanted = &unwanted;
        cache_put(t.cache, &r->req);
        kio_flush(t.io);
}

static void what_was_fetched_does_not_wait_behind_puts_that_wait_for_the_disk(void **state)
{
        enum { HELD = 2, REST = SLABS - HELD };
        uint32_t large = (uint32_t)pool_slab_bytes(t.pool), pinned[REST];
        struct cache_fetched fetched;
        struct req r, first, waits_for_disk;
        char *bytes = malloc(large);

        assert_non_null(bytes);
        hold(KIO_WRITE, 1);
        for (unsigned i = 0; i < HELD; i++) {
                put_bytes(&first, 50 + i, CACHE_ACCEPTED, 1, large);
                expect(&first, CACHE_OK);
        }
        put_bytes(&waits_for_disk, 1, CACHE_WRITTEN, 1, large);
        tiers_iterate(&t);
        assert_false(is_in_pool(1));
        for (unsigned i = 0; i < REST; i++) {
                struct key key = key_of(2 + i);

                put_fetched(&r, 2 + i, bytes, large, &fetched);
                expect(&r, CACHE_OK);
                pinned[i] = pool_find(t.pool, t.ns, &key, store_hash(t.store, t.ns, &key));
                assert_int_not_equal(pinned[i], POOL_NONE);
                pool_pin(t.pool, pinned[i]);
        }

        /* Where the pool has no room either it is the first that gets some. */
        put_fetched(&r, 20, bytes, large, &fetched);
        tiers_iterate(&t);
        assert_false(r.done);
        unpin_all(pinned, REST);
        expect(&r, CACHE_OK);
        assert_false(waits_for_disk.done);
        release();
        expect(&waits_for_disk, CACHE_OK);
        free(bytes);
}

static void a_small_one_does_not_overtake_a_large_one_that_just_came(void **state)
{
        uint32_t pinned[SLABS], large = (uint32_t)pool_slab_bytes(t.pool);
        struct req big, small;

        pin_every_slab(pinned, SLABS);
        put_bytes(&big, 1, CACHE_WRITTEN, 1, large);
        put_bytes(&small, 2, CACHE_WRITTEN, 1, 64 * KIB);
        tiers_iterate(&t);
        assert_false(big.done || small.done);
        assert_int_equal(stats().waited, 2);
        unpin_all(pinned, SLABS);
        expect(&big, CACHE_OK);
        expect(&small, CACHE_OK);
}

static void one_that_cannot_be_helped_does_not_hold_up_the_others(void **state)
{
        uint32_t pinned[SLABS], large = (uint32_t)pool_slab_bytes(t.pool);
        struct req hopeless[3], get_hopeless, small, later, g;
        uint64_t next;

        put_bytes(&small, 1, CACHE_WRITTEN, 1, large);
        expect(&small, CACHE_OK);
        assert_int_equal(evict(1, true), CACHE_OK);
        put_bytes(&small, 2, CACHE_WRITTEN, 1, SMALL);
        expect(&small, CACHE_OK);
        assert_int_equal(evict(2, true), CACHE_OK);
        pin_every_slab(pinned, SLABS);

        for (unsigned i = 0; i < 3; i++)
                put_bytes(&hopeless[i], 10 + i, CACHE_WRITTEN, 1, large);
        get(&get_hopeless, 1);
        put_bytes(&small, 20, CACHE_WRITTEN, 1, SMALL);
        get(&g, 2);
        assert_false(small.done || g.done);
        next = cache_iterate(t.cache, clock_mono_ns());
        assert_true(next != 0 && next < clock_mono_ns() + UINT64_C(1000000000));
        /* Time goes by; nothing else happens. */
        t.later_ns = 1000000000;
        expect(&small, CACHE_OK);
        expect(&g, CACHE_OK);
        /* A later put need not wait for them either. */
        for (uint64_t end = clock_mono_ns() + 300000000; clock_mono_ns() < end;)
                tiers_iterate(&t);
        put_bytes(&later, 21, CACHE_WRITTEN, 1, SMALL);
        assert_int_equal(stats().waited, 6);
        expect(&later, CACHE_OK);
        assert_false(hopeless[0].done || get_hopeless.done);
        unpin_all(pinned, SLABS);
        for (unsigned i = 0; i < 3; i++)
                expect(&hopeless[i], CACHE_OK);
        expect(&get_hopeless, CACHE_OK);
}

static void a_hit_never_waits_for_those_that_need_room(void **state)
{
        uint32_t pinned[SLABS], large = (uint32_t)pool_slab_bytes(t.pool);
        struct req p, g, again;

        pin_every_slab(pinned, SLABS);
        put_bytes(&p, 1, CACHE_WRITTEN, 1, SMALL);
        expect(&p, CACHE_OK);
        put_bytes(&p, 2, CACHE_WRITTEN, 1, large);
        get(&g, 1);
        assert_true(g.done);
        put(&again, 1, CACHE_WRITTEN);
        assert_true(again.done);
        assert_int_equal(again.req.status, CACHE_EXISTS);
        unpin_all(pinned, SLABS);
        expect(&p, CACHE_OK);
}

static void a_cold_end_that_is_leased_does_not_make_the_pool_full(void **state)
{
        struct pool *p = NULL;
        uint32_t n = 0, chunk, first_free, tries = 0;

        assert_int_equal(pool_new(&p, 64 * MIB, "lru"), 0);
        while (pool_next_slab(p) >= 0)
                assert_int_equal(pool_open_slab(p, 0), 0);
        /* More chunks than a search passes over, and the coldest ones. */
        for (; n < 10000; n++) {
                struct key k = key_of(n);

                assert_int_equal(pool_acquire(p, 1, &k, n, 4 * KIB, 0, &chunk), 0);
                pool_commit(p, chunk, 0); /* and stays pinned */
        }
        for (first_free = n; n < 64 * MIB / (4 * KIB) + 5000; n++) {
                struct key k = key_of(n);

                while (pool_acquire(p, 1, &k, n, 4 * KIB, 0, &chunk) != 0) {
                        if (!pool_has_given_up(p))
                                fail_msg("full at %u, though %u can leave", n, n - first_free);
                        pool_note_time(p, ++tries);
                }
                pool_commit(p, chunk, 0);
                pool_unpin(p, chunk);
        }
        for (uint32_t i = 0; i < 10000; i++) {
                struct key k = key_of(i);

                assert_int_not_equal(pool_find(p, 1, &k, i), POOL_NONE);
        }
        /* The coldest of the remaining chunks are evicted, in their order. */
        for (uint32_t i = 0; i < 64 * MIB / (4 * KIB) + 5000 - 10000; i++) {
                struct key k = key_of(first_free + i);

                assert_true((pool_find(p, 1, &k, first_free + i) == POOL_NONE) == (i < 5000));
        }
        assert_int_equal(tries, 2);
        p = pool_free(p);
}

static void writes_that_the_store_cannot_take_yet_are_written_later(void **state)
{
        enum { N = 60 };
        struct req r[N];
        unsigned ok = 0;

        hold(KIO_WRITE, 1);
        for (unsigned i = 0; i < N; i++) {
                put_bytes(&r[i], i, i % 2 ? CACHE_WRITTEN : CACHE_ACCEPTED, 1, 64 * KIB);
                reap_copies(i + 1);
                tiers_iterate(&t);
        }
        assert_int_equal(stats().unwritten_chunks, N);
        release();
        for (unsigned i = 0; i < N; i++)
                expect(&r[i], CACHE_OK);
        tiers_settle(&t);
        assert_int_equal(stats().pool_only, 0);
        for (unsigned i = 0; i < N; i++)
                ok += (tiers_of(i) & CACHE_DISK) != 0;
        assert_true(ok > 0 && ok < N); /* the room holds fewer */
        for (unsigned i = 0; i < N; i++)
                expect_get(i, CACHE_OK, 1);
}

static void a_drain_writes_what_was_accepted_and_refuses_the_rest(void **state)
{
        struct req accepted, written, copying, waiting, late, g, cold;
        uint32_t pinned[SLABS], large = (uint32_t)pool_slab_bytes(t.pool);

        put_bytes(&cold, 5, CACHE_WRITTEN, 1, SMALL);
        expect(&cold, CACHE_OK);
        assert_int_equal(evict(5, true), CACHE_OK);
        pin_every_slab(pinned, SLABS);
        hold(KIO_WRITE, 1);
        put_bytes(&accepted, 1, CACHE_ACCEPTED, 1, SMALL);
        tiers_wait_hits(&t, 1);
        put_bytes(&written, 2, CACHE_WRITTEN, 1, SMALL);
        tiers_wait_hits(&t, 2);
        put_bytes(&copying, 3, CACHE_WRITTEN, 1, SMALL);
        put_bytes(&waiting, 4, CACHE_WRITTEN, 1, large);

        cache_stop(t.cache);
        assert_true(waiting.done);
        assert_int_equal(waiting.req.status, CACHE_CANCELLED);
        put(&late, 6, CACHE_ACCEPTED);
        assert_true(late.done);
        assert_int_equal(late.req.status, CACHE_CANCELLED);
        get(&g, 1);
        assert_true(g.done);
        get(&cold, 5);
        assert_false(cold.done || written.done || copying.done);
        release();
        expect(&cold, CACHE_OK);
        expect(&written, CACHE_OK);
        expect(&copying, CACHE_OK);
        tiers_settle(&t);
        assert_int_equal(cache_pending(t.cache), 0);
        assert_int_equal(stats().unwritten_chunks, 0);
        unpin_all(pinned, SLABS);
        tiers_close(&t);
        tiers_open(&t);
        for (uint32_t n = 1; n <= 3; n++)
                expect_get(n, CACHE_OK, 1);
        assert_int_equal(tiers_of(4) | tiers_of(6), 0);
}

int main(int argc, char **argv)
{
        const struct CMUnitTest tests[] = {
                TEST(who_finds_no_room_waits_until_there_is_some),
                TEST(who_does_not_want_to_wait_is_told_busy_at_once),
                TEST(a_wait_ends_at_its_deadline),
                TEST(a_wait_that_is_cancelled_ends_and_others_do_not),
                TEST(many_waits_end_a_few_a_turn),
                TEST(many_that_wait_for_one_write_are_answered_a_few_a_turn),
                TEST(puts_are_let_in_in_order),
                TEST(what_was_fetched_does_not_wait_behind_puts_that_wait_for_the_disk),
                TEST(a_small_one_does_not_overtake_a_large_one_that_just_came),
                TEST(one_that_cannot_be_helped_does_not_hold_up_the_others),
                TEST(a_hit_never_waits_for_those_that_need_room),
                cmocka_unit_test(a_cold_end_that_is_leased_does_not_make_the_pool_full),
                cmocka_unit_test_setup_teardown(
                        writes_that_the_store_cannot_take_yet_are_written_later, setup_small_store,
                        teardown),
                TEST(a_drain_writes_what_was_accepted_and_refuses_the_rest),
        };

        if (argc > 1)
                cmocka_set_test_filter(argv[1]);
        return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The cache: chunks whose namespace has a lifetime, in both tiers. The test sets the time. */
#include <string.h>

#include "base/clock.h"
#include "cache-fixture.h"

enum { LIFETIME_S = 100 };

struct set {
        struct store_namespace_open req;
        bool done;
};

static void set_done(struct store_namespace_open *req)
{
        container_of(req, struct set, req)->done = true;
}

static void set_lifetime(uint32_t lifetime_s)
{
        const struct store_namespace *ns = store_namespace_get(t.store, t.ns);
        char name[STORE_MAX_NAME + 1];
        struct set s = { .req = { .name = name,
                                  .name_length = (uint16_t)strlen(ns->name),
                                  .attach = true,
                                  .lifetime_s = lifetime_s,
                                  .set_lifetime = true,
                                  .complete = set_done } };

        strcpy(name, ns->name);
        store_namespace_open(t.store, &s.req);
        tiers_wait(&t, &s.done);
        assert_int_equal(s.req.result, 0);
}

/* Returns a time after all puts so far. */
static uint64_t later(void)
{
        return clock_unix_ms() + 1;
}

static uint64_t earlier(void)
{
        return clock_unix_ms() - 60 * 60 * 1000;
}

static bool expire(uint32_t n, uint64_t born_after_ms)
{
        struct key k = key_of(n);

        return cache_expire(t.cache, t.ns, &k, cache_hash(t.cache, t.ns, &k), born_after_ms);
}

static struct store_stats store_stats(void)
{
        struct store_stats s;

        store_get_stats(t.store, &s);
        return s;
}

static uint64_t walk(uint64_t now_ms)
{
        uint64_t expired = 0;

        while (cache_expire_step(t.cache, now_ms, &expired))
                ;
        while (store_expire_step(t.store, now_ms, &expired))
                ;
        tiers_iterate(&t);
        return expired;
}

static void what_is_old_leaves_both_tiers(void **state)
{
        expect_put(1, CACHE_WRITTEN, CACHE_OK);
        put_cold(2);
        assert_false(expire(1, earlier()));
        assert_false(expire(2, earlier()));
        assert_false(expire(3, later()));
        assert_int_equal(tiers_of(1), CACHE_MEMORY | CACHE_DISK);
        assert_true(expire(1, later()));
        assert_true(expire(2, later()));
        assert_int_equal(tiers_of(1) | tiers_of(2), 0);
        assert_false(expire(1, later()));
        expect_get(1, CACHE_MISS, 0);
        assert_int_equal(stats().expired, 1);
        assert_int_equal(store_stats().expired, 2);
        assert_int_equal(store_stats().drops, 0);
        expect_put(1, CACHE_WRITTEN, CACHE_OK);
        expect_get(1, CACHE_OK, 1);
}

static void the_miss_says_why(void **state)
{
        struct req r;

        put_cold(1);
        start(&r, 1);
        r.req.expired = expire(1, later());
        cache_get(t.cache, &r.req);
        expect(&r, CACHE_MISS);
        assert_int_equal(stats().misses[CACHE_MISS_EXPIRED], 1);
        expect_get(1, CACHE_MISS, 0);
        assert_int_equal(stats().misses[CACHE_MISS_NEVER_STORED], 1);
}

/* The chunk is written late, because its first write failed, and read back: its time remains that
 * of the put. */
static void both_tiers_have_the_time_of_the_put(void **state)
{
        uint64_t put_before;

        refuse(KIO_WRITE, 1, 1);
        expect_put(1, CACHE_ACCEPTED, CACHE_OK);
        while (stats().unwritten_chunks > 0) {
                tiers_wait_io(&t);
                kio_reap(t.io);
                tiers_iterate(&t);
        }
        assert_int_equal(tiers_of(1), CACHE_MEMORY);
        put_before = later();
        while (clock_unix_ms() < put_before + 2)
                ;
        expect_put(1, CACHE_WRITTEN, CACHE_EXISTS);
        assert_int_equal(tiers_of(1), CACHE_MEMORY | CACHE_DISK);
        assert_int_equal(evict(1, true), CACHE_OK);
        expect_get(1, CACHE_OK, 1); /* from disk to memory */
        assert_int_equal(tiers_of(1), CACHE_MEMORY | CACHE_DISK);
        assert_true(expire(1, put_before));
        assert_int_equal(tiers_of(1), 0);
}

static void what_is_on_its_way_to_the_disk_does_not_come_back(void **state)
{
        struct req a, b;

        put_writing(&a, 1, CACHE_ACCEPTED);
        expect(&a, CACHE_OK);
        assert_true(expire(1, later()));
        assert_int_equal(tiers_of(1), 0);
        put_bytes(&b, 1, CACHE_WRITTEN, 2, LENGTH); /* the old one is written still */
        release();
        expect(&b, CACHE_OK);
        expect_get(1, CACHE_OK, 2);
}

/* The chunk was put just now, and its bytes have not arrived. */
static void what_is_being_put_is_not_old(void **state)
{
        struct req a;

        put(&a, 1, CACHE_WRITTEN);
        assert_false(expire(1, later()));
        expect(&a, CACHE_OK);
        expect_get(1, CACHE_OK, 1);
}

/* The lifetime was set, or was over, while the device was reading it. */
static void a_read_under_way_comes_to_nothing(void **state)
{
        struct req a;

        put_cold(1);
        get_reading(&a, 1);
        assert_false(expire(1, earlier()));
        assert_true(expire(1, later()));
        assert_int_equal(tiers_of(1), 0);
        expect_get(1, CACHE_MISS, 0);
        release();
        expect(&a, CACHE_MISS);
        assert_int_equal(stats().expired, 0);
        assert_int_equal(store_stats().expired, 1);
        expect_put(1, CACHE_WRITTEN, CACHE_OK);
        expect_get(1, CACHE_OK, 1);
}

/* The expiry is not recorded on disk. The evicted chunk has the same key, and after a kill neither
 * may return. */
static void what_is_evicted_after_an_older_one_expired_does_not_come_back(void **state)
{
        for (uint32_t i = 1; i <= 3; i++)
                expect_put(i, CACHE_WRITTEN, CACHE_OK);
        for (uint32_t i = 1; i <= 3; i++)
                assert_true(expire(i, later())); /* the next put has the slot of the last */
        refuse(KIO_WRITE, 1, 1);
        expect_put(1, CACHE_ACCEPTED, CACHE_OK);
        while (stats().unwritten_chunks > 0) {
                tiers_wait_io(&t);
                kio_reap(t.io);
                tiers_iterate(&t);
        }
        release();
        assert_int_equal(tiers_of(1), CACHE_MEMORY);
        assert_int_equal(evict(1, false), CACHE_OK);
        tiers_close(&t);
        tiers_open(&t);
        assert_int_equal(tiers_of(1), 0);
        assert_int_equal(tiers_of(2), CACHE_DISK); /* the result without a lifetime */
}

static void a_lease_keeps_its_bytes(void **state)
{
        struct key k = key_of(1);
        uint32_t chunk;

        expect_put(1, CACHE_WRITTEN, CACHE_OK);
        chunk = pool_find(t.pool, t.ns, &k, cache_hash(t.cache, t.ns, &k));
        pool_lease(t.pool, chunk);
        assert_true(expire(1, later()));
        expect_put(2, CACHE_WRITTEN, CACHE_OK);
        assert_int_equal(version_of(pool_at(t.pool, chunk), 1, LENGTH), 1);
        pool_unlease(t.pool, chunk);
}

static void a_walk_comes_by_all_of_those_that_have_a_lifetime(void **state)
{
        const uint64_t over_ms = (LIFETIME_S + 1) * 1000;
        enum { N = 200 };

        for (uint32_t i = 0; i < N; i++)
                expect_put(i, CACHE_WRITTEN, CACHE_OK);
        assert_int_equal(walk(clock_unix_ms() + over_ms), 0);
        set_lifetime(LIFETIME_S);
        assert_int_equal(walk(clock_unix_ms()), 0);
        assert_int_equal(walk(0), 0); /* the clock was set back */
        assert_int_equal(walk(clock_unix_ms() + over_ms), 2 * N);
        for (uint32_t i = 0; i < N; i++)
                assert_int_equal(tiers_of(i), 0);
        expect_put(1, CACHE_WRITTEN, CACHE_OK);
        set_lifetime(0);
        assert_int_equal(walk(clock_unix_ms() + over_ms), 0);
        expect_get(1, CACHE_OK, 1);
}

/* However many have expired, a step drops a few and ends. */
static void a_step_of_the_walk_is_short(void **state)
{
        const uint64_t now_ms = clock_unix_ms() + (LIFETIME_S + 60) * 1000;
        uint64_t expired = 0;
        enum { N = 200 };

        set_lifetime(LIFETIME_S);
        for (uint32_t i = 0; i < N; i++)
                expect_put(i, CACHE_WRITTEN, CACHE_OK);
        assert_true(cache_expire_step(t.cache, now_ms, &expired));
        assert_in_range(expired, 1, N / 2);
        expired = 0;
        assert_true(store_expire_step(t.store, now_ms, &expired));
        assert_in_range(expired, 1, N / 2);
}

int main(int argc, char **argv)
{
        const struct CMUnitTest tests[] = {
                TEST(what_is_old_leaves_both_tiers),
                TEST(the_miss_says_why),
                TEST(both_tiers_have_the_time_of_the_put),
                TEST(what_is_on_its_way_to_the_disk_does_not_come_back),
                TEST(what_is_being_put_is_not_old),
                TEST(a_read_under_way_comes_to_nothing),
                TEST(what_is_evicted_after_an_older_one_expired_does_not_come_back),
                TEST(a_lease_keeps_its_bytes),
                TEST(a_walk_comes_by_all_of_those_that_have_a_lifetime),
                TEST(a_step_of_the_walk_is_short),
        };

        if (argc > 1)
                cmocka_set_test_filter(argv[1]);
        return cmocka_run_group_tests(tests, NULL, NULL);
}

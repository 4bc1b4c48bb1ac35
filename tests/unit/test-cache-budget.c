/* SPDX-License-Identifier: Apache-2.0 */
/* The cache under a budget of writes: what is refused, what a second use does, and what is charged
 * in the end. The budget is a byte a second, so it is as good as what the test makes it. */
#include <stdlib.h>

#include "base/clock.h"
#include "cache-fixture.h"
#include "evict/admission.h"

enum { BUDGET = 86400, HOUR = 3600, CHARGED = 20480 /* LENGTH, in pages */ };

static struct admission *admission;
static uint64_t written;

static struct admission_stats seen(void)
{
        struct admission_stats ret;

        admission_get_stats(admission, &ret);
        return ret;
}

static void count(void)
{
        admission_count_written(admission, written, clock_mono_ns());
}

static void poor(void)
{
        written += 1 << 20;
        count();
}

/* Lets the budget of an hour accrue, which permits one more chunk. */
static void rich(void)
{
        admission_settle(admission, UINT64_C(1) << 40);
        count();
        assert_int_equal(seen().available, HOUR);
}

static void pin_without_a_budget(uint32_t pinned[static SLABS])
{
        assert_int_equal(admission_set_budget(admission, 0, clock_mono_ns()), 0);
        pin_every_slab(pinned, SLABS);
        assert_int_equal(admission_set_budget(admission, BUDGET, clock_mono_ns()), 0);
        poor();
}

static int setup_budget(void **state)
{
        assert_int_equal(admission_new(&admission, 1 << 10, 1, clock_mono_ns()), 0);
        assert_int_equal(admission_set_budget(admission, BUDGET, clock_mono_ns()), 0);
        written = 0;
        t = (struct tiers){ .admission = admission };
        tiers_open(&t);
        count(); /* the earlier contents */
        poor();
        return 0;
}

static int teardown_budget(void **state)
{
        int r = teardown(state);

        t.admission = NULL;
        admission = admission_free(admission);
        return r;
}

static void touch(uint32_t n)
{
        struct key key = key_of(n);
        struct cache_place place;

        assert_true(cache_find(t.cache, t.ns, &key, cache_hash(t.cache, t.ns, &key), &place, NULL));
        cache_touch(t.cache, &place, cache_next_use(t.cache), EVICT_NO_GAP);
}

static void a_refused_put_is_accepted_and_stays_in_the_pool(void **state)
{
        expect_put(1, CACHE_ACCEPTED, CACHE_OK);
        tiers_settle(&t);
        assert_int_equal(tiers_of(1), CACHE_MEMORY);
        assert_int_equal(stats().unwritten_bytes, 0);
        assert_int_equal(stats().unwritten_chunks, 0);
        assert_int_equal(stats().pool_only, 0);
        expect_get(1, CACHE_OK, 1);
        expect_put(1, CACHE_ACCEPTED, CACHE_EXISTS);
        assert_int_equal(seen().refused_first + seen().refused_dry, 1);
        assert_int_equal(evict(1, true), CACHE_BUSY);
        assert_int_equal(evict(1, false), CACHE_OK);
        assert_int_equal(tiers_of(1), 0);
}

static void a_refused_put_that_is_to_be_written_stores_nothing(void **state)
{
        expect_put(1, CACHE_WRITTEN, CACHE_NO_SPACE);
        expect_put(2, CACHE_DURABLE, CACHE_NO_SPACE);
        assert_int_equal(tiers_of(1), 0);
        expect_get(1, CACHE_MISS, 0);
        assert_int_equal(stats().misses[CACHE_MISS_REFUSED], 1);
        /* A chunk in the pool stays there. */
        expect_put(3, CACHE_ACCEPTED, CACHE_OK);
        expect_put(3, CACHE_WRITTEN, CACHE_NO_SPACE);
        assert_int_equal(tiers_of(3), CACHE_MEMORY);
        expect_get(3, CACHE_OK, 1);
}

static void one_that_waits_for_the_bytes_of_a_refused_one_asks_for_itself(void **state)
{
        struct req a, b, c;

        put(&a, 1, CACHE_ACCEPTED);
        put(&b, 1, CACHE_WRITTEN);
        get(&c, 1);
        expect(&a, CACHE_OK);
        expect(&b, CACHE_NO_SPACE);
        expect(&c, CACHE_OK);
        assert_int_equal(tiers_of(1), CACHE_MEMORY);
        assert_false(seen().admitted_again);
        /* And where the budget has it in the meantime. */
        put(&a, 2, CACHE_ACCEPTED);
        put(&b, 2, CACHE_WRITTEN);
        rich();
        expect(&a, CACHE_OK);
        expect(&b, CACHE_EXISTS);
        assert_int_equal(tiers_of(2), CACHE_MEMORY | CACHE_DISK);
        assert_int_equal(seen().admitted_again, 1);
}

static void a_second_use_is_written_if_the_budget_has_it(void **state)
{
        expect_put(1, CACHE_ACCEPTED, CACHE_OK);
        touch(1);
        tiers_settle(&t);
        assert_int_equal(tiers_of(1), CACHE_MEMORY);
        rich();
        touch(1);
        assert_int_equal(stats().unwritten_chunks, 1);
        touch(1); /* under way */
        tiers_settle(&t);
        assert_int_equal(tiers_of(1), CACHE_MEMORY | CACHE_DISK);
        assert_int_equal(stats().unwritten_bytes, 0);
        assert_int_equal(seen().admitted_again, 1);
        assert_int_equal(seen().charged_bytes, CHARGED);
        touch(1);
        assert_int_equal(seen().admitted_again, 1);
        assert_int_equal(evict(1, true), CACHE_OK);
        expect_get(1, CACHE_OK, 1);
}

static void the_use_that_has_put_it_is_no_second_one(void **state)
{
        struct key key = key_of(1);
        struct cache_place place;

        expect_put(1, CACHE_ACCEPTED, CACHE_OK);
        rich();
        assert_true(cache_find(t.cache, t.ns, &key, cache_hash(t.cache, t.ns, &key), &place, NULL));
        cache_touch(t.cache, &place, 0, EVICT_NO_GAP);
        tiers_settle(&t);
        assert_int_equal(tiers_of(1), CACHE_MEMORY);
}

static void what_fails_is_not_paid_for(void **state)
{
        int64_t had;

        expect_put(1, CACHE_ACCEPTED, CACHE_OK);
        expect_put(2, CACHE_WRITTEN, CACHE_NO_SPACE);
        rich();
        had = seen().available;
        refuse(KIO_WRITE, 1, 100);
        touch(1);
        assert_in_range(seen().available, had - CHARGED, had - CHARGED + 5);
        tiers_settle(&t);
        assert_int_equal(tiers_of(1), CACHE_MEMORY);
        assert_int_equal(stats().pool_only, 1);
        count();
        assert_in_range(seen().available, had, had + 5);
        expect_put(2, CACHE_WRITTEN, CACHE_FAILED);
        assert_int_equal(tiers_of(2), 0);
        count();
        assert_in_range(seen().available, had, had + 5);
        release();
}

static void a_put_that_waits_for_room_asks_once(void **state)
{
        uint32_t pinned[SLABS];
        struct req a;

        pin_without_a_budget(pinned);
        expect_put(1, CACHE_WRITTEN, CACHE_NO_SPACE);
        rich();
        put_bytes(&a, 1, CACHE_WRITTEN, 1, (uint32_t)pool_slab_bytes(t.pool));
        for (unsigned i = 0; i < 10; i++)
                tiers_iterate(&t);
        assert_false(a.done);
        assert_int_equal(seen().admitted_again, 1);
        unpin_all(pinned, SLABS);
        expect(&a, CACHE_OK);
        assert_int_equal(seen().admitted_again, 1);
        assert_int_equal(tiers_of(1), CACHE_MEMORY | CACHE_DISK);
}

static void one_that_gives_up_waiting_is_not_paid_for(void **state)
{
        uint32_t pinned[SLABS];
        int64_t had;
        struct req a;
        uint32_t most = 10;

        pin_without_a_budget(pinned);
        expect_put(1, CACHE_WRITTEN, CACHE_NO_SPACE);
        rich();
        had = seen().available;
        put_bytes(&a, 1, CACHE_WRITTEN, 1, (uint32_t)pool_slab_bytes(t.pool));
        assert_true(seen().available < 0);
        assert_false(cache_cancel(t.cache, &waits, &most));
        expect(&a, CACHE_CANCELLED);
        count();
        assert_in_range(seen().available, had, had + 5);
        unpin_all(pinned, SLABS);
}

static void a_refused_chunk_that_is_evicted_while_it_is_copied_is_gone(void **state)
{
        struct req a;

        put(&a, 1, CACHE_ACCEPTED);
        assert_int_equal(evict(1, false), CACHE_OK);
        expect(&a, CACHE_OK);
        tiers_settle(&t);
        assert_int_equal(tiers_of(1), 0);
        expect_put(1, CACHE_ACCEPTED, CACHE_OK);
        assert_int_equal(tiers_of(1), CACHE_MEMORY);
}

#define BUDGET_TEST(name) cmocka_unit_test_setup_teardown(name, setup_budget, teardown_budget)

int main(void)
{
        const struct CMUnitTest tests[] = {
                BUDGET_TEST(a_refused_put_is_accepted_and_stays_in_the_pool),
                BUDGET_TEST(a_refused_put_that_is_to_be_written_stores_nothing),
                BUDGET_TEST(one_that_waits_for_the_bytes_of_a_refused_one_asks_for_itself),
                BUDGET_TEST(a_second_use_is_written_if_the_budget_has_it),
                BUDGET_TEST(the_use_that_has_put_it_is_no_second_one),
                BUDGET_TEST(what_fails_is_not_paid_for),
                BUDGET_TEST(a_put_that_waits_for_room_asks_once),
                BUDGET_TEST(one_that_gives_up_waiting_is_not_paid_for),
                BUDGET_TEST(a_refused_chunk_that_is_evicted_while_it_is_copied_is_gone),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* store/: the chunks that leave in one step. Chunks are small here, and a data file has 256 of
 * them. A step is a call of store_put() or store_iterate(); two of these calls share an iteration
 * of the volume. */
#include "checked.h"
#include "store/volume/internal.h"
/* after the functions that have a parameter with the name of the fixture's variable */
#include "store-fixture.h"

enum { SMALL = 4096, LARGE = 200000, LARGES = 30, PER_FILE = 256 };

static uint64_t most_in_a_step;

/* Takes a step after which the evictions are counted. */
static void count_step(uint64_t before)
{
        most_in_a_step = MAX(most_in_a_step, stats().evictions - before);
}

static void step(void)
{
        uint64_t before;

        kio_reap(t.io);
        before = stats().evictions;
        store_iterate(t.s);
        count_step(before);
        kio_flush(t.io);
}

/* Puts a chunk step by step. */
static int put_in_steps(uint64_t n, uint32_t length)
{
        uint64_t before = stats().evictions;
        int r = submit_put(n, length, false);

        count_step(before);
        if (r != 0)
                return r;
        for (step(); puts_busy > 0; step())
                if (!store_is_due())
                        wait_io();
        return last_result;
}

/* Fills the store with small chunks. Returns their number. */
static uint64_t fill(void)
{
        uint64_t chunks = 0;

        start_limit(16 * MIB);
        for (; stats().evictions == 0; chunks += 16)
                put_range(chunks, 16, SMALL);
        assert_true(chunks > 8 * PER_FILE);
        settle();
        most_in_a_step = 0;
        return chunks;
}

static void few_chunks_leave_in_a_step(void **state)
{
        uint64_t n = fill(), before = stats().evictions;

        for (uint64_t i = 0; i < LARGES; i++)
                assert_int_equal(put_in_steps(100000 + i, LARGE), 0);
        assert_true(stats().slab_moves > 2 && stats().evictions - before > 2 * PER_FILE);
        assert_in_range(most_in_a_step, 1, STORE_EMPTIED + 1);
        assert_int_equal(get(100000 + LARGES - 1, LARGE), 0);
        for (uint64_t i = 0; i < LARGES; i++)
                if (present(100000 + i))
                        assert_int_equal(get(100000 + i, LARGE), 0);
        for (uint64_t i = 0; i < n; i++)
                if (present(i))
                        assert_int_equal(get(i, SMALL), 0);
        stop();
}

/* The coldest chunks are in the file that is being emptied, and leave no slot behind. */
static void puts_of_the_emptied_class_evict_few_in_a_step(void **state)
{
        (void)fill();
        assert_int_equal(submit_put(100000, LARGE, false), 0);
        for (uint64_t i = 0; i < DEPTH - 2; i++) {
                uint64_t before = stats().evictions;

                assert_int_equal(submit_put(200000 + i, SMALL, false), 0);
                count_step(before);
        }
        for (step(); puts_busy > 0; step())
                if (!store_is_due())
                        wait_io();
        assert_in_range(most_in_a_step, 1, STORE_EMPTIED + DEPTH);
        assert_int_equal(get(100000, LARGE), 0);
        assert_int_equal(get(200000, SMALL), 0);
        stop();
}

static int retain(uint64_t n)
{
        struct key k = key_of(n);
        struct store_ref ref;

        assert_int_equal(store_find(t.s, t.ns, &k, store_hash(t.s, t.ns, &k), &ref, NULL), 0);
        return store_retain(t.s, ref, true, UINT64_MAX);
}

/* Pins one of the chunks that are still in the file, while it is being emptied. */
static void a_chunk_that_is_pinned_meanwhile_stays(void **state)
{
        uint64_t n = fill(), before = stats().evictions, left;

        assert_int_equal(submit_put(100000, LARGE, false), 0);
        assert_in_range(stats().evictions - before, 1, PER_FILE / 2);
        /* The file was filled by consecutive puts, and is emptied in their order. */
        for (left = 0; !present(left); left++)
                ;
        left = round_up(left + PER_FILE / 4, (uint64_t)16);
        assert_true(left < n && present(left));
        assert_int_equal(retain(left), 0);
        for (step(); puts_busy > 0; step())
                if (!store_is_due())
                        wait_io();
        assert_int_equal(last_result, 0);
        assert_int_equal(get(100000, LARGE), 0);
        assert_int_equal(get(left, SMALL), 0);
        assert_int_equal(stats().retained_evictions, 0);
        stop();
}

/* A chunk that is being read has its bytes, and the put gets its room. */
static void a_get_meanwhile_is_served(void **state)
{
        uint64_t n = fill(), last;
        struct store_get req;

        assert_int_equal(submit_put(100000, LARGE, false), 0);
        for (last = 0; !present(last); last++)
                ;
        last += PER_FILE / 4;
        assert_true(last < n && present(last));
        got = false;
        assert_int_equal(get_into(&req, last, t.bufs[0]), 0);
        for (step(); puts_busy > 0 || !got; step())
                if (!store_is_due())
                        wait_io();
        assert_int_equal(req.result, 0);
        assert_int_equal(last_result, 0);
        assert_int_equal(get(100000, LARGE), 0);
        stop();
}

static void a_store_stops_while_a_file_is_emptied(void **state)
{
        (void)fill();
        assert_int_equal(submit_put(100000, LARGE, false), 0);
        assert_true(puts_busy == 1);
        stop();
        assert_int_equal(puts_busy, 0);
        start_limit(16 * MIB);
        if (last_result == 0)
                assert_int_equal(get(100000, LARGE), 0);
        assert_int_equal(stats().crc_failures, 0);
        stop();
}

/* One large chunk of a tenant at its limit costs it many small ones. */
static void a_tenant_at_its_limit_evicts_few_in_a_step(void **state)
{
        struct store_params params = params_of(64 * MIB);
        uint64_t before;

        start(&params);
        put_range(0, 1024, SMALL);
        store_set_tenant_limit(t.s, t.tenant, 4 * MIB);
        before = stats().evictions;
        most_in_a_step = 0;
        assert_int_equal(put_in_steps(100000, 1000000), 0);
        assert_true(stats().evictions - before >= 1000000 / SMALL - 1);
        assert_in_range(most_in_a_step, 1, STORE_EMPTIED + 1);
        assert_int_equal(get(100000, 1000000), 0);
        stop();
}

int main(int argc, char **argv)
{
        static const struct CMUnitTest tests[] = {
                TEST(few_chunks_leave_in_a_step),
                TEST(puts_of_the_emptied_class_evict_few_in_a_step),
                TEST(a_chunk_that_is_pinned_meanwhile_stays),
                TEST(a_get_meanwhile_is_served),
                TEST(a_store_stops_while_a_file_is_emptied),
                TEST(a_tenant_at_its_limit_evicts_few_in_a_step),
        };

        return run_store_tests(argc, argv, tests, ARRAY_SIZE(tests), NULL, 0);
}

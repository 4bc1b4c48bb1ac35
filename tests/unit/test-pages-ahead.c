/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays that grow get their pages before they use them, one step ahead and no more, and keep their
 * contents. */
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

#include "base/pages-ahead.h"
#include "base/pages.h"
#include "cache/lease.h"
#include "cache/pool.h"
#include "checked.h"
#include "evict/evict.h"
#include "store/volume/index.h"

enum { MIB = 1 << 20, PAGE = 4096, BYTES = 16 * MIB };

static char *base;
static struct pages_ahead ahead;

static int setup(void **state)
{
        base = pages_map(BYTES);
        assert_non_null(base);
        assert_int_equal((uintptr_t)base % PAGE, 0);
        pages_ahead_init(&ahead, base, BYTES);
        return 0;
}

static int teardown(void **state)
{
        pages_ahead_fini(&ahead);
        pages_unmap(base, BYTES);
        return 0;
}

/* Returns the number of populated bytes. */
static uint64_t populated(void)
{
        static unsigned char pages[BYTES / PAGE];
        uint64_t n = 0;

        assert_int_equal(mincore(base, BYTES, pages), 0);
        for (unsigned i = 0; i < BYTES / PAGE; i++)
                n += pages[i] & 1;
        return n * PAGE;
}

/* Waits until the thread has populated this number of steps. */
static void wait_for(uint64_t steps)
{
        while (pages_ahead_steps() < steps)
                usleep(100);
}

static void memory_is_populated_one_step_ahead(void **state)
{
        uint64_t before, used = 0, steps = pages_ahead_steps(), ahead_of, most = 0;

        for (; used + 8 <= 8 * MIB; used += 8) {
                uint64_t word = used;

                before = pages_ahead_steps();
                pages_ahead_use(&ahead, used + 8);
                memcpy(base + used, &word, sizeof(word));
                if (used % (MIB / 4) != 0)
                        continue;
                if (used > 3 * MIB)
                        wait_for(before); /* not more than one step is missing */
                ahead_of = populated() - MIN(populated(), used);
                most = MAX(most, ahead_of);
        }
        wait_for(steps + 3);
        assert_true(most <= 3 * MIB);
        assert_true(populated() >= 8 * MIB);
        for (uint64_t i = 0; i < used; i += 8) {
                uint64_t word;

                memcpy(&word, base + i, sizeof(word));
                assert_int_equal(word, i);
        }
}

static void an_array_that_is_hardly_used_gets_nothing(void **state)
{
        uint64_t steps = pages_ahead_steps();

        pages_ahead_use(&ahead, 1);
        assert_int_equal(populated(), 0);
        base[0] = 1;
        assert_int_equal(populated(), PAGE); /* a small page */
        assert_int_equal(pages_ahead_steps(), steps);
}

static void small_arrays_are_left_as_they_are(void **state)
{
        struct pages_ahead small;
        uint64_t steps = pages_ahead_steps();

        pages_ahead_init(&small, base, 4 * MIB - 1);
        pages_ahead_use(&small, 4 * MIB - 1);
        pages_ahead_restart(&small, 0);
        pages_ahead_use(&small, 3 * MIB);
        pages_ahead_fini(&small);
        assert_int_equal(pages_ahead_steps(), steps);
        assert_int_equal(populated(), 0);
}

static void the_end_of_the_array_is_respected(void **state)
{
        uint64_t steps = pages_ahead_steps();

        pages_ahead_init(&ahead, base, 5 * MIB);
        for (uint64_t used = 0; used <= 5 * MIB; used += MIB / 2)
                pages_ahead_use(&ahead, used);
        wait_for(steps + 2);
        assert_true(populated() <= 5 * MIB);
        pages_ahead_use(&ahead, 5 * MIB);
        pages_ahead_fini(&ahead);
        assert_int_equal(pages_ahead_steps(), steps + 2);
}

/* Recovery populates records itself, and frees those that it did not need. */
static void populating_continues_after_a_restart(void **state)
{
        uint64_t steps = pages_ahead_steps();

        pages_ahead_use(&ahead, 9 * MIB + 8); /* far beyond the first step */
        wait_for(steps + 1);
        assert_true(populated() <= 2 * MIB);
        pages_ahead_restart(&ahead, 4 * MIB);
        pages_unpopulate(base + 4 * MIB, BYTES - 4 * MIB);
        steps = pages_ahead_steps();
        pages_ahead_use(&ahead, 4 * MIB + MIB + 1);
        pages_ahead_use(&ahead, 5 * MIB + 2 * MIB);
        wait_for(steps + 1);
        assert_true(populated() >= 2 * MIB - PAGE);
}

static uint64_t hash(const void *userdata, uint32_t namespace_id, const struct key *key)
{
        return namespace_id;
}

static void the_index_of_the_store_is_populated_ahead(void **state)
{
        uint64_t steps = pages_ahead_steps();
        struct index *ix;

        assert_int_equal(index_new(&ix, 1 << 20, hash, NULL), 0);
        for (uint32_t i = 0; i < 3 * MIB / sizeof(struct chunk); i++)
                assert_int_equal(index_acquire(ix), i);
        wait_for(steps + 1);
        index_free(ix);
}

static void items_of_the_policy_are_populated_ahead(void **state)
{
        uint64_t steps = pages_ahead_steps();
        struct evict *e;

        assert_int_equal(evict_new(&e, "cq", 1 << 20, 1), 0);
        for (uint32_t i = 0; i < 3 * MIB / 32; i++)
                evict_insert(e, i, 0, PAGE);
        wait_for(steps + 1);
        evict_free(e);
}

static void records_of_the_pool_and_leases_are_populated_ahead(void **state)
{
        const uint64_t bytes = 256 * MIB;
        struct lease_limits limits = { .bytes_all = bytes };
        struct lease_holder holder;
        uint64_t steps = pages_ahead_steps();
        struct leases *leases;
        struct pool *pool;
        struct lease lease;
        uint32_t chunk;

        assert_int_equal(pool_new(&pool, bytes, "lru"), 0);
        while (pool_next_slab(pool) >= 0)
                assert_int_equal(pool_open_slab(pool, 0), 0);
        assert_int_equal(leases_new(&leases, pool, 1 << 20, &limits), 0);
        assert_int_equal(lease_holder_init(leases, &holder, 1, true), 0);
        for (uint32_t i = 0; i < 3 * MIB / sizeof(struct pool_chunk); i++) {
                struct key k = { { 0 } };

                memcpy(k.bytes, &i, sizeof(i));
                assert_int_equal(pool_acquire(pool, 1, &k, i, PAGE, EVICT_NO_USE, &chunk), 0);
                pool_commit(pool, chunk, 0);
                pool_unpin(pool, chunk);
        }
        wait_for(steps + 1);
        for (uint32_t i = 0; i < 3 * MIB / 40; i++)
                assert_int_equal(lease_acquire(leases, &holder, chunk, &lease), 0);
        wait_for(steps + 2);
        while (lease_release_some(leases, &holder, UINT32_MAX) > 0)
                ;
        lease_holder_fini(&holder);
        leases_free(leases);
        pool_free(pool);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
                TEST(an_array_that_is_hardly_used_gets_nothing),
                TEST(memory_is_populated_one_step_ahead),
                TEST(small_arrays_are_left_as_they_are),
                TEST(the_end_of_the_array_is_respected),
                TEST(populating_continues_after_a_restart),
                cmocka_unit_test(the_index_of_the_store_is_populated_ahead),
                cmocka_unit_test(items_of_the_policy_are_populated_ahead),
                cmocka_unit_test(records_of_the_pool_and_leases_are_populated_ahead),
        };

        alarm(60); /* a step that is never populated ends the test */
        return cmocka_run_group_tests(tests, NULL, NULL);
}

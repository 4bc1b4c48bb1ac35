/* SPDX-License-Identifier: Apache-2.0 */
/* Leases of small chunks leave slabs to chunks of other sizes: a lease that would block one of the
 * last slabs moves its chunk, or is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "cache/lease.h"
#include "cache/pool-internal.h"

enum {
        MIB = 1 << 20,
        SLABS = 8,
        SMALL = 4096,
        LARGE = 16 * SMALL,
        POOL = 32 * MIB,
};

static struct pool *pool;
static struct leases *leases;
static struct lease_holder user, other;

static struct key key_of(uint32_t n)
{
        struct key k = { { 1 } };

        memcpy(k.bytes + 4, &n, sizeof(n));
        return k;
}

static uint32_t find(uint32_t n)
{
        struct key k = key_of(n);

        return pool_find(pool, 1, &k, n);
}

static int acquire(uint32_t n, uint32_t length, uint32_t *ret)
{
        struct key k = key_of(n);

        return pool_acquire(pool, 1, &k, n, length, EVICT_NO_USE, ret);
}

static void write_bytes(uint32_t chunk, uint32_t n)
{
        for (uint32_t i = 0; i < pool_chunk(pool, chunk)->length; i += 64)
                snprintf((char *)pool_at(pool, chunk) + i, 64, "%u at %u", n, i);
}

static void assert_bytes(uint32_t chunk, uint32_t n)
{
        char expected[64];

        for (uint32_t i = 0; i < pool_chunk(pool, chunk)->length; i += 64) {
                snprintf(expected, sizeof(expected), "%u at %u", n, i);
                assert_string_equal((char *)pool_at(pool, chunk) + i, expected);
        }
}

static void commit(uint32_t chunk, uint32_t n)
{
        write_bytes(chunk, n);
        pool_commit(pool, chunk, 0);
        pool_unpin(pool, chunk);
}

/* Fills the pool with chunks of this length, numbered from 0 on. Returns how many a slab has. */
static uint32_t fill(uint32_t length)
{
        uint32_t chunk;

        for (uint32_t n = 0; n < POOL / length; n++) {
                assert_int_equal(acquire(n, length, &chunk), 0);
                commit(chunk, n);
        }
        return (uint32_t)(pool_slab_bytes(pool) / length);
}

static uint64_t leased_slabs(void)
{
        struct pool_stats stats;

        pool_get_stats(pool, &stats);
        return stats.leased_slabs;
}

static int setup(void **state)
{
        struct lease_limits limits = { .bytes_all = POOL / 2, .shared = true };

        assert_int_equal(pool_new(&pool, POOL, "lru"), 0);
        while (pool_next_slab(pool) >= 0)
                assert_int_equal(pool_open_slab(pool, 0), 0);
        assert_int_equal(pool_bytes(pool) / pool_slab_bytes(pool), SLABS);
        assert_int_equal(leases_new(&leases, pool, 100000, &limits), 0);
        assert_int_equal(lease_holder_init(leases, &user, 1, false), 0);
        assert_int_equal(lease_holder_init(leases, &other, 2, false), 0);
        return 0;
}

static int teardown(void **state)
{
        (void)lease_release_some(leases, &user, UINT32_MAX);
        (void)lease_release_some(leases, &other, UINT32_MAX);
        assert_int_equal(leased_slabs(), 0);
        lease_holder_fini(&user);
        lease_holder_fini(&other);
        leases = leases_free(leases);
        pool = pool_free(pool);
        return 0;
}

static int lease(struct lease_holder *h, uint32_t n)
{
        struct lease l;

        return lease_acquire(leases, h, find(n), &l);
}

static void a_lease_in_every_slab_leaves_room_for_other_sizes(void **state)
{
        uint32_t per_slab = fill(SMALL), chunk, slabs = 0;

        for (uint32_t s = 0; s < SLABS; s++)
                assert_int_equal(lease(&user, s * per_slab + s), 0);
        assert_int_equal(leased_slabs(), SLABS - 2);
        for (uint32_t s = 0; s < SLABS; s++) {
                chunk = find(s * per_slab + s);
                assert_bytes(chunk, s * per_slab + s);
                slabs |= 1u << pool_chunk(pool, chunk)->slab;
        }
        assert_int_equal(slabs, (1u << (SLABS - 2)) - 1);
        /* Chunks of another size come and go, whatever number of them. */
        for (uint32_t n = 0; n < 1000; n++) {
                assert_int_equal(acquire(POOL + n, LARGE, &chunk), 0);
                commit(chunk, n);
        }
        for (uint32_t s = 0; s < SLABS; s++)
                assert_bytes(find(s * per_slab + s), s * per_slab + s);
}

static void a_user_without_a_lease_gets_one_more_slab(void **state)
{
        uint32_t per_slab = fill(SMALL), chunk;

        for (uint32_t s = 0; s < SLABS; s++)
                assert_int_equal(lease(&user, s * per_slab), 0);
        assert_int_equal(acquire(POOL, LARGE, &chunk), 0);
        commit(chunk, 1);
        /* No slab of this size has leased chunks, so there is no place that the chunk can move to.
         */
        assert_int_equal(lease(&user, POOL), LEASE_FULL);
        assert_int_equal(lease(&other, POOL), 0);
        assert_int_equal(leased_slabs(), SLABS - 1);
        assert_int_equal(lease(&user, POOL), 0); /* blocks no slab that is not blocked */
        assert_int_equal(acquire(POOL + 1, 2 * LARGE, &chunk), 0);
        commit(chunk, 2);
        assert_int_equal(lease(&other, POOL + 1), LEASE_FULL);
}

static void a_pinned_chunk_does_not_move(void **state)
{
        uint32_t per_slab = fill(SMALL), chunk = find(6 * per_slab);
        uint64_t offset = pool_offset(pool, chunk);

        for (uint32_t s = 0; s < SLABS - 2; s++)
                assert_int_equal(lease(&user, s * per_slab), 0);
        pool_pin(pool, chunk);
        assert_int_equal(lease(&user, 6 * per_slab), LEASE_FULL);
        assert_int_equal(pool_offset(pool, chunk), offset);
        pool_unpin(pool, chunk);
        assert_int_equal(lease(&user, 6 * per_slab), 0);
        assert_true(pool_offset(pool, chunk) != offset);
        assert_int_equal(find(6 * per_slab), chunk);
        /* The former slot is free: the next chunk of the size evicts none. */
        assert_int_equal(acquire(POOL, SMALL, &chunk), 0);
        assert_int_equal(pool_offset(pool, chunk), offset);
        commit(chunk, POOL);
}

static void an_iteration_moves_a_bounded_number_of_bytes(void **state)
{
        enum { BYTES = 512 * 1024 };
        uint32_t per_slab = fill(BYTES), moved = 0;

        for (uint32_t s = 0; s < SLABS - 2; s++)
                assert_int_equal(lease(&user, s * per_slab), 0);
        pool_note_time(pool, 1);
        while (moved < per_slab && lease(&user, 6 * per_slab + moved) == 0) {
                assert_bytes(find(6 * per_slab + moved), 6 * per_slab + moved);
                moved++;
        }
        assert_int_equal(moved, POOL_MAX_MOVED / BYTES);
        pool_note_time(pool, 2);
        assert_int_equal(lease(&user, 6 * per_slab + moved), 0);
}

static void a_chunk_that_is_to_be_leased_gets_a_slot_beside_leased_ones(void **state)
{
        uint32_t per_slab = fill(SMALL), chunk;

        for (uint32_t s = 0; s < SLABS - 2; s++)
                assert_int_equal(lease(&user, s * per_slab), 0);
        /* The coldest chunks, which leave for others, are in a slab without leases. */
        for (uint32_t n = 0; n < 6 * per_slab; n++)
                pool_touch(pool, find(n), pool_chunk(pool, find(n))->generation, EVICT_NO_USE);
        for (uint32_t n = POOL; n < POOL + 100; n++) {
                struct key k = key_of(n);

                assert_int_equal(pool_acquire_to_lease(pool, 1, &k, n, SMALL, EVICT_NO_USE, &chunk),
                                 0);
                assert_in_range(pool_chunk(pool, chunk)->slab, 0, SLABS - 3);
                commit(chunk, n);
                assert_int_equal(lease(&user, n), 0);
        }
        assert_int_equal(leased_slabs(), SLABS - 2);
        assert_int_equal(acquire(2 * POOL, SMALL, &chunk), 0);
        assert_true(pool_chunk(pool, chunk)->slab >= SLABS - 2);
        commit(chunk, 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                TEST(a_lease_in_every_slab_leaves_room_for_other_sizes),
                TEST(a_user_without_a_lease_gets_one_more_slab),
                TEST(a_pinned_chunk_does_not_move),
                TEST(an_iteration_moves_a_bounded_number_of_bytes),
                TEST(a_chunk_that_is_to_be_leased_gets_a_slot_beside_leased_ones),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

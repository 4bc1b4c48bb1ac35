/* SPDX-License-Identifier: Apache-2.0 */
/* The pool: groups of namespaces keep their floors under any load of others, no search for room
 * fails because of a floor, and the number of chunks that searches pass over stays bounded. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "cache/pool.h"
#include "key.h"

enum { KIB = 1024, MIB = 1024 * KIB, SLOTS = 4096 };

/* Namespaces 1 and 2 have the groups 0 and 1; all others have none. */
static unsigned group_of(void *userdata, uint32_t namespace_id)
{
        return namespace_id >= 1 && namespace_id <= 2 ? namespace_id - 1 : 2;
}

static struct pool *pool_of(uint64_t bytes, const char *policy, uint64_t first, uint64_t second)
{
        struct pool_floors floors = { .n = 2, .bytes = { first, second }, .of = group_of };
        struct pool *p;

        assert_int_equal(pool_new(&p, bytes, policy), 0);
        while (pool_next_slab(p) >= 0)
                assert_int_equal(pool_open_slab(p, 0), 0);
        pool_set_floors(p, &floors);
        return p;
}

static struct pool *pool_with_floors(const char *policy, uint64_t first, uint64_t second)
{
        return pool_of(16 * MIB, policy, first, second);
}

static struct key key_of(uint32_t n)
{
        struct key k = { { 1 } };

        memcpy(k.bytes + 4, &n, sizeof(n));
        return k;
}

static uint64_t hash_of(uint32_t ns, uint32_t n)
{
        return ((uint64_t)ns << 32 | n) * UINT64_C(0x9e3779b97f4a7c15) | 1;
}

static int try_add(struct pool *p, uint32_t ns, uint32_t n, uint32_t length)
{
        struct key k = key_of(n);
        uint32_t chunk;
        int r;

        pool_note_time(p, n + 1);
        r = pool_acquire(p, ns, &k, hash_of(ns, n), length, 0, &chunk);
        if (r == 0) {
                pool_commit(p, chunk, 0);
                (void)pool_unpin(p, chunk);
        }
        return r;
}

/* Adds a chunk as a request does that waits until there is room. */
static void add(struct pool *p, uint32_t ns, uint32_t n, uint32_t length)
{
        for (unsigned iterations = 0; try_add(p, ns, n, length) != 0; iterations++)
                assert_true(iterations < 16);
}

static bool is_in(const struct pool *p, uint32_t ns, uint32_t n)
{
        struct key k = key_of(n);

        return pool_find(p, ns, &k, hash_of(ns, n)) != POOL_NONE;
}

static uint64_t used(const struct pool *p, unsigned group)
{
        uint64_t bytes, floor;

        pool_get_floor(p, group, &bytes, &floor);
        return bytes;
}

static uint64_t spared(const struct pool *p)
{
        struct pool_stats stats;

        pool_get_stats(p, &stats);
        return stats.spared;
}

static void others_do_not_evict_below_a_floor(const char *policy)
{
        struct pool *p = pool_with_floors(policy, 4 * MIB, 8 * MIB);
        uint64_t before;

        for (uint32_t n = 0; n < 2048; n++)
                add(p, 1, n, 4 * KIB);
        assert_int_equal(used(p, 0), 8 * MIB);
        for (uint32_t n = 0; n < 5 * SLOTS; n++)
                add(p, 3, n, 4 * KIB);
        assert_int_equal(used(p, 0), 4 * MIB);
        before = spared(p);
        assert_true(before > 0);
        for (uint32_t n = 5 * SLOTS; n < 10 * SLOTS; n++)
                add(p, 3, n, 4 * KIB);
        assert_int_equal(used(p, 0), 4 * MIB);
        /* A quarter is protected, so each three evictions pass over one chunk. */
        assert_in_range(spared(p) - before, 1, 5 * SLOTS / 2);
        /* The group itself replaces its own chunks, and others get nothing from that. */
        for (uint32_t n = 10000; n < 10000 + 2 * SLOTS; n++)
                add(p, 1, n, 4 * KIB);
        assert_true(used(p, 0) >= 4 * MIB);
        assert_true(is_in(p, 1, 10000 + 2 * SLOTS - 1));
        pool_free(p);
}

static void floors_are_kept_beside_each_other(const char *policy)
{
        struct pool *p = pool_with_floors(policy, 4 * MIB, 8 * MIB);

        for (uint32_t n = 0; n < SLOTS; n++)
                add(p, 1, n, 4 * KIB);
        for (uint32_t n = 0; n < SLOTS; n++)
                add(p, 2, n, 4 * KIB);
        assert_int_equal(used(p, 0), 4 * MIB);
        assert_int_equal(used(p, 1), 12 * MIB);
        for (uint32_t n = 0; n < 2 * SLOTS; n++)
                add(p, 9, n, 4 * KIB);
        assert_int_equal(used(p, 0), 4 * MIB);
        assert_int_equal(used(p, 1), 8 * MIB);
        assert_int_equal(used(p, 2), 0); /* there is no such group */
        pool_free(p);
}

static void a_group_evicts_its_own_chunks(const char *policy)
{
        struct pool *p = pool_with_floors(policy, 4 * MIB, 0);

        for (uint32_t n = 0; n < SLOTS; n++)
                add(p, n < 1024 ? 1 : 3, n, 4 * KIB);
        add(p, 1, 10000, 4 * KIB);
        assert_false(is_in(p, 1, 0));
        assert_true(is_in(p, 3, 1024));
        assert_int_equal(used(p, 0), 4 * MIB);
        pool_free(p);
}

static void another_slab_changes_its_size(const char *policy)
{
        struct pool *p = pool_with_floors(policy, 4 * MIB, 0);

        for (uint32_t n = 0; n < 64; n++)
                add(p, 1, n, 64 * KIB);
        for (uint32_t n = 0; n < 6 * 42; n++)
                add(p, 3, n, 48 * KIB);
        add(p, 3, 1000, MIB); /* the slabs of the group are worth least */
        assert_int_equal(used(p, 0), 4 * MIB);
        pool_free(p);
}

static void use(struct pool *p, uint32_t ns, uint32_t n, uint32_t use)
{
        struct key k = key_of(n);
        uint32_t chunk = pool_find(p, ns, &k, hash_of(ns, n));

        if (chunk != POOL_NONE)
                pool_touch(p, chunk, pool_chunk(p, chunk)->generation, use);
}

/* Other groups use all their chunks again and again, so the policy would rather evict the chunks of
 * the group, of which none is used a second time. */
static void a_group_below_its_floor_takes_from_others(const char *policy)
{
        struct pool *p = pool_with_floors(policy, 4 * MIB, 0);
        uint32_t n = 0, uses = 1;

        for (uint32_t i = 0; i < 3800; i++)
                add(p, 3, i, 4 * KIB);
        for (uint32_t round = 0; round < 12; round++)
                for (uint32_t i = 0; i < 3800; i++) {
                        if (is_in(p, 3, i))
                                use(p, 3, i, uses++);
                        else
                                add(p, 3, i, 4 * KIB);
                        if (i % 4 == 0)
                                add(p, 1, n++, 4 * KIB);
                }
        assert_in_range(used(p, 0), 4 * MIB - 4 * KIB, 8 * MIB);
        pool_free(p);
}

/* No other chunk can leave, so a group below its floor replaces its own chunks. Its searches do not
 * pass over all of them each time. */
static void a_group_below_its_floor_evicts_its_own_if_others_cannot(const char *policy)
{
        struct pool *p = pool_with_floors(policy, 12 * MIB, 0);
        uint64_t before;

        for (uint32_t n = 0; n < 128; n++) {
                struct key k = key_of(n);

                add(p, 3, n, 64 * KIB);
                pool_pin(p, pool_find(p, 3, &k, hash_of(3, n)));
        }
        for (uint32_t n = 0; n < 2048; n++)
                add(p, 1, n, 4 * KIB);
        assert_int_equal(used(p, 0), 8 * MIB);
        before = spared(p);
        for (uint32_t n = 2048; n < 3 * 2048; n++)
                assert_int_equal(try_add(p, 1, n, 4 * KIB), 0);
        assert_int_equal(used(p, 0), 8 * MIB);
        assert_true(is_in(p, 1, 3 * 2048 - 1) && !is_in(p, 1, 0));
        assert_in_range(spared(p) - before, 2048, 3 * 2048);
        for (uint32_t n = 0; n < 128; n++) {
                struct key k = key_of(n);

                (void)pool_unpin(p, pool_find(p, 3, &k, hash_of(3, n)));
        }
        pool_free(p);
}

/* Chunks of an incomplete set are worthless to their group, too. */
static void a_demoted_chunk_leaves_below_the_floor(const char *policy)
{
        struct pool *p = pool_with_floors(policy, 8 * MIB, 0);
        struct key k = key_of(1023);

        for (uint32_t n = 0; n < 1024; n++)
                add(p, 1, n, 4 * KIB);
        for (uint32_t n = 0; n < SLOTS - 1024; n++)
                add(p, 3, n, 4 * KIB);
        assert_true(pool_demote(p, pool_find(p, 1, &k, hash_of(1, 1023))));
        add(p, 3, SLOTS, 4 * KIB);
        assert_false(is_in(p, 1, 1023));
        for (uint32_t n = SLOTS + 1; n < 2 * SLOTS; n++)
                add(p, 3, n, 4 * KIB);
        assert_int_equal(used(p, 0), 4 * MIB - 4 * KIB);
        assert_true(is_in(p, 1, 0));
        pool_free(p);
}

/* If a floor has all chunks of a size, chunks of that size find room elsewhere. */
static void another_size_finds_room(const char *policy)
{
        struct pool *p = pool_with_floors(policy, 8 * MIB, 4 * MIB);

        for (uint32_t n = 0; n < 2048; n++)
                add(p, 1, n, 4 * KIB);
        for (uint32_t n = 0; n < 200; n++)
                add(p, 3, n, 64 * KIB);
        assert_int_equal(used(p, 0), 8 * MIB);
        /* The search for 4 KiB finds only protected chunks, and takes a slab of the others. */
        for (uint32_t n = 1000; n < 1100; n++)
                add(p, 3, n, 4 * KIB);
        assert_true(is_in(p, 3, 1099));
        assert_int_equal(used(p, 0), 8 * MIB);
        pool_free(p);
}

/* The protected chunks are more than an iteration may pass over. */
static void a_size_that_a_floor_has_wholly_finds_room(const char *policy)
{
        struct pool *p = pool_of(32 * MIB, policy, 24 * MIB, 0);

        for (uint32_t n = 0; n < 6144; n++)
                add(p, 1, n, 4 * KIB);
        for (uint32_t n = 0; n < 128; n++)
                add(p, 3, n, 64 * KIB);
        for (uint32_t n = 1000; n < 1100; n++)
                add(p, 3, n, 4 * KIB);
        assert_true(is_in(p, 3, 1099));
        assert_int_equal(used(p, 0), 24 * MIB);
        pool_free(p);
}

/* Every slab has chunks of the group and others, and a chunk of another size comes. */
static void a_slab_that_all_need_is_taken_anyway(const char *policy)
{
        struct pool *p = pool_with_floors(policy, 8 * MIB, 4 * MIB);

        for (uint32_t n = 0; n < SLOTS; n++)
                add(p, n % 2 ? 1 : 3, n, 4 * KIB);
        assert_int_equal(used(p, 0), 8 * MIB);
        add(p, 3, 10000, MIB);
        assert_true(is_in(p, 3, 10000));
        assert_in_range(used(p, 0), 6 * MIB, 8 * MIB - 1);
        pool_free(p);
}

static void floors_that_are_too_large_are_reduced(const char *policy)
{
        struct pool *p = pool_with_floors(policy, 64 * MIB, 16 * MIB);
        uint64_t bytes, first, second;

        pool_get_floor(p, 0, &bytes, &first);
        pool_get_floor(p, 1, &bytes, &second);
        assert_in_range(first + second, 12 * MIB - 2, 12 * MIB);
        for (uint32_t n = 0; n < SLOTS; n++)
                add(p, 1 + n % 2, n, 4 * KIB);
        for (uint32_t n = 0; n < SLOTS; n++)
                add(p, 3, n, 4 * KIB);
        assert_true(is_in(p, 3, SLOTS - 1));
        assert_true(used(p, 0) >= first && used(p, 1) >= second);
        pool_free(p);
}

/* Floors that are set later count the chunks that exist. */
static void chunks_of_before_are_counted(const char *policy)
{
        struct pool_floors floors = { .n = 1, .bytes = { 4 * MIB }, .of = group_of };
        struct pool *p = pool_with_floors(policy, 0, 0);
        struct key k = key_of(1);

        floors.n = 2;
        for (uint32_t n = 0; n < 1024; n++)
                add(p, 1 + n % 2, n, 4 * KIB);
        pool_set_floors(p, &floors);
        assert_int_equal(used(p, 0), 2 * MIB);
        assert_int_equal(used(p, 1), 2 * MIB);
        pool_drop(p, pool_find(p, 2, &k, hash_of(2, 1)));
        assert_int_equal(used(p, 1), 2 * MIB - 4 * KIB);
        /* The memory of each namespace is counted once, however often floors are set. */
        pool_set_floors(p, &floors);
        assert_int_equal(pool_namespace_bytes(p, 1), 2 * MIB);
        assert_int_equal(pool_namespace_bytes(p, 2), 2 * MIB - 4 * KIB);
        assert_int_equal(pool_all_namespaces_bytes(p), 4 * MIB - 4 * KIB);
        for (uint32_t n = 0; n < 2 * SLOTS; n++)
                add(p, 3, n, 4 * KIB);
        assert_int_equal(used(p, 0), 2 * MIB);
        assert_int_equal(used(p, 1), 0);
        pool_free(p);
}

#define BY_POLICY(name)                                                                            \
        static void test_##name(void **state)                                                      \
        {                                                                                          \
                name("lru");                                                                       \
                name("cq");                                                                        \
        }

BY_POLICY(others_do_not_evict_below_a_floor)
BY_POLICY(floors_are_kept_beside_each_other)
BY_POLICY(a_group_evicts_its_own_chunks)
BY_POLICY(a_group_below_its_floor_takes_from_others)
BY_POLICY(a_group_below_its_floor_evicts_its_own_if_others_cannot)
BY_POLICY(a_demoted_chunk_leaves_below_the_floor)
BY_POLICY(another_slab_changes_its_size)
BY_POLICY(another_size_finds_room)
BY_POLICY(a_size_that_a_floor_has_wholly_finds_room)
BY_POLICY(a_slab_that_all_need_is_taken_anyway)
BY_POLICY(floors_that_are_too_large_are_reduced)
BY_POLICY(chunks_of_before_are_counted)

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_others_do_not_evict_below_a_floor),
                cmocka_unit_test(test_floors_are_kept_beside_each_other),
                cmocka_unit_test(test_a_group_evicts_its_own_chunks),
                cmocka_unit_test(test_a_group_below_its_floor_takes_from_others),
                cmocka_unit_test(test_a_group_below_its_floor_evicts_its_own_if_others_cannot),
                cmocka_unit_test(test_a_demoted_chunk_leaves_below_the_floor),
                cmocka_unit_test(test_another_slab_changes_its_size),
                cmocka_unit_test(test_another_size_finds_room),
                cmocka_unit_test(test_a_size_that_a_floor_has_wholly_finds_room),
                cmocka_unit_test(test_a_slab_that_all_need_is_taken_anyway),
                cmocka_unit_test(test_floors_that_are_too_large_are_reduced),
                cmocka_unit_test(test_chunks_of_before_are_counted),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

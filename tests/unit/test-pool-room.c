/* SPDX-License-Identifier: Apache-2.0 */
/* The pool's search for room counts its steps here: chunks that it visits as victims, and slots of
 * slabs that it may move. Their number is bounded by a constant, whatever is pinned. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "cache/pool-internal.h"

enum {
        MIB = 1 << 20,
        SMALL = 4096,
        CHUNKS = 32 * MIB /
                 SMALL, /* chunks in a full pool: twice as many as an iteration passes over */
        LEAST = 32,     /* a search's passes beyond the iteration's */
};

enum { MANY = 4 * CHUNKS }; /* chunks of a pool whose slabs are emptied in several iterations */

static struct pool *pool;
static uint32_t n_keys, chunks[MANY];
static uint64_t visits, slots_read;

/* --- counted calls --- */

uint32_t __real_evict_victim(struct evict *e, uint32_t group,
                             bool (*may_evict)(void *userdata, uint32_t item), void *userdata,
                             uint32_t max_passed);
uint32_t __wrap_evict_victim(struct evict *e, uint32_t group,
                             bool (*may_evict)(void *userdata, uint32_t item), void *userdata,
                             uint32_t max_passed);
uint32_t __real_slabs_owner(const struct slabs *s, struct slab_slot slot);
uint32_t __wrap_slabs_owner(const struct slabs *s, struct slab_slot slot);

static bool (*may_evict_of_pool)(void *userdata, uint32_t item);

static bool count_visit(void *userdata, uint32_t item)
{
        visits++;
        return may_evict_of_pool(userdata, item);
}

uint32_t __wrap_evict_victim(struct evict *e, uint32_t group,
                             bool (*may_evict)(void *userdata, uint32_t item), void *userdata,
                             uint32_t max_passed)
{
        may_evict_of_pool = may_evict;
        return __real_evict_victim(e, group, count_visit, userdata, max_passed);
}

uint32_t __wrap_slabs_owner(const struct slabs *s, struct slab_slot slot)
{
        slots_read++;
        return __real_slabs_owner(s, slot);
}

/* --- a pool that is full --- */

static struct key key_of(uint32_t n)
{
        struct key k = { { 1 } };

        memcpy(k.bytes + 4, &n, sizeof(n));
        return k;
}

static int acquire(uint32_t length, uint32_t *ret)
{
        struct key k = key_of(n_keys);

        n_keys++;
        return pool_acquire(pool, 1, &k, n_keys, length, 0, ret);
}

/* Fills the pool with `n` chunks that are pinned by their acquire. */
static void fill_of(const char *policy, uint32_t n)
{
        assert_int_equal(pool_new(&pool, (uint64_t)n * SMALL, policy), 0);
        while (pool_next_slab(pool) >= 0)
                assert_int_equal(pool_open_slab(pool, 0), 0);
        for (uint32_t i = 0; i < n; i++) {
                assert_int_equal(acquire(SMALL, &chunks[i]), 0);
                pool_commit(pool, chunks[i], 0);
        }
        visits = slots_read = 0;
}

static void fill(const char *policy)
{
        fill_of(policy, CHUNKS);
}

static void next_iteration(void)
{
        static uint64_t now_ns;

        pool_note_time(pool, now_ns += 1000000);
}

/* Acquires once an iteration until that succeeds or the search has come to its end. Returns how
 * many iterations that took. */
static uint32_t acquire_in_time(int *ret, uint32_t *ret_chunk)
{
        for (uint32_t n = 1;; n++) {
                assert_true(n <= CHUNKS / POOL_MAX_PASSED + 1);
                next_iteration();
                *ret = acquire(SMALL, ret_chunk);
                if (!pool_has_given_up(pool))
                        return n;
                assert_int_equal(*ret, POOL_FULL);
        }
}

static void a_pinned_chunk_costs_all_searches_one_step(void **state)
{
        uint32_t chunk;
        int r;

        fill(*state);
        (void)acquire_in_time(&r, &chunk);
        assert_int_equal(r, POOL_FULL);
        assert_int_equal(visits, CHUNKS);
        for (unsigned i = 0; i < 1000; i++)
                assert_int_equal(acquire(SMALL, &chunk), POOL_FULL);
        assert_int_equal(visits, CHUNKS);

        /* A chunk whose pin ends is found at once, wherever it was. */
        assert_true(pool_unpin(pool, chunks[CHUNKS / 3]));
        assert_int_equal(acquire(SMALL, &chunk), 0);
        assert_int_equal(chunk, chunks[CHUNKS / 3]);
        assert_int_equal(visits, CHUNKS + 1);
        pool = pool_free(pool);
}

static void searches_of_an_iteration_take_a_bounded_number_of_steps(void **state)
{
        enum { KEYS = 64 };
        uint32_t chunk;

        fill(*state);
        next_iteration();
        for (unsigned i = 0; i < KEYS; i++)
                assert_int_equal(acquire(SMALL, &chunk), POOL_FULL);
        assert_true(pool_has_given_up(pool));
        assert_false(pool_has_given_up(pool));
        assert_in_range(visits, POOL_MAX_PASSED, POOL_MAX_PASSED + KEYS * (LEAST + 1));
        pool = pool_free(pool);
}

static void a_victim_behind_pinned_chunks_is_found_in_time(void **state)
{
        uint32_t chunk;
        int r;

        fill(*state);
        pool_unpin(pool, chunks[CHUNKS - 1]);
        assert_int_equal(acquire_in_time(&r, &chunk), CHUNKS / POOL_MAX_PASSED);
        assert_int_equal(r, 0);
        assert_int_equal(chunk, chunks[CHUNKS - 1]);
        pool = pool_free(pool);
}

static void a_released_chunk_is_as_old_as_before(void **state)
{
        uint32_t chunk;
        int r;

        fill(*state);
        (void)acquire_in_time(&r, &chunk);
        /* The pins end in another order, and one of the chunks was used meanwhile. */
        pool_touch(pool, chunks[0], pool_chunk(pool, chunks[0])->generation, EVICT_NO_USE);
        for (uint32_t i = 4; i-- > 0;)
                pool_unpin(pool, chunks[i]);
        for (uint32_t i = 1; i < 4; i++) {
                assert_int_equal(acquire(SMALL, &chunk), 0);
                assert_true(chunk != chunks[0]);
                assert_true(pool_is_resident(pool, chunks[0]));
        }
        assert_int_equal(acquire(SMALL, &chunk), 0);
        assert_int_equal(chunk, chunks[0]);
        pool = pool_free(pool);
}

static void a_slab_is_chosen_without_a_walk_of_its_chunks(void **state)
{
        uint32_t per_slab, chunk;

        fill(*state);
        per_slab = (uint32_t)(pool_slab_bytes(pool) / SMALL);
        for (uint32_t i = 0; i < CHUNKS; i++)
                if (i % per_slab != per_slab - 1)
                        pool_unpin(pool, chunks[i]);
        assert_int_equal(acquire(16 * SMALL, &chunk), POOL_FULL);
        assert_int_equal(slots_read, 0);
        pool_unpin(pool, chunks[3 * per_slab - 1]);
        assert_int_equal(acquire(16 * SMALL, &chunk), 0);
        assert_int_equal(pool_chunk(pool, chunk)->slab, 2);
        pool = pool_free(pool);
}

static uint64_t resident_bytes(void)
{
        uint64_t n = 0;

        for (uint32_t i = 0; i < MANY; i++)
                n += pool_is_resident(pool, chunks[i]) ? SMALL : 0;
        return n;
}

static void a_large_slab_is_emptied_in_bounded_steps(void **state)
{
        uint64_t before, bytes;
        struct pool_stats stats;
        uint32_t chunk, n;

        fill_of(*state, MANY);
        assert_true(pool_slab_bytes(pool) / SMALL > POOL_EMPTIED_AT_ONCE);
        for (uint32_t i = 0; i < MANY; i++)
                pool_unpin(pool, chunks[i]);
        before = resident_bytes();
        for (n = 1; acquire(16 * SMALL, &chunk) != 0; n++) {
                assert_true(pool_is_emptying(pool));
                bytes = resident_bytes();
                assert_in_range(before - bytes, 0, POOL_EMPTIED * SMALL);
                before = bytes;
                /* A further search evicts nothing. */
                assert_int_equal(acquire(16 * SMALL, &chunk), POOL_FULL);
                assert_int_equal(resident_bytes(), before);
                next_iteration();
        }
        assert_int_equal(n, pool_slab_bytes(pool) / SMALL / POOL_EMPTIED);
        assert_true(pool_has_given_up(pool)); /* waiting requests try again */
        assert_false(pool_is_emptying(pool));
        pool_get_stats(pool, &stats);
        assert_int_equal(stats.slab_moves, 1);
        assert_int_equal(resident_bytes(), (uint64_t)MANY * SMALL - pool_slab_bytes(pool));
        pool = pool_free(pool);
}

/* The coldest chunks of the class are in the slab that is being emptied. */
static void the_class_of_an_emptied_slab_evicts_no_more_than_a_step(void **state)
{
        uint64_t before;
        uint32_t chunk;

        fill_of(*state, MANY);
        for (uint32_t i = 0; i < MANY; i++)
                pool_unpin(pool, chunks[i]);
        assert_int_equal(acquire(16 * SMALL, &chunk), POOL_FULL);
        for (unsigned i = 0; i < 2 * POOL_EMPTIED && pool_is_emptying(pool); i++) {
                next_iteration();
                before = resident_bytes();
                (void)acquire(SMALL, &chunk);
                assert_in_range(before - resident_bytes(), 0, POOL_EMPTIED * SMALL);
        }
        while (acquire(SMALL, &chunk) != 0)
                next_iteration();
        pool = pool_free(pool);
}

static void a_pin_ends_the_emptying_of_a_slab(void **state)
{
        uint32_t chunk, slab;
        struct pool_stats stats;

        fill_of(*state, MANY);
        for (uint32_t i = 0; i < MANY; i++)
                pool_unpin(pool, chunks[i]);
        assert_int_equal(acquire(16 * SMALL, &chunk), POOL_FULL);
        slab = UINT32_MAX;
        for (uint32_t i = 0; i < MANY && slab == UINT32_MAX; i++)
                if (!pool_is_resident(pool, chunks[i]))
                        slab = i / (uint32_t)(pool_slab_bytes(pool) / SMALL);
        /* The last chunk of that slab: the pool was filled slab by slab. */
        chunk = chunks[(slab + 1) * (pool_slab_bytes(pool) / SMALL) - 1];
        assert_int_equal(pool_chunk(pool, chunk)->slab, slab);
        pool_pin(pool, chunk);
        for (unsigned i = 0;
             i < 2 * pool_slab_bytes(pool) / SMALL / POOL_EMPTIED && pool_is_emptying(pool); i++)
                next_iteration();
        assert_false(pool_is_emptying(pool));
        pool_get_stats(pool, &stats);
        assert_int_equal(stats.slab_moves, 0);
        /* The free slots serve the slab's own class again, and another slab is emptied instead. */
        for (uint32_t i = 0; i + 1 < pool_slab_bytes(pool) / SMALL; i++) {
                assert_int_equal(acquire(SMALL, &chunks[i]), 0);
                assert_int_equal(pool_chunk(pool, chunks[i])->slab, slab);
        }
        while (acquire(16 * SMALL, &chunk) != 0)
                next_iteration();
        assert_true(pool_chunk(pool, chunk)->slab != slab);
        pool = pool_free(pool);
}

static char lru[] = "lru", cq[] = "cq";
#define TESTS(name) cmocka_unit_test_prestate(name, lru), cmocka_unit_test_prestate(name, cq)

int main(void)
{
        const struct CMUnitTest tests[] = {
                TESTS(a_pinned_chunk_costs_all_searches_one_step),
                TESTS(searches_of_an_iteration_take_a_bounded_number_of_steps),
                TESTS(a_victim_behind_pinned_chunks_is_found_in_time),
                TESTS(a_released_chunk_is_as_old_as_before),
                TESTS(a_slab_is_chosen_without_a_walk_of_its_chunks),
                TESTS(a_large_slab_is_emptied_in_bounded_steps),
                TESTS(the_class_of_an_emptied_slab_evicts_no_more_than_a_step),
                TESTS(a_pin_ends_the_emptying_of_a_slab),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

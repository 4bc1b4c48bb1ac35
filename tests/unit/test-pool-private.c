/* SPDX-License-Identifier: Apache-2.0 */
/* Private slabs: clients with the pool index neither find nor hold chunks in a few slabs, so that
 * other sizes find room there, whatever is held elsewhere. A slab becomes private only if no client
 * holds a chunk of it. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "cache/lease.h"
#include "cache/pool-internal.h"
#include "checked.h"
#include "lookup/pool-index.h"

enum {
        KIB = 1 << 10,
        MIB = 1 << 20,
        SLABS = 8,
        PRIVATE = 2,
        SMALL = 8 * KIB,
        MIDDLE = 128 * KIB, /* leased in place rather than moved */
        UID = 1000,
        OTHER_UID = 1001,
};
#define SECOND      UINT64_C(1000000000)
#define MILLISECOND (SECOND / 1000)

static uint64_t now_ns;
int __wrap_clock_gettime(clockid_t which, struct timespec *ret);
int __real_clock_gettime(clockid_t which, struct timespec *ret);

int __wrap_clock_gettime(clockid_t which, struct timespec *ret)
{
        if (which != CLOCK_MONOTONIC || now_ns == 0)
                return __real_clock_gettime(which, ret);
        *ret = (struct timespec){ .tv_sec = (time_t)(now_ns / SECOND),
                                  .tv_nsec = (long)(now_ns % SECOND) };
        return 0;
}

static struct pool *pool;
static struct pool_index *pi;
static struct pool_client client;
static struct pool_page *page;
static void *map;
static uint64_t map_bytes;
static struct pool_index_view view;
static struct leases *leases;
static struct lease_holder user, other;

static void make(uint64_t bytes)
{
        struct lease_limits limits = { .bytes_all = UINT64_C(1) << 40 };
        int fd, page_fd;

        now_ns = 1000 * SECOND;
        assert_int_equal(pool_new(&pool, bytes, "lru"), 0);
        while (pool_next_slab(pool) >= 0)
                assert_int_equal(pool_open_slab(pool, 0), 0);
        assert_int_equal(pool_bytes(pool) / pool_slab_bytes(pool), SLABS);
        assert_int_equal(pool_index_new(&pi, pool, NULL), 0);
        assert_int_equal(pool_index_join(pi, &client, UID, bytes, &fd, &map_bytes, &page_fd), 0);
        map = mmap(NULL, map_bytes, PROT_READ, MAP_SHARED, fd, 0);
        page = mmap(NULL, POOL_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, page_fd, 0);
        assert_true(map != MAP_FAILED && (void *)page != MAP_FAILED);
        close(page_fd);
        assert_true(pool_index_view_init(&view, map, map_bytes));
        pool_index_allow(&client, 1, 1);
        assert_int_equal(leases_new(&leases, pool, 100000, &limits), 0);
        assert_int_equal(lease_holder_init(leases, &user, UID, false), 0);
        assert_int_equal(lease_holder_init(leases, &other, OTHER_UID, false), 0);
}

static int setup(void **state)
{
        make(16 * MIB);
        return 0;
}

static int setup_large(void **state)
{
        make(128 * MIB);
        return 0;
}

static int teardown(void **state)
{
        (void)lease_release_some(leases, &user, UINT32_MAX);
        (void)lease_release_some(leases, &other, UINT32_MAX);
        lease_holder_fini(&user);
        lease_holder_fini(&other);
        leases = leases_free(leases);
        munmap(page, POOL_PAGE_BYTES);
        munmap(map, map_bytes);
        pool_index_leave(&client);
        pi = pool_index_free(pi);
        pool = pool_free(pool);
        now_ns = 0;
        return 0;
}

/* Begins an iteration in which the last scan of the holds has expired. */
static void iterate(void)
{
        now_ns += 2 * MILLISECOND;
        pool_note_time(pool, now_ns);
}

static struct key key_of(uint32_t n)
{
        struct key k = { { 1 } };

        memcpy(k.bytes + 4, &n, sizeof(n));
        return k;
}

static uint32_t chunk_of(uint32_t n)
{
        struct key k = key_of(n);

        return pool_find(pool, 1, &k, n);
}

static int acquire(uint32_t n, uint32_t length, uint32_t *ret)
{
        struct key k = key_of(n);

        return pool_acquire(pool, 1, &k, n, length, 0, ret);
}

static uint32_t add(uint32_t n, uint32_t length)
{
        uint32_t chunk;

        assert_int_equal(acquire(n, length, &chunk), 0);
        pool_commit(pool, chunk, 0);
        pool_unpin(pool, chunk);
        return chunk;
}

static void fill(uint32_t length)
{
        for (uint32_t n = 0; n < pool_bytes(pool) / length; n++)
                add(n, length);
}

/* Returns the record of a key as a client finds it, or NULL. */
static const struct pool_index_record *find(uint32_t n)
{
        uint64_t tag = __atomic_load_n(&page->tags[0], __ATOMIC_ACQUIRE);
        struct key k = key_of(n);
        uint64_t hash = pool_index_hash(&view.secret, tag, &k);
        struct pool_index_entry entry;
        unsigned at = 0;
        uint32_t number;

        while ((number = pool_index_find(&view, hash, false, &at)) != POOL_INDEX_NONE)
                if (pool_index_read(&view.records[number], tag, &k, &entry))
                        return &view.records[number];
        return NULL;
}

/* Writes the hold of a chunk, whether or not a client could find the chunk. */
static void hold(uint32_t chunk)
{
        uint32_t bucket = pool_page_bucket(chunk), way = 0;

        while (page->holds[bucket][way] != 0)
                assert_true(++way < POOL_PAGE_WAYS);
        page->holds[bucket][way] = pool_page_hold(chunk, pool_chunk(pool, chunk)->length);
        page->used[bucket / 64] |= UINT64_C(1) << bucket % 64;
}

static void release_holds(void)
{
        memset(page->holds, 0, sizeof(page->holds));
        memset(page->used, 0, sizeof(page->used));
}

static bool is_private(uint32_t slab)
{
        return pool->slab_state[slab].is_private;
}

static uint64_t private_slabs(void)
{
        struct pool_stats stats;

        pool_get_stats(pool, &stats);
        return stats.private_slabs;
}

/* Returns the number of a chunk in the first slab that is private, or that is not. */
static uint32_t one_in(bool of_private)
{
        uint32_t n = 0;

        while (chunk_of(n) == POOL_NONE ||
               is_private(pool_chunk(pool, chunk_of(n))->slab) != of_private)
                n++;
        return n;
}

/* Holds a chunk in each slab. */
static void hold_in_each_slab(uint32_t n)
{
        bool held[SLABS] = { false };

        for (uint32_t i = 0; i < n; i++) {
                uint32_t slab = pool_chunk(pool, chunk_of(i))->slab;

                if (!held[slab])
                        hold(chunk_of(i));
                held[slab] = true;
        }
        for (unsigned s = 0; s < SLABS; s++)
                assert_true(held[s]);
}

/* Asserts that clients find exactly the chunks outside private slabs. */
static void assert_announced(uint32_t n)
{
        for (uint32_t i = 0; i < n; i++)
                if (chunk_of(i) != POOL_NONE)
                        assert_int_equal(find(i) != NULL, !pool_is_private(pool, chunk_of(i)));
}

static int lease(struct lease_holder *h, uint32_t n)
{
        struct lease l;

        return lease_acquire(leases, h, chunk_of(n), &l);
}

/* Fills the pool, in which clients hold a chunk of each slab if `is_held`, and another user has a
 * lease. Returns the number of a chunk in a private slab that is pinned and cannot be moved. */
static uint32_t fill_and_pin(uint32_t length, bool is_held)
{
        uint32_t n;

        fill(length);
        if (is_held) {
                hold_in_each_slab(16 * MIB / length);
                iterate();
        }
        assert_int_equal(lease(&other, one_in(false)), 0);
        n = one_in(true);
        pool_pin(pool, chunk_of(n));
        return n;
}

static void chunks_of_private_slabs_are_not_announced(void **state)
{
        uint32_t n = 16 * MIB / MIDDLE, found = 0;

        assert_int_equal(private_slabs(), PRIVATE);
        fill(MIDDLE);
        assert_announced(n);
        for (uint32_t i = 0; i < n; i++)
                found += find(i) != NULL;
        assert_int_equal(found, n / SLABS * (SLABS - PRIVATE));
}

static void holds_in_each_slab_leave_room_for_other_sizes(void **state)
{
        uint32_t n = 16 * MIB / SMALL;

        fill(SMALL);
        hold_in_each_slab(n);
        iterate();
        for (uint32_t i = 0; i < 100; i++) {
                (void)add(n + 2 * i, MIB);
                (void)add(n + 2 * i + 1, 64 * KIB);
                iterate();
        }
        /* The chunks that clients could find and hold are still there. */
        for (uint32_t i = 0; i < n; i++)
                if (find(i))
                        assert_int_equal(find(i)->offset, pool_offset(pool, chunk_of(i)));
        assert_announced(n);
        assert_int_equal(private_slabs(), PRIVATE);
}

static void a_lease_in_a_private_slab_makes_another_private(void **state)
{
        uint32_t n = 16 * MIB / MIDDLE, leased, before[SLABS], changed = 0;

        fill(MIDDLE);
        assert_int_equal(lease(&user, one_in(false)), 0);
        for (unsigned s = 0; s < SLABS; s++)
                before[s] = is_private(s);
        leased = one_in(true);
        assert_int_equal(lease(&user, leased), 0);
        assert_int_equal(private_slabs(), PRIVATE);
        assert_false(pool_is_private(pool, chunk_of(leased)));
        for (unsigned s = 0; s < SLABS; s++) {
                changed += is_private(s) != before[s];
                assert_true(!is_private(s) || pool->slab_state[s].leased == 0);
        }
        assert_int_equal(changed, 2);
        while (pool->n_unannounced > 0)
                iterate();
        assert_announced(n);
}

static void a_small_chunk_is_moved_from_a_private_slab(void **state)
{
        uint32_t n;

        fill(SMALL);
        n = one_in(true);
        assert_int_equal(lease(&user, n), 0);
        assert_false(pool_is_private(pool, chunk_of(n)));
        assert_int_equal(find(n)->offset, pool_offset(pool, chunk_of(n)));
        assert_int_equal(pool->n_unannounced, 0);
        assert_int_equal(pool->clear_slabs, PRIVATE);
}

static void a_slab_with_a_held_chunk_does_not_become_private(void **state)
{
        uint32_t n = 16 * MIB / MIDDLE, pinned = fill_and_pin(MIDDLE, true);

        assert_int_equal(lease(&other, pinned), LEASE_FULL);
        assert_announced(n);
        assert_int_equal(private_slabs(), PRIVATE);
        pool_unpin(pool, chunk_of(pinned));

        release_holds();
        iterate();
        assert_int_equal(lease(&other, one_in(true)), 0);
}

/* The holds are taken after the last scan, so that the daemon finds them only when the chunks are
 * hidden already. */
static void a_hold_that_comes_before_hiding_ends_it(void **state)
{
        uint32_t n = 16 * MIB / MIDDLE, chunk;

        fill(MIDDLE);
        assert_int_equal(lease(&other, one_in(false)), 0);
        iterate();
        pool_scan_holds(pool);
        hold_in_each_slab(n);
        chunk = chunk_of(one_in(true));
        pool_pin(pool, chunk);
        assert_int_equal(lease(&other, one_in(true)), LEASE_FULL);
        assert_int_equal(pool->n_unannounced, 1);
        assert_int_equal(private_slabs(), PRIVATE);
        iterate();
        assert_announced(n);
        pool_unpin(pool, chunk);
}

static void a_user_with_holds_gets_no_private_slab_for_its_first_lease(void **state)
{
        uint32_t n = 16 * MIB / MIDDLE, chunk;

        fill(MIDDLE);
        hold_in_each_slab(n);
        iterate();
        chunk = chunk_of(one_in(true));
        pool_pin(pool, chunk);
        assert_int_equal(lease(&user, one_in(true)), LEASE_FULL);
        assert_int_equal(lease(&other, one_in(true)), 0);
        assert_int_equal(pool->clear_slabs, PRIVATE - 1);
        assert_int_equal(private_slabs(), PRIVATE);
        /* The slab is private again as soon as the lease ends, although all others are held. */
        (void)lease_release_some(leases, &other, 1);
        assert_int_equal(pool->clear_slabs, PRIVATE);
        assert_announced(n);
        pool_unpin(pool, chunk);
}

/* Each key of a client's messages may ask for a slot in another slab, and find none. */
static void searches_for_a_slot_in_other_slabs_are_limited(void **state)
{
        uint32_t n = 16 * MIB / SMALL, before, moved = 0;

        fill(SMALL);
        for (uint32_t i = 0; i < n; i++)
                if (!pool_is_private(pool, chunk_of(i)))
                        pool_pin(pool, chunk_of(i));
        iterate();
        before = pool->sample_phase;
        for (unsigned i = 0; i < 1000; i++)
                moved += pool_move_to_leased_slab(pool, chunk_of(one_in(true)));
        assert_int_equal(moved, 0);
        assert_in_range(pool->sample_phase - before, SLABS - PRIVATE, 600);
        for (uint32_t i = 0; i < n; i++)
                if (!pool_is_private(pool, chunk_of(i)))
                        pool_unpin(pool, chunk_of(i));
        assert_false(pool_move_to_leased_slab(pool, chunk_of(one_in(true))));
        iterate();
        assert_true(pool_move_to_leased_slab(pool, chunk_of(one_in(true))));
}

/* Returns the number of a chunk in the first private slab without leased chunks. */
static uint32_t one_in_clear(void)
{
        uint32_t n = 0;

        while (chunk_of(n) == POOL_NONE || !pool_is_private(pool, chunk_of(n)) ||
               pool->slab_state[pool_chunk(pool, chunk_of(n))->slab].leased > 0)
                n++;
        return n;
}

/* A first lease while all other slabs are held leaves its slab private. When the holds have ended,
 * another slab becomes private in addition. */
static void ended_leases_leave_no_more_private_slabs(void **state)
{
        enum { USERS = 3 };
        uint32_t n = 16 * MIB / MIDDLE, pinned, leased[USERS];
        struct lease_holder users[USERS];
        struct lease l;

        fill(MIDDLE);
        assert_int_equal(lease(&user, one_in(false)), 0);
        for (uint32_t i = 0; i < USERS; i++) {
                assert_int_equal(lease_holder_init(leases, &users[i], 2000 + i, false), 0);
                hold_in_each_slab(n);
                iterate();
                leased[i] = one_in_clear();
                pool_pin(pool, chunk_of(leased[i])); /* A pinned chunk cannot be moved. */
                assert_int_equal(lease_acquire(leases, &users[i], chunk_of(leased[i]), &l), 0);
                assert_int_equal(pool->clear_slabs, PRIVATE - 1);
                release_holds();
                iterate();
                pinned = one_in_clear();
                pool_pin(pool, chunk_of(pinned));
                assert_int_equal(lease(&user, pinned), LEASE_FULL);
                pool_unpin(pool, chunk_of(pinned));
                assert_int_equal(pool->clear_slabs, PRIVATE);
        }
        assert_int_equal(private_slabs(), PRIVATE + USERS);
        for (uint32_t i = 0; i < USERS; i++) {
                pool_unpin(pool, chunk_of(leased[i]));
                (void)lease_release_some(leases, &users[i], UINT32_MAX);
                lease_holder_fini(&users[i]);
        }
        assert_int_equal(pool->clear_slabs, PRIVATE);
        assert_int_equal(private_slabs(), PRIVATE);
        while (pool->n_unannounced > 0)
                iterate();
        assert_announced(n);
}

/* Each key of a client's messages may ask for a lease that is refused. */
static void refused_leases_search_a_limited_number_of_slabs(void **state)
{
        uint32_t pinned = fill_and_pin(MIDDLE, true), before = pool->hide_from;

        for (unsigned i = 0; i < 1000; i++)
                assert_int_equal(lease(&other, one_in(true)), LEASE_FULL);
        assert_in_range(pool->hide_from - before, 1, 4 * SLABS);
        /* The next iteration searches again. */
        release_holds();
        iterate();
        assert_int_equal(lease(&other, one_in(true)), 0);
        pool_unpin(pool, chunk_of(pinned));
}

static uint32_t count_found(uint32_t n)
{
        uint32_t found = 0;

        for (uint32_t i = 0; i < n; i++)
                found += find(i) != NULL;
        return found;
}

static void a_large_slab_is_hidden_in_steps(void **state)
{
        uint32_t n = 128 * MIB / 4096, found, before, steps = 0, pinned;

        pinned = fill_and_pin(4096, false);
        before = count_found(n);
        assert_int_equal(lease(&other, pinned), LEASE_FULL);
        found = count_found(n);
        assert_true(before - found <= POOL_EMPTIED && before > found);
        while (private_slabs() == PRIVATE) {
                before = found;
                iterate();
                found = count_found(n);
                assert_true(before - found <= POOL_EMPTIED);
                steps++;
        }
        assert_true(steps >= n / SLABS / POOL_EMPTIED - 1);
        assert_int_equal(lease(&other, pinned), 0);
        assert_int_equal(private_slabs(), PRIVATE);
        /* The leased slab is announced in steps, too. */
        while (pool->n_unannounced > 0) {
                before = found;
                iterate();
                found = count_found(n);
                assert_true(found - before <= POOL_EMPTIED);
        }
        assert_announced(n);
        pool_unpin(pool, chunk_of(pinned));
}

/* A slab that a small chunk is moved to is leased, and cannot become private. */
static void a_small_chunk_is_not_moved_to_the_slab_that_is_being_hidden(void **state)
{
        uint32_t pinned, n, hiding;

        pinned = fill_and_pin(4096, false);
        assert_int_equal(lease(&other, pinned), LEASE_FULL);
        hiding = pool->hiding;
        assert_true(hiding != POOL_NONE);
        for (uint32_t i = 0; i < 2 * SLABS; i++) {
                pool->move_from = hiding;
                n = pinned + 1 + i;
                assert_true(pool_is_private(pool, chunk_of(n)));
                assert_int_equal(lease(&other, n), 0);
                assert_true(pool_chunk(pool, chunk_of(n))->slab != hiding);
                assert_non_null(find(n));
        }
        while (pool->hiding != POOL_NONE)
                iterate();
        assert_int_equal(private_slabs(), PRIVATE + 1);
        pool_unpin(pool, chunk_of(pinned));
}

/* --- any order of operations --- */

enum { MIXED_KEYS = 600, MIXED_STEPS = 6000, MIXED_USERS = 3 };

static uint32_t draw_state;

static uint32_t draw(uint32_t below)
{
        draw_state = draw_state * 1664525 + 1013904223;
        return (draw_state >> 8) % below;
}

/* Asserts that what the pool counts is true of its slabs and chunks, and that clients find no chunk
 * of a private slab. */
static void assert_counts(void)
{
        uint32_t clear = 0, private = 0, unannounced = 0, pinned[SLABS] = { 0 },
                 leased[SLABS] = { 0 };
        uint64_t unused = 0, for_return = 0, used = 0, in_table = 0;

        for (uint32_t i = 0; i < pool_records(pool); i++) {
                const struct pool_chunk *c = pool_chunk(pool, i);
                bool is_found = view.records[i].serial & 1;

                assert_true(!is_found || pool_may_announce(pool, i) || c->slab == pool->hiding);
                if (c->state == POOL_FREE) {
                        assert_false(is_found || c->flags & POOL_PREFETCHED);
                        continue;
                }
                if (is_found)
                        assert_int_equal(view.records[i].offset, pool_offset(pool, i));
                else if (pool_is_resident(pool, i) && !pool_is_dropped(pool, i))
                        assert_true(!pool_may_announce(pool, i) ||
                                    pool->slab_state[c->slab].is_unannounced);
                used += pool_slot_bytes(pool, i);
                in_table += c->flags & POOL_DROPPED ? 0 : pool_slot_bytes(pool, i);
                unused += c->flags & POOL_PREFETCHED ? pool_slot_bytes(pool, i) : 0;
                for_return += c->flags & POOL_FOR_RETURN ? pool_slot_bytes(pool, i) : 0;
                pinned[c->slab] += c->pins > 0;
                leased[c->slab] += c->leases > 0;
        }
        for (uint32_t s = 0; s < SLABS; s++) {
                const struct pool_slab *slab = &pool->slab_state[s];

                assert_int_equal(slab->pinned, pinned[s]);
                assert_int_equal(slab->leased, leased[s]);
                assert_false(slab->is_private && slab->is_unannounced);
                private += slab->is_private;
                clear += slab->is_private && slab->leased == 0;
                unannounced += slab->is_unannounced;
        }
        assert_int_equal(pool->clear_slabs, clear);
        assert_int_equal(private_slabs(), private);
        assert_int_equal(pool->n_unannounced, unannounced);
        assert_true(clear <= PRIVATE + 1);
        assert_int_equal(pool->stats.used_bytes, used);
        assert_int_equal(pool->stats.prefetched_unused_bytes, unused);
        assert_int_equal(pool_unused_for_return(pool), for_return);
        assert_int_equal(pool_all_namespaces_bytes(pool), in_table);
}

static void on_purged(struct pool_purge *purge)
{
        purge->number = 0;
}

/* Makes one change of the pool. */
static void change(struct lease_holder *users, struct pool_purge *mixed_purge)
{
        static const uint32_t lengths[] = { 4096, SMALL, 64 * KIB, MIDDLE, MIB, 2 * MIB };
        uint32_t n = draw(MIXED_KEYS), chunk = chunk_of(n), added;
        struct lease l;

        switch (draw(12)) {
        case 0:
                if (chunk != POOL_NONE && !pool_is_filling(pool_chunk(pool, chunk)))
                        pool_drop(pool, chunk);
                break;
        case 1:
        case 2:
                if (chunk != POOL_NONE)
                        (void)lease_acquire(leases, &users[draw(MIXED_USERS)], chunk, &l);
                break;
        case 3:
                (void)lease_release_some(leases, &users[draw(MIXED_USERS)], 1 + draw(8));
                break;
        case 4:
                if (chunk != POOL_NONE && find(n) &&
                    page->holds[pool_page_bucket(chunk)][POOL_PAGE_WAYS - 1] == 0)
                        hold(chunk);
                break;
        case 5:
                if (draw(8) == 0)
                        release_holds();
                break;
        case 6:
                iterate();
                break;
        case 7:
                if (chunk != POOL_NONE)
                        (draw(2) ? pool_set_for_return(pool, chunk)
                                 : pool_set_prefetched(pool, chunk, draw(2)));
                break;
        case 8:
                if (mixed_purge->number == 0 && draw(64) == 0) {
                        *mixed_purge = (struct pool_purge){ .namespace_id = 1,
                                                            .complete = on_purged,
                                                            .number = 1 };
                        pool_purge(pool, mixed_purge);
                }
                (void)pool_sweep(pool);
                (void)pool_release_held(pool);
                break;
        default:
                if (chunk == POOL_NONE &&
                    acquire(n, lengths[draw(ARRAY_SIZE(lengths))], &added) == 0) {
                        pool_commit(pool, added, 0);
                        pool_unpin(pool, added);
                }
                break;
        }
}

static void counts_are_right_after_any_order_of_operations(void **state)
{
        struct lease_holder users[MIXED_USERS];
        struct pool_purge mixed_purge = { .number = 0 };

        for (uint32_t seed = 1; seed <= 8; seed++) {
                draw_state = seed;
                for (uint32_t i = 0; i < MIXED_USERS; i++)
                        assert_int_equal(lease_holder_init(leases, &users[i], UID + 10 + i, false),
                                         0);
                for (uint32_t step = 0; step < MIXED_STEPS; step++) {
                        change(users, &mixed_purge);
                        if (step % 16 == 0)
                                assert_counts();
                }
                release_holds();
                for (uint32_t i = 0; i < MIXED_USERS; i++) {
                        (void)lease_release_some(leases, &users[i], UINT32_MAX);
                        lease_holder_fini(&users[i]);
                }
                while (pool_is_sweeping(pool))
                        (void)pool_sweep(pool);
                assert_counts();
        }
}

/* Both sides run at the same time, on two threads: a slab becomes private and ceases to be, and its
 * chunks are replaced as fast as possible, while a client holds and reads them. */

enum { RACED_KEYS = 4, RACED_BYTES = 256, RACED_WORDS = RACED_BYTES / 8, RACED_MS = 400 };

static struct {
        const uint8_t *bytes; /* the client's mapping of the pool */
        uint64_t held, wrong;
        bool stop;
} raced;

static bool has_bytes_of(uint64_t offset, uint32_t n)
{
        const uint64_t *words = (const uint64_t *)(raced.bytes + offset);
        bool same = true;

        for (unsigned i = 0; i < RACED_WORDS; i++)
                same &= __atomic_load_n(&words[i], __ATOMIC_RELAXED) == n;
        return same;
}

static void *race(void *unused)
{
        const uint64_t tag = __atomic_load_n(&page->tags[0], __ATOMIC_ACQUIRE);

        for (uint32_t n = 0; !__atomic_load_n(&raced.stop, __ATOMIC_RELAXED);
             n = (n + 1) % RACED_KEYS) {
                const struct pool_index_record *r = find(n);
                struct key k = key_of(n);
                struct pool_index_entry e;
                uint32_t record;
                uint64_t *place;
                bool same = true;

                if (!r)
                        continue;
                record = (uint32_t)(r - view.records);
                place = &page->holds[pool_page_bucket(record)][0];
                __atomic_store_n(place, pool_page_hold(record, RACED_BYTES), __ATOMIC_RELAXED);
                POOL_INDEX_FENCE(__ATOMIC_SEQ_CST);
                if (pool_index_read(r, tag, &k, &e) && e.length == RACED_BYTES) {
                        __atomic_store_n(&raced.held, raced.held + 1, __ATOMIC_RELAXED);
                        for (unsigned again = 0; again < 2000; again++)
                                same &= has_bytes_of(e.offset, n);
                }
                raced.wrong += !same;
                __atomic_store_n(place, 0, __ATOMIC_RELEASE);
        }
        return NULL;
}

static void add_raced(uint32_t n)
{
        uint64_t *words;
        uint32_t chunk;

        assert_int_equal(acquire(n, RACED_BYTES, &chunk), 0);
        words = pool_at(pool, chunk);
        for (unsigned i = 0; i < RACED_WORDS; i++)
                __atomic_store_n(&words[i], n, __ATOMIC_RELAXED);
        pool_commit(pool, chunk, 0);
        pool_unpin(pool, chunk);
}

static void replace_raced(uint32_t n)
{
        if (chunk_of(n) != POOL_NONE)
                pool_drop(pool, chunk_of(n));
        (void)pool_release_held(pool);
        add_raced((n + RACED_KEYS - 1) % RACED_KEYS);
}

static uint64_t real_ns(void)
{
        struct timespec t;

        __real_clock_gettime(CLOCK_MONOTONIC, &t);
        return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

/* Leases a chunk of a private slab and releases it; another slab becomes private in its place. The
 * last scan has seen no hold, so a hold that the client takes now is found only by the scan after
 * the chunks are hidden. */
static bool swap_slab(uint32_t n)
{
        struct lease l;

        do
                pool_scan_holds_now(pool);
        while (pool_slab_is_held(pool, 0));
        if (lease_acquire(leases, &other, chunk_of(n), &l) != 0)
                return false;
        assert_int_equal(lease_release(leases, &other, l), 0);
        return true;
}

/* Leaves two slabs that can become private: that of the raced chunks, and another one. */
static uint32_t lease_all_but_two(void)
{
        uint32_t n = 100, in_private;

        for (; n < 100 + SLABS - 1; n++) {
                assert_true(pool_chunk(pool, add(n, 2 * MIB))->slab != 0);
                if (!pool_is_private(pool, chunk_of(n)))
                        pool_lease(pool, chunk_of(n));
        }
        in_private = n - 1;
        assert_true(pool_is_private(pool, chunk_of(in_private)));
        return in_private;
}

static void a_held_chunk_keeps_its_bytes_while_slabs_become_private(void **state)
{
        uint64_t end, swaps = 0, refused = 0, held;
        uint32_t in_private;
        pthread_t thread;

        page->used[0] = UINT64_MAX; /* records are few */
        memset(&raced, 0, sizeof(raced));
        raced.bytes = mmap(NULL, pool_bytes(pool), PROT_READ, MAP_SHARED, pool_fd(pool), 0);
        assert_true(raced.bytes != MAP_FAILED);
        for (uint32_t n = 0; n + 1 < RACED_KEYS; n++)
                add_raced(n);
        in_private = lease_all_but_two();
        assert_int_equal(lease(&other, 100), 0); /* The later leases are not its first. */
        assert_int_equal(pthread_create(&thread, NULL, race, NULL), 0);
        end = real_ns() + RACED_MS * MILLISECOND;
        while (real_ns() < end || __atomic_load_n(&raced.held, __ATOMIC_RELAXED) == 0 ||
               swaps == 0 || refused == 0) {
                for (uint32_t n = 0; n < 16 * RACED_KEYS; n++)
                        replace_raced(n % RACED_KEYS);
                if (swap_slab(pool_is_private(pool, chunk_of(1)) ? 1 : in_private))
                        swaps++;
                else
                        refused++;
                iterate();
        }
        __atomic_store_n(&raced.stop, true, __ATOMIC_RELAXED);
        assert_int_equal(pthread_join(thread, NULL), 0);
        held = raced.held;
        munmap((void *)raced.bytes, pool_bytes(pool));
        print_message("%llu swaps, %llu refused, %llu holds\n", (unsigned long long)swaps,
                      (unsigned long long)refused, (unsigned long long)held);
        assert_int_equal(raced.wrong, 0);
        (void)lease_release_some(leases, &other, 1);
        for (uint32_t n = 100; n < 100 + SLABS - 1; n++)
                if (pool_chunk(pool, chunk_of(n))->leases > 0)
                        pool_unlease(pool, chunk_of(n));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
                TEST(chunks_of_private_slabs_are_not_announced),
                TEST(holds_in_each_slab_leave_room_for_other_sizes),
                TEST(a_lease_in_a_private_slab_makes_another_private),
                TEST(a_small_chunk_is_moved_from_a_private_slab),
                TEST(a_slab_with_a_held_chunk_does_not_become_private),
                TEST(a_hold_that_comes_before_hiding_ends_it),
                TEST(a_user_with_holds_gets_no_private_slab_for_its_first_lease),
                TEST(searches_for_a_slot_in_other_slabs_are_limited),
                TEST(refused_leases_search_a_limited_number_of_slabs),
                TEST(ended_leases_leave_no_more_private_slabs),
                cmocka_unit_test_setup_teardown(a_large_slab_is_hidden_in_steps, setup_large,
                                                teardown),
                cmocka_unit_test_setup_teardown(
                        a_small_chunk_is_not_moved_to_the_slab_that_is_being_hidden, setup_large,
                        teardown),
                TEST(counts_are_right_after_any_order_of_operations),
                TEST(a_held_chunk_keeps_its_bytes_while_slabs_become_private),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

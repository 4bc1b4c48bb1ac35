/* SPDX-License-Identifier: Apache-2.0 */
/* The cache: puts, the answers to a second put of the same key, and many operations at once. */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/sanitizers.h"
#include "cache-fixture.h"
#include "../lib/aborts.h"

static void a_put_is_seen_when_accepted_and_on_disk_when_written(void **state)
{
        struct req a, b;

        put_writing(&a, 1, CACHE_ACCEPTED);
        assert_true(a.done);
        assert_int_equal(a.req.status, CACHE_OK);
        assert_int_equal(tiers_of(1), CACHE_MEMORY);
        expect_get(1, CACHE_OK, 1);
        put(&b, 2, CACHE_WRITTEN);
        tiers_wait_hits(&t, 2);
        assert_false(b.done);
        assert_int_equal(stats().unwritten_chunks, 2);
        release();
        expect(&b, CACHE_OK);
        assert_int_equal(tiers_of(2), CACHE_MEMORY | CACHE_DISK);
        tiers_settle(&t);
        assert_int_equal(tiers_of(1), CACHE_MEMORY | CACHE_DISK);
        tiers_close(&t);
        tiers_open(&t);
        assert_int_equal(tiers_of(1), CACHE_DISK);
        expect_get(1, CACHE_OK, 1);
        expect_get(2, CACHE_OK, 1);
        expect_get(3, CACHE_MISS, 0);
}

static void no_client_sees_bytes_that_are_still_being_copied(void **state)
{
        struct req a, g;

        put(&a, 1, CACHE_ACCEPTED); /* not reaped */
        assert_int_equal(tiers_of(1), 0);
        get(&g, 1);
        assert_false(g.done);
        expect(&g, CACHE_OK);
        assert_int_equal(g.version, 1);
        assert_int_equal(g.req.tier, CACHE_MEMORY);
        assert_true(a.done);
}

static void an_accepted_put_whose_write_fails_stays_in_the_pool(void **state)
{
        refuse(KIO_WRITE, 1, 1);
        expect_put(1, CACHE_ACCEPTED, CACHE_OK);
        tiers_settle(&t);
        assert_int_equal(stats().pool_only, 1);
        assert_int_equal(tiers_of(1), CACHE_MEMORY);
        expect_get(1, CACHE_OK, 1);
        expect_put(1, CACHE_ACCEPTED, CACHE_EXISTS);
        /* The only copy is not what "out of memory only" takes away. */
        assert_int_equal(evict(1, true), CACHE_BUSY);
        expect_get(1, CACHE_OK, 1);
        /* A put with `written` makes the pool's chunk be written. */
        expect_put(1, CACHE_WRITTEN, CACHE_EXISTS);
        assert_int_equal(tiers_of(1), CACHE_MEMORY | CACHE_DISK);
        assert_int_equal(stats().puts, 1);
}

static void a_written_put_whose_write_fails_is_failed_and_dropped(void **state)
{
        struct req a, b;

        refuse(KIO_WRITE, 1, 1);
        put_bytes(&a, 1, CACHE_WRITTEN, 1, LENGTH);
        expect(&a, CACHE_FAILED);
        assert_int_equal(tiers_of(1), 0);
        assert_int_equal(stats().pool_only, 0);
        expect_get(1, CACHE_MISS, 0);
        put_bytes(&b, 1, CACHE_WRITTEN, 2, LENGTH);
        expect(&b, CACHE_OK);
        expect_get(1, CACHE_OK, 2);
}

static void a_write_of_the_table_that_fails_fails_the_put(void **state)
{
        refuse(KIO_WRITE, 2, 1);
        expect_put(1, CACHE_WRITTEN, CACHE_FAILED);
        /* The volume is bypassed: nothing is written any more, at once. */
        expect_put(2, CACHE_WRITTEN, CACHE_FAILED);
        expect_put(3, CACHE_ACCEPTED, CACHE_OK);
        expect_get(3, CACHE_OK, 1);
        assert_int_equal(tiers_of(1) | tiers_of(2), 0);
        tiers_settle(&t);
        assert_int_equal(stats().pool_only, 1);
}

static void a_put_that_faults_stores_nothing_and_fails_no_other(void **state)
{
        int fd = memfd_create("source", 0);
        struct req bad, good, g;
        void *src;

        /* Opened again, because cmocka handles SIGBUS itself before each test. */
        tiers_close(&t);
        tiers_open(&t);
        assert_int_equal(ftruncate(fd, 64 * KIB), 0);
        src = mmap(NULL, 64 * KIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        assert_ptr_not_equal(src, MAP_FAILED);
        assert_int_equal(ftruncate(fd, 0), 0);
        start(&bad, 1);
        bad.req.memory = src;
        bad.req.length = LENGTH;
        bad.req.ack = CACHE_WRITTEN;
        cache_put(t.cache, &bad.req);
        put(&good, 1, CACHE_WRITTEN);
        get(&g, 1);
        expect(&bad, CACHE_FAULT);
        expect(&good, CACHE_OK);
        expect(&g, CACHE_MISS);
        assert_int_equal(tiers_of(1), CACHE_MEMORY | CACHE_DISK);
        munmap(src, 64 * KIB);
        close(fd);
}

static void what_is_too_large_is_said_to_be(void **state)
{
        uint32_t most = (uint32_t)MIN(pool_slab_bytes(t.pool), store_max_chunk(t.store));
        struct req r;

        put_bytes(&r, 1, CACHE_WRITTEN, 1, most + 1);
        expect(&r, CACHE_TOO_LARGE);
        put_bytes(&r, 1, CACHE_WRITTEN, 1, most);
        expect(&r, CACHE_OK);
        put_bytes(&r, 2, CACHE_WRITTEN, 1, 1);
        expect(&r, CACHE_OK);
}

static void the_first_put_wins_and_the_second_waits_for_its_class(void **state)
{
        struct req first, accepted, written, durable;

        put_bytes(&first, 1, CACHE_ACCEPTED, 1, LENGTH);
        put_bytes(&accepted, 1, CACHE_ACCEPTED, 2, LENGTH);
        put_bytes(&written, 1, CACHE_WRITTEN, 3, LENGTH);
        put_bytes(&durable, 1, CACHE_DURABLE, 4, LENGTH);
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE | 1u << KIO_SYNC,
                                        .kind = FAULT_NEVER,
                                        .first = 1,
                                        .count = FAULT_FOR_EVER });
        tiers_wait_hits(&t, 1); /* the payload */
        assert_true(first.done && accepted.done && !written.done && !durable.done);
        assert_int_equal(accepted.req.status, CACHE_EXISTS);
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_SYNC, .kind = FAULT_NEVER, .first = 1, .count = FAULT_FOR_EVER });
        fault_release();
        expect(&written, CACHE_EXISTS);
        tiers_wait_hits(&t, 1);
        assert_false(durable.done);
        release();
        expect(&durable, CACHE_EXISTS);
        assert_int_equal(stats().puts, 1);
        expect_get(1, CACHE_OK, 1);
}

static void durable_over_what_is_not_synced_waits_for_a_sync(void **state)
{
        struct req r;

        expect_put(1, CACHE_WRITTEN, CACHE_OK);
        put_cold(2);
        hold(KIO_SYNC, 1);
        put(&r, 1, CACHE_DURABLE);
        tiers_wait_hits(&t, 1);
        assert_false(r.done);
        release();
        expect(&r, CACHE_EXISTS);
        expect_put(2, CACHE_DURABLE, CACHE_EXISTS);
        expect_put(3, CACHE_DURABLE, CACHE_OK);
}

static void a_durable_put_of_what_is_there_says_where_it_is_in_the_pool(void **state)
{
        struct req r;

        expect_put(1, CACHE_WRITTEN, CACHE_OK);
        put(&r, 1, CACHE_DURABLE);
        expect(&r, CACHE_EXISTS);
        assert_int_not_equal(r.req.place.chunk, POOL_NONE);
        assert_int_equal(tiers_of(1), CACHE_MEMORY | CACHE_DISK);
        assert_int_equal(evict(1, true), CACHE_OK); /* leaves no pin */
        put(&r, 1, CACHE_DURABLE);
        expect(&r, CACHE_EXISTS);
        assert_int_equal(r.req.place.chunk, POOL_NONE);
}

static void test_R15_who_waits_for_a_device_that_hangs_is_answered(void **state)
{
        struct req g, accepted, written, joined;
        struct pool_stats before, now;

        tiers_close(&t);
        t.hang_ms = 200;
        tiers_open(&t);
        put_cold(1);
        put_cold(5);
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_READ | 1u << KIO_WRITE,
                                        .kind = FAULT_NEVER,
                                        .first = 1,
                                        .count = FAULT_FOR_EVER });
        /* One after the other, because neighbours on the disk would be merged. */
        assert_int_equal(prefetch(5), CACHE_OK);
        tiers_wait_hits(&t, 1);
        get(&g, 1);
        tiers_wait_hits(&t, 2);
        put(&accepted, 2, CACHE_ACCEPTED);
        tiers_wait_hits(&t, 3);
        put(&written, 3, CACHE_WRITTEN);
        put(&joined, 3, CACHE_WRITTEN);
        tiers_wait_hits(&t, 4);
        expect_ticking(&accepted, CACHE_OK);
        expect_ticking(&g, CACHE_MISS);
        expect_ticking(&written, CACHE_FAILED);
        expect_ticking(&joined, CACHE_FAILED);
        assert_int_equal(stats().prefetch_inflight_bytes, 0); /* other volumes may prefetch */
        assert_int_equal(stats().unwritten_bytes, 0);
        assert_int_equal(stats().pool_only, 1);
        expect_get(2, CACHE_OK, 1);
        expect_get(1, CACHE_MISS, 0);
        expect_put(4, CACHE_ACCEPTED, CACHE_OK);
        /* No request waits, but the device keeps the memory of its operations. */
        pool_get_stats(t.pool, &before);
        assert_true(cache_pending(t.cache) > 0);
        release();
        tiers_settle(&t);
        pool_get_stats(t.pool, &now);
        assert_true(now.pinned_bytes < before.pinned_bytes);
        expect_get(2, CACHE_OK, 1);
        t.hang_ms = 0;
}

static void durable_says_when_a_sync_failed(void **state)
{
        struct req joined, r;

        refuse(KIO_SYNC, 1, 1);
        put(&r, 1, CACHE_DURABLE);
        put(&joined, 1, CACHE_DURABLE);
        expect(&r, CACHE_NOT_DURABLE);
        expect(&joined, CACHE_NOT_DURABLE);
        fault_set(NULL);
        /* Never believed again. */
        expect_put(1, CACHE_DURABLE, CACHE_NOT_DURABLE);
        expect_put(1, CACHE_WRITTEN, CACHE_EXISTS);
}

static void a_put_that_joined_fails_with_the_first(void **state)
{
        struct req first, second, third;

        refuse(KIO_WRITE, 1, 1);
        put(&first, 1, CACHE_WRITTEN);
        put(&second, 1, CACHE_DURABLE);
        expect(&first, CACHE_FAILED);
        expect(&second, CACHE_FAILED);
        assert_int_equal(tiers_of(1), 0);

        /* These puts have joined while the write was in flight. */
        put_writing(&first, 1, CACHE_WRITTEN);
        put(&second, 1, CACHE_WRITTEN);
        refuse(KIO_WRITE, 1,
               FAULT_FOR_EVER); /* held operations proceed, the table's write does not */
        fault_release();
        expect(&first, CACHE_FAILED);
        expect(&second, CACHE_FAILED);

        /* The store, which is bypassed by now, refuses at once. */
        put(&first, 2, CACHE_WRITTEN);
        put(&second, 2, CACHE_WRITTEN);
        put(&third, 2, CACHE_DURABLE);
        expect(&first, CACHE_FAILED);
        expect(&second, CACHE_FAILED);
        expect(&third, CACHE_FAILED);
        assert_int_equal(tiers_of(2), 0);
}

static void a_put_that_was_answered_accepted_keeps_its_chunk(void **state)
{
        struct req first, second;

        /* This put has joined during the copy, and the write is refused in the same call. */
        refuse(KIO_WRITE, 2, 1);
        expect_put(9, CACHE_WRITTEN, CACHE_FAILED);
        put(&first, 1, CACHE_WRITTEN);
        put(&second, 1, CACHE_ACCEPTED);
        expect(&first, CACHE_FAILED);
        expect(&second, CACHE_EXISTS);
        tiers_settle(&t);
        assert_int_equal(tiers_of(1), CACHE_MEMORY);
        expect_get(1, CACHE_OK, 1);
        assert_int_equal(stats().pool_only, 1);
}

static void what_was_accepted_while_being_written_stays_when_that_fails(void **state)
{
        struct req first, second;

        put_writing(&first, 1, CACHE_WRITTEN);
        put(&second, 1, CACHE_ACCEPTED);
        expect(&second, CACHE_EXISTS);
        refuse(KIO_WRITE, 1, FAULT_FOR_EVER);
        fault_release();
        expect(&first, CACHE_FAILED);
        expect_get(1, CACHE_OK, 1);
}

/* --- everything at once --- */

static uint64_t random_state;

static uint32_t draw(uint32_t below)
{
        random_state ^= random_state << 13;
        random_state ^= random_state >> 7;
        random_state ^= random_state << 17;
        return (uint32_t)((random_state >> 16) % below);
}

/* Runs many requests for few keys, with late or failing operations. Each get must have the bytes of
 * one put of its key, and all requests must end. */
static void traffic(uint64_t seed, const struct fault_plan *plan)
{
        enum { N = 200, KEYS = 12, STEPS = 6000 };
        struct req *r = calloc(N, sizeof(*r));
        struct purge p = { .done = true };
        unsigned hits = 0;
        uint8_t version = 0;

        assert_non_null(r);
        random_state = seed;
        for (unsigned i = 0; i < N; i++)
                r[i].done = true;
        fault_set(plan);
        for (unsigned step = 0; step < STEPS; step++) {
                struct req *q = &r[draw(N)];
                uint32_t n = draw(KEYS), length = n % 3 == 0 ? MIB : n % 3 == 1 ? 64 * KIB : 5000;

                switch (q->done ? draw(16) : 15) {
                case 0 ... 5:
                        put_bytes(q, n, (enum cache_ack)draw(3), ++version, length);
                        break;
                case 6 ... 11:
                        hits += q->done && q->req.status == CACHE_OK;
                        get(q, n);
                        break;
                case 12:
                        evict(n, draw(2));
                        break;
                case 13:
                        if (p.done && draw(20) == 0)
                                purge(&p);
                        break;
                case 14:
                        if (draw(20) == 0) {
                                uint32_t most = draw(8);

                                (void)cache_cancel(t.cache, &waits, &most);
                        }
                        break;
                default:
                        break;
                }
                switch (draw(4)) {
                case 0:
                        kio_reap(t.io);
                        break;
                case 1:
                        kio_reap(t.io);
                        tiers_iterate(&t);
                        break;
                default:
                        break;
                }
        }
        fault_set(NULL);
        fault_release();
        for (unsigned i = 0; i < N; i++)
                tiers_wait(&t, &r[i].done);
        tiers_wait(&t, &p.done);
        tiers_settle(&t);
        assert_true(hits > 0);
        for (uint32_t n = 0; n < KEYS; n++) {
                struct req g;

                get(&g, n);
                tiers_wait(&t, &g.done);
                assert_true(g.req.status == CACHE_OK || g.req.status == CACHE_MISS);
        }
        free(r);
}

static void traffic_with_late_operations_keeps_every_byte_right(void **state)
{
        /* A seed takes 5 s under TSan. */
        for (uint64_t seed = 1; seed <= (SANITIZES_THREADS ? 1 : 4); seed++)
                traffic(seed * 7919,
                        &(struct fault_plan){
                                .kind = FAULT_LATE, .late_ns = 300000, .one_in = 3, .seed = seed });
}

static void traffic_with_failing_reads_and_writes_keeps_every_byte_right(void **state)
{
        traffic(99, &(struct fault_plan){ .ops = 1u << KIO_READ,
                                          .kind = FAULT_ERROR,
                                          .error = EIO,
                                          .one_in = 5,
                                          .seed = 3 });
        traffic(101, &(struct fault_plan){ .ops = 1u << KIO_WRITE,
                                           .kind = FAULT_ERROR,
                                           .error = EIO,
                                           .one_in = 60,
                                           .seed = 4 });
}

static int change_waiting(unsigned from, unsigned to)
{
        struct cache_request req = { .waiting = (uint8_t)from };

        cache_set_waiting(&req, (enum waiting)to);
        return req.waiting != to;
}

/* A request is in one list at a time, so it does not enter one list out of another. */
static void a_request_leaves_a_list_before_it_enters_another(void **state)
{
        static const char *const legal[] = {
                [WAITING_NOT] = "NRFWSTX",    [WAITING_ROOM] = "N.FWSTX",
                [WAITING_FILL] = "N..W...",   [WAITING_WRITE] = "N......",
                [WAITING_SYNC] = "N......",   [WAITING_TURN] = "NRF...X",
                [WAITING_REMOTE] = "N......",
        };

        static_assert(sizeof(legal) / sizeof(legal[0]) == WAITING_END, "a row each");
        for (unsigned from = 0; from < WAITING_END; from++)
                for (unsigned to = 0; to < WAITING_END; to++)
                        assert_int_equal(aborts(change_waiting, from, to), legal[from][to] == '.');
}

int main(int argc, char **argv)
{
        const struct CMUnitTest tests[] = {
                TEST(a_request_leaves_a_list_before_it_enters_another),
                TEST(a_put_is_seen_when_accepted_and_on_disk_when_written),
                TEST(no_client_sees_bytes_that_are_still_being_copied),
                TEST(an_accepted_put_whose_write_fails_stays_in_the_pool),
                TEST(a_written_put_whose_write_fails_is_failed_and_dropped),
                TEST(a_write_of_the_table_that_fails_fails_the_put),
                TEST(a_put_that_faults_stores_nothing_and_fails_no_other),
                TEST(what_is_too_large_is_said_to_be),
                TEST(the_first_put_wins_and_the_second_waits_for_its_class),
                TEST(durable_over_what_is_not_synced_waits_for_a_sync),
                TEST(a_durable_put_of_what_is_there_says_where_it_is_in_the_pool),
                TEST(test_R15_who_waits_for_a_device_that_hangs_is_answered),
                TEST(durable_says_when_a_sync_failed),
                TEST(a_put_that_joined_fails_with_the_first),
                TEST(a_put_that_was_answered_accepted_keeps_its_chunk),
                TEST(what_was_accepted_while_being_written_stays_when_that_fails),
                TEST(traffic_with_late_operations_keeps_every_byte_right),
                TEST(traffic_with_failing_reads_and_writes_keeps_every_byte_right),
        };

        if (argc > 1)
                cmocka_set_test_filter(argv[1]);
        return cmocka_run_group_tests(tests, NULL, NULL);
}

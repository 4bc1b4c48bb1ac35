/* SPDX-License-Identifier: Apache-2.0 */
/* Uses of chunks that clients report, as the daemon's loop reads them: a limited number of words at
 * a time, from each client in turn. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cache/pool.h"
#include "evict/announced.h"
#include "lookup/pool-index.h"
#include "request/hits.h"

enum {
        POOL = 16 << 20,
        CLIENTS = 3,
        REQUEST_WORDS = 1024,
        STEP_WORDS = 256,
        CATCH_UP_WORDS = 1024,
        ITERATION_WORDS = 1536,
};
#define SECOND UINT64_C(1000000000)

static struct service service;
static struct tenant tenant;
static struct client clients[CLIENTS];

static int setup(void **state)
{
        memset(clients, 0, sizeof(clients));
        service = (struct service){ .tenants = &tenant, .n_tenants = 1 };
        tenant = (struct tenant){ .service = &service };
        assert_int_equal(announced_new(&tenant.announced), 0);
        assert_int_equal(pool_new(&tenant.pool, POOL, "lru"), 0);
        assert_int_equal(pool_index_new(&tenant.pool_index, tenant.pool, NULL), 0);
        for (unsigned i = 0; i < CLIENTS; i++) {
                uint64_t bytes;
                int fd, page;

                clients[i].tenant = &tenant;
                assert_int_equal(pool_index_join(tenant.pool_index, &clients[i].hits, 1000, POOL,
                                                 &fd, &bytes, &page),
                                 0);
                close(page);
        }
        return 0;
}

static int teardown(void **state)
{
        for (unsigned i = 0; i < CLIENTS; i++)
                pool_index_leave(&clients[i].hits);
        pool_index_free(tenant.pool_index);
        pool_free(tenant.pool);
        announced_free(tenant.announced);
        return 0;
}

/* Reports a request with this number of words, about chunks that do not exist: none is touched, but
 * all are read. */
static void tell(unsigned i, uint32_t words)
{
        struct pool_page *page = clients[i].hits.page;

        page->ring[page->written % POOL_PAGE_RING] = pool_page_touches(words - 1);
        for (uint32_t w = 1; w < words; w++)
                page->ring[(page->written + w) % POOL_PAGE_RING] = pool_page_touch(1 << 30, 0);
        page->written += words;
}

static void fill(unsigned i)
{
        for (unsigned n = 0; n < POOL_PAGE_RING / REQUEST_WORDS; n++)
                tell(i, REQUEST_WORDS);
}

/* Returns whether there is more to read after an iteration. */
static bool iterate_at(uint64_t now_ns)
{
        return hits_iterate(&service, now_ns) || hits_are_behind(&service);
}

static uint64_t taken(unsigned i)
{
        return clients[i].hits.page->taken;
}

/* Returns the words that were read of a client's ring, of requests of REQUEST_WORDS. */
static uint64_t read_of(unsigned i)
{
        uint32_t untaken = clients[i].hits.untaken;

        return taken(i) + (untaken > 0 ? REQUEST_WORDS - 1 - untaken : 0);
}

static void an_iteration_reads_a_step_of_words(void **state)
{
        uint64_t before = 0;

        fill(0);
        while (iterate_at(SECOND)) {
                assert_in_range(read_of(0) - before, STEP_WORDS, STEP_WORDS + 1);
                before = read_of(0);
        }
        assert_int_equal(taken(0), POOL_PAGE_RING);
}

/* The session of client 2 has ended. */
static void everything_that_is_read_in_an_iteration_has_one_limit(void **state)
{
        uint64_t before = 0;

        for (unsigned i = 0; i < CLIENTS; i++)
                fill(i);
        clients[2].hits_left = POOL_PAGE_RING;
        for (unsigned n = 0; n < 4; n++) {
                uint32_t steps = 256;
                uint64_t now;

                hits_catch_up(&clients[0]);
                hits_catch_up(&clients[1]);
                (void)hits_settle_some(&clients[2], &steps);
                hits_catch_up(&clients[1]);
                (void)hits_iterate(&service, SECOND);
                now = read_of(0) + read_of(1) + read_of(2);
                /* Each of the three may read the head of a request beyond its limit. */
                assert_in_range(now - before, ITERATION_WORDS, ITERATION_WORDS + 3);
                before = now;
        }
        assert_true(read_of(1) > 0);
        assert_true(read_of(2) >= UINT64_C(4) * 256);
}

static void no_more_is_read_than_the_time_that_passed_allows(void **state)
{
        unsigned steps = 0;
        uint64_t before;

        fill(0);
        while (iterate_at(60 * SECOND)) {
                if (steps % (REQUEST_WORDS / STEP_WORDS) == REQUEST_WORDS / STEP_WORDS - 1)
                        tell(0, REQUEST_WORDS);
                steps++;
                assert_true(steps < 1000);
        }
        assert_in_range(steps, 65536 / STEP_WORDS - 1, 65536 / STEP_WORDS);
        before = read_of(0);
        assert_false(iterate_at(60 * SECOND));
        assert_int_equal(read_of(0), before);
        (void)hits_iterate(&service, 60 * SECOND + SECOND / 1000);
        assert_true(read_of(0) > before);
}

static void one_with_a_full_ring_keeps_nobody_elses_from_being_read(void **state)
{
        fill(0);
        tell(1, 2);
        tell(2, 3);
        for (unsigned n = 0; n < 3; n++)
                assert_true(iterate_at(SECOND));
        assert_int_equal(taken(1), 2);
        assert_int_equal(taken(2), 3);
        assert_true(taken(0) < POOL_PAGE_RING);
}

static void a_client_is_caught_up_with_but_for_very_much(void **state)
{
        tell(0, 2);
        tell(0, CATCH_UP_WORDS - 2);
        tell(1, 2);
        hits_catch_up(&clients[0]);
        assert_int_equal(taken(0), CATCH_UP_WORDS);
        assert_int_equal(taken(1), 0);
        tell(0, REQUEST_WORDS);
        /* No further word is taken, from this client or others, however many messages they send in
         * an iteration. */
        hits_catch_up(&clients[0]);
        hits_catch_up(&clients[1]);
        assert_int_equal(taken(0), CATCH_UP_WORDS);
        assert_int_equal(taken(1), 0);
        (void)hits_iterate(&service, 0);
        hits_catch_up(&clients[1]);
        assert_int_equal(taken(1), 2);
        /* The end of a request that is longer than the rest of the limit is read. */
        hits_catch_up(&clients[0]);
        assert_int_equal(taken(0), CATCH_UP_WORDS);
        assert_int_equal(clients[0].hits.untaken, 1);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
                TEST(an_iteration_reads_a_step_of_words),
                TEST(everything_that_is_read_in_an_iteration_has_one_limit),
                TEST(no_more_is_read_than_the_time_that_passed_allows),
                TEST(one_with_a_full_ring_keeps_nobody_elses_from_being_read),
                TEST(a_client_is_caught_up_with_but_for_very_much),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

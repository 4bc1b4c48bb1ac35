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

enum { POOL = 16 << 20, CLIENTS = 3, REQUEST_WORDS = 1024, STEP_WORDS = 512 };
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

static uint64_t taken(unsigned i)
{
        return clients[i].hits.page->taken;
}

static void what_is_read_is_limited_by_its_words(void **state)
{
        fill(0);
        for (unsigned n = 1; n < POOL_PAGE_RING / REQUEST_WORDS; n++) {
                assert_true(hits_iterate(&service, SECOND));
                assert_int_equal(taken(0), n * REQUEST_WORDS);
        }
        (void)hits_iterate(&service, SECOND);
        assert_int_equal(taken(0), POOL_PAGE_RING);
        assert_false(hits_iterate(&service, SECOND));
}

static void no_more_is_read_than_the_time_that_passed_allows(void **state)
{
        unsigned steps = 0;
        uint64_t before;

        fill(0);
        while (hits_iterate(&service, 60 * SECOND)) {
                tell(0, REQUEST_WORDS);
                steps++;
                assert_true(steps < 1000);
        }
        assert_in_range(steps, 65536 / STEP_WORDS - 1, 65536 / STEP_WORDS);
        before = taken(0);
        assert_false(hits_iterate(&service, 60 * SECOND));
        assert_int_equal(taken(0), before);
        (void)hits_iterate(&service, 60 * SECOND + SECOND / 1000);
        assert_true(taken(0) > before);
}

static void one_with_a_full_ring_keeps_nobody_elses_from_being_read(void **state)
{
        fill(0);
        tell(1, 2);
        tell(2, 3);
        for (unsigned n = 0; n < 3; n++)
                assert_true(hits_iterate(&service, SECOND));
        assert_int_equal(taken(1), 2);
        assert_int_equal(taken(2), 3);
        assert_true(taken(0) < POOL_PAGE_RING);
}

static void a_client_is_caught_up_with_but_for_very_much(void **state)
{
        tell(0, 2);
        tell(0, REQUEST_WORDS);
        tell(1, 2);
        hits_catch_up(&clients[0]);
        assert_int_equal(taken(0), 2 + REQUEST_WORDS);
        assert_int_equal(taken(1), 0);
        fill(0);
        hits_catch_up(&clients[0]);
        assert_int_equal(taken(0), 2 + 2 * REQUEST_WORDS);
        /* No further word is taken, from this client or others, however many messages they send in
         * an iteration. */
        hits_catch_up(&clients[0]);
        hits_catch_up(&clients[1]);
        assert_int_equal(taken(0), 2 + 2 * REQUEST_WORDS);
        assert_int_equal(taken(1), 0);
        (void)hits_iterate(&service, 0);
        hits_catch_up(&clients[1]);
        assert_int_equal(taken(1), 2);
        hits_catch_up(&clients[0]);
        assert_in_range(taken(0), 2 + 4 * REQUEST_WORDS, 2 + 5 * REQUEST_WORDS);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
                TEST(what_is_read_is_limited_by_its_words),
                TEST(no_more_is_read_than_the_time_that_passed_allows),
                TEST(one_with_a_full_ring_keeps_nobody_elses_from_being_read),
                TEST(a_client_is_caught_up_with_but_for_very_much),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

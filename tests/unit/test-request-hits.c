/* SPDX-License-Identifier: Apache-2.0 */
/* The end of sessions with the pool index: chunks that their clients used without a message are
 * touched in steps. This test counts the words that are read from their rings. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "checked.h"
#include "lookup/pool-index.h"
#include "request-fixture.h"

enum {
        SESSIONS = 8,
        KEYS = 1023, /* an even part of the ring, with the request's head; more than a step */
        /* The maximum that an iteration reads: a step for live sessions, and one for ended ones,
         * each exceeded by a request's head. */
        MOST_WORDS = 512 + 1 + 256 + 1,
};

static uint64_t words_read;
static bool has_index; /* the tenant's was made */

static int setup(void **state)
{
        has_index = false;
        return rig_setup(state);
}

int __real_pool_index_take_touches(struct pool_client *client, uint32_t most,
                                   struct pool_index_touch ret[static POOL_MAX_TOUCHES],
                                   uint32_t *ret_words);
int __wrap_pool_index_take_touches(struct pool_client *client, uint32_t most,
                                   struct pool_index_touch ret[static POOL_MAX_TOUCHES],
                                   uint32_t *ret_words);

int __wrap_pool_index_take_touches(struct pool_client *client, uint32_t most,
                                   struct pool_index_touch ret[static POOL_MAX_TOUCHES],
                                   uint32_t *ret_words)
{
        int n = __real_pool_index_take_touches(client, most, ret, ret_words);

        words_read += *ret_words;
        return n;
}

/* Joins, and returns the client's page. */
static struct pool_page *join(struct peer_end *c)
{
        struct wire_hdr msg = { .op = WIRE_POOL_INDEX };
        const struct wire_reply *reply;
        struct pool_page *page;
        int fds[WIRE_MAX_FDS];
        unsigned n_fds;

        send_message(c, &msg, sizeof(msg));
        reply = receive_reply(c, WIRE_POOL_INDEX, fds, &n_fds);
        assert_int_equal(reply->status, WIRE_OK);
        assert_int_equal(n_fds, 2);
        page = mmap(NULL, POOL_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fds[1], 0);
        assert_ptr_not_equal(page, MAP_FAILED);
        close(fds[0]);
        close(fds[1]);
        rig.fds += !has_index; /* the index stays */
        has_index = true;
        return page;
}

/* Requests for chunks that are not there fill the ring. */
static void fill_ring(struct pool_page *page)
{
        for (uint32_t i = 0; i < POOL_PAGE_RING; i++)
                page->ring[i] = i % (1 + KEYS) == 0 ? pool_page_touches(KEYS)
                                                    : pool_page_touch(UINT32_MAX - 1, 0);
        __atomic_store_n(&page->written, page->taken + POOL_PAGE_RING, __ATOMIC_RELEASE);
}

static void touches_are_paced_when_sessions_end(void **state)
{
        struct peer_end clients[SESSIONS];
        struct pool_page *pages[SESSIONS];
        uint64_t most = 0, all = 0;
        struct pool_index_stats stats;

        for (unsigned i = 0; i < SESSIONS; i++) {
                connect_as(&clients[i], ALICE);
                pages[i] = join(&clients[i]);
        }
        rig_turns();
        for (unsigned i = 0; i < SESSIONS; i++)
                fill_ring(pages[i]);
        for (unsigned i = 0; i < SESSIONS; i++)
                hang_up(&clients[i]);
        do {
                words_read = 0;
                rig_turn(false);
                most = MAX(most, words_read);
                all += words_read;
                pool_index_get_stats(rig.tenants[0].pool_index, &stats);
        } while (stats.clients > 0);
        assert_in_range(most, 1, MOST_WORDS);
        assert_int_equal(all, SESSIONS * POOL_PAGE_RING);
        for (unsigned i = 0; i < SESSIONS; i++)
                munmap(pages[i], POOL_PAGE_BYTES);
}

/* A process that keeps the page continues to fill the ring. */
static void a_page_that_is_still_written_ends_with_its_session(void **state)
{
        struct pool_index_stats stats;
        struct pool_page *page;
        struct peer_end c;
        uint64_t all = 0;

        connect_as(&c, ALICE);
        page = join(&c);
        hang_up(&c);
        do {
                fill_ring(page);
                words_read = 0;
                rig_turn(false);
                all += words_read;
                assert_true(all <= 4 * POOL_PAGE_RING);
                pool_index_get_stats(rig.tenants[0].pool_index, &stats);
        } while (stats.clients > 0);
        munmap(page, POOL_PAGE_BYTES);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(touches_are_paced_when_sessions_end, setup,
                                                rig_teardown),
                cmocka_unit_test_setup_teardown(a_page_that_is_still_written_ends_with_its_session,
                                                setup, rig_teardown),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

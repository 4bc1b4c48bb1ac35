/* SPDX-License-Identifier: Apache-2.0 */
/* Gets of more blocks than the daemon leases at a time, against a fake daemon with such a limit and
 * a stub driver: each comes, right and in order, and the limit is never passed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gpu-rig.h"

enum { POOL = 16 << 20, LIMIT = 5 };

static void begin_limited(struct fixture *f, uint64_t bytes)
{
        connect_to(f, &(struct fake_options){ .pool_bytes = POOL, .lease_bytes = bytes });
        attach(f, KVCACHE_GPU_ENGINE_AUTO);
}

static void assert_given_back(struct fixture *f)
{
        assert_true(f->rig->d->most_leased <= f->rig->d->o.lease_bytes);
        assert_int_equal(kvcache_flush(f->kv), 0);
        assert_true(fake_daemon_wait_leases(f->rig->d, 0));
        assert_int_equal(f->rig->d->stale_releases, 0);
}

static void more_than_may_be_leased_comes_in_parts(void **state)
{
        struct fixture *f = *state;
        struct job *j;

        begin_limited(f, LIMIT * BLOCK);
        for (unsigned kind = 1; kind <= 3; kind++) {
                lay_out(f, kind);
                put_keys(f, BLOCKS, 100 * kind);
                clear(f);
                j = job_of(f, BLOCKS, 100 * kind, 0);
                assert_int_equal(get(f, j), 0);
                assert_statuses(j, KVCACHE_OK);
                for (unsigned i = 0; i < BLOCKS; i++)
                        assert_true(block_is(f, i, 100 * kind + i));
        }
        assert_int_equal(info_of(f).counts.blocks_from_pool, 3 * BLOCKS);
        /* 19 were too many at first, then 14, 9, 4. */
        assert_int_equal(info_of(f).blocks_paced, 3 * (19 + 14 + 9 + 4));
        assert_int_equal(f->rig->d->requests[WIRE_GET], 3 * 5);
        assert_given_back(f);
}

static void what_fits_is_asked_for_once(void **state)
{
        struct fixture *f = *state;
        struct job *j;

        begin_limited(f, BLOCKS * BLOCK);
        put_keys(f, BLOCKS, 1);
        j = job_of(f, BLOCKS, 1, 0);
        assert_int_equal(get(f, j), 0);
        assert_statuses(j, KVCACHE_OK);
        assert_int_equal(info_of(f).blocks_paced, 0);
        assert_int_equal(f->rig->d->requests[WIRE_GET], 1);
        assert_given_back(f);
}

static void each_block_has_its_own_status(void **state)
{
        struct fixture *f = *state;
        struct job *j;

        begin_limited(f, 2 * BLOCK);
        put_keys(f, 8, 1);
        assert_int_equal(kvcache_put(f->kv, f->rig->ns, &(struct kvcache_key){ { 9 } }, "short", 5,
                                     KVCACHE_ACCEPTED),
                         KVCACHE_OK);
        clear(f);
        j = job_of(f, 8, 1, 0);
        j->blocks[0].key = (struct kvcache_key){ { 9 } };
        j->blocks[3].key = rig_key(999);
        j->blocks[7].key = rig_key(998);
        assert_int_equal(get(f, j), 0);
        for (unsigned i = 0; i < 8; i++) {
                bool is_there = i != 0 && i != 3 && i != 7;

                assert_int_equal(j->statuses[i], i == 0     ? KVCACHE_MISMATCH
                                                 : is_there ? KVCACHE_OK
                                                            : KVCACHE_MISS);
                assert_int_equal(block_is(f, i, 1 + i), is_there);
        }
        assert_given_back(f);
}

/* We hold no lease that could be released, so the program gets the error. */
static void a_limit_that_others_have_used_up_is_reported(void **state)
{
        struct fixture *f = *state;
        struct kvcache_entry entries[2] = { { .key = rig_key(1) }, { .key = rig_key(2) } };
        struct kvcache_result results[2] = { 0 };
        struct kvcache_request request;
        struct job *j;

        begin_limited(f, 2 * BLOCK);
        put_keys(f, 4, 1);
        kvcache_prep(&request, KVCACHE_OP_GET, f->rig->ns, 2, results);
        request.entries = entries;
        assert_int_equal(kvcache_submit_and_wait(f->kv, &request, NULL), 0);
        assert_int_equal(results[1].status, KVCACHE_OK);
        j = job_of(f, 4, 1, 0);
        assert_int_equal(get(f, j), 0);
        assert_statuses(j, KVCACHE_QUOTA);
        assert_int_equal(kvcache_release(f->kv, &results[0].lease, 1), 0);
        clear(f);
        j = job_of(f, 4, 1, 0); /* a single block at a time */
        assert_int_equal(get(f, j), 0);
        assert_statuses(j, KVCACHE_OK);
        for (unsigned i = 0; i < 4; i++)
                assert_true(block_is(f, i, 1 + i));
        assert_int_equal(kvcache_release(f->kv, &results[1].lease, 1), 0);
        assert_given_back(f);
}

static void a_block_that_is_over_the_limit_is_reported(void **state)
{
        struct fixture *f = *state;
        struct job *j;

        begin_limited(f, BLOCK - 1);
        put_keys(f, 3, 1);
        j = job_of(f, 3, 1, 0);
        assert_int_equal(get(f, j), 0);
        assert_statuses(j, KVCACHE_QUOTA);
        assert_given_back(f);
}

/* The daemon answers the second request first, which so has all leases and cannot be copied before
 * the first is. */
static void a_later_request_gives_way_to_an_earlier_one(void **state)
{
        struct fixture *f = *state;
        struct kvcache_gpu_completion c;
        struct fake_daemon *d;
        struct job *j[2];

        begin_limited(f, LIMIT * BLOCK);
        put_keys(f, 2 * LIMIT + 2, 1);
        d = f->rig->d;
        clear(f);
        fake_daemon_hold(d, 1u << WIRE_GET);
        for (unsigned i = 0; i < 2; i++) {
                j[i] = job_of(f, LIMIT + 1, 1 + i * (LIMIT + 1), i * (LIMIT + 1));
                j[i]->q.user_data = i;
                assert_int_equal(kvcache_gpu_get_blocks(f->gpu, &j[i]->q), 0);
                assert_true(fake_daemon_wait(d, &d->requests[WIRE_GET], i + 1));
                fake_daemon_lock(d);
                d->hold_ops = 0;
                fake_daemon_unlock(d);
        }
        assert_true(fake_daemon_wait(d, &d->leases_held, LIMIT));
        assert_int_equal(kvcache_gpu_reap(f->gpu, &c, 1, 50), 0);
        fake_daemon_hold(d, 0);
        for (unsigned i = 0; i < 2; i++) {
                assert_int_equal(kvcache_gpu_reap(f->gpu, &c, 1, test_timeout_ms(60000)), 1);
                assert_int_equal(c.user_data, i);
                assert_int_equal(c.error, 0);
                assert_statuses(j[i], KVCACHE_OK);
        }
        for (unsigned i = 0; i < 2 * LIMIT + 2; i++)
                assert_true(block_is(f, i, 1 + i));
        assert_given_back(f);
}

static void many_requests_share_what_may_be_leased(void **state)
{
        struct fixture *f = *state;

        begin_limited(f, LIMIT * BLOCK);
        put_keys(f, BLOCKS, 1);
        for (unsigned round = 0; round < 20; round++) {
                struct kvcache_gpu_completion c;
                struct job *j[4];

                clear(f);
                stub.run(false);
                for (unsigned i = 0; i < 4; i++) {
                        j[i] = job_of(f, 6, 1 + 6 * i, 6 * i);
                        assert_int_equal(kvcache_gpu_get_blocks(f->gpu, &j[i]->q), 0);
                }
                for (unsigned i = 0, seed = round; i < 4;) {
                        i += (unsigned)kvcache_gpu_reap(f->gpu, &c, 1, 0);
                        (void)stub.step(seed = seed * 1664525 + 1013904223);
                }
                stub.run(true);
                for (unsigned i = 0; i < BLOCKS; i++)
                        assert_true(block_is(f, i, 1 + i));
                for (unsigned i = 0; i < 4; i++)
                        assert_statuses(j[i], KVCACHE_OK);
        }
        assert_given_back(f);
}

/* The stream after the request waits for the copies of all parts. */
static void a_request_is_issued_when_its_last_part_is(void **state)
{
        struct fixture *f = *state;
        struct kvcache_gpu_completion c;
        struct job *j;
        cu_event done;

        begin_limited(f, 2 * BLOCK);
        put_keys(f, 6, 1);
        clear(f);
        stub.run(false);
        assert_int_equal(cuda.event_create(&done, CU_EVENT_IS_UNTIMED), CU_OK);
        j = job_of(f, 6, 1, 0);
        j->q.flags = KVCACHE_GPU_NOTIFY_ISSUED;
        j->q.after_event = done;
        assert_int_equal(kvcache_gpu_get_blocks(f->gpu, &j->q), 0);
        for (unsigned seed = 1; kvcache_gpu_reap(f->gpu, &c, 1, 0) == 0;)
                (void)stub.step(seed = seed * 1664525 + 1013904223);
        assert_int_equal(c.kind, KVCACHE_GPU_ISSUED);
        assert_int_equal(f->rig->d->requests[WIRE_GET], 3);
        while (cuda.event_query(done) == CU_ERROR_NOT_READY)
                (void)stub.step(1);
        for (unsigned i = 0; i < 6; i++)
                assert_true(block_is(f, i, 1 + i));
        stub.run(true);
        assert_int_equal(finish(f), 0);
        assert_statuses(j, KVCACHE_OK);
        assert_int_equal(cuda.event_destroy(done), CU_OK);
        assert_given_back(f);
}

static void a_driver_that_fails_between_the_parts_ends_the_request(void **state)
{
        struct fixture *f = *state;
        unsigned failed = 0;

        begin_limited(f, 2 * BLOCK);
        put_keys(f, 6, 1);
        /* There are two events for each part, one of which only measures time, and one that
         * measures the request's time. */
        for (unsigned after = 0; after < 7; after++) {
                struct job *j = job_of(f, 6, 1, 0);

                stub.fault("cuEventRecord", after, 1, CU_ERROR_OUT_OF_MEMORY);
                (void)get(f, j);
                stub.reset();
                for (unsigned i = 0; i < 6; i++) {
                        assert_true(j->statuses[i] == KVCACHE_OK ||
                                    j->statuses[i] == KVCACHE_FAILED);
                        failed += j->statuses[i] == KVCACHE_FAILED;
                }
        }
        assert_true(failed >= 6 + 4 + 2);
        assert_given_back(f);
}

static void a_session_that_ends_between_the_parts_ends_the_request(void **state)
{
        struct fixture *f = *state;
        struct job *j;

        begin_limited(f, 2 * BLOCK);
        put_keys(f, 6, 1);
        stub.run(false);
        j = job_of(f, 6, 1, 0);
        assert_int_equal(kvcache_gpu_get_blocks(f->gpu, &j->q), 0);
        assert_true(fake_daemon_wait(f->rig->d, &f->rig->d->leases_held, 2));
        fake_daemon_hang_up(f->rig->d);
        stub.run(true);
        (void)finish(f);
        for (unsigned i = 0; i < 6; i++)
                assert_true(j->statuses[i] == KVCACHE_OK || j->statuses[i] == KVCACHE_LOST ||
                            j->statuses[i] == KVCACHE_NO_NAMESPACE);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        const struct CMUnitTest tests[] = {
                TEST(more_than_may_be_leased_comes_in_parts),
                TEST(what_fits_is_asked_for_once),
                TEST(each_block_has_its_own_status),
                TEST(a_limit_that_others_have_used_up_is_reported),
                TEST(a_block_that_is_over_the_limit_is_reported),
                TEST(a_later_request_gives_way_to_an_earlier_one),
                TEST(many_requests_share_what_may_be_leased),
                TEST(a_request_is_issued_when_its_last_part_is),
                TEST(a_driver_that_fails_between_the_parts_ends_the_request),
                TEST(a_session_that_ends_between_the_parts_ends_the_request),
        };
        if (!gpu_rig_open())
                return 1;
        return cmocka_run_group_tests_name("gpu-pace", tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* GPU blocks: chunks stay leased while the device may read them in the pool, and staging memory
 * stays taken while a daemon may. The driver's streams stand still until the test carries them out.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "gpu-rig.h"
#include "gpu/gpu.h"

enum { N = 6, STEPS = 10000000 };

/* Returns the number of leases that the daemon knows of, after all that was sent to it. */
static unsigned leases_held(struct fixture *f)
{
        unsigned n;

        assert_int_equal(kvcache_flush(f->kv), 0);
        assert_int_equal(kvcache_ping(f->kv, NULL), 0);
        fake_daemon_lock(f->rig->d);
        n = f->rig->d->leases_held;
        fake_daemon_unlock(f->rig->d);
        return n;
}

/* Begins a get of N blocks, whose copies are in their streams on return. */
static struct job *get_until_issued(struct fixture *f, uint64_t first_key, uint64_t first_block)
{
        struct job *j = job_of(f, N, first_key, first_block);
        struct kvcache_gpu_completion c;

        j->q.flags = KVCACHE_GPU_NOTIFY_ISSUED;
        assert_int_equal(kvcache_gpu_get_blocks(f->gpu, &j->q), 0);
        for (unsigned i = 0; kvcache_gpu_reap(f->gpu, &c, 1, 0) == 0; i++)
                assert_true(i < STEPS);
        assert_int_equal(c.kind, KVCACHE_GPU_ISSUED);
        return j;
}

static void chunks_are_leased_until_the_device_has_read_them(void **state)
{
        struct fixture *f = *state;
        struct job *j;

        connect_to(f, NULL);
        attach(f, KVCACHE_GPU_ENGINE_AUTO);
        put_keys(f, N, 1);
        clear(f);
        stub.run(false);
        j = get_until_issued(f, 1, 10);
        assert_int_equal(leases_held(f), N);
        stub.run(true);
        assert_int_equal(finish(f), 0);
        assert_statuses(j, KVCACHE_OK);
        for (unsigned i = 0; i < N; i++)
                assert_true(block_is(f, 10 + i, 1 + i));
        assert_int_equal(leases_held(f), 0);
}

static void copies_that_fail_give_their_leases_back(void **state)
{
        struct fixture *f = *state;
        struct job *j;

        connect_to(f, NULL);
        attach(f, KVCACHE_GPU_ENGINE_PLAIN);
        put_keys(f, N, 1);
        j = job_of(f, N, 1, 10);
        stub.fault("cuMemcpyAsync", 0, 1000, CU_ERROR_OUT_OF_MEMORY);
        (void)get(f, j);
        assert_statuses(j, KVCACHE_FAILED);
        stub.reset();
        assert_int_equal(leases_held(f), 0);
}

static unsigned staging_taken(const struct fixture *f)
{
        unsigned n = 0;

        for (unsigned i = 0; i < STAGING_PARTS; i++)
                n += f->gpu->staging.taken[i];
        return n;
}

static unsigned held(struct fixture *f)
{
        unsigned n;

        fake_daemon_lock(f->rig->d);
        n = f->rig->d->n_held;
        fake_daemon_unlock(f->rig->d);
        return n;
}

static void staging_that_a_lost_put_may_read_is_not_used_again(void **state)
{
        struct fixture *f = *state;
        struct kvcache_gpu_completion c;
        struct job *j;

        connect_to(f, NULL);
        attach(f, KVCACHE_GPU_ENGINE_AUTO);
        fake_daemon_hold(f->rig->d, 1u << WIRE_PUT);
        j = job_of(f, 2, 1, 0);
        assert_int_equal(kvcache_gpu_put_blocks(f->gpu, &j->q), 0);
        for (unsigned i = 0; held(f) == 0; i++) {
                assert_true(i < STEPS);
                assert_int_equal(kvcache_gpu_reap(f->gpu, &c, 1, 0), 0);
        }
        fake_daemon_kill(f->rig->d, true);
        (void)finish(f);
        assert_statuses(j, KVCACHE_LOST);
        assert_int_equal(staging_taken(f), 1);
        (void)kvcache_gpu_reap(f->gpu, &c, 1, 0);
        assert_int_equal(staging_taken(f), 1);
        fake_daemon_io_done(f->rig->d);
        (void)kvcache_gpu_reap(f->gpu, &c, 1, 0);
        assert_int_equal(staging_taken(f), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                TEST(chunks_are_leased_until_the_device_has_read_them),
                TEST(copies_that_fail_give_their_leases_back),
                TEST(staging_that_a_lost_put_may_read_is_not_used_again),
        };

        if (!gpu_rig_open()) {
                puts("the stub of the CUDA driver is not found: LD_LIBRARY_PATH");
                return 1;
        }
        return cmocka_run_group_tests(tests, NULL, NULL);
}

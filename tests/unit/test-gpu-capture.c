/* SPDX-License-Identifier: Apache-2.0 */
/* The library while another thread captures CUDA graphs: no call of the library may invalidate a
 * capture, whenever the capture begins. The stub driver knows which calls would. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "../../daemon/base/sanitizers.h"
#include "checked.h"
#include "gpu-rig.h"

/* With TSan, captures begin before every fifth call only. The threads are the
 * same before each call, and the build with ASan checks all calls. */
enum { N = 4, MOST_CALLS = 20000, STEP = SANITIZES_THREADS ? 5 : 1 };

#define STREAM_LEGACY ((void *)1)

static void detach(struct fixture *f)
{
        assert_int_equal(kvcache_gpu_detach(f->gpu, test_timeout_ms(60000)), 0);
        f->gpu = NULL;
}

/* --- scenarios --- */

static void store_and_load(struct fixture *f)
{
        struct job *j = job_of(f, N, 1, 0);

        for (unsigned i = 0; i < N; i++)
                set_block(f, i, 1 + i);
        assert_int_equal(put(f, j), 0);
        for (unsigned i = 0; i < N; i++) /* the second time they exist already */
                assert_true(kvcache_status_ok(j->statuses[i]));
        clear(f);
        j = job_of(f, N, 1, 8);
        assert_int_equal(get(f, j), 0);
        assert_statuses(j, KVCACHE_OK);
        for (unsigned i = 0; i < N; i++)
                assert_true(block_is(f, 8 + i, 1 + i));
}

static void an_attachment_from_its_start_to_its_end(struct fixture *f)
{
        attach(f, KVCACHE_GPU_ENGINE_AUTO);
        store_and_load(f);
        detach(f);
}

static void copies_of_leased_chunks(struct fixture *f)
{
        struct kvcache_gpu_leased_request q = { .size = sizeof(q),
                                                .layout = &f->layout,
                                                .count = 1 };
        struct kvcache_gpu_completion c;
        struct kvcache_result result;
        struct kvcache_key key = rig_key(1);
        uint64_t block = 5, offset;

        attach(f, KVCACHE_GPU_ENGINE_AUTO);
        store_and_load(f);
        assert_int_equal(kvcache_get_map(f->kv, f->rig->ns, &key, &result), 0);
        assert_int_equal(kvcache_pool_of(f->kv, result.data, &q.pool_id, &offset), 0);
        q.blocks = &block;
        q.pool_offsets = &offset;
        q.before_stream = f->stream;
        assert_int_equal(kvcache_gpu_copy_leased(f->gpu, &q), 0);
        assert_int_equal(kvcache_gpu_reap_leased(f->gpu, &c, 1, test_timeout_ms(60000)), 1);
        assert_int_equal(c.error, 0);
        assert_true(block_is(f, 5, 1));
        assert_int_equal(kvcache_release(f->kv, &result.lease, 1), 0);
        detach(f);
}

static void plain_copies(struct fixture *f)
{
        attach(f, KVCACHE_GPU_ENGINE_PLAIN);
        store_and_load(f);
        detach(f);
}

/* The next session has another pool, which is registered in place of the first. */
static void a_daemon_that_goes_and_comes_back(struct fixture *f)
{
        attach(f, KVCACHE_GPU_ENGINE_BATCH);
        store_and_load(f);
        fake_daemon_hang_up(f->rig->d);
        (void)kvcache_ping(f->kv, NULL);
        (void)kvcache_ping(f->kv, NULL);
        store_and_load(f);
        detach(f);
}

static void an_attachment_that_is_refused(struct fixture *f)
{
        struct kvcache_gpu_options o = options_of(KVCACHE_GPU_ENGINE_AUTO);

        o.device = 7; /* there is one device */
        assert_int_equal(kvcache_gpu_attach(&f->gpu, f->kv, &o, NULL, 0), -ENODEV);
        f->gpu = NULL;
}

/* Another thread begins a capture before the first call of the driver, then before the second, and
 * so on, and ends it after the scenario. */
static void no_capture_is_invalidated_whenever_it_begins(void **state)
{
        static void (*const scenarios[])(struct fixture * f) = {
                an_attachment_from_its_start_to_its_end,
                copies_of_leased_chunks,
                plain_copies,
                a_daemon_that_goes_and_comes_back,
                an_attachment_that_is_refused,
        };
        struct fixture *f = *state;

        connect_to(f, &(struct fake_options){ .pool_bytes = 16 << 20 });
        for (size_t s = 0; s < ARRAY_SIZE(scenarios); s++) {
                unsigned calls = 1;

                for (unsigned n = 1; n <= calls && n < MOST_CALLS; n += STEP) {
                        struct stub_live live;

                        /* A driver with little device memory, because the stub is faster with less
                         * of it. */
                        stub.fault("cuMemAlloc_v2", 1, 5, CU_ERROR_OUT_OF_MEMORY);
                        stub.arm_capture(n);
                        scenarios[s](f);
                        if (!stub.disarm_capture(&calls))
                                fail_msg("scenario %zu: a capture before call %u is invalid", s, n);
                        stub.live(&live);
                        assert_int_equal(live.capture_mode, CU_CAPTURE_MODE_GLOBAL);
                        assert_int_equal(live.pushed, 1); /* the fixture's own */
                }
                assert_true(calls > 3);
        }
}

/* The stub detects a program that does not relax its mode. */
static void the_stub_forbids_unsafe_calls_of_threads_that_are_not_relaxed(void **state)
{
        struct fixture *f = *state;
        int mode = CU_CAPTURE_MODE_RELAXED;
        cu_address memory;
        unsigned calls;

        stub.arm_capture(1);
        assert_int_equal(cuda.mem_alloc(&memory, 4096), CU_ERROR_CAPTURE_UNSUPPORTED);
        assert_false(stub.disarm_capture(&calls));
        assert_int_equal(calls, 1);

        stub.arm_capture(1);
        assert_int_equal(cuda.exchange_capture_mode(&mode), CU_OK);
        assert_int_equal(mode, CU_CAPTURE_MODE_GLOBAL);
        assert_int_equal(cuda.mem_alloc(&memory, 4096), CU_OK);
        assert_int_equal(cuda.mem_free(memory), CU_OK);
        assert_int_equal(cuda.exchange_capture_mode(&mode), CU_OK);
        assert_true(stub.disarm_capture(&calls));

        /* No mode allows work in the legacy default stream. */
        stub.arm_capture(1);
        mode = CU_CAPTURE_MODE_RELAXED;
        assert_int_equal(cuda.exchange_capture_mode(&mode), CU_OK);
        assert_int_equal(cuda.copy(f->device, f->device + 4096, 512, NULL),
                         CU_ERROR_CAPTURE_IMPLICIT);
        assert_int_equal(cuda.exchange_capture_mode(&mode), CU_OK);
        assert_false(stub.disarm_capture(&calls));
}

/* --- the program's own streams --- */

/* Checks that a request that names `stream` on either side is refused during a capture of the
 * program's stream, and served after it. */
static void is_refused_during_a_capture(struct fixture *f, void *stream)
{
        struct job *j;

        begin(f);
        put_keys(f, N, 1);
        for (unsigned side = 0; side < 2; side++) {
                j = job_of(f, N, 1, 0);
                *(side == 0 ? &j->q.before_stream : &j->q.after_stream) = stream;
                assert_int_equal(stub.begin_capture(f->stream, CU_CAPTURE_MODE_GLOBAL), CU_OK);
                assert_int_equal(kvcache_gpu_get_blocks(f->gpu, &j->q), -EBUSY);
                assert_non_null(strstr(kvcache_gpu_error(f->gpu), "is being captured"));
                assert_true(stub.end_capture(f->stream));
                assert_int_equal(get(f, j), 0);
                assert_statuses(j, KVCACHE_OK);
        }
}

static void a_request_of_a_stream_that_is_captured_is_refused(void **state)
{
        struct fixture *f = *state;

        is_refused_during_a_capture(f, f->stream);
}

static void a_request_of_the_legacy_stream_is_refused_during_any_capture(void **state)
{
        is_refused_during_a_capture(*state, STREAM_LEGACY);
}

static void a_request_waits_for_the_capture_of_the_stream_behind_it(void **state)
{
        struct fixture *f = *state;
        struct kvcache_gpu_completion c;
        struct job *j;

        begin(f);
        put_keys(f, N, 1);
        clear(f);
        fake_daemon_hold(f->rig->d, 1u << WIRE_GET);
        j = job_of(f, N, 1, 0);
        j->q.after_stream = f->stream;
        assert_int_equal(kvcache_gpu_get_blocks(f->gpu, &j->q), 0);
        assert_int_equal(stub.begin_capture(f->stream, CU_CAPTURE_MODE_GLOBAL), CU_OK);
        fake_daemon_hold(f->rig->d, 0);
        /* The blocks come, but the request is not over. */
        for (unsigned i = 0; i < N; i++)
                while (j->statuses[i] == KVCACHE_PENDING)
                        assert_int_equal(kvcache_gpu_reap(f->gpu, &c, 1, 1), 0);
        assert_int_equal(kvcache_gpu_reap(f->gpu, &c, 1, 0), 0);
        assert_true(stub.end_capture(f->stream));
        assert_int_equal(kvcache_gpu_reap(f->gpu, &c, 1, test_timeout_ms(60000)), 1);
        assert_int_equal(c.kind, KVCACHE_GPU_DONE);
        assert_int_equal(c.error, 0);
        assert_statuses(j, KVCACHE_OK);
        for (unsigned i = 0; i < N; i++)
                assert_true(block_is(f, i, 1 + i));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        const struct CMUnitTest tests[] = {
                TEST(the_stub_forbids_unsafe_calls_of_threads_that_are_not_relaxed),
                TEST(no_capture_is_invalidated_whenever_it_begins),
                TEST(a_request_of_a_stream_that_is_captured_is_refused),
                TEST(a_request_of_the_legacy_stream_is_refused_during_any_capture),
                TEST(a_request_waits_for_the_capture_of_the_stream_behind_it),
        };

        if (!gpu_rig_open()) {
                fprintf(stderr, "the stub driver is not on LD_LIBRARY_PATH\n");
                return 1;
        }
        return cmocka_run_group_tests(tests, NULL, NULL);
}

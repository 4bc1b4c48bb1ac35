/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is registered in slices: copies across their ends, failures in the middle, and
 * requests that leave registering to kvcache_gpu_renew(). */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "gpu-rig.h"
#include "gpu/gpu.h"

enum { N = 6, SLICES = 3, STEPS = 10000000 };

static const uint64_t memory_bytes = (uint64_t)SLICES * SLICE_LEAST_BYTES;

static unsigned registrations(void)
{
        struct stub_live live;

        stub.live(&live);
        return live.registrations;
}

/* Returns memory whose first slice is of a single page. */
static uint8_t *memory_new(uint8_t **ret_all, uint64_t *ret_all_bytes)
{
        uint64_t all = memory_bytes + SLICE_LEAST_BYTES;
        uint8_t *p = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        uint64_t to_edge;

        assert_true(p != MAP_FAILED);
        to_edge = slice_rest((uintptr_t)p, UINT64_MAX, SLICE_LEAST_BYTES);
        *ret_all = p;
        *ret_all_bytes = all;
        return p + (to_edge < 4096 ? to_edge + SLICE_LEAST_BYTES : to_edge) - 4096;
}

/* --- registering --- */

static void memory_has_slices_and_loses_them_all(void **state)
{
        uint8_t *all, *p = memory_new(&all, &(uint64_t){ 0 });
        unsigned before = registrations();
        struct slices s;

        assert_int_equal(slices_register(&cuda, &s, p, memory_bytes, 0, true), CU_OK);
        assert_int_equal(registrations(), before + SLICES + 1);
        assert_true(s.device != 0);
        slices_unregister(&cuda, &s, true);
        assert_int_equal(registrations(), before);
        slices_unregister(&cuda, &s, true); /* there are none */
        munmap(all, memory_bytes + SLICE_LEAST_BYTES);
}

static void large_memory_has_a_bounded_number_of_slices(void **state)
{
        uint64_t bytes = UINT64_C(1) << 36; /* only its addresses are used */
        uint8_t *p =
                mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        unsigned before = stub.calls("cuMemHostRegister_v2");
        struct slices s;

        assert_true(p != MAP_FAILED);
        assert_int_equal(slices_register(&cuda, &s, p, bytes, 0, false), CU_OK);
        assert_in_range(stub.calls("cuMemHostRegister_v2") - before, SLICES_MOST / 2,
                        SLICES_MOST + 1);
        assert_int_equal(s.slice_bytes % SLICE_LEAST_BYTES, 0);
        slices_unregister(&cuda, &s, false);
        munmap(p, bytes);
}

static void a_slice_that_fails_leaves_none(void **state)
{
        uint8_t *all, *p = memory_new(&all, &(uint64_t){ 0 });
        unsigned before = registrations();
        struct slices s;

        for (unsigned i = 0; i <= SLICES; i++) {
                stub.fault("cuMemHostRegister_v2", i, 1, CU_ERROR_OUT_OF_MEMORY);
                assert_int_equal(slices_register(&cuda, &s, p, memory_bytes, 0, false),
                                 CU_ERROR_OUT_OF_MEMORY);
                assert_int_equal(registrations(), before);
                assert_null(s.base);
                stub.fault("cuMemHostGetDevicePointer_v2", i, 1, CU_ERROR_INVALID_VALUE);
                assert_int_equal(slices_register(&cuda, &s, p, memory_bytes, 0, false),
                                 CU_ERROR_INVALID_VALUE);
                assert_int_equal(registrations(), before);
        }
        munmap(all, memory_bytes + SLICE_LEAST_BYTES);
}

static cu_result address_with_gaps(cu_address *ret, void *p, unsigned flags)
{
        *ret = 2 * (uintptr_t)p;
        return CU_OK;
}

static cu_result address_with_an_offset(cu_address *ret, void *p, unsigned flags)
{
        *ret = (uintptr_t)p + 4096;
        return CU_OK;
}

static void slices_whose_ends_differ_for_the_device_are_one(void **state)
{
        uint8_t *all, *p = memory_new(&all, &(uint64_t){ 0 });
        unsigned before = registrations();
        struct driver with_an_offset = cuda;
        struct slices s;

        with_an_offset.host_address = address_with_an_offset;
        assert_int_equal(slices_register(&with_an_offset, &s, p, memory_bytes, 0, false), CU_OK);
        assert_int_equal(registrations(), before + 1);
        assert_true(s.device == (uintptr_t)p + 4096);
        slices_unregister(&with_an_offset, &s, false);
        assert_int_equal(registrations(), before);
        munmap(all, memory_bytes + SLICE_LEAST_BYTES);
}

static void slices_that_the_device_sees_apart_are_one(void **state)
{
        uint8_t *all, *p = memory_new(&all, &(uint64_t){ 0 });
        unsigned before = registrations();
        struct driver with_gaps = cuda;
        struct slices s;

        with_gaps.host_address = address_with_gaps;
        assert_int_equal(slices_register(&with_gaps, &s, p, memory_bytes, 0, false), CU_OK);
        assert_int_equal(registrations(), before + 1);
        slices_unregister(&with_gaps, &s, false);
        assert_int_equal(registrations(), before);
        munmap(all, memory_bytes + SLICE_LEAST_BYTES);
}

/* --- copies --- */

/* Copies around every end of a slice, in one list: a long copy across all slices, copies that are
 * adjacent in host memory and meet at an end, and short ones across an end. */
static size_t list_copies(struct copy *list, uint64_t host, cu_address device)
{
        const uint64_t edges = (uint64_t)(SLICES - 1) * SLICE_LEAST_BYTES, first = 4096;
        size_t n = 0;
        uint64_t at = 0;

#define ADD(from, length)                                                                          \
        do {                                                                                       \
                list[n++] = (struct copy){ device + at, host + (from), (length) };                 \
                at += (length) + 4096;                                                             \
        } while (0)
        ADD(0, edges + 2 * first); /* from the first slice to the last */
        for (unsigned i = 0; i < SLICES; i++) {
                uint64_t edge = first + (uint64_t)i * SLICE_LEAST_BYTES;

                ADD(edge - 512, 1024);
                ADD(edge - 512, 512);
                ADD(edge, 512);
                ADD(edge - 1, 2);
        }
#undef ADD
        return n;
}

static void copies_across_slices_arrive_by_each_engine(void **state)
{
        struct fixture *f = *state;
        uint8_t *all, *p = memory_new(&all, &(uint64_t){ 0 });
        uint64_t bytes = 2 * memory_bytes;
        struct copy *list = calloc(ENGINE_ROOM, sizeof(*list)), *same = calloc(64, sizeof(*same));
        cu_address device;
        struct slices s;

        begin(f); /* makes a context current */
        gpu_make_current(f->gpu);
        for (uint64_t i = 0; i < memory_bytes; i += 8)
                memcpy(p + i, &i, 8);
        assert_int_equal(slices_register(&cuda, &s, p, memory_bytes, 0, false), CU_OK);
        assert_int_equal(cuda.mem_alloc(&device, bytes), CU_OK);
        for (int way = KVCACHE_GPU_ENGINE_AUTO; way <= KVCACHE_GPU_ENGINE_BOUNCE; way++) {
                uint8_t *seen = stub.memory(device);
                struct engine e;
                size_t n;

                assert_int_equal(engine_init(&e, &cuda, (enum kvcache_gpu_engine)way, 2, 2,
                                             2 * memory_bytes + (1 << 20)),
                                 0);
                memset(seen, 0, bytes);
                n = list_copies(list, s.device, device);
                memcpy(same, list, n * sizeof(*same));
                assert_int_equal(engine_copy(&e, 0, f->stream, list, n, true, 0), CU_OK);
                assert_int_equal(cuda.stream_synchronize(f->stream), CU_OK);
                for (size_t i = 0; i < n; i++)
                        assert_memory_equal(seen + (same[i].to - device),
                                            p + (same[i].from - s.device), same[i].bytes);
                engine_fini(&e);
        }
        assert_int_equal(cuda.mem_free(device), CU_OK);
        slices_unregister(&cuda, &s, false);
        gpu_leave(f->gpu);
        free(list);
        free(same);
        munmap(all, memory_bytes + SLICE_LEAST_BYTES);
}

static void a_list_without_room_for_its_pieces_is_copied(void **state)
{
        struct fixture *f = *state;
        uint8_t *all, *p = memory_new(&all, &(uint64_t){ 0 });
        struct copy *list = calloc(ENGINE_ROOM, sizeof(*list));
        uint8_t *seen;
        cu_address device;
        struct slices s;
        struct engine e;

        begin(f);
        gpu_make_current(f->gpu);
        memset(p, 7, 8192);
        assert_int_equal(slices_register(&cuda, &s, p, memory_bytes, 0, false), CU_OK);
        assert_int_equal(cuda.mem_alloc(&device, (uint64_t)ENGINE_MAX_COPIES * 4), CU_OK);
        assert_int_equal(engine_init(&e, &cuda, KVCACHE_GPU_ENGINE_AUTO, 2, 2, 0), 0);
        seen = stub.memory(device);
        memset(seen, 0, (size_t)ENGINE_MAX_COPIES * 4);
        for (size_t i = 0; i < ENGINE_MAX_COPIES; i++) /* each crosses the first end */
                list[i] = (struct copy){ device + 4 * i, s.device + 4095, 2 };
        assert_int_equal(engine_copy(&e, 0, f->stream, list, ENGINE_MAX_COPIES, true, -1), CU_OK);
        assert_int_equal(cuda.stream_synchronize(f->stream), CU_OK);
        for (size_t i = 0; i < ENGINE_MAX_COPIES; i++)
                assert_true(seen[4 * i] == 7 && seen[4 * i + 1] == 7 && seen[4 * i + 2] == 0);
        engine_fini(&e);
        assert_int_equal(cuda.mem_free(device), CU_OK);
        slices_unregister(&cuda, &s, false);
        gpu_leave(f->gpu);
        free(list);
        munmap(all, memory_bytes + SLICE_LEAST_BYTES);
}

/* --- requests that do not register --- */

static void attach_explicitly(struct fixture *f)
{
        struct kvcache_gpu_options o = options_of(KVCACHE_GPU_ENGINE_AUTO);
        char why[256];

        o.flags |= KVCACHE_GPU_EXPLICIT | KVCACHE_GPU_GENTLE;
        connect_to(f, &(struct fake_options){ .pool_bytes = 16 << 20 });
        assert_int_equal(kvcache_gpu_attach(&f->gpu, f->kv, &o, why, sizeof(why)), 0);
}

static void restart_daemon(struct fixture *f)
{
        fake_daemon_kill(f->rig->d, false);
        f->rig->d = fake_daemon_free(f->rig->d);
        start_daemon(f, &(struct fake_options){ .pool_bytes = 16 << 20 });
        for (unsigned i = 0; kvcache_ping(f->kv, NULL) < 0; i++)
                assert_true(i < STEPS);
}

static void only_renew_registers_the_memory_of_another_session(void **state)
{
        struct fixture *f = *state;
        unsigned registered, unregistered;
        uint64_t first, second;
        struct job *j;

        attach_explicitly(f);
        put_keys(f, N, 1);
        assert_int_equal(kvcache_gpu_renew(f->gpu), 0); /* nothing is to be done */
        assert_int_equal(kvcache_gpu_pools(f->gpu, &first, 1), 1);
        restart_daemon(f);
        registered = stub.calls("cuMemHostRegister_v2");
        unregistered = stub.calls("cuMemHostUnregister");
        j = job_of(f, N, 1, 0);
        (void)get(f, j);
        assert_statuses(j, KVCACHE_LOST);
        (void)put(f, j);
        assert_statuses(j, KVCACHE_LOST);
        assert_non_null(strstr(kvcache_gpu_error(f->gpu), "not registered with the GPU"));
        assert_int_equal(stub.calls("cuMemHostRegister_v2"), registered);
        assert_int_equal(stub.calls("cuMemHostUnregister"), unregistered);
        assert_int_equal(kvcache_gpu_renew(f->gpu), 0);
        assert_true(stub.calls("cuMemHostRegister_v2") > registered);
        assert_int_equal(kvcache_gpu_pools(f->gpu, &second, 1), 1);
        assert_true(first != second);
        put_keys(f, N, 1);
        clear(f);
        assert_int_equal(get(f, j), 0);
        assert_statuses(j, KVCACHE_OK);
        for (unsigned i = 0; i < N; i++)
                assert_true(block_is(f, i, 1 + i));
}

static void a_pool_that_the_driver_refused_is_tried_again(void **state)
{
        struct fixture *f = *state;
        uint64_t pool;

        attach_explicitly(f);
        restart_daemon(f);
        stub.fault("cuMemHostRegister_v2", 0, 2, CU_ERROR_OUT_OF_MEMORY); /* with both flags */
        assert_int_equal(kvcache_gpu_renew(f->gpu), 0);
        assert_int_equal(kvcache_gpu_pools(f->gpu, &pool, 1), 0);
        assert_int_equal(kvcache_gpu_renew(f->gpu), 0);
        assert_int_equal(kvcache_gpu_pools(f->gpu, &pool, 1), 1);
}

static void renew_without_a_daemon_says_so_and_can_be_repeated(void **state)
{
        struct fixture *f = *state;

        assert_int_equal(kvcache_gpu_renew(NULL), -EINVAL);
        attach_explicitly(f);
        fake_daemon_kill(f->rig->d, false);
        f->rig->d = fake_daemon_free(f->rig->d);
        assert_true(kvcache_ping(f->kv, NULL) < 0);
        assert_true(kvcache_gpu_renew(f->gpu) < 0);
        start_daemon(f, &(struct fake_options){ .pool_bytes = 16 << 20 });
        for (unsigned i = 0; kvcache_ping(f->kv, NULL) < 0; i++)
                assert_true(i < STEPS);
        assert_int_equal(kvcache_gpu_renew(f->gpu), 0);
        put_keys(f, N, 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                TEST(memory_has_slices_and_loses_them_all),
                TEST(large_memory_has_a_bounded_number_of_slices),
                TEST(a_slice_that_fails_leaves_none),
                TEST(slices_that_the_device_sees_apart_are_one),
                TEST(slices_whose_ends_differ_for_the_device_are_one),
                TEST(copies_across_slices_arrive_by_each_engine),
                TEST(a_list_without_room_for_its_pieces_is_copied),
                TEST(only_renew_registers_the_memory_of_another_session),
                TEST(a_pool_that_the_driver_refused_is_tried_again),
                TEST(renew_without_a_daemon_says_so_and_can_be_repeated),
        };

        if (!gpu_rig_open()) {
                puts("the stub of the CUDA driver is not found: LD_LIBRARY_PATH");
                return 1;
        }
        return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The copy engine's choice of a method, by the size of copies and of contiguous host memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "checked.h"
#include "gpu-rig.h"
#include "gpu/engine.h"

enum {
        KIB = 1024,
        HOST_BYTES = 16 * 1024 * KIB,
        GAP = 4 * KIB, /* host memory between two runs */
        FIRST = 512,   /* offset of the first run, so that runs start within a page */
        SMS = 2,
        SLOTS = 2,
        BOUNCE = 8 * 1024 * KIB,
};

/* Copies of `bytes`, of which `per_run` lie behind one another in host memory. Some are cut at the
 * end of a slice, so their sizes are not those at which the choice changes. */
struct choice {
        uint64_t bytes;
        size_t per_run;
        bool has_bounce, may_bounce;
        enum kvcache_gpu_engine expected;
};

struct bench {
        uint8_t *host;
        cu_address device, registered;
        cu_stream stream;
        struct copy list[ENGINE_ROOM];
        size_t n;
};

static struct bench bench;

static int make(void **state)
{
        int r = setup(state);

        bench.host =
                mmap(NULL, HOST_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_true(bench.host != MAP_FAILED);
        for (size_t i = 0; i < HOST_BYTES; i++)
                bench.host[i] = byte_of(i / 256, i);
        assert_int_equal(cuda.host_register(bench.host, HOST_BYTES, 0), CU_OK);
        assert_int_equal(cuda.host_address(&bench.registered, bench.host, 0), CU_OK);
        assert_int_equal(cuda.mem_alloc(&bench.device, HOST_BYTES), CU_OK);
        assert_int_equal(cuda.stream_create(&bench.stream, CU_STREAM_IS_NON_BLOCKING), CU_OK);
        return r;
}

static int unmake(void **state)
{
        assert_int_equal(cuda.stream_destroy(bench.stream), CU_OK);
        assert_int_equal(cuda.mem_free(bench.device), CU_OK);
        assert_int_equal(cuda.host_unregister(bench.host), CU_OK);
        munmap(bench.host, HOST_BYTES);
        return teardown(state);
}

/* Lists copies to device memory in reverse order, so that none can be merged. */
static void list_copies(uint64_t bytes, size_t per_run)
{
        uint64_t from = FIRST;

        bench.n = 0;
        while (from + per_run * bytes <= HOST_BYTES) {
                for (size_t i = 0; i < per_run; i++, from += bytes)
                        bench.list[bench.n++] =
                                (struct copy){ bench.device + HOST_BYTES - from - bytes,
                                               bench.registered + from, bytes };
                from += GAP;
        }
        assert_true(bench.n >= 4);
}

static void assert_copied(uint64_t bytes, size_t per_run)
{
        static uint8_t found[2048 * KIB];
        uint64_t last = FIRST;

        assert_true(bytes <= sizeof(found));
        while (last + GAP + 2 * per_run * bytes <= HOST_BYTES)
                last += per_run * bytes + GAP;
        assert_int_equal(cuda.copy((cu_address)(uintptr_t)found,
                                   bench.device + HOST_BYTES - last - bytes, bytes, bench.stream),
                         CU_OK);
        assert_int_equal(cuda.stream_synchronize(bench.stream), CU_OK);
        assert_memory_equal(found, bench.host + last, bytes);
}

static enum kvcache_gpu_engine used_by(const struct engine *e)
{
        if (e->bounces > 0)
                return KVCACHE_GPU_ENGINE_BOUNCE;
        if (e->counts.kernel_launches > 0)
                return KVCACHE_GPU_ENGINE_KERNEL;
        return e->counts.batch_calls > 0 ? KVCACHE_GPU_ENGINE_BATCH : KVCACHE_GPU_ENGINE_PLAIN;
}

static void copies_go_the_way_that_was_measured_to_be_best(void **state)
{
        static const struct choice choices[] = {
                { 16 * KIB, 32, true, true, KVCACHE_GPU_ENGINE_BOUNCE },
                { 16 * KIB, 32, true, false, KVCACHE_GPU_ENGINE_KERNEL },
                { 16 * KIB, 32, false, true, KVCACHE_GPU_ENGINE_KERNEL },
                { 16 * KIB, 1, true, true, KVCACHE_GPU_ENGINE_KERNEL },
                { 64 * KIB, 8, true, true, KVCACHE_GPU_ENGINE_BOUNCE },
                { 128 * KIB, 8, true, false, KVCACHE_GPU_ENGINE_BATCH },
                { 128 * KIB, 8, false, true, KVCACHE_GPU_ENGINE_BATCH },
                { 128 * KIB, 2, true, true, KVCACHE_GPU_ENGINE_BATCH },
                { 128 * KIB, 1, true, true, KVCACHE_GPU_ENGINE_BATCH },
                { 512 * KIB, 4, true, true, KVCACHE_GPU_ENGINE_BOUNCE },
                { 2048 * KIB, 4, true, true, KVCACHE_GPU_ENGINE_BATCH },
        };

        (void)state;
        for (size_t i = 0; i < ARRAY_SIZE(choices); i++) {
                const struct choice *c = &choices[i];
                struct engine e;

                assert_int_equal(engine_init(&e, &cuda, KVCACHE_GPU_ENGINE_AUTO, SMS, SLOTS,
                                             c->has_bounce ? BOUNCE : 0),
                                 0);
                list_copies(c->bytes, c->per_run);
                assert_int_equal(engine_copy(&e, 0, bench.stream, bench.list, bench.n, true,
                                             c->may_bounce ? 0 : -1),
                                 CU_OK);
                assert_copied(c->bytes, c->per_run);
                if (used_by(&e) != c->expected)
                        fail_msg("copies of %llu bytes, %zu in a run: engine %d",
                                 (unsigned long long)c->bytes, c->per_run, (int)used_by(&e));
                engine_fini(&e);
        }
}

/* A caller has lists alternate between streams if the kernel takes part. */
static void a_forced_engine_uses_the_kernel_for_any_size_or_none(void **state)
{
        static const struct {
                uint64_t bytes, copies;
        } runs[] = { { 4 * KIB, 1 }, { 2048 * KIB, 32 }, { 64 * KIB, 1 }, { 2048 * KIB, 1 } };
        static const struct {
                enum kvcache_gpu_engine forced;
                bool prefers[4];
        } engines[] = {
                { KVCACHE_GPU_ENGINE_AUTO, { true, true, false, false } },
                { KVCACHE_GPU_ENGINE_KERNEL, { true, true, true, true } },
                { KVCACHE_GPU_ENGINE_BOUNCE, { true, true, true, true } },
                { KVCACHE_GPU_ENGINE_BATCH, { false, false, false, false } },
                { KVCACHE_GPU_ENGINE_PLAIN, { false, false, false, false } },
        };

        (void)state;
        for (size_t i = 0; i < ARRAY_SIZE(engines); i++) {
                struct engine e;

                assert_int_equal(engine_init(&e, &cuda, engines[i].forced, SMS, SLOTS, BOUNCE), 0);
                for (size_t k = 0; k < ARRAY_SIZE(runs); k++)
                        assert_int_equal(engine_prefers_kernel(&e, runs[k].bytes, runs[k].copies),
                                         engines[i].prefers[k]);
                engine_fini(&e);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(copies_go_the_way_that_was_measured_to_be_best,
                                                make, unmake),
                cmocka_unit_test_setup_teardown(
                        a_forced_engine_uses_the_kernel_for_any_size_or_none, make, unmake),
        };

        if (!gpu_rig_open()) {
                puts("the stub of the CUDA driver is not found: LD_LIBRARY_PATH");
                return 1;
        }
        return cmocka_run_group_tests(tests, NULL, NULL);
}

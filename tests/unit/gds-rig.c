/* SPDX-License-Identifier: Apache-2.0 */
/* See gds-rig.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gds-rig.h"

struct stub_cufile cufile;

int setup_gds(void **state)
{
        if (cufile.reset)
                cufile.reset();
        return setup(state);
}

int teardown_gds(void **state)
{
        struct stub_cufile_live live = { 0 };
        struct fixture *f = *state;
        int r;

        if (cufile.hold)
                cufile.hold(false);
        if (f->gpu)
                assert_int_equal(kvcache_gpu_detach(f->gpu, test_timeout_ms(60000)), 0);
        f->gpu = NULL;
        if (f->rig->d && f->kv && kvcache_flush(f->kv) == 0)
                assert_true(fake_daemon_wait_leases(f->rig->d, 0));
        r = teardown(state);
        if (cufile.live)
                cufile.live(&live);
        assert_int_equal(live.files + live.buffers, 0);
        assert_int_equal(live.misaligned + live.misplaced, 0);
        return r;
}

int attach_gds(struct fixture *f, enum kvcache_gpu_gds_option gds, char *why)
{
        struct kvcache_gpu_options o = options_of(KVCACHE_GPU_ENGINE_AUTO);

        o.gds = gds;
        o.gds_bytes = DEVICE_BYTES;
        return kvcache_gpu_attach(&f->gpu, f->kv, &o, why, CUFILE_TEXT);
}

void detach_gds(struct fixture *f)
{
        assert_int_equal(kvcache_gpu_detach(f->gpu, test_timeout_ms(60000)), 0);
        f->gpu = NULL;
}

void connect_lender(struct fixture *f)
{
        connect_to(f, &(struct fake_options){ .pool_bytes = POOL, .lends = true });
}

void begin_gds(struct fixture *f)
{
        char why[CUFILE_TEXT] = "";

        connect_lender(f);
        if (attach_gds(f, KVCACHE_GPU_GDS_AUTO, why) < 0)
                fail_msg("%s", why);
        assert_true(info_of(f).flags & KVCACHE_GPU_HAS_GDS);
        assert_int_equal(info_of(f).flags & KVCACHE_GPU_GDS_COPIES, 0);
        assert_int_equal(info_of(f).gds.device_bytes, DEVICE_BYTES);
}

/* Gets `n` keys into the blocks from `at` on, and checks their bytes. */
void get_keys(struct fixture *f, size_t n, uint64_t first_key, uint64_t at)
{
        struct job *j = job_of(f, n, first_key, at);

        clear(f);
        assert_int_equal(get(f, j), 0);
        assert_statuses(j, KVCACHE_OK);
        for (size_t i = n > BLOCKS ? n - BLOCKS : 0; i < n; i++)
                if (!block_is(f, (at + i) % BLOCKS, first_key + i))
                        fail_msg("block %zu is wrong", i);
}

uint64_t fallbacks_of(struct fixture *f, enum kvcache_gpu_gds_reason reason)
{
        return info_of(f).gds.fallbacks[reason];
}

/* Checks that `n` blocks fell back for this reason, and none for another. */
void assert_fallbacks(struct fixture *f, enum kvcache_gpu_gds_reason reason, uint64_t n)
{
        struct kvcache_gpu_gds gds = info_of(f).gds;

        for (int i = 0; i < KVCACHE_GPU_GDS_REASONS; i++)
                if (gds.fallbacks[i] != (i == (int)reason ? n : 0))
                        fail_msg("%llu blocks fell back: %s", (unsigned long long)gds.fallbacks[i],
                                 kvcache_gpu_gds_reason_name(i));
}

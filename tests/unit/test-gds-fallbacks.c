/* SPDX-License-Identifier: Apache-2.0 */
/* A transfer that GPUDirect Storage cannot make is made in another way, and its reason is counted:
 * with a stub cuFile, a stub driver and a fake daemon that lends.
 *
 *     test-gds-fallbacks [library|symbol]    with a cuFile; without one; with one that lacks a
 * function */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "checked.h"
#include "gds-rig.h"

/* --- GPUDirect Storage is not available --- */

static void assert_without(struct fixture *f, enum kvcache_gpu_gds_reason reason, int error,
                           uint64_t space)
{
        char why[CUFILE_TEXT] = "";

        assert_int_equal(attach_gds(f, KVCACHE_GPU_GDS_AUTO, why), 0);
        assert_int_equal(info_of(f).gds.state, reason);
        assert_int_equal(info_of(f).flags & KVCACHE_GPU_HAS_GDS, 0);
        assert_int_equal(info_of(f).gds.error, error);
        put_keys(f, 4, space);
        get_keys(f, 4, space, 8);
        assert_fallbacks(f, reason, f->rig->d->o.lends ? 4 : 0);
        detach_gds(f);
}

static void assert_required(struct fixture *f, const char *word)
{
        char why[CUFILE_TEXT] = "";

        assert_int_equal(attach_gds(f, KVCACHE_GPU_GDS_REQUIRED, why), -EOPNOTSUPP);
        assert_null(f->gpu);
        if (!strstr(why, word))
                fail_msg("%s", why);
}

static void a_cufile_that_does_not_open_is_done_without(void **state)
{
        struct fixture *f = *state;

        connect_lender(f);
        for (int error = 5001; error <= 5050; error++) {
                if (error == CF_DRIVER_ALREADY_OPEN)
                        continue;
                cufile.fault("cuFileDriverOpen", 0, 1, 1, error);
                assert_without(f, KVCACHE_GPU_GDS_DRIVER, error, (uint64_t)error * 10);
        }
        cufile.fault("cuFileDriverOpen", 0, 1, 1, 5001);
        assert_required(f, "CU_FILE_DRIVER_NOT_INITIALIZED (5001)");
}

static void memory_that_cufile_does_not_register_is_done_without(void **state)
{
        struct fixture *f = *state;

        connect_lender(f);
        for (int error = 5001; error <= 5050; error++) {
                cufile.fault("cuFileBufRegister", 0, 100, 1, error);
                assert_without(f, KVCACHE_GPU_GDS_BUFFER, error, (uint64_t)error * 10);
        }
        cufile.fault("cuFileBufRegister", 0, 100, 1, 5036);
        assert_required(f, "5036");
        /* Half of the memory is used if all of it is not available. */
        cufile.fault("cuFileBufRegister", 0, 1, 1, 5036);
        assert_int_equal(attach_gds(f, KVCACHE_GPU_GDS_REQUIRED, NULL), 0);
        assert_int_equal(info_of(f).gds.device_bytes, DEVICE_BYTES / 2);
        detach_gds(f);
        stub.fault("cuMemAlloc_v2", 1, 100, CU_ERROR_OUT_OF_MEMORY); /* the first is the kernel's */
        assert_required(f, "CUDA_ERROR_OUT_OF_MEMORY");
        stub.reset();
}

/* Without nvidia-fs, cuFile copies like the daemon, so it is used only if required. */
static void a_cufile_that_copies_by_itself_is_used_if_it_is_required(void **state)
{
        struct fixture *f = *state;

        connect_lender(f);
        cufile.set_nvfs(0);
        assert_without(f, KVCACHE_GPU_GDS_COMPATIBLE, 0, 10);
        cufile.fault("cuFileBufRegister", 0, 1, 1, 5010);
        for (unsigned i = 0; i < 2; i++) { /* without registered memory, too */
                assert_int_equal(attach_gds(f, KVCACHE_GPU_GDS_REQUIRED, NULL), 0);
                assert_true(info_of(f).flags & KVCACHE_GPU_GDS_COPIES);
                get_keys(f, 4, 10, 8);
                assert_int_equal(info_of(f).gds.blocks, 4);
                detach_gds(f);
        }
        cufile.fault("cuFileDriverGetProperties", 0, 1, 1, 5010);
        assert_without(f, KVCACHE_GPU_GDS_COMPATIBLE, 0, 20);
}

static void a_daemon_that_does_not_lend_is_not_asked_to(void **state)
{
        struct fixture *f = *state;

        connect_to(f, &(struct fake_options){ .pool_bytes = POOL });
        assert_without(f, KVCACHE_GPU_GDS_DAEMON, 0, 10);
        assert_required(f, "does not lend");
        assert_int_equal(cufile.calls("cuFileDriverOpen"), 0);
}

static void a_pool_that_is_not_registered_goes_without(void **state)
{
        struct kvcache_gpu_options o = options_of(KVCACHE_GPU_ENGINE_AUTO);
        struct fixture *f = *state;

        connect_lender(f);
        o.flags = KVCACHE_GPU_NO_POOL;
        assert_int_equal(kvcache_gpu_attach(&f->gpu, f->kv, &o, NULL, 0), 0);
        put_keys(f, 4, 1);
        get_keys(f, 4, 1, 8);
        assert_fallbacks(f, KVCACHE_GPU_GDS_POOL, 4);
}

static void the_next_daemon_may_lend(void **state)
{
        struct fake_options o = { .pool_bytes = POOL, .lends = false };
        struct fixture *f = *state;
        struct job *j;

        connect_to(f, &o);
        assert_int_equal(attach_gds(f, KVCACHE_GPU_GDS_AUTO, NULL), 0);
        for (unsigned i = 0; i < 3; i++) {
                o.lends = !o.lends;
                fake_daemon_kill(f->rig->d, false);
                f->rig->d = fake_daemon_free(f->rig->d);
                j = job_of(f, 4, 1, 0);
                (void)get(f, j); /* there is no daemon */
                start_daemon(f, &o);
                put_keys(f, 4, 1);
                get_keys(f, 4, 1, 8);
                assert_int_equal(info_of(f).gds.blocks, i < 2 ? 4 : 8);
                assert_true(info_of(f).gds.files <= 1);
        }
}

/* --- GPUDirect Storage is not available for some blocks --- */

static void what_is_not_lent_is_got(void **state)
{
        static const struct {
                uint32_t not_lent;
                enum kvcache_gpu_gds_reason reason;
        } reasons[] = {
                { WIRE_LEND_DENIED, KVCACHE_GPU_GDS_DAEMON },
                { WIRE_LEND_UNVERIFIED, KVCACHE_GPU_GDS_UNVERIFIED },
                { WIRE_LEND_VOLUME, KVCACHE_GPU_GDS_VOLUME },
                { WIRE_LEND_LIMIT, KVCACHE_GPU_GDS_LIMIT },
        };
        struct fixture *f = *state;

        begin_gds(f);
        put_keys(f, 4, 1);
        for (unsigned i = 0; i < ARRAY_SIZE(reasons); i++) {
                fake_daemon_lock(f->rig->d);
                f->rig->d->not_lent = reasons[i].not_lent;
                fake_daemon_unlock(f->rig->d);
                get_keys(f, 4, 1, 8);
                assert_int_equal(fallbacks_of(f, reasons[i].reason), 4);
        }
        assert_int_equal(info_of(f).gds.blocks, 0);
        assert_int_equal(f->rig->d->requests[WIRE_GET], ARRAY_SIZE(reasons));
}

/* Blocks that are not lent are leased, but not all may be leased at a time. */
static void what_is_not_lent_and_too_much_to_lease_is_got_in_parts(void **state)
{
        struct fixture *f = *state;

        begin_gds(f);
        put_keys(f, 8, 1);
        fake_daemon_lock(f->rig->d);
        f->rig->d->not_lent = WIRE_LEND_UNVERIFIED;
        f->rig->d->o.lease_bytes = 3 * BLOCK;
        fake_daemon_unlock(f->rig->d);
        get_keys(f, 8, 1, 8);
        assert_int_equal(info_of(f).blocks_paced, 5 + 2);
        assert_int_equal(info_of(f).counts.blocks_from_pool, 8);
        /* Chunks that are lent but cannot be read are got in parts as well. */
        fake_daemon_lock(f->rig->d);
        f->rig->d->not_lent = WIRE_LEND_NONE;
        f->rig->d->file_is_gone = true;
        fake_daemon_unlock(f->rig->d);
        put_keys(f, 8, 101);
        get_keys(f, 8, 101, 8);
        assert_int_equal(info_of(f).blocks_paced, 2 * (5 + 2));
        assert_int_equal(info_of(f).gds.blocks, 0);
        assert_true(f->rig->d->most_leased <= 3 * BLOCK);
}

static void a_file_that_cannot_be_had_costs_its_blocks_the_way(void **state)
{
        struct fixture *f = *state;

        begin_gds(f);
        put_keys(f, 4, 1);
        fake_daemon_lock(f->rig->d);
        f->rig->d->file_is_gone = true;
        fake_daemon_unlock(f->rig->d);
        get_keys(f, 4, 1, 8);
        assert_fallbacks(f, KVCACHE_GPU_GDS_FILE, 4);
        assert_int_equal(info_of(f).gds.error, -ESTALE);
        assert_int_equal(f->rig->d->loans_held, 0);
        assert_int_equal(f->rig->d->requests[WIRE_GET],
                         2); /* the second one gets all lost blocks */
        fake_daemon_lock(f->rig->d);
        f->rig->d->file_is_gone = false;
        fake_daemon_unlock(f->rig->d);
        get_keys(f, 4, 1, 8);
        assert_fallbacks(f, KVCACHE_GPU_GDS_FILE, 4);
}

static void a_file_without_direct_io_is_not_read(void **state)
{
        struct fixture *f = *state;

        connect_to(f, &(struct fake_options){
                              .pool_bytes = POOL, .lends = true, .lend_indirect = true });
        assert_int_equal(attach_gds(f, KVCACHE_GPU_GDS_AUTO, NULL), 0);
        put_keys(f, 4, 1);
        get_keys(f, 4, 1, 8);
        assert_fallbacks(f, KVCACHE_GPU_GDS_FILE, 4);
        assert_int_equal(cufile.calls("cuFileHandleRegister"), 0);
}

static void a_file_that_cufile_does_not_register_is_not_read(void **state)
{
        struct fixture *f = *state;

        connect_lender(f);
        for (int error = 5001; error <= 5050; error++) {
                assert_int_equal(attach_gds(f, KVCACHE_GPU_GDS_AUTO, NULL), 0);
                cufile.fault("cuFileHandleRegister", 0, 1, 1, error);
                put_keys(f, 4, (uint64_t)error * 10);
                get_keys(f, 4, (uint64_t)error * 10, 8);
                assert_fallbacks(f, KVCACHE_GPU_GDS_HANDLE, 4);
                assert_int_equal(info_of(f).gds.error, error);
                get_keys(f, 4, (uint64_t)error * 10, 8); /* registration is not tried each time */
                assert_fallbacks(f, KVCACHE_GPU_GDS_HANDLE, 8);
                detach_gds(f);
        }
}

static void no_more_files_are_registered_than_can_be(void **state)
{
        struct fixture *f = *state;

        connect_to(f,
                   &(struct fake_options){ .pool_bytes = POOL, .lends = true, .lend_per_file = 1 });
        assert_int_equal(attach_gds(f, KVCACHE_GPU_GDS_AUTO, NULL), 0);
        for (unsigned i = 0; i < 3; i++)
                put_keys(f, BLOCKS, 1 + i * BLOCKS);
        get_keys(f, 3 * BLOCKS, 1, 0); /* one batch, and 72 files */
        assert_fallbacks(f, KVCACHE_GPU_GDS_FILES, 3 * BLOCKS - GDS_FILES);
        assert_int_equal(info_of(f).gds.files, GDS_FILES);
        get_keys(f, BLOCKS, 1, 0); /* unused files make room */
        assert_int_equal(info_of(f).gds.files, GDS_FILES);
        assert_fallbacks(f, KVCACHE_GPU_GDS_FILES, 3 * BLOCKS - GDS_FILES);
        assert_int_equal(info_of(f).gds.blocks, GDS_FILES + BLOCKS);
}

static void a_block_that_is_longer_than_a_part_is_got(void **state)
{
        struct kvcache_gpu_options o = options_of(KVCACHE_GPU_ENGINE_AUTO);
        struct fixture *f = *state;
        struct job *j;

        connect_to(f, &(struct fake_options){
                              .pool_bytes = POOL, .lends = true, .max_chunk = 1 << 20 });
        o.gds_bytes = 1 << 20; /* 128 KiB a part */
        o.staging_bytes = 4 << 20;
        assert_int_equal(kvcache_gpu_attach(&f->gpu, f->kv, &o, NULL, 0), 0);
        f->layout.blocks = 1;
        f->layout.inner = 64 * 12;
        j = job_of(f, 1, 1, 0);
        for (unsigned i = 0; i < MEMORY; i++)
                ((uint8_t *)stub.memory(f->device))[i] = (uint8_t)(i * 31);
        assert_int_equal(put(f, j), 0);
        clear(f);
        assert_int_equal(get(f, j), 0);
        assert_statuses(j, KVCACHE_OK);
        assert_int_equal(((uint8_t *)stub.memory(f->device))[1000], (uint8_t)(1000 * 31));
        assert_fallbacks(f, KVCACHE_GPU_GDS_SIZE, 1);
        assert_int_equal(f->rig->d->loans_held, 0);
}

/* --- reads that fail --- */

static void a_read_that_fails_is_made_up_for(void **state)
{
        static const int results[] = { -1, 0, 1, 4096, BLOCK - 1, -5001, -5010, -5027, -5044 };
        struct fixture *f = *state;

        begin_gds(f);
        put_keys(f, 4, 1);
        for (unsigned i = 0; i < ARRAY_SIZE(results); i++) {
                enum kvcache_gpu_gds_reason reason =
                        results[i] < 0 ? KVCACHE_GPU_GDS_FAILED : KVCACHE_GPU_GDS_TOO_SHORT;
                uint64_t before = fallbacks_of(f, reason);

                cufile.fault("cuFileRead", 0, 1, 1, results[i]);
                get_keys(f, 4, 1, 8);
                assert_int_equal(fallbacks_of(f, reason), before + 4); /* from one read */
                if (results[i] < 0)
                        assert_int_equal(info_of(f).gds.error,
                                         results[i] == -1 ? -EIO : -results[i]);
        }
        assert_int_equal(info_of(f).gds.blocks, 0);
        get_keys(f, 4, 1, 8);
        assert_int_equal(info_of(f).gds.blocks, 4);
        assert_int_equal(f->rig->d->loans_held, 0);
}

static void one_failing_read_in_a_hundred_costs_its_block_alone(void **state)
{
        struct fixture *f = *state;
        uint64_t failed;

        connect_to(f, &(struct fake_options){
                              .pool_bytes = POOL, .lends = true, .lend_per_file = 24 });
        assert_int_equal(attach_gds(f, KVCACHE_GPU_GDS_AUTO, NULL), 0);
        put_keys(f, BLOCKS, 1);
        cufile.fault("cuFileRead", 0, 1000, 100, -1);
        for (unsigned i = 0; i < 400; i++)
                get_keys(f, 1 + i % 3, 1 + i % 20, i % BLOCKS);
        failed = fallbacks_of(f, KVCACHE_GPU_GDS_FAILED);
        assert_true(failed >= 4 && failed <= 12);
        assert_int_equal(info_of(f).gds.blocks + failed, 799);
        assert_fallbacks(f, KVCACHE_GPU_GDS_FAILED, failed);
}

static void when_all_reads_fail_none_is_made_for_a_while(void **state)
{
        struct fixture *f = *state;
        unsigned calls;

        begin_gds(f);
        put_keys(f, 4, 1);
        cufile.fault("cuFileRead", 0, 1000, 1, -5044);
        for (unsigned i = 0; i < 20; i++)
                get_keys(f, 4, 1, 8);
        calls = cufile.calls("cuFileRead");
        assert_int_equal(calls, 16);
        assert_int_equal(fallbacks_of(f, KVCACHE_GPU_GDS_FAILED), 64);
        assert_int_equal(fallbacks_of(f, KVCACHE_GPU_GDS_PAUSED), 16);
}

static void what_was_dropped_meanwhile_is_not_taken(void **state)
{
        struct fixture *f = *state;

        begin_gds(f);
        put_keys(f, 4, 1);
        fake_daemon_lock(f->rig->d);
        f->rig->d->lent_is_stale = true;
        fake_daemon_unlock(f->rig->d);
        get_keys(f, 4, 1, 8);
        assert_fallbacks(f, KVCACHE_GPU_GDS_RECALLED, 4);
        assert_int_equal(info_of(f).gds.blocks, 0);
}

static void a_session_that_ends_during_reads_costs_nothing_but_time(void **state)
{
        struct fixture *f = *state;
        struct kvcache_gpu_completion c;
        struct job *j;

        begin_gds(f);
        put_keys(f, 4, 1);
        for (unsigned i = 0; i < 3; i++) {
                unsigned calls = cufile.calls("cuFileRead");

                clear(f);
                cufile.hold(true);
                j = job_of(f, 4, 1, 0);
                assert_int_equal(kvcache_gpu_get_blocks(f->gpu, &j->q), 0);
                while (cufile.calls("cuFileRead") == calls)
                        assert_int_equal(kvcache_gpu_reap(f->gpu, &c, 1, 0), 0);
                fake_daemon_hang_up(f->rig->d);
                cufile.hold(false);
                assert_int_equal(kvcache_gpu_reap(f->gpu, &c, 1, test_timeout_ms(60000)), 1);
                for (unsigned b = 0; b < 4; b++)
                        if (j->statuses[b] == KVCACHE_OK)
                                assert_true(block_is(f, b, 1 + b));
                        else
                                assert_int_equal(j->statuses[b], KVCACHE_LOST);
                get_keys(f, 4, 1, 8);
        }
        assert_int_equal(info_of(f).gds.files, 1);
}

/* --- without --- */

static void a_library_that_is_not_there_is_done_without(void **state)
{
        struct fixture *f = *state;

        connect_lender(f);
        assert_without(f, KVCACHE_GPU_GDS_LIBRARY, 0, 10);
        assert_required(f, "libcufile.so.0");
}

static void a_library_that_lacks_a_function_is_done_without(void **state)
{
        struct fixture *f = *state;

        connect_lender(f);
        assert_without(f, KVCACHE_GPU_GDS_SYMBOL, 0, 10);
        assert_required(f, "lacks cuFileBufDeregister()");
}

static void every_reason_has_a_name(void **state)
{
        for (int i = 0; i <= KVCACHE_GPU_GDS_HOLES; i++)
                assert_string_not_equal(kvcache_gpu_gds_reason_name(i), "unknown");
        assert_string_equal(kvcache_gpu_gds_reason_name(KVCACHE_GPU_GDS_HOLES + 1), "unknown");
        assert_string_equal(kvcache_gpu_gds_reason_name(-1), "unknown");
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup_gds, teardown_gds)
        const struct CMUnitTest tests[] = {
                TEST(a_cufile_that_does_not_open_is_done_without),
                TEST(memory_that_cufile_does_not_register_is_done_without),
                TEST(a_cufile_that_copies_by_itself_is_used_if_it_is_required),
                TEST(a_daemon_that_does_not_lend_is_not_asked_to),
                TEST(a_pool_that_is_not_registered_goes_without),
                TEST(the_next_daemon_may_lend),
                TEST(what_is_not_lent_is_got),
                TEST(what_is_not_lent_and_too_much_to_lease_is_got_in_parts),
                TEST(a_file_that_cannot_be_had_costs_its_blocks_the_way),
                TEST(a_file_without_direct_io_is_not_read),
                TEST(a_file_that_cufile_does_not_register_is_not_read),
                TEST(no_more_files_are_registered_than_can_be),
                TEST(a_block_that_is_longer_than_a_part_is_got),
                TEST(a_read_that_fails_is_made_up_for),
                TEST(one_failing_read_in_a_hundred_costs_its_block_alone),
                TEST(when_all_reads_fail_none_is_made_for_a_while),
                TEST(what_was_dropped_meanwhile_is_not_taken),
                TEST(a_session_that_ends_during_reads_costs_nothing_but_time),
                TEST(every_reason_has_a_name),
        };
        const struct CMUnitTest library[] = { TEST(a_library_that_is_not_there_is_done_without) };
        const struct CMUnitTest symbol[] = { TEST(
                a_library_that_lacks_a_function_is_done_without) };
        const char *without = argc > 1 ? argv[1] : "";

        if (!gpu_rig_open())
                return 1;
        if (strcmp(without, "library") == 0)
                return cmocka_run_group_tests_name("gds-library", library, NULL, NULL);
        if (!stub_cufile_load(&cufile))
                return 1;
        if (strcmp(without, "symbol") == 0)
                return cmocka_run_group_tests_name("gds-symbol", symbol, NULL, NULL);
        return cmocka_run_group_tests_name("gds-fallbacks", tests, NULL, NULL);
}

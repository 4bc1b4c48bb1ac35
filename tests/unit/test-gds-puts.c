/* SPDX-License-Identifier: Apache-2.0 */
/* Puts by GPUDirect Storage, with a stub cuFile, a stub driver and a fake daemon that accepts
 * files: which blocks cuFile writes, in what order, and that the others pass through the staging
 * memory, counted with the reason. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "checked.h"
#include "gds-rig.h"

static const char *folder = "/var/tmp";

/* Numbers of the calls of cuEventRecord() by a put of one batch that end its gather and its copy
 * back. The others only take the time. */
enum { GATHER_EVENT = 2, BACK_EVENT = 4 };

static int attach_puts(struct fixture *f, const char *path, uint64_t staging)
{
        struct kvcache_gpu_options o = options_of(KVCACHE_GPU_ENGINE_AUTO);

        o.gds_bytes = DEVICE_BYTES;
        o.gds_put_path = path;
        if (staging)
                o.staging_bytes = staging;
        return kvcache_gpu_attach(&f->gpu, f->kv, &o, NULL, 0);
}

static void connect_taker(struct fixture *f)
{
        connect_to(f, &(struct fake_options){
                              .pool_bytes = POOL, .lends = true, .takes_files = true });
}

static void begin_puts(struct fixture *f)
{
        connect_taker(f);
        assert_int_equal(attach_puts(f, folder, 0), 0);
}

static struct kvcache_gpu_gds_puts puts_of(struct fixture *f)
{
        return info_of(f).gds_puts;
}

/* Checks that `n` blocks went through staging for this reason, and none for another. */
static void assert_staged(struct fixture *f, enum kvcache_gpu_gds_reason reason, uint64_t n)
{
        struct kvcache_gpu_gds_puts p = puts_of(f);

        for (int i = KVCACHE_GPU_GDS_REASONS - 1; i >= 0; i--)
                if (p.fallbacks[i] != (i == (int)reason ? n : 0))
                        fail_msg("%llu blocks fell back: %s", (unsigned long long)p.fallbacks[i],
                                 kvcache_gpu_gds_reason_name(i));
}

static unsigned taken(struct fixture *f)
{
        unsigned n;

        fake_daemon_lock(f->rig->d);
        n = f->rig->d->file_puts;
        fake_daemon_unlock(f->rig->d);
        return n;
}

static void fail_puts(struct fixture *f, uint16_t status)
{
        fake_daemon_lock(f->rig->d);
        f->rig->d->file_put_status = status;
        fake_daemon_unlock(f->rig->d);
}

/* --- the ordinary way --- */

static void blocks_are_written_by_cufile_and_put_from_there(void **state)
{
        struct fixture *f = *state;
        struct kvcache_gpu_gds_puts p;

        begin_puts(f);
        for (unsigned kind = 1; kind <= 3; kind++) {
                lay_out(f, kind);
                put_keys(f, 8, 100 * kind);
                get_keys(f, 8, 100 * kind, 16);
        }
        p = puts_of(f);
        assert_int_equal(p.state, KVCACHE_GPU_GDS_NONE);
        assert_int_equal(p.blocks, 24);
        assert_int_equal(p.writes, 3);
        assert_int_equal(p.write_bytes, 24 * BLOCK);
        assert_int_equal(taken(f), 24);
        assert_int_equal(f->rig->d->files_registered, 1);
        assert_staged(f, KVCACHE_GPU_GDS_NONE, 0);
}

static void many_batches_do_not_meet_in_the_file(void **state)
{
        struct fixture *f = *state;

        begin_puts(f);
        for (unsigned round = 0; round < 20; round++) {
                struct kvcache_gpu_completion c;
                struct job *j[4];

                for (unsigned i = 0; i < 24; i++)
                        set_block(f, i, 1000 * (round + 1) + i);
                for (unsigned i = 0; i < 4; i++) {
                        j[i] = job_of(f, 6, 1000 * (round + 1) + i * 6, i * 6);
                        assert_int_equal(kvcache_gpu_put_blocks(f->gpu, &j[i]->q), 0);
                }
                for (unsigned done = 0; done < 4; done++)
                        assert_int_equal(kvcache_gpu_reap(f->gpu, &c, 1, test_timeout_ms(60000)),
                                         1);
                for (unsigned i = 0; i < 4; i++)
                        assert_statuses(j[i], KVCACHE_OK);
                get_keys(f, 24, 1000 * (round + 1), 0);
        }
        assert_int_equal(puts_of(f).blocks, 20 * 24);
        assert_staged(f, KVCACHE_GPU_GDS_NONE, 0);
}

/* The stub has overwritten the place and not written it yet. The engine may use its memory again
 * when the request is issued. */
static void nothing_is_put_before_it_is_written(void **state)
{
        struct fixture *f = *state;
        struct kvcache_gpu_completion c;
        struct job *j;

        begin_puts(f);
        for (unsigned i = 0; i < 8; i++)
                set_block(f, i, 1 + i);
        cufile.hold(true);
        j = job_of(f, 8, 1, 0);
        j->q.flags = KVCACHE_GPU_NOTIFY_ISSUED;
        assert_int_equal(kvcache_gpu_put_blocks(f->gpu, &j->q), 0);
        assert_int_equal(kvcache_gpu_reap(f->gpu, &c, 1, test_timeout_ms(60000)), 1);
        assert_int_equal(c.kind, KVCACHE_GPU_ISSUED);
        while (cufile.calls("cuFileWrite") == 0)
                assert_int_equal(kvcache_gpu_reap(f->gpu, &c, 1, 0), 0);
        clear(f);
        for (unsigned i = 0; i < 200; i++)
                assert_int_equal(kvcache_gpu_reap(f->gpu, &c, 1, 0), 0);
        assert_int_equal(taken(f), 0);
        assert_statuses(j, KVCACHE_PENDING);
        cufile.hold(false);
        assert_int_equal(kvcache_gpu_reap(f->gpu, &c, 1, test_timeout_ms(60000)), 1);
        assert_statuses(j, KVCACHE_OK);
        get_keys(f, 8, 1, 0);
}

static void without_a_folder_puts_go_as_ever(void **state)
{
        struct fixture *f = *state;

        connect_taker(f);
        assert_int_equal(attach_puts(f, NULL, 0), 0);
        put_keys(f, 4, 1);
        assert_int_equal(puts_of(f).state, KVCACHE_GPU_GDS_OFF);
        assert_int_equal(cufile.calls("cuFileWrite") + taken(f), 0);
        assert_staged(f, KVCACHE_GPU_GDS_NONE, 0);
}

/* --- unavailable resources --- */

static void a_folder_that_will_not_do_is_done_without(void **state)
{
        static const char *const paths[] = { "/nonexistent", "/proc", "/dev/null" };
        struct fixture *f = *state;

        connect_taker(f);
        for (unsigned i = 0; i < ARRAY_SIZE(paths); i++) {
                assert_int_equal(attach_puts(f, paths[i], 0), 0);
                put_keys(f, 4, 10 * (i + 1));
                get_keys(f, 4, 10 * (i + 1), 8);
                assert_staged(f, KVCACHE_GPU_GDS_FILE, 4);
                assert_true(puts_of(f).error < 0);
                assert_int_equal(puts_of(f).state, KVCACHE_GPU_GDS_FILE);
                detach_gds(f);
        }
}

static void its_file_keeps_no_name(void **state)
{
        char scratch[] = "/var/tmp/kvcache-test-puts.XXXXXX";
        struct fixture *f = *state;

        assert_non_null(mkdtemp(scratch));
        connect_taker(f);
        for (uint64_t i = 0; i < 2; i++) {
                assert_int_equal(attach_puts(f, scratch, 0), 0);
                if (i == 1)
                        cufile.fault("cuFileHandleRegister", 0, 1, 1, 5031);
                put_keys(f, 4, 10 * (i + 1));
                assert_int_equal(puts_of(f).state,
                                 i ? KVCACHE_GPU_GDS_HANDLE : KVCACHE_GPU_GDS_NONE);
                assert_int_equal(rmdir(scratch), 0); /* the folder is empty */
                assert_int_equal(mkdir(scratch, 0700), 0);
                detach_gds(f);
        }
        assert_int_equal(rmdir(scratch), 0);
}

static void a_file_that_cufile_does_not_register_is_not_written(void **state)
{
        struct fixture *f = *state;

        connect_taker(f);
        for (int error = 5001; error <= 5050; error++) {
                assert_int_equal(attach_puts(f, folder, 0), 0);
                cufile.fault("cuFileHandleRegister", 0, 1, 1, error);
                put_keys(f, 4, (uint64_t)error * 10);
                assert_staged(f, KVCACHE_GPU_GDS_HANDLE, 4);
                assert_int_equal(puts_of(f).error, error);
                put_keys(f, 4, (uint64_t)error * 10 + 4); /* registration is not tried each time */
                assert_staged(f, KVCACHE_GPU_GDS_HANDLE, 8);
                detach_gds(f);
        }
        assert_int_equal(cufile.calls("cuFileWrite") + taken(f), 0);
}

static void a_daemon_that_takes_no_files_is_put_to_as_ever(void **state)
{
        struct fixture *f = *state;

        connect_lender(f);
        assert_int_equal(attach_puts(f, folder, 0), 0);
        put_keys(f, 4, 1);
        assert_staged(f, KVCACHE_GPU_GDS_DAEMON, 4);
        get_keys(f, 4, 1, 8);
        assert_int_equal(f->rig->d->files_registered, 0);
}

static void a_daemon_that_refuses_the_file_is_put_to_as_ever(void **state)
{
        struct fixture *f = *state;

        connect_taker(f);
        assert_int_equal(attach_puts(f, folder, 0), 0);
        fake_daemon_lock(f->rig->d);
        f->rig->d->o.refuse_register = "not a file of ext4 or XFS on a disk";
        fake_daemon_unlock(f->rig->d);
        put_keys(f, 4, 1);
        assert_staged(f, KVCACHE_GPU_GDS_FILE, 4);
        get_keys(f, 4, 1, 8);
}

static void without_gds_for_gets_there_is_none_for_puts(void **state)
{
        struct fixture *f = *state;

        connect_taker(f);
        cufile.fault("cuFileDriverOpen", 0, 1, 1, 5001);
        assert_int_equal(attach_puts(f, folder, 0), 0);
        put_keys(f, 4, 1);
        assert_staged(f, KVCACHE_GPU_GDS_DRIVER, 4);
        get_keys(f, 4, 1, 8);
}

static void a_short_block_goes_as_ever(void **state)
{
        struct fixture *f = *state;
        struct job *j;

        begin_puts(f);
        set_block(f, 0, 1);
        j = job_of(f, 1, 1, 0);
        j->blocks[0].tokens = 1; /* of sixteen */
        assert_int_equal(put(f, j), 0);
        assert_statuses(j, KVCACHE_OK);
        assert_staged(f, KVCACHE_GPU_GDS_SMALL, 1);
}

/* --- operations that fail --- */

static void a_write_that_fails_is_made_up_for(void **state)
{
        static const int results[] = { -1, 0, 1, 4096, BLOCK - 1, -5001, -5010, -5027, -5044 };
        struct fixture *f = *state;
        struct kvcache_gpu_completion c;
        uint64_t failed = 0, cut = 0;

        begin_puts(f);
        for (unsigned i = 0; i < ARRAY_SIZE(results); i++) {
                struct job *j;

                for (unsigned b = 0; b < 4; b++)
                        set_block(f, b, 10 * (i + 1) + b);
                cufile.fault("cuFileWrite", 0, 1, 1, results[i]);
                j = job_of(f, 4, 10 * (i + 1), 0);
                j->q.flags = KVCACHE_GPU_NOTIFY_ISSUED;
                assert_int_equal(kvcache_gpu_put_blocks(f->gpu, &j->q), 0);
                assert_int_equal(kvcache_gpu_reap(f->gpu, &c, 1, test_timeout_ms(60000)), 1);
                if (c.kind == KVCACHE_GPU_ISSUED) {
                        /* The blocks have been gathered by the time that cuFile is asked. */
                        while (cufile.calls("cuFileWrite") == i)
                                (void)kvcache_gpu_reap(f->gpu, &c, 0 + 1, 0);
                        clear(f);
                        if (c.kind == KVCACHE_GPU_ISSUED)
                                assert_int_equal(
                                        kvcache_gpu_reap(f->gpu, &c, 1, test_timeout_ms(60000)), 1);
                }
                assert_int_equal(c.kind, KVCACHE_GPU_DONE);
                assert_int_equal(c.error, 0);
                assert_statuses(j, KVCACHE_OK);
                get_keys(f, 4, 10 * (i + 1), 8);
                failed += results[i] < 0 ? 4 : 0;
                cut += results[i] < 0 ? 0 : 4;
                assert_int_equal(puts_of(f).fallbacks[KVCACHE_GPU_GDS_FAILED], failed);
                assert_int_equal(puts_of(f).fallbacks[KVCACHE_GPU_GDS_TOO_SHORT], cut);
                if (results[i] < 0)
                        assert_int_equal(puts_of(f).error, results[i] == -1 ? -EIO : -results[i]);
        }
        assert_int_equal(taken(f), 0);
        put_keys(f, 4, 1);
        assert_int_equal(puts_of(f).blocks, 4);
}

static void one_failing_write_in_a_hundred_costs_its_blocks_alone(void **state)
{
        struct fixture *f = *state;
        uint64_t failed;

        begin_puts(f);
        cufile.fault("cuFileWrite", 0, 1000, 100, -1);
        for (unsigned i = 0; i < 400; i++) {
                put_keys(f, 2, 10 * (i + 1));
                if (i % 20 == 0)
                        get_keys(f, 2, 10 * (i + 1), 8);
        }
        failed = puts_of(f).fallbacks[KVCACHE_GPU_GDS_FAILED];
        assert_int_equal(failed, 8);
        assert_int_equal(puts_of(f).blocks, 800 - failed);
        assert_staged(f, KVCACHE_GPU_GDS_FAILED, failed);
        for (unsigned i = 0; i < 400; i += 7)
                get_keys(f, 2, 10 * (i + 1), 8);
}

static void what_the_daemon_cannot_take_from_the_file_goes_through_staging(void **state)
{
        struct fixture *f = *state;

        begin_puts(f);
        fail_puts(f, WIRE_FAILED);
        put_keys(f, 8, 1);
        assert_staged(f, KVCACHE_GPU_GDS_PUT, 8);
        get_keys(f, 8, 1, 0);
        fail_puts(f, WIRE_INVALID);
        put_keys(f, 8, 101);
        assert_staged(f, KVCACHE_GPU_GDS_PUT, 16);
        get_keys(f, 8, 101, 0);
        assert_int_equal(puts_of(f).blocks, 0);
        assert_int_equal(taken(f), 16);
}

/* Failures unrelated to the file are not retried. */
static void what_the_daemon_has_no_room_for_has_that_status(void **state)
{
        static const uint16_t statuses[] = { WIRE_BUSY, WIRE_QUOTA, WIRE_NO_SPACE, WIRE_TOO_LARGE };
        struct fixture *f = *state;

        begin_puts(f);
        for (unsigned i = 0; i < ARRAY_SIZE(statuses); i++) {
                struct job *j = job_of(f, 4, 10 * (i + 1), 0);

                fail_puts(f, statuses[i]);
                assert_int_equal(put(f, j), 0);
                assert_statuses(j, statuses[i]);
        }
        assert_staged(f, KVCACHE_GPU_GDS_NONE, 0);
}

/* A batch for the file may be longer than a part of the staging memory, so the remaining blocks
 * need several rounds. */
static void what_is_left_goes_in_as_many_rounds_as_it_takes(void **state)
{
        struct fixture *f = *state;

        connect_taker(f);
        assert_int_equal(attach_puts(f, folder, 8 * round_up((uint64_t)BLOCK, 4096ul) * 3), 0);
        fail_puts(f, WIRE_FAILED);
        put_keys(f, BLOCKS, 1); /* one batch, and eight rounds of three */
        assert_staged(f, KVCACHE_GPU_GDS_PUT, BLOCKS);
        get_keys(f, BLOCKS, 1, 0);
        assert_int_equal(cufile.calls("cuFileWrite"), 1);
}

static void when_all_fail_none_is_tried_for_a_while(void **state)
{
        struct fixture *f = *state;

        begin_puts(f);
        cufile.fault("cuFileWrite", 0, 1000, 1, -5044);
        for (unsigned i = 0; i < 20; i++)
                put_keys(f, 4, 10 * (i + 1));
        assert_int_equal(cufile.calls("cuFileWrite"), 16);
        assert_int_equal(puts_of(f).fallbacks[KVCACHE_GPU_GDS_FAILED], 64);
        assert_int_equal(puts_of(f).fallbacks[KVCACHE_GPU_GDS_PAUSED], 16);
        get_keys(f, 4, 10, 8); /* gets are not paused */
        assert_int_equal(info_of(f).gds.blocks, 4);
}

static void a_failed_gather_is_no_success_of_the_file(void **state)
{
        struct fixture *f = *state;
        struct job *j;

        begin_puts(f);
        put_keys(f, 4, 1); /* creates all resources */
        for (unsigned i = 0; i < 16; i++) {
                if (i == 15) {
                        j = job_of(f, 4, 500, 0);
                        stub.fault("cuEventRecord", GATHER_EVENT, 1, CU_ERROR_OUT_OF_MEMORY);
                        assert_int_equal(put(f, j), -EIO);
                        stub.reset();
                        assert_statuses(j, KVCACHE_FAILED);
                        assert_int_equal(cufile.calls("cuFileWrite"), 1 + i);
                }
                cufile.fault("cuFileWrite", 0, 1, 1, -5044);
                put_keys(f, 4, 10 * (i + 1));
        }
        assert_int_equal(puts_of(f).fallbacks[KVCACHE_GPU_GDS_FAILED], 64);
        put_keys(f, 4, 1000);
        assert_int_equal(puts_of(f).fallbacks[KVCACHE_GPU_GDS_PAUSED], 4);
}

/* The file is not to blame for the failures of the driver. */
static void failed_gathers_do_not_pause_the_file(void **state)
{
        struct fixture *f = *state;

        begin_puts(f);
        put_keys(f, 4, 1); /* creates all resources */
        for (unsigned i = 0; i < 20; i++) {
                struct job *j = job_of(f, 4, 10 * (i + 1), 0);

                stub.fault("cuEventRecord", GATHER_EVENT, 1, CU_ERROR_OUT_OF_MEMORY);
                assert_int_equal(put(f, j), -EIO);
                stub.reset();
        }
        put_keys(f, 4, 1000);
        assert_int_equal(puts_of(f).blocks, 8);
        assert_int_equal(puts_of(f).fallbacks[KVCACHE_GPU_GDS_PAUSED], 0);
}

static void a_copy_back_that_the_driver_refuses_costs_its_blocks(void **state)
{
        struct fixture *f = *state;
        struct job *j;

        begin_puts(f);
        put_keys(f, 4, 1); /* creates all resources */
        fail_puts(f, WIRE_FAILED);
        j = job_of(f, 4, 10, 0);
        stub.fault("cuEventRecord", BACK_EVENT, 1, CU_ERROR_OUT_OF_MEMORY);
        assert_int_equal(put(f, j), -EIO);
        assert_int_equal(cufile.calls("cuFileWrite"), 2);
        stub.reset();
        assert_statuses(j, KVCACHE_FAILED);
        fail_puts(f, WIRE_OK);
        put_keys(f, 4, 20);
        get_keys(f, 4, 20, 8);
}

/* --- the end of a session --- */

static void a_daemon_that_ends_costs_nothing_but_its_puts(void **state)
{
        struct fake_options o = { .pool_bytes = POOL, .lends = true, .takes_files = true };
        struct fixture *f = *state;
        struct kvcache_gpu_completion c;
        struct job *j;

        begin_puts(f);
        for (unsigned i = 0; i < 3; i++) {
                unsigned calls = cufile.calls("cuFileWrite");

                for (unsigned b = 0; b < 4; b++)
                        set_block(f, b, 10 * (i + 1) + b);
                cufile.hold(true);
                j = job_of(f, 4, 10 * (i + 1), 0);
                assert_int_equal(kvcache_gpu_put_blocks(f->gpu, &j->q), 0);
                while (cufile.calls("cuFileWrite") == calls)
                        assert_int_equal(kvcache_gpu_reap(f->gpu, &c, 1, 0), 0);
                fake_daemon_kill(f->rig->d, false);
                f->rig->d = fake_daemon_free(f->rig->d);
                cufile.hold(false);
                assert_int_equal(kvcache_gpu_reap(f->gpu, &c, 1, test_timeout_ms(60000)), 1);
                assert_statuses(j, KVCACHE_LOST);
                start_daemon(f, &o);
                put_keys(f, 4, 1000 * (i + 1));
                get_keys(f, 4, 1000 * (i + 1), 8);
        }
        assert_true(puts_of(f).blocks >= 12);
}

static void a_next_daemon_that_takes_no_files_is_put_to_as_ever(void **state)
{
        struct fake_options o = { .pool_bytes = POOL, .lends = true, .takes_files = true };
        struct fixture *f = *state;
        struct job *j;

        begin_puts(f);
        put_keys(f, 4, 1);
        fake_daemon_kill(f->rig->d, false);
        f->rig->d = fake_daemon_free(f->rig->d);
        j = job_of(f, 4, 1, 0);
        (void)put(f, j); /* there is no daemon */
        o.takes_files = false;
        start_daemon(f, &o);
        put_keys(f, 4, 20);
        get_keys(f, 4, 20, 8);
        assert_int_equal(puts_of(f).fallbacks[KVCACHE_GPU_GDS_PUT], 4);
}

/* Memory that the daemon may still read is not overwritten. */
static void a_place_that_may_still_be_read_is_not_used(void **state)
{
        struct fixture *f = *state;
        struct job *j;

        begin_puts(f);
        put_keys(f, 4, 1);
        fake_daemon_hold(f->rig->d, 1u << WIRE_PUT);
        for (unsigned i = 0; i < 3; i++) {
                j = job_of(f, 4, 100 * (i + 1), 0);
                j->q.timeout_ms = 1;
                assert_int_equal(put(f, j), 0);
                assert_statuses(j, KVCACHE_PENDING);
        }
        assert_int_equal(kvcache_gpu_detach(f->gpu, 30), -ETIMEDOUT);
        fake_daemon_hold(f->rig->d, 0);
        put_keys(f, 4, 1000);
        get_keys(f, 4, 1000, 8);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup_gds, teardown_gds)
        const struct CMUnitTest tests[] = {
                TEST(blocks_are_written_by_cufile_and_put_from_there),
                TEST(many_batches_do_not_meet_in_the_file),
                TEST(nothing_is_put_before_it_is_written),
                TEST(without_a_folder_puts_go_as_ever),
                TEST(a_folder_that_will_not_do_is_done_without),
                TEST(its_file_keeps_no_name),
                TEST(a_file_that_cufile_does_not_register_is_not_written),
                TEST(a_daemon_that_takes_no_files_is_put_to_as_ever),
                TEST(a_daemon_that_refuses_the_file_is_put_to_as_ever),
                TEST(without_gds_for_gets_there_is_none_for_puts),
                TEST(a_short_block_goes_as_ever),
                TEST(a_write_that_fails_is_made_up_for),
                TEST(one_failing_write_in_a_hundred_costs_its_blocks_alone),
                TEST(what_the_daemon_cannot_take_from_the_file_goes_through_staging),
                TEST(what_the_daemon_has_no_room_for_has_that_status),
                TEST(what_is_left_goes_in_as_many_rounds_as_it_takes),
                TEST(when_all_fail_none_is_tried_for_a_while),
                TEST(a_failed_gather_is_no_success_of_the_file),
                TEST(failed_gathers_do_not_pause_the_file),
                TEST(a_copy_back_that_the_driver_refuses_costs_its_blocks),
                TEST(a_daemon_that_ends_costs_nothing_but_its_puts),
                TEST(a_next_daemon_that_takes_no_files_is_put_to_as_ever),
                TEST(a_place_that_may_still_be_read_is_not_used),
        };
        int fd;

        if (!gpu_rig_open() || !stub_cufile_load(&cufile))
                return 1;
        fd = open(folder, O_TMPFILE | O_RDWR | O_DIRECT, 0600); /* equivalent to a named file
                                                                   here */
        if (fd < 0)
                return 77; /* the folder is on a file system without O_TMPFILE or O_DIRECT */
        close(fd);
        return cmocka_run_group_tests_name("gds-puts", tests, NULL, NULL);
}

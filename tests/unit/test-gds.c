/* SPDX-License-Identifier: Apache-2.0 */
/* GPUDirect Storage with a stub cuFile, a stub driver and a fake daemon that lends: which blocks it
 * reads, and in what order. test-gds-fallbacks.c has the others. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gds-rig.h"

/* --- the ordinary way --- */

static void blocks_on_disk_are_read_by_cufile(void **state)
{
        struct fixture *f = *state;
        struct kvcache_gpu_gds gds;

        begin_gds(f);
        for (unsigned kind = 1; kind <= 3; kind++) {
                lay_out(f, kind);
                put_keys(f, 8, 100 * kind);
                get_keys(f, 8, 100 * kind, 16);
        }
        gds = info_of(f).gds;
        assert_int_equal(gds.blocks, 24);
        assert_int_equal(gds.reads, 3); /* adjacent chunks are one read */
        assert_int_equal(gds.read_bytes, 24 * BLOCK);
        assert_int_equal(gds.files, 1);
        assert_int_equal(info_of(f).counts.blocks_from_pool, 0);
        assert_fallbacks(f, KVCACHE_GPU_GDS_NONE, 0);
        assert_int_equal(f->rig->d->loans_held, 0);
        assert_int_equal(f->rig->d->requests[WIRE_GET], 3); /* a single one for a batch */
        assert_int_equal(f->rig->d->requests[WIRE_GIVE_BACK], 3);
        assert_int_equal(f->rig->d->requests[WIRE_LENT_FILE], 1);
}

static void layers_and_tokens_are_read_alone(void **state)
{
        struct fixture *f = *state;
        struct job *j;

        begin_gds(f);
        put_keys(f, 3, 1);
        clear(f);
        j = job_of(f, 3, 1, 0);
        j->q.first_layer = 1;
        j->q.n_layers = 1;
        assert_int_equal(get(f, j), 0);
        assert_statuses(j, KVCACHE_OK);
        assert_int_equal(*(uint8_t *)stub.memory(f->bases[0]), 0xee);
        assert_int_equal(*(uint8_t *)stub.memory(f->bases[1]), byte_of(1, 2 * REGION));
        assert_int_equal(*(uint8_t *)stub.memory(f->bases[2]), 0xee);
        set_block(f, 0, 50);
        j = job_of(f, 1, 50, 0);
        j->blocks[0].tokens = 3;
        assert_int_equal(put(f, j), 0);
        clear(f);
        assert_int_equal(get(f, j), 0);
        assert_statuses(j, KVCACHE_OK);
        assert_int_equal(((uint8_t *)stub.memory(f->bases[0]))[3 * 128 - 1],
                         byte_of(50, 3 * 128 - 1));
        assert_int_equal(((uint8_t *)stub.memory(f->bases[0]))[3 * 128], 0xee);
        assert_int_equal(info_of(f).gds.blocks, 4);
}

static void each_block_has_its_own_status(void **state)
{
        struct fixture *f = *state;
        struct job *j;

        begin_gds(f);
        put_keys(f, 3, 1);
        assert_int_equal(kvcache_put(f->kv, f->rig->ns, &(struct kvcache_key){ { 9 } }, "short", 5,
                                     KVCACHE_ACCEPTED),
                         KVCACHE_OK);
        clear(f);
        j = job_of(f, 5, 1, 0);
        j->blocks[1].key = rig_key(999);
        j->blocks[3].key = (struct kvcache_key){ { 9 } };
        j->blocks[4].key = rig_key(2);
        assert_int_equal(get(f, j), 0);
        assert_int_equal(j->statuses[0], KVCACHE_OK);
        assert_int_equal(j->statuses[1], KVCACHE_MISS);
        assert_int_equal(j->statuses[2], KVCACHE_OK);
        assert_int_equal(j->statuses[3], KVCACHE_MISMATCH);
        assert_int_equal(j->statuses[4], KVCACHE_OK);
        assert_true(block_is(f, 0, 1) && block_is(f, 2, 3) && block_is(f, 4, 2));
        assert_int_equal(((uint8_t *)stub.memory(f->bases[0] + REGION))[0], 0xee);
        assert_int_equal(f->rig->d->loans_held, 0); /* the one of a wrong length, too */
        assert_fallbacks(f, KVCACHE_GPU_GDS_NONE, 0);
}

static void switched_off_nothing_is_borrowed(void **state)
{
        struct fixture *f = *state;

        connect_lender(f);
        assert_int_equal(attach_gds(f, KVCACHE_GPU_GDS_NEVER, NULL), 0);
        assert_int_equal(info_of(f).gds.state, KVCACHE_GPU_GDS_OFF);
        put_keys(f, 4, 1);
        get_keys(f, 4, 1, 8);
        assert_int_equal(f->rig->d->loans_ever, 0);
        assert_fallbacks(f, KVCACHE_GPU_GDS_NONE, 0);
}

/* --- order --- */

static void steps(struct fixture *f, unsigned seed)
{
        struct kvcache_gpu_completion c;

        for (unsigned i = 0; i < 200; i++) {
                assert_int_equal(kvcache_gpu_reap(f->gpu, &c, 1, 0), 0);
                (void)stub.step(seed = seed * 1664525 + 1013904223);
        }
}

/* The stub has overwritten the target and not read yet. Neither a block nor work that follows the
 * request may see that. */
static void nothing_is_scattered_before_it_has_been_read(void **state)
{
        struct fixture *f = *state;
        struct kvcache_gpu_completion c[2];
        struct job *j;
        cu_event done;

        begin_gds(f);
        put_keys(f, 8, 1);
        assert_int_equal(cuda.event_create(&done, CU_EVENT_IS_UNTIMED), CU_OK);
        clear(f);
        cufile.hold(true);
        j = job_of(f, 8, 1, 0);
        j->q.flags = KVCACHE_GPU_NOTIFY_ISSUED;
        j->q.after_event = done;
        assert_int_equal(kvcache_gpu_get_blocks(f->gpu, &j->q), 0);
        while (cufile.calls("cuFileRead") == 0)
                assert_int_equal(kvcache_gpu_reap(f->gpu, c, 1, 0), 0);
        steps(f, 7);
        for (unsigned i = 0; i < MEMORY; i++)
                if (((uint8_t *)stub.memory(f->device))[i] != 0xee)
                        fail_msg("byte %u is written before it is read", i);
        assert_statuses(j, KVCACHE_PENDING);
        cufile.hold(false);
        for (unsigned n = 0; n < 2;) {
                int r = kvcache_gpu_reap(f->gpu, c, 2 - n, test_timeout_ms(60000));

                assert_true(r > 0);
                n += (unsigned)r;
        }
        assert_statuses(j, KVCACHE_OK);
        /* The event is recorded after the library's own work. */
        while (cuda.event_query(done) == CU_ERROR_NOT_READY)
                (void)stub.step(1);
        assert_int_equal(cuda.event_query(done), CU_OK);
        for (unsigned i = 0; i < 8; i++)
                assert_true(block_is(f, i, 1 + i));
        assert_int_equal(cuda.event_destroy(done), CU_OK);
}

/* Reads of many requests are under way at a time, and their device memory is used over and over. */
static void many_requests_do_not_meet_in_the_device_memory(void **state)
{
        struct fixture *f = *state;
        struct stub_cufile_live live;

        begin_gds(f);
        for (unsigned i = 0; i < 10; i++)
                put_keys(f, BLOCKS, 100 * (i + 1));
        for (unsigned round = 0; round < 30; round++) {
                struct kvcache_gpu_completion c;
                struct job *j[4];
                unsigned done = 0;

                clear(f);
                for (unsigned i = 0; i < 4; i++) {
                        j[i] = job_of(f, 6, 100 * (1 + (round + i) % 10), i * 6);
                        assert_int_equal(kvcache_gpu_get_blocks(f->gpu, &j[i]->q), 0);
                }
                while (done < 4) {
                        assert_int_equal(kvcache_gpu_reap(f->gpu, &c, 1, test_timeout_ms(60000)),
                                         1);
                        done++;
                }
                for (unsigned i = 0; i < 24; i++) {
                        assert_statuses(j[i / 6], KVCACHE_OK);
                        assert_true(block_is(f, i, 100 * (1 + (round + i / 6) % 10) + i % 6));
                }
        }
        assert_int_equal(info_of(f).gds.blocks, 30 * 24);
        cufile.live(&live);
        assert_true(live.most_at_a_time > 1);
}

static void detaching_waits_for_reads(void **state)
{
        struct fixture *f = *state;
        struct job *j;

        begin_gds(f);
        put_keys(f, 4, 1);
        clear(f);
        cufile.hold(true);
        j = job_of(f, 4, 1, 0);
        assert_int_equal(kvcache_gpu_get_blocks(f->gpu, &j->q), 0);
        assert_int_equal(kvcache_gpu_detach(f->gpu, 30), -ETIMEDOUT);
        cufile.hold(false);
        detach_gds(f);
        for (unsigned i = 0; i < 4; i++)
                assert_true(block_is(f, i, 1 + i));
}

/* --- with a limit of leases --- */

enum { PART_BLOCKS = 10, IN_MEMORY = 2, LEASED = 3 };

/* Keys 1 and 2 are in memory, the others on disk. A part of the device memory holds 10 blocks. */
static void begin_limited(struct fixture *f)
{
        struct kvcache_gpu_options o = options_of(KVCACHE_GPU_ENGINE_AUTO);
        char why[CUFILE_TEXT] = "";

        connect_to(f, &(struct fake_options){ .pool_bytes = POOL,
                                              .lends = true,
                                              .in_memory = IN_MEMORY,
                                              .lease_bytes = LEASED * BLOCK });
        o.gds_bytes = 1 << 20;
        if (kvcache_gpu_attach(&f->gpu, f->kv, &o, why, sizeof(why)) < 0)
                fail_msg("%s", why);
        put_keys(f, BLOCKS, 1);
        clear(f);
}

/* The limit holds up more batches than the device memory has parts, which the others need. */
static void batches_that_wait_for_leases_keep_no_device_memory(void **state)
{
        struct fixture *f = *state;
        struct job *j;

        begin_limited(f);
        j = job_of(f, 16 * PART_BLOCKS, 3, 0);
        for (unsigned i = 0; i < 16 * PART_BLOCKS; i++) {
                j->blocks[i].key = rig_key(i % PART_BLOCKS == 0 ? 1 : 3 + i % 22);
                j->blocks[i].block = i % PART_BLOCKS == 0 ? 0 : 2 + i % 22;
        }
        assert_int_equal(get(f, j), 0);
        assert_statuses(j, KVCACHE_OK);
        for (unsigned i = 0; i < BLOCKS; i++)
                assert_true(i == 1 || block_is(f, i, 1 + i));
        assert_true(f->rig->d->most_leased <= LEASED * BLOCK);
        assert_true(info_of(f).blocks_paced > 8);
        assert_int_equal(info_of(f).gds.blocks, 16 * (PART_BLOCKS - 1));
        assert_fallbacks(f, KVCACHE_GPU_GDS_NONE, 0);
}

/* The daemon answers the later request first, so it takes all device memory and all leases, which
 * it must return before the earlier request can continue. */
static void a_later_request_with_all_device_memory_gives_way(void **state)
{
        struct fixture *f = *state;
        struct kvcache_gpu_completion c;
        struct fake_daemon *d;
        struct job *j[2];
        size_t n = GDS_PARTS * PART_BLOCKS;

        begin_limited(f);
        d = f->rig->d;
        fake_daemon_hold(d, 1u << WIRE_GET);
        j[0] = job_of(f, 1, 2, 1);
        assert_int_equal(kvcache_gpu_get_blocks(f->gpu, &j[0]->q), 0);
        assert_true(fake_daemon_wait(d, &d->requests[WIRE_GET], 1));
        fake_daemon_lock(d);
        d->hold_ops = 0;
        fake_daemon_unlock(d);
        j[1] = job_of(f, n + LEASED + 1, 3, 2);
        for (size_t i = 0; i < n + LEASED + 1; i++) {
                bool on_disk = i < n || i == n + LEASED;

                j[1]->blocks[i].key = rig_key(on_disk ? 3 + i % 22 : 1);
                j[1]->blocks[i].block = on_disk ? 2 + i % 22 : 0;
        }
        assert_int_equal(kvcache_gpu_get_blocks(f->gpu, &j[1]->q), 0);
        assert_true(fake_daemon_wait(d, &d->leases_held, LEASED));
        assert_int_equal(kvcache_gpu_reap(f->gpu, &c, 1, 10), 0);
        fake_daemon_hold(d, 0);
        for (unsigned i = 0; i < 2; i++) {
                assert_int_equal(kvcache_gpu_reap(f->gpu, &c, 1, test_timeout_ms(60000)), 1);
                assert_int_equal(c.error, 0);
                assert_statuses(j[i], KVCACHE_OK);
        }
        for (unsigned i = 0; i < BLOCKS; i++)
                assert_true(block_is(f, i, 1 + i));
        assert_true(d->most_leased <= LEASED * BLOCK);
        assert_true(fallbacks_of(f, KVCACHE_GPU_GDS_BUFFER) > 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup_gds, teardown_gds)
        const struct CMUnitTest tests[] = {
                TEST(blocks_on_disk_are_read_by_cufile),
                TEST(layers_and_tokens_are_read_alone),
                TEST(each_block_has_its_own_status),
                TEST(switched_off_nothing_is_borrowed),
                TEST(nothing_is_scattered_before_it_has_been_read),
                TEST(many_requests_do_not_meet_in_the_device_memory),
                TEST(detaching_waits_for_reads),
                TEST(batches_that_wait_for_leases_keep_no_device_memory),
                TEST(a_later_request_with_all_device_memory_gives_way),
        };

        if (!gpu_rig_open() || !stub_cufile_load(&cufile))
                return 1;
        return cmocka_run_group_tests_name("gds", tests, NULL, NULL);
}

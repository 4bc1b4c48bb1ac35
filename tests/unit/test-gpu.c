/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of a GPU, against a stub driver and a fake daemon: order, faults, what either refuses. */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "checked.h"
#include "gpu-rig.h"

/* --- the ordinary way --- */

static void blocks_go_out_and_come_back_in_every_layout(void **state)
{
        struct fixture *f = *state;

        begin(f);
        for (unsigned kind = 1; kind <= 3; kind++) {
                struct job *j;

                lay_out(f, kind);
                put_keys(f, 8, 100 * kind);
                clear(f);
                j = job_of(f, 8, 100 * kind, 16);
                assert_int_equal(get(f, j), 0);
                assert_statuses(j, KVCACHE_OK);
                for (unsigned i = 0; i < 8; i++)
                        assert_true(block_is(f, 16 + i, 100 * kind + i));
        }
        assert_int_equal(info_of(f).counts.blocks_from_pool, 24);
        assert_int_equal(info_of(f).counts.blocks_through_staging, 0);
        assert_int_equal(kvcache_flush(f->kv), 0); /* releases that wait for the next message */
        assert_true(fake_daemon_wait_leases(f->rig->d, 0));
}

static void a_put_says_what_its_blocks_cost(void **state)
{
        struct fixture *f = *state;
        struct job *j;

        begin(f);
        j = job_of(f, 2, 1, 0);
        j->blocks[0].cost_us = 4321;
        assert_int_equal(put(f, j), 0);
        for (unsigned i = f->rig->d->n_log; i-- > 0;)
                if (f->rig->d->log[i].op == WIRE_PUT) {
                        assert_int_equal(f->rig->d->log[i].cost_us, 4321);
                        return;
                }
        fail();
}

static void what_one_layout_stored_another_can_load(void **state)
{
        struct fixture *f = *state;
        struct job *j;

        begin(f);
        put_keys(f, 4, 1);
        lay_out(f, KVCACHE_LAYOUT_CONTIGUOUS);
        clear(f);
        j = job_of(f, 4, 1, 3);
        assert_int_equal(get(f, j), 0);
        for (unsigned i = 0; i < 4; i++)
                assert_true(block_is(f, 3 + i, 1 + i));
}

static void more_blocks_than_batches_hold_go_through_in_turn(void **state)
{
        struct fixture *f = *state;
        struct job *j;

        begin(f);
        for (uint64_t key = 0; key < 200; key += BLOCKS)
                put_keys(f, MIN((uint64_t)BLOCKS, 200 - key), 1000 + key);
        j = job_of(f, 200, 1000, 0);
        assert_int_equal(put(f, j), 0);
        assert_statuses(j, KVCACHE_EXISTS);
        clear(f);
        j = job_of(f, 200, 1000, 0);
        assert_int_equal(get(f, j), 0);
        assert_statuses(j, KVCACHE_OK);
        j = job_of(f, BLOCKS, 1200 - BLOCKS, 0);
        assert_int_equal(get(f, j), 0);
        assert_statuses(j, KVCACHE_OK);
        for (unsigned i = 0; i < BLOCKS; i++)
                assert_true(block_is(f, i, 1200 - BLOCKS + i));
}

/* Ten times all blocks, which is more than a part of the bounce memory holds that was cut down to
 * the least: each list takes several turns. */
static void small_pieces_come_through_device_memory(void **state)
{
        static const struct {
                uint32_t flags;
                unsigned refused; /* requests for device memory */
                uint64_t bounce_bytes;
        } ways[] = {
                { 0, 0, 64 << 20 }, { 0, 5, 2 << 20 }, { 0, 6, 0 }, { KVCACHE_GPU_NO_BOUNCE, 0, 0 }
        };
        struct fixture *f = *state;

        connect_to(f, &(struct fake_options){ .pool_bytes = 256 << 20 });
        for (unsigned w = 0; w < ARRAY_SIZE(ways); w++) {
                struct kvcache_gpu_options o = options_of(KVCACHE_GPU_ENGINE_BOUNCE);
                struct kvcache_gpu_counts before;
                struct kvcache_gpu_info info;
                struct job *j;
                unsigned launches;

                stub.reset();
                o.flags = ways[w].flags;
                stub.fault("cuMemAlloc_v2", 1, ways[w].refused, CU_ERROR_OUT_OF_MEMORY);
                assert_int_equal(kvcache_gpu_attach(&f->gpu, f->kv, &o, NULL, 0), 0);
                put_keys(f, BLOCKS, 100 * w);
                clear(f);
                before = info_of(f).counts;
                j = job_of(f, 10 * BLOCKS, 0, 0);
                for (unsigned i = 0; i < 10 * BLOCKS; i++)
                        j->blocks[i].key = rig_key(100 * w + i % BLOCKS);
                assert_int_equal(get(f, j), 0);
                assert_statuses(j, KVCACHE_OK);
                for (unsigned i = 0; i < BLOCKS; i++)
                        assert_true(block_is(f, i, 100 * w + i));
                info = info_of(f);
                launches = (unsigned)(info.counts.kernel_launches - before.kernel_launches);
                assert_int_equal(info.bounce_bytes, ways[w].bounce_bytes);
                assert_int_equal(info.bounce_copies > 0, ways[w].bounce_bytes > 0);
                assert_int_equal(launches > 1, ways[w].bounce_bytes == 2 << 20);
                assert_int_equal(info.counts.batch_copies + info.counts.plain_copies, 0);
                assert_int_equal(kvcache_gpu_detach(f->gpu, test_timeout_ms(60000)), 0);
                f->gpu = NULL;
        }
}

/* Long copies across the bus, or none: a layer of each block is not worth it. */
static void what_lies_apart_in_the_pool_is_read_there(void **state)
{
        struct fixture *f = *state;
        struct kvcache_gpu_info before;
        struct job *j;

        begin(f);
        put_keys(f, BLOCKS, 1);
        clear(f);
        j = job_of(f, BLOCKS, 1, 0);
        assert_int_equal(get(f, j), 0);
        before = info_of(f);
        assert_true(before.bounce_copies > 0 && before.bounce_copies < BLOCKS);
        j = job_of(f, BLOCKS, 1, 0);
        j->q.n_layers = 1;
        assert_int_equal(get(f, j), 0);
        assert_int_equal(info_of(f).bounce_copies, before.bounce_copies);
        assert_true(info_of(f).counts.kernel_launches > before.counts.kernel_launches);
        for (unsigned i = 0; i < BLOCKS; i++)
                assert_true(block_is(f, i, 1 + i));
}

static void each_block_has_its_own_status(void **state)
{
        struct fixture *f = *state;
        struct job *j;

        begin(f);
        put_keys(f, 3, 1);
        assert_int_equal(kvcache_put(f->kv, f->rig->ns, &(struct kvcache_key){ { 9 } }, "short", 5,
                                     KVCACHE_ACCEPTED),
                         KVCACHE_OK);
        clear(f);
        j = job_of(f, 6, 1, 0);
        j->blocks[1].key = rig_key(999);
        j->blocks[3].key = (struct kvcache_key){ { 9 } };
        memset(&j->blocks[4].key, 0, sizeof(j->blocks[4].key));
        j->blocks[5].key = rig_key(2);
        assert_int_equal(get(f, j), 0);
        assert_int_equal(j->statuses[0], KVCACHE_OK);
        assert_int_equal(j->statuses[1], KVCACHE_MISS);
        assert_int_equal(j->statuses[2], KVCACHE_OK);
        assert_int_equal(j->statuses[3], KVCACHE_MISMATCH);
        assert_int_equal(j->statuses[4], KVCACHE_INVALID);
        assert_int_equal(j->statuses[5], KVCACHE_OK);
        assert_true(block_is(f, 0, 1) && block_is(f, 2, 3) && block_is(f, 5, 2));
        for (unsigned i = 0; i < REGION; i++) /* misses leave memory as it was */
                assert_int_equal(((uint8_t *)stub.memory(f->bases[0] + REGION))[i], 0xee);
}

static void layers_and_tokens_are_moved_alone(void **state)
{
        struct fixture *f = *state;
        struct job *j;

        begin(f);
        put_keys(f, 2, 1);
        clear(f);
        j = job_of(f, 2, 1, 0);
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
        j->blocks[0].tokens = 0;
        assert_int_equal(get(f, j), 0);
        assert_statuses(j, KVCACHE_MISMATCH);
}

static uint64_t now_ms(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* Reaps a completion without sleeping, as an engine's loop does. */
static void poll_completion(struct fixture *f, struct kvcache_gpu_completion *ret)
{
        uint64_t until_ms = now_ms() + (uint64_t)test_timeout_ms(60000);

        while (kvcache_gpu_reap(f->gpu, ret, 1, 0) == 0)
                assert_true(now_ms() < until_ms);
}

/* The request waits for its stream and for the daemon, longer than the copies take; only the copies
 * count. */
static void copy_time_leaves_out_all_waits(void **state)
{
        enum { WAIT_MS = 300 };
        struct fixture *f = *state;
        struct kvcache_gpu_completion c;
        uint64_t begun_ms, until_ms, total_ms;
        unsigned seed = 1;
        struct job *j;

        begin(f);
        put_keys(f, BLOCKS, 1);
        stub.run(false);
        fake_daemon_hold(f->rig->d, 1u << WIRE_GET);
        begun_ms = now_ms();
        j = job_of(f, BLOCKS, 1, 0);
        j->q.before_stream = f->stream;
        assert_int_equal(kvcache_gpu_get_blocks(f->gpu, &j->q), 0);
        for (until_ms = now_ms() + WAIT_MS; now_ms() < until_ms;)
                assert_int_equal(kvcache_gpu_reap(f->gpu, &c, 1, 10), 0);
        fake_daemon_hold(f->rig->d, 0);
        for (until_ms = now_ms() + WAIT_MS; now_ms() < until_ms;)
                assert_int_equal(kvcache_gpu_reap(f->gpu, &c, 1, 10), 0);
        while (kvcache_gpu_reap(f->gpu, &c, 1, 1) == 0)
                while (stub.step(seed))
                        seed++;
        total_ms = now_ms() - begun_ms;
        stub.run(true);
        assert_int_equal(c.kind, KVCACHE_GPU_DONE);
        assert_statuses(j, KVCACHE_OK);
        assert_true(c.copy_ns > 0);
        assert_true(c.copy_ns / 1000000 + 2 * WAIT_MS <= total_ms + 1);
        /* A program built with an older header has no room for the member. */
        j = job_of(f, 1, 1, 0);
        c.copy_ns = 77;
        assert_int_equal(kvcache_gpu_get_blocks(f->gpu, &j->q), 0);
        assert_int_equal(kvcache_gpu_reap_sized(f->gpu, &c,
                                                offsetof(struct kvcache_gpu_completion, copy_ns), 1,
                                                test_timeout_ms(60000)),
                         1);
        assert_int_equal(c.copy_ns, 77);
}

static void a_request_without_blocks_completes(void **state)
{
        struct fixture *f = *state;
        struct job *j;

        begin(f);
        j = job_of(f, 0, 1, 0);
        j->q.flags = KVCACHE_GPU_NOTIFY_ISSUED;
        struct kvcache_gpu_completion c[2];

        assert_int_equal(kvcache_gpu_get_blocks(f->gpu, &j->q), 0);
        assert_int_equal(kvcache_gpu_reap(f->gpu, c, 2, test_timeout_ms(60000)), 2);
        assert_int_equal(c[0].kind, KVCACHE_GPU_ISSUED);
        assert_int_equal(c[1].kind, KVCACHE_GPU_DONE);
        assert_int_equal(kvcache_gpu_reap(f->gpu, c, 2, 5000), 0);
}

static void requests_of_the_handle_are_reaped_as_ever(void **state)
{
        struct fixture *f = *state;
        struct kvcache_key key = rig_key(77);
        struct kvcache_request own;
        struct kvcache_result result;
        struct kvcache_completion c;
        struct job *j;

        begin(f);
        put_keys(f, 3, 1);
        kvcache_prep_get(&own, f->rig->ns, &key, 1, &result);
        own.user_data = 5;
        assert_int_equal(kvcache_submit(f->kv, &own), 0);
        j = job_of(f, 3, 1, 0);
        assert_int_equal(get(f, j), 0);
        assert_int_equal(kvcache_inflight(f->kv), 1);
        assert_int_equal(kvcache_reap(f->kv, &c, 1, test_timeout_ms(60000)), 1);
        assert_int_equal(c.user_data, 5);
        assert_int_equal(result.status, KVCACHE_MISS);
}

static void the_descriptor_says_when_to_reap(void **state)
{
        struct fixture *f = *state;
        struct kvcache_gpu_completion c;
        struct job *j;
        int n = 0;

        begin(f);
        put_keys(f, 4, 1);
        clear(f);
        j = job_of(f, 4, 1, 0);
        assert_int_equal(kvcache_gpu_get_blocks(f->gpu, &j->q), 0);
        while (n == 0) {
                struct pollfd p = { .fd = kvcache_gpu_fd(f->gpu), .events = POLLIN };

                assert_int_equal(poll(&p, 1, test_timeout_ms(60000)), 1);
                n = kvcache_gpu_reap(f->gpu, &c, 1, 0);
        }
        assert_int_equal(n, 1);
        assert_statuses(j, KVCACHE_OK);
}

/* --- order --- */

/* Performs possible operations of the streams, in an order that `seed` chooses, until the request
 * completes. */
static int finish_in_steps(struct fixture *f, unsigned seed)
{
        struct kvcache_gpu_completion c;

        for (unsigned i = 0; i < 1000000; i++) {
                if (kvcache_gpu_reap(f->gpu, &c, 1, 0) == 1)
                        return c.error;
                seed = seed * 1664525 + 1013904223;
                if ((seed >> 16) % 3 == 0)
                        (void)stub.step(seed >> 8);
        }
        fail_msg("it does not end");
        return -1;
}

static void step_all(unsigned seed)
{
        while (stub.step(seed = seed * 1664525 + 1013904223))
                ;
}

/* Writes the chunk from a host buffer to block 0, as device memory of an OUTER_FIRST layout has
 * it. */
static void enqueue_block(struct fixture *f, uint8_t *host, uint64_t block, uint64_t seed)
{
        struct kvcache_piece p[2 * LAYERS];
        int n = kvcache_layout_pieces(&f->layout, block, NULL, p, ARRAY_SIZE(p));

        for (uint64_t b = 0; b < BLOCK; b++)
                host[b] = byte_of(seed, b);
        for (int i = 0; i < n; i++)
                assert_int_equal(cuda.copy(p[i].address, (uintptr_t)(host + p[i].offset),
                                           p[i].bytes, f->stream),
                                 CU_OK);
}

/* Puts a block that the program's stream has yet to write. `how`: not ordered, by event, by stream.
 * Returns whether the right bytes were put. */
static bool put_in_order(struct fixture *f, unsigned how, unsigned seed)
{
        static uint8_t host[BLOCK];
        uint64_t key = 10000 + how * 1000 + seed;
        struct job *j = job_of(f, 1, key, 0);
        cu_event ready;

        clear(f);
        stub.run(false);
        assert_int_equal(cuda.event_create(&ready, CU_EVENT_IS_UNTIMED), CU_OK);
        enqueue_block(f, host, 0, key);
        assert_int_equal(cuda.event_record(ready, f->stream), CU_OK);
        if (how == 1)
                j->q.before_event = ready;
        if (how == 2)
                j->q.before_stream = f->stream;
        assert_int_equal(kvcache_gpu_put_blocks(f->gpu, &j->q), 0);
        assert_int_equal(finish_in_steps(f, seed), 0);
        assert_statuses(j, KVCACHE_OK);
        step_all(seed);
        assert_int_equal(cuda.event_destroy(ready), CU_OK);
        stub.run(true);

        clear(f);
        j = job_of(f, 1, key, 5);
        assert_int_equal(get(f, j), 0);
        return block_is(f, 5, key);
}

static void a_put_waits_for_its_producer(void **state)
{
        struct fixture *f = *state;
        unsigned wrong = 0;

        begin(f);
        for (unsigned seed = 0; seed < 60; seed++) {
                wrong += !put_in_order(f, 0, seed);
                assert_true(put_in_order(f, 1, seed));
                assert_true(put_in_order(f, 2, seed));
        }
        assert_true(wrong > 0); /* otherwise the test detects nothing */
}

/* Gets into a block that the program's stream has yet to read and overwrite, and that it reads
 * afterwards. */
static bool get_in_order(struct fixture *f, unsigned how, unsigned seed)
{
        static uint8_t before[BLOCK], host[BLOCK];
        struct job *j = job_of(f, 1, 1, 0);
        struct kvcache_piece p[2 * LAYERS];
        int n = kvcache_layout_pieces(&f->layout, 0, NULL, p, ARRAY_SIZE(p));
        bool right = true;
        cu_event ready, done;

        set_block(f, 0, 500);
        memset(before, 0, sizeof(before));
        stub.run(false);
        assert_int_equal(cuda.event_create(&ready, CU_EVENT_IS_UNTIMED), CU_OK);
        assert_int_equal(cuda.event_create(&done, CU_EVENT_IS_UNTIMED), CU_OK);
        for (int i = 0; i < n; i++)
                assert_int_equal(cuda.copy((uintptr_t)(before + p[i].offset), p[i].address,
                                           p[i].bytes, f->stream),
                                 CU_OK);
        enqueue_block(f, host, 0, 600);
        assert_int_equal(cuda.event_record(ready, f->stream), CU_OK);
        j->q.flags = KVCACHE_GPU_NOTIFY_ISSUED;
        if (how == 1)
                j->q.before_event = ready;
        if (how == 2)
                j->q.before_stream = f->stream;
        j->q.after_event = done;
        if (how == 2)
                j->q.after_stream = f->stream;
        assert_int_equal(kvcache_gpu_get_blocks(f->gpu, &j->q), 0);

        /* The consumer's copies follow as soon as the request is issued. */
        struct kvcache_gpu_completion c;

        poll_completion(f, &c);
        assert_int_equal(c.kind, KVCACHE_GPU_ISSUED);
        if (how == 1)
                assert_int_equal(cuda.stream_wait_event(f->stream, done, 0), CU_OK);
        static uint8_t after[BLOCK];

        memset(after, 0, sizeof(after));
        for (int i = 0; i < n; i++)
                assert_int_equal(cuda.copy((uintptr_t)(after + p[i].offset), p[i].address,
                                           p[i].bytes, f->stream),
                                 CU_OK);
        assert_int_equal(finish_in_steps(f, seed), 0);
        step_all(seed);
        for (uint64_t b = 0; b < BLOCK; b++)
                right = right && before[b] == byte_of(500, b) && after[b] == byte_of(1, b);
        right = right && block_is(f, 0, 1);
        assert_int_equal(cuda.event_destroy(ready), CU_OK);
        assert_int_equal(cuda.event_destroy(done), CU_OK);
        stub.run(true);
        return right;
}

static void a_get_is_between_what_comes_before_and_after_it(void **state)
{
        struct fixture *f = *state;
        unsigned wrong = 0;

        begin(f);
        put_keys(f, 1, 1);
        for (unsigned seed = 0; seed < 60; seed++) {
                wrong += !get_in_order(f, 0, seed);
                assert_true(get_in_order(f, 1, seed));
                assert_true(get_in_order(f, 2, seed));
        }
        assert_true(wrong > 0);
}

/* The streams that exist without being made: handles 1 and 2 of CUDA. */
static void default_streams_are_kept_in_order_too(void **state)
{
        struct fixture *f = *state;
        cu_stream own = f->stream;
        unsigned wrong = 0;

        begin(f);
        put_keys(f, 1, 1);
        for (uintptr_t handle = 1; handle <= 2; handle++) {
                f->stream = (cu_stream)handle;
                for (unsigned seed = 0; seed < 20; seed++) {
                        unsigned number = 100 * (unsigned)handle + seed;

                        wrong += !put_in_order(f, 0, number);
                        assert_true(put_in_order(f, 1, number));
                        assert_true(put_in_order(f, 2, number));
                        assert_true(get_in_order(f, 1, number));
                        assert_true(get_in_order(f, 2, number));
                }
                assert_int_equal(cuda.stream_synchronize(f->stream), CU_OK);
        }
        f->stream = own;
        assert_true(wrong > 0);
}

static void a_stream_that_is_none_is_reported(void **state)
{
        struct fixture *f = *state;
        struct job *j;
        cu_stream closed;

        begin(f);
        assert_int_equal(cuda.stream_create(&closed, CU_STREAM_IS_NON_BLOCKING), CU_OK);
        assert_int_equal(cuda.stream_destroy(closed), CU_OK);
        j = job_of(f, 1, 1, 0);
        j->q.before_stream = closed;
        assert_true(kvcache_gpu_put_blocks(f->gpu, &j->q) < 0);
        put_keys(f, 1, 1); /* the attachment still works */
}

/* The event is taken in its state during the call, because the program may record it again directly
 * afterwards. */
static void an_event_that_is_recorded_again_does_not_hold_up_what_is_under_way(void **state)
{
        struct fixture *f = *state;
        struct job *j;
        uint64_t until_ms;
        cu_event e;

        begin(f);
        put_keys(f, 1, 1);
        stub.run(false);
        assert_int_equal(cuda.event_create(&e, CU_EVENT_IS_UNTIMED), CU_OK);
        assert_int_equal(cuda.event_record(e, f->stream), CU_OK);
        j = job_of(f, 1, 1, 0);
        j->q.before_event = e;
        assert_int_equal(kvcache_gpu_get_blocks(f->gpu, &j->q), 0);
        /* From now on the event follows work that never ends. */
        cu_event never;

        assert_int_equal(cuda.event_create(&never, CU_EVENT_IS_UNTIMED), CU_OK);
        cu_stream stuck;

        assert_int_equal(cuda.stream_create(&stuck, CU_STREAM_IS_NON_BLOCKING), CU_OK);
        step_all(1);
        assert_int_equal(cuda.event_record(never, f->stream), CU_OK);
        assert_int_equal(cuda.stream_wait_event(stuck, never, 0), CU_OK);
        assert_int_equal(cuda.event_record(e, stuck), CU_OK);
        until_ms = now_ms() + (uint64_t)test_timeout_ms(60000);
        for (unsigned i = 0;
             kvcache_gpu_reap(f->gpu, &(struct kvcache_gpu_completion){ 0 }, 1, 0) == 0; i++) {
                assert_true(now_ms() < until_ms);
                (void)stub.step(i == 0 ? 0 : 1);
        }
        assert_statuses(j, KVCACHE_OK);
        step_all(1);
        assert_int_equal(cuda.event_destroy(e), CU_OK);
        assert_int_equal(cuda.event_destroy(never), CU_OK);
        assert_int_equal(cuda.stream_destroy(stuck), CU_OK);
}

/* A later request may depend on an earlier one, so it does not overtake it in their streams, even
 * if the daemon answers it first. */
static void requests_are_issued_in_the_order_of_their_calls(void **state)
{
        struct fixture *f = *state;
        struct kvcache_gpu_completion c;
        struct fake_daemon *d;
        struct job *j;

        begin(f);
        put_keys(f, 2, 1);
        d = f->rig->d;
        fake_daemon_hold(d, 1u << WIRE_GET);
        for (unsigned i = 0; i < 2; i++) {
                j = job_of(f, 1, 1 + i, i);
                j->q.flags = KVCACHE_GPU_NOTIFY_ISSUED;
                j->q.user_data = i;
                assert_int_equal(kvcache_gpu_get_blocks(f->gpu, &j->q), 0);
                assert_true(fake_daemon_wait(d, &d->requests[WIRE_GET], i + 1));
                fake_daemon_lock(d); /* the first one stays held, the second is answered */
                d->hold_ops = 0;
                fake_daemon_unlock(d);
        }
        assert_true(fake_daemon_wait(d, &d->leases_held, 1));
        assert_int_equal(kvcache_gpu_reap(f->gpu, &c, 1, 50), 0);
        fake_daemon_hold(d, 0);
        for (unsigned i = 0, issued = 0; i < 4; i++) {
                assert_int_equal(kvcache_gpu_reap(f->gpu, &c, 1, test_timeout_ms(60000)), 1);
                if (c.kind == KVCACHE_GPU_ISSUED)
                        assert_int_equal(c.user_data, issued++);
        }
        assert_statuses(j, KVCACHE_OK);
}

static void detaching_waits_for_what_is_under_way(void **state)
{
        struct fixture *f = *state;
        struct job *j;

        begin(f);
        put_keys(f, 1, 1);
        stub.run(false);
        j = job_of(f, 1, 1, 0);
        assert_int_equal(kvcache_gpu_get_blocks(f->gpu, &j->q), 0);
        assert_int_equal(kvcache_gpu_detach(f->gpu, 30), -ETIMEDOUT);
        assert_non_null(strstr(kvcache_gpu_error(f->gpu), "in flight"));
        assert_int_equal(finish_in_steps(f, 3), 0);
        assert_statuses(j, KVCACHE_OK);
        stub.run(true);
        j = job_of(f, 1, 1, 0);
        assert_int_equal(kvcache_gpu_get_blocks(f->gpu, &j->q), 0);
        assert_int_equal(kvcache_gpu_detach(f->gpu, test_timeout_ms(60000)),
                         0); /* drops the completion */
        assert_true(block_is(f, 0, 1));
        f->gpu = NULL;
}

/* --- failures of the driver --- */

static void a_way_that_fails_is_followed_by_the_next(void **state)
{
        struct fixture *f = *state;
        struct kvcache_gpu_counts c;
        struct job *j;

        begin(f);
        put_keys(f, 4, 1);
        c = info_of(f).counts;
        assert_int_equal(c.batch_calls + c.plain_copies, 0);
        assert_true(c.kernel_launches > 0);
        stub.fault("cuLaunchKernel", 0, 100, CU_ERROR_LAUNCH_OUT_OF_RESOURCES);
        clear(f);
        j = job_of(f, 4, 1, 0);
        assert_int_equal(get(f, j), 0);
        assert_true(block_is(f, 3, 4));
        c = info_of(f).counts;
        assert_int_equal(c.kernel_failures, 1);
        assert_int_equal(c.batch_calls, 1);
        stub.fault("cuMemcpyBatchAsync_v2", 0, 100, CU_ERROR_NOT_SUPPORTED);
        clear(f);
        assert_int_equal(get(f, j), 0);
        assert_true(block_is(f, 3, 4));
        c = info_of(f).counts;
        assert_int_equal(c.kernel_failures, 2);
        assert_int_equal(c.batch_failures, 1);
        assert_true(c.plain_copies > 0);
        assert_int_equal(c.driver_errors, 0);
        stub.fault("cuMemcpyAsync", 0, 100, CU_ERROR_OUT_OF_MEMORY);
        clear(f);
        assert_int_equal(get(f, j), -ENOMEM);
        assert_statuses(j, KVCACHE_FAILED);
        assert_non_null(strstr(kvcache_gpu_error(f->gpu), "CUDA_ERROR_OUT_OF_MEMORY"));
        stub.reset();
        assert_int_equal(get(f, j), 0);
        assert_statuses(j, KVCACHE_OK);
        assert_true(block_is(f, 3, 4));
}

/* The list of a failed launch may still be in flight to the device, so the next attempt uses
 * another one. */
static void a_list_is_left_alone_until_it_is_there(void **state)
{
        struct kvcache_gpu_options o = options_of(KVCACHE_GPU_ENGINE_BOUNCE);
        struct fixture *f = *state;
        struct job *j;

        connect_to(f, &(struct fake_options){ .pool_bytes = 256 << 20 });
        assert_int_equal(kvcache_gpu_attach(&f->gpu, f->kv, &o, NULL, 0), 0);
        put_keys(f, 4, 1);
        clear(f);
        stub.run(false);
        stub.fault("cuLaunchKernel", 0, 1, CU_ERROR_LAUNCH_OUT_OF_RESOURCES);
        j = job_of(f, 4, 1, 0);
        assert_int_equal(kvcache_gpu_get_blocks(f->gpu, &j->q), 0);
        assert_int_equal(finish_in_steps(f, 7), 0);
        stub.run(true);
        assert_statuses(j, KVCACHE_OK);
        for (unsigned k = 0; k < 4; k++)
                assert_true(block_is(f, k, 1 + k));
        assert_int_equal(info_of(f).counts.kernel_failures, 1);
        assert_int_equal(info_of(f).counts.batch_calls, 0);
}

static void without_a_kernel_the_driver_copies(void **state)
{
        static const char *const missing[] = { "cuModuleLoadData", "cuModuleGetFunction",
                                               "cuLaunchKernel" };
        struct fixture *f = *state;

        connect_to(f, &(struct fake_options){ .pool_bytes = 16 << 20 });
        for (unsigned i = 0; i < ARRAY_SIZE(missing); i++) {
                stub.reset();
                stub.fault(missing[i], 0, 1, 500); /* the driver is asked where it is */
                attach(f, KVCACHE_GPU_ENGINE_AUTO);
                assert_int_equal(info_of(f).flags & KVCACHE_GPU_HAS_KERNEL, 0);
                assert_true(info_of(f).flags & KVCACHE_GPU_HAS_BATCH);
                put_keys(f, 2, 10 * (i + 1));
                assert_int_equal(info_of(f).counts.kernel_launches, 0);
                assert_int_equal(info_of(f).counts.batch_calls, 1);
                assert_int_equal(kvcache_gpu_detach(f->gpu, test_timeout_ms(60000)), 0);
                f->gpu = NULL;
        }
}

/* Whether copies are done cannot be learned: then they are over when their blocks have failed. */
static void nothing_is_copied_after_a_block_has_failed(void **state)
{
        struct fixture *f = *state;
        struct job *j;

        begin(f);
        put_keys(f, 4, 1);
        clear(f);
        stub.run(false);
        stub.fault("cuEventQuery", 0, 1, CU_ERROR_LAUNCH_OUT_OF_RESOURCES);
        j = job_of(f, 4, 1, 0);
        assert_true(get(f, j) < 0);
        assert_statuses(j, KVCACHE_FAILED);
        clear(f); /* the memory has been reused */
        stub.run(true);
        assert_int_equal(kvcache_gpu_detach(f->gpu, test_timeout_ms(60000)), 0);
        f->gpu = NULL;
        for (unsigned i = 0; i < 4; i++)
                assert_false(block_is(f, i, 1 + i));
}

static void a_pool_that_is_not_registered_is_read_through_staging(void **state)
{
        struct fixture *f = *state;
        struct kvcache_gpu_options o = options_of(KVCACHE_GPU_ENGINE_AUTO);
        struct job *j;

        connect_to(f, &(struct fake_options){ .pool_bytes = 16 << 20 });
        for (unsigned way = 0; way < 3; way++) {
                uint32_t flags;

                stub.reset();
                /* The lists and the staging memory are registered first: then the pool, twice. */
                if (way == 0)
                        stub.fault("cuMemHostRegister_v2", 2, 1, CU_ERROR_NOT_SUPPORTED);
                if (way == 1)
                        stub.fault("cuMemHostRegister_v2", 2, 2, CU_ERROR_NOT_SUPPORTED);
                o.flags = way == 2 ? KVCACHE_GPU_NO_POOL : 0;
                assert_int_equal(kvcache_gpu_attach(&f->gpu, f->kv, &o, NULL, 0), 0);
                flags = info_of(f).flags & KVCACHE_GPU_HAS_POOL;
                assert_int_equal(flags, way == 0 ? KVCACHE_GPU_HAS_POOL : 0);
                if (way == 1)
                        assert_non_null(strstr(kvcache_gpu_error(f->gpu), "pool"));
                put_keys(f, 24, 100 * (way + 1));
                clear(f);
                j = job_of(f, 24, 100 * (way + 1), 0);
                assert_int_equal(get(f, j), 0);
                assert_statuses(j, KVCACHE_OK);
                for (unsigned i = 0; i < 24; i++)
                        assert_true(block_is(f, i, 100 * (way + 1) + i));
                assert_int_equal(info_of(f).counts.blocks_through_staging, way == 0 ? 0 : 24);
                clear(f);
                j->q.first_layer = 2;
                j->q.n_layers = 1;
                assert_int_equal(get(f, j), 0);
                assert_int_equal(*(uint8_t *)stub.memory(f->bases[1]), 0xee);
                assert_int_equal(*(uint8_t *)stub.memory(f->bases[2]),
                                 byte_of(100 * (way + 1), 4 * REGION));
                assert_int_equal(kvcache_gpu_detach(f->gpu, test_timeout_ms(60000)), 0);
                f->gpu = NULL;
        }
}

static void staging_that_the_driver_does_not_register_is_slow_and_right(void **state)
{
        struct fixture *f = *state;
        struct job *j;

        connect_to(f, &(struct fake_options){ .pool_bytes = 16 << 20 });
        stub.fault("cuMemHostRegister_v2", 1, 3, CU_ERROR_OUT_OF_MEMORY);
        attach(f, KVCACHE_GPU_ENGINE_AUTO);
        assert_int_equal(info_of(f).staging_bytes, 0);
        assert_int_equal(info_of(f).pool_bytes, 0);
        put_keys(f, 10, 1);
        clear(f);
        j = job_of(f, 10, 1, 0);
        assert_int_equal(get(f, j), 0);
        for (unsigned i = 0; i < 10; i++)
                assert_true(block_is(f, i, 1 + i));
        assert_int_equal(info_of(f).counts.kernel_launches, 0);
}

static void a_device_that_has_failed_leaves_the_handle_usable(void **state)
{
        struct fixture *f = *state;
        struct kvcache_key key = rig_key(1);
        uint64_t good_base;
        uint8_t data[16];
        size_t n = 0;
        struct job *j;

        begin(f);
        put_keys(f, 2, 1);
        good_base = f->bases[1];
        f->bases[1] = 0x1234000; /* no memory of the device's */
        j = job_of(f, 2, 1, 0);
        assert_int_equal(get(f, j), -EIO);
        assert_statuses(j, KVCACHE_FAILED);
        assert_non_null(strstr(kvcache_gpu_error(f->gpu), "CUDA_ERROR_ILLEGAL_ADDRESS"));
        f->bases[1] = good_base;
        j = job_of(f, 2, 50, 0); /* the fault has ended, so the context is usable */
        assert_int_not_equal(put(f, j), 0);
        assert_statuses(j, KVCACHE_FAILED);
        assert_int_equal(kvcache_get(f->kv, f->rig->ns, &key, data, sizeof(data), &n),
                         KVCACHE_TOO_LARGE);
        assert_int_equal(n, BLOCK);
        key = rig_key(50);
        assert_int_equal(kvcache_get(f->kv, f->rig->ns, &key, data, sizeof(data), &n),
                         KVCACHE_MISS);
}

/* Every function of the driver fails at its n-th call, at any time. A good status is true,
 * everything ends, and nothing is leaked. */
static void any_call_of_the_driver_may_fail(void **state)
{
        static const char *const functions[] = {
#define X(member, name, suffix, since, is_needed, parameters) #name #suffix,
                CU_FUNCTIONS(X)
#undef X
        };
        static const enum kvcache_gpu_engine ways[] = { KVCACHE_GPU_ENGINE_BOUNCE, /* then KERNEL */
                                                        KVCACHE_GPU_ENGINE_PLAIN };
        enum { WAYS = ARRAY_SIZE(ways) };
        struct fixture *f = *state;
        uint64_t space = 1000;
        unsigned tried = 0;

        connect_to(f, &(struct fake_options){ .pool_bytes = 256 << 20 });
        for (unsigned i = 0; i < WAYS * ARRAY_SIZE(functions); i++)
                for (unsigned nth = 0; nth < 12; nth++) {
                        const char *function = functions[i / WAYS];
                        struct kvcache_gpu_options o = options_of(ways[i % WAYS]);
                        struct job *j;
                        unsigned calls;
                        int r;

                        /* These functions release resources, which leak in the driver if they
                         * fail. */
                        if (strstr(function, "Destroy") || strstr(function, "Unregister") ||
                            strstr(function, "Unload") || strstr(function, "MemFree") ||
                            strstr(function, "Release") || strstr(function, "PopCurrent") ||
                            strstr(function, "CaptureMode"))
                                continue;
                        space += 10;
                        stub.reset();
                        for (unsigned k = 0; k < 4; k++)
                                set_block(f, k, space + k);
                        stub.fault(function, nth, 1, CU_ERROR_OUT_OF_MEMORY);
                        r = kvcache_gpu_attach(&f->gpu, f->kv, &o, NULL, 0);
                        if (r < 0) {
                                f->gpu = NULL;
                                tried++;
                                continue;
                        }
                        j = job_of(f, 4, space, 0);
                        j->q.before_stream = f->stream;
                        j->q.after_stream = f->stream;
                        r = put(f, j);
                        for (unsigned k = 0; r == 0 && k < 4; k++)
                                assert_int_equal(j->statuses[k], KVCACHE_OK);
                        clear(f);
                        j = job_of(f, 4, space, 8);
                        j->q.before_stream = f->stream;
                        j->q.after_stream = f->stream;
                        r = get(f, j);
                        calls = stub.calls(function);
                        stub.reset();
                        for (unsigned k = 0; k < 4; k++)
                                if (r == 0 && j->statuses[k] == KVCACHE_OK &&
                                    !block_is(f, 8 + k, space + k))
                                        fail_msg("wrong bytes after call %u of %s()", nth,
                                                 function);
                        /* Everything works afterwards. */
                        j = job_of(f, 4, space, 12);
                        assert_int_equal(get(f, j), 0);
                        for (unsigned k = 0; k < 4; k++)
                                if (j->statuses[k] != KVCACHE_MISS &&
                                    (j->statuses[k] != KVCACHE_OK ||
                                     !block_is(f, 12 + k, space + k)))
                                        fail_msg("block %u is %s after call %u of %s()", k,
                                                 kvcache_status_name(j->statuses[k]), nth,
                                                 function);
                        assert_int_equal(kvcache_gpu_detach(f->gpu, test_timeout_ms(60000)), 0);
                        f->gpu = NULL;
                        tried += calls > nth;
                        if (calls <= nth)
                                break; /* the function is not called that often */
                }
        assert_true(tried > 100);
}

/* --- refusals of the daemon --- */

static void staging_serves_where_no_buffer_can_be_registered(void **state)
{
        struct fixture *f = *state;
        struct job *j;

        connect_to(f,
                   &(struct fake_options){ .pool_bytes = 16 << 20, .refuse_register = "no more" });
        attach(f, KVCACHE_GPU_ENGINE_AUTO);
        assert_int_equal(info_of(f).flags & KVCACHE_GPU_HAS_BUFFER, 0);
        assert_true(info_of(f).staging_bytes >= STAGING);
        put_keys(f, 24, 1);
        clear(f);
        j = job_of(f, 24, 1, 0);
        assert_int_equal(get(f, j), 0);
        for (unsigned i = 0; i < 24; i++)
                assert_true(block_is(f, i, 1 + i));
}

static void the_next_daemon_has_another_pool(void **state)
{
        struct fixture *f = *state;

        for (unsigned buffer = 0; buffer < 2; buffer++) {
                struct fake_options o = { .pool_bytes = 8 << 20,
                                          .refuse_register = buffer ? NULL : "no more" };
                struct job *j;
                struct stub_live live;

                connect_to(f, &o);
                attach(f, KVCACHE_GPU_ENGINE_AUTO);
                put_keys(f, 4, 1);
                fake_daemon_kill(f->rig->d, false);
                f->rig->d = fake_daemon_free(f->rig->d);
                j = job_of(f, 4, 1, 0);
                (void)get(f, j); /* there is no daemon */
                for (unsigned i = 0; i < 4; i++)
                        assert_true(j->statuses[i] == KVCACHE_LOST);
                o.pool_bytes = 16 << 20;
                start_daemon(f, &o);
                assert_int_equal(get(f, j), 0);
                assert_statuses(j, KVCACHE_MISS);
                put_keys(f, 4, 1);
                clear(f);
                assert_int_equal(get(f, j), 0);
                for (unsigned i = 0; i < 4; i++)
                        assert_true(block_is(f, i, 1 + i));
                assert_int_equal(info_of(f).pool_bytes, 16 << 20);
                stub.live(&live);
                /* The list, staging memory, and the new pool, whose address may cut it in two. */
                assert_in_range(live.registrations, 3, 4);
                assert_int_equal(kvcache_gpu_detach(f->gpu, test_timeout_ms(60000)), 0);
                f->gpu = NULL;
                kvcache_close(f->kv);
                f->kv = f->rig->kv = NULL;
                f->rig->d = fake_daemon_free(f->rig->d);
        }
}

/* The GPU still reads the pool of a session that has ended. */
static void a_session_that_ends_leaves_its_pool_until_the_gpu_is_done(void **state)
{
        struct fixture *f = *state;
        struct kvcache_gpu_completion c;
        struct job *j;
        unsigned i;

        begin(f);
        put_keys(f, 4, 1);
        clear(f);
        stub.run(false);
        j = job_of(f, 4, 1, 0);
        j->q.flags = KVCACHE_GPU_NOTIFY_ISSUED;
        assert_int_equal(kvcache_gpu_get_blocks(f->gpu, &j->q), 0);
        poll_completion(f, &c);
        fake_daemon_hang_up(f->rig->d);
        (void)kvcache_ping(f->kv, NULL);
        (void)kvcache_ping(f->kv, NULL); /* a new session, with a new pool mapping */
        assert_int_equal(finish_in_steps(f, 9), 0);
        assert_statuses(j, KVCACHE_OK);
        for (i = 0; i < 4; i++)
                assert_true(block_is(f, i, 1 + i));
        stub.run(true);
        assert_int_equal(get(f, job_of(f, 4, 1, 8)), 0);
        assert_true(block_is(f, 11, 4));
}

static void a_put_that_the_daemon_holds_keeps_its_staging(void **state)
{
        struct fixture *f = *state;
        struct job *j;

        begin(f);
        for (unsigned i = 0; i < BLOCKS; i++)
                set_block(f, i, 1 + i);
        fake_daemon_hold(f->rig->d, 1u << WIRE_PUT);
        /* Statuses stay pending only if the puts were sent in time: allow more until they are. */
        for (int ms = 50;; ms *= 2) {
                j = job_of(f, 5, 1, 0);
                j->q.timeout_ms = ms;
                assert_int_equal(put(f, j), -ETIMEDOUT);
                if (j->statuses[4] == KVCACHE_PENDING || ms > test_timeout_ms(60000))
                        break;
        }
        assert_statuses(j, KVCACHE_PENDING);
        fake_daemon_hold(f->rig->d, 0);
        /* Later puts have not overwritten its bytes. */
        put_keys(f, BLOCKS, 1000);
        clear(f);
        j = job_of(f, 5, 1, 0);
        assert_int_equal(get(f, j), 0);
        assert_statuses(j, KVCACHE_OK);
        for (unsigned i = 0; i < 5; i++)
                assert_true(block_is(f, i, 1 + i));
}

/* --- malformed requests --- */

static void malformed_requests_are_refused(void **state)
{
        struct fixture *f = *state;
        struct job *j;

        begin(f);
        put_keys(f, 1, 1);
#define REFUSE(change, error, word)                                                                \
        do {                                                                                       \
                j = job_of(f, 2, 1, 0);                                                            \
                change;                                                                            \
                assert_int_equal(kvcache_gpu_put_blocks(f->gpu, &j->q), error);                    \
                if (!strstr(kvcache_gpu_error(f->gpu), word))                                      \
                        fail_msg("%s", kvcache_gpu_error(f->gpu));                                 \
        } while (0)
        REFUSE(j->q.size = 0, -EINVAL, "size");
        REFUSE(j->q.block_size = 3, -EINVAL, "block_size");
        REFUSE(j->q.flags = KVCACHE_MORE, -EINVAL, "flags");
        REFUSE(j->q.ack = (enum kvcache_ack)7, -EINVAL, "acknowledgement");
        REFUSE(j->q.timeout_ms = -1, -EINVAL, "timeout");
        REFUSE(j->q.blocks = NULL, -EINVAL, "blocks");
        REFUSE(j->q.statuses = NULL, -EINVAL, "statuses");
        REFUSE(j->q.layout = NULL, -EINVAL, "layout");
        REFUSE(j->q.n_layers = 1, -EINVAL, "whole blocks");
        REFUSE(j->blocks[1].block = BLOCKS, -EINVAL, "block 1 of the request");
        REFUSE(j->blocks[0].tokens = 17, -EINVAL, "block 0 of the request");
        f->layout.inner = 64 * 1024;
        REFUSE((void)0, -E2BIG, "staging");
        f->layout.inner = 64;
#undef REFUSE
        j = job_of(f, 1, 1, 0);
        j->q.first_layer = 2;
        j->q.n_layers = 2;
        assert_int_equal(kvcache_gpu_get_blocks(f->gpu, &j->q), -EINVAL);
        assert_int_equal(kvcache_gpu_reap(f->gpu, NULL, 1, 0), -EINVAL);
        assert_int_equal(kvcache_gpu_get_info(f->gpu, NULL), -EINVAL);
        assert_int_equal(kvcache_gpu_put_blocks(NULL, &j->q), -EINVAL);
        assert_int_equal(kvcache_gpu_fd(NULL), -EINVAL);
        assert_int_equal(kvcache_gpu_detach(NULL, 0), 0);
        assert_int_equal(get(f, job_of(f, 1, 1, 0)), 0);
}

/* A get that waits for the program's own work does not poll the driver thousands of times. */
static void copies_that_wait_are_seldom_asked_after(void **state)
{
        struct fixture *f = *state;
        struct kvcache_gpu_completion c;
        struct job *j;
        unsigned before;

        begin(f);
        put_keys(f, 4, 1);
        stub.run(false);
        assert_int_equal(cuda.copy(f->device, f->device + MEMORY / 2, 512, f->stream), CU_OK);
        j = job_of(f, 4, 1, 0);
        j->q.before_stream = f->stream;
        assert_int_equal(kvcache_gpu_get_blocks(f->gpu, &j->q), 0);
        before = stub.calls("cuEventQuery");
        assert_int_equal(kvcache_gpu_reap(f->gpu, &c, 1, 300), 0);
        assert_true(stub.calls("cuEventQuery") - before < 1000);
        stub.run(true);
        assert_int_equal(finish(f), 0);
        assert_statuses(j, KVCACHE_OK);
}

static void malformed_options_are_refused(void **state)
{
        struct fixture *f = *state;
        struct kvcache_gpu_options o;
        char why[256];

        connect_to(f, &(struct fake_options){ 0 });
#define REFUSE(change, error, word)                                                                \
        do {                                                                                       \
                o = options_of(KVCACHE_GPU_ENGINE_AUTO);                                           \
                change;                                                                            \
                assert_int_equal(kvcache_gpu_attach(&f->gpu, f->kv, &o, why, sizeof(why)), error); \
                if (!strstr(why, word))                                                            \
                        fail_msg("%s", why);                                                       \
                assert_null(f->gpu);                                                               \
        } while (0)
        REFUSE(o.size = 4, -EINVAL, "size");
        REFUSE(o.flags = 128, -EINVAL, "flags");
        REFUSE(o.engine = 5, -EINVAL, "engine");
        REFUSE(o.gds = 3, -EINVAL, "gds");
        REFUSE(o.gds_bytes = 4096, -EINVAL, "gds_bytes");
        REFUSE(o.gds_bytes = (1 << 20) + 1, -EINVAL, "gds_bytes");
        REFUSE(o.staging_bytes = 4096, -EINVAL, "staging_bytes");
        REFUSE(o.staging_bytes = 65537, -EINVAL, "staging_bytes");
        REFUSE(o.device = 1, -ENODEV, "context");
#undef REFUSE
        assert_int_equal(kvcache_gpu_attach(NULL, f->kv, NULL, NULL, 0), -EINVAL);
        assert_int_equal(kvcache_gpu_attach(&f->gpu, NULL, NULL, why, sizeof(why)), -EINVAL);
        o = options_of(KVCACHE_GPU_ENGINE_AUTO);
        o.flags = KVCACHE_GPU_CURRENT_CONTEXT;
        cu_context popped;

        assert_int_equal(cuda.ctx_pop(&popped), CU_OK);
        assert_int_equal(kvcache_gpu_attach(&f->gpu, f->kv, &o, why, sizeof(why)), -EINVAL);
        assert_non_null(strstr(why, "current CUDA context"));
        assert_int_equal(cuda.ctx_push(popped), CU_OK);
        assert_int_equal(kvcache_gpu_attach(&f->gpu, f->kv, &o, why, sizeof(why)), 0);
}

static void a_child_may_not_use_it(void **state)
{
        struct fixture *f = *state;
        int status;
        pid_t pid;

        begin(f);
        pid = fork();
        if (pid == 0) {
                struct kvcache_gpu_completion c;
                struct job *j = job_of(f, 1, 1, 0);

                _exit(kvcache_gpu_put_blocks(f->gpu, &j->q) == -ECHILD &&
                                      kvcache_gpu_reap(f->gpu, &c, 1, 0) == -ECHILD &&
                                      kvcache_gpu_fd(f->gpu) == -ECHILD &&
                                      kvcache_gpu_detach(f->gpu, 0) == -ECHILD
                              ? 0
                              : 1);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
        put_keys(f, 1, 1);
}

static void a_handle_that_is_closed_first_stays_until_its_gpu_is_detached(void **state)
{
        struct fixture *f = *state;
        struct kvcache_gpu_info info = { .size = sizeof(info) };
        struct kvcache_gpu_completion c;
        struct kvcache_gpu *second;
        struct job *j;

        begin(f);
        put_keys(f, 4, 1);
        assert_int_equal(kvcache_gpu_attach(&second, f->kv, NULL, NULL, 0), 0);
        clear(f);
        stub.run(false);
        j = job_of(f, 4, 1, 0);
        assert_int_equal(kvcache_gpu_get_blocks(f->gpu, &j->q), 0);
        kvcache_close(f->kv);
        f->kv = f->rig->kv = NULL;
        stub.run(true);
        assert_int_equal(kvcache_gpu_put_blocks(f->gpu, &j->q), -EBADF);
        assert_non_null(strstr(kvcache_gpu_error(f->gpu), "closed"));
        assert_int_equal(kvcache_gpu_get_blocks(f->gpu, &j->q), -EBADF);
        assert_int_equal(kvcache_gpu_reap(f->gpu, &c, 1, 0), -EBADF);
        assert_int_equal(kvcache_gpu_fd(f->gpu), -EBADF);
        assert_int_equal(kvcache_gpu_get_info(f->gpu, &info), -EBADF);
        assert_int_equal(kvcache_gpu_detach(second, test_timeout_ms(60000)), 0);
        assert_int_equal(kvcache_gpu_detach(f->gpu, test_timeout_ms(60000)), 0);
        f->gpu = NULL;
        assert_statuses(j, KVCACHE_OK); /* requests in flight have succeeded */
        for (unsigned i = 0; i < 4; i++)
                assert_true(block_is(f, i, 1 + i));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        const struct CMUnitTest tests[] = {
                TEST(blocks_go_out_and_come_back_in_every_layout),
                TEST(a_put_says_what_its_blocks_cost),
                TEST(what_one_layout_stored_another_can_load),
                TEST(more_blocks_than_batches_hold_go_through_in_turn),
                TEST(small_pieces_come_through_device_memory),
                TEST(what_lies_apart_in_the_pool_is_read_there),
                TEST(each_block_has_its_own_status),
                TEST(layers_and_tokens_are_moved_alone),
                TEST(copy_time_leaves_out_all_waits),
                TEST(a_request_without_blocks_completes),
                TEST(requests_of_the_handle_are_reaped_as_ever),
                TEST(the_descriptor_says_when_to_reap),
                TEST(a_put_waits_for_its_producer),
                TEST(a_get_is_between_what_comes_before_and_after_it),
                TEST(default_streams_are_kept_in_order_too),
                TEST(a_stream_that_is_none_is_reported),
                TEST(an_event_that_is_recorded_again_does_not_hold_up_what_is_under_way),
                TEST(requests_are_issued_in_the_order_of_their_calls),
                TEST(detaching_waits_for_what_is_under_way),
                TEST(a_way_that_fails_is_followed_by_the_next),
                TEST(a_list_is_left_alone_until_it_is_there),
                TEST(without_a_kernel_the_driver_copies),
                TEST(nothing_is_copied_after_a_block_has_failed),
                TEST(a_pool_that_is_not_registered_is_read_through_staging),
                TEST(staging_that_the_driver_does_not_register_is_slow_and_right),
                TEST(a_device_that_has_failed_leaves_the_handle_usable),
                TEST(any_call_of_the_driver_may_fail),
                TEST(staging_serves_where_no_buffer_can_be_registered),
                TEST(the_next_daemon_has_another_pool),
                TEST(a_session_that_ends_leaves_its_pool_until_the_gpu_is_done),
                TEST(a_put_that_the_daemon_holds_keeps_its_staging),
                TEST(malformed_requests_are_refused),
                TEST(copies_that_wait_are_seldom_asked_after),
                TEST(malformed_options_are_refused),
                TEST(a_child_may_not_use_it),
                TEST(a_handle_that_is_closed_first_stays_until_its_gpu_is_detached),
        };
        if (!gpu_rig_open())
                return 1;
        return cmocka_run_group_tests_name("gpu", tests, NULL, NULL);
}

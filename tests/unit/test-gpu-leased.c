/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of leased chunks into GPU blocks: bytes, order, pools that outlive their daemon, and calls
 * of another thread than the handle's. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "checked.h"
#include "gpu-rig.h"
#include "gpu/gpu.h"
#include "gpu/leased.h"

enum { N = 6, STEPS = 10000000, MANY = 40 };

/* The number of regions that were counted. */
static uint64_t counted_regions;

int __wrap_parts_count_transfer(struct kvcache *kv, const struct kvcache_transfer *t);
int __wrap_parts_count_transfer(struct kvcache *kv, const struct kvcache_transfer *t)
{
        counted_regions += t->regions;
        return 0;
}

/* Leased chunks, and the request that copies them. */
struct leased_job {
        struct kvcache_gpu_leased_request q;
        uint64_t blocks[N], offsets[N];
        struct kvcache_lease leases[N];
        const void *first; /* the first chunk's bytes */
};

/* Leases the keys first_key... and prepares to copy them into the blocks first_block... */
static struct leased_job lease(struct fixture *f, uint64_t first_key, uint64_t first_block)
{
        struct leased_job j = { 0 };

        for (unsigned i = 0; i < N; i++) {
                struct kvcache_key key = rig_key(first_key + i);
                struct kvcache_result result;
                uint64_t pool;

                assert_int_equal(kvcache_get_map(f->kv, f->rig->ns, &key, &result), 0);
                assert_int_equal(kvcache_pool_of(f->kv, result.data, &pool, &j.offsets[i]), 0);
                assert_true(i == 0 || pool == j.q.pool_id);
                j.first = i == 0 ? result.data : j.first;
                j.q.pool_id = pool;
                j.leases[i] = result.lease;
                j.blocks[i] = first_block + i;
        }
        j.q.size = sizeof(j.q);
        j.q.layout = &f->layout;
        j.q.count = N;
        return j;
}

static int copy(struct fixture *f, struct leased_job *j)
{
        j->q.blocks = j->blocks;
        j->q.pool_offsets = j->offsets;
        return kvcache_gpu_copy_leased(f->gpu, &j->q);
}

static struct kvcache_gpu_completion finish_leased(struct fixture *f)
{
        struct kvcache_gpu_completion c;
        int r = kvcache_gpu_reap_leased(f->gpu, &c, 1, test_timeout_ms(60000));

        if (r != 1)
                fail_msg("reaped %d: %s", r, kvcache_gpu_leased_error(f->gpu));
        assert_int_equal(c.kind, KVCACHE_GPU_DONE);
        return c;
}

static void assert_blocks(struct fixture *f, uint64_t first_block, uint64_t first_key)
{
        for (unsigned i = 0; i < N; i++)
                if (!block_is(f, first_block + i, first_key + i))
                        fail_msg("wrong bytes in block %u", (unsigned)first_block + i);
}

static void copy_and_check(struct fixture *f, struct leased_job *j, uint64_t first_key)
{
        clear(f);
        if (copy(f, j) < 0)
                fail_msg("%s", kvcache_gpu_leased_error(f->gpu));
        assert_int_equal(finish_leased(f).error, 0);
        assert_blocks(f, j->blocks[0], first_key);
}

static void release(struct fixture *f, struct leased_job *j)
{
        assert_int_equal(kvcache_release(f->kv, j->leases, N), 0);
}

static void detach(struct fixture *f)
{
        assert_int_equal(kvcache_gpu_detach(f->gpu, test_timeout_ms(60000)), 0);
        f->gpu = NULL;
}

/* --- bytes --- */

static void leased_chunks_arrive_by_each_engine_and_layout(void **state)
{
        static const enum kvcache_layout_kind kinds[] = { KVCACHE_LAYOUT_OUTER_FIRST,
                                                          KVCACHE_LAYOUT_BLOCK_FIRST,
                                                          KVCACHE_LAYOUT_REGIONS };
        struct kvcache_layout_region regions[2 * LAYERS];
        struct fixture *f = *state;

        connect_to(f, &(struct fake_options){ .pool_bytes = 16 << 20 });
        for (unsigned k = 0; k < ARRAY_SIZE(kinds); k++)
                for (int engine = KVCACHE_GPU_ENGINE_AUTO; engine <= KVCACHE_GPU_ENGINE_BOUNCE;
                     engine++) {
                        uint64_t key = 1 + 100 * (uint64_t)engine + 1000 * k;
                        struct leased_job j;

                        lay_out(f, kinds[k]);
                        if (kinds[k] == KVCACHE_LAYOUT_REGIONS)
                                list_as_regions(f, regions);
                        attach(f, (enum kvcache_gpu_engine)engine);
                        put_keys(f, N, key);
                        j = lease(f, key, 9);
                        copy_and_check(f, &j, key);
                        assert_int_equal(info_of(f).counts.blocks_from_pool, N);
                        release(f, &j);
                        detach(f);
                }
}

/* The two regions of a layer are adjacent, so that one copy moves both. */
static void list_adjacent_regions(struct fixture *f,
                                  struct kvcache_layout_region regions[2 * LAYERS])
{
        list_as_regions(f, regions);
        for (unsigned i = 0; i < 2 * LAYERS; i++) {
                regions[i].base = f->bases[i / 2] + i % 2 * REGION;
                regions[i].stride = 2 * REGION;
        }
}

static void regions_are_counted_as_listed_by_each_copy(void **state)
{
        struct kvcache_layout_region regions[2 * LAYERS];
        struct fixture *f = *state;
        struct leased_job j;

        connect_to(f, &(struct fake_options){ .pool_bytes = 16 << 20 });
        for (unsigned adjacent = 0; adjacent < 2; adjacent++) {
                if (adjacent)
                        list_adjacent_regions(f, regions);
                else
                        list_as_regions(f, regions);
                attach(f, KVCACHE_GPU_ENGINE_AUTO);
                counted_regions = 0;
                put_keys(f, N, 1 + 100 * adjacent);
                assert_int_equal(counted_regions, N * 2 * LAYERS);
                j = lease(f, 1 + 100 * adjacent, 9);
                counted_regions = 0;
                copy_and_check(f, &j, 1 + 100 * adjacent);
                leased_progress(f->gpu);
                assert_int_equal(counted_regions, N * 2 * LAYERS);
                release(f, &j);
                detach(f);
        }
}

static void a_completion_has_its_number_its_count_and_its_time(void **state)
{
        struct fixture *f = *state;
        struct kvcache_gpu_completion c;
        struct leased_job j;

        begin(f);
        put_keys(f, N, 1);
        j = lease(f, 1, 0);
        j.q.user_data = 77;
        assert_int_equal(copy(f, &j), 0);
        c = finish_leased(f);
        assert_int_equal(c.user_data, 77);
        assert_int_equal(c.count, N);
        assert_true(c.copy_ns > 0);
        assert_int_equal(kvcache_gpu_reap_leased(f->gpu, &c, 1, -1), 0); /* nothing is in flight */
        release(f, &j);
}

static void a_request_of_no_blocks_prepares_for_others_of_its_kind(void **state)
{
        struct kvcache_gpu_leased_request q = { .size = sizeof(q), .user_data = 5 };
        struct fixture *f = *state;
        struct leased_job j;

        begin(f);
        put_keys(f, N, 1);
        j = lease(f, 1, 0);
        for (unsigned is_awaited = 0; is_awaited < 2; is_awaited++) {
                unsigned allocations = stub.calls("cuMemAlloc_v2");

                q.after_stream = j.q.after_stream = is_awaited ? f->stream : NULL;
                assert_int_equal(kvcache_gpu_copy_leased(f->gpu, &q), 0);
                assert_int_equal(finish_leased(f).user_data, 5);
                assert_true(stub.calls("cuMemAlloc_v2") > allocations);
                allocations = stub.calls("cuMemAlloc_v2");
                copy_and_check(f, &j, 1);
                assert_int_equal(stub.calls("cuMemAlloc_v2"), allocations);
        }
        release(f, &j);
}

/* --- order --- */

static void copies_follow_what_the_program_has_put_into_its_stream(void **state)
{
        struct kvcache_gpu_completion c;
        struct fixture *f = *state;
        struct leased_job j;
        cu_event event;

        begin(f);
        put_keys(f, N, 1);
        j = lease(f, 1, 0);
        assert_int_equal(cuda.event_create(&event, CU_EVENT_IS_UNTIMED), CU_OK);
        for (unsigned seed = 0; seed < 40; seed++) {
                stub.run(false);
                clear(f);
                /* The program's work is long and then writes the blocks: the copies come after it.
                 */
                for (unsigned i = 0; i < 100; i++)
                        assert_int_equal(cuda.copy(f->device + MEMORY / 2, f->device + MEMORY - 512,
                                                   512, f->stream),
                                         CU_OK);
                assert_int_equal(
                        cuda.copy(f->device, f->device + MEMORY / 2, MEMORY / 2, f->stream), CU_OK);
                assert_int_equal(cuda.event_record(event, f->stream), CU_OK);
                j.q.before_stream = seed % 2 == 0 ? f->stream : NULL;
                j.q.before_event = seed % 2 == 1 ? event : NULL;
                assert_int_equal(copy(f, &j), 0);
                assert_int_equal(kvcache_gpu_reap_leased(f->gpu, &c, 1, 0), 0);
                for (unsigned i = 0; stub.step(seed + i); i++)
                        assert_true(i < STEPS);
                stub.run(true);
                assert_int_equal(finish_leased(f).error, 0);
                assert_blocks(f, 0, 1);
        }
        assert_int_equal(cuda.event_destroy(event), CU_OK);
        release(f, &j);
}

static void work_in_the_stream_behind_sees_the_bytes(void **state)
{
        static uint8_t seen[BLOCKS * REGION];
        struct fixture *f = *state;
        struct leased_job j;

        begin(f);
        lay_out(f, KVCACHE_LAYOUT_BLOCK_FIRST);
        put_keys(f, N, 1);
        for (unsigned seed = 0; seed < 20; seed++) {
                j = lease(f, 1, 0);
                clear(f);
                stub.run(false);
                j.q.after_stream = f->stream;
                assert_int_equal(copy(f, &j), 0);
                assert_int_equal(
                        cuda.copy((cu_address)(uintptr_t)seen, f->bases[0], 2 * REGION, f->stream),
                        CU_OK);
                for (unsigned i = 0; stub.step(seed + i); i++)
                        assert_true(i < STEPS);
                for (unsigned b = 0; b < 2 * REGION; b++)
                        assert_int_equal(seen[b], byte_of(1, b));
                assert_int_equal(finish_leased(f).error, 0);
                stub.run(true);
                release(f, &j);
        }
}

/* A load of gigabytes must not hold back one for which the program's next step waits. */
static void an_awaited_request_does_not_queue_behind_others(void **state)
{
        struct kvcache_gpu_completion c;
        struct fixture *f = *state;
        struct leased_job plain, awaited;
        cu_stream busy;
        int r = 0;

        begin(f);
        put_keys(f, 2 * N, 1);
        plain = lease(f, 1, 0);
        awaited = lease(f, 1 + N, N);
        plain.q.user_data = 1;
        awaited.q.user_data = 2;
        assert_int_equal(cuda.stream_create(&busy, CU_STREAM_IS_NON_BLOCKING), CU_OK);
        for (unsigned seed = 0; seed < 10; seed++) {
                clear(f);
                stub.run(false);
                for (unsigned i = 0; i < 5000; i++)
                        assert_int_equal(cuda.copy(f->device + MEMORY - 512,
                                                   f->device + MEMORY - 1024, 512, busy),
                                         CU_OK);
                plain.q.before_stream = busy;
                awaited.q.after_stream = f->stream;
                assert_int_equal(copy(f, &plain), 0);
                assert_int_equal(copy(f, &awaited), 0);
                for (unsigned i = 0; (r = kvcache_gpu_reap_leased(f->gpu, &c, 1, 0)) == 0; i++)
                        assert_true(stub.step(seed + i));
                assert_int_equal(r, 1);
                assert_int_equal(c.user_data, 2);
                assert_int_equal(kvcache_gpu_reap_leased(f->gpu, &c, 1, 0), 0);
                stub.run(true);
                assert_int_equal(finish_leased(f).user_data, 1);
                assert_blocks(f, 0, 1);
                assert_blocks(f, N, 1 + N);
        }
        assert_int_equal(cuda.stream_destroy(busy), CU_OK);
        release(f, &plain);
        release(f, &awaited);
}

/* With more lists than slots for them, the copy engines make the remaining copies. */
static void more_requests_than_lists_are_copied(void **state)
{
        struct fixture *f = *state;
        struct leased_job j;

        begin(f);
        put_keys(f, N, 1);
        j = lease(f, 1, 3);
        clear(f);
        stub.run(false);
        for (unsigned i = 0; i < MANY; i++) {
                j.q.user_data = i;
                assert_int_equal(copy(f, &j), 0);
        }
        stub.run(true);
        for (unsigned i = 0; i < MANY; i++) {
                struct kvcache_gpu_completion c = finish_leased(f);

                assert_int_equal(c.error, 0);
                assert_int_equal(c.user_data, i);
        }
        assert_blocks(f, 3, 1);
        assert_true(info_of(f).counts.kernel_launches > 0 && info_of(f).counts.batch_calls > 0);
        release(f, &j);
}

/* --- lists in both streams of a queue --- */

enum {
        LARGE_INNER = 256,
        LARGE_REGION = 16 * LARGE_INNER * 2,
        LARGE_BLOCK = LAYERS * 2 * LARGE_REGION,
        PER_LIST = GPU_BATCH_BYTES / LARGE_BLOCK, /* blocks of a list */
        LARGE = 2 * PER_LIST + 10,                /* blocks of the layout */
        LARGE_MEMORY = LARGE * LARGE_BLOCK,
};

/* Chunks that are copied to many blocks each, so that a request has several lists. */
struct large {
        struct leased_job j;
        uint64_t blocks[LARGE], offsets[LARGE];
        uint64_t shift; /* block `i` gets the chunk (i + shift) % N */
};

static void lay_out_large(struct fixture *f, cu_address memory)
{
        lay_out(f, KVCACHE_LAYOUT_OUTER_FIRST);
        f->layout.inner = LARGE_INNER;
        f->layout.blocks = LARGE;
        for (unsigned i = 0; i < LAYERS; i++)
                f->bases[i] = memory + (uint64_t)i * LARGE * 2 * LARGE_REGION;
}

/* Has the request copy the chunks to the first `count` blocks. */
static void place_large(struct large *l, size_t count)
{
        for (size_t i = 0; i < count; i++) {
                l->blocks[i] = i;
                l->offsets[i] = l->j.offsets[(i + l->shift) % N];
        }
        l->j.q.blocks = l->blocks;
        l->j.q.pool_offsets = l->offsets;
        l->j.q.count = count;
}

static void copy_large(struct fixture *f, struct large *l, size_t count)
{
        place_large(l, count);
        assert_int_equal(kvcache_gpu_copy_leased(f->gpu, &l->j.q), 0);
}

static void assert_large(struct fixture *f, const struct large *l, size_t count)
{
        const uint8_t *chunks = l->j.first;
        uint64_t first = l->j.offsets[0];

        for (uint64_t i = 0; i < count; i++) {
                struct kvcache_piece p[2 * LAYERS];
                int n = kvcache_layout_pieces(&f->layout, i, NULL, p, ARRAY_SIZE(p));

                for (int k = 0; k < n; k++)
                        if (memcmp(stub.memory(p[k].address),
                                   chunks + (l->j.offsets[(i + l->shift) % N] - first) +
                                           p[k].offset,
                                   p[k].bytes) != 0)
                                fail_msg("wrong bytes in block %u", (unsigned)i);
        }
}

/* Performs one operation. With a small seed, the streams that were created last fall behind. */
static bool step_large(unsigned seed, unsigned i)
{
        return stub.step(seed < 2 ? 0 : 7 * seed + i);
}

/* Blocks of each list of a request that fills all blocks. */
static const uint64_t in_list[] = { 1, PER_LIST + 1, LARGE - 1 };

static cu_address block_in_list(struct fixture *f, unsigned list)
{
        return f->bases[0] + in_list[list] * LARGE_REGION;
}

/* Puts work into the program's stream that takes long, and then writes a block of each list. */
static void overwrite_large(struct fixture *f)
{
        for (unsigned i = 0; i < 100; i++)
                assert_int_equal(cuda.copy(f->device, f->device + MEMORY / 2, 512, f->stream),
                                 CU_OK);
        for (unsigned i = 0; i < ARRAY_SIZE(in_list); i++)
                assert_int_equal(cuda.copy(block_in_list(f, i), f->device, LARGE_REGION, f->stream),
                                 CU_OK);
}

/* The completion of a request comes after the copies of all of its lists. */
static void finish_large(struct fixture *f, const struct large *l, unsigned seed)
{
        struct kvcache_gpu_completion c;

        for (unsigned i = 0; kvcache_gpu_reap_leased(f->gpu, &c, 1, 0) == 0; i++)
                assert_true(step_large(seed, i));
        assert_int_equal(c.error, 0);
        assert_large(f, l, LARGE);
        stub.run(true);
}

/* The program's work behind an awaited request sees the blocks of all of its lists. */
static void see_large(struct fixture *f, const struct large *l, unsigned seed)
{
        static uint8_t seen[ARRAY_SIZE(in_list)][LARGE_REGION];

        for (unsigned i = 0; i < ARRAY_SIZE(in_list); i++)
                assert_int_equal(cuda.copy((cu_address)(uintptr_t)seen[i], block_in_list(f, i),
                                           LARGE_REGION, f->stream),
                                 CU_OK);
        for (unsigned i = 0; step_large(seed, i); i++)
                assert_true(i < STEPS);
        stub.run(true);
        assert_int_equal(finish_leased(f).error, 0);
        assert_large(f, l, LARGE);
        for (unsigned i = 0; i < ARRAY_SIZE(in_list); i++)
                assert_memory_equal(seen[i], stub.memory(block_in_list(f, i)), LARGE_REGION);
}

/* All lists of a request follow what the program has put into its stream before, and are awaited. A
 * part of the bounce memory is filled again only once it was copied from. */
static void lists_in_both_streams_are_one_request(void **state)
{
        static const enum kvcache_gpu_engine engines[] = { KVCACHE_GPU_ENGINE_KERNEL,
                                                           KVCACHE_GPU_ENGINE_BOUNCE };
        static struct large l;
        struct fixture *f = *state;
        cu_address memory;

        assert_int_equal(cuda.mem_alloc(&memory, LARGE_MEMORY), CU_OK);
        connect_to(f, &(struct fake_options){ .pool_bytes = 16 << 20 });
        for (unsigned e = 0; e < ARRAY_SIZE(engines); e++) {
                lay_out_large(f, memory);
                attach(f, engines[e]);
                put_keys(f, N, 1 + 100 * e);
                l.j = lease(f, 1 + 100 * e, 0);
                for (unsigned seed = 0; seed < 4; seed++) {
                        memset(stub.memory(memory), 0xee, LARGE_MEMORY);
                        stub.run(false);
                        overwrite_large(f);
                        l.shift = seed;
                        l.j.q.before_stream = f->stream;
                        l.j.q.after_stream = seed % 2 == 0 ? f->stream : NULL;
                        copy_large(f, &l, LARGE);
                        (seed % 2 == 0 ? see_large : finish_large)(f, &l, seed);
                }
                assert_true(info_of(f).counts.kernel_launches > 0);
                release(f, &l.j);
                detach(f);
        }
        assert_int_equal(cuda.mem_free(memory), CU_OK);
}

/* The list of a slot is written again only once the stream that reads it has done so. The driver
 * without a GPU ends the test otherwise. */
static void a_slot_belongs_to_its_list_until_the_list_is_read(void **state)
{
        static struct large l;
        struct fixture *f = *state;
        cu_address memory;

        assert_int_equal(cuda.mem_alloc(&memory, LARGE_MEMORY), CU_OK);
        connect_to(f, &(struct fake_options){ .pool_bytes = 16 << 20 });
        lay_out_large(f, memory);
        attach(f, KVCACHE_GPU_ENGINE_KERNEL);
        put_keys(f, N, 1);
        l.j = lease(f, 1, 0);
        for (unsigned steps = 0; steps < 12; steps++) {
                stub.run(false);
                copy_large(f, &l, PER_LIST + 4); /* the second list is in the second stream */
                for (unsigned i = 2; i < LEASED_SLOTS; i++)
                        copy_large(f, &l, 1);
                for (unsigned i = 0; i < steps; i++)
                        (void)stub.step(0);
                l.shift++;
                copy_large(f, &l, PER_LIST + 4);
                stub.run(true);
                for (unsigned i = 0; i < LEASED_SLOTS; i++)
                        assert_int_equal(finish_leased(f).error, 0);
                assert_large(f, &l, PER_LIST + 4);
        }
        release(f, &l.j);
        detach(f);
        assert_int_equal(cuda.mem_free(memory), CU_OK);
}

/* If the driver refuses one list in every way of copying, the request fails, although later lists
 * could be copied. No copy of the request is made after the call. */
static void a_request_fails_as_a_whole_if_a_list_is_refused(void **state)
{
        static struct large l;
        struct fixture *f = *state;
        cu_address memory;
        unsigned failed = 0;

        assert_int_equal(cuda.mem_alloc(&memory, LARGE_MEMORY), CU_OK);
        connect_to(f, &(struct fake_options){ .pool_bytes = 16 << 20 });
        lay_out_large(f, memory);
        attach(f, KVCACHE_GPU_ENGINE_KERNEL);
        put_keys(f, N, 1);
        l.j = lease(f, 1, 0);
        for (unsigned round = 0; round < 2 * ARRAY_SIZE(in_list); round++) {
                unsigned list = round / 2;
                struct kvcache_gpu_completion c;

                l.j.q.before_stream = f->stream;
                l.j.q.after_stream = round % 2 == 0 ? f->stream : NULL;
                copy_large(f, &l, 1); /* creates the queue */
                assert_int_equal(finish_leased(f).error, 0);
                stub.run(false);
                stub.fault("cuLaunchKernel", list, 1, CU_ERROR_OUT_OF_MEMORY);
                stub.fault("cuMemcpyBatchAsync_v2", 0, 1, CU_ERROR_OUT_OF_MEMORY);
                stub.fault("cuMemcpyAsync", list + 1, 1, CU_ERROR_OUT_OF_MEMORY);
                place_large(&l, LARGE);
                failed += kvcache_gpu_copy_leased(f->gpu, &l.j.q) < 0;
                memset(stub.memory(memory), 0xee, LARGE_MEMORY);
                stub.reset();
                copy_large(f, &l, 1); /* a copy in flight would precede this one */
                assert_int_equal(finish_leased(f).error, 0);
                for (unsigned i = 0; i < ARRAY_SIZE(in_list); i++)
                        assert_int_equal(*(uint8_t *)stub.memory(block_in_list(f, i)), 0xee);
                assert_int_equal(kvcache_gpu_reap_leased(f->gpu, &c, 1, 0), 0);
        }
        assert_int_equal(failed, 2 * ARRAY_SIZE(in_list));
        release(f, &l.j);
        detach(f);
        assert_int_equal(cuda.mem_free(memory), CU_OK);
}

/* --- pools --- */

static unsigned registrations(void)
{
        struct stub_live live;

        stub.live(&live);
        return live.registrations;
}

static void restart_daemon(struct fixture *f)
{
        fake_daemon_kill(f->rig->d, false);
        f->rig->d = fake_daemon_free(f->rig->d);
        start_daemon(f, &(struct fake_options){ .pool_bytes = 16 << 20 });
        for (unsigned i = 0; kvcache_ping(f->kv, NULL) < 0; i++)
                assert_true(i < STEPS);
        assert_int_equal(kvcache_gpu_reap(f->gpu, &(struct kvcache_gpu_completion){ 0 }, 1, 0), 0);
}

static void leases_outlive_the_daemon_until_their_pool_is_released(void **state)
{
        struct fixture *f = *state;
        struct leased_job old, new;
        uint64_t pools[8], bytes = 0;
        const void *memory;
        unsigned before;

        begin(f);
        put_keys(f, N, 1);
        old = lease(f, 1, 0);
        before = registrations();
        copy_and_check(f, &old, 1);
        restart_daemon(f);
        put_keys(f, N, 50); /* registers the new pool */
        new = lease(f, 50, 12);
        assert_true(new.q.pool_id != old.q.pool_id);
        assert_int_equal(kvcache_gpu_pools(f->gpu, pools, ARRAY_SIZE(pools)), 2);
        assert_true(pools[0] == new.q.pool_id &&pools[1] == old.q.pool_id);
        copy_and_check(f, &old, 1);
        copy_and_check(f, &new, 50);
        memory = kvcache_gpu_pool_memory(f->gpu, old.q.pool_id, &bytes);
        assert_non_null(memory);
        assert_true(bytes >= old.offsets[0] + BLOCK);
        assert_memory_equal((const uint8_t *)memory + old.offsets[0], old.first, BLOCK);
        assert_int_equal(kvcache_gpu_release_pool(f->gpu, new.q.pool_id), -EBUSY);
        assert_int_equal(kvcache_gpu_release_pool(f->gpu, old.q.pool_id), 0);
        (void)kvcache_gpu_reap(f->gpu, &(struct kvcache_gpu_completion){ 0 }, 1, 0);
        assert_int_equal(copy(f, &old), -ESTALE);
        assert_int_equal(kvcache_gpu_release_pool(f->gpu, old.q.pool_id), -ESTALE);
        assert_int_equal(kvcache_gpu_pools(f->gpu, pools, ARRAY_SIZE(pools)), 1);
        copy_and_check(f, &new, 50);
        /* The list and a pool of at most two slices, not both pools. */
        assert_true(registrations() <= before + 2);
        release(f, &old);
        release(f, &new);
}

static void without_leased_copies_the_pool_goes_with_its_session(void **state)
{
        struct fixture *f = *state;
        uint64_t pools[8], first;

        begin(f);
        put_keys(f, N, 1);
        assert_int_equal(kvcache_gpu_pools(f->gpu, &first, 1), 1);
        restart_daemon(f);
        put_keys(f, N, 50);
        assert_int_equal(kvcache_gpu_pools(f->gpu, pools, ARRAY_SIZE(pools)), 1);
        assert_true(pools[0] != first);
}

static void of_many_pools_the_oldest_goes(void **state)
{
        struct fixture *f = *state;
        struct leased_job old;
        uint64_t pools[8];

        begin(f);
        put_keys(f, N, 1);
        old = lease(f, 1, 0);
        copy_and_check(f, &old, 1);
        for (unsigned i = 1; i <= LEASED_POOLS; i++) {
                restart_daemon(f);
                put_keys(f, N, 100 * i);
                if (i < LEASED_POOLS)
                        copy_and_check(f, &old, 1);
        }
        assert_int_equal(copy(f, &old), -ESTALE);
        assert_int_equal(kvcache_gpu_pools(f->gpu, pools, ARRAY_SIZE(pools)), LEASED_POOLS);
        release(f, &old);
}

/* A released pool is unregistered only when the copies of both queues are made. */
static void a_pool_stays_registered_until_its_copies_are_made(void **state)
{
        struct fixture *f = *state;

        begin(f);
        for (unsigned awaited = 0; awaited < 2; awaited++) {
                struct leased_job old;

                put_keys(f, N, 1 + 100 * awaited);
                old = lease(f, 1 + 100 * awaited, 0);
                old.q.after_stream = awaited ? f->stream : NULL;
                copy_and_check(f, &old, 1 + 100 * awaited);
                restart_daemon(f);
                put_keys(f, N, 50 + 100 * awaited);
                clear(f);
                stub.run(false);
                assert_int_equal(copy(f, &old), 0);
                assert_int_equal(kvcache_gpu_release_pool(f->gpu, old.q.pool_id), 0);
                (void)kvcache_gpu_reap(f->gpu, &(struct kvcache_gpu_completion){ 0 }, 1, 0);
                stub.run(true);
                assert_int_equal(finish_leased(f).error, 0);
                assert_blocks(f, 0, 1 + 100 * awaited);
                assert_int_equal(copy(f, &old), -ESTALE);
                release(f, &old);
        }
}

static void a_pool_has_one_name_in_all_handles(void **state)
{
        struct fixture *f = *state;
        struct kvcache_options options = { .size = sizeof(options), .socket_path = f->rig->path };
        struct kvcache *other;
        struct leased_job j;
        struct kvcache_result result;
        struct kvcache_key key = rig_key(1);
        struct kvcache_namespace_options ns = { .size = sizeof(ns),
                                                .name = "n",
                                                .fingerprint = "" };
        uint64_t pool, offset;
        uint32_t number;

        begin(f);
        put_keys(f, N, 1);
        j = lease(f, 1, 0);
        assert_int_equal(kvcache_connect(&other, &options, NULL, 0), 0);
        assert_int_equal(kvcache_namespace_open(other, &ns, &number), 0);
        assert_int_equal(kvcache_get_map(other, number, &key, &result), 0);
        assert_int_equal(kvcache_pool_of(other, result.data, &pool, &offset), 0);
        assert_true(pool == j.q.pool_id && offset == j.offsets[0]);
        assert_int_equal(kvcache_pool_of(other, &pool, &pool, &offset), -ENOENT);
        assert_int_equal(kvcache_pool_of(other, result.data, NULL, &offset), -EINVAL);
        assert_int_equal(kvcache_pool_of(f->kv, result.data, &pool, &offset), -ENOENT);
        assert_int_equal(kvcache_release(other, &result.lease, 1), 0);
        kvcache_close(other);
        release(f, &j);
}

/* --- requests that are refused --- */

static void what_is_no_request_is_refused(void **state)
{
        struct fixture *f = *state;
        struct leased_job j, bad;

        begin(f);
        put_keys(f, N, 1);
        j = lease(f, 1, 0);
        clear(f);
        assert_int_equal(kvcache_gpu_copy_leased(NULL, &j.q), -EINVAL);
        assert_int_equal(kvcache_gpu_copy_leased(f->gpu, NULL), -EINVAL);
#define REFUSED(error, change)                                                                     \
        do {                                                                                       \
                bad = j;                                                                           \
                bad.q.blocks = bad.blocks;                                                         \
                bad.q.pool_offsets = bad.offsets;                                                  \
                change;                                                                            \
                assert_int_equal(kvcache_gpu_copy_leased(f->gpu, &bad.q), error);                  \
                assert_true(kvcache_gpu_leased_error(f->gpu)[0]);                                  \
        } while (0)
        REFUSED(-EINVAL, bad.q.size = 0);
        REFUSED(-EINVAL, bad.q.size = 8);
        REFUSED(-EINVAL, bad.q.flags = 1);
        REFUSED(-EINVAL, bad.q.layout = NULL);
        REFUSED(-EINVAL, bad.q.blocks = NULL);
        REFUSED(-EINVAL, bad.q.pool_offsets = NULL);
        REFUSED(-EINVAL, bad.blocks[N - 1] = BLOCKS);
        REFUSED(-EINVAL, bad.blocks[0] = UINT64_MAX);
        REFUSED(-EINVAL, bad.offsets[N - 1] = (16 << 20) - BLOCK + 1);
        REFUSED(-EINVAL, bad.offsets[0] = UINT64_MAX);
        REFUSED(-EINVAL, bad.offsets[0] = UINT64_MAX - BLOCK + 1);
        REFUSED(-ESTALE, bad.q.pool_id++);
        REFUSED(-ESTALE, bad.q.pool_id = 0);
#undef REFUSED
        for (unsigned i = 0; i < N; i++)
                assert_false(block_is(f, i, 1 + i)); /* nothing was copied */
        assert_int_equal(kvcache_gpu_release_pool(f->gpu, 0), -ESTALE);
        assert_int_equal(kvcache_gpu_release_pool(NULL, 0), -EINVAL);
        assert_null(kvcache_gpu_pool_memory(f->gpu, 0, &(uint64_t){ 0 }));
        assert_null(kvcache_gpu_pool_memory(f->gpu, j.q.pool_id, NULL));
        assert_null(kvcache_gpu_pool_memory(NULL, j.q.pool_id, &(uint64_t){ 0 }));
        assert_int_equal(kvcache_gpu_pools(f->gpu, NULL, 1), -EINVAL);
        assert_int_equal(kvcache_gpu_pools(f->gpu, NULL, 0), 0);
        assert_int_equal(kvcache_gpu_reap_leased(f->gpu, NULL, 1, 0), -EINVAL);
        copy_and_check(f, &j, 1);
        release(f, &j);
}

static void a_stream_that_is_captured_is_not_touched(void **state)
{
        struct fixture *f = *state;
        struct leased_job j;

        begin(f);
        put_keys(f, N, 1);
        j = lease(f, 1, 0);
        for (unsigned side = 0; side < 2; side++) {
                j.q.before_stream = side == 0 ? f->stream : NULL;
                j.q.after_stream = side == 1 ? f->stream : NULL;
                assert_int_equal(stub.begin_capture(f->stream, CU_CAPTURE_MODE_GLOBAL), CU_OK);
                assert_int_equal(copy(f, &j), -EBUSY);
                assert_true(stub.end_capture(f->stream));
        }
        copy_and_check(f, &j, 1);
        release(f, &j);
}

/* Each call of the driver fails in turn: the request is refused, or copied nevertheless. */
static void a_driver_that_refuses_has_nothing_under_way(void **state)
{
        static const char *const functions[] = { "cuMemcpyAsync",       "cuLaunchKernel",
                                                 "cuEventRecord",       "cuStreamWaitEvent",
                                                 "cuEventCreate",       "cuStreamCreate",
                                                 "cuMemAlloc_v2",       "cuMemcpyBatchAsync_v2",
                                                 "cuMemHostRegister_v2" };
        struct kvcache_gpu_completion c;
        struct fixture *f = *state;

        connect_to(f, &(struct fake_options){ .pool_bytes = 16 << 20 });
        for (size_t i = 0; i < ARRAY_SIZE(functions); i++)
                for (unsigned after = 0; after < 4; after++) {
                        uint64_t key = 1000 * (i + 1) + 100 * after;
                        struct leased_job j;
                        int r;

                        attach(f, KVCACHE_GPU_ENGINE_AUTO);
                        put_keys(f, N, key);
                        j = lease(f, key, 0);
                        clear(f);
                        j.q.before_stream = f->stream;
                        stub.fault(functions[i], after, 100, CU_ERROR_OUT_OF_MEMORY);
                        r = copy(f, &j);
                        stub.reset();
                        if (r == 0) {
                                assert_int_equal(finish_leased(f).error, 0);
                                assert_blocks(f, 0, key);
                        } else {
                                assert_true(r == -EIO || r == -ENOMEM);
                        }
                        assert_int_equal(kvcache_gpu_reap_leased(f->gpu, &c, 1, 0), 0);
                        copy_and_check(f, &j, key);
                        release(f, &j);
                        detach(f);
                }
}

/* --- threads --- */

struct other_thread {
        struct fixture *f;
        struct leased_job j;
        unsigned good;
};

static void *copies_of_another_thread(void *p)
{
        struct other_thread *t = p;
        struct kvcache_gpu_completion c;

        for (unsigned i = 0; i < 200; i++)
                if (copy(t->f, &t->j) == 0 &&
                    kvcache_gpu_reap_leased(t->f->gpu, &c, 1, test_timeout_ms(60000)) == 1)
                        t->good += c.error == 0 && c.copy_ns > 0;
        return NULL;
}

static void another_thread_copies_while_the_handle_is_used(void **state)
{
        struct other_thread t = { .f = *state };
        struct fixture *f = *state;
        pthread_t thread;

        begin(f);
        put_keys(f, N, 1);
        t.j = lease(f, 1, 12);
        assert_int_equal(pthread_create(&thread, NULL, copies_of_another_thread, &t), 0);
        for (unsigned i = 0; i < 40; i++) {
                struct job *j = job_of(f, N, 1, 0);

                assert_int_equal(put(f, j), 0);
                (void)info_of(f);
        }
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_int_equal(t.good, 200);
        assert_blocks(f, 12, 1);
        release(f, &t.j);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                TEST(leased_chunks_arrive_by_each_engine_and_layout),
                TEST(regions_are_counted_as_listed_by_each_copy),
                TEST(a_completion_has_its_number_its_count_and_its_time),
                TEST(a_request_of_no_blocks_prepares_for_others_of_its_kind),
                TEST(copies_follow_what_the_program_has_put_into_its_stream),
                TEST(work_in_the_stream_behind_sees_the_bytes),
                TEST(an_awaited_request_does_not_queue_behind_others),
                TEST(more_requests_than_lists_are_copied),
                TEST(lists_in_both_streams_are_one_request),
                TEST(a_slot_belongs_to_its_list_until_the_list_is_read),
                TEST(a_request_fails_as_a_whole_if_a_list_is_refused),
                TEST(a_pool_stays_registered_until_its_copies_are_made),
                TEST(leases_outlive_the_daemon_until_their_pool_is_released),
                TEST(without_leased_copies_the_pool_goes_with_its_session),
                TEST(of_many_pools_the_oldest_goes),
                TEST(a_pool_has_one_name_in_all_handles),
                TEST(what_is_no_request_is_refused),
                TEST(a_stream_that_is_captured_is_not_touched),
                TEST(a_driver_that_refuses_has_nothing_under_way),
                TEST(another_thread_copies_while_the_handle_is_used),
        };

        if (!gpu_rig_open()) {
                puts("the stub of the CUDA driver is not found: LD_LIBRARY_PATH");
                return 1;
        }
        return cmocka_run_group_tests(tests, NULL, NULL);
}

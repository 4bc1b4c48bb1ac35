/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of a GPU whose layout lists its regions, and chunks of several blocks, against a stub
 * driver, a stub cuFile and a fake daemon. Device memory is compared as a whole, so that padding
 * and other blocks are seen to stay as they are. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "checked.h"
#include "gds-rig.h"

enum {
        LARGE = 1536,
        LARGE_STRIDE = 2048,
        TAIL = 500, /* odd for 16-byte copies */
        CHUNK = 2 * LARGE + TAIL,
        CHUNK_BLOCKS = 3,
        N_REGIONS = 3,
};

struct job_of_chunks {
        struct kvcache_gpu_request q;
        struct kvcache_gpu_block blocks[8];
        uint64_t indices[8 * CHUNK_BLOCKS];
        int statuses[8];
};

static struct kvcache_layout_region regions[N_REGIONS];
static uint8_t expected[MEMORY];

/* Lists two layers in padded pages of one tensor, and a third layer of pages with an odd length in
 * other memory. */
static void list_regions(struct fixture *f)
{
        regions[0] = (struct kvcache_layout_region){ f->device, 2 * LARGE_STRIDE, LARGE };
        regions[1] =
                (struct kvcache_layout_region){ f->device + BLOCKS * 2 * LARGE_STRIDE, TAIL, TAIL };
        regions[2] =
                (struct kvcache_layout_region){ f->device + LARGE_STRIDE, 2 * LARGE_STRIDE, LARGE };
        f->layout = (struct kvcache_layout){
                .size = sizeof(f->layout),
                .kind = KVCACHE_LAYOUT_REGIONS,
                .blocks = BLOCKS,
                .regions = regions,
                .n_regions = N_REGIONS,
        };
}

/* Fills device memory and the expected copy of it. */
static void fill_memory(struct fixture *f)
{
        clear(f);
        memset(expected, 0xee, sizeof(expected));
}

/* Expects in a block the part of chunk `seed` that begins at `offset`. */
static void expect_block(uint64_t block, uint64_t seed, uint64_t offset)
{
        for (unsigned r = 0; r < N_REGIONS; r++)
                for (uint64_t i = 0; i < regions[r].bytes; i++)
                        expected[regions[r].base - regions[0].base + block * regions[r].stride +
                                 i] = byte_of(seed, offset++);
}

static void assert_memory(struct fixture *f)
{
        const uint8_t *memory = stub.memory(f->device);

        for (size_t i = 0; i < MEMORY; i++)
                if (memory[i] != expected[i])
                        fail_msg("byte %zu of device memory is 0x%02x, not 0x%02x", i, memory[i],
                                 expected[i]);
}

/* Writes the part of chunk `seed` that begins at `offset` into a block. */
static void write_block(struct fixture *f, uint64_t block, uint64_t seed, uint64_t offset)
{
        for (unsigned r = 0; r < N_REGIONS; r++) {
                uint8_t *at = stub.memory(regions[r].base + block * regions[r].stride);

                for (uint64_t i = 0; i < regions[r].bytes; i++)
                        at[i] = byte_of(seed, offset++);
        }
}

static void attach_with(struct fixture *f, enum kvcache_gpu_engine engine, uint32_t flags)
{
        struct kvcache_gpu_options o = options_of(engine);
        char why[512] = "";

        o.flags = flags;
        if (kvcache_gpu_attach(&f->gpu, f->kv, &o, why, sizeof(why)) < 0)
                fail_msg("%s", why);
}

static const struct {
        enum kvcache_gpu_engine engine;
        uint32_t flags;
} ways[] = {
        { KVCACHE_GPU_ENGINE_AUTO, 0 },
        { KVCACHE_GPU_ENGINE_KERNEL, 0 },
        { KVCACHE_GPU_ENGINE_BATCH, 0 },
        { KVCACHE_GPU_ENGINE_PLAIN, 0 },
        { KVCACHE_GPU_ENGINE_BOUNCE, 0 },
        { KVCACHE_GPU_ENGINE_AUTO, KVCACHE_GPU_NO_POOL },
        { KVCACHE_GPU_ENGINE_KERNEL, KVCACHE_GPU_NO_POOL },
};

/* --- chunks of one block --- */

static void put_regions(struct fixture *f, size_t n, uint64_t first_key)
{
        struct job *j = job_of(f, n, first_key, 0);

        for (size_t i = 0; i < n; i++)
                write_block(f, i, first_key + i, 0);
        assert_int_equal(put(f, j), 0);
        assert_statuses(j, KVCACHE_OK);
}

static void get_regions(struct fixture *f, size_t n, uint64_t first_key, uint64_t first_block)
{
        struct job *j = job_of(f, n, first_key, first_block);

        fill_memory(f);
        for (size_t i = 0; i < n; i++)
                expect_block((first_block + i) % BLOCKS, first_key + i, 0);
        assert_int_equal(get(f, j), 0);
        assert_statuses(j, KVCACHE_OK);
        assert_memory(f);
}

static void regions_go_out_and_come_back_by_every_engine(void **state)
{
        struct fixture *f = *state;

        connect_to(f, &(struct fake_options){ .pool_bytes = 16 << 20 });
        list_regions(f);
        for (unsigned w = 0; w < ARRAY_SIZE(ways); w++) {
                attach_with(f, ways[w].engine, ways[w].flags);
                put_regions(f, BLOCKS, 100 * w);
                get_regions(f, BLOCKS, 100 * w, 5);
                get_regions(f, 3, 100 * w + 7, 20);
                assert_int_equal(info_of(f).counts.driver_errors, 0);
                detach_gds(f);
        }
}

/* Attaches with cuFile for gets and for puts. */
static void attach_to_files(struct fixture *f)
{
        struct kvcache_gpu_options o = options_of(KVCACHE_GPU_ENGINE_AUTO);

        connect_to(f, &(struct fake_options){
                              .pool_bytes = POOL, .lends = true, .takes_files = true });
        o.gds_bytes = DEVICE_BYTES;
        o.gds_put_path = "/var/tmp";
        assert_int_equal(kvcache_gpu_attach(&f->gpu, f->kv, &o, NULL, 0), 0);
}

static void regions_are_read_and_written_by_cufile(void **state)
{
        struct fixture *f = *state;

        attach_to_files(f);
        list_regions(f);
        regions[1].stride = regions[1].bytes = 6000; /* too short to be written otherwise */
        f->layout.blocks = 8;
        put_regions(f, 8, 1);
        assert_int_equal(info_of(f).gds_puts.blocks, 8);
        fill_memory(f);
        for (unsigned i = 0; i < 8; i++)
                expect_block(i, 8 - i, 0);
        struct job *j = job_of(f, 8, 1, 0);
        for (unsigned i = 0; i < 8; i++)
                j->blocks[i].block = 7 - i;
        assert_int_equal(get(f, j), 0);
        assert_statuses(j, KVCACHE_OK);
        assert_memory(f);
        assert_int_equal(info_of(f).gds.blocks, 8);
        assert_fallbacks(f, KVCACHE_GPU_GDS_NONE, 0);
}

/* The list has the order of the other kind's chunk. */
static void a_list_loads_what_the_same_memory_stored(void **state)
{
        struct kvcache_layout_region same[2 * LAYERS];
        struct fixture *f = *state;
        struct job *j;

        begin(f);
        put_keys(f, BLOCKS, 1);
        list_as_regions(f, same);
        clear(f);
        j = job_of(f, BLOCKS, 1, 0);
        assert_int_equal(get(f, j), 0);
        lay_out(f, KVCACHE_LAYOUT_OUTER_FIRST);
        for (unsigned i = 0; i < BLOCKS; i++)
                assert_true(block_is(f, i, 1 + i));
}

/* Moves blocks out and back. Returns what the engine counted meanwhile. */
static struct kvcache_gpu_counts move_all(struct fixture *f, uint64_t first_key)
{
        struct kvcache_gpu_counts before = info_of(f).counts, after;
        uint64_t *a = (uint64_t *)&after, *b = (uint64_t *)&before;
        struct job *j = job_of(f, BLOCKS, first_key, 0);

        assert_int_equal(put(f, j), 0);
        j = job_of(f, BLOCKS, first_key, 0);
        assert_int_equal(get(f, j), 0);
        assert_statuses(j, KVCACHE_OK);
        after = info_of(f).counts;
        for (size_t i = 0; i < sizeof(after) / sizeof(*a); i++)
                a[i] -= b[i];
        return after;
}

/* The engine gets the same list of copies from both descriptions, so that neither is slower. */
static void a_list_makes_the_same_copies_as_the_layout_of_its_memory(void **state)
{
        struct kvcache_layout_region same[2 * LAYERS];
        struct fixture *f = *state;

        connect_to(f, &(struct fake_options){ .pool_bytes = 16 << 20 });
        for (unsigned w = 0; w < ARRAY_SIZE(ways); w++) {
                struct kvcache_gpu_counts as_layout, as_list;

                attach_with(f, ways[w].engine, ways[w].flags);
                lay_out(f, KVCACHE_LAYOUT_OUTER_FIRST);
                as_layout = move_all(f, 200 * w);
                list_as_regions(f, same);
                as_list = move_all(f, 200 * w + 100);
                assert_memory_equal(&as_list, &as_layout, sizeof(as_list));
                assert_int_equal(as_list.pieces, 2 * BLOCKS * 2 * LAYERS);
                detach_gds(f);
        }
}

/* Blocks of 1,024 pieces each: a batch takes as many as its list of copies has room for. */
static void blocks_of_1024_pieces_are_moved(void **state)
{
        static struct kvcache_layout_region many[1024];
        struct fixture *f = *state;
        uint8_t *memory;
        struct job *j;

        begin(f);
        for (unsigned i = 0; i < 1024; i++)
                many[i] = (struct kvcache_layout_region){ f->device + (1023 - i) * 128, 4, 3 };
        f->layout = (struct kvcache_layout){
                .size = sizeof(f->layout),
                .kind = KVCACHE_LAYOUT_REGIONS,
                .blocks = BLOCKS,
                .regions = many,
                .n_regions = 1024,
        };
        clear(f);
        memory = stub.memory(f->device);
        for (unsigned i = 0; i < 1024; i++)
                for (unsigned b = 0; b < 3 * BLOCKS; b++)
                        memory[(1023 - i) * 128 + b / 3 * 4 + b % 3] =
                                byte_of(b / 3, i * 3 + b % 3);
        j = job_of(f, BLOCKS, 1, 0);
        assert_int_equal(put(f, j), 0);
        assert_statuses(j, KVCACHE_OK);
        fill_memory(f);
        for (unsigned i = 0; i < 1024; i++)
                for (unsigned b = 0; b < 3 * BLOCKS; b++)
                        expected[(1023 - i) * 128 + b / 3 * 4 + b % 3] =
                                byte_of(b / 3, i * 3 + b % 3);
        assert_int_equal(get(f, j), 0);
        assert_statuses(j, KVCACHE_OK);
        assert_memory(f);
}

/* --- chunks of three blocks --- */

/* Makes chunks from key `first_key` on, of consecutive blocks from `first_block` on. */
static struct job_of_chunks *chunks_of(struct fixture *f, size_t n, uint64_t first_key,
                                       uint64_t first_block)
{
        static struct job_of_chunks j;

        memset(&j, 0, sizeof(j));
        for (size_t i = 0; i < n; i++)
                j.blocks[i].key = rig_key(first_key + i);
        for (size_t i = 0; i < n * CHUNK_BLOCKS; i++)
                j.indices[i] = (first_block + i) % BLOCKS;
        j.q = (struct kvcache_gpu_request){
                .size = sizeof(j.q),
                .block_size = sizeof(j.blocks[0]),
                .namespace_handle = f->rig->ns,
                .layout = &f->layout,
                .blocks = j.blocks,
                .count = n,
                .statuses = j.statuses,
                .chunk_blocks = CHUNK_BLOCKS,
                .indices = j.indices,
        };
        return &j;
}

static void assert_chunks(const struct job_of_chunks *j, int status)
{
        for (size_t i = 0; i < j->q.count; i++)
                if (j->statuses[i] != status)
                        fail_msg("chunk %zu is %s, not %s", i, kvcache_status_name(j->statuses[i]),
                                 kvcache_status_name(status));
}

static void put_chunks(struct fixture *f, struct job_of_chunks *j, uint64_t first_key)
{
        for (size_t i = 0; i < j->q.count * CHUNK_BLOCKS; i++)
                if (j->indices[i] != KVCACHE_GPU_NO_BLOCK)
                        write_block(f, j->indices[i], first_key + i / CHUNK_BLOCKS,
                                    i % CHUNK_BLOCKS * CHUNK);
        if (kvcache_gpu_put_blocks(f->gpu, &j->q) < 0)
                fail_msg("%s", kvcache_gpu_error(f->gpu));
        assert_int_equal(finish(f), 0);
        assert_chunks(j, KVCACHE_OK);
}

static void get_chunks(struct fixture *f, struct job_of_chunks *j, uint64_t first_key)
{
        fill_memory(f);
        for (size_t i = 0; i < j->q.count * CHUNK_BLOCKS; i++)
                if (j->indices[i] != KVCACHE_GPU_NO_BLOCK)
                        expect_block(j->indices[i], first_key + i / CHUNK_BLOCKS,
                                     i % CHUNK_BLOCKS * CHUNK);
        if (kvcache_gpu_get_blocks(f->gpu, &j->q) < 0)
                fail_msg("%s", kvcache_gpu_error(f->gpu));
        assert_int_equal(finish(f), 0);
        assert_chunks(j, KVCACHE_OK);
        assert_memory(f);
}

static void leave_out(struct job_of_chunks *j, size_t first, size_t n)
{
        for (size_t i = first; i < first + n; i++)
                j->indices[i] = KVCACHE_GPU_NO_BLOCK;
}

static void chunks_go_and_come_whole_and_in_part(struct fixture *f, uint64_t key)
{
        struct job_of_chunks *j = chunks_of(f, 8, key, 0);

        put_chunks(f, j, key);
        get_chunks(f, chunks_of(f, 8, key, 7), key);
        j = chunks_of(f, 4, key + 2, 9); /* the engine has the first blocks */
        leave_out(j, 0, 2);
        get_chunks(f, j, key + 2);
        j = chunks_of(f, 3, key, 3);
        leave_out(j, 1, 1); /* in the middle, at the end, all but the middle */
        leave_out(j, 5, 1);
        leave_out(j, 6, 1);
        leave_out(j, 8, 1);
        get_chunks(f, j, key);
}

static void chunks_of_three_blocks_by_every_engine(void **state)
{
        struct fixture *f = *state;

        connect_to(f, &(struct fake_options){ .pool_bytes = 16 << 20 });
        list_regions(f);
        for (unsigned w = 0; w < ARRAY_SIZE(ways); w++) {
                attach_with(f, ways[w].engine, ways[w].flags);
                chunks_go_and_come_whole_and_in_part(f, 100 * w);
                detach_gds(f);
        }
}

static void chunks_of_three_blocks_by_cufile(void **state)
{
        struct fixture *f = *state;

        begin_gds(f);
        list_regions(f);
        chunks_go_and_come_whole_and_in_part(f, 1);
        assert_int_equal(info_of(f).gds.blocks, 8 + 4 + 3);
        assert_int_equal(info_of(f).counts.blocks_from_pool, 0);
        assert_fallbacks(f, KVCACHE_GPU_GDS_NONE, 0);
}

/* A load of the last of three long blocks reads that block's bytes, and at most two pages more. */
static void a_load_reads_only_the_blocks_that_it_needs(void **state)
{
        enum { LONG = 2 * LARGE + 6000, N = 8 };
        struct fixture *f = *state;
        struct job_of_chunks *j;
        uint64_t before;

        begin_gds(f);
        list_regions(f);
        regions[1].stride = regions[1].bytes = 6000;
        for (unsigned b = 0; b < BLOCKS; b++)
                write_block(f, b, 1 + b / CHUNK_BLOCKS, b % CHUNK_BLOCKS * LONG);
        j = chunks_of(f, N, 1, 0);
        assert_int_equal(kvcache_gpu_put_blocks(f->gpu, &j->q), 0);
        assert_int_equal(finish(f), 0);
        assert_chunks(j, KVCACHE_OK);
        fill_memory(f);
        for (unsigned i = 0; i < N; i++) {
                leave_out(j, i * CHUNK_BLOCKS, 2);
                expect_block(i * CHUNK_BLOCKS + 2, 1 + i, 2 * LONG);
        }
        before = info_of(f).gds.read_bytes;
        assert_int_equal(kvcache_gpu_get_blocks(f->gpu, &j->q), 0);
        assert_int_equal(finish(f), 0);
        assert_chunks(j, KVCACHE_OK);
        assert_memory(f);
        assert_int_equal(info_of(f).gds.blocks, N);
        assert_in_range(info_of(f).gds.read_bytes - before, N * LONG, N * (LONG + 2 * 4096));
}

/* Kinds 1 to 3 are all layouts except KVCACHE_LAYOUT_REGIONS. */
static void other_kinds_have_chunks_of_several_blocks(void **state)
{
        struct fixture *f = *state;
        struct job_of_chunks *j;

        begin(f);
        for (unsigned kind = 1; kind <= 3; kind++) {
                lay_out(f, kind);
                j = chunks_of(f, 1, kind, 2);
                for (unsigned b = 0; b < CHUNK_BLOCKS; b++)
                        set_block(f, 2 + b, 10 * kind + b);
                assert_int_equal(kvcache_gpu_put_blocks(f->gpu, &j->q), 0);
                assert_int_equal(finish(f), 0);
                assert_chunks(j, KVCACHE_OK);
                clear(f);
                j = chunks_of(f, 1, kind, 9);
                leave_out(j, 0, 1);
                assert_int_equal(kvcache_gpu_get_blocks(f->gpu, &j->q), 0);
                assert_int_equal(finish(f), 0);
                assert_chunks(j, KVCACHE_OK);
                assert_false(block_is(f, 9, 10 * kind));
                assert_true(block_is(f, 10, 10 * kind + 1) && block_is(f, 11, 10 * kind + 2));
        }
}

/* The staging memory has bytes of earlier puts; the fake daemon's chunk has zeros. */
static void a_block_left_out_of_a_put_is_stored_as_zeros(struct fixture *f, uint64_t key)
{
        struct kvcache_result result = { 0 };
        struct kvcache_key name = rig_key(key + 50);
        struct kvcache_request get;
        struct job_of_chunks *j;
        const uint8_t *chunk;

        put_chunks(f, chunks_of(f, 8, key, 0), key);
        j = chunks_of(f, 8, key + 50, 0);
        leave_out(j, 0, 2);
        leave_out(j, 4, 1);
        put_chunks(f, j, key + 50);
        kvcache_prep_get(&get, f->rig->ns, &name, 1, &result);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &get, NULL), 0);
        assert_int_equal(result.status, KVCACHE_OK);
        assert_int_equal(result.chunk_length, CHUNK_BLOCKS * CHUNK);
        chunk = result.data;
        for (size_t i = 0; i < CHUNK_BLOCKS * CHUNK; i++)
                assert_int_equal(chunk[i], i < 2 * CHUNK ? 0 : byte_of(key + 50, i));
        assert_int_equal(kvcache_release(f->kv, &result.lease, 1), 0);
        assert_int_equal(kvcache_flush(f->kv), 0);
}

static void blocks_left_out_are_stored_as_zeros(void **state)
{
        struct fixture *f = *state;

        connect_to(f, &(struct fake_options){ .pool_bytes = 16 << 20 });
        list_regions(f);
        for (unsigned w = 0; w < ARRAY_SIZE(ways); w++) {
                attach_with(f, ways[w].engine, ways[w].flags);
                a_block_left_out_of_a_put_is_stored_as_zeros(f, 1000 + 100 * w);
                detach_gds(f);
        }
}

/* Zeros are written by the processor: such chunks are not gathered in device memory. */
static void chunks_with_blocks_left_out_are_not_written_by_cufile(void **state)
{
        struct fixture *f = *state;

        attach_to_files(f);
        list_regions(f);
        a_block_left_out_of_a_put_is_stored_as_zeros(f, 1);
        assert_int_equal(info_of(f).gds_puts.blocks, 8);
        assert_int_equal(info_of(f).gds_puts.fallbacks[KVCACHE_GPU_GDS_HOLES], 8);
}

/* A chunk of another number of blocks has another length. */
static void a_chunk_of_another_length_is_no_hit(void **state)
{
        struct fixture *f = *state;
        struct job_of_chunks *j;

        begin(f);
        list_regions(f);
        put_chunks(f, chunks_of(f, 2, 1, 0), 1);
        fill_memory(f);
        j = chunks_of(f, 2, 1, 0);
        j->q.chunk_blocks = 2;
        assert_int_equal(kvcache_gpu_get_blocks(f->gpu, &j->q), 0);
        assert_int_equal(finish(f), 0);
        assert_chunks(j, KVCACHE_MISMATCH);
        assert_memory(f);
}

/* --- refusals --- */

static void malformed_chunks_are_refused(void **state)
{
        static struct kvcache_layout_region many[1024];
        struct fixture *f = *state;
        struct job_of_chunks *j;

        begin(f);
        list_regions(f);
        for (unsigned i = 0; i < 1024; i++)
                many[i] = (struct kvcache_layout_region){ f->device + i * 64, 64 * 1024, 3 };
        fill_memory(f);
#define REFUSE(change, error, word)                                                                \
        do {                                                                                       \
                j = chunks_of(f, 2, 1, 0);                                                         \
                change;                                                                            \
                assert_int_equal(kvcache_gpu_put_blocks(f->gpu, &j->q), error);                    \
                if (!strstr(kvcache_gpu_error(f->gpu), word))                                      \
                        fail_msg("%s", kvcache_gpu_error(f->gpu));                                 \
                assert_int_equal(kvcache_gpu_get_blocks(f->gpu, &j->q), error);                    \
        } while (0)
        REFUSE(j->q.indices = NULL, -EINVAL, "need indices");
        REFUSE(j->q.reserved = 1, -EINVAL, "reserved");
        REFUSE(j->indices[4] = BLOCKS, -EINVAL, "chunk 1: the layout has no block 24");
        REFUSE(j->indices[0] = UINT64_MAX - 1, -EINVAL, "chunk 0: the layout has no block");
        REFUSE(j->blocks[1].block = 1, -EINVAL, "chunk 1: `block` and `tokens` must be 0");
        REFUSE(leave_out(j, 3, 3), -EINVAL, "chunk 1 has KVCACHE_GPU_NO_BLOCK for all");
        REFUSE(j->blocks[0].tokens = 2, -EINVAL, "block 0 of the request");
        REFUSE(j->q.size = offsetof(struct kvcache_gpu_request, indices), -EINVAL, "need indices");
        REFUSE(j->q.chunk_blocks = UINT32_MAX, -E2BIG, "more than 16384 pieces");
        REFUSE(f->layout.blocks = UINT64_MAX / 4096, -EOVERFLOW, "address space");
        list_regions(f);
        REFUSE(f->layout.regions = many; f->layout.n_regions = 1024;
               j->q.chunk_blocks = 17, -E2BIG, "more than 16384 pieces");
        list_regions(f);
        lay_out(f, KVCACHE_LAYOUT_OUTER_FIRST);
        REFUSE(j->blocks[0].tokens = 3, -EINVAL, "`tokens` must be 0 in a request with indices");
#undef REFUSE
        j = chunks_of(f, 1, 1, 0);
        j->q.n_layers = 1;
        assert_int_equal(kvcache_gpu_get_blocks(f->gpu, &j->q), -EINVAL);
        assert_non_null(strstr(kvcache_gpu_error(f->gpu), "all layers"));
        list_regions(f);
        j = chunks_of(f, 1, 1, 0);
        j->q.first_layer = 1;
        j->q.n_layers = 1;
        assert_int_equal(kvcache_gpu_get_blocks(f->gpu, &j->q), -EINVAL);
        assert_non_null(strstr(kvcache_gpu_error(f->gpu), "layers"));
        regions[0].bytes = regions[0].stride = 2 << 20; /* three fit nowhere */
        f->layout.n_regions = f->layout.blocks = 1;
        j = chunks_of(f, 1, 1, 0);
        memset(j->indices, 0, sizeof(j->indices));
        assert_int_equal(kvcache_gpu_put_blocks(f->gpu, &j->q), -E2BIG);
        assert_non_null(strstr(kvcache_gpu_error(f->gpu), "staging"));
        regions[0].bytes = regions[0].stride = UINT64_C(1) << 63;
        j->q.chunk_blocks = 2;
        assert_int_equal(kvcache_gpu_get_blocks(f->gpu, &j->q), -EOVERFLOW);
        assert_memory(f);
        assert_int_equal(f->rig->d->requests[WIRE_GET] + f->rig->d->requests[WIRE_PUT], 0);
}

/* A request of an earlier release ends before the members for chunks of several blocks. */
static void an_older_request_has_chunks_of_one_block(void **state)
{
        struct fixture *f = *state;
        struct job *j;

        begin(f);
        list_regions(f);
        put_regions(f, 2, 1);
        fill_memory(f);
        expect_block(3, 1, 0);
        expect_block(4, 2, 0);
        j = job_of(f, 2, 1, 3);
        j->q.size = offsetof(struct kvcache_gpu_request, chunk_blocks);
        j->q.chunk_blocks = 9;
        j->q.reserved = 9;
        assert_int_equal(get(f, j), 0);
        assert_statuses(j, KVCACHE_OK);
        assert_memory(f);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup_gds, teardown_gds)
        const struct CMUnitTest tests[] = {
                TEST(regions_go_out_and_come_back_by_every_engine),
                TEST(regions_are_read_and_written_by_cufile),
                TEST(a_list_loads_what_the_same_memory_stored),
                TEST(a_list_makes_the_same_copies_as_the_layout_of_its_memory),
                TEST(blocks_of_1024_pieces_are_moved),
                TEST(chunks_of_three_blocks_by_every_engine),
                TEST(chunks_of_three_blocks_by_cufile),
                TEST(a_load_reads_only_the_blocks_that_it_needs),
                TEST(other_kinds_have_chunks_of_several_blocks),
                TEST(blocks_left_out_are_stored_as_zeros),
                TEST(chunks_with_blocks_left_out_are_not_written_by_cufile),
                TEST(a_chunk_of_another_length_is_no_hit),
                TEST(malformed_chunks_are_refused),
                TEST(an_older_request_has_chunks_of_one_block),
        };

        if (!gpu_rig_open() || !stub_cufile_load(&cufile))
                return 1;
        return cmocka_run_group_tests_name("gpu-regions", tests, NULL, NULL);
}

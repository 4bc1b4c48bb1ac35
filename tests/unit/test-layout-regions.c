/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts that list their regions: pieces compared with a model of single bytes, refused layouts,
 * and gather and scatter with padding between the blocks. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "checked.h"
#include "kvcache-layout.h"

enum { MOST = 1024, MEMORY = 4096 };

static struct kvcache_layout layout_of(const struct kvcache_layout_region *regions, uint32_t n,
                                       uint64_t blocks)
{
        return (struct kvcache_layout){
                .size = sizeof(struct kvcache_layout),
                .kind = KVCACHE_LAYOUT_REGIONS,
                .blocks = blocks,
                .regions = regions,
                .n_regions = n,
        };
}

static struct kvcache_layout_info measure(const struct kvcache_layout *l)
{
        struct kvcache_layout_info info = { .size = sizeof(info) };
        char why[128] = "";

        if (kvcache_layout_measure(l, &info, why, sizeof(why)) < 0)
                fail_msg("the layout is refused: %s", why);
        return info;
}

static void refuse(const struct kvcache_layout *l, int error, const char *word)
{
        struct kvcache_layout_info info = { .size = sizeof(info) };
        struct kvcache_layout_copy copy = { 0 };
        struct kvcache_piece p;
        char why[128] = "";

        assert_int_equal(kvcache_layout_measure(l, &info, why, sizeof(why)), error);
        if (!strstr(why, word))
                fail_msg("\"%s\" does not speak of \"%s\"", why, word);
        assert_int_equal(kvcache_layout_pieces(l, 0, NULL, &p, 1), error);
        assert_int_equal(kvcache_layout_scatter(l, 0, 0, &copy, 1, NULL, NULL, 0), error);
}

/* --- pieces --- */

/* Returns the address of a byte of a block's chunk, by the specification. */
static uint64_t model_byte(const struct kvcache_layout *l, uint64_t block, uint64_t offset)
{
        const struct kvcache_layout_region *r = l->regions;

        for (; offset >= r->bytes; r++)
                offset -= r->bytes;
        return r->base + block * r->stride + offset;
}

/* Every byte is in one piece, at the model's address, and no piece could be joined to the next. */
static void compare(const struct kvcache_layout *l, uint64_t block, uint64_t block_bytes)
{
        static struct kvcache_piece p[MOST + 1];
        uint64_t offset = 0;
        int n;

        memset(p, 0xa5, sizeof(p));
        n = kvcache_layout_pieces(l, block, NULL, p, MOST);
        assert_true(n > 0 && n <= (int)l->n_regions);
        assert_int_equal(p[n].bytes, UINT64_C(0xa5a5a5a5a5a5a5a5));
        for (int i = 0; i < n; i++) {
                assert_int_equal(p[i].offset, offset);
                for (uint64_t b = 0; b < p[i].bytes; b++)
                        assert_true(p[i].address + b == model_byte(l, block, offset + b));
                offset += p[i].bytes;
                if (i + 1 < n)
                        assert_true(p[i].address + p[i].bytes != p[i + 1].address);
        }
        assert_int_equal(offset, block_bytes);
        assert_int_equal(kvcache_layout_pieces(l, block, NULL, p, (size_t)n - 1), -ENOBUFS);
}

/* Lists random pages of tensors with random strides; some pages touch. */
static uint32_t random_regions(struct kvcache_layout_region *ret, uint64_t blocks, uint64_t *bytes)
{
        unsigned tensors = 1 + (unsigned)rand() % 4;
        uint64_t at = 1 + (uint64_t)rand() % 100;
        uint32_t n = 0;

        *bytes = 0;
        for (unsigned t = 0; t < tensors; t++) {
                uint64_t stride = 8 + (uint64_t)rand() % 60, used = (uint64_t)rand() % 4;
                uint32_t first = n;

                while (used < stride && n - first < 5) {
                        uint64_t page = 1 + (uint64_t)rand() % (stride - used);

                        ret[n++] = (struct kvcache_layout_region){ at + used, stride, page };
                        *bytes += page;
                        used += page + (uint64_t)rand() % 3;
                }
                at += stride * blocks + (uint64_t)rand() % 50;
        }
        return n;
}

static void shuffle(struct kvcache_layout_region *regions, uint32_t n)
{
        for (uint32_t i = n - 1; i > 0; i--) {
                uint32_t k = (uint32_t)rand() % (i + 1);
                struct kvcache_layout_region held = regions[i];

                regions[i] = regions[k];
                regions[k] = held;
        }
}

static void every_byte_is_where_the_list_has_it(void **state)
{
        struct kvcache_layout_region regions[20];

        srand(7);
        for (unsigned i = 0; i < 4000; i++) {
                uint64_t blocks = 1 + (uint64_t)rand() % 5, bytes;
                uint32_t n = random_regions(regions, blocks, &bytes);
                struct kvcache_layout l = layout_of(regions, n, blocks);
                struct kvcache_layout_info info;

                if (rand() % 2)
                        shuffle(regions, n);
                info = measure(&l);
                assert_int_equal(info.block_bytes, bytes);
                assert_true(info.max_pieces > 0 && info.max_pieces <= n);
                assert_int_equal(info.region_bytes + info.buffer_bytes, 0);
                assert_int_equal(info.block_stride + info.layer_stride + info.outer_stride, 0);
                compare(&l, (uint64_t)rand() % blocks, bytes);
        }
}

/* 1,024 adjacent pages are one piece; the same pages in another order, or of several tensors, stay
 * apart. */
static void regions_that_touch_are_merged(void **state)
{
        static struct kvcache_layout_region regions[MOST];
        struct kvcache_layout_region held;
        struct kvcache_layout l = layout_of(regions, MOST, 3);
        struct kvcache_piece p[3];

        for (uint32_t i = 0; i < MOST; i++)
                regions[i] = (struct kvcache_layout_region){ 4096 + i * 64, MOST * 64, 64 };
        assert_int_equal(measure(&l).max_pieces, 1);
        assert_int_equal(kvcache_layout_pieces(&l, 2, NULL, p, 1), 1);
        assert_int_equal(p[0].address, 4096 + 2 * MOST * 64);
        assert_int_equal(p[0].bytes, MOST * 64);

        held = regions[MOST - 1];
        regions[MOST - 1] = regions[MOST - 2];
        regions[MOST - 2] = held;
        assert_int_equal(measure(&l).max_pieces, 3);
        assert_int_equal(kvcache_layout_pieces(&l, 0, NULL, p, 3), 3);

        for (uint32_t i = 0; i < MOST; i++)
                regions[i] = (struct kvcache_layout_region){ 4096 + i * 192, 64, 64 };
        assert_int_equal(measure(&l).max_pieces, MOST);
        for (uint32_t i = 0; i < MOST; i++)
                regions[i].stride = 64 + i % 2;
        for (uint32_t i = 0; i < MOST; i++)
                regions[i].base = i == 0 ? 4096 : regions[i - 1].base + 2 * 65 + 64;
        assert_int_equal(measure(&l).max_pieces, MOST);
        compare(&l, 0, MOST * 64);
}

/* Pages of the first block touch, those of the others do not. */
static void only_the_block_that_is_adjacent_is_joined(void **state)
{
        static const struct kvcache_layout_region regions[] = { { 1000, 8, 8 }, { 1016, 16, 16 } };
        struct kvcache_layout l = layout_of(regions, 2, 2);
        struct kvcache_piece p[2];

        assert_int_equal(kvcache_layout_pieces(&l, 0, NULL, p, 2), 2);
        assert_int_equal(kvcache_layout_pieces(&l, 1, NULL, p, 2), 2);
        l.blocks = 1;
        assert_int_equal(kvcache_layout_pieces(&l, 0, NULL, p, 2), 2);
        l.regions = (const struct kvcache_layout_region[]){ { 1000, 8, 8 }, { 1008, 16, 16 } };
        assert_int_equal(measure(&l).max_pieces, 2);
        assert_int_equal(kvcache_layout_pieces(&l, 0, NULL, p, 2), 1);
        assert_int_equal(p[0].bytes, 24);
}

/* --- refusals --- */

static void malformed_lists_are_refused_with_the_reason(void **state)
{
        static const struct kvcache_layout_region good[] = { { 4096, 64, 48 }, { 8192, 32, 32 } };
        static struct kvcache_layout_region many[MOST + 1];
        uint64_t base = 4096;
        struct kvcache_layout_region r[2];
        struct kvcache_layout l;

#define REFUSE(member, value, error, word)                                                         \
        do {                                                                                       \
                l = layout_of(good, 2, 4);                                                         \
                l.member = (value);                                                                \
                refuse(&l, error, word);                                                           \
        } while (0)
#define REFUSE_REGION(member, value, error, word)                                                  \
        do {                                                                                       \
                memcpy(r, good, sizeof(r));                                                        \
                r[1].member = (value);                                                             \
                l = layout_of(r, 2, 4);                                                            \
                refuse(&l, error, word);                                                           \
        } while (0)
        l = layout_of(good, 2, 4);
        assert_int_equal(measure(&l).block_bytes, 80);
        REFUSE(regions, NULL, -EINVAL, "1,024 regions");
        REFUSE(n_regions, 0, -EINVAL, "1,024 regions");
        REFUSE(n_regions, UINT32_MAX, -EINVAL, "1,024 regions");
        REFUSE(blocks, 0, -EINVAL, "blocks");
        REFUSE(blocks, UINT64_MAX, -EOVERFLOW, "address space");
        REFUSE(blocks, UINT64_MAX / 64, -EOVERFLOW, "address space");
        REFUSE(layers, 1, -EINVAL, "set the other members to 0");
        REFUSE(outer, 1, -EINVAL, "set the other members to 0");
        REFUSE(page_tokens, 1, -EINVAL, "set the other members to 0");
        REFUSE(dtype_bytes, 1, -EINVAL, "set the other members to 0");
        REFUSE(inner, 1, -EINVAL, "set the other members to 0");
        REFUSE(alignment, 1, -EINVAL, "set the other members to 0");
        REFUSE(bases, &base, -EINVAL, "set the other members to 0");
        REFUSE(base_bytes, 1, -EINVAL, "set the other members to 0");
        REFUSE(reserved, 1, -EINVAL, "set the other members to 0");
        REFUSE(kind, 5, -EINVAL, "kind");
        REFUSE_REGION(base, 0, -EINVAL, "`base` of a region is 0");
        REFUSE_REGION(bytes, 0, -EINVAL, "at least 1 byte");
        REFUSE_REGION(bytes, 33, -EINVAL, "stride is less");
        REFUSE_REGION(bytes, UINT64_MAX, -EINVAL, "stride is less");
        REFUSE_REGION(stride, 0, -EINVAL, "stride is less");
        REFUSE_REGION(stride, 31, -EINVAL, "stride is less");
        REFUSE_REGION(stride, UINT64_MAX, -EOVERFLOW, "address space");
        REFUSE_REGION(stride, (UINT64_MAX - 8192 - 31) / 3 + 1, -EOVERFLOW, "address space");
        REFUSE_REGION(base, UINT64_MAX - 3 * 32 - 31, -EOVERFLOW, "address space");
        memcpy(r, good, sizeof(r));
        r[1].base = UINT64_MAX - 3 * 32 - 32; /* the last byte is the last address but one */
        l = layout_of(r, 2, 4);
        assert_int_equal(measure(&l).block_bytes, 80);

        for (uint32_t i = 0; i <= MOST; i++)
                many[i] = (struct kvcache_layout_region){ 4096 + i * 64, 32, 16 };
        l = layout_of(many, MOST, 2);
        assert_int_equal(measure(&l).block_bytes, MOST * 16);
        l.n_regions++;
        refuse(&l, -EINVAL, "1,024 regions");
}

/* The sum of two regions exceeds 64 bits; each fits, because there is one block. */
static void a_chunk_larger_than_memory_is_refused(void **state)
{
        static const struct kvcache_layout_region regions[] = {
                { 4096, UINT64_MAX - 8192, UINT64_MAX - 8192 }, { 1, 16384, 16384 }
        };
        struct kvcache_layout l = layout_of(regions, 2, 1);

        refuse(&l, -EOVERFLOW, "address space");
        l.n_regions = 1;
        assert_int_equal(measure(&l).block_bytes, UINT64_MAX - 8192);
}

/* Caller's structures of an earlier release end before the list: it is not read. */
static void an_older_structure_has_no_regions(void **state)
{
        static const struct kvcache_layout_region regions[] = { { 4096, 64, 48 } };
        struct kvcache_layout l = layout_of(regions, 1, 2);
        uint64_t bases[] = { 4096 };

        l.size = offsetof(struct kvcache_layout, regions);
        refuse(&l, -EINVAL, "1,024 regions");
        l = (struct kvcache_layout){
                .size = offsetof(struct kvcache_layout, regions),
                .kind = KVCACHE_LAYOUT_BLOCK_FIRST,
                .layers = 1,
                .outer = 1,
                .page_tokens = 1,
                .dtype_bytes = 1,
                .inner = 64,
                .blocks = 2,
                .bases = bases,
                .regions = regions,
                .n_regions = 1,
                .reserved = 7,
        };
        assert_int_equal(measure(&l).block_bytes, 64);
        l.size = sizeof(l);
        refuse(&l, -EINVAL, "no regions");
        l.regions = NULL;
        refuse(&l, -EINVAL, "no regions");
        l.n_regions = 0;
        refuse(&l, -EINVAL, "no regions");
        l.reserved = 0;
        assert_int_equal(measure(&l).max_pieces, 1);
}

static void parts_of_blocks_do_not_exist(void **state)
{
        static const struct kvcache_layout_part wrong[] = {
                { .tokens = 2 }, { .first_layer = 1 }, { .n_layers = 2 }, { .reserved = 1 }
        };
        static const struct kvcache_layout_region regions[] = { { 4096, 64, 48 } };
        struct kvcache_layout_part all = { .tokens = 1, .n_layers = 1 };
        struct kvcache_layout l = layout_of(regions, 1, 2);
        struct kvcache_piece p;

        for (unsigned i = 0; i < ARRAY_SIZE(wrong); i++)
                assert_int_equal(kvcache_layout_pieces(&l, 0, &wrong[i], &p, 1), -EINVAL);
        assert_int_equal(kvcache_layout_pieces(&l, 2, NULL, &p, 1), -EINVAL);
        assert_int_equal(kvcache_layout_pieces(&l, UINT64_MAX, NULL, &p, 1), -EINVAL);
        assert_int_equal(kvcache_layout_pieces(&l, 1, &all, &p, 1), 1);
        assert_int_equal(p.bytes, 48);
}

/* --- overlaps --- */

/* Marks every byte of every block. Returns whether one belongs to two. */
static bool model_overlaps(const struct kvcache_layout_region *regions, uint32_t n, uint64_t blocks)
{
        static uint8_t owned[2048];

        memset(owned, 0, sizeof(owned));
        for (uint32_t i = 0; i < n; i++)
                for (uint64_t b = 0; b < blocks; b++)
                        for (uint64_t k = 0; k < regions[i].bytes; k++)
                                if (owned[regions[i].base + b * regions[i].stride + k]++)
                                        return true;
        return false;
}

/* Returns whether the ranges from the first to the last block of two regions meet whose strides
 * differ. */
static bool model_strides_meet(const struct kvcache_layout_region *regions, uint32_t n,
                               uint64_t blocks)
{
        for (uint32_t i = 0; i < n; i++)
                for (uint32_t k = 0; k < n; k++) {
                        const struct kvcache_layout_region *a = &regions[i], *b = &regions[k];

                        if (a->stride != b->stride && a->base <= b->base &&
                            b->base < a->base + (blocks - 1) * a->stride + a->bytes)
                                return true;
                }
        return false;
}

static void a_list_is_refused_exactly_if_a_byte_belongs_twice(void **state)
{
        unsigned refused = 0, accepted = 0, strides = 0;

        srand(11);
        for (unsigned i = 0; i < 60000; i++) {
                struct kvcache_layout_info info = { .size = sizeof(info) };
                struct kvcache_layout_region regions[6];
                uint32_t n = 1 + (uint32_t)rand() % 6;
                uint64_t blocks = 1 + (uint64_t)rand() % 6, stride = 1 + (uint64_t)rand() % 24;
                struct kvcache_layout l = layout_of(regions, n, blocks);
                char why[128] = "";
                int r;

                for (uint32_t k = 0; k < n; k++) {
                        if (rand() % 8 == 0)
                                stride = 1 + (uint64_t)rand() % 24;
                        regions[k] = (struct kvcache_layout_region){
                                1 + (uint64_t)rand() % (rand() % 2 ? 40 : 800), stride,
                                1 + (uint64_t)rand() % MIN(stride, UINT64_C(1) + i % 7)
                        };
                }
                r = kvcache_layout_measure(&l, &info, why, sizeof(why));
                if (model_overlaps(regions, n, blocks)) {
                        assert_int_equal(r, -EINVAL);
                        refused++;
                } else if (model_strides_meet(regions, n, blocks)) {
                        assert_int_equal(r, -EINVAL);
                        assert_non_null(strstr(why, "different strides"));
                        strides++;
                } else {
                        if (r < 0)
                                fail_msg("refused without cause: %s", why);
                        accepted++;
                }
        }
        assert_true(refused > 1000 && accepted > 1000 && strides > 100);
}

/* Lists 1,024 regions that must be compared one by one, because each begins one block after the
 * previous one. */
static void long_lists_with_shifted_regions_are_checked(void **state)
{
        static struct kvcache_layout_region regions[MOST];
        struct kvcache_layout l = layout_of(regions, MOST, 2000);

        for (uint32_t i = 0; i < MOST; i++)
                regions[i] =
                        (struct kvcache_layout_region){ 4096 + i * (MOST * 16 + 16), MOST * 16, 8 };
        assert_int_equal(measure(&l).max_pieces, MOST);
        regions[MOST - 1].base = regions[0].base + 1000 * MOST * 16 + 7;
        refuse(&l, -EINVAL, "overlap");
        regions[MOST - 1].base++;
        assert_int_equal(measure(&l).max_pieces, MOST);
}

/* --- gather and scatter --- */

enum { BLOCKS = 6, FULL = 40, FULL_STRIDE = 64, SMALL = 24, BLOCK = 2 * FULL + SMALL };

/* Two layers in padded pages of one tensor, and a smaller one with a tensor of its own. */
struct memory {
        uint8_t padded[BLOCKS * 2 * FULL_STRIDE], own[BLOCKS * SMALL];
        struct kvcache_layout_region regions[3];
        struct kvcache_layout layout;
};

static void memory_init(struct memory *m, uint8_t fill)
{
        uintptr_t padded = (uintptr_t)m->padded, own = (uintptr_t)m->own;

        memset(m->padded, fill, sizeof(m->padded));
        memset(m->own, fill, sizeof(m->own));
        m->regions[0] = (struct kvcache_layout_region){ padded, 2 * FULL_STRIDE, FULL };
        m->regions[1] = (struct kvcache_layout_region){ own, SMALL, SMALL };
        m->regions[2] =
                (struct kvcache_layout_region){ padded + FULL_STRIDE, 2 * FULL_STRIDE, FULL };
        m->layout = layout_of(m->regions, 3, BLOCKS);
}

static uint8_t value_of(uint64_t block, uint64_t i)
{
        return (uint8_t)(1 + block * 37 + i * 3);
}

/* Writes the bytes of `seed` into a block, past the library. */
static void memory_set(struct memory *m, uint64_t block, uint64_t seed)
{
        for (uint64_t i = 0; i < FULL; i++) {
                m->padded[block * 2 * FULL_STRIDE + i] = value_of(seed, i);
                m->padded[(block * 2 + 1) * FULL_STRIDE + i] = value_of(seed, FULL + SMALL + i);
        }
        for (uint64_t i = 0; i < SMALL; i++)
                m->own[block * SMALL + i] = value_of(seed, FULL + i);
}

static void assert_chunk(const uint8_t *chunk, uint64_t seed)
{
        for (uint64_t i = 0; i < BLOCK; i++)
                assert_int_equal(chunk[i], value_of(seed, i));
}

static void blocks_come_back_and_padding_is_untouched(void **state)
{
        static struct memory from, to, expected;
        uint8_t chunks[3 * BLOCK + 16];
        struct kvcache_layout_moved moved = { .size = sizeof(moved) };
        struct kvcache_layout_copy out[] = { { 1, chunks, BLOCK, 0, 0 },
                                             { 5, chunks + BLOCK, BLOCK, 1, 0 } };
        struct kvcache_layout_copy in[] = { { 4, chunks, BLOCK, 0, 0 },
                                            { 0, chunks + BLOCK, BLOCK, 0, 0 } };

        memory_init(&from, 0x11);
        memory_init(&to, 0xee);
        memory_init(&expected, 0xee);
        memory_set(&from, 1, 1);
        memory_set(&from, 5, 5);
        memset(chunks, 0xdd, sizeof(chunks));
        assert_int_equal(kvcache_layout_gather(&from.layout, 0, 0, out, 2, &moved, NULL, 0), 0);
        assert_chunk(chunks, 1);
        assert_chunk(chunks + BLOCK, 5);
        for (size_t i = 2 * BLOCK; i < sizeof(chunks); i++)
                assert_int_equal(chunks[i], 0xdd);
        assert_int_equal(moved.blocks, 2);
        assert_int_equal(moved.regions, 6);
        assert_int_equal(moved.copies, 6);
        assert_int_equal(moved.bytes, 2 * BLOCK);
        assert_int_equal(moved.device_bytes, 2 * BLOCK);

        assert_int_equal(kvcache_layout_scatter(&to.layout, 0, 0, in, 2, NULL, NULL, 0), 0);
        memory_set(&expected, 4, 1);
        memory_set(&expected, 0, 5);
        assert_memory_equal(to.padded, expected.padded, sizeof(to.padded));
        assert_memory_equal(to.own, expected.own, sizeof(to.own));
}

/* Regions that were merged are counted as listed, and are one copy. */
static void merged_regions_are_one_copy(void **state)
{
        static uint8_t memory[BLOCKS * 64];
        uint8_t chunk[64];
        const struct kvcache_layout_region regions[] = { { (uintptr_t)memory, 64, 16 },
                                                         { (uintptr_t)memory + 16, 64, 40 },
                                                         { (uintptr_t)memory + 56, 64, 8 } };
        struct kvcache_layout l = layout_of(regions, 3, BLOCKS);
        struct kvcache_layout_copy c = { 2, chunk, 64, 0, 0 };
        struct kvcache_layout_moved moved = { .size = sizeof(moved) };

        for (size_t i = 0; i < sizeof(memory); i++)
                memory[i] = (uint8_t)(i * 7);
        assert_int_equal(kvcache_layout_gather(&l, 0, 0, &c, 1, &moved, NULL, 0), 0);
        assert_memory_equal(chunk, memory + 128, 64);
        assert_int_equal(moved.regions, 3);
        assert_int_equal(moved.copies, 1);
}

/* A chunk of three blocks is a copy for each; a load leaves out the first two. */
static void a_chunk_of_three_blocks_is_read_from_the_middle(void **state)
{
        static const uint64_t stored[] = { 3, 0, 5 };
        static struct memory from, to, expected;
        uint8_t chunk[3 * BLOCK];
        struct kvcache_layout_copy c[3];

        memory_init(&from, 0x11);
        memory_init(&to, 0xee);
        memory_init(&expected, 0xee);
        for (unsigned j = 0; j < 3; j++) {
                memory_set(&from, stored[j], stored[j]);
                c[j] = (struct kvcache_layout_copy){ stored[j], chunk + j * BLOCK, BLOCK, 0, 0 };
        }
        assert_int_equal(kvcache_layout_gather(&from.layout, 0, 0, c, 3, NULL, NULL, 0), 0);
        for (unsigned j = 0; j < 3; j++)
                assert_chunk(chunk + j * BLOCK, stored[j]);
        c[2].block = 1;
        assert_int_equal(kvcache_layout_scatter(&to.layout, 0, 0, c + 2, 1, NULL, NULL, 0), 0);
        memory_set(&expected, 1, 5);
        assert_memory_equal(to.padded, expected.padded, sizeof(to.padded));
        assert_memory_equal(to.own, expected.own, sizeof(to.own));
}

static void a_wrong_copy_changes_nothing(void **state)
{
        static struct memory m, before;
        uint8_t chunk[BLOCK + 1] = { 0 };
        static const struct kvcache_layout_copy wrong[] = {
                { BLOCKS, NULL, BLOCK, 0, 0 }, { 1, NULL, BLOCK - 1, 0, 0 },
                { 1, NULL, BLOCK + 1, 0, 0 },  { 1, NULL, BLOCK, 2, 0 },
                { 1, NULL, 3 * BLOCK, 0, 0 },
        };

        memory_init(&m, 0xee);
        memory_init(&before, 0xee);
        for (unsigned i = 0; i < ARRAY_SIZE(wrong); i++) {
                struct kvcache_layout_copy c[] = { { 0, chunk, BLOCK, 0, 0 }, wrong[i] };

                c[1].chunk = chunk;
                assert_int_equal(kvcache_layout_scatter(&m.layout, 0, 0, c, 2, NULL, NULL, 0),
                                 -EINVAL);
        }
        assert_int_equal(kvcache_layout_scatter(&m.layout, 1, 1, NULL, 0, NULL, NULL, 0), -EINVAL);
        assert_memory_equal(m.padded, before.padded, sizeof(m.padded));
        assert_memory_equal(m.own, before.own, sizeof(m.own));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(every_byte_is_where_the_list_has_it),
                cmocka_unit_test(regions_that_touch_are_merged),
                cmocka_unit_test(only_the_block_that_is_adjacent_is_joined),
                cmocka_unit_test(malformed_lists_are_refused_with_the_reason),
                cmocka_unit_test(a_chunk_larger_than_memory_is_refused),
                cmocka_unit_test(an_older_structure_has_no_regions),
                cmocka_unit_test(parts_of_blocks_do_not_exist),
                cmocka_unit_test(a_list_is_refused_exactly_if_a_byte_belongs_twice),
                cmocka_unit_test(long_lists_with_shifted_regions_are_checked),
                cmocka_unit_test(blocks_come_back_and_padding_is_untouched),
                cmocka_unit_test(merged_regions_are_one_copy),
                cmocka_unit_test(a_chunk_of_three_blocks_is_read_from_the_middle),
                cmocka_unit_test(a_wrong_copy_changes_nothing),
        };

        return cmocka_run_group_tests_name("layout-regions", tests, NULL, NULL);
}

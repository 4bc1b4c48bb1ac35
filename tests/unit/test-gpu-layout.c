/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts, compared with a model that computes the address of every byte from the formulas. */
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

enum { MAX_LAYERS = 5, MAX_PIECES = 2 * MAX_LAYERS };

static struct kvcache_layout example(enum kvcache_layout_kind kind, uint64_t *bases)
{
        return (struct kvcache_layout){
                .size = sizeof(struct kvcache_layout),
                .kind = kind,
                .layers = 3,
                .outer = 2,
                .page_tokens = 4,
                .dtype_bytes = 2,
                .inner = 8,
                .alignment = 256,
                .blocks = 6,
                .bases = bases,
        };
}

static uint64_t up(uint64_t n, uint64_t to)
{
        return to == 0 ? n : (n + to - 1) / to * to;
}

/* The formulas of the specification, without the library's strides. */
static uint64_t model_address(const struct kvcache_layout *l, uint64_t block, uint64_t layer,
                              uint64_t outer)
{
        uint64_t region = (uint64_t)l->page_tokens * l->inner * l->dtype_bytes;
        uint64_t stride;

        switch (l->kind) {
        case KVCACHE_LAYOUT_CONTIGUOUS:
                stride = up(l->layers * region * l->outer, l->alignment);
                return up(l->bases[0], l->alignment) + block * stride + layer * region * l->outer +
                       outer * region;
        case KVCACHE_LAYOUT_BLOCK_FIRST:
                stride = up(region * l->outer, l->alignment);
                return up(l->bases[layer], l->alignment) + block * stride + outer * region;
        default:
                stride = up(region, l->alignment);
                return up(l->bases[layer], l->alignment) + block * stride +
                       outer * stride * l->blocks;
        }
}

static uint64_t model_byte(const struct kvcache_layout *l, uint64_t block, uint32_t tokens,
                           uint64_t offset)
{
        uint64_t part = tokens * l->inner * l->dtype_bytes, region = offset / part;

        return model_address(l, block, region / l->outer, region % l->outer) + offset % part;
}

/* Every byte is in one piece, at the model's address, and no piece could be joined to the next. */
static void compare(const struct kvcache_layout *l, uint64_t block,
                    const struct kvcache_layout_part *part)
{
        uint32_t tokens = part->tokens ? part->tokens : l->page_tokens;
        uint32_t n_layers = part->n_layers ? part->n_layers : l->layers;
        uint64_t layer_bytes = tokens * l->inner * l->dtype_bytes * l->outer;
        uint64_t offset = part->first_layer * layer_bytes, end = offset + n_layers * layer_bytes;
        struct kvcache_piece p[MAX_PIECES + 1];
        int n;

        memset(p, 0xa5, sizeof(p));
        n = kvcache_layout_pieces(l, block, part, p, MAX_PIECES);
        assert_true(n > 0 && n <= (int)(n_layers * l->outer));
        assert_int_equal(p[n].bytes, UINT64_C(0xa5a5a5a5a5a5a5a5));
        for (int i = 0; i < n; i++) {
                assert_int_equal(p[i].offset, offset);
                for (uint64_t b = 0; b < p[i].bytes; b++)
                        assert_true(p[i].address + b == model_byte(l, block, tokens, offset + b));
                offset += p[i].bytes;
                if (i + 1 < n)
                        assert_true(p[i].address + p[i].bytes != p[i + 1].address);
        }
        assert_int_equal(offset, end);
        assert_int_equal(kvcache_layout_pieces(l, block, part, p, (size_t)n), n);
        assert_int_equal(kvcache_layout_pieces(l, block, part, p, (size_t)n - 1), -ENOBUFS);
}

static void every_byte_is_where_the_formulas_have_it(void **state)
{
        static const uint32_t dtypes[] = { 1, 2, 4, 8 };
        static const uint64_t alignments[] = { 0, 1, 2, 64, 4096 };
        uint64_t bases[MAX_LAYERS];

        srand(7);
        for (unsigned i = 0; i < 4000; i++) {
                struct kvcache_layout l = example(1 + i % 3, bases);
                struct kvcache_layout_part part = { 0 };

                l.layers = 1 + (uint32_t)rand() % MAX_LAYERS;
                l.outer = 1 + (uint32_t)rand() % 2;
                l.page_tokens = 1 + (uint32_t)rand() % 5;
                l.dtype_bytes = dtypes[rand() % 4];
                l.inner = 1 + (uint32_t)rand() % 9;
                l.alignment = alignments[rand() % 5];
                l.blocks = 1 + (uint32_t)rand() % 4;
                for (unsigned b = 0; b < MAX_LAYERS; b++)
                        bases[b] = 1 + (uint64_t)rand() * 3;
                if (rand() % 4 == 0) /* layers that touch in memory */
                        for (unsigned b = 1; b < MAX_LAYERS; b++)
                                bases[b] = bases[b - 1] +
                                           up(l.page_tokens * l.inner * l.dtype_bytes * l.outer,
                                              l.alignment);
                if (rand() % 2)
                        part.tokens = 1 + (uint32_t)rand() % l.page_tokens;
                if (rand() % 2) {
                        part.first_layer = (uint32_t)rand() % l.layers;
                        part.n_layers = 1 + (uint32_t)rand() % (l.layers - part.first_layer);
                }
                compare(&l, (uint64_t)rand() % l.blocks, &part);
        }
}

static void whole_blocks_coalesce_as_far_as_memory_does(void **state)
{
        uint64_t bases[] = { 0x10000, 0x20000, 0x30000 };
        struct kvcache_piece p[MAX_PIECES];
        struct kvcache_layout_part half = { .tokens = 2 };
        struct kvcache_layout l = example(KVCACHE_LAYOUT_CONTIGUOUS, bases);

        assert_int_equal(kvcache_layout_pieces(&l, 5, NULL, p, MAX_PIECES), 1);
        assert_int_equal(p[0].bytes, 3 * 2 * 4 * 8 * 2);
        assert_int_equal(kvcache_layout_pieces(&l, 5, &half, p, MAX_PIECES), 6);
        l.kind = KVCACHE_LAYOUT_BLOCK_FIRST;
        assert_int_equal(kvcache_layout_pieces(&l, 5, NULL, p, MAX_PIECES), 3);
        l.kind = KVCACHE_LAYOUT_OUTER_FIRST;
        assert_int_equal(kvcache_layout_pieces(&l, 5, NULL, p, MAX_PIECES), 6);
        l.blocks = 1; /* keys and values of the only block touch, unless they are padded apart */
        assert_int_equal(kvcache_layout_pieces(&l, 0, NULL, p, MAX_PIECES), 6);
        l.alignment = 0;
        assert_int_equal(kvcache_layout_pieces(&l, 0, NULL, p, MAX_PIECES), 3);
}

static void the_example_of_the_specification(void **state)
{
        uint64_t bases[80];
        struct kvcache_layout l = {
                .size = sizeof(l),
                .kind = KVCACHE_LAYOUT_OUTER_FIRST,
                .layers = 80,
                .outer = 2,
                .page_tokens = 16,
                .dtype_bytes = 2,
                .inner = 1024,
                .alignment = 4096,
                .blocks = 1000,
                .bases = bases,
        };
        struct kvcache_layout_info info = { .size = sizeof(info) };
        struct kvcache_piece p[160];

        for (unsigned i = 0; i < 80; i++)
                bases[i] = (i + 1) * UINT64_C(0x100000000);
        assert_int_equal(kvcache_layout_measure(&l, &info, NULL, 0), 0);
        assert_int_equal(info.region_bytes, 32 * 1024);
        assert_int_equal(info.block_bytes, 5 * 1024 * 1024);
        assert_int_equal(info.block_stride, 32 * 1024);
        assert_int_equal(info.outer_stride, 32 * 1024 * 1000);
        assert_int_equal(info.layer_stride, 0);
        assert_int_equal(info.buffer_bytes, 2 * 32 * 1024 * 1000);
        assert_int_equal(info.max_pieces, 160);
        assert_int_equal(kvcache_layout_pieces(&l, 999, NULL, p, 160), 160);
}

static void refuse(const struct kvcache_layout *l, int error, const char *word)
{
        struct kvcache_layout_info info = { .size = sizeof(info) };
        struct kvcache_piece p[MAX_PIECES];
        char why[128] = "";

        assert_int_equal(kvcache_layout_measure(l, &info, why, sizeof(why)), error);
        if (!strstr(why, word))
                fail_msg("\"%s\" does not speak of \"%s\"", why, word);
        assert_int_equal(kvcache_layout_measure(l, &info, NULL, 0), error);
        assert_int_equal(kvcache_layout_pieces(l, 0, NULL, p, MAX_PIECES), error);
}

static void malformed_layouts_are_refused_with_the_reason(void **state)
{
        uint64_t bases[] = { 0x10000, 0x20000, 0x30000 };
        const struct kvcache_layout good = example(KVCACHE_LAYOUT_BLOCK_FIRST, bases);
        struct kvcache_layout l;
        struct kvcache_layout_info info = { .size = 3 };

        assert_int_equal(kvcache_layout_measure(&good, &info, NULL, 0), -EINVAL);
        assert_int_equal(kvcache_layout_measure(&good, NULL, NULL, 0), -EINVAL);
        refuse(NULL, -EINVAL, "size");
#define REFUSE(member, value, error, word)                                                         \
        do {                                                                                       \
                l = good;                                                                          \
                l.member = (value);                                                                \
                refuse(&l, error, word);                                                           \
        } while (0)
        REFUSE(size, 0, -EINVAL, "size");
        REFUSE(size, offsetof(struct kvcache_layout, base_bytes), -EINVAL, "size");
        REFUSE(kind, 0, -EINVAL, "kind");
        REFUSE(kind, KVCACHE_LAYOUT_REGIONS, -EINVAL, "set the other members to 0");
        REFUSE(kind, 5, -EINVAL, "kind");
        REFUSE(layers, 0, -EINVAL, "layers");
        REFUSE(layers, 4097, -EINVAL, "layers");
        REFUSE(outer, 0, -EINVAL, "outer");
        REFUSE(outer, 3, -EINVAL, "outer");
        REFUSE(page_tokens, 0, -EINVAL, "page_tokens");
        REFUSE(inner, 0, -EINVAL, "inner");
        REFUSE(blocks, 0, -EINVAL, "blocks");
        REFUSE(dtype_bytes, 0, -EINVAL, "dtype_bytes");
        REFUSE(dtype_bytes, 3, -EINVAL, "dtype_bytes");
        REFUSE(dtype_bytes, 16, -EINVAL, "dtype_bytes");
        REFUSE(alignment, 48, -EINVAL, "power of two");
        REFUSE(bases, NULL, -EINVAL, "bases");
        REFUSE(base_bytes, 6 * 256 - 1, -E2BIG, "base_bytes");
        REFUSE(inner, UINT64_MAX, -EOVERFLOW, "address space");
        REFUSE(inner, UINT64_MAX / 8, -EOVERFLOW, "address space");
        REFUSE(inner, UINT64_MAX / 16, -EOVERFLOW, "address space");
        REFUSE(inner, UINT64_MAX / 48, -EOVERFLOW, "address space"); /* rounding it up */
        REFUSE(blocks, UINT64_MAX, -EOVERFLOW, "address space");
        REFUSE(alignment, UINT64_C(1) << 63, -EOVERFLOW, "address space");
        l = good;
        l.kind = KVCACHE_LAYOUT_OUTER_FIRST;
        l.blocks = UINT64_MAX / 256;
        refuse(&l, -EOVERFLOW, "address space");
        bases[2] = UINT64_MAX - 6 * 256;
        refuse(&good, -EOVERFLOW, "address space");
        bases[2] = 0;
        refuse(&good, -EINVAL, "`bases` is 0");
}

static void structures_may_grow_at_their_end(void **state)
{
        struct {
                struct kvcache_layout l;
                uint64_t later;
        } newer;
        struct {
                struct kvcache_layout_info info;
                uint64_t later;
        } answer = { .later = 7 };
        uint64_t bases[] = { 0x10000, 0x20000, 0x30000 };

        newer.l = example(KVCACHE_LAYOUT_BLOCK_FIRST, bases);
        newer.l.size = sizeof(newer);
        newer.later = 0;
        answer.info.size = sizeof(answer);
        assert_int_equal(kvcache_layout_measure(&newer.l, &answer.info, NULL, 0), 0);
        assert_int_equal(answer.info.size, sizeof(answer));
        assert_int_equal(answer.info.region_bytes, 64);
        assert_int_equal(answer.later, 0);
        newer.later = 1;
        refuse(&newer.l, -E2BIG, "newer");
}

static void a_base_that_is_rounded_up_counts_against_its_buffer(void **state)
{
        uint64_t bases[] = { 0x10001, 0x20000, 0x30000 };
        struct kvcache_layout l = example(KVCACHE_LAYOUT_BLOCK_FIRST, bases);
        struct kvcache_layout_info info = { .size = sizeof(info) };

        l.base_bytes = 6 * 256 + 254;
        refuse(&l, -E2BIG, "base_bytes");
        l.base_bytes++;
        assert_int_equal(kvcache_layout_measure(&l, &info, NULL, 0), 0);
        assert_int_equal(info.buffer_bytes, 6 * 256);
}

static void parts_beyond_the_block_are_refused(void **state)
{
        static const struct kvcache_layout_part wrong[] = {
                { .tokens = 5 },
                { .first_layer = 1 },
                { .first_layer = 3, .n_layers = 1 },
                { .first_layer = 1, .n_layers = 3 },
                { .first_layer = UINT32_MAX, .n_layers = 1 },
                { .first_layer = 1, .n_layers = UINT32_MAX },
                { .reserved = 1 },
        };
        uint64_t bases[] = { 0x10000, 0x20000, 0x30000 };
        struct kvcache_layout l = example(KVCACHE_LAYOUT_BLOCK_FIRST, bases);
        struct kvcache_piece p[MAX_PIECES];

        for (unsigned i = 0; i < ARRAY_SIZE(wrong); i++)
                assert_int_equal(kvcache_layout_pieces(&l, 0, &wrong[i], p, MAX_PIECES), -EINVAL);
        assert_int_equal(kvcache_layout_pieces(&l, 6, NULL, p, MAX_PIECES), -EINVAL);
        assert_int_equal(kvcache_layout_pieces(&l, UINT64_MAX, NULL, p, MAX_PIECES), -EINVAL);
        assert_int_equal(kvcache_layout_pieces(&l, 0, NULL, NULL, MAX_PIECES), -EINVAL);
}

/* Host memory that is gathered into a chunk and scattered again is unchanged. */
static void host_memory_goes_through_a_chunk_and_back(void **state)
{
        for (unsigned kind = 1; kind <= 3; kind++) {
                uint8_t from[3][4096], to[3][4096], chunk[3 * 2 * 4 * 8 * 2];
                uint64_t bases[3];
                struct kvcache_layout l = example(kind, bases);
                struct kvcache_piece p[MAX_PIECES];
                int n;

                for (size_t i = 0; i < sizeof(from); i++)
                        ((uint8_t *)from)[i] = (uint8_t)(i * 7 + i / 256);
                memset(to, 0, sizeof(to));
                memset(chunk, 0, sizeof(chunk));
                l.alignment = 0;
                for (unsigned i = 0; i < 3; i++)
                        bases[i] = (uintptr_t)from[i];
                n = kvcache_layout_pieces(&l, 2, NULL, p, MAX_PIECES);
                for (int i = 0; i < n; i++)
                        memcpy(chunk + p[i].offset, (void *)(uintptr_t)p[i].address, p[i].bytes);
                for (unsigned i = 0; i < 3; i++)
                        bases[i] = (uintptr_t)to[i];
                assert_int_equal(kvcache_layout_pieces(&l, 4, NULL, p, MAX_PIECES), n);
                for (int i = 0; i < n; i++)
                        memcpy((void *)(uintptr_t)p[i].address, chunk + p[i].offset, p[i].bytes);
                for (uint64_t layer = 0; layer < 3; layer++)
                        for (uint64_t o = 0; o < 2; o++) {
                                uint64_t here = model_address(&l, 4, layer, o), there;

                                for (unsigned i = 0; i < 3; i++)
                                        bases[i] = (uintptr_t)from[i];
                                there = model_address(&l, 2, layer, o);
                                for (unsigned i = 0; i < 3; i++)
                                        bases[i] = (uintptr_t)to[i];
                                assert_memory_equal((void *)(uintptr_t)here,
                                                    (void *)(uintptr_t)there, 64);
                        }
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(every_byte_is_where_the_formulas_have_it),
                cmocka_unit_test(whole_blocks_coalesce_as_far_as_memory_does),
                cmocka_unit_test(the_example_of_the_specification),
                cmocka_unit_test(malformed_layouts_are_refused_with_the_reason),
                cmocka_unit_test(structures_may_grow_at_their_end),
                cmocka_unit_test(a_base_that_is_rounded_up_counts_against_its_buffer),
                cmocka_unit_test(parts_beyond_the_block_are_refused),
                cmocka_unit_test(host_memory_goes_through_a_chunk_and_back),
        };

        return cmocka_run_group_tests_name("gpu-layout", tests, NULL, NULL);
}

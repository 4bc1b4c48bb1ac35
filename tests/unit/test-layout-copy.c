/* SPDX-License-Identifier: Apache-2.0 */
/* Gather and scatter of host memory: which bytes are copied, how they are counted, and which
 * arguments are refused before anything is copied. test-gpu-layout tests the pieces themselves. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "checked.h"
#include "kvcache-layout.h"

enum {
        LAYERS = 3,
        OUTER = 2,
        PAGE = 4,
        INNER = 8,
        BLOCKS = 6,
        REGION = PAGE * INNER * 2,
        CHUNK = REGION * OUTER * LAYERS,
        ALIGNMENT = 512,
        BUFFER = ALIGNMENT * OUTER * BLOCKS, /* enough of any kind */
        GUARD = 16,
};

struct memory {
        _Alignas(ALIGNMENT) uint8_t buffers[LAYERS][BUFFER];
        uint64_t bases[LAYERS];
        struct kvcache_layout layout;
};

static void memory_init(struct memory *m, unsigned kind, uint64_t alignment, uint8_t fill)
{
        memset(m->buffers, fill, sizeof(m->buffers));
        for (unsigned i = 0; i < LAYERS; i++)
                m->bases[i] = (uintptr_t)m->buffers[i];
        m->layout = (struct kvcache_layout){
                .size = sizeof(m->layout),
                .kind = kind,
                .layers = LAYERS,
                .outer = OUTER,
                .page_tokens = PAGE,
                .dtype_bytes = 2,
                .inner = INNER,
                .alignment = alignment,
                .blocks = BLOCKS,
                .bases = m->bases,
                .base_bytes = BUFFER,
        };
}

/* Returns the address of a region by the formulas of the specification. */
static uint8_t *region_at(struct memory *m, uint64_t block, uint64_t layer, uint64_t outer)
{
        uint64_t to = MAX(m->layout.alignment, UINT64_C(1));

        switch (m->layout.kind) {
        case KVCACHE_LAYOUT_CONTIGUOUS:
                return m->buffers[0] + block * ((CHUNK + to - 1) / to * to) +
                       layer * REGION * OUTER + outer * REGION;
        case KVCACHE_LAYOUT_BLOCK_FIRST:
                return m->buffers[layer] + block * ((REGION * OUTER + to - 1) / to * to) +
                       outer * REGION;
        default:
                return m->buffers[layer] + (outer * BLOCKS + block) * ((REGION + to - 1) / to * to);
        }
}

static uint8_t value_of(uint64_t block, uint64_t layer, uint64_t outer, uint64_t i)
{
        return (uint8_t)(1 + block * 31 + layer * 7 + outer * 3 + i);
}

static void memory_write(struct memory *m)
{
        for (uint64_t b = 0; b < BLOCKS; b++)
                for (uint64_t l = 0; l < LAYERS; l++)
                        for (uint64_t o = 0; o < OUTER; o++)
                                for (uint64_t i = 0; i < REGION; i++)
                                        region_at(m, b, l, o)[i] = value_of(b, l, o, i);
}

static uint64_t expected_copies(const struct kvcache_layout *l)
{
        switch (l->kind) {
        case KVCACHE_LAYOUT_CONTIGUOUS:
                return 1;
        case KVCACHE_LAYOUT_BLOCK_FIRST:
                return LAYERS;
        default:
                return LAYERS * OUTER;
        }
}

/* Gathered from each kind of layout and scattered into each other one, every byte is where the
 * formulas have it, padding and other blocks are as they were, and the counts are the identities:
 * fully contiguous blocks are a copy each, layer-separate ones a copy for what is contiguous. */
static void chunks_carry_blocks_between_all_layouts(void **state)
{
        static struct memory from, to, expected;
        uint8_t chunks[2][CHUNK + GUARD];

        for (unsigned i = 0; i < 18; i++) {
                struct kvcache_layout_moved moved = { .size = sizeof(moved) };
                struct kvcache_layout_copy out[] = { { 1, chunks[0], CHUNK, 0, 0 },
                                                     { 5, chunks[1], CHUNK, 0, 0 } };
                struct kvcache_layout_copy in[] = { { 4, chunks[0], CHUNK, PAGE, 0 },
                                                    { 0, chunks[1], CHUNK, 0, 0 } };
                uint64_t alignment = i < 9 ? 0 : ALIGNMENT;

                memory_init(&from, 1 + i % 3, alignment, 0);
                memory_init(&to, 1 + i / 3 % 3, ALIGNMENT - alignment, 0xee);
                memory_init(&expected, 1 + i / 3 % 3, ALIGNMENT - alignment, 0xee);
                memory_write(&from);
                memset(chunks, 0xdd, sizeof(chunks));
                assert_int_equal(kvcache_layout_gather(&from.layout, 0, 0, out, 2, &moved, NULL, 0),
                                 0);
                assert_int_equal(moved.blocks, 2);
                assert_int_equal(moved.regions, 2 * LAYERS * OUTER);
                assert_int_equal(moved.bytes, 2 * CHUNK);
                assert_int_equal(moved.copies, 2 * expected_copies(&from.layout));
                for (unsigned c = 0; c < 2; c++) {
                        for (unsigned g = 0; g < GUARD; g++)
                                assert_int_equal(chunks[c][CHUNK + g], 0xdd);
                        for (uint64_t l = 0; l < LAYERS; l++)
                                for (uint64_t o = 0; o < OUTER; o++) {
                                        memcpy(region_at(&expected, in[c].block, l, o),
                                               region_at(&from, out[c].block, l, o), REGION);
                                        assert_memory_equal(chunks[c] + (l * OUTER + o) * REGION,
                                                            region_at(&from, out[c].block, l, o),
                                                            REGION);
                                }
                }
                assert_int_equal(kvcache_layout_scatter(&to.layout, 0, 0, in, 2, &moved, NULL, 0),
                                 0);
                assert_int_equal(moved.copies, 2 * expected_copies(&to.layout));
                assert_memory_equal(to.buffers, expected.buffers, sizeof(to.buffers));
        }
}

static void padding_counts_as_device_bytes(void **state)
{
        static const uint64_t expected[] = { 512, LAYERS * 512, LAYERS * OUTER * 512 };
        static struct memory m;
        uint8_t chunk[CHUNK];

        for (unsigned kind = 1; kind <= 3; kind++) {
                struct kvcache_layout_moved moved = { .size = sizeof(moved) };
                struct kvcache_layout_copy c = { 2, chunk, CHUNK, 0, 0 };

                memory_init(&m, kind, ALIGNMENT, 0);
                assert_int_equal(kvcache_layout_gather(&m.layout, 0, 0, &c, 1, &moved, NULL, 0), 0);
                assert_int_equal(moved.device_bytes, expected[kind - 1]);
                assert_int_equal(moved.bytes, CHUNK);
                assert_int_equal(kvcache_layout_gather(&m.layout, 1, 1, &c, 1, &moved, NULL, 0), 0);
                assert_int_equal(moved.device_bytes, REGION * OUTER);
        }
}

/* Layers 1 and 2, and 3 tokens of 4: the chunk is shorter, and has room for all layers. */
static void parts_of_blocks_leave_the_rest_alone(void **state)
{
        enum { TOKENS = 3, SHORT = REGION / PAGE * TOKENS };
        static struct memory m, to, expected;
        uint8_t chunk[SHORT * OUTER * LAYERS];

        for (unsigned kind = 1; kind <= 3; kind++) {
                struct kvcache_layout_moved moved = { .size = sizeof(moved) };
                struct kvcache_layout_copy c = { 3, chunk, sizeof(chunk), TOKENS, 0 };

                memory_init(&m, kind, 0, 0);
                memory_init(&to, kind, 0, 0xee);
                memory_init(&expected, kind, 0, 0xee);
                memory_write(&m);
                memset(chunk, 0xdd, sizeof(chunk));
                assert_int_equal(kvcache_layout_gather(&m.layout, 1, 2, &c, 1, &moved, NULL, 0), 0);
                assert_int_equal(moved.regions, 2 * OUTER);
                assert_int_equal(moved.bytes, 2 * OUTER * SHORT);
                for (unsigned i = 0; i < SHORT * OUTER; i++)
                        assert_int_equal(chunk[i], 0xdd);
                for (uint64_t l = 1; l < LAYERS; l++)
                        for (uint64_t o = 0; o < OUTER; o++)
                                memcpy(region_at(&expected, 3, l, o), region_at(&m, 3, l, o),
                                       SHORT);
                assert_int_equal(kvcache_layout_scatter(&to.layout, 1, 2, &c, 1, NULL, NULL, 0), 0);
                assert_memory_equal(to.buffers, expected.buffers, sizeof(to.buffers));
        }
}

/* Checks that nothing is copied if the second of two copies is invalid, not even the first one. */
static void refuse(const struct memory *m, struct kvcache_layout_copy second, uint32_t first_layer,
                   uint32_t n_layers, const char *word)
{
        uint8_t chunk[CHUNK], untouched[CHUNK];
        struct kvcache_layout_copy copies[] = { { 1, chunk, CHUNK, 0, 0 }, second };
        struct kvcache_layout_moved moved = { .size = sizeof(moved), .copies = 77 };
        char why[128] = "";

        memset(chunk, 0xdd, sizeof(chunk));
        memset(untouched, 0xdd, sizeof(untouched));
        assert_int_equal(kvcache_layout_gather(&m->layout, first_layer, n_layers, copies, 2, &moved,
                                               why, sizeof(why)),
                         -EINVAL);
        if (!strstr(why, word))
                fail_msg("\"%s\" does not speak of \"%s\"", why, word);
        assert_memory_equal(chunk, untouched, CHUNK);
        assert_int_equal(moved.copies, 77);
        assert_int_equal(
                kvcache_layout_scatter(&m->layout, first_layer, n_layers, copies, 2, NULL, why, 4),
                -EINVAL);
        assert_int_equal(strlen(why), 3);
}

static void a_wrong_copy_is_refused_before_anything_is_copied(void **state)
{
        static struct memory m, before;
        uint8_t chunk[CHUNK];
        const struct kvcache_layout_copy good = { 2, chunk, CHUNK, 0, 0 };
        struct kvcache_layout_moved moved = { .size = 3 };
        struct kvcache_layout_copy c;
        char why[128];

        memory_init(&m, KVCACHE_LAYOUT_OUTER_FIRST, 0, 0);
        memory_write(&m);
        memcpy(before.buffers, m.buffers, sizeof(m.buffers));
#define REFUSE(member, value, word)                                                                \
        do {                                                                                       \
                c = good;                                                                          \
                c.member = (value);                                                                \
                refuse(&m, c, 0, 0, word);                                                         \
        } while (0)
        REFUSE(block, BLOCKS, "copy 1: block 6 is none");
        REFUSE(block, UINT64_MAX, "is none");
        REFUSE(chunk, NULL, "no chunk");
        REFUSE(chunk_bytes, CHUNK - 1, "another length");
        REFUSE(chunk_bytes, CHUNK + 1, "another length");
        REFUSE(chunk_bytes, 0, "another length");
        REFUSE(tokens, PAGE + 1, "fewer tokens");
        REFUSE(tokens, UINT32_MAX, "fewer tokens");
        REFUSE(tokens, PAGE - 1, "another length");
        REFUSE(reserved, 1, "reserved");
        refuse(&m, good, 1, 0, "does not have layers");
        refuse(&m, good, LAYERS, 1, "does not have layers");
        refuse(&m, good, 1, UINT32_MAX, "does not have layers");
        refuse(&m, good, UINT32_MAX, UINT32_MAX, "does not have layers");
        assert_memory_equal(before.buffers, m.buffers, sizeof(m.buffers));

        assert_int_equal(kvcache_layout_gather(&m.layout, 0, 0, &good, 1, &moved, NULL, 0),
                         -EINVAL);
        assert_int_equal(kvcache_layout_gather(&m.layout, 0, 0, NULL, 1, NULL, NULL, 0), -EINVAL);
        assert_int_equal(kvcache_layout_gather(NULL, 0, 0, &good, 1, NULL, why, sizeof(why)),
                         -EINVAL);
        assert_non_null(strstr(why, "size"));
        m.layout.base_bytes = CHUNK;
        assert_int_equal(kvcache_layout_scatter(&m.layout, 0, 0, &good, 1, NULL, why, sizeof(why)),
                         -E2BIG);
        assert_non_null(strstr(why, "base_bytes"));
}

static void no_copies_are_none(void **state)
{
        static struct memory m;
        struct kvcache_layout_moved moved = { .size = sizeof(moved), .copies = 77 };

        memory_init(&m, KVCACHE_LAYOUT_BLOCK_FIRST, 0, 0);
        assert_int_equal(kvcache_layout_gather(&m.layout, 0, 0, NULL, 0, &moved, NULL, 0), 0);
        assert_int_equal(moved.copies, 0);
        assert_int_equal(moved.bytes, 0);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(chunks_carry_blocks_between_all_layouts),
                cmocka_unit_test(padding_counts_as_device_bytes),
                cmocka_unit_test(parts_of_blocks_leave_the_rest_alone),
                cmocka_unit_test(a_wrong_copy_is_refused_before_anything_is_copied),
                cmocka_unit_test(no_copies_are_none),
        };

        return cmocka_run_group_tests_name("layout-copy", tests, NULL, NULL);
}

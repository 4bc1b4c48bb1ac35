/* SPDX-License-Identifier: Apache-2.0 */
/* The blocks of the sweep: their formulas are those of the library, and a byte that is wrong, or a
 * region in the wrong place, is found. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "payload.h"
#include "session/sweep.h"

enum { REGION = 96, LAYERS = 5, BLOCKS = 4 };

static struct kvcache_key key_of(unsigned n)
{
        struct kvcache_key key = { { 1, (uint8_t)n } };

        return key;
}

static void gathered_blocks_are_the_contents(void **state)
{
        for (uint32_t kind = 1; kind <= SWEEP_LAYOUTS; kind++)
                for (uint32_t outer = 1; outer <= 2; outer++) {
                        struct sweep_blocks b;
                        uint64_t bytes = (uint64_t)REGION * LAYERS * outer;
                        void *chunk = malloc(bytes);

                        assert_non_null(chunk);
                        assert_int_equal(sweep_blocks_init(&b, kind, REGION, LAYERS, outer, BLOCKS),
                                         0);
                        assert_int_equal(b.info.block_bytes, bytes);
                        sweep_blocks_wipe(&b);
                        for (unsigned i = 0; i < BLOCKS; i++) {
                                struct kvcache_key key = key_of(i);

                                assert_false(sweep_blocks_right(&b, i, &key));
                                sweep_blocks_fill(&b, i, &key);
                        }
                        for (unsigned i = 0; i < BLOCKS; i++) {
                                struct kvcache_layout_copy copy = { .block = i,
                                                                    .chunk = chunk,
                                                                    .chunk_bytes = bytes };
                                struct kvcache_key key = key_of(i);

                                assert_true(sweep_blocks_right(&b, i, &key));
                                assert_int_equal(kvcache_layout_gather(&b.layout, 0, 0, &copy, 1,
                                                                       NULL, NULL, 0),
                                                 0);
                                assert_int_equal(payload_verify(&key, chunk, bytes, NULL), 0);
                        }
                        free(chunk);
                        sweep_blocks_fini(&b);
                }
}

static void every_wrong_byte_is_found(void **state)
{
        for (uint32_t kind = 1; kind <= SWEEP_LAYOUTS; kind++) {
                struct kvcache_key keys[BLOCKS];
                struct sweep_blocks b;

                assert_int_equal(sweep_blocks_init(&b, kind, REGION, LAYERS, 2, BLOCKS), 0);
                for (unsigned i = 0; i < BLOCKS; i++) {
                        keys[i] = key_of(i);
                        sweep_blocks_fill(&b, i, &keys[i]);
                }
                for (size_t n = 0; n < b.n_buffers; n++)
                        for (uint64_t at = 0; at < b.info.buffer_bytes; at++) {
                                uint8_t *byte = (uint8_t *)b.buffers[n] + at;
                                unsigned wrong = 0;

                                *byte ^= 0x10;
                                for (unsigned i = 0; i < BLOCKS; i++)
                                        wrong += !sweep_blocks_right(&b, i, &keys[i]);
                                assert_int_equal(wrong, 1);
                                *byte ^= 0x10;
                        }
                sweep_blocks_fini(&b);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(gathered_blocks_are_the_contents),
                cmocka_unit_test(every_wrong_byte_is_found),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

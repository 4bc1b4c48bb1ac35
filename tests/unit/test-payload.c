/* SPDX-License-Identifier: Apache-2.0 */
/* The comparison of a replay must detect every kind of wrong block: a replay that cannot fail
 * proves nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "payload.h"

enum { BYTES = 16384 };

static struct kvcache_key key_of(unsigned n)
{
        struct kvcache_key key = { { 0 } };

        for (unsigned i = 0; i < sizeof(key.bytes); i++)
                key.bytes[i] = (uint8_t)(n * 151 + i * 29 + (n >> 8) * 7);
        return key;
}

static void what_was_filled_is_right_for_every_length(void **state)
{
        struct kvcache_key key = key_of(1);
        uint8_t data[300], whole[300];
        size_t first;

        payload_fill(&key, whole, sizeof(whole));
        for (size_t n = 0; n <= sizeof(data); n++) {
                memset(data, 0xa5, sizeof(data));
                payload_fill(&key, data, n);
                assert_int_equal(payload_verify(&key, data, n, &first), 0);
                /* A shorter payload is the beginning of a longer one, and bytes beyond it are not
                 * touched. */
                assert_memory_equal(data, whole, n);
                for (size_t i = n; i < sizeof(data); i++)
                        assert_int_equal(data[i], 0xa5);
        }
}

static void every_single_bit_is_noticed(void **state)
{
        static const size_t lengths[] = { 1, 7, 8, 31, 32, 33, 100, 4095, 4096, 4097, 9000 };
        struct kvcache_key key = key_of(2);
        uint8_t *data = malloc(9000);

        assert_non_null(data);
        for (size_t l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++) {
                size_t n = lengths[l], step = n > 200 ? 13 : 1, first;

                payload_fill(&key, data, n);
                for (size_t bit = 0; bit < 8 * n; bit += step) {
                        first = SIZE_MAX;
                        data[bit / 8] ^= (uint8_t)(1 << bit % 8);
                        assert_int_equal(payload_verify(&key, data, n, &first), 1);
                        assert_int_equal(first, bit / 8);
                        data[bit / 8] ^= (uint8_t)(1 << bit % 8);
                }
                /* The last byte is checked whatever the step. */
                data[n - 1] ^= 0x80;
                assert_int_equal(payload_verify(&key, data, n, &first), 1);
                assert_int_equal(first, n - 1);
        }
        free(data);
}

static void wrong_bytes_are_counted_one_by_one(void **state)
{
        struct kvcache_key key = key_of(3);
        uint8_t data[BYTES];
        size_t first;

        payload_fill(&key, data, BYTES);
        for (size_t i = 5; i < BYTES; i += 1000)
                data[i]++;
        assert_int_equal(payload_verify(&key, data, BYTES, &first), (BYTES - 5 + 999) / 1000);
        assert_int_equal(first, 5);
}

/* Two random bytes are equal once in 256, so misplaced bytes are wrong nearly everywhere. */
static void assert_wrong_nearly_everywhere(const struct kvcache_key *key, const uint8_t *data,
                                           size_t n)
{
        size_t first;
        uint64_t wrong = payload_verify(key, data, n, &first);

        assert_true(wrong > n - n / 64);
        assert_true(first < 8);
}

static void another_keys_block_is_wrong_nearly_everywhere(void **state)
{
        struct kvcache_key key = key_of(4), other;
        uint8_t data[BYTES];

        /* Whichever bit of the key is another. */
        for (unsigned bit = 0; bit < 8 * sizeof(key.bytes); bit++) {
                other = key;
                other.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
                payload_fill(&other, data, BYTES);
                assert_wrong_nearly_everywhere(&key, data, BYTES);
        }
        /* A key with the same bytes in another order has other contents. */
        other = key;
        memcpy(other.bytes, key.bytes + 8, 8);
        memcpy(other.bytes + 8, key.bytes, 8);
        payload_fill(&other, data, BYTES);
        assert_wrong_nearly_everywhere(&key, data, BYTES);
}

static void shifted_bytes_are_wrong_nearly_everywhere(void **state)
{
        static const size_t shifts[] = { 1, 7, 8, 32, 64, 512, 4096, 8192 };
        struct kvcache_key key = key_of(5);
        uint8_t data[BYTES + 8192];

        payload_fill(&key, data, sizeof(data));
        for (size_t i = 0; i < sizeof(shifts) / sizeof(shifts[0]); i++)
                assert_wrong_nearly_everywhere(&key, data + shifts[i], BYTES);
}

static void swapped_sectors_are_noticed_wherever_they_are(void **state)
{
        struct kvcache_key key = key_of(6);
        uint8_t data[BYTES], sector[512];

        for (size_t at = 512; at < BYTES; at += 512) {
                size_t first;
                uint64_t wrong;

                payload_fill(&key, data, BYTES);
                memcpy(sector, data, 512);
                memcpy(data, data + at, 512);
                memcpy(data + at, sector, 512);
                wrong = payload_verify(&key, data, BYTES, &first);
                assert_true(wrong > 1000 && wrong <= 1024);
                assert_true(first < 8);
        }
}

static void zeros_and_old_bytes_are_noticed(void **state)
{
        struct kvcache_key key = key_of(7);
        uint8_t data[BYTES] = { 0 };
        size_t first;

        assert_wrong_nearly_everywhere(&key, data, BYTES);
        /* A torn block: the first half is new, the second was never written. */
        payload_fill(&key, data, BYTES / 2);
        assert_true(payload_verify(&key, data, BYTES, &first) > BYTES / 2 - BYTES / 64);
        assert_true(first >= BYTES / 2 && first < BYTES / 2 + 8);
}

static void contents_are_the_same_on_every_machine(void **state)
{
        static const uint8_t expected[16] = { 0x6e, 0x35, 0x7a, 0x75, 0xe8, 0xc1, 0x0d, 0x0a,
                                              0xaa, 0x41, 0x1c, 0xdb, 0x19, 0x43, 0x5a, 0x9f };
        struct kvcache_key key = key_of(8);
        uint8_t data[16];

        payload_fill(&key, data, sizeof(data));
        assert_memory_equal(data, expected, sizeof(data));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(what_was_filled_is_right_for_every_length),
                cmocka_unit_test(every_single_bit_is_noticed),
                cmocka_unit_test(wrong_bytes_are_counted_one_by_one),
                cmocka_unit_test(another_keys_block_is_wrong_nearly_everywhere),
                cmocka_unit_test(shifted_bytes_are_wrong_nearly_everywhere),
                cmocka_unit_test(swapped_sectors_are_noticed_wherever_they_are),
                cmocka_unit_test(zeros_and_old_bytes_are_noticed),
                cmocka_unit_test(contents_are_the_same_on_every_machine),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Keys: text and back, the root, and a hash that a client cannot steer. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "key.h"

static const char hex[] = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1dfeff";

static void hex_goes_there_and_back(void **state)
{
        char text[KEY_HEX_BYTES + 1];
        struct key k;

        assert_int_equal(key_from_hex(hex, &k), 0);
        assert_int_equal(k.bytes[0], 0);
        assert_int_equal(k.bytes[10], 10);
        assert_int_equal(k.bytes[31], 0xff);
        key_to_hex(&k, text);
        assert_string_equal(text, hex);
        assert_int_equal(
                key_from_hex("000102030405060708090A0B0C0D0E0F101112131415161718191A1B1C1DFEFF",
                             &k),
                0);
        key_to_hex(&k, text);
        assert_string_equal(text, hex);
}

static void other_text_is_no_key(void **state)
{
        char text[KEY_HEX_BYTES + 3];
        struct key k, before;

        memset(&k, 0x5a, sizeof(k));
        before = k;
        assert_int_equal(key_from_hex("", &k), -EINVAL);
        for (size_t n = 0; n < KEY_HEX_BYTES; n++) {
                /* The truncated text is on the heap, so that a sanitizer detects a read beyond the
                 * NUL. */
                char *cut = strndup(hex, n);

                assert_non_null(cut);
                assert_int_equal(key_from_hex(cut, &k), -EINVAL);
                free(cut);

                for (const char *bad = "g/:@`G -\n\x80"; *bad; bad++) {
                        strcpy(text, hex);
                        text[n] = *bad;
                        assert_int_equal(key_from_hex(text, &k), -EINVAL);
                }
        }
        strcpy(text, hex);
        strcat(text, "0");
        assert_int_equal(key_from_hex(text, &k), -EINVAL);
        assert_memory_equal(&k, &before, sizeof(k));
}

static void only_all_zero_is_the_root(void **state)
{
        struct key k = { 0 }, zero = { 0 };

        assert_true(key_is_root(&k));
        assert_true(key_equal(&k, &zero));
        for (int i = 0; i < KEY_BYTES; i++) {
                k = zero;
                k.bytes[i] = 0x80;
                assert_false(key_is_root(&k));
                assert_false(key_equal(&k, &zero));
        }
}

/* SipHash of any length, written from its definition, for comparison. */
static uint64_t rotate(uint64_t x, int b)
{
        return (x << b) | (x >> (64 - b));
}

static uint64_t sip13(uint64_t k0, uint64_t k1, const uint8_t *p, size_t n)
{
        uint64_t v0 = k0 ^ 0x736f6d6570736575u, v1 = k1 ^ 0x646f72616e646f6du;
        uint64_t v2 = k0 ^ 0x6c7967656e657261u, v3 = k1 ^ 0x7465646279746573u;
        size_t words = n / 8 + 1;

        for (size_t w = 0; w < words + 3; w++) {
                uint64_t word = 0;

                if (w < words) {
                        for (size_t i = 0; i < 8 && w * 8 + i < n; i++)
                                word |= (uint64_t)p[w * 8 + i] << (8 * i);
                        if (w == words - 1)
                                word |= (uint64_t)(n & 0xff) << 56;
                } else if (w == words) {
                        v2 ^= 0xff;
                }
                v3 ^= word;
                v0 += v1, v1 = rotate(v1, 13), v1 ^= v0, v0 = rotate(v0, 32);
                v2 += v3, v3 = rotate(v3, 16), v3 ^= v2;
                v0 += v3, v3 = rotate(v3, 21), v3 ^= v0;
                v2 += v1, v1 = rotate(v1, 17), v1 ^= v2, v2 = rotate(v2, 32);
                v0 ^= word;
        }
        return v0 ^ v1 ^ v2 ^ v3;
}

static void the_hash_is_siphash_1_3(void **state)
{
        struct key_secret secret = { { 0x0706050403020100, 0x0f0e0d0c0b0a0908 } };
        uint8_t message[36];
        struct key k;

        for (int i = 0; i < 36; i++)
                message[i] = (uint8_t)(i * 7);
        memcpy(k.bytes, message, KEY_BYTES);
        assert_int_equal(key_hash(&secret,
                                  message[32] | message[33] << 8 | message[34] << 16 |
                                          (uint32_t)message[35] << 24,
                                  &k),
                         sip13(secret.words[0], secret.words[1], message, sizeof(message)));
}

static void the_hash_depends_on_every_bit(void **state)
{
        struct key_secret secret = { { 1, 2 } };
        struct key k = { { 1 } };
        uint64_t h = key_hash(&secret, 7, &k);

        assert_int_equal(key_hash(&secret, 7, &k), h);
        for (int bit = 0; bit < KEY_BYTES * 8; bit++) {
                struct key other = k;

                other.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
                assert_int_not_equal(key_hash(&secret, 7, &other), h);
        }
        for (int bit = 0; bit < 32; bit++)
                assert_int_not_equal(key_hash(&secret, 7 ^ 1u << bit, &k), h);
        for (int bit = 0; bit < 128; bit++) {
                struct key_secret other = secret;

                other.words[bit / 64] ^= UINT64_C(1) << bit % 64;
                assert_int_not_equal(key_hash(&other, 7, &k), h);
        }
}

/* Keys that differ in one word only, as counters do, spread over the low bits that tables use. */
static void similar_keys_spread(void **state)
{
        enum { BUCKETS = 256, KEYS = 256 * 64 };
        struct key_secret secret = { { 0x1234, 0x5678 } };
        unsigned counts[BUCKETS] = { 0 };

        for (uint32_t i = 0; i < KEYS; i++) {
                struct key k = { 0 };

                memcpy(k.bytes + 28, &i, sizeof(i));
                counts[key_hash(&secret, 1, &k) % BUCKETS]++;
        }
        for (int i = 0; i < BUCKETS; i++)
                assert_in_range(counts[i], 24, 112);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(hex_goes_there_and_back),
                cmocka_unit_test(other_text_is_no_key),
                cmocka_unit_test(only_all_zero_is_the_root),
                cmocka_unit_test(the_hash_is_siphash_1_3),
                cmocka_unit_test(the_hash_depends_on_every_bit),
                cmocka_unit_test(similar_keys_spread),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

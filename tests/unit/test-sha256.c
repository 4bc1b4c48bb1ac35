/* SPDX-License-Identifier: Apache-2.0 */
/* Compares SHA-256 with the examples of its standard, for every padding length. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sha256.h"

static void assert_hash(const void *data, size_t bytes, const char *expected)
{
        uint8_t hash[SHA256_BYTES];
        char hex[2 * SHA256_BYTES + 1];

        sha256(data, bytes, hash);
        for (int i = 0; i < SHA256_BYTES; i++)
                sprintf(hex + 2 * i, "%02x", hash[i]);
        assert_string_equal(hex, expected);
}

static void published_examples_hold(void **state)
{
        static const char long_text[] = "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmn"
                                        "hijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu";

        assert_hash("", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_hash(NULL, 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_hash("abc", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56,
                    "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
        assert_hash(long_text, sizeof(long_text) - 1,
                    "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
}

static void a_million_times_a_holds(void **state)
{
        char *data = malloc(1000000);

        assert_non_null(data);
        memset(data, 'a', 1000000);
        assert_hash(data, 1000000,
                    "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
        free(data);
}

/* The hash of the hashes of "", "a", "aa" ... of 0 to 199 bytes covers every length of padding
 * three times. */
static void every_padding_length_holds(void **state)
{
        uint8_t hashes[200 * SHA256_BYTES];
        char data[200];

        memset(data, 'a', sizeof(data));
        for (size_t n = 0; n < 200; n++)
                sha256(data, n, hashes + n * SHA256_BYTES);
        assert_hash(hashes, sizeof(hashes),
                    "752c007f38611cfbf5fa42cb1cea3d8e086491c844d0cc4defd632cb81423506");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(published_examples_hold),
                cmocka_unit_test(a_million_times_a_holds),
                cmocka_unit_test(every_padding_length_holds),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

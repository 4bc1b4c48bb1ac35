/* SPDX-License-Identifier: Apache-2.0 */
/* Key files, key arguments and fingerprints, as written by people and by `replay --acks`. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common.h"
#include "keyfile.h"

#define HEX_A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define HEX_B "0123456789abcdefABCDEF9876543210bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

static char path[] = "/tmp/test-keyfile-XXXXXX";

static int make_file(void **state)
{
        int fd = mkstemp(path);

        if (fd < 0)
                return -1;
        close(fd);
        return 0;
}

static int remove_file(void **state)
{
        return unlink(path);
}

static struct keyfile *open_text(const char *text)
{
        char error[KEYFILE_ERROR_BYTES] = "";
        struct keyfile *f = NULL;
        FILE *file = fopen(path, "w");

        assert_non_null(file);
        fputs(text, file);
        fclose(file);
        assert_int_equal(keyfile_open(&f, path, error), 0);
        return f;
}

static void what_is_written_is_read_back(void **state)
{
        static const char *const names[] = { "replay", "llama-3.1-8b/tp8 rank 0", "x" };
        char text[3 * KEYFILE_LINE_BYTES] = "", line[KEYFILE_LINE_BYTES],
                      error[KEYFILE_ERROR_BYTES];
        struct kvcache_key key;
        struct keyfile_entry entry;
        struct keyfile *f;

        for (unsigned i = 0; i < 3; i++) {
                memset(key.bytes, (int)(17 * i + 1), sizeof(key.bytes));
                size_t n = keyfile_format(&key, 16384 + i, names[i], line);

                assert_int_equal(n, strlen(line));
                strcat(text, line);
        }
        f = open_text(text);
        for (unsigned i = 0; i < 3; i++) {
                memset(key.bytes, (int)(17 * i + 1), sizeof(key.bytes));
                assert_int_equal(keyfile_next(f, &entry, error), 1);
                assert_memory_equal(&entry.key, &key, sizeof(key));
                assert_int_equal(entry.length, 16384 + i);
                assert_string_equal(entry.namespace, names[i]);
        }
        assert_int_equal(keyfile_next(f, &entry, error), 0);
        keyfile_close(f);
}

static void comments_blank_lines_and_bare_keys_are_fine(void **state)
{
        struct keyfile *f = open_text("# keys\n\n   \n" HEX_A "\r\n" HEX_B);
        char error[KEYFILE_ERROR_BYTES];
        struct keyfile_entry entry;

        assert_int_equal(keyfile_next(f, &entry, error), 1);
        assert_int_equal(entry.key.bytes[31], 0xaa);
        assert_int_equal(entry.length, 0);
        assert_null(entry.namespace);
        assert_int_equal(keyfile_next(f, &entry, error), 1);
        assert_int_equal(entry.key.bytes[8], 0xab);
        assert_int_equal(keyfile_next(f, &entry, error), 0);
        keyfile_close(f);
}

/* A killed writer leaves a part of a line, which acknowledged no key. */
static void a_torn_last_line_is_passed_over(void **state)
{
        static const char whole[] = HEX_B " 16384 replay\n";

        for (size_t cut = 0; cut < sizeof(whole) - 1; cut++) {
                char text[256], error[KEYFILE_ERROR_BYTES];
                struct keyfile_entry entry;
                struct keyfile *f;

                snprintf(text, sizeof(text), HEX_A " 16384 replay\n%.*s", (int)cut, whole);
                f = open_text(text);
                assert_int_equal(keyfile_next(f, &entry, error), 1);
                assert_int_equal(keyfile_next(f, &entry, error), 0);
                keyfile_close(f);
        }
}

static void a_malformed_line_is_named(void **state)
{
        static const char *const bad[] = {
                "hello",
                HEX_A "a",
                HEX_A "\t5 x",
                HEX_A " x y",
                HEX_A " -5 x",
                HEX_A " 5 ",
                "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa 5 x",
                "gaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        };

        for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
                char text[512], where[64], error[KEYFILE_ERROR_BYTES] = "";
                struct keyfile_entry entry;
                struct keyfile *f;

                snprintf(text, sizeof(text), HEX_A "\n%s\n" HEX_B "\n", bad[i]);
                snprintf(where, sizeof(where), "%s:2: ", path);
                f = open_text(text);
                assert_int_equal(keyfile_next(f, &entry, error), 1);
                assert_int_equal(keyfile_next(f, &entry, error), -EBADMSG);
                assert_ptr_equal(strstr(error, where), error);
                keyfile_close(f);
        }
}

static void an_endless_line_is_refused(void **state)
{
        char text[4 * KEYFILE_LINE_BYTES], error[KEYFILE_ERROR_BYTES] = "";
        struct keyfile_entry entry;
        struct keyfile *f;

        memset(text, 'a', sizeof(text));
        text[sizeof(text) - 1] = '\0';
        f = open_text(text);
        assert_int_equal(keyfile_next(f, &entry, error), -EBADMSG);
        keyfile_close(f);
}

static void a_key_argument_is_hex_or_stands_for_its_hash(void **state)
{
        /* SHA-256 of "abc". */
        static const uint8_t abc[4] = { 0xba, 0x78, 0x16, 0xbf };
        char hex[KEY_TEXT_BYTES];
        struct kvcache_key key, other;

        assert_int_equal(key_parse("abc", &key), 0);
        assert_memory_equal(key.bytes, abc, sizeof(abc));
        assert_int_equal(key_parse("text:abc", &other), 0);
        assert_memory_equal(&key, &other, sizeof(key));

        assert_int_equal(key_parse(HEX_A, &key), 0);
        assert_int_equal(key.bytes[0], 0xaa);
        key_print(&key, hex);
        assert_string_equal(hex, HEX_A);
        assert_int_equal(key_parse("hex:" HEX_A, &other), 0);
        assert_memory_equal(&key, &other, sizeof(key));
        assert_int_equal(key_parse("text:" HEX_A, &other), 0);
        assert_memory_not_equal(&key, &other, sizeof(key));

        assert_int_equal(key_parse("", &key), -EINVAL);
        assert_int_equal(key_parse("text:", &key), -EINVAL);
        assert_int_equal(key_parse("hex:abc", &key), -EINVAL);
        /* The root names no chunk. */
        assert_int_equal(
                key_parse("0000000000000000000000000000000000000000000000000000000000000000", &key),
                -EINVAL);
}

static void fingerprints_become_canonical(void **state)
{
        char *text = NULL;

        assert_int_equal(fingerprint_parse("model=llama,dtype=fp8", &text), 0);
        assert_string_equal(text, "dtype=fp8\nmodel=llama\n");
        free(text);
        /* Sorted by key, not by line: '-' sorts before '='. */
        assert_int_equal(fingerprint_parse("a-b=1,a=2=3,c=", &text), 0);
        assert_string_equal(text, "a=2=3\na-b=1\nc=\n");
        free(text);
        text = NULL;
        assert_int_equal(fingerprint_parse("", &text), -EINVAL);
        assert_int_equal(fingerprint_parse("a", &text), -EINVAL);
        assert_int_equal(fingerprint_parse("=b", &text), -EINVAL);
        assert_int_equal(fingerprint_parse("a=1,,b=2", &text), -EINVAL);
        assert_int_equal(fingerprint_parse("a=1,a=2", &text), -EINVAL);
        assert_int_equal(fingerprint_parse("a=1\nb=2", &text), -EINVAL);
        assert_null(text);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(what_is_written_is_read_back),
                cmocka_unit_test(comments_blank_lines_and_bare_keys_are_fine),
                cmocka_unit_test(a_torn_last_line_is_passed_over),
                cmocka_unit_test(a_malformed_line_is_named),
                cmocka_unit_test(an_endless_line_is_refused),
                cmocka_unit_test(a_key_argument_is_hex_or_stands_for_its_hash),
                cmocka_unit_test(fingerprints_become_canonical),
        };

        return cmocka_run_group_tests(tests, make_file, remove_file);
}

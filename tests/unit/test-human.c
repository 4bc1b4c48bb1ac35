/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers for people, printed and parsed, and the exact percentiles that they show. */
#include <errno.h>
#include <setjmp.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "checked.h"
#include "human.h"
#include "units.h"
#include "latency.h"
#include "table.h"

#define assert_text(call, expected)                                                                \
        do {                                                                                       \
                char text_[HUMAN_BYTES];                                                           \
                call;                                                                              \
                assert_string_equal(text_, expected);                                              \
        } while (0)

static void bytes_have_the_unit_that_fits(void **state)
{
        assert_text(units_bytes(0, text_), "0 B");
        assert_text(units_bytes(1, text_), "1 B");
        assert_text(units_bytes(1023, text_), "1023 B");
        assert_text(units_bytes(1024, text_), "1 KiB");
        assert_text(units_bytes(1536, text_), "1.5 KiB");
        assert_text(units_bytes(16 * 1024, text_), "16 KiB");
        assert_text(units_bytes(100 * 1024, text_), "100 KiB");
        assert_text(units_bytes(1024 * 1024 - 1, text_), "1 MiB");
        assert_text(units_bytes(28 << 20, text_), "28 MiB");
        assert_text(units_bytes(1288490188, text_), "1.2 GiB");
        assert_text(units_bytes(64ull << 40, text_), "64 TiB");
        assert_text(units_bytes(UINT64_MAX, text_), "16 EiB");
}

static void counts_are_grouped_by_three(void **state)
{
        assert_text(human_count(0, text_), "0");
        assert_text(human_count(999, text_), "999");
        assert_text(human_count(1000, text_), "1,000");
        assert_text(human_count(182790, text_), "182,790");
        assert_text(human_count(UINT64_MAX, text_), "18,446,744,073,709,551,615");
        assert_text(human_things(0, "chunk", text_), "0 chunks");
        assert_text(human_things(1, "lease", text_), "1 lease");
        assert_text(human_things(UINT64_MAX, "eleventhing", text_),
                    "18,446,744,073,709,551,615 eleventhings");
}

static void times_have_the_unit_that_fits(void **state)
{
        assert_text(human_ns(0, text_), "0 ns");
        assert_text(human_ns(999, text_), "999 ns");
        assert_text(human_ns(1000, text_), "1 µs");
        assert_text(human_ns(3210, text_), "3.21 µs");
        assert_text(human_ns(999999, text_), "1 ms");
        assert_text(human_ns(2500000000u, text_), "2.5 s");
        assert_text(human_seconds(0, text_), "0.0 s");
        assert_text(human_seconds(-1, text_), "0.0 s");
        assert_text(human_seconds(4.24, text_), "4.2 s");
        assert_text(human_seconds(59.97, text_), "59.9 s");
        assert_text(human_seconds(60, text_), "1 min");
        assert_text(human_seconds(3599.9, text_), "59 min 59 s");
        assert_text(human_seconds(3600, text_), "1 h");
        assert_text(human_seconds(3 * 86400 + 4 * 3600 + 59, text_), "3 d 4 h");
        assert_text(human_percent(279, 1000, text_), "27.9 %");
        assert_text(human_percent(1000, 1000, text_), "100.0 %");
        assert_text(human_percent(99999, 100000, text_), "99.9 %");
        assert_text(human_percent(1, 0, text_), "-");
}

static void bounds_are_rounded_up_to_two_digits(void **state)
{
        static const double good[][2] = {
                { 43007, 44000 },     { 0.0015, 0.0015 }, { 0.00150001, 0.0016 }, { 99.1, 100 },
                { 100, 100 },         { 1, 1 },           { 0.15, 0.15 },         { 1e-9, 1e-9 },
                { 2097152, 2100000 }, { 0, 0 },           { -3.21, -3.21 }
        };

        for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
                double got = human_round_up(good[i][0]);

                if (fabs(got - good[i][1]) > fabs(good[i][1]) * 1e-9)
                        fail_msg("%g is rounded up to %.12g", good[i][0], got);
        }
        assert_true(isnan(human_round_up(NAN)) && isinf(human_round_up(INFINITY)));
}

static void sizes_are_read_as_people_write_them(void **state)
{
        static const struct {
                const char *text;
                uint64_t bytes;
        } good[] = {
                { "0", 0 },
                { "4096", 4096 },
                { "4096B", 4096 },
                { "16KiB", 16384 },
                { "16 KiB", 16384 },
                { "16K", 16384 },
                { "16k", 16384 },
                { "16kib", 16384 },
                { "1.5MiB", 1572864 },
                { "1MB", 1000000 },
                { "64GiB", 64ull << 30 },
                { "2T", 2ull << 40 },
                { "18446744073709551615", UINT64_MAX },
        };
        static const char *const bad[] = {
                "",      " ",   "KiB",  "-1",  "+1",  "1.2.3", ".",
                "1KiBs", "1 0", "0x10", "1e3", "nan", "inf",   "16 KiB ",
        };
        uint64_t n;

        for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
                assert_int_equal(human_parse_bytes(good[i].text, &n), 0);
                assert_int_equal(n, good[i].bytes);
        }
        for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
                n = 42;
                assert_int_equal(human_parse_bytes(bad[i], &n), -EINVAL);
                assert_int_equal(n, 42);
        }
        assert_int_equal(human_parse_bytes("18446744073709551616", &n), -ERANGE);
        assert_int_equal(human_parse_bytes("18014398509481984KiB", &n), -ERANGE);
        assert_int_equal(human_parse_bytes("99999999.5TiB", &n), -ERANGE);
        assert_int_equal(human_parse_bytes("11111111111111111111111111111111111111111", &n),
                         -ERANGE);
}

static void every_round_size_survives_a_round_trip(void **state)
{
        for (unsigned shift = 0; shift < 44; shift++) {
                char text[HUMAN_BYTES];
                uint64_t n;

                units_bytes(1ull << shift, text);
                assert_int_equal(human_parse_bytes(text, &n), 0);
                assert_int_equal(n, 1ull << shift);
        }
}

static void numbers_refuse_what_is_not_one(void **state)
{
        double x;

        assert_int_equal(human_parse_number("0.5", &x), 0);
        assert_true(x == 0.5);
        assert_int_equal(human_parse_number("-1", &x), -EINVAL);
        assert_int_equal(human_parse_number("nan", &x), -EINVAL);
        assert_int_equal(human_parse_number("1e999", &x), -EINVAL);
        assert_int_equal(human_parse_number("0x1p3", &x), -EINVAL);
        assert_int_equal(human_parse_number("1x", &x), -EINVAL);
}

static void durations_are_read_with_a_unit_or_in_seconds(void **state)
{
        static const struct {
                const char *text;
                double seconds;
        } good[] = { { "90", 90 },         { "90s", 90 },    { "1.5m", 90 },
                     { "12h", 12 * 3600 }, { "7d", 604800 }, { "0.5s", 0.5 } };
        static const char *const bad[] = { "", "s", "-1s", "1w", "1 s", "1ms", "nan", "0x1p3" };
        double x = -1;

        for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
                assert_int_equal(human_parse_seconds(good[i].text, &x), 0);
                assert_true(x == good[i].seconds);
        }
        x = -1;
        for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
                assert_int_equal(human_parse_seconds(bad[i], &x), -EINVAL);
        assert_int_equal(human_parse_seconds("100000000000000000000000000d", &x), -EINVAL);
        assert_int_equal(human_parse_seconds("1e308d", &x), -EINVAL); /* the product is infinite */
        assert_true(x == -1);
}

static void percentiles_are_exact(void **state)
{
        struct latency a = { 0 }, b = { 0 };

        assert_int_equal(latency_quantile(&a, 0.5), 0);
        for (uint64_t i = 100; i > 0; i--)
                latency_add(i % 2 ? &a : &b, i);
        latency_merge(&a, &b);
        assert_int_equal(a.n, 100);
        assert_int_equal(latency_quantile(&a, 0), 1);
        assert_int_equal(latency_quantile(&a, 0.5), 50);
        assert_int_equal(latency_quantile(&a, 0.9), 90);
        assert_int_equal(latency_quantile(&a, 0.99), 99);
        assert_int_equal(latency_quantile(&a, 1), 100);
        latency_fini(&a);
        latency_fini(&b);
        latency_add(&a, 7);
        assert_int_equal(latency_quantile(&a, 0.99), 7);
        latency_fini(&a);
}

static void tables_align_and_names_cannot_steer_a_terminal(void **state)
{
        struct text_table *table = text_table_new("lr");
        char *text = NULL;
        size_t bytes = 0;
        FILE *out = open_memstream(&text, &bytes);

        assert_non_null(out);
        text_table_row(table, "name", "size");
        text_table_row(table, "a\033[2Jb\n", "1 µs");
        text_table_row(table, "x", NULL);
        text_table_print(table, "> ", out);
        fclose(out);
        assert_string_equal(text, "> name     size\n"
                                  "> a?[2Jb?  1 µs\n"
                                  "> x\n");
        free(text);
        text_table_free(table);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(bytes_have_the_unit_that_fits),
                cmocka_unit_test(counts_are_grouped_by_three),
                cmocka_unit_test(times_have_the_unit_that_fits),
                cmocka_unit_test(bounds_are_rounded_up_to_two_digits),
                cmocka_unit_test(sizes_are_read_as_people_write_them),
                cmocka_unit_test(durations_are_read_with_a_unit_or_in_seconds),
                cmocka_unit_test(every_round_size_survives_a_round_trip),
                cmocka_unit_test(numbers_refuse_what_is_not_one),
                cmocka_unit_test(percentiles_are_exact),
                cmocka_unit_test(tables_align_and_names_cannot_steer_a_terminal),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

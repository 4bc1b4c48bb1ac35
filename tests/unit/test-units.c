/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers as people read and write them: precision, the boundary between two units, plurals,
 * refused texts. Texts of other programs. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "text.h"
#include "units.h"
#include "checked.h"

static void bytes_have_three_digits_and_the_right_unit(void **state)
{
        static const struct {
                uint64_t bytes;
                const char *text;
        } cases[] = {
                { 0, "0 B" },
                { 1, "1 B" },
                { 1023, "1023 B" },
                { 1024, "1 KiB" },
                { 1536, "1.5 KiB" },
                { 1023 * 1024, "1023 KiB" },
                { 1024 * 1024 - 1, "1 MiB" },
                { 64 << 20, "64 MiB" },
                { 100 << 20, "100 MiB" },
                { (uint64_t)10 << 40, "10 TiB" },
                { ((uint64_t)10 << 40) + ((uint64_t)205 << 30), "10.2 TiB" },
                { (uint64_t)1 << 50, "1 PiB" },
                { UINT64_MAX, "16 EiB" },
        };
        char text[UNITS_TEXT];

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                assert_ptr_equal(units_bytes(cases[i].bytes, text), text);
                assert_string_equal(text, cases[i].text);
        }
}

static void times_have_the_unit_that_suits_them(void **state)
{
        static const struct {
                uint64_t ms;
                const char *text;
        } cases[] = {
                { 0, "0 ms" },        { 999, "999 ms" },        { 1000, "1 s" },
                { 1800, "1.8 s" },    { 30000, "30 s" },        { 119000, "119 s" },
                { 120000, "2 min" },  { 90 * 60000, "90 min" }, { 7200000, "2 h" },
                { 9000000, "2.5 h" }, { UINT64_MAX, NULL },
        };
        char text[UNITS_TEXT];

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                units_ms(cases[i].ms, text);
                if (cases[i].text)
                        assert_string_equal(text, cases[i].text);
                else
                        assert_true(strlen(text) < UNITS_TEXT);
        }
}

static void one_is_singular_and_nothing_else_is(void **state)
{
        char text[UNITS_TEXT];

        assert_string_equal(units_count(0, "chunk", text), "0 chunks");
        assert_string_equal(units_count(1, "chunk", text), "1 chunk");
        assert_string_equal(units_count(2, "worker", text), "2 workers");
        assert_string_equal(units_count(UINT64_MAX, "chunk", text), "18446744073709551615 chunks");
}

static uint64_t of_length(const char *unit)
{
        return strcmp(unit, "km") == 0  ? 1000000
               : strcmp(unit, "m") == 0 ? 1000
                                        : strcmp(unit, "mm") == 0;
}

static void numbers_are_read_exactly_or_not_at_all(void **state)
{
        static const struct {
                const char *text;
                int r;
                uint64_t value;
                const char *unit; /* NULL: there is no number */
        } cases[] = {
                { "2km", 0, 2000000, "km" },
                { "0.001 m", 0, 1, "m" },
                { "1.0000000019m", 0, 1000, "m" },
                { "18446744073709551.615m", 0, UINT64_MAX, "m" },
                { "18446744073709551.616m", -ERANGE, 0, "m" },
                { "99999999999999999999999999999999999999999999mm", -ERANGE, 0, "mm" },
                { "0", 0, 0, "" },
                { "0.0", 0, 0, "" },
                { "5", -EINVAL, 0, "" },
                { "1.5mm", -EINVAL, 0, "mm" },
                { "1inch", -EINVAL, 0, "inch" },
                { "1m ", -EINVAL, 0, "m " },
                { "1 ", -EINVAL, 0, NULL },
                { "1.m", -EINVAL, 0, NULL },
                { ".5m", -EINVAL, 0, NULL },
                { "-1m", -EINVAL, 0, NULL },
                { "", -EINVAL, 0, NULL },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                uint64_t value = 0;
                const char *unit = "untouched";

                assert_int_equal(units_parse(cases[i].text, of_length, &value, &unit), cases[i].r);
                assert_int_equal(value, cases[i].value);
                if (cases[i].unit)
                        assert_string_equal(unit, cases[i].unit);
                else
                        assert_null(unit);
        }
}

static void counts_are_digits_and_nothing_else(void **state)
{
        static const char *const bad[] = { "", "-1", "+1", "1 ", " 1", "1.0", "1.", "0x1", "1e3" };
        uint64_t n = 42;

        for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
                assert_int_equal(units_parse_count(bad[i], &n), -EINVAL);
        assert_int_equal(units_parse_count("18446744073709551616", &n), -ERANGE);
        assert_int_equal(n, 42);
        assert_int_equal(units_parse_count("12031", &n), 0);
        assert_int_equal(n, 12031);
        assert_int_equal(units_parse_count("18446744073709551615", &n), 0);
        assert_true(n == UINT64_MAX);
}

/* C1 controls and characters that change the direction of text are valid UTF-8, but steer a
 * terminal. */
static void text_from_others_steers_no_terminal(void **state)
{
        char hostile[] = "a\x1b[2J\n\x7f\t\xc2\x9b"
                         "31m\xe2\x80\xaexe\xe2\x81\xa6\xe2\x80\xa8.";
        char harmless[] = "z\xc3\xa4 \xe2\x80\x93 \xe2\x82\xac \xc2\xa0\xf0\x9f\x98\x80",
             *copy = strdup(harmless);
        char cut[] = "\xe2", cut_too[] = "\xe2\x80", cut_c1[] = "\xc2";

        assert_string_equal(text_clean(hostile), "a?[2J?????31m???xe??????.");
        assert_string_equal(text_clean(harmless), copy);
        assert_string_equal(text_clean(cut), "\xe2");
        assert_string_equal(text_clean(cut_too), "\xe2\x80");
        assert_string_equal(text_clean(cut_c1), "\xc2");
        free(copy);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(bytes_have_three_digits_and_the_right_unit),
                cmocka_unit_test(times_have_the_unit_that_suits_them),
                cmocka_unit_test(one_is_singular_and_nothing_else_is),
                cmocka_unit_test(numbers_are_read_exactly_or_not_at_all),
                cmocka_unit_test(counts_are_digits_and_nothing_else),
                cmocka_unit_test(text_from_others_steers_no_terminal),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

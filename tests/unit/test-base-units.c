/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers as people read them: precision, the border between two units, plurals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/units.h"
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

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(bytes_have_three_digits_and_the_right_unit),
                cmocka_unit_test(times_have_the_unit_that_suits_them),
                cmocka_unit_test(one_is_singular_and_nothing_else_is),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

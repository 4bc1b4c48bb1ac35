/* SPDX-License-Identifier: Apache-2.0 */
/* lib/timeout.c: limits grow with KVCACHE_TEST_SLOW and with a sanitizer. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "checked.h"
#include "timeout.h"

static int timeout_with(const char *slow, int ms)
{
        if (slow)
                assert_int_equal(setenv("KVCACHE_TEST_SLOW", slow, 1), 0);
        else
                assert_int_equal(unsetenv("KVCACHE_TEST_SLOW"), 0);
        return test_timeout_ms(ms);
}

static void timeouts_grow_with_the_variable(void **state)
{
        static const struct {
                const char *slow;
                int tenths;
        } cases[] = {
                { "1", 10 },   { "2.5", 25 }, { "10", 100 },   { "10.0", 100 }, { "0", 10 },
                { "0.5", 10 }, { "11", 100 }, { "1e9", 10 },   { "", 10 },      { ".", 10 },
                { "2x", 10 },  { "-3", 10 },  { "1.2.3", 10 }, { "nan", 10 },   { "inf", 10 },
        };
        int plain = timeout_with(NULL, 1000);

        assert_true(plain == 1000 || plain == 5000); /* 5000 with a sanitizer */
        for (unsigned i = 0; i < ARRAY_SIZE(cases); i++)
                if (timeout_with(cases[i].slow, 1000) != plain / 10 * cases[i].tenths)
                        fail_msg("'%s': %d ms", cases[i].slow, test_timeout_ms(1000));
}

static void timeouts_do_not_overflow(void **state)
{
        assert_int_equal(timeout_with("10", INT_MAX / 2), INT_MAX);
        assert_int_equal(timeout_with("10", 0), 0);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(timeouts_grow_with_the_variable),
                cmocka_unit_test(timeouts_do_not_overflow),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* rest.h: how long a loop works without a rest. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rest.h"
#include "checked.h"

/* Simulates iterations of this length, with work all the time, for a second. Returns the time spent
 * at work, and in *ret_longest the longest time without a rest. */
static uint64_t work(struct rest *r, uint64_t iteration_ns, uint64_t *ret_longest)
{
        const uint64_t begin = 1, end = UINT64_C(1000000000);
        uint64_t now = begin, since = begin, worked = 0;

        *ret_longest = 0;
        while (now < end) {
                uint64_t rest = rest_until(r, true, now);

                now += iteration_ns;
                worked += iteration_ns;
                if (rest == 0)
                        continue;
                *ret_longest = MAX(*ret_longest, now - since);
                since = now = MAX(now, rest);
        }
        return worked;
}

static void a_stretch_ends_with_a_rest(void **state)
{
        static const uint64_t lengths[] = { 1000, 20000, 200000 };

        for (unsigned i = 0; i < ARRAY_SIZE(lengths); i++) {
                struct rest r = { 0 };
                uint64_t longest, worked = work(&r, lengths[i], &longest);

                assert_in_range(longest, REST_STRETCH_NS, REST_STRETCH_NS + 2 * lengths[i]);
                assert_in_range(worked, 200000000, 600000000);
        }
}

static void without_work_there_is_no_rest(void **state)
{
        struct rest r = { 0 };

        assert_int_equal(rest_until(&r, false, 1), 0);
        assert_int_equal(rest_until(&r, false, UINT64_C(5000000000)), 0);
}

/* The stretch that ended with its work does not count for later work. */
static void work_after_a_pause_begins_a_stretch(void **state)
{
        struct rest r = { 0 };

        assert_int_equal(rest_until(&r, true, 1000), 0);
        assert_int_equal(rest_until(&r, false, 2000), 0);
        assert_int_equal(rest_until(&r, true, UINT64_C(5000000000)), 0);
        assert_int_equal(rest_until(&r, true, UINT64_C(5000000000) + REST_STRETCH_NS),
                         UINT64_C(5000000000) + REST_STRETCH_NS + REST_NS);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_stretch_ends_with_a_rest),
                cmocka_unit_test(without_work_there_is_no_rest),
                cmocka_unit_test(work_after_a_pause_begins_a_stretch),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

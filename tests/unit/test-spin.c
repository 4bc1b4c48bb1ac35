/* SPDX-License-Identifier: Apache-2.0 */
/* spin.h: which threads poll, and for how long. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "spin.h"

static void learn(struct spin *s, uint64_t waited_ns, unsigned times)
{
        while (times-- > 0)
                spin_learn(s, waited_ns);
}

static void long_waits_end_it_and_short_ones_begin_it_again(void **state)
{
        struct spin s = { .limit_ns = SPIN_LIMIT_NS };

        assert_int_equal(spin_budget(&s), SPIN_LIMIT_NS);
        learn(&s, UINT64_C(3600) * 1000000000, 1); /* a pause */
        assert_int_equal(spin_budget(&s), SPIN_LIMIT_NS);
        learn(&s, UINT64_C(3600) * 1000000000, 4);
        assert_int_equal(spin_budget(&s), 0);
        learn(&s, UINT64_MAX, 1000);
        assert_int_equal(spin_budget(&s), 0);
        learn(&s, 10000, 6);
        assert_int_equal(spin_budget(&s), 0);
        learn(&s, 10000, 8);
        assert_int_equal(spin_budget(&s), SPIN_LIMIT_NS);
}

static void waits_a_little_longer_than_the_limit_are_slept_through(void **state)
{
        struct spin s = { .limit_ns = SPIN_LIMIT_NS };

        learn(&s, SPIN_LIMIT_NS + 100, 200);
        assert_int_equal(spin_budget(&s), 0);
}

static void without_a_limit_nothing_polls(void **state)
{
        struct spin s = { 0 };

        learn(&s, 0, 100);
        learn(&s, UINT64_MAX, 100);
        assert_int_equal(spin_budget(&s), 0);
}

static void a_poll_ends_at_a_deadline(void **state)
{
        assert_int_equal(spin_end(1000, 500, 0), 1500);
        assert_int_equal(spin_end(1000, 500, 1001), 1001);
        assert_int_equal(spin_end(1000, 500, 10), 10); /* the deadline has passed */
        assert_int_equal(spin_end(1000, 500, UINT64_MAX), 1500);
}

static void the_daemon_polls_for_clients_only(void **state)
{
        struct spin s = { .limit_ns = SPIN_LIMIT_NS };

        assert_int_equal(spin_budget_of_daemon(&s, 1000, 1000), SPIN_LIMIT_NS);
        assert_int_equal(spin_budget_of_daemon(&s, 1000, 1000 + SPIN_CLIENT_NS), SPIN_LIMIT_NS);
        assert_int_equal(spin_budget_of_daemon(&s, 1000, 1001 + SPIN_CLIENT_NS), 0);
        learn(&s, UINT64_MAX, 100);
        assert_int_equal(spin_budget_of_daemon(&s, 1000, 1000), 0);
}

static void few_processors_are_left_to_others(void **state)
{
        cpu_set_t before, one;
        int cpu = 0;

        assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
        assert_int_equal(spin_limit_of_host(),
                         CPU_COUNT(&before) < SPIN_LEAST_CPUS ? 0 : SPIN_LIMIT_NS);
        while (!CPU_ISSET(cpu, &before))
                cpu++;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
        assert_int_equal(spin_limit_of_host(), 0);
        assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
}

static void a_client_polls_as_long_as_the_daemon_within_limits(void **state)
{
        assert_int_equal(spin_limit_of_client(0), SPIN_LIMIT_NS); /* off, or an old daemon */
        assert_int_equal(spin_limit_of_client(SPIN_LIMIT_NS / 1000), SPIN_LIMIT_NS);
        assert_int_equal(spin_limit_of_client(700), 700000);
        assert_int_equal(spin_limit_of_client(SPIN_LONG_LIMIT_NS / 1000), SPIN_LONG_LIMIT_NS);
        assert_int_equal(spin_limit_of_client(UINT32_MAX), SPIN_LONG_LIMIT_NS);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(long_waits_end_it_and_short_ones_begin_it_again),
                cmocka_unit_test(waits_a_little_longer_than_the_limit_are_slept_through),
                cmocka_unit_test(without_a_limit_nothing_polls),
                cmocka_unit_test(a_poll_ends_at_a_deadline),
                cmocka_unit_test(the_daemon_polls_for_clients_only),
                cmocka_unit_test(few_processors_are_left_to_others),
                cmocka_unit_test(a_client_polls_as_long_as_the_daemon_within_limits),
        };

        return cmocka_run_group_tests_name("spin", tests, NULL, NULL);
}

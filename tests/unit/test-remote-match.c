/* SPDX-License-Identifier: Apache-2.0 */
/* How far chains reach on the shared tier: few probes, at their rate, remembered for their time,
 * and put right by what gets find. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "checked.h"
#include "remote-fixture.h"

/* Asks until it is known; how far it reaches. */
static uint32_t find_end(unsigned n)
{
        bool known;
        uint32_t reach;

        for (unsigned i = 0; i < 10; i++) {
                reach = match(n, &known);
                if (known)
                        return reach;
                step();
                advance(SECOND);
        }
        fail_msg("the chain's end is not found");
        return 0;
}

static void a_chain_is_found_with_few_probes(void **state)
{
        static const unsigned reaches[] = { 0, 1, 37, 63, 64, 99, 100 };
        bool known = true;

        for (unsigned i = 0; i < ARRAY_SIZE(reaches); i++) {
                make();
                for (unsigned k = 0; k < reaches[i]; k++)
                        put_object(k, 100);
                assert_int_equal(match(100, &known), 0);
                assert_false(known);
                assert_int_equal(stats().probes, 0); /* not from within */
                step();
                assert_int_equal(match(100, &known), reaches[i]);
                assert_true(known);
                assert_int_equal(stats().searches, 1);
                assert_in_range(stats().probes, 1, 7 + 1);
                /* The end is remembered, for any part of the chain. */
                for (unsigned n = 1; n <= 100; n++) {
                        assert_int_equal(match(n, &known), MIN(n, (uint32_t)reaches[i]));
                        assert_true(known);
                }
                step();
                assert_int_equal(stats().searches, 1);
                rig_teardown(NULL);
                rig_setup(NULL);
        }
        make();
}

static void a_very_long_chain_is_found_in_two_steps(void **state)
{
        bool known;

        rig.params.presence_ns = 3600 * SECOND;
        make();
        for (unsigned k = 0; k < 2345; k++)
                put_object(k, 10);
        assert_int_equal(find_end(KEYS), 2345);
        assert_int_equal(stats().searches, 2);
        assert_in_range(stats().probes, 12, 15 + 1);
        /* The end is remembered for longer and shorter chains, too. */
        for (unsigned n = 1000; n < 10000; n += 999) {
                assert_int_equal(find_end(n), MIN(n, 2345U));
                assert_in_range(stats().searches, 2, 12);
        }
        /* The keys are found again when the recorded end is forgotten, with the presence remembered
         * before it. */
        advance(rig.params.absence_ns + SECOND);
        for (unsigned k = 2345; k < 2350; k++)
                put_object(k, 10);
        assert_in_range(match(KEYS, &known), 2300, 2345);
        assert_false(known);
        assert_int_equal(find_end(KEYS), 2350);
}

static void what_is_under_way_is_not_begun_again(void **state)
{
        bool known;

        make();
        fake_set_end(BACKEND_READ, FAKE_HELD);
        for (unsigned i = 0; i < 10; i++) {
                (void)match(100, &known);
                step();
        }
        assert_int_equal(stats().probes, 1);
        for (unsigned n = 101; n < 1000; n++) { /* other chains; not more than there may be */
                assert_int_equal(match(n, &known), 0);
                assert_false(known);
        }
        step();
        assert_int_equal(fake_held(), SEARCHES_MAX);
}

static void lifetimes_are_kept(void **state)
{
        bool known;

        make();
        for (unsigned k = 0; k < 50; k++)
                put_object(k, 100);
        assert_int_equal(find_end(100), 50);
        for (unsigned k = 50; k < 60; k++)
                put_object(k, 100);
        advance(5 * SECOND);
        assert_int_equal(match(100, &known), 50);
        assert_true(known);
        advance(rig.params.absence_ns); /* absent objects may have been written */
        assert_int_equal(match(100, &known), 50);
        assert_false(known);
        assert_int_equal(find_end(100), 60);
        for (unsigned k = 20; k < 60; k++)
                assert_true(fake_remove(name_of(k)));
        advance(rig.params.presence_ns / 2);
        assert_int_equal(find_end(100), 60);
        advance(rig.params.presence_ns);
        assert_int_equal(find_end(100), 20);
}

static void a_get_puts_right_what_the_order_does_not_say(void **state)
{
        bool known;

        make();
        for (unsigned k = 0; k < 80; k++)
                if (k != 21) /* not monotone */
                        put_object(k, 100);
        assert_int_equal(find_end(100), 80);
        assert_int_equal(remote_presence(rig.r, NS, hash_of(21)), 1);
        assert_false(finds(21, 100));
        assert_int_equal(remote_presence(rig.r, NS, hash_of(21)), 0);
        assert_int_equal(match(100, &known), 21);
        assert_true(known);
        assert_int_equal(match(20, &known), 20);
        /* Another host writes the object again, which this host learns by a get. */
        put_object(21, 100);
        advance(rig.params.absence_ns);
        assert_true(finds(21, 100));
        assert_int_equal(find_end(100), 80);
        /* This host's own writes are known at once. */
        assert_true(fake_remove(name_of(30)));
        assert_false(finds(30, 100));
        assert_int_equal(match(80, &known), 30);
        offer(30);
        step();
        assert_int_equal(match(80, &known), 80);
}

static void what_follows_from_the_order_alone_is_asked_for_all_the_same(void **state)
{
        make();
        put_object(70, 100);
        assert_int_equal(find_end(100), 0);
        assert_int_equal(remote_presence(rig.r, NS, hash_of(70)), 0);
        assert_true(finds(70, 100));
}

static void probes_keep_to_their_rate(void **state)
{
        uint64_t began;
        bool known;

        rig.params.probe_rate = 10;
        make();
        began = now_ns();
        for (unsigned n = 1; n <= SEARCHES_MAX; n++)
                (void)match(1000 + n, &known);
        step();
        while (now_ns() < began + 5 * SECOND) {
                assert_in_range(stats().probes, (now_ns() - began) / (100 * MS),
                                (now_ns() - began) / (100 * MS) + 2);
                advance(20 * MS);
        }
        assert_true(remote_iterate(rig.r, now_ns()) <= now_ns() + 100 * MS);
}

static void a_probe_that_fails_ends_its_search(void **state)
{
        bool known;

        make();
        put_object(0, 100);
        fake_fail(BACKEND_READ, -EIO, 1);
        (void)match(2, &known);
        step();
        assert_int_equal(match(2, &known), 0);
        assert_false(known);
        assert_int_equal(find_end(2), 1);
        assert_int_equal(stats().errors[BACKEND_READ], 1);
}

static void a_probe_that_hangs_ends_its_search(void **state)
{
        bool known;

        make();
        put_object(0, 100);
        fake_set_end(BACKEND_READ, FAKE_HUNG);
        (void)match(2, &known);
        step();
        assert_int_equal(fake_held(), 1);
        advance(rig.params.timeout_ns);
        fake_set_end(BACKEND_READ, FAKE_WITHIN);
        assert_int_equal(find_end(2), 1);
        assert_int_equal(fake_release(1), 1);
        step();
}

static void a_bad_object_ends_the_chain(void **state)
{
        make();
        for (unsigned k = 0; k < 4; k++)
                put_object(k, 100);
        assert_true(fake_flip(name_of(2), 9));
        assert_int_equal(find_end(4), 2);
        step();
        assert_false(fake_has(name_of(2)));
        assert_int_equal(stats().rejected[REMOTE_BAD_HEADER], 1);
}

static void many_operations_that_hang_are_bounded(void **state)
{
        uint64_t next;
        bool known;

        rig.params.timeout_ns = 100 * SECOND; /* the breaker does not open before */
        make();
        fake_set_end(BACKEND_READ, FAKE_HUNG);
        for (unsigned round = 0; round < 3; round++) {
                for (unsigned n = 1; n <= SEARCHES_MAX; n++)
                        (void)match(100 * (round + 1) + n, &known);
                step();
        }
        assert_int_equal(fake_held(), SEARCHES_MAX);
        next = remote_iterate(rig.r, now_ns());
        assert_true(next > now_ns());
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)
        const struct CMUnitTest tests[] = {
                TEST(a_chain_is_found_with_few_probes),
                TEST(a_very_long_chain_is_found_in_two_steps),
                TEST(what_is_under_way_is_not_begun_again),
                TEST(lifetimes_are_kept),
                TEST(a_get_puts_right_what_the_order_does_not_say),
                TEST(what_follows_from_the_order_alone_is_asked_for_all_the_same),
                TEST(probes_keep_to_their_rate),
                TEST(a_probe_that_fails_ends_its_search),
                TEST(a_probe_that_hangs_ends_its_search),
                TEST(a_bad_object_ends_the_chain),
                TEST(many_operations_that_hang_are_bounded),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

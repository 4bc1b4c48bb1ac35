/* SPDX-License-Identifier: Apache-2.0 */
/* The writes that a budget admits: the bucket, the controller, second touches, and remembered
 * keys. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "checked.h"
#include "cleanup.h"
#include "evict/admission.h"

DEFINE_CLEANUP(struct admission *, admission_free);

#define SECOND       UINT64_C(1000000000)
#define HOUR         (3600 * SECOND)
#define BEGIN        (77 * SECOND)
#define CHUNK        UINT64_C(1048576)
#define DAY_OF(rate) ((rate)*86400) /* a budget of so many bytes a second */

static struct admission *make(uint64_t budget)
{
        struct admission *a = NULL;

        assert_int_equal(admission_new(&a, 1 << 16, 1, BEGIN), 0);
        assert_int_equal(admission_set_budget(a, budget, BEGIN), 0);
        return a;
}

static struct admission_stats stats(const struct admission *a)
{
        struct admission_stats ret;

        admission_get_stats(a, &ret);
        return ret;
}

static enum admission_answer ask(struct admission *a, uint64_t id, uint32_t use, uint64_t at)
{
        return admission_ask(a, &(struct admission_write){ .id = id, .use = use, .bytes = CHUNK },
                             BEGIN + at);
}

/* Offers new chunks, in `uses` requests of ten each, at `a_second` requests a second from `at` on.
 * Returns the bytes that were admitted. */
static uint64_t offer(struct admission *a, uint64_t at, unsigned uses, unsigned a_second)
{
        static uint64_t id = 1;
        static uint32_t use = 1;
        uint64_t before = stats(a).charged_bytes;

        for (unsigned i = 0; i < uses; i++, use++)
                for (unsigned k = 0; k < 10; k++)
                        (void)ask(a, id++, use, at + i * SECOND / a_second);
        return stats(a).charged_bytes - before;
}

static void without_a_budget_all_is_admitted_and_nothing_remembered(void **state)
{
        _cleanup_(admission_freep) struct admission *a = make(0);

        for (uint64_t id = 1; id < 1000; id++)
                assert_int_equal(ask(a, id, 0, 0), ADMISSION_ADMITTED);
        assert_int_equal(stats(a).remembered, 0);
        assert_int_equal(stats(a).remembered_bytes, 0);
        assert_int_equal(stats(a).charged_bytes, 0);
        assert_false(admission_has_refused(a, 1));
        assert_null(admission_free(NULL));
}

static void a_budget_is_met_from_both_sides(void **state)
{
        static const unsigned shares[] = { 2, 4, 10, 50 };

        for (unsigned i = 0; i < ARRAY_SIZE(shares); i++) {
                /* 100 chunks a second are asked for, for two hours */
                uint64_t rate = 100 * CHUNK / shares[i], spent;
                _cleanup_(admission_freep) struct admission *a = make(DAY_OF(rate));

                spent = offer(a, 0, 72000, 10);
                assert_in_range(spent, rate * 7200 * 95 / 100, rate * 7200 * 105 / 100);
                assert_in_range((uint64_t)(stats(a).probability * shares[i] * 100), 70, 130);
                assert_true(stats(a).refused_first > 10 * stats(a).refused_dry);
        }
}

static void a_budget_that_suffices_refuses_nothing_once_it_has_accrued(void **state)
{
        _cleanup_(admission_freep) struct admission *a = make(DAY_OF(200 * CHUNK));

        (void)offer(a, 0, 600, 10);
        assert_int_equal(offer(a, 60 * SECOND, 6000, 10), 60000 * CHUNK);
        assert_true(stats(a).probability == 1);
}

static void all_chunks_of_a_use_are_drawn_for_together(void **state)
{
        uint64_t rate = 25 * CHUNK;
        _cleanup_(admission_freep) struct admission *a = make(DAY_OF(rate));
        unsigned in_parts = 0;

        (void)offer(a, 0, 36000, 10);
        for (uint32_t use = 1000000; use < 1001000; use++) {
                unsigned admitted = 0;

                for (unsigned k = 0; k < 10; k++)
                        admitted += ask(a, use * UINT64_C(10) + k, use,
                                        HOUR + (use - 1000000) * SECOND / 10) == ADMISSION_ADMITTED;
                in_parts += admitted != 0 && admitted != 10;
        }
        assert_in_range(in_parts, 0, 50); /* the bucket has run dry meanwhile */
}

static void a_second_touch_is_admitted_when_a_first_is_not(void **state)
{
        _cleanup_(admission_freep) struct admission *a = make(DAY_OF(CHUNK));
        uint64_t refused = 0;

        (void)offer(a, 0, 36000, 10);
        for (uint64_t id = UINT64_C(1) << 40; refused == 0; id++)
                if (ask(a, id, 0, HOUR) != ADMISSION_ADMITTED)
                        refused = id;
        assert_true(admission_has_refused(a, refused));
        assert_int_equal(ask(a, refused, 0, HOUR + 60 * SECOND), ADMISSION_ADMITTED);
        assert_false(admission_has_refused(a, refused));
        /* a write that the caller has seen before */
        assert_int_equal(admission_ask(a,
                                       &(struct admission_write){ .id = UINT64_C(1) << 41,
                                                                  .again = true,
                                                                  .bytes = CHUNK },
                                       BEGIN + HOUR + 120 * SECOND),
                         ADMISSION_ADMITTED);
}

static void second_touches_overdraw_by_little(void **state)
{
        uint64_t rate = CHUNK, charged;
        _cleanup_(admission_freep) struct admission *a = make(DAY_OF(rate));

        (void)offer(a, 0, 36000, 10);
        charged = stats(a).charged_bytes;
        for (uint64_t i = 0; i < 100000; i++)
                (void)ask(a, 1 + i % 1000, 0, HOUR);
        assert_true(stats(a).refused_dry > 90000);
        /* a quarter of five minutes, the rest that was available, and one write more */
        assert_in_range(stats(a).charged_bytes - charged, 70 * CHUNK, 140 * CHUNK);
        assert_true(stats(a).available < 0);
}

static void what_accrues_is_bounded(void **state)
{
        uint64_t rate = 10 * CHUNK;
        _cleanup_(admission_freep) struct admission *a = make(DAY_OF(rate));

        (void)ask(a, 1, 0, 1000 * HOUR);
        assert_in_range(stats(a).available, (int64_t)(rate * 3599), (int64_t)(rate * 3600));
        /* After a night, at most an hour's worth may be written at once. */
        assert_in_range(offer(a, 1000 * HOUR, 100000, 100000), rate * 3000, rate * 3610);
}

static void no_day_has_more_than_105_percent(void **state)
{
        uint64_t rate = 10 * CHUNK, most = 0, hours[96];
        _cleanup_(admission_freep) struct admission *a = make(DAY_OF(rate));

        /* Writes nothing for hours and then everything at once, repeatedly, with second touches. */
        for (unsigned h = 0; h < ARRAY_SIZE(hours); h++) {
                uint64_t before = stats(a).charged_bytes;

                if (h % 5 != 0) {
                        (void)offer(a, h * HOUR, 3600, 1);
                        for (uint64_t id = 1; id < 5000; id++)
                                (void)ask(a, id, 0, h * HOUR + 3599 * SECOND);
                }
                hours[h] = stats(a).charged_bytes - before;
        }
        for (unsigned h = 0; h + 24 <= ARRAY_SIZE(hours); h++) {
                uint64_t day = 0;

                for (unsigned i = 0; i < 24; i++)
                        day += hours[h + i];
                most = MAX(most, day);
        }
        assert_in_range(most, rate * 86400 * 80 / 100, rate * 86400 * 105 / 100);
}

static void what_was_written_is_what_counts(void **state)
{
        uint64_t rate = 100 * CHUNK;
        _cleanup_(admission_freep) struct admission *a = make(DAY_OF(rate));
        int64_t before;

        admission_count_written(a, 5000, BEGIN);
        (void)ask(a, 1, 0, 60 * SECOND);
        before = stats(a).available;
        /* A write whose real cost equals its charge changes nothing. */
        admission_settle(a, CHUNK);
        admission_count_written(a, 5000 + CHUNK, BEGIN + 60 * SECOND);
        assert_int_equal(stats(a).available, before);
        /* Failed: it is forgiven. */
        admission_settle(a, CHUNK);
        admission_count_written(a, 5000 + CHUNK, BEGIN + 60 * SECOND);
        assert_int_equal(stats(a).available, before + (int64_t)CHUNK);
        /* Tables. */
        admission_count_written(a, 6000 + CHUNK, BEGIN + 60 * SECOND);
        assert_int_equal(stats(a).available, before + (int64_t)CHUNK - 1000);
        assert_int_equal(stats(a).written_day, CHUNK + 1000);
        assert_int_equal(stats(a).seconds_day, 60);
        /* A count decreases when a volume is removed, which is no write. */
        admission_count_written(a, 0, BEGIN + 60 * SECOND);
        assert_int_equal(stats(a).written_day, CHUNK + 1000);
        /* The writes of a day are forgotten after another day. */
        admission_count_written(a, 0, BEGIN + 25 * HOUR);
        assert_int_equal(stats(a).written_day, 0);
        assert_int_equal(stats(a).seconds_day, 86400);
}

/* Tables and prewriting reduce the budget of new chunks. */
static void overhead_is_paid_for_by_first_touches(void **state)
{
        uint64_t rate = 50 * CHUNK, written = 0, total;
        _cleanup_(admission_freep) struct admission *a = make(DAY_OF(rate));

        admission_count_written(a, 0, BEGIN);
        for (unsigned second = 0; second < 7200; second++) {
                uint64_t spent = offer(a, second * SECOND, 10, 10);

                admission_settle(a, spent);
                written += spent + 20 * CHUNK;
                admission_count_written(a, written, BEGIN + (second + 1) * SECOND);
        }
        total = rate * 7200;
        assert_in_range(written, total * 95 / 100, total * 105 / 100);
}

static void memory_is_bounded(void **state)
{
        _cleanup_(admission_freep) struct admission *a = make(DAY_OF(CHUNK));

        for (uint64_t id = 1; id < 1000000; id++)
                (void)ask(a, id, 0, SECOND);
        assert_int_equal(stats(a).remembered_max, 1 << 16);
        assert_in_range(stats(a).remembered, 60000, 1 << 16);
        assert_int_equal(stats(a).remembered_bytes, 16 << 16);
        assert_true(admission_has_refused(a, 999999));
        assert_false(admission_has_refused(a, 1));
}

static void a_clock_that_goes_backwards_gains_nothing(void **state)
{
        _cleanup_(admission_freep) struct admission *a = make(DAY_OF(CHUNK));
        int64_t available;

        (void)ask(a, 1, 0, HOUR);
        available = stats(a).available;
        for (unsigned i = 0; i < 1000; i++) {
                admission_count_written(a, 0, BEGIN);
                admission_count_written(a, 0, BEGIN + HOUR);
        }
        assert_int_equal(stats(a).available, available);
        assert_int_equal(admission_set_budget(a, DAY_OF(2 * CHUNK), 0), 0);
        assert_int_equal(stats(a).available, available);
}

static void the_largest_sizes_do_not_overflow(void **state)
{
        _cleanup_(admission_freep) struct admission *a = make(UINT64_MAX);
        struct admission_write w = { .id = 1, .again = true, .bytes = UINT32_MAX };

        assert_int_equal(admission_ask(a, &w, UINT64_MAX), ADMISSION_ADMITTED);
        assert_true(stats(a).available > 0);
        admission_count_written(a, 0, UINT64_MAX);
        admission_count_written(a, UINT64_MAX, UINT64_MAX);
        assert_true(stats(a).available < 0);
        assert_int_equal(stats(a).written_day, UINT64_MAX);
        assert_int_equal(admission_ask(a, &w, UINT64_MAX), ADMISSION_DRY);
        /* The least budget: one byte a day, and then chunks. */
        assert_int_equal(admission_set_budget(a, 1, UINT64_MAX), 0);
        assert_int_equal(admission_ask(a, &w, UINT64_MAX), ADMISSION_DRY);
}

static void the_budget_can_be_changed_and_ended(void **state)
{
        uint64_t rate = 10 * CHUNK;
        _cleanup_(admission_freep) struct admission *a = make(DAY_OF(rate));
        uint64_t spent;

        (void)offer(a, 0, 36000, 10);
        assert_int_equal(admission_set_budget(a, DAY_OF(4 * rate), BEGIN + HOUR), 0);
        spent = offer(a, HOUR, 36000, 10);
        assert_in_range(spent, rate * 3600 * 4 * 95 / 100, rate * 3600 * 4 * 105 / 100);
        assert_int_equal(admission_set_budget(a, 0, BEGIN + 2 * HOUR), 0);
        assert_int_equal(offer(a, 2 * HOUR, 10, 10), 0); /* nothing is charged */
        assert_int_equal(ask(a, 1, 0, 2 * HOUR), ADMISSION_ADMITTED);
        assert_int_equal(stats(a).remembered, 0);
        assert_int_equal(stats(a).available, 0);
        assert_true(stats(a).probability == 1);
        /* A new one begins from nothing. */
        assert_int_equal(admission_set_budget(a, DAY_OF(rate), BEGIN + 3 * HOUR), 0);
        assert_int_equal(stats(a).available, 0);
        assert_int_equal(ask(a, UINT64_C(1) << 50, 0, 3 * HOUR), ADMISSION_DRY);
}

static void the_same_questions_have_the_same_answers(void **state)
{
        _cleanup_(admission_freep) struct admission *a = make(DAY_OF(10 * CHUNK));
        _cleanup_(admission_freep) struct admission *b = make(DAY_OF(10 * CHUNK));

        for (uint64_t i = 1; i < 100000; i++)
                assert_int_equal(ask(a, i * i % 65537 + 1, (uint32_t)i / 7, i * SECOND / 50),
                                 ask(b, i * i % 65537 + 1, (uint32_t)i / 7, i * SECOND / 50));
        assert_true(stats(a).refused_first > 0 && stats(a).admitted_again > 0);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(without_a_budget_all_is_admitted_and_nothing_remembered),
                cmocka_unit_test(a_budget_is_met_from_both_sides),
                cmocka_unit_test(a_budget_that_suffices_refuses_nothing_once_it_has_accrued),
                cmocka_unit_test(all_chunks_of_a_use_are_drawn_for_together),
                cmocka_unit_test(a_second_touch_is_admitted_when_a_first_is_not),
                cmocka_unit_test(second_touches_overdraw_by_little),
                cmocka_unit_test(what_accrues_is_bounded),
                cmocka_unit_test(no_day_has_more_than_105_percent),
                cmocka_unit_test(what_was_written_is_what_counts),
                cmocka_unit_test(overhead_is_paid_for_by_first_touches),
                cmocka_unit_test(memory_is_bounded),
                cmocka_unit_test(a_clock_that_goes_backwards_gains_nothing),
                cmocka_unit_test(the_largest_sizes_do_not_overflow),
                cmocka_unit_test(the_budget_can_be_changed_and_ended),
                cmocka_unit_test(the_same_questions_have_the_same_answers),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

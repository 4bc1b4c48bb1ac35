/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of sessions: the golden totals of 100 records, however they are divided among
 * writers; failures; quantiles. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "checked.h"
#include "transfer-counts.h"

enum { RECORDS = 100, SERIES = 3, WRITERS = 4 };

static struct transfer_record golden(unsigned i)
{
        uint64_t bytes = (i % 3 == 0 ? 8192 : 2048) + (uint64_t)(i % 10) * 512;

        return (struct transfer_record){ TRANSFER_OK, 1 + i % 5, 1 + i % 5, bytes, bytes, i };
}

static void golden_totals_hold_for_any_number_of_writers(void **state)
{
        static const struct {
                uint64_t transfers, bytes, blocks, min, max;
        } expected[SERIES] = {
                { 34, 356864, 102, 8192, 12800 },
                { 33, 142848, 100, 2048, 6656 },
                { 33, 144384, 98, 2048, 6656 },
        };

        for (unsigned writers = 1; writers <= WRITERS; writers++) {
                struct transfer_counts of[WRITERS][SERIES], sum[SERIES];
                uint64_t transfers = 0, bytes = 0;

                for (unsigned w = 0; w < writers; w++)
                        for (unsigned s = 0; s < SERIES; s++)
                                transfer_counts_init(&of[w][s]);
                for (unsigned i = 0; i < RECORDS; i++) {
                        struct transfer_record r = golden(i);

                        transfer_counts_add(&of[i % writers][i % 3], &r);
                }
                for (unsigned s = 0; s < SERIES; s++) {
                        uint64_t sizes = 0, latencies = 0;

                        transfer_counts_init(&sum[s]);
                        for (unsigned w = 0; w < writers; w++)
                                transfer_counts_merge(&sum[s], &of[w][s]);
                        assert_int_equal(sum[s].transfers, expected[s].transfers);
                        assert_int_equal(sum[s].bytes, expected[s].bytes);
                        assert_int_equal(sum[s].blocks, expected[s].blocks);
                        assert_int_equal(sum[s].min_bytes, expected[s].min);
                        assert_int_equal(sum[s].max_bytes, expected[s].max);
                        for (unsigned i = 0; i < TRANSFER_BUCKETS; i++) {
                                sizes += sum[s].sizes[i];
                                latencies += sum[s].latencies[i];
                        }
                        assert_int_equal(sizes, expected[s].transfers);
                        assert_int_equal(latencies, expected[s].transfers);
                        transfers += sum[s].transfers;
                        bytes += sum[s].bytes;
                }
                assert_int_equal(transfers, 100);
                assert_int_equal(bytes, 644096);
        }
}

static void failures_add_errors_alone(void **state)
{
        struct transfer_counts c, empty;

        transfer_counts_init(&empty);
        for (unsigned i = TRANSFER_OK + 1; i <= TRANSFER_RESULTS; i++) {
                struct transfer_record r = { (enum transfer_result)i, 1, 2, 3, 4, 5 };
                unsigned at = MIN(i, TRANSFER_RESULTS - 1u);

                transfer_counts_init(&c);
                transfer_counts_add(&c, &r);
                assert_int_equal(c.errors[at], 1);
                c.errors[at] = 0;
                assert_memory_equal(&c, &empty, sizeof(c));
        }
}

/* Several transfers at once count as the same number of transfers of their mean. */
static void many_at_once_are_as_many_of_their_mean(void **state)
{
        struct transfer_record one = { TRANSFER_OK, 1, 4, 1000, 1024, 0, 70 },
                               all = { TRANSFER_OK, 64, 256, 64000, 65536, 0, 4480 };
        struct transfer_counts single, many;

        transfer_counts_init(&single);
        transfer_counts_init(&many);
        for (unsigned i = 0; i < 64; i++)
                transfer_counts_add(&single, &one);
        transfer_counts_add_many(&many, &all, 64);
        assert_memory_equal(&single, &many, sizeof(many));
        one.result = all.result = TRANSFER_ERROR_SHORT;
        for (unsigned i = 0; i < 64; i++)
                transfer_counts_add(&single, &one);
        transfer_counts_add_many(&many, &all, 64);
        assert_memory_equal(&single, &many, sizeof(many));
        all = (struct transfer_record){ TRANSFER_OK, 3, 3, 10, 10, 0, 9 };
        transfer_counts_add_many(&many, &all, 3);
        assert_int_equal(many.bytes, 64010);
        assert_int_equal(many.min_bytes, 3);
        assert_int_equal(many.max_bytes, 1000);
        assert_int_equal(many.latency_ns, 4489);
        assert_int_equal(many.sizes[2], 3);
}

static void quantiles_are_ends_of_buckets_and_at_most_the_largest(void **state)
{
        struct transfer_record small = { .bytes = 4096 }, large = { .bytes = 5000 };
        struct transfer_record huge = { .bytes = UINT64_MAX };
        struct transfer_counts c;

        transfer_counts_init(&c);
        assert_int_equal(transfer_quantile(c.sizes, 0.5, c.max_bytes), 0);
        for (unsigned i = 0; i < 99; i++)
                transfer_counts_add(&c, &small);
        transfer_counts_add(&c, &large);
        assert_int_equal(transfer_quantile(c.sizes, 0.5, c.max_bytes), 4096);
        assert_int_equal(transfer_quantile(c.sizes, 0.99, c.max_bytes), 4096);
        assert_int_equal(transfer_quantile(c.sizes, 0.999, c.max_bytes), 5000);
        transfer_counts_add(&c, &huge);
        assert_int_equal(transfer_quantile(c.sizes, 1, c.max_bytes), UINT64_MAX);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(golden_totals_hold_for_any_number_of_writers),
                cmocka_unit_test(failures_add_errors_alone),
                cmocka_unit_test(many_at_once_are_as_many_of_their_mean),
                cmocka_unit_test(quantiles_are_ends_of_buckets_and_at_most_the_largest),
        };

        return cmocka_run_group_tests_name("transfer-counts", tests, NULL, NULL);
}

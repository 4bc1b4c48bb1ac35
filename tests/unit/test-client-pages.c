/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers that clients count in their pages, as the daemon reads them, with the test's own clock:
 * all transfers of an honest client are counted, however often its page is read, and a lying
 * client's only as far as its connection time allows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "benchmark/internal.h"
#include "checked.h"
#include "transfer-page.h"

#define SECOND UINT64_C(1000000000)
#define DAY    (86400 * SECOND)

static const struct transfers nothing;

const struct transfers *__wrap_kio_transfers(const struct kio *io);
void __wrap_kio_record_transfers(struct kio *io, struct transfer_counts *window);

const struct transfers *__wrap_kio_transfers(const struct kio *io)
{
        return &nothing;
}

void __wrap_kio_record_transfers(struct kio *io, struct transfer_counts *window)
{
}

static struct {
        struct bench *bench;
        struct bench_page *page;
        struct transfer_page *at; /* the client's mapping */
        struct transfer_slot *slot;
        int fd;
} p;

static const uint64_t since = SECOND; /* the daemon's own clock is later */

static int setup(void **state)
{
        assert_int_equal(bench_new(&p.bench, &(struct bench_params){ 0 }), 0);
        assert_int_equal(bench_page_open(p.bench, since, &p.page, &p.fd), 0);
        p.at = mmap(NULL, TRANSFER_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, p.fd, 0);
        assert_true(p.at != MAP_FAILED);
        p.slot = &p.at->slots[0];
        p.slot->key =
                transfer_key(TRANSFER_HOST_TO_DEVICE, TRANSFER_FULLY_CONTIGUOUS, TRANSFER_MEMCPY);
        return 0;
}

static int teardown(void **state)
{
        bench_page_close(p.bench, p.page, since + 1000 * DAY);
        munmap(p.at, TRANSFER_PAGE_BYTES);
        close(p.fd);
        bench_free(p.bench);
        return 0;
}

/* Counts `n` further transfers of `bytes` and `latency_ns` each, and `busy_ns` in total. */
static void count(uint64_t n, uint64_t bytes, uint64_t latency_ns, uint64_t busy_ns)
{
        struct transfer_record sum = { .result = TRANSFER_OK,
                                       .blocks = n,
                                       .regions = n,
                                       .bytes = n * bytes,
                                       .device_bytes = n * bytes,
                                       .latency_ns = n * latency_ns };

        if (p.slot->counts.transfers == 0)
                transfer_counts_init(&p.slot->counts);
        p.at->sequence++;
        transfer_counts_add_many(&p.slot->counts, &sum, n);
        p.slot->busy_ns += busy_ns;
        p.at->sequence++;
}

/* Returns the counted series after this time. */
static const struct transfer_series *read_at(uint64_t ns)
{
        static const struct transfer_series none;

        bench_pages_read(p.bench, since + ns, 1);
        return p.bench->n_clients > 0 ? &p.bench->clients[0] : &none;
}

static void after_weeks_without_a_transfer_the_next_ones_are_counted(void **state)
{
        const struct transfer_series *s;

        count(1, 4096, 1000, 1000);
        assert_int_equal(read_at(SECOND)->ops[TRANSFER_OK], 1);
        count(2000000, 4096, 1000, SECOND);
        s = read_at(30 * DAY);
        assert_int_equal(s->ops[TRANSFER_OK], 2000001);
        assert_int_equal(s->bytes, 2000001 * UINT64_C(4096));
        assert_int_equal(s->busy_ns, SECOND + 1000);
        assert_int_equal(p.bench->impossible, 0);
        count(1, 4096, 1000, 1000);
        assert_int_equal(read_at(3000 * DAY)->ops[TRANSFER_OK], 2000002);
        assert_int_equal(p.bench->impossible, 0);
}

/* Two copies overlap. The first ends, is counted and read, and directly afterwards the second. */
static void what_began_before_the_last_reading_is_counted_whole(void **state)
{
        const struct transfer_series *s;

        count(1, 4096, 1000, 1000);
        (void)read_at(10 * SECOND);
        count(1, UINT64_C(8) << 30, 3 * SECOND, 3 * SECOND);
        s = read_at(10 * SECOND + 10000);
        assert_int_equal(s->ops[TRANSFER_OK], 2);
        assert_int_equal(s->bytes, (UINT64_C(8) << 30) + 4096);
        assert_int_equal(s->busy_ns, 3 * SECOND + 1000);
        assert_int_equal(p.bench->impossible, 0);
}

static void thousands_that_are_under_way_at_once_are_counted(void **state)
{
        for (unsigned i = 1; i <= 100; i++) {
                count(100, 4096, 100 * SECOND, SECOND);
                assert_int_equal(read_at((100 + i) * SECOND)->ops[TRANSFER_OK], 100 * i);
        }
        assert_int_equal(p.bench->impossible, 0);
}

static uint64_t read_ops(void)
{
        return p.bench->n_clients > 0 ? p.bench->clients[0].ops[TRANSFER_OK] : 0;
}

/* A lying page adds no more than its connection time allows, however often it is read, and whatever
 * it contained before. */
static void one_that_lies_adds_no_more_than_its_time_allows(void **state)
{
        const struct transfer_series *s = NULL;

        for (unsigned i = 1; i <= 1000; i++) {
                count(1, UINT64_C(3) << 40, 1000, 10 * SECOND);
                s = read_at(i * 1000000);
        }
        assert_true(s->bytes <= SECOND * 16384);
        assert_true(s->busy_ns <= SECOND);
        assert_true(p.bench->impossible > 0);
        p.at->sequence += 2;
        memset(&p.slot->counts, 0, sizeof(p.slot->counts)); /* counters decrease, too */
        p.slot->busy_ns = 0;
        (void)read_at(SECOND);
        p.slot->counts.transfers = 0;
        count(1, UINT64_C(15) << 40, 1000, 10 * SECOND);
        s = read_at(SECOND);
        assert_true(s->bytes <= SECOND * 16384);
        assert_true(s->busy_ns <= SECOND);
}

static void numbers_at_the_end_of_their_range_add_nothing(void **state)
{
        static const uint64_t most[] = { UINT64_MAX, UINT64_MAX - 65535, UINT64_MAX - 65536,
                                         UINT64_C(1) << 63 };

        for (unsigned i = 0; i < ARRAY_SIZE(most); i++) {
                for (unsigned word = 0; word < TRANSFER_PAGE_WORDS; word++) {
                        ((uint64_t *)&p.slot->counts)[word] = most[i];
                        p.at->sequence += 2;
                        (void)read_at(DAY);
                        ((uint64_t *)&p.slot->counts)[word] = 0;
                        p.at->sequence += 2;
                        (void)read_at(DAY);
                }
        }
        assert_int_equal(read_at(DAY)->ops[TRANSFER_OK], 0);
        assert_int_equal(read_at(DAY)->bytes, 0);
}

/* A reading that any client can cause reads only some pages, however many have news, and none is
 * left out in the end. */
static void pages_take_turns(void **state)
{
        enum { PAGES = 1000 };
        static struct bench_page *pages[PAGES];
        static struct transfer_page *at[PAGES];
        unsigned reads = 0;
        int fd;

        for (unsigned i = 0; i < PAGES; i++) {
                assert_int_equal(bench_page_open(p.bench, since, &pages[i], &fd), 0);
                at[i] = mmap(NULL, TRANSFER_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
                assert_true(at[i] != MAP_FAILED);
                close(fd);
                at[i]->slots[0].key = p.slot->key;
        }
        count(1, 4096, 1000, 1000); /* the first page precedes the changing ones */
        count(1, 4096, 1000, 1000);
        while (p.bench->n_clients == 0 || p.bench->clients[0].ops[TRANSFER_OK] < PAGES + 2) {
                uint64_t before = read_ops(), now = since + ++reads * SECOND;

                for (unsigned i = 0; i < PAGES; i++) {
                        at[i]->slots[0].counts.transfers = 1;
                        at[i]->sequence += 2;
                }
                bench_pages_read(p.bench, now, 100);
                assert_true(read_ops() - before <= 101);
                assert_true(reads <= 11);
        }
        for (unsigned i = 0; i < PAGES; i++) {
                munmap(at[i], TRANSFER_PAGE_BYTES);
                bench_page_close(p.bench, pages[i], since + DAY);
        }
        assert_int_equal(read_ops(), PAGES + 2);
}

static void who_may_only_ask_has_pages_read_seldom(void **state)
{
        char *text = NULL;
        size_t bytes = 0;
        FILE *out = open_memstream(&text, &bytes);

        count(1, 4096, 1000, 1000);
        assert_int_equal(bench_command(p.bench, BENCH_LIST, "", BENCH_UNSAVED, out), 0);
        assert_int_equal(read_ops(), 1);
        count(1, 4096, 1000, 1000);
        assert_int_equal(bench_command(p.bench, BENCH_LIST, "", BENCH_UNSAVED, out), 0);
        assert_int_equal(read_ops(), 1);
        assert_int_equal(bench_command(p.bench, BENCH_LIST, "", 0, out), 0);
        assert_int_equal(read_ops(), 2);
        fclose(out);
        free(text);
}

int main(void)
{
        static const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(
                        after_weeks_without_a_transfer_the_next_ones_are_counted, setup, teardown),
                cmocka_unit_test_setup_teardown(what_began_before_the_last_reading_is_counted_whole,
                                                setup, teardown),
                cmocka_unit_test_setup_teardown(thousands_that_are_under_way_at_once_are_counted,
                                                setup, teardown),
                cmocka_unit_test_setup_teardown(one_that_lies_adds_no_more_than_its_time_allows,
                                                setup, teardown),
                cmocka_unit_test_setup_teardown(numbers_at_the_end_of_their_range_add_nothing,
                                                setup, teardown),
                cmocka_unit_test_setup_teardown(pages_take_turns, setup, teardown),
                cmocka_unit_test_setup_teardown(who_may_only_ask_has_pages_read_seldom, setup,
                                                teardown),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

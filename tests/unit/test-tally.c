/* SPDX-License-Identifier: Apache-2.0 */
/* Lookups that clients count, as the daemon reads them: exact for honest clients, bounded for lying
 * ones, and by namespace while it exists. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "lookup/tally-page.h"

enum { PAGE = WIRE_TALLY_BYTES, SECOND = 1000000000, NAMESPACES = 4096 };

/* The namespaces of the store, and the time at which each was created. */
static uint32_t first_namespace, namespaces;
static uint64_t created_ms[NAMESPACES];
static uint64_t version; /* version of the namespaces */
const struct store_namespace *__wrap_store_namespace_get(const struct store *s, uint32_t id);
uint64_t __wrap_store_namespaces_version(const struct store *s);

uint64_t __wrap_store_namespaces_version(const struct store *s)
{
        return version;
}

const struct store_namespace *__wrap_store_namespace_get(const struct store *s, uint32_t id)
{
        static struct store_namespace it;

        it = (struct store_namespace){ .id = id, .created_ms = created_ms[id % NAMESPACES] };
        return id >= first_namespace && id < namespaces ? &it : NULL;
}

static void get(const struct lookup_counters *t, uint32_t id,
                struct lookup_counts ret[COUNTED_KINDS])
{
        lookup_counters_get(t, &(struct store_namespace){ .id = id, .created_ms = created_ms[id] },
                            ret);
}

/* --- the page --- */

static struct {
        struct tally_page page;
        struct wire_tally *counts; /* the client's mapping */
        struct wire_tally_loads *loads;
        uint64_t declined; /* declined loads of the latest reading */
        int fd;
        uint64_t now;
} p;

static int setup(void **state)
{
        p.now = SECOND;
        assert_int_equal(tally_page_open(&p.page, p.now, &p.fd), 0);
        p.counts = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, p.fd, 0);
        assert_true(p.counts != MAP_FAILED);
        p.loads = (void *)(p.counts + WIRE_TALLY_NAMESPACES);
        first_namespace = 1;
        namespaces = NAMESPACES;
        memset(created_ms, 0, sizeof(created_ms));
        return 0;
}

static int teardown(void **state)
{
        munmap(p.counts, PAGE);
        close(p.fd);
        tally_page_close(&p.page);
        assert_null(p.page.counts);
        return 0;
}

/* Returns what a reading a second later adds for one namespace. */
static struct lookup_counts read_one(unsigned number, bool is_possible)
{
        struct lookup_counts keys = { 99, 99 };

        p.now += SECOND;
        tally_page_read(&p.page, p.now);
        assert_int_equal(tally_page_take(&p.page, number, &keys, &p.declined), is_possible);
        return keys;
}

static void assert_keys(struct lookup_counts keys, uint64_t found, uint64_t missing)
{
        assert_int_equal(keys.found, found);
        assert_int_equal(keys.missing, missing);
}

static void each_reading_brings_what_was_counted_since_the_last(void **state)
{
        assert_keys(read_one(0, true), 0, 0);
        p.counts[0] = (struct wire_tally){ 32, 0 };
        p.counts[255] = (struct wire_tally){ 0, 7 };
        assert_keys(read_one(0, true), 32, 0);
        assert_keys(read_one(255, true), 0, 7);
        assert_keys(read_one(0, true), 0, 0);
        p.counts[0] = (struct wire_tally){ 33, 1 };
        assert_keys(read_one(0, true), 1, 1);
        assert_keys(read_one(256, true), 0, 0);
        assert_keys(read_one(UINT32_MAX, true), 0, 0);
}

static void declined_loads_are_read_beside_the_lookups(void **state)
{
        p.counts[0] = (struct wire_tally){ 32, 0 };
        p.loads[0] = (struct wire_tally_loads){ 12, UINT64_MAX };
        p.loads[255].declined = 7;
        assert_keys(read_one(0, true), 32, 0);
        assert_int_equal(p.declined, 12);
        assert_keys(read_one(255, true), 0, 0);
        assert_int_equal(p.declined, 7);
        (void)read_one(0, true);
        assert_int_equal(p.declined, 0);
        p.loads[0].declined = 11; /* gone back */
        (void)read_one(0, false);
        assert_int_equal(p.declined, 0);
        p.loads[0].declined = UINT64_MAX; /* more than are possible in a second */
        (void)read_one(0, false);
        assert_int_equal(p.declined, SECOND / TALLY_PAGE_NS_PER_KEY);
}

static void a_client_can_neither_cut_the_page_nor_seal_it(void **state)
{
        struct stat st;

        assert_int_equal(ftruncate(p.fd, 0), -1);
        assert_int_equal(ftruncate(p.fd, 2 * PAGE), -1);
        assert_int_equal(fcntl(p.fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
        assert_int_equal(fstat(p.fd, &st), 0);
        assert_int_equal(st.st_size, PAGE);
        p.counts[3].found = 5;
        assert_keys(read_one(3, true), 5, 0);
        assert_int_equal(fallocate(p.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE), 0);
        assert_keys(read_one(3, false), 0, 0);
        p.counts[3].found = 2;
        assert_keys(read_one(3, true), 2, 0);
}

static void a_count_that_goes_back_counts_nothing(void **state)
{
        p.counts[1] = (struct wire_tally){ 1000, 1000 };
        assert_keys(read_one(1, true), 1000, 1000);
        p.counts[1] = (struct wire_tally){ 10, 1001 };
        assert_keys(read_one(1, false), 0, 1);
        p.counts[1] = (struct wire_tally){ 12, 1001 };
        assert_keys(read_one(1, true), 2, 0);
}

/* The limit holds whatever the client writes, for all its namespaces together. */
static void a_client_adds_no_more_than_can_be_looked_up_in_the_time(void **state)
{
        const uint64_t most = SECOND / TALLY_PAGE_NS_PER_KEY;
        uint64_t sum = 0, x = 88172645463325252u;

        p.counts[0].found = UINT64_MAX;
        assert_keys(read_one(0, false), most, 0);
        p.counts[0] = (struct wire_tally){ 0, UINT64_MAX / 2 };
        assert_keys(read_one(0, false), 0, most);
        p.counts[0] = (struct wire_tally){ most, UINT64_MAX / 2 };
        assert_keys(read_one(0, true), most, 0);
        for (unsigned round = 0; round < 1000; round++) {
                bool all_possible = true;

                for (unsigned i = 0; i < WIRE_TALLY_NAMESPACES; i++) {
                        x ^= x << 13;
                        x ^= x >> 7;
                        x ^= x << 17;
                        p.counts[i] = (struct wire_tally){ x, ~x };
                        p.loads[i].declined = x * 3;
                }
                p.now += 4000;
                tally_page_read(&p.page, p.now);
                for (unsigned i = 0; i < WIRE_TALLY_NAMESPACES; i++) {
                        struct lookup_counts keys;
                        uint64_t declined;

                        all_possible &= tally_page_take(&p.page, i, &keys, &declined);
                        sum += keys.found + keys.missing + declined;
                        assert_true(sum <= (round + 1) * 1000u);
                }
                assert_false(all_possible);
        }
        assert_true(sum > 0);
        /* Without progress of the clock, or with an apparent step back, nothing is counted. */
        p.counts[0].found = 0;
        (void)read_one(0, false);
        p.counts[0].found = 50;
        tally_page_read(&p.page, p.now);
        tally_page_read(&p.page, p.now - SECOND);
        {
                struct lookup_counts keys;
                uint64_t declined;

                assert_false(tally_page_take(&p.page, 0, &keys, &declined));
                assert_int_equal(keys.found, 0);
        }
}

static void without_a_page_there_is_nothing(void **state)
{
        struct tally_page none = { 0 };
        struct lookup_counts keys = { 9, 9 };
        uint64_t declined = 9;

        tally_page_read(&none, SECOND);
        assert_true(tally_page_take(&none, 0, &keys, &declined));
        assert_keys(keys, 0, 0);
        assert_int_equal(declined, 0);
        tally_page_close(&none);
}

/* --- by namespace --- */

static void counts_are_kept_by_namespace_and_kind(void **state)
{
        struct lookup_counts keys[COUNTED_KINDS];
        struct lookup_counters t = { 0 };

        /* In an order in which the place of each row must be searched for. */
        for (uint32_t i = 1; i < NAMESPACES; i++) {
                uint32_t id = i * 1553 % NAMESPACES;

                lookup_counters_add(&t, NULL, id, COUNTED_OWN_LOOKUPS,
                                    (struct lookup_counts){ id, 1 });
                lookup_counters_add(&t, NULL, id, COUNTED_GETS, (struct lookup_counts){ 0, 2 });
                lookup_counters_add(&t, NULL, id, COUNTED_OWN_LOOKUPS,
                                    (struct lookup_counts){ 1, 0 });
        }
        for (uint32_t id = 1; id < NAMESPACES; id++) {
                get(&t, id, keys);
                assert_keys(keys[COUNTED_LOOKUPS], 0, 0);
                assert_keys(keys[COUNTED_OWN_LOOKUPS], id + 1, 1);
                assert_keys(keys[COUNTED_GETS], 0, 2);
        }
        assert_int_equal(t.all[COUNTED_GETS].missing, 2 * (NAMESPACES - 1));
        lookup_counters_fini(&t);
}

static void a_removed_namespace_leaves_the_sum_and_its_number_to_another(void **state)
{
        struct lookup_counts keys[COUNTED_KINDS];
        struct lookup_counters t = { 0 };

        for (uint32_t id = 1; id <= 3; id++)
                lookup_counters_add(&t, NULL, id, COUNTED_GETS, (struct lookup_counts){ id, 0 });
        created_ms[2] = 5;
        version++;
        get(&t, 2, keys);
        assert_keys(keys[COUNTED_GETS], 0, 0);
        get(&t, 3, keys);
        assert_keys(keys[COUNTED_GETS], 3, 0);
        lookup_counters_add(&t, NULL, 2, COUNTED_OWN_LOOKUPS, (struct lookup_counts){ 10, 0 });
        get(&t, 2, keys);
        assert_keys(keys[COUNTED_GETS], 0, 0);
        assert_keys(keys[COUNTED_OWN_LOOKUPS], 10, 0);
        assert_int_equal(t.all[COUNTED_GETS].found, 6);

        /* Lookups in a namespace that no longer exists make no row. */
        namespaces = 4;
        version++;
        lookup_counters_add(&t, NULL, 4, COUNTED_GETS, (struct lookup_counts){ 5, 0 });
        lookup_counters_add(&t, NULL, 0, COUNTED_GETS, (struct lookup_counts){ 5, 0 });
        assert_int_equal(t.n_rows, 3);
        assert_int_equal(t.all[COUNTED_GETS].found, 16);
        lookup_counters_fini(&t);
}

/* However many come and go. */
static void rows_are_bounded_by_the_namespaces_that_there_are(void **state)
{
        enum { AT_A_TIME = 50 };
        struct lookup_counts keys[COUNTED_KINDS];
        struct lookup_counters t = { 0 };

        for (uint32_t id = 1; id < 100000; id++) {
                first_namespace = id > AT_A_TIME ? id - AT_A_TIME : 1;
                namespaces = id + 1;
                version++;
                lookup_counters_add(&t, NULL, id, COUNTED_GETS, (struct lookup_counts){ 1, 0 });
                lookup_counters_add(&t, NULL, first_namespace, COUNTED_GETS,
                                    (struct lookup_counts){ 0, 1 });
                assert_true(t.n_rows <= t.room && t.room <= 4 * AT_A_TIME);
        }
        lookup_counters_get(&t,
                            &(struct store_namespace){
                                    .id = 99999, .created_ms = created_ms[99999 % NAMESPACES] },
                            keys);
        assert_keys(keys[COUNTED_GETS], 1, 0);
        assert_int_equal(t.all[COUNTED_GETS].found, 99999);
        lookup_counters_fini(&t);
}

int main(void)
{
#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
        const struct CMUnitTest tests[] = {
                CASE(each_reading_brings_what_was_counted_since_the_last),
                CASE(declined_loads_are_read_beside_the_lookups),
                CASE(a_client_can_neither_cut_the_page_nor_seal_it),
                CASE(a_count_that_goes_back_counts_nothing),
                CASE(a_client_adds_no_more_than_can_be_looked_up_in_the_time),
                CASE(without_a_page_there_is_nothing),
                CASE(counts_are_kept_by_namespace_and_kind),
                CASE(a_removed_namespace_leaves_the_sum_and_its_number_to_another),
                CASE(rows_are_bounded_by_the_namespaces_that_there_are),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

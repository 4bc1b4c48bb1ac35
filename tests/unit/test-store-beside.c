/* SPDX-License-Identifier: Apache-2.0 */
/* store/: what becomes of an entry that is written beside its payload if the payload fails, hangs,
 * or has to go to another slot. */
#include <errno.h>
#include <sched.h>
#include <unistd.h>

#include "checked.h"
#include "fault.h"
#include "killed.h"
#include "store-fixture.h"

enum { LENGTH = 8192, WHOLE = 1 << 20, FIRST = 1000 };

static unsigned abandoned;

static void count_abandoned(struct store_put *req)
{
        abandoned++;
}

static bool pages_are(const void *n)
{
        return stats().table_writes >= *(const uint64_t *)n;
}

static void give_checksum(struct put *p)
{
        store_put_checksum(&p->req, 0, kio_crc32c(p->req.buf, p->req.length));
}

static void wait_for_faults(unsigned n)
{
        while (fault_hits() < n) {
                turn_once();
                sched_yield();
        }
}

static void start_small(unsigned hang_ms)
{
        struct store_params params = params_of(16 * MIB);

        params.prewrite = false;
        params.hang_ms = hang_ms;
        t.faults = true;
        abandoned = 0;
        start(&params);
}

static void become(uint16_t tenant)
{
        t.tenant = tenant;
        assert_int_equal(open_namespace("model/a", "dtype=bf16", false, &t.ns), 0);
}

/* Fills the store with chunks of the size of a data file, and returns the number behind the last
 * one's. */
static uint64_t fill(void)
{
        uint64_t n = FIRST;

        while (stats().evictions == 0)
                assert_int_equal(put(n++, WHOLE), 0);
        settle();
        return n;
}

/* A put of tenant 2, whose entry is queued, loses its slot for lack of room while the table is
 * being written, and gets a data file of tenant 1. Dies before the hand-over is on the disk. */
static void put_into_a_file_of_another(void)
{
        uint32_t ns_of_first;
        uint64_t last, pages;
        struct put *p;

        start_small(0);
        become(1);
        ns_of_first = t.ns;
        last = fill() - 1;
        become(2);
        assert_int_equal(put(1, WHOLE), 0);
        settle();
        assert_int_equal(drop(1), 0);
        settle();
        pages = stats().table_writes + 2;
        /* the payload and the next page of the table find no room */
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE,
                                        .kind = FAULT_NEVER,
                                        .error = ENOSPC,
                                        .first = 1,
                                        .count = 2 });
        p = submit_direct(2, WHOLE, 0, true, NULL);
        wait_for_faults(1);
        const uint32_t ns = t.ns;
        t.ns = ns_of_first;
        assert_int_equal(drop(last - 1), 0); /* a tombstone, so the table is written */
        t.ns = ns;
        wait_for_faults(2);
        give_checksum(p);
        turn_once();
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_SYNC, .kind = FAULT_NEVER, .first = 1, .count = FAULT_FOR_EVER });
        fault_release();
        turn(pages_are, &pages);
        turn_once();
        assert_true(stats().files_given_up > 0);
        assert_true(p->busy);
}

static void test_R1_no_entry_names_a_file_whose_handover_is_not_on_the_disk(void **state)
{
        in_killed_process(put_into_a_file_of_another);
        start_small(0);
        become(2);
        assert_false(present(2));
        stop();
}

static void a_put_whose_entry_hangs_is_answered_also_if_its_payload_failed(void **state)
{
        struct put *p;

        start_small(300);
        (void)fill();
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE, .kind = FAULT_NEVER, .first = 1 });
        assert_int_equal(drop(FIRST + 8), 0); /* a tombstone, whose write hangs */
        wait_for_faults(1);
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE,
                                        .kind = FAULT_ERROR,
                                        .error = ENOSPC,
                                        .first = 1,
                                        .count = FAULT_FOR_EVER });
        p = submit_direct(2, WHOLE, 0, true, NULL);
        p->req.abandon = count_abandoned;
        give_checksum(p);
        store_set_tenant_limit(t.s, t.tenant, 4096); /* the tenant may take no slot */
        while (abandoned == 0) {
                turn_once();
                sched_yield();
                store_tick(t.s);
        }
        assert_true(p->busy); /* the entry is still queued behind the tombstone */
        fault_set(NULL);
        fault_release();
        turn(puts_none, NULL);
        assert_int_equal(abandoned, 1);
        stop();
}

/* Submits a put whose payload never reaches the device, and writes its entry. */
static struct put *put_entry_alone(int error)
{
        uint64_t pages;
        struct put *p;

        assert_int_equal(put(FIRST, LENGTH), 0); /* makes the file */
        settle();
        pages = stats().table_writes + 1;
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_WRITE, .kind = FAULT_NEVER, .error = error, .first = 1 });
        p = submit_direct(1, LENGTH, 0, true, NULL);
        p->req.abandon = count_abandoned;
        wait_for_faults(1);
        give_checksum(p);
        turn(pages_are, &pages);
        return p;
}

static void a_put_that_failed_by_a_hang_does_not_return(void **state)
{
        struct put *p;

        start_small(300);
        p = put_entry_alone(0);
        while (abandoned == 0) {
                turn_once();
                sched_yield();
                store_tick(t.s);
        }
        fault_set(NULL);
        fault_release(); /* the payload is written, too late */
        turn(puts_none, NULL);
        assert_int_equal(p->req.result, STORE_BYPASSED);
        assert_int_equal(drop(1), STORE_MISS);
        settle();
        stop();
        start_limit(16 * MIB);
        assert_false(present(1));
        stop();
}

static void an_evict_is_in_doubt_if_a_failed_put_may_return(void **state)
{
        uint64_t before;

        start_small(0);
        (void)put_entry_alone(EIO);
        before = store_lost_drops(t.s);
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE,
                                        .kind = FAULT_ERROR,
                                        .error = EIO,
                                        .first = 1,
                                        .count = FAULT_FOR_EVER });
        fault_release(); /* the payload fails, and so does the tombstone */
        turn(puts_none, NULL);
        assert_int_equal(stats().bypassed, 1);
        assert_int_equal(drop(1), 0);
        assert_true(store_lost_drops(t.s) > before);
        fault_set(NULL);
        stop();
}

static void a_put_that_ends_after_its_directory_was_emptied_has_failed(void **state)
{
        struct put *p;

        start_small(0);
        p = put_entry_alone(0);
        remove_files();
        while (stats().bypassed == 0) {
                turn_once();
                sched_yield();
                store_tick(t.s);
        }
        fault_set(NULL);
        fault_release();
        turn(puts_none, NULL);
        assert_int_equal(p->req.result, STORE_BYPASSED);
        stop();
}

int main(int argc, char **argv)
{
        static const struct CMUnitTest tests[] = {
                TEST(test_R1_no_entry_names_a_file_whose_handover_is_not_on_the_disk),
                TEST(a_put_whose_entry_hangs_is_answered_also_if_its_payload_failed),
                TEST(a_put_that_failed_by_a_hang_does_not_return),
                TEST(an_evict_is_in_doubt_if_a_failed_put_may_return),
                TEST(a_put_that_ends_after_its_directory_was_emptied_has_failed),
        };

        return run_store_tests(argc, argv, tests, ARRAY_SIZE(tests), NULL, 0);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* store/: a put waits for its payload, its checksum and its entry, which may be written beside the
 * payload, and entries of the table wait for others of their batch. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "fault.h"
#include "checked.h"
#include "store-fixture.h"

enum { LENGTH = 8192, BATCH = 77 };

static void start_with_faults(void)
{
        struct store_params params = params_of(64 * MIB);

        params.prewrite = false;
        t.faults = true;
        start(&params);
        assert_int_equal(put(1000, LENGTH), 0); /* makes the file */
        settle();
}

static bool payloads_are(const void *n)
{
        return stats().payload_writes == *(const uint64_t *)n;
}

/* Waits until `n` payloads have been written in total, and their consequences have begun. */
static void wait_payloads(uint64_t n)
{
        turn(payloads_are, &n);
        turn_once();
}

static bool one_is_busy(const void *arg)
{
        return puts_busy == 1;
}

static void hold_a_write(void)
{
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE, .kind = FAULT_NEVER, .first = 1 });
}

static void let_go(void)
{
        fault_set(NULL);
        fault_release();
}

static void wait_held(void)
{
        while (fault_hits() == 0)
                turn_once();
}

static void checksum(struct put *p)
{
        store_put_checksum(&p->req, 0, kio_crc32c(t.bufs[p->buf], p->req.length));
}

/* Ends the test: chunk 1 is found, also after a restart. */
static void expect_chunk_to_stay(void)
{
        assert_int_equal(get(1, LENGTH), 0);
        stop();
        start_limit(64 * MIB);
        assert_int_equal(get(1, LENGTH), 0);
        stop();
}

static void an_entry_is_not_written_before_its_checksum_is_known(void **state)
{
        uint64_t payloads, pages;
        struct put *p;

        start_with_faults();
        payloads = stats().payload_writes;
        pages = stats().table_writes;
        p = submit_direct(1, LENGTH, 0, true, NULL);
        wait_payloads(payloads + 1);
        assert_true(p->busy);
        assert_int_equal(kio_pending(t.io), 0);
        assert_int_equal(stats().table_writes, pages);
        assert_false(present(1));
        checksum(p);
        turn(puts_none, NULL);
        assert_int_equal(p->req.result, 0);
        expect_chunk_to_stay();
}

static bool pages_are(const void *n)
{
        return stats().table_writes == *(const uint64_t *)n;
}

/* Submits put 1, and holds the write of its payload until its entry is written. */
static struct put *put_with_its_entry_first(int error)
{
        uint64_t pages = stats().table_writes + 1;
        struct put *p;

        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_WRITE, .kind = FAULT_NEVER, .error = error, .first = 1 });
        p = submit_direct(1, LENGTH, 0, true, NULL);
        wait_held();
        checksum(p);
        turn(pages_are, &pages);
        turn_once();
        assert_true(p->busy);
        assert_false(present(1));
        return p;
}

static void an_entry_is_written_beside_its_payload(void **state)
{
        uint64_t pages;
        struct put *p;

        start_with_faults();
        p = put_with_its_entry_first(0);
        pages = stats().table_writes;
        let_go();
        turn(puts_none, NULL);
        assert_int_equal(p->req.result, 0);
        assert_int_equal(stats().table_writes, pages);
        expect_chunk_to_stay();
}

/* An entry whose checksum came with the put follows the payload. */
static void an_entry_is_not_written_before_its_payload(void **state)
{
        struct put *p;
        uint64_t pages;

        start_with_faults();
        pages = stats().table_writes;
        hold_a_write();
        p = submit_direct(1, LENGTH, 0, false, NULL);
        wait_held();
        turn_once();
        assert_true(p->busy);
        assert_int_equal(kio_pending(t.io), 1);
        assert_int_equal(stats().table_writes, pages);
        let_go();
        turn(puts_none, NULL);
        assert_int_equal(p->req.result, 0);
        assert_int_equal(get(1, LENGTH), 0);
        stop();
}

static void killed_after_payload(void)
{
        uint64_t payloads;

        start_with_faults();
        payloads = stats().payload_writes;
        submit_direct(1, LENGTH, 0, true, NULL);
        wait_payloads(payloads + 1);
}

static void killed_after_entry(void)
{
        start_with_faults();
        (void)put_with_its_entry_first(0);
}

/* After a kill the chunk is a miss, and a put of its key is not answered by what the kill has left,
 * unless that was read back. */
static void a_kill_between_payload_and_entry_leaves_nothing(void **state)
{
        void (*const kills[])(void) = { killed_after_payload, killed_after_entry };
        struct key key = key_of(1);
        struct store_ref ref;

        for (unsigned i = 0; i < ARRAY_SIZE(kills); i++) {
                bool has_entry = kills[i] == killed_after_entry;

                in_killed_process(kills[i]);
                start_limit(64 * MIB);
                assert_false(stats().clean_start);
                assert_int_equal(get(1000, LENGTH), 0);
                assert_int_equal(present(1), has_entry);
                if (has_entry) {
                        assert_int_equal(store_find(t.s, t.ns, &key, store_hash(t.s, t.ns, &key),
                                                    &ref, NULL),
                                         0);
                        assert_true(store_is_unverified(t.s, ref));
                        assert_int_not_equal(get(1, LENGTH), 0);
                        assert_false(present(1));
                }
                assert_int_equal(put(1, LENGTH), 0);
                assert_int_equal(get(1, LENGTH), 0);
                assert_int_equal(stats().crc_failures, has_entry);
                stop();
                remove_files();
        }
}

/* The tombstone of a failed put keeps its chunk from the next startup. */
static void a_failed_payload_takes_its_entry_back(void **state)
{
        struct put *p;

        start_with_faults();
        p = put_with_its_entry_first(EIO);
        let_go();
        turn(puts_none, NULL);
        assert_int_equal(p->req.result, -EIO);
        assert_false(present(1));
        stop(); /* without another put, whose entry would void that of the slot */
        start_limit(64 * MIB);
        assert_false(present(1));
        assert_int_equal(put(1, LENGTH), 0);
        assert_int_equal(get(1, LENGTH), 0);
        stop();
}

/* The file system has no room for the payload, so that the put takes another slot, with another
 * entry. */
static void a_put_that_moves_takes_its_entry_along(void **state)
{
        uint64_t given_up;
        struct put *p;

        start_with_faults();
        put_range(2000, 400, 65536);
        settle();
        given_up = stats().files_given_up;
        p = put_with_its_entry_first(ENOSPC);
        let_go();
        turn(puts_none, NULL);
        assert_int_equal(p->req.result, 0);
        assert_int_equal(stats().files_given_up, given_up + 1);
        expect_chunk_to_stay();
}

/* The tombstone of an evict is written after the entry, so the entry is written again. */
static void an_evict_between_entry_and_payload_does_not_end_the_put(void **state)
{
        struct key key = key_of(1);
        struct put *p;

        start_with_faults();
        p = put_with_its_entry_first(0);
        fault_set(NULL);
        assert_int_equal(store_forget(t.s, t.ns, &key, store_hash(t.s, t.ns, &key)), STORE_MISS);
        assert_true(p->busy);
        fault_release();
        turn(puts_none, NULL);
        assert_int_equal(p->req.result, 0);
        expect_chunk_to_stay();
}

/* A purge between entry and payload ends the put, for this process and for the next one. */
static void a_purge_between_entry_and_payload_ends_the_put(void **state)
{
        struct put *p;

        start_with_faults();
        p = put_with_its_entry_first(0);
        fault_set(NULL);
        assert_int_equal(purge(false), 1);
        assert_true(p->busy);
        fault_release();
        turn(puts_none, NULL);
        assert_int_equal(p->req.result, -ECANCELED);
        assert_false(present(1));
        stop();
        start_limit(64 * MIB);
        assert_false(present(1));
        assert_false(present(1000));
        stop();
}

static void a_put_without_a_checksum_fails(void **state)
{
        uint64_t payloads;
        struct put *p;

        start_with_faults();
        /* The checksum fails after the payload is written, and before that. */
        for (unsigned before = 0; before < 2; before++) {
                payloads = stats().payload_writes;
                if (before)
                        hold_a_write();
                p = submit_direct(1, LENGTH, 0, true, NULL);
                if (before)
                        wait_held();
                else
                        wait_payloads(payloads + 1);
                store_put_checksum(&p->req, -EFAULT, 0);
                let_go();
                turn(puts_none, NULL);
                assert_int_equal(p->req.result, -EFAULT);
                assert_false(present(1));
        }
        assert_false(stats().bypassed);
        assert_int_equal(stats().write_errors, 0);
        /* The payload fails, and the checksum comes when the put is over. */
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_WRITE, .kind = FAULT_ERROR, .error = EIO, .first = 1 });
        p = submit_direct(1, LENGTH, 0, true, NULL);
        turn(puts_none, NULL);
        fault_set(NULL);
        assert_int_equal(p->req.result, -EIO);
        assert_int_equal(put(1, LENGTH), 0);
        assert_int_equal(get(1, LENGTH), 0);
        stop();
}

static void entries_of_a_batch_are_written_with_its_last_one(void **state)
{
        uint64_t payloads, pages;

        start_with_faults();
        payloads = stats().payload_writes;
        pages = stats().table_writes;
        hold_a_write();
        submit_direct(1, LENGTH, BATCH, false, NULL);
        wait_held();
        for (uint64_t i = 2; i <= 8; i++)
                submit_direct(i, LENGTH, BATCH, false, NULL);
        wait_payloads(payloads + 7);
        assert_int_equal(puts_busy, 8);
        assert_int_equal(kio_pending(t.io), 1);
        let_go();
        turn(puts_none, NULL);
        assert_int_equal(stats().table_writes, pages + 1);
        for (uint64_t i = 1; i <= 8; i++)
                assert_int_equal(get(i, LENGTH), 0);
        stop();
}

/* A single put, a drop, a tick, and a failed last payload of the batch each write the entries. */
static void entries_of_a_batch_are_taken_along(void **state)
{
        struct put *lost, *held;
        uint64_t payloads;
        void *memory;

        start_with_faults();
        for (unsigned i = 0; i < 3; i++) {
                hold_a_write();
                held = submit_direct(10 * i, LENGTH, BATCH, false, NULL);
                wait_held();
                payloads = stats().payload_writes;
                submit_direct(10 * i + 1, LENGTH, BATCH, false, NULL);
                wait_payloads(payloads + 1);
                assert_int_equal(puts_busy, 2);
                if (i == 0)
                        submit_direct(10 * i + 2, LENGTH, 0, false, NULL);
                else if (i == 1)
                        assert_int_equal(drop(1000), 0);
                else
                        store_tick(t.s);
                turn(one_is_busy, NULL);
                assert_true(held->busy);
                let_go();
                turn(puts_none, NULL);
        }

        memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_ptr_not_equal(memory, MAP_FAILED);
        hold_a_write();
        lost = submit_direct(30, LENGTH, BATCH, false, memory);
        wait_held();
        held = submit_direct(31, LENGTH, BATCH, false, NULL);
        assert_int_equal(munmap(memory, LENGTH), 0);
        let_go();
        turn(puts_none, NULL);
        assert_int_equal(lost->req.result, -EFAULT);
        assert_int_equal(held->req.result, 0);
        assert_int_equal(get(31, LENGTH), 0);
        stop();
}

static void no_more_than_16_entries_and_2_mib_wait_for_a_batch(void **state)
{
        static const struct {
                unsigned entries;
                uint32_t length;
        } most[] = { { 16, LENGTH }, { 4, 512 << 10 } };

        start_with_faults();
        assert_int_equal(put(1001, 512 << 10), 0); /* makes its file */
        settle();
        for (unsigned i = 0; i < ARRAY_SIZE(most); i++) {
                uint64_t payloads = stats().payload_writes, pages = stats().table_writes;

                hold_a_write();
                submit_direct(100 * i, LENGTH, BATCH, false, NULL);
                wait_held();
                for (unsigned k = 1; k < most[i].entries; k++)
                        submit_direct(100 * i + k, most[i].length, BATCH, false, NULL);
                wait_payloads(payloads + most[i].entries - 1);
                assert_int_equal(puts_busy, most[i].entries);
                assert_int_equal(stats().table_writes, pages);
                submit_direct(100 * i + 50, most[i].length, BATCH, false, NULL);
                turn(one_is_busy, NULL);
                let_go();
                turn(puts_none, NULL);
        }
        stop();
}

/* There are more batches than are tracked separately: entries of the others are not held, and none
 * is lost. */
static void many_batches_at_once_are_all_written(void **state)
{
        start_with_faults();
        hold_a_write();
        /* Chunk 0 has a batch of its own. A held entry waits for store_tick(), which this test
         * never calls. */
        submit_direct(0, LENGTH, 99, false, NULL);
        wait_held();
        for (uint64_t i = 1; i < DEPTH; i++)
                submit_direct(i, LENGTH, 1 + i % 24, false, NULL);
        turn(one_is_busy, NULL);
        let_go();
        turn(puts_none, NULL);
        for (uint64_t i = 0; i < DEPTH; i++)
                assert_int_equal(get(i, LENGTH), 0);
        stop();
}

/* The payloads are written before their checksums are computed. */
static void entries_wait_for_checksums_of_their_batch(void **state)
{
        uint64_t payloads, pages;
        struct put *p[8];

        start_with_faults();
        payloads = stats().payload_writes;
        pages = stats().table_writes;
        for (uint64_t i = 0; i < ARRAY_SIZE(p); i++)
                p[i] = submit_direct(i + 1, LENGTH, BATCH, true, NULL);
        wait_payloads(payloads + ARRAY_SIZE(p));
        for (uint64_t i = 0; i < ARRAY_SIZE(p); i++) {
                assert_int_equal(stats().table_writes, pages);
                assert_int_equal(kio_pending(t.io), 0);
                checksum(p[i]);
                turn_once();
        }
        turn(puts_none, NULL);
        assert_int_equal(stats().table_writes, pages + 1);
        stop();
}

/* An entry that made the table due and was dropped does not make the next batch due. */
static void a_put_that_fails_makes_no_entry_due(void **state)
{
        uint64_t payloads, pages;
        struct put *p;

        start_with_faults();
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_WRITE, .kind = FAULT_ERROR, .error = EIO, .first = 1 });
        p = submit_direct(50, LENGTH, 0, false, NULL);
        turn(puts_none, NULL);
        fault_set(NULL);
        assert_int_equal(p->req.result, -EIO);
        turn_once();
        payloads = stats().payload_writes;
        pages = stats().table_writes;
        hold_a_write();
        submit_direct(1, LENGTH, BATCH, false, NULL);
        wait_held();
        submit_direct(2, LENGTH, BATCH, false, NULL);
        wait_payloads(payloads + 1);
        assert_int_equal(kio_pending(t.io), 1);
        let_go();
        turn(puts_none, NULL);
        assert_int_equal(stats().table_writes, pages + 1);
        stop();
}

int main(int argc, char **argv)
{
        static const struct CMUnitTest tests[] = {
                TEST(an_entry_is_not_written_before_its_checksum_is_known),
                TEST(an_entry_is_written_beside_its_payload),
                TEST(an_entry_is_not_written_before_its_payload),
                TEST(a_kill_between_payload_and_entry_leaves_nothing),
                TEST(a_failed_payload_takes_its_entry_back),
                TEST(a_put_that_moves_takes_its_entry_along),
                TEST(an_evict_between_entry_and_payload_does_not_end_the_put),
                TEST(a_purge_between_entry_and_payload_ends_the_put),
                TEST(a_put_without_a_checksum_fails),
                TEST(entries_of_a_batch_are_written_with_its_last_one),
                TEST(entries_of_a_batch_are_taken_along),
                TEST(no_more_than_16_entries_and_2_mib_wait_for_a_batch),
                TEST(many_batches_at_once_are_all_written),
                TEST(entries_wait_for_checksums_of_their_batch),
                TEST(a_put_that_fails_makes_no_entry_due),
        };

        return run_store_tests(argc, argv, tests, ARRAY_SIZE(tests), NULL, 0);
}

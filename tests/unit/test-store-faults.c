/* SPDX-License-Identifier: Apache-2.0 */
/* store/: durability, and what fails on the way to it. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "fault.h"
#include "checked.h"
#include "store-fixture.h"

static bool sync_is_done;

static void sync_complete(struct store_sync *req)
{
        last_result = req->result;
        sync_is_done = true;
}

static bool sync_ended(const void *arg)
{
        return sync_is_done;
}

static int sync_of(bool of_one, struct store_ref ref)
{
        static struct store_sync s;

        s = (struct store_sync){ .of_one = of_one, .ref = ref, .complete = sync_complete };
        sync_is_done = false;
        store_sync(t.s, &s);
        assert_false(sync_is_done);
        turn(sync_ended, NULL);
        return last_result;
}

static void a_durable_put_says_what_the_file_system_can_promise(void **state)
{
        int expected = strcmp(t.root, "/dev/shm") == 0 ? STORE_NOT_DURABLE : 0;
        uint64_t syncs;

        start_limit(64 * MIB);
        assert_int_equal(put_durable(1, 5000), expected);
        assert_int_equal(get(1, 5000), 0);
        for (uint64_t i = 100; i < 100 + DEPTH; i++)
                assert_int_equal(submit_put(i, 5000, true), 0);
        turn(puts_none, NULL);
        assert_int_equal(last_result, expected);
        assert_int_equal(put(2, 5000), 0);

        /* The first sync covers the stored chunks; the second has nothing to do. */
        for (unsigned i = 0; i < 2; i++) {
                settle();
                syncs = stats().syncs;
                assert_int_equal(sync_of(false, STORE_REF_NONE), expected);
                if (expected == 0)
                        assert_int_equal(stats().syncs > syncs, i == 0);
        }
        stop();
}

static int sync_of_chunk(uint64_t i)
{
        struct key k = key_of(i);
        struct store_ref ref;

        assert_int_equal(store_find(t.s, t.ns, &k, store_hash(t.s, t.ns, &k), &ref, NULL), 0);
        return sync_of(true, ref);
}

/* The kernel may have dropped the bytes to be synced, and reports that only once. */
static void what_a_failed_sync_left_behind_never_becomes_durable(void **state)
{
        if (strcmp(t.root, "/dev/shm") == 0)
                skip();
        t.faults = true;
        start_limit(64 * MIB);
        assert_int_equal(put(1, 5000), 0);
        watch_syncs(false, 1, false);
        assert_int_equal(put_durable(2, 5000), STORE_NOT_DURABLE);
        fault_set(NULL);
        assert_int_equal(put(3, 5000), 0);
        settle();
        stop();
        for (unsigned i = 0; i < 3; i++) {
                start_limit(64 * MIB);
                assert_int_equal(sync_of(false, STORE_REF_NONE), STORE_NOT_DURABLE);
                for (uint64_t k = 1; k <= 3; k++)
                        assert_int_equal(sync_of_chunk(k), STORE_NOT_DURABLE);
                assert_int_equal(put(10 + i, 5000), 0);
                assert_int_equal(sync_of_chunk(10), 0);
                assert_int_equal(sync_of_chunk(10 + i), 0);
                assert_int_equal(put_durable(20 + i, 5000), 0);
                stop();
        }
        start_limit(64 * MIB);
        for (uint64_t k = 1; k <= 3; k++)
                assert_int_equal(drop(k), 0);
        stop();
        assert_true(superblock().doubt_seq > 0);
        start_limit(64 * MIB);
        assert_int_equal(superblock().doubt_seq, 0);
        assert_int_equal(sync_of(false, STORE_REF_NONE), 0);
        stop();
}

static void a_failed_sync_is_never_believed_again(void **state)
{
        if (strcmp(t.root, "/dev/shm") == 0)
                skip();
        t.faults = true;
        start_limit(64 * MIB);
        assert_int_equal(put_durable(1, 5000), 0);
        watch_syncs(false, 1, false);
        assert_int_equal(put_durable(2, 5000), STORE_NOT_DURABLE);
        fault_set(NULL);
        assert_int_equal(put_durable(3, 5000), STORE_NOT_DURABLE);
        assert_int_equal(stats().sync_errors, 1);
        assert_false(stats().bypassed);
        assert_int_equal(get(2, 5000), 0);
        put_range(100, 5000, 4096);
        settle();
        assert_int_equal(superblock().unsynced, 1);
        stop();
        assert_int_equal(superblock().unsynced, 1);
        start_limit(64 * MIB);
        assert_false(stats().clean_start);
        assert_int_equal(superblock().unsynced, 0);
        assert_int_equal(get(3, 5000), 0);
        assert_int_equal(put_durable(4, 5000), 0);
        stop();
}

static void read_table(void *buf, size_t bytes)
{
        int fd = file_of("table", O_RDONLY);

        memset(buf, 0, bytes);
        assert_true(pread(fd, buf, bytes, 0) > 0);
        close(fd);
}

/* The pages that the sync should have covered may never reach the disk, so nothing overwrites their
 * earlier copies. */
static void a_failed_sync_of_the_table_bypasses_the_volume(void **state)
{
        static char before[64 * 4096], after[64 * 4096];

        if (strcmp(t.root, "/dev/shm") == 0)
                skip();
        t.faults = true;
        start_limit(64 * MIB);
        assert_int_equal(put_durable(1, 5000), 0);
        watch_syncs(true, 1, false);
        assert_int_equal(put_durable(2, 5000), STORE_NOT_DURABLE);
        fault_set(NULL);
        assert_true(stats().bypassed);
        assert_int_equal(stats().sync_errors, 1);
        settle();
        read_table(before, sizeof(before));
        assert_int_equal(put(3, 5000), STORE_BYPASSED);
        settle();
        read_table(after, sizeof(after));
        assert_memory_equal(before, after, sizeof(before));
        assert_int_equal(superblock().unsynced, 1);
        stop();
        start_limit(64 * MIB);
        assert_false(stats().clean_start);
        assert_int_equal(get(1, 5000), 0);
        assert_int_equal(put_durable(4, 5000), 0);
        stop();
}

/* Puts chunks of many sizes, which makes the ring grow. */
static void a_failed_sync_of_a_growing_ring_is_one_as_well(void **state)
{
        unsigned not_grown = 0;

        if (strcmp(t.root, "/dev/shm") == 0)
                skip();
        t.faults = true;
        for (unsigned i = 0; i < 400 && not_grown == 0; i++) {
                start_limit(64 * MIB);
                watch_syncs(true, 1 + i % 10, false);
                for (uint32_t pages = 1; pages <= 15; pages++) {
                        int r = put(pages, pages * 4096);

                        assert_true(r == 0 || r == STORE_BYPASSED);
                }
                settle();
                /* The sync of this file failed, after a varying number of other syncs. */
                if (stats().bypassed && stats().table_pages == 64) {
                        not_grown++;
                        assert_int_equal(stats().sync_errors, 1);
                        assert_int_equal(put_durable(100, 5000), STORE_BYPASSED);
                }
                fault_set(NULL);
                stop();
                remove_files();
        }
        assert_true(not_grown > 0);
}

static void a_failed_payload_write_stores_nothing(void **state)
{
        struct store_params params = params_of(64 * MIB);

        params.prewrite = false;
        t.faults = true;
        start(&params);
        assert_int_equal(put(1, 5000), 0);
        settle();
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_WRITE, .kind = FAULT_ERROR, .error = EIO, .first = 1 });
        assert_int_equal(put(2, 5000), -EIO);
        fault_set(NULL);
        assert_false(present(2));
        assert_int_equal(stats().write_errors, 1);
        assert_int_equal(put(2, 5000), 0);
        assert_int_equal(get(2, 5000), 0);
        assert_false(stats().bypassed);
        stop();
}

static void a_failed_table_write_bypasses_the_volume(void **state)
{
        struct store_params params = params_of(64 * MIB);

        params.prewrite = false;
        t.faults = true;
        start(&params);
        put_range(0, 20, 5000);
        settle();
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_WRITE, .kind = FAULT_ERROR, .error = EIO, .first = 2 });
        assert_int_equal(put(100, 5000), STORE_BYPASSED);
        fault_set(NULL);
        assert_true(stats().bypassed);
        assert_false(present(100));
        assert_int_equal(submit_put(101, 5000, false), STORE_BYPASSED);
        for (uint64_t i = 0; i < 20; i++)
                assert_int_equal(get(i, 5000), STORE_MISS);
        assert_int_equal(drop(3), 0); /* not written yet, as store_settle_drops() reports */
        settle();
        stop();
        start_limit(64 * MIB);
        assert_false(stats().clean_start);
        assert_int_equal(get(4, 5000), 0);
        assert_int_equal(put(100, 5000), 0);
        stop();
}

static void on_finding(void *userdata, const struct store_finding *finding)
{
        *(int *)userdata = finding->error;
}

static void a_read_error_is_counted_reported_and_a_miss(void **state)
{
        struct store_params params = params_of(64 * MIB);
        int found = 0;

        params.on_finding = on_finding;
        params.userdata = &found;
        t.faults = true;
        start(&params);
        assert_int_equal(put(1, 5000), 0);
        settle();
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_READ, .kind = FAULT_ERROR, .error = EIO, .first = 1 });
        assert_int_equal(get(1, 5000), -EIO);
        fault_set(NULL);
        assert_int_equal(stats().read_errors, 1);
        assert_int_equal(found, -EIO);
        assert_int_equal(get(1, 5000), STORE_MISS);
        assert_int_equal(put(1, 5000), 0);
        assert_int_equal(get(1, 5000), 0);
        stop();
}

int main(int argc, char **argv)
{
        static const struct CMUnitTest tests[] = {
                TEST(a_durable_put_says_what_the_file_system_can_promise),
                TEST(a_failed_sync_is_never_believed_again),
                TEST(what_a_failed_sync_left_behind_never_becomes_durable),
                TEST(a_failed_sync_of_the_table_bypasses_the_volume),
                TEST(a_failed_sync_of_a_growing_ring_is_one_as_well),
                TEST(a_failed_payload_write_stores_nothing),
                TEST(a_failed_table_write_bypasses_the_volume),
                TEST(a_read_error_is_counted_reported_and_a_miss),
        };

        return run_store_tests(argc, argv, tests, ARRAY_SIZE(tests), NULL, 0);
}

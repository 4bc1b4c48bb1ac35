/* SPDX-License-Identifier: Apache-2.0 */
/* store/: segments that pass between tenants, and room for each tenant. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checked.h"
#include "cleanup.h"
#include "fault.h"
#include "store-fixture.h"

static void become(uint16_t tenant)
{
        t.tenant = tenant;
        assert_int_equal(open_namespace("model/a", "dtype=bf16", false, &t.ns), 0);
}

/* Returns whether the beginning of the chunk is in any data file. */
static bool is_in_some_file(uint64_t n)
{
        _cleanup_(freep) char *buf = malloc(MIB);
        char payload[64];
        DIR *d = opendir(t.dir);
        struct dirent *e;
        bool found = false;

        assert_true(buf && d);
        payload_of(n, payload, sizeof(payload));
        while ((e = readdir(d))) {
                ssize_t bytes;
                int fd;

                if (strncmp(e->d_name, "segment-", 8) != 0)
                        continue;
                fd = openat(dirfd(d), e->d_name, O_RDONLY | O_CLOEXEC);
                assert_true(fd >= 0);
                while ((bytes = read(fd, buf, MIB)) > 0) /* chunks begin on pages */
                        for (ssize_t at = 0; at < bytes; at += 4096)
                                found = found || memcmp(buf + at, payload, sizeof(payload)) == 0;
                close(fd);
        }
        closedir(d);
        return found;
}

/* Starts a store that tenant 1 has filled, and in which tenant 2 has a namespace. */
static void start_filled_by_another(void)
{
        struct store_params params = params_of(8 * MIB);

        params.prewrite = false;
        t.faults = true;
        start(&params);
        become(1);
        for (uint64_t n = 1000; stats().evictions == 0; n += 8)
                put_range(n, 8, 20000);
        become(2);
        settle();
}

static bool all_but_four(const void *arg)
{
        return puts_busy == 4;
}

/* The tenant's share is taken by pending writes. */
static void a_tenant_without_room_keeps_no_other_waiting(void **state)
{
        struct store_params params = params_of(64 * MIB);
        uint32_t first, second;
        uint64_t last = 10;
        int r;

        params.prewrite = false;
        t.faults = true;
        start(&params);
        become(2);
        become(1);
        first = t.ns;
        store_set_tenant_limit(t.s, 1, 3 * 64 * KIB);
        assert_int_equal(put(100, 64 * KIB), 0); /* allocates a segment */
        assert_int_equal(drop(100), 0);
        settle();
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_WRITE, .kind = FAULT_NEVER, .first = 1, .count = FAULT_FOR_EVER });
        for (uint64_t n = 0; n < 3; n++) { /* one by one, so that they are not merged */
                assert_int_equal(submit_put(n, 64 * KIB, false), 0);
                while (fault_hits() <= n)
                        turn_once();
        }
        fault_set(NULL);
        become(2);
        second = t.ns;
        do { /* until one waits for a segment, so that the other tenant's waits behind it */
                t.tenant = 2;
                t.ns = second;
                assert_int_equal(submit_put(last++, MIB, false), 0);
                t.tenant = 1;
                t.ns = first;
                r = submit_put(3, 64 * KIB, false);
        } while (r == STORE_FULL && last < 24);
        assert_int_equal(r, 0);
        t.tenant = 2;
        t.ns = second;
        for (unsigned n = 0; n < 3; n++)
                assert_int_equal(submit_put(last++, MIB, false), 0);
        turn(all_but_four, NULL);
        assert_int_equal(count_present(10, last - 10), last - 10);
        fault_release();
        turn(puts_none, NULL);
        assert_int_equal(last_result, 0);
        t.ns = first;
        assert_true(present(3));
        stop();
}

static void test_R1_a_handover_is_on_disk_before_the_next_tenants_first_byte(void **state)
{
        static const uint32_t lengths[] = { 60000, 4096, 20000, 300000 };

        for (unsigned i = 0; i < ARRAY_SIZE(lengths); i++) {
                uint32_t length = lengths[i];
                uint64_t handovers;

                start_filled_by_another();
                handovers = stats().handovers;
                fault_set(&(struct fault_plan){ .ops = 1u << KIO_SYNC,
                                                .kind = FAULT_NEVER,
                                                .first = 1,
                                                .count = FAULT_FOR_EVER });
                assert_int_equal(submit_put(1, length, false), 0);
                while (fault_hits() == 0) { /* a held operation wakes no thread */
                        turn_once();
                        sched_yield();
                }
                assert_int_equal(stats().handovers, handovers);
                assert_false(is_in_some_file(1));
                fault_set(NULL);
                fault_release();
                turn(puts_none, NULL);
                assert_int_equal(last_result, 0);
                assert_int_equal(stats().handovers, handovers + 1);
                assert_int_equal(stats().handover_failures, 0);
                assert_int_equal(get(1, length), 0);
                settle();
                stop();
                remove_files();
                t.tenant = 0;
        }
}

static void test_R1_a_file_that_cannot_be_handed_over_is_not_used(void **state)
{
        start_filled_by_another();
        watch_syncs(true, 1, false);
        assert_int_equal(put(1, 60000), STORE_BYPASSED);
        assert_int_equal(stats().handover_failures, 1);
        assert_false(is_in_some_file(1));
        assert_true(stats().bypassed);
        fault_set(NULL);
        settle();
        stop();
        t.tenant = 0;
        start_limit(8 * MIB);
        become(2);
        assert_int_equal(put(2, 60000), 0);
        assert_int_equal(get(2, 60000), 0);
        settle();
        stop();
}

static bool is_record_written(const void *before)
{
        return stats().table_writes > *(const uint64_t *)before;
}

/* The kernel reports a failed write to only one of two syncs of a file, so the other one would be
 * believed. */
static void test_R1_a_handover_waits_for_a_sync_of_the_table_that_is_under_way(void **state)
{
        uint64_t before, handovers;

        if (strcmp(t.root, "/dev/shm") == 0)
                skip(); /* nothing is durable there: a put starts no sync */
        start_filled_by_another();
        handovers = stats().handovers;
        watch_syncs(true, 1, true);
        become(1);
        assert_int_equal(submit_put(1, 20000, true), 0);
        while (watched_syncs.seen == 0)
                turn_once();
        before = stats().table_writes;
        become(2);
        assert_int_equal(submit_put(2, 60000, false), 0);
        turn(is_record_written, &before);
        turn_once();
        assert_int_equal(watched_syncs.seen, 1);
        assert_int_equal(stats().handovers, handovers);
        fault_set(NULL);
        fault_release();
        turn(puts_none, NULL);
        assert_int_equal(get(2, 60000), 0);
        assert_int_equal(stats().handovers, handovers + 1);
        settle();
        stop();
}

static void test_R1_a_handover_whose_record_fails_bypasses_the_volume(void **state)
{
        start_filled_by_another();
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_WRITE, .kind = FAULT_ERROR, .error = EIO, .first = 1 });
        assert_int_equal(put(1, 60000), STORE_BYPASSED);
        assert_int_equal(fault_hits(), 1);
        fault_set(NULL);
        assert_false(is_in_some_file(1));
        assert_int_equal(stats().handover_failures, 1);
        assert_true(stats().bypassed);
        settle();
        stop();
        t.tenant = 0;
        start_limit(8 * MIB);
        become(2);
        assert_int_equal(put(1, 60000), 0);
        assert_int_equal(get(1, 60000), 0);
        settle();
        stop();
}

/* The first sync of the table fails at last. Runs on any thread. */
static bool hold_and_fail_sync(const struct kio_request *req, struct fault_plan *plan)
{
        char link[32], file[512] = "";
        ssize_t n;

        if (req->op != KIO_SYNC)
                return false;
        snprintf(link, sizeof(link), "/proc/self/fd/%d", req->fd);
        n = readlink(link, file, sizeof(file) - 1);
        if (n < 6 || strcmp(file + n - 6, "/table") != 0 || ++watched_syncs.seen > 1)
                return false;
        plan->kind = FAULT_NEVER;
        plan->error = EIO;
        return true;
}

/* A sync of the table fails while the record of another hand-over waits for the next one, which
 * succeeds: the kernel may have dropped the page with that record. */
static void test_R1_a_handover_does_not_trust_a_sync_after_a_failed_one(void **state)
{
        uint64_t before;

        if (strcmp(t.root, "/dev/shm") == 0)
                skip(); /* nothing is durable there: a put starts no sync */
        start_filled_by_another();
        watched_syncs.seen = 0;
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_SYNC, .choose = hold_and_fail_sync });
        become(1);
        assert_int_equal(submit_put(1, 20000, true), 0);
        while (watched_syncs.seen == 0)
                turn_once();
        before = stats().table_writes;
        become(2);
        assert_int_equal(submit_put(2, 60000, false), 0);
        turn(is_record_written, &before);
        turn_once();
        fault_release();
        turn(puts_none, NULL);
        assert_int_equal(last_result, STORE_BYPASSED);
        settle();
        assert_true(stats().bypassed);
        assert_int_equal(stats().handover_failures, 1);
        assert_false(is_in_some_file(2));
        fault_set(NULL);
        stop();
        t.tenant = 0;
}

static int declare_size(unsigned n, uint64_t bytes)
{
        char name[16];
        struct store_namespace_open req = {
                .name = name,
                .fingerprint = "f",
                .fingerprint_length = 1,
                .chunk_bytes = bytes,
                .complete = ns_complete,
        };

        snprintf(name, sizeof(name), "other-%u", n);
        req.name_length = (uint16_t)strlen(name);
        store_namespace_open(t.s, &req);
        turn(ns_done, &req);
        return req.result;
}

/* Sizes of stored chunks have precedence over sizes that are only declared, also if the largest
 * segment has grown since, and more sizes are shared. */
static void what_is_stored_outlives_any_number_of_declared_sizes(void **state)
{
        struct store_params params = params_of(1024 * MIB);
        const uint32_t lengths[] = { 777 * 4096, 333 * 4096, 5000, 123 * 4096 + 1 };

        params.prewrite = false;
        start(&params);
        assert_int_equal(declare_size(0, 777 * 4096), 0);
        assert_int_equal(declare_size(1, 333 * 4096), 0);
        for (unsigned i = 0; i < ARRAY_SIZE(lengths); i++)
                assert_int_equal(put(i, lengths[i]), 0);
        become(3);
        assert_int_equal(put(9, 333 * 4096), 0);
        settle();
        stop();
        for (unsigned round = 0; round < 3; round++) {
                params.limit = (1 + round) * 1024 * MIB;
                t.tenant = 0;
                start(&params);
                for (unsigned i = 0; i < ARRAY_SIZE(lengths); i++)
                        assert_int_equal(get(i, lengths[i]), 0);
                become(3);
                assert_int_equal(get(9, 333 * 4096), 0);
                t.tenant = 0;
                for (unsigned n = 0; n < 450; n++) /* again, so that 0 and 1 declare other sizes */
                        assert_int_equal(declare_size(n, 4096 * (1000 + n + 450 * round)), 0);
                settle();
                stop();
        }
}

static void a_store_of_one_tenant_hands_nothing_over(void **state)
{
        struct store_params params = params_of(8 * MIB);

        params.prewrite = false;
        start(&params);
        put_range(0, 200, 60000);
        put_range(1000, 2000, 4000);
        assert_int_equal(stats().handovers, 0);
        settle();
        stop();
}

/* The chunks that store_next() names, in its order. */
struct named {
        unsigned n;
        struct key keys[64];
        uint32_t places[64], namespaces[64];
};

static void note_named(void *userdata, const struct store_leaving *leaving)
{
        struct named *named = userdata;

        assert_true(named->n < ARRAY_SIZE(named->keys));
        assert_int_equal(leaving->tenant, t.tenant);
        named->keys[named->n] = *leaving->key;
        named->places[named->n] = leaving->place;
        named->namespaces[named->n++] = leaving->namespace_id;
}

static struct named next_of(unsigned most)
{
        struct named named = { 0 };

        store_next(t.s, t.tenant, most, note_named, &named);
        return named;
}

static void assert_named(const struct named *named, unsigned i, uint64_t n, uint32_t place)
{
        struct key key = key_of(n);

        assert_true(i < named->n);
        assert_memory_equal(&named->keys[i], &key, sizeof(key));
        assert_int_equal(named->places[i], place);
        assert_int_equal(named->namespaces[i], t.ns);
}

static void the_next_to_be_evicted_are_those_unused_for_longest(void **state)
{
        struct store_params params = params_of(8 * MIB);
        struct named named;

        params.prewrite = false;
        params.policy = "lru";
        start(&params);
        become(2);
        put_range(100, 3, 60000); /* another tenant's are never named */
        become(1);
        assert_int_equal(next_of(64).n, 0);
        for (uint64_t n = 0; n < 10; n++)
                assert_int_equal(put(n, 60000), 0);
        settle();
        named = next_of(64);
        assert_int_equal(named.n, 10);
        for (unsigned i = 0; i < 10; i++)
                assert_named(&named, i, i, i + 1);
        touch(0);
        assert_int_equal(drop(1), 0);
        named = next_of(64);
        assert_int_equal(named.n, 9);
        assert_named(&named, 0, 2, 1);
        assert_named(&named, 8, 0, 9);
        assert_int_equal(stats().evictions, 0);
        settle();
        stop();
}

static void the_next_to_be_evicted_are_limited_and_shared_by_sizes(void **state)
{
        struct store_params params = params_of(8 * MIB);
        struct named named;

        params.prewrite = false;
        params.policy = "lru";
        start(&params);
        become(1);
        for (uint64_t n = 0; n < 10; n++)
                assert_int_equal(put(n, 60000), 0);
        assert_int_equal(next_of(4).n, 4);
        assert_int_equal(next_of(0).n, 0);
        for (uint64_t n = 10; n < 20; n++)
                assert_int_equal(put(n, 4000), 0);
        named = next_of(4);
        assert_int_equal(named.n, 4);
        for (unsigned i = 0; i < 4; i++)
                assert_int_equal(named.places[i], 1 + i % 2);
        assert_int_equal(next_of(1).n, 1);
        settle();
        stop();
}

int main(int argc, char **argv)
{
        static const struct CMUnitTest tests[] = {
                TEST(a_tenant_without_room_keeps_no_other_waiting),
                TEST(test_R1_a_handover_is_on_disk_before_the_next_tenants_first_byte),
                TEST(test_R1_a_file_that_cannot_be_handed_over_is_not_used),
                TEST(test_R1_a_handover_waits_for_a_sync_of_the_table_that_is_under_way),
                TEST(test_R1_a_handover_whose_record_fails_bypasses_the_volume),
                TEST(test_R1_a_handover_does_not_trust_a_sync_after_a_failed_one),
                TEST(the_next_to_be_evicted_are_those_unused_for_longest),
                TEST(the_next_to_be_evicted_are_limited_and_shared_by_sizes),
                TEST(a_store_of_one_tenant_hands_nothing_over),
                TEST(what_is_stored_outlives_any_number_of_declared_sizes),
        };

        return run_store_tests(argc, argv, tests, ARRAY_SIZE(tests), NULL, 0);
}

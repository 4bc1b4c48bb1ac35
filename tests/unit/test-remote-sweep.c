/* SPDX-License-Identifier: Apache-2.0 */
/* The sweeper: which objects it deletes, in which order, and which it keeps. */
#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "checked.h"
#include "remote-fixture.h"

enum { SIZE = REMOTE_HEADER_BYTES + 100 };

struct sweeping {
        struct remote_sweep sweep;
        unsigned completed;
};

static void on_swept(struct remote_sweep *sweep)
{
        container_of(sweep, struct sweeping, sweep)->completed++;
}

static void begin(struct sweeping *s, uint64_t limit, bool dry_run)
{
        *s = (struct sweeping){
                .sweep = { .limit = limit, .dry_run = dry_run, .complete = on_swept }
        };
        remote_sweep(rig.r, &s->sweep);
}

static struct remote_sweep sweep(uint64_t limit, bool dry_run)
{
        struct sweeping s;

        begin(&s, limit, dry_run);
        wait_until(s.completed > 0);
        assert_int_equal(s.completed, 1);
        return s.sweep;
}

/* Puts chunks 0 to n-1, of which number i was used i minutes after the beginning; they are listed
 * in another order. */
static void put_chunks(unsigned n)
{
        for (unsigned k = 0; k < n; k++) {
                unsigned i = k * 7 % n;

                put_object(i, 100);
                assert_true(fake_set_used(name_of(i), (1000000 + (uint64_t)i) * 60000));
        }
}

static void purge_by_another(uint64_t generation)
{
        const struct remote_identity *id = &remote_namespace_find(rig.r, NS)->identity;
        uint8_t bytes[REMOTE_HEADER_BYTES];
        char name[REMOTE_NAME_MAX];

        remote_generation_name("kvcache", id, name);
        remote_generation_write(id, generation, 5, bytes);
        fake_put(name, bytes, sizeof(bytes), 0);
        advance(rig.params.generation_interval_ns);
}

static void the_oldest_go_first(void **state)
{
        struct remote_sweep s;

        make();
        put_chunks(100);
        s = sweep(40 * SIZE, false);
        assert_int_equal(s.result, 0);
        assert_int_equal(s.seen, 100);
        assert_int_equal(s.seen_bytes, 100 * SIZE);
        assert_int_equal(s.deleted, 60);
        assert_int_equal(s.deleted_bytes, 60 * SIZE);
        for (unsigned i = 0; i < 100; i++)
                assert_int_equal(fake_has(name_of(i)), i >= 60);
        assert_false(fake_is_leased(NULL));
        assert_false(status().sweeping);
        s = sweep(40 * SIZE, false); /* the tier is within the limit */
        assert_int_equal(s.seen, 40);
        assert_int_equal(s.deleted, 0);
        s = sweep(39 * SIZE + 1, false);
        assert_int_equal(s.deleted, 1);
        s = sweep(0, false);
        assert_int_equal(s.deleted, 39);
        s = sweep(0, false);
        assert_int_equal(s.seen, 0);
}

static void of_one_age_no_more_than_needed_go(void **state)
{
        make();
        for (unsigned i = 0; i < 50; i++)
                put_object(i, 100);
        assert_int_equal(sweep(30 * SIZE - 1, false).deleted, 21);
        assert_int_equal(fake_objects(), 29);
}

static void a_dry_run_deletes_nothing(void **state)
{
        struct remote_sweep s;

        make();
        put_chunks(50);
        s = sweep(10 * SIZE, true);
        assert_int_equal(s.result, 0);
        assert_int_equal(s.deleted, 40);
        assert_int_equal(s.deleted_bytes, 40 * SIZE);
        assert_int_equal(fake_objects(), 50);
}

static void all_of_older_generations_go(void **state)
{
        struct remote_sweep s;

        make();
        put_chunks(20); /* of generation 0 */
        purge_by_another(5000);
        put_chunks(20);
        purge_by_another(6000);
        put_chunks(10);
        assert_int_equal(fake_objects(), 1 + 50);
        s = sweep(UINT64_MAX, true);
        assert_int_equal(s.deleted, 40);
        s = sweep(UINT64_MAX, false);
        assert_int_equal(s.result, 0);
        assert_int_equal(s.seen, 50);
        assert_int_equal(s.deleted, 40);
        assert_int_equal(fake_objects(), 1 + 10);
        for (unsigned i = 0; i < 10; i++)
                assert_true(fake_has(name_of(i)));
        /* Purged and unused objects at once. */
        purge_by_another(7000);
        put_chunks(10);
        s = sweep(4 * SIZE, false);
        assert_int_equal(s.deleted, 10 + 6);
        for (unsigned i = 0; i < 10; i++)
                assert_int_equal(fake_has(name_of(i)), i >= 6);
}

static void what_is_not_known_to_be_older_stays(void **state)
{
        char name[REMOTE_NAME_MAX];

        make();
        put_chunks(5);
        purge_by_another(5000);
        put_chunks(5);
        remote_generation_name("kvcache", &remote_namespace_find(rig.r, NS)->identity, name);
        assert_true(fake_flip(name, 1));
        assert_int_equal(sweep(UINT64_MAX, false).deleted, 0);
        assert_true(fake_flip(name, 1));
        fake_fail(BACKEND_READ, -EIO, 1);
        assert_int_equal(sweep(UINT64_MAX, false).deleted, 0);
        assert_int_equal(sweep(UINT64_MAX, false).deleted, 5);
        assert_true(fake_remove(name));
        assert_int_equal(sweep(UINT64_MAX, false).deleted, 0);
}

static void what_is_no_chunk_is_not_touched(void **state)
{
        static const char *const names[] = {
                "kvcache/sweep",
                "kvcache/generation/c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3",
                "kvcache/README",
                "kvcache2/0/c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3/5a/"
                "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a",
                "kvcache/0/c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3/5a/"
                "5b5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a",
                "kvcache/0/c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3/5a/"
                "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a",
                "kvcache/x/c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3/5a/"
                "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a",
                "kvcache/99999999999999999999999/c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3/5a/"
                "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a",
        };
        struct remote_sweep s;

        make();
        for (unsigned i = 0; i < ARRAY_SIZE(names); i++)
                fake_put(names[i], "x", 1, 0);
        put_chunks(3);
        s = sweep(0, false);
        assert_int_equal(s.seen, 3);
        assert_int_equal(s.deleted, 3);
        for (unsigned i = 0; i < ARRAY_SIZE(names); i++)
                assert_true(fake_has(names[i]));
}

static void one_host_at_a_time(void **state)
{
        struct sweeping first, second;

        make();
        put_chunks(3);
        fake_lease("another host");
        assert_int_equal(sweep(0, false).result, -EBUSY);
        assert_int_equal(fake_objects(), 3);
        assert_true(fake_is_leased("another host"));
        fake_lease(NULL);
        fake_hang_list(true);
        begin(&first, 0, false);
        assert_true(status().sweeping);
        begin(&second, 0, false);
        assert_int_equal(second.completed, 1);
        assert_int_equal(second.sweep.result, -EBUSY);
        fake_hang_list(false);
        wait_until(first.completed == 1);
        assert_int_equal(first.sweep.deleted, 3);
}

static void an_engine_that_does_it_itself_is_not_swept(void **state)
{
        struct sweeping s;

        rig.params.ops = &fake_backend_plain;
        make();
        begin(&s, 0, false);
        assert_int_equal(s.completed, 1);
        assert_int_equal(s.sweep.result, -ENOTSUP);
}

static void what_cannot_be_deleted_does_not_stop_it(void **state)
{
        struct remote_sweep s;

        make();
        put_chunks(300);
        fake_fail(BACKEND_DELETE, -EIO, 10);
        s = sweep(0, false);
        assert_int_equal(s.result, 0);
        assert_int_equal(s.deleted, 290);
        assert_string_equal(s.error, "deleting: Input/output error");
        put_chunks(300);
        fake_fail(BACKEND_DELETE, -EACCES, 1000); /* but this does */
        s = sweep(0, false);
        assert_int_equal(s.result, -EACCES);
        assert_int_equal(s.deleted, 0);
        assert_string_equal(s.error, "deleting: Permission denied");
        assert_false(fake_is_leased(NULL));
}

static void a_stop_does_not_wait_for_the_sweeper(void **state)
{
        struct sweeping s;

        make();
        put_chunks(3);
        fake_hang_list(true);
        begin(&s, 0, false);
        while (fake_lists() == 0) /* the sweeper's thread is in the engine */
                step();
        remote_stop(rig.r);
        assert_int_equal(s.completed, 1);
        assert_int_equal(s.sweep.result, -ECANCELED);
        rig.r = remote_free(rig.r);
        fake_hang_list(false);
        while (fake_is_leased(NULL)) /* the sweep continues, and ends, with valid memory */
                sched_yield();
        assert_int_equal(fake_objects(), 3);
        fake_backend.close(NULL); /* remote_free() did not, as the sweeper stood in it */
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)
        const struct CMUnitTest tests[] = {
                TEST(the_oldest_go_first),
                TEST(of_one_age_no_more_than_needed_go),
                TEST(a_dry_run_deletes_nothing),
                TEST(all_of_older_generations_go),
                TEST(what_is_not_known_to_be_older_stays),
                TEST(what_is_no_chunk_is_not_touched),
                TEST(one_host_at_a_time),
                TEST(an_engine_that_does_it_itself_is_not_swept),
                TEST(what_cannot_be_deleted_does_not_stop_it),
                TEST(a_stop_does_not_wait_for_the_sweeper),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

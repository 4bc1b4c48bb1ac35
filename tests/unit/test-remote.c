/* SPDX-License-Identifier: Apache-2.0 */
/* Gets and puts on the shared tier, whatever the engine does: late, hung, full, refused, other
 * bytes. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "checked.h"
#include "io/io.h"
#include "remote-fixture.h"

enum { HEADER = REMOTE_HEADER_BYTES };

/* --- normal operation --- */

static void what_one_host_writes_another_finds(void **state)
{
        make();
        offer(1);
        step();
        assert_int_equal(fake_objects(), 1);
        assert_true(fake_has(name_of(1)));
        assert_int_equal(stats().puts, 1);
        assert_int_equal(stats().put_bytes, CHUNK);
        make_again();
        assert_true(finds(1, CHUNK));
        assert_false(finds(2, CHUNK));
        assert_int_equal(stats().gets, 2);
        assert_int_equal(stats().hits, 1);
        assert_int_equal(stats().misses, 1);
        assert_int_equal(stats().get_bytes, CHUNK + HEADER);
        assert_int_equal(remote_presence(rig.r, NS, hash_of(1)), 1);
        assert_int_equal(remote_presence(rig.r, NS, hash_of(2)), 0);
        assert_int_equal(remote_presence(rig.r, NS, hash_of(3)), -1);
        assert_int_equal(stats().reading_bytes, 0);
        assert_int_equal(stats().inflight, 0);
}

static void a_get_may_be_ended_from_within(void **state)
{
        struct asked a;

        make();
        put_object(1, CHUNK);
        put_object(2, CHUNK);
        rig.end_within = true;
        assert_true(get(&a, 1, SECOND));
        step();
        assert_true(a.get.found && !a.bad);
        assert_true(fake_flip(name_of(2), HEADER + 5));
        assert_true(get(&a, 2, SECOND));
        step();
        assert_true(a.get.found && a.bad);
        assert_int_equal(stats().reading_bytes, 0);
        assert_int_equal(stats().hits, 1);
}

static void a_chunk_larger_than_all_before_is_read_twice(void **state)
{
        uint32_t large = 3 << 20;

        make();
        put_object(1, large);
        put_object(2, large + 1);
        put_object(3, 100);
        assert_true(finds(1, large));
        assert_int_equal(fake_count(BACKEND_READ), 1 + 2);
        assert_true(finds(2, large + 1));
        assert_int_equal(fake_count(BACKEND_READ), 1 + 4);
        assert_true(finds(3, 100));
        assert_true(finds(2, large + 1));
        assert_int_equal(fake_count(BACKEND_READ), 1 + 6);
        fake_hide_sizes(true);
        put_object(4, large + 5000);
        assert_true(finds(4, large + 5000));
        assert_int_equal(stats().reading_bytes, 0);
}

static void a_local_namespace_has_nothing_there(void **state)
{
        struct asked a;
        bool known = false;

        make_bare();
        step();
        assert_false(get(&a, 1, SECOND));
        offer(1);
        step();
        assert_int_equal(match(10, &known), 0);
        assert_true(known);
        assert_int_equal(remote_presence(rig.r, NS, hash_of(1)), -1);
        assert_false(remote_has_namespace(rig.r, NS));
        assert_int_equal(stats().gets, 0);
        assert_int_equal(fake_count(BACKEND_READ) + fake_count(BACKEND_CREATE), 0);
}

static void what_is_of_use_is_marked_once_a_day(void **state)
{
        make();
        put_object(1, CHUNK);
        assert_true(finds(1, CHUNK));
        assert_true(finds(1, CHUNK));
        assert_int_equal(fake_marked(), 1);
        advance(24 * 60 * MINUTE);
        assert_true(finds(1, CHUNK));
        assert_int_equal(fake_marked(), 2);
}

static void it_works_on_another_thread(void **state)
{
        enum { N = 500 };
        static struct asked asked[N];
        unsigned completed = 0, found = 0;

        rig.params.read_inflight = 4 << 20;
        rig.params.write_inflight = 1 << 20;
        make();
        fake_set_end_of_all(FAKE_THREAD);
        for (unsigned i = 0; i < N; i++)
                offer(i);
        step();
        wait_until(stats().puts == N);
        for (unsigned i = 0; i < N; i++)
                assert_true(get(&asked[i], i, SECOND));
        for (unsigned before;;) {
                before = completed;
                for (unsigned i = 0; i < N; i++)
                        if (asked[i].completed == 1) {
                                asked[i].completed++;
                                completed++;
                                found += asked[i].get.found;
                                get_end(&asked[i]);
                                assert_false(asked[i].bad);
                        }
                if (completed == N)
                        break;
                if (completed > before)
                        step(); /* waiting puts have room now */
                else
                        wait_and_step();
        }
        assert_int_equal(found, N);
        assert_int_equal(stats().get_times.count, N);
        assert_int_equal(stats().put_times.count, N);
}

/* --- deadlines and buffers --- */

/* The cache joins gets of one key, but the tier performs each separately. */
static void gets_of_one_key_are_reads_of_their_own(void **state)
{
        struct asked a, b;

        make();
        put_object(1, CHUNK);
        fake_set_end(BACKEND_READ, FAKE_HELD);
        assert_true(get(&a, 1, SECOND));
        assert_true(get(&b, 1, SECOND / 2));
        step();
        assert_int_equal(fake_held(), 2);
        advance(SECOND / 2);
        assert_int_equal(b.completed, 1);
        assert_int_equal(a.completed, 0);
        assert_int_equal(fake_release(2), 2);
        step();
        assert_int_equal(a.completed, 1);
        assert_true(a.get.found);
        assert_int_equal(b.completed, 1);
        get_end(&a);
        assert_int_equal(stats().late, 1);
}

static void a_get_under_way_is_a_miss_at_its_deadline(void **state)
{
        struct asked a;

        make();
        put_object(1, CHUNK);
        fake_set_end(BACKEND_READ, FAKE_HELD);
        assert_true(get(&a, 1, 20 * MS));
        step();
        assert_int_equal(fake_held(), 1);
        advance(20 * MS - 1);
        assert_int_equal(a.completed, 0);
        advance(1);
        assert_int_equal(a.completed, 1);
        assert_false(a.get.found);
        assert_int_equal(stats().misses, 1);
        assert_int_equal(stats().late, 0);
        assert_true(stats().reading_bytes > 0); /* the engine may still write to it */
        assert_int_equal(stats().inflight, 1);
        assert_int_equal(fake_release(1), 1);
        step();
        assert_int_equal(a.completed, 1);
        assert_int_equal(stats().late, 1);
        assert_int_equal(stats().reading_bytes, 0);
        assert_int_equal(stats().hits, 0);
        /* The presence that was seen is remembered. */
        assert_int_equal(remote_presence(rig.r, NS, hash_of(1)), 1);
}

static void one_large_chunk_is_not_made_room_for_for_ever(void **state)
{
        struct asked a;

        make();
        for (unsigned i = 0; i < 2; i++)
                put_object(i, i == 0 ? 32 << 20 : CHUNK);
        assert_true(finds(0, 32 << 20));
        assert_true(get(&a, 1, SECOND));
        assert_in_range(stats().reading_bytes, 32 << 20, 33 << 20);
        step();
        get_end(&a);
        for (unsigned i = 0; i < 10 * LATELY; i++)
                assert_true(finds(1, CHUNK));
        assert_true(get(&a, 1, SECOND));
        assert_in_range(stats().reading_bytes, CHUNK, 2 * CHUNK);
        step();
        get_end(&a);
        assert_true(finds(0, 32 << 20)); /* read twice */
}

static void a_read_that_hangs_for_longer_than_the_timeout_is_late_once(void **state)
{
        struct asked a;

        make();
        put_object(1, CHUNK);
        fake_set_end(BACKEND_READ, FAKE_HUNG);
        assert_true(get(&a, 1, 3600 * SECOND));
        step();
        advance(rig.params.timeout_ns);
        assert_int_equal(a.completed, 1); /* the tier's timeout is earlier */
        assert_int_equal(stats().errors[BACKEND_READ], 1);
        fake_set_end(BACKEND_READ, FAKE_WITHIN);
        assert_int_equal(fake_release(1), 1);
        step();
        assert_int_equal(stats().late, 1);
        assert_int_equal(stats().errors[BACKEND_READ], 1);
        assert_int_equal(stats().reading_bytes, 0);
        assert_true(finds(1, CHUNK));
}

static void a_deadline_that_has_passed_reads_nothing(void **state)
{
        struct asked a;

        make();
        put_object(1, CHUNK);
        assert_false(get(&a, 1, 0));
        assert_int_equal(fake_count(BACKEND_READ), 1); /* the generation */
        assert_int_equal(stats().misses, 1);
}

static void gets_wait_for_a_buffer_in_their_order(void **state)
{
        enum { N = 7 };
        struct asked asked[N];
        unsigned bytes = (1 << 20) * 2;

        rig.params.read_inflight = bytes;
        make();
        for (unsigned i = 0; i < N; i++)
                put_object(i, CHUNK);
        fake_set_end(BACKEND_READ, FAKE_HELD);
        for (unsigned i = 0; i < N; i++)
                assert_true(get(&asked[i], i, (i == 3 ? 1 : 4) * SECOND));
        step();
        assert_int_equal(fake_held(), 2);
        assert_in_range(stats().reading_bytes, 1, bytes);
        advance(SECOND);
        assert_int_equal(asked[3].completed, 1); /* while it waited */
        assert_int_equal(stats().refused[1], 1);
        for (unsigned done = 0; done < N; done++) {
                if (done == 3)
                        continue;
                assert_int_equal(asked[done].completed, 0);
                assert_int_equal(fake_release(1), 1);
                step();
                assert_int_equal(asked[done].completed, 1);
                assert_true(asked[done].get.found);
                assert_in_range(stats().reading_bytes, 1, bytes);
                get_end(&asked[done]);
                step();
        }
        assert_int_equal(stats().reading_bytes, 0);
        assert_int_equal(stats().late, 0);
}

static void a_later_get_does_not_overtake_those_that_wait(void **state)
{
        struct asked first, second, third;

        rig.params.read_inflight = 1 << 20;
        make();
        for (unsigned i = 1; i <= 3; i++)
                put_object(i, CHUNK);
        fake_set_end(BACKEND_READ, FAKE_HELD);
        assert_true(get(&first, 1, SECOND));
        assert_true(get(&second, 2, SECOND));
        assert_int_equal(fake_release(1), 1);
        (void)remote_reap(rig.r);
        get_end(&first); /* the buffer is there, and not yet given away */
        assert_true(get(&third, 3, SECOND));
        assert_int_equal(fake_held(), 0);
        step();
        assert_int_equal(fake_release(1), 1);
        step();
        assert_int_equal(second.completed, 1);
        get_end(&second);
        step();
        assert_int_equal(fake_release(1), 1);
        step();
        assert_int_equal(third.completed, 1);
        get_end(&third);
}

static bool get_as(struct asked *a, uint16_t tenant, unsigned i)
{
        bool r;

        rig.tenant = tenant;
        r = get(a, i, 4 * SECOND);
        rig.tenant = 0;
        return r;
}

static void a_get_of_one_tenant_does_not_wait_behind_all_of_anothers(void **state)
{
        enum { N = 1000 };
        static struct asked many[N];
        struct asked one;
        unsigned before = 0;

        make();
        for (unsigned i = 0; i <= N; i++)
                put_object(i, 4096);
        assert_true(finds(N, 4096)); /* reads are as large as that from now on */
        fake_set_end(BACKEND_READ, FAKE_HELD);
        for (unsigned i = 0; i < N; i++)
                assert_true(get_as(&many[i], 1, i));
        assert_true(get_as(&one, 2, N));
        step();
        assert_int_equal(fake_held(),
                         2 * rig.params.backend.depth); /* the engine has them in order */
        while (one.completed == 0) {
                assert_int_equal(fake_release(1), 1);
                step();
                before++;
        }
        assert_true(one.get.found);
        get_end(&one);
        assert_in_range(before, 1, 2 * rig.params.backend.depth + 2);
        fake_set_end(BACKEND_READ, FAKE_WITHIN);
        (void)fake_release(N);
        step();
        for (unsigned i = 0; i < N; i++) {
                assert_int_equal(many[i].completed, 1);
                get_end(&many[i]);
        }
}

static void a_tenant_whose_pool_is_full_does_not_have_all_buffers(void **state)
{
        enum { N = 12 };
        struct asked first[N], one, last;

        rig.params.read_inflight = 8 << 20;
        make();
        for (unsigned i = 0; i <= N; i++)
                put_object(i, CHUNK);
        assert_true(get_as(&one, 2, N));
        step();
        assert_int_equal(one.completed, 1);
        get_end(&one);
        put_object(N + 1, (1 << 20) - REMOTE_HEADER_BYTES);
        assert_true(finds(N + 1, (1 << 20) - REMOTE_HEADER_BYTES)); /* the size of all buffers */
        for (unsigned i = 0; i < N; i++)
                assert_true(get_as(&first[i], 1, i));
        step();
        for (unsigned i = 0; i < N; i++) /* found, and not ended: they wait for room */
                assert_int_equal(first[i].completed, i < 6);
        assert_true(get_as(&last, 2, N));
        step();
        assert_int_equal(last.completed, 1);
        assert_true(last.get.found);
        get_end(&last);
        for (unsigned i = 0; i < N; i++) {
                get_end(&first[i]);
                step();
        }
        assert_int_equal(stats().reading_bytes, 0);
}

static void an_engine_that_hangs_takes_no_more_than_the_buffers(void **state)
{
        enum { N = 40 };
        static struct asked asked[N];

        rig.params.read_inflight = 4 << 20;
        make();
        fake_set_end(BACKEND_READ, FAKE_HUNG);
        for (unsigned i = 0; i < N; i++)
                assert_true(get(&asked[i], i, 3 * SECOND));
        step();
        assert_int_equal(fake_held(), 4);
        for (unsigned i = 0; i < N; i++)
                assert_int_equal(asked[i].completed, 0);
        advance(3 * SECOND);
        for (unsigned i = 0; i < N; i++) {
                assert_int_equal(asked[i].completed, 1);
                assert_false(asked[i].get.found);
        }
        assert_int_equal(stats().reading_bytes, 4 << 20);
        assert_int_equal(stats().refused[1], N - 4);
        assert_int_equal(stats().misses, 4); /* each get is counted once */
        assert_int_equal(stats().gets, N);
}

/* --- faults --- */

static void open_the_breaker(void)
{
        fake_fail(BACKEND_READ, -EIO, BREAKER_IN_A_ROW);
        for (unsigned i = 0; i < BREAKER_IN_A_ROW; i++)
                assert_false(finds(1000 + i, CHUNK));
        assert_int_equal(status().breaker, REMOTE_OPEN);
}

static void errors_open_the_breaker_and_trials_close_it(void **state)
{
        struct asked a;
        bool known = false;

        make();
        put_object(1, CHUNK);
        open_the_breaker();
        assert_int_equal(status().since_ns, now_ns());
        assert_string_equal(status().reason, "reading: the fake engine says no");
        assert_int_equal(stats().trips, 1);
        assert_false(get(&a, 1, SECOND));
        assert_int_equal(stats().refused[0], 1);
        assert_int_equal(match(10, &known), 0);
        assert_true(known); /* prevents repeated searches */
        offer(2);
        step();
        assert_int_equal(fake_count(BACKEND_CREATE), 0);
        fake_fail(BACKEND_READ, -EIO, 1); /* the first trial */
        advance(BREAKER_BACKOFF_MIN);
        assert_int_equal(status().breaker, REMOTE_OPEN);
        advance(2 * BREAKER_BACKOFF_MIN);
        assert_int_equal(status().breaker, REMOTE_CLOSED);
        assert_true(finds(1, CHUNK));
        assert_int_equal(fake_count(BACKEND_CREATE), 1); /* queued objects are written now */
}

static void after_a_long_time_generations_are_read_as_soon_as_the_breaker_closes(void **state)
{
        make();
        put_object(1, CHUNK);
        open_the_breaker();
        fake_fail(BACKEND_READ, -EIO, 20);
        for (unsigned i = 0; i < 20; i++)
                advance(BREAKER_BACKOFF_MAX);
        assert_int_equal(status().unknown, 1); /* there may have been a purge */
        advance(BREAKER_BACKOFF_MAX);
        assert_int_equal(status().breaker, REMOTE_CLOSED);
        assert_int_equal(status().unknown, 0);
        assert_true(finds(1, CHUNK));
}

static void an_engine_that_hangs_opens_the_breaker_and_what_waits_is_a_miss(void **state)
{
        enum { N = 12 };
        struct asked asked[N];
        uint64_t next;

        rig.params.read_inflight = 6 << 20;
        make();
        put_object(1, CHUNK);
        fake_set_end(BACKEND_READ, FAKE_HUNG);
        for (unsigned i = 0; i < 6; i++)
                assert_true(get(&asked[i], i, MINUTE));
        advance(SECOND);
        for (unsigned i = 6; i < N; i++)
                assert_true(get(&asked[i], i, MINUTE));
        step();
        advance(rig.params.timeout_ns - SECOND);
        for (unsigned i = 0; i < N; i++)
                assert_int_equal(asked[i].completed, 1);
        assert_int_equal(status().breaker, REMOTE_OPEN);
        assert_string_equal(status().reason, "reading: no answer within remote.timeout");
        assert_int_equal(stats().refused[0], 6);
        /* Trials hang as well, and each has its timeout. Only a few are left behind. */
        for (unsigned i = 0; i < 2000; i++)
                advance(SECOND);
        assert_in_range(fake_held(), 7, 100);
        next = remote_iterate(rig.r, now_ns());
        assert_true(next > now_ns());
        /* The engine is there again: with the buffers that it had. */
        fake_set_end(BACKEND_READ, FAKE_WITHIN);
        (void)fake_release(1000);
        step();
        assert_int_equal(stats().late, 6);
        assert_int_equal(stats().reading_bytes, 0);
        advance(BREAKER_BACKOFF_MAX);
        assert_int_equal(status().breaker, REMOTE_CLOSED);
        advance(SECOND);
        assert_true(finds(1, CHUNK));
}

static void slow_reads_open_the_breaker(void **state)
{
        struct asked asked[BREAKER_FEWEST];

        make();
        fake_set_end(BACKEND_READ, FAKE_HELD);
        for (unsigned i = 0; i < ARRAY_SIZE(asked); i++)
                assert_true(get(&asked[i], i, MINUTE));
        advance(rig.params.timeout_ns - MS);
        assert_int_equal(fake_release(100), ARRAY_SIZE(asked));
        step();
        assert_int_equal(status().breaker, REMOTE_OPEN);
        assert_int_equal(stats().errors[BACKEND_READ], 0);
}

static void misses_and_existing_objects_are_no_errors(void **state)
{
        make();
        for (unsigned i = 0; i < 100; i++)
                assert_false(finds(i, CHUNK));
        assert_int_equal(status().breaker, REMOTE_CLOSED);
        put_object(200, CHUNK);
        offer(200);
        step();
        assert_int_equal(stats().puts, 0);
        assert_int_equal(stats().puts_existing, 1);
        assert_int_equal(stats().errors[BACKEND_CREATE], 0);
        assert_string_equal(status().reason, "");
}

static void a_full_engine_stops_writes_alone(void **state)
{
        make();
        put_object(1, CHUNK);
        fake_fail(BACKEND_CREATE, -ENOSPC, 2);
        for (unsigned i = 10; i < 14; i++)
                offer(i);
        step();
        assert_true(status().full);
        assert_int_equal(status().breaker, REMOTE_CLOSED);
        assert_int_equal(fake_count(BACKEND_CREATE), 4);
        assert_int_equal(stats().puts, 2); /* in flight at the same time */
        assert_int_equal(stats().dropped[2], 2);
        for (unsigned i = 20; i < 30; i++)
                offer(i);
        step();
        assert_int_equal(stats().queued, 10);
        assert_true(finds(1, CHUNK));
        advance(5 * SECOND);
        assert_int_equal(fake_count(BACKEND_CREATE), 4);
        fake_fail(BACKEND_CREATE, -ENOSPC, 1);
        advance(3600 * SECOND);
        assert_int_equal(fake_count(BACKEND_CREATE), 5); /* a single write is tried */
        assert_true(status().full);
        advance(5 * SECOND);
        assert_int_equal(fake_count(BACKEND_CREATE), 5);
        assert_int_equal(stats().queued, 9);
        advance(3600 * SECOND);
        assert_false(status().full);
        assert_int_equal(stats().puts, 2 + 9);
        assert_int_equal(status().breaker, REMOTE_CLOSED);
}

static void writes_that_are_refused_do_not_open_the_breaker(void **state)
{
        make();
        put_object(1, CHUNK);
        fake_fail(BACKEND_CREATE, -EACCES, 1000);
        for (unsigned i = 10; i < 30; i++) {
                offer(i);
                step();
        }
        assert_int_equal(fake_count(BACKEND_CREATE), 1);
        for (unsigned i = 0; i < 10; i++)
                advance(3600 * SECOND);
        assert_int_equal(fake_count(BACKEND_CREATE), 11);
        assert_int_equal(status().breaker, REMOTE_CLOSED);
        assert_false(status().full);
        assert_int_equal(stats().dropped[3], 11);
        assert_true(finds(1, CHUNK));
}

/* Checks that such an object is a counted miss and is deleted, so that it is not read again. */
static void check_rejected(unsigned i, enum remote_rejection why)
{
        uint64_t before = stats().rejected[why], deletes = stats().deletes;

        assert_false(finds(i, CHUNK));
        step();
        assert_int_equal(stats().rejected[why], before + 1);
        assert_int_equal(stats().deletes, deletes + (why != REMOTE_BAD_VERSION));
        assert_int_equal(fake_has(name_of(i)), why == REMOTE_BAD_VERSION);
        assert_int_equal(remote_presence(rig.r, NS, hash_of(i)), 0);
        assert_false(finds(i, CHUNK)); /* at once */
        assert_int_equal(stats().rejected[why], before + 1);
}

static void many_writes_at_once_that_are_refused_do_not_either(void **state)
{
        static const int results[] = { -ENOSPC, -EACCES, -EROFS, -E2BIG };

        make();
        for (unsigned e = 0; e < ARRAY_SIZE(results); e++) {
                unsigned before = fake_count(BACKEND_CREATE);

                fake_fail(BACKEND_CREATE, results[e], 20);
                for (unsigned i = 0; i < 20; i++)
                        offer(100 * e + i);
                step();
                assert_int_equal(fake_count(BACKEND_CREATE), before + 20);
                assert_int_equal(status().breaker, REMOTE_CLOSED);
                offer(100 * e + 50);
                advance(3600 * SECOND);
                assert_false(status().full);
        }
}

static void nothing_wrong_is_served(void **state)
{
        make();
        for (unsigned i = 0; i < 20; i++)
                put_object(i, CHUNK);
        assert_true(fake_flip(name_of(0), 0));
        check_rejected(0, REMOTE_BAD_HEADER);
        assert_true(fake_flip(name_of(1), 30));
        check_rejected(1, REMOTE_BAD_HEADER);
        assert_true(fake_cut(name_of(2), 100));
        check_rejected(2, REMOTE_BAD_HEADER);
        assert_true(fake_cut(name_of(3), 0));
        check_rejected(3, REMOTE_BAD_HEADER);
        assert_true(fake_cut(name_of(4), HEADER + CHUNK - 1));
        check_rejected(4, REMOTE_BAD_LENGTH);
        assert_true(fake_cut(name_of(5), HEADER));
        check_rejected(5, REMOTE_BAD_LENGTH);
        assert_true(fake_flip(name_of(6), HEADER));
        check_rejected(6, REMOTE_BAD_CHECKSUM);
        assert_true(fake_flip(name_of(7), HEADER + CHUNK - 1));
        check_rejected(7, REMOTE_BAD_CHECKSUM);
        fake_hide_sizes(true);
        assert_true(fake_cut(name_of(8), HEADER + CHUNK - 1));
        check_rejected(8, REMOTE_BAD_LENGTH);
        assert_int_equal(stats().hits, 0);
        assert_true(finds(9, CHUNK));
        assert_int_equal(stats().hits, 1);
        assert_int_equal(stats().misses, stats().gets - 1);
}

static void swapped_objects_are_found_out(void **state)
{
        char name[REMOTE_NAME_MAX];

        make();
        put_object(1, CHUNK);
        put_object(2, CHUNK);
        memcpy(name, name_of(1), sizeof(name));
        assert_true(fake_swap(name, name_of(2)));
        check_rejected(1, REMOTE_OTHER_OBJECT);
        check_rejected(2, REMOTE_OTHER_OBJECT);
}

static void an_object_of_a_later_version_is_left_to_who_can_read_it(void **state)
{
        uint8_t bytes[HEADER];
        const uint8_t *object;
        size_t size;

        make();
        put_object(1, CHUNK);
        object = fake_bytes(name_of(1), &size);
        memcpy(bytes, object, sizeof(bytes));
        bytes[8] = 2;
        memset(bytes + 12, 0, 4);
        {
                uint32_t crc = kio_crc32c(bytes, sizeof(bytes));

                memcpy(bytes + 12, &crc, sizeof(crc));
        }
        fake_put(name_of(1), bytes, sizeof(bytes), 0);
        check_rejected(1, REMOTE_BAD_VERSION);
}

static void a_rejected_object_that_cannot_be_deleted_is_no_storm(void **state)
{
        make();
        put_object(1, CHUNK);
        assert_true(fake_flip(name_of(1), 0));
        fake_fail(BACKEND_DELETE, -EACCES, 1000);
        for (unsigned i = 0; i < 1000; i++) {
                assert_false(finds(1, CHUNK));
                advance(100 * MS);
        }
        /* one rejection in each absence_lifetime */
        assert_in_range(stats().rejected[REMOTE_BAD_HEADER], 10, 11);
        assert_int_equal(status().breaker, REMOTE_CLOSED);
}

/* --- offers and writes --- */

static void what_is_offered_is_as_the_setting_says(void **state)
{
        static const struct {
                enum remote_write write;
                unsigned puts[2]; /* writes after a put, and after another use */
        } cases[] = { { REMOTE_WRITE_NEVER, { 0, 0 } },
                      { REMOTE_WRITE_REUSED, { 0, 1 } },
                      { REMOTE_WRITE_ALL, { 1, 1 } } };

        make();
        for (unsigned i = 0; i < ARRAY_SIZE(cases); i++)
                for (unsigned reason = 0; reason < 2; reason++) {
                        uint64_t before = stats().puts;
                        struct key k = key_of(10 * i + reason);

                        rig.params.write = cases[i].write;
                        remote_configure(rig.r, &rig.params);
                        step();
                        remote_offer(rig.r, NS, 0, &k, hash_of(10 * i + reason), CHUNK,
                                     (enum remote_reason)reason);
                        step();
                        assert_int_equal(stats().puts - before, cases[i].puts[reason]);
                }
}

static void a_chunk_is_written_once(void **state)
{
        make();
        rig.load_later = true;
        offer(1);
        offer(1);
        assert_int_equal(stats().queued, 1);
        assert_int_equal(stats().queued_bytes, CHUNK);
        step();
        assert_int_equal(rig.loads, 1);
        offer(1); /* while it is loaded */
        step();
        remote_put_loaded(rig.put, true);
        offer(1); /* while it is written */
        step();
        offer(1); /* afterwards */
        step();
        assert_int_equal(rig.loads, 1);
        assert_int_equal(fake_count(BACKEND_CREATE), 1);
}

static void what_is_not_here_any_more_is_dropped(void **state)
{
        make();
        rig.load_fails = true;
        offer(1);
        step();
        assert_int_equal(rig.loads, 1);
        assert_int_equal(stats().dropped[1], 1);
        assert_int_equal(fake_count(BACKEND_CREATE), 0);
        assert_int_equal(stats().writing_bytes, 0);
        rig.load_fails = false;
        offer(1); /* the object is not remembered as written */
        step();
        assert_int_equal(stats().puts, 1);
}

static void writes_keep_to_their_rate(void **state)
{
        rig.params.write_rate = 4 * CHUNK;
        make();
        for (unsigned i = 0; i < 40; i++)
                offer(i);
        step();
        assert_int_equal(stats().puts, 1);
        for (unsigned quarter = 1; quarter < 40; quarter++) {
                uint64_t next = remote_iterate(rig.r, now_ns());

                assert_in_range(next, now_ns() + 1, now_ns() + SECOND / 4);
                advance(SECOND / 4 - 1);
                assert_int_equal(stats().puts, quarter);
                advance(1);
                assert_int_equal(stats().puts, quarter + 1);
        }
        for (unsigned i = 0; i < 40; i++)
                assert_int_equal(rig.loaded[i], i); /* in the order of the offers */
}

static void the_queue_drops_the_oldest(void **state)
{
        rig.params.write_queue = 10 * CHUNK;
        rig.params.write_rate = 1;
        make();
        for (unsigned i = 0; i < 25; i++)
                offer(i);
        assert_int_equal(stats().queued_bytes, 10 * CHUNK);
        assert_int_equal(stats().dropped[0], 15);
        step();
        assert_int_equal(rig.loaded[0], 15);
}

static void offer_as(unsigned i, enum remote_reason reason)
{
        struct key k = key_of(i);

        remote_offer(rig.r, NS, 0, &k, hash_of(i), CHUNK, reason);
}

static void what_is_about_to_be_evicted_is_queued_where_there_is_room(void **state)
{
        rig.params.write = REMOTE_WRITE_REUSED;
        rig.params.write_queue = 3 * CHUNK;
        make();
        assert_true(remote_takes_leaving(rig.r));
        offer_as(1, REMOTE_PUT);
        assert_int_equal(stats().queued, 0);
        offer_as(1, REMOTE_LEAVING);
        offer_as(1, REMOTE_LEAVING);
        offer_as(2, REMOTE_USED_AGAIN);
        offer_as(3, REMOTE_LEAVING);
        offer_as(4, REMOTE_LEAVING); /* the offer drops no other */
        assert_int_equal(stats().queued, 3);
        assert_int_equal(stats().dropped[0], 1);
        assert_int_equal(stats().offers[REMOTE_PUT], 0);
        assert_int_equal(stats().offers[REMOTE_USED_AGAIN], 1);
        assert_int_equal(stats().offers[REMOTE_LEAVING], 2);
        step();
        assert_int_equal(stats().puts, 3);
        offer_as(3, REMOTE_LEAVING); /* the object exists */
        assert_int_equal(stats().offers[REMOTE_LEAVING], 2);
        rig.params.write = REMOTE_WRITE_NEVER;
        remote_configure(rig.r, &rig.params);
        assert_false(remote_takes_leaving(rig.r));
        offer_as(5, REMOTE_LEAVING);
        assert_int_equal(stats().queued, 0);
}

static void writes_stay_within_their_buffers(void **state)
{
        rig.params.write_inflight = 3 * (CHUNK + HEADER);
        make();
        fake_set_end(BACKEND_CREATE, FAKE_HUNG);
        for (unsigned i = 0; i < 10; i++)
                offer(i);
        step();
        assert_int_equal(fake_held(), 3);
        assert_int_equal(stats().writing_bytes, 3 * (CHUNK + HEADER));
        advance(rig.params.timeout_ns);
        assert_int_equal(stats().dropped[3], 3);
        assert_int_equal(fake_held(), 3); /* the writes still have their buffers */
        assert_int_equal(stats().queued, 7);
        put_object(50, CHUNK);
        assert_true(finds(50, CHUNK)); /* reads have theirs */
        fake_set_end(BACKEND_CREATE, FAKE_WITHIN);
        assert_int_equal(fake_release(3), 3);
        step();
        assert_int_equal(stats().puts, 7);
        assert_int_equal(stats().writing_bytes, 0);
        assert_int_equal(fake_objects(), 3 + 7 + 1);
}

static void writes_leave_the_engine_room_for_reads(void **state)
{
        make();
        put_object(5000, 4096);
        fake_set_end(BACKEND_CREATE, FAKE_HELD);
        for (unsigned i = 0; i < 1000; i++) {
                struct key k = key_of(i);

                remote_offer(rig.r, NS, 0, &k, hash_of(i), 4096, REMOTE_USED_AGAIN);
        }
        step();
        assert_int_equal(fake_held(), rig.params.backend.depth / 4 * 3);
        assert_true(finds(5000, 4096));
        fake_set_end(BACKEND_CREATE, FAKE_WITHIN);
        (void)fake_release(1000);
        step();
        assert_int_equal(stats().puts, 1000);
}

static void a_write_that_came_late_is_no_trouble(void **state)
{
        make();
        fake_set_end(BACKEND_CREATE, FAKE_HUNG);
        offer(1);
        step();
        advance(rig.params.timeout_ns);
        fake_set_end(BACKEND_CREATE, FAKE_WITHIN);
        offer(1);
        step();
        assert_int_equal(stats().puts, 1);
        assert_int_equal(fake_release(1), 1); /* -EEXIST, for nothing that waits for it */
        step();
        assert_int_equal(stats().puts_existing, 0);
        assert_true(finds(1, CHUNK));
}

/* --- numbers --- */

static void rate_and_latency_are_those_of_lately(void **state)
{
        struct asked a;
        bool known;

        make();
        assert_int_equal(status().rate_bytes, 0);
        for (unsigned i = 0; i < 200; i++)
                put_object(i, CHUNK);
        fake_set_end(BACKEND_READ, FAKE_HELD);
        for (unsigned i = 0; i < 100; i++) { /* one after the other, 10 ms each, then 20 ms idle */
                assert_true(get(&a, i, SECOND));
                advance(10 * MS);
                assert_int_equal(fake_release(1), 1);
                advance(20 * MS);
                get_end(&a);
        }
        assert_in_range(status().rate_bytes, 99 * (CHUNK + HEADER), 101 * (CHUNK + HEADER));
        for (unsigned i = 0; i < 20; i++) {
                advance(20 * SECOND);
                (void)fake_release(100);
                (void)match(200, &known);
                step();
                advance(3 * MS);
                (void)fake_release(100);
                step();
        }
        assert_in_range(status().latency_ns, 1, 4 * MS);
        /* A hung read does not count in the usual time of reads. */
        fake_set_end(BACKEND_READ, FAKE_HUNG);
        assert_true(get(&a, 150, SECOND));
        advance(rig.params.timeout_ns);
        for (unsigned i = 0; i < 100; i++)
                advance(20 * SECOND);
        assert_true(status().rate_bytes > 10 * CHUNK);
}

/* --- the end --- */

static void a_stop_waits_for_nothing(void **state)
{
        static struct asked asked[8];
        static const enum fake_end ends[] = { FAKE_HELD, FAKE_HUNG };

        for (unsigned e = 0; e < ARRAY_SIZE(ends); e++) {
                rig.params.read_inflight = 5 << 20;
                make();
                fake_set_end_of_all(ends[e]);
                for (unsigned i = 0; i < ARRAY_SIZE(asked); i++)
                        assert_true(get(&asked[i], i, SECOND));
                offer(1);
                offer(2);
                step();
                assert_int_equal(fake_held(), 5 + 2);
                remote_stop(rig.r);
                for (unsigned i = 0; i < ARRAY_SIZE(asked); i++) {
                        assert_int_equal(asked[i].completed, 1);
                        assert_false(asked[i].get.found);
                }
                assert_false(get(&asked[0], 0, SECOND));
                offer(3);
                assert_int_equal(remote_iterate(rig.r, now_ns()), 0);
                rig.r = remote_free(rig.r);
                /* The engine comes back, to memory that is still there. */
                (void)fake_release(100);
                fake_reset();
        }
}

static void what_was_found_is_valid_until_its_end_even_after_a_stop(void **state)
{
        uint8_t want[CHUNK];
        struct asked a;

        make();
        put_object(1, CHUNK);
        assert_true(get(&a, 1, SECOND));
        step();
        assert_true(a.get.found);
        remote_stop(rig.r);
        fill(1, want, CHUNK);
        assert_memory_equal(a.get.payload, want, CHUNK);
        get_end(&a);
        assert_false(a.bad);
}

static void a_load_may_end_after_the_stop(void **state)
{
        make();
        rig.load_later = true;
        offer(1);
        step();
        remote_stop(rig.r);
        memset(rig.put->buffer, 1, rig.put->length);
        remote_put_loaded(rig.put, true);
        assert_int_equal(fake_count(BACKEND_CREATE), 0);
}

static void a_load_that_never_ends_does_not_keep_the_tier(void **state)
{
        make();
        rig.load_later = true;
        offer(1);
        step();
        rig.r = remote_free(rig.r);
        memset(rig.put->buffer, 1, rig.put->length); /* a disk that hung is there again */
        remote_put_loaded(rig.put, true);
        assert_int_equal(fake_count(BACKEND_CREATE), 0);
}

static void deletes_that_hang_leave_room_for_the_rest(void **state)
{
        make();
        fake_set_end(BACKEND_DELETE, FAKE_HUNG);
        for (unsigned i = 0; i < 1000; i++) {
                put_object(i, 100);
                assert_true(fake_flip(name_of(i), 0));
                assert_false(finds(i, 100));
        }
        assert_int_equal(fake_held(), DELETES_MAX);
        advance(rig.params.timeout_ns);
        assert_int_equal(status().breaker, REMOTE_CLOSED);
        put_object(5000, CHUNK);
        assert_true(finds(5000, CHUNK));
}

static void a_reload_takes_effect_at_once(void **state)
{
        make();
        rig.params.write_rate = 1;
        remote_configure(rig.r, &rig.params);
        for (unsigned i = 0; i < 10; i++)
                offer(i);
        step();
        assert_int_equal(stats().puts, 1);
        rig.params.write_rate = 0;
        rig.params.generation_interval_ns = SECOND;
        rig.params.absence_ns = MINUTE;
        remote_configure(rig.r, &rig.params);
        step();
        assert_int_equal(stats().puts, 10);
        assert_false(finds(20, CHUNK));
        advance(30 * SECOND);
        assert_int_equal(remote_presence(rig.r, NS, hash_of(20)), 0);
        for (unsigned i = 0; i < 5; i++) {
                unsigned reads = fake_count(BACKEND_READ);

                advance(SECOND);
                assert_int_equal(fake_count(BACKEND_READ), reads + 1);
        }
}

static void what_is_canceled_without_a_stop_is_tried_again(void **state)
{
        make();
        put_object(1, CHUNK);
        fake_fail(BACKEND_READ, -ECANCELED, 1);
        advance(rig.params.generation_interval_ns); /* the generation is read */
        for (unsigned i = 0; i < 10; i++)
                advance(rig.params.generation_interval_ns);
        assert_int_equal(status().unknown, 0);
        open_the_breaker();
        fake_fail(BACKEND_READ, -ECANCELED, 1);
        for (unsigned i = 0; i < 10; i++)
                advance(BREAKER_BACKOFF_MIN);
        assert_int_equal(status().breaker, REMOTE_CLOSED);
        assert_true(finds(1, CHUNK));
}

static void slow_trials_do_not_close_the_breaker(void **state)
{
        make();
        open_the_breaker();
        fake_set_end(BACKEND_READ, FAKE_HELD);
        for (unsigned i = 0; i < 10; i++) {
                advance(BREAKER_BACKOFF_MAX);
                advance(rig.params.timeout_ns - MS);
                (void)fake_release(10);
                step();
        }
        assert_int_not_equal(status().breaker, REMOTE_CLOSED);
        fake_set_end(BACKEND_READ, FAKE_WITHIN);
        advance(BREAKER_BACKOFF_MAX);
        advance(BREAKER_BACKOFF_MAX);
        assert_int_equal(status().breaker, REMOTE_CLOSED);
}

static int cannot_open(struct backend **ret, const struct backend_params *params,
                       char ret_error[static 256])
{
        strcpy(ret_error, "libfake.so.1 is not there: install libfake1");
        return -ELIBACC;
}

static void a_backend_that_cannot_be_opened_says_why(void **state)
{
        struct backend_ops ops = fake_backend;
        char error[256] = "";

        ops.open = cannot_open;
        rig.params.ops = &ops;
        assert_int_equal(remote_new(&rig.r, &rig.params, error), -ELIBACC);
        assert_string_equal(error, "libfake.so.1 is not there: install libfake1");
        assert_null(rig.r);
        assert_null(remote_free(NULL));
}

static int open_without_memory(struct backend **ret, const struct backend_params *params,
                               char ret_error[static 256])
{
        return -ENOMEM;
}

static void a_back_end_without_memory_is_a_sentence(void **state)
{
        struct backend_ops ops = fake_backend;
        char error[256] = "what was here before";

        ops.open = open_without_memory;
        rig.params.ops = &ops;
        assert_int_equal(remote_new(&rig.r, &rig.params, error), -ENOMEM);
        assert_string_equal(error, "the shared tier cannot be started: Cannot allocate memory");
        rig.r = NULL;
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)
        const struct CMUnitTest tests[] = {
                TEST(a_back_end_without_memory_is_a_sentence),
                TEST(what_one_host_writes_another_finds),
                TEST(a_get_may_be_ended_from_within),
                TEST(a_chunk_larger_than_all_before_is_read_twice),
                TEST(a_local_namespace_has_nothing_there),
                TEST(what_is_of_use_is_marked_once_a_day),
                TEST(it_works_on_another_thread),
                TEST(gets_of_one_key_are_reads_of_their_own),
                TEST(a_get_under_way_is_a_miss_at_its_deadline),
                TEST(one_large_chunk_is_not_made_room_for_for_ever),
                TEST(a_read_that_hangs_for_longer_than_the_timeout_is_late_once),
                TEST(a_deadline_that_has_passed_reads_nothing),
                TEST(gets_wait_for_a_buffer_in_their_order),
                TEST(a_later_get_does_not_overtake_those_that_wait),
                TEST(a_get_of_one_tenant_does_not_wait_behind_all_of_anothers),
                TEST(a_tenant_whose_pool_is_full_does_not_have_all_buffers),
                TEST(an_engine_that_hangs_takes_no_more_than_the_buffers),
                TEST(errors_open_the_breaker_and_trials_close_it),
                TEST(after_a_long_time_generations_are_read_as_soon_as_the_breaker_closes),
                TEST(an_engine_that_hangs_opens_the_breaker_and_what_waits_is_a_miss),
                TEST(slow_reads_open_the_breaker),
                TEST(misses_and_existing_objects_are_no_errors),
                TEST(a_full_engine_stops_writes_alone),
                TEST(writes_that_are_refused_do_not_open_the_breaker),
                TEST(many_writes_at_once_that_are_refused_do_not_either),
                TEST(nothing_wrong_is_served),
                TEST(swapped_objects_are_found_out),
                TEST(an_object_of_a_later_version_is_left_to_who_can_read_it),
                TEST(a_rejected_object_that_cannot_be_deleted_is_no_storm),
                TEST(what_is_offered_is_as_the_setting_says),
                TEST(a_chunk_is_written_once),
                TEST(what_is_not_here_any_more_is_dropped),
                TEST(writes_keep_to_their_rate),
                TEST(the_queue_drops_the_oldest),
                TEST(what_is_about_to_be_evicted_is_queued_where_there_is_room),
                TEST(writes_stay_within_their_buffers),
                TEST(writes_leave_the_engine_room_for_reads),
                TEST(a_write_that_came_late_is_no_trouble),
                TEST(rate_and_latency_are_those_of_lately),
                TEST(a_stop_waits_for_nothing),
                TEST(what_was_found_is_valid_until_its_end_even_after_a_stop),
                TEST(a_load_may_end_after_the_stop),
                TEST(a_load_that_never_ends_does_not_keep_the_tier),
                TEST(deletes_that_hang_leave_room_for_the_rest),
                TEST(a_reload_takes_effect_at_once),
                TEST(what_is_canceled_without_a_stop_is_tried_again),
                TEST(slow_trials_do_not_close_the_breaker),
                TEST(a_backend_that_cannot_be_opened_says_why),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

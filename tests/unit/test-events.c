/* SPDX-License-Identifier: Apache-2.0 */
/* The rings of events over a real pool and store: what is written, what a reader finds, and when a
 * request that waits is answered. The test passes the time. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "checked.h"
#include "events/internal.h"
#include "tiers.h"

enum { RECORDS = 8, LENGTH = 5000 };
#define MS UINT64_C(1000000)

static struct tiers t;
static struct events *events;
static struct events_reply reply;

static void make(uint64_t ring_bytes, uint16_t tenant)
{
        struct events_tenant tenants[] = { { .store_tenant = tenant, .pool = t.pool } };

        assert_int_equal(events_new(&events, &(struct events_params){ .store = t.store,
                                                                      .tenants = tenants,
                                                                      .n_tenants = 1,
                                                                      .ring_bytes = ring_bytes }),
                         0);
}

/* Makes a ring of this size for the tenant of the namespace, in place of the one before. */
static void make_again(uint64_t ring_bytes)
{
        events_free(events);
        make(ring_bytes, store_namespace_get(t.store, t.ns)->tenant);
}

static int setup(void **state)
{
        t = (struct tiers){ .limit = 64 << 20 };
        tiers_open(&t);
        make_again(RECORDS * sizeof(struct record));
        return 0;
}

static int teardown(void **state)
{
        events_stop(events);
        events = events_free(events);
        tiers_remove(&t);
        return 0;
}

static struct key key_of(uint32_t n)
{
        return (struct key){ .bytes = { 1, (uint8_t)n, (uint8_t)(n >> 8) } };
}

/* Makes a chunk resident, or drops it. Each is an event. */
static void add(uint32_t ns, uint32_t n)
{
        struct key key = key_of(n);
        uint32_t chunk;

        assert_int_equal(
                pool_acquire(t.pool, ns, &key, cache_hash(t.cache, ns, &key), LENGTH, 0, &chunk),
                0);
        pool_commit(t.pool, chunk, 0);
        pool_unpin(t.pool, chunk);
}

static void drop(uint32_t ns, uint32_t n)
{
        struct key key = key_of(n);

        pool_drop(t.pool, pool_find(t.pool, ns, &key, cache_hash(t.cache, ns, &key)));
}

static struct wire_events_result head(void)
{
        struct wire_events_result h;

        memcpy(&h, reply.body, sizeof(h));
        return h;
}

static struct wire_event event(unsigned i)
{
        struct wire_event e;

        assert_in_range(i, 0, reply.head.count - 1);
        memcpy(&e, reply.body + sizeof(struct wire_events_result) + i * sizeof(e), sizeof(e));
        return e;
}

/* Reads from `from` on. Returns whether there is no gap. */
static bool read_from(uint64_t from, unsigned max)
{
        memset(&reply, 0xee, sizeof(reply));
        events_read(events, 0, events->epoch, from, max, &reply);
        assert_int_equal(head().epoch, events->epoch);
        assert_in_range(reply.bytes, sizeof(struct wire_events_result), sizeof(reply.body));
        return !(head().flags & WIRE_EVENTS_GAP);
}

static struct events_stats stats(void)
{
        struct events_stats s;

        events_get_stats(events, &s);
        return s;
}

/* --- the ring --- */

static void a_ring_keeps_the_latest_events(void **state)
{
        for (uint32_t n = 0; n < 20; n++) {
                add(t.ns, n);
                for (uint64_t from = 0; from <= n + 3; from++) {
                        uint64_t first = n + 2 > RECORDS ? n + 2 - RECORDS : 1, next = n + 2;

                        assert_int_equal(read_from(from, 100), from >= first && from <= next);
                        assert_int_equal(head().first, first);
                        assert_int_equal(head().next, next);
                        assert_int_equal(reply.head.value64, next);
                        if (from < first || from > next) {
                                assert_int_equal(reply.head.count, 0);
                                continue;
                        }
                        assert_int_equal(reply.head.count, next - from);
                        for (unsigned i = 0; i < reply.head.count; i++) {
                                struct key key = key_of((uint32_t)(from - 1) + i);
                                struct wire_event e = event(i);

                                assert_memory_equal(&e.key, &key, sizeof(key));
                                assert_int_equal(e.kind, WIRE_EVENT_STORED);
                                assert_int_equal(e.tier, WIRE_TIER_MEMORY);
                                assert_int_equal(e.length, LENGTH);
                                assert_int_equal(e.namespace_number, 1);
                                assert_true(e.time_ms > 0);
                        }
                }
        }
        assert_int_equal(stats().written, 20);
        assert_int_equal(stats().overwritten, 20 - RECORDS);
        assert_int_equal(stats().ring_bytes, RECORDS * sizeof(struct record));
}

static void a_slow_reader_finds_a_gap(void **state)
{
        uint64_t gaps = stats().gaps;

        add(t.ns, 1);
        assert_true(read_from(1, 1));
        for (uint32_t n = 2; n < 2 + RECORDS; n++)
                add(t.ns, n);
        assert_false(read_from(1, 1));
        assert_int_equal(stats().gaps, gaps + 1);
        assert_int_equal(reply.head.value64, RECORDS + 2);
        assert_true(read_from(reply.head.value64, 1));
        assert_int_equal(reply.head.count, 0);
}

static void another_epoch_is_a_gap(void **state)
{
        uint64_t epochs[] = { 0, events->epoch + 2, ~events->epoch };

        add(t.ns, 1);
        assert_int_not_equal(events->epoch, 0);
        for (unsigned i = 0; i < ARRAY_SIZE(epochs); i++) {
                events_read(events, 0, epochs[i], 1, 10, &reply);
                assert_int_equal(head().flags, WIRE_EVENTS_GAP);
                assert_int_equal(reply.head.value64, 2);
        }
}

static void a_volume_that_leaves_is_a_gap_for_each_reader(void **state)
{
        add(t.ns, 1);
        events->watch.volumes_changed(events->watch.userdata);
        for (uint64_t from = 0; from <= 2; from++)
                assert_false(read_from(from, 10));
        assert_true(read_from(3, 10));
        assert_int_equal(head().first, 3);
        add(t.ns, 2);
        assert_true(read_from(3, 10));
        assert_int_equal(reply.head.count, 1);
        assert_int_equal(stats().resets, 1);
        assert_int_equal(stats().overwritten, 1);
}

static void a_reply_has_at_most_the_events_wanted(void **state)
{
        for (uint32_t n = 0; n < 6; n++)
                add(t.ns, n);
        assert_true(read_from(2, 3));
        assert_int_equal(reply.head.count, 3);
        assert_int_equal(reply.head.value64, 5);
        assert_true(read_from(5, 3));
        assert_int_equal(reply.head.count, 2);
        assert_int_equal(reply.head.value64, 7);
}

static void chunks_of_other_tenants_are_no_events(void **state)
{
        uint64_t next = events->rings[0].next;

        events_free(events);
        make(RECORDS * sizeof(struct record),
             (uint16_t)(store_namespace_get(t.store, t.ns)->tenant + 1));
        add(t.ns, 1);
        drop(t.ns, 1);
        add(t.ns, 2);
        assert_int_equal(events->rings[0].next, next);
        events_snapshot(events, 0, 0, 100, &reply);
        assert_int_equal(reply.head.count, 0);
        events_namespace_removed(events, t.ns);
        assert_int_equal(events->rings[0].next, next);
}

static void the_size_is_rounded_down_to_a_power_of_two(void **state)
{
        static const uint64_t sizes[] = { 1, 64, 127, 128, 1000, 1 << 20, (1 << 20) - 1 };

        for (unsigned i = 0; i < ARRAY_SIZE(sizes); i++) {
                uint64_t n;

                make_again(sizes[i]);
                n = events->rings[0].n_records;
                assert_int_equal(n & (n - 1), 0);
                assert_true(n == 1 || n * sizeof(struct record) <= sizes[i]);
                assert_true(n * 2 * sizeof(struct record) > sizes[i]);
                add(t.ns, i);
                add(t.ns, 1000 + i);
                assert_int_equal(events->rings[0].next, 3);
        }
}

/* --- names --- */

static void a_reply_names_each_namespace_once(void **state)
{
        uint32_t b = tiers_namespace(&t, "b");
        struct wire_event_name name;
        const uint8_t *at;

        add(t.ns, 1);
        add(b, 2);
        add(t.ns, 3);
        add(b, 4);
        assert_true(read_from(1, 10));
        assert_int_equal(reply.head.value, 2);
        at = reply.body + sizeof(struct wire_events_result) + 4 * sizeof(struct wire_event);
        memcpy(&name, at, sizeof(name));
        assert_int_equal(name.namespace_number, 1);
        assert_string_equal((const char *)at + sizeof(name),
                            store_namespace_get(t.store, t.ns)->name);
        at += round_up(sizeof(name) + name.name_length, 8);
        memcpy(&name, at, sizeof(name));
        assert_int_equal(name.namespace_number, 2);
        assert_int_equal(name.name_length, 1);
        assert_memory_equal(at + sizeof(name), "b\0\0\0\0\0\0\0", 8);
        assert_ptr_equal(at + 16, reply.body + reply.bytes);
        /* the next reply has them again */
        assert_true(read_from(4, 10));
        assert_int_equal(reply.head.value, 1);
}

static void a_removed_namespace_is_an_event_and_its_number_is_not_used_again(void **state)
{
        add(t.ns, 1);
        events_namespace_removed(events, t.ns);
        events_namespace_removed(events, t.ns);
        events_namespace_removed(NULL, t.ns);
        add(t.ns, 2);
        assert_true(read_from(1, 10));
        assert_int_equal(reply.head.count, 3);
        assert_int_equal(event(0).namespace_number, 1);
        assert_int_equal(event(1).kind, WIRE_EVENT_NAMESPACE_REMOVED);
        assert_int_equal(event(1).namespace_number, 1);
        assert_int_equal(event(1).tier, 0);
        assert_int_equal(event(2).namespace_number, 2);
        assert_int_equal(reply.head.value, 1); /* only the present one has a name */
}

/* Binds as binding_of() does. */
static void bind_namespace(struct events_ring *r, uint32_t id, uint32_t number)
{
        uint32_t place = id * UINT32_C(2654435761) % BINDINGS;

        while (r->bindings[place].id != 0)
                place = (place + 1) % BINDINGS;
        r->bindings[place] = (struct binding){ .id = id, .number = number };
        r->n_bindings++;
}

/* Bindings that collide, and removals in any order: each is found as long as it exists. */
static void bindings_survive_the_removal_of_others(void **state)
{
        enum { IDS = 3000 };
        static uint32_t numbers[IDS]; /* 0: not bound */
        struct events_ring *r = &events->rings[0];
        uint32_t seed = 7, last = 0;

        for (unsigned round = 0; round < 60000; round++) {
                uint32_t i, id;

                seed = seed * 1664525 + 1013904223;
                i = seed >> 8 & 0xfff;
                if (i >= IDS)
                        continue;
                id = (i + 1) * 2048; /* many have one place */
                if (numbers[i] == 0) {
                        bind_namespace(r, id, ++last);
                        numbers[i] = last;
                } else {
                        assert_non_null(binding_find(r, id, numbers[i]));
                        assert_null(binding_find(r, id, numbers[i] + 1));
                        if (seed >> 31)
                                continue;
                        assert_int_equal(binding_remove(r, id), numbers[i]);
                        numbers[i] = 0;
                }
        }
        for (uint32_t i = 0; i < IDS; i++)
                assert_int_equal(binding_find(r, (i + 1) * 2048, numbers[i]) != NULL,
                                 numbers[i] != 0);
}

static void a_full_table_of_names_is_a_gap(void **state)
{
        struct events_ring *r = &events->rings[0];

        add(t.ns, 1);
        for (uint32_t id = 1; r->n_bindings < BINDINGS / 2; id++)
                bind_namespace(r, id + 100000, id);
        r->latest = NULL;
        add(tiers_namespace(&t, "new"), 2);
        assert_false(read_from(1, 10));
        assert_int_equal(r->n_bindings, 1);
        assert_true(read_from(head().first, 10));
        assert_int_equal(reply.head.count, 1);
}

static void replies_with_long_names_fit(void **state)
{
        enum { NAMES = 300 };
        char name[WIRE_MAX_NAME + 1];
        uint64_t from = 1;
        unsigned replies = 0, names = 0;

        make_again(1024 * sizeof(struct record));
        memset(name, 'x', sizeof(name));
        name[WIRE_MAX_NAME] = '\0';
        for (uint32_t i = 0; i < NAMES; i++) {
                snprintf(name, 8, "%07u", i);
                name[7] = 'x';
                add(tiers_namespace(&t, name), i);
        }
        while (from <= NAMES) {
                assert_true(read_from(from, WIRE_MAX_KEYS));
                assert_true(reply.head.count > 0);
                assert_int_equal(reply.head.count, reply.head.value);
                from = reply.head.value64;
                replies++;
        }
        assert_in_range(replies, 2, 3);
        from = 0;
        do {
                events_snapshot(events, 0, from, WIRE_MAX_KEYS, &reply);
                assert_int_equal(reply.head.count, reply.head.value);
                names += reply.head.value;
                from = reply.head.value64;
        } while (from != 0);
        assert_int_equal(names, NAMES);
}

/* --- snapshots --- */

static void a_snapshot_has_what_is_resident(void **state)
{
        unsigned maxes[] = { 1, 3, 64, 1000 };

        for (uint32_t n = 0; n < 200; n++)
                add(t.ns, n);
        for (uint32_t n = 0; n < 200; n += 2)
                drop(t.ns, n);
        for (unsigned i = 0; i < ARRAY_SIZE(maxes); i++) {
                bool seen[200] = { 0 };
                uint64_t cursor = 0;

                do {
                        events_snapshot(events, 0, cursor, maxes[i], &reply);
                        assert_in_range(reply.head.count, 0, maxes[i]);
                        for (unsigned k = 0; k < reply.head.count; k++) {
                                struct wire_event e = event(k);

                                assert_int_equal(e.kind, WIRE_EVENT_STORED);
                                assert_int_equal(e.time_ms, 0);
                                assert_false(seen[e.key.bytes[1]]);
                                seen[e.key.bytes[1]] = true;
                        }
                        cursor = reply.head.value64;
                } while (cursor != 0);
                for (uint32_t n = 0; n < 200; n++)
                        assert_int_equal(seen[n], n % 2);
        }
}

static void any_cursor_ends(void **state)
{
        uint64_t seed = 88172645463325252u;

        for (uint32_t n = 0; n < 10; n++)
                add(t.ns, n);
        for (unsigned i = 0; i < 10000; i++) {
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                events_snapshot(events, 0, i % 2 ? seed >> i % 64 : UINT64_C(1) << 63 | i % 64, 5,
                                &reply);
                assert_in_range(reply.head.count, 0, 5);
        }
}

/* --- waiting --- */

struct asked {
        struct events_wait wait;
        unsigned completed;
};

static void on_answer(struct events_wait *wait)
{
        container_of(wait, struct asked, wait)->completed++;
}

static int ask(struct asked *a, uint64_t from, uint32_t max, uint64_t now_ns, uint64_t wait_ns)
{
        *a = (struct asked){ .wait = { .from = from,
                                       .max = max,
                                       .deadline_ns = now_ns + wait_ns,
                                       .complete = on_answer } };
        list_init(&a->wait.node);
        return events_ask(events, 0, events->epoch, &a->wait, now_ns);
}

static uint64_t iterate(uint64_t now_ns)
{
        uint64_t deadline;

        while (events_iterate(events, now_ns, &deadline))
                ;
        return deadline;
}

/* Asserts that the loop sleeps at `now_ns` until `at_ns`, answers the request then, and sleeps
 * until `next_ns`. */
static void expect_answer(const struct asked *a, uint64_t now_ns, uint64_t at_ns, uint64_t next_ns)
{
        assert_int_equal(iterate(now_ns), at_ns);
        assert_int_equal(a->completed, 0);
        assert_int_equal(iterate(at_ns), next_ns);
        assert_int_equal(a->completed, 1);
}

static void a_request_waits_for_the_first_event_and_a_moment(void **state)
{
        struct asked a;

        assert_int_equal(ask(&a, 1, 100, 1000 * MS, 500 * MS), EVENTS_WAIT);
        assert_int_equal(stats().waiting, 1);
        assert_int_equal(iterate(1000 * MS), 1500 * MS);
        assert_int_equal(iterate(1400 * MS), 1500 * MS);
        add(t.ns, 1);
        assert_int_equal(iterate(1401 * MS), 1403 * MS);
        add(t.ns, 2); /* does not prolong the moment */
        expect_answer(&a, 1402 * MS, 1403 * MS, 0);
        assert_int_equal(a.wait.result, 0);
        assert_int_equal(stats().waiting, 0);
}

static void a_wait_ends_at_its_deadline(void **state)
{
        struct asked a, b;

        assert_int_equal(ask(&a, 1, 1, 1000 * MS, 0), 0);
        assert_int_equal(ask(&a, 1, 1, 1000 * MS, 50 * MS), EVENTS_WAIT);
        assert_int_equal(ask(&b, 1, 1, 1000 * MS, 20 * MS), EVENTS_WAIT);
        expect_answer(&b, 1001 * MS, 1020 * MS, 1050 * MS);
        expect_answer(&a, 1020 * MS, 1050 * MS, 0);
}

static void enough_events_are_answered_at_once(void **state)
{
        struct asked a;

        add(t.ns, 1);
        add(t.ns, 2);
        assert_int_equal(ask(&a, 1, 2, 0, 50 * MS), 0);
        assert_int_equal(ask(&a, 1, 3, 1000 * MS, 50 * MS), EVENTS_WAIT);
        expect_answer(&a, 1001 * MS, 1002 * MS, 0);
        assert_int_equal(ask(&a, 3, 2, 1000 * MS, 50 * MS), EVENTS_WAIT);
        add(t.ns, 3);
        add(t.ns, 4);
        assert_int_equal(iterate(1000 * MS), 0);
        assert_int_equal(a.completed, 1);
}

static void a_gap_ends_a_wait(void **state)
{
        struct asked a;

        assert_int_equal(ask(&a, 2, 1, 1000 * MS, 50 * MS), 0); /* beyond the end */
        assert_int_equal(ask(&a, 0, 1, 1000 * MS, 50 * MS), 0);
        assert_int_equal(events_ask(events, 0, 0, &a.wait, 0), 0);
        assert_int_equal(ask(&a, 1, 100, 1000 * MS, 50 * MS), EVENTS_WAIT);
        events->watch.volumes_changed(events->watch.userdata);
        iterate(1001 * MS);
        iterate(1003 * MS);
        assert_int_equal(a.completed, 1);
        assert_false(read_from(1, 1));
}

static void many_waits_are_answered_over_several_iterations(void **state)
{
        enum { MANY = 30 };
        struct asked a[MANY];
        unsigned completed = 0, iterations = 0;
        uint64_t deadline;
        bool more;

        for (unsigned i = 0; i < MANY; i++)
                assert_int_equal(ask(&a[i], 1, 100, 1000 * MS, 50 * MS), EVENTS_WAIT);
        add(t.ns, 1);
        iterate(1000 * MS);
        do {
                unsigned before = completed;

                more = events_iterate(events, 1002 * MS, &deadline);
                completed = 0;
                for (unsigned i = 0; i < MANY; i++)
                        completed += a[i].completed;
                assert_in_range(completed - before, 1, 8);
                iterations++;
        } while (more);
        assert_int_equal(completed, MANY);
        assert_int_equal(iterations, 4);
}

static void on_answer_read(struct events_wait *wait)
{
        container_of(wait, struct asked, wait)->completed++;
        assert_true(read_from(wait->from, wait->max));
}

static void an_iteration_sends_a_bounded_number_of_events(void **state)
{
        enum { MANY = 30, EVENTS = 600 };
        struct asked a[MANY];
        unsigned completed = 0;
        uint64_t deadline, before;
        bool more;

        make_again(2 * EVENTS * sizeof(struct record));
        for (unsigned i = 0; i < EVENTS / 2; i++) {
                add(t.ns, 1);
                drop(t.ns, 1);
        }
        for (unsigned i = 0; i < MANY; i++) {
                assert_int_equal(ask(&a[i], 1, EVENTS + 1, 1000 * MS, 50 * MS), EVENTS_WAIT);
                a[i].wait.complete = on_answer_read;
        }
        do {
                before = stats().sent;
                more = events_iterate(events, 1002 * MS, &deadline);
                assert_in_range(stats().sent - before, 1, 2 * EVENTS);
        } while (more);
        for (unsigned i = 0; i < MANY; i++)
                completed += a[i].completed;
        assert_int_equal(completed, MANY);
}

static void a_wait_is_cancelled_wherever_it_is(void **state)
{
        struct asked a, b, c, eight[8];
        uint64_t deadline;

        assert_int_equal(ask(&a, 1, 100, 1000 * MS, 50 * MS), EVENTS_WAIT);
        events_cancel(&a.wait);
        assert_int_equal(a.completed, 1);
        assert_int_equal(a.wait.result, -ECANCELED);
        assert_int_equal(iterate(1001 * MS), 0);
        for (unsigned i = 0; i < ARRAY_SIZE(eight); i++)
                assert_int_equal(ask(&eight[i], 1, 1, 1000 * MS, 50 * MS), EVENTS_WAIT);
        /* the ninth is due and not answered in the same iteration */
        assert_int_equal(ask(&b, 1, 1, 1000 * MS, 50 * MS), EVENTS_WAIT);
        add(t.ns, 1);
        assert_true(events_iterate(events, 1001 * MS, &deadline));
        assert_int_equal(b.completed, 0);
        events_cancel(&b.wait);
        assert_int_equal(b.completed, 1);
        assert_false(events_iterate(events, 1001 * MS, &deadline));
        assert_int_equal(ask(&c, 2, 1, 1000 * MS, 50 * MS), EVENTS_WAIT);
        events_stop(events);
        assert_int_equal(c.completed, 1);
        assert_int_equal(c.wait.result, -ESHUTDOWN);
        assert_int_equal(ask(&c, 2, 1, 1000 * MS, 50 * MS), -ESHUTDOWN);
        assert_int_equal(stats().waiting, 0);
}

#define EVENTS_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                EVENTS_TEST(a_ring_keeps_the_latest_events),
                EVENTS_TEST(a_slow_reader_finds_a_gap),
                EVENTS_TEST(another_epoch_is_a_gap),
                EVENTS_TEST(a_volume_that_leaves_is_a_gap_for_each_reader),
                EVENTS_TEST(a_reply_has_at_most_the_events_wanted),
                EVENTS_TEST(chunks_of_other_tenants_are_no_events),
                EVENTS_TEST(the_size_is_rounded_down_to_a_power_of_two),
                EVENTS_TEST(a_reply_names_each_namespace_once),
                EVENTS_TEST(a_removed_namespace_is_an_event_and_its_number_is_not_used_again),
                EVENTS_TEST(bindings_survive_the_removal_of_others),
                EVENTS_TEST(a_full_table_of_names_is_a_gap),
                EVENTS_TEST(replies_with_long_names_fit),
                EVENTS_TEST(a_snapshot_has_what_is_resident),
                EVENTS_TEST(any_cursor_ends),
                EVENTS_TEST(a_request_waits_for_the_first_event_and_a_moment),
                EVENTS_TEST(a_wait_ends_at_its_deadline),
                EVENTS_TEST(enough_events_are_answered_at_once),
                EVENTS_TEST(a_gap_ends_a_wait),
                EVENTS_TEST(many_waits_are_answered_over_several_iterations),
                EVENTS_TEST(an_iteration_sends_a_bounded_number_of_events),
                EVENTS_TEST(a_wait_is_cancelled_wherever_it_is),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

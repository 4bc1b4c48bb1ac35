/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the shared tier that have no clock of their own: objects, the breaker, buffers,
 * presence, searches, the queue, deadlines, the file of generations. */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "checked.h"
#include "remote/backend.h"
#include "remote/breaker.h"
#include "remote/buffers.h"
#include "remote/completions.h"
#include "base/deadlines.h"
#include "remote/generations.h"
#include "remote/object.h"
#include "remote/presence.h"
#include "remote/queue.h"
#include "remote/rate.h"
#include "remote/search.h"

#define MS     UINT64_C(1000000)
#define SECOND UINT64_C(1000000000)

/* --- objects --- */

static struct remote_object example(void)
{
        struct remote_object o = {
                .generation = 9, .length = 70000, .crc = 0xabcdef01, .created_ms = 1700000000123
        };

        memset(o.key.bytes, 0x5a, sizeof(o.key.bytes));
        memset(o.identity.bytes, 0xc3, sizeof(o.identity.bytes));
        return o;
}

static void an_object_is_read_as_it_was_written(void **state)
{
        struct remote_object o = example(), got = { 0 };
        uint8_t header[REMOTE_HEADER_BYTES];

        remote_object_write(&o, header);
        assert_memory_equal(header, "KVCREMOT", 8);
        assert_int_equal(header[8], 1);
        assert_int_equal(header[16], 9);
        assert_int_equal(header[88] | header[89] << 8 | header[90] << 16, 70000);
        assert_int_equal(remote_object_read(header, 4096 + 70000, &o, &got), REMOTE_ACCEPTED);
        assert_int_equal(got.length, o.length);
        assert_int_equal(got.crc, o.crc);
        assert_int_equal(got.created_ms, o.created_ms);
        assert_int_equal(remote_object_read(header, UINT64_MAX, &o, &got), REMOTE_ACCEPTED);
}

static void every_bit_of_a_header_counts(void **state)
{
        struct remote_object o = example(), got = { .length = 77 };
        uint8_t header[REMOTE_HEADER_BYTES];

        remote_object_write(&o, header);
        for (unsigned bit = 0; bit < 8 * REMOTE_HEADER_BYTES; bit++) {
                header[bit / 8] ^= (uint8_t)(1 << bit % 8);
                assert_int_equal(remote_object_read(header, UINT64_MAX, &o, &got),
                                 REMOTE_BAD_HEADER);
                header[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
        assert_int_equal(got.length, 77);
}

static void an_object_of_another_is_refused(void **state)
{
        struct remote_object o = example(), other, got;
        uint8_t header[REMOTE_HEADER_BYTES];

        remote_object_write(&o, header);
        other = o;
        other.key.bytes[31] ^= 1;
        assert_int_equal(remote_object_read(header, UINT64_MAX, &other, &got), REMOTE_OTHER_OBJECT);
        other = o;
        other.identity.bytes[31] ^= 1;
        assert_int_equal(remote_object_read(header, UINT64_MAX, &other, &got), REMOTE_OTHER_OBJECT);
        other = o;
        other.generation++;
        assert_int_equal(remote_object_read(header, UINT64_MAX, &other, &got), REMOTE_OTHER_OBJECT);
}

static void the_length_is_that_of_the_object(void **state)
{
        static const uint64_t sizes[] = { 4096, 4096 + 69999, 4096 + 70001, UINT64_MAX - 1 };
        struct remote_object o = example(), got;
        uint8_t header[REMOTE_HEADER_BYTES];

        remote_object_write(&o, header);
        for (unsigned i = 0; i < ARRAY_SIZE(sizes); i++)
                assert_int_equal(remote_object_read(header, sizes[i], &o, &got), REMOTE_BAD_LENGTH);
        assert_int_equal(remote_object_read(header, 4095, &o, &got), REMOTE_BAD_HEADER);
        o.length = REMOTE_CHUNK_MAX + 1;
        remote_object_write(&o, header);
        assert_int_equal(remote_object_read(header, UINT64_C(4096) + o.length, &o, &got),
                         REMOTE_BAD_LENGTH);
        o.length = 0;
        remote_object_write(&o, header);
        assert_int_equal(remote_object_read(header, 4096, &o, &got), REMOTE_BAD_LENGTH);
}

static void a_generation_is_no_chunk(void **state)
{
        struct remote_object o = example(), got;
        struct remote_identity id = o.identity, found;
        uint8_t header[REMOTE_HEADER_BYTES];
        uint64_t generation = 0;

        remote_generation_write(&id, 1234567, 5, header);
        assert_int_equal(remote_generation_read(header, 4096, &id, &generation), REMOTE_ACCEPTED);
        assert_int_equal(generation, 1234567);
        remote_generation_identity(header, &found);
        assert_memory_equal(&found, &id, sizeof(id));
        assert_int_equal(remote_generation_read(header, 4097, &id, &generation), REMOTE_BAD_LENGTH);
        o = (struct remote_object){ .identity = id, .generation = 1234567 };
        assert_int_equal(remote_object_read(header, 4096, &o, &got), REMOTE_BAD_LENGTH);
        id.bytes[0] ^= 1;
        assert_int_equal(remote_generation_read(header, 4096, &id, &generation),
                         REMOTE_OTHER_OBJECT);
        id.bytes[0] ^= 1;
        header[100] ^= 1;
        assert_int_equal(remote_generation_read(header, 4096, &id, &generation), REMOTE_BAD_HEADER);
        o = example();
        remote_object_write(&o, header);
        assert_int_equal(remote_generation_read(header, UINT64_MAX, &id, &generation),
                         REMOTE_OTHER_OBJECT);
}

static void names_are_as_the_format_says(void **state)
{
        struct remote_object o = example();
        char name[REMOTE_NAME_MAX], prefix[REMOTE_PREFIX_MAX + 50];

        remote_object_name("a/b", 9, &o.identity, &o.key, name);
        assert_string_equal(name, "a/b/9/c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3/5a/"
                                  "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a"
                                  "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a");
        remote_generation_name("a/b", &o.identity, name);
        assert_string_equal(name, "a/b/generation/c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3");
        memset(prefix, 'p', sizeof(prefix) - 1);
        prefix[sizeof(prefix) - 1] = 0;
        remote_object_name(prefix, UINT64_MAX, &o.identity, &o.key, name);
        assert_int_equal(strlen(name), REMOTE_PREFIX_MAX + 1 + 20 + 1 + 32 + 1 + 2 + 1 + 64);
}

static void hosts_have_an_identity_in_common_only_with_all_of_it(void **state)
{
        struct remote_identity a, b;
        static const struct {
                const char *secret, *name, *fingerprint;
        } others[] = { { "t", "model", "fp" },
                       { "", "model", "fp" },
                       { "s", "mode", "lfp" },
                       { "s", "model", "fq" },
                       { "sm", "odel", "fp" } };

        assert_int_equal(remote_identify("s", 1, "model", "fp", &a), 0);
        assert_int_equal(remote_identify("s", 1, "model", "fp", &b), 0);
        assert_memory_equal(&a, &b, sizeof(a));
        for (unsigned i = 0; i < ARRAY_SIZE(others); i++) {
                assert_int_equal(remote_identify(others[i].secret, strlen(others[i].secret),
                                                 others[i].name, others[i].fingerprint, &b),
                                 0);
                assert_memory_not_equal(&a, &b, sizeof(a));
        }
        /* Every host has to compute the same: this one is from another implementation. */
        assert_int_equal(remote_identify(NULL, 0, "n", "f", &a), 0);
        assert_int_equal(a.bytes[0], 0x55);
        assert_int_equal(a.bytes[31], 0x40);
}

/* --- the breaker --- */

static void half_of_the_operations_failing_opens_the_breaker(void **state)
{
        struct breaker b;

        breaker_init(&b, SECOND, 100 * SECOND);
        for (unsigned i = 0; i < 7; i++)
                assert_false(breaker_count(&b, i % 2 == 0, MS, 100 * SECOND));
        assert_true(breaker_count(&b, true, MS, 101 * SECOND));
        assert_int_equal(b.state, REMOTE_OPEN);
        assert_int_equal(b.since_ns, 101 * SECOND);
        assert_int_equal(b.trips, 1);
        /* An operation that ends now began before. */
        assert_false(breaker_count(&b, true, MS, 101 * SECOND));
}

static void a_third_failing_does_not(void **state)
{
        struct breaker b;

        breaker_init(&b, SECOND, 0);
        for (unsigned i = 0; i < 3000; i++)
                assert_false(breaker_count(&b, i % 3 == 0, MS, i * 10 * MS));
}

static void what_is_past_the_window_does_not_count(void **state)
{
        struct breaker b;

        breaker_init(&b, SECOND, 0);
        for (unsigned i = 0; i < 4; i++)
                (void)breaker_count(&b, true, MS, SECOND);
        (void)breaker_count(&b, false, MS, SECOND);
        for (unsigned i = 0; i < 3; i++)
                assert_false(breaker_count(&b, i != 1, MS, 12 * SECOND));
        assert_false(breaker_count(&b, false, MS, 5000 * SECOND));
        for (unsigned i = 0; i < 4; i++)
                assert_false(breaker_count(&b, true, MS, 9000 * SECOND));
}

static void some_failures_in_a_row_are_enough(void **state)
{
        struct breaker b;

        breaker_init(&b, SECOND, 0);
        for (unsigned i = 0; i < BREAKER_IN_A_ROW - 1; i++)
                assert_false(breaker_count(&b, true, MS, i * 60 * SECOND));
        assert_true(breaker_count(&b, true, MS, 3600 * SECOND));
}

static void slow_operations_open_it_too(void **state)
{
        struct breaker b;

        breaker_init(&b, SECOND, 0);
        for (unsigned i = 0; i < BREAKER_FEWEST - 1; i++)
                assert_false(breaker_count(&b, false, SECOND + 1, i));
        assert_true(breaker_count(&b, false, SECOND + 1, 10));
}

static void trials_come_after_a_time_that_doubles(void **state)
{
        uint64_t now = 0, backoff = BREAKER_BACKOFF_MIN;
        struct breaker b;

        breaker_init(&b, SECOND, now);
        assert_int_equal(breaker_next(&b), 0);
        assert_false(breaker_trial(&b, now));
        for (unsigned i = 0; i < BREAKER_IN_A_ROW; i++)
                (void)breaker_count(&b, true, MS, now);
        for (unsigned i = 0; i < 12; i++) {
                assert_int_equal(breaker_next(&b), now + backoff);
                assert_false(breaker_trial(&b, now + backoff - 1));
                now += backoff;
                assert_true(breaker_trial(&b, now));
                assert_int_equal(b.state, REMOTE_HALF_OPEN);
                assert_false(breaker_trial(&b, now + 3600 * SECOND)); /* a single trial at a time */
                assert_int_equal(breaker_next(&b), 0);
                breaker_trial_end(&b, true, now);
                assert_int_equal(b.state, REMOTE_OPEN);
                backoff = MIN(2 * backoff, BREAKER_BACKOFF_MAX);
        }
}

static void trials_that_succeed_close_it(void **state)
{
        struct breaker b;

        breaker_init(&b, SECOND, 0);
        for (unsigned i = 0; i < BREAKER_IN_A_ROW; i++)
                (void)breaker_count(&b, true, MS, 0);
        for (unsigned i = 0; i < BREAKER_TRIALS; i++) {
                assert_int_not_equal(b.state, REMOTE_CLOSED);
                assert_true(breaker_trial(&b, 2 * SECOND + i));
                breaker_trial_end(&b, false, 2 * SECOND + i);
        }
        assert_int_equal(b.state, REMOTE_CLOSED);
        /* The breaker starts again, and opens for as short a time as at first. */
        for (unsigned i = 0; i < BREAKER_IN_A_ROW - 1; i++)
                assert_false(breaker_count(&b, true, MS, 3 * SECOND));
        assert_true(breaker_count(&b, true, MS, 3 * SECOND));
        assert_int_equal(breaker_next(&b), 3 * SECOND + BREAKER_BACKOFF_MIN);
        assert_int_equal(b.trips, 2);
}

static void a_trial_that_fails_after_one_that_did_not_begins_anew(void **state)
{
        struct breaker b;

        breaker_init(&b, SECOND, 0);
        for (unsigned i = 0; i < BREAKER_IN_A_ROW; i++)
                (void)breaker_count(&b, true, MS, 0);
        for (unsigned i = 0; i < BREAKER_TRIALS; i++) {
                assert_true(breaker_trial(&b, 2 * SECOND));
                breaker_trial_end(&b, i == BREAKER_TRIALS - 1, 2 * SECOND);
        }
        for (unsigned i = 0; i < BREAKER_TRIALS; i++) {
                assert_int_not_equal(b.state, REMOTE_CLOSED);
                assert_true(breaker_trial(&b, 10 * SECOND));
                breaker_trial_end(&b, false, 10 * SECOND);
        }
        assert_int_equal(b.state, REMOTE_CLOSED);
}

/* --- buffers --- */

static void buffers_stay_within_their_bound(void **state)
{
        struct buffers s;
        struct buffer b[3], large;

        buffers_init(&s, 3 * 65536);
        for (unsigned i = 0; i < 3; i++) {
                assert_int_equal(buffers_acquire(&s, 65535, &b[i]), 0);
                assert_int_equal((uintptr_t)b[i].bytes % 4096, 0);
                assert_int_equal(b[i].size, 65536);
                memset(b[i].bytes, 1, b[i].size);
        }
        assert_int_equal(buffers_acquire(&s, 1, &large), -EAGAIN);
        assert_int_equal(s.used, 3 * 65536);
        for (unsigned i = 0; i < 3; i++)
                buffers_release(&s, b[i], 0);
        assert_int_equal(s.used, 0);
        assert_int_equal(s.kept, 3 * 65536);
        /* Kept buffers make room. */
        assert_int_equal(buffers_acquire(&s, 2 * 65536 + 1, &large), 0);
        assert_true(s.used + s.kept <= 3 * 65536);
        buffers_release(&s, large, 0);
        buffers_fini(&s);
}

static void a_buffer_is_used_again(void **state)
{
        struct buffers s;
        struct buffer a, b;

        buffers_init(&s, 1 << 20);
        assert_int_equal(buffers_acquire(&s, 65536, &a), 0);
        buffers_release(&s, a, 0);
        assert_int_equal(buffers_acquire(&s, 60000, &b), 0);
        assert_ptr_equal(a.bytes, b.bytes);
        memset(b.bytes, 1, b.size);
        buffers_release(&s, b, 0);
        assert_int_equal(buffers_acquire(&s, 4096, &b), 0); /* far smaller */
        assert_int_equal(b.size, 4096);
        buffers_release(&s, b, 0);
        buffers_fini(&s);
}

static void one_buffer_is_given_however_large(void **state)
{
        struct buffers s;
        struct buffer a, b;

        buffers_init(&s, 4096);
        assert_int_equal(buffers_acquire(&s, 1 << 20, &a), 0);
        assert_int_equal(buffers_acquire(&s, 1, &b), -EAGAIN);
        buffers_release(&s, a, 0);
        assert_int_equal(s.kept, 0);
        assert_int_equal(buffers_acquire(&s, 1, &b), 0);
        buffers_release(&s, b, 0);
        buffers_fini(&s);
}

static void what_is_idle_is_freed(void **state)
{
        struct buffers s;
        struct buffer a, b;

        buffers_init(&s, 1 << 20);
        assert_int_equal(buffers_acquire(&s, 65536, &a), 0);
        assert_int_equal(buffers_acquire(&s, 65536, &b), 0);
        buffers_release(&s, a, SECOND);
        buffers_release(&s, b, SECOND);
        buffers_trim(&s, 2 * SECOND);
        assert_int_equal(s.kept, 2 * 65536);
        buffers_trim(&s, 100 * SECOND);
        buffers_trim(&s, 100 * SECOND);
        assert_int_equal(s.kept, 0);
        buffers_fini(&s);
}

/* --- presence --- */

static void presence_is_believed_for_its_lifetime(void **state)
{
        struct presence_table t;

        assert_int_equal(presence_init(&t, 1024, 5 * SECOND), 0);
        assert_int_equal(presence_get(&t, 1, 5 * SECOND), PRESENCE_UNKNOWN);
        presence_set(&t, 1, PRESENCE_THERE, 10 * SECOND, 5 * SECOND);
        presence_set(&t, 2, PRESENCE_ABSENT, SECOND, 5 * SECOND);
        assert_int_equal(presence_get(&t, 1, 14 * SECOND), PRESENCE_THERE);
        assert_int_equal(presence_get(&t, 1, 15 * SECOND), PRESENCE_UNKNOWN);
        assert_int_equal(presence_get(&t, 2, 5900 * MS), PRESENCE_ABSENT);
        assert_int_equal(presence_get(&t, 2, 6 * SECOND), PRESENCE_UNKNOWN);
        presence_set(&t, 1, PRESENCE_THERE, 3600 * SECOND, 5 * SECOND);
        presence_set(&t, 1, PRESENCE_UNKNOWN, 0, 5 * SECOND);
        assert_int_equal(presence_get(&t, 1, 5 * SECOND), PRESENCE_UNKNOWN);
        presence_fini(&t);
}

static void what_was_seen_counts_more_than_what_follows(void **state)
{
        struct presence_table t;

        assert_int_equal(presence_init(&t, 1024, 0), 0);
        presence_set(&t, 1, PRESENCE_ABSENT, 10 * SECOND, 0);
        presence_set(&t, 1, PRESENCE_THERE_BY_ORDER, 60 * SECOND, SECOND);
        assert_int_equal(presence_get(&t, 1, SECOND), PRESENCE_ABSENT);
        presence_set(&t, 1, PRESENCE_THERE_BY_ORDER, 60 * SECOND, 11 * SECOND);
        assert_int_equal(presence_get(&t, 1, 12 * SECOND), PRESENCE_THERE_BY_ORDER);
        presence_set(&t, 1, PRESENCE_ABSENT, 10 * SECOND, 12 * SECOND);
        assert_int_equal(presence_get(&t, 1, 12 * SECOND), PRESENCE_ABSENT);
        presence_fini(&t);
}

static void the_table_stays_as_large_as_it_is(void **state)
{
        struct presence_table t;
        unsigned found = 0;

        assert_int_equal(presence_init(&t, 1024, 0), 0);
        assert_int_equal(t.n, 1024);
        for (uint64_t i = 0; i < 100000; i++)
                presence_set(&t, i * UINT64_C(0x9e3779b97f4a7c15), PRESENCE_THERE, 60 * SECOND, 0);
        for (uint64_t i = 0; i < 100000; i++)
                found += presence_get(&t, i * UINT64_C(0x9e3779b97f4a7c15), 0) == PRESENCE_THERE;
        assert_in_range(found, 512, 1024);
        presence_fini(&t);
}

static void an_object_is_marked_once_a_day(void **state)
{
        struct presence_table t;

        assert_int_equal(presence_init(&t, 1024, 0), 0);
        assert_true(presence_mark_day(&t, 1, 20000)); /* not remembered */
        presence_set(&t, 1, PRESENCE_THERE, 60 * SECOND, 0);
        assert_true(presence_mark_day(&t, 1, 20000));
        assert_false(presence_mark_day(&t, 1, 20000));
        presence_set(&t, 1, PRESENCE_THERE, 60 * SECOND, SECOND);
        assert_false(presence_mark_day(&t, 1, 20000));
        assert_true(presence_mark_day(&t, 1, 20001));
        presence_fini(&t);
}

/* --- searches --- */

static void a_search_finds_the_end_with_few_probes(void **state)
{
        enum { MOST = 5000 };
        static struct key keys[MOST];
        static uint64_t hashes[MOST];
        static const uint32_t lengths[] = { 1, 2, 3, 7, 64, 100, 4096 };

        for (unsigned l = 0; l < ARRAY_SIZE(lengths); l++)
                for (uint32_t reach = 0; reach <= lengths[l]; reach += 1 + lengths[l] / 97) {
                        unsigned log = 32U - (unsigned)__builtin_clz(lengths[l]);
                        struct search s;
                        uint32_t i;

                        assert_int_equal(search_init(&s, keys, hashes, lengths[l], 1), 0);
                        while (search_next(&s, &i))
                                search_answer(&s, i, i < reach);
                        assert_int_equal(s.low, reach);
                        assert_true(s.probes <= log + 1);
                        search_fini(&s);
                }
}

static void a_search_may_take_every_so_many_keys(void **state)
{
        enum { N = 1000 };
        static struct key keys[N];
        static uint64_t hashes[N];
        struct search s;
        uint32_t i;

        for (i = 0; i < N; i++) {
                hashes[i] = i;
                keys[i].bytes[0] = (uint8_t)i;
        }
        assert_int_equal(search_init(&s, keys + 3, hashes + 3, 250, 4), 0);
        for (i = 0; i < s.n; i++) {
                assert_int_equal(s.hashes[i], 3 + 4 * i);
                assert_int_equal(s.keys[i].bytes[0], (3 + 4 * i) % 256);
        }
        while (search_next(&s, &i))
                search_answer(&s, i, s.hashes[i] < 500);
        assert_int_equal(s.hashes[s.low], 503);
        search_fini(&s);
}

/* --- the queue --- */

static struct queue_entry entry(uint64_t hash, uint32_t length)
{
        return (struct queue_entry){ .hash = hash, .length = length };
}

static void the_queue_is_bounded_and_drops_the_oldest(void **state)
{
        struct queue_entry e;
        struct queue q;

        assert_int_equal(queue_init(&q, 1000), 0);
        for (uint64_t i = 1; i <= 10; i++) {
                e = entry(i, 100);
                assert_int_equal(queue_put(&q, &e), 0);
        }
        e = entry(11, 250);
        assert_int_equal(queue_put(&q, &e), 3);
        assert_int_equal(q.bytes, 950);
        for (uint64_t i = 1; i <= 11; i++)
                assert_int_equal(queue_has(&q, i), i > 3);
        assert_int_equal(queue_first(&q)->hash, 4);
        e = entry(12, 1001);
        assert_int_equal(queue_put(&q, &e), 1);
        assert_int_equal(q.n, 8);
        queue_fini(&q);
}

static void the_queue_is_bounded_by_number_too(void **state)
{
        struct queue q;
        unsigned dropped = 0;

        assert_int_equal(queue_init(&q, UINT64_C(1) << 40), 0);
        for (uint64_t i = 0; i < QUEUE_MAX + 10; i++) {
                struct queue_entry e = entry(i, 1);

                dropped += queue_put(&q, &e);
        }
        assert_int_equal(dropped, 10);
        assert_int_equal(q.n, QUEUE_MAX);
        queue_fini(&q);
}

static void a_tenant_with_much_in_the_queue_is_at_its_own_expense(void **state)
{
        struct queue_entry e, *first;
        unsigned dropped = 0;
        struct queue q;

        assert_int_equal(queue_init(&q, 1000), 0);
        for (uint64_t i = 1; i <= 100; i++) {
                e = entry(i, 100);
                e.tenant = i <= 3 ? 2 : 1; /* the oldest are the other tenant's */
                dropped += queue_put(&q, &e);
        }
        assert_int_equal(dropped, 90);
        for (uint64_t i = 1; i <= 100; i++)
                assert_int_equal(queue_has(&q, i), i <= 3 || i > 93);
        assert_false(queue_has_room(&q, 1, 100));
        assert_true(queue_has_room(&q, 2, 100)); /* room of tenant 1 */
        assert_false(queue_has_room(&q, 2, 500));
        e = entry(101, 100);
        e.tenant = 2;
        assert_int_equal(queue_put(&q, &e), 1);
        assert_false(queue_has(&q, 94));
        for (unsigned i = 0; i < 8; i++) { /* 4 of each, in turn */
                first = queue_first(&q);
                assert_int_equal(first->tenant, 1 + i % 2);
                queue_serve(&q, first);
                queue_end(&q, first);
        }
        queue_fini(&q);
}

static void what_is_taken_is_known_until_it_ends(void **state)
{
        struct queue_entry e = entry(1, 100), *first;
        struct queue q;

        assert_int_equal(queue_init(&q, 1000), 0);
        assert_int_equal(queue_put(&q, &e), 0);
        first = queue_first(&q);
        queue_take(&q, first);
        assert_null(queue_first(&q));
        assert_int_equal(q.bytes, 0);
        assert_true(queue_has(&q, 1));
        queue_end(&q, first);
        assert_false(queue_has(&q, 1));
        queue_fini(&q);
}

/* --- rates, deadlines --- */

static void a_rate_is_kept_and_not_caught_up_with(void **state)
{
        struct rate r = { 0 };
        uint64_t now = 100 * SECOND;

        for (unsigned i = 0; i < 10; i++) {
                assert_true(rate_next(&r, 0) <= now);
                rate_take(&r, 500, 1000, now);
                assert_int_equal(rate_next(&r, 0), now + SECOND / 2);
                now += SECOND / 2;
        }
        now += 1000 * SECOND;
        rate_take(&r, 500, 1000, now);
        assert_int_equal(rate_next(&r, 0), now + SECOND / 2);
        rate_take(&r, 1 << 30, 0, now); /* no limit */
        assert_true(rate_next(&r, 0) <= now);
}

static uint64_t expired[256];
static unsigned n_expired;

static void on_expire(struct deadline *d, uint64_t now)
{
        assert_int_equal(d->node.place, 0);
        expired[n_expired++] = deadline_ns(d);
}

static void deadlines_expire_in_their_order(void **state)
{
        struct deadlines s = { 0 };
        struct deadline d[200];
        uint64_t seed = 1;

        n_expired = 0;
        for (unsigned i = 0; i < ARRAY_SIZE(d); i++) {
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                d[i] = (struct deadline){ .expire = on_expire };
                assert_int_equal(deadlines_add(&s, &d[i], 1 + (seed >> 40) % 1000), 0);
        }
        for (unsigned i = 0; i < ARRAY_SIZE(d); i += 3)
                assert_int_equal(deadlines_add(&s, &d[i], 1 + i * 5), 0);
        for (unsigned i = 1; i < ARRAY_SIZE(d); i += 4) {
                deadlines_remove(&s, &d[i]);
                deadlines_remove(&s, &d[i]);
        }
        for (uint64_t now = 0; deadlines_next(&s) != 0; now += 7)
                deadlines_run(&s, now, 1 + now % 3 * 200);
        assert_int_equal(n_expired, 150);
        for (unsigned i = 1; i < n_expired; i++)
                assert_true(expired[i] >= expired[i - 1]);
        deadlines_fini(&s);
}

/* --- completions --- */

static unsigned n_completed;
static struct backend_op *again; /* ended from within complete() */

static void on_complete(struct backend_op *op)
{
        n_completed++;
        if (again)
                backend_op_end(again, 0);
        again = NULL;
}

static bool is_readable(const struct completions *c)
{
        struct pollfd p = { .fd = c->fd, .events = POLLIN };

        return poll(&p, 1, 0) == 1;
}

static void the_loop_is_woken_exactly_while_something_has_ended(void **state)
{
        struct backend_op ops[10], another;
        struct completions c;

        assert_int_equal(completions_init(&c), 0);
        assert_false(is_readable(&c));
        assert_int_equal(completions_reap(&c, 5), 0);
        another = (struct backend_op){ .complete = on_complete, .completions = &c };
        for (unsigned i = 0; i < ARRAY_SIZE(ops); i++) {
                ops[i] = another;
                backend_op_end(&ops[i], -EIO);
                assert_true(is_readable(&c));
                assert_int_equal(ops[i].result, -EIO);
                assert_true(ops[i].ended_ns > 0);
        }
        n_completed = 0;
        assert_int_equal(completions_reap(&c, 4), 4);
        assert_true(is_readable(&c));
        assert_int_equal(completions_reap(&c, 5), 5);
        again = &another;
        assert_int_equal(completions_reap(&c, 5), 1);
        assert_int_equal(n_completed, 10);
        assert_true(is_readable(&c));
        assert_int_equal(completions_reap(&c, 5), 1);
        assert_false(is_readable(&c));
        assert_int_equal(n_completed, 11);
        assert_int_equal(c.n_ended, 11);
        completions_fini(&c);
}

/* --- the file of generations --- */

static struct remote_identity id_of(unsigned i)
{
        struct remote_identity id = { 0 };

        memcpy(id.bytes, &i, sizeof(i));
        return id;
}

static char path[64], new_path[80];

static int make_path(void **state)
{
        int fd;

        snprintf(path, sizeof(path), "/tmp/kvcache-test-generations-XXXXXX");
        fd = mkstemp(path);
        snprintf(new_path, sizeof(new_path), "%s.new", path);
        return fd < 0 ? -1 : close(fd);
}

static int remove_path(void **state)
{
        (void)unlink(path);
        (void)unlink(new_path);
        return 0;
}

static void save(const struct generations *g)
{
        size_t bytes;
        void *file = generations_encode(g, &bytes);

        assert_non_null(file);
        assert_int_equal(generations_write(path, file, bytes), 0);
        free(file);
}

static void generations_are_read_as_they_were_written(void **state)
{
        struct generations g = { 0 }, got = { 0 };
        struct remote_identity id;
        uint64_t generation = 0;
        struct stat st;

        for (unsigned i = 0; i < 300; i++) {
                id = id_of(i);
                assert_int_equal(generations_set(&g, &id, UINT64_MAX - i), 0);
        }
        id = id_of(5);
        assert_int_equal(generations_set(&g, &id, 55), 0);
        id = id_of(6);
        assert_true(generations_remove(&g, &id));
        assert_false(generations_remove(&g, &id));
        save(&g);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
        assert_int_equal(access(new_path, F_OK), -1);
        assert_int_equal(generations_read(&got, path), 0);
        assert_int_equal(got.n, 299);
        for (unsigned i = 0; i < 300; i++) {
                id = id_of(i);
                assert_int_equal(generations_find(&got, &id, &generation), i != 6);
                if (i != 6)
                        assert_int_equal(generation, i == 5 ? 55 : UINT64_MAX - i);
        }
        generations_fini(&g);
        generations_fini(&got);
}

static void a_damaged_file_of_generations_is_refused(void **state)
{
        struct generations g = { 0 }, got = { 0 };
        struct remote_identity id = id_of(1);
        size_t bytes;
        uint8_t *file;

        assert_int_equal(generations_set(&g, &id, 77), 0);
        file = generations_encode(&g, &bytes);
        for (size_t i = 0; i < bytes; i++) {
                file[i] ^= 0x10;
                assert_int_equal(generations_write(path, file, bytes), 0);
                assert_int_equal(generations_read(&got, path), -EBADMSG);
                file[i] ^= 0x10;
        }
        for (size_t n = 0; n < bytes; n++) {
                assert_int_equal(generations_write(path, file, n), 0);
                assert_int_equal(generations_read(&got, path), -EBADMSG);
        }
        assert_int_equal(got.n, 0);
        assert_int_equal(generations_write(path, file, bytes), 0);
        assert_int_equal(generations_read(&got, path), 0);
        free(file);
        generations_fini(&g);
        generations_fini(&got);
}

static void a_file_that_cannot_be_had_is_an_error(void **state)
{
        struct generations g = { 0 };

        assert_int_equal(unlink(path), 0);
        assert_int_equal(generations_read(&g, path), -ENOENT);
        assert_int_equal(mkfifo(path, 0600), 0);
        assert_int_equal(generations_read(&g, path), -EBADMSG); /* and does not wait */
        assert_int_equal(generations_write("/nowhere/at/all", "", 0), -ENOENT);
}

int main(void)
{
#define FILE_TEST(name) cmocka_unit_test_setup_teardown(name, make_path, remove_path)
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(an_object_is_read_as_it_was_written),
                cmocka_unit_test(every_bit_of_a_header_counts),
                cmocka_unit_test(an_object_of_another_is_refused),
                cmocka_unit_test(the_length_is_that_of_the_object),
                cmocka_unit_test(a_generation_is_no_chunk),
                cmocka_unit_test(names_are_as_the_format_says),
                cmocka_unit_test(hosts_have_an_identity_in_common_only_with_all_of_it),
                cmocka_unit_test(half_of_the_operations_failing_opens_the_breaker),
                cmocka_unit_test(a_third_failing_does_not),
                cmocka_unit_test(what_is_past_the_window_does_not_count),
                cmocka_unit_test(some_failures_in_a_row_are_enough),
                cmocka_unit_test(slow_operations_open_it_too),
                cmocka_unit_test(trials_come_after_a_time_that_doubles),
                cmocka_unit_test(trials_that_succeed_close_it),
                cmocka_unit_test(a_trial_that_fails_after_one_that_did_not_begins_anew),
                cmocka_unit_test(buffers_stay_within_their_bound),
                cmocka_unit_test(a_buffer_is_used_again),
                cmocka_unit_test(one_buffer_is_given_however_large),
                cmocka_unit_test(what_is_idle_is_freed),
                cmocka_unit_test(presence_is_believed_for_its_lifetime),
                cmocka_unit_test(what_was_seen_counts_more_than_what_follows),
                cmocka_unit_test(the_table_stays_as_large_as_it_is),
                cmocka_unit_test(an_object_is_marked_once_a_day),
                cmocka_unit_test(a_search_finds_the_end_with_few_probes),
                cmocka_unit_test(a_search_may_take_every_so_many_keys),
                cmocka_unit_test(the_queue_is_bounded_and_drops_the_oldest),
                cmocka_unit_test(the_queue_is_bounded_by_number_too),
                cmocka_unit_test(a_tenant_with_much_in_the_queue_is_at_its_own_expense),
                cmocka_unit_test(what_is_taken_is_known_until_it_ends),
                cmocka_unit_test(a_rate_is_kept_and_not_caught_up_with),
                cmocka_unit_test(deadlines_expire_in_their_order),
                cmocka_unit_test(the_loop_is_woken_exactly_while_something_has_ended),
                FILE_TEST(generations_are_read_as_they_were_written),
                FILE_TEST(a_damaged_file_of_generations_is_refused),
                FILE_TEST(a_file_that_cannot_be_had_is_an_error),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

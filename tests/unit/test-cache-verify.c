/* SPDX-License-Identifier: Apache-2.0 */
/* Puts of keys that startup found: their chunks are read back before the answer, because their
 * slots may have other bytes. */
#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "cache-fixture.h"
#include "checked.h"

static void expire(uint32_t n)
{
        struct key k = key_of(n);

        assert_true(cache_expire(t.cache, t.ns, &k, cache_hash(t.cache, t.ns, &k),
                                 clock_unix_ms() + 1));
}

static uint64_t reads_of_store(void)
{
        struct store_stats s;

        store_get_stats(t.store, &s);
        return s.reads;
}

static void reopen(void)
{
        tiers_close(&t);
        tiers_open(&t);
}

/* Kills the daemon when key 2 has overwritten the slot of key 1, and no entry says so. */
static void kill_after_an_overwritten_slot(void)
{
        struct req a;

        expect_put(1, CACHE_WRITTEN, CACHE_OK);
        expire(1);
        hold(KIO_WRITE, 2);
        put(&a, 2, CACHE_WRITTEN);
        tiers_wait_hits(&t, 1);
        tiers_kill(&t);
        tiers_open(&t);
        assert_int_equal(tiers_of(1), CACHE_DISK);
        assert_int_equal(tiers_of(2), 0);
}

static void a_put_replaces_a_chunk_whose_slot_a_killed_put_overwrote(void **state)
{
        static const enum cache_ack acks[] = { CACHE_ACCEPTED, CACHE_WRITTEN, CACHE_DURABLE };

        for (unsigned i = 0; i < 3; i++) {
                struct req a;

                kill_after_an_overwritten_slot();
                put_bytes(&a, 1, acks[i], 3, LENGTH);
                expect(&a, CACHE_OK);
                tiers_settle(&t);
                assert_int_equal(evict(1, true), CACHE_OK);
                expect_get(1, CACHE_OK, 3);
                reopen();
                expect_get(1, CACHE_OK, 3);
                teardown(state);
                setup(state);
        }
}

static void one_of_several_puts_replaces_an_overwritten_chunk(void **state)
{
        struct req puts[3];
        unsigned stored = 0;

        kill_after_an_overwritten_slot();
        put_bytes(&puts[0], 1, CACHE_WRITTEN, 3, LENGTH);
        put_bytes(&puts[1], 1, CACHE_WRITTEN, 4, SMALL);
        put_bytes(&puts[2], 1, CACHE_ACCEPTED, 5, SMALL);
        for (unsigned i = 0; i < 3; i++) {
                tiers_wait(&t, &puts[i].done);
                if (puts[i].req.status == CACHE_OK)
                        stored = stored * 10 + 3 + i;
                else
                        assert_int_equal(puts[i].req.status, CACHE_EXISTS);
        }
        expect_get(1, CACHE_OK, (uint8_t)stored);
}

/* The write of key 2 fails after it has overwritten half of key 1. */
static void a_put_replaces_a_chunk_whose_slot_a_failed_put_overwrote(void **state)
{
        struct req a;

        expect_put(1, CACHE_WRITTEN, CACHE_OK);
        expire(1);
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_WRITE, .kind = FAULT_TORN, .error = EIO, .first = 1 });
        put_bytes(&a, 2, CACHE_WRITTEN, 2, LENGTH);
        expect(&a, CACHE_FAILED);
        reopen();
        assert_int_equal(tiers_of(1), CACHE_DISK);
        put_bytes(&a, 1, CACHE_WRITTEN, 3, LENGTH);
        expect(&a, CACHE_OK);
        reopen();
        expect_get(1, CACHE_OK, 3);
}

static void a_whole_chunk_is_read_once_and_exists(void **state)
{
        struct req a;

        expect_put(1, CACHE_WRITTEN, CACHE_OK);
        expect_put(1, CACHE_WRITTEN, CACHE_EXISTS);
        assert_int_equal(evict(1, true), CACHE_OK);
        expect_put(1, CACHE_WRITTEN, CACHE_EXISTS);
        assert_int_equal(reads_of_store(), 0); /* this process has put it */
        reopen();
        put_bytes(&a, 1, CACHE_WRITTEN, 2, LENGTH);
        expect(&a, CACHE_EXISTS);
        assert_int_equal(reads_of_store(), 1);
        assert_int_equal(stats().put_checks, 1);
        expect_put(1, CACHE_ACCEPTED, CACHE_EXISTS);
        expect_put(1, CACHE_DURABLE, CACHE_EXISTS);
        assert_int_equal(reads_of_store(), 1);
        expect_get(1, CACHE_OK, 1);
        expect_put(1, CACHE_WRITTEN, CACHE_EXISTS);
        assert_int_equal(reads_of_store(), 2);
}

static void a_chunk_that_a_get_has_read_exists_without_another_read(void **state)
{
        put_cold(1);
        reopen();
        expect_get(1, CACHE_OK, 1);
        expect_put(1, CACHE_DURABLE, CACHE_EXISTS);
        assert_int_equal(evict(1, true), CACHE_OK);
        expect_put(1, CACHE_DURABLE, CACHE_EXISTS);
        assert_int_equal(reads_of_store(), 1);
}

static void a_put_is_stored_if_the_old_chunk_cannot_be_read(void **state)
{
        struct req a;

        put_cold(1);
        reopen();
        refuse(KIO_READ, 1, 1);
        put_bytes(&a, 1, CACHE_WRITTEN, 2, LENGTH);
        expect(&a, CACHE_OK);
        expect_get(1, CACHE_OK, 2);
}

/* An error that is not the device's says nothing about the chunk, which stays. */
static void a_put_fails_if_the_read_says_nothing_about_the_old_chunk(void **state)
{
        struct req a;

        put_cold(1);
        reopen();
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_READ, .kind = FAULT_ERROR, .error = ENOMEM, .first = 1 });
        put_bytes(&a, 1, CACHE_WRITTEN, 2, LENGTH);
        expect(&a, CACHE_FAILED);
        expect_get(1, CACHE_OK, 1);
}

static void a_put_is_stored_if_the_old_chunk_is_evicted_during_its_read(void **state)
{
        struct req a;

        put_cold(1);
        reopen();
        hold(KIO_READ, 1);
        put_bytes(&a, 1, CACHE_WRITTEN, 2, LENGTH);
        tiers_wait_hits(&t, 1);
        assert_int_equal(evict(1, false), CACHE_OK);
        release();
        expect(&a, CACHE_OK);
        expect_get(1, CACHE_OK, 2);
}

enum { PUTS = 24 };

/* Puts chunks of 1 MiB, each of which exists and must be read. */
static void put_many(struct req *puts, enum cache_ack ack, bool nowait)
{
        for (uint32_t n = 0; n < PUTS; n++) {
                put_bytes(&puts[n], n, CACHE_WRITTEN, 1, MIB);
                expect(&puts[n], CACHE_OK);
                (void)evict(n, true);
        }
        reopen();
        hold(KIO_READ, 1);
        for (uint32_t n = 0; n < PUTS; n++)
                put_as(0, &puts[n], n, ack, MIB, nowait);
}

static void puts_wait_while_many_chunks_are_read_back(void **state)
{
        struct req puts[PUTS];

        put_many(puts, CACHE_WRITTEN, false);
        tiers_wait_hits(&t, 16);
        assert_int_equal(t.cache->checking, 16 * MIB);
        release();
        for (uint32_t n = 0; n < PUTS; n++)
                expect(&puts[n], CACHE_EXISTS);
        assert_int_equal(reads_of_store(), PUTS);
        assert_int_equal(t.cache->checking, 0);
}

static void an_accepted_put_that_must_not_wait_is_not_refused(void **state)
{
        struct req puts[PUTS];

        put_many(puts, CACHE_ACCEPTED, true);
        release();
        for (uint32_t n = 0; n < PUTS; n++)
                expect(&puts[n], CACHE_EXISTS);
        assert_int_equal(reads_of_store(), 16);
}

static void a_put_that_waits_for_a_read_ends_with_the_cache(void **state)
{
        struct req a;

        put_cold(1);
        reopen();
        hold(KIO_READ, 1);
        put(&a, 1, CACHE_WRITTEN);
        tiers_wait_hits(&t, 1);
        cache_stop(t.cache);
        release();
        expect(&a, CACHE_EXISTS);
}

static void a_put_is_answered_if_the_device_hangs_during_the_read(void **state)
{
        struct req a;

        put_cold(1);
        tiers_close(&t);
        t.hang_ms = 100;
        tiers_open(&t);
        hold(KIO_READ, 1);
        put(&a, 1, CACHE_WRITTEN);
        expect_ticking(&a, CACHE_FAILED);
        assert_int_equal(t.cache->checking, round_up(LENGTH, 4096));
        release();
        tiers_settle(&t);
        assert_int_equal(t.cache->checking, 0);
}

/* The store works on another request all the time, so the put must not wait for its rest. The older
 * chunk was put first, so it is read back, and stays. */
static void a_put_whose_key_a_resume_brings_back_is_answered(void **state)
{
        static struct kio_region region; /* no ring knows it */

        for (unsigned direct = 0; direct < 2; direct++) {
                void *memory = aligned_alloc(4096, SMALL);
                struct req a, busy;

                put_cold(1);
                put_cold(2);
                switch_volume(store_suspend);
                fault_gate_close();
                start(&a, 1);
                assert_non_null(memory);
                fill(memory, 1, 2, SMALL);
                a.req.memory = memory;
                a.req.length = SMALL - 1; /* then a direct write waits for its checksum */
                a.req.ack = CACHE_WRITTEN;
                a.req.may_be_direct = direct;
                a.req.region = direct ? &region : NULL;
                cache_put(t.cache, &a.req);
                kio_flush(t.io);
                switch_volume(store_resume);
                fault_set(&(struct fault_plan){
                        .ops = 1U << KIO_READ, .kind = FAULT_NEVER, .first = 1, .count = 1 });
                get(&busy, 2);
                fault_gate_open();
                expect(&a, CACHE_EXISTS);
                assert_false(a.req.direct);
                assert_false(busy.done);
                release();
                expect(&busy, CACHE_OK);
                expect_get(1, CACHE_OK, 1);
                free(memory);
                teardown(state);
                setup(state);
        }
}

/* The volume is suspended during the read, so the put is to store its own bytes. It waits for room,
 * and meanwhile a resume brings the chunk back, which is read again. */
static void a_put_is_answered_if_a_resume_brings_its_key_back_after_the_read(void **state)
{
        uint32_t pinned[SLABS], large = (uint32_t)pool_slab_bytes(t.pool);
        struct store_device suspend;
        struct req a;

        put_bytes(&a, 1, CACHE_WRITTEN, 1, large);
        expect(&a, CACHE_OK);
        reopen();
        pin_every_slab(pinned, SLABS);
        hold(KIO_READ, 1);
        put_bytes(&a, 1, CACHE_WRITTEN, 2, large);
        tiers_wait_hits(&t, 1);
        begin_switch(&suspend, store_suspend);
        release();
        end_switch(&suspend);
        assert_false(a.done);
        assert_int_equal(stats().put_checks, 1);
        switch_volume(store_resume); /* from here on, the put may be tried again at any time */
        unpin_all(pinned, SLABS);
        expect(&a, CACHE_EXISTS);
        assert_int_equal(stats().put_checks, 2);
}

int main(void)
{
        static const struct CMUnitTest tests[] = {
                TEST(a_put_replaces_a_chunk_whose_slot_a_killed_put_overwrote),
                TEST(one_of_several_puts_replaces_an_overwritten_chunk),
                TEST(a_put_replaces_a_chunk_whose_slot_a_failed_put_overwrote),
                TEST(a_whole_chunk_is_read_once_and_exists),
                TEST(a_chunk_that_a_get_has_read_exists_without_another_read),
                TEST(a_put_is_stored_if_the_old_chunk_cannot_be_read),
                TEST(a_put_fails_if_the_read_says_nothing_about_the_old_chunk),
                TEST(a_put_is_stored_if_the_old_chunk_is_evicted_during_its_read),
                TEST(puts_wait_while_many_chunks_are_read_back),
                TEST(an_accepted_put_that_must_not_wait_is_not_refused),
                TEST(a_put_that_waits_for_a_read_ends_with_the_cache),
                TEST(a_put_is_answered_if_the_device_hangs_during_the_read),
                TEST(a_put_whose_key_a_resume_brings_back_is_answered),
                TEST(a_put_is_answered_if_a_resume_brings_its_key_back_after_the_read),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

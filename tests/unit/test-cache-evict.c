/* SPDX-License-Identifier: Apache-2.0 */
/* The cache: evictions and purges, in every state that a chunk can be in. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>

#include "cache-fixture.h"

struct settle {
        struct cache_settle req;
        bool done;
};

static void settled(struct cache_settle *req)
{
        container_of(req, struct settle, req)->done = true;
}

/* Begins to wait until no kill can bring back the evicted chunks. */
static void settle(struct settle *s)
{
        *s = (struct settle){ .req = { .complete = settled,
                                       .lost_before = cache_lost_evictions(t.cache) } };
        cache_settle_evictions(t.cache, &s->req);
}

/* Evicts and purges a chunk while its write is held, until fault_release(). */
static void evict_and_purge_under_a_write(struct req *a, struct settle *s, struct purge *p)
{
        hold(KIO_WRITE, 1);
        put(a, 1, CACHE_ACCEPTED);
        expect(a, CACHE_OK);
        tiers_wait_hits(&t, 1);
        assert_int_equal(evict(1, false), CACHE_OK);
        settle(s);
        purge(p);
}

/* The purge removes the put from the index, but the part that is already on disk would be found
 * after a kill until the purge is written. */
static void an_evict_is_settled_after_a_purge_that_overtook_it(void **state)
{
        struct req a;
        struct settle s;
        struct purge p;

        evict_and_purge_under_a_write(&a, &s, &p);
        hold(KIO_SYNC, 1);
        fault_release();
        tiers_wait_hits(&t, 1);
        while (stats().unwritten_chunks > 0) {
                tiers_wait_io(&t);
                kio_reap(t.io);
                tiers_iterate(&t);
        }
        tiers_iterate(&t);
        assert_false(s.done);
        assert_false(p.done);
        release();
        tiers_wait(&t, &s.done);
        assert_int_equal(s.req.result, 0);
        tiers_settle(&t);
        assert_true(p.done);
}

static void an_evict_fails_with_the_purge_that_overtook_it(void **state)
{
        struct req a;
        struct settle s;
        struct purge p;

        evict_and_purge_under_a_write(&a, &s, &p);
        refuse(KIO_SYNC, 1, FAULT_FOR_EVER);
        fault_release();
        tiers_settle(&t);
        assert_true(p.done);
        assert_true(p.req.store.result < 0);
        assert_true(s.done);
        assert_int_equal(s.req.result, STORE_BYPASSED);
        /* The next caller gets the same answer until the purge has been written. */
        settle(&s);
        tiers_wait(&t, &s.done);
        assert_int_equal(s.req.result, STORE_BYPASSED);
        fault_set(NULL);
        do {
                struct pollfd readable = { .fd = kio_fd(t.io), .events = POLLIN };

                poll(&readable, 1, 5);
                kio_reap(t.io);
                tiers_iterate(&t);
                settle(&s);
                tiers_wait(&t, &s.done);
        } while (s.req.result != 0);
}

/* The chunk on disk is found after a kill, because its purge could not be written. */
static void an_evict_fails_on_a_volume_that_lost_a_purge(void **state)
{
        struct settle s;
        struct purge p;

        expect_put(1, CACHE_WRITTEN, CACHE_OK);
        refuse(KIO_WRITE, 1, FAULT_FOR_EVER);
        purge(&p);
        tiers_wait(&t, &p.done);
        assert_true(p.req.store.result < 0);
        fault_set(&(struct fault_plan){ .kind = FAULT_ERROR,
                                        .error = EROFS,
                                        .ops = 1u << KIO_WRITE,
                                        .first = 1,
                                        .count = FAULT_FOR_EVER });
        expect_put(2, CACHE_WRITTEN, CACHE_FAILED);
        assert_int_equal(store_volumes_up(t.store), 0);
        expect_put(1, CACHE_ACCEPTED, CACHE_OK);
        assert_int_equal(evict(1, false), CACHE_OK);
        settle(&s);
        tiers_wait(&t, &s.done);
        assert_int_equal(s.req.result, STORE_BYPASSED);
        tiers_close(&t);
        tiers_open(&t);
        assert_int_equal(tiers_of(1), CACHE_DISK);
}

/* The write may complete, and be found after a kill: each waiter learns of that. */
static void an_eviction_that_a_hung_write_may_undo_fails_for_all_waiters(void **state)
{
        struct req a;
        struct settle first, second;

        tiers_close(&t);
        t.hang_ms = 200;
        tiers_open(&t);
        hold(KIO_WRITE, 1);
        put(&a, 1, CACHE_ACCEPTED);
        expect(&a, CACHE_OK);
        tiers_wait_hits(&t, 1);
        assert_int_equal(evict(1, false), CACHE_OK);
        settle(&first);
        settle(&second);
        while (!first.done || !second.done) {
                struct pollfd p = { .fd = kio_fd(t.io), .events = POLLIN };

                poll(&p, 1, 5);
                kio_reap(t.io);
                store_tick(t.store);
                tiers_iterate(&t);
        }
        assert_int_equal(first.req.result, STORE_BYPASSED);
        assert_int_equal(second.req.result, STORE_BYPASSED);
        assert_true(cache_lost_evictions(t.cache) > first.req.lost_before);
        release();
        tiers_settle(&t);
        t.hang_ms = 0;
}

/* The settle request comes after the resume, which has found the chunk again. */
static void an_evict_that_a_resume_undoes_fails(void **state)
{
        struct settle s = { .req = { .complete = settled,
                                     .lost_before = cache_lost_evictions(t.cache) } };
        struct req a;

        put(&a, 1, CACHE_WRITTEN);
        expect(&a, CACHE_OK);
        switch_volume(store_suspend);
        assert_int_equal(evict(1, false), CACHE_OK);
        switch_volume(store_resume);
        cache_settle_evictions(t.cache, &s.req);
        tiers_wait(&t, &s.done);
        assert_int_equal(s.req.result, STORE_BYPASSED);
}

/* The tombstone of the first evict is lost with the volume, which therefore still has the first
 * put, and forgets that when it is resumed. */
static void an_evict_during_a_bypass_fails_if_the_resume_brings_an_older_chunk_back(void **state)
{
        struct settle first, second = { .req = { .complete = settled } };

        expect_put(1, CACHE_WRITTEN, CACHE_OK);
        refuse(KIO_WRITE, 1, FAULT_FOR_EVER);
        assert_int_equal(evict(1, false), CACHE_OK);
        settle(&first);
        tiers_wait(&t, &first.done);
        assert_int_equal(first.req.result, STORE_BYPASSED);
        expect_put(1, CACHE_ACCEPTED, CACHE_OK);
        second.req.lost_before = cache_lost_evictions(t.cache);
        assert_int_equal(evict(1, false), CACHE_OK);
        fault_set(NULL);
        tiers_settle(&t);
        switch_volume(store_resume);
        assert_int_equal(tiers_of(1), CACHE_DISK);
        cache_settle_evictions(t.cache, &second.req);
        tiers_wait(&t, &second.done);
        assert_int_equal(second.req.result, STORE_BYPASSED);
}

static void evict_takes_a_key_out_in_every_state(void **state)
{
        struct req r;

        assert_int_equal(evict(1, false), CACHE_MISS);
        assert_int_equal(evict(1, true), CACHE_MISS);

        /* being copied */
        put(&r, 1, CACHE_WRITTEN);
        assert_int_equal(evict(1, true), CACHE_BUSY);
        assert_int_equal(evict(1, false), CACHE_OK);
        assert_int_equal(evict(1, false), CACHE_MISS);
        expect(&r, CACHE_OK);
        assert_int_equal(tiers_of(1), 0);

        /* being written */
        put_writing(&r, 2, CACHE_WRITTEN);
        assert_int_equal(evict(2, true), CACHE_BUSY);
        assert_int_equal(evict(2, false), CACHE_OK);
        assert_int_equal(tiers_of(2), 0);
        release();
        expect(&r, CACHE_OK);
        tiers_settle(&t);
        assert_int_equal(tiers_of(2), 0);
        expect_get(2, CACHE_MISS, 0);

        /* being read */
        put_cold(3);
        get_reading(&r, 3);
        assert_int_equal(evict(3, true), CACHE_BUSY);
        assert_int_equal(evict(3, false), CACHE_OK);
        assert_int_equal(tiers_of(3), 0);
        release();
        expect(&r, CACHE_MISS);

        /* in both tiers, then on disk only */
        expect_put(4, CACHE_WRITTEN, CACHE_OK);
        assert_int_equal(evict(4, true), CACHE_OK);
        assert_int_equal(evict(4, true), CACHE_OK);
        assert_int_equal(tiers_of(4), CACHE_DISK);
        assert_int_equal(evict(4, false), CACHE_OK);
        assert_int_equal(tiers_of(4), 0);

        tiers_close(&t);
        tiers_open(&t);
        for (uint32_t n = 1; n <= 4; n++)
                assert_int_equal(tiers_of(n), 0);
}

static void what_was_evicted_while_written_can_be_put_again_at_once(void **state)
{
        struct req first, second;

        put_writing(&first, 1, CACHE_WRITTEN);
        assert_int_equal(evict(1, false), CACHE_OK);
        put_bytes(&second, 1, CACHE_WRITTEN, 2, LENGTH);
        reap_copies(2);
        tiers_iterate(&t);
        assert_false(second.done);
        release();
        expect(&first, CACHE_OK);
        expect(&second, CACHE_OK);
        tiers_settle(&t);
        assert_int_equal(tiers_of(1), CACHE_MEMORY | CACHE_DISK);
        tiers_close(&t);
        tiers_open(&t);
        expect_get(1, CACHE_OK, 2);
}

/* The first put's entry is in the table, but the store has not reported that yet: its bytes can be
 * found, and are about to be dropped. */
static void a_put_is_not_taken_for_written_because_an_evicted_one_was(void **state)
{
        struct req first, second;

        hold(KIO_WRITE, 2); /* the table's */
        put(&first, 1, CACHE_WRITTEN);
        tiers_wait_hits(&t, 1);
        assert_int_equal(evict(1, false), CACHE_OK);
        release();
        tiers_wait_io(&t);
        put_bytes(&second, 1, CACHE_WRITTEN, 2, LENGTH);
        reap_copies(2);
        expect(&second, CACHE_OK);
        expect(&first, CACHE_OK);
        tiers_settle(&t);
        assert_int_equal(tiers_of(1), CACHE_MEMORY | CACHE_DISK);
        tiers_close(&t);
        tiers_open(&t);
        expect_get(1, CACHE_OK, 2);
}

/* Puts other bytes for an evicted key whose first put is held. They stay when the first put ends.
 */
static void put_while_held(struct req *first)
{
        struct req second;

        put_bytes(&second, 1, CACHE_WRITTEN, 2, LENGTH);
        expect(&second, CACHE_OK);
        assert_false(first->done);
        release();
        expect(first, CACHE_OK);
        tiers_settle(&t);
        assert_int_equal(tiers_of(1), CACHE_MEMORY | CACHE_DISK);
        tiers_close(&t);
        tiers_open(&t);
        expect_get(1, CACHE_OK, 2);
}

/* The write of a durable put has ended, and its sync has not. */
static void an_evicted_chunk_is_not_found_during_its_sync(void **state)
{
        struct req first;

        put_writing(&first, 1, CACHE_DURABLE);
        assert_int_equal(evict(1, false), CACHE_OK);
        hold(KIO_SYNC, 1);
        fault_release(); /* the writes */
        tiers_wait_hits(&t, 1);
        assert_int_equal(tiers_of(1), 0);
        expect_get(1, CACHE_MISS, 0);
        put_while_held(&first);
}

static uint64_t table_writes(void)
{
        struct store_stats s;

        store_get_stats(t.store, &s);
        return s.table_writes;
}

/* A failed sync of the table lets the entry of the put reach the disk, but no tombstone after it.
 */
static void an_eviction_is_lost_if_its_put_ends_on_a_bypassed_volume(void **state)
{
        struct fault_plan one = { .ops = 1u << KIO_WRITE, .kind = FAULT_NEVER, .first = 1 };
        struct req evicted, synced;
        uint64_t before;
        struct settle s;

        expect_put(2, CACHE_WRITTEN, CACHE_OK);
        fault_set(&one); /* the payload */
        put(&evicted, 1, CACHE_WRITTEN);
        tiers_wait_hits(&t, 1);
        before = table_writes();
        assert_int_equal(evict(1, false), CACHE_OK);
        settle(&s);
        while (table_writes() == before) { /* the tombstone of older chunks of the key */
                tiers_iterate(&t);
                tiers_wait_io(&t);
                kio_reap(t.io);
        }
        fault_set(&one); /* the entry */
        fault_release();
        tiers_wait_hits(&t, 1);
        refuse(KIO_SYNC, 1, FAULT_FOR_EVER);
        put(&synced, 2, CACHE_DURABLE);
        expect(&synced, CACHE_NOT_DURABLE);
        assert_int_equal(store_volumes_up(t.store), 0);
        release();
        expect(&evicted, CACHE_OK);
        tiers_wait(&t, &s.done);
        assert_int_equal(s.req.result, STORE_BYPASSED);
        tiers_close(&t);
        tiers_open(&t);
        assert_int_equal(tiers_of(1), CACHE_DISK);
}

/* The end of the first write does not drop the chunk that was written after the eviction. */
static void a_put_after_an_eviction_during_a_sync_stays_written(void **state)
{
        struct req first;

        hold(KIO_SYNC, 1);
        put(&first, 1, CACHE_DURABLE);
        tiers_wait_hits(&t, 1);
        assert_int_equal(evict(1, false), CACHE_OK);
        put_while_held(&first);
}

static void counted(struct cache_count *count)
{
        count->chunk = UINT32_MAX;
}

static uint64_t chunks_in_memory(uint32_t namespace_id)
{
        struct cache_count count = { .namespace_id = namespace_id, .complete = counted };

        cache_count(t.cache, &count);
        assert_int_equal(cache_pending(t.cache), 1);
        assert_true(cache_has_work(t.cache));
        while (count.chunk != UINT32_MAX)
                tiers_iterate(&t);
        assert_int_equal(cache_pending(t.cache), 0);
        return count.found;
}

static void chunks_in_memory_are_counted_without_what_was_purged(void **state)
{
        struct req r[3];
        struct purge all;

        assert_int_equal(chunks_in_memory(t.ns), 0);
        for (unsigned i = 0; i < 3; i++) {
                put(&r[i], 1 + i, CACHE_WRITTEN);
                expect(&r[i], CACHE_OK);
        }
        tiers_settle(&t);
        assert_int_equal(chunks_in_memory(t.ns), 3);
        assert_int_equal(chunks_in_memory(t.ns + 1), 0);
        purge(&all);
        while (store_pending(t.store) > 0 || cache_pending(t.cache) > 0) {
                struct cache_count count = { .namespace_id = t.ns, .complete = counted };

                cache_count(t.cache, &count);
                while (count.chunk != UINT32_MAX) {
                        kio_reap(t.io);
                        tiers_iterate(&t);
                }
                assert_int_equal(count.found, 0); /* chunks to be dropped do not count */
        }
}

/* A count does not wait for purges, because endless purges would otherwise delay every removal of a
 * namespace. */
static void a_count_does_not_wait_for_a_purge(void **state)
{
        struct cache_count count = { .namespace_id = t.ns, .complete = counted };
        struct req r;
        struct purge all;

        put(&r, 1, CACHE_WRITTEN);
        expect(&r, CACHE_OK);
        tiers_settle(&t);
        purge(&all);
        assert_true(pool_is_sweeping(t.pool));
        cache_count(t.cache, &count);
        assert_true(cache_sweep(t.cache));
        assert_int_equal(count.chunk, UINT32_MAX);
        assert_int_equal(count.found, 0);
        while (store_pending(t.store) > 0 || cache_pending(t.cache) > 0) {
                kio_reap(t.io);
                tiers_iterate(&t);
        }
}

static void a_purge_takes_out_every_state_and_nothing_comes_back(void **state)
{
        struct req copying, joined, writing, reading, g;
        uint32_t other = tiers_namespace(&t, "b");
        struct purge p;

        put_cold(3);
        expect_put(4, CACHE_WRITTEN, CACHE_OK);
        start(&g, 4);
        g.req.namespace_id = other;
        g.req.hash = cache_hash(t.cache, other, &g.req.key);
        g.src = malloc(LENGTH);
        fill(g.src, 4, 7, LENGTH);
        g.req.memory = g.src;
        g.req.length = LENGTH;
        g.req.ack = CACHE_WRITTEN;
        cache_put(t.cache, &g.req);
        expect(&g, CACHE_OK);

        fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE | 1u << KIO_READ,
                                        .kind = FAULT_NEVER,
                                        .first = 1,
                                        .count = FAULT_FOR_EVER });
        put(&writing, 2, CACHE_WRITTEN);
        get(&reading, 3);
        tiers_wait_hits(&t, 2);
        put(&copying, 1, CACHE_WRITTEN);
        put(&joined, 1, CACHE_WRITTEN);
        purge(&p);
        for (uint32_t n = 1; n <= 4; n++)
                assert_int_equal(tiers_of(n), 0);
        release();
        tiers_wait(&t, &p.done);
        assert_int_equal(p.req.store.result, 0);
        expect(&copying, CACHE_OK);
        expect(&joined, CACHE_EXISTS);
        expect(&writing, CACHE_OK);
        expect(&reading, CACHE_MISS);
        tiers_settle(&t);
        for (uint32_t n = 1; n <= 4; n++)
                expect_get(n, CACHE_MISS, 0);
        expect_put(2, CACHE_WRITTEN, CACHE_OK);
        tiers_close(&t);
        tiers_open(&t);
        assert_int_equal(tiers_of(1) | tiers_of(3) | tiers_of(4), 0);
        expect_get(2, CACHE_OK, 1);
        start(&g, 4);
        g.req.namespace_id = other;
        g.req.hash = cache_hash(t.cache, other, &g.req.key);
        cache_get(t.cache, &g.req);
        expect(&g, CACHE_OK);
        assert_int_equal(g.version, 7);
}

int main(int argc, char **argv)
{
        const struct CMUnitTest tests[] = {
                TEST(an_evict_is_settled_after_a_purge_that_overtook_it),
                TEST(an_evict_fails_with_the_purge_that_overtook_it),
                TEST(an_evict_fails_on_a_volume_that_lost_a_purge),
                TEST(an_eviction_that_a_hung_write_may_undo_fails_for_all_waiters),
                TEST(an_evict_that_a_resume_undoes_fails),
                TEST(an_evict_during_a_bypass_fails_if_the_resume_brings_an_older_chunk_back),
                TEST(evict_takes_a_key_out_in_every_state),
                TEST(what_was_evicted_while_written_can_be_put_again_at_once),
                TEST(a_put_is_not_taken_for_written_because_an_evicted_one_was),
                TEST(an_evicted_chunk_is_not_found_during_its_sync),
                TEST(an_eviction_is_lost_if_its_put_ends_on_a_bypassed_volume),
                TEST(a_put_after_an_eviction_during_a_sync_stays_written),
                TEST(chunks_in_memory_are_counted_without_what_was_purged),
                TEST(a_count_does_not_wait_for_a_purge),
                TEST(a_purge_takes_out_every_state_and_nothing_comes_back),
        };

        if (argc > 1)
                cmocka_set_test_filter(argv[1]);
        return cmocka_run_group_tests(tests, NULL, NULL);
}

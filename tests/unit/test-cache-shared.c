/* SPDX-License-Identifier: Apache-2.0 */
/* The cache: puts from and gets into the memory of clients, which may be cut while I/O runs. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cache-fixture.h"
#include "cache/tails.h"
#include "checked.h"

enum { SHARED_BYTES = 8 * MIB };

static struct shared {
        int fd;
        char *at;
        struct kio_region region;
        bool over;
} good, cut_off;

static void region_is_over(struct kio_region *region)
{
        container_of(region, struct shared, region)->over = true;
}

static void share(struct shared *m)
{
        *m = (struct shared){ .fd = memfd_create("registered", MFD_CLOEXEC) };
        assert_true(m->fd >= 0);
        assert_int_equal(ftruncate(m->fd, SHARED_BYTES), 0);
        m->at = mmap(NULL, SHARED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
        assert_ptr_not_equal(m->at, MAP_FAILED);
        m->region = (struct kio_region){ .base = m->at,
                                         .bytes = SHARED_BYTES,
                                         .complete = region_is_over };
        kio_region_register(t.io, &m->region);
        tiers_wait(&t, &m->over);
}

static void share_both(uint64_t hang_ms)
{
        /* Opened anew, since cmocka takes SIGBUS for itself before each test. */
        tiers_close(&t);
        t.hang_ms = hang_ms;
        tiers_open(&t);
        share(&good);
        share(&cut_off);
        fill(good.at, 1, 1, LENGTH);
        assert_int_equal(ftruncate(cut_off.fd, 0), 0);
}

/* Under key 1. */
static void put_shared(struct req *r, const struct shared *m, enum cache_ack ack, bool direct)
{
        start(r, 1);
        r->req.memory = m->at;
        r->req.region = (struct kio_region *)&m->region;
        r->req.may_be_direct = direct;
        r->req.length = LENGTH;
        r->req.ack = ack;
        cache_put(t.cache, &r->req);
        kio_flush(t.io);
}

enum { MANY = 600 };

static struct req many[MANY];

static enum cache_ack all_written(unsigned i)
{
        return CACHE_WRITTEN;
}

/* An accepted put goes by way of the pool, others do not. */
static enum cache_ack in_turns(unsigned i)
{
        return i % 2 == 0 ? CACHE_ACCEPTED : CACHE_WRITTEN;
}

/* Puts of one key at once, all from memory that was cut off, but for number `right` of them. */
static void put_many(unsigned right, enum cache_ack (*ack)(unsigned i), bool direct)
{
        looks = 0;
        for (unsigned i = 0; i < MANY; i++)
                put_shared(&many[i], i == right ? &good : &cut_off, ack(i), direct);
        for (unsigned i = 0; i < MANY; i++)
                expect(&many[i], i < right ? CACHE_FAULT : i == right ? CACHE_OK : CACHE_EXISTS);
        /* Each comes, and looks for itself once, or finds that another has it in hand. */
        assert_true(looks < UINT64_C(4) * MANY);
        assert_int_equal(tiers_of(1) & CACHE_DISK, right < MANY ? CACHE_DISK : 0);
        expect_get(1, right < MANY ? CACHE_OK : CACHE_MISS, 1);
}

static void many_puts_from_memory_that_vanished_cost_one_try_each(void **state)
{
        share_both(0);
        put_many(MANY, all_written, true);
        assert_int_equal(stats().puts, 0);
        put_many(MANY, all_written, false);
        put_many(MANY, in_turns, true);
        assert_int_equal(stats().puts, 0);
        assert_int_equal(stats().waited, 0);
}

static void test_R16_puts_from_shared_memory_are_in_the_same_budget(void **state)
{
        enum { LONG = 100 };
        struct req direct[LONG], pooled;
        unsigned under_way = 0;

        share_both(0);
        hold(KIO_WRITE, 1);
        for (unsigned i = 0; i < LONG; i++) {
                struct req *r = &direct[i];

                start(r, 1000 + i);
                r->req.memory = good.at;
                r->req.region = (struct kio_region *)&good.region;
                r->req.may_be_direct = true;
                r->req.length = SMALL;
                r->req.ack = CACHE_WRITTEN;
                cache_put(t.cache, &r->req);
                under_way += stats().direct_bytes == (i + 1ull) * SMALL;
        }
        assert_int_equal(under_way, pool_bytes(t.pool) / 4 / SMALL);
        assert_int_equal(stats().waited, LONG - under_way);
        put_as(2, &pooled, 1, CACHE_ACCEPTED, LENGTH, true);
        expect(&pooled, CACHE_OK);
        release();
        for (unsigned i = 0; i < LONG; i++)
                expect(&direct[i], CACHE_OK);
        assert_int_equal(stats().direct_bytes, 0);
}

static void tails_are_pages_of_their_own_and_blocks_come_and_go(void **state)
{
        enum { MOST = 100 };
        struct tails tails;
        struct tail all[MOST], none = { 0 };

        tails_init(&tails);
        for (unsigned round = 0; round < 3; round++) {
                for (unsigned i = 0; i < MOST; i++) {
                        assert_int_equal(tail_take(&tails, &all[i]), 0);
                        assert_int_equal((uintptr_t)all[i].page % TAIL_BYTES, 0);
                        memset(all[i].page, (int)i, TAIL_BYTES);
                }
                for (unsigned i = 0; i < MOST; i++)
                        for (unsigned k = 0; k < TAIL_BYTES; k++)
                                assert_int_equal(((uint8_t *)all[i].page)[k], i);
                for (unsigned i = 0; i < MOST; i++)
                        tail_release(&tails, &all[i * (2 * round + 1) % MOST]);
                for (unsigned i = 0; i < MOST; i++)
                        tail_release(&tails, &all[i]); /* nothing remains of released ones */
                assert_false(list_empty(&tails.with_room));
                assert_ptr_equal(tails.with_room.next->next,
                                 &tails.with_room); /* a single page is kept */
        }
        tail_release(&tails, &none);
        tails_fini(&tails);
}

static int64_t charged, may_charge;
static unsigned refusals;

static bool charge(struct cache_request *req, int64_t bytes)
{
        if (charged + bytes > may_charge) {
                refusals++;
                return false;
        }
        charged += bytes;
        assert_true(charged >= 0);
        return true;
}

static void put_charged(struct req *r, uint32_t n, struct iovec *pieces, uint32_t length)
{
        start(r, n);
        if (pieces) {
                r->req.pieces = pieces;
                r->req.room = length;
                r->req.in_regions = true;
        } else {
                r->req.memory = good.at + MIB + n * 64 * KIB;
                fill(r->req.memory, n, 1, length);
                r->req.region = &good.region;
        }
        r->req.may_be_direct = true;
        r->req.length = length;
        r->req.ack = CACHE_WRITTEN;
        r->req.charge = charge;
        cache_put(t.cache, &r->req);
}

/* A put or a get between a region and the disk takes up to 6 KiB, beside the budget of bytes:
 * its user is charged for that while it is under way. */
static void test_R10_memory_of_direct_requests_is_charged(void **state)
{
        enum { ODD = 4096 + 100 };
        struct req whole, odd, of_pieces, pooled, got;
        struct iovec pieces[2];
        int64_t of_whole, of_odd;

        share_both(0);
        pieces[0] = (struct iovec){ .iov_base = good.at, .iov_len = 4096 };
        pieces[1] = (struct iovec){ .iov_base = good.at + 8192, .iov_len = 100 };
        charged = 0;
        refusals = 0;
        may_charge = INT64_MAX;
        hold(KIO_WRITE, 1);
        put_charged(&whole, 10, NULL, 4096);
        of_whole = charged;
        assert_true(of_whole > 512 && of_whole < 4096);
        put_charged(&odd, 11, NULL, ODD);
        of_odd = charged - of_whole;
        assert_int_equal(of_odd, of_whole + 4096);
        put_charged(&of_pieces, 12, pieces, ODD);
        assert_int_equal(charged - of_whole - of_odd, of_odd + 3 * (int64_t)sizeof(struct iovec));

        /* No more: by way of the pool. */
        may_charge = charged + of_odd - 1;
        put_charged(&pooled, 13, NULL, ODD);
        assert_int_equal(refusals, 1);
        release();
        expect(&whole, CACHE_OK);
        expect(&odd, CACHE_OK);
        expect(&of_pieces, CACHE_OK);
        expect(&pooled, CACHE_OK);
        assert_true(whole.req.direct && odd.req.direct && of_pieces.req.direct);
        assert_false(pooled.req.direct);
        assert_int_equal(charged, 0);

        for (unsigned may = 0; may < 2; may++) {
                hold(KIO_READ, 1);
                may_charge = may ? of_odd : of_odd - 1;
                start(&got, 11);
                got.req.memory = good.at;
                got.req.region = &good.region;
                got.req.room = 2 * ODD;
                got.req.may_be_direct = true;
                got.req.charge = charge;
                cache_get(t.cache, &got.req);
                assert_int_equal(charged, may ? of_odd : 0);
                release();
                expect(&got, CACHE_OK);
                assert_int_equal(got.req.direct, may);
                assert_int_equal(charged, 0);
                assert_int_equal(evict(11, true), CACHE_OK);
        }
}

/* Under key 1, into memory, by way of the pool. */
static void copy_to(struct req *r, char *to, uint32_t room, uint32_t offset, uint32_t length)
{
        start(r, 1);
        r->req.memory = to;
        r->req.room = room;
        r->req.range_offset = offset;
        r->req.range_length = length;
        cache_get(t.cache, &r->req);
        kio_flush(t.io);
}

/* A worker copies a chunk of the pool before the get completes, and leaves no pin. */
static void a_get_into_memory_completes_when_the_bytes_are_there(void **state)
{
        struct pool_stats pool;
        bool unwanted = true;
        struct req r;

        share_both(0);
        expect_put(1, CACHE_WRITTEN, CACHE_OK);
        for (unsigned cold = 0; cold < 2; cold++) {
                if (cold)
                        assert_int_equal(evict(1, true), CACHE_OK);
                memset(good.at, 0, LENGTH);
                copy_to(&r, good.at, LENGTH, 0, 0);
                expect(&r, CACHE_OK);
                assert_int_equal(r.req.chunk, POOL_NONE);
                assert_int_equal(r.req.tier, cold ? CACHE_DISK : CACHE_MEMORY);
                assert_int_equal(r.req.chunk_length, LENGTH);
                assert_int_equal(r.req.copied, LENGTH);
                assert_int_equal(version_of(good.at, 1, LENGTH), 1);
        }
        good.at[7] = 'x';
        copy_to(&r, good.at, 7, 100, 7);
        expect(&r, CACHE_OK);
        assert_int_equal(r.req.copied, 7);
        assert_int_equal(good.at[7], 'x'); /* nothing beyond them is written */
        copy_to(&r, good.at, 6, LENGTH - 7, 0);
        expect(&r, CACHE_TOO_LARGE);
        assert_int_equal(r.req.copied, 7);
        copy_to(&r, good.at, LENGTH, LENGTH, 0);
        expect(&r, CACHE_NO_RANGE);
        assert_int_equal(r.req.chunk_length, LENGTH);
        copy_to(&r, good.at, LENGTH, 1, LENGTH);
        expect(&r, CACHE_NO_RANGE);
        copy_to(&r, cut_off.at, LENGTH, 0, 0);
        expect(&r, CACHE_FAULT);
        start(&r, 1);
        r.req.memory = good.at;
        r.req.room = LENGTH;
        r.req.unwanted = &unwanted;
        cache_get(t.cache, &r.req);
        assert_true(r.done); /* no copy is begun */
        assert_int_equal(r.req.status, CACHE_CANCELLED);
        assert_int_equal(stats().hits_disk, 1);
        pool_get_stats(t.pool, &pool);
        assert_int_equal(pool.pinned_bytes, 0);
}

/* To a place of its own in the shared memory. */
static void get_into(uint32_t user, struct req *r, uint32_t n, struct list_node *owner)
{
        start(r, n);
        r->req.user = user;
        r->req.owner = owner;
        r->req.memory = good.at + n * 4096;
        r->req.room = 4096;
        r->req.region = &good.region;
        r->req.may_be_direct = true;
        cache_get(t.cache, &r->req);
        kio_flush(t.io);
}

static void get_all_into(struct list_node *owner)
{
        hold(KIO_READ, 1);
        for (unsigned i = 0; i < READS; i++)
                get_into(1, &reads[i], i, owner);
        assert_int_equal(stats().queued_reads, READS - WINDOW);
}

static void put_reads_shared(uint64_t hang_ms)
{
        t.pool_bytes = 32 * MIB;
        share_both(hang_ms);
        for (uint32_t n = 0; n < READS + 2; n++)
                put_cold_of_one_page(n);
}

static void test_R16_another_users_read_to_its_memory_stands_behind_a_window_at_most(void **state)
{
        struct req other, pooled;

        put_reads_shared(0);
        get_all_into(&waits);
        get_into(2, &other, READS, &waits);
        get_as(3, &pooled, READS + 1);
        assert_int_equal(stats().queued_reads, READS - WINDOW + 2);
        release();
        wait_for_more_reads();
        assert_true(other.req.read.item.in_flight);
        expect(&other, CACHE_OK);
        expect(&pooled, CACHE_OK);
        assert_true(other.req.direct);
        assert_int_equal(version_of(good.at + READS * 4096, READS, 4096), 1);
        expect_reads(0, CACHE_OK);
        assert_int_equal(stats().get_bytes_direct, (READS + 1) * UINT64_C(4096));
        assert_int_equal(stats().queued_reads, 0);
}

/* Reads of an ended owner end at once, unless the device uses their memory. */
static void reads_that_wait_for_their_turn_are_cancelled(void **state)
{
        struct list_node owner = LIST_INIT(owner);
        uint32_t most = UINT32_MAX;

        put_reads_shared(0);
        get_all_into(&owner);
        assert_false(cache_cancel(t.cache, &owner, &most));
        assert_true(list_empty(&owner));
        expect_reads(WINDOW, CACHE_CANCELLED);
        assert_int_equal(stats().queued_reads, 0);
        for (unsigned i = 0; i < WINDOW; i++)
                assert_false(reads[i].done);
        release();
        for (unsigned i = 0; i < WINDOW; i++)
                expect(&reads[i], CACHE_OK);
}

static void test_R15_reads_that_wait_for_a_device_that_hangs_are_misses(void **state)
{
        struct req pooled, ahead;

        put_reads_shared(200);
        get_all_into(&waits);
        get_as(2, &pooled, READS);
        assert_int_equal(prefetch_as(2, READS + 1), CACHE_OK);
        expect_ticking(&reads[READS - 1], CACHE_MISS);
        expect_reads(WINDOW, CACHE_MISS);
        expect(&pooled, CACHE_MISS);
        assert_int_equal(stats().queued_reads, 0);
        assert_int_equal(stats().prefetch_inflight_bytes, 0);
        get_as(2, &ahead, READS + 1);
        assert_true(ahead.done);
        /* The device has their memory. */
        for (unsigned i = 0; i < WINDOW; i++)
                assert_false(reads[i].done);
        release();
        for (unsigned i = 0; i < WINDOW; i++)
                tiers_wait(&t, &reads[i].done);
}

/* Many gets of one key, which wait, cost one read to memory and one to the pool. */
static void gets_of_one_key_that_wait_share_a_read(void **state)
{
        enum { SAME = 50 };
        struct req same[SAME];

        put_reads_shared(0);
        get_all_into(&waits);
        for (unsigned i = 0; i < SAME; i++) {
                start(&same[i], READS);
                same[i].req.user = 2;
                same[i].req.memory = good.at + (READS + i) * UINT64_C(4096);
                same[i].req.room = 4096;
                same[i].req.region = &good.region;
                same[i].req.may_be_direct = true;
                cache_get(t.cache, &same[i].req);
        }
        release();
        for (unsigned i = 0; i < SAME; i++)
                expect(&same[i], CACHE_OK);
        expect_reads(0, CACHE_OK);
        assert_in_range(stats().get_bytes_direct, READS * UINT64_C(4096),
                        (READS + 10) * UINT64_C(4096));
}

static void of_many_puts_the_first_that_can_succeeds(void **state)
{
        static const unsigned right[] = { 0, 1, MANY / 2, MANY - 1 };

        share_both(0);
        for (unsigned i = 0; i < ARRAY_SIZE(right); i++) {
                put_many(right[i], all_written, true);
                assert_int_equal(evict(1, false), CACHE_OK);
                tiers_settle(&t);
                put_many(right[i], all_written, false);
                assert_int_equal(evict(1, false), CACHE_OK);
                tiers_settle(&t);
        }
        assert_int_equal(stats().puts, 2 * ARRAY_SIZE(right));
        assert_int_equal(stats().put_bytes_direct, LENGTH * ARRAY_SIZE(right));
        /* By way of the pool, after one that was not, and the other way about. */
        put_many(MANY / 2, in_turns, true);
        assert_int_equal(evict(1, false), CACHE_OK);
        tiers_settle(&t);
        put_many(MANY / 2 + 1, in_turns, true);
}

static void gets_among_many_puts_are_answered_with_the_put_they_met(void **state)
{
        static struct req gets[MANY];

        share_both(0);
        for (unsigned i = 0; i < MANY; i++) {
                put_shared(&many[i], i == MANY - 1 ? &good : &cut_off, CACHE_ACCEPTED, false);
                get(&gets[i], 1);
        }
        expect(&many[0], CACHE_FAULT);
        /* All of them met the first: none waits for the others. */
        for (unsigned i = 0; i < MANY; i++) {
                assert_true(gets[i].done);
                assert_int_equal(gets[i].req.status, CACHE_MISS);
        }
        assert_false(many[MANY - 1].done);
        for (unsigned i = 1; i < MANY; i++)
                expect(&many[i], i < MANY - 1 ? CACHE_FAULT : CACHE_OK);
        expect_get(1, CACHE_OK, 1);
}

static void unshare_it(struct shared *m)
{
        m->over = false;
        kio_region_unregister(t.io, &m->region);
        tiers_wait(&t, &m->over);
        munmap(m->at, SHARED_BYTES);
        close(m->fd);
}

static void a_drain_does_not_go_through_puts_that_wait_for_one_that_fails(void **state)
{
        for (unsigned direct = 0; direct < 2; direct++) {
                share_both(0);
                for (unsigned i = 0; i < MANY; i++)
                        put_shared(&many[i], &cut_off, CACHE_WRITTEN, direct);
                cache_stop(t.cache);
                expect(&many[0], CACHE_FAULT);
                for (unsigned i = 1; i < MANY; i++) {
                        assert_true(many[i].done);
                        assert_int_equal(many[i].req.status, CACHE_CANCELLED);
                }
                unshare_it(&good);
                unshare_it(&cut_off);
        }
        share_both(0);
        /* Duplicates of a put that succeeds get its result. */
        put_shared(&many[0], &good, CACHE_WRITTEN, true);
        put_shared(&many[1], &good, CACHE_WRITTEN, true);
        cache_stop(t.cache);
        expect(&many[0], CACHE_OK);
        expect(&many[1], CACHE_EXISTS);
}

static void test_R15_who_joined_a_put_from_memory_is_answered_when_its_device_hangs(void **state)
{
        static struct req owner, joined, accepted, late;

        share_both(200);
        hold(KIO_WRITE, 1);
        put_shared(&owner, &good, CACHE_WRITTEN, true);
        put_shared(&joined, &good, CACHE_DURABLE, true);
        put(&accepted, 1, CACHE_ACCEPTED);
        tiers_wait_hits(&t, 1);
        assert_false(joined.done || accepted.done);
        expect_ticking(&joined, CACHE_FAILED);
        expect_ticking(&accepted, CACHE_FAILED);
        /* No request joins it any more. */
        put_shared(&late, &good, CACHE_WRITTEN, true);
        expect_ticking(&late, CACHE_FAILED);
        expect_put(1, CACHE_ACCEPTED, CACHE_OK);
        expect_get(1, CACHE_OK, 1);
        tiers_iterate(&t);
        /* The device may still read its memory (rule R17). */
        assert_false(owner.done);
        assert_true(cache_pending(t.cache) > 0);
        release();
        expect(&owner, CACHE_FAILED);
        tiers_settle(&t);
        assert_int_equal(cache_pending(t.cache), 0);
}

/* Whole blocks, under key `n`: their checksum is computed while they are written. */
static void put_blocks(struct req *r, uint32_t n, const struct shared *m)
{
        start(r, n);
        r->req.memory = m->at;
        r->req.region = (struct kio_region *)&m->region;
        r->req.may_be_direct = true;
        r->req.length = SMALL;
        r->req.ack = CACHE_WRITTEN;
        cache_put(t.cache, &r->req);
        kio_flush(t.io);
}

static void blocks_are_written_while_their_checksum_is_computed(void **state)
{
        struct req r, again;

        share_both(0);
        /* The first put makes the data file, whose size is recorded in the superblock. */
        fill(good.at, 3, 3, SMALL);
        put_blocks(&r, 3, &good);
        expect(&r, CACHE_OK);
        tiers_settle(&t);
        fill(good.at, 1, 1, SMALL);
        put_blocks(&r, 1, &good);
        put_blocks(&again, 1, &good);
        /* The checksum and the write, both at once. */
        assert_int_equal(kio_pending(t.io), 2);
        expect(&r, CACHE_OK);
        expect(&again, CACHE_EXISTS);
        assert_true(r.req.direct);
        expect_get(1, CACHE_OK, 1);

        /* A put from missing memory fails, whether the checksum or the device detects it. */
        put_blocks(&r, 2, &cut_off);
        put_blocks(&again, 2, &good);
        expect(&r, CACHE_FAULT);
        expect(&again, CACHE_OK);
        assert_int_equal(tiers_of(2), CACHE_DISK);
}

/* The memory is the daemon's until both have ended. */
static void a_put_of_blocks_ends_when_write_and_checksum_have_ended(void **state)
{
        struct req r;

        share_both(0);
        fill(good.at, 1, 1, SMALL);
        /* The write fails, and its checksum comes later or earlier. */
        refuse(KIO_WRITE, 1, 1);
        put_blocks(&r, 1, &good);
        expect(&r, CACHE_FAILED);
        release();
        assert_int_equal(stats().direct_bytes, 0);
        assert_int_equal(tiers_of(1), 0);
        hold(KIO_WRITE, 1);
        put_blocks(&r, 1, &good);
        tiers_wait_hits(&t, 1);
        tiers_iterate(&t);
        assert_false(r.done);
        release();
        expect(&r, CACHE_OK);
        tiers_settle(&t);

        /* The store takes nothing more: it says so while the checksum is on its way. */
        store_stop(t.store);
        put_blocks(&r, 3, &good);
        assert_false(r.done);
        assert_int_equal(stats().direct_bytes, SMALL);
        expect(&r, CACHE_FAILED);
        assert_int_equal(stats().direct_bytes, 0);
}

static int teardown_shared(void **state)
{
        release();
        tiers_settle(&t);
        unshare_it(&good);
        unshare_it(&cut_off);
        return teardown(state);
}

#define SHARED(name) cmocka_unit_test_setup_teardown(name, setup, teardown_shared)

int main(int argc, char **argv)
{
        const struct CMUnitTest tests[] = {
                SHARED(test_R16_puts_from_shared_memory_are_in_the_same_budget),
                SHARED(test_R10_memory_of_direct_requests_is_charged),
                cmocka_unit_test(tails_are_pages_of_their_own_and_blocks_come_and_go),
                SHARED(many_puts_from_memory_that_vanished_cost_one_try_each),
                SHARED(of_many_puts_the_first_that_can_succeeds),
                SHARED(a_get_into_memory_completes_when_the_bytes_are_there),
                SHARED(test_R16_another_users_read_to_its_memory_stands_behind_a_window_at_most),
                SHARED(reads_that_wait_for_their_turn_are_cancelled),
                SHARED(test_R15_reads_that_wait_for_a_device_that_hangs_are_misses),
                SHARED(gets_of_one_key_that_wait_share_a_read),
                SHARED(gets_among_many_puts_are_answered_with_the_put_they_met),
                SHARED(a_drain_does_not_go_through_puts_that_wait_for_one_that_fails),
                SHARED(test_R15_who_joined_a_put_from_memory_is_answered_when_its_device_hangs),
                SHARED(blocks_are_written_while_their_checksum_is_computed),
                SHARED(a_put_of_blocks_ends_when_write_and_checksum_have_ended),
        };

        if (argc > 1)
                cmocka_set_test_filter(argv[1]);
        return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The cache over a real store and a real pool. Each test holds the requests in the state it is
 * about: a copy is not reaped, a device's operation is held by the fault backend. After each,
 * nothing is pinned, unwritten or pending. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "cache/internal.h"
#include "checked.h"
#include "tiers.h"

enum { KIB = 1024, MIB = 1024 * KIB, LENGTH = 20000, SMALL = 64 * KIB, SLABS = 8 };

static struct tiers t;
static struct list_node waits = LIST_INIT(waits); /* of all requests that name no other owner */

/* Lookups of the store: each try of a put makes one. The linker has the cache come here. */
static uint64_t looks;

int __real_store_find(const struct store *s, uint32_t namespace_id, const struct key *key,
                      uint64_t hash, struct store_ref *ret_ref, struct store_chunk *ret_chunk);
int __wrap_store_find(const struct store *s, uint32_t namespace_id, const struct key *key,
                      uint64_t hash, struct store_ref *ret_ref, struct store_chunk *ret_chunk);

int __wrap_store_find(const struct store *s, uint32_t namespace_id, const struct key *key,
                      uint64_t hash, struct store_ref *ret_ref, struct store_chunk *ret_chunk)
{
        looks++;
        return __real_store_find(s, namespace_id, key, hash, ret_ref, ret_chunk);
}

/* --- requests and bytes --- */

struct req {
        struct cache_request req;
        bool done;
        uint64_t nth;    /* to be done, of all */
        uint32_t length; /* of what a get got */
        uint8_t version; /* whose bytes they are */
        char *src;
};

static uint64_t completions;

static struct key key_of(uint32_t n)
{
        struct key k = { { 1 } };

        memcpy(k.bytes + 4, &n, sizeof(n));
        return k;
}

/* Says of which key and version it is, in each byte: a mixture of two is found out. */
static void fill(char *buf, uint32_t n, uint8_t version, uint32_t length)
{
        buf[0] = (char)version;
        for (uint32_t i = 1; i < length; i++)
                buf[i] = (char)(i * 31 + n * 7 + version * 13 + (i >> 8));
}

static uint8_t version_of(const char *buf, uint32_t n, uint32_t length)
{
        for (uint32_t i = 1; i < length; i++)
                if (buf[i] != (char)(i * 31 + n * 7 + (uint8_t)buf[0] * 13 + (i >> 8)))
                        fail_msg("wrong byte %u of %u under key %u", i, length, n);
        return (uint8_t)buf[0];
}

static void completed(struct cache_request *req)
{
        struct req *r = container_of(req, struct req, req);
        uint32_t n;

        assert_false(r->done);
        r->done = true;
        r->nth = ++completions;
        memcpy(&n, req->key.bytes + 4, sizeof(n));
        if (req->chunk != POOL_NONE) {
                r->length = pool_chunk(t.pool, req->chunk)->length;
                r->version = version_of(pool_at(t.pool, req->chunk), n, r->length);
                cache_unpin(t.cache, req->chunk);
        }
        free(r->src);
        r->src = NULL;
}

static void start(struct req *r, uint32_t n)
{
        *r = (struct req){
                .req = {
                        .owner = &waits,
                        .namespace_id = t.ns,
                        .key = key_of(n),
                        .deadline_ns = clock_mono_ns() + t.later_ns + 60000000000u,
                        .complete = completed,
                },
        };
        r->req.hash = cache_hash(t.cache, t.ns, &r->req.key);
}

static void put_bytes(struct req *r, uint32_t n, enum cache_ack ack, uint8_t version,
                      uint32_t length)
{
        start(r, n);
        r->src = malloc(length);
        assert_non_null(r->src);
        fill(r->src, n, version, length);
        r->req.memory = r->src;
        r->req.length = length;
        r->req.ack = ack;
        cache_put(t.cache, &r->req);
        kio_flush(t.io);
}

static void put(struct req *r, uint32_t n, enum cache_ack ack)
{
        put_bytes(r, n, ack, 1, LENGTH);
}

static void get(struct req *r, uint32_t n)
{
        start(r, n);
        cache_get(t.cache, &r->req);
        kio_flush(t.io);
}

static void expect(struct req *r, enum cache_status status)
{
        tiers_wait(&t, &r->done);
        assert_int_equal(r->req.status, status);
}

static void expect_put(uint32_t n, enum cache_ack ack, enum cache_status status)
{
        struct req r;

        put(&r, n, ack);
        expect(&r, status);
}

static void expect_get(uint32_t n, enum cache_status status, uint8_t version)
{
        struct req r;

        get(&r, n);
        expect(&r, status);
        if (status == CACHE_OK)
                assert_int_equal(r.version, version);
}

static unsigned tiers_of(uint32_t n)
{
        struct key k = key_of(n);

        return cache_find(t.cache, t.ns, &k, cache_hash(t.cache, t.ns, &k), NULL, NULL);
}

static enum cache_status evict(uint32_t n, bool memory_only)
{
        struct key k = key_of(n);

        return cache_evict(t.cache, t.ns, &k, cache_hash(t.cache, t.ns, &k), memory_only);
}

static enum cache_status prefetch_as(uint32_t user, uint32_t n)
{
        struct key k = key_of(n);
        struct cache_place place;
        enum cache_status status =
                cache_prefetch(t.cache, user, t.ns, &k, cache_hash(t.cache, t.ns, &k), &place);

        kio_flush(t.io);
        return status;
}

static enum cache_status prefetch(uint32_t n)
{
        return prefetch_as(0, n);
}

struct purge {
        struct cache_purge req;
        bool done;
};

static void purged(struct cache_purge *req)
{
        container_of(req, struct purge, req)->done = true;
}

static void purge(struct purge *p)
{
        *p = (struct purge){ .req = { .store.namespace_id = t.ns, .complete = purged } };
        cache_purge(t.cache, &p->req);
}

struct settle {
        struct cache_settle req;
        bool done;
};

static void settled(struct cache_settle *req)
{
        container_of(req, struct settle, req)->done = true;
}

/* Until no kill can bring back what was evicted. */
static void settle(struct settle *s)
{
        *s = (struct settle){ .req = { .complete = settled } };
        cache_settle_evictions(t.cache, &s->req);
}

static struct cache_stats stats(void)
{
        struct cache_stats s;

        cache_get_stats(t.cache, &s);
        return s;
}

/* --- states --- */

static void hold(unsigned op, uint64_t first)
{
        fault_set(&(struct fault_plan){
                .ops = 1u << op, .kind = FAULT_NEVER, .first = first, .count = FAULT_FOR_EVER });
}

static void refuse(unsigned op, uint64_t first, uint64_t count)
{
        fault_set(&(struct fault_plan){ .ops = 1u << op,
                                        .kind = FAULT_ERROR,
                                        .error = EIO,
                                        .first = first,
                                        .count = count });
}

static void release(void)
{
        fault_set(NULL);
        fault_release();
}

/* Until its bytes are in the pool. The turn does not end. */
static void reap_copies(uint64_t puts)
{
        while (stats().puts < puts) {
                tiers_wait_io(&t);
                kio_reap(t.io);
        }
}

/* Its bytes are in the pool; its write is with the device, which holds it. */
static void put_writing(struct req *r, uint32_t n, enum cache_ack ack)
{
        hold(KIO_WRITE, 1);
        put(r, n, ack);
        tiers_wait_hits(&t, 1);
}

/* On disk only. */
static void put_cold(uint32_t n)
{
        expect_put(n, CACHE_WRITTEN, CACHE_OK);
        assert_int_equal(evict(n, true), CACHE_OK);
        assert_int_equal(tiers_of(n), CACHE_DISK);
}

static void get_reading(struct req *r, uint32_t n)
{
        hold(KIO_READ, 1);
        get(r, n);
        tiers_wait_hits(&t, 1);
}

static int setup(void **state)
{
        t = (struct tiers){ 0 };
        tiers_open(&t);
        return 0;
}

static int setup_small_store(void **state)
{
        t = (struct tiers){ .limit = 4 * MIB };
        tiers_open(&t);
        return 0;
}

static int teardown(void **state)
{
        struct pool_stats pool;

        release();
        tiers_settle(&t);
        pool_get_stats(t.pool, &pool);
        assert_int_equal(pool.pinned_bytes, 0);
        assert_int_equal(stats().unwritten_bytes, 0);
        assert_int_equal(stats().unwritten_chunks, 0);
        tiers_remove(&t);
        return 0;
}

/* --- put and get --- */

static void a_put_is_seen_when_accepted_and_on_disk_when_written(void **state)
{
        struct req a, b;

        put_writing(&a, 1, CACHE_ACCEPTED);
        assert_true(a.done);
        assert_int_equal(a.req.status, CACHE_OK);
        assert_int_equal(tiers_of(1), CACHE_MEMORY);
        expect_get(1, CACHE_OK, 1);
        put(&b, 2, CACHE_WRITTEN);
        tiers_wait_hits(&t, 2);
        assert_false(b.done);
        assert_int_equal(stats().unwritten_chunks, 2);
        release();
        expect(&b, CACHE_OK);
        assert_int_equal(tiers_of(2), CACHE_MEMORY | CACHE_DISK);
        tiers_settle(&t);
        assert_int_equal(tiers_of(1), CACHE_MEMORY | CACHE_DISK);
        tiers_close(&t);
        tiers_open(&t);
        assert_int_equal(tiers_of(1), CACHE_DISK);
        expect_get(1, CACHE_OK, 1);
        expect_get(2, CACHE_OK, 1);
        expect_get(3, CACHE_MISS, 0);
}

static void nobody_sees_bytes_that_are_still_being_copied(void **state)
{
        struct req a, g;

        put(&a, 1, CACHE_ACCEPTED); /* not reaped */
        assert_int_equal(tiers_of(1), 0);
        get(&g, 1);
        assert_false(g.done);
        expect(&g, CACHE_OK);
        assert_int_equal(g.version, 1);
        assert_int_equal(g.req.tier, CACHE_MEMORY);
        assert_true(a.done);
}

static void an_accepted_put_whose_write_fails_stays_in_the_pool(void **state)
{
        refuse(KIO_WRITE, 1, 1);
        expect_put(1, CACHE_ACCEPTED, CACHE_OK);
        tiers_settle(&t);
        assert_int_equal(stats().pool_only, 1);
        assert_int_equal(tiers_of(1), CACHE_MEMORY);
        expect_get(1, CACHE_OK, 1);
        expect_put(1, CACHE_ACCEPTED, CACHE_EXISTS);
        /* The only copy is not what "out of memory only" takes away. */
        assert_int_equal(evict(1, true), CACHE_BUSY);
        expect_get(1, CACHE_OK, 1);
        /* A put with `written` has it written, from the pool. */
        expect_put(1, CACHE_WRITTEN, CACHE_EXISTS);
        assert_int_equal(tiers_of(1), CACHE_MEMORY | CACHE_DISK);
        assert_int_equal(stats().puts, 1);
}

static void a_written_put_whose_write_fails_is_failed_and_gone(void **state)
{
        struct req a, b;

        refuse(KIO_WRITE, 1, 1);
        put_bytes(&a, 1, CACHE_WRITTEN, 1, LENGTH);
        expect(&a, CACHE_FAILED);
        assert_int_equal(tiers_of(1), 0);
        assert_int_equal(stats().pool_only, 0);
        expect_get(1, CACHE_MISS, 0);
        put_bytes(&b, 1, CACHE_WRITTEN, 2, LENGTH);
        expect(&b, CACHE_OK);
        expect_get(1, CACHE_OK, 2);
}

static void a_write_of_the_table_that_fails_fails_the_put(void **state)
{
        refuse(KIO_WRITE, 2, 1);
        expect_put(1, CACHE_WRITTEN, CACHE_FAILED);
        /* The volume is bypassed: nothing is written any more, at once. */
        expect_put(2, CACHE_WRITTEN, CACHE_FAILED);
        expect_put(3, CACHE_ACCEPTED, CACHE_OK);
        expect_get(3, CACHE_OK, 1);
        assert_int_equal(tiers_of(1) | tiers_of(2), 0);
        tiers_settle(&t);
        assert_int_equal(stats().pool_only, 1);
}

static void a_put_that_faults_stores_nothing_and_fails_nobody_else(void **state)
{
        int fd = memfd_create("source", 0);
        struct req bad, good, g;
        void *src;

        /* Opened anew, since cmocka takes SIGBUS for itself before each test. */
        tiers_close(&t);
        tiers_open(&t);
        assert_int_equal(ftruncate(fd, 64 * KIB), 0);
        src = mmap(NULL, 64 * KIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        assert_ptr_not_equal(src, MAP_FAILED);
        assert_int_equal(ftruncate(fd, 0), 0);
        start(&bad, 1);
        bad.req.memory = src;
        bad.req.length = LENGTH;
        bad.req.ack = CACHE_WRITTEN;
        cache_put(t.cache, &bad.req);
        put(&good, 1, CACHE_WRITTEN);
        get(&g, 1);
        expect(&bad, CACHE_FAULT);
        expect(&good, CACHE_OK);
        expect(&g, CACHE_MISS);
        assert_int_equal(tiers_of(1), CACHE_MEMORY | CACHE_DISK);
        munmap(src, 64 * KIB);
        close(fd);
}

static void what_is_too_large_is_said_to_be(void **state)
{
        uint32_t most = (uint32_t)MIN(pool_slab_bytes(t.pool), store_max_chunk(t.store));
        struct req r;

        put_bytes(&r, 1, CACHE_WRITTEN, 1, most + 1);
        expect(&r, CACHE_TOO_LARGE);
        put_bytes(&r, 1, CACHE_WRITTEN, 1, most);
        expect(&r, CACHE_OK);
        put_bytes(&r, 2, CACHE_WRITTEN, 1, 1);
        expect(&r, CACHE_OK);
}

/* --- first put wins --- */

static void the_first_put_wins_and_the_second_waits_for_its_class(void **state)
{
        struct req first, accepted, written, durable;

        put_bytes(&first, 1, CACHE_ACCEPTED, 1, LENGTH);
        put_bytes(&accepted, 1, CACHE_ACCEPTED, 2, LENGTH);
        put_bytes(&written, 1, CACHE_WRITTEN, 3, LENGTH);
        put_bytes(&durable, 1, CACHE_DURABLE, 4, LENGTH);
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE | 1u << KIO_SYNC,
                                        .kind = FAULT_NEVER,
                                        .first = 1,
                                        .count = FAULT_FOR_EVER });
        tiers_wait_hits(&t, 1); /* the payload */
        assert_true(first.done && accepted.done && !written.done && !durable.done);
        assert_int_equal(accepted.req.status, CACHE_EXISTS);
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_SYNC, .kind = FAULT_NEVER, .first = 1, .count = FAULT_FOR_EVER });
        fault_release();
        expect(&written, CACHE_EXISTS);
        tiers_wait_hits(&t, 1);
        assert_false(durable.done);
        release();
        expect(&durable, CACHE_EXISTS);
        assert_int_equal(stats().puts, 1);
        expect_get(1, CACHE_OK, 1);
}

static void durable_over_what_is_not_synced_waits_for_a_sync(void **state)
{
        struct req r;

        expect_put(1, CACHE_WRITTEN, CACHE_OK);
        put_cold(2);
        hold(KIO_SYNC, 1);
        put(&r, 1, CACHE_DURABLE);
        tiers_wait_hits(&t, 1);
        assert_false(r.done);
        release();
        expect(&r, CACHE_EXISTS);
        expect_put(2, CACHE_DURABLE, CACHE_EXISTS);
        expect_put(3, CACHE_DURABLE, CACHE_OK);
}

static void a_durable_put_of_what_is_there_says_where_it_is_in_the_pool(void **state)
{
        struct req r;

        expect_put(1, CACHE_WRITTEN, CACHE_OK);
        put(&r, 1, CACHE_DURABLE);
        expect(&r, CACHE_EXISTS);
        assert_int_not_equal(r.req.place.chunk, POOL_NONE);
        assert_int_equal(tiers_of(1), CACHE_MEMORY | CACHE_DISK);
        assert_int_equal(evict(1, true), CACHE_OK); /* and leaves no pin */
        put(&r, 1, CACHE_DURABLE);
        expect(&r, CACHE_EXISTS);
        assert_int_equal(r.req.place.chunk, POOL_NONE);
}

/* The write is held, and goes on with fault_release(). */
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

/* The purge takes the put out of the index, but what the put has written of itself stays on disk,
 * and a kill would find it there, until the purge is written. */
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
}

/* Until the request is answered, with a check for hung devices now and then. */
static void expect_ticking(struct req *r, enum cache_status status)
{
        while (!r->done) {
                struct pollfd p = { .fd = kio_fd(t.io), .events = POLLIN };

                poll(&p, 1, 5);
                kio_reap(t.io);
                store_tick(t.store);
                tiers_iterate(&t);
        }
        assert_int_equal(r->req.status, status);
}

static void test_R15_who_waits_for_a_device_that_hangs_is_answered(void **state)
{
        struct req g, accepted, written, joined;
        struct pool_stats before, now;

        tiers_close(&t);
        t.hang_ms = 200;
        tiers_open(&t);
        put_cold(1);
        put_cold(5);
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_READ | 1u << KIO_WRITE,
                                        .kind = FAULT_NEVER,
                                        .first = 1,
                                        .count = FAULT_FOR_EVER });
        /* One after the other: or neighbours on the disk would go as one. */
        assert_int_equal(prefetch(5), CACHE_OK);
        tiers_wait_hits(&t, 1);
        get(&g, 1);
        tiers_wait_hits(&t, 2);
        put(&accepted, 2, CACHE_ACCEPTED);
        tiers_wait_hits(&t, 3);
        put(&written, 3, CACHE_WRITTEN);
        put(&joined, 3, CACHE_WRITTEN);
        tiers_wait_hits(&t, 4);
        expect_ticking(&accepted, CACHE_OK);
        expect_ticking(&g, CACHE_MISS);
        expect_ticking(&written, CACHE_FAILED);
        expect_ticking(&joined, CACHE_FAILED);
        assert_int_equal(stats().prefetch_inflight_bytes, 0); /* other volumes may prefetch */
        assert_int_equal(stats().unwritten_bytes, 0);
        assert_int_equal(stats().pool_only, 1);
        expect_get(2, CACHE_OK, 1);
        expect_get(1, CACHE_MISS, 0);
        expect_put(4, CACHE_ACCEPTED, CACHE_OK);
        /* No request waits, but what the device has stays its. */
        pool_get_stats(t.pool, &before);
        assert_true(cache_pending(t.cache) > 0);
        release();
        tiers_settle(&t);
        pool_get_stats(t.pool, &now);
        assert_true(now.pinned_bytes < before.pinned_bytes);
        expect_get(2, CACHE_OK, 1);
        t.hang_ms = 0;
}

static void durable_says_when_a_sync_failed(void **state)
{
        struct req joined, r;

        refuse(KIO_SYNC, 1, 1);
        put(&r, 1, CACHE_DURABLE);
        put(&joined, 1, CACHE_DURABLE);
        expect(&r, CACHE_NOT_DURABLE);
        expect(&joined, CACHE_NOT_DURABLE);
        fault_set(NULL);
        /* Never believed again. */
        expect_put(1, CACHE_DURABLE, CACHE_NOT_DURABLE);
        expect_put(1, CACHE_WRITTEN, CACHE_EXISTS);
}

static void a_put_that_joined_fails_with_the_first(void **state)
{
        struct req first, second, third;

        refuse(KIO_WRITE, 1, 1);
        put(&first, 1, CACHE_WRITTEN);
        put(&second, 1, CACHE_DURABLE);
        expect(&first, CACHE_FAILED);
        expect(&second, CACHE_FAILED);
        assert_int_equal(tiers_of(1), 0);

        /* Joined while the write was under way. */
        put_writing(&first, 1, CACHE_WRITTEN);
        put(&second, 1, CACHE_WRITTEN);
        refuse(KIO_WRITE, 1,
               FAULT_FOR_EVER); /* what was held goes through, the table's write does not */
        fault_release();
        expect(&first, CACHE_FAILED);
        expect(&second, CACHE_FAILED);

        /* And where the store refuses at once: it is bypassed by now. */
        put(&first, 2, CACHE_WRITTEN);
        put(&second, 2, CACHE_WRITTEN);
        put(&third, 2, CACHE_DURABLE);
        expect(&first, CACHE_FAILED);
        expect(&second, CACHE_FAILED);
        expect(&third, CACHE_FAILED);
        assert_int_equal(tiers_of(2), 0);
}

static void who_was_told_accepted_keeps_the_chunk(void **state)
{
        struct req first, second;

        /* Joined while it was copied; the write is refused in the same breath. */
        refuse(KIO_WRITE, 2, 1);
        expect_put(9, CACHE_WRITTEN, CACHE_FAILED);
        put(&first, 1, CACHE_WRITTEN);
        put(&second, 1, CACHE_ACCEPTED);
        expect(&first, CACHE_FAILED);
        expect(&second, CACHE_EXISTS);
        tiers_settle(&t);
        assert_int_equal(tiers_of(1), CACHE_MEMORY);
        expect_get(1, CACHE_OK, 1);
        assert_int_equal(stats().pool_only, 1);
}

static void what_was_accepted_while_being_written_stays_when_that_fails(void **state)
{
        struct req first, second;

        put_writing(&first, 1, CACHE_WRITTEN);
        put(&second, 1, CACHE_ACCEPTED);
        expect(&second, CACHE_EXISTS);
        refuse(KIO_WRITE, 1, FAULT_FOR_EVER);
        fault_release();
        expect(&first, CACHE_FAILED);
        expect_get(1, CACHE_OK, 1);
}

/* --- reads --- */

static void gets_of_one_key_share_one_read(void **state)
{
        struct store_stats before, after;
        struct req r[5];

        put_cold(1);
        store_get_stats(t.store, &before);
        get_reading(&r[0], 1);
        for (unsigned i = 1; i < 5; i++)
                get(&r[i], 1);
        release();
        for (unsigned i = 0; i < 5; i++) {
                expect(&r[i], CACHE_OK);
                assert_int_equal(r[i].req.tier, CACHE_DISK);
                assert_int_equal(r[i].version, 1);
        }
        store_get_stats(t.store, &after);
        assert_int_equal(after.reads - before.reads, 1);
        assert_int_equal(stats().shared_fills, 4);
        assert_int_equal(tiers_of(1), CACHE_MEMORY | CACHE_DISK);
}

static void what_is_prefetched_is_a_hit_then(void **state)
{
        struct store_stats before, after;
        struct req r;

        assert_int_equal(prefetch(1), CACHE_MISS);
        put_cold(1);
        store_get_stats(t.store, &before);
        assert_int_equal(prefetch(1), CACHE_OK);
        assert_int_equal(prefetch(1), CACHE_OK); /* on its way: once is enough */
        tiers_settle(&t);
        assert_int_equal(tiers_of(1), CACHE_MEMORY | CACHE_DISK);
        assert_int_equal(prefetch(1), CACHE_OK);
        for (unsigned i = 0; i < 2; i++) {
                get(&r, 1);
                expect(&r, CACHE_OK);
                assert_int_equal(r.req.tier, CACHE_MEMORY);
                assert_int_equal(r.version, 1);
        }
        store_get_stats(t.store, &after);
        assert_int_equal(after.reads - before.reads, 1);
        assert_int_equal(stats().prefetched, 1);
        assert_int_equal(stats().prefetched_bytes, LENGTH);
        assert_int_equal(stats().prefetch_hits, 1);
        assert_int_equal(stats().shared_fills, 0);
}

static void a_get_joins_a_prefetch(void **state)
{
        struct req r;

        put_cold(1);
        hold(KIO_READ, 1);
        assert_int_equal(prefetch(1), CACHE_OK);
        tiers_wait_hits(&t, 1);
        get(&r, 1);
        release();
        expect(&r, CACHE_OK);
        assert_int_equal(r.version, 1);
        assert_int_equal(stats().shared_fills, 1);
        assert_int_equal(stats().prefetch_hits, 1);
}

static void what_is_evicted_or_cannot_be_read_meanwhile_is_not_there(void **state)
{
        put_cold(1);
        hold(KIO_READ, 1);
        assert_int_equal(prefetch(1), CACHE_OK);
        tiers_wait_hits(&t, 1);
        assert_int_equal(evict(1, false), CACHE_OK);
        assert_true(stats().prefetch_inflight_bytes >= LENGTH);
        release();
        tiers_settle(&t);
        assert_int_equal(tiers_of(1), 0);
        assert_int_equal(prefetch(1), CACHE_MISS);
        assert_int_equal(stats().prefetch_inflight_bytes, 0);

        put_cold(2);
        refuse(KIO_READ, 1, FAULT_FOR_EVER);
        assert_int_equal(prefetch(2), CACHE_OK);
        tiers_settle(&t);
        fault_set(NULL);
        assert_false(tiers_of(2) & CACHE_MEMORY);
        assert_int_equal(stats().prefetch_hits, 0);
        assert_int_equal(stats().prefetch_inflight_bytes, 0);
        expect_put(3, CACHE_WRITTEN, CACHE_OK);
}

/* Whatever is asked for ahead, gets have most of the pool. */
static void prefetches_take_a_quarter_of_the_pool(void **state)
{
        uint64_t most = pool_bytes(t.pool) / 4 / LENGTH, begun = 0;

        for (uint32_t n = 0; n < most + 8; n++)
                put_cold(n);
        hold(KIO_READ, 1);
        while (begun < most + 8 && prefetch((uint32_t)begun) == CACHE_OK)
                begun++;
        assert_in_range(begun, most / 2, most); /* slots are larger than what is in them */
        assert_in_range(stats().prefetch_inflight_bytes, begun * LENGTH,
                        pool_bytes(t.pool) / 4 + 2 * LENGTH);
        assert_int_equal(prefetch((uint32_t)begun), CACHE_BUSY);
        assert_int_equal(prefetch(0), CACHE_OK); /* on its way */
        assert_int_equal(prefetch(1000000), CACHE_MISS);
        release();
        tiers_settle(&t);
        assert_int_equal(stats().prefetch_inflight_bytes, 0);
        assert_int_equal(prefetch((uint32_t)begun), CACHE_OK);
        tiers_settle(&t);
        assert_int_equal(stats().prefetched, begun + 1);
}

static void a_read_that_fails_is_a_miss_for_all_and_a_put_goes_on(void **state)
{
        struct req a, b, p;

        put_cold(1);
        hold(KIO_READ, 1);
        get(&a, 1);
        tiers_wait_hits(&t, 1);
        get(&b, 1);
        put_bytes(&p, 1, CACHE_WRITTEN, 2, LENGTH);
        assert_false(p.done);
        assert_int_equal(evict(1, false), CACHE_OK);
        release();
        expect(&a, CACHE_MISS);
        expect(&b, CACHE_MISS);
        expect(&p, CACHE_OK);
        expect_get(1, CACHE_OK, 2);

        put_cold(2);
        refuse(KIO_READ, 1, 1);
        get(&a, 2);
        put_bytes(&p, 2, CACHE_WRITTEN, 3, LENGTH);
        expect(&a, CACHE_MISS);
        expect(&p, CACHE_OK);
        expect_get(2, CACHE_OK, 3);
}

static void a_put_that_finds_a_read_exists_when_it_arrives(void **state)
{
        struct req g, p;

        put_cold(1);
        get_reading(&g, 1);
        put_bytes(&p, 1, CACHE_WRITTEN, 2, LENGTH);
        assert_false(p.done);
        release();
        expect(&p, CACHE_EXISTS);
        assert_int_equal(p.version, 1);
        expect(&g, CACHE_OK);
}

static void a_chunk_that_was_dropped_and_put_again_answers_each_with_its_own(void **state)
{
        struct req old, fresh, p;

        put_cold(1);
        get_reading(&old, 1);
        assert_int_equal(evict(1, false), CACHE_OK);
        put_bytes(&p, 1, CACHE_WRITTEN, 2, LENGTH);
        expect(&p, CACHE_OK);
        get(&fresh, 1);
        expect(&fresh, CACHE_OK);
        assert_int_equal(fresh.version, 2);
        assert_false(old.done);
        release();
        expect(&old, CACHE_MISS);
        expect_get(1, CACHE_OK, 2);
}

/* --- evict and purge --- */

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

        /* in both, on disk only */
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

/* The first put's entry is in the table, the store has not said so yet: its bytes can be found, and
 * are about to be dropped. */
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

/* --- room --- */

/* A chunk in each slab is pinned: there is room for what is as small as these, none for what needs
 * a slab of its own. */
static void pin_every_slab(uint32_t *pinned, unsigned n)
{
        struct pool_stats pool;

        pool_get_stats(t.pool, &pool);
        for (uint32_t k = 0; k < pool.bytes / (SMALL); k++) {
                struct req r;

                put_bytes(&r, 100000 + k, CACHE_WRITTEN, 1, SMALL);
                expect(&r, CACHE_OK);
        }
        for (uint32_t slab = 0; slab < n; slab++)
                pinned[slab] = POOL_NONE;
        for (uint32_t k = 0; k < pool.bytes / (SMALL); k++) {
                struct key key = key_of(100000 + k);
                uint32_t chunk = pool_find(t.pool, t.ns, &key, store_hash(t.store, t.ns, &key));
                uint64_t slab;

                if (chunk == POOL_NONE)
                        continue;
                slab = pool_offset(t.pool, chunk) / pool_slab_bytes(t.pool);
                assert_in_range(slab, 0, n - 1);
                if (pinned[slab] == POOL_NONE) {
                        pool_pin(t.pool, chunk);
                        pinned[slab] = chunk;
                }
        }
        for (uint32_t slab = 0; slab < n; slab++)
                assert_int_not_equal(pinned[slab], POOL_NONE);
}

static void unpin_all(const uint32_t *pinned, unsigned n)
{
        for (unsigned i = 0; i < n; i++)
                cache_unpin(t.cache, pinned[i]);
}

static void who_finds_no_room_waits_until_there_is_some(void **state)
{
        uint32_t pinned[SLABS], large;
        struct req p, g;

        assert_int_equal(pool_bytes(t.pool) / pool_slab_bytes(t.pool), SLABS);
        large = (uint32_t)pool_slab_bytes(t.pool);
        put_bytes(&p, 1, CACHE_WRITTEN, 1, large);
        expect(&p, CACHE_OK);
        assert_int_equal(evict(1, true), CACHE_OK);
        pin_every_slab(pinned, SLABS);

        get(&g, 1);
        put_bytes(&p, 2, CACHE_WRITTEN, 1, large);
        tiers_iterate(&t);
        assert_false(g.done || p.done);
        assert_int_equal(stats().waited, 2);
        unpin_all(pinned, SLABS);
        assert_true(cache_has_work(t.cache));
        expect(&g, CACHE_OK);
        expect(&p, CACHE_OK);
}

static void who_does_not_want_to_wait_is_told_busy_at_once(void **state)
{
        uint32_t pinned[SLABS], large = (uint32_t)pool_slab_bytes(t.pool);
        struct req p, g;

        put_bytes(&p, 1, CACHE_WRITTEN, 1, large);
        expect(&p, CACHE_OK);
        assert_int_equal(evict(1, true), CACHE_OK);
        pin_every_slab(pinned, SLABS);
        start(&g, 1);
        g.req.nowait = true;
        cache_get(t.cache, &g.req);
        assert_true(g.done);
        assert_int_equal(g.req.status, CACHE_BUSY);
        start(&p, 2);
        p.req.nowait = true;
        p.req.memory = (void *)"";
        p.req.length = large;
        cache_put(t.cache, &p.req);
        assert_true(p.done);
        assert_int_equal(p.req.status, CACHE_BUSY);
        assert_int_equal(stats().busy, 2);
        unpin_all(pinned, SLABS);
}

static void a_wait_ends_at_its_deadline(void **state)
{
        uint32_t pinned[SLABS], large = (uint32_t)pool_slab_bytes(t.pool);
        struct req soon, late;
        uint64_t now, next;

        pin_every_slab(pinned, SLABS);
        put_bytes(&late, 2, CACHE_WRITTEN, 1, large);
        put_bytes(&soon, 1, CACHE_WRITTEN, 1, large);
        now = clock_mono_ns();
        assert_true(soon.req.deadline_ns > now && late.req.deadline_ns <= soon.req.deadline_ns);
        soon.req.deadline_ns -= 1000000000;
        late.req.deadline_ns += 1000000000;

        /* The cache says when the loop should come back, and that time is not past for ever. */
        next = cache_iterate(t.cache, now);
        for (unsigned turns = 0; !soon.done; turns++) {
                assert_true(next != 0 && turns < 100);
                now = MAX(now, next);
                next = cache_iterate(t.cache, now);
        }
        assert_int_equal(soon.req.status, CACHE_BUSY);
        assert_false(late.done);
        for (unsigned turns = 0; !late.done; turns++) {
                assert_true(next != 0 && turns < 100);
                now = MAX(now, next);
                next = cache_iterate(t.cache, now);
        }
        assert_int_equal(late.req.status, CACHE_BUSY);
        assert_int_equal(cache_iterate(t.cache, now), 0);
        unpin_all(pinned, SLABS);
}

static void a_wait_that_is_cancelled_ends_and_others_do_not(void **state)
{
        uint32_t pinned[SLABS], large = (uint32_t)pool_slab_bytes(t.pool);
        struct req mine[5], other, in_flight;
        struct list_node another = LIST_INIT(another);
        uint32_t most = 0;

        pin_every_slab(pinned, SLABS);
        put_bytes(&in_flight, 3, CACHE_WRITTEN, 1, SMALL);
        for (unsigned i = 0; i < 5; i++)
                put_bytes(&mine[i], 10 + i, CACHE_WRITTEN, 1, large);
        put_bytes(&other, 2, CACHE_WRITTEN, 1, large);
        list_unlink(&other.req.owned);
        list_append(&another, &other.req.owned);
        assert_true(cache_cancel(t.cache, &waits, &most));
        assert_false(mine[0].done);
        most = 3;
        assert_true(cache_cancel(t.cache, &waits, &most));
        assert_int_equal(most, 0);
        assert_true(mine[2].done && !mine[3].done);
        most = 10;
        assert_false(cache_cancel(t.cache, &waits, &most));
        assert_int_equal(most, 8);
        assert_false(cache_cancel(t.cache, &waits, &most));
        assert_int_equal(most, 8);
        assert_true(!other.done && !in_flight.done);
        for (unsigned i = 0; i < 5; i++)
                expect(&mine[i], CACHE_CANCELLED);
        expect(&in_flight, CACHE_OK);
        unpin_all(pinned, SLABS);
        expect(&other, CACHE_OK);
}

/* However many have waited for one write, a turn answers a bounded number of them. */
static void many_that_wait_for_one_write_are_answered_a_few_a_turn(void **state)
{
        enum { MANY = 6000, TURN = 2 * 1024 };
        struct req first, *many = calloc(MANY, sizeof(*many));
        uint64_t until;

        assert_non_null(many);
        put_writing(&first, 1, CACHE_WRITTEN);
        for (unsigned i = 0; i < MANY; i++)
                put(&many[i], 1, i % 2 ? CACHE_WRITTEN : CACHE_DURABLE);
        assert_false(many[0].done);
        until = completions + 1 + MANY;
        release();
        while (completions < until) {
                uint64_t before = completions;

                kio_reap(t.io);
                tiers_iterate(&t);
                assert_in_range(completions - before, 0, TURN);
                if (completions == before && !cache_has_work(t.cache))
                        tiers_wait_io(&t);
        }
        assert_int_equal(first.req.status, CACHE_OK);
        for (unsigned i = 0; i < MANY; i++)
                assert_int_equal(many[i].req.status, CACHE_EXISTS);
        free(many);
}

/* However many wait, one turn ends the waits of a bounded number of them, and an owner that has
 * nothing waiting goes at once. */
static void many_waits_end_a_few_a_turn(void **state)
{
        enum { MANY = 20000, TURN = 2048, OWNERS = 2000 };
        uint32_t pinned[SLABS], large = (uint32_t)pool_slab_bytes(t.pool);
        struct list_node another = LIST_INIT(another);
        struct req *many = calloc(MANY, sizeof(*many));
        unsigned done = 0, turns = 0;
        uint32_t most = UINT32_MAX;
        clock_t alone, beside;
        uint64_t now;

        assert_non_null(many);
        pin_every_slab(pinned, SLABS);
        alone = clock();
        for (unsigned i = 0; i < OWNERS; i++)
                (void)cache_cancel(t.cache, &another, &most);
        alone = clock() - alone;
        for (unsigned i = 0; i < MANY; i++) {
                start(&many[i], i + 1);
                many[i].req.memory = (void *)"";
                many[i].req.length = large;
                cache_put(t.cache, &many[i].req);
        }
        beside = clock();
        for (unsigned i = 0; i < OWNERS; i++)
                (void)cache_cancel(t.cache, &another, &most);
        beside = clock() - beside;
        assert_in_range(beside, 0, 10 * alone + CLOCKS_PER_SEC / 50);

        now = many[MANY - 1].req.deadline_ns + 1000000000;
        while (done < MANY) {
                unsigned before = done;

                assert_true(turns++ < 100 * MANY / TURN);
                (void)cache_iterate(t.cache, now);
                done = 0;
                for (unsigned i = 0; i < MANY; i++)
                        if (many[i].done) {
                                assert_int_equal(many[i].req.status, CACHE_BUSY);
                                done++;
                        }
                assert_in_range(done - before, 0, TURN);
        }
        unpin_all(pinned, SLABS);
        free(many);
}

static bool is_in_pool(uint32_t n)
{
        struct key k = key_of(n);

        return pool_find(t.pool, t.ns, &k, store_hash(t.store, t.ns, &k)) != POOL_NONE;
}

/* Large and small ones, with little room for what is not written yet: each gets it after those
 * before it. */
static void puts_are_let_in_in_order(void **state)
{
        enum { N = 6 };
        struct req first, r[N];
        bool all = false;

        /* The budget of unwritten bytes is a quarter of the pool. */
        hold(KIO_WRITE, 1);
        for (unsigned i = 0; i < 2; i++) {
                put_bytes(&first, 50 + i, CACHE_ACCEPTED, 1, (uint32_t)pool_slab_bytes(t.pool));
                expect(&first, CACHE_OK);
        }
        for (unsigned i = 0; i < N; i++) {
                put_bytes(&r[i], i, CACHE_WRITTEN, 1,
                          i % 2 ? 4 * KIB : (uint32_t)pool_slab_bytes(t.pool));
                /* However long it takes: what is not written yet will be. */
                t.later_ns += 200000000;
                tiers_iterate(&t);
                assert_false(is_in_pool(i));
        }
        assert_int_equal(stats().unwritten_bytes, pool_bytes(t.pool) / 4);
        release();
        while (!all) {
                unsigned in = 0;

                tiers_wait_io(&t);
                kio_reap(t.io);
                tiers_iterate(&t);
                while (in < N && is_in_pool(in))
                        in++;
                for (unsigned i = in; i < N; i++)
                        assert_false(is_in_pool(i));
                all = in == N;
        }
        for (unsigned i = 0; i < N; i++)
                expect(&r[i], CACHE_OK);
}

/* As put_bytes(), by this user. */
static void put_as(uint32_t user, struct req *r, uint32_t n, enum cache_ack ack, uint32_t length,
                   bool nowait)
{
        start(r, n);
        r->src = malloc(length);
        assert_non_null(r->src);
        fill(r->src, n, 1, length);
        r->req.user = user;
        r->req.nowait = nowait;
        r->req.memory = r->src;
        r->req.length = length;
        r->req.ack = ack;
        cache_put(t.cache, &r->req);
        kio_flush(t.io);
}

static void test_R16_one_users_unwritten_bytes_leave_another_its_share(void **state)
{
        enum { MANY = 16, N = 8 };
        struct req first, r[MANY], other[N], too_much;
        uint32_t large = (uint32_t)pool_slab_bytes(t.pool);

        hold(KIO_WRITE, 1);
        for (unsigned i = 0; i < 2; i++) {
                put_as(1, &first, 50 + i, CACHE_ACCEPTED, large, false);
                expect(&first, CACHE_OK);
        }
        assert_int_equal(stats().unwritten_bytes, pool_bytes(t.pool) / 4);
        for (unsigned i = 0; i < MANY; i++)
                put_as(1, &r[i], 100 + i, CACHE_WRITTEN, large, false);
        tiers_iterate(&t);

        /* All of the budget is the first user's, and more of it waits: the other is let in even so,
         * also when it does not wait, as long as it has no more than its half. */
        for (unsigned i = 0; i < N; i++) {
                put_as(2, &other[i], 200 + i, CACHE_ACCEPTED, SMALL, true);
                expect(&other[i], CACHE_OK);
        }
        assert_int_equal(stats().putting_users, 2);
        put_as(2, &too_much, 300, CACHE_ACCEPTED, large, true);
        expect(&too_much, CACHE_BUSY);
        put_as(1, &too_much, 301, CACHE_ACCEPTED, SMALL, true);
        expect(&too_much, CACHE_BUSY);
        assert_true(stats().unwritten_bytes <= pool_bytes(t.pool) / 4 + large);
        release();
        for (unsigned i = 0; i < MANY; i++)
                expect(&r[i], CACHE_OK);
}

static void test_R16_users_that_wait_for_room_are_let_in_in_turn(void **state)
{
        enum { MANY = 12 };
        uint32_t pinned[SLABS], large = (uint32_t)pool_slab_bytes(t.pool);
        struct req many[MANY], one;
        unsigned before = 0;

        pin_every_slab(pinned, SLABS);
        for (unsigned i = 0; i < MANY; i++)
                put_as(1, &many[i], i, CACHE_WRITTEN, large, false);
        put_as(2, &one, 100, CACHE_WRITTEN, large, false);
        tiers_iterate(&t);
        unpin_all(pinned, SLABS);
        tiers_wait(&t, &one.done);
        for (unsigned i = 0; i < MANY; i++)
                before += many[i].done;
        assert_int_equal(one.req.status, CACHE_OK);
        assert_in_range(before, 0, 4);
        for (unsigned i = 0; i < MANY; i++)
                expect(&many[i], CACHE_OK);
}

/* The store is handed a window's worth; what else was accepted waits, and a write of a user that
 * has nothing there is the next. */
static void test_R16_another_users_write_stands_behind_a_window_at_most(void **state)
{
        /* So many that the last is handed over when a window more has ended. */
        enum { MANY = 3000 };
        static struct req r[MANY];
        struct req other;

        tiers_close(&t);
        t.pool_bytes = 64 * MIB;
        tiers_open(&t);
        hold(KIO_WRITE, 1);
        for (unsigned i = 0; i < MANY; i++) {
                put_as(1, &r[i], i, CACHE_WRITTEN, 1000, false);
                if (i % 100 == 99)
                        tiers_iterate(&t);
        }
        reap_copies(MANY);
        put_as(2, &other, MANY, CACHE_WRITTEN, 1000, false);
        reap_copies(MANY + 1);
        assert_int_equal(stats().queued_writes, MANY + 1 - 1024);
        release();
        tiers_wait(&t, &other.done);
        assert_int_equal(other.req.status, CACHE_OK);
        for (unsigned i = 0; i < MANY; i++)
                expect(&r[i], CACHE_OK);
        assert_true(other.nth < r[MANY - 1].nth);
        assert_int_equal(stats().queued_writes, 0);
}

static void get_as(uint32_t user, struct req *r, uint32_t n)
{
        start(r, n);
        r->req.user = user;
        cache_get(t.cache, &r->req);
        kio_flush(t.io);
}

enum { WINDOW = 1024, READS = WINDOW + 200 }; /* reads that a device is asked for at once */
static struct req reads[READS];

static void put_cold_of_one_page(uint32_t n)
{
        struct req r;

        put_bytes(&r, n, CACHE_WRITTEN, 1, 4096);
        expect(&r, CACHE_OK);
        assert_int_equal(evict(n, true), CACHE_OK);
}

/* Under the keys 0 to READS + 1, with a pool that has room for all. */
static void put_reads(void)
{
        tiers_close(&t);
        t.pool_bytes = 32 * MIB;
        tiers_open(&t);
        for (uint32_t n = 0; n < READS + 2; n++)
                put_cold_of_one_page(n);
}

static void expect_reads(unsigned from, enum cache_status status)
{
        for (unsigned i = from; i < READS; i++)
                expect(&reads[i], status);
}

/* The first turn in which the device has room for more has ended. */
static void wait_for_more_reads(void)
{
        uint64_t queued = stats().queued_reads;

        while (stats().queued_reads == queued) {
                tiers_wait_io(&t);
                kio_reap(t.io);
                tiers_iterate(&t);
        }
}

/* What the store was asked to read for this user, and has not read. */
static uint64_t asked_for(uint32_t user)
{
        const struct cache_user *u = cache_user_find(t.cache, user);

        return u ? u->reads[0].in_store : 0;
}

static void test_R16_another_users_read_stands_behind_a_window_at_most(void **state)
{
        struct req other;

        put_reads();
        hold(KIO_READ, 1);
        for (unsigned i = 0; i < READS; i++)
                get_as(1, &reads[i], i);
        assert_int_equal(stats().queued_reads, READS - WINDOW);
        get_as(2, &other, READS);
        assert_int_equal(stats().queued_reads, READS - WINDOW + 1);
        assert_int_equal(asked_for(2), 0);
        release();
        wait_for_more_reads();
        assert_int_equal(asked_for(2), 4096);
        expect(&other, CACHE_OK);
        expect_reads(0, CACHE_OK);
        assert_int_equal(stats().queued_reads, 0);
}

/* Whoever asks for what another user waits for has it in its own turn. */
static void test_R16_a_read_that_is_shared_comes_when_the_first_of_its_users_is_served(void **state)
{
        struct req other;

        put_reads();
        hold(KIO_READ, 1);
        for (unsigned i = 0; i < READS; i++)
                get_as(1, &reads[i], i);
        get_as(2, &other, READS - 1);
        assert_int_equal(stats().shared_fills, 1);
        assert_int_equal(stats().queued_reads, READS - WINDOW);
        release();
        wait_for_more_reads();
        assert_int_equal(asked_for(2), 4096);
        expect(&other, CACHE_OK);
        expect_reads(0, CACHE_OK);
}

/* What was purged while it waited is a miss. */
static void a_read_that_waits_may_be_purged(void **state)
{
        struct purge p;

        put_reads();
        hold(KIO_READ, 1);
        for (unsigned i = 0; i < READS; i++)
                get_as(1, &reads[i], i);
        purge(&p);
        release();
        expect_reads(WINDOW, CACHE_MISS);
        expect_reads(0, CACHE_MISS);
        tiers_wait(&t, &p.done);
}

/* Of each user what it waits for goes before what it prefetchs; users have equal shares. */
static void test_R16_reads_ahead_leave_other_users_their_share(void **state)
{
        uint64_t most = pool_bytes(t.pool) / 4, first = 0, second = 0, cold = 2 * most / LENGTH;
        struct req g;

        for (uint32_t n = 0; n < cold; n++)
                put_cold(n);
        hold(KIO_READ, 1);
        while (prefetch_as(1, (uint32_t)first) == CACHE_OK)
                first++;
        assert_in_range(stats().prefetch_inflight_bytes, most - 2 * SMALL, most);
        while (prefetch_as(2, (uint32_t)(first + second)) == CACHE_OK)
                second++;
        assert_in_range(second, 2, first);
        assert_int_equal(prefetch_as(1, (uint32_t)(first + second)), CACHE_BUSY);
        /* A get of the one that has no room left for this is read all the same. */
        get_as(1, &g, (uint32_t)(first + second));
        release();
        expect(&g, CACHE_OK);
        tiers_settle(&t);
        assert_int_equal(stats().prefetch_inflight_bytes, 0);
        assert_int_equal(prefetch_as(1, (uint32_t)(first + second + 1)), CACHE_OK);
        tiers_settle(&t);
}

static void test_R16_reads_ahead_stand_behind_the_users_own_gets(void **state)
{
        struct req last;

        put_reads();
        hold(KIO_READ, 1);
        for (unsigned i = 0; i < READS - 1; i++)
                get_as(1, &reads[i], i);
        assert_int_equal(prefetch_as(1, READS), CACHE_OK);
        get_as(1, &reads[READS - 1], READS - 1);
        assert_int_equal(stats().queued_reads, READS - WINDOW + 1);
        /* A get of what is prefetched makes it one of those. */
        get_as(1, &last, READS);
        release();
        expect(&last, CACHE_OK);
        expect_reads(0, CACHE_OK);
        assert_int_equal(stats().prefetch_hits, 1);
}

static void a_small_one_does_not_overtake_a_large_one_that_just_came(void **state)
{
        uint32_t pinned[SLABS], large = (uint32_t)pool_slab_bytes(t.pool);
        struct req big, small;

        pin_every_slab(pinned, SLABS);
        put_bytes(&big, 1, CACHE_WRITTEN, 1, large);
        put_bytes(&small, 2, CACHE_WRITTEN, 1, 64 * KIB);
        tiers_iterate(&t);
        assert_false(big.done || small.done);
        assert_int_equal(stats().waited, 2);
        unpin_all(pinned, SLABS);
        expect(&big, CACHE_OK);
        expect(&small, CACHE_OK);
}

static void one_that_cannot_be_helped_does_not_hold_up_the_others(void **state)
{
        uint32_t pinned[SLABS], large = (uint32_t)pool_slab_bytes(t.pool);
        struct req hopeless[3], get_hopeless, small, later, g;
        uint64_t next;

        put_bytes(&small, 1, CACHE_WRITTEN, 1, large);
        expect(&small, CACHE_OK);
        assert_int_equal(evict(1, true), CACHE_OK);
        put_bytes(&small, 2, CACHE_WRITTEN, 1, SMALL);
        expect(&small, CACHE_OK);
        assert_int_equal(evict(2, true), CACHE_OK);
        pin_every_slab(pinned, SLABS);

        for (unsigned i = 0; i < 3; i++)
                put_bytes(&hopeless[i], 10 + i, CACHE_WRITTEN, 1, large);
        get(&get_hopeless, 1);
        put_bytes(&small, 20, CACHE_WRITTEN, 1, SMALL);
        get(&g, 2);
        assert_false(small.done || g.done);
        next = cache_iterate(t.cache, clock_mono_ns());
        assert_true(next != 0 && next < clock_mono_ns() + UINT64_C(1000000000));
        /* Time goes by; nothing else happens. */
        t.later_ns = 1000000000;
        expect(&small, CACHE_OK);
        expect(&g, CACHE_OK);
        /* Who comes now need not wait for them either. */
        for (uint64_t end = clock_mono_ns() + 300000000; clock_mono_ns() < end;)
                tiers_iterate(&t);
        put_bytes(&later, 21, CACHE_WRITTEN, 1, SMALL);
        assert_int_equal(stats().waited, 6);
        expect(&later, CACHE_OK);
        assert_false(hopeless[0].done || get_hopeless.done);
        unpin_all(pinned, SLABS);
        for (unsigned i = 0; i < 3; i++)
                expect(&hopeless[i], CACHE_OK);
        expect(&get_hopeless, CACHE_OK);
}

static void a_hit_never_waits_for_those_that_need_room(void **state)
{
        uint32_t pinned[SLABS], large = (uint32_t)pool_slab_bytes(t.pool);
        struct req p, g, again;

        pin_every_slab(pinned, SLABS);
        put_bytes(&p, 1, CACHE_WRITTEN, 1, SMALL);
        expect(&p, CACHE_OK);
        put_bytes(&p, 2, CACHE_WRITTEN, 1, large);
        get(&g, 1);
        assert_true(g.done);
        put(&again, 1, CACHE_WRITTEN);
        assert_true(again.done);
        assert_int_equal(again.req.status, CACHE_EXISTS);
        unpin_all(pinned, SLABS);
        expect(&p, CACHE_OK);
}

static void a_cold_end_that_is_leased_does_not_make_the_pool_full(void **state)
{
        struct pool *p = NULL;
        uint32_t n = 0, chunk, first_free;

        assert_int_equal(pool_new(&p, 64 * MIB, "lru"), 0);
        while (pool_next_slab(p) >= 0)
                assert_int_equal(pool_open_slab(p, 0), 0);
        /* More than a search passes over, and they are the coldest. */
        for (; n < 10000; n++) {
                struct key k = key_of(n);

                assert_int_equal(pool_acquire(p, 1, &k, n, 4 * KIB, &chunk), 0);
                pool_commit(p, chunk, 0); /* and stays pinned */
        }
        for (first_free = n; n < 64 * MIB / (4 * KIB) + 5000; n++) {
                struct key k = key_of(n);

                if (pool_acquire(p, 1, &k, n, 4 * KIB, &chunk) != 0)
                        fail_msg("full at %u, though %u can leave", n, n - first_free);
                pool_commit(p, chunk, 0);
                pool_unpin(p, chunk);
        }
        for (uint32_t i = 0; i < 10000; i++) {
                struct key k = key_of(i);

                assert_int_not_equal(pool_find(p, 1, &k, i), POOL_NONE);
        }
        /* The coldest of the others left, in their order. */
        for (uint32_t i = 0; i < 64 * MIB / (4 * KIB) + 5000 - 10000; i++) {
                struct key k = key_of(first_free + i);

                assert_true((pool_find(p, 1, &k, first_free + i) == POOL_NONE) == (i < 5000));
        }
        p = pool_free(p);
}

/* --- a store that is full of what is being written --- */

static void writes_that_the_store_cannot_take_yet_are_written_later(void **state)
{
        enum { N = 60 };
        struct req r[N];
        unsigned ok = 0;

        hold(KIO_WRITE, 1);
        for (unsigned i = 0; i < N; i++) {
                put_bytes(&r[i], i, i % 2 ? CACHE_WRITTEN : CACHE_ACCEPTED, 1, 64 * KIB);
                reap_copies(i + 1);
                tiers_iterate(&t);
        }
        assert_int_equal(stats().unwritten_chunks, N);
        release();
        for (unsigned i = 0; i < N; i++)
                expect(&r[i], CACHE_OK);
        tiers_settle(&t);
        assert_int_equal(stats().pool_only, 0);
        for (unsigned i = 0; i < N; i++)
                ok += (tiers_of(i) & CACHE_DISK) != 0;
        assert_true(ok > 0 && ok < N); /* it holds less than that */
        for (unsigned i = 0; i < N; i++)
                expect_get(i, CACHE_OK, 1);
}

/* --- the end --- */

static void a_drain_writes_what_was_accepted_and_refuses_the_rest(void **state)
{
        struct req accepted, written, copying, waiting, late, g, cold;
        uint32_t pinned[SLABS], large = (uint32_t)pool_slab_bytes(t.pool);

        put_bytes(&cold, 5, CACHE_WRITTEN, 1, SMALL);
        expect(&cold, CACHE_OK);
        assert_int_equal(evict(5, true), CACHE_OK);
        pin_every_slab(pinned, SLABS);
        hold(KIO_WRITE, 1);
        put_bytes(&accepted, 1, CACHE_ACCEPTED, 1, SMALL);
        tiers_wait_hits(&t, 1);
        put_bytes(&written, 2, CACHE_WRITTEN, 1, SMALL);
        tiers_wait_hits(&t, 2);
        put_bytes(&copying, 3, CACHE_WRITTEN, 1, SMALL);
        put_bytes(&waiting, 4, CACHE_WRITTEN, 1, large);

        cache_stop(t.cache);
        assert_true(waiting.done);
        assert_int_equal(waiting.req.status, CACHE_CANCELLED);
        put(&late, 6, CACHE_ACCEPTED);
        assert_true(late.done);
        assert_int_equal(late.req.status, CACHE_CANCELLED);
        get(&g, 1);
        assert_true(g.done);
        get(&cold, 5);
        assert_false(cold.done || written.done || copying.done);
        release();
        expect(&cold, CACHE_OK);
        expect(&written, CACHE_OK);
        expect(&copying, CACHE_OK);
        tiers_settle(&t);
        assert_int_equal(cache_pending(t.cache), 0);
        assert_int_equal(stats().unwritten_chunks, 0);
        unpin_all(pinned, SLABS);
        tiers_close(&t);
        tiers_open(&t);
        for (uint32_t n = 1; n <= 3; n++)
                expect_get(n, CACHE_OK, 1);
        assert_int_equal(tiers_of(4) | tiers_of(6), 0);
}

/* --- straight from clients' memory --- */

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

static void unshare_it(struct shared *m)
{
        m->over = false;
        kio_region_unregister(t.io, &m->region);
        tiers_wait(&t, &m->over);
        munmap(m->at, SHARED_BYTES);
        close(m->fd);
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

static int teardown_shared(void **state)
{
        release();
        tiers_settle(&t);
        unshare_it(&good);
        unshare_it(&cut_off);
        return teardown(state);
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

static void many_puts_from_memory_that_is_gone_cost_one_try_each(void **state)
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

/* Of a chunk in the pool: a worker copies them before the get completes, and no pin is left. */
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
        assert_true(other.req.read.in_store);
        expect(&other, CACHE_OK);
        expect(&pooled, CACHE_OK);
        assert_true(other.req.direct);
        assert_int_equal(version_of(good.at + READS * 4096, READS, 4096), 1);
        expect_reads(0, CACHE_OK);
        assert_int_equal(stats().get_bytes_direct, (READS + 1) * UINT64_C(4096));
        assert_int_equal(stats().queued_reads, 0);
}

/* Those of an owner that is no more end at once, but for what the device has the memory of. */
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
        /* Of one that succeeds they get the result. */
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

/* --- everything at once --- */

static uint64_t random_state;

static uint32_t draw(uint32_t below)
{
        random_state ^= random_state << 13;
        random_state ^= random_state >> 7;
        random_state ^= random_state << 17;
        return (uint32_t)((random_state >> 16) % below);
}

/* Few keys, many requests, operations that come late or fail: each get has the bytes of one put of
 * its key, all end. */
static void traffic(uint64_t seed, const struct fault_plan *plan)
{
        enum { N = 200, KEYS = 12, STEPS = 6000 };
        struct req *r = calloc(N, sizeof(*r));
        struct purge p = { .done = true };
        unsigned hits = 0;
        uint8_t version = 0;

        assert_non_null(r);
        random_state = seed;
        for (unsigned i = 0; i < N; i++)
                r[i].done = true;
        fault_set(plan);
        for (unsigned step = 0; step < STEPS; step++) {
                struct req *q = &r[draw(N)];
                uint32_t n = draw(KEYS), length = n % 3 == 0 ? MIB : n % 3 == 1 ? 64 * KIB : 5000;

                switch (q->done ? draw(16) : 15) {
                case 0 ... 5:
                        put_bytes(q, n, (enum cache_ack)draw(3), ++version, length);
                        break;
                case 6 ... 11:
                        hits += q->done && q->req.status == CACHE_OK;
                        get(q, n);
                        break;
                case 12:
                        evict(n, draw(2));
                        break;
                case 13:
                        if (p.done && draw(20) == 0)
                                purge(&p);
                        break;
                case 14:
                        if (draw(20) == 0) {
                                uint32_t most = draw(8);

                                (void)cache_cancel(t.cache, &waits, &most);
                        }
                        break;
                default:
                        break;
                }
                switch (draw(4)) {
                case 0:
                        kio_reap(t.io);
                        break;
                case 1:
                        kio_reap(t.io);
                        tiers_iterate(&t);
                        break;
                default:
                        break;
                }
        }
        fault_set(NULL);
        fault_release();
        for (unsigned i = 0; i < N; i++)
                tiers_wait(&t, &r[i].done);
        tiers_wait(&t, &p.done);
        tiers_settle(&t);
        assert_true(hits > 0);
        for (uint32_t n = 0; n < KEYS; n++) {
                struct req g;

                get(&g, n);
                tiers_wait(&t, &g.done);
                assert_true(g.req.status == CACHE_OK || g.req.status == CACHE_MISS);
        }
        free(r);
}

static void traffic_with_late_operations_keeps_every_byte_right(void **state)
{
        for (uint64_t seed = 1; seed <= 4; seed++)
                traffic(seed * 7919,
                        &(struct fault_plan){
                                .kind = FAULT_LATE, .late_ns = 300000, .one_in = 3, .seed = seed });
}

static void traffic_with_failing_reads_and_writes_keeps_every_byte_right(void **state)
{
        traffic(99, &(struct fault_plan){ .ops = 1u << KIO_READ,
                                          .kind = FAULT_ERROR,
                                          .error = EIO,
                                          .one_in = 5,
                                          .seed = 3 });
        traffic(101, &(struct fault_plan){ .ops = 1u << KIO_WRITE,
                                           .kind = FAULT_ERROR,
                                           .error = EIO,
                                           .one_in = 60,
                                           .seed = 4 });
}

#define TEST(name)   cmocka_unit_test_setup_teardown(name, setup, teardown)
#define SHARED(name) cmocka_unit_test_setup_teardown(name, setup, teardown_shared)

int main(int argc, char **argv)
{
        const struct CMUnitTest tests[] = {
                TEST(a_put_is_seen_when_accepted_and_on_disk_when_written),
                TEST(nobody_sees_bytes_that_are_still_being_copied),
                TEST(an_accepted_put_whose_write_fails_stays_in_the_pool),
                TEST(a_written_put_whose_write_fails_is_failed_and_gone),
                TEST(a_write_of_the_table_that_fails_fails_the_put),
                TEST(a_put_that_faults_stores_nothing_and_fails_nobody_else),
                TEST(what_is_too_large_is_said_to_be),
                TEST(the_first_put_wins_and_the_second_waits_for_its_class),
                TEST(durable_over_what_is_not_synced_waits_for_a_sync),
                TEST(a_durable_put_of_what_is_there_says_where_it_is_in_the_pool),
                TEST(an_evict_is_settled_after_a_purge_that_overtook_it),
                TEST(an_evict_fails_with_the_purge_that_overtook_it),
                TEST(test_R15_who_waits_for_a_device_that_hangs_is_answered),
                TEST(durable_says_when_a_sync_failed),
                TEST(a_put_that_joined_fails_with_the_first),
                TEST(who_was_told_accepted_keeps_the_chunk),
                TEST(what_was_accepted_while_being_written_stays_when_that_fails),
                TEST(gets_of_one_key_share_one_read),
                TEST(what_is_prefetched_is_a_hit_then),
                TEST(a_get_joins_a_prefetch),
                TEST(what_is_evicted_or_cannot_be_read_meanwhile_is_not_there),
                TEST(prefetches_take_a_quarter_of_the_pool),
                TEST(a_read_that_fails_is_a_miss_for_all_and_a_put_goes_on),
                TEST(a_put_that_finds_a_read_exists_when_it_arrives),
                TEST(a_chunk_that_was_dropped_and_put_again_answers_each_with_its_own),
                TEST(evict_takes_a_key_out_in_every_state),
                TEST(what_was_evicted_while_written_can_be_put_again_at_once),
                TEST(a_put_is_not_taken_for_written_because_an_evicted_one_was),
                TEST(a_purge_takes_out_every_state_and_nothing_comes_back),
                TEST(who_finds_no_room_waits_until_there_is_some),
                TEST(who_does_not_want_to_wait_is_told_busy_at_once),
                TEST(a_wait_ends_at_its_deadline),
                TEST(a_wait_that_is_cancelled_ends_and_others_do_not),
                TEST(many_waits_end_a_few_a_turn),
                TEST(many_that_wait_for_one_write_are_answered_a_few_a_turn),
                TEST(puts_are_let_in_in_order),
                TEST(test_R16_one_users_unwritten_bytes_leave_another_its_share),
                TEST(test_R16_users_that_wait_for_room_are_let_in_in_turn),
                TEST(test_R16_another_users_write_stands_behind_a_window_at_most),
                TEST(test_R16_another_users_read_stands_behind_a_window_at_most),
                TEST(test_R16_a_read_that_is_shared_comes_when_the_first_of_its_users_is_served),
                TEST(a_read_that_waits_may_be_purged),
                TEST(test_R16_reads_ahead_leave_other_users_their_share),
                TEST(test_R16_reads_ahead_stand_behind_the_users_own_gets),
                SHARED(test_R16_puts_from_shared_memory_are_in_the_same_budget),
                TEST(a_small_one_does_not_overtake_a_large_one_that_just_came),
                TEST(one_that_cannot_be_helped_does_not_hold_up_the_others),
                TEST(a_hit_never_waits_for_those_that_need_room),
                cmocka_unit_test(a_cold_end_that_is_leased_does_not_make_the_pool_full),
                cmocka_unit_test_setup_teardown(
                        writes_that_the_store_cannot_take_yet_are_written_later, setup_small_store,
                        teardown),
                TEST(a_drain_writes_what_was_accepted_and_refuses_the_rest),
                SHARED(many_puts_from_memory_that_is_gone_cost_one_try_each),
                SHARED(of_many_puts_the_first_that_can_succeeds),
                SHARED(a_get_into_memory_completes_when_the_bytes_are_there),
                SHARED(test_R16_another_users_read_to_its_memory_stands_behind_a_window_at_most),
                SHARED(reads_that_wait_for_their_turn_are_cancelled),
                SHARED(test_R15_reads_that_wait_for_a_device_that_hangs_are_misses),
                SHARED(gets_of_one_key_that_wait_share_a_read),
                SHARED(gets_among_many_puts_are_answered_with_the_put_they_met),
                SHARED(a_drain_does_not_go_through_puts_that_wait_for_one_that_fails),
                SHARED(test_R15_who_joined_a_put_from_memory_is_answered_when_its_device_hangs),
                TEST(traffic_with_late_operations_keeps_every_byte_right),
                TEST(traffic_with_failing_reads_and_writes_keeps_every_byte_right),
        };

        if (argc > 1)
                cmocka_set_test_filter(argv[1]);
        return cmocka_run_group_tests(tests, NULL, NULL);
}

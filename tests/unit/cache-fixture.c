/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "cache-fixture.h"
#include "checked.h"

struct tiers t;

struct list_node waits = LIST_INIT(waits);

uint64_t looks;

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

uint64_t completions;

struct key key_of(uint32_t n)
{
        struct key k = { { 1 } };

        memcpy(k.bytes + 4, &n, sizeof(n));
        return k;
}

uint32_t number_of(const struct key *key)
{
        uint32_t n;

        memcpy(&n, key->bytes + 4, sizeof(n));
        return n;
}

/* The bytes under a key are pieces of one block of noise, each from a place that key, version and
 * piece determine. They are copied and compared as wholes, because single bytes would take most of
 * a test's time, and under ThreadSanitizer all of it. */
enum { PIECE = 4096 };

static const char *piece_of(uint32_t n, uint8_t version, uint32_t piece)
{
        static uint32_t noise[2 * PIECE / sizeof(uint32_t)];

        if (noise[0] == 0) {
                uint32_t x = 2463534242;

                for (size_t i = 0; i < ARRAY_SIZE(noise); i++) {
                        x ^= x << 13;
                        x ^= x >> 17;
                        x ^= x << 5;
                        noise[i] = x;
                }
        }
        return (const char *)noise + (n * 7 + version * 1301 + piece * 31) % PIECE;
}

void fill(char *buf, uint32_t n, uint8_t version, uint32_t length)
{
        for (uint32_t at = 0; at < length; at += PIECE)
                memcpy(buf + at, piece_of(n, version, at / PIECE),
                       MIN((uint32_t)PIECE, length - at));
        buf[0] = (char)version;
}

uint8_t version_of(const char *buf, uint32_t n, uint32_t length)
{
        uint8_t version = (uint8_t)buf[0];

        for (uint32_t at = 1; at < length; at = at / PIECE * PIECE + PIECE) {
                const char *wanted = piece_of(n, version, at / PIECE) + at % PIECE;
                uint32_t bytes = MIN(PIECE - at % PIECE, length - at);

                if (memcmp(buf + at, wanted, bytes) == 0)
                        continue;
                for (uint32_t i = 0; i < bytes; i++)
                        if (buf[at + i] != wanted[i])
                                fail_msg("wrong byte %u of %u under key %u", at + i, length, n);
        }
        return version;
}

static void completed(struct cache_request *req)
{
        struct req *r = container_of(req, struct req, req);
        uint32_t n = number_of(&req->key);

        assert_false(r->done);
        r->done = true;
        r->nth = ++completions;
        if (req->chunk != POOL_NONE) {
                r->length = pool_chunk(t.pool, req->chunk)->length;
                r->version = version_of(pool_at(t.pool, req->chunk), n, r->length);
                cache_unpin(t.cache, req->chunk);
        }
        free(r->src);
        r->src = NULL;
}

void start(struct req *r, uint32_t n)
{
        *r = (struct req){
                .req = {
                        .owner = &waits,
                        .namespace_id = t.ns,
                        .key = key_of(n),
                        .deadline_ns = tiers_now(&t) + 60000000000u,
                        .complete = completed,
                },
        };
        r->req.hash = cache_hash(t.cache, t.ns, &r->req.key);
}

void put_bytes(struct req *r, uint32_t n, enum cache_ack ack, uint8_t version, uint32_t length)
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

void put(struct req *r, uint32_t n, enum cache_ack ack)
{
        put_bytes(r, n, ack, 1, LENGTH);
}

void get(struct req *r, uint32_t n)
{
        start(r, n);
        cache_get(t.cache, &r->req);
        kio_flush(t.io);
}

void expect(struct req *r, enum cache_status status)
{
        tiers_wait(&t, &r->done);
        assert_int_equal(r->req.status, status);
}

void expect_put(uint32_t n, enum cache_ack ack, enum cache_status status)
{
        struct req r;

        put(&r, n, ack);
        expect(&r, status);
}

void expect_get(uint32_t n, enum cache_status status, uint8_t version)
{
        struct req r;

        get(&r, n);
        expect(&r, status);
        if (status == CACHE_OK)
                assert_int_equal(r.version, version);
}

unsigned tiers_of(uint32_t n)
{
        struct key k = key_of(n);

        return cache_find(t.cache, t.ns, &k, cache_hash(t.cache, t.ns, &k), NULL, NULL);
}

enum cache_status evict(uint32_t n, bool memory_only)
{
        struct key k = key_of(n);

        return cache_evict(t.cache, t.ns, &k, cache_hash(t.cache, t.ns, &k), memory_only);
}

enum cache_status prefetch_as(uint32_t user, uint32_t n)
{
        struct key k = key_of(n);
        struct cache_place place;
        enum cache_status status =
                cache_prefetch(t.cache, user, t.ns, &k, cache_hash(t.cache, t.ns, &k), &place);

        kio_flush(t.io);
        return status;
}

enum cache_status prefetch(uint32_t n)
{
        return prefetch_as(0, n);
}

static void purged(struct cache_purge *req)
{
        container_of(req, struct purge, req)->done = true;
}

void purge(struct purge *p)
{
        *p = (struct purge){ .req = { .store.namespace_id = t.ns, .complete = purged } };
        cache_purge(t.cache, &p->req);
}

static void device_done(struct store_device *req)
{
        req->complete = NULL;
}

void begin_switch(struct store_device *req,
                  void (*change)(struct store *s, struct store_device *req))
{
        *req = (struct store_device){ .volume = 0, .complete = device_done };
        change(t.store, req);
}

void end_switch(struct store_device *req)
{
        while (req->complete) {
                struct pollfd p = { .fd = kio_fd(t.io), .events = POLLIN };

                poll(&p, 1, 5);
                kio_reap(t.io);
                tiers_iterate(&t);
        }
        assert_int_equal(req->result, 0);
}

void switch_volume(void (*change)(struct store *s, struct store_device *req))
{
        struct store_device req;

        begin_switch(&req, change);
        end_switch(&req);
}

struct cache_stats stats(void)
{
        struct cache_stats s;

        cache_get_stats(t.cache, &s);
        return s;
}

void hold(unsigned op, uint64_t first)
{
        fault_set(&(struct fault_plan){
                .ops = 1u << op, .kind = FAULT_NEVER, .first = first, .count = FAULT_FOR_EVER });
}

void refuse(unsigned op, uint64_t first, uint64_t count)
{
        fault_set(&(struct fault_plan){ .ops = 1u << op,
                                        .kind = FAULT_ERROR,
                                        .error = EIO,
                                        .first = first,
                                        .count = count });
}

void release(void)
{
        fault_set(NULL);
        fault_release();
}

void reap_copies(uint64_t puts)
{
        while (stats().puts < puts) {
                tiers_wait_io(&t);
                kio_reap(t.io);
        }
}

void put_writing(struct req *r, uint32_t n, enum cache_ack ack)
{
        hold(KIO_WRITE, 1);
        put(r, n, ack);
        tiers_wait_hits(&t, 1);
}

void put_cold(uint32_t n)
{
        expect_put(n, CACHE_WRITTEN, CACHE_OK);
        assert_int_equal(evict(n, true), CACHE_OK);
        assert_int_equal(tiers_of(n), CACHE_DISK);
}

void get_reading(struct req *r, uint32_t n)
{
        hold(KIO_READ, 1);
        get(r, n);
        tiers_wait_hits(&t, 1);
}

void expect_ticking(struct req *r, enum cache_status status)
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

void pin_every_slab(uint32_t *pinned, unsigned n)
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

void unpin_all(const uint32_t *pinned, unsigned n)
{
        for (unsigned i = 0; i < n; i++)
                cache_unpin(t.cache, pinned[i]);
}

void put_as(uint32_t user, struct req *r, uint32_t n, enum cache_ack ack, uint32_t length,
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

void get_as(uint32_t user, struct req *r, uint32_t n)
{
        start(r, n);
        r->req.user = user;
        cache_get(t.cache, &r->req);
        kio_flush(t.io);
}

struct req reads[READS];

void put_cold_of_one_page(uint32_t n)
{
        struct req r;

        put_bytes(&r, n, CACHE_WRITTEN, 1, 4096);
        expect(&r, CACHE_OK);
        assert_int_equal(evict(n, true), CACHE_OK);
}

void expect_reads(unsigned from, enum cache_status status)
{
        for (unsigned i = from; i < READS; i++)
                expect(&reads[i], status);
}

void wait_for_more_reads(void)
{
        uint64_t queued = stats().queued_reads;

        while (stats().queued_reads == queued) {
                tiers_wait_io(&t);
                kio_reap(t.io);
                tiers_iterate(&t);
        }
}

int setup(void **state)
{
        t = (struct tiers){ 0 };
        tiers_open(&t);
        return 0;
}

int teardown(void **state)
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

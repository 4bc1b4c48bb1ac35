/* SPDX-License-Identifier: Apache-2.0 */
/* Random histories of puts, gets, evictions, purges and pins of several users, beside a disk that
 * works, fails or stands still. A model says which bytes a get may return. After each history all
 * sums are zero. */
#include "base/clock.h"
#include "base/sanitizers.h"
#include "cache-fixture.h"
#include "checked.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
        KEYS = 48,
        USERS = 4,
        STEPS = 3000,
        PINS = 8,
        HISTORIES = SANITIZES_THREADS ? 3 : 12, /* a quarter with TSan, as of the campaigns */
        UNKNOWN = UINT8_MAX
};

/* The model of a key, of which one put at a time is in flight. A get returns version `stored`, or
 * during a put version `put_version`, or is a miss. */
struct model {
        struct req put;
        bool is_putting;
        uint8_t put_version;
        uint8_t stored; /* 0: no chunk; UNKNOWN: any version */
};

static struct model models[KEYS];
static uint32_t draws, pinned[PINS], n_pinned;
static bool is_held;

static uint32_t draw(uint32_t below)
{
        draws ^= draws << 13;
        draws ^= draws >> 17;
        draws ^= draws << 5;
        return draws % below;
}

static void note_put(struct model *m)
{
        if (!m->is_putting || !m->put.done)
                return;
        m->is_putting = false;
        if (m->put.req.status == CACHE_OK)
                m->stored = m->put_version;
        else if (m->put.req.status == CACHE_NOT_DURABLE)
                m->stored = UNKNOWN; /* this version, or one that existed */
}

static void put_one(uint32_t n)
{
        static const uint32_t lengths[] = { 4 * KIB, SMALL, 300000, MIB, 2 * MIB };
        struct model *m = &models[n];

        if (m->is_putting)
                return;
        m->put_version = m->put_version % 200 + 1;
        m->is_putting = true;
        start(&m->put, n);
        m->put.length = lengths[draw(ARRAY_SIZE(lengths))];
        m->put.src = malloc(m->put.length);
        assert_non_null(m->put.src);
        fill(m->put.src, n, m->put_version, m->put.length);
        m->put.req.user = draw(USERS);
        m->put.req.ack = draw(4) ? CACHE_ACCEPTED : draw(2) ? CACHE_WRITTEN : CACHE_DURABLE;
        m->put.req.nowait = draw(4) > 0;
        m->put.req.memory = m->put.src;
        m->put.req.length = m->put.length;
        cache_put(t.cache, &m->put.req);
        kio_flush(t.io);
}

static bool may_be(const struct model *m, uint8_t version)
{
        return version == m->stored || m->stored == UNKNOWN ||
               (m->is_putting && version == m->put_version);
}

static void get_one(uint32_t n)
{
        const struct model before = models[n];
        struct req r;

        if (is_held && !(tiers_of(n) & CACHE_MEMORY))
                return; /* a read may wait behind the writes */
        get(&r, n);
        tiers_wait(&t, &r.done);
        if (r.req.status == CACHE_OK && !may_be(&before, r.version))
                fail_msg("key %u has version %u after version %u", n, r.version, before.stored);
}

static void pin_one(uint32_t n)
{
        struct key k = key_of(n);
        uint32_t chunk = pool_find(t.pool, t.ns, &k, cache_hash(t.cache, t.ns, &k));

        if (n_pinned == PINS) {
                cache_unpin(t.cache, pinned[--n_pinned]);
        } else if (chunk != POOL_NONE && !pool_is_filling(pool_chunk(t.pool, chunk))) {
                pool_pin(t.pool, chunk);
                pinned[n_pinned++] = chunk;
        }
}

static void retain_one(uint32_t n)
{
        struct cache_place place;
        struct key k = key_of(n);

        if (cache_find(t.cache, t.ns, &k, cache_hash(t.cache, t.ns, &k), &place, NULL))
                (void)cache_retain(t.cache, &place, draw(2), UINT64_MAX);
}

static void on_purged(struct cache_purge *purge)
{
        free(purge);
}

static void purge_all(void)
{
        struct cache_purge *p = malloc(sizeof(*p));

        assert_non_null(p);
        *p = (struct cache_purge){ .store.namespace_id = t.ns, .complete = on_purged };
        cache_purge(t.cache, p);
        for (unsigned i = 0; i < KEYS; i++) {
                note_put(&models[i]);
                models[i].stored = 0;
        }
}

static void change_disk(void)
{
        unsigned how = draw(16);

        if (how < 6) {
                hold(KIO_WRITE, 1 + draw(3));
                is_held = true;
                return;
        }
        release();
        is_held = false;
        if (how == 6)
                refuse(KIO_WRITE, 1, 1);
}

static void step(void)
{
        uint32_t n = draw(KEYS), what = draw(100);

        note_put(&models[n]);
        if (what < 45) {
                put_one(n);
        } else if (what < 60) {
                get_one(n);
        } else if (what < 68) {
                if (evict(n, false) != CACHE_FAILED)
                        models[n].stored = 0;
        } else if (what < 70) {
                (void)evict(n, true);
        } else if (what < 71) {
                purge_all();
        } else if (what < 75) {
                pin_one(n);
        } else if (what < 78) {
                retain_one(n);
        } else if (what < 86) {
                change_disk();
        } else {
                t.later_ns += draw(2) * UINT64_C(10000000000); /* deadlines are 60 s later */
                kio_reap(t.io);
                tiers_iterate(&t);
        }
        assert_in_range(t.cache->unwritten, 0,
                        t.cache->unwritten_limit + t.cache->reserve + pool_slab_bytes(t.pool));
        assert_in_range(t.cache->copying, 0,
                        t.cache->unwritten_limit + t.cache->reserve + pool_slab_bytes(t.pool));
}

static void end_history(bool stops)
{
        while (n_pinned > 0)
                cache_unpin(t.cache, pinned[--n_pinned]);
        if (stops)
                cache_stop(t.cache);
        release();
        is_held = false;
        for (unsigned i = 0; i < KEYS; i++) {
                if (models[i].is_putting)
                        tiers_wait(&t, &models[i].put.done);
                note_put(&models[i]);
                if (!stops)
                        get_one(i);
        }
        if (store_volumes_up(t.store) == 0)
                cache_forget_postponed(t.cache);
        do
                tiers_settle(&t);
        while (cache_has_work(t.cache));
        assert_int_equal(t.cache->postponed.n, 0);
        assert_int_equal(t.cache->unwritten, 0);
        assert_int_equal(t.cache->copying, 0);
        assert_int_equal(stats().putting_users, 0);
        assert_int_equal(stats().queued_writes, 0);
        assert_int_equal(stats().queued_reads, 0);
        assert_int_equal(fair_users(), 0);
}

static void gets_return_bytes_that_were_put_and_not_dropped_since(void **state)
{
        uint64_t postponed = 0, caught_up = 0;

        for (uint32_t i = 1; i <= HISTORIES; i++) {
                draws = i * UINT32_C(2654435761) | 1;
                memset(models, 0, sizeof(models));
                for (unsigned n = 0; n < STEPS; n++)
                        step();
                end_history(i % 2);
                postponed += stats().postponed;
                caught_up += stats().caught_up;
                teardown(state);
                setup(state);
        }
        assert_in_range(postponed, 10 * HISTORIES, UINT64_MAX);
        assert_in_range(caught_up, HISTORIES, UINT64_MAX);
}

int main(void)
{
        static const struct CMUnitTest tests[] = {
                TEST(gets_return_bytes_that_were_put_and_not_dropped_since),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

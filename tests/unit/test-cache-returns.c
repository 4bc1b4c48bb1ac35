/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions that announce their returns, over a pool that holds a third of their chunks: the chunks
 * that are read from the disk with reads before the returns and without them. The time is that of
 * the test, and no time passes during a read, so the figures do not depend on the machine. With
 * KVCACHE_TEST_FIGURES in the environment, the test prints them. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cache-fixture.h"
#include "checked.h"
#include "cleanup.h"
#include "evict/announced.h"

#define SECOND UINT64_C(1000000000)
#define STEP   (SECOND / 200)

enum {
        USER = 5,
        SESSIONS = 32,
        KEYS = 24, /* chunks of a session */
        BYTES = 16 * KIB,
        POOL = 4 * MIB, /* a third of the chunks */
        LEAST_S = 2,
        MOST_S = 8,
        WARM_S = 40, /* seconds that are not counted */
        PLAYED_S = 200,
};

struct figures {
        uint64_t returns;
        uint64_t missing;                /* chunks that returns found on the disk only */
        unsigned with_missing[KEYS + 1]; /* returns by the number of such chunks */
        uint64_t prefetched, wasted;     /* chunks; wasted: evicted before a use */
        uint64_t read;                   /* missing and prefetched chunks */
};

struct session {
        uint64_t return_ns, id;
};

static struct announced *announced;
static uint64_t time_ns, announcements, random_state;

/* Returns a number below `n`. */
static uint32_t draw(uint32_t n)
{
        random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        return (uint32_t)((random_state >> 33) % n);
}

static void set_clock(void)
{
        t.fixed_ns = time_ns;
}

static void iterate(void)
{
        kio_reap(t.io);
        set_clock();
        tiers_iterate(&t);
}

static void settle(void)
{
        for (iterate(); cache_pending(t.cache) > 0 || store_pending(t.store) > 0; iterate())
                if (!cache_has_work(t.cache))
                        tiers_wait_io(&t);
}

static void find_place(uint32_t n, struct cache_place *ret)
{
        struct key key = key_of(n);

        assert_int_not_equal(
                cache_find(t.cache, t.ns, &key, cache_hash(t.cache, t.ns, &key), ret, NULL), 0);
}

/* Gets a session's chunks, as a request with leases on all of them does. Returns the number of
 * chunks that were on the disk only. */
static unsigned use_chain(struct session *s, uint32_t first)
{
        uint32_t use = cache_next_use(t.cache);
        struct cache_place place;
        static struct req reqs[KEYS];
        unsigned missing = 0;

        set_clock();
        announced_use(announced, USER, s->id, time_ns);
        for (uint32_t i = 0; i < KEYS; i++) {
                start(&reqs[i], first + i);
                reqs[i].req.user = USER;
                reqs[i].req.use = use;
                missing += !(tiers_of(first + i) & CACHE_MEMORY);
                cache_get(t.cache, &reqs[i].req);
                kio_flush(t.io);
                settle();
                assert_true(reqs[i].done);
                assert_int_equal(reqs[i].req.status, CACHE_OK);
                find_place(first + i, &place);
                pool_pin(t.pool, place.chunk);
        }
        for (uint32_t i = KEYS; i-- > 0;) {
                find_place(first + i, &place);
                cache_unpin(t.cache, place.chunk);
                cache_touch(t.cache, &place, use, EVICT_NO_GAP);
        }
        return missing;
}

/* Announces a return, as a HINT with the whole chain does. */
static void announce(struct session *s, uint32_t first, uint32_t seconds)
{
        struct evict_promise promise = {
                .number = ++announcements,
                .belief =
                        announced_make(announced, USER, s->id, ANNOUNCED_RETURN, seconds, time_ns),
        };
        struct prefetch_return r = { .user = USER,
                                     .namespace_id = t.ns,
                                     .id = s->id,
                                     .seconds = seconds,
                                     .number = promise.number,
                                     .n = KEYS };
        struct cache_place place;
        struct key *keys;

        if (promise.belief <= 0)
                return;
        keys = cache_announce(t.cache, &r, time_ns);
        for (uint32_t i = 0; keys && i < KEYS; i++)
                keys[i] = key_of(first + KEYS - 1 - i);
        promise.seconds = announced_seconds(announced, USER, seconds);
        for (uint32_t i = KEYS; i-- > 0;) {
                find_place(first + i, &place);
                cache_promise(t.cache, &place, &promise);
        }
}

static uint64_t wasted(void)
{
        struct pool_stats pool;

        pool_get_stats(t.pool, &pool);
        return pool.prefetched_wasted;
}

/* Plays the sessions. An announced time is wrong by at most `wrong` percent of it. */
static void play(unsigned wrong, uint64_t rate, struct figures *ret)
{
        struct session sessions[SESSIONS];
        uint64_t begin_ns = time_ns;
        bool is_counted = false;

        memset(ret, 0, sizeof(*ret));
        random_state = 7;
        cache_prefetch_set_rate(t.cache, rate);
        for (uint32_t i = 0; i < SESSIONS; i++)
                sessions[i] = (struct session){
                        .id = i + 1, .return_ns = time_ns + draw(MOST_S * 1000) * (SECOND / 1000)
                };
        for (; time_ns < begin_ns + PLAYED_S * SECOND; time_ns += STEP) {
                settle();
                if (!is_counted && time_ns >= begin_ns + WARM_S * SECOND) {
                        is_counted = true;
                        ret->prefetched = stats().prefetched;
                        ret->wasted = wasted();
                }
                for (uint32_t i = 0; i < SESSIONS; i++) {
                        struct session *s = &sessions[i];
                        uint32_t seconds;
                        unsigned missing;

                        if (s->return_ns > time_ns)
                                continue;
                        missing = use_chain(s, i * KEYS);
                        if (is_counted) {
                                ret->returns++;
                                ret->missing += missing;
                                ret->with_missing[missing]++;
                        }
                        seconds = LEAST_S + draw(MOST_S - LEAST_S + 1);
                        s->return_ns = time_ns + seconds * (SECOND / 100) * (100 - wrong) +
                                       seconds * (SECOND / 1000) * draw(20 * wrong + 1);
                        announce(s, i * KEYS, seconds);
                }
        }
        settle();
        ret->prefetched = stats().prefetched - ret->prefetched;
        ret->wasted = wasted() - ret->wasted;
        ret->read = ret->missing + ret->prefetched;
}

/* Returns the number of missing chunks that a tenth of the returns exceed. */
static unsigned p90(const struct figures *f)
{
        uint64_t n = 0;
        unsigned missing = 0;

        for (; missing < KEYS && (n += f->with_missing[missing]) * 10 < f->returns * 9; missing++)
                ;
        return missing;
}

static int setup_returns(void **unused)
{
        struct req r;

        t = (struct tiers){ .pool_bytes = POOL };
        tiers_open(&t);
        assert_int_equal(announced_new(&announced), 0);
        assert_int_equal(cache_prefetch_init(t.cache, announced, 1), 0);
        assert_int_equal(pool_set_policy(t.pool, "cq"), 1);
        time_ns = clock_mono_ns() + SECOND;
        set_clock();
        for (uint32_t i = 0; i < SESSIONS * KEYS; i++) {
                put_bytes(&r, i, CACHE_WRITTEN, 1, BYTES);
                expect(&r, CACHE_OK);
                assert_int_equal(evict(i, true), CACHE_OK);
        }
        return 0;
}

static int teardown_returns(void **unused)
{
        int r = teardown(unused);

        announced = announced_free(announced);
        return r;
}

static void compare(unsigned wrong, struct figures *without, struct figures *with)
{
        play(wrong, 0, without);
        play(wrong, UINT64_C(1) << 30, with);
        assert_int_equal(with->returns, without->returns);
        if (getenv("KVCACHE_TEST_FIGURES"))
                print_message(
                        "announced times wrong by up to %u %%: %.0f returns read %.0f chunks "
                        "without prefetch and %.0f with it (%+.2f %%); found missing: mean "
                        "%.1f and %.1f, p90 %u and %u; prefetched %.0f, evicted unused %.0f\n",
                        wrong, (double)with->returns, (double)without->read, (double)with->read,
                        100 * ((double)with->read / (double)without->read - 1),
                        (double)without->missing / (double)without->returns,
                        (double)with->missing / (double)with->returns, p90(without), p90(with),
                        (double)with->prefetched, (double)with->wasted);
}

/* Returns how many percent more chunks were read with prefetch than without it. */
static double extra(const struct figures *without, const struct figures *with)
{
        return 100 * ((double)with->read / (double)without->read - 1);
}

static void exact_returns_cost_no_further_reads(void **unused)
{
        struct figures without, with;

        compare(0, &without, &with);
        assert_int_equal(p90(&without), KEYS);
        assert_int_equal(p90(&with), 0);
        assert_true(with.missing * 50 < without.missing);
        assert_true(extra(&without, &with) < 1.5); /* 0.8 as measured */
}

static void inexact_returns_cost_few_further_reads(void **unused)
{
        struct figures without, with;

        compare(20, &without, &with);
        assert_in_range(p90(&with), 1, KEYS * 3 / 4);
        assert_true(with.missing * 5 < without.missing * 4);
        assert_true(extra(&without, &with) < 9); /* 7.3 as measured */
}

#define RETURNS(name) cmocka_unit_test_setup_teardown(name, setup_returns, teardown_returns)

int main(void)
{
        const struct CMUnitTest tests[] = {
                RETURNS(exact_returns_cost_no_further_reads),
                RETURNS(inexact_returns_cost_few_further_reads),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

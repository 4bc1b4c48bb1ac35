/* SPDX-License-Identifier: Apache-2.0 */
/* A fleet of hosts with a shared tier: a trace computed by hand, sessions, and invariants of the
 * counts. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "checked.h"
#include "fleet.h"
#include "trace-in-memory.h"

/* Sessions A and B have two turns; C to F, with the same beginning, have one. The last block of
 * a request is partial, and the session's next turn does not repeat it. */
static void by_hand(void)
{
        begin();
        REQUEST(0, 0, 1, 2, 3);        /* A, first host: 4 computed */
        REQUEST(10000, 0, 10, 11);     /* B, second: 0 is shared; 2 computed */
        REQUEST(20000, 0, 1, 2, 4, 5); /* A again: 0, 1, 2 local; 2 computed */
        REQUEST(30000, 0, 10, 12, 13); /* B again: 0, 10 local; 2 computed */
        REQUEST(40000, 0, 1, 20);      /* C, first: 0, 1 local; 1 computed */
        REQUEST(50000, 0, 10, 21);     /* D, second: 0, 10 local; 1 computed */
        REQUEST(60000, 0, 1, 2, 30);   /* E, first: 0, 1, 2 local; 1 computed */
        REQUEST(120000, 0, 1, 2, 31);  /* F, second: 0 local; 1, 2 shared; 1 computed */
        assert_int_equal(simulation_init(&simulation, &workload), 0);
}

static struct fleet plain(void)
{
        return (struct fleet){ .policy = "lru",
                               .capacity = 100,
                               .shared = 100,
                               .write = FLEET_WRITE_ALL,
                               .route = FLEET_ROUTE_SESSION };
}

static struct fleet_result run(struct fleet *f, uint32_t hosts)
{
        struct fleet_result result;

        assert_int_equal(fleet_init(f, &simulation), 0);
        assert_int_equal(fleet_run(f, hosts, &result), 0);
        fleet_fini(f);
        return result;
}

static void the_figures_of_a_trace_by_hand(void **state)
{
        struct fleet f = plain();
        struct fleet_result r;

        by_hand();
        r = run(&f, 2);
        assert_int_equal(f.n_sessions, 6);
        assert_int_equal(f.blocks_bound, 16);
        assert_int_equal(r.blocks_asked, 30);
        assert_int_equal(r.blocks_hit_local, 13);
        assert_int_equal(r.blocks_hit, 16);
        assert_int_equal(r.loads, 2);
        assert_int_equal(r.blocks_read, 3);
        assert_int_equal(r.blocks_written, 14);
        assert_int_equal(r.blocks_stored, 14);
        assert_int_equal(r.evictions, 0);
        assert_int_equal(r.busiest_read, 2); /* F reads two in the third minute. */
        /* Each host touches or inserts the requested blocks, and the tier touches those that it has
         * or takes. */
        assert_true(r.touches > r.blocks_asked);
        simulation_fini(&simulation);
}

static void reused_writes_only_what_was_hit_locally(void **state)
{
        struct fleet f = plain();
        struct fleet_result r;

        by_hand();
        f.write = FLEET_WRITE_REUSED;
        r = run(&f, 2);
        /* 0, 1, 2 by A's second turn and 10 by B's: F finds 1 and 2. */
        assert_int_equal(r.blocks_hit_local, 13);
        assert_int_equal(r.blocks_hit, 15);
        assert_int_equal(r.loads, 1);
        assert_int_equal(r.blocks_read, 2);
        assert_int_equal(r.blocks_written, 4);
        assert_int_equal(r.blocks_stored, 4);
        simulation_fini(&simulation);
}

static void without_a_tier_or_writes_all_hits_are_local(void **state)
{
        struct fleet f = plain();
        struct fleet_result none, never;

        by_hand();
        f.shared = 0;
        none = run(&f, 2);
        f = plain();
        f.write = FLEET_WRITE_NEVER;
        never = run(&f, 2);
        assert_int_equal(none.blocks_hit, 13);
        assert_int_equal(none.blocks_hit_local, 13);
        assert_int_equal(none.loads + none.blocks_read + none.blocks_written, 0);
        assert_int_equal(none.touches, 60);
        assert_int_equal(never.blocks_hit, 13);
        assert_int_equal(never.loads + never.blocks_read + never.blocks_written, 0);
        assert_int_equal(never.touches, 60);
        simulation_fini(&simulation);
}

static void a_small_tier_evicts_the_end_of_a_chain_first(void **state)
{
        struct fleet f = plain();
        struct fleet_result r;

        /* 1, 2 and 3 fill the tier; 7 takes the place of 3, and 5 that of 2. */
        begin();
        REQUEST(0, 1, 2, 3);
        REQUEST(1, 7);
        REQUEST(2, 5);
        REQUEST(3, 1, 50); /* the second host reads 1; 50 takes the place of 7 */
        assert_int_equal(simulation_init(&simulation, &workload), 0);
        f.shared = 3;
        r = run(&f, 2);
        assert_int_equal(f.n_sessions, 4);
        assert_int_equal(r.blocks_hit_local, 0);
        assert_int_equal(r.blocks_hit, 1);
        assert_int_equal(r.blocks_read, 1);
        assert_int_equal(r.blocks_written, 6);
        assert_int_equal(r.evictions, 3);
        assert_int_equal(r.blocks_stored, 3);
        simulation_fini(&simulation);
}

static void a_block_behind_a_gap_is_not_read(void **state)
{
        struct fleet f = plain();
        struct fleet_result r;

        begin();
        REQUEST(0, 9, 5, 6);
        REQUEST(1, 2, 3, 4);
        REQUEST(2, 8, 7);
        REQUEST(3, 9, 2); /* the second host: 9 is in the tier, 2 in its own cache */
        assert_int_equal(simulation_init(&simulation, &workload), 0);
        r = run(&f, 2);
        assert_int_equal(r.blocks_asked, 10);
        assert_int_equal(r.blocks_hit_local, 0);
        assert_int_equal(r.blocks_hit, 2);
        assert_int_equal(r.blocks_read, 1);
        assert_int_equal(r.blocks_written, 8);
        simulation_fini(&simulation);
}

static void sessions_go_on_by_their_last_full_block(void **state)
{
        static const struct {
                int64_t requests[4][6];
                unsigned n, sessions;
        } cases[] = {
                /* once more */
                { { { 1, 2, 3, END }, { 1, 2, 3, END } }, 2, 1 },
                /* each request repeats all but the last block of the previous one */
                { { { 1, 2, 3, END }, { 1, 2, 4, 5, END }, { 1, 2, 4, 6, 7, END } }, 3, 1 },
                /* full blocks */
                { { { 1, 2, 3, END }, { 1, 2, 3, 4, END }, { 1, 2, 3, 4, 5, END } }, 3, 1 },
                /* shares a beginning */
                { { { 1, 2, 3, END }, { 1, 4, 5, END } }, 2, 2 },
                /* back to where the session was before: a branch */
                { { { 1, 2, 3, END }, { 1, 2, 4, 5, END }, { 1, 2, 3, END } }, 3, 2 },
                /* short sessions with different first blocks */
                { { { 1, 2, END }, { 3, 4, END }, { 1, 5, END }, { 3, 6, END } }, 4, 2 },
                /* short sessions that share all but the last block */
                { { { 1, 2, 9, END }, { 1, 3, END }, { 1, 4, END }, { 1, 5, END } }, 4, 4 },
                /* a request without blocks begins no session */
                { { { 1, END }, { END }, { 1, END } }, 3, 1 },
                { { { END }, { 1, END }, { END }, { 2, END } }, 4, 2 },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                struct fleet f = plain();

                begin();
                for (unsigned k = 0; k < cases[i].n; k++)
                        request(k, cases[i].requests[k]);
                assert_int_equal(simulation_init(&simulation, &workload), 0);
                run(&f, 1);
                assert_int_equal(f.n_sessions, cases[i].sessions);
                simulation_fini(&simulation);
        }
}

/* Sessions of several turns over shared beginnings. */
static void many_sessions(uint32_t seed)
{
        enum { SESSIONS = 40, TURNS = 6 };
        int64_t blocks[16];

        begin();
        for (unsigned turn = 0; turn < TURNS; turn++)
                for (unsigned s = 0; s < SESSIONS; s++) {
                        size_t n = 0;

                        blocks[n++] = (int64_t)(s * (seed + 3) % 5);
                        blocks[n++] = (int64_t)(100 + s * (seed + 3) % 10);
                        for (unsigned k = 0; k <= turn; k++)
                                blocks[n++] = (int64_t)(1000 * (s + 1) + k);
                        blocks[n] = END;
                        request(1000 * (turn * SESSIONS + s), blocks);
                }
        assert_int_equal(simulation_init(&simulation, &workload), 0);
}

static void one_host_hits_as_a_single_cache_does(void **state)
{
        for (uint32_t seed = 0; seed < 3; seed++) {
                struct simulation_result single;
                struct fleet f = plain();

                many_sessions(seed);
                for (f.capacity = 10; f.capacity < 200; f.capacity *= 2) {
                        assert_int_equal(simulation_run(&simulation, "lru", f.capacity, &single),
                                         0);
                        f.shared = 0;
                        assert_int_equal(run(&f, 1).blocks_hit, single.blocks_hit);
                }
                simulation_fini(&simulation);
        }
}

static void a_tier_for_everything_hits_what_one_cache_would(void **state)
{
        static const uint32_t hosts[] = { 1, 2, 5, 40, FLEET_MAX_HOSTS };

        many_sessions(1);
        for (unsigned route = 0; route < 3; route++)
                for (size_t i = 0; i < ARRAY_SIZE(hosts); i++) {
                        struct fleet f = plain();
                        struct fleet_result r;

                        f.route = (enum fleet_route)route;
                        f.capacity = 20;
                        f.shared = simulation.n_blocks;
                        r = run(&f, hosts[i]);
                        assert_int_equal(r.blocks_hit, f.blocks_bound);
                        assert_int_equal(r.blocks_hit, r.blocks_asked - simulation.n_blocks);
                        assert_int_equal(r.blocks_stored, simulation.n_blocks);
                        assert_true(r.blocks_hit_local <= r.blocks_hit);
                        assert_true(r.blocks_read >= r.blocks_hit - r.blocks_hit_local);
                        assert_true(r.busiest_read <= r.blocks_read);
                }
        simulation_fini(&simulation);
}

static void routes_spread_the_requests_differently(void **state)
{
        struct fleet by_session = plain(), at_random = plain();
        struct fleet_result s, r, again;

        many_sessions(2);
        at_random.route = FLEET_ROUTE_RANDOM;
        at_random.shared = by_session.shared = simulation.n_blocks;
        s = run(&by_session, 8);
        r = run(&at_random, 8);
        again = run(&at_random, 8);
        assert_int_equal(s.blocks_hit, r.blocks_hit); /* the tier has everything */
        assert_true(s.blocks_hit_local > r.blocks_hit_local);
        assert_true(s.blocks_read < r.blocks_read);
        assert_int_equal(r.blocks_hit_local, again.blocks_hit_local);
        assert_int_equal(r.blocks_read, again.blocks_read);
        simulation_fini(&simulation);
}

static void announced_ends_reach_the_hosts(void **state)
{
        struct fleet f = plain();
        struct fleet_result silent, announced;

        many_sessions(0);
        f.policy = "cq";
        f.capacity = 60;
        f.shared = 0;
        silent = run(&f, 1);
        simulation.announced = 1;
        announced = run(&f, 1);
        assert_int_not_equal(announced.blocks_hit, silent.blocks_hit);
        simulation_fini(&simulation);
}

static void the_busiest_minute_is_one_of_the_trace(void **state)
{
        struct fleet f = plain();

        /* Two hosts alternate, and the second reads blocks that the first has written. */
        begin();
        REQUEST(5000000, 1, 2, 3, 4, 5);
        REQUEST(5000001, 1, 2, 6);    /* second host: 2 in the first minute */
        REQUEST(5060001, 1, 3, 7);    /* first host: nothing to read */
        REQUEST(5060002, 1, 2, 3, 8); /* second host: 3 in the second minute */
        REQUEST(1, 1, 9);             /* time stands still */
        assert_int_equal(simulation_init(&simulation, &workload), 0);
        assert_int_equal(run(&f, 2).busiest_read, 2);
        simulation_fini(&simulation);
}

/* Two hosts and a router without a lag. A request is worth 16 for each block that is missing at a
 * host, and its load is 1 for each block sent there to compute within a minute. */
static void the_router_follows_events_and_load(void **state)
{
        struct fleet f = plain();
        struct fleet_result r;

        begin();
        REQUEST(0, 1, 2);          /* equal costs: first host */
        REQUEST(1000, 3, 4);       /* first: 32 + 2, second: 32 + 0 */
        REQUEST(2000, 1, 2, 5);    /* first: 16 + 2, second: 48 + 2 */
        REQUEST(3000, 3, 4, 6, 7); /* first: 64 + 3, second: 32 + 2 */
        REQUEST(4000, 8);          /* first: 16 + 3, second: 16 + 4 */
        REQUEST(64001, 9); /* nothing was sent for a minute: 16 each; 3 requests and 2: second */
        assert_int_equal(simulation_init(&simulation, &workload), 0);
        f.route = FLEET_ROUTE_EVENTS;
        f.shared = 0;
        r = run(&f, 2);
        assert_int_equal(r.blocks_asked, 13);
        assert_int_equal(r.blocks_hit_local, 4);
        assert_int_equal(r.blocks_expected, 4);
        assert_int_equal(r.blocks_stale, 0);
        assert_int_equal(r.most_computed, 5); /* second host: 3, 4, 6, 7, 9 */
        simulation_fini(&simulation);
}

/* A minute's load of 33 blocks outweighs two missing blocks. */
static void the_router_leaves_a_busy_host(void **state)
{
        struct fleet f = plain();

        begin();
        REQUEST(0, 1, 2);
        request(1000,
                (const int64_t[]){ 1,  2,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19,
                                   20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
                                   32, 33, 34, 35, 36, 37, 38, 39, 40, END }); /* first host: 496 +
                                                                                  2, second: 528 */
        REQUEST(2000, 1, 2, 3); /* first: 16 + 33, second: 48: it computes all three */
        assert_int_equal(simulation_init(&simulation, &workload), 0);
        f.route = FLEET_ROUTE_EVENTS;
        f.shared = 0;
        assert_int_equal(run(&f, 2).blocks_hit_local, 2);
        simulation_fini(&simulation);
}

/* Each request is sent 10 s after the last one, so that events with a lag of 10 s just arrive. */
static void events_reach_the_router_after_the_lag(void **state)
{
        static const struct {
                uint64_t lag_ns;
                uint64_t expected, hit;
        } cases[] = {
                { 0, 4, 4 },
                { UINT64_C(10000000000), 4, 4 },
                /* The second request of 1, 2 is not recognized and goes to the other host. */
                { UINT64_C(10000000001), 2, 2 },
                { UINT64_C(20000000000), 2, 2 },
                { UINT64_C(20000000001), 0, 2 },
                { UINT64_MAX, 0, 2 },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                struct fleet f = plain();
                struct fleet_result r;

                begin();
                REQUEST(0, 1, 2);
                REQUEST(10000, 1, 2);
                REQUEST(20000, 1, 2);
                assert_int_equal(simulation_init(&simulation, &workload), 0);
                f.route = FLEET_ROUTE_EVENTS;
                f.lag_ns = cases[i].lag_ns;
                f.shared = 0;
                r = run(&f, 2);
                assert_int_equal(r.blocks_expected, cases[i].expected);
                assert_int_equal(r.blocks_hit_local, cases[i].hit);
                assert_int_equal(r.blocks_stale, 0);
                simulation_fini(&simulation);
        }
}

/* The cache of one host has two blocks, and 3, 4 replace 1, 2. The router hears of that late. */
static void a_late_router_counts_on_evicted_blocks(void **state)
{
        static const uint64_t lags_ns[] = { 0, UINT64_C(5000000000) };

        for (size_t i = 0; i < ARRAY_SIZE(lags_ns); i++) {
                struct fleet f = plain();
                struct fleet_result r;

                begin();
                REQUEST(0, 1, 2);
                REQUEST(6000, 3, 4);
                REQUEST(7000, 1, 2);
                assert_int_equal(simulation_init(&simulation, &workload), 0);
                f.route = FLEET_ROUTE_EVENTS;
                f.lag_ns = lags_ns[i];
                f.capacity = 2;
                f.shared = 0;
                r = run(&f, 1);
                assert_int_equal(r.blocks_hit_local, 0);
                assert_int_equal(r.blocks_expected, i == 0 ? 0 : 2);
                assert_int_equal(r.blocks_stale, r.blocks_expected);
                simulation_fini(&simulation);
        }
}

/* A router without a lag that has nothing to balance expects exactly the hits. */
static void a_router_without_a_lag_is_never_wrong(void **state)
{
        static const uint32_t hosts[] = { 1, 3, 40, 65, FLEET_MAX_HOSTS };

        many_sessions(2);
        for (size_t i = 0; i < ARRAY_SIZE(hosts); i++)
                for (uint32_t capacity = 5; capacity < 200; capacity *= 3) {
                        struct fleet f = plain();
                        struct fleet_result r;

                        f.route = FLEET_ROUTE_EVENTS;
                        f.capacity = capacity;
                        r = run(&f, hosts[i]);
                        assert_int_equal(r.blocks_expected, r.blocks_hit_local);
                        assert_int_equal(r.blocks_stale, 0);
                        assert_true(r.blocks_hit_local > 0 || capacity < 20);
                }
        simulation_fini(&simulation);
}

/* One host leaves no choice, so that every route gives the same counts. */
static void one_host_has_the_same_hits_by_every_route(void **state)
{
        many_sessions(1);
        for (uint32_t capacity = 10; capacity < 200; capacity *= 2) {
                struct fleet by_session = plain(), by_events = plain();

                by_session.capacity = by_events.capacity = capacity;
                by_events.route = FLEET_ROUTE_EVENTS;
                by_session.policy = by_events.policy = "cq";
                assert_int_equal(run(&by_session, 1).blocks_hit_local,
                                 run(&by_events, 1).blocks_hit_local);
        }
        simulation_fini(&simulation);
}

static void no_host_too_many_or_no_capacity_are_refused(void **state)
{
        struct fleet f = plain();
        struct fleet_result r;

        by_hand();
        assert_int_equal(fleet_init(&f, &simulation), 0);
        assert_int_equal(fleet_run(&f, 0, &r), -EINVAL);
        assert_int_equal(fleet_run(&f, FLEET_MAX_HOSTS + 1, &r), -EINVAL);
        f.capacity = 0;
        assert_int_equal(fleet_run(&f, 1, &r), -EINVAL);
        f.capacity = 1;
        f.policy = "fifo";
        assert_int_equal(fleet_run(&f, 1, &r), -EINVAL);
        fleet_fini(&f);
        simulation_fini(&simulation);
}

static void a_workload_without_requests_has_no_hits(void **state)
{
        struct fleet f = plain();
        struct fleet_result r;

        begin();
        assert_int_equal(simulation_init(&simulation, &workload), 0);
        r = run(&f, 3);
        assert_int_equal(r.blocks_asked + r.blocks_hit + r.touches, 0);
        assert_int_equal(f.n_sessions, 0);
        simulation_fini(&simulation);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(the_figures_of_a_trace_by_hand),
                cmocka_unit_test(reused_writes_only_what_was_hit_locally),
                cmocka_unit_test(without_a_tier_or_writes_all_hits_are_local),
                cmocka_unit_test(a_small_tier_evicts_the_end_of_a_chain_first),
                cmocka_unit_test(a_block_behind_a_gap_is_not_read),
                cmocka_unit_test(sessions_go_on_by_their_last_full_block),
                cmocka_unit_test(one_host_hits_as_a_single_cache_does),
                cmocka_unit_test(a_tier_for_everything_hits_what_one_cache_would),
                cmocka_unit_test(routes_spread_the_requests_differently),
                cmocka_unit_test(announced_ends_reach_the_hosts),
                cmocka_unit_test(the_busiest_minute_is_one_of_the_trace),
                cmocka_unit_test(the_router_follows_events_and_load),
                cmocka_unit_test(the_router_leaves_a_busy_host),
                cmocka_unit_test(events_reach_the_router_after_the_lag),
                cmocka_unit_test(a_late_router_counts_on_evicted_blocks),
                cmocka_unit_test(a_router_without_a_lag_is_never_wrong),
                cmocka_unit_test(one_host_has_the_same_hits_by_every_route),
                cmocka_unit_test(no_host_too_many_or_no_capacity_are_refused),
                cmocka_unit_test(a_workload_without_requests_has_no_hits),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

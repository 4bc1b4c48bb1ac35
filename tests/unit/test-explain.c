/* SPDX-License-Identifier: Apache-2.0 */
/* Explanations of a simulated cache: a trace computed by hand, and counts that agree with those of
 * the simulation. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "checked.h"
#include "explain.h"
#include "trace-in-memory.h"

/* Blocks are numbered 0, 1, ... in the order of their first use: 10 is 0, 11 is 1, and so on. */
static void each_decision_of_a_trace_by_hand(void **state)
{
        struct explanation e;
        const struct explain_decision *d;

        begin();
        REQUEST(0, 10);        /* miss, cached */
        REQUEST(1000, 11);     /* fills the cache of 2 */
        REQUEST(2000, 10);     /* hit */
        REQUEST(4000, 12);     /* evicts 11; 10 is kept */
        REQUEST(7000, 13);     /* evicts 10, used 5 s before; the next would be 12 */
        REQUEST(9000, 14, 10); /* a miss, 2 s after the eviction; evicts 12 and 13 */
        REQUEST(9500, 15, 10); /* 15 is missing, so that 10 is no hit; evicts 14, spares 10 */
        assert_int_equal(simulation_init(&simulation, &workload), 0);
        assert_int_equal(explanation_run(&e, &simulation, "lru", 2, 0), 0);
        assert_int_equal(e.asked, 4);
        assert_int_equal(e.hit, 1);
        assert_int_equal(e.n, 5);

        d = e.decisions;
        assert_int_equal(d[0].kind, EXPLAIN_MISS);
        assert_true(d[0].is_cached && !d[0].gives_way && !d[0].is_refused);
        assert_int_equal(d[0].class, EVICT_CLASS_RECENCY);

        assert_int_equal(d[1].kind, EXPLAIN_HIT);
        assert_int_equal(d[1].request, 2);
        assert_int_equal(d[1].passed + d[1].spared, 0);

        assert_int_equal(d[2].kind, EXPLAIN_EVICTED);
        assert_int_equal(d[2].request, 4);
        assert_int_equal(d[2].cause, EXPLAIN_OLDEST);
        assert_int_equal(d[2].passed, 1);
        assert_true(fabs(d[2].seconds - 7) < 0.001 && fabs(d[2].unused_s - 5) < 0.001);
        assert_true(fabs(d[2].returns_s - 2) < 0.001);
        assert_true(d[2].has_next);
        assert_int_equal(d[2].next, 2);

        assert_int_equal(d[3].kind, EXPLAIN_MISS);
        assert_int_equal(d[3].request, 5);
        assert_true(d[3].is_cached);

        assert_int_equal(d[4].kind, EXPLAIN_BEHIND_A_MISS);
        assert_int_equal(d[4].request, 6);
        explanation_fini(&e);

        /* 11 is evicted at 4 s, and no later request asks for it. */
        assert_int_equal(explanation_run(&e, &simulation, "lru", 2, 1), 0);
        assert_int_equal(e.n, 2);
        assert_int_equal(e.decisions[1].kind, EXPLAIN_EVICTED);
        assert_true(isnan(e.decisions[1].returns_s));
        explanation_fini(&e);
        simulation_fini(&simulation);
}

static void a_block_beyond_the_cache_is_not_cached(void **state)
{
        struct explanation e;

        begin();
        REQUEST(0, 1, 2, 3);
        assert_int_equal(simulation_init(&simulation, &workload), 0);
        assert_int_equal(explanation_run(&e, &simulation, "cq", 2, 2), 0);
        assert_int_equal(e.n, 1);
        assert_false(e.decisions[0].is_cached);
        explanation_fini(&e);
        simulation_fini(&simulation);
}

static void a_block_without_budget_is_refused(void **state)
{
        struct explanation e;

        begin();
        REQUEST(0, 1);
        REQUEST(1, 2);
        assert_int_equal(simulation_init(&simulation, &workload), 0);
        simulation.write_budget = 1;
        simulation.block_bytes = 1 << 20;
        assert_int_equal(explanation_run(&e, &simulation, "cq", 2, 1), 0);
        assert_int_equal(e.n, 1);
        assert_true(!e.decisions[0].is_cached && e.decisions[0].is_refused);
        explanation_fini(&e);
        simulation_fini(&simulation);
}

/* Sessions whose turns continue each other, with pauses of their own. */
static void many_sessions(void)
{
        enum { SESSIONS = 24, TURNS = 10 };

        begin();
        for (unsigned turn = 0; turn < TURNS; turn++)
                for (uint64_t s = 0; s < SESSIONS; s++) {
                        int64_t blocks[TURNS + 3] = { (int64_t)s % 4 };

                        for (uint64_t k = 0; k <= turn; k++)
                                blocks[k + 1] = (int64_t)(100 * (s + 1) + k);
                        blocks[turn + 2] = END;
                        request(4000 * (turn * SESSIONS + s), blocks);
                }
        assert_int_equal(simulation_init(&simulation, &workload), 0);
}

/* Every request, hit and eviction of the simulation is a decision about some block, and a block is
 * cached exactly between the decisions that say so. */
static void decisions_of_all_blocks_are_those_of_the_simulation(void **state)
{
        static const char *const policies[] = { "lru", "cq" };

        many_sessions();
        for (size_t p = 0; p < ARRAY_SIZE(policies); p++)
                for (uint32_t capacity = 12; capacity <= 96; capacity *= 2) {
                        uint64_t asked = 0, hit = 0, evicted = 0, cached = 0;
                        struct simulation_result result;

                        assert_int_equal(
                                simulation_run(&simulation, policies[p], capacity, &result), 0);
                        for (uint32_t block = 0; block < simulation.n_blocks; block++) {
                                struct explanation e;
                                bool is_cached = false;

                                assert_int_equal(explanation_run(&e, &simulation, policies[p],
                                                                 capacity, block),
                                                 0);
                                for (size_t i = 0; i < e.n; i++) {
                                        const struct explain_decision *d = &e.decisions[i];
                                        bool was_missing = d->kind == EXPLAIN_MISS;

                                        /* An eviction by its own request follows its decision. */
                                        if (d->kind != EXPLAIN_EVICTED)
                                                assert_int_equal(is_cached, !was_missing);
                                        evicted += d->kind == EXPLAIN_EVICTED;
                                        is_cached = d->kind != EXPLAIN_EVICTED && d->is_cached;
                                        if (d->kind == EXPLAIN_EVICTED)
                                                assert_true(d->unused_s >= 0);
                                }
                                asked += e.asked;
                                hit += e.hit;
                                cached += is_cached;
                                explanation_fini(&e);
                        }
                        assert_int_equal(asked, result.blocks_asked);
                        assert_int_equal(hit, result.blocks_hit);
                        assert_int_equal(evicted, result.evictions);
                        assert_int_equal(cached, result.writes - result.evictions);
                        assert_true(evicted > 0 && hit > 0);
                }
        simulation_fini(&simulation);
}

static void wrong_arguments_are_refused(void **state)
{
        struct explanation e;

        many_sessions();
        assert_int_equal(explanation_run(&e, &simulation, "opt", 10, 0), -EINVAL);
        explanation_fini(&e);
        assert_int_equal(explanation_run(&e, &simulation, "fifo", 10, 0), -EINVAL);
        explanation_fini(&e);
        assert_int_equal(explanation_run(&e, &simulation, "cq", 0, 0), -EINVAL);
        explanation_fini(&e);
        simulation_fini(&simulation);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(each_decision_of_a_trace_by_hand),
                cmocka_unit_test(a_block_beyond_the_cache_is_not_cached),
                cmocka_unit_test(a_block_without_budget_is_refused),
                cmocka_unit_test(decisions_of_all_blocks_are_those_of_the_simulation),
                cmocka_unit_test(wrong_arguments_are_refused),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

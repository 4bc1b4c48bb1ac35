/* SPDX-License-Identifier: Apache-2.0 */
/* simulate's figures: those of "lru" and "opt" compared with models of a few lines, and a trace
 * computed by hand. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "checked.h"
#include "simulate.h"
#include "simulated-cache.h"

enum { MOST_REQUESTS = 400, MOST_IDS = 4000 };

/* A workload in memory. */
struct trace {
        struct workload workload;
        struct workload_request requests[MOST_REQUESTS];
        uint64_t ids[MOST_IDS];
};

static void trace_init(struct trace *t)
{
        memset(t, 0, sizeof(*t));
        t->workload.kind = "trace";
        t->workload.requests = t->requests;
        t->workload.ids = t->ids;
}

static void trace_add(struct trace *t, uint64_t ms, const uint64_t *ids, size_t n)
{
        struct workload *w = &t->workload;

        assert_true(w->n_requests < MOST_REQUESTS && w->n_ids + n <= MOST_IDS);
        w->requests[w->n_requests++] =
                (struct workload_request){ .timestamp_ms = ms, .first_id = w->n_ids, .n_ids = n };
        for (size_t i = 0; i < n; i++)
                w->ids[w->n_ids++] = ids[i];
}

#define REQUEST(t, ms, ...)                                                                        \
        trace_add((t), (ms), (const uint64_t[]){ __VA_ARGS__ },                                    \
                  sizeof((const uint64_t[]){ __VA_ARGS__ }) / sizeof(uint64_t))

/* Makes a trace of 10 blocks, 5 of them distinct. */
static void trace_by_hand(struct trace *t)
{
        trace_init(t);
        REQUEST(t, 0, 100, 200, 300);
        REQUEST(t, 1000, 100, 200, 400);
        REQUEST(t, 2000, 500);
        REQUEST(t, 3000, 100, 200, 300);
}

static uint32_t draw(uint32_t *state, uint32_t below)
{
        *state = *state * 1664525 + 1013904223;
        return (*state >> 16) % below;
}

/* Chains of a tree whose nodes are numbered, so that an id determines its prefix. */
static void trace_of_chains(struct trace *t, uint32_t seed, size_t requests, uint32_t roots,
                            uint32_t branches, size_t longest)
{
        uint32_t state = seed * 7919 + 17;

        trace_init(t);
        for (size_t i = 0; i < requests; i++) {
                uint64_t ids[16], id = 1 + draw(&state, roots);
                size_t n = 1 + draw(&state, (uint32_t)longest);

                for (size_t k = 0; k < n; k++) {
                        ids[k] = id;
                        id = id * 16 + 1 + draw(&state, branches);
                }
                trace_add(t, 1000 * i, ids, n);
        }
}

/* --- the models --- */

struct model {
        uint64_t hits, evictions, writes, touches;
};

static bool asks_for(const struct simulation *s, const struct workload_request *r, uint32_t block)
{
        for (size_t i = 0; i < r->n_ids; i++)
                if (s->blocks[r->first_id + i] == block)
                        return true;
        return false;
}

/* Returns the least recently used block outside the request, or s->n_blocks if there is none. */
static uint32_t coldest(const struct simulation *s, const struct workload_request *r,
                        const uint64_t *used)
{
        uint32_t victim = s->n_blocks;

        for (uint32_t b = 0; b < s->n_blocks; b++)
                if (used[b] && !asks_for(s, r, b) &&
                    (victim == s->n_blocks || used[b] < used[victim]))
                        victim = b;
        return victim;
}

/* Models an LRU cache that evicts the end of a chain first and keeps a request's blocks while it
 * serves the request. */
static struct model lru(const struct simulation *s, uint32_t capacity)
{
        uint64_t *used = test_calloc(s->n_blocks, sizeof(*used)), clock = 0;
        struct model m = { 0 };
        uint32_t cached = 0;

        for (size_t i = 0; i < s->workload->n_requests; i++) {
                const struct workload_request *r = &s->workload->requests[i];
                const uint32_t *blocks = &s->blocks[r->first_id];
                size_t most = MIN(r->n_ids, (size_t)capacity), before = 0, after = 0;

                for (size_t k = 0; k < r->n_ids && used[blocks[k]]; k++)
                        m.hits++;
                for (size_t k = 0; k < most; k++)
                        before += used[blocks[k]] != 0;
                for (size_t k = most; k-- > 0;) {
                        if (!used[blocks[k]]) {
                                if (cached == capacity) {
                                        uint32_t victim = coldest(s, r, used);

                                        if (victim == s->n_blocks)
                                                continue;
                                        used[victim] = 0;
                                        m.evictions++;
                                } else {
                                        cached++;
                                }
                                m.writes++;
                        }
                        used[blocks[k]] = ++clock;
                }
                for (size_t k = 0; k < most; k++)
                        after += used[blocks[k]] != 0;
                /* Insertions are touches, and all blocks are touched again after them. */
                m.touches += before == most ? before : 2 * after;
        }
        test_free(used);
        return m;
}

/* Tries every choice of at most `capacity` blocks to keep after each request, as bits. */
static uint64_t optimum(const struct simulation *s, uint32_t capacity)
{
        size_t sets = (size_t)1 << s->n_blocks;
        int *best = test_malloc(sets * sizeof(*best)), *after = test_malloc(sets * sizeof(*after));
        int most = 0;

        memset(best, 0xff, sets * sizeof(*best)); /* -1: cannot be */
        best[0] = 0;
        for (size_t i = 0; i < s->workload->n_requests; i++) {
                const struct workload_request *r = &s->workload->requests[i];
                size_t asked = 0;

                for (size_t k = 0; k < r->n_ids; k++)
                        asked |= (size_t)1 << s->blocks[r->first_id + k];
                memset(after, 0xff, sets * sizeof(*after));
                for (size_t set = 0; set < sets; set++) {
                        size_t pool = set | asked;
                        int hits = best[set];

                        if (hits < 0)
                                continue;
                        for (size_t k = 0; k < r->n_ids && set >> s->blocks[r->first_id + k] & 1;
                             k++)
                                hits++;
                        for (size_t keep = pool;; keep = (keep - 1) & pool) {
                                if ((uint32_t)__builtin_popcountll(keep) <= capacity)
                                        after[keep] = MAX(after[keep], hits);
                                if (keep == 0)
                                        break;
                        }
                }
                memcpy(best, after, sets * sizeof(*best));
        }
        for (size_t set = 0; set < sets; set++)
                most = MAX(most, best[set]);
        test_free(best);
        test_free(after);
        return (uint64_t)most;
}

static struct simulation_result run(const struct simulation *s, const char *policy,
                                    uint32_t capacity)
{
        struct simulation_result result;

        assert_int_equal(simulation_run(s, policy, capacity, &result), 0);
        return result;
}

/* --- the tests --- */

static void ids_are_numbered_in_the_order_of_their_first_use(void **state)
{
        static const uint32_t expected[] = { 0, 1, 2, 0, 1, 3, 4, 0, 1, 2 };
        static struct trace t;
        struct simulation s;

        trace_by_hand(&t);
        assert_int_equal(simulation_init(&s, &t.workload), 0);
        assert_int_equal(s.n_blocks, 5);
        assert_memory_equal(s.blocks, expected, sizeof(expected));
        simulation_fini(&s);
}

static void ids_that_share_a_slot_of_the_table_stay_apart(void **state)
{
        static struct trace t;
        struct simulation s;

        trace_init(&t);
        for (uint64_t i = 0; i < MOST_REQUESTS; i++)
                REQUEST(&t, i, i << 32, UINT64_MAX - i, (i << 32) + 1);
        assert_int_equal(simulation_init(&s, &t.workload), 0);
        assert_int_equal(s.n_blocks, 3 * MOST_REQUESTS);
        simulation_fini(&s);
}

static void a_trace_by_hand_has_the_figures_computed_by_hand(void **state)
{
        static const struct {
                const char *policy;
                uint32_t capacity;
                uint64_t hits, evictions, writes, touches;
        } cases[] = {
                /* 100 hits in the second request, and 500 evicts it. */
                { "lru", 1, 1, 2, 3, 7 },
                /* 300, 400 and 500 go as the next request needs room. */
                { "lru", 3, 4, 3, 6, 20 },
                { "lru", 5, 5, 0, 5, 17 },
                { "opt", 1, 2, 1, 0, 10 },
                { "opt", 3, 5, 0, 0, 10 },
        };
        static struct trace t;
        struct simulation s;

        trace_by_hand(&t);
        assert_int_equal(simulation_init(&s, &t.workload), 0);
        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                struct simulation_result r = run(&s, cases[i].policy, cases[i].capacity);

                assert_int_equal(r.blocks_asked, 10);
                assert_int_equal(r.blocks_hit, cases[i].hits);
                assert_int_equal(r.touches, cases[i].touches);
                assert_int_equal(r.writes, cases[i].writes);
                if (strcmp(cases[i].policy, "opt") != 0)
                        assert_int_equal(r.evictions, cases[i].evictions);
                assert_true(r.seconds >= 0);
        }
        simulation_fini(&s);
}

static void lru_is_the_model_in_every_figure(void **state)
{
        static struct trace t;

        for (uint32_t seed = 0; seed < 8; seed++) {
                struct simulation s;

                trace_of_chains(&t, seed, 300, 6, 3, 8);
                assert_int_equal(simulation_init(&s, &t.workload), 0);
                for (uint32_t capacity = 1; capacity <= s.n_blocks; capacity += 1 + capacity / 2) {
                        struct simulation_result r = run(&s, "lru", capacity);
                        struct model m = lru(&s, capacity);

                        assert_int_equal(r.blocks_asked, t.workload.n_ids);
                        assert_int_equal(r.blocks_hit, m.hits);
                        assert_int_equal(r.evictions, m.evictions);
                        assert_int_equal(r.writes, m.writes);
                        assert_int_equal(r.touches, m.touches);
                }
                simulation_fini(&s);
        }
}

static void opt_is_the_best_of_all_choices_and_bounds_the_policies(void **state)
{
        static struct trace t;

        for (uint32_t seed = 0; seed < 6; seed++) {
                struct simulation s;

                trace_of_chains(&t, seed, 12, 3, 2, 3);
                assert_int_equal(simulation_init(&s, &t.workload), 0);
                while (s.n_blocks > 11) { /* the model takes 3^n steps */
                        simulation_fini(&s);
                        t.workload.n_requests--;
                        t.workload.n_ids = t.requests[t.workload.n_requests].first_id;
                        assert_int_equal(simulation_init(&s, &t.workload), 0);
                }
                for (uint32_t capacity = 1; capacity <= 4; capacity++) {
                        uint64_t best = optimum(&s, capacity);

                        assert_int_equal(run(&s, "opt", capacity).blocks_hit, best);
                        assert_true(run(&s, "lru", capacity).blocks_hit <= best);
                        assert_true(run(&s, "cq", capacity).blocks_hit <= best);
                }
                simulation_fini(&s);
        }
}

static void a_cache_for_everything_misses_each_block_once(void **state)
{
        static const char *const policies[] = { "lru", "cq", "opt" };
        static struct trace t;
        struct simulation s;

        trace_of_chains(&t, 5, 300, 4, 3, 6);
        assert_int_equal(simulation_init(&s, &t.workload), 0);
        for (size_t i = 0; i < ARRAY_SIZE(policies); i++) {
                struct simulation_result r = run(&s, policies[i], s.n_blocks);

                assert_int_equal(r.blocks_asked - r.blocks_hit, s.n_blocks);
                assert_int_equal(r.evictions, 0);
        }
        simulation_fini(&s);
}

static void only_the_beginning_of_a_long_request_comes_in(void **state)
{
        static struct trace t;
        struct simulation s;
        struct simulation_result r;

        trace_init(&t);
        REQUEST(&t, 0, 1, 2, 3, 4, 5, 6);
        REQUEST(&t, 1, 1, 2, 3, 4, 5, 6);
        assert_int_equal(simulation_init(&s, &t.workload), 0);
        r = run(&s, "lru", 4);
        assert_int_equal(r.blocks_hit, 4);
        assert_int_equal(r.writes, 4);
        assert_int_equal(r.touches, 12);
        assert_int_equal(r.evictions, 0);
        simulation_fini(&s);
}

static void a_block_behind_a_gap_is_no_hit(void **state)
{
        static struct trace t;
        struct simulation s;

        trace_init(&t);
        REQUEST(&t, 0, 2, 3);
        REQUEST(&t, 1, 1, 2, 3);
        assert_int_equal(simulation_init(&s, &t.workload), 0);
        assert_int_equal(run(&s, "lru", 3).blocks_hit, 0);
        assert_int_equal(run(&s, "opt", 3).blocks_hit, 0);
        simulation_fini(&s);
}

static void requests_without_blocks_change_nothing(void **state)
{
        static struct trace t;
        struct simulation s;
        struct simulation_result r;

        trace_init(&t);
        REQUEST(&t, 0, 1, 2);
        trace_add(&t, 1, NULL, 0);
        REQUEST(&t, 2, 1, 2);
        trace_add(&t, 3, NULL, 0);
        assert_int_equal(simulation_init(&s, &t.workload), 0);
        s.announced = 1;
        r = run(&s, "cq", 2);
        assert_int_equal(r.blocks_asked, 4);
        assert_int_equal(r.blocks_hit, 2);
        assert_int_equal(run(&s, "opt", 2).blocks_hit, 2);
        simulation_fini(&s);
}

static void unknown_policies_and_no_capacity_are_refused(void **state)
{
        static struct trace t;
        struct simulation_result r = { .touches = 7 };
        struct workload huge = { .n_ids = INT32_MAX };
        struct simulation s;

        trace_by_hand(&t);
        assert_int_equal(simulation_init(&s, &t.workload), 0);
        assert_int_equal(simulation_run(&s, "lru", 0, &r), -EINVAL);
        assert_int_equal(simulation_run(&s, "fifo", 3, &r), -EINVAL);
        assert_false(simulation_policy_exists("fifo"));
        assert_false(simulation_policy_exists(""));
        assert_true(simulation_policy_exists("lru"));
        assert_true(simulation_policy_exists("cq"));
        assert_true(simulation_policy_exists("opt"));
        simulation_fini(&s);
        assert_int_equal(simulation_init(&s, &huge), -E2BIG);
}

/* The third request repeats the first except its last block; the second and the third end a
 * session. */
static void the_last_request_of_a_session_is_its_end(void **state)
{
        static struct trace t;
        struct simulation s;
        uint8_t *ends = NULL;

        trace_init(&t);
        REQUEST(&t, 0, 1, 2, 3);
        REQUEST(&t, 1, 8);
        REQUEST(&t, 2, 1, 2, 4, 5);
        trace_add(&t, 3, NULL, 0);
        assert_int_equal(simulation_init(&s, &t.workload), 0);
        assert_int_equal(simulation_choose_ends(&s, &ends), 0);
        assert_null(ends);
        s.announced = 1;
        assert_int_equal(simulation_choose_ends(&s, &ends), 0);
        assert_memory_equal(ends, ((const uint8_t[]){ 0, 1, 1, 0 }), 4);
        free(ends);
        simulation_fini(&s);
}

static void a_share_of_the_ends_is_announced(void **state)
{
        static struct trace t;
        struct simulation s;
        uint8_t *half, *most;
        unsigned n_half = 0, n_most = 0;

        trace_init(&t);
        for (uint64_t i = 0; i < MOST_REQUESTS; i++)
                REQUEST(&t, i, 2 * i, 2 * i + 1);
        assert_int_equal(simulation_init(&s, &t.workload), 0);
        s.announced = 0.5;
        assert_int_equal(simulation_choose_ends(&s, &half), 0);
        s.announced = 0.75;
        assert_int_equal(simulation_choose_ends(&s, &most), 0);
        for (size_t i = 0; i < MOST_REQUESTS; i++) {
                n_half += half[i];
                n_most += most[i];
                assert_true(half[i] <= most[i]); /* A larger share includes a smaller. */
        }
        assert_in_range(n_half, MOST_REQUESTS / 2 - 8, MOST_REQUESTS / 2 + 8);
        assert_in_range(n_most, 3 * MOST_REQUESTS / 4 - 8, 3 * MOST_REQUESTS / 4 + 8);
        free(half);
        free(most);
        simulation_fini(&s);
}

static void announced_ends_make_room_for_sessions_that_go_on(void **state)
{
        struct workload *w = NULL;
        struct simulation s;
        uint64_t plain, announced;
        uint32_t capacity;

        assert_int_equal(workload_chat(&w, 1500, 0), 0);
        assert_int_equal(simulation_init(&s, w), 0);
        capacity = s.n_blocks / 10;
        plain = run(&s, "cq", capacity).blocks_hit;
        s.announced = 0.5;
        announced = run(&s, "cq", capacity).blocks_hit;
        assert_true(announced > plain);
        assert_true(announced <= run(&s, "opt", capacity).blocks_hit);
        simulation_fini(&s);
        workload_free(w);
}

static void a_budget_of_a_byte_lets_one_block_in_at_most(void **state)
{
        static struct trace t;
        struct simulation s;
        struct simulation_result r;

        trace_by_hand(&t);
        assert_int_equal(simulation_init(&s, &t.workload), 0);
        s.write_budget = 1;
        s.block_bytes = 1 << 20;
        r = run(&s, "lru", 5);
        assert_true(r.writes <= 1);
        assert_true(r.blocks_hit <= 2 * r.writes);
        assert_int_equal(r.writes + r.refused_first + r.refused_dry + r.blocks_hit, 10);
        /* The optimum has no budget. */
        assert_int_equal(run(&s, "opt", 3).blocks_hit, 5);
        simulation_fini(&s);
}

static void a_budget_is_kept(void **state)
{
        enum { DAY_MS = 24 * 3600 * 1000, BLOCK = 1000 };
        static struct trace t;
        struct simulation s;
        struct simulation_result r;
        uint64_t all;

        trace_init(&t);
        for (uint64_t i = 0; i < MOST_REQUESTS; i++)
                REQUEST(&t, i * (DAY_MS / MOST_REQUESTS), 1000 + i / 4, 5000 + i / 4);
        assert_int_equal(simulation_init(&s, &t.workload), 0);
        s.block_bytes = BLOCK;
        all = run(&s, "lru", 50).writes;
        assert_int_equal(all, 200);
        s.write_budget = all / 2 * BLOCK;
        r = run(&s, "lru", 50);
        assert_true(r.writes > 0 && r.writes < all);
        assert_true(r.refused_first + r.refused_dry > 0);
        assert_true(r.writes * BLOCK <= s.write_budget * 11 / 10);
        simulation_fini(&s);
}

/* Sessions of 6 blocks, a third of which return quickly, each with another last block. */
static void trace_of_sessions(struct trace *t, uint64_t quick_s, uint64_t slow_s)
{
        enum { SESSIONS = 24, QUICK = 8, BLOCKS = 6 };

        trace_init(t);
        for (uint64_t second = 0; second < 23 * quick_s; second++)
                for (uint64_t i = 0; i < SESSIONS; i++) {
                        uint64_t ids[BLOCKS], period = i < QUICK ? quick_s : slow_s;

                        if (second % period != i % period)
                                continue;
                        for (uint64_t k = 0; k < BLOCKS; k++)
                                ids[k] = 1000 * i + k;
                        ids[BLOCKS - 1] += 10 + second;
                        trace_add(t, 1000 * second, ids, BLOCKS);
                }
}

static void trace_of_returns(struct trace *t)
{
        trace_of_sessions(t, 7, 40);
}

static void announced_returns_bring_hits_up_to_the_optimum(void **state)
{
        enum { CAPACITY = 70 };
        static struct trace t;
        struct simulation s;
        uint64_t plain, half, all;

        trace_of_returns(&t);
        assert_int_equal(simulation_init(&s, &t.workload), 0);
        plain = run(&s, "cq", CAPACITY).blocks_hit;
        s.returns = 0.5;
        half = run(&s, "cq", CAPACITY).blocks_hit;
        s.returns = s.announced = 1;
        all = run(&s, "cq", CAPACITY).blocks_hit;
        assert_true(half > plain);
        assert_true(all > half);
        assert_true(all <= run(&s, "opt", CAPACITY).blocks_hit);
        assert_int_equal(run(&s, "cq", CAPACITY).announced.late, 0);
        assert_true(run(&s, "cq", CAPACITY).announced.came_true > 100);
        simulation_fini(&s);
}

static void reasons_of_stops_are_announced_for_all_requests(void **state)
{
        static struct trace t;
        struct simulation s;
        struct simulation_result r;

        trace_of_returns(&t);
        assert_int_equal(simulation_init(&s, &t.workload), 0);
        s.stops = 1;
        r = run(&s, "cq", 70);
        assert_int_equal(r.announced.made, t.workload.n_requests);
        assert_true(r.announced.came_true > r.announced.made / 2);
        simulation_fini(&s);
}

static void check_liars(const struct trace *t, double share, double most)
{
        struct simulation s;
        struct simulation_result lying, silent;
        double others_asked, others, before, liars;

        assert_int_equal(simulation_init(&s, &t->workload), 0);
        s.returns = 1;
        s.liars = share;
        lying = run(&s, "cq", 70);
        assert_int_equal(simulation_run_silent(&s, "cq", 70, &silent), 0);
        assert_int_equal(lying.liars_asked, silent.liars_asked);
        assert_in_range(lying.liars_asked, 1, lying.blocks_asked - 1);
        others_asked = (double)(lying.blocks_asked - lying.liars_asked);
        others = (double)(lying.blocks_hit - lying.liars_hit) / others_asked;
        before = (double)(silent.blocks_hit - silent.liars_hit) / others_asked;
        liars = ((double)lying.liars_hit - (double)silent.liars_hit) / (double)lying.liars_asked;
        assert_true(others > before - most);
        assert_true(liars < most);
        simulation_fini(&s);
}

static void liars_change_little_for_others_and_gain_nothing(void **state)
{
        static struct trace t;

        trace_of_returns(&t);
        check_liars(&t, 0.3, 0.02); /* a few hundred blocks: one is 0.1 points */
}

/* The returns are so quick that a part of what the liars announce comes true within the window. The
 * traces are short: at their beginning every source is believed. */
static void liars_gain_nothing_by_announcing_too_little(void **state)
{
        static struct trace t;

        for (uint64_t quick_s = 2; quick_s < 5; quick_s++) {
                trace_of_sessions(&t, quick_s, 5 * quick_s);
                for (double share = 0.3; share < 0.8; share += 0.1)
                        check_liars(&t, share, 0.1);
        }
}

static void a_cache_counts_turns_of_a_session(void **state)
{
        struct simulated_cache c;

        assert_int_equal(simulated_cache_init(&c, "lru", 8, 8), 0);
        assert_int_equal(simulated_cache_begin(&c, 1, (const uint32_t[]){ 0, 1 }, 2), 1);
        assert_int_equal(simulated_cache_begin(&c, 2, (const uint32_t[]){ 0, 1, 2 }, 3), 2);
        assert_int_equal(simulated_cache_begin(&c, 3, (const uint32_t[]){ 0, 1, 2, 3 }, 4), 3);
        /* All blocks were cached, so the turn is the one that inserted the last of them. */
        assert_int_equal(simulated_cache_begin(&c, 4, (const uint32_t[]){ 0, 1, 2 }, 3), 2);
        assert_int_equal(simulated_cache_begin(&c, 5, NULL, 0), 1);
        assert_false(simulated_cache_has(&c, 0));
        simulated_cache_fini(&c);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(ids_are_numbered_in_the_order_of_their_first_use),
                cmocka_unit_test(ids_that_share_a_slot_of_the_table_stay_apart),
                cmocka_unit_test(a_trace_by_hand_has_the_figures_computed_by_hand),
                cmocka_unit_test(lru_is_the_model_in_every_figure),
                cmocka_unit_test(opt_is_the_best_of_all_choices_and_bounds_the_policies),
                cmocka_unit_test(a_cache_for_everything_misses_each_block_once),
                cmocka_unit_test(only_the_beginning_of_a_long_request_comes_in),
                cmocka_unit_test(a_block_behind_a_gap_is_no_hit),
                cmocka_unit_test(requests_without_blocks_change_nothing),
                cmocka_unit_test(unknown_policies_and_no_capacity_are_refused),
                cmocka_unit_test(the_last_request_of_a_session_is_its_end),
                cmocka_unit_test(a_share_of_the_ends_is_announced),
                cmocka_unit_test(announced_ends_make_room_for_sessions_that_go_on),
                cmocka_unit_test(announced_returns_bring_hits_up_to_the_optimum),
                cmocka_unit_test(reasons_of_stops_are_announced_for_all_requests),
                cmocka_unit_test(liars_change_little_for_others_and_gain_nothing),
                cmocka_unit_test(liars_gain_nothing_by_announcing_too_little),
                cmocka_unit_test(a_budget_of_a_byte_lets_one_block_in_at_most),
                cmocka_unit_test(a_budget_is_kept),
                cmocka_unit_test(a_cache_counts_turns_of_a_session),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "simulate.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "checked.h"
#include "cleanup.h"
#include "simulated-cache.h"
#include "simulated-hints.h"

#define NEVER UINT32_MAX

DEFINE_CLEANUP(struct admission *, admission_free);
DEFINE_CLEANUP(struct announced *, announced_free);

double simulation_cpu_seconds(void)
{
        struct timespec now;

        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
        return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* --- numbers of blocks, and times of requests --- */

struct number {
        uint64_t id;
        uint32_t plus_one; /* number of the block plus one; 0: the slot is empty */
};

/* Sets the times of the requests, from 1 on. Timestamps may be coarser than the traffic, so
 * requests with equal timestamps are spread over the time until the next timestamp, at most over
 * a second. If all timestamps are equal, the workload has no times. Returns 0 or -ENOMEM. */
static int find_times(struct simulation *s)
{
        enum { MOST_MS = 1000, MS = 1000000 };
        const struct workload_request *requests = s->workload->requests;
        size_t n = s->workload->n_requests, end;

        s->times_ns = calloc(MAX(n, (size_t)1), sizeof(s->times_ns[0]));
        if (!s->times_ns)
                return -ENOMEM;
        for (size_t begin = 0; begin < n; begin = end) {
                uint64_t ms = requests[begin].timestamp_ms, room = MOST_MS;

                for (end = begin + 1; end < n && requests[end].timestamp_ms == ms;)
                        end++;
                if (end - begin == n)
                        return 0;
                if (end < n && requests[end].timestamp_ms > ms)
                        room = MIN(room, requests[end].timestamp_ms - ms);
                for (size_t i = begin; i < end; i++)
                        s->times_ns[i] = ms * MS + room * MS * (i - begin) / (end - begin) + 1;
        }
        return 0;
}

int simulation_init(struct simulation *s, const struct workload *workload)
{
        _cleanup_(freep) struct number *table = NULL;
        size_t n_slots = 1024;

        *s = (struct simulation){ .workload = workload };
        if (workload->n_ids >= INT32_MAX)
                return -E2BIG;
        while (n_slots < 2 * workload->n_ids)
                n_slots *= 2;
        table = calloc(n_slots, sizeof(*table));
        s->blocks = malloc(MAX(workload->n_ids, (size_t)1) * sizeof(s->blocks[0]));
        if (!table || !s->blocks || find_times(s) < 0) {
                simulation_fini(s);
                return -ENOMEM;
        }
        for (size_t i = 0; i < workload->n_ids; i++) {
                uint64_t id = workload->ids[i];
                size_t slot = (id ^ id >> 32) * UINT64_C(0x9e3779b97f4a7c15) >> 32 & (n_slots - 1);

                while (table[slot].plus_one != 0 && table[slot].id != id)
                        slot = (slot + 1) & (n_slots - 1);
                if (table[slot].plus_one == 0)
                        table[slot] = (struct number){ .id = id, .plus_one = ++s->n_blocks };
                s->blocks[i] = table[slot].plus_one - 1;
        }
        return 0;
}

void simulation_fini(struct simulation *s)
{
        free(s->blocks);
        free(s->times_ns);
        *s = (struct simulation){ 0 };
}

/* --- simulating a policy of the daemon --- */

int simulation_choose_ends(const struct simulation *s, uint8_t **ret)
{
        _cleanup_(freep) uint32_t *next = NULL;
        uint8_t *ends;

        *ret = NULL;
        if (s->announced == 0)
                return 0;
        ends = calloc(MAX(s->workload->n_requests, (size_t)1), sizeof(*ends));
        if (!ends || simulation_next_uses(s, &next) < 0) {
                free(ends);
                return -ENOMEM;
        }
        for (size_t i = 0; i < s->workload->n_requests; i++) {
                const struct workload_request *request = &s->workload->requests[i];
                size_t last = request->n_ids - (request->n_ids > 1 ? 2 : 1);
                uint32_t drawn = (uint32_t)(((uint64_t)i + 1) * UINT64_C(0x9e3779b97f4a7c15) >> 32);

                if (request->n_ids > 0 && next[request->first_id + last] == NEVER)
                        ends[i] = drawn < s->announced * 0x1p32;
        }
        *ret = ends;
        return 0;
}

/* Creates the admission control. `*ret` is left untouched if there is no write budget. Returns 0 or
 * -ENOMEM. */
static int begin_admission(const struct simulation *s, uint32_t capacity, struct admission **ret)
{
        enum { REMEMBERED_OF_CAPACITY = 4, REMEMBERED_MAX = 4 << 20 };
        _cleanup_(admission_freep) struct admission *admission = NULL;
        uint64_t remembered =
                MIN((uint64_t)capacity * REMEMBERED_OF_CAPACITY, (uint64_t)REMEMBERED_MAX);
        uint64_t begin_ns = s->workload->requests[0].timestamp_ms * 1000000;

        if (s->write_budget == 0)
                return 0;
        if (admission_new(&admission, remembered, s->workload->seed, begin_ns) < 0 ||
            admission_set_budget(admission, s->write_budget, begin_ns) < 0)
                return -ENOMEM;
        *ret = TAKE_PTR(admission);
        return 0;
}

int simulation_choose_hints(const struct simulation *s, bool lying, struct simulated_hint **ret)
{
        const struct simulated_shares shares = { .returns = s->returns,
                                                 .stops = s->stops,
                                                 .liars = s->liars };
        _cleanup_(freep) uint32_t *next = NULL;
        _cleanup_(freep) uint8_t *ends = NULL;

        *ret = NULL;
        if (s->announced == 0 && s->returns == 0 && s->stops == 0 && s->liars == 0)
                return 0;
        if (simulation_choose_ends(s, &ends) < 0 || simulation_next_uses(s, &next) < 0)
                return -ENOMEM;
        return simulated_hints_choose(s->workload, &shares, next, ends, lying, ret);
}

/* Simulates all requests. `lying`: see simulation_choose_hints(). `watch` may be NULL. `ret_liars`
 * counts blocks_asked and blocks_hit of the liars' requests, which `ret` counts, too. Returns 0 or
 * -ENOMEM. */
static int play(const struct simulation *s, struct simulated_cache *c, bool lying,
                const struct simulation_watch *watch, struct simulation_result *ret,
                struct simulation_result *ret_liars)
{
        _cleanup_(freep) struct simulated_hint *hints = NULL;

        if (simulation_choose_hints(s, lying, &hints) < 0)
                return -ENOMEM;
        for (size_t i = 0; i < s->workload->n_requests; i++) {
                const struct workload_request *request = &s->workload->requests[i];
                const uint32_t *blocks = &s->blocks[request->first_id];
                size_t hits = 0;

                while (hits < request->n_ids && simulated_cache_has(c, blocks[hits]))
                        hits++;
                ret->blocks_asked += request->n_ids;
                ret->blocks_hit += hits;
                if (watch)
                        watch->before(watch->userdata, c, i, hits);
                if (hints && hints[i].user == SIMULATED_LIARS) {
                        ret_liars->blocks_asked += request->n_ids;
                        ret_liars->blocks_hit += hits;
                }
                simulated_cache_play(c, (uint32_t)i + 1, blocks, request->n_ids, s->times_ns[i],
                                     hints ? &hints[i] : NULL);
                if (watch)
                        watch->after(watch->userdata, c, i);
        }
        ret->touches = c->touches;
        ret->evictions = c->evictions;
        ret->writes = c->writes;
        return 0;
}

static int run_policy(const struct simulation *s, const char *policy, uint32_t capacity, bool lying,
                      const struct simulation_watch *watch, struct simulation_result *ret)
{
        _cleanup_(admission_freep) struct admission *admission = NULL;
        _cleanup_(announced_freep) struct announced *announced = NULL;
        _cleanup_(simulated_cache_fini) struct simulated_cache c = { 0 };
        struct simulation_result liars = { 0 };
        int r;

        r = simulated_cache_init(&c, policy, capacity, s->n_blocks);
        if (r < 0)
                return r;
        if (begin_admission(s, capacity, &admission) < 0 || announced_new(&announced) < 0)
                return -ENOMEM;
        c.admission = admission;
        c.announced = announced;
        c.block_bytes = s->block_bytes;
        c.observer = watch ? watch->cache : NULL;
        r = play(s, &c, lying, watch, ret, &liars);
        if (r < 0)
                return r;
        ret->liars_asked = liars.blocks_asked;
        ret->liars_hit = liars.blocks_hit;
        announced_get_stats(announced, &ret->announced);
        if (admission) {
                struct admission_stats stats;

                admission_get_stats(admission, &stats);
                ret->refused_first = stats.refused_first;
                ret->refused_dry = stats.refused_dry;
        }
        return 0;
}

/* --- simulating the optimum, and choosing the policy --- */

/* An entry of a heap of the cached blocks, which has the next block to evict at its top. An
 * entry is stale if its block was used after the entry was added; stale entries are dropped when
 * they reach the top. */
struct use {
        uint32_t next;  /* index of the request that uses the block next */
        uint32_t depth; /* position of the block in the latest request for it */
        uint32_t block;
};

struct heap {
        struct use *uses;
        size_t n;
};

static bool goes_before(const struct use *a, const struct use *b)
{
        return a->next != b->next ? a->next > b->next : a->depth > b->depth;
}

static void heap_add(struct heap *h, struct use use)
{
        size_t at = h->n++;

        while (at > 0 && goes_before(&use, &h->uses[(at - 1) / 2])) {
                h->uses[at] = h->uses[(at - 1) / 2];
                at = (at - 1) / 2;
        }
        h->uses[at] = use;
}

static struct use heap_take(struct heap *h)
{
        struct use top = h->uses[0], last = h->uses[--h->n];
        size_t at = 0, child;

        while ((child = 2 * at + 1) < h->n) {
                if (child + 1 < h->n && goes_before(&h->uses[child + 1], &h->uses[child]))
                        child++;
                if (!goes_before(&h->uses[child], &last))
                        break;
                h->uses[at] = h->uses[child];
                at = child;
        }
        h->uses[at] = last;
        return top;
}

int simulation_next_uses(const struct simulation *s, uint32_t **ret)
{
        _cleanup_(freep) uint32_t *later = malloc(MAX(s->n_blocks, 1U) * sizeof(*later));
        uint32_t *next = malloc(MAX(s->workload->n_ids, (size_t)1) * sizeof(*next));

        if (!later || !next) {
                free(next);
                return -ENOMEM;
        }
        for (uint32_t i = 0; i < s->n_blocks; i++)
                later[i] = NEVER;
        for (size_t i = s->workload->n_requests; i-- > 0;) {
                const struct workload_request *request = &s->workload->requests[i];

                for (size_t k = 0; k < request->n_ids; k++)
                        next[request->first_id + k] = later[s->blocks[request->first_id + k]];
                for (size_t k = 0; k < request->n_ids; k++)
                        later[s->blocks[request->first_id + k]] = (uint32_t)i;
        }
        *ret = next;
        return 0;
}

static int run_optimum(const struct simulation *s, uint32_t capacity, struct simulation_result *ret)
{
        enum { ABSENT = 0 };
        _cleanup_(freep) uint32_t *next = NULL;
        _cleanup_(freep) uint32_t *cached = calloc(s->n_blocks, sizeof(*cached)); /* next + 1 */
        _cleanup_(freep) struct use *uses =
                malloc(MAX(s->workload->n_ids, (size_t)1) * sizeof(*uses));
        struct heap heap = { .uses = uses };
        uint32_t n_cached = 0;

        if (!cached || !uses || simulation_next_uses(s, &next) < 0)
                return -ENOMEM;
        for (size_t i = 0; i < s->workload->n_requests; i++) {
                const struct workload_request *request = &s->workload->requests[i];
                size_t hits = 0;

                while (hits < request->n_ids &&
                       cached[s->blocks[request->first_id + hits]] != ABSENT)
                        hits++;
                ret->blocks_asked += request->n_ids;
                ret->blocks_hit += hits;
                for (size_t k = 0; k < request->n_ids; k++) {
                        uint32_t block = s->blocks[request->first_id + k];
                        uint32_t use = next[request->first_id + k];

                        ret->touches++;
                        n_cached += cached[block] == ABSENT && use != NEVER;
                        n_cached -= cached[block] != ABSENT && use == NEVER;
                        cached[block] = use + 1; /* NEVER + 1 is ABSENT: the block is not cached */
                        if (use != NEVER)
                                heap_add(&heap, (struct use){ use, (uint32_t)k, block });
                }
                while (n_cached > capacity) {
                        struct use first = heap_take(&heap);

                        if (cached[first.block] != first.next + 1)
                                continue;
                        cached[first.block] = ABSENT;
                        n_cached--;
                        ret->evictions++;
                }
        }
        return 0;
}

bool simulation_policy_exists(const char *policy)
{
        return strcmp(policy, "opt") == 0 || evict_policy_exists(policy);
}

int simulation_run(const struct simulation *s, const char *policy, uint32_t capacity,
                   struct simulation_result *ret)
{
        double start = simulation_cpu_seconds();
        int r;

        *ret = (struct simulation_result){ 0 };
        if (capacity == 0 || !simulation_policy_exists(policy))
                return -EINVAL;
        if (strcmp(policy, "opt") == 0)
                r = run_optimum(s, capacity, ret);
        else
                r = run_policy(s, policy, capacity, true, NULL, ret);
        ret->seconds = simulation_cpu_seconds() - start;
        return r;
}

int simulation_run_watched(const struct simulation *s, const char *policy, uint32_t capacity,
                           const struct simulation_watch *watch, struct simulation_result *ret)
{
        *ret = (struct simulation_result){ 0 };
        if (capacity == 0 || strcmp(policy, "opt") == 0 || !simulation_policy_exists(policy))
                return -EINVAL;
        return run_policy(s, policy, capacity, true, watch, ret);
}

int simulation_run_silent(const struct simulation *s, const char *policy, uint32_t capacity,
                          struct simulation_result *ret)
{
        *ret = (struct simulation_result){ 0 };
        if (capacity == 0 || !evict_policy_exists(policy))
                return -EINVAL;
        return run_policy(s, policy, capacity, false, NULL, ret);
}

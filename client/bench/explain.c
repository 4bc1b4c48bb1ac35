/* SPDX-License-Identifier: Apache-2.0 */
/* Explains the decisions about one block; see explain.h. An observer of the simulated cache
 * compares the block with the victim at each eviction, by the worth that the policy computes. */
#include "explain.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "checked.h"
#include "simulated-cache.h"

#define NONE SIZE_MAX

struct observer {
        const struct simulation *simulation;
        struct explanation *explanation;
        uint32_t block;
        size_t asked_at; /* index of the decision about the current request, or NONE if the request
                            does not ask for the block */
        size_t *asks;    /* indices of the requests that ask for the block, in order */
        size_t n_asks,
                next_ask; /* next_ask: index in `asks` of the first one after the current request */
        struct explain_decision passed; /* evictions of other blocks since the last decision, which
                                           the next decision will record */
        int error;
};

static double seconds_at(const struct observer *o, size_t request)
{
        const uint64_t *times = o->simulation->times_ns;

        return (double)(times[request] - MIN(times[request], times[0])) / 1e9;
}

static struct explain_decision *add(struct observer *o, enum explain_kind kind, size_t request)
{
        struct explanation *e = o->explanation;
        struct explain_decision *decision;

        if (e->n == e->room) {
                size_t room = MAX(2 * e->room, (size_t)64);
                struct explain_decision *decisions =
                        realloc(e->decisions, room * sizeof(*decisions));

                if (!decisions) {
                        o->error = -ENOMEM;
                        return NULL;
                }
                e->decisions = decisions;
                e->room = room;
        }
        decision = &e->decisions[e->n++];
        *decision = o->passed;
        decision->kind = kind;
        decision->request = request;
        decision->seconds = seconds_at(o, request);
        o->passed = (struct explain_decision){ .closest = INFINITY };
        return decision;
}

static struct evict_standing standing_of(const struct simulated_cache *c, uint32_t block)
{
        struct evict_standing standing;

        evict_explain(c->evict, c->blocks[block].item, 0, &standing);
        return standing;
}

/* --- requests --- */

static bool asks_for(const struct simulation *s, size_t request, uint32_t block, size_t *ret_depth)
{
        const struct workload_request *r = &s->workload->requests[request];

        for (size_t i = 0; i < r->n_ids; i++)
                if (s->blocks[r->first_id + i] == block) {
                        *ret_depth = i;
                        return true;
                }
        return false;
}

static void before_request(void *userdata, const struct simulated_cache *c, size_t request,
                           size_t hits)
{
        struct observer *o = userdata;
        enum explain_kind kind;
        size_t depth;

        o->asked_at = NONE;
        if (!asks_for(o->simulation, request, o->block, &depth))
                return;
        kind = depth < hits                       ? EXPLAIN_HIT
               : simulated_cache_has(c, o->block) ? EXPLAIN_BEHIND_A_MISS
                                                  : EXPLAIN_MISS;
        o->next_ask++;
        o->explanation->asked++;
        o->explanation->hit += kind == EXPLAIN_HIT;
        if (add(o, kind, request))
                o->asked_at = o->explanation->n - 1;
}

static void after_request(void *userdata, const struct simulated_cache *c, size_t request)
{
        struct observer *o = userdata;
        struct explain_decision *decision;
        struct evict_standing standing;

        if (o->asked_at == NONE)
                return;
        decision = &o->explanation->decisions[o->asked_at];
        decision->is_cached = simulated_cache_has(c, o->block);
        decision->is_refused = c->blocks[o->block].refused == request + 1;
        if (!decision->is_cached)
                return;
        standing = standing_of(c, o->block);
        decision->class = standing.class;
        decision->gap_s = standing.gap_s;
        decision->gives_way = standing.yields;
}

/* --- evictions --- */

/* The state of a search for the block that would have been evicted instead: the first of the blocks
 * with the least worth that the current request does not use. */
struct search {
        const struct simulated_cache *cache;
        uint32_t not, found; /* `not`: the evicted block, which is skipped; `found`: the block
                                found, or UINT32_MAX */
};

static void look_for_next(void *userdata, uint32_t item)
{
        struct search *s = userdata;
        uint32_t block = s->cache->held[item];

        if (s->found == UINT32_MAX &&
            block != s->not &&s->cache->blocks[block].request != s->cache->request)
                s->found = block;
}

static enum explain_cause cause_of(const struct evict_standing *own)
{
        if (own->yields)
                return EXPLAIN_GAVE_WAY;
        if (own->class == EVICT_CLASS_RECENCY)
                return EXPLAIN_OLDEST;
        if (own->density > own->least_density)
                return EXPLAIN_END_OF_CHAIN;
        return own->density > 0 || own->class == EVICT_CLASS_FINAL ? EXPLAIN_WORTH_LEAST
                                                                   : EXPLAIN_UNLEARNED;
}

static void explain_eviction(struct observer *o, const struct simulated_cache *c)
{
        enum { CANDIDATES = 64 };
        struct evict_standing own = standing_of(c, o->block), next;
        struct search search = { .cache = c, .not = o->block, .found = UINT32_MAX };
        struct explain_decision *d = add(o, EXPLAIN_EVICTED, c->request - 1);
        size_t used_at;

        if (!d)
                return;
        used_at = c->blocks[o->block].request - 1;
        d->class = own.class;
        d->gap_s = own.gap_s;
        d->unused_s = d->seconds - seconds_at(o, used_at);
        d->returns_s = o->next_ask < o->n_asks ? seconds_at(o, o->asks[o->next_ask]) - d->seconds
                                               : (double)NAN;
        d->cause = cause_of(&own);
        evict_next(c->evict, 0, CANDIDATES, look_for_next, &search);
        if (search.found == UINT32_MAX)
                return;
        next = standing_of(c, search.found);
        d->has_next = true;
        d->next = search.found;
        d->next_class = next.class;
        d->next_ratio = own.density > 0 ? next.density / own.density : (double)NAN;
}

/* Records that the policy evicts another block while the explained block is cached. */
static void compare(struct observer *o, const struct simulated_cache *c, uint32_t victim)
{
        struct evict_standing own, other;
        double ratio;

        if (c->blocks[o->block].request == c->request) {
                o->passed.spared++;
                return;
        }
        own = standing_of(c, o->block);
        other = standing_of(c, victim);
        ratio = other.density > 0 ? own.density / other.density : (double)INFINITY;
        o->passed.passed++;
        if (ratio < o->passed.closest) {
                o->passed.closest = ratio;
                o->passed.is_closest_continued = own.is_continued;
        }
}

static void on_evicting(void *userdata, const struct simulated_cache *c, uint32_t victim)
{
        struct observer *o = userdata;

        if (victim == o->block)
                explain_eviction(o, c);
        else if (simulated_cache_has(c, o->block))
                compare(o, c, victim);
}

/* --- the run --- */

static int find_asks(struct observer *o)
{
        size_t depth, n = o->simulation->workload->n_requests;

        o->asks = malloc(MAX(n, (size_t)1) * sizeof(*o->asks));
        if (!o->asks)
                return -ENOMEM;
        for (size_t i = 0; i < n; i++)
                if (asks_for(o->simulation, i, o->block, &depth))
                        o->asks[o->n_asks++] = i;
        return 0;
}

int explanation_run(struct explanation *e, const struct simulation *s, const char *policy,
                    uint32_t capacity, uint32_t block)
{
        struct observer o = { .simulation = s,
                              .explanation = e,
                              .block = block,
                              .asked_at = NONE,
                              .passed = { .closest = INFINITY } };
        struct simulated_observer cache = { .evicting = on_evicting, .userdata = &o };
        struct simulation_watch watch = { before_request, after_request, &cache, &o };
        struct simulation_result result;
        int r = find_asks(&o);

        *e = (struct explanation){ 0 };
        if (r == 0)
                r = simulation_run_watched(s, policy, capacity, &watch, &result);
        free(o.asks);
        return r < 0 ? r : o.error;
}

void explanation_fini(struct explanation *e)
{
        free(e->decisions);
        *e = (struct explanation){ 0 };
}

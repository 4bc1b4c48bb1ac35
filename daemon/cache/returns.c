/* SPDX-License-Identifier: Apache-2.0 */
/* Implements returns.h. Loop thread; owns nothing, and cannot fail. */
#include "cache/returns.h"

#include "checked.h"

#define NS_PER_S UINT64_C(1000000000)

enum { PARTS_OF_A_REQUEST_S = 1 }; /* uses less than this apart are of one request, see gap.h */

static void begin(struct returns *r, uint64_t now_ns)
{
        if (r->started_ns == 0) {
                r->started_ns = now_ns;
                r->second = now_ns / NS_PER_S;
        }
}

/* Returns the length of the window after a use, or 0 if no return is expected. */
static uint64_t window_ns(double gap_s)
{
        double window_s = RETURNS_WINDOW_GAPS * gap_s;

        return window_s > 0 && window_s <= RETURNS_MOST_S ? (uint64_t)(window_s * 1e9) : 0;
}

/* Adds `n` to the number of windows that end at this time, or to the surplus if that second has
 * passed. */
static void add(struct returns *r, uint64_t end_ns, int n)
{
        uint64_t second = end_ns / NS_PER_S;

        r->expected += n;
        if (second >= r->second)
                r->ends[second % RETURNS_SECONDS] += n;
        else
                r->surplus += n;
}

void returns_pass(struct returns *r, uint64_t now_ns)
{
        uint64_t now_s = now_ns / NS_PER_S, steps;

        begin(r, now_ns);
        steps = MIN(now_s - MIN(r->second, now_s), (uint64_t)RETURNS_SECONDS);
        for (uint64_t i = 0; i < steps; i++) {
                int32_t *ends = &r->ends[(r->second + i) % RETURNS_SECONDS];

                r->surplus += *ends;
                *ends = 0;
                if (r->surplus <= 0)
                        continue;
                r->stats.missed += (uint64_t)r->surplus;
                r->expected -= r->surplus;
                r->surplus = 0;
        }
        r->second = MAX(r->second, now_s);
}

void returns_expect(struct returns *r, double gap_s, uint64_t now_ns)
{
        uint64_t window = window_ns(gap_s);

        returns_pass(r, now_ns);
        if (window > 0)
                add(r, now_ns + window, 1);
}

void returns_cancel(struct returns *r, double gap_s, uint64_t age_ns, uint64_t now_ns)
{
        uint64_t window = window_ns(gap_s), used_ns = now_ns - MIN(age_ns, now_ns);

        returns_pass(r, now_ns);
        if (window > age_ns && used_ns >= r->started_ns)
                add(r, used_ns + window, -1);
}

void returns_note(struct returns *r, const struct evict_return *back, uint64_t now_ns)
{
        uint64_t window = window_ns(back->gap_s), used_ns = now_ns - MIN(back->age_ns, now_ns);

        returns_pass(r, now_ns);
        if (window == 0 || used_ns < r->started_ns)
                return;
        if (back->age_ns < PARTS_OF_A_REQUEST_S * NS_PER_S) {
                returns_cancel(r, back->gap_s, back->age_ns, now_ns);
                return;
        }
        /* A request that returns to a partly evicted chain counts once: it gets the kept beginning
         * of the chain and puts the evicted end. */
        if (back->is_evicted && used_ns + NS_PER_S > r->last_used_ns &&
            used_ns < r->last_used_ns + NS_PER_S)
                return;
        r->last_used_ns = used_ns;
        r->stats.evicted += back->is_evicted;
        /* A window counts as ended with its second, as for missed returns, so that each prediction
         * has one outcome. */
        if ((used_ns + window) / NS_PER_S < r->second) {
                r->stats.late++;
                return;
        }
        r->stats.in_time++;
        add(r, used_ns + window, -1);
}

void returns_get_stats(const struct returns *r, struct returns_stats *ret)
{
        *ret = r->stats;
        ret->expected = (uint64_t)MAX(r->expected, INT64_C(0));
}

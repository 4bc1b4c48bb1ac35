/* SPDX-License-Identifier: Apache-2.0 */
#include "simulated-hints.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "checked.h"
#include "cleanup.h"

#define NEVER UINT32_MAX

/* Returns whether request `i` belongs to a share, by a fixed draw that `salt` varies. */
static bool is_drawn(size_t i, uint64_t salt, double share)
{
        uint32_t drawn = (uint32_t)(((uint64_t)i + 1) * salt >> 32);

        return drawn < share * 0x1p32;
}

/* Returns the index in workload.ids of the block by whose next use a session continues: the last
 * but one of the request, because the last may be partial. */
static size_t last_block(const struct workload_request *r)
{
        return r->first_id + r->n_ids - (r->n_ids > 1 ? 2 : 1);
}

/* Returns the chance that the engine had stopped for a tool call, given the time until the
 * session's next request. Traces do not record why the engine stopped. The medians and the 90th
 * percentiles of the times after a tool call and after an ended turn are those of sessions of
 * coding agents. A session without a next request is taken to have ended its turn. */
static double tool_call_chance(double gap_s)
{
        const double share = 0.85, tool_s = 17, tool_width = 1.29, turn_s = 209, turn_width = 1.96;
        double gap = log(MAX(gap_s, 0.1));
        double tool = (gap - log(tool_s)) / tool_width, turn = (gap - log(turn_s)) / turn_width;
        double of_tool = share * exp(-tool * tool / 2) / tool_width;
        double of_turn = (1 - share) * exp(-turn * turn / 2) / turn_width;

        return of_tool / (of_tool + of_turn);
}

static void choose_one(const struct workload *w, const struct simulated_shares *s,
                       const uint32_t *next, const uint8_t *ends, size_t i,
                       struct simulated_hint *hint)
{
        const struct workload_request *r = &w->requests[i];
        uint32_t at = next[last_block(r)];
        double gap_s =
                at == NEVER ? 0 : (double)(w->requests[at].timestamp_ms - r->timestamp_ms) / 1e3;

        if (ends && ends[i]) {
                hint->kind = SIMULATED_HINT_FINAL;
        } else if (at != NEVER && is_drawn(i, UINT64_C(0xd1b54a32d192ed03), s->returns)) {
                hint->kind = SIMULATED_HINT_RETURN;
                hint->return_s = (uint32_t)MIN(MAX(gap_s, 1.0), (double)UINT32_MAX);
        } else if (is_drawn(i, UINT64_C(0xbf58476d1ce4e5b9), s->stops)) {
                bool is_tool = at != NEVER &&
                               is_drawn(i, UINT64_C(0x94d049bb133111eb), tool_call_chance(gap_s));

                hint->kind = is_tool ? SIMULATED_HINT_TOOL_CALL : SIMULATED_HINT_TURN_END;
        }
}

/* Draws liars by session: a request that continues another belongs to the same user. Replaces the
 * hints of liars. Returns 0 or -ENOMEM. */
static int choose_liars(const struct workload *w, double liars, const uint32_t *next, bool lying,
                        struct simulated_hint *hints)
{
        _cleanup_(freep) bool *continues = calloc(w->n_requests, sizeof(*continues));

        if (!continues)
                return -ENOMEM;
        for (size_t i = 0; i < w->n_requests; i++) {
                const struct workload_request *r = &w->requests[i];
                uint32_t at;

                if (r->n_ids == 0)
                        continue;
                if (!continues[i] && is_drawn(i, UINT64_C(0x9fb21c651e98df25), liars))
                        hints[i].user = SIMULATED_LIARS;
                at = next[last_block(r)];
                if (at != NEVER && !continues[at]) {
                        continues[at] = true;
                        hints[at].user = hints[i].user;
                }
                if (hints[i].user != SIMULATED_LIARS)
                        continue;
                hints[i].kind = lying ? SIMULATED_HINT_RETURN : SIMULATED_HINT_NONE;
                hints[i].return_s = 1;
        }
        return 0;
}

int simulated_hints_choose(const struct workload *w, const struct simulated_shares *shares,
                           const uint32_t *next, const uint8_t *ends, bool lying,
                           struct simulated_hint **ret)
{
        _cleanup_(freep) struct simulated_hint *hints = NULL;

        hints = calloc(MAX(w->n_requests, (size_t)1), sizeof(*hints));
        if (!hints)
                return -ENOMEM;
        for (size_t i = 0; i < w->n_requests; i++)
                if (w->requests[i].n_ids > 0)
                        choose_one(w, shares, next, ends, i, &hints[i]);
        if (shares->liars > 0 && choose_liars(w, shares->liars, next, lying, hints) < 0)
                return -ENOMEM;
        *ret = TAKE_PTR(hints);
        return 0;
}

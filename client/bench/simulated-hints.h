/* SPDX-License-Identifier: Apache-2.0 */
/* The hints that the clients of a simulated workload give after a request: when the session
 * returns, that is, sends its next request; why the engine stopped; or that the session ended. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "workload.h"

enum simulated_hint_kind {
        SIMULATED_HINT_NONE,
        SIMULATED_HINT_FINAL,
        SIMULATED_HINT_RETURN,
        SIMULATED_HINT_TOOL_CALL,
        SIMULATED_HINT_TURN_END,
};

/* Users of hints: all liars, who announce a return in a second after each of their requests, are
 * one user, and all other sessions are another. */
enum { SIMULATED_OTHERS = 0, SIMULATED_LIARS = 1 };

/* A hint that follows a request. */
struct simulated_hint {
        enum simulated_hint_kind kind;
        uint32_t return_s; /* SIMULATED_HINT_RETURN: seconds until the session's next request, 1 or
                              more */
        uint32_t user;
};

/* The shares of requests and sessions with hints, as in struct simulation. */
struct simulated_shares {
        double returns, stops, liars;
};

/* Chooses the hint of each request. `next`: as simulation_next_uses() sets it. `ends`: for each
 * request whether the end of its session is announced after it; NULL: after none. `lying`: liars
 * announce a return in a second after each request; if false, liars give no hints. The caller frees
 * `*ret`, which has an entry for each request. Returns 0 or -ENOMEM. */
int simulated_hints_choose(const struct workload *w, const struct simulated_shares *shares,
                           const uint32_t *next, const uint8_t *ends, bool lying,
                           struct simulated_hint **ret);

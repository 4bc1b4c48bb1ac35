/* SPDX-License-Identifier: Apache-2.0 */
/* Measures how well predicted returns come true. A chain whose mean gap is known (evict.h) is
 * expected back within twice that gap. A return within that window is in time, a later one is late,
 * and a chain that is not used again within its window was missed, whether it returns later or
 * never.
 *
 * Keeps one count for each second of the next hour and nothing for each chain, so that a return is
 * not compared with the prediction for its chain, but subtracted from the predictions for its
 * second. If two chains continue the same chain, both returns count.
 *
 * Loop thread; constant work for each call, and for each second that passes. */
#pragma once

#include <stdint.h>

#include "evict/evict.h"

enum {
        RETURNS_WINDOW_GAPS = 2,  /* length of the window, in mean gaps */
        RETURNS_MOST_S = 3600,    /* chains with a longer window are not expected back */
        RETURNS_SECONDS = 1 << 12 /* entries of the ring, more than RETURNS_MOST_S */
};

struct returns_stats {
        uint64_t expected; /* now: chains that are expected and have not returned, and whose window
                              has not ended */
        uint64_t in_time, late;
        uint64_t evicted; /* returns, in time or late, of chains whose end had been evicted */
        uint64_t missed;
};

struct returns {
        uint64_t started_ns;           /* time of the first call; 0: there was none */
        uint64_t second;               /* first second whose windows may not have ended; all earlier
                                        * windows are counted */
        int32_t ends[RETURNS_SECONDS]; /* number of windows that end in each second, by the second
                                        * modulo RETURNS_SECONDS */
        int64_t surplus; /* windows that ended in past seconds minus the returns counted for them; a
                            positive rest is counted as missed, and becomes 0 */
        int64_t expected;
        uint64_t last_used_ns; /* previous use of the chain that returned last */
        struct returns_stats stats;
};

/* Records that a chain with this mean gap, in seconds, was used. The chain is expected back unless
 * its gap is unknown (0) or its window is longer than RETURNS_MOST_S. */
void returns_expect(struct returns *r, double gap_s, uint64_t now_ns);
/* Cancels the prediction that the chain's last use, `age_ns` ago, has made, because the present use
 * continues that one. */
void returns_cancel(struct returns *r, double gap_s, uint64_t age_ns, uint64_t now_ns);
/* Records that a chain was used again, and counts the return if the chain was expected. */
void returns_note(struct returns *r, const struct evict_return *back, uint64_t now_ns);
/* Counts the windows that have ended. */
void returns_pass(struct returns *r, uint64_t now_ns);
void returns_get_stats(const struct returns *r, struct returns_stats *ret);

/* SPDX-License-Identifier: Apache-2.0 */
/* The circuit breaker of a back end: whether operations may go to it. Pure; the caller has the
 * clock.
 *
 * Closed: what ends is counted, over a window. Half of it failed, or took too long: the breaker
 * opens. Open: nothing goes, for a time that doubles with each attempt. Then it is half open: one
 * trial operation after another goes; a few that succeed close it, one that fails opens it again.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum remote_breaker { REMOTE_CLOSED, REMOTE_OPEN, REMOTE_HALF_OPEN };

enum {
        BREAKER_SLOTS = 10,   /* of a second each */
        BREAKER_FEWEST = 8,   /* operations in the window for a share to count */
        BREAKER_IN_A_ROW = 5, /* failures that open it, however few operations there are */
        BREAKER_TRIALS = 3,
};
#define BREAKER_SLOT_NS     UINT64_C(1000000000)
#define BREAKER_BACKOFF_MIN UINT64_C(1000000000)
#define BREAKER_BACKOFF_MAX UINT64_C(60000000000)

struct breaker {
        enum remote_breaker state;
        uint64_t since_ns;             /* of this state */
        uint64_t slow_ns;              /* an operation that takes longer is slow */
        uint64_t backoff_ns, trial_ns; /* how long it is open now; when the next trial may go */
        bool trying;                   /* a trial is under way */
        unsigned succeeded;            /* trials, in a row */
        unsigned failed_in_a_row;
        uint64_t slot; /* the newest, by number */
        struct {
                uint32_t all, failed, slow;
        } slots[BREAKER_SLOTS];
        uint64_t trips;
};

void breaker_init(struct breaker *b, uint64_t slow_ns, uint64_t now_ns);
/* An operation other than a trial has ended, or failed to at its deadline. True: this opened the
 * breaker. What ends while it is not closed says nothing, as it began before. */
bool breaker_count(struct breaker *b, bool failed, uint64_t took_ns, uint64_t now_ns);
/* May a trial go? If so it is under way until breaker_trial_end(). */
bool breaker_trial(struct breaker *b, uint64_t now_ns);
void breaker_trial_end(struct breaker *b, bool failed, uint64_t now_ns);
/* When the next trial may go; 0: none is wanted. */
uint64_t breaker_next(const struct breaker *b);

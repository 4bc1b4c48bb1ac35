/* SPDX-License-Identifier: Apache-2.0 */
/* The circuit breaker of a back end decides whether operations may be sent. Pure; the caller passes
 * the time.
 *
 * Closed: operations are sent, and their results are counted over a window. If half of them fail or
 * are slow, or several in a row fail, the breaker opens. Open: no operation is sent, for a time
 * that doubles with each failed trial, up to BREAKER_BACKOFF_MAX ns. Half open: trial operations
 * are sent one at a time; a few successes close the breaker, and one failure opens it again. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum remote_breaker { REMOTE_CLOSED, REMOTE_OPEN, REMOTE_HALF_OPEN };

enum {
        BREAKER_SLOTS = 10,   /* number of slots of one second each, which make the window */
        BREAKER_FEWEST = 8,   /* least number of operations in the window for which shares are
                               * computed */
        BREAKER_IN_A_ROW = 5, /* consecutive failures that open the breaker, whatever the share */
        /* Consecutive successful trials that close the breaker. */
        BREAKER_TRIALS = 3,
};
#define BREAKER_SLOT_NS     UINT64_C(1000000000)
#define BREAKER_BACKOFF_MIN UINT64_C(1000000000)
#define BREAKER_BACKOFF_MAX UINT64_C(60000000000)

struct breaker {
        enum remote_breaker state;
        uint64_t since_ns;             /* time at which the breaker entered this state */
        uint64_t slow_ns;              /* an operation that takes longer is slow */
        uint64_t backoff_ns, trial_ns; /* length of the current open period; time at which the next
                                        * trial may be sent */
        bool trying;                   /* a trial is in flight */
        unsigned succeeded;            /* consecutive successful trials */
        unsigned failed_in_a_row;
        uint64_t slot; /* number of the current slot: time divided by BREAKER_SLOT_NS */
        struct {
                uint32_t all, failed, slow;
        } slots[BREAKER_SLOTS];
        uint64_t trips;
};

/* Initializes a closed breaker. Operations longer than `slow_ns` count as slow. */
void breaker_init(struct breaker *b, uint64_t slow_ns, uint64_t now_ns);
/* Counts the end of an operation that is not a trial, or its failure to end by its deadline.
 * Ignored unless the breaker is closed, because the operation began earlier. Returns whether this
 * opened the breaker. */
bool breaker_count(struct breaker *b, bool failed, uint64_t took_ns, uint64_t now_ns);
/* Returns whether a trial may be sent, and if so, marks it as in flight until
 * breaker_trial_end(). */
bool breaker_trial(struct breaker *b, uint64_t now_ns);
/* Ends a trial. A failure opens the breaker again; the last of BREAKER_TRIALS successes closes
 * it. */
void breaker_trial_end(struct breaker *b, bool failed, uint64_t now_ns);
/* Returns the time at which the next trial may be sent, or 0 if the breaker needs none now, because
 * it is closed or a trial is in flight. */
uint64_t breaker_next(const struct breaker *b);

/* SPDX-License-Identifier: Apache-2.0 */
/* A rate limiter, which permits bursts up to a given length. Pure. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "checked.h"

struct rate {
        uint64_t paid_until_ns;
};

/* Returns the earliest time at which the next amount may be charged; it may be in the past. */
static inline uint64_t rate_next(const struct rate *r, uint64_t burst_ns)
{
        return r->paid_until_ns > burst_ns ? r->paid_until_ns - burst_ns : 0;
}

/* Charges `amount` now, at a rate of `a_second` per second; a rate of 0 is no limit. */
static inline void rate_take(struct rate *r, uint64_t amount, uint64_t a_second, uint64_t now_ns)
{
        uint64_t begin = MAX(r->paid_until_ns, now_ns);

        r->paid_until_ns = a_second == 0
                                   ? now_ns
                                   : begin + (uint64_t)((double)amount * 1e9 / (double)a_second);
}

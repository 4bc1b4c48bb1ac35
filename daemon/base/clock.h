/* SPDX-License-Identifier: Apache-2.0 */
/* Two clocks: one for deadlines and latencies, one for times that are shown or stored. Any
 * thread. */
#pragma once

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_ns(clockid_t which)
{
        struct timespec t;

        clock_gettime(which, &t);
        return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Returns a time that never decreases, for deadlines and latencies. */
static inline uint64_t clock_mono_ns(void)
{
        return clock_ns(CLOCK_MONOTONIC);
}

/* Returns the Unix time in milliseconds, for times that are shown or stored. */
static inline uint64_t clock_unix_ms(void)
{
        return clock_ns(CLOCK_REALTIME) / 1000000u;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* See inline-clock.h. */
#include "inline-clock.h"

#include <time.h>

static uint64_t now_ns = UINT64_C(1000000) * 1000000000;

int __wrap_clock_gettime(clockid_t which, struct timespec *ret);
int __real_clock_gettime(clockid_t which, struct timespec *ret);

int __wrap_clock_gettime(clockid_t which, struct timespec *ret)
{
        if (which != CLOCK_MONOTONIC)
                return __real_clock_gettime(which, ret);
        now_ns += 100;
        *ret = (struct timespec){ .tv_sec = (time_t)(now_ns / 1000000000),
                                  .tv_nsec = (long)(now_ns % 1000000000) };
        return 0;
}

void inline_clock_advance_ms(uint64_t ms)
{
        now_ns += ms * 1000000;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Records every latency of one kind of call, so that percentiles are exact; a million samples
 * take 8 MB. One writer. If memory runs out, further samples are dropped, and only their number
 * is counted. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <time.h>

/* Returns monotonic time, for latencies and deadlines. */
static inline uint64_t latency_now_ns(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Returns wall-clock time, for display and for comparison with other hosts. */
static inline uint64_t latency_unix_ms(void)
{
        struct timespec t;

        clock_gettime(CLOCK_REALTIME, &t);
        return (uint64_t)t.tv_sec * 1000u + (uint64_t)t.tv_nsec / 1000000u;
}

struct latency {
        uint64_t *ns;
        size_t n, room;
        uint64_t dropped; /* samples lost for lack of memory */
};

void latency_fini(struct latency *l);
void latency_add(struct latency *l, uint64_t ns);
void latency_merge(struct latency *to, const struct latency *from);
/* Returns the smallest sample that at least the fraction `quantile` (0 to 1) of all samples do not
 * exceed; 0 if there are none. Sorts the samples. */
uint64_t latency_quantile(struct latency *l, double quantile);

/* SPDX-License-Identifier: Apache-2.0 */
/* All latencies of one kind of call, so that percentiles are exact; a million of them take 8 MB.
 * One writer. Without memory, further ones are dropped and counted. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <time.h>

/* For latencies and deadlines. */
static inline uint64_t latency_now_ns(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* For people, and for what is compared with another host's. */
static inline uint64_t latency_unix_ms(void)
{
        struct timespec t;

        clock_gettime(CLOCK_REALTIME, &t);
        return (uint64_t)t.tv_sec * 1000u + (uint64_t)t.tv_nsec / 1000000u;
}

struct latency {
        uint64_t *ns;
        size_t n, room;
        uint64_t dropped; /* for which there was no memory */
};

void latency_fini(struct latency *l);
void latency_add(struct latency *l, uint64_t ns);
void latency_merge(struct latency *to, const struct latency *from);
/* The smallest value that at least `quantile` (0 to 1) of all do not exceed; 0 when there is none.
 * Sorts. */
uint64_t latency_quantile(struct latency *l, double quantile);

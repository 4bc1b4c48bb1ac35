/* SPDX-License-Identifier: Apache-2.0 */
/* A log-linear histogram of non-negative integers (nanoseconds, bytes): 8 steps an octave, so a
 * percentile read from it is at most 12.5 % off. Fixed size, mergeable, one writer. */
#pragma once

#include <stdint.h>

enum {
        HISTOGRAM_STEPS = 8,
        HISTOGRAM_OCTAVES = 48,
        HISTOGRAM_BUCKETS = HISTOGRAM_STEPS * HISTOGRAM_OCTAVES
};

struct histogram {
        uint64_t count, sum, max;
        uint64_t buckets[HISTOGRAM_BUCKETS];
};

void histogram_add(struct histogram *h, uint64_t value);
/* `n` values of this size, but for their sum; which histogram_add_to_sum() adds. For values that
 * have been counted elsewhere. */
void histogram_add_many(struct histogram *h, uint64_t value, uint64_t n);
void histogram_add_to_sum(struct histogram *h, uint64_t sum);
void histogram_merge(struct histogram *to, const struct histogram *from);
/* Upper edge of the bucket in which the quantile (0..1) lies, at most `max`; 0 when empty. */
uint64_t histogram_quantile(const struct histogram *h, double quantile);
/* The largest value that the bucket holds. */
uint64_t histogram_bucket_edge(unsigned bucket);
/* How many values are at most `edge`: those of the buckets that end there or before. It never falls
 * as values are added. */
uint64_t histogram_at_most(const struct histogram *h, uint64_t edge);

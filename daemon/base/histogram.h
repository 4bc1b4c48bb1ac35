/* SPDX-License-Identifier: Apache-2.0 */
/* A log-linear histogram of non-negative integers (nanoseconds, bytes) with 8 steps per octave, so
 * that a percentile read from it is at most 12.5 % off. Fixed size, mergeable, one writer. */
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
/* Adds `value` n times, except to `sum`, to which histogram_add_to_sum() adds the exact sum. Used
 * for values that were counted elsewhere, of which only the bucket is known. */
void histogram_add_many(struct histogram *h, uint64_t value, uint64_t n);
void histogram_add_to_sum(struct histogram *h, uint64_t sum);
/* Adds all values of `from` to `to`. */
void histogram_merge(struct histogram *to, const struct histogram *from);
/* Returns the upper edge of the bucket that contains the quantile (0 to 1), at most `max`; 0 if the
 * histogram is empty. */
uint64_t histogram_quantile(const struct histogram *h, double quantile);
/* Returns the largest value that falls into the bucket. */
uint64_t histogram_bucket_edge(unsigned bucket);
/* Returns the number of values in the buckets that end at or below `edge`. Never decreases as
 * values are added. */
uint64_t histogram_at_most(const struct histogram *h, uint64_t edge);

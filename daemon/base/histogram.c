/* SPDX-License-Identifier: Apache-2.0 */
/* Implements histogram.h. Each value below 8 has a bucket of its own. From there on every octave
 * [2^e, 2^(e+1)) is divided into 8 equal steps, selected by the three bits after the leading one. A
 * step is an eighth of its octave's start, hence the 12.5 %. Values beyond the last octave (2^50:
 * 13 days in nanoseconds, 1 PiB) fall into the last bucket, which has no upper edge; a quantile in
 * it is reported as `max`. Nothing can fail; the sum saturates instead of wrapping. */
#include <assert.h>

#include "base/histogram.h"
#include "checked.h"

enum { HISTOGRAM_STEP_BITS = 3 };
static_assert(HISTOGRAM_STEPS == 1 << HISTOGRAM_STEP_BITS,
              "steps are the bits after the leading one");

static unsigned bucket_of(uint64_t value)
{
        unsigned exponent, bucket;

        if (value < HISTOGRAM_STEPS)
                return (unsigned)value;
        exponent = 63u - (unsigned)__builtin_clzll(value);
        bucket = (exponent - HISTOGRAM_STEP_BITS + 1) * HISTOGRAM_STEPS +
                 (unsigned)((value >> (exponent - HISTOGRAM_STEP_BITS)) & (HISTOGRAM_STEPS - 1));
        return MIN(bucket, (unsigned)HISTOGRAM_BUCKETS - 1);
}

uint64_t histogram_bucket_edge(unsigned bucket)
{
        unsigned shift;

        if (bucket == HISTOGRAM_BUCKETS - 1)
                return UINT64_MAX;
        if (bucket < HISTOGRAM_STEPS)
                return bucket;
        shift = bucket / HISTOGRAM_STEPS - 1;
        return ((uint64_t)(HISTOGRAM_STEPS + bucket % HISTOGRAM_STEPS + 1) << shift) - 1;
}

static uint64_t add_to_end(uint64_t a, uint64_t b)
{
        uint64_t sum;

        return checked_add(a, b, &sum) ? sum : UINT64_MAX;
}

void histogram_add(struct histogram *h, uint64_t value)
{
        h->count++;
        h->sum = add_to_end(h->sum, value);
        h->max = MAX(h->max, value);
        h->buckets[bucket_of(value)]++;
}

void histogram_add_many(struct histogram *h, uint64_t value, uint64_t n)
{
        if (n == 0)
                return;
        h->count += n;
        h->max = MAX(h->max, value);
        h->buckets[bucket_of(value)] += n;
}

void histogram_add_to_sum(struct histogram *h, uint64_t sum)
{
        h->sum = add_to_end(h->sum, sum);
}

void histogram_merge(struct histogram *to, const struct histogram *from)
{
        to->count += from->count;
        to->sum = add_to_end(to->sum, from->sum);
        to->max = MAX(to->max, from->max);
        for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++)
                to->buckets[i] += from->buckets[i];
}

uint64_t histogram_quantile(const struct histogram *h, double quantile)
{
        uint64_t rank = 1, seen = 0;
        double wanted;

        if (h->count == 0)
                return 0;
        if (quantile >= 1.0)
                return h->max;
        if (quantile > 0.0) { /* false for NaN, which counts as 0 */
                wanted = quantile * (double)h->count;
                rank = (uint64_t)wanted;
                if ((double)rank < wanted)
                        rank++;
                rank = MAX(rank, (uint64_t)1);
        }
        for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++) {
                seen += h->buckets[i];
                if (seen >= rank)
                        return MIN(histogram_bucket_edge(i), h->max);
        }
        return h->max;
}

uint64_t histogram_at_most(const struct histogram *h, uint64_t edge)
{
        unsigned last = bucket_of(edge), n = last + (histogram_bucket_edge(last) <= edge);
        uint64_t seen = 0;

        /* Count by buckets even if `max` is below the edge. h->count would be right then, but the
         * result would fall when a later value lies above the edge, in the bucket that the edge
         * divides. */
        for (unsigned i = 0; i < n; i++)
                seen += h->buckets[i];
        return seen;
}

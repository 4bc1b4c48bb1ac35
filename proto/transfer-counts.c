/* SPDX-License-Identifier: Apache-2.0 */
/* Counters of transfers. Any thread, one at a time for each object; owns nothing, cannot fail. */
#include "transfer-counts.h"

#include "checked.h"

void transfer_counts_init(struct transfer_counts *c)
{
        *c = (struct transfer_counts){ .min_bytes = UINT64_MAX };
}

static unsigned bucket_of(uint64_t value)
{
        unsigned i = value <= 1 ? 0 : 64 - (unsigned)__builtin_clzll(value - 1);

        return MIN(i, TRANSFER_BUCKETS - 1u);
}

void transfer_counts_add_blocks(struct transfer_counts *c, const struct transfer_record *record)
{
        c->blocks += record->blocks;
        c->regions += record->regions;
        c->bytes += record->bytes;
        c->device_bytes += record->device_bytes;
}

void transfer_counts_add(struct transfer_counts *c, const struct transfer_record *record)
{
        uint64_t size = MAX(record->size, record->bytes);

        if (record->result != TRANSFER_OK) {
                c->errors[MIN((unsigned)record->result, TRANSFER_RESULTS - 1u)]++;
                return;
        }
        transfer_counts_add_blocks(c, record);
        c->transfers++;
        c->latency_ns += record->latency_ns;
        c->min_bytes = MIN(c->min_bytes, size);
        c->max_bytes = MAX(c->max_bytes, size);
        c->sizes[bucket_of(size)]++;
        c->latencies[bucket_of(record->latency_ns)]++;
}

void transfer_counts_add_many(struct transfer_counts *c, const struct transfer_record *sum,
                              uint64_t n)
{
        uint64_t size = sum->bytes / n, latency = sum->latency_ns / n;

        if (sum->result != TRANSFER_OK) {
                c->errors[MIN((unsigned)sum->result, TRANSFER_RESULTS - 1u)] += n;
                return;
        }
        transfer_counts_add_blocks(c, sum);
        c->transfers += n;
        c->latency_ns += sum->latency_ns;
        c->min_bytes = MIN(c->min_bytes, size);
        c->max_bytes = MAX(c->max_bytes, size);
        c->sizes[bucket_of(size)] += n;
        c->latencies[bucket_of(latency)] += n;
}

void transfer_counts_merge(struct transfer_counts *to, const struct transfer_counts *from)
{
        to->transfers += from->transfers;
        to->blocks += from->blocks;
        to->regions += from->regions;
        to->bytes += from->bytes;
        to->device_bytes += from->device_bytes;
        to->latency_ns += from->latency_ns;
        to->min_bytes = MIN(to->min_bytes, from->min_bytes);
        to->max_bytes = MAX(to->max_bytes, from->max_bytes);
        for (unsigned i = 0; i < TRANSFER_RESULTS; i++)
                to->errors[i] += from->errors[i];
        for (unsigned i = 0; i < TRANSFER_BUCKETS; i++) {
                to->sizes[i] += from->sizes[i];
                to->latencies[i] += from->latencies[i];
        }
}

uint64_t transfer_quantile(const uint64_t buckets[static TRANSFER_BUCKETS], double quantile,
                           uint64_t max)
{
        uint64_t n = 0, seen = 0;
        double wanted;

        for (unsigned i = 0; i < TRANSFER_BUCKETS; i++)
                n += buckets[i];
        wanted = quantile * (double)n;
        for (unsigned i = 0; i < TRANSFER_BUCKETS; i++) {
                seen += buckets[i];
                if (buckets[i] > 0 && (double)seen >= wanted)
                        return i == TRANSFER_BUCKETS - 1 ? max : MIN(UINT64_C(1) << i, max);
        }
        return 0;
}

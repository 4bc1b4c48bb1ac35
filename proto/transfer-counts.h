/* SPDX-License-Identifier: Apache-2.0 */
/* The counters of one path, layout and technology in a session, and their arithmetic. The counters
 * are plain numbers with one writer at a time; counters of several writers are merged. */
#pragma once

#include <stdint.h>

#include "transfer.h"

enum {
        TRANSFER_BUCKETS = 48
}; /* number of buckets of a histogram of bytes or ns. Bucket 0: 0 and 1; bucket i: above 2^(i-1),
      at most 2^i; the last one is unbounded */

/* A completed operation, or the totals of several, as its caller reports them. */
struct transfer_record {
        enum transfer_result result;
        uint64_t blocks, regions;     /* 0 if the operation moves a further part of a block that was
                                         counted before */
        uint64_t bytes, device_bytes; /* bytes of payload, and bytes including padding */
        uint64_t size; /* size of the operation in bytes if it is more than `bytes`, otherwise 0 */
        uint64_t latency_ns;
};

struct transfer_counts {
        uint64_t transfers, blocks, regions, bytes, device_bytes;
        uint64_t min_bytes,
                max_bytes;   /* smallest and largest transfer; UINT64_MAX and 0 without one */
        uint64_t latency_ns; /* sum of the operations' latencies */
        uint64_t errors[TRANSFER_RESULTS]; /* number of failed operations by result; the element
                                              TRANSFER_OK is unused */
        uint64_t sizes[TRANSFER_BUCKETS], latencies[TRANSFER_BUCKETS];
};

void transfer_counts_init(struct transfer_counts *c);
/* Counts an operation. If it has failed, only the counter of its result in `errors` increases. */
void transfer_counts_add(struct transfer_counts *c, const struct transfer_record *record);
/* Counts `n` operations, at least one, with totals in `sum`. Sizes and latencies count as `n` times
 * their mean. `sum->size` must be 0. */
void transfer_counts_add_many(struct transfer_counts *c, const struct transfer_record *sum,
                              uint64_t n);
/* Adds the further blocks, regions and bytes of an operation that was counted before. */
void transfer_counts_add_blocks(struct transfer_counts *c, const struct transfer_record *record);
void transfer_counts_merge(struct transfer_counts *to, const struct transfer_counts *from);
/* Returns a quantile (0 to 1) of `buckets`: the upper end of the bucket in which it lies, at most
 * `max`, or `max` for the last bucket; 0 if the histogram is empty. */
uint64_t transfer_quantile(const uint64_t buckets[static TRANSFER_BUCKETS], double quantile,
                           uint64_t max);

/* SPDX-License-Identifier: Apache-2.0 */
/* The counters of one path, layout and technology in a session, and their arithmetic. They are
 * plain numbers with one writer at a time; those of several writers are merged. */
#pragma once

#include <stdint.h>

#include "transfer.h"

enum { TRANSFER_BUCKETS = 48 }; /* i: above 2^(i-1), at most 2^i; the last one: all that is more */

/* What has completed: of one operation. */
struct transfer_record {
        enum transfer_result result;
        uint64_t blocks, regions;     /* 0 of an operation that moves a further part of a block */
        uint64_t bytes, device_bytes; /* payload; with padding */
        uint64_t size; /* of the operation, if it has more bytes than these; 0: it has not */
        uint64_t latency_ns;
};

struct transfer_counts {
        uint64_t transfers, blocks, regions, bytes, device_bytes;
        uint64_t min_bytes, max_bytes;     /* of a transfer; min: UINT64_MAX without one */
        uint64_t latency_ns;               /* their sum */
        uint64_t errors[TRANSFER_RESULTS]; /* by result; TRANSFER_OK: unused */
        uint64_t sizes[TRANSFER_BUCKETS], latencies[TRANSFER_BUCKETS];
};

void transfer_counts_init(struct transfer_counts *c);
/* An operation that has failed is an error of its kind, and adds nothing else. */
void transfer_counts_add(struct transfer_counts *c, const struct transfer_record *record);
/* The same of `n` operations, at least one, whose figures `sum` has together: each is taken for the
 * mean of them. But of an operation's own size: `sum->size` is 0. */
void transfer_counts_add_many(struct transfer_counts *c, const struct transfer_record *sum,
                              uint64_t n);
/* Blocks that an operation moved beside those that it was added with. */
void transfer_counts_add_blocks(struct transfer_counts *c, const struct transfer_record *record);
void transfer_counts_merge(struct transfer_counts *to, const struct transfer_counts *from);
/* Of `buckets`, 0..1: the upper end of the bucket in which it lies, at most `max`; 0: empty. */
uint64_t transfer_quantile(const uint64_t buckets[static TRANSFER_BUCKETS], double quantile,
                           uint64_t max);

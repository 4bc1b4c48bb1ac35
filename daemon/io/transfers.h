/* SPDX-License-Identifier: Apache-2.0 */
/* The recorder: what moved the bytes of chunks, how many operations that took, and how they ended.
 *
 * The loop thread is its only writer and its only reader: every operation comes back to it, so that
 * a counter is a plain number, and nothing is locked, logged or asked of the kernel. Counted is
 * what has completed. One operation is one submission to the device, or one copy; adjacent chunks
 * that were merged into one are several blocks of it. An operation that fails, or whose bytes fail
 * their check, is an error of its kind and adds neither bytes nor blocks.
 *
 * Only chunks count: the table's pages, growth and scrubbing are the store's own. */
#pragma once

#include <stdint.h>

#include "base/histogram.h"
#include "transfer-counts.h"

struct kio_request;

/* What is moved by the daemon: chunks, fully contiguous, in memory and on disk. */
enum { TRANSFERS_READ, TRANSFERS_WRITE, TRANSFERS_COPY, TRANSFERS_SERIES };

/* Of one path, layout and technology. */
struct transfer_series {
        enum transfer_path path;
        enum transfer_layout layout;
        enum transfer_technology technology;
        uint64_t ops[TRANSFER_RESULTS]; /* TRANSFER_OK: those that moved something */
        uint64_t blocks, bytes;         /* payload */
        uint64_t device_bytes;          /* with the padding */
        uint64_t busy_ns;               /* with at least one in flight, up to the last completion */
        /* Payload bytes of an operation, less one: so a power of two is the last value of its
         * bucket, and "at most 4096" is exact. */
        struct histogram sizes;
        struct histogram latencies; /* ns, of an operation: at the device, or of the copy */
        struct histogram queued;    /* ns, of an operation: from its submission to that */
        /* for busy_ns */
        uint64_t inflight, busy_until_ns;
};

struct transfers {
        struct transfer_series series[TRANSFERS_SERIES];
        /* By series, what has completed since its reader took it last; NULL: there is no reader. */
        struct transfer_counts *window;
};

void transfers_init(struct transfers *t, enum transfer_technology of_the_device);
/* A request with a payload has been submitted; is complete. */
void transfers_begin(struct transfers *t, const struct kio_request *req);
void transfers_end(struct transfers *t, const struct kio_request *req);

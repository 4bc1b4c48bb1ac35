/* SPDX-License-Identifier: Apache-2.0 */
/* Counters of transfers of chunks: their operations by technology and result, their bytes, sizes
 * and latencies.
 *
 * The loop thread is the only writer and reader, since every operation returns to it; the
 * counters are therefore plain numbers, without locks or system calls. A transfer counts when it
 * completes. One operation is one submission to the device, or one copy; adjacent chunks that
 * were merged count as several blocks of one operation. An operation that fails, or whose bytes
 * fail their check, is an error of its kind and adds neither bytes nor blocks.
 *
 * Only chunks count: table pages, growth and scrubbing are counted by the store. */
#pragma once

#include <stdint.h>

#include "base/histogram.h"
#include "transfer-counts.h"

struct kio_request;

/* The kinds of transfer that the daemon performs. Chunks are always contiguous, in memory and on
 * disk. */
enum { TRANSFERS_READ, TRANSFERS_WRITE, TRANSFERS_COPY, TRANSFERS_SERIES };

/* Counters for the transfers with one pair of source and target (`path`), one arrangement of a
 * chunk in memory (`layout`) and one means of moving the bytes (`technology`). */
struct transfer_series {
        enum transfer_path path;
        enum transfer_layout layout;
        enum transfer_technology technology;
        uint64_t ops[TRANSFER_RESULTS]; /* operations by result; TRANSFER_OK counts those that
                                         * moved bytes */
        uint64_t blocks, bytes;         /* chunks, and their payload bytes */
        uint64_t device_bytes;          /* bytes that the device transferred, with padding */
        uint64_t busy_ns;               /* time with at least one operation in flight, up to the
                                         * last completion */
        /* Payload bytes of each operation, minus one: a power of two is then the last value of
         * its bucket, and "at most 4096" is exact. */
        struct histogram sizes;
        struct histogram latencies; /* ns per operation, at the device or copying */
        struct histogram queued;    /* ns per operation, from submission until the device or the
                                     * copy began */
        /* Used to compute busy_ns. */
        uint64_t inflight, busy_until_ns;
};

struct transfers {
        struct transfer_series series[TRANSFERS_SERIES];
        /* Transfers completed since the reader last took them, by series; NULL: no reader. */
        struct transfer_counts *window;
};

void transfers_init(struct transfers *t, enum transfer_technology of_the_device);
/* Count a request with a payload, when it is submitted and when it has completed. */
void transfers_begin(struct transfers *t, const struct kio_request *req);
void transfers_end(struct transfers *t, const struct kio_request *req);

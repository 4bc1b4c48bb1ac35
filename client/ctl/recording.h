/* SPDX-License-Identifier: Apache-2.0 */
/* From the entries of a recording (struct wire_record_entry) to the lines of a trace.
 *
 * A line is one use of a chain: the blocks that a client got, and those that it put behind them.
 * The parts of it come in several entries, with those of other requests in between. An entry goes
 * on with the latest line of its session that ends with the entry's parent; one without such a line
 * begins another. A line stays open for two minutes, and lines come out in the order in which they
 * began. What is open is bounded: beyond that, the oldest comes out earlier. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "wire.h"

enum {
        RECORDING_OPEN_MS = 120 * 1000,
        RECORDING_OPEN_LINES = 4096,
        RECORDING_OPEN_IDS = 4 * 1024 * 1024,
};

struct recording_line;

struct recording {
        FILE *out;
        uint64_t max_bytes;               /* 0: any number */
        uint64_t requests, blocks, bytes; /* that came out */
        uint64_t dropped;                 /* blocks, since the trace was full */
        bool is_full;
        uint64_t last_ms;
        struct recording_line *lines[RECORDING_OPEN_LINES]; /* a ring */
        size_t first, n_open;
        uint64_t open_ids;
};

/* The next entry, with its `count` ids. 0, -ENOMEM. What cannot be written shows in `out`. */
int recording_add(struct recording *r, const struct wire_record_entry *entry, const uint64_t *ids);
/* All lines come out. */
void recording_flush(struct recording *r);

/* SPDX-License-Identifier: Apache-2.0 */
/* Converts the entries of a recording (struct wire_record_entry) to the lines of a trace.
 *
 * A line is one use of a chain: the blocks that a client got, followed by those that it put. Its
 * parts arrive in several entries, interleaved with those of other requests. An entry continues the
 * latest line of its session that ends with the entry's parent, or else begins a new line. A line
 * stays open for two minutes, and lines are written in the order in which they began. The numbers
 * of open lines and of their ids are bounded; above them, the oldest line is written early. */
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
        uint64_t max_bytes;               /* maximum bytes of the trace; 0: unlimited */
        uint64_t requests, blocks, bytes; /* requests, blocks and bytes written so far */
        uint64_t dropped; /* number of blocks dropped because the trace had reached max_bytes */
        bool is_full;
        uint64_t last_ms;
        struct recording_line *lines[RECORDING_OPEN_LINES]; /* ring buffer of the open lines, which
                                                               begins at `first` */
        size_t first, n_open;
        uint64_t open_ids;
};

/* Adds an entry with its `count` ids. Returns 0 or -ENOMEM. The caller checks `out` for write
 * errors. */
int recording_add(struct recording *r, const struct wire_record_entry *entry, const uint64_t *ids);
/* Writes all open lines, or drops them if the trace is full. */
void recording_flush(struct recording *r);

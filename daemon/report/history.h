/* SPDX-License-Identifier: Apache-2.0 */
/* The last fifteen minutes in samples of five seconds, for the page at "/" and as JSON: the growth
 * of counters in each interval, and latency quantiles of that interval alone. The history does not
 * survive a restart; Prometheus keeps longer ones.
 *
 * Loop thread. A ring of fixed size and the counters of the last sample: nothing is allocated, and
 * nothing can fail. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/histogram.h"

enum {
        HISTORY_INTERVAL_S = 5,
        HISTORY_SPAN_S = 15 * 60,
        HISTORY_SAMPLES = HISTORY_SPAN_S / HISTORY_INTERVAL_S,
};

/* Counters since startup. */
enum history_counter {
        HISTORY_LOOKUP_KEYS, /* keys of lookups that the daemon or clients answered */
        HISTORY_LOOKUP_FOUND,
        HISTORY_GET_KEYS,
        HISTORY_GET_FOUND,
        HISTORY_GET_BYTES,
        HISTORY_PUT_BYTES,
        HISTORY_DISK_READ_BYTES,
        HISTORY_DISK_WRITTEN_BYTES,
        HISTORY_EVICTIONS_MEMORY,
        HISTORY_EVICTIONS_DISK,
        HISTORY_COUNTERS
};
/* Latencies of keys: of gets that found the key in memory, on disk or on the shared tier by a
 * message to the daemon, and of puts. */
enum history_latency { HISTORY_GET, HISTORY_PUT, HISTORY_LATENCIES };

struct history_counters {
        uint64_t counters[HISTORY_COUNTERS];
        struct histogram latency[HISTORY_LATENCIES]; /* histograms of latencies in ns */
};

struct history_sample {
        uint64_t end_ns, span_ns; /* monotonic end of the interval, and its length */
        uint64_t counted[HISTORY_COUNTERS];
        /* Quantiles of the operations that ended in the interval; 0: none did. */
        uint64_t p50_ns[HISTORY_LATENCIES], p99_ns[HISTORY_LATENCIES];
};

struct history {
        struct history_sample samples[HISTORY_SAMPLES];
        unsigned next, n;
        bool begun; /* a first call has set `last` */
        uint64_t last_ns, due_ns;
        struct history_counters last;
};

/* Returns whether a sample is due; the caller then collects the counters and calls
 * history_add(). */
bool history_is_due(const struct history *h, uint64_t now_ns);
/* Adds a sample. The first call only records the counters. A counter that has decreased, as a
 * store's may when a volume is resumed, counts as unchanged. If the clock has gone back, all
 * samples are dropped. */
void history_add(struct history *h, uint64_t now_ns, const struct history_counters *now);

/* Returns the i-th sample of the last fifteen minutes, from the oldest, or NULL if there are
 * fewer. */
const struct history_sample *history_get(const struct history *h, uint64_t now_ns, unsigned i);
/* Returns whether `sample` follows the previous one without a gap, such as a stopped process
 * causes. */
bool history_is_joined(const struct history_sample *before, const struct history_sample *sample);
/* Returns whether the sample covers more than two intervals, because samples before it were
 * missed. */
bool history_is_gap(const struct history_sample *sample);
/* Returns the growth of a counter over the samples of the last fifteen minutes. */
uint64_t history_sum(const struct history *h, uint64_t now_ns, enum history_counter counter);
/* Returns the share of requested keys that were found, of lookups or, if there were none, of gets.
 * -1: no keys were requested. */
double history_hit_ratio(const uint64_t counted[static HISTORY_COUNTERS]);

/* Prints the history as one JSON object. */
void history_print(const struct history *h, uint64_t now_ns, FILE *out);

/* SPDX-License-Identifier: Apache-2.0 */
/* The last fifteen minutes in samples of five seconds, for the page at "/" and as JSON: what was
 * counted in each of them, and quantiles of the latencies of that time alone. It survives no
 * restart; what is to be kept longer is Prometheus's.
 *
 * Loop thread. Owns nothing but itself: a ring of fixed size, and the counters as of the last
 * sample; nothing is allocated, and nothing fails. */
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

/* Counters, all of them since startup. */
enum history_counter {
        HISTORY_LOOKUP_KEYS, /* by whomever they were answered */
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
enum history_latency { HISTORY_GET, HISTORY_PUT, HISTORY_LATENCIES };

struct history_counters {
        uint64_t counters[HISTORY_COUNTERS];
        struct histogram latency[HISTORY_LATENCIES]; /* ns */
};

struct history_sample {
        uint64_t end_ns, span_ns; /* monotonic; it covers the span up to its end */
        uint64_t counted[HISTORY_COUNTERS];
        /* Of what ended in it; 0: nothing did. */
        uint64_t p50_ns[HISTORY_LATENCIES], p99_ns[HISTORY_LATENCIES];
};

struct history {
        struct history_sample samples[HISTORY_SAMPLES];
        unsigned next, n;
        bool begun; /* `last` is set */
        uint64_t last_ns, due_ns;
        struct history_counters last;
};

/* True if a sample is to be taken; then the counters are collected, and given to history_add(). */
bool history_is_due(const struct history *h, uint64_t now_ns);
/* The first call only notes where the counters are. A counter that has fallen, as that of a store
 * whose volume was resumed may, has counted nothing. If the clock has gone back, all samples are
 * dropped. */
void history_add(struct history *h, uint64_t now_ns, const struct history_counters *now);

/* The i-th of those that end in the last fifteen minutes, the oldest is 0; NULL: there is none. */
const struct history_sample *history_get(const struct history *h, uint64_t now_ns, unsigned i);
/* It follows the one before it without a gap, such as that of a process that was stopped. */
bool history_is_joined(const struct history_sample *before, const struct history_sample *sample);
/* Long enough for several samples to have been due. */
bool history_is_gap(const struct history_sample *sample);
/* What was counted in all of them. */
uint64_t history_sum(const struct history *h, uint64_t now_ns, enum history_counter counter);
/* The part of the keys asked for that was there: of lookups, or, while there were none, of gets.
 * -1: none were asked for. */
double history_hit_ratio(const uint64_t counted[static HISTORY_COUNTERS]);

/* One JSON object. */
void history_print(const struct history *h, uint64_t now_ns, FILE *out);

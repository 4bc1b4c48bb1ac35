/* SPDX-License-Identifier: Apache-2.0 */
/* What follows from the counters of a session: averages, rates, quantiles; and the counters of a
 * path and layout, whatever moved the bytes. Pure functions. */
#pragma once

#include "snapshot.h"

enum { FIGURES_QUANTILES = 5 };
extern const struct figures_quantile {
        const char *name; /* "p99" */
        double quantile;
} figures_quantiles[FIGURES_QUANTILES];

struct figures {
        double transfers_per_block;  /* fragmentation: 1 is one transfer for each block */
        double regions_per_transfer; /* coalescing: all regions of a block at best */
        double mean_bytes;           /* of a transfer */
        double rate;                 /* bytes a second while at least one was in flight */
        double block_rate;           /* likewise */
        double wall_rate;            /* bytes a second of the time enabled */
        double mean_latency_secs;
        double latency_secs[FIGURES_QUANTILES]; /* the upper end of a bucket of a power of two */
        uint64_t errors;
};

/* 0 wherever nothing can be divided by. */
void figures_of(const struct snapshot_metric *m, double enabled_secs, struct figures *ret);

/* The counters of a path and layout: of all technologies. busy_secs is their sum, which counts a
 * second twice in which two of them moved something. */
struct figures_group {
        struct snapshot_metric sum; /* technology: that of the first */
        struct figures figures;
};
/* In the order of the metrics. `ret` has room for as many as there are metrics. */
size_t figures_groups(const struct snapshot *s, struct figures_group *ret);

/* `a` / `b`; 0 if b is. */
double figures_ratio(double a, double b);

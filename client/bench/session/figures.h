/* SPDX-License-Identifier: Apache-2.0 */
/* Derives averages, rates and quantiles from the counters of a session, and sums counters over
 * technologies. Pure functions. */
#pragma once

#include "snapshot.h"

enum { FIGURES_QUANTILES = 5 };
extern const struct figures_quantile {
        const char *name; /* such as "p99" */
        double quantile;
} figures_quantiles[FIGURES_QUANTILES];

struct figures {
        double transfers_per_block;  /* number of transfers for each block: a measure of
                                        fragmentation, at best 1 */
        double regions_per_transfer; /* number of regions in each transfer: a measure of coalescing,
                                        at best all regions of a block */
        double mean_bytes;           /* mean size of a transfer */
        double rate;                 /* bytes per second while at least one transfer was in
                                        flight */
        double block_rate; /* blocks per second while at least one transfer was in flight */
        double wall_rate;  /* bytes per second while the session was enabled */
        double mean_latency_secs;
        double latency_secs[FIGURES_QUANTILES]; /* quantiles, in the order of figures_quantiles, s;
                                                   each is the upper bound of its histogram bucket
                                                 */
        uint64_t errors;
};

/* Computes the figures; a quotient with divisor 0 is 0. */
void figures_of(const struct snapshot_metric *m, double enabled_secs, struct figures *ret);

/* The counters of a path and layout, summed over technologies. busy_secs is also summed, so that
 * time in which two technologies were busy counts twice. */
struct figures_group {
        struct snapshot_metric sum; /* `technology` is that of the first metric in the sum */
        struct figures figures;
};
/* Groups the metrics of a session, in their order. `ret` has room for as many groups as there are
 * metrics. Returns the number of groups. */
size_t figures_groups(const struct snapshot *s, struct figures_group *ret);

/* Returns `a` / `b`, or 0 if `b` is 0. */
double figures_ratio(double a, double b);

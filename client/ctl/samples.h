/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the daemon's page of metrics (the Prometheus text format) into a list of samples, and
 * computes changes between two pages. Pure functions. Lines that are not samples are skipped, so
 * that pages of newer daemons and truncated pages are read as far as possible. */
#pragma once

#include <stddef.h>

#include "cleanup.h"

struct sample {
        const char *name;  /* name of the metric, such as "kvcache_hits_total" */
        const char *label; /* name of the first label, such as "tier"; "": none */
        const char *value; /* value of the label `label`, such as "memory"; "": none */
        const char *le;    /* upper bound of a histogram's bucket; "": not a bucket */
        double number;
};

struct samples {
        char *text; /* the page; names and values point into it */
        struct sample *list;
        size_t n;
};

/* Parses `text`, which the samples own from then on, or which is freed on failure. Returns 0 or
 * -ENOMEM. */
int samples_parse(char *text, struct samples *ret);
void samples_fini(struct samples *s);

/* Finds a sample. `value` is the value of the first label; "" selects a sample without label,
 * and NULL any sample. Returns NULL if there is none. */
const struct sample *samples_find(const struct samples *s, const char *name, const char *value);
/* Returns the value of the sample that samples_find() finds, or NAN if there is none. */
double samples_number(const struct samples *s, const char *name, const char *value);

/* Returns the growth of a counter from `before` to `now`, which may be the same page. Returns
 * NAN if one of the pages lacks the counter, if its value fell, or if `before` is NULL. */
double samples_growth(const struct samples *now, const struct samples *before, const char *name,
                      const char *value);
/* Returns the sum of the growth of all samples with this name whose growth is known; NAN if there
 * are none. */
double samples_growth_sum(const struct samples *now, const struct samples *before,
                          const char *name);
/* Returns an upper bound of the quantile (0 to 1) of the samples that were added to a histogram
 * from `before` to `now`: the upper edge of the bucket that contains the quantile. Returns NAN
 * if no samples were added, if `before` is NULL, or if the quantile is above the largest finite
 * edge; only in the last case sets *ret_above, to that edge. */
double samples_quantile(const struct samples *now, const struct samples *before, const char *name,
                        const char *value, double quantile, double *ret_above);

/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the daemon's page of metrics (the Prometheus text format) into a list of samples, and
 * computes changes between two pages. Pure functions. Lines that are not samples are skipped, so
 * that pages of newer daemons and truncated pages are read as far as possible. */
#pragma once

#include <stddef.h>

#include "cleanup.h"

struct sample {
        const char *name;  /* "kvcache_hits_total" */
        const char *label; /* name of the first label, such as "tier"; "": none */
        const char *value; /* "memory" */
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

/* Finds a sample. `value`: of the first label; "": a sample without label; NULL: any sample.
 * Returns NULL if there is none. */
const struct sample *samples_find(const struct samples *s, const char *name, const char *value);
/* Returns the number of the sample that samples_find() finds, or NAN. */
double samples_number(const struct samples *s, const char *name, const char *value);

/* Returns by how much a counter grew from `before` to `now`, which may be the same page. Returns
 * NAN if one of them lacks it, if it fell, or if `before` is NULL. */
double samples_growth(const struct samples *now, const struct samples *before, const char *name,
                      const char *value);
/* Returns the growth of all samples of that name together. */
double samples_growth_sum(const struct samples *now, const struct samples *before,
                          const char *name);
/* Returns the upper edge of the bucket that has the quantile (0 to 1) of the samples added to a
 * histogram from `before` to `now`: no more is known. NAN: none were added, or the quantile is
 * above *ret_above, the largest edge; otherwise, *ret_above is untouched. */
double samples_quantile(const struct samples *now, const struct samples *before, const char *name,
                        const char *value, double quantile, double *ret_above);

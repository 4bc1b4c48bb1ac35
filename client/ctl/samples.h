/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's page of metrics (the Prometheus text format), read back as a list of samples, and
 * what two pages say of the time between them. Pure functions. A line that is no sample is skipped:
 * the page of a newer daemon, and one that is cut short, are read as far as they are understood. */
#pragma once

#include <stddef.h>

#include "cleanup.h"

struct sample {
        const char *name;  /* "kvcache_hits_total" */
        const char *label; /* of the first label, "tier"; "": there is none */
        const char *value; /* "memory" */
        const char *le;    /* upper edge of a histogram's bucket; "": it is none */
        double number;
};

struct samples {
        char *text; /* the page; names and values point into it */
        struct sample *list;
        size_t n;
};

/* Takes `text`, which is freed with the samples, and in any case. 0; -ENOMEM. */
int samples_parse(char *text, struct samples *ret);
void samples_fini(struct samples *s);

/* `value`: of the first label; "": of a sample without one; NULL: of any. NULL: there is none. */
const struct sample *samples_find(const struct samples *s, const char *name, const char *value);
/* Of samples_find(); NAN: there is none. */
double samples_number(const struct samples *s, const char *name, const char *value);

/* By how much a counter grew from `before` to `now`, which may be the same page; NAN if one of them
 * lacks it, if it fell, or if `before` is NULL. */
double samples_growth(const struct samples *now, const struct samples *before, const char *name,
                      const char *value);
/* The same of all samples of that name together. */
double samples_growth_sum(const struct samples *now, const struct samples *before,
                          const char *name);
/* The quantile (0 to 1) of what was added to a histogram from `before` to `now`, interpolated
 * within its bucket; beyond the last edge, that edge. NAN: nothing was added. `name` goes without
 * "_bucket". */
double samples_quantile(const struct samples *now, const struct samples *before, const char *name,
                        const char *value, double quantile);

/* SPDX-License-Identifier: Apache-2.0 */
/* Plots as SVG within HTML: lines over the last minutes, and a bar of parts of a limit. Colours
 * come from the style of the page, by class; a line is also told from another by its dashes, and
 * what a plot shows is in its label, for people who do not see it. Any thread; keeps nothing,
 * cannot fail.
 */
#pragma once

#include <stdbool.h>
#include <stdio.h>

enum { PLOT_LINES = 2 };

enum plot_unit {
        PLOT_BYTES_PER_SECOND,
        PLOT_COUNT,
        PLOT_RATIO,   /* 0 to 1, of a fixed axis */
        PLOT_SECONDS, /* on a logarithmic axis */
};

struct plot {
        const char *title; /* HTML */
        double sum;        /* of what it counts in that time, beside the title; not finite: none */
        enum plot_unit unit;
        double span_s; /* of the axis of time, up to now */
        unsigned n;    /* points of each line, the oldest first */
        const double *ages_s;
        const bool *joined; /* to the point before it; false: a gap */
        struct plot_line {
                const char *name;
                const double *values; /* not finite, or less than 0: none */
        } lines[PLOT_LINES];
        unsigned n_lines;
        /* A line whose last point is older has no value now. */
        double current_s;
};

/* A <figure>: title, legend with the values now and at most, and the plot. */
void plot_print(FILE *out, const struct plot *plot);

/* How much of `limit` is `live`, and `reserved`, of which live is a part. An <svg> with a label;
 * empty if there is no limit. */
void plot_bar(FILE *out, double live, double reserved, double limit);

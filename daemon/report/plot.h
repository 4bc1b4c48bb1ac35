/* SPDX-License-Identifier: Apache-2.0 */
/* Plots as SVG within HTML: lines over the last minutes, and a bar with parts of a limit. Colours
 * come from the style of the page, by class. Lines also differ by their dashes, and each plot has a
 * label in words, for people who cannot see it. Any thread; stateless, cannot fail. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

enum { PLOT_LINES = 2 };

enum plot_unit {
        PLOT_BYTES_PER_SECOND,
        PLOT_BYTES,
        PLOT_COUNT,
        PLOT_RATIO,   /* 0 to 1, on a fixed axis */
        PLOT_SECONDS, /* edges of buckets, shown as "≤1.2 ms", on a logarithmic axis */
};

struct plot {
        const char *title; /* title of the plot, as HTML */
        double sum;        /* total over the time shown, printed beside the title unless it is not
                            * finite */
        enum plot_unit unit;
        double span_s; /* length of the time axis, which ends now */
        unsigned n;    /* points per line, the oldest first */
        const double *ages_s;
        const bool *joined; /* whether each point is connected to the previous one; false: there is
                             * a gap */
        struct plot_line {
                const char *name;
                const double *values; /* values of the points; a value that is negative or not
                                       * finite is left out */
        } lines[PLOT_LINES];
        unsigned n_lines;
        /* Age in seconds beyond which a line's last point is not a current value. */
        double current_s;
};

/* Prints a <figure> with title, legend (current and extreme values) and plot. */
void plot_print(FILE *out, const struct plot *plot);

/* Prints an <svg> bar of `limit` with `live` and `reserved`, which includes live, and a label.
 * Prints nothing if one of the three is negative or not finite (NAN: missing), or if the limit is
 * 0. */
void plot_bar(FILE *out, double live, double reserved, double limit);

/* SPDX-License-Identifier: Apache-2.0 */
/* Charts as SVG: panels one below the other, each with groups of bars and its own axis, or with
 * lines over a shared axis. The SVG is self-contained: system fonts, and colours for light and dark
 * pages. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum { CHART_SERIES = 5, CHART_GREY = 3 };

struct chart_bar {
        const char *group; /* heading, printed if it differs from that of the previous bar */
        const char *label;
        unsigned series; /* index of the series, which determines the colour; below CHART_SERIES */
        double value;
        char text[40]; /* text at the end of the bar */
};

struct chart_point {
        double x, y;      /* 0 or more */
        const char *mark; /* label on the x axis */
        char text[48];    /* tooltip */
};

struct chart_line {
        unsigned series;
        struct chart_point *points; /* sorted by x */
        size_t n;
};

struct chart_panel {
        const char *title, *unit; /* `unit` is that of the axis of the values */
        struct chart_bar *bars;   /* NULL: the panel has lines */
        size_t n;
        const struct chart_line *lines;
        size_t n_lines;
        const char *x_title; /* title of the x axis of a panel with lines; `unit` is that of the y
                                axis */
        bool is_linear;      /* the x axis is never logarithmic */
};

struct chart {
        const char *title, *subtitle;
        const char *series[CHART_SERIES]; /* text of each series in the legend; NULL: no panel uses
                                             the series */
        bool is_line[CHART_SERIES], is_dashed[CHART_SERIES];
        const struct chart_panel *panels;
        size_t n;
};

void chart_svg(const struct chart *chart, FILE *out);
/* Writes the panels that have lines in characters, 80 columns wide, for a terminal. */
void chart_text(const struct chart *chart, FILE *out);
/* Writes a page with the chart and below it `text` (may be NULL) in fixed width. */
void chart_html(const struct chart *chart, const char *text, FILE *out);

/* --- for the two ways of drawing lines --- */

/* Returns the distance of a panel's grid lines. */
double chart_grid_step(const struct chart_panel *p);
/* Finds the ends of a panel's axes, and whether the x axis is logarithmic. The y axis begins at
 * 0. */
void chart_limits(const struct chart_panel *p, double *ret_least_x, double *ret_most_x,
                  double *ret_most_y, bool *ret_is_log);

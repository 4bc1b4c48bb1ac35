/* SPDX-License-Identifier: Apache-2.0 */
/* Charts as SVG: panels one below the other, each with groups of bars and an axis of its own, or
 * with lines over an axis that they share. The SVG needs nothing from outside: system fonts, and
 * colours for a light and a dark page. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum { CHART_SERIES = 5, CHART_GREY = 3 };

struct chart_bar {
        const char *group; /* a heading, where it differs from that of the bar before */
        const char *label;
        unsigned series; /* the colour: below CHART_SERIES */
        double value;
        char text[40]; /* at the end of the bar */
};

struct chart_point {
        double x, y;      /* 0 or more */
        const char *mark; /* where it is on the x axis */
        char text[48];    /* shown when it is pointed at */
};

struct chart_line {
        unsigned series;
        struct chart_point *points; /* x ascending */
        size_t n;
};

struct chart_panel {
        const char *title, *unit; /* of the axis */
        struct chart_bar *bars;   /* or lines */
        size_t n;
        const struct chart_line *lines;
        size_t n_lines;
        const char *x_title; /* with lines; `unit` is that of y */
};

struct chart {
        const char *title, *subtitle;
        const char *series[CHART_SERIES]; /* the legend; NULL: is in no panel */
        bool is_line[CHART_SERIES], is_dashed[CHART_SERIES];
        const struct chart_panel *panels;
        size_t n;
};

void chart_svg(const struct chart *chart, FILE *out);
/* A page around it: the chart, and after that `text` in fixed width, which may be NULL. */
void chart_html(const struct chart *chart, const char *text, FILE *out);

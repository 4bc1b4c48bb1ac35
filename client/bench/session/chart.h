/* SPDX-License-Identifier: Apache-2.0 */
/* Bar charts as SVG: panels one below the other, each with groups of bars and an axis of its own.
 * The SVG needs nothing from outside: system fonts, and colours for a light and a dark page. */
#pragma once

#include <stddef.h>
#include <stdio.h>

enum { CHART_SERIES = 4 };

struct chart_bar {
        const char *group; /* a heading, where it differs from that of the bar before */
        const char *label;
        unsigned series; /* the colour: below CHART_SERIES */
        double value;
        char text[40]; /* at the end of the bar */
};

struct chart_panel {
        const char *title, *unit; /* of the axis */
        struct chart_bar *bars;
        size_t n;
};

struct chart {
        const char *title, *subtitle;
        const char *series[CHART_SERIES]; /* the legend; NULL: is in no bar */
        const struct chart_panel *panels;
        size_t n;
};

void chart_svg(const struct chart *chart, FILE *out);
/* A page around it: the chart, and after that `text` in fixed width, which may be NULL. */
void chart_html(const struct chart *chart, const char *text, FILE *out);

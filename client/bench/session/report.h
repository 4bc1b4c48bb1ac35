/* SPDX-License-Identifier: Apache-2.0 */
/* A session for people and for programs: text, JSON, CSV, and the chart as SVG or in a page of
 * HTML. The order is that of the snapshot, numbers do not depend on the locale, and the text is
 * ASCII with one figure a line, so that `diff -u` of two reports shows what differs. */
#pragma once

#include <stdio.h>

#include "snapshot.h"

enum report_format { REPORT_TEXT, REPORT_JSON, REPORT_CSV, REPORT_SVG, REPORT_HTML };

struct report_options {
        enum report_format format;
        bool no_clock;    /* nothing that changes while the session is idle */
        bool one_line;    /* JSON without line ends */
        int path, layout; /* these only; -1: all */
};

/* Into `out`. 0, -ENOMEM. */
int session_report(const struct snapshot *s, const struct report_options *options, FILE *out);

/* How much it has counted, in a few lines, or as an object in one. 0, -ENOMEM. */
int session_status_print(const struct snapshot *s, bool json, FILE *out);

/* --- inside the report --- */

/* What a text from outside may be in a report: printable ASCII. */
void report_ascii(char *text);
void report_head_line(FILE *out, const char *label, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
void session_report_text(const struct snapshot *s, const struct report_options *o, FILE *out);
int session_report_chart(const struct snapshot *s, const struct report_options *o, FILE *out);

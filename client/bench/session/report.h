/* SPDX-License-Identifier: Apache-2.0 */
/* Formats a session for people and programs: text, JSON, CSV, and a chart as SVG or in an HTML
 * page. The order is that of the snapshot, numbers are independent of the locale, and the text is
 * ASCII with one figure per line, so that `diff -u` of two reports shows their differences. */
#pragma once

#include <stdio.h>

#include "snapshot.h"

enum report_format { REPORT_TEXT, REPORT_JSON, REPORT_CSV, REPORT_SVG, REPORT_HTML };

struct report_options {
        enum report_format format;
        bool no_clock;    /* omit figures that change while the session is idle */
        bool one_line;    /* JSON without line breaks */
        int path, layout; /* report only this path and this layout; -1: all */
};

/* Writes the report. Returns 0 or -ENOMEM. */
int session_report(const struct snapshot *s, const struct report_options *options, FILE *out);

/* Prints totals of a session, in a few lines, or as a JSON object in one. Returns 0 or -ENOMEM. */
int session_status_print(const struct snapshot *s, bool json, FILE *out);

/* --- internal to the report --- */

/* Replaces everything but printable ASCII in a foreign text by '?'. */
void report_ascii(char *text);
void report_head_line(FILE *out, const char *label, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
void session_report_text(const struct snapshot *s, const struct report_options *o, FILE *out);
int session_report_chart(const struct snapshot *s, const struct report_options *o, FILE *out);

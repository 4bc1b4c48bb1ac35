/* SPDX-License-Identifier: Apache-2.0 */
/* Text and numbers as HTML: every text is escaped here, and a number that is rounded has its exact
 * value beside it. Any thread; keeps nothing, cannot fail. */
#pragma once

#include <stdint.h>
#include <stdio.h>

/* For content and for values of attributes within quotes. Characters that HTML does not permit, or
 * that turn the direction of text, are replaced by U+FFFD. NULL: nothing. */
void html_text(FILE *out, const char *text);
/* The same, at most `most` characters, and then an ellipsis. */
void html_text_short(FILE *out, const char *text, unsigned most);
/* "1.5 GiB", with the exact number; "–" if it is none. */
void html_bytes(FILE *out, double bytes);
/* "850 µs", "1.5 h" */
void html_seconds(FILE *out, double s);
/* Whole numbers with narrow spaces between thousands; "–" if it is none. */
void html_number(FILE *out, double x);
/* "98.5 %" of 0.985. */
void html_ratio(FILE *out, double ratio);
/* "2026-01-31 12:00:00 UTC" */
void html_time(FILE *out, double unix_ms);

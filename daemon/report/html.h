/* SPDX-License-Identifier: Apache-2.0 */
/* Prints text and numbers as HTML. All text is escaped. Bytes, whole numbers and ratios carry their
 * value as an attribute, since their text is rounded or grouped. Any thread; stateless, cannot
 * fail. */
#pragma once

#include <stdint.h>
#include <stdio.h>

/* Prints text for element content or for a quoted attribute value. Characters that HTML forbids or
 * that change the direction of text become U+FFFD. NULL prints nothing. */
void html_text(FILE *out, const char *text);
/* Prints at most `most` characters, followed by an ellipsis if the text is longer. */
void html_text_short(FILE *out, const char *text, unsigned most);
/* Prints "1.5 GiB" or "−1.5 GiB" with the exact number in its tooltip, or "–" if it is not finite
 * or its absolute value does not fit 64 bits. */
void html_bytes(FILE *out, double bytes);
/* Prints "850 µs" or "1.5 h", or "–" if it is not finite. */
void html_seconds(FILE *out, double s);
/* Prints a whole number with narrow spaces between thousands, any other, or one above 1e15, with
 * four digits, or "–" if it is not finite. */
void html_number(FILE *out, double x);
/* Prints 0.985 as "98.5 %", or "–" if it is not finite. */
void html_ratio(FILE *out, double ratio);
/* Prints "2026-01-31 12:00:00 UTC"; "never" if the time is not positive; the number itself if it is
 * below a second or too large. */
void html_time(FILE *out, double unix_ms);

/* SPDX-License-Identifier: Apache-2.0 */
/* Colour for output that a person should notice first: degraded, failed, or near a limit. The
 * words carry all information also without colour. By default, colour is used on a terminal that
 * supports it ($TERM is set and not "dumb"), unless $NO_COLOR is set and not empty (no-color.org);
 * --color overrides that. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

enum color { COLOR_NONE, COLOR_WARNING, COLOR_BAD };

#define COLOR_VALUES "auto always never"

/* Sets the mode of --color for the whole process. Returns false if `when` is not one of
 * COLOR_VALUES. */
bool color_set(const char *when);
/* Returns the option that gives another tool the same mode, or NULL for the default. */
const char *color_option(void);
/* Returns whether output to this stream is coloured. */
bool color_wanted(FILE *to);
/* Return the escape sequences that begin and end a text of that colour; "" for COLOR_NONE, or if
 * `wanted` is false. */
const char *color_begin(enum color color, bool wanted);
const char *color_end(enum color color, bool wanted);

/* SPDX-License-Identifier: Apache-2.0 */
/* Colour for what a person should see first: what is degraded, failed, or near a limit. It is never
 * the only sign: the words say the same. By default there is some on a terminal that is not a dumb
 * one, unless $NO_COLOR is set (no-color.org); --color overrides that. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

enum color { COLOR_NONE, COLOR_WARNING, COLOR_BAD };

#define COLOR_VALUES "auto always never"

/* Of --color, for the whole process. False: it is none of COLOR_VALUES. */
bool color_set(const char *when);
/* The option that says the same to another tool; NULL: none, it is the default. */
const char *color_option(void);
/* Does what is printed to this stream have colour? */
bool color_wanted(FILE *to);
/* What begins and ends a text of that colour; "" for COLOR_NONE and where none is wanted. */
const char *color_begin(enum color color, bool wanted);
const char *color_end(enum color color, bool wanted);

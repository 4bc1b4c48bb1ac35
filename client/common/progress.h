/* SPDX-License-Identifier: Apache-2.0 */
/* A line on standard error that shows the progress of a command. The line is redrawn in place, and
 * only if standard error is a terminal. One thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct progress {
        bool shown; /* standard error is a terminal */
};

void progress_init(struct progress *p);
/* Shows the progress. `part`: 0 to 1. `tail`: text after the bar, beginning with a space. */
void progress_show(struct progress *p, double part, const char *tail);
/* Clears the line; nothing is shown afterwards. */
void progress_end(struct progress *p);
/* Formats the line of progress_show() for a width of `columns`. */
void progress_format(unsigned columns, double part, const char *tail, char *ret, size_t room);
/* Writes a bar such as "####......", filled to `part` (0 to 1). `ret` has room for `width`
 * characters and a NUL. */
void progress_bar(double part, size_t width, char *ret);

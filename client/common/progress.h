/* SPDX-License-Identifier: Apache-2.0 */
/* A line on standard error that shows the progress of a command. The line is redrawn in place,
 * and only if standard error is a terminal. Only one thread may use it, for one line at a time. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct progress {
        bool shown;      /* standard error is a terminal that can redraw, until progress_end() */
        uint64_t due_ns; /* monotonic time from which progress_note() draws again */
};

void progress_init(struct progress *p);
/* Shows the progress. `part`: 0 to 1. `tail`: text after the bar, beginning with a space. */
void progress_show(struct progress *p, double part, const char *tail);
/* Shows a text in place of the bar. */
void progress_show_text(struct progress *p, const char *text);
/* Shows " 35 %  evicting: 1,234 keys". Call it as often as is convenient: the line appears after a
 * second, so that a quick command shows nothing, and changes at most ten times a second. `noun` has
 * at most 11 letters. */
void progress_note(struct progress *p, double part, const char *doing, uint64_t n,
                   const char *noun);
/* Clears the line of progress, if one is on the terminal, so that other text can be printed.
 * Later calls may show the line again. */
void progress_clear(void);
/* Clears the line; later calls with `p` show nothing. */
void progress_end(struct progress *p);
/* Formats the line of progress_show() for a width of `columns`; without the bar if less than 10
 * characters are left for it. */
void progress_format(unsigned columns, double part, const char *tail, char *ret, size_t room);
/* Writes a bar such as "####......", filled to `part` (0 to 1). `ret` has room for `width`
 * characters and a NUL. */
void progress_bar(double part, size_t width, char *ret);

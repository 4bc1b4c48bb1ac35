/* SPDX-License-Identifier: Apache-2.0 */
/* A line on standard error that shows how far a command is. It is redrawn in place, and only if
 * standard error is a terminal. One thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct progress {
        bool shown; /* is there a terminal */
};

void progress_init(struct progress *p);
/* `part`: 0 to 1. `tail`: the figures after the bar, with a space in front. */
void progress_show(struct progress *p, double part, const char *tail);
/* Wipes the line away; nothing is shown afterwards. */
void progress_end(struct progress *p);
/* The line for so many columns, as progress_show() shows it. */
void progress_format(unsigned columns, double part, const char *tail, char *ret, size_t room);
/* "####......": `part` of `width`, which `ret` has room for with its NUL. */
void progress_bar(double part, size_t width, char *ret);

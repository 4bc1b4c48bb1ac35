/* SPDX-License-Identifier: Apache-2.0 */
/* The beginning that all pages of HTTP share. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

enum { PAGE_RELOAD_S = 10, PAGE_NAME_SHOWN = 80 };

/* The Content-Security-Policy of the pages. */
extern const char page_policy[];

/* Prints the document up to and with <body>, and the pattern that bars are filled with. `subject`
 * and `host` begin the title; one that is NULL or "" is omitted. */
void page_frame_begin(FILE *out, const char *subject, const char *host, bool paused);

/* SPDX-License-Identifier: Apache-2.0 */
/* A section of the status for people. A command takes the members that it knows out of the
 * object and prints them as lines; section_rest() prints the remaining ones, which a newer
 * daemon has added, under their own names. There is one output stream at a time, which the main
 * thread owns. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "color.h"

/* Take a member: remove it from the object and return it. Return false or 0 if there is no member
 * of that type; section_text() also for an empty text, with "" in `ret`. Texts are made safe for a
 * terminal. */
bool section_number(cJSON *object, const char *name, double *ret);
uint64_t section_count(cJSON *object, const char *name);
bool section_text(cJSON *object, const char *name, char *ret, size_t room);
bool section_bool(cJSON *object, const char *name, bool *ret);
/* Takes an object, which the caller deletes. Returns NULL if there is none. */
cJSON *section_object(cJSON *object, const char *name);

/* Directs further output to `out`, with highlighted lines if `colored`. The default is standard
 * output. */
void section_to(FILE *out, bool colored);
FILE *section_out(void);
bool section_colored(void);

/* Prints a blank line and the heading. */
void section_begin(const char *heading);
/* Prints a line with a highlighted label. */
void section_warn(enum color color, const char *label, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
void section_line(const char *label, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Prints a usage such as "1.2 GiB of 4 GiB  [#####...............]  30 %". */
void section_use(const char *label, uint64_t used, uint64_t all);
/* Prints a line for each member that has not been taken, except empty texts. */
void section_rest(const cJSON *object);

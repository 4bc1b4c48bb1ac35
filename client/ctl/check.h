/* SPDX-License-Identifier: Apache-2.0 */
/* Adds checks to the JSON array of a diagnosis (commands doctor and gds). */
#pragma once

#include <cjson/cJSON.h>
#include <stdarg.h>

enum { CHECK_TEXT = 512 };

/* Adds a check {name, VERDICT, found, remedy} to an array. `verdict` is the name of the member
 * with the check's result; the function takes ownership of `value`. `found` is cut to
 * CHECK_TEXT - 1 bytes, and its control characters are replaced, because other users and the daemon
 * can choose parts of it. */
void check_add(cJSON *checks, const char *name, const char *verdict, cJSON *value,
               const char *remedy, const char *format, va_list arguments)
        __attribute__((format(printf, 6, 0)));

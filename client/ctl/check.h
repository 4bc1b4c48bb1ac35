/* SPDX-License-Identifier: Apache-2.0 */
/* The checks of a diagnosis (doctor, gds), in JSON. */
#pragma once

#include <cjson/cJSON.h>
#include <stdarg.h>

enum { CHECK_TEXT = 512 };

/* Adds a check {name, VERDICT, found, remedy} to an array. `verdict` is the name of the member that
 * tells how the check ended; its value is taken over. Control characters in `found`, which other
 * users and the daemon can choose, are replaced. */
void check_add(cJSON *checks, const char *name, const char *verdict, cJSON *value,
               const char *remedy, const char *format, va_list arguments)
        __attribute__((format(printf, 6, 0)));

/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers with units, as messages, the configuration and the tools print and read them. What is
 * printed is rounded; what is read is exact. */
#pragma once

#include <stdint.h>

enum { UNITS_TEXT = 32 };

/* Three digits at most, of which zeros behind the point are left out, and the unit. Returns `ret`,
 * as all here. */
const char *units_short(double value, const char *unit, char ret[static UNITS_TEXT]);
/* "0 B", "512 B", "1.5 KiB", "64 MiB", "10.2 TiB" */
const char *units_bytes(uint64_t bytes, char ret[static UNITS_TEXT]);
/* "250 ms", "1.8 s", "5 min", "2 h" */
const char *units_ms(uint64_t ms, char ret[static UNITS_TEXT]);
/* "1 worker", "2 workers"; `noun` takes an s. */
const char *units_count(uint64_t n, const char *noun, char ret[static UNITS_TEXT]);

/* Decimal digits and nothing else. 0; -EINVAL; -ERANGE: beyond 64 bits. */
int units_parse_count(const char *text, uint64_t *ret);
/* A decimal number and its unit, perhaps with blanks between: "16KiB", "1.5 h". `factor_of` knows
 * how many a unit is, 0 if there is no such unit; "" is none. Zero may stand without a unit in any
 * case. `ret_unit`, if not NULL, gets the unit as written, also on -EINVAL, or NULL if there is no
 * number. 0; -EINVAL, also for a part of what cannot be divided; -ERANGE: beyond 64 bits. */
int units_parse(const char *text, uint64_t (*factor_of)(const char *unit), uint64_t *ret,
                const char **ret_unit);

/* SPDX-License-Identifier: Apache-2.0 */
/* Formats and parses numbers with units for messages, the configuration and the tools. Output is
 * rounded to about three digits. Parsing uses no floating point. */
#pragma once

#include <stdint.h>

enum { UNITS_TEXT = 32 };

/* Formats a value, 0 or more, with its unit. The value is rounded to two decimal places below 10,
 * to one below 100, and to a whole number from 100 on, and has no trailing zeros after the point.
 * Returns `ret`, like all formatting functions here. */
const char *units_short(double value, const char *unit, char ret[static UNITS_TEXT]);
/* Formats bytes: "0 B", "512 B", "1.5 KiB", "64 MiB", "10.2 TiB". */
const char *units_bytes(uint64_t bytes, char ret[static UNITS_TEXT]);
/* Formats a time: "250 ms", "1.8 s", "5 min", "2 h". */
const char *units_ms(uint64_t ms, char ret[static UNITS_TEXT]);
/* Formats a number with its noun, to which it adds an s unless `n` is 1: "1 worker", "2 workers".
 */
const char *units_count(uint64_t n, const char *noun, char ret[static UNITS_TEXT]);

/* Parses decimal digits and nothing else. Returns 0; -EINVAL; -ERANGE if the number exceeds 64
 * bits. */
int units_parse_count(const char *text, uint64_t *ret);
/* Parses a decimal number and its unit, with optional blanks between them: "16KiB", "1.5 h".
 * `factor_of` returns the factor of a unit, or 0 if there is no such unit; "" stands for a missing
 * unit. Zero needs no unit. `ret_unit` (may be NULL) gets the unit as written, also after -EINVAL,
 * or NULL if there is no number or only blanks follow it. Digits after the ninth decimal place are
 * ignored, and the result is rounded down. Returns 0; -EINVAL, also for a fraction of a unit with
 * the factor 1; -ERANGE if the result exceeds 64 bits. */
int units_parse(const char *text, uint64_t (*factor_of)(const char *unit), uint64_t *ret,
                const char **ret_unit);

/* SPDX-License-Identifier: Apache-2.0 */
/* Formats and parses numbers for people: sizes in powers of 1024, counts with separators, times
 * with a fitting unit. Pure functions; texts are NUL-terminated and always fit their buffer. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { HUMAN_BYTES = 40 };

/* Formats a count: "182,790". Returns `ret`. */
const char *human_count(uint64_t n, char ret[static HUMAN_BYTES]);
/* Formats a count with its noun, to which it adds an s: "1 chunk", "182,790 chunks". `noun` has at
 * most 11 letters. */
void human_things(uint64_t n, const char *noun, char ret[static HUMAN_BYTES]);
/* Formats nanoseconds: "850 ns", "3.21 µs", "14 ms", "2.5 s". */
void human_ns(uint64_t ns, char ret[static HUMAN_BYTES]);
/* Formats seconds with at most two units: "4.2 s", "12 min 5 s", "3 d 4 h", "1 d". */
void human_seconds(double seconds, char ret[static HUMAN_BYTES]);
/* Rounds up to two significant digits: 43007 becomes 44000. Returns `value` unchanged if it is 0 or
 * less, or not finite. */
double human_round_up(double value);
/* Formats a ratio: "27.9 %"; "-" if `whole` is 0. */
void human_percent(uint64_t part, uint64_t whole, char ret[static HUMAN_BYTES]);
/* Formats a Unix time as local time: "2024-05-01 13:37:00"; as "N ms" if it is out of range. */
void human_time(uint64_t unix_ms, char ret[static HUMAN_BYTES]);

/* Parses a size: "4096", "16KiB", "16K", "1.5 GiB", "1MB" (a million). Returns 0; -EINVAL if the
 * text is not a size, or the size not a whole number of bytes; -ERANGE if it exceeds 64 bits. */
int human_parse_bytes(const char *text, uint64_t *ret);
/* Parses a number that is finite and not negative. Returns 0 or -EINVAL. */
int human_parse_number(const char *text, double *ret);

/* Parses a time: "90s", "30m", "1.5h", "7d"; a number without a unit is in seconds. `*ret` is
 * finite and not negative. Returns 0 or -EINVAL. */
int human_parse_seconds(const char *text, double *ret);

/* Returns the columns that UTF-8 text takes on a terminal, at one column per code point. */
size_t human_width(const char *text);

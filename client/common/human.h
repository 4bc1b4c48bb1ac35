/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers as people read and write them: sizes in powers of 1024, counts with separators, times
 * with the unit that fits. Pure functions; texts are NUL-terminated and always fit their buffer. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { HUMAN_BYTES = 40 };

/* "182,790". Returns `ret`. */
const char *human_count(uint64_t n, char ret[static HUMAN_BYTES]);
/* "1 chunk", "182,790 chunks"; `noun` takes an s, and is at most 11 letters. */
void human_things(uint64_t n, const char *noun, char ret[static HUMAN_BYTES]);
/* "850 ns", "3.21 µs", "14 ms", "2.5 s" */
void human_ns(uint64_t ns, char ret[static HUMAN_BYTES]);
/* Two units at most: "4.2 s", "12 min 5 s", "3 d 4 h", "1 d". */
void human_seconds(double seconds, char ret[static HUMAN_BYTES]);
/* "27.9 %"; "-" when there is nothing to divide by. */
void human_percent(uint64_t part, uint64_t whole, char ret[static HUMAN_BYTES]);
/* Local time of a Unix time: "2024-05-01 13:37:00". */
void human_time(uint64_t unix_ms, char ret[static HUMAN_BYTES]);

/* "4096", "16KiB", "16K", "1.5 GiB", "1MB" (a million). 0; -EINVAL: not a size; -ERANGE: beyond 64
 * bits. */
int human_parse_bytes(const char *text, uint64_t *ret);
/* A number that is finite and not negative. 0, -EINVAL. */
int human_parse_number(const char *text, double *ret);

/* "90s", "30m", "1.5h", "7d"; without a unit seconds. 0, -EINVAL. */
int human_parse_seconds(const char *text, double *ret);

/* Columns that UTF-8 text takes on a terminal, as far as one code point is one column. */
size_t human_width(const char *text);

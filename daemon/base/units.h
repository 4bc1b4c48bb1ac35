/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers for sentences, as log lines, messages of the configuration and the status page print
 * them: bytes and times with a suitable unit, counts with their noun. config_exact_bytes() prints
 * exact values. */
#pragma once

#include <stdint.h>

enum { UNITS_TEXT = 32 };

/* "0 B", "512 B", "1.5 KiB", "64 MiB", "10.2 TiB": three digits at most, of which zeros behind the
 * point are left out. Returns `ret`. */
const char *units_bytes(uint64_t bytes, char ret[static UNITS_TEXT]);
/* "250 ms", "1.8 s", "5 min", "2 h". */
const char *units_ms(uint64_t ms, char ret[static UNITS_TEXT]);
/* "1 worker", "2 workers"; `noun` takes an s. */
const char *units_count(uint64_t n, const char *noun, char ret[static UNITS_TEXT]);

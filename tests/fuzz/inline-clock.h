/* SPDX-License-Identifier: Apache-2.0 */
/* Time for fuzzers: as the program itself asks for CLOCK_MONOTONIC, it passes by
 * inline_clock_advance_ms() alone, but for 100 ns with each question. Linked with
 * --wrap=clock_gettime. */
#pragma once

#include <stdint.h>

void inline_clock_advance_ms(uint64_t ms);

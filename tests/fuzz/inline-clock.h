/* SPDX-License-Identifier: Apache-2.0 */
/* Time for fuzzers: CLOCK_MONOTONIC advances only by inline_clock_advance_ms() and by 100 ns with
 * each query. Linked with --wrap=clock_gettime. */
#pragma once

#include <stdint.h>

void inline_clock_advance_ms(uint64_t ms);

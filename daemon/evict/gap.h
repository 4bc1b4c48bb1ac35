/* SPDX-License-Identifier: Apache-2.0 */
/* The mean gap between the uses of a chain, in one byte. Private to evict/.
 *
 * The byte counts sixteenths of an octave from 64 ticks on, so that it spans an hour. The mean is
 * one of logarithms and fades: a new gap has a weight of three tenths. */
#pragma once

#include <stdint.h>

enum {
        GAP_UNKNOWN = 0,
        GAP_MOST = UINT8_MAX,
        GAP_TICK_BITS = 20, /* a tick has 2^20 ns */
        GAP_CLASSES = 4,    /* classes of mean gaps: below 10, 20, 40 and 80 s */
};
#define GAP_TICKS_PER_S (1e9 / (1 << GAP_TICK_BITS))

/* Returns the mean after one more gap of `ticks`; `mean` may be GAP_UNKNOWN. A gap below a second
 * does not count, because it lies between parts of one request, or between two engines that process
 * the same prompt. */
uint8_t gap_mean(uint8_t mean, uint64_t ticks);
/* Returns the class of a mean gap, or GAP_CLASSES if the gap is longer or unknown. */
unsigned gap_class(uint8_t mean);
/* Returns the ticks below which the mean gaps of a class lie; `class` is less than GAP_CLASSES. */
uint64_t gap_class_ticks(unsigned class);
/* Returns the seconds that a mean gap stands for; 0 if it is unknown. */
double gap_seconds(uint8_t mean);

/* SPDX-License-Identifier: Apache-2.0 */
/* Implements gap.h. Stateless. */
#include "evict/gap.h"

#include <math.h>

#include "checked.h"

enum {
        PER_OCTAVE = 16,
        FIRST_TICKS = 64, /* ticks of the gap with code 1 */
        /* The code of 10 s: 1 + PER_OCTAVE * log2(10 * GAP_TICKS_PER_S / FIRST_TICKS), rounded. */
        TEN_SECONDS = 117,
};

static uint8_t code_of(uint64_t ticks)
{
        float code = 1 + roundf(PER_OCTAVE *
                                log2f((float)MAX(ticks, (uint64_t)FIRST_TICKS) / FIRST_TICKS));

        return (uint8_t)MIN(code, (float)GAP_MOST);
}

uint8_t gap_mean(uint8_t mean, uint64_t ticks)
{
        unsigned last = code_of(ticks);

        if ((double)ticks < GAP_TICKS_PER_S)
                return mean;
        return (uint8_t)(mean == GAP_UNKNOWN ? last : (7u * mean + 3u * last + 5u) / 10u);
}

unsigned gap_class(uint8_t mean)
{
        if (mean == GAP_UNKNOWN)
                return GAP_CLASSES;
        return mean < TEN_SECONDS ? 0
                                  : MIN(1 + (mean - TEN_SECONDS) / (unsigned)PER_OCTAVE,
                                        (unsigned)GAP_CLASSES);
}

uint64_t gap_class_ticks(unsigned class)
{
        return (uint64_t)(10 * GAP_TICKS_PER_S) << class;
}

double gap_seconds(uint8_t mean)
{
        return mean == GAP_UNKNOWN
                       ? 0
                       : exp2((double)(mean - 1) / PER_OCTAVE) * FIRST_TICKS / GAP_TICKS_PER_S;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Implements gap.h. Stateless. */
#include "evict/gap.h"

#include <math.h>

#include "checked.h"

enum {
        PER_OCTAVE = 16,
        /* The code of 10 s: 1 + PER_OCTAVE * log2(10 * GAP_TICKS_PER_S), rounded. */
        TEN_SECONDS = 118,
};

static uint8_t code_of(uint32_t ticks)
{
        float code = 1 + roundf(PER_OCTAVE * log2f((float)MAX(ticks, UINT32_C(1))));

        return (uint8_t)MIN(code, (float)GAP_MOST);
}

uint8_t gap_mean(uint8_t mean, uint32_t ticks)
{
        unsigned last = code_of(ticks);

        if (ticks < GAP_TICKS_PER_S)
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

double gap_seconds(uint8_t mean)
{
        return mean == GAP_UNKNOWN ? 0 : exp2((double)(mean - 1) / PER_OCTAVE) / GAP_TICKS_PER_S;
}

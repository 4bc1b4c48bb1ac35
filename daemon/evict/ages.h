/* SPDX-License-Identifier: Apache-2.0 */
/* When was a touch? Policies count touches, not time; this maps the number of a touch to the time
 * of it, from samples, so that an item's age in seconds costs no memory of the item's. Private to
 * evict/.
 *
 * Each level has the last samples of a grid twice as wide as that of the level below it: a time is
 * off by a tenth of the age, or by a grid of the finest level. */
#pragma once

#include <stdint.h>

enum {
        AGES_LEVELS = 26,  /* the widest grid is a month */
        AGES_SAMPLES = 16, /* of each level */
        AGES_GRID_BITS = 26,
};

struct ages_sample {
        uint64_t touches; /* so many had been by then */
        uint64_t ns;
};

struct ages {
        uint64_t now_ns; /* the last that was noted; 0: none was */
        uint64_t n[AGES_LEVELS];
        struct ages_sample samples[AGES_LEVELS][AGES_SAMPLES];
};

/* So many touches have been by `now_ns`; 0: that is not known. Both never decrease from call to
 * call. */
void ages_note(struct ages *a, uint64_t touches, uint64_t now_ns);
/* The time of the touch of this number, of `touches` that have been; not before the first that was
 * noted. */
uint64_t ages_time(const struct ages *a, uint64_t touch, uint64_t touches);

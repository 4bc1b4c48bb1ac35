/* SPDX-License-Identifier: Apache-2.0 */
/* Maps the number of a touch to its time. Policies count touches and not time; with samples, the
 * age of an item in seconds costs no memory per item. Private to evict/.
 *
 * Each level keeps the last samples of a grid twice as wide as that of the level below. A time is
 * off by at most a tenth of the age, or one grid step of the finest level if that is longer. */
#pragma once

#include <stdint.h>

enum {
        AGES_LEVELS = 26,  /* levels of the grid; the widest has a step of a month */
        AGES_SAMPLES = 16, /* samples per level */
        AGES_GRID_BITS = 26,
};

struct ages_sample {
        uint64_t touches; /* touches up to this time */
        uint64_t ns;
};

struct ages {
        uint64_t now_ns; /* the last noted time; 0: none */
        uint64_t n[AGES_LEVELS];
        struct ages_sample samples[AGES_LEVELS][AGES_SAMPLES];
};

/* Records that `touches` touches have happened by `now_ns`. Does nothing if the time is unknown, 0,
 * or not after the last noted one. `touches` may not decrease between calls. */
void ages_note(struct ages *a, uint64_t touches, uint64_t now_ns);
/* Returns the time of touch number `touch` out of `touches`, but not before the first recorded
 * time. */
uint64_t ages_time(const struct ages *a, uint64_t touch, uint64_t touches);
/* Inverts ages_time(): returns the number of the last of `touches` touches up to this time. The
 * result grows with the time. */
uint64_t ages_touch(const struct ages *a, uint64_t ns, uint64_t touches);
/* Returns the time that has passed since the first recorded sample, ns. */
uint64_t ages_known(const struct ages *a);

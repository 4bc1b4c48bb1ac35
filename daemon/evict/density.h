/* SPDX-License-Identifier: Apache-2.0 */
/* Learned hit densities: what it is worth to keep an item of a class that has not been used for so
 * long. Private to evict/.
 *
 * A stay begins at a touch. It ends with the next touch, a hit, at some age, or by being given up,
 * a loss; the others still last. From these follows, for each class and age, the chance that an
 * item which has reached the age is hit within a horizon, and the time that it will be kept for
 * that. The density is the best quotient of the two over all horizons: hits for each unit of time
 * that a place is taken up.
 *
 * Ages are counted in touches of the whole cache. Bins grow by the half of a power of two. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum {
        DENSITY_CLASSES = 12,
        DENSITY_BINS = 64, /* two a power of two: all ages of 32 bits */
};

struct density {
        double hits[DENSITY_CLASSES][DENSITY_BINS];
        double losses[DENSITY_CLASSES][DENSITY_BINS];
        double events, max_events; /* beyond which all counts are halved: old ones fade */
        float value[DENSITY_CLASSES][DENSITY_BINS];
        float chance[DENSITY_CLASSES][DENSITY_BINS];
        bool is_known[DENSITY_CLASSES]; /* from enough stays to go by its values */
};

/* Stays that still last, by class and age. */
struct density_stays {
        double n[DENSITY_CLASSES][DENSITY_BINS];
};

void density_init(struct density *d, double max_events);
void density_hit(struct density *d, unsigned class, uint32_t age);
void density_loss(struct density *d, unsigned class, uint32_t age);
void density_stay(struct density_stays *stays, unsigned class, uint32_t age, double weight);
/* Computes the densities anew. Some ten microseconds. */
void density_learn(struct density *d, const struct density_stays *stays);
/* Interpolated between bins. 0 before anything was learned. */
float density_at(const struct density *d, unsigned class, uint32_t age);
/* Of the stays that reached this age, the share that ended with a hit; those that still last count
 * as if they will not. 0 before anything was learned. */
float density_chance(const struct density *d, unsigned class, uint32_t age);
/* The counts, hits first. */
enum { DENSITY_COUNTS = 2 * DENSITY_CLASSES * DENSITY_BINS };
void density_save(const struct density *d, double ret[static DENSITY_COUNTS]);
/* False: they are no counts, and nothing has changed. What follows from them comes with the next
 * density_learn(). */
bool density_restore(struct density *d, const double counts[static DENSITY_COUNTS]);
/* All ages are counted in units twice as long from now on. */
void density_double_unit(struct density *d);

/* SPDX-License-Identifier: Apache-2.0 */
/* Learned hit densities: the value of keeping an item of a given class that has not been used for a
 * given time. Private to evict/.
 *
 * A stay begins at a touch. It ends at some age with the next touch, which is a hit, or when the
 * item is given up, which is a loss; other stays still last. These counts give, for each class and
 * age, the chance that an item of that age is hit within a horizon, and the time that it must be
 * kept for that. The density is the best ratio of the two over all horizons: hits per unit of time
 * that a slot is occupied.
 *
 * The unit of ages is the owner's. There are two bins per power of two. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum {
        DENSITY_CLASSES = 16,
        DENSITY_BINS = 64, /* two per power of two cover all 32-bit ages */
};

struct density {
        double hits[DENSITY_CLASSES][DENSITY_BINS];
        double losses[DENSITY_CLASSES][DENSITY_BINS];
        double events, max_events; /* events: sum of all counts; when it exceeds max_events, all
                                    * counts are halved, so that old ones fade */
        float value[DENSITY_CLASSES][DENSITY_BINS];
        float chance[DENSITY_CLASSES][DENSITY_BINS];
        /* By the bin of an older item: the bin of the least valuable younger age, or the bin itself
         * if there is none. Bins from `outlived` on count, see density_low(). */
        uint8_t low[DENSITY_CLASSES][DENSITY_BINS];
        uint8_t outlived[DENSITY_CLASSES];
        bool is_known[DENSITY_CLASSES]; /* enough stays of the class have ended for its values to be
                                           used */
        uint8_t before[DENSITY_CLASSES]; /* the class that density_follow() has named, or the class
                                            itself */
};

/* Numbers of stays that still last, by class and age. */
struct density_stays {
        double n[DENSITY_CLASSES][DENSITY_BINS];
};

void density_init(struct density *d, double max_events);
/* Makes a class follow another one, which has a lower number. At ages that few stays of the class
 * have reached, its hits are expected as in the class `before`. */
void density_follow(struct density *d, unsigned class, unsigned before);
/* Count the end of a stay at `age`: by a hit or by a loss. density_stay() adds `weight` stays that
 * still last. */
void density_hit(struct density *d, unsigned class, uint32_t age);
void density_loss(struct density *d, unsigned class, uint32_t age);
void density_stay(struct density_stays *stays, unsigned class, uint32_t age, double weight);
/* Recomputes the densities, in some ten microseconds. */
void density_learn(struct density *d, const struct density_stays *stays);
/* Returns the density at an age, interpolated between bins; 0 before the first density_learn(). */
float density_at(const struct density *d, unsigned class, uint32_t age);
/* Ages younger than that of an item, at which items of its class are worth less than the item. */
struct density_low {
        uint32_t from;  /* the least age that counts */
        uint32_t least; /* the age of the least density */
};
/* Returns whether the density of a class rises again up to `age`, as it does before the usual
 * return of a chain. Younger items are then worth less than one of this age. Ages that more than
 * three quarters of the stays reach do not count: hardly anything has been learned of such items
 * since their use, and whether they are worth a slot was decided then. */
bool density_low(const struct density *d, unsigned class, uint32_t age, struct density_low *ret);
/* Returns the share of stays reaching this age that ended with a hit; lasting stays count as
 * misses. 0 before the first density_learn(). */
float density_chance(const struct density *d, unsigned class, uint32_t age);
/* The counts as an array, hits first. */
enum { DENSITY_COUNTS = 2 * DENSITY_CLASSES * DENSITY_BINS };
void density_save(const struct density *d, double ret[static DENSITY_COUNTS]);
/* Restores saved counts. Returns false, without a change, if they are invalid. The densities follow
 * at the next density_learn(). */
bool density_restore(struct density *d, const double counts[static DENSITY_COUNTS]);
/* Doubles the unit of all ages. */
void density_double_unit(struct density *d);

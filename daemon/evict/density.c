/* SPDX-License-Identifier: Apache-2.0 */
/* Counts stays and computes densities from them.
 *
 * Runs on the thread of the policy that owns it. Allocates nothing and cannot fail. Deterministic:
 * the same calls give the same densities. */
#include "evict/density.h"

#include <assert.h>
#include <string.h>

#include "checked.h"

enum { KNOWN_STAYS = 64 };

static unsigned bin_of(uint32_t age)
{
        unsigned log;

        if (age < 2)
                return 0;
        log = 31 - (unsigned)__builtin_clz(age);
        return 2 * log + (age >> (log - 1) & 1);
}

/* Returns the lowest age of a bin. */
static double bin_begin(unsigned bin)
{
        return (double)(UINT64_C(1) << bin / 2) * (bin % 2 ? 1.5 : 1);
}

void density_init(struct density *d, double max_events)
{
        memset(d, 0, sizeof(*d));
        d->max_events = max_events;
        for (unsigned c = 0; c < DENSITY_CLASSES; c++) {
                d->before[c] = (uint8_t)c;
                for (unsigned b = 0; b < DENSITY_BINS; b++)
                        d->low[c][b] = (uint8_t)b;
        }
}

void density_follow(struct density *d, unsigned class, unsigned before)
{
        assert(before < class);
        d->before[class] = (uint8_t)before;
}

static void fade(struct density *d)
{
        for (unsigned c = 0; c < DENSITY_CLASSES; c++)
                for (unsigned b = 0; b < DENSITY_BINS; b++) {
                        d->hits[c][b] /= 2;
                        d->losses[c][b] /= 2;
                }
        d->events /= 2;
}

static void count(struct density *d, double *where)
{
        if (d->events >= d->max_events)
                fade(d);
        d->events++;
        ++*where;
}

void density_hit(struct density *d, unsigned class, uint32_t age)
{
        count(d, &d->hits[class][bin_of(age)]);
}

void density_loss(struct density *d, unsigned class, uint32_t age)
{
        count(d, &d->losses[class][bin_of(age)]);
}

void density_stay(struct density_stays *stays, unsigned class, uint32_t age, double weight)
{
        stays->n[class][bin_of(age)] += weight;
}

/* Computes the probability of a hit in each bin for stays that reach it. This is the estimate of
 * Kaplan and Meier, with stays that leave a bin without a hit counted as at risk for half of it. A
 * class that follows a known one has KNOWN_STAYS further stays with the probabilities of that
 * class. Without these, the first items that grow older than all hits of their class would be worth
 * nothing, and the class would learn of longer gaps only from evicted items. */
static void hazards(const struct density *d, const struct density_stays *stays, unsigned class,
                    double all[static DENSITY_CLASSES][DENSITY_BINS])
{
        unsigned before = d->before[class];
        bool follows = before != class && d->is_known[before];
        double *ret = all[class], reached = 0;

        for (unsigned b = DENSITY_BINS; b-- > 0;) {
                double hits = d->hits[class][b], left = d->losses[class][b] + stays->n[class][b];
                double at_risk = reached + hits + left / 2;

                reached += hits + left;
                if (follows) {
                        hits += KNOWN_STAYS * all[before][b];
                        at_risk += KNOWN_STAYS;
                }
                ret[b] = at_risk > 0 ? MIN(hits / at_risk, 1.0) : 0;
        }
}

/* The best horizon that begins with a bin, up to bin `end`, per stay that reaches it. */
struct horizon {
        double hits, time, survivors;
        unsigned end;
};

/* Computes for each bin the best ratio of hits to time over all horizons that begin with it. A
 * horizon is better with the best one that begins at its end if that has a higher ratio, and
 * otherwise with none. */
static void best_ratios(const double hazard[static DENSITY_BINS], float ret[static DENSITY_BINS])
{
        struct horizon best[DENSITY_BINS + 1];

        best[DENSITY_BINS] = (struct horizon){ .time = 1 };
        for (unsigned b = DENSITY_BINS; b-- > 0;) {
                struct horizon h = { .hits = hazard[b],
                                     .time = (1 - hazard[b] / 2) *
                                             (bin_begin(b + 1) - bin_begin(b)),
                                     .survivors = 1 - hazard[b],
                                     .end = b + 1 };

                for (const struct horizon *next = &best[h.end];
                     h.survivors > 1e-9 && next->hits * h.time > h.hits * next->time;
                     next = &best[h.end]) {
                        h.hits += h.survivors * next->hits;
                        h.time += h.survivors * next->time;
                        h.survivors *= next->survivors;
                        h.end = next->end;
                }
                best[b] = h;
                ret[b] = (float)(h.hits / h.time);
        }
}

/* Returns the sum of one class's counts over all bins: its hits, or its losses, that have not
 * faded. */
static double sum(const double of[static DENSITY_BINS])
{
        double n = 0;

        for (unsigned b = 0; b < DENSITY_BINS; b++)
                n += of[b];
        return n;
}

/* Finds for each bin the one of least value among the younger ones, as described at density_low().
 * Densities whose ratio is below bin_ratio, that of the ages at both ends of a bin, are not told
 * apart. */
static void find_lows(struct density *d, unsigned class, const double hazard[static DENSITY_BINS])
{
        const double bin_ratio = 1.5, outlived = 0.75;
        const float *value = d->value[class];
        double survivors = 1;
        unsigned from = 0, least;

        while (from < DENSITY_BINS - 1 && survivors > outlived)
                survivors *= 1 - hazard[from++];
        d->outlived[class] = (uint8_t)from;
        least = from;
        for (unsigned b = 0; b < DENSITY_BINS; b++) {
                if (b >= from && value[b] <= value[least])
                        least = b;
                d->low[class][b] = (uint8_t)b;
                if ((double)value[b] > bin_ratio * (double)value[least])
                        d->low[class][b] = (uint8_t)MIN(least, b);
        }
}

/* Computes for each age the share of hits among all stays that reached it. */
static void chances(const struct density *d, const struct density_stays *stays, unsigned class,
                    float ret[static DENSITY_BINS])
{
        double hits = 0, reached = 0;

        for (unsigned b = DENSITY_BINS; b-- > 0;) {
                hits += d->hits[class][b];
                reached += d->hits[class][b] + d->losses[class][b] + stays->n[class][b];
                ret[b] = reached > 0 ? (float)(hits / reached) : 0;
        }
}

void density_learn(struct density *d, const struct density_stays *stays)
{
        double hazard[DENSITY_CLASSES][DENSITY_BINS];

        for (unsigned c = 0; c < DENSITY_CLASSES; c++) {
                d->is_known[c] = sum(d->hits[c]) + sum(d->losses[c]) >= KNOWN_STAYS;
                chances(d, stays, c, d->chance[c]);
                hazards(d, stays, c, hazard);
                best_ratios(hazard[c], d->value[c]);
                find_lows(d, c, hazard[c]);
        }
}

/* A bin's value applies to its middle: 1.25 or 1.75 times a power of two. Between two middles, the
 * value is interpolated. This is computed from the exponent and mantissa of the age, because a
 * search for a victim needs it for each list. */
float density_at(const struct density *d, unsigned class, uint32_t age)
{
        const float *value = d->value[class];
        float exact = (float)age, mantissa, part;
        unsigned octave, bin;
        uint32_t bits;

        if (age < 2)
                return value[0];
        memcpy(&bits, &exact, sizeof(bits));
        octave = (bits >> 23) - 127;
        bits = (bits & 0x7fffff) | UINT32_C(127) << 23;
        memcpy(&mantissa, &bits, sizeof(mantissa));
        if (mantissa < 1.25F) {
                bin = 2 * octave - 1;
                part = (mantissa - 0.875F) / 0.375F;
        } else if (mantissa < 1.75F) {
                bin = 2 * octave;
                part = (mantissa - 1.25F) / 0.5F;
        } else {
                bin = 2 * octave + 1;
                part = (mantissa - 1.75F) / 0.75F;
        }
        if (bin + 1 >= DENSITY_BINS)
                return value[DENSITY_BINS - 1];
        return value[bin] + (value[bin + 1] - value[bin]) * part;
}

bool density_low(const struct density *d, unsigned class, uint32_t age, struct density_low *ret)
{
        unsigned bin = bin_of(age), least = d->low[class][bin];

        if (least == bin)
                return false;
        ret->from = (uint32_t)bin_begin(d->outlived[class]);
        ret->least = (uint32_t)((bin_begin(least) + bin_begin(least + 1)) / 2);
        return true;
}

float density_chance(const struct density *d, unsigned class, uint32_t age)
{
        return d->chance[class][bin_of(age)];
}

void density_double_unit(struct density *d)
{
        for (unsigned c = 0; c < DENSITY_CLASSES; c++) {
                for (unsigned b = 0; b < DENSITY_BINS; b++) {
                        unsigned to = b < 2 ? 0 : b - 2;
                        double hits = d->hits[c][b], losses = d->losses[c][b];

                        d->hits[c][b] = d->losses[c][b] = 0;
                        d->hits[c][to] += hits;
                        d->losses[c][to] += losses;
                        d->value[c][to] = d->value[c][b];
                        d->chance[c][to] = d->chance[c][b];
                        d->low[c][to] = (uint8_t)(d->low[c][b] < 2 ? 0 : d->low[c][b] - 2);
                }
                d->outlived[c] = (uint8_t)(d->outlived[c] < 2 ? 0 : d->outlived[c] - 2);
        }
}

void density_save(const struct density *d, double ret[static DENSITY_COUNTS])
{
        memcpy(ret, d->hits, sizeof(d->hits));
        memcpy(ret + DENSITY_COUNTS / 2, d->losses, sizeof(d->losses));
}

bool density_restore(struct density *d, const double counts[static DENSITY_COUNTS])
{
        double events = 0;

        for (unsigned i = 0; i < DENSITY_COUNTS; i++) {
                if (!(counts[i] >= 0 && counts[i] <= 0x1p52)) /* also rejects NaN */
                        return false;
                events += counts[i];
        }
        memcpy(d->hits, counts, sizeof(d->hits));
        memcpy(d->losses, counts + DENSITY_COUNTS / 2, sizeof(d->losses));
        d->events = events;
        /* Counts from a larger cache fade to this one's maximum. */
        while (d->events > d->max_events)
                fade(d);
        return true;
}

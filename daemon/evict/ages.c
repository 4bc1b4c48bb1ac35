/* SPDX-License-Identifier: Apache-2.0 */
/* Implements ages.h. Runs on the thread of the policy that owns it. Allocates nothing and cannot
 * fail. Deterministic. */
#include "evict/ages.h"

#include <stdbool.h>

#include "checked.h"

static const struct ages_sample *sample(const struct ages *a, unsigned level, uint64_t i)
{
        return &a->samples[level][i % AGES_SAMPLES];
}

static uint64_t oldest_of(const struct ages *a, unsigned level)
{
        return a->n[level] - MIN(a->n[level], (uint64_t)AGES_SAMPLES);
}

void ages_note(struct ages *a, uint64_t touches, uint64_t now_ns)
{
        if (now_ns <= a->now_ns)
                return;
        for (unsigned level = 0; level < AGES_LEVELS; level++) {
                unsigned shift = AGES_GRID_BITS + level;

                /* The time is at the same grid point as before, and so on all wider grids. */
                if (a->n[level] > 0 && now_ns >> shift == a->now_ns >> shift)
                        break;
                a->samples[level][a->n[level]++ % AGES_SAMPLES] =
                        (struct ages_sample){ .touches = touches, .ns = now_ns };
        }
        a->now_ns = now_ns;
}

static uint64_t value_of(const struct ages_sample *s, bool by_time)
{
        return by_time ? s->ns : s->touches;
}

/* Finds the latest sample whose time (or else number of touches) is below a limit. Returns false if
 * there is none. `after` has the present on entry, and the sample after the one found on return. */
static bool find(const struct ages *a, bool by_time, uint64_t limit, struct ages_sample *before,
                 struct ages_sample *after)
{
        for (unsigned level = 0; level < AGES_LEVELS; level++) {
                uint64_t oldest = oldest_of(a, level);

                if (a->n[level] == 0 || value_of(sample(a, level, oldest), by_time) >= limit)
                        continue;
                for (uint64_t i = a->n[level]; i-- > oldest;) {
                        *before = *sample(a, level, i);
                        if (value_of(before, by_time) < limit)
                                return true;
                        *after = *before;
                }
        }
        return false;
}

/* Returns the value at x on the line from (x0, y0) to (x1, y1), and y1 for any x beyond x1. */
static uint64_t interpolate(uint64_t x, uint64_t x0, uint64_t x1, uint64_t y0, uint64_t y1)
{
        double part = (double)(x - x0) / (double)MAX(x1 - x0, UINT64_C(1));

        return y0 + MIN((uint64_t)((double)(y1 - y0) * MIN(part, 1.0)), y1 - y0);
}

uint64_t ages_time(const struct ages *a, uint64_t touch, uint64_t touches)
{
        struct ages_sample before, after = { .touches = MAX(touch, touches), .ns = a->now_ns };

        if (!find(a, false, touch, &before, &after))
                return a->now_ns - ages_known(a);
        return interpolate(touch, before.touches, after.touches, before.ns, after.ns);
}

uint64_t ages_touch(const struct ages *a, uint64_t ns, uint64_t touches)
{
        struct ages_sample before, after = { .touches = touches, .ns = a->now_ns };

        if (ns >= a->now_ns)
                return touches;
        if (!find(a, true, ns + 1, &before, &after))
                return 0;
        return interpolate(ns, before.ns, after.ns, before.touches, after.touches);
}

uint64_t ages_known(const struct ages *a)
{
        return a->n[0] > 0
                       ? a->now_ns - sample(a, AGES_LEVELS - 1, oldest_of(a, AGES_LEVELS - 1))->ns
                       : 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Implements ages.h. Runs on the thread of the policy that owns it. Allocates nothing and cannot
 * fail. Deterministic. */
#include "evict/ages.h"

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
        if (now_ns == 0)
                return;
        for (unsigned level = 0; level < AGES_LEVELS; level++) {
                unsigned shift = AGES_GRID_BITS + level;

                /* The time is at the same grid point as before, and so on all wider grids. */
                if (a->n[level] > 0 && now_ns >> shift == a->now_ns >> shift)
                        break;
                a->samples[level][a->n[level]++ % AGES_SAMPLES] =
                        (struct ages_sample){ .touches = touches, .ns = now_ns };
        }
        a->now_ns = MAX(a->now_ns, now_ns);
}

/* Interpolates the time of a touch between two samples. */
static uint64_t between(const struct ages_sample *before, const struct ages_sample *after,
                        uint64_t touch)
{
        double part = (double)(touch - before->touches) /
                      (double)MAX(after->touches - before->touches, UINT64_C(1));

        return before->ns + (uint64_t)((double)(after->ns - before->ns) * MIN(part, 1.0));
}

uint64_t ages_time(const struct ages *a, uint64_t touch, uint64_t touches)
{
        struct ages_sample after = { .touches = MAX(touch, touches), .ns = a->now_ns };

        for (unsigned level = 0; level < AGES_LEVELS; level++) {
                uint64_t oldest = oldest_of(a, level);

                if (a->n[level] == 0 || sample(a, level, oldest)->touches >= touch)
                        continue;
                for (uint64_t i = a->n[level]; i-- > oldest;) {
                        const struct ages_sample *s = sample(a, level, i);

                        if (s->touches < touch)
                                return between(s, &after, touch);
                        after = *s;
                }
        }
        return a->now_ns - ages_known(a);
}

uint64_t ages_touch(const struct ages *a, uint64_t ns, uint64_t touches)
{
        struct ages_sample after = { .touches = touches, .ns = a->now_ns };

        if (ns >= a->now_ns)
                return touches;
        for (unsigned level = 0; level < AGES_LEVELS; level++) {
                uint64_t oldest = oldest_of(a, level);

                if (a->n[level] == 0 || sample(a, level, oldest)->ns > ns)
                        continue;
                for (uint64_t i = a->n[level]; i-- > oldest;) {
                        const struct ages_sample *s = sample(a, level, i);

                        if (s->ns <= ns)
                                return s->touches +
                                       (uint64_t)((double)(after.touches - s->touches) *
                                                  (double)(ns - s->ns) /
                                                  (double)(after.ns - s->ns));
                        after = *s;
                }
        }
        return 0;
}

uint64_t ages_known(const struct ages *a)
{
        return a->n[0] > 0
                       ? a->now_ns - sample(a, AGES_LEVELS - 1, oldest_of(a, AGES_LEVELS - 1))->ns
                       : 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Implements admission.h. Owns the bucket (the accrued bytes of the budget that no write has used),
 * the controller and the remembered keys.
 *
 * The controller averages the bytes that first touches request and all other bytes written over a
 * horizon. The probability is the ratio of the bytes available to first touches, from the budget
 * and the accrued bytes, to the bytes that they request. The horizon is an eighth of the budget's
 * age, at most five minutes, so that a trace replayed sixty times as fast is treated as at its
 * original speed.
 *
 * The bucket ranges from an hour's worth of the budget down to a debt of a quarter of the horizon's
 * worth. No 24 hours admit more than 105 % of the budget. The bucket begins empty, so that restarts
 * gain nothing. */
#include "evict/admission.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "checked.h"
#include "cleanup.h"
#include "evict/ghosts.h"

enum {
        SECONDS_A_DAY = 86400,
        BUCKET_SECONDS = 3600,
        HORIZON_SECONDS = 300,
        HORIZONS_OF_AGE = 8,
        STEPS_OF_HORIZON = 16,
        TARGETS_OF_HORIZON = 8, /* the controller leaves a horizon's budget divided by this in the
                                 * bucket */
        DEBTS_OF_HORIZON = 4,
        DAY_SLOTS = 96,
};
static const double HORIZON_MIN_SECONDS = 0.25;

/* Values of `class` in the ghosts that remember keys. */
enum { SEEN_ADMITTED, SEEN_REFUSED };

struct admission {
        double rate;  /* budget in bytes per second; 0: no budget */
        double level; /* bytes in the bucket; negative if it is overdrawn */
        uint64_t began_ns, now_ns, step_ns;
        /* Inputs of the controller: bytes requested by first touches, bytes otherwise written, and
         * seconds, all decayed; then the bytes since the last step. */
        double first, other, seconds, new_first, new_other;
        uint64_t written; /* last value from admission_count_written() */
        bool has_written; /* `written` is valid */
        double settled;
        uint64_t seed, remembered_max;
        uint32_t asked; /* counter that orders the remembered keys */
        struct ghosts seen;
        uint64_t slots[DAY_SLOTS + 1], slot, start_ns; /* bytes written, by quarters of an hour */
        struct admission_stats stats;
};

DEFINE_CLEANUP(struct admission *, admission_free);

int admission_new(struct admission **ret, uint64_t remembered, uint64_t seed, uint64_t now_ns)
{
        struct admission *a = calloc(1, sizeof(*a));

        if (!a)
                return -ENOMEM;
        a->seed = seed;
        a->remembered_max = remembered;
        a->now_ns = a->began_ns = a->step_ns = a->start_ns = now_ns;
        a->stats.probability = 1;
        *ret = a;
        return 0;
}

struct admission *admission_free(struct admission *a)
{
        if (!a)
                return NULL;
        ghosts_fini(&a->seen);
        free(a);
        return NULL;
}

static double horizon(const struct admission *a)
{
        double age = (double)(a->now_ns - a->began_ns) / 1e9;

        return MIN(MAX(age / HORIZONS_OF_AGE, HORIZON_MIN_SECONDS), (double)HORIZON_SECONDS);
}

static void step(struct admission *a)
{
        double seconds = (double)(a->now_ns - a->step_ns) / 1e9, over = horizon(a), decay, may;

        if (seconds * STEPS_OF_HORIZON < over)
                return;
        a->step_ns = a->now_ns;
        decay = exp(-seconds / over);
        a->first = a->first * decay + a->new_first;
        a->other = a->other * decay + a->new_other;
        a->seconds = a->seconds * decay + seconds;
        a->new_first = a->new_other = 0;
        may = a->rate + (a->level - a->rate * over / TARGETS_OF_HORIZON) / over -
              MAX(a->other / a->seconds, 0);
        a->stats.probability = may <= 0 ? 0
                               : may * a->seconds >= MAX(a->first, 1.)
                                       ? 1
                                       : may * a->seconds / a->first;
}

/* Advances the clock, the bucket and the quarters of an hour to `now_ns`. */
static void advance(struct admission *a, uint64_t now_ns)
{
        uint64_t slot;

        if (now_ns <= a->now_ns)
                return;
        a->level = MIN(a->level + a->rate * (double)(now_ns - a->now_ns) / 1e9,
                       a->rate * BUCKET_SECONDS);
        a->now_ns = now_ns;
        slot = (now_ns - a->start_ns) / (ADMISSION_DAY_NS / DAY_SLOTS);
        for (unsigned i = 0; a->slot < slot && i < ARRAY_SIZE(a->slots); i++)
                a->slots[++a->slot % ARRAY_SIZE(a->slots)] = 0;
        a->slot = slot;
        if (a->rate > 0)
                step(a);
}

int admission_set_budget(struct admission *a, uint64_t bytes, uint64_t now_ns)
{
        int r;

        if (bytes == a->stats.budget)
                return 0;
        if (bytes > 0 && !a->seen.table) {
                r = ghosts_init(&a->seen, a->remembered_max);
                if (r < 0)
                        return r;
        }
        advance(a, now_ns);
        if (bytes == 0) {
                ghosts_fini(&a->seen);
                a->level = 0;
                a->stats.probability = 1;
        } else if (a->stats.budget == 0) {
                a->began_ns = a->step_ns = a->now_ns;
                a->level = a->settled = 0;
                a->first = a->other = a->seconds = a->new_first = a->new_other = 0;
                a->stats.probability = 1;
        }
        a->stats.budget = bytes;
        a->rate = (double)bytes / SECONDS_A_DAY;
        a->level = MIN(a->level, a->rate * BUCKET_SECONDS);
        return 0;
}

bool admission_has_budget(const struct admission *a)
{
        return a->stats.budget > 0;
}

/* Returns a pseudo-random number from 0 to 1, the same for all writes of one use; without a use,
 * the same for all writes of one key. */
static double draw(const struct admission *a, const struct admission_write *w)
{
        uint64_t h = (w->use != 0 ? w->use : w->id) + a->seed;

        h = (h ^ h >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        h = (h ^ h >> 27) * UINT64_C(0x94d049bb133111eb);
        return (double)((h ^ h >> 31) >> 11) * 0x1p-53;
}

/* Remembers a key with the answer that it got. */
static void remember(struct admission *a, uint64_t id, bool refused)
{
        struct ghost forgotten, ghost = { .id = id,
                                          .time = ++a->asked,
                                          .class = refused ? SEEN_REFUSED : SEEN_ADMITTED };

        (void)ghosts_put(&a->seen, &ghost, &forgotten);
}

enum admission_answer admission_ask(struct admission *a, const struct admission_write *w,
                                    uint64_t now_ns)
{
        enum admission_answer answer = ADMISSION_ADMITTED;
        struct ghost ghost;
        bool again;

        if (a->stats.budget == 0)
                return ADMISSION_ADMITTED;
        advance(a, now_ns);
        again = ghosts_take(&a->seen, w->id, &ghost) || w->again;
        if (again) {
                if (a->level <= -a->rate * horizon(a) / DEBTS_OF_HORIZON)
                        answer = ADMISSION_DRY;
        } else {
                a->new_first += (double)w->bytes;
                if (draw(a, w) >= a->stats.probability)
                        answer = ADMISSION_REFUSED;
                else if (a->level <= 0)
                        answer = ADMISSION_DRY;
        }
        remember(a, w->id, answer != ADMISSION_ADMITTED);
        if (answer != ADMISSION_ADMITTED) {
                a->stats.refused_bytes += w->bytes;
                ++*(answer == ADMISSION_DRY ? &a->stats.refused_dry : &a->stats.refused_first);
                return answer;
        }
        ++*(again ? &a->stats.admitted_again : &a->stats.admitted_first);
        a->stats.charged_bytes += w->bytes;
        a->level -= (double)w->bytes;
        if (again)
                a->new_other += (double)w->bytes;
        return answer;
}

bool admission_has_refused(const struct admission *a, uint64_t id)
{
        struct ghost ghost;

        return a->stats.budget > 0 && ghosts_find(&a->seen, id, &ghost) &&
               ghost.class == SEEN_REFUSED;
}

void admission_settle(struct admission *a, uint64_t charged)
{
        a->settled += (double)charged;
}

void admission_count_written(struct admission *a, uint64_t written, uint64_t now_ns)
{
        uint64_t more = a->has_written && written > a->written ? written - a->written : 0;

        advance(a, now_ns);
        a->written = written;
        a->has_written = true;
        a->slots[a->slot % ARRAY_SIZE(a->slots)] += more;
        a->level = MIN(a->level + a->settled - (double)more, a->rate * BUCKET_SECONDS);
        a->new_other += (double)more - a->settled;
        a->settled = 0;
}

void admission_get_stats(const struct admission *a, struct admission_stats *ret)
{
        *ret = a->stats;
        /* Clamp the level to the range of the type. */
        ret->available = a->level <= -0x1p63  ? INT64_MIN
                         : a->level >= 0x1p63 ? INT64_MAX
                                              : (int64_t)a->level;
        for (unsigned i = 0; i < ARRAY_SIZE(a->slots); i++)
                ret->written_day += a->slots[i];
        ret->seconds_day = MIN((a->now_ns - a->start_ns) / 1000000000, (uint64_t)SECONDS_A_DAY);
        ret->remembered = a->seen.n;
        ret->remembered_max = a->seen.n_slots;
        ret->remembered_bytes = a->seen.n_slots * sizeof(struct ghost);
}

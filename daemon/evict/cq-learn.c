/* SPDX-License-Identifier: Apache-2.0 */
/* The clocks of the policy of cq.c, and what it learns from its items: the densities of the classes
 * and the weight of an unknown cost. Items and ghosts keep the time as a 32-bit number; all of
 * these are halved when the unit doubles. The number of a touch follows from its time, so that no
 * item keeps it. */
#include "checked.h"
#include "evict/cq-internal.h"

enum {
        /* Densities are recomputed when a victim is chosen, after a number of touches that is an
         * eighth of the items, within CQ_LEARN_LEAST and LEARN_MOST. At most SAMPLE items and
         * SAMPLE ghosts are examined. */
        LEARN_MOST = 1 << 18,
        SAMPLE = 4096,
};

void cq_weigh(struct cq *q)
{
        double sum = 0, n = 0;

        for (unsigned i = 1; i < EVICT_COSTS; i++) {
                sum += (double)q->n_cost[i] * (double)q->weight[i];
                n += q->n_cost[i];
        }
        q->weight[0] = n > 0 ? (float)(sum / n) : 1;
}

static void double_time_unit(struct cq *q)
{
        q->time_unit++;
        for (uint32_t i = 0; i < q->high; i++)
                q->items[i].time /= 2;
        for (uint32_t i = 0; i < q->ghosts.n_slots; i++)
                q->ghosts.table[i].time /= 2;
        density_double_unit(&q->density);
}

void cq_pass_time(struct cq *q, uint64_t ticks)
{
        q->time += ticks;
        while (q->time >> q->time_unit > UINT32_MAX)
                double_time_unit(q);
}

void cq_advance(struct evict *e)
{
        struct cq *q = cq(e);
        uint64_t ns = e->ages.now_ns, ticks;

        if (ns == q->noted_ns)
                return;
        if (q->noted_ns == 0)
                q->noted_ns = ns;
        ticks = (ns - q->noted_ns) >> GAP_TICK_BITS;
        q->noted_ns += ticks << GAP_TICK_BITS;
        cq_pass_time(q, ticks);
}

/* Before a time is reported, a tick is a touch. Items that were restored, or touched before the
 * first report, count as if there had been one touch in each tick. */
uint64_t cq_touched(const struct evict *e, uint32_t item)
{
        const struct cq *q = cq(e);
        uint64_t ticks = (uint64_t)cq_age(q, &q->items[item]) << q->time_unit, first = q->now;
        uint64_t known = ages_known(&e->ages) >> GAP_TICK_BITS;

        if (e->ages.now_ns != 0) {
                if (ticks <= known)
                        return ages_touch(&e->ages, e->ages.now_ns - (ticks << GAP_TICK_BITS),
                                          q->now);
                first = ages_touch(&e->ages, e->ages.now_ns - (known << GAP_TICK_BITS), q->now);
                ticks -= known;
        }
        return first > ticks ? first - ticks : 1;
}

/* Returns the step with which at most SAMPLE of `total` are examined, and a first index that varies
 * from call to call. */
static uint32_t sample_step(const struct cq *q, uint32_t total, uint32_t *ret_first)
{
        uint32_t step = total / SAMPLE + 1;

        *ret_first = q->sample_phase % step;
        return step;
}

static void learn(struct cq *q)
{
        struct density_stays stays = { 0 };
        uint32_t first, step;

        q->sample_phase = q->sample_phase * UINT32_C(1664525) + UINT32_C(1013904223);
        step = sample_step(q, q->high, &first);
        for (uint32_t i = first; i < q->high; i += step)
                if (q->items[i].older != 0)
                        density_stay(&stays, q->items[i].class, cq_age(q, &q->items[i]), step);
        step = sample_step(q, q->ghosts.n_slots, &first);
        for (uint32_t i = first; i < q->ghosts.n_slots; i += step) {
                const struct ghost *g = &q->ghosts.table[i];

                if (g->id != 0)
                        density_stay(&stays, g->class, cq_clock(q) - g->time, step);
        }
        density_learn(&q->density, &stays);
        cq_weigh(q);
        q->learn_at =
                q->now + MIN(MAX(q->items_in / 8, (uint32_t)CQ_LEARN_LEAST), (uint32_t)LEARN_MOST);
}

void cq_learn(struct cq *q)
{
        if (q->now >= q->learn_at)
                learn(q);
}

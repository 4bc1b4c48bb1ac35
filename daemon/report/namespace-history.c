/* SPDX-License-Identifier: Apache-2.0 */
/* Implements namespace-history.h. A sample stores differences, like one of history.h. */
#include "report/namespace-history.h"

#include <string.h>

#include "checked.h"

#define SECOND_NS   UINT64_C(1000000000)
#define INTERVAL_NS (NAMESPACE_SAMPLE_S * SECOND_NS)
#define SPAN_NS     (NAMESPACE_SAMPLES * INTERVAL_NS)

static bool is_same(struct namespace_id a, struct namespace_id b)
{
        return a.id == b.id && a.created_ms == b.created_ms;
}

static struct namespace_row *find_row(struct namespace_history *h, struct namespace_id of)
{
        for (unsigned i = 0; i < NAMESPACE_ROWS; i++)
                if (h->rows[i].last.of.id != 0 && is_same(h->rows[i].last.of, of))
                        return &h->rows[i];
        return NULL;
}

static bool is_listed(const struct namespace_now *list, unsigned n, struct namespace_id of)
{
        for (unsigned i = 0; i < n; i++)
                if (is_same(list[i].of, of))
                        return true;
        return false;
}

static void forget_unlisted(struct namespace_history *h, const struct namespace_now *list,
                            unsigned n)
{
        for (unsigned i = 0; i < NAMESPACE_ROWS; i++)
                if (!is_listed(list, n, h->rows[i].last.of))
                        h->rows[i] = (struct namespace_row){ 0 };
}

static void add_sample(struct namespace_row *row, uint64_t now_ns, const struct namespace_now *now)
{
        struct namespace_sample *s = &row->samples[row->next];

        row->next = (row->next + 1) % NAMESPACE_SAMPLES;
        row->n = MIN(row->n + 1, (unsigned)NAMESPACE_SAMPLES);
        *s = (struct namespace_sample){
                .end_ns = now_ns,
                .span_ns = now_ns - row->last_ns,
                .chunks = now->chunks,
                .bytes = now->bytes,
        };
        for (unsigned i = 0; i < NAMESPACE_COUNTERS; i++)
                if (now->counters[i] > row->last.counters[i])
                        s->counted[i] = now->counters[i] - row->last.counters[i];
        row->last = *now;
        row->last_ns = now_ns;
}

static void begin_row(struct namespace_history *h, uint64_t now_ns, const struct namespace_now *now)
{
        for (unsigned i = 0; i < NAMESPACE_ROWS; i++)
                if (h->rows[i].last.of.id == 0) {
                        h->rows[i].last = *now;
                        h->rows[i].last_ns = now_ns;
                        return;
                }
}

void namespace_history_add(struct namespace_history *h, uint64_t now_ns,
                           const struct namespace_now *list, unsigned n)
{
        if (now_ns < h->last_ns) /* the clock has gone back, so the samples would overlap */
                memset(h->rows, 0, sizeof(h->rows));
        forget_unlisted(h, list, n);
        for (unsigned i = 0; i < n; i++) {
                struct namespace_row *row = find_row(h, list[i].of);

                if (row && now_ns > row->last_ns)
                        add_sample(row, now_ns, &list[i]);
                else if (!row)
                        begin_row(h, now_ns, &list[i]);
        }
        h->last_ns = now_ns;
        h->due_ns = now_ns + INTERVAL_NS;
}

void namespace_history_watch(struct namespace_history *h, uint64_t now_ns,
                             const struct namespace_now *now)
{
        unsigned at = 0;

        while (at < h->n_watched && !is_same(h->watched[at], now->of))
                at++;
        if (at == h->n_watched && h->n_watched < NAMESPACE_WATCHED)
                h->n_watched++;
        at = MIN(at, h->n_watched - 1);
        memmove(&h->watched[1], &h->watched[0], at * sizeof(h->watched[0]));
        h->watched[0] = now->of;
        if (!find_row(h, now->of))
                begin_row(h, now_ns, now);
}

static const struct namespace_sample *nth(const struct namespace_row *row, unsigned i)
{
        return &row->samples[(row->next + NAMESPACE_SAMPLES - row->n + i) % NAMESPACE_SAMPLES];
}

const struct namespace_sample *namespace_history_get(const struct namespace_history *h,
                                                     struct namespace_id of, uint64_t now_ns,
                                                     unsigned i)
{
        const struct namespace_row *row = find_row((struct namespace_history *)h, of);
        unsigned old = 0;

        if (!row)
                return NULL;
        while (old < row->n && now_ns > nth(row, old)->end_ns &&
               now_ns - nth(row, old)->end_ns >= SPAN_NS)
                old++;
        return i < row->n - old ? nth(row, old + i) : NULL;
}

double namespace_hit_ratio(const uint64_t counted[static NAMESPACE_COUNTERS])
{
        if (counted[NAMESPACE_LOOKUP_KEYS] > 0)
                return (double)counted[NAMESPACE_LOOKUP_FOUND] /
                       (double)counted[NAMESPACE_LOOKUP_KEYS];
        if (counted[NAMESPACE_GET_KEYS] > 0)
                return (double)counted[NAMESPACE_GET_FOUND] / (double)counted[NAMESPACE_GET_KEYS];
        return -1;
}

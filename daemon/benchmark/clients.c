/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of the transfers of all clients since startup, by path, layout and technology, for the
 * metrics. Loop thread. Owns only fields of struct bench; cannot fail: combinations beyond
 * BENCH_CLIENT_SERIES are added to the series "other". */
#include "base/clock.h"
#include "benchmark/internal.h"
#include "checked.h"

static struct transfer_series *series_of(struct bench *b, unsigned path, unsigned layout,
                                         unsigned technology)
{
        struct transfer_series *s;
        unsigned i;

        for (i = 0; i < b->n_clients; i++) {
                s = &b->clients[i];
                if (s->path == path && s->layout == layout && s->technology == technology)
                        return s;
        }
        if (i >= BENCH_CLIENT_SERIES - 1 && (path | layout | technology) != 0)
                return series_of(b, TRANSFER_PATH_OTHER, TRANSFER_LAYOUT_OTHER,
                                 TRANSFER_TECHNOLOGY_OTHER);
        s = &b->clients[b->n_clients++];
        s->path = path;
        s->layout = layout;
        s->technology = technology;
        return s;
}

/* Adds counts to the histograms of a series, which store each size minus one, because the counts'
 * buckets end at powers of two. */
static void add_histograms(struct transfer_series *s, const struct transfer_counts *c)
{
        for (unsigned i = 0; i < TRANSFER_BUCKETS; i++) {
                histogram_add_many(&s->sizes, (UINT64_C(1) << i) - 1, c->sizes[i]);
                histogram_add_many(&s->latencies, UINT64_C(1) << i, c->latencies[i]);
        }
        histogram_add_to_sum(&s->sizes, c->bytes - MIN(c->transfers, c->bytes));
        histogram_add_to_sum(&s->latencies, c->latency_ns);
}

void bench_clients_add(struct bench *b, unsigned path, unsigned layout, unsigned technology,
                       const struct transfer_counts *c, uint64_t busy_ns)
{
        struct transfer_series *s = series_of(b, path, layout, technology);

        s->ops[TRANSFER_OK] += c->transfers;
        for (unsigned i = TRANSFER_OK + 1; i < TRANSFER_RESULTS; i++)
                s->ops[i] += c->errors[i];
        s->blocks += c->blocks;
        s->bytes += c->bytes;
        s->device_bytes += c->device_bytes;
        s->busy_ns += busy_ns;
        add_histograms(s, c);
}

const struct transfer_series *bench_clients(struct bench *b, unsigned *ret_n)
{
        bench_pages_read(b, clock_mono_ns(), BENCH_PAGES_AT_ONCE);
        *ret_n = b->n_clients;
        return b->clients;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "figures.h"

const struct figures_quantile figures_quantiles[FIGURES_QUANTILES] = {
        { "p50", 0.5 }, { "p90", 0.9 }, { "p95", 0.95 }, { "p99", 0.99 }, { "p99.9", 0.999 },
};

double figures_ratio(double a, double b)
{
        return b > 0 ? a / b : 0;
}

void figures_of(const struct snapshot_metric *m, double enabled_secs, struct figures *ret)
{
        const struct transfer_counts *c = &m->counts;
        double n = (double)c->transfers, bytes = (double)c->bytes, blocks = (double)c->blocks;

        *ret = (struct figures){
                .transfers_per_block = figures_ratio(n, blocks),
                .regions_per_transfer = figures_ratio((double)c->regions, n),
                .mean_bytes = figures_ratio(bytes, n),
                .rate = figures_ratio(bytes, m->busy_secs),
                .block_rate = figures_ratio(blocks, m->busy_secs),
                .wall_rate = figures_ratio(bytes, enabled_secs),
                .mean_latency_secs = figures_ratio(m->latency_secs, n),
        };
        for (unsigned i = 0; i < FIGURES_QUANTILES; i++)
                ret->latency_secs[i] =
                        (double)transfer_quantile(c->latencies, figures_quantiles[i].quantile,
                                                  UINT64_MAX) /
                        1e9;
        for (unsigned i = 1; i < TRANSFER_RESULTS; i++)
                ret->errors += c->errors[i];
}

size_t figures_groups(const struct snapshot *s, struct figures_group *ret)
{
        size_t n = 0;

        for (size_t i = 0; i < s->n_metrics; i++) {
                const struct snapshot_metric *m = &s->metrics[i];
                struct snapshot_metric *sum = n ? &ret[n - 1].sum : NULL;

                if (sum && sum->path == m->path && sum->layout == m->layout) {
                        transfer_counts_merge(&sum->counts, &m->counts);
                        sum->latency_secs += m->latency_secs;
                        sum->busy_secs += m->busy_secs;
                } else {
                        ret[n++].sum = *m;
                }
        }
        for (size_t i = 0; i < n; i++)
                figures_of(&ret[i].sum, s->enabled_secs, &ret[i].figures);
        return n;
}

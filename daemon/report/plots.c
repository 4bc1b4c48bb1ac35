/* SPDX-License-Identifier: Apache-2.0 */
/* Implements plots.h. A sample is drawn at its end; if its predecessor is missing, there is a
 * gap. */
#include "report/plots.h"

#include <math.h>

#include "checked.h"
#include "report/history.h"
#include "report/plot.h"

static double rate(const struct history_sample *s, enum history_counter of)
{
        return (double)s->counted[of] / ((double)s->span_ns / 1e9);
}

static double seconds_or_none(uint64_t ns)
{
        return ns > 0 ? (double)ns / 1e9 : NAN;
}

/* Collects the ages of the samples, and whether each is connected to its predecessor; the first is
 * not. Returns the number of samples. */
static unsigned collect_axis(const struct history *h, uint64_t now_ns,
                             double ages_s[static HISTORY_SAMPLES],
                             bool joined[static HISTORY_SAMPLES])
{
        const struct history_sample *s, *before = NULL;
        unsigned n = 0;

        for (; (s = history_get(h, now_ns, n)); before = s, n++) {
                ages_s[n] = now_ns > s->end_ns ? (double)(now_ns - s->end_ns) / 1e9 : 0;
                joined[n] = before && history_is_joined(before, s);
        }
        return n;
}

void plots_print(FILE *out, const struct history *h, uint64_t now_ns)
{
        static const struct {
                const char *title;
                enum plot_unit unit;
                const char *names[PLOT_LINES];
                unsigned of[PLOT_LINES]; /* the counters or latencies that the lines show */
        } plots[] = {
                { "Hit ratio", PLOT_RATIO, { "found" }, { 0 } },
                { "Throughput",
                  PLOT_BYTES_PER_SECOND,
                  { "get", "put" },
                  { HISTORY_GET_BYTES, HISTORY_PUT_BYTES } },
                { "Disk",
                  PLOT_BYTES_PER_SECOND,
                  { "read", "written" },
                  { HISTORY_DISK_READ_BYTES, HISTORY_DISK_WRITTEN_BYTES } },
                { "Get latency of a key", PLOT_SECONDS, { "p50", "p99" }, { HISTORY_GET } },
                { "Put latency of a key", PLOT_SECONDS, { "p50", "p99" }, { HISTORY_PUT } },
                { "Evictions a second",
                  PLOT_COUNT,
                  { "memory", "disk" },
                  { HISTORY_EVICTIONS_MEMORY, HISTORY_EVICTIONS_DISK } },
        };
        static double ages[HISTORY_SAMPLES],
                values[PLOT_LINES][HISTORY_SAMPLES]; /* static because
                                                      * it is large;
                                                      * single thread */
        static bool joined[HISTORY_SAMPLES];
        unsigned n = collect_axis(h, now_ns, ages, joined);

        fputs("<section><h2>The last 15 minutes</h2>\n<div class=\"grid\">\n", out);
        for (size_t k = 0; k < ARRAY_SIZE(plots); k++) {
                struct plot plot = { .title = plots[k].title,
                                     .unit = plots[k].unit,
                                     .sum = NAN,
                                     .span_s = HISTORY_SPAN_S,
                                     .n = n,
                                     .ages_s = ages,
                                     .joined = joined,
                                     .current_s = 2 * HISTORY_INTERVAL_S };

                for (; plot.n_lines < PLOT_LINES && plots[k].names[plot.n_lines]; plot.n_lines++)
                        plot.lines[plot.n_lines] = (struct plot_line){ plots[k].names[plot.n_lines],
                                                                       values[plot.n_lines] };
                for (unsigned i = 0; i < n; i++) {
                        const struct history_sample *s = history_get(h, now_ns, i);
                        unsigned of = plots[k].of[0];

                        if (plot.unit == PLOT_RATIO) {
                                values[0][i] = history_hit_ratio(s->counted);
                        } else if (plot.unit == PLOT_SECONDS) {
                                values[0][i] = seconds_or_none(s->p50_ns[of]);
                                values[1][i] = seconds_or_none(s->p99_ns[of]);
                        } else {
                                values[0][i] = rate(s, of);
                                values[1][i] = rate(s, plots[k].of[1]);
                        }
                }
                if (plot.unit == PLOT_COUNT)
                        plot.sum = (double)history_sum(h, now_ns, plots[k].of[0]) +
                                   (double)history_sum(h, now_ns, plots[k].of[1]);
                plot_print(out, &plot);
        }
        fputs("</div></section>\n", out);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Plots a replay; see replay-plot.h. Each point shows one part of the workload (struct
 * replay_part); parts without a replayed request have no point. */
#include "replay-plot.h"

#include <string.h>

#include "checked.h"
#include "common.h"
#include "human.h"
#include "plot-option.h"

enum { OF_MEMORY = 0, OF_ALL = 1, OF_TIME = 2, LINES = 3, HITS = 2 };

static double value_of(const struct replay_part *part, unsigned series)
{
        double asked = (double)MAX(part->blocks_asked, UINT64_C(1));

        switch (series) {
        case OF_MEMORY:
                return 100 * (double)part->blocks_hit_memory / asked;
        case OF_ALL:
                return 100 * (double)part->blocks_hit / asked;
        default:
                return (double)part->ns / (double)part->requests / 1e6;
        }
}

/* Fills a line. Returns the number of its points. */
static size_t fill_line(const struct replay_result *result, unsigned series, const char *name,
                        char (*marks)[HUMAN_BYTES], struct chart_point *points)
{
        uint64_t first = 1;
        size_t n = 0;

        for (size_t i = 0; i < REPLAY_PARTS; i++) {
                const struct replay_part *part = &result->parts[i];
                struct chart_point *point = &points[n];

                if (part->requests == 0)
                        continue;
                human_count(first + part->requests - 1, marks[n]);
                *point = (struct chart_point){ .x = (double)(first + part->requests - 1),
                                               .y = value_of(part, series),
                                               .mark = marks[n] };
                snprintf(point->text, sizeof(point->text), "%s, up to %s: %.3g %s", name, marks[n],
                         point->y, series == OF_TIME ? "ms" : "%");
                first += part->requests;
                n++;
        }
        return n;
}

int replay_plot(const struct replay_result *result, const char *workload, const char *svg)
{
        static const char *const names[LINES] = { "memory", "memory and disk", "mean" };
        static struct chart_point points[LINES][REPLAY_PARTS];
        static char marks[REPLAY_PARTS][HUMAN_BYTES];
        struct chart_line lines[LINES];
        struct chart_panel panels[] = {
                { .title = "Hit ratio: hits, of the blocks asked for",
                  .unit = "%",
                  .lines = lines,
                  .n_lines = HITS,
                  .x_title = "requests",
                  .is_linear = true },
                { .title = "Time of a request",
                  .unit = "ms",
                  .lines = lines + HITS,
                  .n_lines = LINES - HITS,
                  .x_title = "requests",
                  .is_linear = true },
        };
        struct chart chart = {
                .title = "Replay", .subtitle = workload, .panels = panels, .n = ARRAY_SIZE(panels)
        };

        for (unsigned i = 0; i < LINES; i++) {
                lines[i] = (struct chart_line){ i, points[i],
                                                fill_line(result, i, names[i], marks, points[i]) };
                chart.series[i] = names[i];
                chart.is_line[i] = true;
        }
        if (lines[0].n == 0)
                return svg ? complain(EXIT_LOCAL,
                                      "no request was replayed, so there is nothing to plot")
                           : EXIT_OK;
        if (svg)
                return plot_option_write(&chart, svg);
        chart_text(&chart, stdout);
        return EXIT_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Draws the report: for each path, a bar per layout; rate, transfers/block and the mean size of a
 * transfer. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "chart.h"
#include "figures.h"
#include "report.h"
#include "units.h"

enum { PANELS = 3 };

static const char *const layout_labels[TRANSFER_LAYOUTS] = {
        [TRANSFER_FULLY_CONTIGUOUS] = "fully contiguous",
        [TRANSFER_LAYER_SEPARATE_BLOCK_FIRST] = "layer-separate, block-first",
        [TRANSFER_LAYER_SEPARATE_OUTER_FIRST] = "layer-separate, outer-first",
        [TRANSFER_REGIONS] = "listed regions",
        [TRANSFER_LAYOUT_OTHER] = "other layout",
};

/* Returns the colour index of a layout. */
static unsigned series_of(unsigned layout)
{
        if (layout == TRANSFER_REGIONS)
                return CHART_GREY + 1;
        return layout == TRANSFER_LAYOUT_OTHER ? CHART_GREY : layout - 1;
}

static void fill_bar(unsigned panel, const struct figures_group *g, struct chart_bar *ret)
{
        const struct figures *f = &g->figures;
        char text[UNITS_TEXT];

        *ret = (struct chart_bar){ .group = transfer_path_name(g->sum.path),
                                   .label = layout_labels[g->sum.layout],
                                   .series = series_of(g->sum.layout) };
        switch (panel) {
        case 0:
                ret->value = f->rate / 1e9;
                snprintf(ret->text, sizeof(ret->text), "%.3g GB/s", ret->value);
                break;
        case 1:
                ret->value = f->transfers_per_block;
                snprintf(ret->text, sizeof(ret->text), "%.4g", ret->value);
                break;
        default:
                ret->value = f->mean_bytes / 1024;
                snprintf(ret->text, sizeof(ret->text), "%s",
                         units_bytes((uint64_t)f->mean_bytes, text));
        }
}

static int write_page(const struct chart *chart, const struct snapshot *s,
                      const struct report_options *o, FILE *out)
{
        _cleanup_(freep) char *text = NULL;
        size_t bytes = 0;
        FILE *memory = open_memstream(&text, &bytes);

        if (!memory)
                return -ENOMEM;
        session_report_text(s, o, memory);
        if (fclose(memory) != 0)
                return -ENOMEM;
        chart_html(chart, text, out);
        return 0;
}

int session_report_chart(const struct snapshot *s, const struct report_options *o, FILE *out)
{
        static const struct chart_panel titles[PANELS] = {
                { .title = "Transfer rate", .unit = "GB/s" },
                { .title = "Transfers per block (fewer is better)", .unit = "transfers" },
                { .title = "Mean size of a transfer", .unit = "KiB" },
        };
        _cleanup_(freep) struct figures_group *groups = calloc(s->n_metrics + 1, sizeof(*groups));
        _cleanup_(freep) struct chart_bar *bars = calloc(PANELS * s->n_metrics + 1, sizeof(*bars));
        struct chart_panel panels[PANELS];
        char title[SNAPSHOT_TEXT + 32], subtitle[4 * SNAPSHOT_TEXT];
        struct chart chart = {
                .title = title, .subtitle = subtitle, .panels = panels, .n = PANELS
        };
        size_t n;

        if (!groups || !bars)
                return -ENOMEM;
        n = figures_groups(s, groups);
        for (unsigned p = 0; p < PANELS; p++) {
                panels[p] = titles[p];
                panels[p].bars = bars + p * n;
                panels[p].n = n;
                for (size_t i = 0; i < n; i++) {
                        fill_bar(p, &groups[i], &panels[p].bars[i]);
                        chart.series[panels[p].bars[i].series] = panels[p].bars[i].label;
                }
        }
        snprintf(title, sizeof(title), "Session %s", s->name);
        snprintf(subtitle, sizeof(subtitle), "%s, %s, %" PRIu64 " CPUs; kvcache-daemon %s%s",
                 s->hostname, s->kernel, s->cpus, s->daemon_version,
                 n > 0 ? "" : ". No transfers.");
        report_ascii(subtitle);
        if (o->format == REPORT_HTML)
                return write_page(&chart, s, o, out);
        chart_svg(&chart, out);
        return 0;
}

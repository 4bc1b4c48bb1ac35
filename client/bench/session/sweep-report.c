/* SPDX-License-Identifier: Apache-2.0 */
#include "sweep-report.h"

#include <errno.h>
#include <inttypes.h>

#include "chart.h"
#include "common.h"
#include "units.h"

/* Returns the number of contiguous pieces of a block in memory, each of which gather and scatter
 * copy separately. */
static uint64_t pieces_of(const struct sweep_options *o, const struct sweep_point *p)
{
        switch (p->kind) {
        case KVCACHE_LAYOUT_CONTIGUOUS:
                return 1;
        case KVCACHE_LAYOUT_BLOCK_FIRST:
                return o->layers;
        default:
                return o->layers * o->outer;
        }
}

/* --- text --- */

static void print_text(const struct sweep_options *o, const struct sweep_result *result,
                       const char *where, FILE *out)
{
        char region[UNITS_TEXT], block[UNITS_TEXT];

        fprintf(out,
                "%s\n%s; %llu layers, outer %llu; %llu iteration%s, median; MB/s are 10^6 bytes a "
                "second\n\n",
                where, o->cold ? "cold: chunks are read from disk" : "warm", o->layers, o->outer,
                o->iterations, o->iterations == 1 ? "" : "s");
        fprintf(out, "%-9s %-9s %7s %5s %-5s %-11s %6s %9s %9s %9s %9s %9s %6s\n", "region",
                "block", "clients", "depth", "op", "layout", "pieces", "MB/s", "slowest", "rate",
                "p50 us", "p99 us", "disk");
        for (size_t i = 0; i < result->n; i++) {
                const struct sweep_point *p = &result->points[i];
                double ratio = p->of_contiguous;
                char ratio_text[32] = "-", disk[32] = "-";

                if (ratio > 0 && p->kind != KVCACHE_LAYOUT_CONTIGUOUS)
                        snprintf(ratio_text, sizeof(ratio_text), "x %.2f", ratio);
                if (p->op != SWEEP_PUT)
                        snprintf(disk, sizeof(disk), "%.0f %%", p->from_disk * 100);
                fprintf(out,
                        "%-9s %-9s %7" PRIu64 " %5" PRIu64 " %-5s %-11s %6" PRIu64
                        " %9.1f %9.1f %9s %9.1f %9.1f %6s\n",
                        units_bytes(p->region_bytes, region), units_bytes(p->block_bytes, block),
                        p->clients, p->depth, sweep_op_name(p->op), sweep_kind_name(p->kind),
                        pieces_of(o, p), p->rate / 1e6, p->slowest / 1e6, ratio_text,
                        (double)p->p50_ns / 1e3, (double)p->p99_ns / 1e3, disk);
        }
        if (o->verify && result->n > 0) {
                uint64_t verified = 0;

                for (size_t i = 0; i < result->n; i++)
                        verified += result->points[i].verified_bytes;
                fprintf(out, "\nverified: %" PRIu64 " bytes, 0 wrong\n", verified);
        }
}

/* --- machine-readable formats --- */

static int print_json_points(const struct sweep_options *o, const struct sweep_result *result,
                             const char *where, bool one_line, FILE *out)
{
        _cleanup_(cJSON_Deletep) cJSON *object = cJSON_CreateObject();
        _cleanup_(freep) char *text = NULL;
        cJSON *points;

        cJSON_AddStringToObject(object, "schema", "kvcache.bench.run.v1");
        cJSON_AddStringToObject(object, "daemon", where);
        cJSON_AddBoolToObject(object, "cold", o->cold);
        cJSON_AddNumberToObject(object, "layers", (double)o->layers);
        cJSON_AddNumberToObject(object, "outer", (double)o->outer);
        cJSON_AddNumberToObject(object, "iterations", (double)o->iterations);
        points = cJSON_AddArrayToObject(object, "points");
        for (size_t i = 0; i < result->n; i++) {
                const struct sweep_point *p = &result->points[i];
                cJSON *item = cJSON_CreateObject();

                cJSON_AddStringToObject(item, "layout", sweep_kind_name(p->kind));
                cJSON_AddStringToObject(item, "op", sweep_op_name(p->op));
                cJSON_AddNumberToObject(item, "region_bytes", (double)p->region_bytes);
                cJSON_AddNumberToObject(item, "block_bytes", (double)p->block_bytes);
                cJSON_AddNumberToObject(item, "blocks", (double)p->blocks);
                cJSON_AddNumberToObject(item, "pieces_per_block", (double)pieces_of(o, p));
                cJSON_AddNumberToObject(item, "clients", (double)p->clients);
                cJSON_AddNumberToObject(item, "depth", (double)p->depth);
                cJSON_AddNumberToObject(item, "rate_bps", p->rate);
                cJSON_AddNumberToObject(item, "slowest_bps", p->slowest);
                cJSON_AddNumberToObject(item, "fastest_bps", p->fastest);
                cJSON_AddNumberToObject(item, "of_contiguous", p->of_contiguous);
                cJSON_AddNumberToObject(item, "p50_us", (double)p->p50_ns / 1e3);
                cJSON_AddNumberToObject(item, "p99_us", (double)p->p99_ns / 1e3);
                cJSON_AddNumberToObject(item, "from_disk", p->from_disk);
                cJSON_AddNumberToObject(item, "verified_bytes", (double)p->verified_bytes);
                cJSON_AddItemToArray(points, item);
        }
        text = one_line ? cJSON_PrintUnformatted(object) : cJSON_Print(object);
        if (!text)
                return -ENOMEM;
        fprintf(out, "%s\n", text);
        return 0;
}

static void print_csv(const struct sweep_options *o, const struct sweep_result *result, FILE *out)
{
        fputs("layout,op,region_bytes,block_bytes,blocks,pieces_per_block,clients,depth,rate_bps,"
              "slowest_bps,fastest_bps,of_contiguous,p50_us,p99_us,from_disk,verified_bytes\n",
              out);
        for (size_t i = 0; i < result->n; i++) {
                const struct sweep_point *p = &result->points[i];

                fprintf(out,
                        "%s,%s,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64
                        ",%.9g,%.9g,%.9g,%.4f,%.3f,%.3f,%.4f,%" PRIu64 "\n",
                        sweep_kind_name(p->kind), sweep_op_name(p->op), p->region_bytes,
                        p->block_bytes, p->blocks, pieces_of(o, p), p->clients, p->depth, p->rate,
                        p->slowest, p->fastest, p->of_contiguous, (double)p->p50_ns / 1e3,
                        (double)p->p99_ns / 1e3, p->from_disk, p->verified_bytes);
        }
}

/* --- the chart --- */

static const char *const layout_labels[SWEEP_LAYOUTS] = {
        "fully contiguous",
        "layer-separate, block-first",
        "layer-separate, outer-first",
};

enum { GROUP_BYTES = 96 };

static void fill_bar(const struct sweep_point *p, char *group, struct chart_bar *ret)
{
        char region[UNITS_TEXT];
        double ratio = p->of_contiguous;

        snprintf(group, GROUP_BYTES,
                 "regions of %s, %" PRIu64 " client%s, %" PRIu64 " block%s in flight",
                 units_bytes(p->region_bytes, region), p->clients, p->clients == 1 ? "" : "s",
                 p->depth, p->depth == 1 ? "" : "s");
        *ret = (struct chart_bar){ .group = group,
                                   .label = layout_labels[p->kind - 1],
                                   .series = p->kind - 1,
                                   .value = p->rate / 1e9 };
        if (ratio > 0 && p->kind != KVCACHE_LAYOUT_CONTIGUOUS)
                snprintf(ret->text, sizeof(ret->text), "%.3g GB/s (x %.2f)", ret->value, ratio);
        else
                snprintf(ret->text, sizeof(ret->text), "%.3g GB/s", ret->value);
}

static int print_page(const struct chart *chart, const struct sweep_options *o,
                      const struct sweep_result *result, const char *where, FILE *out)
{
        _cleanup_(freep) char *text = NULL;
        size_t bytes = 0;
        FILE *memory = open_memstream(&text, &bytes);

        if (!memory)
                return -ENOMEM;
        print_text(o, result, where, memory);
        if (fclose(memory) != 0)
                return -ENOMEM;
        chart_html(chart, text, out);
        return 0;
}

static int print_chart(const struct sweep_options *o, const struct sweep_result *result,
                       const char *where, bool page, FILE *out)
{
        static const char *const titles[SWEEP_OPS] = { "Put: gathered into staging, and put",
                                                       "Get: got in place, and scattered",
                                                       "Mixed: put and get in turns" };
        _cleanup_(freep) struct chart_bar *bars = calloc(result->n + 1, sizeof(*bars));
        _cleanup_(freep) char *groups = calloc(result->n + 1, GROUP_BYTES);
        struct chart_panel panels[SWEEP_OPS];
        char subtitle[512];
        struct chart chart = { .title = "What a memory layout costs",
                               .subtitle = subtitle,
                               .panels = panels };
        size_t n = 0;

        if (!bars || !groups)
                return -ENOMEM;
        for (unsigned op = 0; op < SWEEP_OPS; op++) {
                struct chart_panel panel = { titles[op], "GB/s", bars + n, 0 };

                for (size_t i = 0; i < result->n; i++) {
                        const struct sweep_point *p = &result->points[i];

                        if (p->op != op)
                                continue;
                        fill_bar(p, groups + n * GROUP_BYTES, &bars[n]);
                        chart.series[bars[n].series] = bars[n].label;
                        n++;
                        panel.n++;
                }
                if (panel.n > 0)
                        panels[chart.n++] = panel;
        }
        snprintf(subtitle, sizeof(subtitle), "%s; %s, %llu layers, outer %llu", where,
                 o->cold ? "cold" : "warm", o->layers, o->outer);
        report_ascii(subtitle);
        if (page)
                return print_page(&chart, o, result, where, out);
        chart_svg(&chart, out);
        return 0;
}

int sweep_report(const struct sweep_options *o, const struct sweep_result *result,
                 const char *where, const struct report_options *how, FILE *out)
{
        switch (how->format) {
        case REPORT_TEXT:
                print_text(o, result, where, out);
                return 0;
        case REPORT_JSON:
                return print_json_points(o, result, where, how->one_line, out);
        case REPORT_CSV:
                print_csv(o, result, out);
                return 0;
        case REPORT_SVG:
        case REPORT_HTML:
                return print_chart(o, result, where, how->format == REPORT_HTML, out);
        }
        return 0;
}

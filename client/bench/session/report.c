/* SPDX-License-Identifier: Apache-2.0 */
/* The machine-readable formats of the report, and the choice of the format; report-text.c and
 * report-chart.c have those for people. */
#include "report.h"

#include <errno.h>
#include <inttypes.h>

#include "common.h"
#include "figures.h"

void report_ascii(char *text)
{
        for (; *text; text++)
                if (*text < ' ' || *text > '~')
                        *text = '?';
}

/* --- JSON --- */

static void add_figures(cJSON *o, const struct figures *f, const struct report_options *options)
{
        cJSON *latency;

        cJSON_AddNumberToObject(o, "transfers_per_block", f->transfers_per_block);
        cJSON_AddNumberToObject(o, "regions_per_transfer", f->regions_per_transfer);
        cJSON_AddNumberToObject(o, "avg_transfer_size", f->mean_bytes);
        cJSON_AddNumberToObject(o, "transfer_rate_bps", f->rate);
        cJSON_AddNumberToObject(o, "block_rate_bps", f->block_rate);
        if (!options->no_clock)
                cJSON_AddNumberToObject(o, "wall_rate_bps", f->wall_rate);
        latency = cJSON_AddObjectToObject(o, "latency");
        cJSON_AddNumberToObject(latency, "avg_secs", f->mean_latency_secs);
        for (unsigned i = 0; i < FIGURES_QUANTILES; i++) {
                char name[16];

                snprintf(name, sizeof(name), "%s_secs", figures_quantiles[i].name);
                cJSON_AddNumberToObject(latency, name, f->latency_secs[i]);
        }
        cJSON_AddNumberToObject(o, "error_count", (double)f->errors);
}

static void add_summary(cJSON *o, const struct snapshot *s, const struct figures_group *groups,
                        size_t n, const struct report_options *options)
{
        cJSON *array = cJSON_AddArrayToObject(o, "summary");

        for (size_t i = 0; i < n; i++) {
                const struct snapshot_metric *m = &groups[i].sum;
                cJSON *item = cJSON_CreateObject();

                cJSON_AddStringToObject(item, "path", transfer_path_name(m->path));
                cJSON_AddStringToObject(item, "layout", transfer_layout_name(m->layout));
                cJSON_AddNumberToObject(item, "transfer_count", (double)m->counts.transfers);
                cJSON_AddNumberToObject(item, "total_bytes", (double)m->counts.bytes);
                add_figures(item, &groups[i].figures, options);
                cJSON_AddItemToArray(array, item);
        }
}

static int report_json(const struct snapshot *s, const struct report_options *o, FILE *out)
{
        _cleanup_(cJSON_Deletep) cJSON *object = snapshot_json(s);
        _cleanup_(freep) struct figures_group *groups = calloc(s->n_metrics + 1, sizeof(*groups));
        _cleanup_(freep) char *text = NULL;
        cJSON *metric;
        size_t i = 0;

        if (!object || !groups)
                return -ENOMEM;
        if (o->no_clock) {
                cJSON_DeleteItemFromObject(object, "created");
                cJSON_DeleteItemFromObject(object, "updated");
                cJSON_DeleteItemFromObject(object, "enabled_secs");
                cJSON_DeleteItemFromObject(object, "idle");
        }
        cJSON_ArrayForEach(metric, cJSON_GetObjectItem(object, "metrics"))
        {
                struct figures f;

                figures_of(&s->metrics[i++], s->enabled_secs, &f);
                add_figures(metric, &f, o);
        }
        add_summary(object, s, groups, figures_groups(s, groups), o);
        text = o->one_line ? cJSON_PrintUnformatted(object) : cJSON_Print(object);
        if (!text)
                return -ENOMEM;
        fprintf(out, "%s\n", text);
        return 0;
}

/* --- CSV --- */

static void report_csv(const struct snapshot *s, const struct report_options *o, FILE *out)
{
        fputs("session,path,layout,technology,transfers,blocks,regions,bytes,device_bytes,"
              "transfers_per_block,regions_per_transfer,min_bytes,avg_bytes,max_bytes,busy_secs,"
              "transfer_rate_bps,block_rate_bps,",
              out);
        if (!o->no_clock)
                fputs("wall_rate_bps,", out);
        fputs("latency_avg_secs", out);
        for (unsigned i = 0; i < FIGURES_QUANTILES; i++)
                fprintf(out, ",latency_%s_secs", figures_quantiles[i].name);
        for (unsigned i = 1; i < TRANSFER_RESULTS; i++)
                fprintf(out, ",errors_%s", transfer_result_name(i));
        fputc('\n', out);
        for (size_t i = 0; i < s->n_metrics; i++) {
                const struct snapshot_metric *m = &s->metrics[i];
                const struct transfer_counts *c = &m->counts;
                struct figures f;

                figures_of(m, s->enabled_secs, &f);
                fprintf(out,
                        "%s,%s,%s,%s,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64
                        ",%.6g,%.6g,%" PRIu64 ",%.6g,%" PRIu64 ",%.9g,%.9g,%.9g,",
                        s->name, transfer_path_name(m->path), transfer_layout_name(m->layout),
                        transfer_technology_name(m->technology), c->transfers, c->blocks,
                        c->regions, c->bytes, c->device_bytes, f.transfers_per_block,
                        f.regions_per_transfer, c->transfers ? c->min_bytes : 0, f.mean_bytes,
                        c->max_bytes, m->busy_secs, f.rate, f.block_rate);
                if (!o->no_clock)
                        fprintf(out, "%.9g,", f.wall_rate);
                fprintf(out, "%.9g", f.mean_latency_secs);
                for (unsigned k = 0; k < FIGURES_QUANTILES; k++)
                        fprintf(out, ",%.9g", f.latency_secs[k]);
                for (unsigned k = 1; k < TRANSFER_RESULTS; k++)
                        fprintf(out, ",%" PRIu64, c->errors[k]);
                fputc('\n', out);
        }
}

/* --- the report --- */

/* Copies a session with only the selected metrics. All other members still belong to `s`. */
static int select_metrics(const struct snapshot *s, const struct report_options *o,
                          struct snapshot *ret)
{
        *ret = *s;
        ret->metrics = calloc(s->n_metrics + 1, sizeof(*ret->metrics));
        ret->n_metrics = 0;
        if (!ret->metrics)
                return -ENOMEM;
        for (size_t i = 0; i < s->n_metrics; i++)
                if ((o->path < 0 || s->metrics[i].path == (unsigned)o->path) &&
                    (o->layout < 0 || s->metrics[i].layout == (unsigned)o->layout))
                        ret->metrics[ret->n_metrics++] = s->metrics[i];
        return 0;
}

int session_report(const struct snapshot *s, const struct report_options *o, FILE *out)
{
        struct snapshot selected;
        _cleanup_(freep) void *metrics = NULL;
        int r = select_metrics(s, o, &selected);

        if (r < 0)
                return r;
        metrics = selected.metrics;
        switch (o->format) {
        case REPORT_TEXT:
                session_report_text(&selected, o, out);
                return 0;
        case REPORT_JSON:
                return report_json(&selected, o, out);
        case REPORT_CSV:
                report_csv(&selected, o, out);
                return 0;
        case REPORT_SVG:
        case REPORT_HTML:
                return session_report_chart(&selected, o, out);
        }
        return 0;
}

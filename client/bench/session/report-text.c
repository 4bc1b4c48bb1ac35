/* SPDX-License-Identifier: Apache-2.0 */
/* The report as text. Every figure has its own line and a fixed width, so that in the `diff -u` of
 * two reports each differing line is a differing figure. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>

#include "figures.h"
#include "report.h"

void report_head_line(FILE *out, const char *label, const char *format, ...)
{
        char text[4 * SNAPSHOT_TEXT];
        va_list arguments;

        va_start(arguments, format);
        vsnprintf(text, sizeof(text), format, arguments);
        va_end(arguments);
        report_ascii(text);
        fprintf(out, "%-10s %s\n", label, text);
}

static void count_line(FILE *out, const char *label, uint64_t n)
{
        fprintf(out, "  %-22s %16" PRIu64 "\n", label, n);
}

static void number_line(FILE *out, const char *label, double value, const char *unit)
{
        fprintf(out, "  %-22s %16.3f%s%s\n", label, value, *unit ? " " : "", unit);
}

static void print_head(const struct snapshot *s, const struct report_options *o, FILE *out)
{
        report_head_line(out, "session", "%s", s->name);
        if (s->is_summed) {
                report_head_line(out, "source",
                                 "Dynamo's layout benchmark, which has no regions, latencies and "
                                 "errors: they are 0 here");
                if (!o->no_clock)
                        report_head_line(out, "enabled", "for %.3f s", s->enabled_secs);
                return;
        }
        report_head_line(out, "state", "%s, %s", s->active ? "active" : "not active",
                         s->enabled ? "enabled" : "disabled");
        report_head_line(out, "host", "%s, %s, %" PRIu64 " CPU%s", s->hostname, s->kernel, s->cpus,
                         s->cpus == 1 ? "" : "s");
        report_head_line(out, "daemon", "%s", s->daemon_version);
        if (o->no_clock)
                return;
        report_head_line(out, "created", "%s", s->created);
        report_head_line(out, "updated", "%s", s->updated);
        report_head_line(out, "enabled", "for %.3f s", s->enabled_secs);
}

static void print_layouts(const struct snapshot *s, const struct report_options *o, FILE *out)
{
        bool any = false;

        for (size_t i = 0; i < s->n_layouts; i++) {
                const struct snapshot_layout *l = &s->layouts[i];

                if (o->layout >= 0 && l->layout != (unsigned)o->layout)
                        continue;
                if (!any)
                        fputs("\nlayouts\n", out);
                any = true;
                fprintf(out,
                        "  %-26s %" PRIu64 " blocks, %" PRIu64 " layers, outer %" PRIu64
                        ", page %" PRIu64 ", inner %" PRIu64 ", %" PRIu64 " B, alignment %" PRIu64
                        "\n",
                        transfer_layout_name(l->layout), l->blocks, l->layers, l->outer,
                        l->page_tokens, l->inner, l->dtype_bytes, l->alignment);
        }
}

static void print_metric(const struct snapshot *s, const struct snapshot_metric *m,
                         const struct report_options *o, FILE *out)
{
        const struct transfer_counts *c = &m->counts;
        struct figures f;

        figures_of(m, s->enabled_secs, &f);
        fprintf(out, "\n%s, %s, %s\n", transfer_path_name(m->path), transfer_layout_name(m->layout),
                transfer_technology_name(m->technology));
        count_line(out, "transfers", c->transfers);
        count_line(out, "blocks", c->blocks);
        number_line(out, "transfers/block", f.transfers_per_block, "");
        count_line(out, "regions", c->regions);
        number_line(out, "regions/transfer", f.regions_per_transfer, "");
        count_line(out, "bytes", c->bytes);
        count_line(out, "bytes with padding", c->device_bytes);
        count_line(out, "size min", c->transfers ? c->min_bytes : 0);
        number_line(out, "size avg", f.mean_bytes, "");
        count_line(out, "size max", c->max_bytes);
        number_line(out, "busy", m->busy_secs, "s");
        number_line(out, "transfer rate", f.rate / 1e6, "MB/s");
        if (!o->no_clock)
                number_line(out, "wall rate", f.wall_rate / 1e6, "MB/s");
        number_line(out, "block rate", f.block_rate, "/s");
        number_line(out, "latency avg", f.mean_latency_secs * 1e6, "us");
        for (unsigned i = 0; i < FIGURES_QUANTILES; i++) {
                char label[32];

                snprintf(label, sizeof(label), "latency %s <=", figures_quantiles[i].name);
                number_line(out, label, f.latency_secs[i] * 1e6, "us");
        }
        for (unsigned i = 1; i < TRANSFER_RESULTS; i++) {
                char label[32];

                snprintf(label, sizeof(label), "errors %s", transfer_result_name(i));
                count_line(out, label, c->errors[i]);
        }
}

/* Returns the figures of the contiguous layout of the same path, or NULL. */
static const struct figures *contiguous_of(const struct figures_group *groups, size_t n,
                                           unsigned path)
{
        for (size_t i = 0; i < n; i++)
                if (groups[i].sum.path == path && groups[i].sum.layout == TRANSFER_FULLY_CONTIGUOUS)
                        return &groups[i].figures;
        return NULL;
}

static void print_summary(const struct figures_group *groups, size_t n, FILE *out)
{
        fputs("\nlayer-separate against fully contiguous\n", out);
        fprintf(out, "  %-16s %-26s %15s %16s %14s %12s %8s\n", "path", "layout", "transfers/block",
                "regions/transfer", "avg size", "MB/s", "rate");
        for (size_t i = 0; i < n; i++) {
                const struct snapshot_metric *m = &groups[i].sum;
                const struct figures *f = &groups[i].figures,
                                     *base = contiguous_of(groups, n, m->path);
                char ratio[32] = "-";

                if (base && base != f && base->rate > 0)
                        snprintf(ratio, sizeof(ratio), "x %.2f", f->rate / base->rate);
                fprintf(out, "  %-16s %-26s %15.3f %16.3f %14.0f %12.1f %8s\n",
                        transfer_path_name(m->path), transfer_layout_name(m->layout),
                        f->transfers_per_block, f->regions_per_transfer, f->mean_bytes,
                        f->rate / 1e6, ratio);
        }
}

void session_report_text(const struct snapshot *s, const struct report_options *o, FILE *out)
{
        _cleanup_(freep) struct figures_group *groups = calloc(s->n_metrics + 1, sizeof(*groups));

        print_head(s, o, out);
        print_layouts(s, o, out);
        if (s->n_metrics == 0)
                fputs("\nno transfers\n", out);
        for (size_t i = 0; i < s->n_metrics; i++)
                print_metric(s, &s->metrics[i], o, out);
        if (groups && s->n_metrics > 0)
                print_summary(groups, figures_groups(s, groups), out);
}

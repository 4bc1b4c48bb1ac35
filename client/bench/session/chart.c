/* SPDX-License-Identifier: Apache-2.0 */
#include "chart.h"

#include <math.h>
#include <string.h>

#include "checked.h"

enum {
        WIDTH = 900,
        MARGIN = 28,
        LABELS = 250, /* x position at which bars begin, behind their labels */
        BARS = 500,   /* length of the longest bar; the text of a bar follows it */
        HEAD = 96,
        TITLE = 40, /* height of a panel's title */
        BAR = 24,   /* distance between bars */
        GROUP = 28,
        AXIS = 52, /* height of the axis, with the space to the next panel */
        PLOT_LEFT = 78,
        PLOT_RIGHT = WIDTH - MARGIN - 10,
        PLOT_HEIGHT = 380,
        PLOT_AXIS = 76,
        LABEL_ROOM = 8, /* minimum distance of two labels on the x axis */
        /* ratio of the largest to the smallest x from which the x axis is logarithmic */
        LOG_FROM = 8,
};

static const char style[] =
        "<style>\n"
        ".chart{--page:#ffffff;--ink:#1b1f24;--soft:#59636e;--grid:#d8dee4;"
        "--s0:#2a6fb0;--s1:#d9822b;--s2:#2f9e77;--s3:#8a94a0;--s4:#8657b8}\n"
        "@media (prefers-color-scheme:dark){.chart{--page:#11151a;--ink:#e8ecf0;--soft:#9aa5b1;"
        "--grid:#2c343d;--s0:#5aa5ea;--s1:#f0a04b;--s2:#4fc79b;--s3:#8a94a0;--s4:#b48be0}}\n"
        ".chart text{font-family:system-ui,-apple-system,'Segoe UI',sans-serif;font-size:13px;"
        "fill:var(--ink);stroke:var(--page);stroke-width:3px;paint-order:stroke}\n"
        ".chart .t{font-size:20px;font-weight:600}\n"
        ".chart .p{font-size:15px;font-weight:600}\n"
        ".chart .s{fill:var(--soft)}\n"
        ".chart .g{font-weight:600;fill:var(--soft)}\n"
        ".chart line{stroke:var(--grid);stroke-width:1}\n"
        "</style>\n";

static void put_text(const char *text, FILE *out)
{
        for (; *text; text++)
                switch (*text) {
                case '<':
                        fputs("&lt;", out);
                        break;
                case '>':
                        fputs("&gt;", out);
                        break;
                case '&':
                        fputs("&amp;", out);
                        break;
                case '"':
                        fputs("&quot;", out);
                        break;
                default:
                        fputc(*text, out);
                }
}

static void text_at(FILE *out, double x, double y, const char *kind, const char *anchor,
                    const char *text)
{
        fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\" text-anchor=\"%s\">", x, y, kind,
                anchor);
        put_text(text, out);
        fputs("</text>\n", out);
}

/* Returns the distance of grid lines: 1, 2 or 5 times a power of ten, such that `most` is 3 to 7.5
 * times the distance. */
static double grid_step(double most)
{
        double step = pow(10, floor(log10(most)));

        if (most / step < 1.5)
                return step / 5;
        if (most / step < 3)
                return step / 2;
        return most / step < 6 ? step : step * 2;
}

static double most_of(const struct chart_panel *p)
{
        double most = 0;

        for (size_t i = 0; i < p->n; i++)
                most = MAX(most, p->bars[i].value);
        for (size_t i = 0; i < p->n_lines; i++)
                for (size_t k = 0; k < p->lines[i].n; k++)
                        most = MAX(most, p->lines[i].points[k].y);
        return isfinite(most) && most > 0 ? most : 1;
}

static bool begins_group(const struct chart_panel *p, size_t i)
{
        return i == 0 || strcmp(p->bars[i].group, p->bars[i - 1].group) != 0;
}

static double panel_height(const struct chart_panel *p)
{
        double y = TITLE + AXIS;

        if (p->n_lines > 0)
                return TITLE + PLOT_HEIGHT + PLOT_AXIS;
        for (size_t i = 0; i < p->n; i++)
                y += BAR + (begins_group(p, i) ? GROUP : 0);
        return y;
}

static void draw_grid(const struct chart_panel *p, double top, double bottom, double most,
                      FILE *out)
{
        double step = grid_step(most);

        for (unsigned i = 0; (double)i * step <= most * 1.0001; i++) {
                double x = LABELS + (double)i * step / most * BARS;
                char label[32];

                fprintf(out, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", x, x, top,
                        bottom);
                snprintf(label, sizeof(label), "%.6g", (double)i * step);
                text_at(out, x, bottom + 17, "s", "middle", label);
        }
        text_at(out, WIDTH - MARGIN, bottom + 17, "s", "end", p->unit);
}

/* --- lines --- */

struct plot {
        double top, bottom, least_x, most_x, most_y;
        bool is_log;
};

static double plot_x(const struct plot *plot, double x)
{
        double from = plot->is_log ? log(plot->least_x) : plot->least_x;
        double to = plot->is_log ? log(plot->most_x) : plot->most_x;
        double at = plot->is_log ? log(x) : x;

        if (to <= from)
                return (PLOT_LEFT + PLOT_RIGHT) / 2.0;
        return PLOT_LEFT + 14 + (at - from) / (to - from) * (PLOT_RIGHT - PLOT_LEFT - 28);
}

static double plot_y(const struct plot *plot, double y)
{
        return plot->bottom - y / plot->most_y * (plot->bottom - plot->top);
}

double chart_grid_step(const struct chart_panel *p)
{
        return grid_step(most_of(p));
}

void chart_limits(const struct chart_panel *p, double *ret_least_x, double *ret_most_x,
                  double *ret_most_y, bool *ret_is_log)
{
        double least = INFINITY, most = 0;

        for (size_t i = 0; i < p->n_lines; i++)
                for (size_t k = 0; k < p->lines[i].n; k++) {
                        least = MIN(least, p->lines[i].points[k].x);
                        most = MAX(most, p->lines[i].points[k].x);
                }
        *ret_least_x = least;
        *ret_most_x = most;
        *ret_most_y = most_of(p);
        *ret_is_log = least > 0 && most / least >= LOG_FROM && !p->is_linear;
}

static struct plot plot_of(const struct chart_panel *p, double y)
{
        struct plot plot = { .top = y + TITLE, .bottom = y + TITLE + PLOT_HEIGHT };
        double step = chart_grid_step(p);

        chart_limits(p, &plot.least_x, &plot.most_x, &plot.most_y, &plot.is_log);
        plot.most_y = ceil(plot.most_y / step - 1e-9) *
                      step; /* the largest y of the axis is the topmost grid line */
        return plot;
}

static void draw_axes(const struct chart_panel *p, const struct plot *plot, FILE *out)
{
        /* all lines have points at the same values of x */
        const struct chart_line *first = &p->lines[0];
        double step = grid_step(most_of(p)), free_from = 0;
        char label[32];

        for (unsigned i = 0; (double)i * step <= plot->most_y * 1.0001; i++) {
                double y = plot_y(plot, (double)i * step);

                fprintf(out, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>\n", PLOT_LEFT,
                        PLOT_RIGHT, y, y);
                snprintf(label, sizeof(label), "%.6g %s", (double)i * step, p->unit);
                text_at(out, PLOT_LEFT - 10, y + 4.5, "s", "end", label);
        }
        for (size_t k = 0; k < first->n; k++) {
                double x = plot_x(plot, first->points[k].x);
                double half = 3.6 * (double)strlen(first->points[k].mark);

                fprintf(out, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", x, x,
                        plot->bottom, plot->bottom + 6);
                if (x - half < free_from)
                        continue;
                text_at(out, x, plot->bottom + 21, "s", "middle", first->points[k].mark);
                free_from = x + half + LABEL_ROOM;
        }
        snprintf(label, sizeof(label), "%s", plot->is_log ? ", logarithmic" : "");
        fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" class=\"s\" text-anchor=\"middle\">",
                (PLOT_LEFT + PLOT_RIGHT) / 2.0, plot->bottom + 44);
        put_text(p->x_title, out);
        put_text(label, out);
        fputs("</text>\n", out);
}

static void draw_stroke(const struct chart *c, unsigned series, FILE *out)
{
        fprintf(out, "style=\"fill:none;stroke:var(--s%u);stroke-width:2.2%s\"/>\n", series,
                c->is_dashed[series] ? ";stroke-dasharray:7 5" : "");
}

static void draw_lines(const struct chart *c, const struct chart_panel *p, double y, FILE *out)
{
        struct plot plot = plot_of(p, y);

        text_at(out, MARGIN, y + 20, "p", "start", p->title);
        draw_axes(p, &plot, out);
        for (size_t i = 0; i < p->n_lines; i++) {
                const struct chart_line *line = &p->lines[i];

                fputs("<polyline points=\"", out);
                for (size_t k = 0; k < line->n; k++)
                        fprintf(out, "%s%.1f,%.1f", k > 0 ? " " : "",
                                plot_x(&plot, line->points[k].x), plot_y(&plot, line->points[k].y));
                fputs("\" ", out);
                draw_stroke(c, line->series, out);
                for (size_t k = 0; k < line->n; k++) {
                        fprintf(out,
                                "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.6\" "
                                "style=\"fill:var(--s%u)\"><title>",
                                plot_x(&plot, line->points[k].x), plot_y(&plot, line->points[k].y),
                                line->series);
                        put_text(line->points[k].text, out);
                        fputs("</title></circle>\n", out);
                }
        }
}

/* --- the whole chart --- */

static void draw_bars(const struct chart_panel *p, double y, FILE *out)
{
        double most = most_of(p), top = y + TITLE - 8, bottom = y + panel_height(p) - AXIS + 4;

        text_at(out, MARGIN, y + 20, "p", "start", p->title);
        draw_grid(p, top, bottom, most, out);
        y += TITLE;
        for (size_t i = 0; i < p->n; i++) {
                const struct chart_bar *b = &p->bars[i];
                double length = b->value > 0 ? MAX(b->value / most * BARS, 1.5) : 0;

                if (begins_group(p, i)) {
                        text_at(out, MARGIN, y + 17, "g", "start", b->group);
                        y += GROUP;
                }
                text_at(out, LABELS - 10, y + 13.5, "", "end", b->label);
                fprintf(out,
                        "<rect x=\"%d\" y=\"%.1f\" width=\"%.1f\" height=\"18\" rx=\"2\" "
                        "style=\"fill:var(--s%u)\"/>\n",
                        LABELS, y, length, b->series);
                text_at(out, LABELS + length + 7, y + 13.5, "", "start", b->text);
                y += BAR;
        }
}

static void draw_legend(const struct chart *c, FILE *out)
{
        double x = MARGIN;

        for (unsigned i = 0; i < CHART_SERIES; i++) {
                if (!c->series[i])
                        continue;
                if (c->is_line[i]) {
                        fprintf(out, "<polyline points=\"%.1f,74 %.1f,74\" ", x, x + 32);
                        draw_stroke(c, i, out);
                        x += 20;
                } else {
                        fprintf(out,
                                "<rect x=\"%.1f\" y=\"68\" width=\"12\" height=\"12\" rx=\"2\" "
                                "style=\"fill:var(--s%u)\"/>\n",
                                x, i);
                }
                text_at(out, x + 18, 78.5, "s", "start", c->series[i]);
                x += 46 + 7.2 * (double)strlen(c->series[i]);
        }
}

void chart_svg(const struct chart *c, FILE *out)
{
        double height = HEAD, y = HEAD;

        for (size_t i = 0; i < c->n; i++)
                height += panel_height(&c->panels[i]);
        fprintf(out,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %.0f\" width=\"%d\" "
                "height=\"%.0f\" class=\"chart\" role=\"img\">\n<title>",
                WIDTH, height, WIDTH, height);
        put_text(c->title, out);
        fputs("</title>\n", out);
        fputs(style, out);
        fputs("<rect width=\"100%\" height=\"100%\" style=\"fill:var(--page)\"/>\n", out);
        text_at(out, MARGIN, 32, "t", "start", c->title);
        text_at(out, MARGIN, 54, "s", "start", c->subtitle);
        draw_legend(c, out);
        for (size_t i = 0; i < c->n; i++) {
                if (c->panels[i].n_lines > 0)
                        draw_lines(c, &c->panels[i], y, out);
                else
                        draw_bars(&c->panels[i], y, out);
                y += panel_height(&c->panels[i]);
        }
        fputs("</svg>\n", out);
}

void chart_html(const struct chart *c, const char *text, FILE *out)
{
        fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
              "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>",
              out);
        put_text(c->title, out);
        fputs("</title>\n<style>\n"
              ":root{color-scheme:light dark}\n"
              "body{margin:24px auto;max-width:960px;padding:0 16px;background:#fff;"
              "color:#1b1f24}\n"
              "svg{width:100%;height:auto}\n"
              "pre{overflow-x:auto;font-size:13px;line-height:1.45}\n"
              "@media (prefers-color-scheme:dark){body{background:#11151a;color:#e8ecf0}}\n"
              "</style>\n</head>\n<body>\n",
              out);
        chart_svg(c, out);
        if (text) {
                fputs("<pre>\n", out);
                put_text(text, out);
                fputs("</pre>\n", out);
        }
        fputs("</body>\n</html>\n", out);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Implements plot.h. Coordinates are pixels of a box that is about as wide as a phone; the browser
 * scales the box to its width on the page. */
#include "report/plot.h"

#include <math.h>

#include "checked.h"
#include "report/html.h"
#include "units.h"

enum {
        WIDTH = 380,
        HEIGHT = 150,
        LEFT = 62, /* edges of the drawing area; axis labels are outside */
        RIGHT = 372,
        TOP = 10,
        BOTTOM = 128,
        TICKS_MAX = 12,
};

struct axis {
        double least, most; /* values at the bottom and the top */
        bool log;
        unsigned n;
        double ticks[TICKS_MAX];
};

static bool is_value(double v)
{
        return isfinite(v) && v >= 0;
}

/* --- text --- */

static const char *seconds_text(double s, char ret[static UNITS_TEXT])
{
        if (s < 1e-3)
                return units_short(s * 1e6, "µs", ret);
        if (s < 1)
                return units_short(s * 1e3, "ms", ret);
        return units_short(s, "s", ret);
}

static const char *value_text(enum plot_unit unit, double v, char ret[static UNITS_TEXT])
{
        char bytes[UNITS_TEXT];

        if (!is_value(v))
                return "–";
        switch (unit) {
        case PLOT_BYTES_PER_SECOND:
                snprintf(ret, UNITS_TEXT, "%.24s/s", units_bytes((uint64_t)fmin(v, 1e18), bytes));
                break;
        case PLOT_BYTES:
                return units_bytes((uint64_t)fmin(v, 1e18), ret);
        case PLOT_COUNT:
                if (v < 1e4)
                        snprintf(ret, UNITS_TEXT, "%.*f", v == floor(v) ? 0 : 1, v);
                else if (v < 1e6)
                        units_short(v / 1e3, "k", ret);
                else
                        units_short(fmin(v, 1e18) / 1e6, "M", ret);
                break;
        case PLOT_RATIO:
                snprintf(ret, UNITS_TEXT, "%.*f %%", 100 * v == floor(100 * v) ? 0 : 1,
                         100 * fmin(v, 1));
                break;
        case PLOT_SECONDS:
                return seconds_text(fmin(v, 1e9), ret);
        }
        return ret;
}

/* --- the axis of values --- */

/* Returns the lowest of 1, 2, 5, 10, 20 ... that is at least `x`. Bytes have powers of two, whose
 * multiples are short in binary units: 500 MiB would be followed by 1000 MiB and 1.46 GiB. */
static double nice(double x, bool bytes)
{
        static const double steps[] = { 1, 2, 5 };

        for (double two = 1; bytes && two < 1e19; two *= 2)
                if (two >= x)
                        return two;
        for (double ten = 1; ten < 1e19; ten *= 10)
                for (size_t i = 0; i < ARRAY_SIZE(steps); i++)
                        if (steps[i] * ten >= x)
                                return steps[i] * ten;
        return x;
}

static bool is_bytes(enum plot_unit unit)
{
        return unit == PLOT_BYTES || unit == PLOT_BYTES_PER_SECOND;
}

/* Makes an axis with at most three equal steps. */
static void axis_linear(struct axis *a, enum plot_unit unit, double most)
{
        double step = unit == PLOT_RATIO ? 0.5 : nice(most / 3, is_bytes(unit));
        unsigned n = unit == PLOT_RATIO ? 2 : most > 0 ? (unsigned)ceil(most / step - 1e-9) : 1;

        *a = (struct axis){ .most = n * step };
        for (; a->n <= n; a->n++)
                a->ticks[a->n] = a->n * step;
}

/* Makes an axis of whole decades; if there are many, not all are labelled. */
static void axis_log(struct axis *a, double least, double most)
{
        int low = (int)floor(log10(least) + 1e-9), high = (int)ceil(log10(most) - 1e-9), step;

        if (high <= low)
                high = low + 1;
        step = (high - low + 4) / 5;
        high = low + (high - low + step - 1) / step * step;
        *a = (struct axis){ .log = true, .least = pow(10, low), .most = pow(10, high) };
        for (int e = low; e <= high && a->n < TICKS_MAX; e += step)
                a->ticks[a->n++] = pow(10, e);
}

/* Makes the axis of a plot. Returns false if there are no values or, except for ratios, if all are
 * 0. */
static bool make_axis(const struct plot *p, struct axis *ret)
{
        double least = INFINITY, most = 0;
        bool any = false;

        for (unsigned k = 0; k < p->n_lines; k++)
                for (unsigned i = 0; i < p->n; i++) {
                        double v = p->lines[k].values[i];

                        if (!is_value(v))
                                continue;
                        any = true;
                        most = fmax(most, v);
                        if (v > 0)
                                least = fmin(least, v);
                }
        if (p->unit == PLOT_SECONDS && most > 0)
                axis_log(ret, fmin(fmax(least, 1e-9), 1e9), fmin(fmax(most, 1e-9), 1e9));
        else
                axis_linear(ret, p->unit, fmin(most, 1e18));
        return any && (most > 0 || p->unit == PLOT_RATIO);
}

static double y_of(const struct axis *a, double v)
{
        double part;

        if (a->log)
                part = v > a->least ? log10(v / a->least) / log10(a->most / a->least) : 0;
        else
                part = a->most > 0 ? v / a->most : 0;
        return BOTTOM - fmin(fmax(part, 0), 1) * (BOTTOM - TOP);
}

static double x_of(const struct plot *p, double age_s)
{
        return RIGHT - fmin(fmax(age_s / p->span_s, 0), 1) * (RIGHT - LEFT);
}

/* --- drawing --- */

static void print_axes(FILE *out, const struct plot *p, const struct axis *a, bool labels)
{
        enum { MARKS = 3 };
        char text[UNITS_TEXT];

        for (unsigned i = 0; i < a->n; i++) {
                double y = y_of(a, a->ticks[i]);

                fprintf(out, "<path class=\"axis\" d=\"M%d %.1fH%d\"/>", LEFT, y, RIGHT);
                if (labels)
                        fprintf(out, "<text x=\"%d\" y=\"%.1f\" class=\"y\">%s</text>", LEFT - 6,
                                y + 4, value_text(p->unit, a->ticks[i], text));
        }
        for (int i = 0; i < MARKS; i++) {
                double age = p->span_s * (MARKS - i) / MARKS;

                fprintf(out, "<text x=\"%.1f\" y=\"%d\"%s>−%.0f min</text>", x_of(p, age),
                        HEIGHT - 6, i == 0 ? "" : " class=\"x\"", age / 60);
        }
        fprintf(out, "<text x=\"%d\" y=\"%d\" class=\"y\">now</text>\n", RIGHT, HEIGHT - 6);
}

/* Returns the index after the last of the connected points that begin at `from`. */
static unsigned run_end(const struct plot *p, const double *values, unsigned from)
{
        unsigned end = from + 1;

        while (end < p->n && is_value(values[end]) && p->joined[end])
                end++;
        return end;
}

/* Prints a coordinate in tenths of a pixel. Coordinates are most of the page, and printf() of
 * floating point would take twice as long. */
static void print_tenths(FILE *out, double v)
{
        char text[8];
        unsigned tenths = (unsigned)(v * 10 + 0.5), n = sizeof(text);

        text[--n] = (char)('0' + tenths % 10);
        text[--n] = '.';
        for (tenths /= 10; n > 0; tenths /= 10) {
                text[--n] = (char)('0' + tenths % 10);
                if (tenths < 10)
                        break;
        }
        fwrite(text + n, 1, sizeof(text) - n, out);
}

static void print_points(FILE *out, const struct plot *p, const struct axis *a,
                         const double *values, unsigned from, unsigned end)
{
        for (unsigned i = from; i < end; i++) {
                fputc(i == from ? 'M' : 'L', out);
                print_tenths(out, x_of(p, p->ages_s[i]));
                fputc(' ', out);
                print_tenths(out, y_of(a, values[i]));
        }
}

/* Prints the path of a line, or of the area below it. */
static void print_path(FILE *out, const struct plot *p, const struct axis *a, const double *values,
                       bool is_area)
{
        for (unsigned i = 0, end; i < p->n; i = end) {
                end = i + 1;
                if (!is_value(values[i]))
                        continue;
                end = run_end(p, values, i);
                print_points(out, p, a, values, i, end);
                if (is_area)
                        fprintf(out, "V%dH%.1fZ", BOTTOM, x_of(p, p->ages_s[i]));
                else if (end == i + 1)
                        fputs("h0", out); /* draws a single point */
        }
        fputs("\"/>\n", out);
}

static void print_line(FILE *out, const struct plot *p, const struct axis *a, unsigned k)
{
        if (k == 0 && !a->log) {
                fputs("<path class=\"area\" d=\"", out);
                print_path(out, p, a, p->lines[k].values, true);
        }
        fprintf(out, "<path class=\"line%u\" d=\"", k + 1);
        print_path(out, p, a, p->lines[k].values, false);
}

static double value_now(const struct plot *p, unsigned k)
{
        return p->n > 0 && p->ages_s[p->n - 1] <= p->current_s ? p->lines[k].values[p->n - 1] : NAN;
}

/* Returns the highest value of a line; for ratios, whose highest value says little, the lowest.
 * Returns NAN if the line has no values. */
static double extreme(const struct plot *p, unsigned k)
{
        double of = NAN;

        for (unsigned i = 0; i < p->n; i++) {
                double v = p->lines[k].values[i];

                if (is_value(v))
                        of = p->unit == PLOT_RATIO ? fmin(of, v) : fmax(of, v);
        }
        return of;
}

/* Prints "get 1.2 GiB/s now, highest 3 GiB/s". */
static void print_summary(FILE *out, const struct plot *p, unsigned k, bool html)
{
        const char *which = p->unit == PLOT_RATIO ? "lowest" : "highest";
        const char *bound = p->unit == PLOT_SECONDS ? "≤" : "";
        char now[UNITS_TEXT], most[UNITS_TEXT];
        double of = value_now(p, k);

        fprintf(out, html ? "%s <b>%s%s</b>" : "%s %s%s now", p->lines[k].name,
                is_value(of) ? bound : "", value_text(p->unit, of, now));
        of = extreme(p, k);
        if (is_value(of))
                fprintf(out, html ? " <small>%s&#160;%s%s</small>" : ", %s %s%s", which, bound,
                        value_text(p->unit, of, most));
}

void plot_print(FILE *out, const struct plot *p)
{
        struct axis axis;
        bool any = make_axis(p, &axis);

        fprintf(out, "<figure>\n<figcaption><h3>%s</h3>", p->title);
        if (isfinite(p->sum)) {
                fputs("<span class=\"note\">", out);
                html_number(out, p->sum);
                fprintf(out, " in %.0f min</span>", p->span_s / 60);
        }
        fputs("\n<ul class=\"legend\">", out);
        for (unsigned k = 0; k < p->n_lines; k++) {
                fprintf(out,
                        "<li><svg viewBox=\"0 0 24 8\" aria-hidden=\"true\"><path "
                        "class=\"line%u\" d=\"M1 4H23\"/></svg> ",
                        k + 1);
                print_summary(out, p, k, true);
                fputs("</li>", out);
        }
        fprintf(out,
                "</ul></figcaption>\n<svg class=\"plot\" viewBox=\"0 0 %d %d\" role=\"img\" "
                "aria-label=\"%s, the last %.0f minutes: ",
                WIDTH, HEIGHT, p->title, p->span_s / 60);
        if (!any)
                fputs("nothing", out);
        for (unsigned k = 0; any && k < p->n_lines; k++) {
                fputs(k > 0 ? "; " : "", out);
                print_summary(out, p, k, false);
        }
        fputs("\">\n", out);
        print_axes(out, p, &axis, any);
        if (any)
                for (unsigned k = p->n_lines; k-- > 0;)
                        print_line(out, p, &axis, k);
        else
                fprintf(out, "<text x=\"%d\" y=\"%d\" class=\"x\">%s</text>\n", (LEFT + RIGHT) / 2,
                        (TOP + BOTTOM) / 2 - 10,
                        p->n > 0 ? "nothing in this time" : "no sample yet");
        fputs("</svg></figure>\n", out);
}

void plot_bar(FILE *out, double live, double reserved, double limit)
{
        char text[3][UNITS_TEXT];
        double of_live, of_reserved;

        if (!(is_value(live) && is_value(reserved) && is_value(limit) && limit > 0))
                return;
        of_live = fmin(live / limit, 1);
        of_reserved = fmin(reserved / limit, 1);
        fprintf(out,
                "<svg class=\"bar\" role=\"img\" aria-label=\"live %s, reserved %s, of %s\">"
                "<rect class=\"track\" width=\"100%%\" height=\"100%%\"/>",
                units_bytes((uint64_t)fmin(live, 1e18), text[0]),
                units_bytes((uint64_t)fmin(reserved, 1e18), text[1]),
                units_bytes((uint64_t)fmin(limit, 1e18), text[2]));
        if (of_reserved > of_live)
                fprintf(out,
                        "<rect class=\"reserved\" width=\"%.2f%%\" height=\"100%%\"/>"
                        "<rect fill=\"url(#hatch)\" width=\"%.2f%%\" height=\"100%%\"/>",
                        100 * of_reserved, 100 * of_reserved);
        fprintf(out, "<rect class=\"live\" width=\"%.2f%%\" height=\"100%%\"/></svg>\n",
                100 * of_live);
}

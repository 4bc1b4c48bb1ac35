/* SPDX-License-Identifier: Apache-2.0 */
/* Implements html.h. Bytes, ratios and whole numbers up to 1e15 are printed as <data> elements. The
 * value attribute has the number itself, for a ratio rounded to six significant digits. */
#include "report/html.h"

#include <math.h>
#include <time.h>

#include "text.h"
#include "units.h"

#define NONE "–"

static void escape(FILE *out, char c)
{
        switch (c) {
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
        case '\'':
                fputs("&#39;", out);
                break;
        default:
                fputc(c, out);
        }
}

void html_text_short(FILE *out, const char *text, unsigned most)
{
        for (; text && *text; text++) {
                size_t n = text_control(text);

                /* Count characters, not bytes: 10xxxxxx is a continuation byte of UTF-8, not a new
                 * character. */
                if (((unsigned char)*text & 0xc0) != 0x80 && most-- == 0) {
                        fputs("…", out);
                        return;
                }
                if (n > 0) {
                        fputs("�", out);
                        text += n - 1;
                } else {
                        escape(out, *text);
                }
        }
}

void html_text(FILE *out, const char *text)
{
        html_text_short(out, text, UINT32_MAX);
}

void html_bytes(FILE *out, double bytes)
{
        char text[UNITS_TEXT];

        if (fabs(bytes) < 1.8e19) /* fits 64 bits */
                fprintf(out, "<data value=\"%.0f\" title=\"%.0f bytes\">%s%s</data>", bytes, bytes,
                        bytes < 0 ? "−" : "", units_bytes((uint64_t)fabs(bytes), text));
        else
                fputs(NONE, out);
}

void html_seconds(FILE *out, double s)
{
        if (!isfinite(s))
                fputs(NONE, out);
        else if (s == 0)
                fputs("0 s", out);
        else if (s < 1e-3)
                fprintf(out, "%.0f µs", s * 1e6);
        else if (s < 1)
                fprintf(out, "%.1f ms", s * 1e3);
        else if (s < 120)
                fprintf(out, "%.*f s", s == floor(s) ? 0 : 1, s);
        else if (s < 7200)
                fprintf(out, "%.0f min", s / 60);
        else if (s < 172800)
                fprintf(out, "%.1f h", s / 3600);
        else
                fprintf(out, "%.1f days", s / 86400);
}

void html_number(FILE *out, double x)
{
        char digits[32];
        size_t n;

        if (!isfinite(x)) {
                fputs(NONE, out);
                return;
        }
        if (x != floor(x) || fabs(x) > 1e15) {
                fprintf(out, "%.4g", x);
                return;
        }
        n = (size_t)snprintf(digits, sizeof(digits), "%.0f", fabs(x));
        fprintf(out, "<data value=\"%.0f\">%s", x, x < 0 ? "−" : "");
        for (size_t i = 0; i < n; i++)
                fprintf(out, "%s%c", i > 0 && (n - i) % 3 == 0 ? "&#8239;" : "", digits[i]);
        fputs("</data>", out);
}

void html_ratio(FILE *out, double ratio)
{
        if (isfinite(100 * ratio))
                fprintf(out, "<data value=\"%.6g\">%.1f&#8239;%%</data>", ratio, 100 * ratio);
        else
                fputs(NONE, out);
}

void html_time(FILE *out, double unix_ms)
{
        time_t t;
        char text[32];
        struct tm tm;

        if (!(unix_ms > 0)) {
                fputs("never", out);
                return;
        }
        t = (time_t)(unix_ms < 1e15 ? unix_ms / 1e3 : 0);
        if (t > 0 && gmtime_r(&t, &tm) &&
            strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &tm) > 0)
                fputs(text, out);
        else
                fprintf(out, "%.0f", unix_ms);
}

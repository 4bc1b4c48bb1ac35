/* SPDX-License-Identifier: Apache-2.0 */
/* See page.h. */
#include "report/page.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include <cjson/cJSON.h>

#include "units.h"
#include "checked.h"

enum { PAGE_DEPTH = 8 };

static void page_text(FILE *out, const char *text)
{
        for (; text && *text; text++) {
                if (*text == '<')
                        fputs("&lt;", out);
                else if (*text == '>')
                        fputs("&gt;", out);
                else if (*text == '&')
                        fputs("&amp;", out);
                else if (*text == '"')
                        fputs("&quot;", out);
                else
                        fputc(*text, out);
        }
}

static bool ends_with(const char *text, const char *end)
{
        size_t n = strlen(text), m = strlen(end);

        return n > m && memcmp(text + n - m, end, m + 1) == 0;
}

/* "pool_used_bytes" as "pool used": the value carries the unit. */
static void page_name(FILE *out, const char *name, bool drop_unit)
{
        size_t n = strlen(name);

        if (ends_with(name, "_unix_ms")) {
                n -= strlen("_unix_ms");
        } else if (drop_unit) {
                const char *last = strrchr(name, '_');

                if (last)
                        n = (size_t)(last - name);
        }
        for (size_t i = 0; i < n; i++) {
                char c[2] = { name[i] == '_' ? ' ' : name[i], '\0' };

                page_text(out, c);
        }
}

static void page_bytes(FILE *out, double bytes)
{
        char text[UNITS_TEXT];

        fprintf(out, "<span title=\"%.0f bytes\">%s</span>", bytes,
                bytes >= 0 && bytes < 1.8e19 ? units_bytes((uint64_t)bytes, text) : "–");
}

static void page_seconds(FILE *out, double s)
{
        if (s < 1e-3)
                fprintf(out, "%.0f µs", s * 1e6);
        else if (s < 1)
                fprintf(out, "%.1f ms", s * 1e3);
        else if (s < 120)
                fprintf(out, "%.1f s", s);
        else if (s < 7200)
                fprintf(out, "%.0f min", s / 60);
        else if (s < 172800)
                fprintf(out, "%.1f h", s / 3600);
        else
                fprintf(out, "%.1f days", s / 86400);
}

/* Whole numbers with thin gaps between thousands. */
static void page_number(FILE *out, double x)
{
        char digits[32];
        size_t n;

        if (x != floor(x) || fabs(x) > 1e15) {
                fprintf(out, "%.4g", x);
                return;
        }
        n = (size_t)snprintf(digits, sizeof(digits), "%.0f", fabs(x));
        if (x < 0)
                fputs("−", out);
        for (size_t i = 0; i < n; i++)
                fprintf(out, "%s%c", i > 0 && (n - i) % 3 == 0 ? "&#8239;" : "", digits[i]);
}

/* Names that are there for who reads them in older versions: the other one says it better. */
static bool is_older_name(const cJSON *item)
{
        static const struct {
                const char *name, *better;
        } names[] = { { "used_bytes", "reserved_bytes" }, { "payload_bytes", "live_bytes" } };

        for (size_t i = 0; item->string && i < ARRAY_SIZE(names); i++)
                if (strcmp(item->string, names[i].name) == 0)
                        for (const cJSON *o = item; o; o = o->next)
                                if (o->string && strcmp(o->string, names[i].better) == 0)
                                        return true;
        return false;
}

static void page_time(FILE *out, double unix_ms)
{
        time_t t = (time_t)(unix_ms / 1e3);
        char text[32];
        struct tm tm;

        if (unix_ms <= 0)
                fputs("never", out);
        else if (unix_ms < 1e15 && gmtime_r(&t, &tm) &&
                 strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &tm) > 0)
                fputs(text, out);
        else
                fprintf(out, "%.0f", unix_ms);
}

/* The unit of a number follows from its name: "used_bytes", "bytes", "bytes_put"; "uptime_seconds".
 */
static bool is_bytes(const char *name)
{
        return ends_with(name, "_bytes") || strcmp(name, "bytes") == 0 ||
               strncmp(name, "bytes_", 6) == 0;
}

static bool names_its_unit(const cJSON *item)
{
        return cJSON_IsNumber(item) && item->string &&
               (ends_with(item->string, "_bytes") || ends_with(item->string, "_seconds"));
}

static bool is_table(const cJSON *item)
{
        return cJSON_IsArray(item) && cJSON_IsObject(item->child);
}

static void page_object(FILE *out, const cJSON *object, unsigned depth);

/* `of_bytes`: it belongs to an object of bytes, "stored_bytes": {"used": 1, "limit": 2, "refused":
 * 3}, of which "refused" counts requests. */
static void page_value(FILE *out, const cJSON *item, bool of_bytes, unsigned depth)
{
        const char *name = item && item->string ? item->string : "";

        if (cJSON_IsObject(item) || cJSON_IsArray(item))
                page_object(out, item, depth + 1);
        else if (cJSON_IsString(item))
                page_text(out, item->valuestring);
        else if (cJSON_IsBool(item))
                fputs(cJSON_IsTrue(item) ? "yes" : "no", out);
        else if (!cJSON_IsNumber(item))
                fputs("–", out);
        else if (strcmp(name, "pid") == 0)
                fprintf(out, "%.0f", item->valuedouble);
        else if (ends_with(name, "_unix_ms") || strcmp(name, "last_pass_ms") == 0)
                page_time(out, item->valuedouble);
        else if (is_bytes(name) || (of_bytes && strcmp(name, "refused") != 0))
                page_bytes(out, item->valuedouble);
        else if (ends_with(name, "_seconds"))
                page_seconds(out, item->valuedouble);
        else if (ends_with(name, "_ratio"))
                fprintf(out, "%.1f %%", 100 * item->valuedouble);
        else
                page_number(out, item->valuedouble);
}

/* An array of objects: the members of the first are the columns. */
static void page_table(FILE *out, const cJSON *array, unsigned depth)
{
        const cJSON *row, *column;

        fputs("<table>\n<tr>", out);
        cJSON_ArrayForEach(column, array->child)
        {
                if (is_older_name(column))
                        continue;
                fputs("<th>", out);
                page_name(out, column->string, names_its_unit(column));
                fputs("</th>", out);
        }
        fputs("</tr>\n", out);
        cJSON_ArrayForEach(row, array)
        {
                fputs("<tr>", out);
                cJSON_ArrayForEach(column, array->child)
                {
                        if (is_older_name(column))
                                continue;
                        fputs("<td>", out);
                        page_value(out, cJSON_GetObjectItemCaseSensitive(row, column->string),
                                   false, depth);
                        fputs("</td>", out);
                }
                fputs("</tr>\n", out);
        }
        fputs("</table>\n", out);
}

/* An object, or an array, as a table of two columns. At the top, what is large gets a section of
 * its own below. */
static void page_object(FILE *out, const cJSON *object, unsigned depth)
{
        const cJSON *item;
        bool table = false;

        if (depth > PAGE_DEPTH) {
                fputs("…", out);
                return;
        }
        if (is_table(object)) {
                page_table(out, object, depth);
                return;
        }
        cJSON_ArrayForEach(item, object)
        {
                if (depth == 0 && (cJSON_IsObject(item) || is_table(item)))
                        continue;
                if (cJSON_IsString(item) && !item->valuestring[0])
                        continue; /* "reason": none */
                if (is_older_name(item))
                        continue;
                if (!table)
                        fputs("<table>\n", out);
                table = true;
                fputs("<tr>", out);
                if (item->string) {
                        fputs("<th>", out);
                        page_name(out, item->string, names_its_unit(item));
                        fputs("</th>", out);
                }
                fputs("<td>", out);
                page_value(out, item, object->string && is_bytes(object->string), depth);
                fputs("</td></tr>\n", out);
        }
        if (table)
                fputs("</table>\n", out);
        else if (depth > 0)
                fputs("–", out);
        if (depth > 0)
                return;
        cJSON_ArrayForEach(item, object)
        {
                if (!cJSON_IsObject(item) && !is_table(item))
                        continue;
                fputs("<section><h2>", out);
                page_name(out, item->string ? item->string : "", false);
                fputs("</h2>\n", out);
                page_object(out, item, depth + 1);
                fputs("</section>\n", out);
        }
}

/* Each line of what /readyz says; of those that are not fine, as such. */
static void page_readiness(FILE *out, bool ready, const char *said)
{
        const char *text = said ? said : ready ? "ready" : "not ready: no reason given";

        for (bool fine = ready; *text; fine = false) {
                int n = (int)strcspn(text, "\n");
                char line[1024];

                snprintf(line, sizeof(line), "%.*s", n, text);
                fprintf(out, "<p%s>", fine ? "" : " class=\"no\"");
                page_text(out, line);
                fputs("</p>\n", out);
                text += n + (text[n] != '\0');
        }
}

void http_page(FILE *out, const char *status, bool ready, const char *said)
{
        cJSON *json = status ? cJSON_Parse(status) : NULL;

        fputs("<!DOCTYPE html>\n<html lang=\"en\"><head><meta "
              "charset=\"utf-8\"><title>kvcache-daemon</title>\n"
              "<meta name=\"viewport\" content=\"width=device-width\"><style>\n"
              ":root{color-scheme:light dark}\n"
              "body{font:15px/1.45 system-ui,sans-serif;max-width:60rem;margin:2rem "
              "auto;padding:0 1rem}\n"
              "h1{font-size:1.4rem;margin-bottom:.2rem} h2{font-size:1.05rem;margin:1.4rem "
              "0 .3rem}\n"
              "h2::first-letter{text-transform:uppercase}\n"
              "table{border-collapse:collapse} td table{margin:0}\n"
              "th,td{text-align:left;vertical-align:top;padding:.12rem 1.2rem .12rem 0}\n"
              "th{font-weight:normal;opacity:.7;min-width:6rem} "
              "th:first-child{min-width:11rem}\n"
              "td{font-variant-numeric:tabular-nums;overflow-wrap:anywhere}\n"
              "nav a{margin-right:1rem} .no{color:#c33}\n"
              "</style></head><body>\n<h1>kvcache-daemon</h1>\n",
              out);
        page_readiness(out, ready, said);
        fputs("<nav><a href=\"/status\">status (JSON)</a><a "
              "href=\"/metrics\">metrics</a>"
              "<a href=\"/healthz\">health</a><a href=\"/readyz\">readiness</a></nav>\n",
              out);
        if (json)
                page_object(out, json, 0);
        else
                fputs("<p class=\"no\">The status cannot be shown.</p>\n", out);
        fputs("</body></html>\n", out);
        cJSON_Delete(json);
}

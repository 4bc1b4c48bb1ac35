/* SPDX-License-Identifier: Apache-2.0 */
/* Implements details.h. Owns nothing, cannot fail. */
#include "report/details.h"

#include <string.h>

#include "checked.h"
#include "report/html.h"

enum { DETAILS_DEPTH = 8, DETAILS_ROWS = 32, MEMBERS_MAX = 64, TEXT_SHOWN = 200 };

static bool ends_with(const char *text, const char *end)
{
        size_t n = strlen(text), m = strlen(end);

        return n > m && memcmp(text + n - m, end, m + 1) == 0;
}

/* Prints "pool_used_bytes" as "pool used", since the value shows the unit. */
static void details_name(FILE *out, const char *name, bool drop_unit)
{
        size_t n = strlen(name);
        char words[64]; /* names come from the daemon and are shorter than this */

        if (ends_with(name, "_unix_ms")) {
                n -= strlen("_unix_ms");
        } else if (drop_unit) {
                const char *last = strrchr(name, '_');

                if (last)
                        n = (size_t)(last - name);
        }
        snprintf(words, sizeof(words), "%.*s", (int)MIN(n, sizeof(words) - 1), name);
        for (char *p = words; (p = strchr(p, '_'));)
                *p = ' ';
        html_text(out, words);
}

/* Returns whether a name exists only for programs of older versions, beside a better one. */
static bool is_older_name(const cJSON *item)
{
        static const struct {
                const char *name, *better;
        } names[] = { { "used_bytes", "reserved_bytes" }, { "payload_bytes", "live_bytes" } };

        const cJSON *first = item;

        while (first->prev && first->prev->next) /* cJSON links the first element's `prev` to the
                                                  * last element */
                first = first->prev;
        for (size_t i = 0; item->string && i < ARRAY_SIZE(names); i++)
                if (strcmp(item->string, names[i].name) == 0)
                        for (const cJSON *o = first; o; o = o->next)
                                if (o->string && strcmp(o->string, names[i].better) == 0)
                                        return true;
        return false;
}

/* Returns whether a number counts bytes, by its name: "used_bytes", "bytes", "bytes_put". */
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

static bool is_shown(const cJSON *item)
{
        return !is_older_name(item) &&
               !(cJSON_IsString(item) && !item->valuestring[0]); /* omits an empty "reason" */
}

static void details_inline(FILE *out, const cJSON *of, unsigned depth);

/* Prints one value. `of_bytes`: it belongs to an object of bytes, such as "stored_bytes": {"used":
 * 1, "limit": 2, "refused": 3}, whose "refused" counts requests. */
static void details_value(FILE *out, const cJSON *item, bool of_bytes, unsigned depth)
{
        const char *name = item->string ? item->string : "";

        if (cJSON_IsObject(item) || cJSON_IsArray(item))
                details_inline(out, item, depth + 1);
        else if (cJSON_IsString(item))
                html_text_short(out, item->valuestring, TEXT_SHOWN);
        else if (cJSON_IsBool(item))
                fputs(cJSON_IsTrue(item) ? "yes" : "no", out);
        else if (!cJSON_IsNumber(item))
                fputs("–", out);
        else if (strcmp(name, "pid") == 0)
                fprintf(out, "%.0f", item->valuedouble);
        else if (ends_with(name, "_unix_ms") || strcmp(name, "last_pass_ms") == 0)
                html_time(out, item->valuedouble);
        else if (is_bytes(name) || (of_bytes && strcmp(name, "refused") != 0))
                html_bytes(out, item->valuedouble);
        else if (ends_with(name, "_seconds"))
                html_seconds(out, item->valuedouble);
        else if (ends_with(name, "_ratio"))
                html_ratio(out, item->valuedouble);
        else
                html_number(out, item->valuedouble);
}

/* Prints an object or array as "used 1 · limit 2", with nested ones in brackets. */
static void details_inline(FILE *out, const cJSON *of, unsigned depth)
{
        bool of_bytes = of->string && is_bytes(of->string);
        const cJSON *item;
        unsigned n = 0;

        if (depth > DETAILS_DEPTH) {
                fputs("…", out);
                return;
        }
        cJSON_ArrayForEach(item, of)
        {
                bool nested = cJSON_IsObject(item) || cJSON_IsArray(item);

                if (!is_shown(item))
                        continue;
                if (n++ == DETAILS_ROWS) {
                        fputs(" …", out);
                        return;
                }
                fputs(n > 1 ? " · " : "", out);
                if (item->string) {
                        fputs("<span class=\"soft\">", out);
                        details_name(out, item->string, names_its_unit(item));
                        fputs("</span> ", out);
                }
                fputs(nested ? "(" : "", out);
                details_value(out, item, of_bytes, depth);
                fputs(nested ? ")" : "", out);
        }
        if (n == 0)
                fputs("–", out);
}

/* Prints one line for each of the first DETAILS_ROWS elements, and the number of the others. */
static void details_list(FILE *out, const cJSON *array)
{
        const cJSON *item;
        int n = 0;

        cJSON_ArrayForEach(item, array)
        {
                if (n++ == DETAILS_ROWS)
                        break;
                fputs("<p>", out);
                details_value(out, item, false, 0);
                fputs("</p>\n", out);
        }
        if (n > DETAILS_ROWS)
                fprintf(out, "<p>and %d more</p>\n", cJSON_GetArraySize(array) - DETAILS_ROWS);
}

static bool is_section(const cJSON *item)
{
        return cJSON_IsObject(item) || (cJSON_IsArray(item) && item->child);
}

/* Prints a table of two columns. With `top`, members that have a section of their own are
 * omitted. */
static void details_members(FILE *out, const cJSON *object, bool top)
{
        const cJSON *item;
        bool table = false;
        int n = 0;

        cJSON_ArrayForEach(item, object)
        {
                if (!item->string || !is_shown(item) || (top && is_section(item)))
                        continue;
                if (n++ == MEMBERS_MAX)
                        break;
                fprintf(out, "%s<tr><th scope=\"row\">", table ? "" : "<table>\n");
                table = true;
                details_name(out, item->string, names_its_unit(item));
                fputs("</th><td>", out);
                if (cJSON_IsArray(item) && cJSON_IsObject(item->child))
                        details_list(out, item);
                else
                        details_value(out, item, object->string && is_bytes(object->string), 0);
                fputs("</td></tr>\n", out);
        }
        fputs(table ? "</table>\n" : "", out);
}

void details_print(FILE *out, const cJSON *status)
{
        const cJSON *item;
        int n = 0;

        if (!cJSON_IsObject(status))
                return;
        fputs("<section>\n", out);
        details_members(out, status, true);
        fputs("</section>\n", out);
        cJSON_ArrayForEach(item, status)
        {
                if (!is_section(item))
                        continue;
                if (n++ == MEMBERS_MAX)
                        break;
                fputs("<section><h3>", out);
                details_name(out, item->string, false);
                fputs("</h3>\n", out);
                if (cJSON_IsArray(item))
                        details_list(out, item);
                else
                        details_members(out, item, false);
                fputs("</section>\n", out);
        }
}

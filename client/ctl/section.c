/* SPDX-License-Identifier: Apache-2.0 */
#include "section.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "answer.h"
#include "common.h"
#include "human.h"
#include "progress.h"
#include "text.h"
#include "units.h"

/* --- members --- */

bool section_number(cJSON *object, const char *name, double *ret)
{
        cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

        if (!cJSON_IsNumber(item) || !isfinite(item->valuedouble))
                return false;
        *ret = item->valuedouble;
        cJSON_DeleteItemFromObjectCaseSensitive(object, name);
        return true;
}

uint64_t section_count(cJSON *object, const char *name)
{
        double value;

        return section_number(object, name, &value) ? answer_count(value) : 0;
}

bool section_text(cJSON *object, const char *name, char *ret, size_t room)
{
        cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

        ret[0] = '\0';
        if (!cJSON_IsString(item))
                return false;
        snprintf(ret, room, "%s", item->valuestring);
        for (size_t n = strlen(ret); n > 0 && ret[n - 1] == '\n'; n--)
                ret[n - 1] = '\0';
        text_clean(ret);
        cJSON_DeleteItemFromObjectCaseSensitive(object, name);
        return *ret != '\0';
}

bool section_bool(cJSON *object, const char *name, bool *ret)
{
        cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

        if (!cJSON_IsBool(item))
                return false;
        *ret = cJSON_IsTrue(item);
        cJSON_DeleteItemFromObjectCaseSensitive(object, name);
        return true;
}

/* --- lines --- */

enum { LABEL_WIDTH = 16 };

static FILE *output; /* NULL: standard output */
static bool output_colored;

void section_to(FILE *out, bool colored)
{
        output = out;
        output_colored = colored;
}

FILE *section_out(void)
{
        return output ? output : stdout;
}

bool section_colored(void)
{
        return output_colored;
}

void section_begin(const char *heading)
{
        fputc('\n', section_out());
        print_safe(heading, section_out());
        fputc('\n', section_out());
}

__attribute__((format(printf, 3, 0))) static void print_line(enum color color, const char *label,
                                                             const char *format, va_list arguments)
{
        fprintf(section_out(), "  %s%-*s%s  ", color_begin(color, output_colored), LABEL_WIDTH,
                label, color_end(color, output_colored));
        vfprintf(section_out(), format, arguments);
        fputc('\n', section_out());
}

void section_line(const char *label, const char *format, ...)
{
        va_list arguments;

        va_start(arguments, format);
        print_line(COLOR_NONE, label, format, arguments);
        va_end(arguments);
}

void section_warn(enum color color, const char *label, const char *format, ...)
{
        va_list arguments;

        va_start(arguments, format);
        print_line(color, label, format, arguments);
        va_end(arguments);
}

void section_rest(const cJSON *object)
{
        const cJSON *item;

        cJSON_ArrayForEach(item, object)
        {
                char label[64], text[1024];

                if (cJSON_IsString(item) && !*item->valuestring)
                        continue;
                snprintf(label, sizeof(label), "%s", item->string ? item->string : "");
                text_clean(label);
                for (char *p = label; (p = strchr(p, '_'));)
                        *p = ' ';
                answer_format(item, text, sizeof(text));
                section_line(label, "%s", text);
        }
}

void section_use(const char *label, uint64_t used, uint64_t all)
{
        enum { WIDTH = 24 };
        char used_text[HUMAN_BYTES], all_text[HUMAN_BYTES], bar[WIDTH + 1];
        double part = all ? (double)used / (double)all : 0;

        units_bytes(used, used_text);
        units_bytes(all, all_text);
        progress_bar(part, WIDTH, bar);
        section_line(label, "%s of %s  [%s] %.0f %%", used_text, all_text, bar, 100 * part);
}

cJSON *section_object(cJSON *status, const char *name)
{
        cJSON *object = cJSON_DetachItemFromObjectCaseSensitive(status, name);

        if (cJSON_IsObject(object))
                return object;
        cJSON_Delete(object);
        return NULL;
}

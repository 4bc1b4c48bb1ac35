/* SPDX-License-Identifier: Apache-2.0 */
#include "samples.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_name(char c)
{
        return isalnum((unsigned char)c) || c == '_' || c == ':';
}

/* Reads a quoted value and decodes its escapes in place. Returns the text after the closing quote,
 * or NULL if there is none. */
static char *read_value(char *p, const char **ret)
{
        char *out = p;

        *ret = p;
        for (; *p && *p != '"'; p++) {
                if (*p == '\\' && p[1]) {
                        p++;
                        *out++ = *p == 'n' ? '\n' : *p;
                } else {
                        *out++ = *p;
                }
        }
        if (*p != '"')
                return NULL;
        *out = '\0';
        return p + 1;
}

/* Reads labels such as {tier="memory",le="0.1"}, after the opening brace. Returns the text after
 * the closing brace, or NULL if the labels are malformed. */
static char *read_labels(char *p, struct sample *ret)
{
        while (*p && *p != '}') {
                const char *label = p, *value;

                while (is_name(*p))
                        p++;
                if (p == label || strncmp(p, "=\"", 2) != 0)
                        return NULL;
                *p = '\0';
                p = read_value(p + 2, &value);
                if (!p)
                        return NULL;
                if (strcmp(label, "le") == 0) {
                        ret->le = value;
                } else if (!*ret->label) {
                        ret->label = label;
                        ret->value = value;
                }
                if (*p == ',')
                        p++;
        }
        return *p == '}' ? p + 1 : NULL;
}

static bool read_line(char *line, struct sample *ret)
{
        char *p = line, *end;

        *ret = (struct sample){ .name = line, .label = "", .value = "", .le = "" };
        while (is_name(*p))
                p++;
        if (p == line)
                return false;
        end = p;
        if (*p == '{')
                p = read_labels(p + 1, ret);
        if (!p || *p != ' ')
                return false;
        *end = '\0';
        ret->number = strtod(p + 1, &end);
        return end > p + 1;
}

int samples_parse(char *text, struct samples *ret)
{
        size_t lines = 1;

        *ret = (struct samples){ .text = text };
        for (const char *p = text; (p = strchr(p, '\n')); p++)
                lines++;
        ret->list = calloc(lines, sizeof(*ret->list));
        if (!ret->list) {
                samples_fini(ret);
                return -ENOMEM;
        }
        for (char *line = text, *next; line; line = next) {
                next = strchr(line, '\n');
                if (next)
                        *next++ = '\0';
                ret->n += read_line(line, &ret->list[ret->n]);
        }
        return 0;
}

void samples_fini(struct samples *s)
{
        free(s->text);
        free(s->list);
        *s = (struct samples){ 0 };
}

static bool is_sample(const struct sample *sample, const char *name, const char *value,
                      const char *le)
{
        return strcmp(sample->name, name) == 0 && strcmp(sample->value, value) == 0 &&
               strcmp(sample->le, le) == 0;
}

const struct sample *samples_find(const struct samples *s, const char *name, const char *value)
{
        for (size_t i = 0; i < s->n; i++)
                if (is_sample(&s->list[i], name, value ? value : s->list[i].value, ""))
                        return &s->list[i];
        return NULL;
}

double samples_number(const struct samples *s, const char *name, const char *value)
{
        const struct sample *sample = samples_find(s, name, value);

        return sample ? sample->number : NAN;
}

/* Returns the value that the sample `now`, at index `at` of its page, had on an earlier page; NAN
 * if that page lacks the sample. The index is usually the same on both pages. */
static double number_before(const struct samples *before, const struct sample *now, size_t at)
{
        if (at < before->n && is_sample(&before->list[at], now->name, now->value, now->le))
                return before->list[at].number;
        for (size_t i = 0; i < before->n; i++)
                if (is_sample(&before->list[i], now->name, now->value, now->le))
                        return before->list[i].number;
        return NAN;
}

static double growth_at(const struct samples *now, const struct samples *before, size_t at)
{
        double grown;

        if (!before)
                return NAN;
        grown = now->list[at].number - number_before(before, &now->list[at], at);
        return grown >= 0 && isfinite(grown) ? grown : NAN;
}

double samples_growth(const struct samples *now, const struct samples *before, const char *name,
                      const char *value)
{
        const struct sample *sample = samples_find(now, name, value);

        return sample ? growth_at(now, before, (size_t)(sample - now->list)) : NAN;
}

double samples_growth_sum(const struct samples *now, const struct samples *before, const char *name)
{
        double sum = NAN;

        for (size_t i = 0; i < now->n; i++) {
                double grown =
                        strcmp(now->list[i].name, name) == 0 ? growth_at(now, before, i) : NAN;

                if (!isnan(grown))
                        sum = isnan(sum) ? grown : sum + grown;
        }
        return sum;
}

double samples_quantile(const struct samples *now, const struct samples *before, const char *name,
                        const char *value, double quantile, double *ret_above)
{
        double last = 0;
        double all, wanted;
        char count[128], bucket[128];

        snprintf(count, sizeof(count), "%s_count", name);
        snprintf(bucket, sizeof(bucket), "%s_bucket", name);
        all = samples_growth(now, before, count, value);
        if (!(all > 0))
                return NAN;
        wanted = quantile * all;
        for (size_t i = 0; i < now->n; i++) {
                const struct sample *sample = &now->list[i];
                double edge, upto;

                if (strcmp(sample->name, bucket) != 0 || strcmp(sample->value, value) != 0)
                        continue;
                edge = strtod(sample->le, NULL);
                upto = growth_at(now, before, i);
                if (!isfinite(edge))
                        continue;
                last = edge;
                if (upto > 0 && upto >= wanted)
                        return edge;
        }
        *ret_above = last;
        return NAN;
}

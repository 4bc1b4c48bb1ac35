/* SPDX-License-Identifier: Apache-2.0 */
/* One value: text to a row's member, checked against the row.
 *
 * Text is parsed whole before the member changes. Every refusal is one sentence that names what is
 * wrong, and where it can what was meant: words and units are compared by edit distance. Text that
 * comes in is never trusted: it must be UTF-8 without control characters (text.c), and is quoted
 * and cut before it goes into a message. */
#include <assert.h>
#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "suggest.h"
#include "cleanup.h"
#include "config/internal.h"
#include "text.h"
#include "units.h"

int config_refuse(char why[static CONFIG_WHY], const char *fmt, ...)
{
        va_list args;

        va_start(args, fmt);
        vsnprintf(why, CONFIG_WHY, fmt, args);
        va_end(args);
        return -EINVAL;
}

const char *config_quote(const char *text, char ret[static CONFIG_QUOTED])
{
        enum { SHOWN = 80 };
        size_t length = strlen(text), shown = MIN(length, (size_t)SHOWN);

        while (shown < length && shown > 0 && ((unsigned char)text[shown] & 0xc0) == 0x80)
                shown--; /* do not cut in the middle of a character */
        sprintf(ret, "\"%.*s%s\"", (int)shown, text, shown < length ? "..." : "");
        return text_clean(ret);
}

/* --- numbers with units --- */

struct unit {
        const char *name;
        uint64_t factor;
};

static const struct unit byte_units[] = {
        { "B", 1 },           { "KiB", KIB },          { "MiB", MIB },
        { "GiB", GIB },       { "TiB", TIB },          { "PiB", PIB },
        { "kB", 1000 },       { "KB", 1000 },          { "MB", 1000000 },
        { "GB", 1000000000 }, { "TB", 1000000000000 }, { "PB", 1000000000000000 },
        { NULL, 0 },
};
static const struct unit time_units[] = {
        { "ms", 1 },   { "s", SECOND },    { "min", MINUTE },
        { "h", HOUR }, { "d", 24 * HOUR }, { NULL, 0 },
};

/* Returns the factor of a unit, or 0 if there is no such unit. */
static uint64_t unit_factor(const struct unit *units, const char *name)
{
        for (const struct unit *u = units; u->name; u++)
                if (strcmp(u->name, name) == 0)
                        return u->factor;
        return 0;
}

static uint64_t bytes_in(const char *unit)
{
        return *unit ? unit_factor(byte_units, unit) : 1;
}

static uint64_t ms_in(const char *unit)
{
        return unit_factor(time_units, unit);
}

static const char *unit_meant(const char *unit, const struct unit *units)
{
        struct suggestion meant = { .distance = 2 };

        for (const struct unit *u = units; u->name; u++)
                if (strcasecmp(u->name, unit) == 0)
                        return u->name;
        if (*unit && strchr("kKmMgGtTpP", *unit) &&
            (unit[1] == '\0' || strcasecmp(unit + 1, "i") == 0))
                for (const struct unit *u = units; u->name; u++)
                        if (tolower((unsigned char)*u->name) == tolower((unsigned char)*unit) &&
                            u->name[1] == 'i' && u->factor % KIB == 0)
                                return u->name;
        if (strncasecmp(unit, "sec", 3) == 0 && units == time_units)
                return "s";
        if (strncasecmp(unit, "min", 3) == 0 && units == time_units)
                return "min";
        if ((strncasecmp(unit, "hour", 4) == 0 || strcasecmp(unit, "hr") == 0) &&
            units == time_units)
                return "h";
        if (strncasecmp(unit, "day", 3) == 0 && units == time_units)
                return "d";
        for (const struct unit *u = units; u->name; u++)
                if (strlen(u->name) > 1)
                        suggest_try(&meant, unit, u->name);
        return meant.text;
}

static int refuse_number(const struct config_row *row, const char *text, const char *unit,
                         char why[static CONFIG_WHY])
{
        const char *what = row->type == CONFIG_BYTES ? "size" : "time";
        const struct unit *units = row->type == CONFIG_BYTES ? byte_units : time_units;
        const char *known = row->type == CONFIG_BYTES
                                    ? "B, KiB, MiB, GiB, TiB, PiB, or decimal kB, MB, GB, TB, PB"
                                    : "ms, s, min, h, d";
        const char *example = row->type == CONFIG_BYTES ? "64GiB or 512MiB" : "5s or 250ms";
        const char *or_auto = config_or_word(row);
        char quoted[CONFIG_QUOTED], quoted_unit[CONFIG_QUOTED];
        const char *meant;

        config_quote(text, quoted);
        if (*text == '-' && text[1] >= '0' && text[1] <= '9')
                return config_refuse(why, "%s: %s cannot be negative", row->name, quoted);
        if (!unit)
                return config_refuse(why,
                                     "%s: %s is not a %s; write a number with a unit, as in %s%s",
                                     row->name, quoted, what, example, or_auto);
        if (*unit == '\0') {
                if (row->type == CONFIG_TIME)
                        return config_refuse(
                                why, "%s: %s has no unit; did you mean \"%.20ss\"? Units are %s",
                                row->name, quoted, text, known);
                return config_refuse(why, "%s: %s is not a whole number of bytes", row->name,
                                     quoted);
        }
        config_quote(unit, quoted_unit);
        meant = unit_meant(unit, units);
        if (meant && strcmp(meant, unit) == 0)
                return config_refuse(why, "%s: %s is not a whole number of %s", row->name, quoted,
                                     row->type == CONFIG_BYTES ? "bytes" : "milliseconds");
        if (meant)
                return config_refuse(why,
                                     "%s: unknown unit %s in %s; did you mean \"%s\"? Units are %s",
                                     row->name, quoted_unit, quoted, meant, known);
        return config_refuse(why, "%s: unknown unit %s in %s; units are %s", row->name, quoted_unit,
                             quoted, known);
}

/* --- values that are one of several words --- */

/* Gets word number `i` of "a|b|c". Returns false if there are fewer. */
static bool word_at(const char *words, unsigned i, char ret[static 24])
{
        for (;; i--) {
                size_t n = strcspn(words, "|");

                if (i == 0) {
                        assert(n > 0 && n < 24);
                        memcpy(ret, words, n);
                        ret[n] = '\0';
                        return true;
                }
                if (words[n] == '\0')
                        return false;
                words += n + 1;
        }
}

static int refuse_word(const struct config_row *row, const char *text, char why[static CONFIG_WHY])
{
        char quoted[CONFIG_QUOTED], word[24], all[160] = "", best[24];
        struct suggestion meant = suggest_init(text);
        size_t used = 0;

        for (unsigned i = 0; word_at(row->words, i, word); i++) {
                struct suggestion before = meant;

                suggest_try(&meant, text, word);
                if (meant.distance < before.distance)
                        strcpy(best, word);
                used += (size_t)snprintf(all + used, sizeof(all) - used, "%s%s", i > 0 ? ", " : "",
                                         word);
                assert(used < sizeof(all));
        }
        config_quote(text, quoted);
        if (meant.text)
                return config_refuse(why, "%s: %s is not one of %s; did you mean \"%s\"?",
                                     row->name, quoted, all, best);
        if (!strchr(row->words, '|'))
                return config_refuse(why, "%s: %s is unknown; this version supports %s", row->name,
                                     quoted, all);
        return config_refuse(why, "%s: %s is not one of %s", row->name, quoted, all);
}

/* --- assigning values --- */

void config_strings_fini(struct config_strings *s)
{
        for (unsigned i = 0; i < s->n; i++)
                free(s->items[i]);
        free(s->items);
        *s = (struct config_strings){};
}

static int strings_copy(struct config_strings *ret, char *const *items, unsigned n)
{
        struct config_strings copy = {};

        if (n > 0) {
                copy.items = calloc(n, sizeof(*copy.items));
                if (!copy.items)
                        return -ENOMEM;
                for (; copy.n < n; copy.n++) {
                        copy.items[copy.n] = strdup(items[copy.n]);
                        if (!copy.items[copy.n]) {
                                config_strings_fini(&copy);
                                return -ENOMEM;
                        }
                }
        }
        config_strings_fini(ret);
        *ret = copy;
        return 0;
}

void config_note_given(struct config *c, unsigned row)
{
        config_bit_set(c->given, row, true);
        config_bit_set(c->automatic, row, false);
}

/* Returns whether the text is a number with a leading zero, which a YAML tool may read as octal. */
static bool has_leading_zero(const char *text)
{
        size_t n = strlen(text);

        return n > 1 && *text == '0' && strspn(text, "0123456789") == n;
}

int config_assign_list_to(void *object, const struct config_row *row, char *const *items,
                          unsigned n, char why[static CONFIG_WHY])
{
        char quoted[CONFIG_QUOTED];
        int r;

        if (row->type != CONFIG_PATHS && row->type != CONFIG_NAMES)
                return config_refuse(why, "%s takes one value, not a list", row->name);
        if (row->type == CONFIG_PATHS && n == 0)
                return config_refuse(why, "%s: the list is empty; give a path%s", row->name,
                                     config_or_word(row));
        if (n > row->most)
                return config_refuse(why, "%s: the list has more than %u entries", row->name,
                                     (unsigned)row->most);
        for (unsigned i = 0; i < n; i++) {
                if (!config_text_is_clean(items[i]))
                        return config_refuse(why, "%s: %s is not one line of UTF-8 text", row->name,
                                             config_quote(items[i], quoted));
                r = config_check_text(row, items[i], why);
                if (r < 0)
                        return r;
                if (row->type == CONFIG_PATHS && strcmp(items[i], "auto") == 0)
                        return config_refuse(why,
                                             row->flags & CONFIG_AUTO
                                                     ? "%s: auto cannot be one of several values; "
                                                       "write \"./auto\" for a directory of that "
                                                       "name"
                                                     : "%s: auto is not a value of this key; write "
                                                       "\"./auto\" for a directory of that name",
                                             row->name);
                if (row->type == CONFIG_NAMES && has_leading_zero(items[i]))
                        return config_refuse(why,
                                             "%s: %s begins with a zero, which YAML tools take for "
                                             "octal: write the number without the zero",
                                             row->name, config_quote(items[i], quoted));
                for (unsigned j = 0; j < i; j++)
                        if (strcmp(items[i], items[j]) == 0)
                                return config_refuse(why, "%s: %s is listed twice", row->name,
                                                     config_quote(items[i], quoted));
        }
        return strings_copy(config_member(object, row), items, n);
}

bool config_split_floor(const char *floor, size_t *ret_prefix, uint64_t *ret_bytes)
{
        const char *equals = strrchr(floor, '='), *unit;

        if (!equals || equals == floor || equals - floor > CONFIG_FLOOR_PREFIX ||
            units_parse(equals + 1, bytes_in, ret_bytes, &unit) < 0 || *ret_bytes == 0)
                return false;
        /* A floor's prefix becomes a label of metrics, so its characters are restricted. */
        for (const char *c = floor; c < equals; c++)
                if (*c == '"' || *c == '\\' || (unsigned char)*c < ' ')
                        return false;
        *ret_prefix = (size_t)(equals - floor);
        return true;
}

/* Cuts off blanks at both ends, in place. */
static char *strip(char *text)
{
        size_t n;

        text += strspn(text, " \t");
        for (n = strlen(text); n > 0 && strchr(" \t", text[n - 1]); n--)
                text[n - 1] = '\0';
        return text;
}

/* Assigns a list from "a,b", or from "[a, b]" as in the file; "" and "[]" are empty lists. */
static int assign_commas(void *object, const struct config_row *row, const char *text,
                         char why[static CONFIG_WHY])
{
        _cleanup_(freep) char *copy = strdup(text);
        char *items[CONFIG_MAX_NAMES + 1], *rest = copy, *item;
        size_t length = strlen(text);
        bool brackets = length >= 2 && text[0] == '[' && text[length - 1] == ']';
        unsigned n = 0;

        if (!copy)
                return -ENOMEM;
        if (brackets) {
                copy[length - 1] = '\0';
                rest = strip(copy + 1);
        }
        if (*rest)
                while ((item = strsep(&rest, ",")) && n < ARRAY_SIZE(items))
                        items[n++] = brackets ? strip(item) : item;
        return config_assign_list_to(object, row, items, n, why);
}

static int assign_text(char **member, const char *text)
{
        char *copy = strdup(text);

        if (!copy)
                return -ENOMEM;
        free(*member);
        *member = copy;
        return 0;
}

static int assign_number(uint64_t *member, const struct config_row *row, const char *text,
                         char why[static CONFIG_WHY])
{
        char quoted[CONFIG_QUOTED], range[64];
        const char *unit = NULL;
        uint64_t value = 0;
        bool is_off;
        int r;

        if (has_leading_zero(text) && row->type != CONFIG_TIME)
                return config_refuse(why,
                                     "%s: %s begins with a zero, which YAML tools take for octal: "
                                     "write it without the zero",
                                     row->name, config_quote(text, quoted));
        if (row->type == CONFIG_COUNT) {
                r = units_parse_count(text, &value);
                if (r == -EINVAL)
                        return config_refuse(why, "%s: %s is not a whole number%s", row->name,
                                             config_quote(text, quoted),
                                             row->flags & CONFIG_AUTO ? ", nor auto" : "");
        } else {
                r = units_parse(text, row->type == CONFIG_BYTES ? bytes_in : ms_in, &value, &unit);
                if (r == -EINVAL)
                        return refuse_number(row, text, unit, why);
        }
        is_off = (row->flags & CONFIG_OFF) && r == 0 && value == 0;
        if (r < 0 || (value < row->least && !is_off) || value > row->most) {
                config_format_range(row, range, sizeof(range));
                return config_refuse(why, "%s: %s is out of range: %s", row->name,
                                     config_quote(text, quoted), range);
        }
        *member = value;
        return 0;
}

/* Assigns a mode. YAML tools that know numbers read 0660 as octal and write 432, so a mode without
 * a leading zero is taken for octal only if it cannot be a mode in decimal. */
static int assign_mode(uint32_t *member, const struct config_row *row, const char *text,
                       char why[static CONFIG_WHY])
{
        enum { MODE_MOST = 0777 };
        size_t n = strlen(text);
        char quoted[CONFIG_QUOTED];

        if (n > 0 && n <= 3 && strspn(text, "0123456789") == n && strspn(text, "01234567") != n &&
            strtoul(text, NULL, 10) <= MODE_MOST)
                return config_refuse(why,
                                     "%s: %s is not a mode in octal; if a tool has rewritten it in "
                                     "decimal, write \"%04lo\"",
                                     row->name, config_quote(text, quoted),
                                     strtoul(text, NULL, 10));
        if (n < 3 || n > 4 || strspn(text, "01234567") != n || (n == 4 && *text != '0'))
                return config_refuse(why,
                                     "%s: %s is not a mode from 0000 to 0777 in octal, as in 0660",
                                     row->name, config_quote(text, quoted));
        if (n == 3 && strtoul(text, NULL, 10) <= MODE_MOST)
                return config_refuse(why,
                                     "%s: %s may be a mode that a tool has rewritten in decimal: "
                                     "write \"%04lo\" "
                                     "if it is, or \"0%s\"",
                                     row->name, config_quote(text, quoted), strtoul(text, NULL, 10),
                                     text);
        *member = (uint32_t)strtoul(text, NULL, 8);
        return 0;
}

static int assign_switch(bool *member, const struct config_row *row, const char *text,
                         char why[static CONFIG_WHY])
{
        static const char *const yes[] = { "on", "yes", "true", "1" }, *const no[] = { "off", "no",
                                                                                       "false",
                                                                                       "0" };
        char first[24];

        word_at(row->words, 0, first);
        if (strcmp(text, first) == 0) {
                *member = true;
                return 0;
        }
        for (unsigned i = 0; i < ARRAY_SIZE(yes); i++)
                if (strcasecmp(text, yes[i]) == 0 || strcasecmp(text, no[i]) == 0) {
                        *member = strcasecmp(text, yes[i]) == 0;
                        return 0;
                }
        return refuse_word(row, text, why);
}

static int assign_choice(char **member, const struct config_row *row, const char *text,
                         char why[static CONFIG_WHY])
{
        char word[24];

        for (unsigned i = 0; word_at(row->words, i, word); i++)
                if (strcmp(word, text) == 0)
                        return assign_text(member, text);
        return refuse_word(row, text, why);
}

/* Assigns "auto" to a member, for the types of rows with CONFIG_AUTO. */
static int assign_auto(void *member, enum config_type type)
{
        switch (type) {
        case CONFIG_SOCKET:
                return assign_text(member, "");
        case CONFIG_PATHS:
        case CONFIG_NAMES:
                config_strings_fini(member);
                return 0;
        default:
                assert(type == CONFIG_BYTES || type == CONFIG_COUNT || type == CONFIG_TIME);
                *(uint64_t *)member = 0;
                return 0;
        }
}

static int assign_value(void *object, const struct config_row *row, const char *text, bool commas,
                        char why[static CONFIG_WHY])
{
        void *member = config_member(object, row);
        char *one[] = { (char *)text };
        int r;

        switch (row->type) {
        case CONFIG_SOCKET:
        case CONFIG_HTTP:
        case CONFIG_FILE:
        case CONFIG_TEXT:
        case CONFIG_TENANT:
                r = config_check_text(row, text, why);
                return r < 0 ? r : assign_text(member, text);
        case CONFIG_MODE:
                return assign_mode(member, row, text, why);
        case CONFIG_PATHS:
        case CONFIG_NAMES:
                return commas ? assign_commas(object, row, text, why)
                              : config_assign_list_to(object, row, one, 1, why);
        case CONFIG_BYTES:
        case CONFIG_COUNT:
        case CONFIG_TIME:
                return assign_number(member, row, text, why);
        case CONFIG_SWITCH:
                return assign_switch(member, row, text, why);
        case CONFIG_CHOICE:
                return assign_choice(member, row, text, why);
        }
        return -EINVAL;
}

int config_assign_to(void *object, const struct config_row *row, const char *text, bool commas,
                     char why[static CONFIG_WHY])
{
        bool is_auto = (row->flags & CONFIG_AUTO) && strcmp(text, "auto") == 0;
        bool is_off =
                (row->flags & CONFIG_OFF) && (strcmp(text, "off") == 0 || strcmp(text, "0") == 0);
        char quoted[CONFIG_QUOTED];
        int r;

        if (!config_text_is_clean(text))
                return config_refuse(why, "%s: %s is not one line of UTF-8 text", row->name,
                                     config_quote(text, quoted));
        if (is_auto || (row->type == CONFIG_SOCKET && *text == '\0'))
                r = assign_auto(config_member(object, row), row->type);
        else
                r = assign_value(object, row, is_off ? "0" : text, commas, why);
        if (r == -ENOMEM)
                config_refuse(why, "out of memory");
        return r;
}

int config_assign(struct config *c, unsigned index, const char *text, bool commas,
                  char why[static CONFIG_WHY])
{
        int r = config_assign_to(c, &config_rows[index], text, commas, why);

        if (r == 0)
                config_note_given(c, index);
        return r;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* One value: text to a row's member, checked against the row.
 *
 * Text is parsed whole before the member changes. Every refusal is one sentence that names what is
 * wrong, and where it can what was meant: words and units are compared by edit distance. Text that
 * comes in is never trusted: it must be UTF-8 without control characters, and is quoted and cut
 * before it goes into a message. */
#include <arpa/inet.h>
#include <assert.h>
#include <ctype.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include "checked.h"
#include "suggest.h"
#include "cleanup.h"
#include "config/internal.h"

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
        size_t n = 0, length = strlen(text), shown = MIN(length, (size_t)SHOWN);

        while (shown < length && shown > 0 && ((unsigned char)text[shown] & 0xc0) == 0x80)
                shown--; /* not in the middle of a character */
        ret[n++] = '"';
        for (size_t i = 0; i < shown; i++) {
                unsigned char ch = (unsigned char)text[i];

                ret[n++] = ch < 0x20 || ch == 0x7f ? '?' : (char)ch;
        }
        if (shown < length)
                n += (size_t)sprintf(ret + n, "...");
        ret[n++] = '"';
        ret[n] = '\0';
        return ret;
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

/* "1.5": digits, and perhaps a point with more of them. Exact: no floating point. More than nine
 * digits after the point do not count; `whole` stops growing once it is beyond 64 bits. */
struct decimal {
        unsigned __int128 whole;
        uint64_t fraction, scale; /* the fraction is `fraction` / `scale` */
};

static bool is_digit(char c)
{
        return c >= '0' && c <= '9';
}

/* Returns what follows the number; NULL: it is malformed. */
static const char *read_decimal(const char *p, struct decimal *ret)
{
        *ret = (struct decimal){ .scale = 1 };
        if (!is_digit(*p))
                return NULL;
        for (; is_digit(*p); p++)
                if (ret->whole <= UINT64_MAX)
                        ret->whole = ret->whole * 10 + (unsigned)(*p - '0');
        if (*p != '.')
                return p;
        p++;
        if (!is_digit(*p))
                return NULL;
        for (; is_digit(*p); p++)
                if (ret->scale < 1000000000) {
                        ret->fraction = ret->fraction * 10 + (unsigned)(*p - '0');
                        ret->scale *= 10;
                }
        return p;
}

/* 0: there is no such unit. */
static uint64_t unit_factor(const struct unit *units, const char *name)
{
        for (const struct unit *u = units; u->name; u++)
                if (strcmp(u->name, name) == 0)
                        return u->factor;
        return 0;
}

/* A number and its unit. Without a unit it counts in `bare`; 0: then it must be zero. `ret_unit`,
 * if not NULL, gets the unit as written, also on -EINVAL, or NULL if there is no number. */
static int parse_scaled(const char *text, const struct unit *units, uint64_t bare, uint64_t *ret,
                        const char **ret_unit)
{
        struct decimal n;
        const char *end = read_decimal(text, &n), *unit;
        unsigned __int128 value;
        uint64_t factor;

        if (ret_unit)
                *ret_unit = NULL;
        if (!end)
                return -EINVAL;
        unit = end + strspn(end, " ");
        if (unit > end && *unit == '\0')
                return -EINVAL;
        if (ret_unit)
                *ret_unit = unit;

        if (*unit)
                factor = unit_factor(units, unit);
        else
                factor = n.whole == 0 && n.fraction == 0 ? 1 : bare;
        if (factor == 0 || (factor == 1 && n.fraction > 0))
                return -EINVAL;
        if (n.whole > UINT64_MAX)
                return -ERANGE;
        value = n.whole * factor + (unsigned __int128)n.fraction * factor / n.scale;
        if (value > UINT64_MAX)
                return -ERANGE;
        *ret = (uint64_t)value;
        return 0;
}

int config_parse_bytes(const char *text, uint64_t *ret)
{
        return parse_scaled(text, byte_units, 1, ret, NULL);
}

int config_parse_ms(const char *text, uint64_t *ret)
{
        return parse_scaled(text, time_units, 0, ret, NULL);
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
        const char *or_auto = row->flags & CONFIG_AUTO ? ", or auto" : "";
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

static int parse_count(const char *text, uint64_t *ret)
{
        uint64_t value = 0;

        if (*text == '\0')
                return -EINVAL;
        for (const char *p = text; *p; p++) {
                if (*p < '0' || *p > '9')
                        return -EINVAL;
                if (!checked_mul(value, (uint64_t)10, &value) ||
                    !checked_add(value, (uint64_t)(*p - '0'), &value))
                        value = UINT64_MAX /
                                10; /* too large whatever follows: no row's `most` comes near */
        }
        *ret = value;
        return 0;
}

/* --- text --- */

/* UTF-8 that YAML can carry on one line: no control characters, no line or paragraph separators, no
 * surrogates. */
static bool text_is_clean(const char *text)
{
        const unsigned char *p = (const unsigned char *)text;

        while (*p) {
                unsigned n = *p < 0x80                 ? 1
                             : *p >= 0xc2 && *p < 0xe0 ? 2
                             : (*p & 0xf0) == 0xe0     ? 3
                             : *p >= 0xf0 && *p < 0xf5 ? 4
                                                       : 0;
                uint32_t ch;

                if (n == 0)
                        return false;
                ch = n == 1 ? *p : *p & (0x7fu >> n);
                for (unsigned i = 1; i < n; i++) {
                        if ((p[i] & 0xc0) != 0x80)
                                return false;
                        ch = ch << 6 | (p[i] & 0x3f);
                }
                if (ch < 0x20 || (ch >= 0x7f && ch < 0xa0) || ch == 0x2028 || ch == 0x2029 ||
                    ch == 0xfeff || (ch >= 0xd800 && ch <= 0xdfff) || (ch & 0xfffe) == 0xfffe ||
                    ch > 0x10ffff || (n == 3 && ch < 0x800) || (n == 4 && ch < 0x10000))
                        return false;
                p += n;
        }
        return true;
}

/* "a|b|c" */
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
                return config_refuse(why, "%s: %s is not known; this version has %s", row->name,
                                     quoted, all);
        return config_refuse(why, "%s: %s is not one of %s", row->name, quoted, all);
}

static int check_path(const struct config_row *row, const char *text, char why[static CONFIG_WHY])
{
        char quoted[CONFIG_QUOTED];

        config_quote(text, quoted);
        if (*text == '\0')
                return config_refuse(why, "%s: a path cannot be empty", row->name);
        if (text[0] == '~')
                return config_refuse(why,
                                     "%s: \"~\" in %s is not replaced here; write the whole path",
                                     row->name, quoted);
        if (strlen(text) >= PATH_MAX - 64) /* file names are put behind it */
                return config_refuse(why, "%s: %s is longer than a path can be", row->name, quoted);
        return 0;
}

static int check_socket(const struct config_row *row, const char *text, char why[static CONFIG_WHY])
{
        enum { LONGEST = sizeof(((struct sockaddr_un *)0)->sun_path) - 1 };
        char quoted[CONFIG_QUOTED];
        int r;

        r = check_path(row, text, why);
        if (r < 0)
                return r;
        config_quote(text, quoted);
        if (strlen(text) > LONGEST)
                return config_refuse(why, "%s: %s is too long for a socket: %zu bytes, at most %d",
                                     row->name, quoted, strlen(text), (int)LONGEST);
        if (text[strlen(text) - 1] == '/')
                return config_refuse(why, "%s: %s is a directory; the socket needs a name in it",
                                     row->name, quoted);
        return 0;
}

enum where { NOWHERE, LOOPBACK, ELSEWHERE };

/* "127.0.0.1", "[::1]" and "localhost" are LOOPBACK; NOWHERE: a name, or no address at all. */
static enum where where_is(const char *text, size_t n)
{
        char host[64];
        struct in6_addr in6;
        struct in_addr in;

        if (n >= sizeof(host))
                return NOWHERE;
        memcpy(host, text, n);
        host[n] = '\0';
        if (host[0] == '[') {
                host[n - 1] = '\0';
                if (inet_pton(AF_INET6, host + 1, &in6) != 1)
                        return NOWHERE;
                return IN6_IS_ADDR_LOOPBACK(&in6) ? LOOPBACK : ELSEWHERE;
        }
        if (strcmp(host, "localhost") == 0)
                return LOOPBACK;
        if (inet_pton(AF_INET, host, &in) != 1)
                return NOWHERE;
        return ntohl(in.s_addr) >> 24 == IN_LOOPBACKNET ? LOOPBACK : ELSEWHERE;
}

/* Refuses all that http.c refuses before it asks the system. */
static int check_http(const struct config_row *row, const char *text, char why[static CONFIG_WHY])
{
        const char *colon = strrchr(text, ':'), *port = colon ? colon + 1 : text;
        size_t host = colon ? (size_t)(colon - text) : 0;
        bool bracketed = text[0] == '[';
        char quoted[CONFIG_QUOTED];
        uint64_t number;

        if (strcmp(text, "off") == 0)
                return 0;
        config_quote(text, quoted);
        if (strncmp(text, "unix:", 5) == 0)
                return text[5] == '/' ? check_socket(row, text + 5, why)
                                      : config_refuse(why, "%s: the path in %s must begin with /",
                                                      row->name, quoted);
        if (text[0] == '/')
                return config_refuse(why, "%s: did you mean \"unix:%.80s\"?", row->name, text);
        if (host == 0) {
                if (parse_count(port, &number) == 0 && number <= 65535)
                        return config_refuse(
                                why, "%s: %s names no address; did you mean \"127.0.0.1:%s\"?",
                                row->name, quoted, port);
                return config_refuse(why, "%s: %s is not ADDRESS:PORT, unix:/PATH or off",
                                     row->name, quoted);
        }
        if (bracketed ? text[host - 1] != ']' || host < 4 : memchr(text, ':', host) != NULL)
                return config_refuse(
                        why, "%s: %s: an IPv6 address is written in brackets, as in \"[::1]:9750\"",
                        row->name, quoted);
        for (size_t i = 0; i < host; i++)
                if (!isalnum((unsigned char)text[i]) &&
                    !strchr(bracketed ? "[]:.%-_" : ".-_", text[i]))
                        return config_refuse(why, "%s: %s is not ADDRESS:PORT, unix:/PATH or off",
                                             row->name, quoted);
        if (host > 255)
                return config_refuse(why, "%s: the address in %s is too long", row->name, quoted);
        if (parse_count(port, &number) < 0 || number > 65535 || strlen(port) > 5)
                return config_refuse(why, "%s: the port in %s is not a number from 0 to 65535",
                                     row->name, quoted);
        switch (where_is(text, host)) {
        case LOOPBACK:
                return 0;
        case ELSEWHERE:
                return config_refuse(why,
                                     "%s: %s would be seen from other hosts; write a loopback "
                                     "address, as in \"127.0.0.1:%s\", and put a proxy in front",
                                     row->name, quoted, port);
        default:
                return config_refuse(why,
                                     "%s: %s has no address in front of the port; 127.0.0.1, [::1] "
                                     "and localhost are",
                                     row->name, quoted);
        }
}

static int check_name(const struct config_row *row, const char *text, char why[static CONFIG_WHY])
{
        char quoted[CONFIG_QUOTED];

        config_quote(text, quoted);
        if (*text == '\0')
                return config_refuse(why, "%s: a name cannot be empty", row->name);
        if (strlen(text) > 255)
                return config_refuse(why, "%s: %s is too long for a name", row->name, quoted);
        if (strpbrk(text, ", :/"))
                return config_refuse(
                        why, "%s: %s is not a name; several are written as a list: [alice, bob]",
                        row->name, quoted);
        return 0;
}

/* It stands in metrics and in the store. */
static int check_tenant(const struct config_row *row, const char *text, char why[static CONFIG_WHY])
{
        static const char allowed[] =
                "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
        char quoted[CONFIG_QUOTED];
        size_t n = strlen(text);

        if (n > 0 && n <= CONFIG_TENANT_NAME && strspn(text, allowed) == n)
                return 0;
        return config_refuse(why,
                             "%s: %s is not a tenant's name: 1 to %u letters, digits, \".\", \"_\" "
                             "and \"-\"",
                             row->name, config_quote(text, quoted), (unsigned)CONFIG_TENANT_NAME);
}

/* --- values --- */

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

int config_assign_list_to(void *object, const struct config_row *row, char *const *items,
                          unsigned n, char why[static CONFIG_WHY])
{
        char quoted[CONFIG_QUOTED];
        int r;

        if (row->type != CONFIG_PATHS && row->type != CONFIG_NAMES)
                return config_refuse(why, "%s takes one value, not a list", row->name);
        if (row->type == CONFIG_PATHS && n == 0)
                return config_refuse(why, "%s: the list is empty; give a path, or auto", row->name);
        if (n > row->most)
                return config_refuse(why, "%s: at most %u entries", row->name, (unsigned)row->most);
        for (unsigned i = 0; i < n; i++) {
                if (!text_is_clean(items[i]))
                        return config_refuse(why, "%s: %s is not one line of UTF-8 text", row->name,
                                             config_quote(items[i], quoted));
                r = row->type == CONFIG_PATHS ? check_path(row, items[i], why)
                                              : check_name(row, items[i], why);
                if (r < 0)
                        return r;
                if (row->type == CONFIG_PATHS && strcmp(items[i], "auto") == 0)
                        return config_refuse(why,
                                             "%s: auto stands alone; write \"./auto\" for a "
                                             "directory of that name",
                                             row->name);
                for (unsigned j = 0; j < i; j++)
                        if (strcmp(items[i], items[j]) == 0)
                                return config_refuse(why, "%s: %s is listed twice", row->name,
                                                     config_quote(items[i], quoted));
        }
        return strings_copy(config_member(object, row), items, n);
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

/* "a,b", or "[a, b]" as in the file -> a list; "" and "[]" are the empty one. */
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
        int r;

        if (row->type == CONFIG_COUNT) {
                r = parse_count(text, &value);
                if (r < 0)
                        return config_refuse(why, "%s: %s is not a whole number%s", row->name,
                                             config_quote(text, quoted),
                                             row->flags & CONFIG_AUTO ? ", nor auto" : "");
        } else {
                bool bytes = row->type == CONFIG_BYTES;

                r = parse_scaled(text, bytes ? byte_units : time_units, bytes, &value, &unit);
                if (r == -EINVAL)
                        return refuse_number(row, text, unit, why);
        }
        if (r < 0 || value < row->least || value > row->most) {
                config_format_range(row, range, sizeof(range));
                return config_refuse(why, "%s: %s is out of range: %s", row->name,
                                     config_quote(text, quoted), range);
        }
        *member = value;
        return 0;
}

static int assign_mode(uint32_t *member, const struct config_row *row, const char *text,
                       char why[static CONFIG_WHY])
{
        size_t n = strlen(text);
        char quoted[CONFIG_QUOTED];

        if (n < 3 || n > 4 || strspn(text, "01234567") != n || (n == 4 && *text != '0'))
                return config_refuse(why, "%s: %s is not a mode in octal, as in 0660", row->name,
                                     config_quote(text, quoted));
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

int config_assign_to(void *object, const struct config_row *row, const char *text, bool commas,
                     char why[static CONFIG_WHY])
{
        void *member = config_member(object, row);
        bool is_auto = (row->flags & CONFIG_AUTO) && strcmp(text, "auto") == 0;
        char quoted[CONFIG_QUOTED], word[24];
        char *one[] = { (char *)text };
        int r = -EINVAL;

        if (!text_is_clean(text))
                return config_refuse(why, "%s: %s is not one line of UTF-8 text", row->name,
                                     config_quote(text, quoted));

        switch (row->type) {
        case CONFIG_SOCKET:
                is_auto |= *text == '\0';
                r = is_auto ? 0 : check_socket(row, text, why);
                if (r == 0)
                        r = assign_text(member, is_auto ? "" : text);
                break;
        case CONFIG_HTTP:
                r = check_http(row, text, why);
                if (r == 0)
                        r = assign_text(member, text);
                break;
        case CONFIG_TENANT:
                r = check_tenant(row, text, why);
                if (r == 0)
                        r = assign_text(member, text);
                break;
        case CONFIG_MODE:
                r = assign_mode(member, row, text, why);
                break;
        case CONFIG_PATHS:
        case CONFIG_NAMES:
                if (is_auto) {
                        config_strings_fini(member);
                        r = 0;
                } else
                        r = commas ? assign_commas(object, row, text, why)
                                   : config_assign_list_to(object, row, one, 1, why);
                break;
        case CONFIG_BYTES:
        case CONFIG_COUNT:
        case CONFIG_TIME:
                r = 0;
                if (is_auto)
                        *(uint64_t *)member = 0;
                else
                        r = assign_number(member, row, text, why);
                break;
        case CONFIG_SWITCH:
                r = assign_switch(member, row, text, why);
                break;
        case CONFIG_CHOICE:
                for (unsigned i = 0; r < 0 && word_at(row->words, i, word); i++)
                        if (strcmp(word, text) == 0)
                                r = 0;
                r = r == 0 ? assign_text(member, text) : refuse_word(row, text, why);
                break;
        }
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

/* SPDX-License-Identifier: Apache-2.0 */
#include "human.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "checked.h"
#include "units.h"

const char *human_count(uint64_t n, char ret[static HUMAN_BYTES])
{
        char digits[24];
        size_t length, out = 0;

        snprintf(digits, sizeof(digits), "%" PRIu64, n);
        length = strlen(digits);
        for (size_t i = 0; i < length; i++) {
                if (i > 0 && (length - i) % 3 == 0)
                        ret[out++] = ',';
                ret[out++] = digits[i];
        }
        ret[out] = '\0';
        return ret;
}

void human_things(uint64_t n, const char *noun, char ret[static HUMAN_BYTES])
{
        size_t used;

        human_count(n, ret);
        used = strlen(ret);
        snprintf(ret + used, HUMAN_BYTES - used, " %s%s", noun, n == 1 ? "" : "s");
}

void human_ns(uint64_t ns, char ret[static HUMAN_BYTES])
{
        static const char *const units[] = { "ns", "µs", "ms", "s" };
        double value = (double)ns;
        size_t unit = 0;

        while (unit + 1 < ARRAY_SIZE(units) && value >= 999.5) {
                value /= 1000;
                unit++;
        }
        units_short(value, units[unit], ret);
}

static void two_units(uint64_t a, const char *unit_a, uint64_t b, const char *unit_b,
                      char ret[static HUMAN_BYTES])
{
        if (b > 0)
                snprintf(ret, HUMAN_BYTES, "%" PRIu64 " %s %" PRIu64 " %s", a, unit_a, b, unit_b);
        else
                snprintf(ret, HUMAN_BYTES, "%" PRIu64 " %s", a, unit_a);
}

void human_seconds(double seconds, char ret[static HUMAN_BYTES])
{
        uint64_t s;

        if (!(seconds > 0))
                seconds = 0;
        if (seconds < 60) {
                snprintf(ret, HUMAN_BYTES, "%.1f s", seconds < 59.9 ? seconds : 59.9);
                return;
        }
        s = seconds > 1e15 ? (uint64_t)1e15 : (uint64_t)seconds;
        if (s < 3600)
                two_units(s / 60, "min", s % 60, "s", ret);
        else if (s < 86400)
                two_units(s / 3600, "h", s % 3600 / 60, "min", ret);
        else
                two_units(s / 86400, "d", s % 86400 / 3600, "h", ret);
}

double human_round_up(double value)
{
        double step;

        if (!isfinite(value) || value <= 0)
                return value;
        step = pow(10, floor(log10(value)) - 1);
        return ceil(value / step - 1e-6) *
               step; /* the small constant allows for rounding errors: 0.28 / 0.01 is above 28 */
}

void human_percent(uint64_t part, uint64_t whole, char ret[static HUMAN_BYTES])
{
        double percent = whole ? 100.0 * (double)part / (double)whole : 0;

        /* A part that is less than the whole is never shown as 100 %. */
        if (whole == 0)
                snprintf(ret, HUMAN_BYTES, "-");
        else
                snprintf(ret, HUMAN_BYTES, "%.1f %%",
                         percent > 99.9 && part < whole ? 99.9 : percent);
}

void human_time(uint64_t unix_ms, char ret[static HUMAN_BYTES])
{
        time_t t = (time_t)(unix_ms / 1000);
        struct tm tm;

        if (!localtime_r(&t, &tm) || strftime(ret, HUMAN_BYTES, "%Y-%m-%d %H:%M:%S", &tm) == 0)
                snprintf(ret, HUMAN_BYTES, "%" PRIu64 " ms", unix_ms);
}

int human_parse_number(const char *text, double *ret)
{
        char *end;
        double value;

        /* strtod() also accepts hexadecimal, "nan" and "inf", which are rejected here. */
        if (!isdigit((unsigned char)text[0]) && text[0] != '.')
                return -EINVAL;
        value = strtod(text, &end);
        if (end == text || *end != '\0' || !isfinite(value) || strpbrk(text, "xX"))
                return -EINVAL;
        *ret = value;
        return 0;
}

int human_parse_seconds(const char *text, double *ret)
{
        static const struct {
                char unit;
                double seconds;
        } units[] = { { 's', 1 }, { 'm', 60 }, { 'h', 3600 }, { 'd', 24 * 3600 } };
        size_t n = strlen(text);
        double value, seconds = 1;
        char number[24];

        for (size_t i = 0; i < sizeof(units) / sizeof(units[0]) && n > 0; i++)
                if (text[n - 1] == units[i].unit) {
                        seconds = units[i].seconds;
                        n--;
                        break;
                }
        if (n == 0 || n >= sizeof(number))
                return -EINVAL;
        snprintf(number, sizeof(number), "%.*s", (int)n, text);
        if (human_parse_number(number, &value) < 0 || !isfinite(value * seconds))
                return -EINVAL;
        *ret = value * seconds;
        return 0;
}

static uint64_t bytes_in(const char *unit)
{
        static const struct {
                const char *name;
                uint64_t factor;
        } units[] = {
                { "", 1 },
                { "B", 1 },
                { "K", 1ull << 10 },
                { "KiB", 1ull << 10 },
                { "kB", 1000 },
                { "M", 1ull << 20 },
                { "MiB", 1ull << 20 },
                { "MB", 1000 * 1000 },
                { "G", 1ull << 30 },
                { "GiB", 1ull << 30 },
                { "GB", 1000ull * 1000 * 1000 },
                { "T", 1ull << 40 },
                { "TiB", 1ull << 40 },
                { "TB", 1000ull * 1000 * 1000 * 1000 },
        };

        for (size_t i = 0; i < ARRAY_SIZE(units); i++)
                if (strcasecmp(unit, units[i].name) == 0)
                        return units[i].factor;
        return 0;
}

int human_parse_bytes(const char *text, uint64_t *ret)
{
        return units_parse(text, bytes_in, ret, NULL);
}

size_t human_width(const char *text)
{
        size_t n = 0;

        for (; *text; text++)
                n += ((unsigned char)*text & 0xc0) != 0x80;
        return n;
}

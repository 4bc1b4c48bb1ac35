/* SPDX-License-Identifier: Apache-2.0 */
#include "units.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "checked.h"

const char *units_short(double value, const char *unit, char ret[static UNITS_TEXT])
{
        int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0, n;

        n = snprintf(ret, UNITS_TEXT, "%.*f", decimals, value);
        if (decimals > 0) {
                while (ret[n - 1] == '0')
                        n--;
                n -= ret[n - 1] == '.';
        }
        snprintf(ret + n, UNITS_TEXT - (size_t)n, " %s", unit);
        return ret;
}

const char *units_bytes(uint64_t bytes, char ret[static UNITS_TEXT])
{
        static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
        double value = (double)bytes;
        size_t unit = 0;

        /* Choose the next unit from 1023.5 on: 1023.6 KiB would be rounded to 1024 KiB, and is
         * printed as 1 MiB. */
        for (; unit + 1 < ARRAY_SIZE(units) && value >= 1023.5; unit++)
                value /= 1024;
        return units_short(value, units[unit], ret);
}

const char *units_ms(uint64_t ms, char ret[static UNITS_TEXT])
{
        if (ms < 1000)
                return units_short((double)ms, "ms", ret);
        if (ms < 120 * 1000)
                return units_short((double)ms / 1e3, "s", ret);
        if (ms < 120 * 60 * 1000)
                return units_short((double)ms / 60e3, "min", ret);
        return units_short((double)ms / 3600e3, "h", ret);
}

const char *units_count(uint64_t n, const char *noun, char ret[static UNITS_TEXT])
{
        snprintf(ret, UNITS_TEXT, "%" PRIu64 " %s%s", n, noun, n == 1 ? "" : "s");
        return ret;
}

/* A decimal number such as "1.5". Digits after the ninth decimal place are ignored; `whole` stops
 * growing once it exceeds 64 bits. */
struct decimal {
        unsigned __int128 whole;
        uint64_t fraction, scale; /* the fraction is `fraction` / `scale` */
        bool has_point;
};

static bool is_digit(char c)
{
        return c >= '0' && c <= '9';
}

/* Returns the text after the number, or NULL if it is malformed. */
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
        ret->has_point = true;
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

int units_parse_count(const char *text, uint64_t *ret)
{
        struct decimal n;
        const char *end = read_decimal(text, &n);

        if (!end || *end != '\0' || n.has_point)
                return -EINVAL;
        if (n.whole > UINT64_MAX)
                return -ERANGE;
        *ret = (uint64_t)n.whole;
        return 0;
}

int units_parse(const char *text, uint64_t (*factor_of)(const char *unit), uint64_t *ret,
                const char **ret_unit)
{
        struct decimal n;
        const char *end = read_decimal(text, &n), *unit = end ? end + strspn(end, " ") : NULL;
        unsigned __int128 value;
        uint64_t factor;

        if (unit && unit > end && *unit == '\0')
                unit = NULL; /* only blanks follow */
        if (ret_unit)
                *ret_unit = unit;
        if (!unit)
                return -EINVAL;
        factor = factor_of(unit);
        if (factor == 0 && *unit == '\0' && n.whole == 0 && n.fraction == 0)
                factor = 1;
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

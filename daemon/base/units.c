/* SPDX-License-Identifier: Apache-2.0 */
#include "base/units.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "checked.h"

/* Three digits, rounded, without zeros at the end of a fraction. */
static const char *print_short(double value, const char *unit, char ret[static UNITS_TEXT])
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

        /* 1023.6 KiB would be printed as 1024: that is a MiB. */
        for (; unit + 1 < ARRAY_SIZE(units) && value >= 1023.5; unit++)
                value /= 1024;
        return print_short(value, units[unit], ret);
}

const char *units_ms(uint64_t ms, char ret[static UNITS_TEXT])
{
        if (ms < 1000)
                return print_short((double)ms, "ms", ret);
        if (ms < 120 * 1000)
                return print_short((double)ms / 1e3, "s", ret);
        if (ms < 120 * 60 * 1000)
                return print_short((double)ms / 60e3, "min", ret);
        return print_short((double)ms / 3600e3, "h", ret);
}

const char *units_count(uint64_t n, const char *noun, char ret[static UNITS_TEXT])
{
        snprintf(ret, UNITS_TEXT, "%" PRIu64 " %s%s", n, noun, n == 1 ? "" : "s");
        return ret;
}

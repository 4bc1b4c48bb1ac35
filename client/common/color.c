/* SPDX-License-Identifier: Apache-2.0 */
#include "color.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static enum { AUTO, ALWAYS, NEVER } when_set = AUTO;

bool color_set(const char *when)
{
        if (strcmp(when, "auto") == 0)
                when_set = AUTO;
        else if (strcmp(when, "always") == 0)
                when_set = ALWAYS;
        else if (strcmp(when, "never") == 0)
                when_set = NEVER;
        else
                return false;
        return true;
}

const char *color_option(void)
{
        return when_set == ALWAYS ? "--color=always" : when_set == NEVER ? "--color=never" : NULL;
}

bool color_wanted(FILE *to)
{
        const char *no = getenv("NO_COLOR"), *term = getenv("TERM");

        if (when_set != AUTO)
                return when_set == ALWAYS;
        return !(no && *no) && term && *term && strcmp(term, "dumb") != 0 && isatty(fileno(to));
}

const char *color_begin(enum color color, bool wanted)
{
        return !wanted || color == COLOR_NONE ? "" : color == COLOR_BAD ? "\033[1;31m" : "\033[33m";
}

const char *color_end(enum color color, bool wanted)
{
        return wanted && color != COLOR_NONE ? "\033[0m" : "";
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Prints one field of a CSV line, quoted if it contains commas, quotes or line ends. */
#pragma once

#include <stdio.h>

static inline void csv_field(FILE *out, const char *text, char end)
{
        const char *p = text;

        while (*p && *p != ',' && *p != '"' && *p != '\n' && *p != '\r')
                p++;
        if (*p == '\0') {
                fputs(text, out);
        } else {
                fputc('"', out);
                for (p = text; *p; p++)
                        fprintf(out, *p == '"' ? "\"\"" : "%c", *p);
                fputc('"', out);
        }
        fputc(end, out);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Reads any bytes as a snapshot of benchmark sessions. They are refused with a message, or make a
 * session whose reports, exports and comparisons can be printed, and whose export is the same
 * session again. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare.h"
#include "dynamo.h"
#include "export.h"
#include "report.h"
#include "snapshot.h"

static void print_all(const struct snapshot *s, FILE *out)
{
        for (int format = REPORT_TEXT; format <= REPORT_HTML; format++)
                for (int no_clock = 0; no_clock < 2; no_clock++) {
                        struct report_options o = { .format = (enum report_format)format,
                                                    .no_clock = no_clock,
                                                    .path = -1,
                                                    .layout = -1 };

                        if (session_report(s, &o, out) < 0)
                                abort();
                }
        for (int format = EXPORT_CSV; format <= EXPORT_DYNAMO; format++)
                if (session_export(s, (enum export_format)format, out) < 0)
                        abort();
        for (int i = 0; i < 4; i++) {
                struct compare_options o = { .by_layout = i % 2, .json = i / 2, .most_percent = 0 };

                /* A session compared with itself is not worse; only another layout of it can be. */
                if (session_compare(s, s, &o, out) != 0 && !o.by_layout)
                        abort();
        }
}

static char *export(const struct snapshot *s, size_t *ret_bytes)
{
        char *text = NULL;
        FILE *f = open_memstream(&text, ret_bytes);

        if (!f || session_export(s, EXPORT_JSON, f) < 0 || fclose(f) != 0)
                abort();
        return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
        struct snapshot *s = NULL, *again = NULL;
        char error[SNAPSHOT_ERROR_BYTES] = "", *text, *text_again, *printed = NULL;
        size_t n, n_again, n_printed;
        FILE *out;

        if (dynamo_parse((const char *)data, bytes, "it", &s, error) < 0) {
                if (strncmp(error, "it: ", 4) != 0 || strpbrk(error, "\n\033"))
                        abort();
                return 0;
        }
        out = open_memstream(&printed, &n_printed);
        if (!out)
                abort();
        print_all(s, out);
        fclose(out);
        free(printed);
        text = export(s, &n);
        if (snapshot_parse(text, n, "it", &again, error) < 0)
                abort();
        text_again = export(again, &n_again);
        if (n != n_again || memcmp(text, text_again, n) != 0)
                abort();
        free(text);
        free(text_again);
        snapshot_free(s);
        snapshot_free(again);
        return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The destination of a report: standard output, or a file that appears complete or not at all,
 * because it is written under a temporary name, synced, and renamed. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

struct output {
        FILE *file;
        const char *path; /* NULL: standard output */
        char *temporary;
};

/* Opens a destination; NULL and "-" are standard output. Returns EXIT_OK, or another status after
 * reporting the failure. */
int output_open(struct output *o, const char *path);
/* Closes a destination. Without `keep`, the file does not appear. Returns EXIT_OK, or another
 * status after reporting the failure. */
int output_close(struct output *o, bool keep);

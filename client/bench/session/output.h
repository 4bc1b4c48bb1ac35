/* SPDX-License-Identifier: Apache-2.0 */
/* Where a report goes: standard output, or a file that appears complete or not at all: written
 * under another name beside it, synced, and renamed. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

struct output {
        FILE *file;
        const char *path; /* NULL: standard output */
        char *temporary;
};

/* `path`: NULL and "-" are standard output. EXIT_OK; else the reason has been printed. */
int output_open(struct output *o, const char *path);
/* `keep`: false: nothing appears under its name. EXIT_OK; else the reason has been printed. */
int output_close(struct output *o, bool keep);

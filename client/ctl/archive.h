/* SPDX-License-Identifier: Apache-2.0 */
/* A tar archive (POSIX ustar) of texts, written to a stream. */
#pragma once

#include <stddef.h>
#include <stdio.h>
#include <time.h>

/* Appends a file of mode 0600 that belongs to root. `name` has at most 99 bytes. Returns 0;
 * -ENAMETOOLONG; -EFBIG if the file has 8 GiB or more. The caller checks ferror(out) for write
 * errors. */
int archive_add(FILE *out, const char *name, const char *bytes, size_t length, time_t modified);
/* Appends the two empty blocks that end an archive. */
void archive_end(FILE *out);

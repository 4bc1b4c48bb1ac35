/* SPDX-License-Identifier: Apache-2.0 */
/* Files that list keys: `replay --acks` writes them, and the option --from of kvcachectl's commands
 * reads them (keys.h). A line is
 *
 * <64 hex digits> [<length> [<namespace>]]
 *
 * where the namespace extends to the end of the line. The reader skips blank lines and lines
 * that begin with '#'. It also skips a last line without a newline if that line is malformed, or if
 * a line has a length, as in replay's files: replay died while it wrote the last one. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvcache.h"

enum { KEYFILE_LINE_BYTES = 512, KEYFILE_NAMESPACE_BYTES = 256, KEYFILE_ERROR_BYTES = 512 };

struct keyfile;

struct keyfile_entry {
        struct kvcache_key key;
        uint64_t length;       /* 0: not given */
        const char *namespace; /* NULL: not given; valid until the next call */
};

/* Opens a key file; "-" is standard input. Returns 0; -ENOMEM, with `ret_error` untouched; the
 * errno of fopen(), negated, with a message in `ret_error`. */
int keyfile_open(struct keyfile **ret, const char *path,
                 char ret_error[static KEYFILE_ERROR_BYTES]);
struct keyfile *keyfile_close(struct keyfile *f);
/* Reads the next entry. Returns 1; 0 at the end; -EBADMSG for a malformed line, or -EIO, both with
 * a message in `ret_error`. */
int keyfile_next(struct keyfile *f, struct keyfile_entry *ret,
                 char ret_error[static KEYFILE_ERROR_BYTES]);

/* Returns the part of the file that has been read, 0 to 1; 0 if it is no regular file. */
double keyfile_part(const struct keyfile *f);

/* Formats one line with its newline, and a namespace cut to 255 bytes. Returns the line's length.
 */
size_t keyfile_format(const struct kvcache_key *key, uint64_t length, const char *namespace,
                      char ret[static KEYFILE_LINE_BYTES]);

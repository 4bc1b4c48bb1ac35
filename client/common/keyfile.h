/* SPDX-License-Identifier: Apache-2.0 */
/* Files that list keys: `replay --acks` writes them, `exists --from`, `prefetch --from` and `evict
 * --from` read them. A line is
 *
 * <64 hex digits> [<length> [<namespace>]]
 *
 * where the namespace extends to the end of the line. The reader skips blank lines and lines
 * that begin with '#', and, in a file that replay wrote, a last line without a newline: replay
 * died while it wrote that line. */
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

/* Opens a key file; "-" is standard input. Returns 0 or -errno, with a message in `ret_error`. */
int keyfile_open(struct keyfile **ret, const char *path,
                 char ret_error[static KEYFILE_ERROR_BYTES]);
struct keyfile *keyfile_close(struct keyfile *f);
/* Reads the next entry. Returns 1; 0 at the end; -EBADMSG or -errno, with a message in
 * `ret_error`. */
int keyfile_next(struct keyfile *f, struct keyfile_entry *ret,
                 char ret_error[static KEYFILE_ERROR_BYTES]);

/* Returns the part of the file that has been read, 0 to 1; 0 if its size is not known. */
double keyfile_part(const struct keyfile *f);

/* Formats one line with its newline. Returns its length. */
size_t keyfile_format(const struct kvcache_key *key, uint64_t length, const char *namespace,
                      char ret[static KEYFILE_LINE_BYTES]);

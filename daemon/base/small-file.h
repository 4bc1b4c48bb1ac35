/* SPDX-License-Identifier: Apache-2.0 */
/* Small files that are read whole and replaced atomically. Calls block; any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Reads `bytes` from the beginning of a file. Returns the bytes read, which are fewer if the file
 * is shorter, or -errno. */
int64_t small_file_read(int fd, void *buf, size_t bytes);

/* Reads the file `name` of the directory `folder`, which may be AT_FDCWD, into memory that the
 * caller frees; the memory is one byte larger than the file. A link is not followed, and a FIFO
 * does not block. Returns 0; -EMEDIUMTYPE if it is not a regular file; -EFBIG if it is larger than
 * `most`; -ENODATA if it shrinks meanwhile; or another -errno. */
int small_file_load(int folder, const char *name, uint64_t most, void **ret, size_t *ret_bytes);

/* Writes a file under the name `next`, syncs it, renames it to `name`, and syncs the directory, so
 * that a crash leaves either the old or the new file. Returns 0 or -errno; if only the sync of the
 * directory failed, the new file is in place. */
int small_file_replace(int folder, const char *name, const char *next, mode_t mode,
                       const void *bytes, size_t n);

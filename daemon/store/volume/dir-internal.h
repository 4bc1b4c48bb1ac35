/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that dir.c and dir-superblock.c share; see dir.h. */
#pragma once

#include "store/volume/dir.h"

#define DIR_SUPERBLOCK_NEW "superblock.new"

/* Opens a regular file of the directory. Returns like dir_open_file(). */
int dir_open_regular(const struct dir *d, const char *name, int flags);
/* Reads the copies of the superblock, and fills in d->superblock, d->superblock_good and d->copied.
 * Returns 0 or -errno with a sentence. */
int dir_superblock_read(struct dir *d, char ret_error[static STORE_ERROR_BYTES]);
/* Opens the superblock for dir_write_superblock(), after dir_superblock_read() or the first write.
 * Returns 0 or -errno with a sentence. */
int dir_superblock_open(struct dir *d, char ret_error[static STORE_ERROR_BYTES]);

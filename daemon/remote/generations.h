/* SPDX-License-Identifier: Apache-2.0 */
/* Which generation of each namespace this host's chunks are of, over a restart: a list, and its
 * file. The file has no more than what is true of the chunks on disk: after a crash a namespace may
 * be purged for a second time, but no purge is missed.
 *
 * The file, little-endian: magic "KVCRGENS", version (4 bytes), CRC32C of all that follows (4), the
 * number of entries (8), and each with identity (32) and generation (8). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "remote/object.h"

enum { GENERATIONS_MAX = 65536 };

struct generation {
        struct remote_identity identity;
        uint64_t generation;
};

struct generations {
        struct generation *list;
        uint32_t n, room;
};

void generations_fini(struct generations *g);
/* 0; -ENOENT: there is no file; -EBADMSG: it is damaged; -errno. Of a failure nothing is kept. */
int generations_read(struct generations *g, const char *path);
/* False: it is not known. */
bool generations_find(const struct generations *g, const struct remote_identity *id, uint64_t *ret);
/* 0, -ENOMEM, -ENOSPC: there are too many. */
int generations_set(struct generations *g, const struct remote_identity *id, uint64_t generation);
/* False: it was not there. */
bool generations_remove(struct generations *g, const struct remote_identity *id);

/* The bytes of the file, to be freed; NULL: no memory. */
void *generations_encode(const struct generations *g, size_t *ret_bytes);
/* Replaces the file as a whole, and syncs it and its folder. Any thread; blocks. 0, -errno. */
int generations_write(const char *path, const void *bytes, size_t n);

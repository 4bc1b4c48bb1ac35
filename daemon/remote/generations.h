/* SPDX-License-Identifier: Apache-2.0 */
/* The generations of namespaces to which this host's chunks belong, in memory and in a file that
 * survives a restart. The file never has a newer generation than the chunks on disk: after a crash
 * a namespace may be purged a second time, but no purge is missed.
 *
 * The file, little-endian: magic "KVCRGENS", version (4 bytes), CRC32C of the rest of the file (4),
 * number of entries (8), then each entry with identity (32) and generation (8). */
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
/* Reads the file. Returns 0, -ENOENT if there is no file, -EBADMSG if it is damaged, or -errno.
 * After a failure the list is empty. */
int generations_read(struct generations *g, const char *path);
/* Looks up the generation of a namespace. Returns false if the list does not have the namespace. */
bool generations_find(const struct generations *g, const struct remote_identity *id, uint64_t *ret);
/* Adds the entry of a namespace or changes its generation. Returns 0, -ENOMEM, or -ENOSPC if the
 * list is full. */
int generations_set(struct generations *g, const struct remote_identity *id, uint64_t generation);
/* Removes the entry of a namespace. Returns false if the list does not have it. */
bool generations_remove(struct generations *g, const struct remote_identity *id);

/* Returns the contents of the file, which the caller frees, or NULL without memory. */
void *generations_encode(const struct generations *g, size_t *ret_bytes);
/* Replaces the file atomically, and syncs it and its directory. Blocks; any thread. Returns 0 or
 * -errno. */
int generations_write(const char *path, const void *bytes, size_t n);

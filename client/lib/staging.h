/* SPDX-License-Identifier: Apache-2.0 */
/* Places in the staging area, the shared memory from which puts are taken and to which `get into`
 * copies.
 *
 * The table of places is private memory of the library, which the daemon cannot reach although
 * it can write the staging area. A place is freed when its user has released it and no message
 * names bytes in it any longer. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { STAGING_ALIGN = 64 };

struct staging_place {
        uint64_t start; /* offset; like `bytes` a multiple of STAGING_ALIGN */
        uint64_t bytes;
        uint32_t refs; /* number of entries, or pieces of entries, of messages that name bytes in
                          the place */
        bool held;     /* held by the user, until kvcache_staging_release() */
};

struct staging {
        uint8_t *base; /* NULL: no staging area */
        uint64_t bytes;
        struct staging_place *places; /* sorted by start */
        size_t n_places, room;
        size_t hint; /* a number of places, counted from the lowest, without a free byte before or
                        between them */
};

/* Maps `bytes` of `fd`, which the caller keeps. Returns 0; -EPERM if the file can shrink; -EBADMSG
 * if the file is too short, or `bytes` is 0 or above SIZE_MAX / 2; -errno. */
int staging_map(struct staging *l, int fd, uint64_t bytes);
void staging_fini(struct staging *l, bool unmap);

/* Takes the first free range that fits, because low addresses are most likely in the CPU's cache.
 * Returns 0; -ENOBUFS if there is no room now; -E2BIG if `bytes` can never fit; -EINVAL if `bytes`
 * is 0; -ENOMEM. A place that is not `held` is freed with its last reference. */
int staging_acquire(struct staging *l, uint64_t bytes, bool held, uint64_t *ret_offset);
/* Ends the user's hold on a place. Returns false if no held place starts at `offset`. */
bool staging_release(struct staging *l, uint64_t offset);

/* Returns whether [data, data + bytes) lies in the mapping. */
bool staging_contains(const struct staging *l, const void *data, uint64_t bytes);
/* Takes a reference to the place that contains [offset, offset + bytes). Returns false if no single
 * place does. */
bool staging_ref(struct staging *l, uint64_t offset, uint64_t bytes);
void staging_unref(struct staging *l, uint64_t offset);

/* SPDX-License-Identifier: Apache-2.0 */
/* Places in the staging area: the shared memory that puts are taken from and `get into` copies to.
 *
 * The bookkeeping is the library's private memory: the daemon, which can write the staging area,
 * cannot reach it. A place lives while its user holds it or a message names bytes in it; the last
 * of them frees it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { STAGING_ALIGN = 64 };

struct staging_place {
        uint64_t start; /* offset, a multiple of STAGING_ALIGN, as is `bytes` */
        uint64_t bytes;
        uint32_t refs; /* entries of messages that name bytes in it */
        bool held;     /* by the user, until kvcache_staging_release() */
};

struct staging {
        uint8_t *base; /* NULL: no staging area */
        uint64_t bytes;
        struct staging_place *places; /* by start */
        size_t n_places, room;
        size_t hint; /* no free byte lies before this place's start */
};

/* Maps `bytes` of `fd`, which stays the caller's. 0; -EPERM: it can be shrunk; -EBADMSG: it is
 * shorter; -errno. */
int staging_map(struct staging *l, int fd, uint64_t bytes);
void staging_fini(struct staging *l, bool unmap);

/* First fit: the lowest addresses are the ones still in the CPU's cache. 0; -ENOBUFS: not now;
 * -E2BIG: never; -ENOMEM. A place that is not held goes with its last reference. */
int staging_acquire(struct staging *l, uint64_t bytes, bool held, uint64_t *ret_offset);
/* The user's hold. False if no held place starts there. */
bool staging_release(struct staging *l, uint64_t offset);

/* Is [data, data + bytes) in the mapping? */
bool staging_contains(const struct staging *l, const void *data, uint64_t bytes);
/* Is [offset, offset + bytes) in one place? Then that place has one reference more. */
bool staging_ref(struct staging *l, uint64_t offset, uint64_t bytes);
void staging_unref(struct staging *l, uint64_t offset);

/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory: a stretch of a client's file, mapped here so that bytes move between it and
 * the disks (rule R2). It is hostile: the client may change it at any time and, where it is not
 * sealed F_SEAL_SHRINK, cut it as well, so the CPU touches it under io's guard only and nothing
 * that was read there is believed before its checksum.
 *
 * region_is_memory() may run on the loop thread: it never asks the file system, which could be one
 * in user space that does not answer. What takes as long as the stretch has pages runs on a
 * blocking-call thread. The rest: loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "io/io.h"

/* Of the blocking-call thread that maps and unmaps the memory of clients: io's, no device of the
 * store has it. */
enum { REGION_THREAD = KIO_VOLUMES_MAX - 3 };

/* Is it a descriptor of a memfd or of a file on tmpfs or hugetlbfs? */
bool region_is_memory(int fd);

/* Open from opened() with 0 until region_close(), and the region's own until closed(). */
struct region {
        void *base; /* NULL: not open */
        uint64_t bytes;
        struct kio_region in_rings; /* what requests name; how registering it went */

        struct kio *io;
        /* 0; -EINVAL: the file is not as it must be, and `wrong`, a static text, says what; -errno:
         * it cannot be mapped. */
        void (*opened)(struct region *r, int result, const char *wrong);
        void (*registered)(struct region *r); /* with the rings, or not: it can be used meanwhile */
        void (*closed)(struct region *r);

        /* The region's. */
        struct kio_request call;
        int fd;
        uint64_t offset;
        const char *wrong;
        bool registers;
};

/* Checks the file, maps [offset, offset + bytes), and registers a large one with the rings. Set
 * before: io, and the three to be called. The descriptor is closed by then. */
void region_open(struct region *r, int fd, uint64_t offset, uint64_t bytes);
/* No request may use it any more. */
void region_close(struct region *r);
/* The address of [offset, offset + length), or NULL where that is not within the region. */
void *region_at(const struct region *r, uint64_t offset, uint64_t length);

/* What the thread does: checks and maps, unmaps. Result as of opened(); the descriptor stays the
 * caller's and may be closed afterwards. */
int region_map(struct region *ret, int fd, uint64_t offset, uint64_t bytes, const char **ret_wrong);
void region_unmap(struct region *r);

/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory: a range of a client's file, mapped into the daemon so that bytes move between
 * it and the disks (R2 in SECURITY.md). The memory is untrusted: the client may change it at any
 * time, and truncate the file unless it is sealed with F_SEAL_SHRINK. The CPU therefore accesses it
 * only under io's guard, and bytes that were read there are not used before their checksum is
 * verified.
 *
 * region_is_memory() may run on the loop thread, because it never asks the file system, which may
 * be a user's process that does not answer. Calls whose duration grows with the range run on a
 * blocking-call thread. Everything else runs on the loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "io/io.h"

/* Number of the blocking-call thread of io/ that maps and unmaps clients' memory; no volume of the
 * store has this number. */
enum { REGION_THREAD = KIO_VOLUMES_MAX - 3 };

/* Returns whether the descriptor is of a memfd, or of a file on tmpfs or hugetlbfs. */
bool region_is_memory(int fd);

/* Identifies the file of a descriptor. */
struct region_identity {
        uint64_t device, inode;
        uint64_t born_ns; /* distinguishes reused inode numbers; 0 if not recorded, as on hugetlbfs
                           */
};

/* A client's descriptor, and the range of its file that is to be registered. Owned by the caller,
 * except while region_file_check() or region_file_close() is running. */
struct region_file {
        struct kio *io;
        int fd;       /* -1 if closed */
        bool on_disk; /* the file must be one that put_file_check() accepts, instead of memory */
        uint64_t offset, bytes;
        /* Called at the end of region_file_check() with 0, or with -EINVAL if the file cannot be
         * registered: then `wrong` is a static text with the reason, and the descriptor is closed.
         * Called at the end of region_file_close() with 0. */
        void (*done)(struct region_file *f, int result);
        struct region_identity identity; /* set by a successful region_file_check() of memory */
        const char *wrong;

        struct kio_request call;
};

/* Checks the file and calls done(). The caller sets io, fd, on_disk, offset, bytes and done. */
void region_file_check(struct region_file *f);
/* Closes the descriptor, if it is open, and calls done(). A blocking-call thread closes it, because
 * closing the last descriptor of a file frees its memory. */
void region_file_close(struct region_file *f);

/* A region. It is open from opened() with result 0 until region_close(), and must not be freed
 * before closed(). */
struct region {
        void *base; /* NULL if not open */
        uint64_t bytes;
        struct kio_region in_rings; /* named by requests that use the memory; `result` is that of
                                       registering with the rings */

        struct kio *io;
        void (*opened)(struct region *r,
                       int result);           /* 0, or -errno if the range cannot be mapped */
        void (*registered)(struct region *r); /* registering ended; the region can be used before */
        void (*closed)(struct region *r);

        /* Private to the region. */
        struct kio_request call;
        int fd;
        uint64_t offset;
        bool registers, has_fixed_size;
};

/* Maps [offset, offset + bytes) of a checked file and closes the descriptor; registers a region of
 * 1 MiB or more with the rings, and then calls registered(). The caller sets io and the three
 * callbacks. */
void region_open(struct region *r, int fd, uint64_t offset, uint64_t bytes);
/* Unregisters and unmaps the region, and calls closed(). No request may use the region. */
void region_close(struct region *r);
/* Returns the address of [offset, offset + length), or NULL if the range exceeds the region. */
void *region_at(const struct region *r, uint64_t offset, uint64_t length);

/* region_check() and region_map() are the blocking steps of opening a region, region_unmap() that
 * of closing it. All run on a blocking-call thread. The descriptor stays the caller's, who may
 * close it after region_map(). region_check() returns 0, or -EINVAL and the reason; region_map()
 * returns 0 or -errno. */
int region_check(int fd, uint64_t offset, uint64_t bytes, struct region_identity *ret,
                 const char **ret_wrong);
int region_map(struct region *ret, int fd, uint64_t offset, uint64_t bytes);
void region_unmap(struct region *r);

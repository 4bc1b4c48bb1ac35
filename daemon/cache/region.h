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

/* Which file a descriptor is of. */
struct region_identity {
        uint64_t device, inode;
        uint64_t born_ns; /* an inode number is given out again; 0: not recorded, as on hugetlbfs */
};

/* A client's descriptor, and the stretch of its file that is to be registered. The caller's; not
 * while region_file_check() or region_file_close() is under way. */
struct region_file {
        struct kio *io;
        int fd;       /* -1: closed */
        bool on_disk; /* to be one of put-file.h */
        uint64_t offset, bytes;
        /* Of region_file_check(): 0; -EINVAL: the file is not as it must be, `wrong`, a static
         * text, says what, and the descriptor is closed. Of region_file_close(): 0. */
        void (*done)(struct region_file *f, int result);
        struct region_identity identity; /* of a file that was checked */
        const char *wrong;

        struct kio_request call;
};

/* Checks the file; set before: io, fd, offset, bytes, done. */
void region_file_check(struct region_file *f);
/* Closes the descriptor, if it is open: the last one of a file frees its memory. */
void region_file_close(struct region_file *f);

/* Open from opened() with 0 until region_close(), and the region's own until closed(). */
struct region {
        void *base; /* NULL: not open */
        uint64_t bytes;
        struct kio_region in_rings; /* what requests name; how registering it went */

        struct kio *io;
        void (*opened)(struct region *r, int result); /* 0; -errno: it cannot be mapped */
        void (*registered)(struct region *r); /* with the rings, or not: it can be used meanwhile */
        void (*closed)(struct region *r);

        /* The region's. */
        struct kio_request call;
        int fd;
        uint64_t offset;
        bool registers;
};

/* Maps [offset, offset + bytes) of a file that was checked, and registers a large one with the
 * rings. Set before: io, and the three to be called. The descriptor is closed by then. */
void region_open(struct region *r, int fd, uint64_t offset, uint64_t bytes);
/* No request may use it any more. */
void region_close(struct region *r);
/* The address of [offset, offset + length), or NULL where that is not within the region. */
void *region_at(const struct region *r, uint64_t offset, uint64_t length);

/* What the thread does. The descriptor stays the caller's and may be closed afterwards. */
/* 0, or -EINVAL and what is wrong. */
int region_check(int fd, uint64_t offset, uint64_t bytes, struct region_identity *ret,
                 const char **ret_wrong);
int region_map(struct region *ret, int fd, uint64_t offset, uint64_t bytes); /* 0, -errno */
void region_unmap(struct region *r);

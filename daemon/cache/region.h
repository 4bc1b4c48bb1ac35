/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory: a stretch of a client's file, mapped here so that bytes move between it and
 * the disks (rule R2). It is hostile: the client may change it at any time and, where it is not
 * sealed F_SEAL_SHRINK, cut it as well, so the CPU touches it under io's guard only and nothing
 * that was read there is believed before its checksum.
 *
 * region_is_memory() comes first and may run on the loop thread: it never asks the file system,
 * which could be one in user space that does not answer. The others may take as long as the stretch
 * has pages: another thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct region {
        void *base; /* NULL: not open */
        uint64_t bytes;
};

/* Is it a descriptor of a memfd or of a file on tmpfs or hugetlbfs? */
bool region_is_memory(int fd);

/* Checks the file, and maps [offset, offset + bytes). The descriptor stays the caller's and may be
 * closed afterwards. 0; -EINVAL: not as it must be, and *ret_wrong, a static text, says what;
 * -errno: it cannot be mapped. */
int region_open(struct region *ret, int fd, uint64_t offset, uint64_t bytes,
                const char **ret_wrong);
void region_close(struct region *r);

/* The address of [offset, offset + length), or NULL where that is not within the region. */
void *region_at(const struct region *r, uint64_t offset, uint64_t length);

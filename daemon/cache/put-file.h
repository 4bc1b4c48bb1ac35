/* SPDX-License-Identifier: Apache-2.0 */
/* A client's file on a disk, from which puts take their bytes: cuFile writes them there from GPU
 * memory, and the daemon reads them into the pool. The store neither keeps data in such a file nor
 * refers to it after the put has read it.
 *
 * The file is untrusted: its owner may change, truncate or lock it at any time. The stored bytes
 * are those that were read, with the checksum of the pool's memory. Reads do not wait for the
 * file's lock (RWF_NOWAIT), which its owner could hold forever. If a read cannot be done within a
 * tenth of a second, it fails, and so do all later reads of that file.
 *
 * A file can be registered if it is a regular file of ext4 or XFS on a block device and open for
 * reading and writing with O_DIRECT. cuFile requires the same, and these file systems are not
 * served by a user's process. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "io/io.h"

/* Number of the blocking-call thread of io/ that reads these files; no volume of the store has this
 * number. */
enum { PUT_FILE_THREAD = KIO_VOLUMES_MAX - 5, PUT_FILE_PAGE = 4096 };

struct put_file {
        int fd;          /* owned by the caller */
        uint64_t offset; /* start of the registered range */
        _Atomic bool is_stuck;
};

/* Returns whether the descriptor is of a regular file on a block device. The kernel answers from
 * cached data, so that a file system in user space (FUSE), which might not answer, is not asked;
 * one that an unprivileged user has mounted has no block device. Runs on the loop thread; the
 * functions below run on the blocking-call thread. */
bool put_file_is_on_device(int fd);
/* Checks whether [offset, offset + bytes) of the file may be registered. Returns 0, or -EINVAL and
 * the reason. */
int put_file_check(int fd, uint64_t offset, uint64_t bytes, const char **ret_wrong);
/* Reads whole pages from `offset` of the registered range to `to`, which must have room for them,
 * and computes the checksum of the first `length` bytes. Returns 0; -ENODATA if the file ends
 * before the last page does; -EBUSY if the lock or the device did not become available in time, in
 * this read or an earlier one; or -errno. */
int put_file_read(struct put_file *f, uint64_t offset, void *to, uint64_t length,
                  uint32_t *ret_crc);

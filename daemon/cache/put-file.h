/* SPDX-License-Identifier: Apache-2.0 */
/* A file of a client's on a disk, from which the bytes of puts are taken: cuFile writes them there
 * out of GPU memory, and the daemon reads them into the pool. Nothing of the store is ever in such
 * a file, and nothing refers to it once a put has been read.
 *
 * It is hostile: its owner may change, cut and lock it at any time. What is stored is what was
 * read, with the checksum of the pool's memory. Reads do not wait for the file's lock (RWF_NOWAIT),
 * which its owner could hold for ever; one that cannot be had within a tenth of a second fails, and
 * so do all later ones of that file.
 *
 * What may be registered is a regular file of ext4 or XFS on a block device, open for reading and
 * writing with O_DIRECT: what cuFile takes, and no file system that a user could answer for. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "io/io.h"

/* Of the blocking-call thread that reads them: io's, no device of the store has it. */
enum { PUT_FILE_THREAD = KIO_VOLUMES_MAX - 5, PUT_FILE_PAGE = 4096 };

struct put_file {
        int fd;          /* borrowed */
        uint64_t offset; /* where the registered stretch begins */
        _Atomic bool is_stuck;
};

/* Is it a regular file on a block device? The kernel answers from what it has: a file system in
 * user space (FUSE), which might not answer, is not asked, and an unprivileged one has no device.
 * Loop thread; the others below: the blocking-call thread. */
bool put_file_is_on_device(int fd);
/* May [offset, offset + bytes) of such a file be registered? 0, or -EINVAL and what is wrong. */
int put_file_check(int fd, uint64_t offset, uint64_t bytes, const char **ret_wrong);
/* Whole pages to `to`, which has room for them, and the checksum of the first `length` bytes there.
 * 0; -ENODATA: the file ends before; -EBUSY: its lock could not be had, or
 * its device takes nothing; -errno. */
int put_file_read(struct put_file *f, uint64_t offset, void *to, uint64_t length,
                  uint32_t *ret_crc);

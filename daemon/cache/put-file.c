/* SPDX-License-Identifier: Apache-2.0 */
/* See put-file.h. Runs on blocking-call threads; owns nothing. */
#include "cache/put-file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "checked.h"
#include "store/store.h"

#ifndef XFS_SUPER_MAGIC
#define XFS_SUPER_MAGIC 0x58465342
#endif

enum { WAIT_NS = 1000000, WAITS = 100 };

static_assert((int)PUT_FILE_THREAD > (int)STORE_MAX_VOLUMES,
              "the store numbers its volumes from 1 on");

static ssize_t read_at_once(int fd, void *to, uint64_t bytes, uint64_t offset)
{
        const struct iovec piece = { to, bytes };

        return preadv2(fd, &piece, 1, (off_t)offset, RWF_NOWAIT);
}

bool put_file_is_on_device(int fd)
{
        struct statx st;

        return statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &st) == 0 &&
               S_ISREG(st.stx_mode) && st.stx_dev_major != 0;
}

int put_file_check(int fd, uint64_t offset, uint64_t bytes, const char **ret_wrong)
{
        _Alignas(PUT_FILE_PAGE) char page[PUT_FILE_PAGE];
        int flags = fcntl(fd, F_GETFL);
        struct statfs fs;
        struct stat size;

        *ret_wrong = "not a file of ext4 or XFS on a disk";
        if (flags < 0 || fstatfs(fd, &fs) < 0 ||
            (fs.f_type != EXT4_SUPER_MAGIC && fs.f_type != XFS_SUPER_MAGIC))
                return -EINVAL;
        *ret_wrong = "the descriptor is not open for reading and writing with O_DIRECT";
        if ((flags & O_ACCMODE) != O_RDWR || !(flags & O_DIRECT))
                return -EINVAL;
        *ret_wrong = "offset and bytes are not multiples of 4,096";
        if (offset % PUT_FILE_PAGE != 0 || bytes % PUT_FILE_PAGE != 0 || bytes == 0)
                return -EINVAL;
        *ret_wrong = "the file ends before the range does";
        if (fstat(fd, &size) < 0 || !range_within(offset, bytes, (uint64_t)size.st_size))
                return -EINVAL;
        *ret_wrong = "the file system does not support reads that do not wait (RWF_NOWAIT)";
        if (read_at_once(fd, page, sizeof(page), offset) < 0 && errno != EAGAIN && errno != EINTR)
                return -EINVAL;
        *ret_wrong = NULL;
        return 0;
}

/* Waits briefly after a read that would have blocked. The first time it writes back the page cache
 * of the range instead, which needs no lock of the file. Returns false after WAITS attempts. */
static bool wait_a_little(int fd, uint64_t offset, uint64_t bytes, unsigned *waits)
{
        static const struct timespec moment = { .tv_nsec = WAIT_NS };

        if (++*waits > WAITS)
                return false;
        if (*waits == 1)
                (void)sync_file_range(fd, (off_t)offset, (off_t)bytes,
                                      SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
                                              SYNC_FILE_RANGE_WAIT_AFTER);
        else
                (void)nanosleep(&moment, NULL);
        return true;
}

int put_file_read(struct put_file *f, uint64_t offset, void *to, uint64_t length, uint32_t *ret_crc)
{
        uint64_t bytes = round_up(length, (uint64_t)PUT_FILE_PAGE), done = 0;
        uint64_t begin = f->offset + offset;
        unsigned waits = 0;

        if (atomic_load_explicit(&f->is_stuck, memory_order_relaxed))
                return -EBUSY;
        while (done < bytes) {
                ssize_t n = read_at_once(f->fd, (char *)to + done, bytes - done, begin + done);

                if (n > 0) {
                        done += (uint64_t)n;
                        if (done < bytes && done % PUT_FILE_PAGE != 0)
                                return -ENODATA;
                } else if (n == 0) {
                        return -ENODATA;
                } else if (errno == EAGAIN && !wait_a_little(f->fd, begin, bytes, &waits)) {
                        atomic_store_explicit(&f->is_stuck, true, memory_order_relaxed);
                        return -EBUSY;
                } else if (errno != EAGAIN && errno != EINTR) {
                        return -errno;
                }
        }
        *ret_crc = kio_crc32c(to, length);
        return 0;
}

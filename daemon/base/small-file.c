/* SPDX-License-Identifier: Apache-2.0 */
/* Implements small-file.h. */
#include "base/small-file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checked.h"
#include "cleanup.h"

int64_t small_file_read(int fd, void *buf, size_t bytes)
{
        size_t got = 0;

        while (got < bytes) {
                ssize_t n = pread(fd, (char *)buf + got, bytes - got, (off_t)got);

                if (n == 0)
                        break;
                if (n < 0 && errno != EINTR)
                        return -errno;
                got += (size_t)MAX(n, (ssize_t)0);
        }
        return (int64_t)got;
}

int small_file_load(int folder, const char *name, uint64_t most, void **ret, size_t *ret_bytes)
{
        _cleanup_(closep) int fd =
                openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        _cleanup_(freep) void *file = NULL;
        struct stat st;
        int64_t got;

        if (fd < 0 || fstat(fd, &st) < 0)
                return -errno;
        if (!S_ISREG(st.st_mode))
                return -EMEDIUMTYPE;
        if ((uint64_t)st.st_size > most)
                return -EFBIG;
        file = malloc((size_t)st.st_size + 1);
        if (!file)
                return -ENOMEM;
        got = small_file_read(fd, file, (size_t)st.st_size);
        if (got < st.st_size)
                return got < 0 ? (int)got : -ENODATA;
        *ret = TAKE_PTR(file);
        *ret_bytes = (size_t)st.st_size;
        return 0;
}

static int write_all(int fd, const char *bytes, size_t n)
{
        while (n > 0) {
                ssize_t done = write(fd, bytes, n);

                if (done < 0 && errno != EINTR)
                        return -errno;
                bytes += MAX(done, (ssize_t)0);
                n -= (size_t)MAX(done, (ssize_t)0);
        }
        return fsync(fd) < 0 ? -errno : 0;
}

int small_file_replace(int folder, const char *name, const char *next, mode_t mode,
                       const void *bytes, size_t n)
{
        int r;

        (void)unlinkat(folder, next, 0);
        {
                _cleanup_(closep) int fd = openat(
                        folder, next, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);

                r = fd < 0 ? -errno : write_all(fd, bytes, n);
        }
        if (r == 0 && renameat(folder, next, folder, name) < 0)
                r = -errno;
        if (r == 0)
                return fsync(folder) < 0 ? -errno : 0;
        (void)unlinkat(folder, next, 0);
        return r;
}

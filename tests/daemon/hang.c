/* SPDX-License-Identifier: Apache-2.0 */
/* Makes files and replies slow, and files fail, by LD_PRELOAD, for io.backend posix. While the file
 * named by HANG_SWITCH exists, a write of a data file (segment-*) waits. While the file named by
 * FAIL_SWITCH exists, writes, syncs and allocations of the store's files fail with ENOSPC; if that
 * file is empty, these and reads of data files fail with EIO. While the file named by
 * SHARED_SWITCH exists, reads and writes of files below a directory "shared" wait; if
 * SHARED_SPOILED is set, each read there has a wrong byte in its middle. While the file named by
 * SLOW_SWITCH exists, each reply to a client takes 80 ms. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static void wait_while(const char *path, const char *part, const char *variable)
{
        const char *file = getenv(variable);

        while (file && strstr(path, part) && access(file, F_OK) == 0)
                usleep(10000);
}

static bool path_of(int fd, char path[PATH_MAX])
{
        char link[64];
        ssize_t n;

        snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
        n = readlink(link, path, PATH_MAX - 1);
        if (n < 0)
                return false;
        path[n] = '\0';
        return true;
}

static bool is_below_shared(int fd)
{
        char path[PATH_MAX];

        return path_of(fd, path) && strstr(path, "/shared/");
}

static void wait_for_switch(int fd)
{
        char path[PATH_MAX];

        if (!path_of(fd, path))
                return;
        wait_while(path, "/segment-", "HANG_SWITCH");
        wait_while(path, "/shared/", "SHARED_SWITCH");
}

/* Returns 0, or the error with which an operation on a file must fail. */
static int error_of(int fd, bool is_read)
{
        const char *file = getenv("FAIL_SWITCH");
        char path[PATH_MAX];
        struct stat st;

        if (!file || stat(file, &st) < 0 || (is_read && st.st_size > 0) || !path_of(fd, path))
                return 0;
        if (!strstr(path, "/segment-") && (is_read || !strstr(path, "/table")))
                return 0;
        return st.st_size > 0 ? ENOSPC : EIO;
}

#define FAIL_IF(error)                                                                             \
        do {                                                                                       \
                int error_ = (error);                                                              \
                                                                                                   \
                if (error_) {                                                                      \
                        errno = error_;                                                            \
                        return -1;                                                                 \
                }                                                                                  \
        } while (0)

#define SEEN __attribute__((visibility("default")))

SEEN int fdatasync(int fd)
{
        FAIL_IF(error_of(fd, false));
        return (int)syscall(SYS_fdatasync, fd);
}

SEEN int fallocate(int fd, int mode, off_t offset, off_t bytes)
{
        FAIL_IF(error_of(fd, false));
        return (int)syscall(SYS_fallocate, fd, (long)mode, (long)offset, (long)bytes);
}

SEEN ssize_t pread(int fd, void *buf, size_t bytes, off_t offset)
{
        FAIL_IF(error_of(fd, true));
        return syscall(SYS_pread64, fd, buf, bytes, (long)offset);
}

/* The library is built for large files, so these are pwrite64 and pwritev64, as of the daemon. */
SEEN ssize_t pwrite(int fd, const void *buf, size_t bytes, off_t offset)
{
        wait_for_switch(fd);
        FAIL_IF(error_of(fd, false));
        return syscall(SYS_pwrite64, fd, buf, bytes, (long)offset);
}

SEEN ssize_t pwritev(int fd, const struct iovec *v, int n, off_t offset)
{
        wait_for_switch(fd);
        FAIL_IF(error_of(fd, false));
        return syscall(SYS_pwritev, fd, v, n, (long)offset, 0L);
}

SEEN ssize_t preadv(int fd, const struct iovec *v, int n, off_t offset)
{
        ssize_t got;

        wait_for_switch(fd);
        FAIL_IF(error_of(fd, true));
        got = syscall(SYS_preadv, fd, v, n, (long)offset, 0L);
        if (got > 0 && getenv("SHARED_SPOILED") && is_below_shared(fd)) {
                for (size_t at = (size_t)got / 2 / 4096 * 4096;; at -= v++->iov_len) {
                        if (at < v->iov_len) {
                                ((char *)v->iov_base)[at] ^= 1;
                                break;
                        }
                }
        }
        return got;
}

SEEN ssize_t send(int fd, const void *buf, size_t bytes, int flags)
{
        const char *slow = getenv("SLOW_SWITCH");

        if (slow && access(slow, F_OK) == 0)
                usleep(80000);
        return syscall(SYS_sendto, fd, buf, bytes, (long)flags, NULL, 0L);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Makes files and replies slow, by LD_PRELOAD, for io.backend posix. While the file named by
 * HANG_SWITCH exists, a write of a data file (segment-*) waits. While the file named by
 * SHARED_SWITCH exists, reads and writes of files below a directory "shared" wait; if
 * SHARED_SPOILED is set, each read there has a wrong byte in its middle. While the file named by
 * SLOW_SWITCH exists, each reply to a client takes 80 ms. */
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
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

#define SEEN __attribute__((visibility("default")))

/* The library is built for large files, so these are pwrite64 and pwritev64, as of the daemon. */
SEEN ssize_t pwrite(int fd, const void *buf, size_t bytes, off_t offset)
{
        wait_for_switch(fd);
        return syscall(SYS_pwrite64, fd, buf, bytes, (long)offset);
}

SEEN ssize_t pwritev(int fd, const struct iovec *v, int n, off_t offset)
{
        wait_for_switch(fd);
        return syscall(SYS_pwritev, fd, v, n, (long)offset, 0L);
}

SEEN ssize_t preadv(int fd, const struct iovec *v, int n, off_t offset)
{
        ssize_t got;

        wait_for_switch(fd);
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

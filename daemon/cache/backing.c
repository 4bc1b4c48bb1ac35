/* SPDX-License-Identifier: Apache-2.0 */
/* See backing.h. Opened and closed on the loop thread; backing_populate() and
 * backing_populate_huge() block, and run on a blocking-call thread (populate.c). Owns the mapping
 * and the descriptors; a memfd's own descriptor is closed once it is mapped.
 *
 * Failures: if a kept backing lacks something that it needs, the error text names it, and nothing
 * is left behind. Populating stops with the errno when the host has no memory, and keeps the memory
 * it has. Without huge pages it continues with small ones. */
#include "cache/backing.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "checked.h"
#include "cleanup.h"
#include "mapping.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static int reopen(int fd, int flags)
{
        char path[64];
        int again;

        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        again = open(path, flags | O_CLOEXEC);
        return again < 0 ? -errno : again;
}

/* Excludes the mapping from core dumps and from child processes, and requests huge pages for it.
 * Returns 0, or -errno if core dumps would contain it. */
static int set_up_mapping(void *base, uint64_t bytes)
{
        if (madvise(base, bytes, MADV_DONTDUMP) < 0)
                return -errno;
        (void)madvise(
                base, bytes,
                MADV_HUGEPAGE); /* used where the system offers huge pages for shared memory */
        (void)madvise(base, bytes, MADV_DONTFORK);
        return 0;
}

int backing_open(struct backing *ret, const char *name, uint64_t bytes)
{
        _cleanup_(closep) int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
        _cleanup_(closep) int ro = -1;
        void *base;
        int r = 0;

        if (fd < 0)
                return -errno;
        if (ftruncate(fd, (off_t)bytes) < 0)
                return -errno;
        /* Open the read-only descriptor before the mode changes, because an unprivileged daemon
         * could not open it afterwards. */
        ro = reopen(fd, O_RDONLY);
        if (ro < 0)
                return ro;

        base = mapping_shared(fd, bytes, PROT_READ | PROT_WRITE);
        if (base == MAP_FAILED)
                return -errno;
        r = set_up_mapping(base, bytes);
        if (r == 0 && (fchmod(fd, 0400) < 0 ||
                       fcntl(fd, F_ADD_SEALS,
                             F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) < 0))
                r = -errno;
        if (r < 0) {
                munmap(base, bytes);
                return r;
        }
        *ret = (struct backing){
                .fd = TAKE_FD(ro), .writable_fd = -1, .base = base, .bytes = bytes
        };
        return 0;
}

/* --- kept backings; closing and populating both kinds --- */

static int fail(char error[static BACKING_ERROR_BYTES], int r, const char *fmt, ...)
        __attribute__((format(printf, 3, 4)));
static int fail(char error[static BACKING_ERROR_BYTES], int r, const char *fmt, ...)
{
        va_list args;

        va_start(args, fmt);
        vsnprintf(error, BACKING_ERROR_BYTES, fmt, args);
        va_end(args);
        return r;
}

/* Checks that both descriptors are of one unnamed file on a tmpfs, of exactly `bytes`, and that
 * `fd` cannot be used to write to it. */
static int check_pair(int writable_fd, int fd, uint64_t bytes,
                      char error[static BACKING_ERROR_BYTES])
{
        int flags = fcntl(fd, F_GETFL), writable_flags = fcntl(writable_fd, F_GETFL), again;
        struct stat st, writable;
        struct statvfs mount;
        struct statfs fs;

        if (flags < 0 || writable_flags < 0 || fstat(fd, &st) < 0 ||
            fstat(writable_fd, &writable) < 0 || fstatfs(fd, &fs) < 0 || fstatvfs(fd, &mount) < 0)
                return fail(error, -errno, "the pool's file cannot be examined: %s",
                            strerror(errno));
        if ((unsigned long)fs.f_type != TMPFS_MAGIC || !S_ISREG(st.st_mode))
                return fail(error, -EINVAL, "the pool's file is not on a tmpfs");
        if (st.st_dev != writable.st_dev || st.st_ino != writable.st_ino)
                return fail(error, -EINVAL,
                            "the pool's two descriptors are not of the same file: rw and ro below "
                            "memory.directory must be mounts of one tmpfs");
        if ((flags & O_ACCMODE) != O_RDONLY || (writable_flags & O_ACCMODE) != O_RDWR)
                return fail(error, -EINVAL, "the pool's descriptors have unexpected access modes");
        if (st.st_size < 0 || (uint64_t)st.st_size != bytes)
                return fail(error, -EINVAL, "the pool's file does not have the size of the pool");
        if (st.st_nlink != 0)
                return fail(error, -EINVAL, "the pool's file still has a name in its directory");
        again = reopen(fd, O_RDWR);
        if (again >= 0)
                close(again);
        if (again >= 0 || !(mount.f_flag & ST_RDONLY))
                return fail(error, -EPERM,
                            "clients could open the pool's file for writing: ro below "
                            "memory.directory must be mounted read-only");
        return 0;
}

int backing_take_fds(struct backing *ret, int writable_fd, int fd, uint64_t bytes,
                     char ret_error[static BACKING_ERROR_BYTES])
{
        int r = check_pair(writable_fd, fd, bytes, ret_error);
        void *base;

        if (r < 0)
                return r;
        if (fchmod(writable_fd, 0400) < 0)
                return fail(ret_error, -errno, "the mode of the pool's file cannot be changed: %s",
                            strerror(errno));
        base = mapping_shared(writable_fd, bytes, PROT_READ | PROT_WRITE);
        if (base == MAP_FAILED)
                return fail(ret_error, -errno, "the pool's file cannot be mapped: %s",
                            strerror(errno));
        r = set_up_mapping(base, bytes);
        if (r < 0) {
                munmap(base, bytes);
                return fail(ret_error, r, "the mapping of the pool's file cannot be set up: %s",
                            strerror(-r));
        }
        *ret = (struct backing){
                .fd = fd, .writable_fd = writable_fd, .base = base, .bytes = bytes
        };
        return 0;
}

/* Checks that `rw` and `ro` are mounts of one tmpfs with room for the pool; without room, a touched
 * page raises SIGBUS. */
static int check_mounts(const char *directory, int rw, int ro, uint64_t bytes,
                        char error[static BACKING_ERROR_BYTES])
{
        struct statvfs mount;
        struct stat a, b;
        struct statfs fs;

        if (fstatfs(rw, &fs) < 0 || fstatvfs(rw, &mount) < 0 || fstat(rw, &a) < 0 ||
            fstat(ro, &b) < 0)
                return fail(error, -errno, "%s: %s", directory, strerror(errno));
        if ((unsigned long)fs.f_type != TMPFS_MAGIC || a.st_dev != b.st_dev)
                return fail(error, -EINVAL, "%s/rw and %s/ro are not mounts of one tmpfs",
                            directory, directory);
        if (mount.f_blocks != 0 && (uint64_t)mount.f_bavail * mount.f_frsize < bytes)
                return fail(error, -ENOSPC, "%s/rw has no room for the pool", directory);
        return 0;
}

int backing_open_kept(struct backing *ret, const char *directory, uint64_t bytes,
                      char ret_error[static BACKING_ERROR_BYTES])
{
        _cleanup_(closep) int rw_dir = -1, ro_dir = -1, rw = -1, ro = -1;
        char path[4096], name[64];
        int r;

        if ((size_t)snprintf(path, sizeof(path), "%s/rw", directory) >= sizeof(path))
                return fail(ret_error, -ENAMETOOLONG, "memory.directory: the path is too long");
        rw_dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (rw_dir < 0)
                return fail(ret_error, -errno, "%s: %s", path, strerror(errno));
        snprintf(path, sizeof(path), "%s/ro", directory);
        ro_dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (ro_dir < 0)
                return fail(ret_error, -errno, "%s: %s", path, strerror(errno));
        r = check_mounts(directory, rw_dir, ro_dir, bytes, ret_error);
        if (r < 0)
                return r;

        snprintf(name, sizeof(name), "pool-%d", (int)getpid());
        (void)unlinkat(rw_dir, name,
                       0); /* left by a process that was killed before it removed the name, below */
        rw = openat(rw_dir, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (rw < 0)
                return fail(ret_error, -errno, "the pool's file cannot be created in %s/rw: %s",
                            directory, strerror(errno));
        ro = openat(ro_dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        r = ro < 0 ? -errno : 0;
        if (unlinkat(rw_dir, name, 0) < 0 && r == 0)
                r = -errno;
        if (r == 0 && ftruncate(rw, (off_t)bytes) < 0)
                r = -errno;
        if (r < 0)
                return fail(ret_error, r, "the pool's file in %s cannot be set up: %s", directory,
                            strerror(-r));
        r = backing_take_fds(ret, rw, ro, bytes, ret_error);
        if (r < 0)
                return r;
        rw = ro = -1;
        return 0;
}

void backing_close(struct backing *b)
{
        if (b->base)
                munmap(b->base, b->bytes);
        closep(&b->fd);
        closep(&b->writable_fd);
        *b = (struct backing){ .fd = -1, .writable_fd = -1 };
}

int backing_populate(const struct backing *b, uint64_t offset, uint64_t bytes)
{
        if (madvise((char *)b->base + offset, bytes, MADV_POPULATE_WRITE) == 0)
                return 0;
        if (errno != EINVAL)
                return -errno;
        /* Kernels before 5.14: touch each page without changing it. */
        for (uint64_t i = 0; i < bytes; i += 4096)
                (void)__atomic_fetch_or((char *)b->base + offset + i, 0, __ATOMIC_RELAXED);
        return 0;
}

/* Makes a huge page. Only its first small page is populated before, so that the kernel need only
 * clear the rest. */
static int make_huge(char *page)
{
        if (madvise(page, 4096, MADV_POPULATE_WRITE) < 0)
                return -errno;
        return madvise(page, BACKING_HUGE_PAGE, MADV_COLLAPSE) < 0 ? -errno : 0;
}

int backing_populate_huge(const struct backing *b, uint64_t offset, uint64_t bytes,
                          uint64_t *ret_huge)
{
        uint64_t end = round_down(offset + bytes, BACKING_HUGE_PAGE);

        *ret_huge = 0;
        for (uint64_t at = round_up(offset, BACKING_HUGE_PAGE); at < end; at += BACKING_HUGE_PAGE) {
                int r = make_huge((char *)b->base + at);

                if (r == 0)
                        *ret_huge += BACKING_HUGE_PAGE;
                else if (r == -EINVAL)
                        break; /* this kernel cannot make huge pages, or is configured not to */
        }
        return backing_populate(b, offset, bytes);
}

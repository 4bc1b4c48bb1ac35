/* SPDX-License-Identifier: Apache-2.0 */
/* See memory-files.h. Descriptors of these files begin where no real ones are. A file that is
 * unlinked lives on while it is open, as ever. Bytes past a file's end are zero all the time.
 *
 * Memory is mapped once and not the sanitizer's: what a fuzzer looks for is in the buffers that the
 * store reads to, not here. */
#include "memory-files.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "checked.h"

enum {
        FIRST_FD = 1 << 20,
        FDS = 128,
        PAGE = 4096,
        PAGES = MEMORY_FILE_ROOM / PAGE,
        NAME_BYTES = 24,
        THE_DIRECTORY = -2,
};

struct contents {
        uint8_t *bytes;
        size_t size;
        char name[NAME_BYTES]; /* "": no file */
};

static struct file {
        struct contents now, image;
        bool linked, changed;
        bool dirty[PAGES]; /* differs from the image, maybe */
        unsigned opened;
} files[MEMORY_FILES];

static int fds[FDS]; /* number of the file plus 1; 0: closed */
static unsigned fail_in;
static int fail_error;

/* State of the listing of the directory; the store has only one at a time. */
static struct listing {
        bool open;
        int fd;
        unsigned at;
        struct dirent64 entry;
} listing;

#define DECLARE(type, name, ...)                                                                   \
        type __wrap_##name(__VA_ARGS__);                                                           \
        type __real_##name(__VA_ARGS__)
DECLARE(int, open64, const char *path, int flags, ...);
DECLARE(int, openat64, int dir, const char *path, int flags, ...);
DECLARE(int, close, int fd);
DECLARE(ssize_t, pread64, int fd, void *buf, size_t bytes, off_t offset);
DECLARE(ssize_t, pwrite64, int fd, const void *buf, size_t bytes, off_t offset);
DECLARE(off_t, lseek64, int fd, off_t offset, int whence);
DECLARE(int, fstat64, int fd, struct stat *ret);
DECLARE(int, fstatat64, int dir, const char *path, struct stat *ret, int flags);
DECLARE(int, fstatfs64, int fd, struct statfs *ret);
DECLARE(int, fstatvfs64, int fd, struct statvfs *ret);
DECLARE(int, ftruncate64, int fd, off_t size);
DECLARE(int, fallocate64, int fd, int mode, off_t offset, off_t length);
DECLARE(int, fdatasync, int fd);
DECLARE(int, fsync, int fd);
DECLARE(int, fcntl64, int fd, int command, ...);
DECLARE(int, flock, int fd, int operation);
DECLARE(int, posix_fadvise64, int fd, off_t offset, off_t length, int advice);
DECLARE(int, mkdir, const char *path, mode_t mode);
DECLARE(int, renameat, int from_dir, const char *from, int to_dir, const char *to);
DECLARE(int, unlinkat, int dir, const char *path, int flags);
DECLARE(DIR *, fdopendir, int fd);
DECLARE(struct dirent64 *, readdir64, DIR *d);
DECLARE(int, closedir, DIR *d);

/* --- files --- */

static int fail(int error)
{
        errno = error;
        return -1;
}

/* Called by every function that changes a file. Returns whether the change must fail. */
static bool fails_now(void)
{
        if (fail_in == 0 || --fail_in > 0)
                return false;
        errno = fail_error;
        return true;
}

static uint8_t *map(void)
{
        uint8_t *p = mmap(NULL, MEMORY_FILE_ROOM, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

        assert(p != MAP_FAILED);
        return p;
}

static struct file *find(const char *name)
{
        for (unsigned i = 0; i < MEMORY_FILES; i++)
                if (files[i].linked && strcmp(files[i].now.name, name) == 0)
                        return &files[i];
        return NULL;
}

static void touch(struct file *f, size_t at, size_t bytes)
{
        f->changed = true;
        for (size_t page = at / PAGE; bytes > 0 && page <= (at + bytes - 1) / PAGE; page++)
                f->dirty[page] = true;
}

static void resize(struct file *f, size_t size)
{
        if (size < f->now.size) {
                memset(f->now.bytes + size, 0, f->now.size - size);
                touch(f, size, f->now.size - size);
        }
        f->changed = true;
        f->now.size = size;
}

/* Returns an unused entry of the table, whose bytes are zero. */
static struct file *make(const char *name)
{
        for (unsigned i = 0; i < MEMORY_FILES; i++) {
                struct file *f = &files[i];

                if (f->linked || f->opened > 0)
                        continue;
                if (!f->now.bytes) {
                        f->now.bytes = map();
                        f->image.bytes = map();
                }
                resize(f, 0);
                assert(strlen(name) < NAME_BYTES);
                strcpy(f->now.name, name);
                f->linked = true;
                return f;
        }
        return NULL;
}

static struct file *file_of(int fd)
{
        return fd >= FIRST_FD && fd < FIRST_FD + FDS && fds[fd - FIRST_FD] > 0
                       ? &files[fds[fd - FIRST_FD] - 1]
                       : NULL;
}

static bool is_mine(int fd)
{
        return fd >= FIRST_FD && fd < FIRST_FD + FDS;
}

static bool is_directory(int fd)
{
        return is_mine(fd) && fds[fd - FIRST_FD] == THE_DIRECTORY;
}

static int new_fd(int what)
{
        for (int i = 0; i < FDS; i++)
                if (fds[i] == 0) {
                        fds[i] = what;
                        return FIRST_FD + i;
                }
        return fail(EMFILE);
}

void memory_files_keep(void)
{
        for (unsigned i = 0; i < MEMORY_FILES; i++) {
                struct file *f = &files[i];

                assert(f->opened == 0);
                if (!f->now.bytes)
                        continue;
                memcpy(f->image.bytes, f->now.bytes, MEMORY_FILE_ROOM);
                f->image.size = f->now.size;
                strcpy(f->image.name, f->linked ? f->now.name : "");
                memset(f->dirty, 0, sizeof(f->dirty));
                f->changed = false;
        }
        fail_in = 0;
}

void memory_files_reset(void)
{
        fail_in = 0;
        for (unsigned i = 0; i < FDS; i++)
                assert(fds[i] == 0);
        for (unsigned i = 0; i < MEMORY_FILES; i++) {
                struct file *f = &files[i];

                f->linked = f->image.name[0] != '\0';
                if (!f->changed)
                        continue;
                for (size_t page = 0; page < PAGES; page++)
                        if (f->dirty[page])
                                memcpy(f->now.bytes + page * PAGE, f->image.bytes + page * PAGE,
                                       PAGE);
                memset(f->dirty, 0, sizeof(f->dirty));
                f->now.size = f->image.size;
                strcpy(f->now.name, f->image.name);
                f->changed = false;
        }
}

void memory_files_fail(unsigned nth, int error)
{
        fail_in = nth;
        fail_error = error;
}

static struct file *must_find(const char *name)
{
        struct file *f = find(name);

        if (!f)
                abort();
        return f;
}

uint8_t *memory_file_bytes(const char *name, size_t *ret_size)
{
        struct file *f = must_find(name);

        *ret_size = f->now.size;
        return f->now.bytes;
}

void memory_file_touch(const char *name, size_t at, size_t bytes)
{
        touch(must_find(name), at, bytes);
}

void memory_file_resize(const char *name, size_t size)
{
        assert(size <= MEMORY_FILE_ROOM);
        resize(must_find(name), size);
}

/* --- system calls --- */

static int open_file(const char *name, int flags)
{
        struct file *f = find(name);
        int fd;

        if (strcmp(name, ".") == 0)
                return new_fd(THE_DIRECTORY);
        if (f && flags & O_CREAT && flags & O_EXCL)
                return fail(EEXIST);
        if (!f && !(flags & O_CREAT))
                return fail(ENOENT);
        if ((!f || flags & O_TRUNC) && fails_now())
                return -1;
        if (!f && !(f = make(name)))
                return fail(ENOSPC);
        if (flags & O_TRUNC)
                resize(f, 0);
        fd = new_fd((int)(f - files) + 1);
        if (fd >= 0)
                f->opened++;
        return fd;
}

int __wrap_open64(const char *path, int flags, ...)
{
        mode_t mode = 0;
        va_list ap;

        if (strcmp(path, MEMORY_FILES_PATH) == 0)
                return new_fd(THE_DIRECTORY);
        if (flags & O_CREAT) {
                va_start(ap, flags);
                mode = va_arg(ap, mode_t);
                va_end(ap);
        }
        return __real_open64(path, flags, mode);
}

int __wrap_openat64(int dir, const char *path, int flags, ...)
{
        mode_t mode = 0;
        va_list ap;

        if (is_directory(dir))
                return open_file(path, flags);
        if (flags & O_CREAT) {
                va_start(ap, flags);
                mode = va_arg(ap, mode_t);
                va_end(ap);
        }
        return __real_openat64(dir, path, flags, mode);
}

int __wrap_close(int fd)
{
        struct file *f = file_of(fd);

        if (!is_mine(fd))
                return __real_close(fd);
        if (fds[fd - FIRST_FD] == 0)
                abort(); /* closed twice */
        fds[fd - FIRST_FD] = 0;
        if (f)
                f->opened--;
        return 0;
}

ssize_t __wrap_pread64(int fd, void *buf, size_t bytes, off_t offset)
{
        const struct file *f = file_of(fd);
        size_t n;

        if (!is_mine(fd))
                return __real_pread64(fd, buf, bytes, offset);
        if (!f || offset < 0)
                return fail(EINVAL);
        if ((size_t)offset >= f->now.size)
                return 0;
        n = MIN(bytes, f->now.size - (size_t)offset);
        memcpy(buf, f->now.bytes + offset, n);
        return (ssize_t)n;
}

ssize_t __wrap_pwrite64(int fd, const void *buf, size_t bytes, off_t offset)
{
        struct file *f = file_of(fd);
        size_t n;

        if (!is_mine(fd))
                return __real_pwrite64(fd, buf, bytes, offset);
        if (!f || offset < 0)
                return fail(EINVAL);
        if (fails_now())
                return -1;
        if (offset >= MEMORY_FILE_ROOM)
                return fail(EFBIG);
        n = MIN(bytes, MEMORY_FILE_ROOM - (size_t)offset);
        memcpy(f->now.bytes + offset, buf, n);
        touch(f, (size_t)offset, n);
        f->now.size = MAX(f->now.size, (size_t)offset + n);
        return (ssize_t)n;
}

off_t __wrap_lseek64(int fd, off_t offset, int whence)
{
        const struct file *f = file_of(fd);

        if (!is_mine(fd))
                return __real_lseek64(fd, offset, whence);
        assert(f && (whence == SEEK_DATA || whence == SEEK_HOLE)); /* no file here has a hole */
        if ((size_t)offset >= f->now.size)
                return fail(ENXIO);
        return whence == SEEK_DATA ? offset : (off_t)f->now.size;
}

int __wrap_fstat64(int fd, struct stat *ret)
{
        const struct file *f = file_of(fd);

        if (!is_mine(fd))
                return __real_fstat64(fd, ret);
        *ret = (struct stat){ .st_mode = S_IFDIR | 0700, .st_dev = 7 };
        if (f) {
                ret->st_mode = S_IFREG | 0600;
                ret->st_ino = (ino_t)(f - files) + 1;
                ret->st_size = (off_t)f->now.size;
                ret->st_blocks = (blkcnt_t)(round_up(f->now.size, (size_t)PAGE) / 512);
        }
        return 0;
}

int __wrap_fstatat64(int dir, const char *path, struct stat *ret, int flags)
{
        struct file *f;
        int fd, r;

        if (!is_directory(dir))
                return __real_fstatat64(dir, path, ret, flags);
        f = find(path);
        if (!f)
                return fail(ENOENT);
        fd = new_fd((int)(f - files) + 1);
        if (fd < 0)
                return -1;
        r = __wrap_fstat64(fd, ret);
        fds[fd - FIRST_FD] = 0;
        return r;
}

int __wrap_fstatfs64(int fd, struct statfs *ret)
{
        if (!is_mine(fd))
                return __real_fstatfs64(fd, ret);
        *ret = (struct statfs){ .f_type = 0xef53, .f_bsize = PAGE };
        return 0;
}

int __wrap_fstatvfs64(int fd, struct statvfs *ret)
{
        if (!is_mine(fd))
                return __real_fstatvfs64(fd, ret);
        *ret = (struct statvfs){ .f_bsize = PAGE,
                                 .f_frsize = PAGE,
                                 .f_blocks = 1 << 20,
                                 .f_bfree = 1 << 19,
                                 .f_bavail = 1 << 19 };
        return 0;
}

int __wrap_ftruncate64(int fd, off_t size)
{
        struct file *f = file_of(fd);

        if (!is_mine(fd))
                return __real_ftruncate64(fd, size);
        if (!f || size < 0)
                return fail(EINVAL);
        if (size > MEMORY_FILE_ROOM)
                return fail(EFBIG);
        if (fails_now())
                return -1;
        resize(f, (size_t)size);
        return 0;
}

int __wrap_fallocate64(int fd, int mode, off_t offset, off_t length)
{
        struct file *f = file_of(fd);
        size_t end = (size_t)offset + (size_t)length;

        if (!is_mine(fd))
                return __real_fallocate64(fd, mode, offset, length);
        if (!f || offset < 0 || length <= 0)
                return fail(EINVAL);
        if (end > MEMORY_FILE_ROOM)
                return fail(ENOSPC);
        if (fails_now())
                return -1;
        if (mode & (FALLOC_FL_ZERO_RANGE | FALLOC_FL_PUNCH_HOLE) && (size_t)offset < f->now.size) {
                size_t n = MIN((size_t)length, f->now.size - (size_t)offset);

                memset(f->now.bytes + offset, 0, n);
                touch(f, (size_t)offset, n);
        }
        if (!(mode & FALLOC_FL_KEEP_SIZE) && end > f->now.size)
                resize(f, end);
        return 0;
}

int __wrap_fdatasync(int fd)
{
        return !is_mine(fd) ? __real_fdatasync(fd) : fails_now() ? -1 : 0;
}

int __wrap_fsync(int fd)
{
        return !is_mine(fd) ? __real_fsync(fd) : fails_now() ? -1 : 0;
}

/* Accepts and ignores flags of a file of this directory. */
int __wrap_fcntl64(int fd, int command, ...)
{
        va_list arguments;
        void *argument;

        if (is_mine(fd))
                return 0;
        va_start(arguments, command);
        argument = va_arg(arguments, void *);
        va_end(arguments);
        return __real_fcntl64(fd, command, argument);
}

int __wrap_flock(int fd, int operation)
{
        return is_mine(fd) ? 0 : __real_flock(fd, operation);
}

int __wrap_posix_fadvise64(int fd, off_t offset, off_t length, int advice)
{
        return is_mine(fd) ? 0 : __real_posix_fadvise64(fd, offset, length, advice);
}

int __wrap_mkdir(const char *path, mode_t mode)
{
        return strcmp(path, MEMORY_FILES_PATH) == 0 ? fail(EEXIST) : __real_mkdir(path, mode);
}

int __wrap_renameat(int from_dir, const char *from, int to_dir, const char *to)
{
        struct file *f, *there;

        if (!is_directory(from_dir))
                return __real_renameat(from_dir, from, to_dir, to);
        f = find(from);
        there = find(to);
        if (!f)
                return fail(ENOENT);
        if (fails_now())
                return -1;
        if (there)
                there->linked = false;
        strcpy(f->now.name, to);
        f->changed = true;
        return 0;
}

int __wrap_unlinkat(int dir, const char *path, int flags)
{
        struct file *f;

        if (!is_directory(dir))
                return __real_unlinkat(dir, path, flags);
        f = find(path);
        if (!f)
                return fail(ENOENT);
        if (fails_now())
                return -1;
        f->linked = false;
        f->changed = true;
        return 0;
}

DIR *__wrap_fdopendir(int fd)
{
        if (!is_mine(fd))
                return __real_fdopendir(fd);
        assert(!listing.open);
        listing = (struct listing){ .open = true, .fd = fd };
        return (DIR *)&listing;
}

struct dirent64 *__wrap_readdir64(DIR *d)
{
        if (d != (DIR *)&listing)
                return __real_readdir64(d);
        while (listing.at < MEMORY_FILES) {
                const struct file *f = &files[listing.at++];

                if (!f->linked)
                        continue;
                strcpy(listing.entry.d_name, f->now.name);
                return &listing.entry;
        }
        return NULL;
}

int __wrap_closedir(DIR *d)
{
        if (d != (DIR *)&listing)
                return __real_closedir(d);
        listing.open = false;
        return __wrap_close(listing.fd);
}

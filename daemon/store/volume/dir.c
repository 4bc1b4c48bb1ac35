/* SPDX-License-Identifier: Apache-2.0 */
/* Opens and locks a volume's directory, and opens its files; see dir.h. All functions block.
 *
 * Opening first lists the directory, so that a directory with other files is refused and not
 * changed; then takes the lock, reads the superblock, and tests O_DIRECT with a write and a read.
 * Keys and namespace names never become file names: all file names are fixed or formed from
 * integers, and files are opened relative to the directory, without following links.
 *
 * A FIFO, device, socket, directory or link with the name of a file is refused, and opening it does
 * not block. */
#include "store/volume/dir-internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "checked.h"
#include "cleanup.h"

#define NAME_PROBE "probe"

DEFINE_CLEANUP(struct dir *, dir_close);

int store_error(char ret_error[static STORE_ERROR_BYTES], int r, const char *fmt, ...)
{
        va_list ap;

        va_start(ap, fmt);
        vsnprintf(ret_error, STORE_ERROR_BYTES, fmt, ap);
        va_end(ap);
        return r;
}

void dir_segment_name(uint32_t segment, char ret[static DIR_SEGMENT_NAME_BYTES])
{
        snprintf(ret, DIR_SEGMENT_NAME_BYTES, "segment-%04x", segment & 0xffff);
}

void dir_replacement_name(uint32_t segment, char ret[static DIR_SEGMENT_NAME_BYTES])
{
        snprintf(ret, DIR_SEGMENT_NAME_BYTES, "segment-%04x.new", segment & 0xffff);
}

int dir_segment_number(const char *name)
{
        static const char prefix[] = "segment-";
        const char *digits = name + sizeof(prefix) - 1;

        if (strncmp(name, prefix, sizeof(prefix) - 1) != 0 || strlen(digits) != 4 ||
            strspn(digits, "0123456789abcdef") != 4)
                return -1;
        long n = strtol(digits, NULL, 16);

        return n < DISK_SEGMENTS_MAX ? (int)n : -1;
}

int64_t dir_file_usage(int fd)
{
        struct stat st;

        if (fstat(fd, &st) < 0)
                return -errno;
        return MAX((int64_t)st.st_blocks * 512, (int64_t)st.st_size);
}

int dir_allocate(int fd, uint64_t bytes)
{
        if (fallocate(fd, 0, 0, (off_t)bytes) == 0)
                return 0;
        if (errno != EOPNOTSUPP && errno != ENOSYS)
                return -errno;
        return ftruncate(fd, (off_t)bytes) < 0 ? -errno : 0;
}

/* Opens with O_NONBLOCK, because open() would otherwise wait for the other end of a FIFO. Clears
 * the flag afterwards, because io_uring answers EAGAIN for a file with O_NONBLOCK instead of
 * waiting. */
int dir_open_regular(const struct dir *d, const char *name, int flags)
{
        _cleanup_(closep) int fd =
                openat(d->fd, name, flags | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK, 0600);
        struct stat st;
        int r = fd < 0 ? -errno : 0;

        if (r < 0) {
                if (r != -EEXIST && fstatat(d->fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
                    !S_ISREG(st.st_mode))
                        return -EMEDIUMTYPE;
                return r;
        }
        if (fstat(fd, &st) < 0)
                return -errno;
        if (!S_ISREG(st.st_mode))
                return -EMEDIUMTYPE;
        flags = fcntl(fd, F_GETFL);
        if (flags < 0 || fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) < 0)
                return -errno;
        r = fd;
        fd = -1;
        return r;
}

int dir_open_file(const struct dir *d, const char *name, int flags)
{
        /* Refuse to create a data file in a directory that was emptied. It would be the only file,
         * and the next startup would refuse the directory as a damaged store. */
        if (flags & O_CREAT && d->superblock_fd >= 0 &&
            faccessat(d->fd, DIR_SUPERBLOCK, F_OK, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT)
                return -ESTALE;
        return dir_open_regular(d, name, flags | (d->direct ? O_DIRECT : 0));
}

int dir_open_buffered(const struct dir *d, const char *name)
{
        return dir_open_regular(d, name, O_RDONLY);
}

const char *dir_strerror(int r)
{
        return r == -EMEDIUMTYPE ? "not a regular file" : strerror(-r);
}

int dir_sync(const struct dir *d)
{
        return fsync(d->fd) < 0 ? -errno : 0;
}

/* Creates a directory and its parents. If a parent cannot be created, the last step fails with
 * ENOENT; the parent's error is returned instead. */
static int make_directories(const char *path)
{
        _cleanup_(freep) char *copy = strdup(path);
        int above = 0;

        if (!copy)
                return -ENOMEM;
        for (char *p = copy + 1; *copy != '\0'; p++) {
                if (*p != '/' && *p != '\0')
                        continue;
                char end = *p;

                *p = '\0';
                if (mkdir(copy, 0700) < 0 && errno != EEXIST) {
                        if (end == '\0')
                                return errno == ENOENT && above < 0 ? above : -errno;
                        if (errno != EACCES && errno != EROFS && errno != ENOENT)
                                return -errno;
                        above = above < 0 ? above : -errno;
                }
                if (end == '\0')
                        break;
                *p = end;
        }
        return 0;
}

enum content {
        CONTENT_EMPTY,
        CONTENT_STORE,
        CONTENT_HEADLESS,
        CONTENT_FOREIGN
}; /* no store; a store; a table or data files without a superblock; other files */

int dir_open_entries(const struct dir *d, DIR **ret)
{
        int fd = openat(d->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

        if (fd < 0)
                return -errno;
        *ret = fdopendir(fd);
        if (!*ret) {
                close(fd);
                return -ENOMEM;
        }
        return 0;
}

/* Determines the content of the directory. Ignores files that do not show that there is a store:
 * the lock, files of other rooms, and files that an interrupted creation of a store has left. */
static int classify_content(const struct dir *d, enum content *ret)
{
        static const char *const leftovers[] = {
                ".",        "..",          DIR_LOCK,     DIR_SUPERBLOCK_NEW,
                NAME_PROBE, "lost+found",  "bench", /* folder with the files of benchmark sessions
                                                     */
                "learned",  "learned.new", "kept-memory" /* files that learned/ and keep/ store in a
                                                            volume's directory */
        };
        _cleanup_(closedirp) DIR *dir = NULL;
        enum content content = CONTENT_EMPTY;
        int r = dir_open_entries(d, &dir);

        if (r < 0)
                return r;
        for (;;) {
                struct dirent *e;
                bool known = false;

                errno = 0;
                e = readdir(dir);
                if (!e)
                        break;
                if (strcmp(e->d_name, DIR_SUPERBLOCK) == 0) {
                        *ret = CONTENT_STORE;
                        return 0;
                }
                for (size_t i = 0; i < ARRAY_SIZE(leftovers); i++)
                        known = known || strcmp(e->d_name, leftovers[i]) == 0;
                if (strcmp(e->d_name, DIR_TABLE) == 0 || dir_segment_number(e->d_name) >= 0)
                        content = content == CONTENT_EMPTY ? CONTENT_HEADLESS : content;
                else if (!known && !dir_is_leftover(e->d_name))
                        content = CONTENT_FOREIGN;
        }
        if (errno != 0)
                return -errno;
        *ret = content;
        return 0;
}

/* Returns whether the descriptor is that of this directory's lock file, and not of another
 * directory that was mounted on the same path before. */
static bool is_our_lock(const struct dir *d, int fd)
{
        struct stat held, here;

        return fd >= 0 && fstat(fd, &held) == 0 &&
               fstatat(d->fd, DIR_LOCK, &here, AT_SYMLINK_NOFOLLOW) == 0 &&
               held.st_dev == here.st_dev && held.st_ino == here.st_ino;
}

/* Locks the file and the directory. The I/O rings of a dead daemon hold the lock of the file until
 * their I/O has ended. The lock of the directory still holds if someone removes the file. If the
 * file system does not support locks on directories, only the file is locked. */
static int lock_both(const struct dir *d)
{
        if (flock(d->lock_fd, LOCK_EX | LOCK_NB) < 0)
                return -errno;
        return flock(d->fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK ? -errno : 0;
}

static int take_lock(struct dir *d, int held_fd, uint32_t wait_ms)
{
        uint64_t deadline = clock_mono_ns() + (uint64_t)wait_ms * 1000000;
        long pause_ns = 5000000;

        if (is_our_lock(d, held_fd)) {
                d->lock_fd = fcntl(held_fd, F_DUPFD_CLOEXEC, 3);
                return d->lock_fd < 0 ? -errno : 0;
        }
        d->lock_fd = dir_open_regular(d, DIR_LOCK, O_RDWR | O_CREAT);
        if (d->lock_fd < 0)
                return d->lock_fd;
        for (int r; (r = lock_both(d)) < 0;) {
                uint64_t now = clock_mono_ns();

                if (r != -EWOULDBLOCK && r != -EINTR)
                        return r;
                if (now >= deadline)
                        return -EBUSY;
                nanosleep(&(struct timespec){ .tv_nsec = (long)MIN((uint64_t)pause_ns,
                                                                   deadline - now) },
                          NULL);
                pause_ns = MIN(2 * pause_ns, 200000000L);
        }
        return 0;
}

/* Tests O_DIRECT by writing a page and reading it back. Returns 0 or -errno, with the failed step
 * in *ret_what. */
static int probe_direct(const struct dir *d, const char **ret_what)
{
        _cleanup_(freep) uint8_t *buf = aligned_alloc(DISK_PAGE, 2 * DISK_PAGE);
        _cleanup_(closep) int fd = -1;
        ssize_t n;

        if (!buf)
                return -ENOMEM;
        unlinkat(d->fd, NAME_PROBE, 0);
        *ret_what = "opening a file with O_DIRECT";
        fd = openat(d->fd, NAME_PROBE,
                    O_RDWR | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
                return -errno;
        unlinkat(d->fd, NAME_PROBE, 0);
        for (unsigned i = 0; i < DISK_PAGE; i++)
                buf[i] = (uint8_t)(i * 7 + 1);
        *ret_what = "writing with O_DIRECT";
        n = pwrite(fd, buf, DISK_PAGE, 0);
        if (n != DISK_PAGE)
                return n < 0 ? -errno : -EIO;
        *ret_what = "reading with O_DIRECT";
        n = pread(fd, buf + DISK_PAGE, DISK_PAGE, 0);
        if (n != DISK_PAGE)
                return n < 0 ? -errno : -EIO;
        return memcmp(buf, buf + DISK_PAGE, DISK_PAGE) == 0 ? 0 : -EILSEQ;
}

/* Decides whether to use O_DIRECT. If the file system does not support it, files use the page
 * cache. If the device fails during the test, opening fails. */
static int choose_direct(struct dir *d, bool wanted, char ret_error[static STORE_ERROR_BYTES])
{
        const char *what = "";
        int r;

        if (!wanted) {
                snprintf(d->direct_reason, sizeof(d->direct_reason), "switched off");
                return 0;
        }
        r = probe_direct(d, &what);
        if (r == -EIO || r == -ENXIO || r == -ENODEV || r == -EREMOTEIO || r == -ETIMEDOUT)
                return store_error(ret_error, r, "%s: the device fails: %s: %s; check the disk",
                                   d->path, what, strerror(-r));
        if (r < 0) {
                snprintf(d->direct_reason, sizeof(d->direct_reason), "%s failed: %s", what,
                         strerror(-r));
                return 0;
        }
        d->direct = true;
        return 0;
}

int dir_open(struct dir **ret, const struct dir_params *params,
             char ret_error[static STORE_ERROR_BYTES])
{
        _cleanup_(dir_closep) struct dir *d = calloc(1, sizeof(*d));
        enum content content;
        int r;

        if (!d)
                return store_error(ret_error, -ENOMEM, "out of memory for the store");
        d->fd = d->lock_fd = d->superblock_fd = -1;
        d->path = strdup(params->path);
        if (!d->path)
                return store_error(ret_error, -ENOMEM, "out of memory for the store");
        if (*d->path == '\0')
                return store_error(ret_error, -EINVAL, "store.path is empty");

        r = make_directories(d->path);
        if (r < 0)
                return store_error(ret_error, r, "%s: cannot create the directory: %s", d->path,
                                   strerror(-r));
        d->fd = open(d->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (d->fd < 0) {
                r = -errno;
                return store_error(ret_error, r, "%s: cannot open: %s", d->path, strerror(-r));
        }
        r = classify_content(d, &content);
        if (r < 0)
                return store_error(ret_error, r, "%s: cannot list: %s", d->path, strerror(-r));
        if (content == CONTENT_FOREIGN)
                return store_error(ret_error, -EPROTO,
                                   "%s: not a kvcache store and not empty; store.path needs an "
                                   "empty directory or a store",
                                   d->path);

        r = take_lock(d, params->lock_fd, params->lock_wait_ms);
        if (r == -EBUSY)
                return store_error(ret_error, r, "%s: another kvcache-daemon has this store open",
                                   d->path);
        if (r == -EACCES || r == -EPERM)
                return store_error(ret_error, r,
                                   "%s/" DIR_LOCK ": cannot lock: %s; was the store made by a "
                                   "daemon of another user, such as root? chown -R makes it this "
                                   "user's",
                                   d->path, dir_strerror(r));
        if (r < 0)
                return store_error(ret_error, r, "%s/" DIR_LOCK ": cannot lock: %s", d->path,
                                   dir_strerror(r));
        /* Another daemon may have made the store between the first check and the lock. */
        r = classify_content(d, &content);
        if (r < 0)
                return store_error(ret_error, r, "%s: cannot list: %s", d->path, strerror(-r));
        if (content == CONTENT_FOREIGN || content == CONTENT_HEADLESS)
                return store_error(
                        ret_error, -EPROTO,
                        "%s: not a kvcache store and not empty (the file \"" DIR_SUPERBLOCK
                        "\" is missing); restore this file, or move the directory away",
                        d->path);
        d->fresh = content == CONTENT_EMPTY;
        r = d->fresh ? dir_remove_leftovers(d, &d->emptied) : 0;
        if (r < 0)
                return store_error(ret_error, r, "%s: cannot remove the remains of a store: %s",
                                   d->path, strerror(-r));
        /* Makes the creation or removal of the superblock durable. An earlier process may have been
         * killed before it could do so. Otherwise a power loss could remove the superblock after
         * other files have been made, or restore one that was removed. */
        r = dir_sync(d);
        if (r < 0)
                return store_error(ret_error, r, "%s: cannot sync the directory: %s", d->path,
                                   strerror(-r));
        r = d->fresh ? 0 : dir_superblock_read(d, ret_error);
        if (r < 0)
                return r;
        r = choose_direct(d, params->direct, ret_error);
        if (r < 0)
                return r;
        r = d->fresh ? 0 : dir_superblock_open(d, ret_error);
        if (r < 0)
                return r;
        d->file_system = file_system_of(d->fd);
        d->can_sync = !d->file_system->memory;
        *ret = TAKE_PTR(d);
        return 0;
}

struct dir *dir_close(struct dir *d)
{
        if (!d)
                return NULL;
        if (d->superblock_fd >= 0)
                close(d->superblock_fd);
        if (d->lock_fd >= 0)
                close(d->lock_fd);
        if (d->fd >= 0)
                close(d->fd);
        free(d->path);
        free(d);
        return NULL;
}

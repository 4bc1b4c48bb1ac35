/* SPDX-License-Identifier: Apache-2.0 */
/* Implements directory-file.h. An operation is attempted twice if the first attempt finds that
 * remote.path is stale or removed, so that a file system mounted again is found by its name. A
 * write is also attempted twice if a directory is missing, because another host may have removed it
 * as empty. */
#include "remote/directory-file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdalign.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "checked.h"
#include "cleanup.h"

enum { CREATE_ATTEMPTS = 4 };

#define TEMPORARY ".tmp-"

typedef int (*file_step)(struct files *f, const struct tree_root *root, struct file_call *call,
                         void *arguments);

void files_init(struct files *f, const char *path, bool sync)
{
        char host[65] = "";
        uint64_t random = clock_mono_ns();

        *f = (struct files){ .sync = sync };
        tree_init(&f->tree, path);
        gethostname(host, sizeof(host) - 1);
        for (char *p = host; *p; p++)
                if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-", *p))
                        *p = '_';
        /* Host name and process number are not unique among containers. */
        if (getrandom(&random, sizeof(random), GRND_NONBLOCK) < 0)
                random ^= (uint64_t)(uintptr_t)f;
        snprintf(f->writer, sizeof(f->writer), "%.40s-%d-%08x", host, (int)getpid(),
                 (unsigned)random);
}

void files_fini(struct files *f)
{
        tree_fini(&f->tree);
}

static void temporary_name(struct files *f, char ret[static REMOTE_NAME_MAX])
{
        snprintf(ret, REMOTE_NAME_MAX, TEMPORARY "%s-%llu", f->writer,
                 (unsigned long long)atomic_fetch_add(&f->n_temporaries, 1));
}

bool file_is_temporary(const char *base)
{
        return strncmp(base, TEMPORARY, strlen(TEMPORARY)) == 0;
}

static int fail(struct files *f, struct file_call *call, int r, const char *what)
{
        return tree_fail(&f->tree, &call->error, r, what, call->name);
}

/* Returns 0 if the operation may take another step; otherwise -ECANCELED or -ETIMEDOUT. */
static int may_go_on(const struct file_call *call)
{
        if (call->stop && __atomic_load_n(call->stop, __ATOMIC_ACQUIRE))
                return -ECANCELED;
        return call->deadline_ns && clock_mono_ns() > call->deadline_ns ? -ETIMEDOUT : 0;
}

/* Reduces an errno to one that callers distinguish. The sentence in call->error keeps the system's
 * reason. */
static int result_of(int r)
{
        switch (-r) {
        case EDQUOT:
                return -ENOSPC;
        case EPERM:
        case EROFS:
                return -EACCES;
        case EFBIG:
                return -E2BIG;
        case ELOOP:
        case EXDEV:
        case EISDIR:
        case ENOTDIR:
                return -EIO;
        default:
                return r;
        }
}

static int attempt(struct files *f, struct file_call *call, file_step step, void *arguments,
                   bool again_if_missing)
{
        struct tree_root *root;
        int r;

        for (unsigned i = 0;; i++) {
                bool stale, again;

                r = may_go_on(call);
                if (r == 0)
                        r = tree_acquire(&f->tree, &root, &call->error);
                if (r < 0)
                        return r;
                r = step(f, root, call, arguments);
                stale = r == -ESTALE || (r == -ENOENT && tree_root_is_removed(root));
                again = i == 0 && (stale || (r == -ENOENT && again_if_missing));
                if (stale)
                        tree_forget(&f->tree, root);
                tree_release(&f->tree, root);
                if (!again)
                        break;
        }
        if (call->error.text &&
            (r == 0 || (r == -ENOENT && !again_if_missing) || r == -EEXIST || r == -EAGAIN))
                call->error.text[0] = '\0';
        return result_of(r);
}

static uint64_t bytes_of(const struct iovec pieces[static 2])
{
        return pieces[0].iov_len + pieces[1].iov_len;
}

/* Stores the parts of the pieces that hold bytes [from, to), and returns their number. */
static int slice(const struct iovec pieces[static 2], uint64_t from, uint64_t to,
                 struct iovec ret[static 2])
{
        uint64_t begin = 0;
        int n = 0;

        for (unsigned i = 0; i < 2; i++) {
                uint64_t end = begin + pieces[i].iov_len, a = MAX(from, begin), b = MIN(to, end);

                if (a < b)
                        ret[n++] =
                                (struct iovec){ (char *)pieces[i].iov_base + (a - begin), b - a };
                begin = end;
        }
        return n;
}

/* Returns whether O_DIRECT accepts the pieces, except for a partial last block. */
static bool pieces_are_aligned(const struct iovec pieces[static 2])
{
        return (uintptr_t)pieces[0].iov_base % FILE_BLOCK == 0 &&
               (pieces[1].iov_len == 0 || (pieces[0].iov_len % FILE_BLOCK == 0 &&
                                           (uintptr_t)pieces[1].iov_base % FILE_BLOCK == 0));
}

static void stop_direct(int fd)
{
        int flags = fcntl(fd, F_GETFL);

        if (flags >= 0)
                fcntl(fd, F_SETFL, flags & ~O_DIRECT);
}

static int is_regular(struct files *f, struct file_call *call, int fd, struct stat *ret)
{
        if (fstat(fd, ret) < 0)
                return fail(f, call, -errno, "cannot examine the file");
        if (S_ISREG(ret->st_mode))
                return 0;
        fail(f, call, -EIO, "the object is not a regular file");
        return -EIO;
}

/* --- reading --- */

struct reading {
        const struct iovec *pieces;
        uint64_t size, transferred;
};

/* Reads whole blocks with O_DIRECT; the block that contains the end of the requested range goes
 * through `tail`. If a read ends inside an earlier block, the rest is read without O_DIRECT. */
static int read_pieces(struct files *f, struct file_call *call, int fd, bool direct, uint64_t want,
                       struct reading *reading)
{
        alignas(FILE_BLOCK) char tail[FILE_BLOCK];
        uint64_t whole = round_down(want, FILE_BLOCK);

        while (reading->transferred < want) {
                uint64_t at = reading->transferred;
                struct iovec v[3], rest[2];
                int n, r = may_go_on(call);
                ssize_t got;

                if (r < 0)
                        return r;
                n = slice(reading->pieces, at, direct ? whole : want, v);
                if (direct && whole < want)
                        v[n++] = (struct iovec){ tail, FILE_BLOCK };
                got = preadv(fd, v, n, (off_t)at);
                if (got < 0 && errno == EINTR)
                        continue;
                if (got < 0 && errno == EINVAL && direct) {
                        atomic_store(&f->no_direct, true);
                        stop_direct(fd);
                        direct = false;
                        continue;
                }
                if (got < 0)
                        return fail(f, call, -errno, "cannot read");
                if (got == 0)
                        break; /* end of the file: another host has truncated it */
                reading->transferred = MIN(at + (uint64_t)got, want);
                if (direct && reading->transferred > whole) {
                        char *from = tail;

                        n = slice(reading->pieces, whole, reading->transferred, rest);
                        for (int i = 0; i < n; from += rest[i++].iov_len)
                                memcpy(rest[i].iov_base, from, rest[i].iov_len);
                }
                if (direct && reading->transferred < want &&
                    reading->transferred % FILE_BLOCK != 0) {
                        stop_direct(fd);
                        direct = false;
                }
        }
        return 0;
}

static int step_read(struct files *f, const struct tree_root *root, struct file_call *call,
                     void *arguments)
{
        struct reading *reading = arguments;
        bool direct = !atomic_load(&f->no_direct) && pieces_are_aligned(reading->pieces);
        _cleanup_(closep) int fd = -1;
        struct stat s;
        int r;

        fd = tree_open(&f->tree, root, call->name, O_RDONLY | (direct ? O_DIRECT : 0));
        if (fd == -EINVAL && direct) {
                atomic_store(&f->no_direct, true);
                direct = false;
                fd = tree_open(&f->tree, root, call->name, O_RDONLY);
        }
        if (fd < 0)
                return fail(f, call, fd, "cannot open");
        r = is_regular(f, call, fd, &s);
        if (r < 0)
                return r;
        reading->size = (uint64_t)s.st_size;
        reading->transferred = 0;
        return read_pieces(f, call, fd, direct, MIN(reading->size, bytes_of(reading->pieces)),
                           reading);
}

int file_read(struct files *f, struct file_call *call, const struct iovec pieces[static 2],
              uint64_t *ret_size, uint64_t *ret_transferred)
{
        struct reading reading = { .pieces = pieces };
        int r = attempt(f, call, step_read, &reading, false);

        if (r < 0)
                return r;
        *ret_size = reading.size;
        *ret_transferred = reading.transferred;
        return 0;
}

/* --- writing --- */

struct writing {
        const struct iovec *pieces;
        bool replace; /* replace an existing file; also sync it, because a purge relies on it */
};

/* Writes whole blocks with O_DIRECT, and a partial last block without. */
static int write_pieces(struct files *f, struct file_call *call, int fd, bool direct,
                        const struct iovec pieces[static 2])
{
        uint64_t bytes = bytes_of(pieces), whole = round_down(bytes, FILE_BLOCK), at = 0;

        while (at < bytes) {
                struct iovec v[2];
                int n, r = may_go_on(call);
                ssize_t done;

                if (r < 0)
                        return r;
                n = slice(pieces, at, direct ? whole : bytes, v);
                done = pwritev(fd, v, n, (off_t)at);
                if (done < 0 && errno == EINTR)
                        continue;
                if (done < 0 && errno == EINVAL && direct) {
                        atomic_store(&f->no_direct, true);
                        stop_direct(fd);
                        direct = false;
                        continue;
                }
                if (done <= 0)
                        return fail(f, call, done < 0 ? -errno : -EIO, "cannot write");
                at += (uint64_t)done;
                if (direct && (at == whole || at % FILE_BLOCK != 0)) {
                        stop_direct(fd);
                        direct = false;
                }
        }
        return 0;
}

static int create_temporary(struct files *f, int dir_fd, bool *direct,
                            char ret_name[static REMOTE_NAME_MAX])
{
        int fd = -1;

        for (unsigned i = 0; i < CREATE_ATTEMPTS && fd < 0; i++) {
                temporary_name(f, ret_name);
                fd = openat(dir_fd, ret_name,
                            O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC |
                                    (*direct ? O_DIRECT : 0),
                            0660);
                if (fd >= 0 || (errno != EEXIST && (errno != EINVAL || !*direct)))
                        break;
                if (errno == EINVAL) {
                        /* Some file systems refuse O_DIRECT only after creating the file. */
                        unlinkat(dir_fd, ret_name, 0);
                        atomic_store(&f->no_direct, true);
                        *direct = false;
                }
        }
        return fd < 0 ? -errno : fd;
}

static bool is_there(int dir_fd, const char *base)
{
        struct stat s;

        return fstatat(dir_fd, base, &s, AT_SYMLINK_NOFOLLOW) == 0;
}

/* Returns whether a failed link() has in fact succeeded. A network file system that repeats a
 * request after losing its answer gets EEXIST for its own link. */
static bool is_linked(int dir_fd, const char *temporary)
{
        struct stat s;

        return fstatat(dir_fd, temporary, &s, AT_SYMLINK_NOFOLLOW) == 0 && s.st_nlink == 2;
}

static bool is_unsupported(int error)
{
        return error == EPERM || error == EOPNOTSUPP || error == ENOSYS || error == EINVAL ||
               error == EMLINK;
}

/* Gives the file its name, or returns -EEXIST if that name exists. The temporary name may
 * remain. */
static int publish(struct files *f, int dir_fd, const char *temporary, const char *base)
{
        if (!atomic_load(&f->no_link)) {
                if (linkat(dir_fd, temporary, dir_fd, base, 0) == 0)
                        return 0;
                if (errno == EEXIST)
                        return is_linked(dir_fd, temporary) ? 0 : -EEXIST;
                if (!is_unsupported(errno))
                        return -errno;
                atomic_store(&f->no_link, true);
        }
        if (!atomic_load(&f->no_noreplace)) {
                if (renameat2(dir_fd, temporary, dir_fd, base, RENAME_NOREPLACE) == 0)
                        return 0;
                if (!is_unsupported(errno))
                        return -errno;
                atomic_store(&f->no_noreplace, true);
        }
        /* The file system offers no atomic check, so the later of two concurrent writers replaces
         * the file of the earlier. */
        if (is_there(dir_fd, base))
                return -EEXIST;
        return renameat(dir_fd, temporary, dir_fd, base) < 0 ? -errno : 0;
}

static int write_temporary(struct files *f, struct file_call *call, int fd, bool direct,
                           const struct writing *writing)
{
        int r = write_pieces(f, call, fd, direct, writing->pieces);

        if (r == 0 && (f->sync || writing->replace) && fsync(fd) < 0)
                r = fail(f, call, -errno, "cannot sync");
        /* NFS and quotas report a lack of space at close(). */
        if (close(fd) < 0 && r == 0 && errno != EINTR)
                r = fail(f, call, -errno, "cannot write");
        return r;
}

/* Syncs all directories on the way to the object, any of which may be new. File systems that cannot
 * sync a directory are accepted. */
static int sync_directories(struct files *f, const struct tree_root *root, struct file_call *call)
{
        const char *slash = call->name + strlen(call->name);

        while (slash > call->name) {
                _cleanup_(closep) int fd = -1;
                char path[REMOTE_NAME_MAX] = ".";

                slash = memrchr(call->name, '/', (size_t)(slash - call->name));
                if (slash)
                        snprintf(path, sizeof(path), "%.*s", (int)(slash - call->name), call->name);
                else
                        slash = call->name;
                fd = tree_open(&f->tree, root, path, O_RDONLY | O_DIRECTORY);
                if (fd < 0)
                        return fail(f, call, fd, "cannot open the directory of the object");
                if (fsync(fd) < 0 && !is_unsupported(errno))
                        return fail(f, call, -errno, "cannot sync the directory of the object");
        }
        return 0;
}

static int step_write(struct files *f, const struct tree_root *root, struct file_call *call,
                      void *arguments)
{
        const struct writing *writing = arguments;
        bool direct = !atomic_load(&f->no_direct) && pieces_are_aligned(writing->pieces) &&
                      bytes_of(writing->pieces) >= FILE_BLOCK;
        _cleanup_(closep) int dir_fd = -1;
        char temporary[REMOTE_NAME_MAX];
        const char *base;
        int fd, r;

        dir_fd = tree_open_parent(&f->tree, root, call->name, true, &base);
        if (dir_fd < 0)
                return fail(f, call, dir_fd, "cannot make or open the directory of the object");
        if (!writing->replace && is_there(dir_fd, base))
                return -EEXIST;
        fd = create_temporary(f, dir_fd, &direct, temporary);
        if (fd < 0)
                return fail(f, call, fd, "cannot create");
        r = write_temporary(f, call, fd, direct, writing);
        if (r == 0)
                r = may_go_on(call);
        if (r == 0) {
                if (!writing->replace)
                        r = publish(f, dir_fd, temporary, base);
                else
                        r = renameat(dir_fd, temporary, dir_fd, base) < 0 ? -errno : 0;
                if (r < 0)
                        fail(f, call, r, "cannot rename the temporary file of the object");
        }
        if (r == 0 && writing->replace)
                return sync_directories(f, root, call);
        /* Remove the temporary name, which a linked file still has and a renamed one does not. */
        if (r < 0 || (!writing->replace && !atomic_load(&f->no_link)))
                unlinkat(dir_fd, temporary, 0);
        return r;
}

int file_write(struct files *f, struct file_call *call, const struct iovec pieces[static 2],
               bool replace)
{
        struct writing writing = { .pieces = pieces, .replace = replace };
        int r = attempt(f, call, step_write, &writing, true);

        return r == -ENOENT ? -EIO : r;
}

/* --- deleting and marking --- */

static int step_delete(struct files *f, const struct tree_root *root, struct file_call *call,
                       void *arguments)
{
        const uint64_t *used_ms = arguments;
        _cleanup_(closep) int dir_fd = -1;
        const char *base;
        struct stat s;

        dir_fd = tree_open_parent(&f->tree, root, call->name, false, &base);
        if (dir_fd < 0)
                return fail(f, call, dir_fd, "cannot open the directory of the object");
        if (used_ms) {
                if (fstatat(dir_fd, base, &s, AT_SYMLINK_NOFOLLOW) < 0)
                        return fail(f, call, -errno, "cannot examine the file");
                if (file_modified_ms(&s) > *used_ms)
                        return -EAGAIN;
        }
        return unlinkat(dir_fd, base, 0) < 0 ? fail(f, call, -errno, "cannot delete") : 0;
}

int file_delete(struct files *f, struct file_call *call)
{
        return attempt(f, call, step_delete, NULL, false);
}

int file_delete_unused(struct files *f, struct file_call *call, uint64_t used_ms)
{
        return attempt(f, call, step_delete, &used_ms, false);
}

static int step_mark_used(struct files *f, const struct tree_root *root, struct file_call *call,
                          void *arguments)
{
        _cleanup_(closep) int dir_fd = -1;
        uint64_t now_ms = clock_unix_ms();
        const char *base;
        struct stat s;

        dir_fd = tree_open_parent(&f->tree, root, call->name, false, &base);
        if (dir_fd < 0)
                return fail(f, call, dir_fd, "cannot open the directory of the object");
        if (fstatat(dir_fd, base, &s, AT_SYMLINK_NOFOLLOW) < 0)
                return fail(f, call, -errno, "cannot examine the file");
        if (!S_ISREG(s.st_mode) || now_ms < file_modified_ms(&s) + FILE_DAY_MS)
                return 0;
        /* NULL sets the time from the file system's clock rather than this host's. */
        if (utimensat(dir_fd, base, NULL, AT_SYMLINK_NOFOLLOW) < 0)
                return fail(f, call, -errno, "cannot set the time of the object");
        return 0;
}

int file_mark_used(struct files *f, struct file_call *call)
{
        return attempt(f, call, step_mark_used, NULL, false);
}

uint64_t files_now_ms(struct files *f, int dir_fd)
{
        char name[REMOTE_NAME_MAX];
        uint64_t now_ms = clock_unix_ms();
        bool direct = false;
        struct stat s;
        int fd = create_temporary(f, dir_fd, &direct, name);

        if (fd < 0)
                return now_ms;
        if (utimensat(dir_fd, name, NULL, AT_SYMLINK_NOFOLLOW) == 0 && fstat(fd, &s) == 0)
                now_ms = file_modified_ms(&s);
        close(fd);
        unlinkat(dir_fd, name, 0);
        return now_ms;
}

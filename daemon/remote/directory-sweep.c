/* SPDX-License-Identifier: Apache-2.0 */
/* See directory-sweep.h.
 *
 * To take over a lease that has ended, a host renames its file first: of several, one succeeds. It
 * looks at what it has renamed, and gives it its name back if that is not what it had seen. Names
 * that begin with a dot are this back end's own, or the file system's (.nfs...), and no objects. */
#include "remote/directory-sweep.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"

enum { DAY_MS = 24 * 60 * 60 * 1000, LEVELS_MAX = 16, LEASE_TEXT = 256 };

DEFINE_CLEANUP(DIR *, closedir);

static uint64_t modified_ms(const struct stat *s)
{
        return (uint64_t)s->st_mtim.tv_sec * 1000 + (uint64_t)s->st_mtim.tv_nsec / 1000000;
}

/* --- the lease --- */

struct lease {
        char owner[LEASE_TEXT];
        uint64_t for_ms;
        struct stat stat;
};

/* The file of the lease: beside what would have that name, with a dot before it. */
static void lease_name(const char *name, char ret[static REMOTE_NAME_MAX])
{
        const char *slash = strrchr(name, '/');
        int above = slash ? (int)(slash - name) + 1 : 0;

        snprintf(ret, REMOTE_NAME_MAX, "%.*s.lease-%s", above, name, name + above);
}

/* One that cannot be read has no owner, and no duration. */
static int lease_read(int dir_fd, const char *base, struct lease *ret)
{
        _cleanup_(closep) int fd =
                openat(dir_fd, base, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        char text[LEASE_TEXT] = "";

        if (fd < 0)
                return -errno;
        *ret = (struct lease){ .for_ms = 0 };
        if (fstat(fd, &ret->stat) < 0)
                return -errno;
        if (!S_ISREG(ret->stat.st_mode))
                return -EIO;
        if (read(fd, text, sizeof(text) - 1) < 0)
                return -errno;
        if (sscanf(text, "%" SCNu64 " %254[^\n]", &ret->for_ms, ret->owner) != 2)
                ret->for_ms = 0;
        return 0;
}

static bool lease_is(const struct lease *a, const struct lease *b)
{
        return a->stat.st_ino == b->stat.st_ino &&
               a->stat.st_mtim.tv_sec == b->stat.st_mtim.tv_sec &&
               a->stat.st_mtim.tv_nsec == b->stat.st_mtim.tv_nsec;
}

static int lease_create(struct files *f, const char *name, const char *owner, uint64_t for_ns)
{
        char text[LEASE_TEXT];
        int n = snprintf(text, sizeof(text), "%" PRIu64 " %s\n", for_ns / 1000000, owner);
        struct iovec pieces[2] = { { text, (size_t)n } };
        struct file_call call = { .name = name };

        if (n < 0 || (size_t)n >= sizeof(text))
                return -EINVAL;
        return file_write(f, &call, pieces, false);
}

/* Ours: its time becomes now. -EBUSY: another host has taken it over meanwhile. */
static int lease_renew(int dir_fd, const char *base, const char *owner)
{
        struct lease lease;
        int r;

        if (utimensat(dir_fd, base, NULL, AT_SYMLINK_NOFOLLOW) < 0)
                return errno == ENOENT ? -EBUSY : -errno;
        r = lease_read(dir_fd, base, &lease);
        if (r < 0)
                return r == -ENOENT ? -EBUSY : r;
        return strcmp(lease.owner, owner) == 0 ? 0 : -EBUSY;
}

/* Removes the file of a lease that has ended. -EBUSY: it has not, or another host is at it. */
static int lease_end(struct files *f, int dir_fd, const char *base, const struct lease *seen)
{
        char aside[REMOTE_NAME_MAX];
        struct lease taken;
        int r;

        if (files_now_ms(f, dir_fd) < modified_ms(&seen->stat) + seen->for_ms)
                return -EBUSY;
        file_temporary_name(f, aside);
        if (renameat(dir_fd, base, dir_fd, aside) < 0)
                return errno == ENOENT ? -EBUSY : -errno;
        r = lease_read(dir_fd, aside, &taken);
        if (r == 0 && !lease_is(&taken, seen)) {
                /* Renewed, or taken over, since it was looked at. */
                if (linkat(dir_fd, aside, dir_fd, base, 0) < 0 && errno != EEXIST)
                        renameat(dir_fd, aside, dir_fd, base);
                r = -EBUSY;
        }
        unlinkat(dir_fd, aside, 0);
        return r;
}

int sweep_lease(struct files *f, const char *name, const char *owner, uint64_t for_ns)
{
        _cleanup_(closep) int dir_fd = -1;
        char file[REMOTE_NAME_MAX];
        struct tree_root *root;
        struct lease lease;
        const char *base;
        int r;

        lease_name(name, file);
        r = lease_create(f, file, owner, for_ns);
        if (r != -EEXIST)
                return r;
        r = tree_acquire(&f->tree, &root, NULL);
        if (r < 0)
                return r;
        dir_fd = tree_open_parent(&f->tree, root, file, false, &base);
        tree_release(&f->tree, root);
        if (dir_fd < 0)
                return dir_fd;
        r = lease_read(dir_fd, base, &lease);
        if (r == 0 && strcmp(lease.owner, owner) == 0)
                return lease_renew(dir_fd, base, owner);
        if (r == 0)
                r = lease_end(f, dir_fd, base, &lease);
        if (r < 0 && r != -ENOENT)
                return r;
        r = lease_create(f, file, owner, for_ns);
        return r == -EEXIST ? -EBUSY : r;
}

int sweep_release(struct files *f, const char *name, const char *owner)
{
        _cleanup_(closep) int dir_fd = -1;
        char file[REMOTE_NAME_MAX];
        struct tree_root *root;
        struct lease lease;
        const char *base;
        int r;

        lease_name(name, file);
        r = tree_acquire(&f->tree, &root, NULL);
        if (r < 0)
                return r;
        dir_fd = tree_open_parent(&f->tree, root, file, false, &base);
        tree_release(&f->tree, root);
        if (dir_fd < 0)
                return dir_fd;
        r = lease_read(dir_fd, base, &lease);
        if (r < 0)
                return r;
        if (strcmp(lease.owner, owner) != 0)
                return -EBUSY;
        return unlinkat(dir_fd, base, 0) < 0 ? -errno : 0;
}

/* --- all objects --- */

struct walk {
        struct files *files;
        bool (*each)(void *userdata, const struct backend_entry *e);
        void *userdata;
        const bool *stop;
        uint64_t now_ms;
        bool ended; /* each() or `stop` says so */
        int error;  /* the first; the rest is walked all the same */
        struct backend_entry entry;
};

static bool walk_directory(struct walk *w, int dir_fd_take, size_t length, unsigned level);

static void walk_note(struct walk *w, int error)
{
        if (w->error == 0 && error != ENOENT)
                w->error = -error;
}

/* entry.name is the name of what is looked at. Whether it stays. */
static bool walk_entry(struct walk *w, int dir_fd, const char *base, size_t length, unsigned level)
{
        struct stat s;
        int fd;

        if (fstatat(dir_fd, base, &s, AT_SYMLINK_NOFOLLOW) < 0) {
                walk_note(w, errno);
                return errno != ENOENT;
        }
        if (S_ISDIR(s.st_mode) && base[0] != '.' && level < LEVELS_MAX) {
                fd = openat(dir_fd, base,
                            O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
                if (fd < 0) {
                        walk_note(w, errno);
                        return true;
                }
                return !walk_directory(w, fd, length, level + 1) ||
                       w->now_ms < modified_ms(&s) + DAY_MS ||
                       unlinkat(dir_fd, base, AT_REMOVEDIR) < 0;
        }
        if (!S_ISREG(s.st_mode))
                return true;
        if (file_is_temporary(base))
                return w->now_ms < modified_ms(&s) + DAY_MS || unlinkat(dir_fd, base, 0) < 0;
        if (base[0] == '.')
                return true;
        w->entry.bytes = (uint64_t)s.st_size;
        w->entry.used_ms = modified_ms(&s);
        if (!w->each(w->userdata, &w->entry))
                w->ended = true;
        return true;
}

/* The name of the directory is the first `length` of entry.name. Whether it is empty. */
static bool walk_directory(struct walk *w, int dir_fd_take, size_t length, unsigned level)
{
        _cleanup_(closedirp) DIR *dir = fdopendir(dir_fd_take);
        const struct dirent *d;
        bool empty = true;

        if (!dir) {
                walk_note(w, errno);
                close(dir_fd_take);
                return false;
        }
        while (!w->ended) {
                int n;

                if (__atomic_load_n(w->stop, __ATOMIC_ACQUIRE)) {
                        w->ended = true;
                        w->error = -ECANCELED;
                        break;
                }
                errno = 0;
                d = readdir(dir);
                if (!d) {
                        if (errno != 0)
                                walk_note(w, errno);
                        return empty && errno == 0;
                }
                if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0)
                        continue;
                n = snprintf(w->entry.name + length, REMOTE_NAME_MAX - length, "%s%s",
                             length > 0 ? "/" : "", d->d_name);
                if ((size_t)n >= REMOTE_NAME_MAX - length) /* no object has such a name */
                        empty = false;
                else if (walk_entry(w, dirfd(dir), d->d_name, length + (size_t)n, level))
                        empty = false;
        }
        return false;
}

int sweep_list(struct files *f, const char *prefix,
               bool (*each)(void *userdata, const struct backend_entry *e), void *userdata,
               const bool *stop)
{
        struct walk w = { .files = f, .each = each, .userdata = userdata, .stop = stop };
        struct tree_root *root;
        int r, fd;

        r = tree_acquire(&f->tree, &root, NULL);
        if (r < 0)
                return r;
        fd = tree_open(&f->tree, root, *prefix ? prefix : ".", O_RDONLY | O_DIRECTORY);
        if (fd == -ESTALE)
                tree_forget(&f->tree, root);
        tree_release(&f->tree, root);
        if (fd < 0)
                return fd == -ENOENT ? 0 : fd;
        w.now_ms = files_now_ms(f, fd);
        snprintf(w.entry.name, sizeof(w.entry.name), "%s", prefix);
        walk_directory(&w, fd, strlen(w.entry.name), 0);
        return w.error;
}

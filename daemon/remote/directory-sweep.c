/* SPDX-License-Identifier: Apache-2.0 */
/* Implements directory-sweep.h.
 *
 * The files of a lease are numbered (.lease-NAME.7), and the highest number is in force. To take
 * over a lease that has ended, a host creates the next number; of several hosts, one succeeds. That
 * host then checks whether the previous holder has renewed its file meanwhile, while a holder
 * checks for a higher number after it has renewed. At least one of them sees the other and gives
 * up. A release keeps the highest number, with a time in the past.
 *
 * Names that begin with a dot belong to this back end or the file system (.nfs...), and are no
 * objects. */
#include "remote/directory-sweep.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"

enum { LEVELS_MAX = 16, LEASE_TEXT = 256, NUMBER_DIGITS = 18 };

DEFINE_CLEANUP(DIR *, closedir);

/* --- the lease --- */

struct lease {
        uint64_t number; /* 0: there is no lease */
        char owner[LEASE_TEXT];
        uint64_t for_ms;
        struct stat stat;
};

/* The directory of a lease, and the prefix of the names of its files. */
struct lease_place {
        int dir_fd;
        char above[REMOTE_NAME_MAX], beginning[REMOTE_NAME_MAX];
};

static int place_open(struct files *f, const char *name, bool create, struct lease_place *ret)
{
        struct tree_root *root;
        const char *base;
        int r = tree_acquire(&f->tree, &root, NULL);

        if (r < 0)
                return r;
        r = tree_open_parent(&f->tree, root, name, create, &base);
        if (r == -ESTALE)
                tree_forget(&f->tree, root);
        tree_release(&f->tree, root);
        if (r < 0)
                return r;
        ret->dir_fd = r;
        snprintf(ret->above, sizeof(ret->above), "%.*s", (int)(base - name), name);
        snprintf(ret->beginning, sizeof(ret->beginning), ".lease-%s.", base);
        return 0;
}

static void lease_name(const struct lease_place *p, uint64_t number,
                       char ret[static REMOTE_NAME_MAX])
{
        snprintf(ret, REMOTE_NAME_MAX, "%.200s%" PRIu64, p->beginning, number);
}

/* Returns the number in the name of a lease's file, or 0 for other names. */
static uint64_t number_of(const struct lease_place *p, const char *base)
{
        size_t n = strlen(p->beginning);

        if (strncmp(base, p->beginning, n) != 0)
                return 0;
        base += n;
        n = strlen(base);
        return n > 0 && n <= NUMBER_DIGITS && strspn(base, "0123456789") == n
                       ? strtoull(base, NULL, 10)
                       : 0;
}

/* Stores the highest number of a lease's files, or 0 if there is none, and removes the files with
 * numbers lower than `below`. */
static int lease_newest(const struct lease_place *p, uint64_t below, uint64_t *ret)
{
        int fd = openat(p->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        _cleanup_(closedirp) DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
        const struct dirent *d;
        int error = errno;

        if (!dir) {
                if (fd >= 0)
                        close(fd);
                return -error;
        }
        *ret = 0;
        while (errno = 0, (d = readdir(dir))) {
                uint64_t number = number_of(p, d->d_name);

                if (number > *ret)
                        *ret = number;
                if (number > 0 && number < below)
                        unlinkat(p->dir_fd, d->d_name, 0);
        }
        return -errno;
}

/* Reads a lease. A malformed one has no owner and no duration. */
static int lease_read(const struct lease_place *p, uint64_t number, struct lease *ret)
{
        char name[REMOTE_NAME_MAX], text[LEASE_TEXT] = "";
        _cleanup_(closep) int fd = -1;

        lease_name(p, number, name);
        fd = openat(p->dir_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (fd < 0)
                return -errno;
        *ret = (struct lease){ .number = number };
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

static int lease_create(struct files *f, const struct lease_place *p, uint64_t number,
                        const char *owner, uint64_t for_ns)
{
        char text[LEASE_TEXT], base[REMOTE_NAME_MAX], name[2 * REMOTE_NAME_MAX];
        int n = snprintf(text, sizeof(text), "%" PRIu64 " %s\n", for_ns / 1000000, owner);
        struct iovec pieces[2] = { { text, (size_t)n } };
        struct file_call call = { .name = name };

        lease_name(p, number, base);
        snprintf(name, sizeof(name), "%s%s", p->above, base);
        if (n < 0 || (size_t)n >= sizeof(text) || strlen(name) >= REMOTE_NAME_MAX)
                return -EINVAL;
        return file_write(f, &call, pieces, false);
}

/* Reads the newest lease; its number is 0 if there is none. */
static int lease_find(const struct lease_place *p, struct lease *ret)
{
        uint64_t number;
        int r = lease_newest(p, 0, &number);

        if (r < 0)
                return r;
        *ret = (struct lease){ .number = 0 };
        r = number > 0 ? lease_read(p, number, ret) : 0;
        return r == -ENOENT ? -EBUSY : r; /* another host has just taken over the lease */
}

static int lease_set_time(const struct lease_place *p, const struct lease *lease,
                          const struct timespec times[2])
{
        char name[REMOTE_NAME_MAX];

        lease_name(p, lease->number, name);
        if (utimensat(p->dir_fd, name, times, AT_SYMLINK_NOFOLLOW) < 0)
                return errno == ENOENT ? -EBUSY : -errno;
        return 0;
}

/* Renews this host's lease by setting its time to now. Returns -EBUSY if another host took it
 * over. */
static int lease_renew(const struct lease_place *p, const struct lease *lease)
{
        uint64_t newest;
        int r = lease_set_time(p, lease, NULL);

        if (r == 0)
                r = lease_newest(p, 0, &newest);
        return r < 0 ? r : newest == lease->number ? 0 : -EBUSY;
}

/* Returns whether the lease has not been renewed since `seen` was read. */
static bool lease_is_unchanged(const struct lease_place *p, const struct lease *seen)
{
        struct lease now;
        int r = lease_read(p, seen->number, &now);

        return r == -ENOENT || (r == 0 && now.stat.st_mtim.tv_sec == seen->stat.st_mtim.tv_sec &&
                                now.stat.st_mtim.tv_nsec == seen->stat.st_mtim.tv_nsec);
}

/* Takes over a lease that has ended, or creates the first one, and returns -EBUSY if another host
 * was faster or the holder renewed it. */
static int lease_follow(struct files *f, const struct lease_place *p, const struct lease *before,
                        const char *owner, uint64_t for_ns)
{
        uint64_t number = before->number + 1, newest;
        char name[REMOTE_NAME_MAX];
        int r = lease_create(f, p, number, owner, for_ns);

        if (r < 0)
                return r == -EEXIST ? -EBUSY : r;
        r = lease_newest(p, 0, &newest);
        if (r == 0 && (newest != number || (before->number > 0 && !lease_is_unchanged(p, before))))
                r = -EBUSY;
        if (r == 0)
                return lease_newest(p, number, &newest);
        lease_name(p, number, name);
        unlinkat(p->dir_fd, name, 0);
        return r;
}

int sweep_lease(struct files *f, const char *name, const char *owner, uint64_t for_ns)
{
        struct lease_place place;
        struct lease lease;
        int r = place_open(f, name, true, &place);

        if (r < 0)
                return r;
        r = lease_find(&place, &lease);
        if (r == 0 && lease.number > 0 && strcmp(lease.owner, owner) == 0)
                r = lease_renew(&place, &lease);
        else if (r == 0 && lease.number > 0 &&
                 files_now_ms(f, place.dir_fd) < file_modified_ms(&lease.stat) + lease.for_ms)
                r = -EBUSY;
        else if (r == 0)
                r = lease_follow(f, &place, &lease, owner, for_ns);
        close(place.dir_fd);
        return r;
}

int sweep_release(struct files *f, const char *name, const char *owner)
{
        static const struct timespec past[2] = { { .tv_nsec = UTIME_OMIT }, { .tv_sec = 0 } };
        struct lease_place place;
        struct lease lease;
        int r = place_open(f, name, false, &place);

        if (r < 0)
                return r;
        r = lease_find(&place, &lease);
        if (r == 0 && lease.number == 0)
                r = -ENOENT;
        else if (r == 0)
                r = strcmp(lease.owner, owner) == 0 ? lease_set_time(&place, &lease, past) : -EBUSY;
        close(place.dir_fd);
        return r;
}

/* --- all objects --- */

struct walk {
        struct files *files;
        bool tidy;
        bool (*each)(void *userdata, const struct backend_entry *e);
        void *userdata;
        const bool *stop;
        uint64_t now_ms;
        bool ended; /* each() or `stop` has ended the walk */
        int error;  /* the first error, after which the walk continued */
        struct backend_entry entry;
};

static bool walk_directory(struct walk *w, int dir_fd_take, size_t length, unsigned level);

static void walk_note(struct walk *w, int error)
{
        if (w->error == 0 && error != ENOENT)
                w->error = -error;
}

/* Visits one entry, whose name is in entry.name. Returns whether the entry remains. */
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
                return !walk_directory(w, fd, length, level + 1) || !w->tidy ||
                       w->now_ms < file_modified_ms(&s) + FILE_DAY_MS ||
                       unlinkat(dir_fd, base, AT_REMOVEDIR) < 0;
        }
        if (!S_ISREG(s.st_mode))
                return true;
        if (file_is_temporary(base))
                return !w->tidy || w->now_ms < file_modified_ms(&s) + FILE_DAY_MS ||
                       unlinkat(dir_fd, base, 0) < 0;
        if (base[0] == '.')
                return true;
        w->entry.bytes = (uint64_t)s.st_size;
        w->entry.used_ms = file_modified_ms(&s);
        if (!w->each(w->userdata, &w->entry))
                w->ended = true;
        return true;
}

/* Walks the directory whose name is the first `length` bytes of entry.name. Returns whether it is
 * empty. */
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
                if ((size_t)n >= REMOTE_NAME_MAX - length) /* a file whose name is too long for an
                                                            * object's name is skipped */
                        empty = false;
                else if (walk_entry(w, dirfd(dir), d->d_name, length + (size_t)n, level))
                        empty = false;
        }
        return false;
}

int sweep_list(struct files *f, const char *prefix, bool tidy,
               bool (*each)(void *userdata, const struct backend_entry *e), void *userdata,
               const bool *stop)
{
        struct walk w = {
                .files = f, .tidy = tidy, .each = each, .userdata = userdata, .stop = stop
        };
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

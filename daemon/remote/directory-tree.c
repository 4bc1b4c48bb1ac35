/* SPDX-License-Identifier: Apache-2.0 */
/* Implements directory-tree.h. openat2() resolves a name in one call; if the system lacks it
 * (before Linux 5.6, or because of a system call filter), each part is opened in turn. */
#include "remote/directory-tree.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"

enum {
        ROOT_LIFETIME_S = 10,
        OPEN_ATTEMPTS = 8, /* most calls of openat2(), which returns EAGAIN if a concurrent rename
                              interferes */
        DIRECTORY_MODE = 0770,
        FILE_MODE = 0660,
};

void tree_init(struct tree *t, const char *path)
{
        *t = (struct tree){ .path = path };
        pthread_mutex_init(&t->lock, NULL);
}

static void root_unref(struct tree_root *root)
{
        if (root && --root->refs == 0) {
                close(root->fd);
                free(root);
        }
}

void tree_fini(struct tree *t)
{
        root_unref(t->root);
        pthread_mutex_destroy(&t->lock);
}

int tree_fail(const struct tree *t, struct tree_error *error, int r, const char *what,
              const char *name)
{
        const char *why = strerrordesc_np(-r);

        if (error && error->text)
                snprintf(error->text, error->bytes, "%s: %s (%s%s%s)", what,
                         why ? why : "unknown error", t->path, *name ? "/" : "", name);
        return r;
}

/* Closes the descriptor outside the lock, because the file system may hang. */
void tree_release(struct tree *t, struct tree_root *root)
{
        bool last;

        pthread_mutex_lock(&t->lock);
        last = --root->refs == 0;
        pthread_mutex_unlock(&t->lock);
        if (last) {
                close(root->fd);
                free(root);
        }
}

void tree_forget(struct tree *t, struct tree_root *root)
{
        bool was;

        pthread_mutex_lock(&t->lock);
        was = t->root == root;
        if (was)
                t->root = NULL;
        pthread_mutex_unlock(&t->lock);
        if (was)
                tree_release(t, root);
}

int tree_acquire(struct tree *t, struct tree_root **ret, struct tree_error *error)
{
        uint64_t now = clock_mono_ns();
        struct tree_root *root, *old;
        int r = 0;

        pthread_mutex_lock(&t->lock);
        if (t->root &&
            (t->reopening || now - t->root->opened_ns < ROOT_LIFETIME_S * 1000000000ull)) {
                t->root->refs++;
                *ret = t->root;
                pthread_mutex_unlock(&t->lock);
                return 0;
        }
        t->reopening = true;
        pthread_mutex_unlock(&t->lock);

        root = malloc(sizeof(*root));
        if (root) {
                *root = (struct tree_root){ .refs = 2, .opened_ns = now };
                root->fd = open(t->path, O_PATH | O_DIRECTORY | O_CLOEXEC);
                r = root->fd < 0 ? -errno : 0;
        }
        if (!root || r < 0) {
                free(root);
                root = NULL;
        }

        pthread_mutex_lock(&t->lock);
        t->reopening = false;
        old = t->root;
        t->root = root;
        pthread_mutex_unlock(&t->lock);
        if (old)
                tree_release(t, old);
        if (!root) {
                tree_fail(t, error, r < 0 ? r : -ENOMEM,
                          r == -ENOENT ? "the directory is missing; is it mounted?"
                                       : "cannot open the directory",
                          "");
                return r == -EACCES ? r : -EIO;
        }
        *ret = root;
        return 0;
}

bool tree_root_is_removed(const struct tree_root *root)
{
        struct statx s;

        return statx(root->fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_NLINK, &s) == 0 &&
               s.stx_nlink == 0;
}

static int open_by_openat2(int dir_fd, const char *name, int flags)
{
        struct open_how how = {
                .flags = (uint64_t)(unsigned)flags,
                .mode = flags & O_CREAT ? FILE_MODE : 0,
                .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS,
        };
        long r = -1;

        errno = EAGAIN;
        for (unsigned i = 0; i < OPEN_ATTEMPTS && r < 0 && errno == EAGAIN; i++)
                r = syscall(SYS_openat2, dir_fd, name, &how, sizeof(how));
        return r < 0 ? -errno : (int)r;
}

/* Opens a name part by part. Names have neither ".." nor empty parts, so every part that is no link
 * leads down. */
static int open_by_parts(int dir_fd, const char *name, int flags)
{
        int parent = -1, fd;
        const char *slash;

        while ((slash = strchr(name, '/'))) {
                char part[REMOTE_NAME_MAX];

                snprintf(part, sizeof(part), "%.*s", (int)(slash - name), name);
                fd = openat(parent >= 0 ? parent : dir_fd, part,
                            O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
                if (parent >= 0)
                        close(parent);
                if (fd < 0)
                        return -errno;
                parent = fd;
                name = slash + 1;
        }
        fd = openat(parent >= 0 ? parent : dir_fd, name, flags | O_NOFOLLOW, FILE_MODE);
        fd = fd < 0 ? -errno : fd;
        if (parent >= 0)
                close(parent);
        return fd;
}

static int open_beneath(struct tree *t, int dir_fd, const char *name, int flags)
{
        int r;

        flags |= O_CLOEXEC | (flags & O_PATH ? 0 : O_NONBLOCK | O_NOCTTY);
        if (!__atomic_load_n(&t->no_openat2, __ATOMIC_RELAXED)) {
                r = open_by_openat2(dir_fd, name, flags);
                if (r != -ENOSYS && r != -EPERM)
                        return r;
                /* EPERM may be permanent, or some filters' answer to an unknown system call. */
                if (r == -ENOSYS)
                        __atomic_store_n(&t->no_openat2, true, __ATOMIC_RELAXED);
        }
        return open_by_parts(dir_fd, name, flags);
}

int tree_open(struct tree *t, const struct tree_root *root, const char *name, int flags)
{
        return open_beneath(t, root->fd, name, flags);
}

int tree_open_parent(struct tree *t, const struct tree_root *root, const char *name, bool create,
                     const char **ret_base)
{
        const char *slash = strrchr(name, '/'), *part = name;
        char path[REMOTE_NAME_MAX];
        int fd;

        *ret_base = slash ? slash + 1 : name;
        snprintf(path, sizeof(path), "%.*s", slash ? (int)(slash - name) : 1, slash ? name : ".");
        fd = open_beneath(t, root->fd, path, O_PATH | O_DIRECTORY);
        if (fd != -ENOENT || !create)
                return fd;

        /* Create the missing directories from the top; another host may do the same
         * concurrently. */
        fd = fcntl(root->fd, F_DUPFD_CLOEXEC, 3);
        fd = fd < 0 ? -errno : fd;
        while (fd >= 0 && slash && part < slash) {
                const char *end = strchr(part, '/');
                int above = fd;

                snprintf(path, sizeof(path), "%.*s", (int)(end - part), part);
                if (mkdirat(above, path, DIRECTORY_MODE) < 0 && errno != EEXIST)
                        fd = -errno;
                else
                        fd = open_beneath(t, above, path, O_PATH | O_DIRECTORY);
                close(above);
                part = end + 1;
        }
        return fd;
}

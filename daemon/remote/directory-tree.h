/* SPDX-License-Identifier: Apache-2.0 */
/* The shared directory as a tree of names: remote.path and everything beneath it.
 *
 * Names are resolved beneath a descriptor of remote.path, and symbolic links in them are not
 * followed. A user with write access there can therefore not redirect the daemon to other files.
 * remote.path itself may contain links, since the administrator chose it.
 *
 * Every function may block for as long as the file system does. Any thread.
 *
 * Locking: `lock` protects `root`; no system call is made under it. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "remote/object.h"

/* An open remote.path. It is reopened every few seconds, and when the system reports it as stale,
 * so that a file system mounted later or again is found. */
struct tree_root {
        int fd;
        unsigned refs;
        uint64_t opened_ns;
};

struct tree {
        const char *path;
        pthread_mutex_t lock;
        struct tree_root *root; /* the current root, or NULL */
        bool reopening;
        bool no_openat2; /* atomic; the system lacks openat2() */
};

/* Destination of a sentence about a failure: `text` has room for `bytes`, or is NULL. */
struct tree_error {
        char *text;
        size_t bytes;
};

void tree_init(struct tree *t, const char *path);
void tree_fini(struct tree *t);

/* Opens remote.path if necessary, and stores a reference. Returns 0, or -EACCES or -EIO with the
 * reason in `error`. */
int tree_acquire(struct tree *t, struct tree_root **ret, struct tree_error *error);
/* Releases a reference from tree_acquire(). */
void tree_release(struct tree *t, struct tree_root *root);
/* Makes the next tree_acquire() open remote.path again. */
void tree_forget(struct tree *t, struct tree_root *root);
/* Returns whether the directory was removed, from the kernel's cached attributes. */
bool tree_root_is_removed(const struct tree_root *root);

/* Opens `name` beneath the root. Returns a descriptor or -errno; -ELOOP and -EXDEV mean that a
 * symbolic link is in the path. */
int tree_open(struct tree *t, const struct tree_root *root, const char *name, int flags);
/* Opens the directory that contains `name`, with O_PATH, and stores the last part of the name,
 * which points into `name`. With `create`, missing directories are created with mode 0770 less the
 * umask. Returns a descriptor or -errno. */
int tree_open_parent(struct tree *t, const struct tree_root *root, const char *name, bool create,
                     const char **ret_base);

/* Writes the sentence "WHAT: REASON (PATH)" to `error`, and returns `r`, which is -errno. */
int tree_fail(const struct tree *t, struct tree_error *error, int r, const char *what,
              const char *name);

/* SPDX-License-Identifier: Apache-2.0 */
/* The directory that hosts share, as a tree of names: remote.path, and what lies beneath it.
 *
 * Names are resolved beneath one descriptor of remote.path, and no symbolic link is followed in
 * them: who can write there cannot have the daemon touch anything elsewhere. remote.path itself may
 * have links, since it is the administrator's.
 *
 * Every call here may block for as long as the file system likes. Any thread.
 *
 * Locking: `lock` protects `root`; no system call is made under it. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "remote/object.h"

/* remote.path as it was when it was opened. It is opened again every few seconds, and when the
 * system says that it is dead, so that a file system that is mounted again, or later than the
 * daemon starts, is found. */
struct tree_root {
        int fd;
        unsigned refs;
        uint64_t opened_ns;
};

struct tree {
        const char *path;
        pthread_mutex_t lock;
        struct tree_root *root; /* or NULL */
        bool reopening;
        bool no_openat2; /* atomic: the system does not have it */
};

/* Where the last sentence about a failure goes: `text` of `bytes`, or NULL. */
struct tree_error {
        char *text;
        size_t bytes;
};

void tree_init(struct tree *t, const char *path);
void tree_fini(struct tree *t);

/* 0; -EIO, with the reason in `error`. */
int tree_acquire(struct tree *t, struct tree_root **ret, struct tree_error *error);
void tree_release(struct tree *t, struct tree_root *root);
/* It is opened again next time. */
void tree_forget(struct tree *t, struct tree_root *root);
/* Has the directory been removed? Answered from what the system remembers. */
bool tree_root_is_removed(const struct tree_root *root);

/* A descriptor, -errno. -ELOOP or -EXDEV: a symbolic link is in the way. */
int tree_open(struct tree *t, const struct tree_root *root, const char *name, int flags);
/* The directory that `name` lies in (O_PATH), and what it is called there, which points into
 * `name`. `create`: directories that are missing are made, of mode 0770 less the umask. */
int tree_open_parent(struct tree *t, const struct tree_root *root, const char *name, bool create,
                     const char **ret_base);

/* Sets the sentence: "WHAT PATH: why". Returns `r`, which is -errno. */
int tree_fail(const struct tree *t, struct tree_error *error, int r, const char *what,
              const char *name);

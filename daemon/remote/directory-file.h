/* SPDX-License-Identifier: Apache-2.0 */
/* An object stored as one file beneath remote.path: reading, writing, deleting and marking it as
 * used.
 *
 * A file is written under a temporary name in the same directory, which begins with a dot, and gets
 * its own name when it is complete. Readers therefore see the whole file or none, whenever this
 * host or the file system fails. Anything but a regular file in an object's place is an error, and
 * is never waited for.
 *
 * Files are created with mode 0660 and directories with 0770, both reduced by the umask. The
 * administrator grants access to hosts with different users: by a group and a set-group-ID
 * directory, or by an ACL of the parent.
 *
 * O_DIRECT is used if the file system supports it: the daemon caches chunks itself, and a hung file
 * system with dirty pages slows down every writer of the host. After one refusal it is not tried
 * again.
 *
 * All functions block for as long as the file system does. Any thread. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include "remote/directory-tree.h"

enum {
        FILE_BLOCK = 4096, /* alignment of offsets, lengths and memory that O_DIRECT requires */
        FILE_DAY_MS = 24 * 60 * 60 * 1000,
};

struct files {
        struct tree tree;
        bool sync;
        char writer[96]; /* identifies this process; part of temporary names */
        _Atomic uint64_t n_temporaries;
        _Atomic bool no_direct;    /* the file system refused O_DIRECT */
        _Atomic bool no_link;      /* the file system refused hard links */
        _Atomic bool no_noreplace; /* the file system refused RENAME_NOREPLACE */
};

struct file_call {
        const char *name;
        uint64_t deadline_ns; /* CLOCK_MONOTONIC time after which no further step begins; 0: none */
        const bool *stop;     /* atomic; once true, no further step begins. NULL: none */
        struct tree_error error;
};

void files_init(struct files *f, const char *path, bool sync);
void files_fini(struct files *f);

/* The operations of backend.h on one file. All return 0 or -errno as specified there; `call->error`
 * gets a sentence about an unexpected error. */
int file_read(struct files *f, struct file_call *call, const struct iovec pieces[static 2],
              uint64_t *ret_size, uint64_t *ret_transferred);
int file_write(struct files *f, struct file_call *call, const struct iovec pieces[static 2],
               bool replace);
int file_delete(struct files *f, struct file_call *call);
/* Deletes the file, or returns -EAGAIN if it has been used after used_ms, by the file system's
 * clock. */
int file_delete_unused(struct files *f, struct file_call *call, uint64_t used_ms);
/* Sets the file's time to now if it is at least a day old. Has no effect on anything but a regular
 * file. */
int file_mark_used(struct files *f, struct file_call *call);
/* Returns the time of the file system's clock, in ms since 1970, from a file created and removed in
 * `dir_fd`. If none can be created, returns the time of this host. */
uint64_t files_now_ms(struct files *f, int dir_fd);

/* Returns the time of the last write, in ms since 1970. */
static inline uint64_t file_modified_ms(const struct stat *s)
{
        return (uint64_t)s->st_mtim.tv_sec * 1000 + (uint64_t)s->st_mtim.tv_nsec / 1000000;
}

/* Recognizes names of temporary files. The names begin with a dot, which no object's name does. */
bool file_is_temporary(const char *base);

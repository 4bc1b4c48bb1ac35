/* SPDX-License-Identifier: Apache-2.0 */
/* One object as a file beneath remote.path: read, written, deleted, marked as used.
 *
 * A file is written under another name in the same directory, which begins with a dot, and gets its
 * own once it is whole: so it is seen as a whole or not at all, whenever this host or the file
 * system dies. What is in an object's place and is no regular file is an error, and is never waited
 * for.
 *
 * Files are made with mode 0660, directories with 0770, both less the umask: what hosts with
 * different users need (a group and a set-group-ID directory, or an ACL of the parent) is up to the
 * administrator.
 *
 * O_DIRECT is used where the file system takes it: chunks are cached by the daemon already, and a
 * hung file system with pages to be written back slows every writer of the host. Where it is
 * refused once, it is not tried again.
 *
 * All here blocks, for as long as the file system likes. Any thread. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "remote/directory-tree.h"

enum { FILE_BLOCK = 4096 }; /* what O_DIRECT wants offsets, lengths and memory to be multiples of */

struct files {
        struct tree tree;
        bool sync;
        char writer[96]; /* of this process alone; part of temporary names */
        _Atomic uint64_t n_temporaries;
        _Atomic bool no_direct;    /* the file system does not take O_DIRECT, */
        _Atomic bool no_link;      /* ... hard links, */
        _Atomic bool no_noreplace; /* ... nor RENAME_NOREPLACE */
};

struct file_call {
        const char *name;
        uint64_t deadline_ns; /* CLOCK_MONOTONIC: no further step is begun after it; 0: none */
        const bool *stop;     /* atomic; likewise. NULL: none */
        struct tree_error error;
};

void files_init(struct files *f, const char *path, bool sync);
void files_fini(struct files *f);

/* All: 0, or -errno as backend.h has them, with a sentence about those that are not expected. */
int file_read(struct files *f, struct file_call *call, const struct iovec pieces[static 2],
              uint64_t *ret_size, uint64_t *ret_transferred);
int file_write(struct files *f, struct file_call *call, const struct iovec pieces[static 2],
               bool replace);
int file_delete(struct files *f, struct file_call *call);
/* -EAGAIN: it has been used since used_ms, by the file system's clock. */
int file_delete_unused(struct files *f, struct file_call *call, uint64_t used_ms);
/* Its time becomes now, if it is more than a day old. */
int file_mark_used(struct files *f, struct file_call *call);
/* What time it is by the clock of the file system, in ms since 1970: that of a file that is
 * made in the directory `dir_fd` and removed again. Where none can be made: of this host. */
uint64_t files_now_ms(struct files *f, int dir_fd);

/* Begins with a dot, as nothing else does here that is not this file's own. */
void file_temporary_name(struct files *f, char ret[static REMOTE_NAME_MAX]);
bool file_is_temporary(const char *base);

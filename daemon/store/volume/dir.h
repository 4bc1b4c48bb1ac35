/* SPDX-License-Identifier: Apache-2.0 */
/* One data directory: its lock, its superblock, how its files are opened and named. All of it
 * blocks: see dir.c. */
#pragma once

#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>

#include "store/volume/file-system.h"
#include "store/volume/format.h"

enum { STORE_ERROR_BYTES = 512 };

#define DIR_LOCK       "LOCK"
#define DIR_SUPERBLOCK "superblock"
#define DIR_TABLE      "table"

struct dir {
        char *path;
        int fd;
        int lock_fd;
        int superblock_fd;
        struct disk_superblock superblock; /* as on disk */
        unsigned superblock_good;          /* halves that hold it for certain, by bit */
        bool fresh;                        /* there is nothing yet, or it was made just now */
        bool emptied;                      /* fresh, but a daemon left files without a store */
        bool copied;                       /* another directory was in use when it was written */
        bool half_made;                    /* dir_make() failed, but the superblock may be there */
        bool direct;                       /* files are opened with O_DIRECT */
        char direct_reason[128];           /* why not; "" */
        bool can_sync;                     /* false where nothing survives power loss */
        const struct file_system *file_system;
};

struct dir_params {
        const char *path;
        bool direct;
        uint32_t lock_wait_ms;
        int lock_fd; /* -1; or a lock that this process holds already: a duplicate of it is kept, if
                        it is this directory's */
};

/* Locks it and reads its superblock. In an empty directory (`fresh`) dir_make() is to follow.
 *
 * -EBUSY: locked by another process for all of lock_wait_ms; -EPROTO: not a store, damaged, or of a
 * version or with a flag that this build does not know. `ret_error` gets one sentence. */
int dir_open(struct dir **ret, const struct dir_params *params,
             char ret_error[static STORE_ERROR_BYTES]);
/* The superblock of the volume in `path`, which stays as it is, and may be in use. -EPROTO: there
 * is none, or no copy is whole; -errno: it cannot be read. Its version and flags may be unknown
 * ones: dir_check_format(). */
int dir_read_superblock(const char *path, struct disk_superblock *ret,
                        char ret_error[static STORE_ERROR_BYTES]);
/* Does this build know that version and the flags that matter, and is the volume's number one that
 * can be? 0, or -EPROTO with the reason. */
int dir_check_format(const char *path, const struct disk_superblock *sb,
                     char ret_error[static STORE_ERROR_BYTES]);
/* Makes the superblock, as volume `index` of `count` of the set; `set` may be NULL. */
int dir_make(struct dir *d, const uint8_t *set, unsigned index, unsigned count,
             char ret_error[static STORE_ERROR_BYTES]);
/* Releases the lock. */
struct dir *dir_close(struct dir *d);

/* A file of this directory for I/O: O_DIRECT if that is in use. Returns the descriptor or -errno;
 * -EMEDIUMTYPE: what is there is no regular file. It never waits, whatever is there. */
int dir_open_file(const struct dir *d, const char *name, int flags);
/* The same for reading through the page cache. */
int dir_open_buffered(const struct dir *d, const char *name);
/* strerror(), which does not know what these functions mean by -EMEDIUMTYPE. */
const char *dir_strerror(int r);
/* Opens the list of the directory's entries; the caller closes it. `*ret` is NULL on failure. */
int dir_open_entries(const struct dir *d, DIR **ret);
static inline void closedirp(DIR **d)
{
        if (*d)
                closedir(*d);
}
/* Returns whether a file of this name says nothing without a superblock, table or data file. A
 * daemon whose directory was emptied may leave such files. */
bool dir_is_leftover(const char *name);
/* Removes such files. 0, -errno. *ret_any: there were some. */
int dir_remove_leftovers(const struct dir *d, bool *ret_any);
/* Makes names durable. */
int dir_sync(const struct dir *d);
/* An open file of the directory, and the size that it has at least. */
struct dir_open_file {
        uint32_t segment; /* UINT32_MAX: the table */
        int fd;
        uint64_t bytes;
};
/* Compares the directory with the one that store.path names, and its lock, its superblock and these
 * files with their names. 0; -ESTALE, with a sentence, if something was removed, replaced or cut. A
 * comparison that fails otherwise counts as equal. Any thread. */
int dir_check_identity(const struct dir *d, const struct dir_open_file *files, unsigned n,
                       char ret_reason[static STORE_ERROR_BYTES]);

/* Writes d->superblock, with its generation raised: two copies, synced, then the other two; first
 * those that are not known to be whole. 0: it is on stable storage, in two copies at least. */
int dir_write_superblock(struct dir *d);

enum { DIR_SEGMENT_NAME_BYTES = 20 };
void dir_segment_name(uint32_t segment, char ret[static DIR_SEGMENT_NAME_BYTES]);
/* Of the file that is to take its place: no segment's name. */
void dir_replacement_name(uint32_t segment, char ret[static DIR_SEGMENT_NAME_BYTES]);
/* -1 if it is not a segment's name. */
int dir_segment_number(const char *name);

/* Bytes that a file occupies, as du counts them; -errno. */
int64_t dir_file_usage(int fd);
/* Makes the file `bytes` long with all of it allocated, where the file system can. */
int dir_allocate(int fd, uint64_t bytes);

/* For ret_error: formats into it and returns r. */
int store_error(char ret_error[static STORE_ERROR_BYTES], int r, const char *fmt, ...)
        __attribute__((format(printf, 3, 4)));

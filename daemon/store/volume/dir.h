/* SPDX-License-Identifier: Apache-2.0 */
/* A volume's data directory: its lock, its superblock, and the names and opening of its files. All
 * functions block; see dir.c. */
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
        char *path; /* path of the directory, as in store.path */
        int fd;     /* descriptor of the directory */
        int lock_fd;
        int superblock_fd;
        struct disk_superblock superblock; /* contents of the superblock, as read or last written */
        unsigned superblock_good; /* the halves of the file (two copies each) that certainly hold
                                     `superblock` on the disk, by bit */
        bool fresh;               /* the directory had no store when it was opened */
        bool emptied; /* the directory is fresh, but had files that an earlier daemon left when the
                         directory was emptied; dir_open() has removed them */
        bool copied;  /* the directory is a copy of one that was in use when it was copied */
        bool half_made;          /* dir_make() failed, but may have left a superblock */
        bool direct;             /* files are opened with O_DIRECT */
        char direct_reason[128]; /* why O_DIRECT is not used, or "" */
        bool can_sync;           /* false if the file system keeps nothing across a power loss */
        const struct file_system *file_system;
};

struct dir_params {
        const char *path;
        bool direct;
        uint32_t lock_wait_ms; /* longest wait while another process holds the lock */
        int lock_fd; /* descriptor of a lock that this process already holds, or -1. If it is the
                        lock of this directory, dir_open() keeps a duplicate instead of taking the
                        lock. */
};

/* Locks the directory, creating it if it does not exist, and reads its superblock. If the directory
 * is empty (`fresh`), the caller must call dir_make().
 *
 * Returns 0 or -errno: -EBUSY if another process held the lock for all of lock_wait_ms; -EPROTO if
 * the directory is not a store, is damaged, or has a format version or a flag that this build does
 * not know. ret_error gets one sentence. */
int dir_open(struct dir **ret, const struct dir_params *params,
             char ret_error[static STORE_ERROR_BYTES]);
/* Reads the superblock of the volume in `path` without changing anything; another process may use
 * the volume. Returns -EPROTO if there is no superblock or no copy is whole, and another -errno if
 * it cannot be read. The caller must check version and flags with dir_check_format(). */
int dir_read_superblock(const char *path, struct disk_superblock *ret,
                        char ret_error[static STORE_ERROR_BYTES]);
/* Checks that this build knows the superblock's version and flags, and that its volume number is
 * possible. Returns 0, or -EPROTO with the reason. */
int dir_check_format(const char *path, const struct disk_superblock *sb,
                     char ret_error[static STORE_ERROR_BYTES]);
/* Writes the first superblock of a volume with number `index`, in a set that has given out `count`
 * numbers. `set` is the set's uuid; NULL in a store of one volume. */
int dir_make(struct dir *d, const uint8_t *set, unsigned index, unsigned count,
             char ret_error[static STORE_ERROR_BYTES]);
/* Closes the directory and releases its lock. */
struct dir *dir_close(struct dir *d);

/* Opens a file of this directory for I/O, with O_DIRECT if the directory uses it. Returns the
 * descriptor or -errno: -EMEDIUMTYPE if the name is not a regular file, and -ESTALE if a file would
 * be created although the superblock was removed. Never waits, even for a FIFO. */
int dir_open_file(const struct dir *d, const char *name, int flags);
/* Opens a file of this directory for reading through the page cache. Fails like
 * dir_open_file(). */
int dir_open_buffered(const struct dir *d, const char *name);
/* Returns the text of an error like strerror(), but also explains the -EMEDIUMTYPE of the functions
 * that open files. */
const char *dir_strerror(int r);
/* Opens the list of the directory's entries; the caller closes it. Returns 0 or -errno. *ret must
 * be NULL before the call, and is NULL after a failure. */
int dir_open_entries(const struct dir *d, DIR **ret);
static inline void closedirp(DIR **d)
{
        if (*d)
                closedir(*d);
}
/* Returns whether a file of this name is of no use without a superblock, table or data file. A
 * daemon may leave such files in a directory that was emptied while the daemon used it. */
bool dir_is_leftover(const char *name);
struct dir_open_file;
/* Removes those of the `n` open data files whose names still lead to them, if neither a superblock
 * nor a table is in the directory: no startup finds chunks in them, and the next one would refuse
 * the directory as a damaged store. */
void dir_remove_orphans(const struct dir *d, const struct dir_open_file *files, unsigned n);
/* Removes the files for which dir_is_leftover() returns true. Sets *ret_any if there were any.
 * Returns 0 or -errno. */
int dir_remove_leftovers(const struct dir *d, bool *ret_any);
/* Makes the creation and removal of files in the directory durable. Returns 0 or -errno. */
int dir_sync(const struct dir *d);
/* An open file of the directory whose identity is to be checked. */
struct dir_open_file {
        uint32_t segment; /* number of the data file, or UINT32_MAX for the table */
        int fd;
        uint64_t bytes; /* size in bytes that the file must have at least */
};
/* Checks that the open directory is still the one that its path names, and that the names of the
 * lock, the superblock and `files` still lead to the open files. Returns 0, or -ESTALE with a
 * sentence if one of these was removed, replaced or cut. A check that cannot be made counts as
 * passed. Any thread. */
int dir_check_identity(const struct dir *d, const struct dir_open_file *files, unsigned n,
                       char ret_reason[static STORE_ERROR_BYTES]);

/* Raises the generation of d->superblock and writes it: first two copies and a sync, then the other
 * two copies. Begins with the two copies that are not known to be whole, if any. Returns 0 if at
 * least two copies are on stable storage, otherwise -errno. */
int dir_write_superblock(struct dir *d);

/* Writes bytes at an offset, and syncs the file's data. Returns 0 or -errno. */
int dir_write_synced(int fd, const void *buf, size_t bytes, uint64_t offset);

enum { DIR_SEGMENT_NAME_BYTES = 20 };
/* Formats the name of a segment's data file, "segment-" and the number in hexadecimal. */
void dir_segment_name(uint32_t segment, char ret[static DIR_SEGMENT_NAME_BYTES]);
/* Formats the name of the file that is to replace a segment's file. No segment has such a name. */
void dir_replacement_name(uint32_t segment, char ret[static DIR_SEGMENT_NAME_BYTES]);
/* Returns the segment's number, or -1 if `name` is not a segment's name. */
int dir_segment_number(const char *name);

/* Returns the bytes that a file occupies, as du counts them, or its size if that is larger; or
 * -errno. */
int64_t dir_file_usage(int fd);
/* Sets the size of the file to `bytes`, and allocates all its blocks if the file system can do
 * that. Returns 0 or -errno. */
int dir_allocate(int fd, uint64_t bytes);

/* Formats a message into ret_error and returns r. */
int store_error(char ret_error[static STORE_ERROR_BYTES], int r, const char *fmt, ...)
        __attribute__((format(printf, 3, 4)));

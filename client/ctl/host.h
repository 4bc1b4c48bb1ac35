/* SPDX-License-Identifier: Apache-2.0 */
/* Files and mounts of this host, read for a diagnosis. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/types.h>

enum { HOST_FILE_MOST = 64 * 1024 };

/* Reads a regular file and appends '\0'. Opening a FIFO does not block. Returns the length, or a
 * negative errno: -EINVAL if it is not a regular file, -EFBIG if it is longer than HOST_FILE_MOST
 * bytes. */
ssize_t host_read_file(const char *path, char ret[static HOST_FILE_MOST + 1]);
/* Returns the text of an error of host_read_file(). */
const char *host_read_error(ssize_t error);

struct host_mount {
        unsigned major, minor; /* numbers of the device; `major` is 0 if the file system has no
                                  block device */
        char point[PATH_MAX], type[64], options[1024];
};

/* Finds the mount of `path` in /proc/self/mountinfo: the one whose mount point is the longest
 * prefix of `path`. Mounts of the device in `st` take precedence over all others, unless `st` is
 * NULL, because the directory cannot be reached. `root` is prepended to /proc. Returns false if
 * there is no such mount. */
bool host_find_mount(const char *root, const char *path, const struct stat *st,
                     struct host_mount *ret);

/* SPDX-License-Identifier: Apache-2.0 */
/* Reads files and mounts of this host; see host.h. */
#include "host.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "cleanup.h"
#include "common.h"

ssize_t host_read_file(const char *path, char ret[static HOST_FILE_MOST + 1])
{
        /* Opening a FIFO must not block. */
        _cleanup_(closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        size_t length = 0;
        struct stat st;
        ssize_t n;

        if (fd < 0 || fstat(fd, &st) < 0)
                return -errno;
        if (!S_ISREG(st.st_mode))
                return -EINVAL;
        while (length <= HOST_FILE_MOST &&
               (n = read(fd, ret + length, HOST_FILE_MOST + 1 - length)) != 0) {
                if (n < 0)
                        return -errno;
                length += (size_t)n;
        }
        if (length > HOST_FILE_MOST)
                return -EFBIG;
        ret[length] = '\0';
        return (ssize_t)length;
}

const char *host_read_error(ssize_t error)
{
        return error == -EFBIG    ? "larger than 64 KiB"
               : error == -EINVAL ? "not a regular file"
                                  : strerror((int)-error);
}

/* Replaces octal escapes of mountinfo, such as "\040", in place. */
static void unescape(char *text)
{
        char *to = text;

        for (const char *p = text; *p; p++) {
                if (p[0] == '\\' && p[1] >= '0' && p[1] <= '3' && p[2] >= '0' && p[2] <= '7' &&
                    p[3] >= '0' && p[3] <= '7') {
                        *to++ = (char)((p[1] - '0') * 64 + (p[2] - '0') * 8 + (p[3] - '0'));
                        p += 3;
                } else {
                        *to++ = *p;
                }
        }
        *to = '\0';
}

static bool parse_mount(const char *line, struct host_mount *ret)
{
        const char *rest = strstr(line, " - ");

        if (!rest ||
            sscanf(line, "%*s %*s %u:%u %*s %4095s", &ret->major, &ret->minor, ret->point) != 3 ||
            sscanf(rest + 3, "%63s %*s %1023s", ret->type, ret->options) != 2)
                return false;
        unescape(ret->point);
        return true;
}

/* Returns the length of `point` if it is `path` or a directory above it, otherwise 0. */
static size_t covered(const char *path, const char *point)
{
        size_t n = strlen(point);

        if (n > 0 && point[n - 1] == '/')
                return strncmp(path, point, n) == 0 ? n : 0;
        return strncmp(path, point, n) == 0 && (path[n] == '/' || !path[n]) ? n : 0;
}

bool host_find_mount(const char *root, const char *path, const struct stat *st,
                     struct host_mount *ret)
{
        char file[PATH_MAX];
        _cleanup_(fclosep) FILE *f = NULL;
        _cleanup_(freep) char *line = NULL;
        size_t room = 0, most = 0;
        struct host_mount one;

        snprintf(file, sizeof(file), "%s/proc/self/mountinfo", root);
        f = fopen(file, "re");
        while (f && getline(&line, &room, f) >= 0) {
                size_t fits;

                if (!parse_mount(line, &one))
                        continue;
                fits = covered(path, one.point);
                if (st && one.major == major(st->st_dev) && one.minor == minor(st->st_dev))
                        fits += PATH_MAX;
                if (fits > 0 && fits >= most) {
                        most = fits;
                        *ret = one;
                }
        }
        return most > 0;
}

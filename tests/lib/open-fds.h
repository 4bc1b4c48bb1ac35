/* SPDX-License-Identifier: Apache-2.0 */
/* Counts open descriptors, for tests that none is leaked. Counts are compared with each other: each
 * includes what the count itself needs. */
#pragma once

#include <assert.h>
#include <dirent.h>
#include <string.h>
#include <unistd.h>

static inline unsigned open_fds(void)
{
        DIR *dir = opendir("/proc/self/fd");
        unsigned n = 0;

        assert(dir);
        while (readdir(dir))
                n++;
        closedir(dir);
        return n;
}

/* Counts sockets and memfds only, because a store beside the test opens files of its own. */
static inline unsigned open_sockets_and_memfds(void)
{
        DIR *dir = opendir("/proc/self/fd");
        unsigned n = 0;

        assert(dir);
        for (struct dirent *e; (e = readdir(dir));) {
                char target[64] = "";

                if (readlinkat(dirfd(dir), e->d_name, target, sizeof(target) - 1) > 0)
                        n += strncmp(target, "socket:", 7) == 0 ||
                             strncmp(target, "/memfd:", 7) == 0;
        }
        closedir(dir);
        return n;
}

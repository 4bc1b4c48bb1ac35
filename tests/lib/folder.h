/* SPDX-License-Identifier: Apache-2.0 */
/* Empties and removes folders of test files. The functions are inline, so that every test can use
 * them without linking more. */
#pragma once

#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <unistd.h>

/* Removes the files of a folder. Folders in it stay, and a folder that does not exist is ignored.
 */
static inline void folder_empty(const char *path)
{
        DIR *d = opendir(path);

        for (struct dirent *e; d && (e = readdir(d));)
                (void)unlinkat(dirfd(d), e->d_name, 0);
        if (d)
                closedir(d);
}

static inline int folder_remove_one(const char *path, const struct stat *st, int type,
                                    struct FTW *ftw)
{
        return remove(path);
}

/* Removes a folder and everything in it, without following links. Returns 0, or another number if
 * something stays. */
static inline int folder_remove(const char *path)
{
        return nftw(path, folder_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Identity checks of a directory; see dir.h. Compares the names of a volume's directory and files
 * with the files that it has open. Also removes the files that a daemon may leave in an emptied
 * directory. Calls block and run on any thread. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checked.h"
#include "cleanup.h"
#include "store/volume/dir.h"

bool dir_is_leftover(const char *name)
{
        static const char *const names[] = { "table.new", "namespaces.0", "namespaces.1" };

        for (size_t i = 0; i < ARRAY_SIZE(names); i++)
                if (strcmp(name, names[i]) == 0)
                        return true;
        return false;
}

int dir_remove_leftovers(const struct dir *d, bool *ret_any)
{
        _cleanup_(closedirp) DIR *dir = NULL;
        int r = dir_open_entries(d, &dir);

        if (r < 0)
                return r;
        for (struct dirent *e; (e = readdir(dir));) {
                if (!dir_is_leftover(e->d_name))
                        continue;
                *ret_any = true;
                if (unlinkat(d->fd, e->d_name, 0) < 0 && errno != ENOENT)
                        return -errno;
        }
        return 0;
}

static bool is_same_file(const struct stat *a, const struct stat *b)
{
        return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static bool is_absent(const struct dir *d, const char *name)
{
        return faccessat(d->fd, name, F_OK, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT;
}

void dir_remove_orphans(const struct dir *d, const struct dir_open_file *files, unsigned n)
{
        char name[DIR_SEGMENT_NAME_BYTES];
        struct stat opened, found;

        if (!is_absent(d, DIR_SUPERBLOCK) || !is_absent(d, DIR_TABLE))
                return;
        for (unsigned i = 0; i < n; i++) {
                if (files[i].segment == UINT32_MAX)
                        continue;
                dir_segment_name(files[i].segment, name);
                if (fstat(files[i].fd, &opened) == 0 &&
                    fstatat(d->fd, name, &found, AT_SYMLINK_NOFOLLOW) == 0 &&
                    is_same_file(&opened, &found))
                        (void)unlinkat(d->fd, name, 0);
        }
}

static int check_file(const struct dir *d, const struct dir_open_file *file,
                      char ret_reason[static STORE_ERROR_BYTES])
{
        char name[DIR_SEGMENT_NAME_BYTES] = DIR_TABLE;
        struct stat opened, found;
        int r;

        if (file->segment != UINT32_MAX)
                dir_segment_name(file->segment, name);
        if (fstat(file->fd, &opened) < 0)
                return 0;
        r = fstatat(d->fd, name, &found, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
        if (r == -ENOENT)
                return store_error(ret_reason, -ESTALE,
                                   "its file \"%s\" was removed while the daemon used it", name);
        if (r == 0 && !is_same_file(&opened, &found))
                return store_error(ret_reason, -ESTALE,
                                   "its file \"%s\" was replaced by another file while the "
                                   "daemon used it",
                                   name);
        if ((uint64_t)opened.st_size < file->bytes)
                return store_error(ret_reason, -ESTALE,
                                   "its file \"%s\" was cut while the daemon used it", name);
        return 0;
}

int dir_check_identity(const struct dir *d, const struct dir_open_file *files, unsigned n,
                       char ret_reason[static STORE_ERROR_BYTES])
{
        static const char *const names[] = { DIR_LOCK, DIR_SUPERBLOCK };
        const int fds[] = { d->lock_fd, d->superblock_fd };
        struct stat opened, found;

        /* Takes the lock of the directory if it is not held yet: a volume that is resumed cannot
         * take it while the old struct volume has it. */
        (void)flock(d->fd, LOCK_EX | LOCK_NB);
        if (fstat(d->fd, &opened) == 0) {
                int r = stat(d->path, &found) < 0 ? -errno : 0;

                if (r == -ENOENT || r == -ENOTDIR)
                        return store_error(ret_reason, -ESTALE,
                                           "its directory was moved or removed while the daemon "
                                           "used it");
                if (r == 0 && !is_same_file(&opened, &found))
                        return store_error(ret_reason, -ESTALE,
                                           "its directory was replaced by another one while the "
                                           "daemon used it");
        }
        for (unsigned i = 0; i < ARRAY_SIZE(names); i++) {
                int r;

                if (fds[i] < 0 || fstat(fds[i], &opened) < 0)
                        continue;
                r = fstatat(d->fd, names[i], &found, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
                if (r == -ENOENT || (r == 0 && !is_same_file(&opened, &found)))
                        return store_error(ret_reason, -ESTALE,
                                           "its file \"%s\" was removed or replaced while the "
                                           "daemon used it",
                                           names[i]);
        }
        for (unsigned i = 0; i < n; i++) {
                int r = check_file(d, &files[i], ret_reason);

                if (r < 0)
                        return r;
        }
        return 0;
}

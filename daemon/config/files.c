/* SPDX-License-Identifier: Apache-2.0 */
/* Files to YAML text: the configuration file, and the drop-ins in the directory beside it.
 *
 * Runs on the loop thread, at startup and at a reload, and reads at most twice CONFIG_MAX_FILE
 * bytes: the file, and its drop-ins together. The drop-ins of /etc/kvcache/kvcache.yaml are the
 * files /etc/kvcache/kvcache.yaml.d/NAME.yaml; names that begin with a dot are left out, as editors
 * and Kubernetes have files of their own there. The file that --config names may be a pipe. A
 * drop-in is found rather than named, so it must be a regular file, and no other user may have put
 * it there. A drop-in that is refused is an error like one in the file: nothing is skipped, since a
 * daemon that runs without a limit is worse than one that does not start. */
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "cleanup.h"
#include "config/internal.h"

/* Most names in struct config.files, which keeps them over all reloads. */
enum { MOST_FILES = 1024 };

DEFINE_CLEANUP(DIR *, closedir);

int config_file_add(struct config *c, const char *name)
{
        struct config_strings *files = &c->files;
        char **items;

        for (unsigned i = 0; i < files->n; i++)
                if (strcmp(files->items[i], name) == 0)
                        return (int)i;
        if (files->n == MOST_FILES)
                return -ENOMEM;
        items = realloc(files->items, (files->n + 1) * sizeof(*items));
        if (!items)
                return -ENOMEM;
        files->items = items;
        items[files->n] = strdup(name);
        return items[files->n] ? (int)files->n++ : -ENOMEM;
}

/* Reads an open file, `most` bytes and one more, which shows that it is too large. The caller frees
 * *ret. */
static int read_open(int fd, const char *path, size_t most, char **ret, size_t *ret_length,
                     struct config_error *ret_error)
{
        _cleanup_(freep) char *text = malloc(most + 1);
        size_t length = 0;
        ssize_t n = -1;

        if (!text)
                return config_fail(ret_error, -ENOMEM, "%.160s: out of memory", path);
        while (length <= most && n != 0) {
                n = read(fd, text + length, most + 1 - length);
                if (n < 0) {
                        int r = -errno;

                        if (r == -EINTR)
                                continue;
                        if (r == -EISDIR)
                                return config_fail(ret_error, r,
                                                   "%.160s: is a directory, not a file", path);
                        return config_fail(ret_error, r, "%.160s: %s", path, strerror(-r));
                }
                length += (size_t)n;
        }
        *ret = TAKE_PTR(text);
        *ret_length = length;
        return 0;
}

int config_load_file(struct config *c, const char *path, struct config_error *ret_error)
{
        _cleanup_(freep) char *text = NULL;
        _cleanup_(closep) int fd = -1;
        size_t length;
        int r = config_file_add(c, path); /* adds the name as number 0, even if the file does not
                                           * exist */

        if (r < 0)
                return config_fail(ret_error, r, "%.160s: out of memory", path);
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
        if (fd < 0) {
                const char *hint;

                r = -errno;
                hint = r == -ENOENT   ? "; write one, or start without --config"
                       : r == -EACCES ? "; the daemon's user must be able to read it"
                                      : "";
                return config_fail(ret_error, r, "%.160s: %s%s", path, strerror(-r), hint);
        }
        r = read_open(fd, path, CONFIG_MAX_FILE, &text, &length, ret_error);
        return r < 0 ? r : config_load_text(c, path, text, length, ret_error);
}

/* --- drop-ins --- */

/* The directory of the drop-ins. */
struct drop_ins {
        const char *path;  /* borrowed: the path of the configuration file, followed by ".d" */
        uid_t owner;       /* a user who may own drop-ins, besides root and this process's */
        size_t left;       /* bytes that the drop-ins not read yet may have together */
        bool is_read_only; /* the directory is on a read-only mount, so that modes do not matter */
        DIR *dir;
};

/* Checks that the directory or file belongs to root, to this process's user or to `d->owner`, and
 * that others cannot write to it, unless the mount is read-only. Its group may write. */
static int check_writers(const struct drop_ins *d, const char *path, const struct stat *st,
                         struct config_error *ret_error)
{
        if (st->st_uid != 0 && st->st_uid != geteuid() && st->st_uid != d->owner)
                return config_fail(ret_error, -EPERM,
                                   "%.160s: belongs to user %u, who could change the "
                                   "configuration; give it to root or to the daemon's user",
                                   path, (unsigned)st->st_uid);
        if (st->st_mode & S_IWOTH && !d->is_read_only)
                return config_fail(ret_error, -EPERM,
                                   "%.160s: mode %04o lets every user change the configuration; "
                                   "use chmod o-w",
                                   path, (unsigned)st->st_mode & 07777);
        return 0;
}

/* Opens the directory. Without one, d->dir stays NULL. */
static int open_directory(struct drop_ins *d, struct config_error *ret_error)
{
        _cleanup_(closep) int fd = open(d->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        struct statvfs fs;
        struct stat st;
        int r = fd < 0 ? -errno : 0;

        /* A symbolic link without a target is ENOENT, too. */
        if (r < 0 && lstat(d->path, &st) < 0 && (errno == ENOENT || errno == ENOTDIR))
                return 0;
        if (r == -ENOENT)
                return config_fail(ret_error, r,
                                   "%.160s: is a link to a directory that does not exist; remove "
                                   "it, or create the directory",
                                   d->path);
        if (r == -ENOTDIR)
                return config_fail(ret_error, r,
                                   "%.160s: is not a directory; drop-ins are files in it", d->path);
        if (r == 0 && (fstat(fd, &st) < 0 || fstatvfs(fd, &fs) < 0))
                r = -errno;
        if (r < 0)
                return config_fail(ret_error, r, "%.160s: %s%s", d->path, strerror(-r),
                                   r == -EACCES ? "; the daemon's user must be able to read it"
                                                : "");
        d->is_read_only = fs.f_flag & ST_RDONLY;
        r = check_writers(d, d->path, &st, ret_error);
        if (r < 0)
                return r;
        d->dir = fdopendir(fd);
        if (!d->dir)
                return config_fail(ret_error, -errno, "%.160s: %s", d->path, strerror(errno));
        (void)TAKE_FD(fd);
        return 0;
}

static bool has_end(const char *name, const char *end)
{
        size_t n = strlen(name), m = strlen(end);

        return n > m && strcmp(name + n - m, end) == 0;
}

/* Reports a name that an administrator may have meant as a drop-in. */
static void warn_of_name(const struct drop_ins *d, const char *name, void (*warn)(const char *text))
{
        char text[CONFIG_WHY], quoted[CONFIG_QUOTED];

        if (!warn || (!has_end(name, ".yml") && !has_end(name, ".conf")))
                return;
        snprintf(text, sizeof(text), "%.160s: %s is not read: the names of drop-ins end with .yaml",
                 d->path, config_quote(name, quoted));
        warn(text);
}

static int compare_names(const void *a, const void *b)
{
        return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Lists the names of the drop-ins, in their order. */
static int list_names(const struct drop_ins *d, void (*warn)(const char *text),
                      struct config_strings *ret, struct config_error *ret_error)
{
        const struct dirent *entry;

        ret->items = calloc(CONFIG_MAX_DROP_INS, sizeof(*ret->items));
        if (!ret->items)
                return config_fail(ret_error, -ENOMEM, "%.160s: out of memory", d->path);
        while (errno = 0, (entry = readdir(d->dir))) {
                if (entry->d_name[0] == '.')
                        continue;
                if (!has_end(entry->d_name, ".yaml")) {
                        warn_of_name(d, entry->d_name, warn);
                        continue;
                }
                if (ret->n == CONFIG_MAX_DROP_INS)
                        return config_fail(ret_error, -E2BIG,
                                           "%.160s: the directory has more than %d drop-ins; put "
                                           "several into one file",
                                           d->path, CONFIG_MAX_DROP_INS);
                ret->items[ret->n] = strdup(entry->d_name);
                if (!ret->items[ret->n])
                        return config_fail(ret_error, -ENOMEM, "%.160s: out of memory", d->path);
                ret->n++;
        }
        if (errno != 0)
                return config_fail(ret_error, -errno, "%.160s: %s", d->path, strerror(errno));
        qsort(ret->items, ret->n, sizeof(*ret->items), compare_names);
        return 0;
}

/* Opens a drop-in without waiting for the other end of a FIFO. Sets *ret_fd to -1 if another
 * process has removed the file since it was listed. */
static int open_drop_in(const struct drop_ins *d, const char *name, const char *path, int *ret_fd,
                        struct config_error *ret_error)
{
        _cleanup_(closep) int fd =
                openat(dirfd(d->dir), name, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
        struct stat st;
        int r = fd < 0 ? -errno : 0;

        if (r == -ENOENT && fstatat(dirfd(d->dir), name, &st, AT_SYMLINK_NOFOLLOW) == 0)
                return config_fail(ret_error, r,
                                   "%.160s: is a link to a file that does not exist; remove it, or "
                                   "write the file",
                                   path);
        if (r < 0 && r != -ENOENT && r != -ENXIO)
                return config_fail(ret_error, r, "%.160s: %s%s", path, strerror(-r),
                                   r == -EACCES ? "; the daemon's user must be able to read it"
                                                : "");
        if (r == 0 && fstat(fd, &st) < 0)
                return config_fail(ret_error, -errno, "%.160s: %s", path, strerror(errno));
        if (r == 0 && S_ISDIR(st.st_mode))
                return config_fail(ret_error, -EISDIR, "%.160s: is a directory, not a file", path);
        if (r == -ENXIO || (r == 0 && !S_ISREG(st.st_mode))) /* ENXIO: a socket */
                return config_fail(ret_error, -EINVAL, "%.160s: is not a regular file", path);
        if (r == 0 && (r = check_writers(d, path, &st, ret_error)) < 0)
                return r;
        *ret_fd = TAKE_FD(fd);
        return 0;
}

static int load_drop_in(struct config *c, struct drop_ins *d, const char *name,
                        struct config_error *ret_error)
{
        _cleanup_(freep) char *text = NULL, *path = NULL;
        _cleanup_(closep) int fd = -1;
        char quoted[CONFIG_QUOTED];
        size_t length;
        int r;

        if (!config_text_is_clean(name))
                return config_fail(ret_error, -EINVAL,
                                   "%.160s: the name of the drop-in %s is not one line of UTF-8 "
                                   "text; rename it",
                                   d->path, config_quote(name, quoted));
        if (asprintf(&path, "%s/%s", d->path, name) < 0) {
                path = NULL;
                return config_fail(ret_error, -ENOMEM, "%.160s: out of memory", d->path);
        }
        r = open_drop_in(d, name, path, &fd, ret_error);
        if (r < 0 || fd < 0)
                return r;
        r = read_open(fd, path, d->left, &text, &length, ret_error);
        if (r < 0)
                return r;
        if (length > d->left)
                return config_fail(ret_error, -EINVAL,
                                   "%.160s: the drop-ins are larger than %d KiB together: this is "
                                   "not a configuration",
                                   path, CONFIG_MAX_FILE / 1024);
        d->left -= length;
        return config_load_text(c, path, text, length, ret_error);
}

int config_load_drop_ins(struct config *c, const char *path, void (*warn)(const char *text),
                         struct config_error *ret_error)
{
        _cleanup_(config_strings_fini) struct config_strings names = {};
        _cleanup_(freep) char *directory = NULL;
        _cleanup_(closedirp) DIR *dir = NULL;
        struct drop_ins d = { .owner = geteuid(), .left = CONFIG_MAX_FILE };
        struct stat st;
        int r;

        if (ret_error->broken)
                return 0;
        if (asprintf(&directory, "%s.d", path) < 0) {
                directory = NULL;
                return config_fail(ret_error, -ENOMEM, "%.160s: out of memory", path);
        }
        d.path = directory;
        /* Root may check the configuration of the user that is to run the daemon. */
        if (geteuid() == 0 && stat(path, &st) == 0 && S_ISREG(st.st_mode))
                d.owner = st.st_uid;
        r = open_directory(&d, ret_error);
        dir = d.dir;
        if (r == 0 && dir)
                r = list_names(&d, warn, &names, ret_error);
        r = config_note(ret_error, r);
        for (unsigned i = 0; i < names.n && r == 0 && !ret_error->broken; i++)
                r = config_note(ret_error, load_drop_in(c, &d, names.items[i], ret_error));
        return r;
}

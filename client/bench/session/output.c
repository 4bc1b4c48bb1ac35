/* SPDX-License-Identifier: Apache-2.0 */
#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "common.h"

int output_open(struct output *o, const char *path)
{
        mode_t mask = umask(0);
        int fd;

        umask(mask);
        *o = (struct output){ .file = stdout };
        if (!path || strcmp(path, "-") == 0)
                return EXIT_OK;
        if (asprintf(&o->temporary, "%s.XXXXXX", path) < 0) {
                o->temporary = NULL;
                return complain_memory();
        }
        fd = mkostemp(o->temporary, O_CLOEXEC);
        o->file = fd >= 0 && fchmod(fd, 0666 & ~mask) == 0 ? fdopen(fd, "w") : NULL;
        if (!o->file) {
                int status = complain(EXIT_LOCAL, "%s: %s", path, strerror(errno));

                if (fd >= 0) {
                        (void)unlink(o->temporary);
                        close(fd);
                }
                free(o->temporary);
                return status;
        }
        o->path = path;
        return EXIT_OK;
}

/* Syncs the directory, so that the name survives a crash; not all file systems support it. */
static void sync_directory(const char *path)
{
        const char *slash = strrchr(path, '/');
        _cleanup_(freep) char *directory =
                slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
        _cleanup_(closep) int fd = -1;

        if (directory)
                fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0)
                (void)fsync(fd);
}

int output_close(struct output *o, bool keep)
{
        int status = EXIT_OK;
        bool good;

        if (!o->path)
                return EXIT_OK; /* main() reports errors of standard output */
        good = !ferror(o->file) && fflush(o->file) == 0 && fsync(fileno(o->file)) == 0;
        if (keep && !good)
                status = complain(EXIT_LOCAL, "%s: %s", o->path, strerror(errno));
        (void)fclose(o->file);
        if (keep && good && rename(o->temporary, o->path) < 0) {
                status = complain(EXIT_LOCAL, "%s: %s", o->path, strerror(errno));
                good = false;
        }
        if (keep && good)
                sync_directory(o->path);
        else
                (void)unlink(o->temporary);
        free(o->temporary);
        *o = (struct output){ 0 };
        return status;
}

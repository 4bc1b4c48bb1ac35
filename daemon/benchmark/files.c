/* SPDX-License-Identifier: Apache-2.0 */
/* The files of benchmark sessions: bench_NAME.json in their directory. They are read before the
 * daemon serves clients. They are written and deleted on a blocking-call thread, one call after
 * another, so that a hung disk delays only these. A file is written under another name, synced and
 * renamed, so that a kill leaves either the old or the new file.
 *
 * Owns the directory's path and the calls in flight. Failures: a damaged or invalid file is
 * reported by a warning and left alone; bench_saved() and bench_deleted() report errors of writing
 * and deleting. */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/small-file.h"
#include "benchmark/internal.h"
#include "cleanup.h"
#include "store/store.h"

enum { NAME_BYTES = 65, FILE_BYTES = NAME_BYTES + 16, MAX_BYTES = 1 << 20 };
static_assert((int)BENCH_THREAD > (int)STORE_MAX_VOLUMES,
              "the store numbers its volumes from 1 on");

struct bench_files {
        struct bench *bench;
        char *folder;
};

struct file_call {
        struct kio_request call;
        struct bench_files *files;
        char name[NAME_BYTES];
        char *text; /* NULL: delete the file */
        size_t bytes;
};

int bench_files_new(struct bench_files **ret, struct bench *b, const char *folder)
{
        struct bench_files *f = calloc(1, sizeof(*f));
        char *copy = strdup(folder);

        if (!f || !copy) {
                free(f);
                free(copy);
                return -ENOMEM;
        }
        *f = (struct bench_files){ .bench = b, .folder = copy };
        *ret = f;
        return 0;
}

struct bench_files *bench_files_free(struct bench_files *f)
{
        if (f) {
                free(f->folder);
                free(f);
        }
        return NULL;
}

void bench_files_path(const struct bench_files *f, const char *name, size_t bytes, char *ret)
{
        snprintf(ret, bytes, "%s/bench_%s.json", f->folder, name);
}

static int open_folder(const struct bench_files *f)
{
        int fd = open(f->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

        return fd < 0 ? -errno : fd;
}

/* --- reading --- */

__attribute__((format(printf, 2, 3))) static void warn(const struct bench_files *f,
                                                       const char *format, ...)
{
        const struct bench_params *p = &f->bench->params;
        char text[SNAPSHOT_ERROR_BYTES + 256];
        va_list arguments;

        va_start(arguments, format);
        vsnprintf(text, sizeof(text), format, arguments);
        va_end(arguments);
        p->warn(p->userdata, text);
}

/* Extracts the session's name from the name of its file. Returns false if the file is not that of a
 * session. */
static bool name_in(const char *file, char ret[static NAME_BYTES])
{
        size_t n = strlen(file);

        if (n <= 11 || n - 11 >= NAME_BYTES || strncmp(file, "bench_", 6) != 0 ||
            strcmp(file + n - 5, ".json") != 0)
                return false;
        memcpy(ret, file + 6, n - 11);
        ret[n - 11] = '\0';
        return snapshot_name_valid(ret);
}

static void read_one(struct bench_files *f, int folder, const char *file, const char *name)
{
        _cleanup_(snapshot_freep) struct snapshot *s = NULL;
        _cleanup_(freep) void *text = NULL;
        char error[SNAPSHOT_ERROR_BYTES];
        size_t bytes;
        int r = small_file_load(folder, file, MAX_BYTES, &text, &bytes);

        if (r < 0) {
                warn(f, "cannot read benchmark session %s/%s: %s", f->folder, file,
                     r == -EMEDIUMTYPE ? "not a regular file" : strerror(-r));
                return;
        }
        if (snapshot_parse(text, bytes, file, &s, error) < 0) {
                warn(f, "cannot read benchmark session: %s/%s", f->folder, error);
                return;
        }
        if (strcmp(s->name, name) != 0) {
                warn(f, "cannot read benchmark session %s/%s: the file belongs to session %s",
                     f->folder, file, s->name);
                return;
        }
        bench_adopt(f->bench, TAKE_PTR(s));
}

void bench_files_read(struct bench_files *f)
{
        int fd = open_folder(f);
        DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
        char name[NAME_BYTES];
        struct dirent *e;

        if (!dir) {
                if (fd >= 0)
                        close(fd);
                if (fd != -ENOENT)
                        warn(f, "%s: cannot read the benchmark sessions: %s", f->folder,
                             strerror(fd < 0 ? -fd : ENOMEM));
                return;
        }
        while ((e = readdir(dir)))
                if (name_in(e->d_name, name))
                        read_one(f, dirfd(dir), e->d_name, name);
        closedir(dir);
}

/* --- writing, on the thread --- */

static int run_call(struct kio_request *call)
{
        const struct file_call *c = container_of(call, struct file_call, call);
        _cleanup_(closep) int folder = -1;
        char file[FILE_BYTES], next[FILE_BYTES];

        if (c->text && mkdir(c->files->folder, 0755) < 0 && errno != EEXIST)
                return -errno;
        folder = open_folder(c->files);
        if (folder < 0)
                return c->text ? folder : 0;
        snprintf(file, sizeof(file), "bench_%s.json", c->name);
        snprintf(next, sizeof(next), "bench_%s.new", c->name);
        if (c->text)
                return small_file_replace(folder, file, next, 0644, c->text, c->bytes);
        if (unlinkat(folder, file, 0) < 0 && errno != ENOENT)
                return -errno;
        return fsync(folder) < 0 ? -errno : 0;
}

static void on_called(struct kio_request *call)
{
        struct file_call *c = container_of(call, struct file_call, call);

        if (c->text)
                bench_saved(c->files->bench, c->name, (int)call->result);
        else
                bench_deleted(c->files->bench, c->name, (int)call->result);
        free(c->text);
        free(c);
}

static int submit(struct bench_files *f, const char *name, char *text, size_t bytes)
{
        struct file_call *c = calloc(1, sizeof(*c));

        if (!c) {
                free(text);
                return -ENOMEM;
        }
        c->call = (struct kio_request){
                .op = KIO_CALL,
                .class = KIO_CLASS_BACKGROUND,
                .volume = BENCH_THREAD,
                .call = run_call,
                .complete = on_called,
        };
        c->files = f;
        snprintf(c->name, sizeof(c->name), "%s", name);
        c->text = text;
        c->bytes = bytes;
        kio_submit(f->bench->params.io, &c->call, 0);
        return 0;
}

int bench_files_write(struct bench_files *f, const char *name, char *text, size_t bytes)
{
        return submit(f, name, text, bytes);
}

int bench_files_delete(struct bench_files *f, const char *name)
{
        return submit(f, name, NULL, 0);
}

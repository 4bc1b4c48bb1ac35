/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated disk: see sim.h. Any thread comes here, by the backend or by a wrapped call; one
 * lock guards all.
 *
 * Of each file it knows the writes that no sync covers yet, each with what it overwrote, and of
 * each name the changes since the directory was synced. A power loss takes all those writes back,
 * newest first, then does again, sector by sector, what is drawn. So nothing is copied but what is
 * in doubt, and a state costs what was written since the last syncs. A file keeps a descriptor
 * here: its inode number is not given again, and a name that comes back has its bytes.
 *
 * Failures: without memory it gives up by assertion; this is a test. */
#include "sim.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "checked.h"
#include "cleanup.h"

enum { NAME_BYTES = 64, DIRS = 4, PAGE = 4096, MAGIC_EXT4 = 0xef53 };
#define EPOCH_MS UINT64_C(1700000000000)

/* A write that no sync covers. */
struct record {
        uint64_t serial; /* of its completion */
        uint64_t offset, length;
        bool dropped; /* a sync that was to cover it has failed */
        uint8_t *old; /* NULL: it had not completed when the power failed */
        uint8_t *new;
};

struct file {
        char name[NAME_BYTES]; /* the last one it had */
        unsigned dir;
        dev_t dev;
        ino_t ino;
        int fd;
        uint64_t stable_size;
        struct record *records;
        unsigned n_records, room;
        uint8_t *past; /* what lay there before the last write, as far as past_bytes go */
        uint64_t past_bytes;
        bool is_payload;
};

struct change {
        uint64_t serial;   /* 0: stable */
        struct file *file; /* NULL: the name is not there */
};

struct name {
        char name[NAME_BYTES];
        unsigned dir;
        struct change *changes; /* the first is the stable one, the last is what is so now */
        unsigned n, room;
};

struct waiting {
        struct waiting *next;
        struct sim_queue *queue;
        struct kio_request *req;
        struct file *file; /* of a sync; NULL: of a directory, or of neither */
        int dir;
        uint64_t serial, size; /* when it came */
        int32_t result;
};

struct sim_queue {
        struct kio_queue base;
        struct sim_queue *next;
        pthread_t thread; /* whose it is */
        pthread_cond_t cond;
        bool woken, waiting;
        struct waiting *done, **done_end;
};

struct range {
        int fd;
        uint64_t offset;
};

static struct {
        pthread_mutex_t lock;
        bool active, dead, holds_clock;
        struct {
                int fd;
                dev_t dev;
                ino_t ino;
        } dirs[DIRS];
        unsigned n_dirs;
        int event_fd;
        uint64_t random, serial, clock_ms, die_after;

        struct file **files;
        struct name **names;
        unsigned n_files, n_names, hold;
        struct waiting *held; /* in an order that does not depend on threads */
        unsigned n_held;
        struct sim_queue *queues;
        pthread_cond_t idle;

        enum sim_read_fault fault;
        uint64_t fault_count, fault_hits;
        struct range swapped[2];
        unsigned n_swapped;
        char start_name[NAME_BYTES];

        sim_watch *watch;
        sim_read_watch *read_watch;
        sim_faults *faults;

        /* sim_use_files() */
        char paths[DIRS][256];
        unsigned n_paths;
        pthread_t loop;
        void (*end)(void);
        bool ended;

        bool pretends_disk, fail_reads_only;
        uint64_t calls, fail_first, fail_count, calls_failed;
        int fail_error;
} sim = { .lock = PTHREAD_MUTEX_INITIALIZER, .idle = PTHREAD_COND_INITIALIZER, .event_fd = -1 };

/* The calls themselves. */
int __real_openat64(int dir, const char *path, int flags, ...);
ssize_t __real_pread64(int fd, void *buf, size_t bytes, off_t offset);
ssize_t __real_pwrite64(int fd, const void *buf, size_t bytes, off_t offset);
int __real_fdatasync(int fd);
int __real_fsync(int fd);
int __real_fallocate64(int fd, int mode, off_t offset, off_t length);
int __real_ftruncate64(int fd, off_t length);
int __real_renameat(int from_dir, const char *from, int to_dir, const char *to);
int __real_unlinkat(int dir, const char *path, int flags);
int __real_fstatfs64(int fd, struct statfs *ret);
ssize_t __real_getrandom(void *buf, size_t bytes, unsigned flags);
int __real_clock_gettime(clockid_t which, struct timespec *ret);

int __wrap_openat64(int dir, const char *path, int flags, ...);
ssize_t __wrap_pread64(int fd, void *buf, size_t bytes, off_t offset);
ssize_t __wrap_pwrite64(int fd, const void *buf, size_t bytes, off_t offset);
int __wrap_fdatasync(int fd);
int __wrap_fsync(int fd);
int __wrap_fallocate64(int fd, int mode, off_t offset, off_t length);
int __wrap_ftruncate64(int fd, off_t length);
int __wrap_renameat(int from_dir, const char *from, int to_dir, const char *to);
int __wrap_unlinkat(int dir, const char *path, int flags);
int __wrap_fstatfs64(int fd, struct statfs *ret);
ssize_t __wrap_getrandom(void *buf, size_t bytes, unsigned flags);
int __wrap_clock_gettime(clockid_t which, struct timespec *ret);

uint64_t sim_draw(uint64_t *state)
{
        uint64_t z = *state += 0x9e3779b97f4a7c15u;

        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
}

static uint64_t draw(uint64_t n)
{
        return sim_draw(&sim.random) % n;
}

static void *must(void *p)
{
        assert(p);
        return p;
}

static void lock(void)
{
        pthread_mutex_lock(&sim.lock);
}

static void unlock(void)
{
        pthread_mutex_unlock(&sim.lock);
}

/* --- what is known of files and names --- */

static void read_whole(int fd, void *buf, uint64_t bytes, uint64_t offset)
{
        ssize_t n = __real_pread64(fd, buf, bytes, (off_t)offset);

        assert(n >= 0);
        memset((char *)buf + n, 0, bytes - (uint64_t)n); /* past the end */
}

static void write_whole(int fd, const void *buf, uint64_t bytes, uint64_t offset)
{
        ssize_t n = __real_pwrite64(fd, buf, bytes, (off_t)offset);

        assert(n == (ssize_t)bytes);
}

static uint64_t size_of(const struct file *f)
{
        struct stat st;
        int r = fstat(f->fd, &st);

        assert(r == 0);
        return (uint64_t)st.st_size;
}

/* The number of the simulated directory; -1: it is none. */
static int dir_of(int fd)
{
        struct stat st;

        if (sim.active && fstat(fd, &st) == 0)
                for (unsigned i = 0; i < sim.n_dirs; i++)
                        if (st.st_ino == sim.dirs[i].ino && st.st_dev == sim.dirs[i].dev)
                                return (int)i;
        return -1;
}

/* NULL: it is not simulated. */
static struct file *file_of(int fd)
{
        struct stat st;

        if (!sim.active || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
                return NULL;
        for (unsigned i = 0; i < sim.n_files; i++)
                if (sim.files[i]->ino == st.st_ino && sim.files[i]->dev == st.st_dev)
                        return sim.files[i];
        return NULL;
}

static void forget_records(struct file *f)
{
        for (unsigned i = 0; i < f->n_records; i++) {
                free(f->records[i].old);
                free(f->records[i].new);
        }
        f->n_records = 0;
}

static struct file *file_add(unsigned dir, const char *name, int fd)
{
        struct file *f = must(calloc(1, sizeof(*f)));
        struct stat st;
        int r = fstat(fd, &st);

        assert(r == 0);
        f->dev = st.st_dev;
        f->ino = st.st_ino;
        f->fd = fd;
        f->dir = dir;
        snprintf(f->name, sizeof(f->name), "%s", name);
        f->is_payload = strncmp(name, "segment-", 8) == 0;
        sim.files = must(realloc(sim.files, (sim.n_files + 1) * sizeof(struct file *)));
        sim.files[sim.n_files++] = f;
        return f;
}

static struct name *name_get(unsigned dir, const char *text)
{
        struct name *n;

        for (unsigned i = 0; i < sim.n_names; i++)
                if (sim.names[i]->dir == dir && strcmp(sim.names[i]->name, text) == 0)
                        return sim.names[i];
        n = must(calloc(1, sizeof(*n)));
        n->dir = dir;
        snprintf(n->name, sizeof(n->name), "%s", text);
        sim.names = must(realloc(sim.names, (sim.n_names + 1) * sizeof(struct name *)));
        sim.names[sim.n_names++] = n;
        n->changes = must(calloc(4, sizeof(*n->changes)));
        n->room = 4;
        n->n = 1; /* nothing, for sure */
        return n;
}

static struct file *name_now(const struct name *n)
{
        return n->changes[n->n - 1].file;
}

static void name_set(struct name *n, struct file *f, uint64_t serial)
{
        if (n->n == n->room) {
                n->room *= 2;
                n->changes = must(realloc(n->changes, n->room * sizeof(*n->changes)));
        }
        n->changes[n->n++] = (struct change){ .serial = serial, .file = f };
}

static void forget_all(void)
{
        for (unsigned i = 0; i < sim.n_files; i++) {
                forget_records(sim.files[i]);
                free(sim.files[i]->records);
                free(sim.files[i]->past);
                close(sim.files[i]->fd);
                free(sim.files[i]);
        }
        for (unsigned i = 0; i < sim.n_names; i++) {
                free(sim.names[i]->changes);
                free(sim.names[i]);
        }
        sim.n_files = sim.n_names = 0;
}

/* What is in the directory is what is stable. */
static int take_stock_of(unsigned dir)
{
        int fd = __real_openat64(sim.dirs[dir].fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *d = fd < 0 ? NULL : fdopendir(fd);
        struct dirent *e;

        if (!d)
                return -errno;
        while ((e = readdir(d))) {
                struct name *n;
                struct file *f;

                if (e->d_name[0] == '.')
                        continue;
                fd = __real_openat64(sim.dirs[dir].fd, e->d_name, O_RDWR | O_CLOEXEC);
                if (fd < 0)
                        continue;
                n = name_get(dir, e->d_name);
                f = file_add(dir, e->d_name, fd);
                f->stable_size = size_of(f);
                n->changes[0].file = f;
        }
        closedir(d);
        return 0;
}

static int take_stock(void)
{
        int r = 0;

        for (unsigned i = 0; i < sim.n_dirs && r == 0; i++)
                r = take_stock_of(i);
        return r;
}

/* --- changes --- */

/* How it is to fail; then *ret_error is what is to be said. */
static enum sim_fault fault_of(const char *operation, unsigned dir, const char *file,
                               int *ret_error)
{
        return sim.active && !sim.dead && sim.faults ? sim.faults(operation, dir, file, ret_error)
                                                     : SIM_FAULT_NONE;
}

static void die(void);

/* One more change has been made. */
static void changed(void)
{
        if (sim.die_after > 0 && --sim.die_after == 0)
                die();
}

/* A change of this file is about to be made, or has been. True: this is where the end comes. */
static bool reached(const char *operation, const char *file, bool after)
{
        if (!sim.active || sim.dead || !sim.watch || !sim.watch(operation, file, after))
                return false;
        die();
        return true;
}

static struct record *record_add(struct file *f, uint64_t offset, uint64_t length, const void *data)
{
        struct record *r;

        if (f->n_records == f->room) {
                f->room = f->room ? 2 * f->room : 16;
                f->records = must(realloc(f->records, f->room * sizeof(*f->records)));
        }
        r = &f->records[f->n_records++];
        *r = (struct record){ .serial = ++sim.serial, .offset = offset, .length = length };
        r->new = must(malloc(length));
        memcpy(r->new, data, length);
        return r;
}

static void remember_past(struct file *f, const struct record *r)
{
        uint64_t end = r->offset + r->length;

        if (!f->is_payload)
                return;
        if (end > f->past_bytes) {
                f->past = must(realloc(f->past, end));
                memset(f->past + f->past_bytes, 0, end - f->past_bytes);
                f->past_bytes = end;
        }
        memcpy(f->past + r->offset, r->old, r->length);
}

static void file_write(struct file *f, const void *buf, uint64_t length, uint64_t offset)
{
        struct record *r;

        if (length == 0)
                return;
        r = record_add(f, offset, length, buf);
        r->old = must(malloc(length));
        read_whole(f->fd, r->old, length, offset);
        remember_past(f, r);
        write_whole(f->fd, buf, length, offset);
}

/* Zeros are as uncertain as any other write until a sync, and like one they end what a failed sync
 * has left of what lay there. */
static int file_punch(struct file *f, int fd, int mode, off_t offset, off_t length)
{
        uint64_t at = MIN((uint64_t)offset, size_of(f)),
                 bytes = MIN((uint64_t)length, size_of(f) - at);
        uint8_t *old = must(malloc(bytes + 1)), *zeros = must(calloc(1, bytes + 1));
        int r;

        read_whole(f->fd, old, bytes, at);
        r = __real_fallocate64(fd, mode, offset, length);
        if (r == 0 && bytes > 0)
                record_add(f, at, bytes, zeros)->old = TAKE_PTR(old);
        free(old);
        free(zeros);
        return r;
}

/* As a write that fails on its way: each sector is there or not. */
static void file_tear(struct file *f, const uint8_t *buf, uint64_t length, uint64_t offset)
{
        for (uint64_t at = 0; at < length;) {
                uint64_t n = MIN(SIM_SECTOR - (offset + at) % SIM_SECTOR, length - at);

                if (draw(2))
                        file_write(f, buf + at, n, offset + at);
                at += n;
        }
}

static void file_write_fault(struct file *f, enum sim_fault fault, const uint8_t *buf,
                             uint64_t length, uint64_t offset)
{
        if (fault == SIM_FAULT_TORN)
                file_tear(f, buf, length, offset);
        else if (fault == SIM_FAULT_DONE)
                file_write(f, buf, length, offset);
        changed();
}

/* Has a write since, that is covered, replaced some of it? Then the rest does not matter either. */
static bool is_replaced(const struct file *f, unsigned i, uint64_t serial)
{
        const struct record *r = &f->records[i];

        for (unsigned j = i + 1; j < f->n_records; j++) {
                const struct record *later = &f->records[j];

                if (later->serial <= serial && !later->dropped &&
                    later->offset < r->offset + r->length &&
                    r->offset < later->offset + later->length)
                        return true;
        }
        return false;
}

static void sync_dropped(struct file *f)
{
        for (unsigned i = 0; f && i < f->n_records; i++)
                f->records[i].dropped = true;
}

/* All of the file that was completed up to then is stable. */
static void file_synced(struct file *f, uint64_t serial, uint64_t size)
{
        unsigned kept = 0;

        for (unsigned i = 0; i < f->n_records; i++)
                if (f->records[i].dropped && is_replaced(f, i, serial))
                        f->records[i].dropped = false;
        for (unsigned i = 0; i < f->n_records; i++) {
                if (f->records[i].serial > serial || f->records[i].dropped) {
                        f->records[kept++] = f->records[i];
                        continue;
                }
                free(f->records[i].old);
                free(f->records[i].new);
        }
        f->n_records = kept;
        f->stable_size = size;
}

static void names_synced(unsigned dir, uint64_t serial)
{
        for (unsigned i = 0; i < sim.n_names; i++) {
                struct name *n = sim.names[i];
                unsigned last = 0;

                if (n->dir != dir)
                        continue;
                for (unsigned j = 1; j < n->n; j++)
                        if (n->changes[j].serial <= serial)
                                last = j;
                memmove(n->changes, n->changes + last, (n->n - last) * sizeof(*n->changes));
                n->n -= last;
                n->changes[0].serial = 0;
        }
}

static void sync_now(struct file *f, int dir)
{
        /* The power may fail before it is through. */
        if (sim.die_after == 1 && draw(2) == 0) {
                changed();
                return;
        }
        if (f)
                file_synced(f, sim.serial, size_of(f));
        else
                names_synced((unsigned)dir, sim.serial);
        changed();
}

/* --- the wrapped calls --- */

/* Is it this one's turn to fail? Then errno says why. */
static bool call_fails(bool is_read)
{
        bool fails = false;

        lock();
        if (sim.fail_first > 0 && (is_read || !sim.fail_reads_only)) {
                sim.calls++;
                fails = sim.calls >= sim.fail_first && sim.calls - sim.fail_first < sim.fail_count;
                sim.calls_failed += fails;
        }
        unlock();
        if (fails)
                errno = sim.fail_error;
        return fails;
}

/* --- files that are not simulated --- */

/* The directory's number and the file's name in it, of a file or with `file` of the directory; -1:
 * it is in none that counts. */
static int real_name(int fd, const char *file, char ret[static NAME_BYTES])
{
        char link[64], path[512];
        ssize_t n;

        snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
        n = sim.n_paths > 0 ? readlink(link, path, sizeof(path) - 1) : -1;
        if (n < 0)
                return -1;
        path[n] = '\0';
        for (unsigned i = 0; i < sim.n_paths; i++) {
                size_t length = strlen(sim.paths[i]);

                if (strncmp(path, sim.paths[i], length) != 0 ||
                    (path[length] != '\0' && path[length] != '/'))
                        continue;
                if (!file)
                        file = path[length] == '/' ? path + length + 1 : "directory";
                snprintf(ret, NAME_BYTES, "%s", file);
                return (int)i;
        }
        return -1;
}

/* The lock is held. SIM_FAULT_END: nothing may happen after this operation. */
static enum sim_fault real_fault(const char *operation, int fd, const char *file, int *ret_error)
{
        char name[NAME_BYTES];
        int dir = sim.active ? -1 : real_name(fd, file, name);

        if (dir < 0)
                return SIM_FAULT_NONE;
        if (sim.die_after > 0 && --sim.die_after == 0)
                return SIM_FAULT_END;
        return sim.faults ? sim.faults(operation, (unsigned)dir, name, ret_error) : SIM_FAULT_NONE;
}

/* The lock is held. A thread other than the loop's stays here for good. */
_Noreturn static void real_end(void)
{
        bool is_loop = pthread_equal(pthread_self(), sim.loop);

        sim.ended = true;
        unlock();
        if (is_loop)
                sim.end();
        eventfd_write(sim.event_fd, 1);
        for (;;)
                pause();
}

/* Some sectors from its begin, as the device has no others' bytes to tear it with. */
static void real_tear(int fd, const void *buf, uint64_t bytes, uint64_t offset)
{
        uint64_t n = draw(bytes / SIM_SECTOR + 1) * SIM_SECTOR;

        if (n > 0 && __real_pwrite64(fd, buf, n, (off_t)offset) < 0)
                return; /* less is torn off, then */
}

void sim_use_files(const char *const *paths, unsigned n, void (*end)(void))
{
        assert(!sim.active && n <= DIRS);
        for (unsigned i = 0; i < n; i++)
                if (!realpath(paths[i], sim.paths[i]))
                        n = 0;
        sim.n_paths = n;
        sim.loop = pthread_self();
        sim.end = end;
        sim.ended = false;
        sim.die_after = 0;
        sim.faults = NULL;
        if (sim.event_fd < 0)
                sim.event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
}

void sim_end_if_due(void)
{
        bool ended;

        lock();
        ended = sim.ended;
        unlock();
        if (ended)
                sim.end();
}

enum sim_fault sim_fault_of(const struct kio_request *req, int *ret_error)
{
        enum sim_fault fault;

        if (req->op != KIO_WRITE && req->op != KIO_SYNC)
                return SIM_FAULT_NONE;
        lock();
        fault = real_fault(req->op == KIO_WRITE ? "write" : "sync", req->fd, NULL, ret_error);
        if (fault == SIM_FAULT_END) {
                struct iovec pieces[KIO_PIECES_MAX + 1]; /* of a vector, and a tail */

                if (req->op == KIO_WRITE && kio_rest(req, pieces) > 0)
                        real_tear(req->fd, pieces[0].iov_base, pieces[0].iov_len,
                                  req->offset + req->progress);
                real_end();
        }
        unlock();
        return fault;
}

int __wrap_openat64(int dir, const char *path, int flags, ...)
{
        mode_t mode = 0;
        struct name *n;
        va_list ap;
        bool makes;
        int fd, own, number, error = 0;
        enum sim_fault fault = SIM_FAULT_NONE;

        if (call_fails(false))
                return -1;
        va_start(ap, flags);
        if (flags & (O_CREAT | __O_TMPFILE))
                mode = va_arg(ap, mode_t);
        va_end(ap);
        number = dir_of(dir);
        if (flags & O_CREAT && number < 0) {
                lock();
                fault = faccessat(dir, path, F_OK, 0) < 0 ? real_fault("open", dir, path, &error)
                                                          : SIM_FAULT_NONE;
                if (fault == SIM_FAULT_END)
                        real_end();
                unlock();
        }
        if (!(flags & O_CREAT) || number < 0) {
                fd = fault == SIM_FAULT_NONE || fault == SIM_FAULT_DONE
                             ? __real_openat64(dir, path, flags, mode)
                             : -1;
                if (fault != SIM_FAULT_NONE) {
                        if (fd >= 0)
                                close(fd);
                        errno = error;
                        fd = -1;
                }
                return fd;
        }

        lock();
        n = name_get((unsigned)number, path);
        if (name_now(n) && flags & O_EXCL) {
                unlock();
                errno = EEXIST;
                return -1;
        }
        makes = !name_now(n) || flags & O_TRUNC;
        if (makes) {
                reached("open", path, false);
                fault = fault_of("open", (unsigned)number, path, &error);
        }
        if (fault != SIM_FAULT_NONE && fault != SIM_FAULT_DONE) {
                unlock();
                errno = error;
                return -1;
        }
        if (sim.dead) {
                fd = __real_openat64(dir, path, flags & ~(O_CREAT | O_TRUNC | O_EXCL), mode);
                if (fd < 0)
                        fd = __real_openat64(dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, mode);
                unlock();
                return fd;
        }
        if (name_now(n) && flags & O_TRUNC) {
                /* As if it were made anew: the old bytes stay where they are until the name is
                 * synced. */
                __real_unlinkat(dir, path, 0);
                name_set(n, NULL, ++sim.serial);
        }
        fd = __real_openat64(dir, path, flags & ~O_TRUNC, mode);
        if (fd >= 0 && !name_now(n)) {
                own = __real_openat64(dir, path, O_RDWR | O_CLOEXEC);
                assert(own >= 0);
                name_set(n, file_add((unsigned)number, path, own), ++sim.serial);
                changed();
        }
        if (makes)
                reached("open", path, true);
        unlock();
        if (fault == SIM_FAULT_DONE && fd >= 0) {
                close(fd);
                errno = error;
                return -1;
        }
        return fd;
}

/* A few pages of what was read are others' or old. */
static void spoil_pages(uint8_t *buf, uint64_t bytes)
{
        uint64_t pages = bytes / PAGE;
        uint8_t page[PAGE];

        if (pages < 2)
                return;
        for (uint64_t n = 1 + draw(6); n > 0; n--) {
                uint64_t a = draw(pages), b = draw(pages);

                if (memcmp(buf + a * PAGE, buf + b * PAGE, PAGE) == 0)
                        continue;
                memcpy(page, buf + a * PAGE, PAGE);
                memcpy(buf + a * PAGE, buf + b * PAGE, PAGE);
                if (draw(2) == 0)
                        memcpy(buf + b * PAGE, page, PAGE);
                sim.fault_hits++;
        }
}

ssize_t __wrap_pread64(int fd, void *buf, size_t bytes, off_t offset)
{
        ssize_t n = call_fails(true) ? -1 : __real_pread64(fd, buf, bytes, offset);

        if (n <= 0 || !sim.active || sim.start_name[0] == '\0')
                return n;
        lock();
        if (sim.start_name[0] != '\0' && file_of(fd) &&
            file_of(fd) == name_now(name_get(0, sim.start_name)))
                spoil_pages(buf, (uint64_t)n);
        unlock();
        return n;
}

ssize_t __wrap_pwrite64(int fd, const void *buf, size_t bytes, off_t offset)
{
        struct file *f;
        bool dead;
        enum sim_fault fault = SIM_FAULT_NONE;
        int error = 0;

        if (call_fails(false))
                return -1;
        lock();
        f = file_of(fd);
        if (f && bytes > 0)
                fault = fault_of("write", f->dir, f->name, &error);
        else if (bytes > 0)
                fault = real_fault("write", fd, NULL, &error);
        if (fault != SIM_FAULT_NONE) {
                if (f)
                        file_write_fault(f, fault, buf, bytes, (uint64_t)offset);
                else if (fault == SIM_FAULT_DONE)
                        fault = __real_pwrite64(fd, buf, bytes, offset) < 0 ? SIM_FAULT_NOTHING
                                                                            : fault;
                else if (fault != SIM_FAULT_NOTHING)
                        real_tear(fd, buf, bytes, (uint64_t)offset);
                if (fault == SIM_FAULT_END)
                        real_end();
                unlock();
                errno = error;
                return -1;
        }
        if (f && bytes > 0 && reached("write", f->name, false))
                record_add(f, (uint64_t)offset, bytes, buf); /* on its way */
        dead = sim.dead;
        if (f && !dead) {
                file_write(f, buf, bytes, (uint64_t)offset);
                changed();
                reached("write", f->name, true);
        }
        unlock();
        return f || (dead && sim.active) ? (ssize_t)bytes : __real_pwrite64(fd, buf, bytes, offset);
}

static int wrapped_sync(int fd, int (*real)(int fd))
{
        struct file *f;
        bool ours;
        enum sim_fault fault = SIM_FAULT_NONE;
        int dir, error = 0;

        if (call_fails(false))
                return -1;
        lock();
        f = file_of(fd);
        dir = f ? (int)f->dir : dir_of(fd);
        ours = dir >= 0;
        if (ours)
                fault = fault_of("sync", (unsigned)dir, f ? f->name : "directory", &error);
        else
                fault = real_fault("sync", fd, NULL, &error);
        if (fault == SIM_FAULT_END)
                real_end();
        if (fault != SIM_FAULT_NONE && fault != SIM_FAULT_DONE) {
                sync_dropped(f);
                unlock();
                errno = error;
                return -1;
        }
        if (ours)
                reached("sync", f ? f->name : "directory", false);
        if (ours && !sim.dead) {
                sync_now(f, dir);
                reached("sync", f ? f->name : "directory", true);
        }
        unlock();
        if (fault == SIM_FAULT_DONE) {
                if (!ours && real(fd) < 0)
                        return -1;
                errno = error;
                return -1;
        }
        return ours ? 0 : real(fd);
}

int __wrap_fdatasync(int fd)
{
        return wrapped_sync(fd, __real_fdatasync);
}

int __wrap_fsync(int fd)
{
        return wrapped_sync(fd, __real_fsync);
}

int __wrap_fallocate64(int fd, int mode, off_t offset, off_t length)
{
        struct file *f;
        enum sim_fault fault = SIM_FAULT_NONE;
        int r = 0, error = 0;

        if (call_fails(false))
                return -1;
        lock();
        f = file_of(fd);
        if (f)
                fault = fault_of("allocate", f->dir, f->name, &error);
        else
                fault = real_fault("allocate", fd, NULL, &error);
        if (fault == SIM_FAULT_END)
                real_end();
        if (fault != SIM_FAULT_NONE && fault != SIM_FAULT_DONE) {
                unlock();
                errno = error;
                return -1;
        }
        if (f)
                reached("allocate", f->name, false);
        if (!sim.dead || !f) {
                uint64_t before = f ? size_of(f) : 0;

                r = f && mode & FALLOC_FL_PUNCH_HOLE ? file_punch(f, fd, mode, offset, length)
                                                     : __real_fallocate64(fd, mode, offset, length);
                if (f && size_of(f) != before)
                        changed();
                if (f && r == 0)
                        reached("allocate", f->name, true);
        }
        unlock();
        if (fault == SIM_FAULT_DONE && r == 0) {
                errno = error;
                r = -1;
        }
        return r;
}

int __wrap_ftruncate64(int fd, off_t length)
{
        struct file *f;
        enum sim_fault fault = SIM_FAULT_NONE;
        int r = 0, error = 0;

        if (call_fails(false))
                return -1;
        lock();
        f = file_of(fd);
        if (f)
                fault = fault_of("truncate", f->dir, f->name, &error);
        else
                fault = real_fault("truncate", fd, NULL, &error);
        if (fault == SIM_FAULT_END)
                real_end();
        if (fault != SIM_FAULT_NONE && fault != SIM_FAULT_DONE) {
                unlock();
                errno = error;
                return -1;
        }
        if (f)
                reached("truncate", f->name, false);
        if (!sim.dead || !f) {
                /* A file that is shortened may have its old size again after a power loss; what it
                 * lost is zeros then. */
                r = __real_ftruncate64(fd, length);
                if (f) {
                        changed();
                        reached("truncate", f->name, true);
                }
        }
        unlock();
        if (fault == SIM_FAULT_DONE && r == 0) {
                errno = error;
                r = -1;
        }
        return r;
}

int __wrap_renameat(int from_dir, const char *from, int to_dir, const char *to)
{
        enum sim_fault fault = SIM_FAULT_NONE;
        int r = 0, error = 0, dir = dir_of(from_dir);

        if (call_fails(false))
                return -1;
        lock();
        if (dir >= 0 && dir == dir_of(to_dir))
                fault = fault_of("rename", (unsigned)dir, to, &error);
        else if (dir < 0)
                fault = real_fault("rename", to_dir, to, &error);
        if (fault == SIM_FAULT_END)
                real_end();
        if (fault != SIM_FAULT_NONE && fault != SIM_FAULT_DONE) {
                unlock();
                errno = error;
                return -1;
        }
        if (dir < 0 || dir != dir_of(to_dir)) {
                r = __real_renameat(from_dir, from, to_dir, to);
        } else if (!sim.dead && !reached("rename", to, false)) {
                r = __real_renameat(from_dir, from, to_dir, to);
                if (r == 0) {
                        struct file *f = name_now(name_get((unsigned)dir, from));

                        snprintf(f->name, sizeof(f->name), "%s", to);

                        sim.serial++; /* one change of two names */
                        name_set(name_get((unsigned)dir, from), NULL, sim.serial);
                        name_set(name_get((unsigned)dir, to), f, sim.serial);
                        changed();
                        reached("rename", to, true);
                }
        }
        unlock();
        if (fault == SIM_FAULT_DONE && r == 0) {
                errno = error;
                r = -1;
        }
        return r;
}

int __wrap_unlinkat(int dir, const char *path, int flags)
{
        enum sim_fault fault = SIM_FAULT_NONE;
        int r = 0, error = 0, number = dir_of(dir);

        if (call_fails(false))
                return -1;
        lock();
        if (number >= 0 && name_now(name_get((unsigned)number, path)))
                fault = fault_of("unlink", (unsigned)number, path, &error);
        else if (number < 0)
                fault = real_fault("unlink", dir, path, &error);
        if (fault == SIM_FAULT_END)
                real_end();
        if (fault != SIM_FAULT_NONE && fault != SIM_FAULT_DONE) {
                unlock();
                errno = error;
                return -1;
        }
        if (number < 0) {
                r = __real_unlinkat(dir, path, flags);
        } else if (!sim.dead && !(name_now(name_get((unsigned)number, path)) &&
                                  reached("unlink", path, false))) {
                r = __real_unlinkat(dir, path, flags);
                if (r == 0) {
                        name_set(name_get((unsigned)number, path), NULL, ++sim.serial);
                        changed();
                        reached("unlink", path, true);
                }
        }
        unlock();
        if (fault == SIM_FAULT_DONE && r == 0) {
                errno = error;
                r = -1;
        }
        return r;
}

/* tmpfs keeps nothing, and a store asks for that. */
int __wrap_fstatfs64(int fd, struct statfs *ret)
{
        int r = __real_fstatfs64(fd, ret);

        if (r == 0 && (sim.active || sim.pretends_disk))
                ret->f_type = MAGIC_EXT4;
        return r;
}

ssize_t __wrap_getrandom(void *buf, size_t bytes, unsigned flags)
{
        if (!sim.active)
                return __real_getrandom(buf, bytes, flags);
        lock();
        for (size_t i = 0; i < bytes; i++)
                ((uint8_t *)buf)[i] = (uint8_t)draw(256);
        unlock();
        return (ssize_t)bytes;
}

int __wrap_clock_gettime(clockid_t which, struct timespec *ret)
{
        bool held =
                __atomic_load_n(&sim.holds_clock, __ATOMIC_ACQUIRE); /* workers come here, too */

        if (which != CLOCK_REALTIME && (which != CLOCK_MONOTONIC || !held))
                return __real_clock_gettime(which, ret);
        if (!sim.active)
                return __real_clock_gettime(which, ret);
        *ret = (struct timespec){ .tv_sec = (time_t)(sim.clock_ms / 1000),
                                  .tv_nsec = (long)(sim.clock_ms % 1000 * 1000000) };
        return 0;
}

/* --- the backend --- */

static struct sim_queue *queue_of(struct kio_queue *q)
{
        return container_of(q, struct sim_queue, base);
}

/* Is it another place of some payload file, long enough? */
static bool read_elsewhere(uint64_t length, uint8_t *buf)
{
        const struct file *f = sim.files[draw(sim.n_files)];
        uint64_t size = size_of(f);

        if (!f->is_payload || size < length)
                return false;
        read_whole(f->fd, buf, length, draw((size - length) / PAGE + 1) * PAGE);
        return true;
}

static bool read_old(const struct file *f, uint64_t offset, uint64_t length, uint8_t *buf)
{
        bool whole = draw(2) == 0;

        if (!f || offset + length > f->past_bytes)
                return false;
        for (uint64_t at = 0; at < length; at += SIM_SECTOR)
                if (whole || draw(2) == 0)
                        memcpy(buf + at, f->past + offset + at,
                               MIN((uint64_t)SIM_SECTOR, length - at));
        return true;
}

static void read_swapped(int fd, uint64_t offset, uint64_t length, uint8_t *buf)
{
        for (unsigned i = 0; i < 2 && sim.n_swapped == 2; i++)
                if (sim.swapped[i].fd == fd && sim.swapped[i].offset == offset)
                        read_whole(sim.swapped[!i].fd, buf, length, sim.swapped[!i].offset);
}

static void spoil_read(const struct kio_request *req, uint8_t *buf, uint64_t length)
{
        uint64_t counts = req->crc_bytes ? MIN(req->crc_bytes, length) : length;
        uint8_t *right;

        if (sim.fault == SIM_READ_RIGHT || counts == 0)
                return;
        right = must(malloc(length));
        memcpy(right, buf, length);
        for (unsigned try = 0; try < 64 && memcmp(buf, right, counts) == 0; try++) {
                memcpy(buf, right, length);
                switch (sim.fault) {
                case SIM_READ_MISDIRECTED:
                        read_elsewhere(length, buf);
                        break;
                case SIM_READ_STALE:
                        read_old(file_of(req->fd), req->offset, length, buf);
                        break;
                case SIM_READ_SWAPPED:
                        read_swapped(req->fd, req->offset, length, buf);
                        break;
                default:
                        for (uint64_t n = 1 + draw(4); n > 0; n--)
                                buf[draw(counts)] ^= (uint8_t)(1u << draw(8));
                }
        }
        if (memcmp(buf, right, counts) != 0) {
                sim.fault_hits++;
                if (sim.fault_count > 0 && --sim.fault_count == 0)
                        sim.fault = SIM_READ_RIGHT;
        }
        free(right);
}

/* What it is made up of comes out right or wrong one by one. */
static void spoil_reads(const struct kio_request *req, uint8_t *buf, uint64_t length)
{
        if (!req->parts) {
                spoil_read(req, buf, length);
                return;
        }
        list_for_each (req->parts, i) {
                const struct kio_request *part = kio_request_of(i);
                uint64_t of_part = MIN(part->length, length);

                spoil_read(part, buf, of_part);
                buf += of_part;
                length -= of_part;
        }
}

static void note_for_swap(const struct kio_request *req)
{
        if (req->parts) {
                list_for_each (req->parts, i)
                        note_for_swap(kio_request_of(i));
                return;
        }
        if (sim.fault != SIM_READ_SWAPPED || req->op != KIO_READ || sim.n_swapped == 2 ||
            (sim.n_swapped == 1 && sim.swapped[0].fd == req->fd &&
             sim.swapped[0].offset == req->offset))
                return;
        sim.swapped[sim.n_swapped++] = (struct range){ .fd = req->fd, .offset = req->offset };
}

/* Between the pieces that a request lies in and one that they make together. */
static void gather(const struct kio_request *req, uint8_t *whole, bool out)
{
        struct iovec pieces[KIO_PIECES_MAX + 1]; /* of a vector, and a tail */
        unsigned n = kio_rest(req, pieces);

        for (unsigned i = 0; i < n; whole += pieces[i++].iov_len)
                memcpy(out ? pieces[i].iov_base : whole, out ? whole : pieces[i].iov_base,
                       pieces[i].iov_len);
}

static void show_read(const struct kio_request *req)
{
        struct iovec pieces[KIO_PIECES_MAX + 1]; /* of a vector, and a tail */
        unsigned n = kio_rest(req, pieces);

        for (unsigned i = 0; i < n; i++)
                sim.read_watch(pieces[i].iov_base, pieces[i].iov_len);
}

/* The device does it, and says so. */
static void execute(struct waiting *w)
{
        struct kio_request *req = w->req;
        uint64_t offset = req->offset + req->progress, length = req->length - req->progress;
        uint8_t *whole =
                req->parts || req->vector || req->body < req->length ? must(malloc(length)) : NULL;
        uint8_t *buf = whole      ? whole
                       : req->buf ? (uint8_t *)req->buf + req->progress
                                  : NULL; /* a sync has none */
        struct file *f = file_of(req->fd);
        ssize_t n = (ssize_t)length;
        bool truthful = sim.fault == SIM_READ_RIGHT;
        enum sim_fault fault = SIM_FAULT_NONE;
        int error = 0;

        if (whole && req->op == KIO_WRITE)
                gather(req, whole, false);
        switch (req->op) {
        case KIO_READ:
                n = __real_pread64(req->fd, buf, length, (off_t)offset);
                if (n > 0)
                        spoil_reads(req, buf, (uint64_t)n);
                if (n == (ssize_t)length && whole)
                        gather(req, whole, true);
                if (n == (ssize_t)length && sim.read_watch && truthful)
                        show_read(req);
                break;
        case KIO_WRITE:
                if (f && length > 0)
                        fault = fault_of("write", f->dir, f->name, &error);
                if (fault != SIM_FAULT_NONE) {
                        file_write_fault(f, fault, buf, length, offset);
                        errno = error;
                        n = -1;
                        break;
                }
                if (f && length > 0 && reached("write", f->name, false))
                        record_add(f, offset, length, buf); /* on its way */
                if (sim.dead)
                        break;
                if (f) {
                        file_write(f, buf, length, offset);
                        changed();
                        reached("write", f->name, true);
                } else {
                        n = __real_pwrite64(req->fd, buf, length, (off_t)offset);
                }
                break;
        default:
                n = 0;
                if (w->dir < 0) {
                        if (!sim.dead)
                                n = __real_fdatasync(req->fd);
                        break;
                }
                fault = fault_of("sync", (unsigned)w->dir, w->file ? w->file->name : "directory",
                                 &error);
                if (fault != SIM_FAULT_NONE) {
                        errno = error;
                        n = -1;
                }
                if (fault == SIM_FAULT_NOTHING || fault == SIM_FAULT_TORN) {
                        sync_dropped(w->file);
                        break;
                }
                reached("sync", w->file ? w->file->name : "directory", false);
                if (sim.dead)
                        break;
                if (w->file)
                        file_synced(w->file, w->serial, w->size);
                else
                        names_synced((unsigned)w->dir, w->serial);
                changed();
                reached("sync", w->file ? w->file->name : "directory", true);
                errno = error;
        }
        w->result = n < 0 ? -errno : (int32_t)n;
        free(whole);
        w->next = NULL;
        *w->queue->done_end = w;
        w->queue->done_end = &w->next;
        pthread_cond_signal(&w->queue->cond);
}

/* Threads decide when operations come, so their order among those that wait is made from what they
 * are. */
static bool comes_before(const struct kio_request *a, const struct kio_request *b)
{
        if (a->fd != b->fd)
                return a->fd < b->fd;
        if (a->op != b->op)
                return a->op < b->op;
        if (a->offset != b->offset)
                return a->offset < b->offset;
        return a->submitted_ns <= b->submitted_ns; /* several syncs of the table, say */
}

static int sim_push(struct kio_queue *base, struct kio_request *req)
{
        struct waiting *w = must(calloc(1, sizeof(*w))), **at;

        lock();
        w->queue = queue_of(base);
        w->req = req;
        req->registered = 0;
        if (req->op == KIO_SYNC) {
                w->file = file_of(req->fd);
                w->serial = sim.serial;
                w->size = w->file ? size_of(w->file) : 0;
                w->dir = w->file ? (int)w->file->dir : dir_of(req->fd);
        }
        if (sim.dead || !(sim.hold & 1u << req->op)) {
                note_for_swap(req);
                execute(w);
        } else {
                for (at = &sim.held; *at && comes_before((*at)->req, req); at = &(*at)->next)
                        ;
                w->next = *at;
                *at = w;
                sim.n_held++;
                note_for_swap(req);
                eventfd_write(sim.event_fd, 1);
        }
        unlock();
        return 0;
}

static int sim_submit(struct kio_queue *base, bool wait, uint64_t timeout_ns)
{
        struct sim_queue *q = queue_of(base);

        if (!wait)
                return 0;
        lock();
        q->waiting = true;
        pthread_cond_broadcast(&sim.idle);
        while (!q->done && !q->woken)
                pthread_cond_wait(&q->cond, &sim.lock);
        q->waiting = false;
        q->woken = false;
        unlock();
        return 0;
}

static unsigned sim_reap(struct kio_queue *base, struct kio_done *ret, unsigned max)
{
        struct sim_queue *q = queue_of(base);
        unsigned n = 0;

        lock();
        while (n < max && q->done) {
                struct waiting *w = q->done;

                q->done = w->next;
                if (!q->done)
                        q->done_end = &q->done;
                ret[n++] = (struct kio_done){ .req = w->req, .result = w->result };
                free(w);
        }
        unlock();
        return n;
}

static void sim_wake(struct kio_queue *base)
{
        struct sim_queue *q = queue_of(base);

        lock();
        q->woken = true;
        pthread_cond_signal(&q->cond);
        unlock();
}

static int sim_open(struct kio_queue **ret, const struct kio_queue_params *params)
{
        struct sim_queue *q = calloc(1, sizeof(*q));

        if (!q)
                return -ENOMEM;
        q->base.ops = sim_backend();
        q->done_end = &q->done;
        q->thread = pthread_self();
        pthread_cond_init(&q->cond, NULL);
        lock();
        q->next = sim.queues;
        sim.queues = q;
        unlock();
        *ret = &q->base;
        return 0;
}

static struct kio_queue *sim_close(struct kio_queue *base)
{
        struct sim_queue *q, **at;

        if (!base)
                return NULL;
        q = queue_of(base);
        lock();
        for (at = &sim.queues; *at != q; at = &(*at)->next)
                ;
        *at = q->next;
        unlock();
        pthread_cond_destroy(&q->cond);
        free(q);
        return NULL;
}

static const char *sim_describe(const struct kio_queue *base)
{
        return "";
}

static int sim_register_piece(struct kio_queue *base, unsigned piece)
{
        return 0;
}

const struct kio_backend *sim_backend(void)
{
        static const struct kio_backend backend = {
                .name = "sim",
                .rungs = 1,
                .open = sim_open,
                .close = sim_close,
                .describe = sim_describe,
                .register_piece = sim_register_piece,
                .push = sim_push,
                .submit = sim_submit,
                .reap = sim_reap,
                .wake = sim_wake,
        };

        return &backend;
}

/* --- what the test does with it --- */

int sim_add_dir(const char *dir)
{
        unsigned i = sim.n_dirs;
        struct stat st;

        assert(i < DIRS);
        sim.dirs[i].fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (sim.dirs[i].fd < 0 || fstat(sim.dirs[i].fd, &st) < 0)
                return -errno;
        sim.dirs[i].dev = st.st_dev;
        sim.dirs[i].ino = st.st_ino;
        sim.n_dirs++;
        return take_stock_of(i);
}

int sim_start(const char *dir, uint64_t seed)
{
        int r;

        assert(!sim.active);
        sim.n_dirs = 0;
        if (sim.event_fd < 0)
                sim.event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        sim.random = seed;
        sim.serial = 1;
        sim.clock_ms = EPOCH_MS;
        sim.die_after = 0;
        sim.dead = false;
        sim.watch = NULL;
        sim.faults = NULL;
        __atomic_store_n(&sim.holds_clock, false, __ATOMIC_RELEASE);
        sim.hold = 0;
        sim_set_reads(SIM_READ_RIGHT, 0);
        sim.start_name[0] = '\0';
        r = sim_add_dir(dir);
        sim.active = r == 0;
        return r;
}

void sim_stop(void)
{
        assert(!sim.held);
        lock();
        sim.active = false;
        forget_all();
        while (sim.n_dirs > 0)
                close(sim.dirs[--sim.n_dirs].fd);
        unlock();
}

void sim_pretend_disk(void)
{
        sim.pretends_disk = true;
}

void sim_fail_calls(bool reads_only, uint64_t first, uint64_t count, int error)
{
        lock();
        sim.fail_reads_only = reads_only;
        sim.fail_first = first;
        sim.fail_count = MAX(count, (uint64_t)1);
        sim.fail_error = error;
        sim.calls = sim.calls_failed = 0;
        unlock();
}

uint64_t sim_calls_failed(void)
{
        uint64_t n;

        lock();
        n = sim.calls_failed;
        unlock();
        return n;
}

void sim_advance_ms(uint64_t ms)
{
        lock();
        sim.clock_ms += ms;
        unlock();
}

void sim_hold_clock(void)
{
        __atomic_store_n(&sim.holds_clock, true, __ATOMIC_RELEASE);
}

void sim_hold(unsigned ops)
{
        lock();
        sim.hold = ops;
        unlock();
}

unsigned sim_held(void)
{
        unsigned n;

        lock();
        n = sim.n_held;
        unlock();
        return n;
}

unsigned sim_held_requests(void)
{
        unsigned n = 0;

        lock();
        for (const struct waiting *w = sim.held; w; w = w->next) {
                if (!w->req->parts)
                        n++;
                else
                        list_for_each (w->req->parts, i)
                                n++;
        }
        unlock();
        return n;
}

void sim_wait_idle(void)
{
        const struct sim_queue *q;

        lock();
        for (q = sim.queues; q;) {
                if ((q->waiting && !q->woken && !q->done) ||
                    pthread_equal(q->thread, pthread_self())) {
                        q = q->next;
                        continue;
                }
                pthread_cond_wait(&sim.idle, &sim.lock);
                q = sim.queues;
        }
        unlock();
}

int sim_fd(void)
{
        return sim.event_fd;
}

static void execute_held(unsigned i)
{
        struct waiting **at = &sim.held, *w;

        while (i-- > 0)
                at = &(*at)->next;
        w = *at;
        *at = w->next;
        sim.n_held--;
        execute(w);
}

bool sim_complete_one(void)
{
        bool any;

        lock();
        any = sim.n_held > 0;
        if (any)
                execute_held((unsigned)draw(sim.n_held));
        unlock();
        return any;
}

static void die(void)
{
        if (sim.dead)
                return;
        /* What was on its way may have got there, in parts. */
        for (struct waiting *w = sim.held; w; w = w->next) {
                const struct kio_request *req = w->req;
                struct file *f = req->op == KIO_WRITE ? file_of(req->fd) : NULL;

                if (f && req->length > req->progress) {
                        uint64_t left = req->length - req->progress;
                        uint8_t *whole = must(malloc(left));

                        gather(req, whole, false);
                        record_add(f, req->offset + req->progress, left, whole);
                        free(whole);
                }
        }
        sim.dead = true;
        while (sim.n_held > 0)
                execute_held(0);
}

void sim_die(void)
{
        lock();
        die();
        unlock();
}

void sim_die_after(uint64_t changes)
{
        lock();
        sim.die_after = changes;
        unlock();
}

void sim_set_watch(sim_watch *watch)
{
        lock();
        sim.watch = watch;
        unlock();
}

void sim_set_read_watch(sim_read_watch *watch)
{
        lock();
        sim.read_watch = watch;
        unlock();
}

void sim_set_faults(sim_faults *faults)
{
        lock();
        sim.faults = faults;
        unlock();
}

bool sim_is_dead(void)
{
        bool dead;

        lock();
        dead = sim.dead;
        unlock();
        return dead;
}

void sim_set_reads(enum sim_read_fault fault, uint64_t count)
{
        lock();
        sim.fault = fault;
        sim.fault_count = count;
        sim.fault_hits = 0;
        sim.n_swapped = 0;
        unlock();
}

uint64_t sim_read_faults(void)
{
        uint64_t n;

        lock();
        n = sim.fault_hits;
        unlock();
        return n;
}

void sim_set_start_reads(const char *name)
{
        lock();
        snprintf(sim.start_name, sizeof(sim.start_name), "%s", name ? name : "");
        sim.fault_hits = 0;
        unlock();
}

/* --- power loss --- */

/* How chance treats what is in doubt, one of these a loss. */
enum luck {
        LUCK_NONE,     /* all of it is lost */
        LUCK_ALL,      /* all of it is there */
        LUCK_SECTORS,  /* each sector by half */
        LUCK_RECORDS,  /* each write as a whole */
        LUCK_ORDER,    /* up to some moment all, from then on nothing */
        LUCK_FILES,    /* each file as a whole */
        LUCK_ONE_LESS, /* all but one write of each file */
        LUCK_MIXED,    /* each write by a share of its own */
        LUCK_END,
};

struct loss {
        enum luck luck;
        uint64_t moment;
        uint64_t salt;
};

static bool kept_by(uint64_t salt, uint64_t what)
{
        uint64_t state = salt ^ what * UINT64_C(0xd6e8feb86659fd93);

        return sim_draw(&state) & 1;
}

static void redo(const struct loss *loss, const struct file *f, unsigned file_number)
{
        uint64_t spared = f->n_records ? draw(f->n_records) : 0;

        for (unsigned i = 0; i < f->n_records; i++) {
                const struct record *r = &f->records[i];
                unsigned share = 4; /* of eight */

                switch (loss->luck) {
                case LUCK_NONE:
                        share = 0;
                        break;
                case LUCK_ALL:
                        share = 8;
                        break;
                case LUCK_RECORDS:
                        share = draw(2) ? 8 : 0;
                        break;
                case LUCK_ORDER:
                        share = r->serial <= loss->moment ? 8 : 0;
                        break;
                case LUCK_FILES:
                        share = kept_by(loss->salt, file_number) ? 8 : 0;
                        break;
                case LUCK_ONE_LESS:
                        share = i == spared ? (unsigned)draw(8) : 8;
                        break;
                case LUCK_MIXED:
                        share = (unsigned)draw(9);
                        break;
                default:
                        break;
                }
                /* Sectors of the disk, not of the write. */
                for (uint64_t at = 0; share > 0 && at < r->length;) {
                        uint64_t n =
                                share == 8 ? r->length : SIM_SECTOR - (r->offset + at) % SIM_SECTOR;

                        n = MIN(n, r->length - at);
                        if (share == 8 || draw(8) < share)
                                write_whole(f->fd, r->new + at, n, r->offset + at);
                        at += n;
                }
        }
}

static uint64_t settle_size(const struct loss *loss, uint64_t stable, uint64_t now)
{
        switch (loss->luck) {
        case LUCK_NONE:
                return stable;
        case LUCK_ALL:
                return now;
        default:
                if (now <= stable || draw(2) == 0)
                        return draw(2) ? stable : now;
                return stable + draw(now - stable + 1) / SIM_SECTOR * SIM_SECTOR;
        }
}

static struct file *settle_name(const struct loss *loss, const struct name *n, bool in_order)
{
        struct file *f = n->changes[0].file;

        for (unsigned i = 1; i < n->n; i++) {
                uint64_t serial = n->changes[i].serial;
                bool kept = loss->luck == LUCK_ALL ||
                            (loss->luck != LUCK_NONE &&
                             (in_order ? serial <= loss->moment : kept_by(loss->salt, serial)));

                if (kept)
                        f = n->changes[i].file;
        }
        return f;
}

static void copy_to(int to, const struct file *f)
{
        uint64_t bytes = size_of(f);
        void *buf = must(malloc(bytes + 1));
        int r = __real_ftruncate64(to, (off_t)bytes);

        assert(r == 0);
        read_whole(f->fd, buf, bytes, 0);
        write_whole(to, buf, bytes, 0);
        free(buf);
}

int sim_power_loss(void)
{
        struct loss loss;
        bool in_order;
        int r;

        lock();
        assert(sim.active && !sim.held);
        loss = (struct loss){ .luck = (enum luck)draw(LUCK_END),
                              .moment = sim.serial - MIN(draw(64), sim.serial - 1),
                              .salt = sim_draw(&sim.random) };
        in_order = draw(2) == 0;
        for (unsigned i = 0; i < sim.n_files; i++) {
                struct file *f = sim.files[i];
                uint64_t now = size_of(f), size;

                if (f->n_records == 0 && now == f->stable_size)
                        continue;
                for (unsigned j = f->n_records; j-- > 0;)
                        if (f->records[j].old)
                                write_whole(f->fd, f->records[j].old, f->records[j].length,
                                            f->records[j].offset);
                redo(&loss, f, i);
                now = MAX(now, size_of(f));
                size = settle_size(&loss, f->stable_size, now);
                r = __real_ftruncate64(f->fd, (off_t)size);
                assert(r == 0);
        }
        for (unsigned i = 0; i < sim.n_names; i++) {
                const struct name *n = sim.names[i];
                struct file *f = settle_name(&loss, n, in_order);

                if (f == name_now(n))
                        continue;
                __real_unlinkat(sim.dirs[n->dir].fd, n->name, 0);
                if (f) {
                        int fd = __real_openat64(sim.dirs[n->dir].fd, n->name,
                                                 O_RDWR | O_CREAT | O_CLOEXEC, 0600);

                        assert(fd >= 0);
                        copy_to(fd, f);
                        close(fd);
                }
        }
        forget_all();
        sim.dead = false;
        sim.die_after = 0;
        r = take_stock();
        unlock();
        return r;
}

/* --- kill --- */

void sim_end_process(void)
{
        lock();
        assert(sim.active && !sim.held);
        sim.dead = false;
        sim.die_after = 0;
        sim.watch = NULL;
        for (unsigned i = 0; i < sim.n_files; i++) {
                struct file *f = sim.files[i];
                unsigned n = f->n_records, torn = 0;
                struct record *records = must(calloc(n + 1, sizeof(*records)));

                /* Those that were on their way are the last; each is there, in part there, or not.
                 */
                for (unsigned k = n; k-- > 0 && !f->records[k].old;)
                        records[torn++] = f->records[--f->n_records];
                while (torn-- > 0) {
                        const struct record *r = &records[torn];

                        if (draw(3) == 0)
                                file_write(f, r->new, r->length, r->offset);
                        else if (draw(2))
                                file_tear(f, r->new, r->length, r->offset);
                        free(r->new);
                }
                free(records);
        }
        unlock();
}

bool sim_has_dropped(void)
{
        bool any = false;

        lock();
        for (unsigned i = 0; i < sim.n_files; i++)
                for (unsigned j = 0; j < sim.files[i]->n_records; j++)
                        any = any || sim.files[i]->records[j].dropped;
        unlock();
        return any;
}

int sim_kill(void)
{
        int r;

        lock();
        assert(sim.active && !sim.held);
        for (unsigned i = 0; i < sim.n_files; i++) {
                struct file *f = sim.files[i];
                struct loss loss = { .luck = draw(3) == 0   ? LUCK_NONE
                                             : draw(2) == 0 ? LUCK_ALL
                                                            : LUCK_SECTORS };
                unsigned n = 0;

                for (unsigned j = 0; j < f->n_records; j++) {
                        if (f->records[j].old) {
                                free(f->records[j].old);
                                free(f->records[j].new);
                        } else {
                                f->records[n++] = f->records[j];
                        }
                }
                f->n_records = n;
                redo(&loss, f, i);
        }
        forget_all();
        sim.dead = false;
        sim.die_after = 0;
        sim.watch = NULL;
        r = take_stock();
        unlock();
        return r;
}

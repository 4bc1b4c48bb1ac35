/* SPDX-License-Identifier: Apache-2.0 */
#include "directory-fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../lib/folder.h"
#include "base/clock.h"
#include "checked.h"
#include "timeout.h"

struct directory_test at;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

/* --- the back end --- */

int directory_setup(void **state)
{
        const char *base = getenv("TMPDIR");

        snprintf(at.path, sizeof(at.path) - 8, "%s/kvcache-remote-XXXXXX",
                 base ? base : "/var/tmp");
        if (!mkdtemp(at.path))
                return -1;
        snprintf(at.outside, sizeof(at.outside), "%s-outside", at.path);
        reset_calls();
        return mkdir(at.outside, 0700);
}

int directory_teardown(void **state)
{
        release_calls();
        reset_calls();
        if (at.b)
                stop();
        folder_remove(at.outside);
        return folder_remove(at.path);
}

static struct backend *open_backend(unsigned depth, bool sync)
{
        struct backend_params p = {
                .prefix = "kv",
                .path = at.path,
                .sync = sync,
                .depth = depth,
                .timeout_ns = (uint64_t)test_timeout_ms(60000) * 1000000,
        };
        struct backend *b = NULL;
        char error[256] = "";

        if (backend_directory.open(&b, &p, error) < 0)
                fail_msg("%s", error);
        return b;
}

void start(unsigned depth, bool sync)
{
        at.b = open_backend(depth, sync);
}

struct backend *open_another(unsigned depth)
{
        return open_backend(depth, false);
}

void stop(void)
{
        backend_directory.stop(at.b);
        at.b = backend_directory.close(at.b);
}

/* --- operations --- */

void backend_op_end(struct backend_op *op, int result)
{
        struct operation *o = container_of(op, struct operation, op);

        pthread_mutex_lock(&lock);
        if (o->ended)
                abort();
        op->result = result;
        o->ended = true;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
}

struct operation *operation_new(enum backend_op_kind kind, const char *name, uint64_t bytes)
{
        struct operation *o = calloc(1, sizeof(*o));
        uint64_t first = MIN(bytes, (uint64_t)HEADER);
        char *p;

        assert_non_null(o);
        p = aligned_alloc(4096, round_up(MAX(bytes, 1u), 4096));
        assert_non_null(p);
        memset(p, 0xee, round_up(MAX(bytes, 1u), 4096));
        o->op.kind = kind;
        o->op.deadline_ns = clock_mono_ns() + 30 * SECOND_NS;
        snprintf(o->op.name, sizeof(o->op.name), "%s", name);
        o->op.pieces[0] = (struct iovec){ p, first };
        o->op.pieces[1] = (struct iovec){ p + first, bytes - first };
        return o;
}

struct operation *operation_free(struct operation *o)
{
        if (o)
                free(o->op.pieces[0].iov_base);
        free(o);
        return NULL;
}

static uint8_t byte_at(uint64_t seed, uint64_t i)
{
        return (uint8_t)((seed * 0x9e3779b97f4a7c15u + i / 8 * 0xbf58476d1ce4e5b9u) >>
                         (56 - i % 8 * 8) % 64);
}

void fill(struct operation *o, uint64_t seed)
{
        uint8_t *p = o->op.pieces[0].iov_base;
        uint64_t bytes = o->op.pieces[0].iov_len + o->op.pieces[1].iov_len;

        for (uint64_t i = 0; i < bytes; i++)
                p[i] = byte_at(seed, i);
}

bool holds(const struct operation *o, uint64_t bytes, uint64_t seed)
{
        const uint8_t *p = o->op.pieces[0].iov_base;

        for (uint64_t i = 0; i < bytes; i++)
                if (p[i] != byte_at(seed, i))
                        return false;
        return true;
}

int wait_for(struct operation *o)
{
        int r;

        pthread_mutex_lock(&lock);
        while (!o->ended)
                pthread_cond_wait(&changed, &lock);
        r = o->op.result;
        pthread_mutex_unlock(&lock);
        return r;
}

bool has_ended(struct operation *o)
{
        bool ended;

        pthread_mutex_lock(&lock);
        ended = o->ended;
        pthread_mutex_unlock(&lock);
        return ended;
}

static int write_one(enum backend_op_kind kind, const char *name, uint64_t bytes, uint64_t seed)
{
        struct operation *o = operation_new(kind, name, bytes);
        int r;

        fill(o, seed);
        backend_directory.submit(at.b, &o->op);
        r = wait_for(o);
        operation_free(o);
        return r;
}

int create(const char *name, uint64_t bytes, uint64_t seed)
{
        return write_one(BACKEND_CREATE, name, bytes, seed);
}

int replace(const char *name, uint64_t bytes, uint64_t seed)
{
        return write_one(BACKEND_REPLACE, name, bytes, seed);
}

int delete (const char *name)
{
        return write_one(BACKEND_DELETE, name, 0, 0);
}

int read_back(const char *name, uint64_t bytes, uint64_t seed)
{
        struct operation *o = operation_new(BACKEND_READ, name, bytes);
        int r;

        backend_directory.submit(at.b, &o->op);
        r = wait_for(o);
        if (r == 0) {
                assert_int_equal(o->op.size, bytes);
                assert_int_equal(o->op.transferred, bytes);
                assert_true(holds(o, bytes, seed));
        }
        operation_free(o);
        return r;
}

/* --- files --- */

char *in_path(const char *name)
{
        static char names[8][512];
        static unsigned n;
        char *ret = names[n++ % 8];

        snprintf(ret, sizeof(names[0]), "%s/%s", at.path, name);
        return ret;
}

bool exists(const char *name)
{
        struct stat s;

        return lstat(in_path(name), &s) == 0;
}

void make_parents(const char *name)
{
        char *path = in_path(name);

        for (char *p = path + strlen(at.path) + 1; (p = strchr(p, '/')); p++) {
                *p = '\0';
                if (mkdir(path, 0777) < 0)
                        assert_int_equal(errno, EEXIST);
                *p = '/';
        }
}

void write_file(const char *name, const char *text)
{
        FILE *f;

        make_parents(name);
        f = fopen(in_path(name), "w");
        assert_non_null(f);
        fputs(text, f);
        fclose(f);
}

void age(const char *name, uint64_t seconds)
{
        struct timespec times[2] = { { .tv_nsec = UTIME_OMIT },
                                     { .tv_sec = time(NULL) - (time_t)seconds } };

        assert_int_equal(utimensat(AT_FDCWD, in_path(name), times, AT_SYMLINK_NOFOLLOW), 0);
}

uint64_t modified_s(const char *name)
{
        struct stat s;

        assert_int_equal(lstat(in_path(name), &s), 0);
        return (uint64_t)s.st_mtim.tv_sec;
}

static const char *counted_beginning;
static unsigned counted;

static int count_one(const char *path, const struct stat *s, int type, struct FTW *ftw)
{
        counted += (type == FTW_F || type == FTW_SL) &&
                   strncmp(path + ftw->base, counted_beginning, strlen(counted_beginning)) == 0;
        return 0;
}

unsigned count_files(const char *folder, const char *beginning)
{
        counted_beginning = beginning;
        counted = 0;
        nftw(in_path(folder), count_one, 16, FTW_PHYS);
        return counted;
}

/* --- system calls --- */

struct plan {
        int error;
        unsigned skip, times, calls, hits;
        bool anywhere, lies, hangs;
};

static struct plan plans[CALL_END];
static uint64_t short_bytes;
static unsigned hanging;
static bool released;

static void set_plan(enum call call, struct plan plan)
{
        pthread_mutex_lock(&lock);
        plan.calls = plans[call].calls;
        plans[call] = plan;
        pthread_mutex_unlock(&lock);
}

void fail_call(enum call call, int error, unsigned skip, unsigned times)
{
        set_plan(call, (struct plan){ .error = error, .skip = skip, .times = times });
}

void fail_call_anywhere(enum call call, int error, unsigned skip, unsigned times)
{
        set_plan(call,
                 (struct plan){ .error = error, .skip = skip, .times = times, .anywhere = true });
}

void lie_about_call(enum call call, int error)
{
        set_plan(call, (struct plan){ .error = error, .times = 1, .lies = true });
}

void hang_call(enum call call, unsigned skip, unsigned times)
{
        pthread_mutex_lock(&lock);
        released = false;
        pthread_mutex_unlock(&lock);
        set_plan(call, (struct plan){ .skip = skip, .times = times, .hangs = true });
}

void shorten_calls(uint64_t bytes)
{
        pthread_mutex_lock(&lock);
        short_bytes = bytes;
        pthread_mutex_unlock(&lock);
}

unsigned n_hanging(void)
{
        unsigned n;

        pthread_mutex_lock(&lock);
        n = hanging;
        pthread_mutex_unlock(&lock);
        return n;
}

void wait_until_hanging(unsigned n)
{
        pthread_mutex_lock(&lock);
        while (hanging < n)
                pthread_cond_wait(&changed, &lock);
        pthread_mutex_unlock(&lock);
}

void release_calls(void)
{
        pthread_mutex_lock(&lock);
        released = true;
        for (unsigned i = 0; i < CALL_END; i++)
                plans[i].times = 0;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
}

unsigned n_calls(enum call call)
{
        unsigned n;

        pthread_mutex_lock(&lock);
        n = plans[call].calls;
        pthread_mutex_unlock(&lock);
        return n;
}

unsigned hits(enum call call)
{
        unsigned n;

        pthread_mutex_lock(&lock);
        n = plans[call].hits;
        pthread_mutex_unlock(&lock);
        return n;
}

void reset_calls(void)
{
        pthread_mutex_lock(&lock);
        memset(plans, 0, sizeof(plans));
        short_bytes = 0;
        pthread_mutex_unlock(&lock);
}

static bool is_test(void)
{
        return syscall(SYS_gettid) == getpid();
}

/* Returns the error with which this call must end, after it was made if *ret_make; 0: it is only
 * made. */
static int ask(enum call call, bool *ret_make)
{
        struct plan *p = &plans[call];
        int error = 0;

        *ret_make = true;
        pthread_mutex_lock(&lock);
        if (!is_test())
                p->calls++;
        if (p->times > 0 && (p->anywhere || !is_test())) {
                if (p->skip > 0)
                        p->skip--;
                else {
                        p->times--;
                        p->hits++;
                        if (p->hangs) {
                                hanging++;
                                pthread_cond_broadcast(&changed);
                                while (!released)
                                        pthread_cond_wait(&changed, &lock);
                                hanging--;
                                pthread_cond_broadcast(&changed);
                        } else {
                                error = p->error;
                                *ret_make = p->lies;
                        }
                }
        }
        pthread_mutex_unlock(&lock);
        return error;
}

#define WRAP(type, name, which, declared, passed)                                                  \
        type __real_##name declared;                                                               \
        type __wrap_##name declared;                                                               \
        type __wrap_##name declared                                                                \
        {                                                                                          \
                bool make;                                                                         \
                int error = ask(which, &make);                                                     \
                type r = make ? __real_##name passed : -1;                                         \
                                                                                                   \
                if (error == 0)                                                                    \
                        return r;                                                                  \
                errno = error;                                                                     \
                return -1;                                                                         \
        }

WRAP(int, openat64, CALL_OPENAT, (int fd, const char *name, int flags, mode_t mode),
     (fd, name, flags, mode))
WRAP(int, fstat64, CALL_FSTAT, (int fd, struct stat *s), (fd, s))
WRAP(int, fstatat64, CALL_FSTATAT, (int fd, const char *name, struct stat *s, int flags),
     (fd, name, s, flags))
WRAP(int, linkat, CALL_LINKAT, (int from, const char *a, int to, const char *b, int flags),
     (from, a, to, b, flags))
WRAP(int, renameat2, CALL_RENAMEAT2,
     (int from, const char *a, int to, const char *b, unsigned flags), (from, a, to, b, flags))
WRAP(int, renameat, CALL_RENAMEAT, (int from, const char *a, int to, const char *b),
     (from, a, to, b))
WRAP(int, fsync, CALL_FSYNC, (int fd), (fd))
WRAP(int, close, CALL_CLOSE, (int fd), (fd))
WRAP(int, unlinkat, CALL_UNLINKAT, (int fd, const char *name, int flags), (fd, name, flags))
WRAP(int, mkdirat, CALL_MKDIRAT, (int fd, const char *name, mode_t mode), (fd, name, mode))
WRAP(int, utimensat, CALL_UTIMENSAT,
     (int fd, const char *name, const struct timespec times[2], int flags),
     (fd, name, times, flags))

/* Wraps system calls made by number, for openat2() only. */
long __real_syscall(long number, long a, long b, long c, long d, long e, long f);
long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f);

long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f)
{
        bool make = true;
        int error = number == SYS_openat2 ? ask(CALL_OPENAT2, &make) : 0;
        long r = make ? __real_syscall(number, a, b, c, d, e, f) : -1;

        if (error == 0)
                return r;
        errno = error;
        return -1;
}

static int cut(const struct iovec *v, int n, struct iovec ret[static 4])
{
        uint64_t left;
        int k = 0;

        pthread_mutex_lock(&lock);
        left = short_bytes ? short_bytes : UINT64_MAX;
        pthread_mutex_unlock(&lock);
        for (; k < n && k < 4 && left > 0; k++) {
                ret[k] = v[k];
                ret[k].iov_len = MIN((uint64_t)v[k].iov_len, left);
                left -= ret[k].iov_len;
        }
        return k;
}

#define WRAP_VECTOR(name, which)                                                                   \
        ssize_t __real_##name(int fd, const struct iovec *v, int n, off_t offset);                 \
        ssize_t __wrap_##name(int fd, const struct iovec *v, int n, off_t offset);                 \
        ssize_t __wrap_##name(int fd, const struct iovec *v, int n, off_t offset)                  \
        {                                                                                          \
                bool make;                                                                         \
                int error = ask(which, &make);                                                     \
                struct iovec some[4];                                                              \
                ssize_t r = make ? __real_##name(fd, some, cut(v, n, some), offset) : -1;          \
                                                                                                   \
                if (error == 0)                                                                    \
                        return r;                                                                  \
                errno = error;                                                                     \
                return -1;                                                                         \
        }

WRAP_VECTOR(preadv64, CALL_PREADV)
WRAP_VECTOR(pwritev64, CALL_PWRITEV)

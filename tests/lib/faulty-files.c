/* SPDX-License-Identifier: Apache-2.0 */
/* Faults of files under a process, by LD_PRELOAD, for campaigns that run the daemon itself, on the
 * POSIX backend (io_uring bypasses the C library).
 *
 * The file named by FAULTY_FILES is mapped: an array of struct rule, which the test writes while
 * the process runs. Before each write and sync, the first rule whose `suffix` ends the file's path
 * and whose count is not used up is applied. */
#undef _FILE_OFFSET_BITS /* the macro renames the calls, all of which are defined here */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { RULES = 16, SUFFIX_BYTES = 52 };

/* The values are repeated in tests/campaigns/faults.py. */
enum kind {
        WRITE_FAILS = 1, /* with EIO, and nothing is written */
        WRITE_LIES = 2,  /* the write is done, but reports EIO */
        SYNC_FAILS = 3,
        SYNC_IS_SLOW = 4, /* by `ms` */
        WRITE_IS_SLOW = 5,
        WRITE_KILLS = 6,      /* the process is killed instead of the last write of `left` */
        WRITE_THEN_KILLS = 7, /* ... after it */
};

struct rule {
        char suffix[SUFFIX_BYTES];
        uint32_t kind;
        _Atomic int32_t left; /* number of times; 0: the rule is unused */
        uint32_t ms;
};

static struct rule *rules;

__attribute__((constructor)) static void map_rules(void)
{
        const char *name = getenv("FAULTY_FILES");
        int fd = name ? open(name, O_RDWR | O_CLOEXEC) : -1;
        void *p;

        if (fd < 0)
                return;
        p = mmap(NULL, RULES * sizeof(struct rule), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
        rules = p == MAP_FAILED ? NULL : p;
}

static int take(struct rule *r)
{
        int32_t left = atomic_load(&r->left);

        while (left > 0)
                if (atomic_compare_exchange_weak(&r->left, &left, left - 1))
                        return left == 1 || (r->kind != WRITE_KILLS && r->kind != WRITE_THEN_KILLS);
        return 0;
}

/* Returns the rule for this operation, or NULL. */
static const struct rule *rule_of(int fd, int is_sync)
{
        char link[64], path[512];
        ssize_t length = -1;

        for (unsigned i = 0; rules && i < RULES; i++) {
                struct rule *r = &rules[i];
                size_t n;

                if (atomic_load(&r->left) <= 0 ||
                    is_sync != (r->kind == SYNC_FAILS || r->kind == SYNC_IS_SLOW))
                        continue;
                if (length < 0) {
                        snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
                        length = readlink(link, path, sizeof(path));
                        if (length < 0)
                                return NULL;
                }
                n = strnlen(r->suffix, SUFFIX_BYTES);
                if (n <= (size_t)length && memcmp(path + length - n, r->suffix, n) == 0 && take(r))
                        return r;
        }
        return NULL;
}

static void *next_of(const char *name)
{
        return dlsym(RTLD_NEXT, name);
}

static void wait_ms(uint32_t ms)
{
        nanosleep(&(struct timespec){ .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L }, NULL);
}

static void die(void)
{
        kill(getpid(), SIGKILL);
        for (;;)
                pause();
}

static ssize_t fail_with_eio(void)
{
        errno = EIO;
        return -1;
}

/* Applies delays and kills. Returns false if the operation must fail without being performed. */
static int begins(const struct rule *rule)
{
        if (rule && rule->ms)
                wait_ms(rule->ms);
        if (rule && rule->kind == WRITE_KILLS)
                die();
        return !rule || (rule->kind != WRITE_FAILS && rule->kind != SYNC_FAILS);
}

static ssize_t ends(const struct rule *rule, ssize_t done)
{
        if (rule && rule->kind == WRITE_THEN_KILLS)
                die();
        return rule && rule->kind == WRITE_LIES ? fail_with_eio() : done;
}

/* Export the calls for other programs, whatever visibility the rest of the tree uses. */
#pragma GCC visibility push(default)

#define WRITE(name)                                                                                \
        ssize_t name(int fd, const void *buf, size_t bytes, off_t offset);                         \
        ssize_t name(int fd, const void *buf, size_t bytes, off_t offset)                          \
        {                                                                                          \
                ssize_t (*next)(int, const void *, size_t, off_t) = next_of(#name);                \
                const struct rule *rule = rule_of(fd, 0);                                          \
                                                                                                   \
                return begins(rule) ? ends(rule, next(fd, buf, bytes, offset)) : fail_with_eio();  \
        }
#define WRITEV(name)                                                                               \
        ssize_t name(int fd, const struct iovec *v, int n, off_t offset);                          \
        ssize_t name(int fd, const struct iovec *v, int n, off_t offset)                           \
        {                                                                                          \
                ssize_t (*next)(int, const struct iovec *, int, off_t) = next_of(#name);           \
                const struct rule *rule = rule_of(fd, 0);                                          \
                                                                                                   \
                return begins(rule) ? ends(rule, next(fd, v, n, offset)) : fail_with_eio();        \
        }
#define SYNC(name)                                                                                 \
        int name(int fd);                                                                          \
        int name(int fd)                                                                           \
        {                                                                                          \
                int (*next)(int) = next_of(#name);                                                 \
                const struct rule *rule = rule_of(fd, 1);                                          \
                                                                                                   \
                return begins(rule) ? next(fd) : (int)fail_with_eio();                             \
        }

WRITE(pwrite)
WRITE(pwrite64)
WRITEV(pwritev)
WRITEV(pwritev64)
SYNC(fdatasync)
SYNC(fsync)

#pragma GCC visibility pop

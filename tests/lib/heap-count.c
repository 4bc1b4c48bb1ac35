/* SPDX-License-Identifier: Apache-2.0 */
/* Counts the allocated bytes of a process's heap, by LD_PRELOAD, for the campaign that compares
 * them with the bytes that the daemon reports as charged. The number is appended to the name of
 * each memfd that the process creates, after a colon, so that it belongs to the same moment as the
 * report in the memfd; a program that has the descriptor finds it in /proc/self/fd. glibc's
 * allocator does the work; an allocation counts with all bytes that its caller may use. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *p, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void *p);

static atomic_int_fast64_t allocated;

static void count(int_fast64_t bytes)
{
        atomic_fetch_add_explicit(&allocated, bytes, memory_order_relaxed);
}

static void *counted(void *p)
{
        count((int_fast64_t)malloc_usable_size(p));
        return p;
}

/* The functions below replace those of the C library. */
#pragma GCC visibility push(default)

void *malloc(size_t bytes)
{
        return counted(__libc_malloc(bytes));
}

void *calloc(size_t n, size_t bytes)
{
        return counted(__libc_calloc(n, bytes));
}

void *realloc(void *p, size_t bytes)
{
        int_fast64_t before = (int_fast64_t)malloc_usable_size(p);
        void *now = __libc_realloc(p, bytes);

        if (!now && bytes > 0)
                return NULL; /* `p` is unchanged */
        count(-before);
        return counted(now);
}

void free(void *p)
{
        count(-(int_fast64_t)malloc_usable_size(p));
        __libc_free(p);
}

void *memalign(size_t alignment, size_t bytes)
{
        return counted(__libc_memalign(alignment, bytes));
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
        return memalign(alignment, bytes);
}

int posix_memalign(void **ret, size_t alignment, size_t bytes)
{
        void *p = memalign(alignment, bytes);

        if (!p)
                return ENOMEM;
        *ret = p;
        return 0;
}

int memfd_create(const char *name, unsigned flags)
{
        char with_count[128];

        snprintf(with_count, sizeof(with_count), "%s:%jd", name, (intmax_t)atomic_load(&allocated));
        return (int)syscall(SYS_memfd_create, with_count, flags);
}

#pragma GCC visibility pop

/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps big blocks of memory that are freed for the next request of the same size. Some fuzzers
 * allocate and free the same blocks in every execution, and the address sanitizer maps, marks and
 * unmaps each one again, which takes longer than everything else.
 *
 * The program's calls are wrapped (big_blocks_wraps in meson.build). A block keeps the sanitizer's
 * red zones, and its beginning is poisoned while it is unused. One thread allocates and frees. */
#include <sanitizer/asan_interface.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "checked.h"

enum { BIG = 128 * 1024, BLOCKS = 64, POISONED = 64 * 1024, PAGE = 4096 };

static struct block {
        void *p;
        size_t bytes, alignment;
        bool used;
} blocks[BLOCKS];

void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void __wrap_free(void *p);
void __real_free(void *p);

static void *take(size_t alignment, size_t bytes)
{
        for (unsigned i = 0; i < BLOCKS; i++) {
                struct block *b = &blocks[i];

                if (b->used || (b->p && (b->bytes != bytes || b->alignment != alignment)))
                        continue;
                if (!b->p)
                        b->p = __real_aligned_alloc(alignment, bytes);
                if (!b->p)
                        return NULL;
                b->bytes = bytes;
                b->alignment = alignment;
                b->used = true;
                ASAN_UNPOISON_MEMORY_REGION(b->p, MIN(bytes, (size_t)POISONED));
                return b->p;
        }
        return NULL;
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
        void *p = bytes < BIG ? NULL : take(alignment, bytes);

        return p ? p : __real_aligned_alloc(alignment, bytes);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
        size_t all;
        char *p = NULL;

        if (!__builtin_mul_overflow(n, bytes, &all) && all >= BIG)
                p = take(PAGE, round_up(all, (size_t)PAGE));
        if (!p)
                return __real_calloc(n, bytes);
        /* Whole pages, which the kernel zeroes when they are touched. */
        madvise(p, round_up(all, (size_t)PAGE), MADV_DONTNEED);
        return p;
}

void __wrap_free(void *p)
{
        for (unsigned i = 0; p && i < BLOCKS && blocks[i].p; i++) {
                struct block *b = &blocks[i];

                if (b->p != p)
                        continue;
                if (!b->used)
                        abort(); /* freed twice */
                b->used = false;
                ASAN_POISON_MEMORY_REGION(p, MIN(b->bytes, (size_t)POISONED));
                return;
        }
        __real_free(p);
}

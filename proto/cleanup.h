/* SPDX-License-Identifier: Apache-2.0 */
/* Cleanup at the end of a scope: a resource is released where its variable goes out of scope,
 * unless TAKE_PTR() or TAKE_FD() moved it elsewhere. */
#pragma once

#include <stdlib.h>
#include <unistd.h>

#define _cleanup_(f) __attribute__((cleanup(f)))

/* Defines `funcp(type **)`, the form that _cleanup_() requires, from `func(type *)`. */
#define DEFINE_CLEANUP(type, func)                                                                 \
        __attribute__((unused)) static inline void func##p(type *p)                                \
        {                                                                                          \
                if (*p)                                                                            \
                        func(*p);                                                                  \
        }                                                                                          \
        struct cleanup_semicolon_##func

static inline void freep(void *p)
{
        free(*(void **)p);
}

static inline void closep(int *fd)
{
        if (*fd >= 0)
                close(*fd);
}

#define TAKE_PTR(p)                                                                                \
        ({                                                                                         \
                __typeof__(p) take_ptr_ = (p);                                                     \
                (p) = NULL;                                                                        \
                take_ptr_;                                                                         \
        })

#define TAKE_FD(fd)                                                                                \
        ({                                                                                         \
                int take_fd_ = (fd);                                                               \
                (fd) = -1;                                                                         \
                take_fd_;                                                                          \
        })

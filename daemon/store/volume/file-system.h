/* SPDX-License-Identifier: Apache-2.0 */
/* Kinds of file systems, which of them lose the chunks of a store, and which do not suit it.
 *
 * A sentence states the consequence, and after its only "; " the remedy; kvcachectl doctor prints
 * the two apart. Any thread; owns nothing. An unknown kind, or a failure to ask the kernel, is a
 * kind without a name and without a warning, but with advice. */
#pragma once

#include <stdbool.h>

struct file_system {
        unsigned long magic;
        const char *name;    /* "" if unknown */
        const char *warning; /* a sentence about the loss of chunks; "" */
        const char *advice;  /* a sentence about a kind that loses none, but does not suit; "" */
        bool memory;         /* a sync has no effect: no byte survives a power loss */
};

/* Returns the kind of file system with this statfs.f_type. */
const struct file_system *file_system_by_magic(unsigned long magic);
/* Returns the kind of file system that an open file lies on. */
const struct file_system *file_system_of(int fd);

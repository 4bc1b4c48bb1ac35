/* SPDX-License-Identifier: Apache-2.0 */
/* A list of kinds of file systems, with a warning for those that lose the chunks of a store, and
 * advice for those that do not suit a store.
 *
 * Each warning or advice states a consequence and then, after its only "; ", a remedy; kvcachectl
 * doctor prints the two on separate lines. The functions run on any thread. An unknown file system,
 * or one that the kernel does not name, has advice, but neither a name nor a warning. */
#pragma once

#include <stdbool.h>

struct file_system {
        unsigned long magic; /* value of statfs.f_type */
        const char *name;    /* name of the kind of file system; "" if unknown */
        const char *warning; /* how such a file system loses chunks, or "" */
        const char *advice;  /* why such a file system does not suit a store although it keeps the
                                chunks, or "" */
        bool memory; /* the file system is in memory: a sync has no effect, and no byte survives a
                        power loss */
};

/* Returns the kind of file system with this statfs.f_type. */
const struct file_system *file_system_by_magic(unsigned long magic);
/* Returns the kind of file system that an open file lies on. */
const struct file_system *file_system_of(int fd);

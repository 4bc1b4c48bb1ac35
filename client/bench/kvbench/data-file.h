/* SPDX-License-Identifier: Apache-2.0 */
/* Models and deployments by name. A name is first taken as the path that it is; one without '/' is
 * then searched, as it is and with ".yaml", in $KVCACHE_DATA_DIR, or, where that is not set, in the
 * data directory beside the program, in that which it was built for, and in conf/ of the source
 * tree that holds the build. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum { KVBENCH_FAILED = 1 }; /* the exit status of everything but wrong usage (2) */
enum { KVBENCH_SHOWN_BYTES = 256 };
enum { DATA_FILE_BYTES = 1024, DATA_FILE_DIRECTORIES = 3 };

/* `folder`: "models" or "deployments". False: there is none, or its path is too long. */
bool data_file_find(const char *folder, const char *name, char ret[static DATA_FILE_BYTES]);
/* The directories that are searched; returns how many. */
size_t data_file_directories(const char *folder,
                             char ret[static DATA_FILE_DIRECTORIES][DATA_FILE_BYTES]);
/* Says which places were searched for what, and which name is like it. Returns KVBENCH_FAILED. */
int data_file_complain(const char *folder, const char *name);

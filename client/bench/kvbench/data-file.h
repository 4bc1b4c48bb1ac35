/* SPDX-License-Identifier: Apache-2.0 */
/* Finds models and deployments by name. A name is first tried as a path. A name without '/' is then
 * searched, as given and with ".yaml", in $KVCACHE_DATA_DIR or, if that is not set, in the data
 * directory beside the program, in the one that the program was built for, and in conf/ of the
 * source tree that contains the build.
 *
 * The names of KVBench's examples work, too: "./examples/model_qwen3_8b.yaml" is "qwen3_8b.yaml"
 * here, unless the user has such a file. A note says which file is used instead. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum { KVBENCH_FAILED = 1 }; /* exit status of all failures except wrong usage (2) */
enum { KVBENCH_SHOWN_BYTES = 256 };
enum { DATA_FILE_BYTES = 1024, DATA_FILE_DIRECTORIES = 3 };

/* Finds a file. `folder`: "models" or "deployments". Returns false if there is none, or its path is
 * too long. */
bool data_file_find(const char *folder, const char *name, char ret[static DATA_FILE_BYTES]);
/* Returns the name or pattern in our directories for one of KVBench's examples, or NULL if `name`
 * is not one of them. */
const char *data_file_of_example(const char *name);
/* Prints a note about the file `path` that is used in place of `name`, if that is the name of one
 * of KVBench's examples and differs from `path`. */
void data_file_note(const char *name, const char *path);
/* Lists the directories that are searched. Returns their number. */
size_t data_file_directories(const char *folder,
                             char ret[static DATA_FILE_DIRECTORIES][DATA_FILE_BYTES]);
/* Calls `name` with the name of each YAML file in the directories of a folder, without its
 * extension. Names that several directories have are repeated. */
void data_file_each(const char *folder, void (*name)(const char *stem));
/* Reports that no file of `folder` has this name, with the directories that were searched, if any,
 * and a similar name, if there is one. Returns KVBENCH_FAILED. */
int data_file_complain(const char *folder, const char *name);

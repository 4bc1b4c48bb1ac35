/* SPDX-License-Identifier: Apache-2.0 */
/* One directory of files in memory, for fuzzers that open a store thousands of times a second.
 * The system calls that the store makes on files are wrapped (memory_files_wraps in
 * meson.build); any that is not about this directory goes through. One thread.
 *
 * * A file's image is what memory_files_reset() brings back; only what was written since is
 * copied. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Name of the directory, for code that opens it by name. */
#define MEMORY_FILES_PATH "/memory-files"

enum { MEMORY_FILES = 32, MEMORY_FILE_ROOM = 2 << 20 };

/* Makes the present contents the image. */
void memory_files_keep(void);
/* Back to the image. Nothing is open. */
void memory_files_reset(void);
/* How many calls may fail before the next keep or reset: the `nth` from now that changes a file
 * fails with this error, once. 0: none. */
void memory_files_fail(unsigned nth, int error);
/* The bytes of a file, for changing them in place; aborts if there is none. Up to MEMORY_FILE_ROOM
 * may be written, and report all changes with touch. */
uint8_t *memory_file_bytes(const char *name, size_t *ret_size);
void memory_file_touch(const char *name, size_t at, size_t bytes);
/* Longer or shorter; what is new is zero. */
void memory_file_resize(const char *name, size_t size);

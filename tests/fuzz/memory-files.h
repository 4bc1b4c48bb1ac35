/* SPDX-License-Identifier: Apache-2.0 */
/* One directory of files in memory, for fuzzers that open a store thousands of times a second. The
 * store's system calls on files are wrapped (memory_files_wraps in meson.build); calls on other
 * files pass through. One thread.
 *
 * memory_files_reset() restores a file's image, and copies only the bytes written since. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Name of the directory, for code that opens it by name. */
#define MEMORY_FILES_PATH "/memory-files"

enum { MEMORY_FILES = 32, MEMORY_FILE_ROOM = 2 << 20 };

/* Makes the present contents the image. */
void memory_files_keep(void);
/* Restores the image. No file may be open. */
void memory_files_reset(void);
/* Makes the `nth` call from now that changes a file fail once with this error. 0: none. The next
 * keep or reset ends this. */
void memory_files_fail(unsigned nth, int error);
/* Returns the bytes of a file, to be changed in place; aborts if there is no such file. The caller
 * may write up to MEMORY_FILE_ROOM, and reports all changes with touch. */
uint8_t *memory_file_bytes(const char *name, size_t *ret_size);
void memory_file_touch(const char *name, size_t at, size_t bytes);
/* Truncates or extends a file; new bytes are zero. */
void memory_file_resize(const char *name, size_t size);

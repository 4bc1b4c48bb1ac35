/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the other programs of this project. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Searches for a program in `directories`, which are relative to the directory of the running
 * program and end with NULL, then in $PATH. Writes its path to `ret`. Returns false if no directory
 * has it under a path that fits `room` bytes. */
bool program_find(const char *name, const char *const *directories, char *ret, size_t room);

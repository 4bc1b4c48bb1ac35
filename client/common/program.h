/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the other programs of this project. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Searches for a program in `directories`, relative to the running program and ended by NULL, then
 * in $PATH. Returns false if it is in none of them. */
bool program_find(const char *name, const char *const *directories, char *ret, size_t room);

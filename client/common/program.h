/* SPDX-License-Identifier: Apache-2.0 */
/* The other programs of this project: where they are. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* In one of `directories`, relative to the program that runs, else in $PATH. NULL ends them. False:
 * it is in none of them. */
bool program_find(const char *name, const char *const *directories, char *ret, size_t room);

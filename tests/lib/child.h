/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of what changes the whole process: they run in a child of their own. */
#pragma once

#include <stdio.h>

/* Runs `f` in a child, which has test_timeout_ms() of a minute; it returns 0 if all is well, 77 to
 * skip, else a number of a check. */
void in_child(int (*f)(void));

/* In a child: numbered checks, as assertions of cmocka cannot leave it. */
#define CHECK(n, condition)                                                                        \
        do {                                                                                       \
                if (!(condition)) {                                                                \
                        fprintf(stderr, "check %d, line %d: %s\n", (n), __LINE__, #condition);     \
                        return (n);                                                                \
                }                                                                                  \
        } while (0)

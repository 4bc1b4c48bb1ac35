/* SPDX-License-Identifier: Apache-2.0 */
/* Runs tests that change the whole process in a child of their own. */
#pragma once

#include <stdio.h>

/* Runs `f` in a child, with a time limit of test_timeout_ms() of a minute. `f` returns 0 on
 * success, 77 to skip, otherwise the number of the failed check. */
void in_child(int (*f)(void));

/* A numbered check for use in a child, which assertions of cmocka cannot leave. */
#define CHECK(n, condition)                                                                        \
        do {                                                                                       \
                if (!(condition)) {                                                                \
                        fprintf(stderr, "check %d, line %d: %s\n", (n), __LINE__, #condition);     \
                        return (n);                                                                \
                }                                                                                  \
        } while (0)

/* SPDX-License-Identifier: Apache-2.0 */
/* Checks the contract of backend.h on any back end: over a stub in unit tests, over the real
 * engine in tests/fleet. Completed operations are delivered here instead of to completions.c. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "remote/backend.h"

#define SECOND_NS 1000000000ull

/* --- operations --- */

struct operation {
        struct backend_op op;
        bool ended; /* set by backend_op_end(), exactly once */
        char *memory;
};

/* Creates an operation with room for a header and a payload of `bytes` in total, adjacent to each
 * other or, if `apart`, not. */
struct operation *operation_new(enum backend_op_kind kind, const char *name, uint64_t bytes,
                                bool apart);
struct operation *operation_free(struct operation *o);
/* Fill the first bytes with a pattern of `seed`, and check for it. */
void operation_fill(struct operation *o, uint64_t seed);
bool operation_holds(const struct operation *o, uint64_t bytes, uint64_t seed);
/* Waits until the operation ends. Returns its result. */
int operation_wait(struct operation *o);
bool operation_has_ended(struct operation *o);

/* Each function submits an operation and waits for it. Returns the result. `ret_error` may be
 * NULL. */
int backend_write(const struct backend_ops *ops, struct backend *b, enum backend_op_kind kind,
                  const char *name, uint64_t bytes, uint64_t seed);
/* Reads an object. Returns 0 only if all of `bytes` are those written with `seed`; -EBADMSG if they
 * differ. */
int backend_read(const struct backend_ops *ops, struct backend *b, const char *name, uint64_t bytes,
                 uint64_t seed);
int backend_delete(const struct backend_ops *ops, struct backend *b, const char *name);

/* --- the contract --- */

/* Runs all checks below params->prefix, which is empty before and after. Prints failed checks.
 * Returns their number; `*ret_checks` is the number of checks. */
unsigned backend_contract(const struct backend_ops *ops, const struct backend_params *params,
                          unsigned *ret_checks);

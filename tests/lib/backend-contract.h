/* SPDX-License-Identifier: Apache-2.0 */
/* What backend.h asks of every storage engine, as checks that run on any back end: over a stub in
 * unit tests, over the real one in tests/fleet. Ended operations are taken here, in the place of
 * completions.c. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "remote/backend.h"

#define SECOND_NS 1000000000ull

/* --- operations --- */

struct operation {
        struct backend_op op;
        bool ended; /* by backend_op_end(), exactly once */
        char *memory;
};

/* Room for `bytes`: a header and the payload, beside each other or, if `apart`, not. */
struct operation *operation_new(enum backend_op_kind kind, const char *name, uint64_t bytes,
                                bool apart);
struct operation *operation_free(struct operation *o);
/* A pattern of `seed`, and whether it is there, in the first `bytes`. */
void operation_fill(struct operation *o, uint64_t seed);
bool operation_holds(const struct operation *o, uint64_t bytes, uint64_t seed);
/* Waits for its end; its result. */
int operation_wait(struct operation *o);
bool operation_has_ended(struct operation *o);

/* Each is submitted and waited for; the result. `ret_error` may be NULL. */
int backend_write(const struct backend_ops *ops, struct backend *b, enum backend_op_kind kind,
                  const char *name, uint64_t bytes, uint64_t seed);
/* 0 only if all of `bytes` is what was written with that seed; -EBADMSG: other bytes. */
int backend_read(const struct backend_ops *ops, struct backend *b, const char *name, uint64_t bytes,
                 uint64_t seed);
int backend_delete(const struct backend_ops *ops, struct backend *b, const char *name);

/* --- the contract --- */

/* Runs all checks below params->prefix, which is empty before and after. What fails is printed.
 * How many do; *ret_checks: of how many. */
unsigned backend_contract(const struct backend_ops *ops, const struct backend_params *params,
                          unsigned *ret_checks);

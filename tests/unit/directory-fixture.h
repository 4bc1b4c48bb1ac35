/* SPDX-License-Identifier: Apache-2.0 */
/* The directory of the shared tier over a directory of this host, with system calls that fail or
 * hang by plan (-Wl,--wrap). Ended operations are counted here, in the place of completions.c. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "remote/backend.h"

#define SECOND_NS 1000000000ull

enum { HEADER = REMOTE_HEADER_BYTES, MIB = 1 << 20 };

/* --- the back end --- */

struct directory_test {
        char path[128]; /* remote.path */
        char outside[160];
        struct backend *b;
};
extern struct directory_test at;

/* Make and remove at.path and at.outside, as setup and teardown of cmocka. */
int directory_setup(void **state);
int directory_teardown(void **state);
void start(unsigned depth, bool sync);
struct backend *open_another(unsigned depth); /* opens the same directory */
void stop(void);

/* --- operations --- */

struct operation {
        struct backend_op op;
        bool ended; /* by backend_op_end(), exactly once */
};

/* Makes an operation with `bytes` of header and payload, or of less than a header. It lives until
 * operation_free(). */
struct operation *operation_new(enum backend_op_kind kind, const char *name, uint64_t bytes);
struct operation *operation_free(struct operation *o);
/* Fill an operation with a pattern of `seed`, and check for the pattern. */
void fill(struct operation *o, uint64_t seed);
bool holds(const struct operation *o, uint64_t bytes, uint64_t seed);
int wait_for(struct operation *o); /* its result */
bool has_ended(struct operation *o);
/* Create, replace and delete an object, each in one call that waits for the result. */
int create(const char *name, uint64_t bytes, uint64_t seed);
int replace(const char *name, uint64_t bytes, uint64_t seed);
int delete (const char *name);
/* Reads an object into room for `room` bytes. Returns the result, which is 0 only if all bytes are
 * those that create() wrote. */
int read_back(const char *name, uint64_t bytes, uint64_t seed);

/* --- files --- */

char *in_path(const char *name); /* at.path/NAME; of eight calls, the latest are valid */
bool exists(const char *name);
void make_parents(const char *name);
void write_file(const char *name, const char *text);
void age(const char *name, uint64_t seconds); /* last modified so long ago */
uint64_t modified_s(const char *name);
unsigned count_files(const char *folder, const char *beginning); /* at any depth */

/* --- system calls --- */

enum call {
        CALL_OPENAT2,
        CALL_OPENAT,
        CALL_FSTAT,
        CALL_FSTATAT,
        CALL_PREADV,
        CALL_PWRITEV,
        CALL_LINKAT,
        CALL_RENAMEAT2,
        CALL_RENAMEAT,
        CALL_FSYNC,
        CALL_CLOSE,
        CALL_UNLINKAT,
        CALL_MKDIRAT,
        CALL_UTIMENSAT,
        CALL_END,
};

/* Makes the next `times` calls after `skip` fail with `error`, on the back end's threads only. */
void fail_call(enum call call, int error, unsigned skip, unsigned times);
/* Makes calls fail on all threads. */
void fail_call_anywhere(enum call call, int error, unsigned skip, unsigned times);
/* Makes calls take effect but report failure. */
void lie_about_call(enum call call, int error);
/* Limits the next transfers to this number of bytes. */
void shorten_calls(uint64_t bytes);
/* Makes the next `times` calls after `skip` hang until release_calls(). */
void hang_call(enum call call, unsigned skip, unsigned times);
unsigned n_hanging(void);
void wait_until_hanging(unsigned n);
void release_calls(void);
unsigned n_calls(enum call call); /* since reset_calls() */
void reset_calls(void);
unsigned hits(enum call call); /* calls that were made to fail or hang */

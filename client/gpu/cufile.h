/* SPDX-License-Identifier: Apache-2.0 */
/* cuFile, loaded at run time: a table of its functions. */
#pragma once

#include <stdbool.h>

#include "gpu/cufile-api.h"
#include "kvcache-gpu.h"

struct cufile {
        void *dl;           /* of dlopen(); NULL: not open */
        bool is_compatible; /* there is no direct way here: it copies through host memory itself */
#define X(member, name, is_needed, result, parameters) result(*member) parameters;
        CF_FUNCTIONS(X)
#undef X
};

enum { CUFILE_TEXT = 256 };

/* Loads it and opens its driver. 0, or why not: KVCACHE_GPU_GDS_LIBRARY, _SYMBOL, _DRIVER; then
 * `ret_why`, of CUFILE_TEXT bytes, says more and `ret_error` is cuFile's number. */
enum kvcache_gpu_gds_reason cufile_open(struct cufile *ret, char *ret_why, int *ret_error);
/* Neither unloads it nor closes its driver: both are the process's, and others may use them. */
void cufile_close(struct cufile *c);
/* "CU_FILE_IO_NOT_SUPPORTED". */
const char *cufile_error_name(int error);

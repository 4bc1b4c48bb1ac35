/* SPDX-License-Identifier: Apache-2.0 */
/* cuFile, loaded at run time: a table of its functions. */
#pragma once

#include <stdbool.h>

#include "gpu/cufile-api.h"
#include "kvcache-gpu.h"

struct cufile {
        void *dl;           /* result of dlopen(); NULL if not open */
        bool is_compatible; /* there is no direct path on this host: cuFile copies through host
                               memory */
#define X(member, name, is_needed, result, parameters) result(*member) parameters;
        CF_FUNCTIONS(X)
#undef X
};

enum { CUFILE_TEXT = 256 };

/* Loads cuFile and opens its driver. Returns KVCACHE_GPU_GDS_NONE, or the reason of a failure:
 * KVCACHE_GPU_GDS_LIBRARY, _SYMBOL or _DRIVER. `ret_why`, of CUFILE_TEXT bytes, then has the
 * details. `*ret_error` is cuFile's error number with _DRIVER, otherwise 0. */
enum kvcache_gpu_gds_reason cufile_open(struct cufile *ret, char *ret_why, int *ret_error);
/* Clears the table, without unloading cuFile or closing its driver, which other parts of the
 * process may use. */
void cufile_close(struct cufile *c);
/* Returns the name of an error, such as "CU_FILE_IO_NOT_SUPPORTED"; "a cuFile error" if the number
 * has no known name. */
const char *cufile_error_name(int error);

/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA driver, loaded at run time: a table of its functions. */
#pragma once

#include <stdbool.h>

#include "gpu/cuda-api.h"

struct driver {
        void *dl;    /* of dlopen() */
        int version; /* 13000: CUDA 13.0 */
#define X(member, name, suffix, since, is_needed, parameters) cu_result(*member) parameters;
        CU_FUNCTIONS(X)
#undef X
};

enum { DRIVER_TEXT = 256 };

/* Loads and initializes the driver. Returns 0; -ENODEV if there is no driver or no device; -ENOSYS
 * if the driver lacks a required function; -EIO or another error if it refuses. `ret_why` has
 * DRIVER_TEXT bytes. */
int driver_open(struct driver *ret, char *ret_why);
/* Closes the driver. Its code stays in memory (RTLD_NODELETE), because it has threads of its
 * own. */
void driver_close(struct driver *d);
/* Returns -errno for a result; 0 if it is CU_OK. */
int driver_errno(cu_result result);
/* "CUDA_ERROR_OUT_OF_MEMORY". */
const char *driver_error_name(const struct driver *d, cu_result result);

/* While a thread of the program captures a CUDA graph, calls of other threads can invalidate its
 * capture. They cannot if the calling thread's capture mode is relaxed, and if they do not name the
 * streams that are captured. driver_relax() sets that mode for this thread and returns the mode
 * that driver_restore() sets again. A driver before CUDA 10.1 has no modes. */
int driver_relax(const struct driver *d);
void driver_restore(const struct driver *d, int mode);
/* Returns whether work in the stream would become part of a capture, or invalidate one. The legacy
 * default stream itself is never captured, but waits for streams that are. NULL, and any stream of
 * a driver before CUDA 10.0, counts as not captured. */
bool driver_is_capturing(const struct driver *d, cu_stream stream);

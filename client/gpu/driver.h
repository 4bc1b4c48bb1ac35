/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA driver, loaded at run time: a table of its functions. */
#pragma once

#include <stdbool.h>

#include "gpu/cuda-api.h"

struct driver {
        void *dl;    /* result of dlopen() */
        int version; /* CUDA version that the driver supports: 13000 is 13.0 */
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
/* Returns the name of a result, such as "CUDA_ERROR_OUT_OF_MEMORY", or "an unknown CUDA error". */
const char *driver_error_name(const struct driver *d, cu_result result);

/* Set and restore the capture mode of the calling thread. While a thread of the program captures
 * a CUDA graph, driver calls of another thread can invalidate the capture, unless that other
 * thread's capture mode is relaxed and the calls do not name a captured stream. driver_relax()
 * sets the relaxed mode for this thread and returns the mode that driver_restore() sets again. A
 * driver before CUDA 10.1 has no modes. */
int driver_relax(const struct driver *d);
void driver_restore(const struct driver *d, int mode);
/* Returns whether work in the stream would become part of a capture, or invalidate one. The
 * legacy default stream itself is never captured, but waits for streams that are. Returns false
 * if the stream is NULL or the driver is older than CUDA 10.0. */
bool driver_is_capturing(const struct driver *d, cu_stream stream);

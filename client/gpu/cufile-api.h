/* SPDX-License-Identifier: Apache-2.0 */
/* The part of the cuFile API that the library uses, declared here so that no toolkit is needed to
 * build. Names, values and layouts are those of the cuFile API reference and of cufile.h of CUDA
 * 13; tests/gpu/test-cufile-api.c compares the two if cufile.h is available. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef void *cf_handle;

/* An error, which is returned by value, in a register. */
struct cf_error {
        int error;      /* 0, or 5001 and up */
        int cuda_error; /* with CF_CUDA_DRIVER_ERROR */
};

enum {
        CF_OK = 0,
        CF_BASE = 5000, /* errors of cuFile are above this number, and those of errno.h below */
        CF_CUDA_DRIVER_ERROR = 5011,
        CF_DRIVER_ALREADY_OPEN = 5026,

        CF_HANDLE_IS_FD = 1,
        CF_FEATURE_P2P = 1 << 4,
};

struct cf_descriptor {
        int type; /* CF_HANDLE_IS_FD */
        union {
                int fd;
                void *handle;
        } handle;
        const void *operations; /* always NULL */
};

struct cf_properties {
        struct {
                unsigned major_version,
                        minor_version; /* version of nvidia-fs; 0 if there is none */
                size_t poll_threshold, max_direct_io;
                unsigned status_flags, control_flags;
        } nvfs;
        unsigned features;
        unsigned max_device_cache, per_buffer_cache, max_device_pinned, max_batch, batch_timeout;
};

/* X(member, name, whether it is required, result, parameters) */
#define CF_FUNCTIONS(X)                                                                            \
        X(driver_open, cuFileDriverOpen, true, struct cf_error, (void))                            \
        X(get_properties, cuFileDriverGetProperties, false, struct cf_error,                       \
          (struct cf_properties * ret))                                                            \
        X(handle_register, cuFileHandleRegister, true, struct cf_error,                            \
          (cf_handle * ret, struct cf_descriptor * descriptor))                                    \
        X(handle_deregister, cuFileHandleDeregister, true, void, (cf_handle handle))               \
        X(buffer_register, cuFileBufRegister, true, struct cf_error,                               \
          (const void *base, size_t bytes, int flags))                                             \
        X(buffer_deregister, cuFileBufDeregister, true, struct cf_error, (const void *base))       \
        X(read, cuFileRead, true, ssize_t,                                                         \
          (cf_handle handle, void *base, size_t bytes, off_t file_offset, off_t base_offset))      \
        X(write, cuFileWrite, false, ssize_t,                                                      \
          (cf_handle handle, const void *base, size_t bytes, off_t file_offset,                    \
           off_t base_offset))

/* SPDX-License-Identifier: Apache-2.0 */
/* The part of the CUDA driver API that the library uses, declared here so that no toolkit is needed
 * to build. Names, values and layouts are those of the CUDA Driver API reference manual and of
 * cuda.h of CUDA 13.0; tests/gpu/test-api.c compares the two if cuda.h is available. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef int cu_result;
typedef int cu_device;
typedef uint64_t cu_address; /* CUdeviceptr */
typedef struct CUctx_st *cu_context;
typedef struct CUstream_st *cu_stream;
typedef struct CUevent_st *cu_event;
typedef struct CUmod_st *cu_module;
typedef struct CUfunc_st *cu_function;

enum {
        CU_OK = 0,
        CU_ERROR_INVALID_VALUE = 1,
        CU_ERROR_OUT_OF_MEMORY = 2,
        CU_ERROR_NO_DEVICE = 100,
        CU_ERROR_INVALID_DEVICE = 101,
        CU_ERROR_INVALID_CONTEXT = 201,
        CU_ERROR_INVALID_PTX = 218,
        CU_ERROR_NOT_READY = 600,
        CU_ERROR_ILLEGAL_ADDRESS = 700,
        CU_ERROR_LAUNCH_OUT_OF_RESOURCES = 701,
        CU_ERROR_NOT_SUPPORTED = 801,
        CU_ERROR_CAPTURE_UNSUPPORTED = 900,
        CU_ERROR_CAPTURE_INVALIDATED = 901,
        CU_ERROR_CAPTURE_ISOLATION = 905,
        CU_ERROR_CAPTURE_IMPLICIT = 906,

        CU_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
        CU_ATTRIBUTE_UNIFIED_ADDRESSING = 41,

        CU_STREAM_IS_NON_BLOCKING = 1,
        CU_EVENT_IS_UNTIMED = 2,

        CU_HOST_REGISTER_PORTABLE = 1,
        CU_HOST_REGISTER_MAPPED = 2,
        CU_HOST_REGISTER_READ_ONLY = 8,

        CU_ACCESS_IN_STREAM_ORDER = 1,
        CU_ACCESS_IN_ANY_ORDER = 3,
        CU_COPY_PREFER_OVERLAP = 1,

        CU_CAPTURE_MODE_GLOBAL = 0,
        CU_CAPTURE_MODE_THREAD = 1,
        CU_CAPTURE_MODE_RELAXED = 2,
        CU_CAPTURE_STATE_NONE = 0,
        CU_CAPTURE_STATE_ACTIVE = 1,
};

struct cu_location {
        int type, id; /* 0: none */
};

struct cu_copy_attributes {
        int source_access;
        struct cu_location source, target;
        unsigned flags;
};

/* X(member, name, suffix of the exported symbol, first CUDA version with this form, whether it
 * is required, parameters). The function is resolved by name and version if the driver has
 * cuGetProcAddress(), otherwise by its symbol. */
#define CU_FUNCTIONS(X)                                                                            \
        X(init, cuInit, , 2000, true, (unsigned flags))                                            \
        X(get_error_name, cuGetErrorName, , 6000, true, (cu_result error, const char **ret))       \
        X(driver_get_version, cuDriverGetVersion, , 2020, true, (int *ret))                        \
        X(device_get, cuDeviceGet, , 2000, true, (cu_device * ret, int ordinal))                   \
        X(device_get_attribute, cuDeviceGetAttribute, , 2000, true,                                \
          (int *ret, int attribute, cu_device device))                                             \
        X(primary_retain, cuDevicePrimaryCtxRetain, , 7000, true,                                  \
          (cu_context * ret, cu_device device))                                                    \
        X(primary_release, cuDevicePrimaryCtxRelease, _v2, 11000, true, (cu_device device))        \
        X(ctx_get_current, cuCtxGetCurrent, , 4000, true, (cu_context * ret))                      \
        X(ctx_get_device, cuCtxGetDevice, , 2000, true, (cu_device * ret))                         \
        X(ctx_push, cuCtxPushCurrent, _v2, 4000, true, (cu_context context))                       \
        X(ctx_pop, cuCtxPopCurrent, _v2, 4000, true, (cu_context * ret))                           \
        X(mem_alloc, cuMemAlloc, _v2, 3020, true, (cu_address * ret, size_t bytes))                \
        X(mem_free, cuMemFree, _v2, 3020, true, (cu_address p))                                    \
        X(host_register, cuMemHostRegister, _v2, 6050, true,                                       \
          (void *p, size_t bytes, unsigned flags))                                                 \
        X(host_unregister, cuMemHostUnregister, , 4000, true, (void *p))                           \
        X(host_address, cuMemHostGetDevicePointer, _v2, 3020, true,                                \
          (cu_address * ret, void *p, unsigned flags))                                             \
        X(copy, cuMemcpyAsync, , 4000, true,                                                       \
          (cu_address to, cu_address from, size_t bytes, cu_stream stream))                        \
        X(copy_batch_12, cuMemcpyBatchAsync, , 12080, false,                                       \
          (cu_address * to, cu_address * from, size_t * bytes, size_t n,                           \
           struct cu_copy_attributes * attributes, size_t * firsts, size_t n_attributes,           \
           size_t * ret_failed, cu_stream stream))                                                 \
        X(copy_batch_13, cuMemcpyBatchAsync, _v2, 13000, false,                                    \
          (cu_address * to, cu_address * from, size_t * bytes, size_t n,                           \
           struct cu_copy_attributes * attributes, size_t * firsts, size_t n_attributes,           \
           cu_stream stream))                                                                      \
        X(stream_priorities, cuCtxGetStreamPriorityRange, , 5050, true,                            \
          (int *ret_least, int *ret_greatest))                                                     \
        X(stream_create_at, cuStreamCreateWithPriority, , 5050, true,                              \
          (cu_stream * ret, unsigned flags, int priority))                                         \
        X(stream_create, cuStreamCreate, , 2000, true, (cu_stream * ret, unsigned flags))          \
        X(stream_destroy, cuStreamDestroy, _v2, 4000, true, (cu_stream stream))                    \
        X(stream_wait_event, cuStreamWaitEvent, , 3020, true,                                      \
          (cu_stream stream, cu_event event, unsigned flags))                                      \
        X(stream_synchronize, cuStreamSynchronize, , 2000, true, (cu_stream stream))               \
        X(stream_is_capturing, cuStreamIsCapturing, , 10000, false,                                \
          (cu_stream stream, int *ret_state))                                                      \
        X(exchange_capture_mode, cuThreadExchangeStreamCaptureMode, , 10010, false, (int *mode))   \
        X(event_create, cuEventCreate, , 2000, true, (cu_event * ret, unsigned flags))             \
        X(event_destroy, cuEventDestroy, _v2, 4000, true, (cu_event event))                        \
        X(event_record, cuEventRecord, , 2000, true, (cu_event event, cu_stream stream))           \
        X(event_query, cuEventQuery, , 2000, true, (cu_event event))                               \
        X(event_elapsed, cuEventElapsedTime, , 2000, false,                                        \
          (float *ret_ms, cu_event begin, cu_event end))                                           \
        X(module_load, cuModuleLoadData, , 2000, false, (cu_module * ret, const void *image))      \
        X(module_unload, cuModuleUnload, , 2000, false, (cu_module module))                        \
        X(module_get_function, cuModuleGetFunction, , 2000, false,                                 \
          (cu_function * ret, cu_module module, const char *name))                                 \
        X(launch, cuLaunchKernel, , 4000, false,                                                   \
          (cu_function f, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,     \
           unsigned block_y, unsigned block_z, unsigned shared, cu_stream stream,                  \
           void **arguments, void **extra))

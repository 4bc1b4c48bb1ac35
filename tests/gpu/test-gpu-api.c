/* SPDX-License-Identifier: Apache-2.0 */
/* What client/gpu/cuda-api.h declares is what a toolkit's cuda.h has. The compiler is the test. */
#include <assert.h>

#include <cuda.h>
#include <cudaTypedefs.h>

#include "gpu/cuda-api.h"

#define SAME(ours, theirs) static_assert((long long)(ours) == (long long)(theirs), #ours)
SAME(CU_OK, CUDA_SUCCESS);
SAME(CU_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
SAME(CU_ERROR_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME(CU_ERROR_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
SAME(CU_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_DEVICE);
SAME(CU_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT);
SAME(CU_ERROR_INVALID_PTX, CUDA_ERROR_INVALID_PTX);
SAME(CU_ERROR_NOT_READY, CUDA_ERROR_NOT_READY);
SAME(CU_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS);
SAME(CU_ERROR_LAUNCH_OUT_OF_RESOURCES, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
SAME(CU_ERROR_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED);
SAME(CU_ATTRIBUTE_MULTIPROCESSOR_COUNT, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(CU_ATTRIBUTE_UNIFIED_ADDRESSING, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
SAME(CU_STREAM_IS_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
SAME(CU_EVENT_IS_UNTIMED, CU_EVENT_DISABLE_TIMING);
SAME(CU_HOST_REGISTER_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE);
SAME(CU_HOST_REGISTER_MAPPED, CU_MEMHOSTREGISTER_DEVICEMAP);
SAME(CU_HOST_REGISTER_READ_ONLY, CU_MEMHOSTREGISTER_READ_ONLY);
SAME(CU_ACCESS_IN_STREAM_ORDER, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
SAME(CU_COPY_PREFER_OVERLAP, CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE);
SAME(sizeof(cu_result), sizeof(CUresult));
SAME(sizeof(cu_device), sizeof(CUdevice));
SAME(sizeof(cu_address), sizeof(CUdeviceptr));
SAME(sizeof(struct cu_copy_attributes), sizeof(CUmemcpyAttributes));
SAME(offsetof(struct cu_copy_attributes, source), offsetof(CUmemcpyAttributes, srcLocHint));
SAME(offsetof(struct cu_copy_attributes, target), offsetof(CUmemcpyAttributes, dstLocHint));
SAME(offsetof(struct cu_copy_attributes, flags), offsetof(CUmemcpyAttributes, flags));

/* The version is one in which the function got the form that cudaTypedefs.h names after it. */
#define X(member, name, suffix, since, is_needed, parameters)                                      \
        static_assert(sizeof(PFN_##name##_v##since) == sizeof(cu_result(*) parameters), #name);
CU_FUNCTIONS(X)
#undef X

int main(void)
{
        return 0;
}

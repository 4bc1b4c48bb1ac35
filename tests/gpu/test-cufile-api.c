/* SPDX-License-Identifier: Apache-2.0 */
/* The compiler checks that client/gpu/cufile-api.h declares the same as a toolkit's cufile.h. */
#include <assert.h>
#include <stdbool.h>

#include <cufile.h>

#include "gpu/cufile-api.h"

#define SAME(ours, theirs) static_assert((long long)(ours) == (long long)(theirs), #ours)
SAME(CF_OK, CU_FILE_SUCCESS);
SAME(CF_BASE, CUFILEOP_BASE_ERR);
SAME(CF_CUDA_DRIVER_ERROR, CU_FILE_CUDA_DRIVER_ERROR);
SAME(CF_DRIVER_ALREADY_OPEN, CU_FILE_DRIVER_ALREADY_OPEN);
SAME(CF_HANDLE_IS_FD, CU_FILE_HANDLE_TYPE_OPAQUE_FD);
SAME(sizeof(struct cf_error), sizeof(CUfileError_t));
SAME(offsetof(struct cf_error, cuda_error), offsetof(CUfileError_t, cu_err));
SAME(sizeof(struct cf_descriptor), sizeof(CUfileDescr_t));
SAME(offsetof(struct cf_descriptor, handle), offsetof(CUfileDescr_t, handle));
SAME(offsetof(struct cf_descriptor, operations), offsetof(CUfileDescr_t, fs_ops));
SAME(sizeof(struct cf_properties), sizeof(CUfileDrvProps_t));
SAME(offsetof(struct cf_properties, features), offsetof(CUfileDrvProps_t, fflags));
SAME(offsetof(struct cf_properties, nvfs.control_flags),
     offsetof(CUfileDrvProps_t, nvfs.dcontrolflags));
SAME(sizeof(cf_handle), sizeof(CUfileHandle_t));

int main(void)
{
        return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Loads libcufile.so.0 with dlopen(), so that the library works without it. The driver of cuFile is
 * open once per process, for all its users, and is never closed here: a program that reads its
 * model's weights with cuFile continues to do so after the GPU is detached. */
#include "gpu/cufile.h"

#include <dlfcn.h>
#include <stdio.h>

#include "checked.h"

static const char *const names[] = {
        [1] = "CU_FILE_DRIVER_NOT_INITIALIZED",
        [2] = "CU_FILE_DRIVER_INVALID_PROPS",
        [3] = "CU_FILE_DRIVER_UNSUPPORTED_LIMIT",
        [4] = "CU_FILE_DRIVER_VERSION_MISMATCH",
        [5] = "CU_FILE_DRIVER_VERSION_READ_ERROR",
        [6] = "CU_FILE_DRIVER_CLOSING",
        [7] = "CU_FILE_PLATFORM_NOT_SUPPORTED",
        [8] = "CU_FILE_IO_NOT_SUPPORTED",
        [9] = "CU_FILE_DEVICE_NOT_SUPPORTED",
        [10] = "CU_FILE_NVFS_DRIVER_ERROR",
        [11] = "CU_FILE_CUDA_DRIVER_ERROR",
        [12] = "CU_FILE_CUDA_POINTER_INVALID",
        [13] = "CU_FILE_CUDA_MEMORY_TYPE_INVALID",
        [14] = "CU_FILE_CUDA_POINTER_RANGE_ERROR",
        [15] = "CU_FILE_CUDA_CONTEXT_MISMATCH",
        [16] = "CU_FILE_INVALID_MAPPING_SIZE",
        [17] = "CU_FILE_INVALID_MAPPING_RANGE",
        [18] = "CU_FILE_INVALID_FILE_TYPE",
        [19] = "CU_FILE_INVALID_FILE_OPEN_FLAG",
        [20] = "CU_FILE_DIO_NOT_SET",
        [22] = "CU_FILE_INVALID_VALUE",
        [23] = "CU_FILE_MEMORY_ALREADY_REGISTERED",
        [24] = "CU_FILE_MEMORY_NOT_REGISTERED",
        [25] = "CU_FILE_PERMISSION_DENIED",
        [26] = "CU_FILE_DRIVER_ALREADY_OPEN",
        [27] = "CU_FILE_HANDLE_NOT_REGISTERED",
        [28] = "CU_FILE_HANDLE_ALREADY_REGISTERED",
        [29] = "CU_FILE_DEVICE_NOT_FOUND",
        [30] = "CU_FILE_INTERNAL_ERROR",
        [31] = "CU_FILE_GETNEWFD_FAILED",
        [33] = "CU_FILE_NVFS_SETUP_ERROR",
        [34] = "CU_FILE_IO_DISABLED",
        [36] = "CU_FILE_GPU_MEMORY_PINNING_FAILED",
        [43] = "CU_FILE_NOMEM_ERROR",
        [44] = "CU_FILE_IO_ERROR",
        [45] = "CU_FILE_INTERNAL_BUF_REGISTER_ERROR",
        [47] = "CU_FILE_INVALID_CONTEXT_ERROR",
        [48] = "CU_FILE_NVFS_INTERNAL_DRIVER_ERROR",
};

const char *cufile_error_name(int error)
{
        size_t i = (size_t)error - CF_BASE;

        return error > CF_BASE && i < ARRAY_SIZE(names) && names[i] ? names[i] : "a cuFile error";
}

/* Resolves cuFile's functions. Returns NULL, or the name of a required function that is missing. */
static const char *cufile_resolve(struct cufile *c)
{
        const char *missing = NULL;

#define X(member, name, is_needed, result, parameters)                                             \
        *(void **)&c->member = dlsym(c->dl, #name);                                                \
        if (!c->member && (is_needed) && !missing)                                                 \
                missing = #name;
        CF_FUNCTIONS(X)
#undef X
        return missing;
}

static bool cufile_copies_itself(const struct cufile *c)
{
        struct cf_properties p = { 0 };

        if (!c->get_properties || c->get_properties(&p).error != CF_OK)
                return true;
        return p.nvfs.major_version == 0 && !(p.features & CF_FEATURE_P2P);
}

enum kvcache_gpu_gds_reason cufile_open(struct cufile *ret, char *ret_why, int *ret_error)
{
        struct cufile c = { .dl = dlopen("libcufile.so.0", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) };
        const char *missing;
        struct cf_error e;

        *ret_error = 0;
        if (!c.dl) {
                snprintf(ret_why, CUFILE_TEXT, "the cuFile library cannot be loaded: %s",
                         dlerror());
                return KVCACHE_GPU_GDS_LIBRARY;
        }
        missing = cufile_resolve(&c);
        if (missing) {
                snprintf(ret_why, CUFILE_TEXT, "libcufile lacks %s()", missing);
                cufile_close(&c);
                return KVCACHE_GPU_GDS_SYMBOL;
        }
        e = c.driver_open();
        if (e.error != CF_OK && e.error != CF_DRIVER_ALREADY_OPEN) {
                *ret_error = e.error;
                snprintf(ret_why, CUFILE_TEXT, "cuFile's driver does not open: %s (%d)",
                         cufile_error_name(e.error), e.error);
                cufile_close(&c);
                return KVCACHE_GPU_GDS_DRIVER;
        }
        c.is_compatible = cufile_copies_itself(&c);
        *ret = c;
        return KVCACHE_GPU_GDS_NONE;
}

void cufile_close(struct cufile *c)
{
        if (c->dl)
                dlclose(c->dl);
        *c = (struct cufile){ 0 };
}

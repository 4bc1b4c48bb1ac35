/* SPDX-License-Identifier: Apache-2.0 */
/* Loads libcuda.so.1 with dlopen(), so that the library works without it.
 *
 * Several forms of a function exist under one name. The driver is asked for the form that
 * cuda-api.h declares: by its version through cuGetProcAddress(), or else by its symbol. */
#include "gpu/driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

typedef cu_result (*proc_address)(const char *name, void **ret, int version, uint64_t flags,
                                  int *ret_status);

static int driver_fail(char *ret_why, int error, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
static int driver_fail(char *ret_why, int error, const char *format, ...)
{
        va_list args;

        va_start(args, format);
        vsnprintf(ret_why, DRIVER_TEXT, format, args);
        va_end(args);
        return error;
}

int driver_errno(cu_result result)
{
        switch (result) {
        case CU_OK:
                return 0;
        case CU_ERROR_OUT_OF_MEMORY:
                return -ENOMEM;
        case CU_ERROR_NO_DEVICE:
        case CU_ERROR_INVALID_DEVICE:
                return -ENODEV;
        case CU_ERROR_NOT_SUPPORTED:
                return -EOPNOTSUPP;
        default:
                return -EIO;
        }
}

const char *driver_error_name(const struct driver *d, cu_result result)
{
        const char *name = NULL;

        if (!d->get_error_name || d->get_error_name(result, &name) != CU_OK || !name)
                return "an unknown CUDA error";
        return name;
}

int driver_relax(const struct driver *d)
{
        int mode = CU_CAPTURE_MODE_RELAXED;

        if (!d->exchange_capture_mode || d->exchange_capture_mode(&mode) != CU_OK)
                return CU_CAPTURE_MODE_RELAXED;
        return mode;
}

void driver_restore(const struct driver *d, int mode)
{
        if (d->exchange_capture_mode && mode != CU_CAPTURE_MODE_RELAXED)
                (void)d->exchange_capture_mode(&mode);
}

bool driver_is_capturing(const struct driver *d, cu_stream stream)
{
        int state = CU_CAPTURE_STATE_NONE;
        cu_result c;

        if (!stream || !d->stream_is_capturing)
                return false;
        c = d->stream_is_capturing(stream, &state);
        return c == CU_ERROR_CAPTURE_IMPLICIT || (c == CU_OK && state != CU_CAPTURE_STATE_NONE);
}

static void *driver_find(void *library, proc_address find, const char *name, const char *symbol,
                         int version)
{
        void *f = NULL;
        int status = 0;

        if (!find)
                return dlsym(library, symbol);
        return find(name, &f, version, 0, &status) == CU_OK ? f : NULL;
}

/* Resolves the driver's functions. Returns NULL, or the name of a required function that is
 * missing. */
static const char *driver_resolve(struct driver *d)
{
        proc_address find = (proc_address)dlsym(d->dl, "cuGetProcAddress_v2");
        const char *missing = NULL;

#define X(member, name, suffix, since, is_needed, parameters)                                      \
        *(void **)&d->member = driver_find(d->dl, find, #name, #name #suffix, since);              \
        if (!d->member && (is_needed) && !missing)                                                 \
                missing = #name;
        CU_FUNCTIONS(X)
#undef X
        return missing;
}

int driver_open(struct driver *ret, char *ret_why)
{
        struct driver d = { .dl = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) };
        const char *missing;
        cu_result c;
        int r, mode;

        if (!d.dl)
                return driver_fail(ret_why, -ENODEV, "the CUDA driver cannot be loaded: %s",
                                   dlerror());
        missing = driver_resolve(&d);
        if (missing) {
                driver_close(&d);
                return driver_fail(ret_why, -ENOSYS,
                                   "the CUDA driver lacks %s(): CUDA 11.0 or later is needed",
                                   missing);
        }
        mode = driver_relax(&d);
        c = d.init(0);
        if (c == CU_OK)
                c = d.driver_get_version(&d.version);
        driver_restore(&d, mode);
        if (c != CU_OK) {
                r = driver_fail(ret_why, driver_errno(c), "the CUDA driver cannot be used: %s (%d)",
                                driver_error_name(&d, c), c);
                driver_close(&d);
                return r;
        }
        *ret = d;
        return 0;
}

void driver_close(struct driver *d)
{
        if (d->dl)
                dlclose(d->dl);
        *d = (struct driver){ 0 };
}
